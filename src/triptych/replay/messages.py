"""The few message types replay understands: from serialised bytes to contract records and back, without rclpy.

Reading: camera images, vehicle speed, driver state. Writing: everything the stack publishes. The type store is that of
ROS 2 Jazzy plus our own ``triptych_ros`` messages, parsed from ``msg/*.msg``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from triptych.contract import (
    Detections,
    DriverState,
    InputError,
    MotionConstraint,
    Odometry,
    SceneAdvice,
    Tier,
    TierResult,
    TierStatus,
    crc_ok,
    protect,
    supervision,
)
from triptych.replay.images import Image, decode_compressed, decode_image
from triptych.replay.record import StateRecord, VerdictRecord
from triptych.replay.storage import reading
from triptych.resources import share

PACKAGE = "triptych_ros"
IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
SPEED_TYPES = (
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/TwistStamped",
    "geometry_msgs/msg/TwistWithCovarianceStamped",
)
DRIVER_TYPES = (f"{PACKAGE}/msg/DriverState",)
NS = 1_000_000_000


@cache
def typestore(serialization: str = "cdr") -> Typestore:
    """The types of the middleware ("cdr": ROS 2 Jazzy, "ros1": Noetic) and our own messages."""
    store = get_typestore(Stores.ROS1_NOETIC if serialization == "ros1" else Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for path in sorted((share() / "msg").glob("*.msg")):
        types.update(get_types_from_msg(path.read_text(), f"{PACKAGE}/msg/{path.stem}"))
    if types:
        store.register(types)
    return store


def deserialize(data: bytes, type_name: str, serialization: str, where: object) -> Any:
    """One message as the type store's object.

    Raises:
        InputError: unknown serialisation, or bytes that are not such a message.
    """
    if serialization not in ("cdr", "ros1"):
        raise InputError(
            "is a serialisation that cannot be read",
            where=where,
            field="serialization_format",
            value=serialization,
            remedy="record it with the default serialisation cdr",
        )
    store = typestore(serialization)
    try:
        with reading(Path(str(where))):
            return (
                store.deserialize_ros1(data, type_name)
                if serialization == "ros1"
                else store.deserialize_cdr(data, type_name)
            )
    except InputError:
        raise InputError(
            f"is not a {type_name}", where=where, field="message", value=f"{len(data)} bytes", remedy="record it again"
        ) from None


def stamp_of(message: Any) -> int:
    """Nanoseconds of ``header.stamp`` or ``stamp``; 0 if the message has neither."""
    holder = getattr(message, "header", message)
    stamp = getattr(holder, "stamp", None)
    return int(stamp.sec) * NS + int(stamp.nanosec) if stamp is not None else 0


def image_of(message: Any, where: object) -> Image:
    """BGR pixels of an Image or CompressedImage message.

    Raises:
        InputError: see :mod:`triptych.replay.images`.
    """
    if hasattr(message, "format"):
        return decode_compressed(message.data, encoding=message.format, where=where)
    return decode_image(
        message.data,
        height=int(message.height),
        width=int(message.width),
        encoding=str(message.encoding),
        step=int(message.step),
        where=where,
    )


def speed_of(message: Any, where: object, *, salvage: bool = False) -> float:
    """Forward speed in m/s of any of :data:`SPEED_TYPES`.

    Raises:
        InputError: not a finite number (with ``salvage`` it is passed on as NaN, which means unknown).
    """
    twist = message.twist
    while hasattr(twist, "twist"):
        twist = twist.twist
    speed = float(twist.linear.x)
    if math.isfinite(speed):
        return speed
    if salvage:
        return math.nan
    raise InputError(
        "is not a finite number",
        where=where,
        field="twist.linear.x",
        value=speed,
        remedy="repair the odometry, leave it out with --topic odometry=, or add --salvage to pass it on as unknown",
    )


def driver_of(message: Any) -> DriverState:
    """The driver state with its sequence counter and CRC as recorded."""
    return DriverState(
        stamp_ns=stamp_of(message),
        present=bool(message.present),
        attentive=bool(message.attentive),
        override_active=bool(message.override_active),
        automation_engaged=bool(message.automation_engaged),
        sequence_counter=int(message.sequence_counter),
        crc=int(message.crc),
    )


def restamped_driver(driver: DriverState, stamp_ns: int) -> DriverState:
    """The same state at another time; a CRC that fitted fits again, one that did not stays wrong."""
    moved = dataclasses.replace(driver, stamp_ns=stamp_ns)
    return protect(moved, driver.sequence_counter) if crc_ok(driver) else dataclasses.replace(moved, crc=driver.crc ^ 1)


# --- writing ----------------------------------------------------------------------------------------------------


def _new(name: str, /, **fields: Any) -> Any:
    return typestore().types[name](**fields)


def _time(stamp_ns: int) -> Any:
    return _new("builtin_interfaces/msg/Time", sec=stamp_ns // NS, nanosec=stamp_ns % NS)


def _header(stamp_ns: int, frame_id: str) -> Any:
    return _new("std_msgs/msg/Header", stamp=_time(stamp_ns), frame_id=frame_id)


def _own(name: str, /, **fields: Any) -> Any:
    return _new(f"{PACKAGE}/msg/{name}", **fields)


def _result_header(result: TierResult) -> Any:
    return _own(
        "ResultHeader",
        header=_header(result.source_stamp_ns, result.frame_id),
        tier=int(result.tier),
        origin=int(result.origin),
        reason=result.reason,
        frame_number=result.frame_number,
        published=_time(result.published_ns),
        age_ms=result.age_ms,
        transport_ms=result.latency.transport_ms,
        pre_ms=result.latency.pre_ms,
        infer_ms=result.latency.infer_ms,
        post_ms=result.latency.post_ms,
        engine_id=result.engine_id,
        engine_version=result.engine_version,
        device=result.device,
        uncertainty=result.uncertainty,
        sequence_counter=result.sequence_counter,
        crc=result.crc,
    )


def _result(result: TierResult) -> tuple[str, Any]:
    header, payload = _result_header(result), result.payload
    if isinstance(payload, Detections):
        boxes = [
            _own("Detection", **{f.name: getattr(d, f.name) for f in dataclasses.fields(d)}) for d in payload.detections
        ]
        return "Detections", _own(
            "Detections",
            result=header,
            image_width=payload.image_width,
            image_height=payload.image_height,
            detections=boxes,
        )
    assert isinstance(payload, SceneAdvice)
    return "SceneAdvice", _own(
        "SceneAdvice",
        result=header,
        road=int(payload.road),
        weather=int(payload.weather),
        light=int(payload.light),
        hazards=np.array([int(h) for h in payload.hazards], dtype=np.uint8),
        advice=int(payload.advice),
        vehicles=payload.vehicles,
        two_wheelers=payload.two_wheelers,
        pedestrians=payload.pedestrians,
        question=payload.question,
        text=payload.text,
        token_probabilities=np.array(payload.token_probabilities, dtype=np.float64),
    )


def _status(status: TierStatus) -> tuple[str, Any]:
    fields = {f.name: getattr(status, f.name) for f in dataclasses.fields(status) if f.name != "stamp_ns"}
    return "TierStatus", _own("TierStatus", **{**fields, "stamp": _time(status.stamp_ns)})


def _constraint(constraint: MotionConstraint) -> tuple[str, Any]:
    fields = {f.name: getattr(constraint, f.name) for f in dataclasses.fields(constraint) if f.name != "stamp_ns"}
    return "MotionConstraint", _own("MotionConstraint", **{**fields, "stamp": _time(constraint.stamp_ns)})


def _driver(driver: DriverState) -> tuple[str, Any]:
    fields = {f.name: getattr(driver, f.name) for f in dataclasses.fields(driver) if f.name != "stamp_ns"}
    return "DriverState", _own("DriverState", **{**fields, "stamp": _time(driver.stamp_ns)})


def _state(record: StateRecord) -> tuple[str, Any]:
    # The run record keeps no counter and CRC, so a state written from it carries none either.
    return "DegradationState", _own(
        "DegradationState",
        stamp=_time(record.t_ns),
        state=int(record.state),
        previous=int(record.previous),
        since=_time(record.t_ns),
        reason=record.reason,
        active_faults=list(record.active_faults),
        takeover_requested=record.takeover_requested,
        takeover_remaining_s=record.takeover_remaining_s,
        sequence_counter=0,
        crc=0,
    )


def _published_state(record: supervision.StateRecord) -> tuple[str, Any]:
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    stamp_ns, since_ns = fields.pop("stamp_ns"), fields.pop("since_ns")
    fields["active_faults"] = list(fields["active_faults"])
    return "DegradationState", _own("DegradationState", **fields, stamp=_time(stamp_ns), since=_time(since_ns))


def _verdict(record: VerdictRecord) -> tuple[str, Any]:
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != "t_ns"}
    return "Verdicts", _own("Verdicts", stamp=_time(record.t_ns), verdicts=[_own("Verdict", **fields)])


def _vector(name: str, **values: float) -> Any:
    return _new(f"geometry_msgs/msg/{name}", **{**dict.fromkeys("xyz", 0.0), **values})


def _odometry(odometry: Odometry) -> tuple[str, Any]:
    # Only the speed is known; a first covariance of -1 marks the pose as unknown, as sensor_msgs/Imu does.
    pose = _new("geometry_msgs/msg/Pose", position=_vector("Point"), orientation=_vector("Quaternion", w=1.0))
    unknown = np.zeros(36)
    unknown[0] = -1.0
    twist = _new("geometry_msgs/msg/Twist", linear=_vector("Vector3", x=odometry.speed_mps), angular=_vector("Vector3"))
    return "nav_msgs/msg/Odometry", _new(
        "nav_msgs/msg/Odometry",
        header=_header(odometry.stamp_ns, "odom"),
        child_frame_id="base_link",
        pose=_new("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=unknown),
        twist=_new("geometry_msgs/msg/TwistWithCovariance", twist=twist, covariance=np.zeros(36)),
    )


_WRITERS: Mapping[type, Callable[[Any], tuple[str, Any]]] = {
    TierResult: _result,
    TierStatus: _status,
    MotionConstraint: _constraint,
    DriverState: _driver,
    StateRecord: _state,
    supervision.StateRecord: _published_state,
    VerdictRecord: _verdict,
    Odometry: _odometry,
}


def serialize(record: Any) -> tuple[str, bytes]:
    """(ROS type, CDR bytes) of a contract record or of a state or verdict of the run record.

    Raises:
        TypeError: for a type that has no message.
    """
    writer = _WRITERS.get(type(record))
    if writer is None:
        raise TypeError(f"no message for {type(record).__name__}")
    name, message = writer(record)
    name = name if "/" in name else f"{PACKAGE}/msg/{name}"
    return name, bytes(typestore().serialize_cdr(message, name))


def serialize_image(image: Image, stamp_ns: int, frame_id: str) -> tuple[str, bytes]:
    """(type, CDR bytes) of a ``sensor_msgs/Image`` in bgr8 from (height, width, 3) uint8."""
    height, width = image.shape[:2]
    message = _new(
        IMAGE_TYPES[0],
        header=_header(stamp_ns, frame_id),
        height=height,
        width=width,
        encoding="bgr8",
        is_bigendian=0,
        step=width * 3,
        data=np.ascontiguousarray(image).reshape(-1),
    )
    return IMAGE_TYPES[0], bytes(typestore().serialize_cdr(message, IMAGE_TYPES[0]))


def serialize_compressed(jpeg: bytes, stamp_ns: int, frame_id: str) -> tuple[str, bytes]:
    """(type, CDR bytes) of a ``sensor_msgs/CompressedImage`` holding JPEG data."""
    message = _new(
        IMAGE_TYPES[1], header=_header(stamp_ns, frame_id), format="jpeg", data=np.frombuffer(jpeg, dtype=np.uint8)
    )
    return IMAGE_TYPES[1], bytes(typestore().serialize_cdr(message, IMAGE_TYPES[1]))


TOPIC_OF_TIER = {tier: f"/{tier.key}/result" for tier in Tier}
"""Where lockstep writes the results, equal to the live stack's names in the default namespace."""
