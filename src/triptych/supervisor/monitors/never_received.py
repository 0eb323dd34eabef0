"""Never received: an expected input that did not come within the start-up grace."""

from __future__ import annotations


class NeverReceived:
    """Metric ``overdue_s``: seconds past the grace without a first valid message; unknown before, 0 afterwards.

    Runs on our own clock: a middleware's deadline event never fires for a publisher that never started.
    """

    __slots__ = ("_due_ns", "received")

    def __init__(self) -> None:
        self.received = False
        self._due_ns: int | None = None

    def start(self, now_ns: int, grace_s: float) -> None:
        """The grace begins."""
        self._due_ns = now_ns + int(grace_s * 1e9)

    def overdue_s(self, now_ns: int) -> float | None:
        if self.received:
            return 0.0
        if self._due_ns is None or now_ns <= self._due_ns:
            return None
        return (now_ns - self._due_ns) / 1e9
