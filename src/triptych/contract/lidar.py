"""What a lidar gives, and what is made of it: ``msg/Obstacles``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract.errors import InputError

MAX_POINTS = 1_000_000
MAX_OBSTACLES = 64
MAX_SCAN_FAULT = 160


@dataclass(frozen=True, slots=True, eq=False)
class PointCloud:
    """One turn of a lidar.

    Attributes:
        points: (N, 3) float32: x, y, z in metres in ``frame_id``, REP-103 axes (x forward, y left, z up). A beam that
            did not come back has NaN, or is left out.
        stamp_ns: source stamp.
        frame_id: REP-105 frame of the sensor.

    Raises:
        InputError: another shape or dtype, or more than a million points.
    """

    points: npt.NDArray[np.float32]
    stamp_ns: int
    frame_id: str = "lidar"

    def __post_init__(self) -> None:
        points = self.points
        if points.dtype != np.float32 or points.ndim != 2 or points.shape[1] != 3 or len(points) > MAX_POINTS:
            raise InputError(
                f"points must be (N, 3) float32, N at most {MAX_POINTS}",
                field="points",
                value=f"{points.shape} {points.dtype}",
            )


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that stands on the road or beside it: its box along the axes of ``base_link``, metres.

    Attributes:
        x_min_m, x_max_m: forward.
        y_min_m, y_max_m: left.
        z_max_m: its highest point above the road, as far as the lidar looks.
        points_n: lidar returns.
    """

    x_min_m: float
    x_max_m: float
    y_min_m: float
    y_max_m: float
    z_max_m: float
    points_n: int


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What one scan says; at most 64 obstacles, nearest first.

    Attributes:
        stamp_ns: of the scan.
        frame_id: of the boxes: ``base_link``, on the road beneath the vehicle's origin, REP-103 axes.
        points_n: valid returns in the scan.
        reach_m: nothing further than this is reported.
        healthy: whether the scan may be relied upon; what is wrong is in ``fault``, several codes separated by "; ".
    """

    stamp_ns: int
    frame_id: str
    points_n: int
    reach_m: float
    healthy: bool
    fault: str
    obstacles: tuple[Obstacle, ...] = ()
    sequence_counter: int = 0
    crc: int = 0
