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
        "lost_n",
        "crc_n",
        "invalid_n",
        "unhealthy",
        "default_n",
        "uncertainty",
    }
)

METRICS: dict[str, frozenset[str]] = {
    **{tier.key: _TIER_METRICS for tier in Tier},
    Tier.DETECTOR.key: _TIER_METRICS | {"content_s"},
    "odometry": frozenset({"overdue_s", "age_s", "invalid_n", "jump_n"}),
    "driver": frozenset({"overdue_s", "age_s", "crc_n", "absent", "inattentive"}),
    "supervisor": frozenset({"loop_gap_s", "late_n"}),
    "clock": frozenset({"step_s"}),
    "machine": frozenset({"memory_used", "memory_growth", "temperature_c", "disk_used"}),
}
"""What a row of the fault table may refer to: metrics by source."""

__all__ = ["METRICS"]
