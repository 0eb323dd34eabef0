"""Detections as simple 3-D markers on the ground plane, in ``base_link`` (REP-103: x forward, y left, z up, metres).

A single camera gives no depth. What stands on the road is placed where the bottom edge of its box meets a flat
ground (pinhole camera, known mounting height and pitch); what hangs above it (traffic lights, signs), or whose bottom
edge is at or above the horizon, is placed by its typical height. That is good enough to look at and for nothing else:
the supervisor never uses these positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from triptych.contract import (
    ConfigError,
    DegradationState,
    Detection,
    DetectionClass,
    Detections,
    MotionConstraint,
    Obstacles,
    Origin,
    TierResult,
)
from triptych.viewing import words

FRAME_ID = "base_link"
LIFETIME_S = 0.5
"""A marker not renewed for this long disappears by itself: a dead view must not keep showing objects."""
MAX_RANGE_M = 150.0
MIN_RANGE_M = 1.0
GROUND_CONTACT = frozenset({DetectionClass.VEHICLE, DetectionClass.TWO_WHEELER, DetectionClass.PEDESTRIAN})
TYPICAL_SIZE_M: dict[DetectionClass, tuple[float, float, float]] = {
    DetectionClass.VEHICLE: (4.4, 1.8, 1.5),
    DetectionClass.TWO_WHEELER: (1.8, 0.7, 1.7),
    DetectionClass.PEDESTRIAN: (0.5, 0.6, 1.7),
    DetectionClass.TRAFFIC_LIGHT: (0.3, 0.4, 0.9),
    DetectionClass.SIGN: (0.1, 0.7, 0.7),
    DetectionClass.OTHER: (1.0, 1.0, 1.0),
}
"""Length (x), width (y) and height (z) of a typical member of each class, metres."""


class MarkerKind(IntEnum):
    """Values of ``visualization_msgs/Marker.type``."""

    CUBE = 1
    CYLINDER = 3
    LINE_STRIP = 4
    TEXT_VIEW_FACING = 9


@dataclass(frozen=True, slots=True)
class GroundCamera:
    """A pinhole camera looking forward over a flat ground.

    Attributes:
        fx_px, fy_px: focal lengths, pixels.
        cx_px, cy_px: principal point, pixels.
        height_m: optical centre above the ground.
        forward_m: optical centre ahead of ``base_link``.
        pitch_rad: downward tilt of the optical axis, positive down.

    Raises:
        ConfigError: a value that is not finite, or a focal length or height that is not above 0.
    """

    fx_px: float
    fy_px: float
    cx_px: float
    cy_px: float
    height_m: float = 1.4
    forward_m: float = 1.5
    pitch_rad: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fx_px", "fy_px", "cx_px", "cy_px", "height_m", "forward_m", "pitch_rad"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ConfigError("must be finite", field=name, value=value)
            if name in ("fx_px", "fy_px", "height_m") and not value > 0:
                raise ConfigError("must be above 0", field=name, value=value)

    @classmethod
    def from_fov(
        cls,
        width_px: int,
        height_px: int,
        horizontal_fov_deg: float = 60.0,
        *,
        height_m: float = 1.4,
        forward_m: float = 1.5,
        pitch_rad: float = 0.0,
    ) -> GroundCamera:
        """A camera with square pixels and a centred principal point.

        Raises:
            ConfigError: field of view outside 1..175 degrees, or an image side below 1 pixel.
        """
        if not 1.0 <= horizontal_fov_deg <= 175.0:
            raise ConfigError("must be 1..175", field="horizontal_fov_deg", value=horizontal_fov_deg)
        if width_px < 1 or height_px < 1:
            raise ConfigError("must be at least 1x1", field="image size", value=(width_px, height_px))
        focal = width_px / 2 / math.tan(math.radians(horizontal_fov_deg) / 2)
        return cls(focal, focal, width_px / 2, height_px / 2, height_m, forward_m, pitch_rad)

    def on_ground(self, u_px: float, v_px: float) -> tuple[float, float] | None:
        """Where a pixel's ray meets the ground: (x, y) in ``base_link``, or ``None`` at or above the horizon."""
        down = self.pitch_rad + math.atan((v_px - self.cy_px) / self.fy_px)
        if not math.sin(down) > 1e-4:
            return None
        forward = self.height_m / math.tan(down)
        depth = forward * math.cos(self.pitch_rad) + self.height_m * math.sin(self.pitch_rad)
        return self.forward_m + forward, -(u_px - self.cx_px) / self.fx_px * depth

    def at_depth(self, u_px: float, v_px: float, depth_m: float) -> tuple[float, float, float]:
        """The point of a pixel at ``depth_m`` along the optical axis: (x, y, z) in ``base_link``."""
        below = (v_px - self.cy_px) / self.fy_px * depth_m
        cosine, sine = math.cos(self.pitch_rad), math.sin(self.pitch_rad)
        x = self.forward_m + depth_m * cosine - below * sine
        z = self.height_m - depth_m * sine - below * cosine
        return x, -(u_px - self.cx_px) / self.fx_px * depth_m, z


