"""The minimal risk manoeuvre, and how fast a speed limit may rise again."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from triptych.supervisor.config import SupervisorConfig


@dataclass(frozen=True, slots=True)
class Manoeuvre:
    """One manoeuvre: where it began.

    Attributes:
        start_ns: monotonic time.
        start_mps: speed then; NaN when unknown.
        pull_over: the lane may be left: tier 1 has been seeing all the time.
    """

    start_ns: int = 0
    start_mps: float = nan
    pull_over: bool = False

    def deceleration_mps2(self, now_ns: int, speed_mps: float, config: SupervisorConfig) -> float:
        """How hard to brake now: the target, and more (up to the greatest) if the vehicle stays above the profile.

        With unknown speed the target is kept.
        """
        target, greatest = config.manoeuvre_deceleration_mps2, config.manoeuvre_deceleration_max_mps2
        planned_mps = self.start_mps - target * (now_ns - self.start_ns) / 1e9
        if planned_mps < 0.0:
            planned_mps = 0.0
        over = (speed_mps - planned_mps) / config.manoeuvre_excess_mps - 1.0
        if not over > 0.0:
            return target
        return target + (greatest - target) * min(1.0, over)


def next_limit_mps(limit_mps: float, cap_mps: float, speed_mps: float, rise_mps: float) -> float:
    """The limit to command: down to the cap at once, up from the greater of limit and speed by at most ``rise_mps``."""
    base_mps = speed_mps if speed_mps > limit_mps else limit_mps
    return min(cap_mps, base_mps + rise_mps)
