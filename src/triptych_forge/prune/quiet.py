"""Whether a machine was quiet while it was measured.

Other programs share caches, memory and clock with the one that is measured, even where only its own processor time is
counted. Two signs of them are looked at, as each sees what the other does not:

* the *load*: the average number of other runnable programs over the last minute, per logical core, before and after.
  A load that lasts slows all repetitions alike, and no comparison of them can show it.
* the *spread*: how far apart the medians of the same shape lie in two or more passes, minutes apart; the median over
  all shapes. Load that comes and goes, and a clock that changes, show here and not in a load average.

A sign that cannot be had counts as a bad one.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Sequence

from triptych.contract import ConfigError

MOST_LOAD = 0.1
"""Other runnable programs per logical core: on two cores one that runs for a fifth of the time."""
MOST_SPREAD = 0.1
"""Of the greatest by the least median of a shape, less 1, at half of the shapes. The least median is what a profile
keeps: where half of the shapes repeat within a tenth, it is far more exact than interpolation between shapes."""
LOAD_MEMORY_S = 60.0
"""The first load average forgets with this time constant."""
ANYWAY = "--even-if-busy"


def others_load(threads: int = 0, elapsed_s: float = 0.0) -> float | None:
    """Average number of other runnable programs per logical core over the last minute; None where nobody tells.

    Args:
        threads: that this program has kept busy, which do not count.
        elapsed_s: for how long it has.
    """
    try:
        load: float = os.getloadavg()[0]
    except (OSError, AttributeError):  # not on every system
        return None
    own = threads * (1.0 - math.exp(-elapsed_s / LOAD_MEMORY_S))
    others: float = max(0.0, load - own) / (os.cpu_count() or 1)
    return round(others, 4)


def spread_of(passes: Iterable[Sequence[float]]) -> float | None:
    """Median over shapes of (greatest by least time, less 1); None with fewer than two passes.

    Args:
        passes: each the times of the same shapes in the same order, all above 0.
    """
    shapes = list(zip(*passes, strict=True))
    if not shapes or len(shapes[0]) < 2:
        return None
    return round(statistics.median(max(times) / min(times) - 1.0 for times in shapes), 4)


def busy_load(load: float | None, when: str = "") -> str:
    """Why this load is too much; empty if it is not. ``when``: behind the figure."""
    if load is None:
        return "nobody tells this machine's load"
    if not load <= MOST_LOAD:
        return f"other programs load it with {load:.2f} per core{when}, more than {MOST_LOAD}"
    return ""


def busy_spread(spread: float | None) -> str:
    """Why this spread is too much; empty if it is not."""
    if spread is None:
        return "it was measured once only, which tells nothing about how steady it is"
    if not spread <= MOST_SPREAD:
        return f"half of the repeated measurements differ by more than {spread:.0%}, and {MOST_SPREAD:.0%} may be"
    return ""


def refuse_busy(*reasons: str) -> None:
    """Stop if there is any reason.

    Raises:
        ConfigError: with all reasons.
    """
    if any(reasons):
        raise ConfigError(
            "is busy: " + "; ".join(reason for reason in reasons if reason),
            where="this machine",
            remedy=f"stop other programs, wait a few minutes and try again, or take what comes with {ANYWAY}",
        )
