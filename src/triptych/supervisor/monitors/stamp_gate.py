"""Refuses messages whose stamp repeats, runs backwards, lies in the future or is too old. Not a monitor itself."""

from __future__ import annotations


class StampGate:
    """Remembers the last accepted stamp.

    Args:
        max_age_s: older messages are no news.
        future_tolerance_s: how far ahead of our clock a stamp may be.
    """

    __slots__ = ("_future_ns", "_last_ns", "_max_age_ns")

    def __init__(self, max_age_s: float, future_tolerance_s: float) -> None:
        self._max_age_ns, self._future_ns = int(max_age_s * 1e9), int(future_tolerance_s * 1e9)
        self._last_ns: int | None = None

    def accept(self, stamp_ns: int, received_stamp_ns: int, judge_age: bool) -> bool:
        """Whether a message is news; ``judge_age`` is false right after a clock step, when stamps mean little."""
        if judge_age:
            age_ns = received_stamp_ns - stamp_ns
            if not -self._future_ns <= age_ns <= self._max_age_ns:
                return False
            if self._last_ns is not None and stamp_ns <= self._last_ns:
                return False
        self._last_ns = stamp_ns
        return True

    def restart(self) -> None:
        """Forget the last stamp: the clock of stamps was stepped."""
        self._last_ns = None
