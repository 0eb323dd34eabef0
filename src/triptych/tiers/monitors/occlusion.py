"""Occlusion: part of the view has had no texture for a while, though the rest has it: dirt, a leaf, a sheet of ice.

One picture does not tell a covered lens from an empty road or a clear sky. Motion does: as the vehicle moves, markings,
shadows and vehicles pass through every part of the road. The sky may stay empty, so it is the lower half that counts;
and while nothing moves nothing is learnt, so a vehicle that waits before an empty road is not blind.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import numpy.typing as npt

from triptych.tiers.monitors.picture import BLOCK, Picture

STRIPS = 4
"""The lower half is judged in so many parts side by side; a covered one is enough."""
TEXTURE_SHARE = 0.1
"""The rest of the picture has texture when at least this share of its blocks does; a blank picture is blurred, not
covered."""
MOVING_SHARE = 0.05
"""The picture moves when at least this share of the blocks with texture has another mean level than before."""
LEAST_CHANGE = 1.0
"""Of a block's mean, in grey levels, to count."""
NOISE_CHANGES = 3.0
"""And at least so many standard deviations of what noise alone changes."""


class Occlusion:
    """Share 0..1 of the worst strip of the lower half that has been without texture for ``frames`` moving pictures.

    Args:
        frames: moving pictures in a row that a block must be without texture.
    """

    __slots__ = ("_before", "_frames", "_run")

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._before: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._run: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def _moves(self, picture: Picture) -> bool:
        before, self._before = self._before, picture.blocks
        if before.shape != picture.blocks.shape:
            return False
        noise = picture.noise * sqrt(2.0) / BLOCK  # of the difference of two means of BLOCK² pixels
        changed = np.abs(picture.blocks - before) > max(LEAST_CHANGE, NOISE_CHANGES * noise)
        textured = ~picture.flat
        return bool(np.count_nonzero(changed & textured) > MOVING_SHARE * np.count_nonzero(textured))

    def __call__(self, picture: Picture) -> float:
        flat = picture.flat
        if flat.shape != self._run.shape:
            self._run = np.zeros(flat.shape, np.int64)
        self._run = np.where(flat, self._run + self._moves(picture), 0)
        rows, columns = flat.shape
        if rows < 2 or columns < STRIPS:
            return 0.0
        covered = self._run[rows // 2 :] >= self._frames
        edges = [columns * strip // STRIPS for strip in range(STRIPS + 1)]
        counts = np.add.reduceat(np.count_nonzero(covered, axis=0), edges[:-1])
        sizes = np.diff(edges) * len(covered)
        worst = int(np.argmax(counts / sizes))
        strip = flat[rows // 2 :, edges[worst] : edges[worst + 1]]
        texture = np.count_nonzero(~flat) - np.count_nonzero(~strip)
        return float(counts[worst] / sizes[worst]) if texture >= TEXTURE_SHARE * (flat.size - strip.size) else 0.0
