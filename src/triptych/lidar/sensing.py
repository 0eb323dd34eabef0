"""From a scan to the message: obstacles, and whether they may be relied upon."""

from __future__ import annotations

import math

from triptych.contract import Obstacle, Obstacles, PointCloud
from triptych.contract.lidar import MAX_OBSTACLES
from triptych.lidar.config import LidarConfig
from triptych.lidar.obstacles import find_obstacles
from triptych.lidar.scan import look
from triptych.lidar.watch import ScanWatch

FRAME_ID = "base_link"


class LidarSensing:
    """One lidar: scans in, obstacles out. Not thread-safe; feed it each scan once, in order."""

    def __init__(self, config: LidarConfig) -> None:
        self._config = config
        self._watch = ScanWatch(config)

    def take(self, cloud: PointCloud, moving: bool = True) -> Obstacles:
        """What this scan says, without counter and CRC.

        Args:
            cloud: in the sensor's frame.
            moving: whether the vehicle moves; True if that is unknown.
        """
        scan = look(cloud, self._config, moving)
        codes = self._watch.look(scan)
        obstacles = find_obstacles(scan.base, self._config)
        return Obstacles(
            stamp_ns=cloud.stamp_ns,
            frame_id=FRAME_ID,
            points_n=len(scan.base),
            reach_m=_reach(obstacles, self._config),
            healthy=not codes,
            fault="; ".join(codes),
            obstacles=obstacles,
        )


def _reach(obstacles: tuple[Obstacle, ...], config: LidarConfig) -> float:
    """How far the report is complete: where it is full, to the nearest side of its last box."""
    if len(obstacles) < MAX_OBSTACLES:
        return config.reach_m
    last = obstacles[-1]
    distance_m = math.hypot(
        max(last.x_min_m, 0.0, -last.x_max_m),
        max(last.y_min_m, 0.0, -last.y_max_m),
    )
    return min(config.reach_m, distance_m)
