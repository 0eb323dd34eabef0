"""The pinhole camera of the scenario.

Camera frame here: x to the right, y up from the road surface, z forward, metres. The pitch is modelled as a shift of
the principal point (an off-axis pinhole), so that the horizon is one image row and every row below it is one distance
on the ground.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NEAR_M = 0.4
"""Points closer than this are moved to it: exact for edges parallel to the road, off-screen for the others."""

_FAR_PX = 15000.0
"""Pixel coordinates are limited to this, so that they stay inside OpenCV's fixed-point drawing range."""


@dataclass(frozen=True, slots=True)
class Camera:
    """Intrinsics and mounting height.

    Attributes:
        width_px, height_px: image size.
        fx_px, fy_px: focal lengths; equal (square pixels).
        cx_px, cy_px: principal point; ``cy_px`` is the row of the horizon.
        height_m: height of the optical centre above the road.
    """

    width_px: int
    height_px: int
    fx_px: float
    fy_px: float
    cx_px: float
    cy_px: float
    height_m: float

    @classmethod
    def from_fov(
        cls, width_px: int, height_px: int, fov_deg: float = 65.0, pitch_deg: float = 2.0, height_m: float = 1.4
    ) -> Camera:
        """Camera with a horizontal field of view ``fov_deg``, looking down by ``pitch_deg``."""
        focal = width_px / 2.0 / math.tan(math.radians(fov_deg) / 2.0)
        horizon = height_px / 2.0 - focal * math.tan(math.radians(pitch_deg))
        horizon = min(max(horizon, 0.15 * height_px), 0.85 * height_px)
        return cls(width_px, height_px, focal, focal, width_px / 2.0, horizon, height_m)

    def matrix(self) -> npt.NDArray[np.float64]:
        """The 3x3 intrinsic matrix K, as in sensor_msgs/CameraInfo."""
        return np.array([[self.fx_px, 0.0, self.cx_px], [0.0, self.fy_px, self.cy_px], [0.0, 0.0, 1.0]])

    def project(
        self, x_m: npt.NDArray[np.float32], y_m: npt.NDArray[np.float32], z_m: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Pixels (N, 2) of N points; points behind ``NEAR_M`` are moved to it first."""
        inverse = self.fx_px / np.maximum(z_m, NEAR_M)
        out = np.empty((x_m.shape[0], 2), np.float32)
        np.multiply(x_m, inverse, out=out[:, 0])
        np.multiply(self.height_m - y_m, inverse, out=out[:, 1])
        out[:, 0] += self.cx_px
        out[:, 1] += self.cy_px
        return np.clip(out, -_FAR_PX, _FAR_PX, out=out)
