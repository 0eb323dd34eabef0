"""Several runs in place of one: the same engine twice, or several instances of it that vote."""

from triptych.tiers.redundancy.engine import MOST_INSTANCES, Mode, Record, RedundantEngine, check_time, redundant
from triptych.tiers.redundancy.vote import CLOSE, EXACT, Tolerance, differences, vote

__all__ = [
    "CLOSE",
    "EXACT",
    "MOST_INSTANCES",
    "Mode",
    "Record",
    "RedundantEngine",
    "Tolerance",
    "check_time",
    "differences",
    "redundant",
    "vote",
]
