"""Names of the ways a message can go; faults on the wire refer to them."""

from __future__ import annotations

from triptych.contract import (
    DriverState,
    Frame,
    MotionConstraint,
    Obstacles,
    Odometry,
    PointCloud,
    Tier,
    TierResult,
    TierStatus,
)

CAMERA, ODOMETRY, DRIVER, CONSTRAINT, COMMAND = "camera", "odometry", "driver", "constraint", "command"
LIDAR, OBSTACLES = "lidar", "obstacles"
RESULT = frozenset(f"{tier.key}.result" for tier in Tier)
STATUS = frozenset(f"{tier.key}.status" for tier in Tier)

MESSAGES: dict[str, type] = {
    CAMERA: Frame,
    ODOMETRY: Odometry,
    DRIVER: DriverState,
    CONSTRAINT: MotionConstraint,
    COMMAND: MotionConstraint,
    LIDAR: PointCloud,
    OBSTACLES: Obstacles,
    **dict.fromkeys(sorted(RESULT), TierResult),
    **dict.fromkeys(sorted(STATUS), TierStatus),
}
"""What is sent on each."""
