"""ROS parameters of every node, from one schema each: a pydantic model.

Names, defaults, ranges and descriptions live in the models; declared ROS parameters, ``config/params.yaml`` and the
parameter documentation are made from them. Parameters are read when a node starts and cannot be changed while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from triptych.contract import BUDGETS, Budget, ConfigError, Tier
from triptych.lidar import LidarConfig
from triptych.safety.limits import SafetyLimits
from triptych.supervisor.config import SupervisorConfig, config_error
from triptych.tiers.core import DETECTOR_SELF_TEST_S
from triptych.tiers.monitors import InputConfig
from triptych.tiers.redundancy import MOST_INSTANCES, Mode

M = TypeVar("M", bound=BaseModel)

_ALL_TIERS = ",".join(tier.key for tier in Tier)
_SOME_TIERS = r"^((detector|distilled|full)(,(detector|distilled|full))*)?$"
_OF_ROS = ("use_sim_time", "start_type_description_service", "qos_overrides")


class NodeParams(BaseModel):
    """What every node has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    cpus: str = Field("auto", description="Cores of this process: auto (by its role), all, or a list such as 0,2-3.")
    scheduling: str = Field("auto", description="auto (by its role), normal, rr:1..99, fifo:1..99 or nice:-20..19.")
    lock_memory: bool = Field(False, description="Keep touched pages in memory (mlockall), where permitted.")


class TierParams(InputConfig, NodeParams):
    """A tier node. Which one it is follows from its node name unless ``tier`` says so."""

    tier: Literal["", "detector", "distilled", "full"] = Field(
        "", description="detector, distilled or full; empty: the node's name says it."
    )
    engine: str = Field(
        "",
        max_length=400,
        description="Engine: name of a built-in or shipped manifest, or path of a manifest or its folder; empty: "
        "triptych-<tier>.",
    )
    engine_dir: str = Field(
        "", max_length=400, description="Folder of the engine files if they don't lie beside the manifest."
    )
    device: Literal["cpu", "cuda", "tensorrt", "openvino"] = Field("cpu", description="Device asked for.")
    threads: int = Field(1, ge=1, le=64, description="Threads per operator of the inference library.")
    budget_s: float = Field(
        0.0, ge=0, le=60, description="Source stamp to published result; 0: the timing contract's value of the tier."
    )
    keep_s: float = Field(
        0.0, ge=0, le=120, description="Greatest age of a repeated result; 0: the timing contract's value of the tier."
    )
    period_s: float = Field(
        0.0, ge=0, le=60, description="A result is due this often; 0: the timing contract's value of the tier."
    )
    heartbeat_period_s: float = Field(0.1, ge=0.02, le=1.0, description="Period of the status messages.")
    self_test_timeout_s: float = Field(
        20.0, ge=0.1, le=600, description="The golden frame must be answered within this."
    )
    self_test_period_s: float = Field(
        -1.0,
        ge=-1,
        le=3600,
        description="While driving, the golden frame is answered again this often, between two pictures: a model that "
        "sees nothing any more looks healthy otherwise. 0: never; below 0: 1 s in the detector, never in a VLM tier.",
    )
    replace_hung_engine: bool = Field(
        True, description="Load the engine anew when it has not answered for ten budgets (at most three times)."
    )
    image_transport: Literal["raw", "compressed"] = Field(
        "raw", description="raw: sensor_msgs/Image on camera/image_raw; compressed: CompressedImage below it."
    )
    question: str = Field("", max_length=128, description="Standing question of a VLM tier; empty: the engine's own.")
    redundancy: Mode = Field(
        "none",
        description="temporal: each picture twice through the engine, results that differ are refused; homogeneous: "
        "several instances of the engine vote.",
    )
    instances: int = Field(3, ge=2, le=MOST_INSTANCES, description="Instances that vote, redundancy homogeneous.")
    autostart: bool = Field(True, description="Configure and activate at once, without a lifecycle manager.")
    watch_input: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Look at the pictures for what makes them useless; auto: in the detector only, it sees them all.",
    )

    def watches(self, tier: Tier) -> bool:
        """Whether ``tier`` looks at its pictures."""
        return self.watch_input == "always" or (self.watch_input == "auto" and tier is Tier.DETECTOR)

    def self_test_s(self, tier: Tier) -> float:
        """Period of the self-tests of ``tier``; 0: none."""
        auto_s = DETECTOR_SELF_TEST_S if tier is Tier.DETECTOR else 0.0
        return auto_s if self.self_test_period_s < 0 else self.self_test_period_s

    def budget(self, tier: Tier) -> Budget:
        """The limits of ``tier`` with these overrides.

        Raises:
            ConfigError: an order that makes no sense.
        """
        default = BUDGETS[tier]
        return Budget(
            self.budget_s or default.budget_s, self.keep_s or default.keep_s, self.period_s or default.period_s
        )


