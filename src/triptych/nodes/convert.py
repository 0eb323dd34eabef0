"""ROS messages to contract records and back. The only module that knows the fields of both.

Both directions are lossless (float64, int64 nanoseconds, UTF-8), so that a CRC made on one side holds on the other.
Text longer than the message allows is cut at a character boundary, and the record is then protected again with
the same counter: a cut is visible, a broken CRC never comes from it.

The message classes check nothing by themselves and the middleware *aborts the process* on a field of the wrong type or
size, so every value is made to fit here, or refused.
"""

from __future__ import annotations

import array
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from nav_msgs.msg import Odometry as OdometryMsg
from sensor_msgs.msg import CompressedImage, Image, PointCloud2, PointField

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Frame,
    Hazard,
    InputError,
    LatencySplit,
    Light,
    MotionConstraint,
    Obstacle,
    Obstacles,
    Odometry,
    Origin,
    PointCloud,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VerdictLevel,
    Weather,
    protect,
)
from triptych.contract.lidar import MAX_OBSTACLES, MAX_SCAN_FAULT
from triptych.contract.result import (
    COUNTED,
    MAX_DETECTIONS,
    MAX_HAZARDS,
    MAX_LABEL,
    MAX_QUESTION,
    MAX_REASON,
    MAX_TEXT,
    MAX_TOKENS,
    is_count,
)
from triptych.contract.supervision import MAX_VERDICTS, StateRecord, Verdict
from triptych.lidar.cloud import decode_cloud, encode_cloud
from triptych.replay.images import decode_compressed, decode_image
from triptych_ros.msg import DegradationState as DegradationStateMsg
from triptych_ros.msg import Detection as DetectionMsg
from triptych_ros.msg import Detections as DetectionsMsg
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg
from triptych_ros.msg import Obstacle as ObstacleMsg
from triptych_ros.msg import Obstacles as ObstaclesMsg
from triptych_ros.msg import ResultHeader
from triptych_ros.msg import SceneAdvice as SceneAdviceMsg
from triptych_ros.msg import TierStatus as TierStatusMsg
from triptych_ros.msg import Verdict as VerdictMsg
from triptych_ros.msg import Verdicts as VerdictsMsg

_NS = 1_000_000_000
_MAX_STAMP_NS = (2**31 - 1) * _NS + _NS - 1
R = TypeVar("R")


def fit(text: str, limit_bytes: int) -> str:
    """``text`` cut to at most ``limit_bytes`` bytes of UTF-8, never inside a character."""
    data = text.encode()
    return text if len(data) <= limit_bytes else data[:limit_bytes].decode(errors="ignore")


def to_time(stamp_ns: int) -> Time:
    """Nanoseconds to a ROS time, held within what the message can say."""
    sec, nanosec = divmod(min(max(stamp_ns, 0), _MAX_STAMP_NS), _NS)
    return Time(sec=sec, nanosec=nanosec)


def from_time(time: Time) -> int:
    """A ROS time in nanoseconds."""
    return int(time.sec * _NS + time.nanosec)


def _uint(value: int, bits: int, field: str) -> int:
    """``value`` as a plain int that an unsigned field of ``bits`` bits holds.

    Raises:
        InputError: it does not.
    """
    number = int(value)
    if not 0 <= number < 1 << bits:
        raise InputError(f"does not fit an unsigned number of {bits} bits", where="message", field=field, value=value)
    return number


def _fitted(record: R, limits: dict[str, int]) -> R:
    """``record`` with its texts cut to ``limits`` (bytes); protected again if anything had to be cut."""
    changes = {
        name: fit(getattr(record, name), limit)
        for name, limit in limits.items()
        if len(getattr(record, name).encode()) > limit
    }
    if not changes:
        return record
    cut: Any = dataclasses.replace(record, **changes)  # type: ignore[type-var]
    return protect(cut, cut.sequence_counter)  # type: ignore[no-any-return]


# -- results ---------------------------------------------------------------------------------------------------------

_RESULT_LIMITS = {"reason": MAX_REASON, "engine_id": 64, "engine_version": 32, "device": 64}