@dataclass(frozen=True, slots=True)
class MarkerSpec:
    """One marker, free of ROS types.

    Attributes:
        namespace, id: identity; markers of one call have distinct pairs.
        kind: what to draw.
        position_m: centre in ``base_link``.
        size_m: extent along x, y, z (text: z is the height of the letters; line: x is its width).
        colour: red, green, blue, alpha, 0..1.
        text: for TEXT_VIEW_FACING.
        points_m: for LINE_STRIP, relative to ``position_m``.
        lifetime_s: disappears after this long without renewal.
    """

    namespace: str
    id: int
    kind: MarkerKind
    position_m: tuple[float, float, float]
    size_m: tuple[float, float, float]
    colour: tuple[float, float, float, float]
    text: str = ""
    points_m: tuple[tuple[float, float, float], ...] = ()
    lifetime_s: float = LIFETIME_S


def locate(detection: Detection, camera: GroundCamera) -> tuple[float, float, float] | None:
    """Centre of the object in ``base_link``, or ``None`` where the box gives no usable position.

    ``None`` for corners that are not finite or reversed, and for positions outside MIN_RANGE_M..MAX_RANGE_M.
    """
    box = (detection.x_min, detection.y_min, detection.x_max, detection.y_max)
    if not (all(map(math.isfinite, box)) and box[2] > box[0] and box[3] > box[1]):
        return None
    kind = words.detection_class(detection.class_id)
    length, _, height = TYPICAL_SIZE_M[kind]
    middle_u = (box[0] + box[2]) / 2
    contact = camera.on_ground(middle_u, box[3]) if kind in GROUND_CONTACT else None
    if contact is not None and contact[0] <= MAX_RANGE_M:
        # The bottom edge belongs to the near side of the object, its centre is half a length further.
        centre = (contact[0] + length / 2, contact[1], height / 2)
    else:
        depth = camera.fy_px * height / (box[3] - box[1])
        x, y, z = camera.at_depth(middle_u, (box[1] + box[3]) / 2, depth)
        centre = (x, y, height / 2 if kind in GROUND_CONTACT else max(z, height / 2))
    return centre if MIN_RANGE_M <= math.hypot(centre[0], centre[1]) <= MAX_RANGE_M else None


def detection_markers(detections: Detections, camera: GroundCamera, stale: bool = False) -> list[MarkerSpec]:
    """A box and a caption per located detection; pale and marked "old" with ``stale``."""
    markers = []
    for index, detection in enumerate(detections.detections):
        centre = locate(detection, camera)
        if centre is None:
            continue
        kind = words.detection_class(detection.class_id)
        size = TYPICAL_SIZE_M[kind]
        colour = _rgba(words.CLASS_COLOURS[kind], 0.35 if stale else 0.85)
        caption = f"{detection.label} {math.hypot(centre[0], centre[1]):.0f} m" + (" old" if stale else "")
        above = (centre[0], centre[1], centre[2] + size[2] / 2 + 0.5)
        markers.append(MarkerSpec("detections", index, MarkerKind.CUBE, centre, size, colour))
        markers.append(
            MarkerSpec(
                "captions", index, MarkerKind.TEXT_VIEW_FACING, above, (0.0, 0.0, 0.7), (1.0, 1.0, 1.0, 0.95), caption
            )
        )
    return markers


