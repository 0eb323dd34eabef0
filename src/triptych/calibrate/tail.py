"""A limit that is exceeded rarely enough, with confidence, by a level that was only seen for a while.

Nothing is assumed of the level's distribution. Time is cut into blocks; a block is at fault when the level stays above
the limit for the monitor's debounce somewhere in it. If at most ``k`` of ``n`` blocks exceed the ``k + 1``-th largest,
the true share that does is below ``p`` with the confidence ``P(Binomial(n, p) > k)`` (S. S. Wilks, "Determination of
sample sizes for setting tolerance limits", 1941; the bound of C. Clopper and E. Pearson, 1934, read the other way). So
a rate can only be promised for recordings long enough to have shown it: for no alarm in them, about three hours per
alarm in an hour at 95 %.

Blocks are taken as independent. Those of one drive are not quite: many short drives say more than a long one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract import InputError

CONFIDENCE = 0.95
BLOCK_S = 10.0
"""Alarms within one block are one alarm: nobody is told of the second before the first is over."""

Levels = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tail:
    """A limit and what supports it.

    Attributes:
        limit: in the level's unit; at fault above it.
        usual: median of the level.
        blocks: independent looks at it.
        exceeded: blocks in which it was exceeded.
        bound_per_h: upper confidence bound of the false alarms per hour.
    """

    limit: float
    usual: float
    blocks: int
    exceeded: int
    bound_per_h: float


def find_limit(
    drives: Sequence[Levels],
    rate_hz: float,
    debounce: int,
    false_alarms_per_h: float,
    *,
    block_s: float = BLOCK_S,
    confidence: float = CONFIDENCE,
    what: str = "level",
) -> Tail:
    """The lowest limit that keeps to the wanted rate.

    Args:
        drives: the level at each frame of each drive, NaN worse than any number.
        rate_hz: frames per second.
        debounce: frames in a row above the limit that make an alarm.
        false_alarms_per_h: wanted at most.
        block_s: length of a block; not shorter than the monitor's memory.
        confidence: that the rate is kept.
        what: named in errors.

    Raises:
        InputError: the drives are too short to support the rate; says how long they must be.
    """
    needed = blocks_needed(false_alarms_per_h, block_s, confidence, what)
    share = false_alarms_per_h * block_s / 3600.0
    peaks = np.sort(np.concatenate([np.zeros(0), *(block_peaks(d, rate_hz, debounce, block_s) for d in drives)]))[::-1]
    n, alpha = len(peaks), 1.0 - confidence
    if n < needed:
        raise too_short(n * block_s, needed, block_s, false_alarms_per_h, confidence, what)
    k = 0
    while binomial_at_most(k + 1, n, share) <= alpha:
        k += 1
    limit = float(peaks[k])
    exceeded = int(np.count_nonzero(peaks > limit))
    bound = upper_bound(exceeded, n, confidence) * 3600.0 / block_s
    return Tail(limit, float(np.median(np.concatenate(list(drives)))), n, exceeded, bound)


def blocks_needed(
    false_alarms_per_h: float, block_s: float = BLOCK_S, confidence: float = CONFIDENCE, what: str = "level"
) -> int:
    """How many blocks without an alarm support the wanted rate.

    Raises:
        InputError: a rate of an alarm per block or more, or of none.
    """
    share = false_alarms_per_h * block_s / 3600.0
    if not 0.0 < share < 1.0:
        raise InputError(
            f"must be above 0 and below {3600.0 / block_s:g} for {what}",
            field="false_alarms_per_hour",
            value=false_alarms_per_h,
            remedy="name a rate that a driver would accept",
        )
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-share))


def too_short(
    seen_s: float,
    needed: int,
    block_s: float,
    false_alarms_per_h: float,
    confidence: float = CONFIDENCE,
    what: str = "level",
) -> InputError:
    """What to say to recordings of ``seen_s`` where ``needed`` blocks are."""
    return InputError(
        f"{seen_s / 60:.1f} min in drives of at least {block_s:g} s cannot support "
        f"{false_alarms_per_h:g} false alarms per hour of {what} at {confidence:.0%} confidence",
        field="recordings",
        remedy=f"record at least {math.ceil(needed * block_s / 60)} min, or accept a higher rate",
    )


def block_peaks(levels: Levels, rate_hz: float, debounce: int, block_s: float = BLOCK_S) -> Levels:
    """Per whole block the highest level that was kept for ``debounce`` frames in a row, one entry a block.

    Frames before the block count for its beginning, as they do for the monitor.
    """
    known = np.where(np.isnan(levels), np.inf, levels)
    kept = np.full(len(known), -np.inf)
    if len(known) >= debounce:
        kept[debounce - 1 :] = np.lib.stride_tricks.sliding_window_view(known, debounce).min(axis=1)
    size = max(1, round(block_s * rate_hz))
    count = len(known) // size
    return kept[: count * size].reshape(count, size).max(axis=1) if count else np.zeros(0)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """P(Binomial(n, p) <= k)."""
    if k >= n:
        return 1.0
    if p <= 0.0 or p >= 1.0:
        return float(p <= 0.0)
    log_p, log_q, whole = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    terms = (whole - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q for i in range(k + 1))
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def upper_bound(k: int, n: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson bound of a share of which ``k`` in ``n`` were seen."""
    if k >= n:
        return 1.0
    low, high = k / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_at_most(k, n, middle) > 1.0 - confidence else (low, middle)
    return high