class SupervisorParams(SupervisorConfig, NodeParams):
    """The supervisor."""

    fault_table: str = Field("", max_length=400, description="Path of the fault table; empty: the shipped faults.yaml.")
    policy_table: str = Field(
        "",
        max_length=400,
        description="Path of the table that says how far each tier's result may go; empty: the shipped policy.yaml.",
    )
    latch_file: str = Field(
        "",
        max_length=400,
        description="Remembers an unfinished manoeuvre, so that a restarted supervisor continues it; empty: nowhere. A "
        "supervisor that cannot keep it begins in the manoeuvre.",
    )
    record_folder: str = Field(
        "", max_length=400, description="Where runs are recorded, to watch that disk; empty: the current folder."
    )
    machine_period_s: float = Field(1.0, ge=0.2, le=60, description="Period of the readings of the machine.")


class SafetyCoreParams(SafetyLimits, NodeParams):
    """The safety core: the last hop between the supervisor and the vehicle."""

    trend_window_s: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Window in which speed and acceleration are compared; 0: odometry gives no acceleration.",
    )
    cycle_period_s: float = Field(0.01, ge=0.001, le=0.1, description="Period of the core's cycles.")
    repeat_period_s: float = Field(
        0.05, ge=0.01, le=0.1, description="A command is sent at once when it changes, and at least this often."
    )
    driver_fresh_s: float = Field(
        0.5, gt=0, le=5, description="A driver of whom nothing was heard for longer does not drive."
    )
    block: str = Field(
        "",
        max_length=400,
        description="File to be mapped as the core's block, such as /dev/shm/triptych; empty: memory of the process.",
    )


class LidarParams(LidarConfig, NodeParams):
    """Finds obstacles in lidar scans, and looks at the lidar's health."""


class ScenarioParams(NodeParams):
    """The closed-loop driving scenario: camera, odometry and driver; obeys the motion constraint."""

    preset: Literal["demo", "fixed", "random"] = Field(
        "demo",
        description="demo: the drive of `make demo`; fixed: one kind of road as below; random: all from the seed.",
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="Seed of everything random.")
    road: Literal["highway", "rural", "urban", "crossing", "works"] = Field(
        "highway", description="Road of preset fixed."
    )
    weather: Literal["clear", "rain", "fog"] = Field("clear", description="Weather of preset fixed.")
    light: Literal["day", "dusk", "night"] = Field("day", description="Light of preset fixed.")
    set_speed_mps: float = Field(
        20.0, ge=0, le=45, description="Speed wanted when nothing is in the way, preset fixed."
    )
    driver_events: str = Field(
        "",
        max_length=400,
        description="Script of the driver: seconds:action, separated by commas; actions attentive, silent, absent, "
        "take_over, hand_back. Empty: the preset's.",
    )
    takeover_reaction_s: float = Field(
        -1.0, ge=-1, le=3600, description="The driver takes over this long after a request; below 0: only as scripted."
    )
    width_px: int = Field(1280, ge=64, le=4096, description="Camera image width.")
    height_px: int = Field(720, ge=48, le=4096, description="Camera image height.")
    camera_rate_hz: float = Field(20.0, ge=1, le=60, description="Camera rate.")
    lidar_rate_hz: float = Field(0.0, ge=0, le=20, description="Rate of lidar scans; 0: the vehicle has no lidar.")
    odometry_rate_hz: float = Field(50.0, ge=5, le=200, description="Odometry rate.")
    driver_rate_hz: float = Field(10.0, ge=1, le=50, description="Rate of the driver state.")
    duration_s: float = Field(
        0.0,
        ge=0,
        le=86400,
        description="Ends by itself this long after the supervisor let the vehicle start; 0: runs until stopped.",
    )
    start_speed_mps: float = Field(
        0.0, ge=-1, le=45, description="Speed at the start; below 0: the greatest speed allowed there."
    )
    start_delay_s: float = Field(
        0.0, ge=0, le=60, description="Publishes odometry and driver at once, the first frame after this long."
    )
    constraint_timeout_s: float = Field(
        0.15, gt=0, le=1.0, description="Silence of the command after which the vehicle acts on its safe default."
    )


