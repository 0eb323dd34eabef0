"""The launch files as data: their arguments, and which nodes these arguments mean.

Only the functions from :func:`description` on import ``launch`` and ``launch_ros``; the tables above them can be read
(by tests, documentation) where no ROS 2 installation is. An argument that sets a node's parameter takes its default
from that node's schema, and counts only when it is given: without it, what the parameter file says stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych import dds, resources
from triptych.contract import ConfigError, Tier, TriptychError
from triptych.nodes import topics
from triptych.nodes.params import NODES, rows
from triptych.nodes.process import REFUSED_CODE, STARTER_VARIABLE, NodeSpec
from triptych.stack import (
    NODE_PACKAGE,
    SCENARIO_LIDAR_HZ,
    input_remaps,
    node,
    params_file,
    recorded,
    remote_target,
    stack_specs,
)

if TYPE_CHECKING:
    from launch import LaunchContext, LaunchDescription
    from launch.actions import Action

RESPAWN_DELAY_S = 1.0
HELPERS = ("view", "recorder")
"""Nodes for people: if one of them cannot work, the others go on."""
HELPER_RESPAWNS = 10
SIGTERM_AFTER_S, SIGKILL_AFTER_S = "1.2", "0.6"
"""After the interrupt, and after that: everything ends within 2 s. Launch arguments of the same names override them."""
TIERS = tuple(tier.key for tier in Tier)


@dataclass(frozen=True, slots=True)
class Argument:
    """One launch argument.

    Attributes:
        name: as typed: ``name:=value``.
        description: for ``ros2 launch --show-args``.
        default: text used when it is not given; None: it must be given.
        sets: (node, parameter) pairs it sets when it is given; ``default`` is then the schema's and is only shown.
    """

    name: str
    description: str
    default: str | None
    sets: tuple[tuple[str, str], ...] = ()


def _text(value: Any) -> str:
    """A parameter's value as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _sets(nodes: str | Sequence[str], parameter: str, name: str = "", **options: Any) -> Argument:
    """An argument that sets a parameter: description, range and default are the schema's unless given."""
    names = (nodes,) if isinstance(nodes, str) else tuple(nodes)
    default, limits, meaning = next(
        (value, text, description)
        for row, _, value, text, description in rows(NODES[names[0]].params)
        if row == parameter
    )
    shown = options.pop("description", meaning) + (f" [{limits}]" if limits else "")
    return Argument(
        name or parameter, shown, options.pop("default", _text(default)), tuple((n, parameter) for n in names)
    )


COMMON: tuple[Argument, ...] = (
    Argument("namespace", "Namespace of all nodes and of their relative topics.", ""),
    Argument("params", "ROS parameter file (a copy of config/params.yaml); empty: the shipped one.", ""),
    *(
        _sets(
            tier,
            "engine",
            f"{tier}_engine",
            description=f"Engine of tier {tier}, name or path of a manifest; empty: triptych-{tier}.",
        )
        for tier in TIERS
    ),
    _sets(TIERS, "device", description="Device asked for, for all tiers."),
    Argument("distilled", "Start the distilled VLM tier (true or false).", "true"),
    Argument("full", "Start the full VLM tier (true or false).", "true"),
    _sets("full", "question", description="Standing question of the full tier; empty: the engine's own."),
    _sets(
        "remote",
        "target",
        "remote",
        description="Target of remote notification, https:// or mqtts://; empty: as params says.",
    ),
    _sets("remote", "vehicle_id", description="Name of this vehicle in remote notifications."),
    _sets("supervisor", "latch_file", description="File in which the supervisor remembers an unfinished manoeuvre."),
    Argument("view", "Start the node that draws the annotated image and the markers (true or false).", "true"),
    Argument("out", "Folder to record results into, for `triptych report FOLDER`; empty: nothing is recorded.", ""),
    Argument("respawn", "Start a node that died again after a second, the source excepted (true or false).", "true"),
    Argument("log_level", "Least severity the nodes log: debug, info, warn, error or fatal.", "info"),
)
"""Of stack and replay alike."""

