"""What obstacles and health watch share: one scan, sorted into what came back and what did not, in ``base_link``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract import PointCloud
from triptych.lidar.config import LidarConfig

Points = npt.NDArray[np.float32]
ABSURD_RANGE_M = 1000.0
"""No automotive lidar sees this far."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A cloud and its statistics.

    Attributes:
        cloud: as it came.
        moving: whether the vehicle moves, or may.
        base: (M, 3) float32 valid returns in ``base_link``, metres: finite, at least ``least_range_m`` and at most
            1000 m from the sensor.
        invalid_share: of the beams that came back, 0..1: infinite, beyond 1000 m, or all in one point.
    """

    cloud: PointCloud
    moving: bool
    base: Points
    invalid_share: float


def look(cloud: PointCloud, config: LidarConfig, moving: bool = True) -> Scan:
    """Sort a cloud. NaN, and what is nearer than ``least_range_m``, is a beam that did not come back, not a fault."""
    points = cloud.points
    with np.errstate(over="ignore", invalid="ignore"):
        range_squared = np.einsum("ij,ij->i", points, points)
        valid = (range_squared >= config.least_range_m**2) & (range_squared <= ABSURD_RANGE_M**2)
        # An overflow of the square is beyond 1000 m; inf - inf cannot occur in a sum of squares, so NaN is NaN.
        absurd_n = int(np.count_nonzero(range_squared > ABSURD_RANGE_M**2))
    returns = points[valid]
    came_back_n = len(returns) + absurd_n
    one_point = len(returns) > 1 and bool((returns == returns[0]).all())
    return Scan(
        cloud=cloud,
        moving=moving,
        base=to_base(returns, config),
        invalid_share=1.0 if one_point else absurd_n / came_back_n if came_back_n else 0.0,
    )


def to_base(points: Points, config: LidarConfig) -> Points:
    """(N, 3) float32 from the sensor's frame to ``base_link``; what is not finite does not become finite.

    Rotation about fixed axes, roll, pitch, yaw in this order (REP-103).
    """
    yaw, pitch, roll = np.radians((config.yaw_deg, config.pitch_deg, config.roll_deg))
    (sa, ca), (sb, cb), (sc, cc) = ((np.sin(a), np.cos(a)) for a in (yaw, pitch, roll))
    rotation = np.array(
        [
            [ca * cb, ca * sb * sc - sa * cc, ca * sb * cc + sa * sc],
            [sa * cb, sa * sb * sc + ca * cc, sa * sb * cc - ca * sc],
            [-sb, cb * sc, cb * cc],
        ],
        np.float32,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        base: Points = points @ rotation.T + np.array([config.x_m, config.y_m, config.z_m], np.float32)
    return base
