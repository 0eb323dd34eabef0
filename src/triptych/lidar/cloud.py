"""ROS point cloud messages to arrays and back, from their parts. What cannot be read is refused by name."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from triptych.contract import InputError
from triptych.contract.lidar import MAX_POINTS

FieldParts = tuple[str, int, int, int]
"""Name, offset in bytes, datatype and count of a ``sensor_msgs/PointField``."""

FLOAT32, FLOAT64 = 7, 8
DATATYPES = {FLOAT32: "f4", FLOAT64: "f8"}
"""``sensor_msgs/PointField`` datatypes that coordinates may have."""
MAX_POINT_BYTES = 1024
"""A longer point is a broken header; the longest of the drivers known has 48 bytes."""
REMEDY = "check the lidar driver"


@dataclass(frozen=True, slots=True)
class CloudParts:
    """The parts of a ``sensor_msgs/PointCloud2``; named as there."""

    data: bytes
    height: int
    width: int
    fields: tuple[FieldParts, ...]
    point_step: int
    row_step: int
    is_bigendian: bool = False


def decode_cloud(
    data: bytes | bytearray | memoryview | array[int] | npt.NDArray[np.uint8],
    *,
    height: int,
    width: int,
    fields: Sequence[FieldParts],
    point_step: int,
    row_step: int,
    is_bigendian: bool,
    where: object = None,
) -> npt.NDArray[np.float32]:
    """The coordinates of a ``sensor_msgs/PointCloud2`` as (N, 3) float32, rows one after another, as they are.

    Without padding between rows and with x, y, z one after another as little-endian float32 it is a view of ``data``.
    A float64 too great for float32 becomes infinite.

    Args:
        data: ``height`` rows of ``row_step`` bytes each; padding behind the points of a row is allowed.
        fields: (name, offset, datatype, count) each; others than x, y and z are not looked at.
        where: what an error names: topic or file.

    Raises:
        InputError: more than a million points; x, y or z missing, given twice, overlapping, of another type than
            FLOAT32 or FLOAT64 or reaching beyond the point; steps or the size of ``data`` that do not fit.
    """
    _sized(height, width, point_step, row_step, where)
    columns = [_column(name, fields, point_step, where) for name in ("x", "y", "z")]
    _apart(columns, where)
    octets = np.frombuffer(data, dtype=np.uint8)
    if octets.size != row_step * height:
        raise InputError(
            f"must hold height * row_step = {row_step * height} bytes",
            where=where,
            field="data",
            value=octets.size,
            remedy=REMEDY,
        )
    if not height * width:
        return np.zeros((0, 3), np.float32)
    order = ">" if is_bigendian else "<"
    (first, kind), _, _ = columns
    if columns == [(first + 4 * k, "f4") for k in range(3)] and kind == "f4":
        block: npt.NDArray[np.float32] = np.ndarray(
            (height, width, 3), f"{order}f4", octets, first, (row_step, point_step, 4)
        )
        return block.reshape(-1, 3).astype(np.float32, copy=False)
    points = np.empty((height, width, 3), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for k, (offset, kind) in enumerate(columns):
            points[..., k] = np.ndarray((height, width), order + kind, octets, offset, (row_step, point_step))
    return points.reshape(-1, 3)


def encode_cloud(points: npt.NDArray[np.float32]) -> CloudParts:
    """(N, 3) float32 as an unorganised message of x, y, z, little-endian float32; :func:`decode_cloud` reverses it."""
    step = 3 * points.itemsize
    return CloudParts(
        data=points.astype("<f4", copy=False).tobytes(),
        height=1,
        width=len(points),
        fields=(("x", 0, FLOAT32, 1), ("y", 4, FLOAT32, 1), ("z", 8, FLOAT32, 1)),
        point_step=step,
        row_step=step * len(points),
    )


def _sized(height: int, width: int, point_step: int, row_step: int, where: object) -> None:
    """Refuse sizes that no cloud has, before anything is computed with them."""
    for name, value, least, most, unit in (
        ("height", height, 0, MAX_POINTS, "rows"),
        ("width", width, 0, MAX_POINTS, "points"),
        ("point_step", point_step, 12, MAX_POINT_BYTES, "bytes"),
        ("row_step", row_step, width * point_step, width * point_step + MAX_POINT_BYTES * 64, "bytes"),
    ):
        if not least <= value <= most:
            raise InputError(f"must be {least}..{most} {unit}", where=where, field=name, value=value, remedy=REMEDY)
    if height * width > MAX_POINTS:
        raise InputError(
            f"must be at most {MAX_POINTS} points with height {height}",
            where=where,
            field="width",
            value=width,
            remedy=REMEDY,
        )


def _column(name: str, fields: Sequence[FieldParts], point_step: int, where: object) -> tuple[int, str]:
    """Offset and numpy kind of a coordinate."""

    def refused(problem: str, value: object = None) -> InputError:
        return InputError(problem, where=where, field=f"fields.{name}", value=value, remedy=REMEDY)

    found = [field for field in fields if field[0] == name]
    if len(found) != 1:
        raise refused("is given more than once" if found else "is missing")
    _, offset, datatype, count = found[0]
    if datatype not in DATATYPES:
        raise refused(f"must be FLOAT32 ({FLOAT32}) or FLOAT64 ({FLOAT64})", datatype)
    if count not in (0, 1):  # 0: old drivers leave it out
        raise refused("must be one number", count)
    kind = DATATYPES[datatype]
    most = point_step - int(kind[1])
    if not 0 <= offset <= most:
        raise refused(f"must begin at byte 0..{most} of a point of {point_step} bytes", offset)
    return offset, kind


def _apart(columns: list[tuple[int, str]], where: object) -> None:
    """Refuse coordinates that share bytes."""
    ordered = sorted((offset, offset + int(kind[1])) for offset, kind in columns)
    for (_, end), (begin, _) in pairwise(ordered):
        if begin < end:
            raise InputError("x, y and z must not overlap", where=where, field="fields", value=columns, remedy=REMEDY)