STACK: tuple[Argument, ...] = (
    Argument("camera", "Camera topic (sensor_msgs/Image, or CompressedImage below it).", topics.CAMERA_IMAGE.name),
    Argument("odometry", "Odometry topic (nav_msgs/Odometry).", topics.ODOMETRY.name),
    Argument("driver", "Driver state topic (triptych_ros/DriverState).", topics.DRIVER_STATE.name),
    Argument("lidar", "The vehicle has a lidar: hold what the detector sees against it (true or false).", "false"),
    Argument("points", "Lidar topic (sensor_msgs/PointCloud2).", topics.LIDAR_POINTS.name),
    _sets(TIERS, "image_transport"),
    _sets(TIERS, "autostart", description="Tiers configure and activate themselves; false: a lifecycle manager does."),
    Argument("scenario", "Drive the built-in scenario as the source of camera, odometry and driver.", "false"),
    _sets("scenario", "duration_s", "duration", description="Seconds the scenario runs; 0: until stopped."),
    _sets("scenario", "seed", description="Seed of the scenario."),
    *COMMON,
)
"""``stack.launch.py``: tiers and supervisor on live topics, or on the built-in scenario."""

REPLAY: tuple[Argument, ...] = (
    _sets("replay", "input", default=None),
    _sets("replay", "rate"),
    _sets("replay", "start_s", "start"),
    _sets("replay", "duration_s", "duration"),
    _sets("replay", "loop"),
    _sets("replay", "topics", description="role=topic, separated by commas; roles camera, odometry, driver."),
    _sets("replay", "fps"),
    _sets("replay", "salvage"),
    *COMMON,
)
"""``replay.launch.py``: the same on a recording; its end is the end of the launch."""

VIEW: tuple[Argument, ...] = (
    Argument("namespace", "Namespace that the stack was started in.", ""),
    Argument("rviz", "Start RViz with the layout below (true or false).", "true"),
    Argument("layout", "RViz layout; empty: the shipped config/rviz/triptych.rviz.", ""),
    Argument(
        "foxglove", "Start foxglove_bridge; in Foxglove import config/foxglove/triptych.json (true or false).", "false"
    ),
    Argument("port", "TCP port of foxglove_bridge.", "8765"),
    Argument("view", "Start the view node too, for a stack that was started with view:=false.", "false"),
    Argument("params", "ROS parameter file of the view node; empty: the shipped config/params.yaml.", ""),
    Argument("log_level", "Least severity the view node logs: debug, info, warn, error or fatal.", "info"),
)
"""``view.launch.py``: what people look at."""

FILES: dict[str, tuple[Argument, ...]] = {"stack": STACK, "replay": REPLAY, "view": VIEW}
"""By name of the launch file, without ``.launch.py``."""

_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")


def truth(name: str, text: str) -> bool:
    """A switch.

    Raises:
        ConfigError: neither true nor false.
    """
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ConfigError("must be true or false", where="launch arguments", field=name, value=text) from None


def typed(name: str, text: str, default: Any) -> Any:
    """``text`` as the type of a parameter's ``default``; ranges are the node's business.

    Raises:
        ConfigError: not of that type.
    """
    if isinstance(default, bool):
        return truth(name, text)
    if isinstance(default, list):
        return [part.strip() for part in text.split(",")]
    kind = type(default)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"must be {wanted}", where="launch arguments", field=name, value=text) from None