def _bounded_result(result: TierResult) -> TierResult:
    payload = result.payload
    if isinstance(payload, Detections):
        found = payload.detections
        if len(found) > MAX_DETECTIONS or any(len(d.label.encode()) > MAX_LABEL for d in found):
            cut = tuple(dataclasses.replace(d, label=fit(d.label, MAX_LABEL)) for d in found[:MAX_DETECTIONS])
            payload = dataclasses.replace(payload, detections=cut)
    elif (
        len(payload.text.encode()) > MAX_TEXT
        or len(payload.question.encode()) > MAX_QUESTION
        or len(payload.hazards) > MAX_HAZARDS
        or len(payload.token_probabilities) > MAX_TOKENS
    ):
        payload = dataclasses.replace(
            payload,
            text=fit(payload.text, MAX_TEXT),
            question=fit(payload.question, MAX_QUESTION),
            hazards=payload.hazards[:MAX_HAZARDS],
            token_probabilities=payload.token_probabilities[:MAX_TOKENS],
        )
    if payload is not result.payload:
        result = protect(dataclasses.replace(result, payload=payload), result.sequence_counter)
    return _fitted(result, _RESULT_LIMITS)


def result_to_msg(result: TierResult) -> DetectionsMsg | SceneAdviceMsg:
    """A tier result as the message of its tier.

    Raises:
        InputError: a whole number that its field cannot hold.
    """
    result = _bounded_result(result)
    header = ResultHeader(
        tier=int(result.tier),
        origin=int(result.origin),
        reason=result.reason,
        frame_number=_uint(result.frame_number, 64, "frame_number"),
        published=to_time(result.published_ns),
        age_ms=float(result.age_ms),
        transport_ms=float(result.latency.transport_ms),
        pre_ms=float(result.latency.pre_ms),
        infer_ms=float(result.latency.infer_ms),
        post_ms=float(result.latency.post_ms),
        engine_id=result.engine_id,
        engine_version=result.engine_version,
        device=result.device,
        uncertainty=float(result.uncertainty),
        sequence_counter=_uint(result.sequence_counter, 8, "sequence_counter"),
        crc=_uint(result.crc, 32, "crc"),
    )
    header.header.stamp = to_time(result.source_stamp_ns)
    header.header.frame_id = result.frame_id
    payload = result.payload
    if isinstance(payload, Detections):
        return DetectionsMsg(
            result=header,
            image_width=_uint(payload.image_width, 32, "image_width"),
            image_height=_uint(payload.image_height, 32, "image_height"),
            detections=[
                DetectionMsg(
                    label=d.label,
                    class_id=_uint(d.class_id, 8, "class_id"),
                    score=float(d.score),
                    x_min=float(d.x_min),
                    y_min=float(d.y_min),
                    x_max=float(d.x_max),
                    y_max=float(d.y_max),
                )
                for d in payload.detections
            ],
        )
    return SceneAdviceMsg(
        result=header,
        road=int(payload.road),
        weather=int(payload.weather),
        light=int(payload.light),
        hazards=array.array("B", [int(h) for h in payload.hazards]),
        advice=int(payload.advice),
        vehicles=_uint(payload.vehicles, 8, "vehicles"),
        two_wheelers=_uint(payload.two_wheelers, 8, "two_wheelers"),
        pedestrians=_uint(payload.pedestrians, 8, "pedestrians"),
        question=payload.question,
        text=payload.text,
        token_probabilities=array.array("d", map(float, payload.token_probabilities)),
    )


