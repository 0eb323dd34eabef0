"""The supervisor's second sensor: a lidar scan goes in, boxes of what stands on the road come out. No ROS, no clock.

Geometry only: where the detector of pictures errs (a rare object, darkness, glare), this does not, and the other way
round (rain, spray, glass, what is flatter than a kerb).
"""

from triptych.lidar.config import LidarConfig
from triptych.lidar.sensing import LidarSensing

__all__ = ["LidarConfig", "LidarSensing"]
