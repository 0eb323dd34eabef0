"""What can become of a lidar scan. Points are (N, 3) float32: x, y, z in metres in the sensor's frame."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, radians, sin

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float32]
COVERED_DEG = (-25.0, 25.0)
KNOCKED_DEG = 6.0
DUST_N, DUST_M = 1500, 8.0


def _covered(points: Points, rng: np.random.Generator) -> Points:
    """A sticker in front of the middle of the lens: nothing comes back from straight ahead."""
    bearing_deg = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
    left: Points = points[(bearing_deg < COVERED_DEG[0]) | (bearing_deg > COVERED_DEG[1])]
    return left


def _infinite(points: Points, rng: np.random.Generator) -> Points:
    spoilt: Points = points.copy()
    spoilt[::2] = np.inf
    return spoilt


def _knocked(points: Points, rng: np.random.Generator) -> Points:
    """The sensor was pushed downwards by some degrees, so that the road seems to rise."""
    c, s = cos(radians(KNOCKED_DEG)), sin(radians(KNOCKED_DEG))
    turn = np.array([[c, 0.0, -s], [0.0, 1.0, 0.0], [s, 0.0, c]], np.float32)
    turned: Points = points @ turn.T
    return turned


def _dust(points: Points, rng: np.random.Generator) -> Points:
    """A cloud that stands in front of the vehicle, and that no camera shows."""
    x = rng.uniform(3.0, DUST_M, DUST_N)
    cloud = np.stack([x, rng.uniform(-1.5, 1.5, DUST_N), rng.uniform(-1.6, 0.6, DUST_N)], axis=1)
    return np.concatenate([points, cloud.astype(np.float32)])


SCANS: dict[str, Callable[[Points, np.random.Generator], Points]] = {
    "frozen": lambda points, rng: points,
    "nothing": lambda points, rng: points[:0],
    "covered": _covered,
    "infinite": _infinite,
    "knocked": _knocked,
    "dust": _dust,
}
"""By name, see :class:`triptych.injection.faults.Scan`."""