def obstacle_markers(scan: Obstacles) -> list[MarkerSpec]:
    """A box per obstacle of a lidar scan, pale where the lidar itself does not trust it."""
    colour = _rgba(words.OBSTACLE_COLOUR, 0.45 if scan.healthy else 0.15)
    return [
        MarkerSpec(
            "obstacles",
            index,
            MarkerKind.CUBE,
            ((o.x_min_m + o.x_max_m) / 2, (o.y_min_m + o.y_max_m) / 2, o.z_max_m / 2),
            (o.x_max_m - o.x_min_m, o.y_max_m - o.y_min_m, max(o.z_max_m, 0.1)),
            colour,
        )
        for index, o in enumerate(scan.obstacles)
        if all(map(math.isfinite, (o.x_min_m, o.x_max_m, o.y_min_m, o.y_max_m, o.z_max_m)))
    ]


def state_markers(
    state: DegradationState | None,
    reason: str = "",
    constraint: MotionConstraint | None = None,
    speed_mps: float = math.nan,
    takeover_remaining_s: float | None = None,
) -> list[MarkerSpec]:
    """State and command as text over the vehicle, and the stopping line while the command is to stop."""
    name = words.STATE_WORDS[state] if state is not None else "NO SUPERVISOR"
    colour = words.STATE_COLOURS[state] if state is not None else words.VERMILLION
    lines = [name]
    if reason:
        lines.append(reason)
    if takeover_remaining_s is not None:
        lines.append(f"take over: {max(0.0, takeover_remaining_s):.0f} s")
    if constraint is not None:
        limit = "stop" if constraint.speed_limit_mps <= 0 else f"limit {words.speed_text(constraint.speed_limit_mps)}"
        flags = [
            text
            for text, on in (
                ("hazard lights", constraint.hazard_lights),
                ("pull over", constraint.pull_over),
                ("remote centre told", constraint.remote_notification),
            )
            if on
        ]
        lines.append(", ".join([f"{words.speed_text(speed_mps)}, {limit}", *flags]))
    markers = [
        MarkerSpec(
            "state",
            0,
            MarkerKind.TEXT_VIEW_FACING,
            (0.0, 0.0, 3.2),
            (0.0, 0.0, 0.9),
            _rgba(colour, 1.0),
            "\n".join(lines),
            lifetime_s=1.0,
        ),
        MarkerSpec("ego", 0, MarkerKind.CUBE, (1.3, 0.0, 0.75), (4.4, 1.8, 1.5), _rgba(colour, 0.6), lifetime_s=1.0),
    ]
    if (
        constraint is not None
        and constraint.speed_limit_mps <= 0
        and speed_mps > 0
        and constraint.deceleration_mps2 > 0
    ):
        distance = min(speed_mps**2 / (2 * constraint.deceleration_mps2), MAX_RANGE_M)
        line = ((0.0, -2.0, 0.0), (0.0, 2.0, 0.0))
        markers.append(
            MarkerSpec(
                "stop_line",
                0,
                MarkerKind.LINE_STRIP,
                (3.5 + distance, 0.0, 0.05),
                (0.3, 0.0, 0.0),
                _rgba(words.VERMILLION, 1.0),
                points_m=line,
                lifetime_s=0.3,
            )
        )
    return markers


def scene_markers(
    detector: TierResult | None,
    camera: GroundCamera,
    state: DegradationState | None,
    reason: str = "",
    constraint: MotionConstraint | None = None,
    speed_mps: float = math.nan,
    takeover_remaining_s: float | None = None,
    scan: Obstacles | None = None,
) -> list[MarkerSpec]:
    """Everything for one MarkerArray. A DEFAULT detector result shows no objects but says so over the vehicle."""
    markers = state_markers(state, reason, constraint, speed_mps, takeover_remaining_s)
    if scan is not None:
        markers += obstacle_markers(scan)
    if detector is None or not isinstance(detector.payload, Detections):
        return markers
    if detector.origin is Origin.DEFAULT:
        text = "no perception: surroundings unknown"
        return [
            *markers,
            MarkerSpec(
                "captions",
                0,
                MarkerKind.TEXT_VIEW_FACING,
                (8.0, 0.0, 1.5),
                (0.0, 0.0, 0.9),
                _rgba(words.VERMILLION, 1.0),
                text,
            ),
        ]
    return markers + detection_markers(detector.payload, camera, stale=detector.origin is not Origin.FRESH)


def _rgba(colour: str, alpha: float) -> tuple[float, float, float, float]:
    red, green, blue = words.rgb(colour)
    return red / 255, green / 255, blue / 255, alpha