def result_from_msg(msg: DetectionsMsg | SceneAdviceMsg) -> TierResult:
    """A result message as a record.

    Raises:
        InputError: a number that no enumeration knows, or one that is no count.
    """
    header = msg.result
    payload: Detections | SceneAdvice
    try:
        if isinstance(msg, DetectionsMsg):
            payload = Detections(
                msg.image_width,
                msg.image_height,
                tuple(
                    Detection(d.label, d.class_id, d.score, d.x_min, d.y_min, d.x_max, d.y_max) for d in msg.detections
                ),
            )
        else:
            for name in COUNTED:
                if not is_count(getattr(msg, name)):
                    raise InputError("is no count", where=type(msg).__name__, field=name, value=getattr(msg, name))
            payload = SceneAdvice(
                Road(msg.road),
                Weather(msg.weather),
                Light(msg.light),
                tuple(Hazard(h) for h in msg.hazards),
                Advice(msg.advice),
                msg.vehicles,
                msg.two_wheelers,
                msg.pedestrians,
                msg.question,
                msg.text,
                tuple(msg.token_probabilities),
            )
        tier, origin = Tier(header.tier), Origin(header.origin)
    except ValueError as error:
        raise InputError(str(error), where=type(msg).__name__) from None
    return TierResult(
        tier=tier,
        origin=origin,
        reason=header.reason,
        source_stamp_ns=from_time(header.header.stamp),
        frame_id=header.header.frame_id,
        frame_number=header.frame_number,
        published_ns=from_time(header.published),
        age_ms=header.age_ms,
        latency=LatencySplit(header.transport_ms, header.pre_ms, header.infer_ms, header.post_ms),
        engine_id=header.engine_id,
        engine_version=header.engine_version,
        device=header.device,
        uncertainty=header.uncertainty,
        payload=payload,
        sequence_counter=header.sequence_counter,
        crc=header.crc,
    )


# -- flat records: the same field names on both sides -----------------------------------------------------------------

_STATUS_LIMITS = {"fault": 160, "engine_id": 64, "engine_version": 32, "device_requested": 64, "device": 64}


def _kind(name: str, kind: str) -> Callable[[Any], Any]:
    """What makes a value fit a message field of type ``kind``."""
    if kind.startswith("uint"):
        return lambda value: _uint(value, int(kind[4:]), name)
    return {"boolean": bool, "double": float}.get(kind, str)


def _flat(cls: type, msg: Any) -> dict[str, Callable[[Any], Any]]:
    """Fields of record and message that have one name, and what makes a value fit."""
    kinds = msg.get_fields_and_field_types()
    return {f.name: _kind(f.name, kinds[f.name]) for f in dataclasses.fields(cls) if f.name in kinds}


_STATUS = _flat(TierStatus, TierStatusMsg)
_CONSTRAINT = _flat(MotionConstraint, MotionConstraintMsg)
_DRIVER = _flat(DriverState, DriverStateMsg)
_OBSTACLE = _flat(Obstacle, ObstacleMsg)
_OBSTACLES = {n: make for n, make in _flat(Obstacles, ObstaclesMsg).items() if n != "obstacles"}


def _values(record: Any, fields: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: make(getattr(record, name)) for name, make in fields.items()}


def status_to_msg(status: TierStatus) -> TierStatusMsg:
    """A heartbeat as its message."""
    status = _fitted(status, _STATUS_LIMITS)
    return TierStatusMsg(stamp=to_time(status.stamp_ns), **_values(status, _STATUS))


def status_from_msg(msg: TierStatusMsg) -> TierStatus:
    """A heartbeat message as a record.

    Raises:
        InputError: unknown tier or state number.
    """
    values = {n: getattr(msg, n) for n in _STATUS}
    return _checked(TierStatus, msg, values, tier=Tier, state=TierState)


def constraint_to_msg(constraint: MotionConstraint) -> MotionConstraintMsg:
    """A motion constraint as its message."""
    constraint = _fitted(constraint, {"reason": 160})
    return MotionConstraintMsg(stamp=to_time(constraint.stamp_ns), **_values(constraint, _CONSTRAINT))


def constraint_from_msg(msg: MotionConstraintMsg) -> MotionConstraint:
    """A motion constraint message as a record. Numbers are not judged here: that is :class:`ConstraintGuard`'s.

    Raises:
        InputError: unknown state number.
    """
    return _checked(MotionConstraint, msg, {n: getattr(msg, n) for n in _CONSTRAINT}, state=DegradationState)


def driver_to_msg(driver: DriverState) -> DriverStateMsg:
    """A driver state as its message."""
    return DriverStateMsg(stamp=to_time(driver.stamp_ns), **_values(driver, _DRIVER))


def driver_from_msg(msg: DriverStateMsg) -> DriverState:
    """A driver state message as a record."""
    return _checked(DriverState, msg, {n: getattr(msg, n) for n in _DRIVER})