class ViewParams(NodeParams):
    """Annotated image and markers, for people."""

    rate_hz: float = Field(8.0, ge=0.5, le=30, description="Highest rate of the annotated image.")
    width_px: int = Field(960, ge=160, le=4096, description="Width of the annotated image.")
    jpeg_quality: int = Field(75, ge=10, le=100, description="Quality of the compressed image.")
    camera_fov_deg: float = Field(
        60.0, ge=1, le=175, description="Horizontal field of view, to place objects on the ground."
    )
    camera_height_m: float = Field(1.4, gt=0, le=10, description="Optical centre above the ground.")
    camera_forward_m: float = Field(1.5, ge=-10, le=10, description="Optical centre ahead of base_link.")
    camera_pitch_rad: float = Field(0.0, ge=-0.7, le=0.7, description="Downward tilt of the camera.")


class RecorderParams(NodeParams):
    """Writes results and states of a run to disk."""

    folder: str = Field("runs/latest", max_length=400, description="Folder for results.mcap and record.jsonl.")
    write_mcap: bool = Field(True, description="Write results.mcap.")
    sample_frames: int = Field(12, ge=0, le=100, description="Camera images kept for the report.")
    sample_period_s: float = Field(2.0, ge=0.1, le=600, description="Time between two of them.")
    cpu_period_s: float = Field(1.0, ge=0.2, le=60, description="Period of the processor and memory readings.")
    mode: str = Field("live", max_length=32, description="Noted in the record.")
    input: str = Field("scenario", max_length=400, description="What is being driven; noted in the record.")
    tiers: str = Field(
        _ALL_TIERS,
        max_length=64,
        pattern=_SOME_TIERS,
        description="Tiers of this vehicle, separated by commas; noted in the record.",
    )


class RemoteParams(NodeParams):
    """Tells a remote centre of a minimal risk manoeuvre; runs where a target is configured."""

    target: str = Field(
        "",
        max_length=400,
        description="Where messages go: https://host/path (webhook) or mqtts://host:port; empty: nobody is told.",
    )
    vehicle_id: str = Field(
        "",
        max_length=64,
        description="Name of this vehicle in every message: letters, digits, dots, dashes, underscores, colons.",
    )
    timeout_s: float = Field(10.0, ge=0.5, le=60, description="One try to deliver may take this long.")
    ca_file: str = Field(
        "", max_length=400, description="Certificates of trusted authorities (PEM); empty: the system's."
    )
    certificate_file: str = Field("", max_length=400, description="Certificate of this vehicle (PEM), if asked for.")
    key_file: str = Field("", max_length=400, description="Its key, if not in the same file.")
    secret_file: str = Field(
        "", max_length=400, description="Webhook: file with the secret of the signature; empty: not signed."
    )
    user: str = Field(
        "", max_length=128, description="MQTT: user name; empty: TRIPTYCH_REMOTE_USER of the environment."
    )
    password_file: str = Field(
        "", max_length=400, description="MQTT: file with the password; empty: TRIPTYCH_REMOTE_PASSWORD."
    )
    topic: str = Field(
        "", max_length=200, description="MQTT: topic to publish to; empty: triptych/<vehicle_id>/notification."
    )
    allow_plain: bool = Field(False, description="Allow targets without encryption: http and mqtt.")
    queue_file: str = Field(
        "~/.local/state/triptych/remote-queue.jsonl",
        max_length=400,
        description="Keeps messages until they are delivered; one file per vehicle.",
    )
    queue_limit: int = Field(
        256, ge=4, le=10_000, description="Messages kept; routine ones make room first, the newest MRC never does."
    )
    retry_first_s: float = Field(1.0, gt=0, le=60, description="Wait after a first failure; doubles with each more.")
    retry_max_s: float = Field(60.0, ge=1, le=3600, description="Greatest wait between two tries.")
    constraint_timeout_s: float = Field(
        1.0, gt=0, le=10, description="Silence of the supervisor after which the centre is told of it."
    )
    position_fresh_s: float = Field(
        60.0, ge=0, le=3600, description="An older position is not sent; it carries its own time."
    )


