"""Small bags for the tests, written message by message so that single fields can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triptych.replay import messages
from triptych.replay.writer import BagWriter

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


def header(stamp_ns: int) -> Any:
    return messages._header(stamp_ns, "camera")


def image(stamp_ns: int, value: int = 100, **change: Any) -> tuple[str, bytes]:
    """A 32x24 bgr8 image message; ``change`` replaces fields."""
    fields: dict[str, Any] = {
        "header": header(stamp_ns),
        "height": 24,
        "width": 32,
        "encoding": "bgr8",
        "is_bigendian": 0,
        "step": 96,
        "data": np.full(24 * 96, value, np.uint8),
    }
    name = messages.IMAGE_TYPES[0]
    message = messages.typestore().types[name](**{**fields, **change})
    return name, bytes(messages.typestore().serialize_cdr(message, name))


def twist(stamp_ns: int, speed_mps: float, name: str = "geometry_msgs/msg/TwistStamped") -> tuple[str, bytes]:
    """A stamped twist (with covariance if ``name`` says so)."""
    types = messages.typestore().types
    zero = types["geometry_msgs/msg/Vector3"](x=0.0, y=0.0, z=0.0)
    inner = types["geometry_msgs/msg/Twist"](
        linear=types["geometry_msgs/msg/Vector3"](x=speed_mps, y=0.0, z=0.0), angular=zero
    )
    if "Covariance" in name:
        inner = types["geometry_msgs/msg/TwistWithCovariance"](twist=inner, covariance=np.zeros(36))
    message = types[name](header=header(stamp_ns), twist=inner)
    return name, bytes(messages.typestore().serialize_cdr(message, name))


def text(value: str = "hello") -> tuple[str, bytes]:
    name = "std_msgs/msg/String"
    return name, bytes(messages.typestore().serialize_cdr(messages.typestore().types[name](data=value), name))


def bag(folder: Path, rows: list[tuple[str, int, Any]], storage: str = "mcap") -> Path:
    """A bag of (topic, time of recording, (type, bytes) or contract record) rows."""
    with BagWriter(folder, storage=storage) as writer:
        for topic, t_ns, content in rows:
            if isinstance(content, tuple):
                writer.write(topic, *content, t_ns)
            else:
                writer.write_record(topic, content, t_ns)
    return folder


def camera_rows(count: int = 20, period_ms: int = 50, topic: str = "camera/image_raw") -> list[tuple[str, int, Any]]:
    """``count`` distinct pictures, recorded 7 ms after their stamp."""
    return [
        (topic, T0 + i * period_ms * MS + 7 * MS, image(T0 + i * period_ms * MS, 10 * (i % 25))) for i in range(count)
    ]


def merge(*parts: list[tuple[str, int, Any]]) -> list[tuple[str, int, Any]]:
    return sorted((row for part in parts for row in part), key=lambda row: row[1])


def edit_metadata(folder: Path, change: Mapping[str, str]) -> None:
    """Replace text in ``metadata.yaml``."""
    path = folder / "metadata.yaml"
    content = path.read_text()
    for old, new in change.items():
        assert old in content
        content = content.replace(old, new)
    path.write_text(content)
