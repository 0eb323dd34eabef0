"""A world of boxes on a road, and a spinning lidar in it: rays are cast, nothing of the code under test is used."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from triptych.contract import Obstacle, PointCloud
from triptych.lidar import LidarConfig

BEAMS_32 = np.linspace(-25.0, 3.0, 32)
BEAMS_16 = np.linspace(-15.0, 15.0, 16)
"""Elevations in degrees; the second are those of a VLP-16."""
RANGE_M = 100.0


def above(**values: Any) -> LidarConfig:
    """A configuration whose sensor stands above base_link, so that both have one x and y."""
    return LidarConfig(**{"x_m": 0.0, "body_front_m": 2.0, "body_rear_m": 2.0, **values})


@dataclass(frozen=True)
class Box:
    """In ``base_link`` but for z, which counts from the road beneath its middle."""

    x0: float
    x1: float
    y0: float
    y1: float
    z0: float = 0.0
    z1: float = 1.5


def car(x: float, y: float, length: float = 4.5, width: float = 1.8, top: float = 1.5) -> Box:
    """Its rear bumper at x, its middle at y; a hand's breadth of air beneath."""
    return Box(x, x + length, y - width / 2, y + width / 2, 0.2, top)


@dataclass(frozen=True)
class Road:
    """z = crossfall * y, and beyond ``from_m`` ahead also slope * (x - from_m)."""

    slope: float = 0.0
    from_m: float = 0.0
    crossfall: float = 0.0

    def z(self, x: float, y: float) -> float:
        return self.crossfall * y + self.slope * max(0.0, x - self.from_m)


def cast(
    boxes: tuple[Box, ...] = (),
    road: Road | None = Road(),
    *,
    beams: np.ndarray = BEAMS_32,
    columns: int = 900,
    noise_m: float = 0.01,
    seed: int = 0,
    z_m: float = 1.8,
    nose_down_deg: float = 0.0,
) -> np.ndarray:
    """(beams * columns, 3) float32 in the frame of a sensor ``z_m`` above the road; NaN where no beam came back."""
    elevation, azimuth = np.meshgrid(np.radians(beams), np.arange(columns) * 2 * np.pi / columns, indexing="ij")
    rays = np.stack(
        [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)], -1
    ).reshape(-1, 3)
    tilt = np.radians(nose_down_deg)
    turned = np.stack(
        [
            rays[:, 0] * np.cos(tilt) + rays[:, 2] * np.sin(tilt),
            rays[:, 1],
            rays[:, 2] * np.cos(tilt) - rays[:, 0] * np.sin(tilt),
        ],
        -1,
    )
    distance = np.full(len(rays), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        if road is not None:
            for slope, from_m in ((0.0, 0.0), (road.slope, road.from_m)):
                t = (-slope * from_m - z_m) / (turned[:, 2] - slope * turned[:, 0] - road.crossfall * turned[:, 1])
                hit = (t > 0) & ((t * turned[:, 0] > road.from_m) == (slope != 0.0)) if road.slope else t > 0
                distance = np.where(hit, np.minimum(distance, t), distance)
        for box in boxes:
            base = road.z((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) if road else 0.0
            low = (np.array([box.x0, box.y0, base + box.z0 - z_m])) / turned
            high = (np.array([box.x1, box.y1, base + box.z1 - z_m])) / turned
            enter, leave = np.minimum(low, high).max(1), np.maximum(low, high).min(1)
            distance = np.where((enter <= leave) & (enter > 0), np.minimum(distance, enter), distance)
    distance += np.random.default_rng(seed).normal(0.0, noise_m, len(rays))
    distance[~(distance <= RANGE_M)] = np.nan
    return (rays * distance[:, None]).astype(np.float32)


def raised(points: np.ndarray, z_m: float = 1.8) -> np.ndarray:
    """From the frame of an upright sensor to ``base_link``."""
    return points + np.array([0.0, 0.0, z_m], np.float32)


def plain(side_m: float = 20.0, ahead_m: float = 60.0, spacing_m: float = 0.4) -> np.ndarray:
    """(N, 3) float32 in ``base_link``: returns from a flat road all over, at z = 0 exactly."""
    x, y = np.meshgrid(np.arange(-10.0, ahead_m, spacing_m), np.arange(-side_m, side_m, spacing_m))
    return np.column_stack((x.ravel(), y.ravel(), np.zeros(x.size))).astype(np.float32)


def cluster(x: float, y: float, z: float, points_n: int = 10) -> np.ndarray:
    """(points_n, 3) float32 within 10 cm."""
    along = np.linspace(0.0, 0.1, points_n)
    return np.column_stack((np.full(points_n, x), y + along, np.full(points_n, z))).astype(np.float32)


def clouds(scans: list[np.ndarray], period_ns: int = 100_000_000) -> list[PointCloud]:
    """Scans in a row, a tenth of a second apart."""
    return [PointCloud(points, stamp_ns=k * period_ns) for k, points in zip(count(1), scans)]


def boxed(points: np.ndarray, obstacles: tuple[Obstacle, ...]) -> np.ndarray:
    """(N,) bool: whether a point lies in the box of an obstacle, seen from above."""
    inside = np.zeros(len(points), np.bool_)
    x, y = points[:, 0], points[:, 1]
    for o in obstacles:
        inside |= (x >= o.x_min_m) & (x <= o.x_max_m) & (y >= o.y_min_m) & (y <= o.y_max_m)
    return inside
