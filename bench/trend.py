"""What a long run is judged by: slope with its interval, drift of a tail, lost and doubled sequence numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

POINTS_MAX = 240
"""Longer series are reduced to medians of blocks: the pairs of points grow with the square."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Change of a value per unit of time, and the interval it lies in; all NaN when it is not known."""

    value: float
    low: float
    high: float


UNKNOWN = Slope(math.nan, math.nan, math.nan)


def slope(times: Sequence[float], values: Sequence[float], confidence: float = 0.95) -> Slope:
    """Slope by Theil and Sen: the median of the slopes of all pairs, so that single steps and outliers do not carry it.

    The interval is Sen's (Estimates of the regression coefficient based on Kendall's tau, JASA 63, 1968, section 6),
    which takes the deviations from the line as independent; medians of blocks bring a long series nearer to that.
    Unknown below four points, and when a value is not finite.

    Args:
        times: of the values, strictly ascending.
        values: as many.
        confidence: of the interval, within 0 and 1.
    """
    t, v = reduced(times), reduced(values)
    n = len(t)
    if n < 4 or len(v) != n or not (np.isfinite(t).all() and np.isfinite(v).all()):
        return UNKNOWN
    i, j = np.triu_indices(n, 1)
    slopes = np.sort((v[j] - v[i]) / (t[j] - t[i]))
    width = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - width) / 2) - 1)
    high = min(len(slopes) - 1, math.ceil((len(slopes) + width) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def reduced(values: Sequence[float], most: int = POINTS_MAX) -> npt.NDArray[np.float64]:
    """At most ``most`` points: medians of blocks of equal length, what is left over at the beginning dropped."""
    array = np.asarray(values, np.float64)
    block = -(-len(array) // most)
    if block <= 1:
        return array
    return np.asarray(np.median(array[len(array) % block :].reshape(-1, block), axis=1), np.float64)


def thirds(rows: Sequence[tuple[float, float]], begin: float, end: float) -> tuple[list[float], list[float]]:
    """Values of the (time, value) rows in the first and in the last third of ``begin`` to ``end``."""
    third = (end - begin) / 3
    first = [value for time, value in rows if begin <= time < begin + third]
    return first, [value for time, value in rows if end - third <= time <= end]


def drift(first: Sequence[float], last: Sequence[float], percentile: float = 99.0) -> float:
    """By what share a percentile of ``last`` is above that of ``first``; below 0 when it fell, NaN when not known."""
    if not first or not last:
        return math.nan
    before, after = (float(np.percentile(np.asarray(x, float), percentile, method="higher")) for x in (first, last))
    return after / before - 1.0 if before > 0.0 and math.isfinite(before) and math.isfinite(after) else math.nan


class SequenceCount:
    """Follows a counter that wraps, and counts what is missing and what came again.

    A number up to half the modulus ahead means that those between were lost; any other is an old one come again, late
    or twice. A sender that skips half the modulus and more at once is out of its reach.

    Args:
        modulus: the counter runs from 0 to one below it.
    """

    def __init__(self, modulus: int = 256) -> None:
        self.modulus = modulus
        self.received = self.lost = self.doubled = 0
        self._newest: int | None = None

    def take(self, counter: int) -> None:
        """The next number received."""
        self.received += 1
        if self._newest is None:
            self._newest = counter
            return
        ahead = (counter - self._newest) % self.modulus
        if not 0 < ahead <= self.modulus // 2:
            self.doubled += 1
            return
        self.lost += ahead - 1
        self._newest = counter

    def take_all(self, counters: Iterable[int]) -> None:
        """Several."""
        for counter in counters:
            self.take(counter)

    def figures(self) -> dict[str, int]:
        """What was counted."""
        return {"received": self.received, "lost": self.lost, "doubled": self.doubled}


def limit(value: float | None, most: float, *, judged: float | None = None) -> dict[str, Any]:
    """A row of the result: value, limit, held; what is not known is not held. ``judged``: what has to be within it."""
    decisive = value if judged is None else judged
    known = decisive is not None and math.isfinite(decisive)
    return {"value": value if known else None, "limit": most, "held": bool(known and decisive <= most)}
