"""Self-report: what a tier says of itself in its status."""

from __future__ import annotations

from triptych.contract.result import WARNINGS, TierStatus
from triptych.contract.terms import TierState

CLOCK_CODES = frozenset({"clock_step", "future_stamp", "backward_stamp"})
"""What a tier reports of a clock step. We see the step ourselves (``clock.step``): for a moment it excuses these."""
STANDING_CODES = frozenset({"frozen_picture"})
"""What a tier reports of a picture that does not change: no fault while the vehicle stands."""
NO_CODES: frozenset[str] = frozenset()


class SelfReport:
    """Metric ``unhealthy``: 0 while the tier says it is active and healthy, else 1; unknown before the first status."""

    __slots__ = ("_unhealthy", "fault")

    def __init__(self) -> None:
        self._unhealthy: float | None = None
        self.fault = ""

    def observe(self, status: TierStatus, excused: frozenset[str] = NO_CODES) -> bool:
        """Take a valid status; true when the tier is active and healthy, or all that ails it is excused."""
        ailments = set(status.fault.split("; ")) - WARNINGS
        healthy = status.healthy or (bool(ailments) and ailments <= excused)
        well = status.state is TierState.ACTIVE and healthy
        self._unhealthy = 0.0 if well else 1.0
        self.fault = status.fault
        return well

    def unhealthy(self, now_ns: int) -> float | None:
        return self._unhealthy
