"""Faults on purpose: into the data, the processes, the clock and the wire of the closed loop, and what came of them.

:mod:`.loop` drives the built-in scenario through tiers, supervisor and safety core on a virtual clock; :mod:`.faults`
is the table of what can be broken; :mod:`.campaign` says what is to be broken when; :mod:`.trial` runs one drive and
judges it; :mod:`.run` runs many; :mod:`.report` counts.
"""
