"""A camera frame as the core sees it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract.errors import InputError

MAX_SIDE_PX = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image.

    Attributes:
        image: (height, width, 3) uint8, BGR, C-contiguous rows.
        stamp_ns: source stamp.
        number: counts the frames delivered by this input, from 1; superseded frames count too.
        frame_id: REP-105 frame of the camera (optical).
        received_ns: when the process got it, on the clock of source stamps.
        received_monotonic_ns: the same moment on the monotonic clock.

    Raises:
        InputError: if the image has another shape or dtype, or a side outside 1..8192.
    """

    image: npt.NDArray[np.uint8]
    stamp_ns: int
    number: int
    frame_id: str = "camera_optical_frame"
    received_ns: int = 0
    received_monotonic_ns: int = 0

    def __post_init__(self) -> None:
        image = self.image
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise InputError(
                "image must be (height, width, 3) uint8 BGR", field="image", value=f"{image.shape} {image.dtype}"
            )
        if not (0 < image.shape[0] <= MAX_SIDE_PX and 0 < image.shape[1] <= MAX_SIDE_PX):
            raise InputError(f"image sides must be 1..{MAX_SIDE_PX} pixels", field="image", value=image.shape)

    @property
    def width(self) -> int:
        return int(self.image.shape[1])

    @property
    def height(self) -> int:
        return int(self.image.shape[0])

    def fingerprint(self) -> int:
        """CRC-32 of a coarse grid of pixels: equal for a frozen picture, cheap at any size (≤ 64x64 samples)."""
        rows = max(1, self.height // 64)
        columns = max(1, self.width // 64)
        return zlib.crc32(self.image[::rows, ::columns].tobytes())
