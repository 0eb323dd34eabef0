"""Template of the report; a package, so that every way of installing carries it."""