def obstacles_to_msg(scan: Obstacles) -> ObstaclesMsg:
    """A lidar scan as its message; of more obstacles than it holds the nearest."""
    if len(scan.obstacles) > MAX_OBSTACLES:
        scan = protect(dataclasses.replace(scan, obstacles=scan.obstacles[:MAX_OBSTACLES]), scan.sequence_counter)
    scan = _fitted(scan, {"frame_id": 64, "fault": MAX_SCAN_FAULT})
    return ObstaclesMsg(
        stamp=to_time(scan.stamp_ns),
        obstacles=[ObstacleMsg(**_values(found, _OBSTACLE)) for found in scan.obstacles],
        **_values(scan, _OBSTACLES),
    )


def obstacles_from_msg(msg: ObstaclesMsg) -> Obstacles:
    """The message of a lidar scan as a record."""
    found = tuple(Obstacle(**{n: getattr(o, n) for n in _OBSTACLE}) for o in msg.obstacles)
    return Obstacles(from_time(msg.stamp), obstacles=found, **{n: getattr(msg, n) for n in _OBSTACLES})


def state_to_msg(record: StateRecord) -> DegradationStateMsg:
    """A degradation state as its message."""
    record = _fitted(record, {"reason": 160})
    faults = tuple(fit(name, 48) for name in record.active_faults[:16])
    if faults != record.active_faults:
        record = protect(dataclasses.replace(record, active_faults=faults), record.sequence_counter)
    return DegradationStateMsg(
        stamp=to_time(record.stamp_ns),
        state=int(record.state),
        previous=int(record.previous),
        since=to_time(record.since_ns),
        reason=record.reason,
        active_faults=list(record.active_faults),
        takeover_requested=bool(record.takeover_requested),
        takeover_remaining_s=float(record.takeover_remaining_s),
        sequence_counter=_uint(record.sequence_counter, 8, "sequence_counter"),
        crc=_uint(record.crc, 32, "crc"),
    )


def state_from_msg(msg: DegradationStateMsg) -> StateRecord:
    """A degradation state message as a record.

    Raises:
        InputError: unknown state number.
    """
    values = {
        "state": msg.state,
        "previous": msg.previous,
        "since_ns": from_time(msg.since),
        "reason": msg.reason,
        "active_faults": tuple(msg.active_faults),
        "takeover_requested": msg.takeover_requested,
        "takeover_remaining_s": msg.takeover_remaining_s,
        "sequence_counter": msg.sequence_counter,
        "crc": msg.crc,
    }
    return _checked(StateRecord, msg, values, state=DegradationState, previous=DegradationState)


def verdicts_to_msg(verdicts: tuple[Verdict, ...], stamp_ns: int) -> VerdictsMsg:
    """All verdicts as their message, at most :data:`MAX_VERDICTS`."""
    return VerdictsMsg(
        stamp=to_time(stamp_ns),
        verdicts=[
            VerdictMsg(
                fault_id=fit(v.fault_id, 48),
                source=fit(v.source, 32),
                level=int(v.level),
                active=bool(v.active),
                value=float(v.value),
                threshold=float(v.threshold),
                text=fit(v.text, 160),
            )
            for v in verdicts[:MAX_VERDICTS]
        ],
    )


def verdicts_from_msg(msg: VerdictsMsg) -> tuple[Verdict, ...]:
    """The verdicts of a message.

    Raises:
        InputError: unknown level number.
    """
    try:
        return tuple(
            Verdict(v.fault_id, v.source, VerdictLevel(v.level), v.active, v.value, v.threshold, v.text)
            for v in msg.verdicts
        )
    except ValueError as error:
        raise InputError(str(error), where="Verdicts", field="level") from None


def _checked(cls: type[R], msg: Any, values: dict[str, Any], **kinds: Callable[[int], Any]) -> R:
    try:
        for name, kind in kinds.items():
            values[name] = kind(values[name])
    except ValueError as error:
        raise InputError(str(error), where=type(msg).__name__, field=name) from None
    return cls(stamp_ns=from_time(msg.stamp), **values)


def odometry_to_msg(odometry: Odometry, frame_id: str = "odom", child_frame_id: str = "base_link") -> OdometryMsg:
    """Speed as ``nav_msgs/Odometry``: only the longitudinal velocity is filled."""
    msg = OdometryMsg(child_frame_id=child_frame_id)
    msg.header.stamp = to_time(odometry.stamp_ns)
    msg.header.frame_id = frame_id
    msg.twist.twist.linear.x = float(odometry.speed_mps)
    return msg


