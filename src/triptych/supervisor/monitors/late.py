"""Late: results that came after their budget, and answers given in place of an inference that missed it."""

from __future__ import annotations


class Late:
    """Metric ``late_n``: consecutive inferences that were late; unknown before the first.

    Results that are due to missing frames do not count either way.

    Args:
        limit_s: the tier's budget plus what transport may take.
    """

    __slots__ = ("_limit_s", "_run")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._run: int | None = None

    def observe(self, age_s: float) -> None:
        """Age of a fresh result at receipt, infinity for a missed deadline; NaN counts as late."""
        self._run = 0 if age_s <= self._limit_s else (self._run or 0) + 1

    def late_n(self, now_ns: int) -> float | None:
        return self._run
