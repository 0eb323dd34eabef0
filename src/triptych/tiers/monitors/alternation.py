"""Alternation: each picture is like the one before the last and unlike the last. Two cameras write to one topic.

A vehicle that moves sees every picture most like its neighbour in time. Compared are correlations of the blocks' levels
within each row, so that neither lamps that flicker matter nor the sky above every road; a camera that shakes changes
too little.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triptych.tiers.monitors.picture import Picture

LEAST_UNLIKE = 0.05
"""1 - correlation below which two pictures count as alike: a camera that shakes stays below 0.02."""

Levels = npt.NDArray[np.float64]


class Alternation:
    """Share 0..1 of what is new since the last picture that was there in the one before it; 0 before the third."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._last: Levels | None = None
        self._before: Levels | None = None

    def __call__(self, picture: Picture) -> float:
        now = _standard(picture)
        before, last = self._before, self._last
        self._before, self._last = last, now
        if now is None or last is None or before is None or not now.shape == last.shape == before.shape:
            return 0.0
        unlike_last, unlike_before = 1.0 - float(now @ last), 1.0 - float(now @ before)
        if unlike_last < LEAST_UNLIKE:
            return 0.0
        return max(0.0, 1.0 - unlike_before / unlike_last)


def _standard(picture: Picture) -> Levels | None:
    """The blocks' levels with mean 0 in each row and norm 1; None for a picture without columns."""
    levels = picture.blocks.astype(np.float64)
    if levels.shape[1] < 2:
        return None
    levels -= levels.mean(axis=1, keepdims=True)
    norm = float(np.linalg.norm(levels))
    return levels.ravel() / norm if norm > 0.0 else None