def odometry_from_msg(msg: OdometryMsg) -> Odometry:
    """The longitudinal speed in ``twist.twist.linear.x``; infinity counts as unknown (NaN)."""
    speed = msg.twist.twist.linear.x
    return Odometry(from_time(msg.header.stamp), speed if math.isfinite(speed) else math.nan)


# -- images ----------------------------------------------------------------------------------------------------------

_Pixels = npt.NDArray[np.uint8]


def frame_from_image(msg: Image, number: int, received_ns: int, received_monotonic_ns: int = 0) -> Frame:
    """An image message as a frame; zero-copy for bgr8 (the frame then keeps the message's data alive).

    Raises:
        InputError: see :func:`triptych.replay.images.decode_image`.
    """
    image = decode_image(
        msg.data, height=msg.height, width=msg.width, encoding=msg.encoding, step=msg.step, where="sensor_msgs/Image"
    )
    return Frame(image, from_time(msg.header.stamp), number, msg.header.frame_id, received_ns, received_monotonic_ns)


def frame_from_compressed(msg: CompressedImage, number: int, received_ns: int, received_monotonic_ns: int = 0) -> Frame:
    """A JPEG or PNG message as a frame.

    Raises:
        InputError: data that does not decode to a picture.
    """
    image = decode_compressed(msg.data, encoding=msg.format, where="sensor_msgs/CompressedImage")
    return Frame(image, from_time(msg.header.stamp), number, msg.header.frame_id, received_ns, received_monotonic_ns)


def image_to_msg(image: _Pixels, stamp_ns: int, frame_id: str) -> Image:
    """(height, width, 3) uint8 BGR as a bgr8 message; the pixels are copied once."""
    height, width = image.shape[:2]
    msg = Image(height=height, width=width, encoding="bgr8", is_bigendian=0, step=width * 3)
    msg.header.stamp = to_time(stamp_ns)
    msg.header.frame_id = frame_id
    data = array.array("B")
    data.frombytes(np.ascontiguousarray(image).data)
    msg.data = data  # an array is taken as it is; bytes would be checked one by one
    return msg


def compressed_to_msg(image: _Pixels, stamp_ns: int, frame_id: str, quality: int = 80) -> CompressedImage:
    """(height, width, 3) uint8 BGR as a JPEG message.

    Raises:
        InputError: the picture cannot be encoded.
    """
    ok, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not ok:
        raise InputError("cannot be encoded as JPEG", where="image", value=image.shape)
    msg = CompressedImage(format="bgr8; jpeg compressed bgr8")
    msg.header.stamp = to_time(stamp_ns)
    msg.header.frame_id = frame_id
    buffer = array.array("B")
    buffer.frombytes(data.data)
    msg.data = buffer
    return msg


# -- point clouds ----------------------------------------------------------------------------------------------------


def cloud_from_msg(msg: PointCloud2) -> PointCloud:
    """A point cloud message; zero-copy where the message's layout allows it.

    Raises:
        InputError: see :func:`triptych.lidar.cloud.decode_cloud`.
    """
    points = decode_cloud(
        msg.data,
        height=msg.height,
        width=msg.width,
        fields=[(f.name, f.offset, f.datatype, f.count) for f in msg.fields],
        point_step=msg.point_step,
        row_step=msg.row_step,
        is_bigendian=msg.is_bigendian,
        where="sensor_msgs/PointCloud2",
    )
    return PointCloud(points, from_time(msg.header.stamp), msg.header.frame_id)


def cloud_to_msg(cloud: PointCloud) -> PointCloud2:
    """(N, 3) float32 as an unordered cloud of x, y, z."""
    parts = encode_cloud(cloud.points)
    msg = PointCloud2(
        height=parts.height,
        width=parts.width,
        fields=[PointField(name=n, offset=o, datatype=d, count=c) for n, o, d, c in parts.fields],
        is_bigendian=parts.is_bigendian,
        point_step=parts.point_step,
        row_step=parts.row_step,
        is_dense=True,
    )
    msg.header.stamp = to_time(cloud.stamp_ns)
    msg.header.frame_id = cloud.frame_id
    buffer = array.array("B")
    buffer.frombytes(parts.data)
    msg.data = buffer
    return msg
