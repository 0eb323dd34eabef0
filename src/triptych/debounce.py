"""A level against its limit, for so long: what pictures and lidar scans are watched with. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Debounced(Generic[T]):
    """One measure with its limit and debounce.

    Args:
        code: what it says when at fault.
        measure: a level that grows with danger, of a picture or scan; called once for each, in order.
        limit: at fault above it; NaN always is.
        needed: in a row that must be at fault before it speaks.
    """

    __slots__ = ("_limit", "_measure", "_needed", "_run", "code")

    def __init__(self, code: str, measure: Callable[[T], float], limit: float, needed: int) -> None:
        self.code, self._measure, self._limit, self._needed = code, measure, limit, needed
        self._run = 0

    def observe(self, seen: T) -> str:
        """The code, or empty."""
        self._run = 0 if self._measure(seen) <= self._limit else self._run + 1
        return self.code if self._run >= self._needed else ""
