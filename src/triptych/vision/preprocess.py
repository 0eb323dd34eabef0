"""From camera picture to network input, without allocating per frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from triptych.engines.manifest import InputGeometry

INTERPOLATION = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}


class Placement(NamedTuple):
    """Input pixels per source pixel, and the source's size, to map boxes back."""

    scale_x: float
    scale_y: float
    source_width: int
    source_height: int

    def to_source(self, boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Map (N, 4) x_min, y_min, x_max, y_max from input to source pixels, cut at the picture's edges."""
        scale = np.array([self.scale_x, self.scale_y] * 2, np.float32)
        limit = np.array([self.source_width, self.source_height] * 2, np.float32)
        mapped: npt.NDArray[np.float32] = np.clip(boxes / scale, 0, limit)
        return mapped


class Preprocessor:
    """Resizes, pads, normalises and orders one picture after another into the same buffer.

    Not thread-safe: the returned tensor is overwritten by the next call.
    """

    def __init__(self, geometry: InputGeometry) -> None:
        self.geometry = geometry
        self._canvas = np.full((geometry.height, geometry.width, 3), geometry.pad_value, np.uint8)
        dtype = np.uint8 if geometry.dtype == "uint8" else np.float32
        self._tensor = np.zeros(geometry.shape, dtype)
        factor = geometry.scale / np.asarray(geometry.std, np.float64)
        offset = -np.asarray(geometry.mean, np.float64) / np.asarray(geometry.std, np.float64)
        self._factor, self._offset = factor.astype(np.float32), offset.astype(np.float32)
        self._placed: tuple[int, int] | None = None

    def __call__(self, image: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], Placement]:
        """``image``: (H, W, 3) uint8 BGR. Returns the input tensor and how to map boxes back."""
        g = self.geometry
        height, width = image.shape[:2]
        if g.fit == "stretch":
            inner_width, inner_height = g.width, g.height
        else:
            ratio = min(g.width / width, g.height / height)
            inner_width = min(g.width, max(1, round(width * ratio)))
            inner_height = min(g.height, max(1, round(height * ratio)))
        if self._placed != (inner_width, inner_height):
            self._canvas[:] = g.pad_value
            self._placed = (inner_width, inner_height)
        inner = self._canvas[:inner_height, :inner_width]
        if (width, height) == (inner_width, inner_height):
            inner[:] = image
        else:
            # A view with row gaps is not a valid cv2 destination on every version, so the result is copied in.
            inner[:] = cv2.resize(image, (inner_width, inner_height), interpolation=INTERPOLATION[g.interpolation])
        self._fill()
        return self._tensor, Placement(inner_width / width, inner_height / height, width, height)

    def _fill(self) -> None:
        g, tensor = self.geometry, self._tensor
        if g.layout == "nhwc":
            source = self._canvas if g.colour == "bgr" else self._canvas[:, :, ::-1]
            if g.dtype == "uint8":
                tensor[0] = source
            else:
                np.multiply(source, self._factor, out=tensor[0])
                tensor[0] += self._offset
            return
        planes = cv2.split(self._canvas)
        for channel, plane in enumerate(planes if g.colour == "bgr" else planes[::-1]):
            if g.dtype == "uint8":
                tensor[0, channel] = plane
            else:
                np.multiply(plane, self._factor[channel], out=tensor[0, channel])
                if self._offset[channel]:
                    tensor[0, channel] += self._offset[channel]
