"""Self-report: what a tier says of itself in its status."""

from __future__ import annotations

from triptych.contract.result import TierStatus
from triptych.contract.terms import TierState


class SelfReport:
    """Metric ``unhealthy``: 0 while the tier says it is active and healthy, else 1; unknown before the first status."""

    __slots__ = ("_unhealthy", "fault")

    def __init__(self) -> None:
        self._unhealthy: float | None = None
        self.fault = ""

    def observe(self, status: TierStatus) -> bool:
        """Take a valid status; true when the tier is active and healthy."""
        well = status.state is TierState.ACTIVE and status.healthy
        self._unhealthy = 0.0 if well else 1.0
        self.fault = status.fault
        return well

    def unhealthy(self, now_ns: int) -> float | None:
        return self._unhealthy