def overrides(arguments: Iterable[Argument], values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Node name -> parameters that the given arguments set; an empty text is an argument that was not given.

    Raises:
        ConfigError: a value of the wrong type.
    """
    found: dict[str, dict[str, Any]] = {}
    for argument in arguments:
        text = values[argument.name]
        for name, parameter in argument.sets if text else ():
            default = NODES[name].params.model_fields[parameter].default
            found.setdefault(name, {})[parameter] = typed(argument.name, text, default)
    return found


def _shared(
    arguments: Sequence[Argument], values: Mapping[str, str], remaps: Mapping[str, str], mode: str, source: str
) -> list[NodeSpec]:
    """Tiers, supervisor, view and recorder as the common arguments say; ``mode`` and ``source`` go into the record."""
    wanted = {"detector": True, **{key: truth(key, values[key]) for key in ("distilled", "full")}}
    params = params_file(_path(values["params"]))
    specs = stack_specs(
        params,
        {},
        [t for t in Tier if wanted[t.key]],
        view=truth("view", values["view"]),
        vehicle=mode != "replay",
        lidar=truth("lidar", values.get("lidar", "false")),
        remaps=remaps,
        # A recording that is replayed tells nobody unless asked to: its emergency is over.
        remote=values["remote"] or ("" if mode == "replay" else remote_target(params)),
    )
    if values["out"]:
        tiers = ",".join(spec.name for spec in specs if spec.name in TIERS)
        specs = recorded(specs, params, values["out"], mode=mode, input=source, tiers=tiers)
    respawn = truth("respawn", values["respawn"])
    given = overrides(arguments, values)
    return [
        replace(spec, parameters={**spec.parameters, **given.get(spec.name, {})}, respawn=respawn) for spec in specs
    ]


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def stack_nodes(values: Mapping[str, str]) -> list[NodeSpec]:
    """What ``stack.launch.py`` starts.

    Args:
        values: every argument of :data:`STACK`, as text.

    Raises:
        TriptychError: a value that makes no sense, or no such parameter file.
    """
    remaps = input_remaps(values["camera"], values["odometry"], values["driver"], values["points"])
    scenario = truth("scenario", values["scenario"])
    live = f"live topic {values['camera']}"
    specs = _shared(STACK, values, remaps, *(("demo", "built-in drive") if scenario else ("run", live)))
    if not scenario:
        return specs
    drive = _source("scenario", STACK, values, remaps)
    if truth("lidar", values["lidar"]):
        drive = replace(drive, parameters={"lidar_rate_hz": SCENARIO_LIDAR_HZ, **drive.parameters})
    return [*specs, drive]


def replay_nodes(values: Mapping[str, str]) -> list[NodeSpec]:
    """What ``replay.launch.py`` starts.

    Args:
        values: every argument of :data:`REPLAY`, as text.

    Raises:
        TriptychError: a value that makes no sense, or no such recording or parameter file.
    """
    source = Path(values["input"]).expanduser()
    if not source.exists():
        raise ConfigError(
            "no such recording",
            where="launch arguments",
            field="input",
            value=values["input"],
            remedy="name a file or folder",
        )
    specs = _shared(REPLAY, values, {}, "replay", source.name)
    player = _source("replay", REPLAY, values, {})
    awaited = ",".join(spec.name for spec in specs if spec.name in TIERS)
    return [*specs, replace(player, parameters={**player.parameters, "tiers": awaited})]


def _source(name: str, arguments: Sequence[Argument], values: Mapping[str, str], remaps: Mapping[str, str]) -> NodeSpec:
    """The node whose end is the end of the run."""
    given = overrides(arguments, values).get(name, {})
    params = params_file(_path(values["params"]))
    return node(name, NODES[name].executable, params, parameters=given, remaps=remaps, respawn=False, ends_run=True)


def view_nodes(values: Mapping[str, str]) -> list[NodeSpec]:
    """What ``view.launch.py`` starts of this package (RViz and the bridge are :func:`viewers`).

    Raises:
        TriptychError: a value that makes no sense, or no such parameter file.
    """
    if not truth("view", values["view"]):
        return []
    return [node("view", "view_node", params_file(_path(values["params"])))]


# -- launch ------------------------------------------------------------------------------------------------------------


def description(name: str, nodes: Callable[[Mapping[str, str]], list[NodeSpec]]) -> LaunchDescription:
    """The launch description of the file ``name``: its arguments, then what ``nodes`` makes of their values."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction

    arguments = FILES[name]

    def start(context: LaunchContext) -> list[Action]:
        values = {argument.name: context.launch_configurations[argument.name] for argument in arguments}
        actions = [node_action(spec, values) for spec in nodes(values)]
        if name == "view":
            actions += viewers(values)
        return [in_environment(actions, context.environment)]

    declared = [
        DeclareLaunchArgument(argument.name, default_value=_default(argument), description=argument.description)
        for argument in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def _default(argument: Argument) -> Any:
    """Default of an argument; one that sets a parameter shows the schema's and stays empty: see the module's text."""
    from launch import Substitution

    if argument.default is None or not argument.sets:
        return argument.default

    class OfTheNode(Substitution):  # type: ignore[misc]
        """Empty, so that the parameter file counts; shows what the node takes without one."""

        def describe(self) -> str:
            return f"'{argument.default}', or what params says"

        def perform(self, context: LaunchContext) -> str:
            return ""

    return [OfTheNode()]


def in_environment(actions: Sequence[Action], user: Mapping[str, str]) -> Action:
    """``actions`` with the middleware settings that images need, except where the user set their own.

    The group is scoped: a launch file that includes ours keeps its own environment.
    """
    from launch.actions import GroupAction, SetEnvironmentVariable

    wanted = {**dds.environment(user), STARTER_VARIABLE: str(os.getpid())}
    return GroupAction([*(SetEnvironmentVariable(name, value) for name, value in wanted.items()), *actions])


def node_action(spec: NodeSpec, values: Mapping[str, str]) -> Action:
    """The launch action of a node.

    Tiers are plain nodes, too: they serve the lifecycle services in any case, start by themselves unless
    ``autostart`` is false, and spare the launch process a ROS node of its own.

    Raises:
        ConfigError: ``log_level`` is none.
    """
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import Node

    level = values["log_level"].lower()
    if level not in LOG_LEVELS:
        raise ConfigError(
            f"must be one of {', '.join(LOG_LEVELS)}",
            where="launch arguments",
            field="log_level",
            value=values["log_level"],
        )
    parameters: list[Any] = [str(spec.params_file)]
    if spec.parameters:
        parameters.append(dict(spec.parameters))
    return Node(
        package=resources.PACKAGE,
        executable=spec.module.removeprefix(NODE_PACKAGE),
        exec_name=spec.name,
        name=spec.name,
        namespace=values["namespace"],
        parameters=parameters,
        remappings=list(spec.remaps.items()),
        ros_arguments=["--log-level", level],
        output="screen",
        respawn=spec.respawn,
        respawn_delay=RESPAWN_DELAY_S,
        respawn_max_retries=HELPER_RESPAWNS if spec.name in HELPERS else -1,
        sigterm_timeout=LaunchConfiguration("sigterm_timeout", default=SIGTERM_AFTER_S),
        sigkill_timeout=LaunchConfiguration("sigkill_timeout", default=SIGKILL_AFTER_S),
        on_exit=_on_exit(spec),
    )


def _on_exit(spec: NodeSpec) -> Callable[[Any, LaunchContext], Action | None]:
    """What the end of a node means for the launch.

    The source ends it. A node that refuses a user's mistake at its first start ends it with a failure, because another
    try would be refused as well; later, while driving, nothing but the supervisor's own rules may end the stack.
    """
    from launch.actions import Shutdown

    exits: list[int] = []

    def ended(event: Any, context: LaunchContext) -> Action | None:
        exits.append(event.returncode)
        if context.is_shutdown:
            return None
        refused = len(exits) == 1 and event.returncode == REFUSED_CODE and spec.name not in HELPERS
        if refused or (spec.ends_run and event.returncode != 0):
            how = "refused to start" if refused else f"ended with code {event.returncode}"
            raise TriptychError(f"{spec.name} {how}; its last line above says why")  # makes `ros2 launch` exit with 1
        return Shutdown(reason=f"{spec.name} finished") if spec.ends_run else None

    return ended


def viewers(values: Mapping[str, str]) -> list[Action]:
    """RViz and foxglove_bridge as wanted, and where the Foxglove layout lies.

    Raises:
        ConfigError: one of them is not installed, or no such layout.
    """
    from launch.actions import LogInfo
    from launch_ros.actions import Node

    actions: list[Action] = []
    if truth("rviz", values["rviz"]):
        require("rviz2")
        layout = _path(values["layout"]) or resources.resource("config", "rviz", "triptych.rviz")
        if not layout.is_file():
            raise ConfigError("no such RViz layout", where="launch arguments", field="layout", value=values["layout"])
        actions.append(
            Node(
                package="rviz2",
                executable="rviz2",
                name="triptych_rviz",
                arguments=["-d", str(layout)],
                remappings=_in_namespace(values["namespace"]),
                output="screen",
            )
        )
    if truth("foxglove", values["foxglove"]):
        require("foxglove_bridge")
        port = typed("port", values["port"], 0)
        actions.append(
            Node(
                package="foxglove_bridge",
                executable="foxglove_bridge",
                name="triptych_foxglove_bridge",
                parameters=[{"port": port}],
                output="screen",
            )
        )
        layout = resources.resource("config", "foxglove", "triptych.json")
        actions.append(LogInfo(msg=f"Foxglove: open ws://localhost:{port}, then import the layout {layout}"))
    return actions


def _in_namespace(namespace: str) -> list[tuple[str, str]]:
    """Remaps for RViz, whose layout names the topics of the empty namespace."""
    prefix = "/" + namespace.strip("/")
    if prefix == "/":
        return []
    return [(topic.resolved, prefix + topic.resolved) for topic in topics.TOPICS if topic.resolved != topic.name]


def require(package: str) -> None:
    """That ``package`` is installed.

    Raises:
        ConfigError: it is not.
    """
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        get_package_prefix(package)
    except PackageNotFoundError:
        raise ConfigError(
            f"package {package} is not installed",
            remedy=f"sudo apt install ros-$ROS_DISTRO-{package.replace('_', '-')}",
        ) from None
