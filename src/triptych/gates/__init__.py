"""Gates for continuous integration: named limits on a run, and golden files of what was decided."""
