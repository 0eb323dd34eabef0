"""The supervisor's second sensor: a lidar scan goes in, boxes of what stands on the road come out. No ROS, no clock.

Geometry only: where the detector of pictures errs (a rare object, darkness, glare), this does not, and the other way
round (rain, spray, glass, what is flatter than a kerb).
"""

from triptych.lidar.cloud import CloudParts, FieldParts, decode_cloud, encode_cloud
from triptych.lidar.config import LidarConfig, lidar_config
from triptych.lidar.obstacles import find_obstacles
from triptych.lidar.scan import Scan, look, to_base
from triptych.lidar.sensing import LidarSensing
from triptych.lidar.watch import MONITORS, MonitorRow, ScanMonitor, ScanWatch

__all__ = [
    "MONITORS",
    "CloudParts",
    "FieldParts",
    "LidarConfig",
    "LidarSensing",
    "MonitorRow",
    "Scan",
    "ScanMonitor",
    "ScanWatch",
    "decode_cloud",
    "encode_cloud",
    "find_obstacles",
    "lidar_config",
    "look",
    "to_base",
]
