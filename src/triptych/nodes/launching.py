"""What the launch files share: their arguments as a table, and the actions made from them.

For a real ROS 2 installation: ``launch`` and ``launch_ros`` are imported here and nowhere else in the package. An
argument that is left empty changes nothing, so that the parameter file keeps its say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterFile

from triptych import dds
from triptych.contract import ConfigError, Tier
from triptych.nodes import topics
from triptych.resources import resource

PACKAGE = "triptych_ros"
RESPAWN_DELAY_S = 1.0
SWITCH = ("true", "false")


@dataclass(frozen=True, slots=True)
class Argument:
    """A launch argument; ``choices`` where only some values make sense."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()


COMMON = (
    Argument("params", "", "ROS parameter file; empty: the shipped config/params.yaml."),
    Argument("namespace", "", "Namespace of all nodes and relative topics."),
    Argument("camera", topics.CAMERA_IMAGE.name, "Camera topic (sensor_msgs/Image)."),
    Argument("odometry", topics.ODOMETRY.name, "Odometry topic (nav_msgs/Odometry)."),
    Argument("driver", topics.DRIVER_STATE.name, "Driver state topic (triptych_ros/DriverState)."),
    Argument("log_level", "info", "Log level of all nodes.", ("debug", "info", "warn", "error", "fatal")),
    Argument("respawn", "true", "Restart a node that ends with an error.", SWITCH),
)
STACK = (
    *COMMON,
    *(
        Argument(
            f"{tier.key}_engine", "", f"Engine of the {tier.key} tier: name or manifest path; empty: parameter file."
        )
        for tier in Tier
    ),
    Argument("distilled", "true", "Start the distilled VLM tier.", SWITCH),
    Argument("full", "true", "Start the full VLM tier.", SWITCH),
    Argument("scenario", "false", "Drive the built-in scenario instead of a real vehicle's topics.", SWITCH),
    Argument("view", "false", "Publish annotated image and markers.", SWITCH),
    Argument("record", "", "Folder to record results in; empty: nothing is recorded."),
    Argument(
        "latch_file", "", "Where the supervisor remembers an unfinished manoeuvre across restarts; empty: nowhere."
    ),
)
REPLAY = (
    Argument("input", "", "Recording: rosbag2 folder or file, ROS 1 bag, video, or folder of images."),
    Argument("rate", "1.0", "Speed of play."),
    Argument("start_s", "0.0", "Seconds to leave out at the beginning."),
    Argument("duration_s", "0.0", "Seconds to play; 0: to the end."),
    Argument("loop", "false", "Begin again at the end.", SWITCH),
)
VIEW = (
    *COMMON,
    Argument("rviz", "true", "Start RViz with the shipped layout (needs rviz2).", SWITCH),
    Argument(
        "foxglove", "false", "Start foxglove_bridge for the shipped Foxglove layout (needs foxglove_bridge).", SWITCH
    ),
)


def declared(arguments: Iterable[Argument]) -> list[DeclareLaunchArgument]:
    """The arguments as launch actions."""
    return [
        DeclareLaunchArgument(
            a.name,
            default_value=a.default,
            description=a.description,
            **({"choices": list(a.choices)} if a.choices else {}),
        )
        for a in arguments
    ]


def dds_environment() -> list[SetEnvironmentVariable]:
    """The middleware's settings that raw images need, where the user has none of their own."""
    return [SetEnvironmentVariable(name, value) for name, value in dds.environment().items()]


class Values:
    """The launch arguments of this launch."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getitem__(self, name: str) -> str:
        return str(LaunchConfiguration(name).perform(self._context))

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self[name] == "true"


def node(
    values: Values, name: str, executable: str, parameters: Mapping[str, Any] | None = None, *, respawn: bool = True
) -> Any:
    """A node of the stack: parameter file first, then ``parameters`` that are not empty."""
    file = values["params"] or str(resource("config", "params.yaml"))
    own = {key: value for key, value in (parameters or {}).items() if value != ""}
    remaps = [
        (topic.name, values[argument])
        for topic, argument in (
            (topics.CAMERA_IMAGE, "camera"),
            (topics.ODOMETRY, "odometry"),
            (topics.DRIVER_STATE, "driver"),
        )
        if values[argument] != topic.name
    ]
    kind = LifecycleNode if executable == "tier_node" else Node
    return kind(
        package=PACKAGE,
        executable=executable,
        name=name,
        namespace=values["namespace"],
        parameters=[ParameterFile(file), *([own] if own else [])],
        remappings=remaps,
        output="screen",
        emulate_tty=True,
        respawn=respawn and values.on("respawn"),
        respawn_delay=RESPAWN_DELAY_S,
        arguments=["--ros-args", "--log-level", values["log_level"]],
    )


def stack(context: Any) -> Sequence[Any]:
    """Supervisor, tiers, and what else was asked for."""
    values = Values(context)
    tiers = [tier for tier in Tier if tier is Tier.DETECTOR or values.on(tier.key)]
    supervisor = {
        "distilled_expected": Tier.DISTILLED in tiers,
        "full_expected": Tier.FULL in tiers,
        "latch_file": values["latch_file"],
    }
    actions = [node(values, "supervisor", "supervisor_node", supervisor)]
    actions += [node(values, tier.key, "tier_node", {"engine": values[f"{tier.key}_engine"]}) for tier in tiers]
    if values["record"]:
        actions.append(node(values, "recorder", "recorder_node", {"folder": values["record"]}))
    if values.on("view"):
        actions.append(node(values, "view", "view_node"))
    if values.on("scenario"):
        actions += ends_launch(node(values, "scenario", "scenario_node", respawn=False))
    return actions


def replay(context: Any) -> Sequence[Any]:
    """The player; the launch ends with it.

    Raises:
        ConfigError: no input named.
    """
    values = Values(context)
    if not values["input"]:
        raise ConfigError("names no recording", where="launch argument", field="input", remedy="add input:=PATH")
    parameters = {
        "input": values["input"],
        "rate": float(values["rate"]),
        "start_s": float(values["start_s"]),
        "duration_s": float(values["duration_s"]),
        "loop": values.on("loop"),
        "tiers": ",".join(t.key for t in Tier if t is Tier.DETECTOR or values.on(t.key)),
    }
    return ends_launch(node(values, "replay", "replay_node", parameters, respawn=False))


def view(context: Any) -> Sequence[Any]:
    """The view node, and a program to look with."""
    values = Values(context)
    rviz = Node(
        package="rviz2",
        executable="rviz2",
        arguments=["-d", str(resource("config", "rviz", "triptych.rviz"))],
        condition=IfCondition(LaunchConfiguration("rviz")),
    )
    foxglove = Node(
        package="foxglove_bridge",
        executable="foxglove_bridge",
        condition=IfCondition(LaunchConfiguration("foxglove")),
    )
    return [node(values, "view", "view_node"), rviz, foxglove]


def ends_launch(source: Any) -> list[Any]:
    """``source``, and the end of the launch when it ends."""
    over = EmitEvent(event=Shutdown(reason="the source of frames has ended"))
    return [source, RegisterEventHandler(OnProcessExit(target_action=source, on_exit=[over]))]
