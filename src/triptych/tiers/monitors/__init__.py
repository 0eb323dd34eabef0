"""Monitors of what a tier sees. Statistics of each picture it takes go in, codes for its self-report come out.

One file each for what can go wrong, :mod:`.picture` for the statistics they share, :mod:`.watch` for the table of all.
Whether a code makes the tier unhealthy is said by :data:`triptych.contract.result.WARNINGS`.
"""

from triptych.tiers.monitors.config import InputConfig
from triptych.tiers.monitors.picture import Picture, look
from triptych.tiers.monitors.watch import MONITORS, InputWatch, MonitorRow

__all__ = ["MONITORS", "InputConfig", "InputWatch", "MonitorRow", "Picture", "look"]
