"""What is left of a run: ``result.json`` for machines, ``report.html`` for people."""
