"""Occlusion: part of the view has had no texture for a while, though the rest has it: dirt, a leaf, a sheet of ice.

One picture does not tell a covered lens from an empty road or a clear sky. Time does: as the vehicle moves, markings,
shadows and vehicles pass through every part of the road. The sky may stay empty, so it is the lower half that counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from triptych.tiers.monitors.picture import Picture

STRIPS = 4
"""The lower half is judged in so many parts side by side; a covered one is enough."""
TEXTURE_SHARE = 0.1
"""The rest of the picture has texture when at least this share of its blocks does; a blank picture is blurred, not
covered."""


class Occlusion:
    """Share 0..1 of the worst strip of the lower half that has been without texture for ``frames`` pictures.

    Args:
        frames: pictures in a row that a block must be without texture.
    """

    __slots__ = ("_frames", "_run")

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._run: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)

    def __call__(self, picture: Picture) -> float:
        flat = picture.flat
        if flat.shape != self._run.shape:
            self._run = np.zeros(flat.shape, np.int64)
        self._run = np.where(flat, self._run + 1, 0)
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
