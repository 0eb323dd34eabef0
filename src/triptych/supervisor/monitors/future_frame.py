"""Future frame: a source stamp ahead of our clock. Such a result is refused: its age cannot be known."""

from __future__ import annotations


class FutureFrame:
    """Metric ``future_n``: consecutive results with a stamp from the future; unknown before the first result.

    Args:
        tolerance_s: how far ahead a stamp may be (clock jitter).
    """

    __slots__ = ("_run", "_tolerance_s")

    def __init__(self, tolerance_s: float) -> None:
        self._tolerance_s = tolerance_s
        self._run: int | None = None

    def observe(self, age_s: float) -> bool:
        """Age of the frame at receipt, negative for the future; true when it may be used."""
        usable = age_s >= -self._tolerance_s
        self._run = 0 if usable else (self._run or 0) + 1
        return usable

    def future_n(self, now_ns: int) -> float | None:
        return self._run