class ReplayParams(NodeParams):
    """Plays a recording into the stack; the play begins when the tiers are ready."""

    input: str = Field("", max_length=4000, description="rosbag2 folder or file, ROS 1 bag, video, folder of images.")
    rate: float = Field(1.0, ge=0.01, le=100, description="Speed of play; 1 is real time.")
    start_s: float = Field(0.0, ge=0, le=1e6, description="Seconds to leave out at the beginning.")
    duration_s: float = Field(0.0, ge=0, le=1e6, description="Seconds to play; 0: to the end.")
    loop: bool = Field(False, description="Begin again at the end, until stopped.")
    topics: list[str] = Field(
        [""], max_length=8, description="role=topic, roles camera, odometry, driver; what is not named is chosen."
    )
    fps: float = Field(0.0, ge=0, le=1000, description="Rate of a folder of images; 0: 20, or the video's own.")
    salvage: bool = Field(False, description="Use what can be read of a damaged recording.")
    tiers: str = Field(
        _ALL_TIERS,
        max_length=64,
        pattern=_SOME_TIERS,
        description="Tiers that must be ACTIVE before the play begins, separated by commas; empty: begin at once.",
    )
    ready_timeout_s: float = Field(30.0, ge=0, le=600, description="Begin without them after this long.")

    def awaited(self) -> tuple[Tier, ...]:
        """The tiers to wait for."""
        return tuple(tier for tier in Tier if tier.key in self.tiers.split(","))

    def topic_mapping(self) -> dict[str, str]:
        """role -> topic.

        Raises:
            ConfigError: an entry that is not role=topic.
        """
        mapping: dict[str, str] = {}
        for entry in filter(None, self.topics):
            role, equals, topic = entry.partition("=")
            if not equals:
                raise ConfigError("must be role=topic", field="topics", value=entry, remedy="write e.g. camera=/front")
            mapping[role.strip()] = topic.strip()
        return mapping


@dataclass(frozen=True, slots=True)
class NodeSchema:
    """One node of the stack: its executable (a module of triptych.nodes) and its parameters."""

    executable: str
    params: type[BaseModel]


NODES: dict[str, NodeSchema] = {
    "detector": NodeSchema("tier_node", TierParams),
    "distilled": NodeSchema("tier_node", TierParams),
    "full": NodeSchema("tier_node", TierParams),
    "supervisor": NodeSchema("supervisor_node", SupervisorParams),
    "safety_core": NodeSchema("safety_core_node", SafetyCoreParams),
    "lidar": NodeSchema("lidar_node", LidarParams),
    "scenario": NodeSchema("scenario_node", ScenarioParams),
    "view": NodeSchema("view_node", ViewParams),
    "recorder": NodeSchema("recorder_node", RecorderParams),
    "replay": NodeSchema("replay_node", ReplayParams),
    "remote": NodeSchema("remote_node", RemoteParams),
}
"""By node name."""


