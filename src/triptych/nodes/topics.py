"""Every topic and service of the stack, once: nodes, launch files, viewers and tests take the names from here.

Names are relative (remappable); with the default empty namespace ``detector/result`` is ``/detector/result``.
This module imports neither ROS nor anything of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract import Tier


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        name: relative name; a leading slash marks a name that ROS fixes globally (``/diagnostics``).
        type: ROS type, ``package/msg/Name``.
        publisher: who publishes it in the stack.
        rate_hz: nominal rate; 0 where it follows an event or a parameter.
        latched: transient local durability, depth 1: a late joiner gets the last message.
        description: one phrase for documentation.
    """

    name: str
    type: str
    publisher: str
    rate_hz: float
    latched: bool
    description: str

    @property
    def resolved(self) -> str:
        """The name in the default empty namespace."""
        return self.name if self.name.startswith("/") else f"/{self.name}"


@dataclass(frozen=True, slots=True)
class Service:
    """One service: relative name, ROS type ``package/srv/Name``, who serves it, what it does."""

    name: str
    type: str
    server: str
    description: str


CAMERA_IMAGE = Topic("camera/image_raw", "sensor_msgs/msg/Image", "camera", 0.0, False, "camera: bgr8, rgb8 or mono8")
ODOMETRY = Topic("odometry", "nav_msgs/msg/Odometry", "vehicle", 0.0, False, "vehicle speed in twist.twist.linear.x")
DRIVER_STATE = Topic("driver/state", "triptych_ros/msg/DriverState", "driver", 0.0, False, "what is known of a driver")
LIDAR_POINTS = Topic("lidar/points", "sensor_msgs/msg/PointCloud2", "lidar driver", 0.0, False, "lidar: x, y, z")
POSITION = Topic("position", "sensor_msgs/msg/NavSatFix", "vehicle", 0.0, False, "position, for remote notification")
FULL_QUESTION = Topic("full/question", "std_msgs/msg/String", "anyone", 0.0, False, "a free question to tier 3")

RESULTS: dict[Tier, Topic] = {
    Tier.DETECTOR: Topic(
        "detector/result", "triptych_ros/msg/Detections", "detector", 20.0, False, "tier 1: detected objects"
    ),
    Tier.DISTILLED: Topic(
        "distilled/result", "triptych_ros/msg/SceneAdvice", "distilled", 5.0, False, "tier 2: scene and advice"
    ),
    Tier.FULL: Topic("full/result", "triptych_ros/msg/SceneAdvice", "full", 0.5, False, "tier 3: scene and advice"),
}
"""One result topic per tier."""

STATUSES: dict[Tier, Topic] = {
    tier: Topic(f"{tier.key}/status", "triptych_ros/msg/TierStatus", tier.key, 10.0, False, f"heartbeat of tier {tier}")
    for tier in Tier
}
"""One heartbeat topic per tier."""

OBSTACLES = Topic(
    "lidar/obstacles", "triptych_ros/msg/Obstacles", "lidar", 10.0, False, "what the lidar sees, and its health"
)
STATE = Topic(
    "supervisor/state", "triptych_ros/msg/DegradationState", "supervisor", 0.0, True, "state of the degradation machine"
)
CONSTRAINT = Topic(
    "supervisor/constraint", "triptych_ros/msg/MotionConstraint", "supervisor", 20.0, False, "what the supervisor asks"
)
COMMAND = Topic(
    "vehicle/constraint", "triptych_ros/msg/MotionConstraint", "safety_core", 20.0, False, "the vehicle's command"
)
VERDICTS = Topic("supervisor/verdicts", "triptych_ros/msg/Verdicts", "supervisor", 0.0, False, "what each monitor says")
DIAGNOSTICS = Topic("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray", "supervisor", 1.0, False, "for ROS tooling")
VIEW_IMAGE = Topic("view/image_annotated", "sensor_msgs/msg/Image", "view", 0.0, False, "camera image with overlays")
VIEW_IMAGE_COMPRESSED = Topic(
    "view/image_annotated/compressed", "sensor_msgs/msg/CompressedImage", "view", 0.0, False, "the same as JPEG"
)
VIEW_MARKERS = Topic(
    "view/markers", "visualization_msgs/msg/MarkerArray", "view", 0.0, False, "objects on the ground plane, state text"
)

TOPICS: tuple[Topic, ...] = (
    CAMERA_IMAGE,
    ODOMETRY,
    DRIVER_STATE,
    LIDAR_POINTS,
    POSITION,
    FULL_QUESTION,
    *RESULTS.values(),
    *STATUSES.values(),
    OBSTACLES,
    STATE,
    CONSTRAINT,
    COMMAND,
    VERDICTS,
    DIAGNOSTICS,
    VIEW_IMAGE,
    VIEW_IMAGE_COMPRESSED,
    VIEW_MARKERS,
)
"""All topics, inputs first."""

TAKEOVER = Service("supervisor/takeover", "std_srvs/srv/Trigger", "supervisor", "the driver takes over (any state)")
RESET = Service("supervisor/reset", "std_srvs/srv/Trigger", "supervisor", "leave MRC after the cause was removed")
SAFETY_RESET = Service(
    "safety_core/reset", "std_srvs/srv/Trigger", "safety_core", "leave the safety core's own stop, at standstill"
)
SERVICES: tuple[Service, ...] = (TAKEOVER, RESET, SAFETY_RESET)
"""All services (lifecycle and parameter services aside)."""
