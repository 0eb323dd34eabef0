"""ROS image messages to BGR arrays. One table of encodings; everything that is not in it is refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import InputError
from triptych.contract.frame import MAX_SIDE_PX

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the bytes of an encoding become BGR: bytes per pixel and the OpenCV conversion (None: already BGR).

    ``even`` names the sides that must be even because pixels share colour samples: "w", "wh" or "".
    """

    channels: int
    conversion: int | None
    even: str = ""


# Bayer names: ROS names the top left 2x2 pixels by rows, OpenCV the pixels of the second row and column onwards.
ENCODINGS: dict[str, Encoding] = {
    "bgr8": Encoding(3, None),
    "8UC3": Encoding(3, None),
    "rgb8": Encoding(3, cv2.COLOR_RGB2BGR),
    "bgra8": Encoding(4, cv2.COLOR_BGRA2BGR),
    "8UC4": Encoding(4, cv2.COLOR_BGRA2BGR),
    "rgba8": Encoding(4, cv2.COLOR_RGBA2BGR),
    "mono8": Encoding(1, cv2.COLOR_GRAY2BGR),
    "8UC1": Encoding(1, cv2.COLOR_GRAY2BGR),
    "yuv422": Encoding(2, cv2.COLOR_YUV2BGR_UYVY, "w"),
    "uyvy": Encoding(2, cv2.COLOR_YUV2BGR_UYVY, "w"),
    "yuv422_yuy2": Encoding(2, cv2.COLOR_YUV2BGR_YUY2, "w"),
    "yuyv": Encoding(2, cv2.COLOR_YUV2BGR_YUY2, "w"),
    "bayer_rggb8": Encoding(1, cv2.COLOR_BayerBG2BGR, "wh"),
    "bayer_bggr8": Encoding(1, cv2.COLOR_BayerRG2BGR, "wh"),
    "bayer_gbrg8": Encoding(1, cv2.COLOR_BayerGR2BGR, "wh"),
    "bayer_grbg8": Encoding(1, cv2.COLOR_BayerGB2BGR, "wh"),
}
"""Supported ``sensor_msgs/Image.encoding`` values; 16-bit, float and depth encodings are not camera pictures."""


def decode_image(
    data: bytes | Image, *, height: int, width: int, encoding: str, step: int, where: object = None
) -> Image:
    """The pixels of a ``sensor_msgs/Image`` as (height, width, 3) uint8 BGR, contiguous.

    Args:
        data: rows of ``step`` bytes each; padding behind the pixels of a row is allowed.
        where: what an error names: file and topic.

    Raises:
        InputError: a side is zero or too large, the encoding is unknown, ``step`` or the size of ``data`` do not fit.
    """
    remedy = "check the camera driver"
    for name, side in (("height", height), ("width", width)):
        if not 0 < side <= MAX_SIDE_PX:
            raise InputError(f"must be 1..{MAX_SIDE_PX} pixels", where=where, field=name, value=side, remedy=remedy)
    rule = ENCODINGS.get(encoding)
    if rule is None:
        raise InputError(
            "is an image encoding that cannot be read",
            where=where,
            field="encoding",
            value=encoding,
            remedy=f"use one of {', '.join(ENCODINGS)}",
        )
    for letter, name, side in (("h", "height", height), ("w", "width", width)):
        if letter in rule.even and side % 2:
            raise InputError(f"must be even for {encoding}", where=where, field=name, value=side, remedy=remedy)
    row = width * rule.channels
    if step < row:
        raise InputError(
            f"must be at least {row} bytes for {width} pixels of {encoding}",
            where=where,
            field="step",
            value=step,
            remedy=remedy,
        )
    pixels = np.frombuffer(data, dtype=np.uint8)
    if pixels.size != step * height:
        raise InputError(
            f"must hold height * step = {step * height} bytes",
            where=where,
            field="data",
            value=pixels.size,
            remedy=remedy,
        )
    rows = pixels.reshape(height, step)[:, :row]
    image = rows if rule.channels == 1 else rows.reshape(height, width, rule.channels)
    if rule.conversion is None:
        return np.ascontiguousarray(image)
    converted: Image = np.asarray(cv2.cvtColor(np.ascontiguousarray(image), rule.conversion), dtype=np.uint8)
    return converted


def decode_compressed(data: bytes | Image, *, encoding: str = "", where: object = None) -> Image:
    """The picture of a ``sensor_msgs/CompressedImage`` (JPEG, PNG, ...) as (height, width, 3) uint8 BGR.

    Raises:
        InputError: empty, not a picture, cut off so that nothing can be shown, or a side above 8192.
    """
    buffer = np.frombuffer(data, dtype=np.uint8)
    remedy = "send it as jpeg or png"
    if not buffer.size:
        raise InputError("is empty", where=where, field="data", remedy=remedy)
    try:
        image = cv2.imdecode(buffer, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        image = None
    if image is None:
        problem = f"is not a picture that can be read, or has a side above {MAX_SIDE_PX} pixels"
        raise InputError(problem, where=where, field="format", value=encoding, remedy=remedy)
    if max(image.shape[:2]) > MAX_SIDE_PX:
        raise InputError(f"sides must be 1..{MAX_SIDE_PX} pixels", where=where, field="data", value=image.shape)
    picture: Image = np.ascontiguousarray(image, dtype=np.uint8)
    return picture