def load(node: Any, model: type[M]) -> M:
    """Declare the model's parameters on ``node`` and read them.

    Raises:
        ConfigError: a wrong type, a value outside its range, or a parameter that does not exist.
    """
    from rclpy.exceptions import (
        InvalidParameterTypeException,
        InvalidParameterValueException,
        ParameterAlreadyDeclaredException,
    )

    where = f"parameters of node {node.get_name()}"
    remedy = "see docs/parameters.md for names and ranges"
    known = set(model.model_fields)
    for name in node._parameter_overrides:
        if name not in known and name.partition(".")[0] not in _OF_ROS:
            raise ConfigError("no such parameter", where=where, field=name, remedy=remedy)
    values: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        try:
            value = node.declare_parameter(name, info.default, _descriptor(info)).value
            values[name] = list(value) if isinstance(info.default, list) and value is not None else value
        except ParameterAlreadyDeclaredException:
            values[name] = node.get_parameter(name).value
        except InvalidParameterTypeException:
            got = node._parameter_overrides[name].value
            wanted = type(info.default).__name__
            raise ConfigError(f"must be a {wanted}", where=where, field=name, value=got, remedy=remedy) from None
        except InvalidParameterValueException:
            got = node._parameter_overrides[name].value
            raise ConfigError(
                f"must be {_range_text(info)}", where=where, field=name, value=got, remedy=remedy
            ) from None
    try:
        return model(**values)
    except ValidationError as error:
        raise config_error(error, where) from None


_LIMITS: dict[str, type] = {
    "ge": annotated_types.Ge,
    "gt": annotated_types.Gt,
    "le": annotated_types.Le,
    "lt": annotated_types.Lt,
}


def _limits(info: FieldInfo) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in info.metadata:
        for name, kind in _LIMITS.items():
            if isinstance(item, kind):
                found[name] = float(getattr(item, name))
    return found


def _range_text(info: FieldInfo) -> str:
    """``0.1 to 20``, ``above 0 up to 4`` or the choices; empty when anything goes."""
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    if choices:
        return "one of " + ", ".join(repr(c) if c == "" else str(c) for c in choices)
    limits = _limits(info)
    low = f"above {limits['gt']:g}" if "gt" in limits else f"{limits['ge']:g}" if "ge" in limits else ""
    high = f"below {limits['lt']:g}" if "lt" in limits else f"{limits['le']:g}" if "le" in limits else ""
    return f"{low} to {high}" if low and high else low or high


def _descriptor(info: FieldInfo) -> Any:
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

    limits = _limits(info)
    descriptor = ParameterDescriptor(
        description=info.description or "", additional_constraints=_range_text(info), read_only=True
    )
    low = limits.get("ge", limits.get("gt"))
    high = limits.get("le", limits.get("lt"))
    if low is not None and high is not None:
        if isinstance(info.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high, step=0.0)]
        elif isinstance(info.default, int):
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=1)]
    return descriptor


def rows(model: type[BaseModel]) -> Iterator[tuple[str, str, Any, str, str]]:
    """Name, type, default, range and description of each parameter, for documentation."""
    for name, info in model.model_fields.items():
        yield name, type(info.default).__name__, info.default, _range_text(info), info.description or ""


def params_yaml() -> str:
    """The text of ``config/params.yaml``: every parameter of every node at its default, with its description."""
    lines = [
        "# Parameters of all nodes at their defaults; made by `python -m triptych.nodes.params`, checked by a test.",
        "# Pass your own copy with --params-file (or params:= in the launch files); leave out what you don't change.",
    ]
    for node, schema in NODES.items():
        lines += ["", f"/**/{node}:", "  ros__parameters:"]
        for name, _, default, limits, description in rows(schema.params):
            lines.append(f"    # {description}" + (f" [{limits}]" if limits else ""))
            lines.append(f"    {name}: {_yaml(default)}")
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


if __name__ == "__main__":
    print(params_yaml(), end="")
