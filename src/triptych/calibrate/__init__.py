"""Limits from recordings: how high does a monitor's level rise when nothing is wrong, and how sure is that?

:mod:`.levels` plays recordings through the monitors, :mod:`.tail` turns what they measured into a limit with a bound on
its false alarms, :mod:`.limits` does so for all of them, :mod:`.output` writes the files the nodes start with.
"""
