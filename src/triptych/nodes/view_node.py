"""Annotated camera image and markers, for people. Works only while somebody looks, and never fast.

The camera is subscribed to while an image topic of ours has a subscriber: receiving raw frames costs every process that
asks for them.
"""

from __future__ import annotations

import math
import time
from typing import Any

import cv2
import numpy as np
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point, Pose, Quaternion, Vector3
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from triptych.contract import Frame, InputError, MotionConstraint, Obstacles, Tier, TierResult
from triptych.contract.supervision import StateRecord
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import (
    DATA_QOS,
    INPUT_QOS,
    LATCHED_QOS,
    SENSOR_OUT_QOS,
    SENSOR_QOS,
    PolledReader,
    Subscription,
    create_publisher,
)
from triptych.nodes.params import ViewParams, load
from triptych.nodes.runtime import Every, Notes, main
from triptych.viewing import draw, markers
from triptych_ros.msg import DegradationState, Detections, SceneAdvice
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg
from triptych_ros.msg import Obstacles as ObstaclesMsg

ODOMETRY_FRESH_S = 0.5
"""A speed older than this is shown as unknown."""
SCAN_FRESH_S = 0.5
"""What a lidar saw longer ago is not shown."""


class ViewNode(Node):  # type: ignore[misc]
    """The view. Parameters: :class:`triptych.nodes.params.ViewParams`."""

    def __init__(self, name: str = "view", **options: Any) -> None:
        super().__init__(name, **options)
        self.malloc_tuned = False
        self.params = load(self, ViewParams)
        self.notes = Notes(self)
        self._results: dict[Tier, TierResult] = {}
        self._state: StateRecord | None = None
        self._constraint: MotionConstraint | None = None
        self._scan: Obstacles | None = None
        self._scan_s = -math.inf
        self._speed_mps, self._speed_s = math.nan, -math.inf
        self._frame: Frame | None = None
        self._camera: Subscription | None = None
        self._image = create_publisher(self, Image, topics.VIEW_IMAGE.name, SENSOR_OUT_QOS, self.notes)
        self._jpeg = create_publisher(
            self, CompressedImage, topics.VIEW_IMAGE_COMPRESSED.name, SENSOR_OUT_QOS, self.notes
        )
        self._markers = create_publisher(self, MarkerArray, topics.VIEW_MARKERS.name, DATA_QOS, self.notes)
        self._reader = PolledReader(self)
        for tier in Tier:
            kind = Detections if tier is Tier.DETECTOR else SceneAdvice
            self._reader.add(kind, topics.RESULTS[tier].name, INPUT_QOS, self._on_result, self.notes)
        self._reader.add(DegradationState, topics.STATE.name, LATCHED_QOS, self._on_state, self.notes)
        self._reader.add(MotionConstraintMsg, topics.CONSTRAINT.name, INPUT_QOS, self._on_constraint, self.notes)
        self._reader.add(ObstaclesMsg, topics.OBSTACLES.name, INPUT_QOS, self._on_obstacles, self.notes)
        self._reader.add(OdometryMsg, topics.ODOMETRY.name, INPUT_QOS, self._on_odometry, self.notes)
        self._loop = Every(1.0 / self.params.rate_hz, self._show, "view")

    def begin(self) -> None:
        """Apply scheduling and start."""
        params = self.params
        realtime.apply("view", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._loop.start()

    def _on_result(self, msg: Any) -> None:
        result = _or_none(convert.result_from_msg, msg)
        if result is not None:
            self._results[result.tier] = result

    def _on_state(self, msg: Any) -> None:
        self._state = _or_none(convert.state_from_msg, msg) or self._state

    def _on_constraint(self, msg: Any) -> None:
        self._constraint = _or_none(convert.constraint_from_msg, msg) or self._constraint

    def _on_obstacles(self, msg: Any) -> None:
        self._scan, self._scan_s = convert.obstacles_from_msg(msg), time.monotonic()

    def _on_odometry(self, msg: Any) -> None:
        self._speed_mps, self._speed_s = convert.odometry_from_msg(msg).speed_mps, time.monotonic()

    def _show(self) -> None:
        self._reader.poll()
        images = self._image.get_subscription_count() > 0
        jpegs = self._jpeg.get_subscription_count() > 0
        self._follow_camera(images or jpegs)
        if images or jpegs:
            self._show_image(images, jpegs)
        if self._markers.get_subscription_count() > 0:
            self._markers.publish(self._marker_array())

    def _follow_camera(self, wanted: bool) -> None:
        if wanted and self._camera is None:
            self._camera = Subscription(self, Image, topics.CAMERA_IMAGE.name, SENSOR_QOS, self.notes)
        elif not wanted and self._camera is not None:
            self._camera.close()
            self._camera = self._frame = None

    def _show_image(self, images: bool, jpegs: bool) -> None:
        assert self._camera is not None
        taken = self._camera.take()
        if taken is None:
            return
        try:
            frame = convert.frame_from_image(taken[0], 1, time.time_ns())
        except InputError as error:
            self.notes(str(error), key=f"camera {error.field}")
            return
        width = min(self.params.width_px, frame.width)
        height = max(1, round(frame.height * width / frame.width))
        small = frame.image
        if width != frame.width:
            small = np.asarray(cv2.resize(frame.image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        image = draw.annotate(small, self._overlay())
        if images:
            self._image.publish(convert.image_to_msg(image, frame.stamp_ns, frame.frame_id))
        if jpegs:
            jpeg = convert.compressed_to_msg(image, frame.stamp_ns, frame.frame_id, self.params.jpeg_quality)
            self._jpeg.publish(jpeg)

    def _speed(self) -> float:
        return self._speed_mps if time.monotonic() - self._speed_s <= ODOMETRY_FRESH_S else math.nan

    def _seen(self) -> tuple[TierResult, ...]:
        now_ns = time.time_ns()
        return tuple(draw.as_seen(self._results[tier], now_ns) for tier in Tier if tier in self._results)

    def _remaining_s(self) -> float | None:
        state = self._state
        return state.takeover_remaining_s if state is not None and state.takeover_requested else None

    def _overlay(self) -> draw.Overlay:
        state = self._state
        return draw.Overlay(
            results=self._seen(),
            state=state.state if state else None,
            reason=state.reason if state else "",
            takeover_remaining_s=self._remaining_s(),
            constraint=self._constraint,
            speed_mps=self._speed(),
        )

    def _marker_array(self) -> MarkerArray:
        params, state = self.params, self._state
        detector = next((r for r in self._seen() if r.tier is Tier.DETECTOR), None)
        width = getattr(detector.payload, "image_width", 0) if detector else 0
        height = getattr(detector.payload, "image_height", 0) if detector else 0
        camera = markers.GroundCamera.from_fov(
            width or 1280,
            height or 720,
            params.camera_fov_deg,
            height_m=params.camera_height_m,
            forward_m=params.camera_forward_m,
            pitch_rad=params.camera_pitch_rad,
        )
        specs = markers.scene_markers(
            detector,
            camera,
            state.state if state else None,
            state.reason if state else "",
            self._constraint,
            self._speed(),
            self._remaining_s(),
            self._scan if time.monotonic() - self._scan_s <= SCAN_FRESH_S else None,
        )
        stamp = convert.to_time(time.time_ns())
        return MarkerArray(markers=[_marker(spec, stamp) for spec in specs])

    def close(self) -> None:
        """Stop."""
        self._loop.stop()
        self._reader.close()
        if self._camera is not None:
            self._camera.close()


def _or_none(build: Any, msg: Any) -> Any:
    try:
        return build(msg)
    except InputError:
        return None


def _marker(spec: markers.MarkerSpec, stamp: Any) -> Marker:
    marker = Marker(ns=spec.namespace, id=spec.id, type=int(spec.kind), action=Marker.ADD, text=spec.text)
    marker.header.frame_id, marker.header.stamp = markers.FRAME_ID, stamp
    x, y, z = spec.position_m
    marker.pose = Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(w=1.0))
    marker.scale = Vector3(x=spec.size_m[0], y=spec.size_m[1], z=spec.size_m[2])
    r, g, b, a = spec.colour
    marker.color = ColorRGBA(r=float(r), g=float(g), b=float(b), a=float(a))
    marker.points = [Point(x=p[0], y=p[1], z=p[2]) for p in spec.points_m]
    whole = int(spec.lifetime_s)
    marker.lifetime = Duration(sec=whole, nanosec=int((spec.lifetime_s - whole) * 1e9))
    return marker


if __name__ == "__main__":
    main(ViewNode)
