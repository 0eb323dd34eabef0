"""The monitors: each turns what was received, and when, into one or more metrics.

A metric is a number that grows with danger, its unit in its name (``_s`` seconds, ``_n`` a count, ``_c`` degrees
Celsius; without suffix a share 0..1). Durations grow with time alone; every other metric becomes known or grows
through a message of its source only, so that nobody has to look at it in between. ``None`` means unknown, which is
never OK; NaN is worse than any threshold. What is too much, and what follows from it, is said by the fault table
alone. Monitors read no clock: time is an argument (monotonic nanoseconds).
"""

from triptych.contract.terms import Tier

_TIER_METRICS = frozenset(
    {
        "overdue_s",
        "gap_s",
        "late_n",
        "heartbeat_s",
        "repeated_n",
        "future_n",
        "foreign_n",
        "lost_n",
        "crc_n",
        "invalid_n",
        "unhealthy",
        "default_n",
        "uncertainty",
    }
)

ADVISERS_SAY = frozenset(
    {"entropy_n", "perplexity", "inconsistency", "repetition", "unchanging_n", "disagreement_n", "very_late_n"}
)
"""Metrics of what a VLM tier says, and how late. They make its advice doubtful, not void: it may still slow us down."""

METRICS: dict[str, frozenset[str]] = {
    **{tier.key: _TIER_METRICS | ADVISERS_SAY for tier in Tier},
    Tier.DETECTOR.key: _TIER_METRICS | {"content_s", "implausible_n", "unsteady_n", "unchanging_n"},
    "odometry": frozenset({"overdue_s", "age_s", "invalid_n", "jump_n"}),
    "driver": frozenset({"overdue_s", "age_s", "crc_n", "absent", "inattentive"}),
    "lidar": frozenset({"overdue_s", "age_s", "crc_n", "invalid_n", "unhealthy", "unseen_n", "unreturned_n"}),
    "safety_core": frozenset({"overdue_s", "age_s", "crc_n", "own_stop"}),
    "supervisor": frozenset({"loop_gap_s", "late_n"}),
    "clock": frozenset({"step_s"}),
    "machine": frozenset({"memory_used", "memory_growth", "temperature_c", "disk_used"}),
}
"""What a row of the fault table may refer to: metrics by source."""

__all__ = ["ADVISERS_SAY", "METRICS"]
