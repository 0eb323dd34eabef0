"""The launch files: their tables against the schema, anywhere; the files themselves, where ``launch_ros`` is there."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from triptych import dds, launching, session
from triptych.contract import ConfigError, Tier, TriptychError
from triptych.launching import FILES, Argument, overrides, replay_nodes, stack_nodes, typed, view_nodes
from triptych.nodes import topics
from triptych.nodes.params import NODES
from triptych.nodes.process import NodeSpec
from triptych.resources import resource

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [pytest.param(name, a, id=f"{name}-{a.name}") for name, table in FILES.items() for a in table]


def values(name: str, **given: str) -> dict[str, str]:
    """What a launch file hands over: an argument that sets a parameter is empty unless given."""
    table = FILES[name]
    assert set(given) <= {a.name for a in table}
    return {a.name: given.get(a.name, "" if a.sets else a.default or "") for a in table}


def by_name(specs: list[NodeSpec]) -> dict[str, NodeSpec]:
    return {spec.name: spec for spec in specs}


# -- anywhere ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_argument_is_described(name: str, argument: Argument) -> None:
    assert len(argument.description) > 10 and argument.description[0] != " "
    assert argument.default is not None or (name, argument.name) == ("replay", "input"), "only the recording is a must"
    assert re.fullmatch(r"[a-z_]+", argument.name)


@pytest.mark.parametrize(("name", "argument"), [p for p in ARGUMENTS if p.values[1].sets])
def test_defaults_are_those_of_the_nodes(name: str, argument: Argument) -> None:
    for node, parameter in argument.sets:
        default = NODES[node].params.model_fields[parameter].default
        if argument.default is not None:
            assert typed(argument.name, argument.default, default) == default


@pytest.mark.parametrize("name", FILES)
def test_names_are_unique(name: str) -> None:
    names = [a.name for a in FILES[name]]
    assert len(names) == len(set(names))


def test_every_launch_file_stands_for_the_table_of_its_name() -> None:
    files = {path.name.removesuffix(".launch.py"): path for path in resource("launch").glob("*.launch.py")}
    assert files.keys() == FILES.keys()
    for name, path in files.items():
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree)
        (function,) = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        assert function.name == "generate_launch_description"
        (call,) = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
        assert ast.unparse(call) == f"description('{name}', {name}_nodes)"


def test_without_arguments_the_parameter_file_counts() -> None:
    specs = by_name(stack_nodes(values("stack")))
    assert list(specs) == ["supervisor", "safety_core", "detector", "distilled", "full", "view"]
    expected = {"distilled_expected": True, "full_expected": True, "safety_core_expected": True}
    assert specs["supervisor"].parameters == expected
    assert all(not specs[name].parameters for name in ("safety_core", "detector", "distilled", "full", "view"))
    assert all(not spec.remaps and spec.respawn and not spec.ends_run for spec in specs.values())
    assert {spec.params_file for spec in specs.values()} == {resource("config", "params.yaml")}


@pytest.mark.parametrize(("name", "argument"), [p for p in ARGUMENTS if p.values[1].sets and p.values[1].default])
def test_an_argument_that_is_given_wins_even_at_its_default(name: str, argument: Argument) -> None:
    given = overrides(FILES[name], values(name, **{argument.name: str(argument.default)}))
    for node, parameter in argument.sets:
        assert given[node][parameter] == NODES[node].params.model_fields[parameter].default


def test_arguments_reach_the_nodes_they_are_for(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("/**/view:\n  ros__parameters:\n    rate_hz: 2.0\n")
    specs = by_name(
        stack_nodes(
            values(
                "stack",
                camera="/front/image",
                odometry="/odom",
                detector_engine="yolox-nano",
                device="cuda",
                image_transport="compressed",
                autostart="false",
                full="False",
                view="0",
                latch_file="/var/lib/latch",
                out="results",
                params=str(mine),
            )
        )
    )
    assert list(specs) == ["recorder", "supervisor", "safety_core", "detector", "distilled"]
    tier = {"device": "cuda", "image_transport": "compressed", "autostart": False}
    assert specs["detector"].parameters == {**tier, "engine": "yolox-nano"}
    assert specs["distilled"].parameters == tier
    assert specs["supervisor"].parameters == {
        "distilled_expected": True,
        "full_expected": False,
        "safety_core_expected": True,
        "latch_file": "/var/lib/latch",
        "record_folder": "results",
    }
    assert specs["recorder"].parameters == {
        "folder": "results",
        "mode": "run",
        "input": "live topic /front/image",
        "tiers": "detector,distilled",
    }
    for spec in specs.values():
        assert spec.params_file == mine
        assert spec.remaps == {
            "camera/image_raw": "/front/image",
            "camera/image_raw/compressed": "/front/image/compressed",
            "odometry": "/odom",
        }


def test_only_the_source_ends_the_launch_and_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "drive.mp4").touch()
    stack = stack_nodes(values("stack", scenario="true", seed="7", duration="5"))
    replay = replay_nodes(values("replay", input=str(tmp_path / "drive.mp4"), loop="yes", start="2", full="false"))
    for specs, name in ((stack, "scenario"), (replay, "replay")):
        assert [s.name for s in specs if s.ends_run] == [s.name for s in specs if not s.respawn] == [name]
    assert "safety_core" in by_name(stack) and "safety_core" not in by_name(replay), "a recording obeys nobody"
    assert by_name(stack)["scenario"].parameters == {"seed": 7, "duration_s": 5.0}
    assert by_name(replay)["replay"].parameters == {
        "input": str(tmp_path / "drive.mp4"),
        "start_s": 2.0,
        "loop": True,
        "tiers": "detector,distilled",
    }
    assert all(not s.respawn for s in stack_nodes(values("stack", respawn="false")))


def test_the_disk_that_is_watched_is_the_one_that_is_recorded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch files and command line alike, whatever the parameter file names; unless told to record, it stays."""
    mine, recording = tmp_path / "mine.yaml", tmp_path / "drive.mp4"
    mine.write_text("/**/supervisor:\n  ros__parameters:\n    record_folder: /elsewhere\n")
    recording.touch()
    for name, nodes in (("stack", stack_nodes), ("replay", replay_nodes)):
        given = {"params": str(mine), **({"input": str(recording)} if name == "replay" else {})}
        assert "record_folder" not in by_name(nodes(values(name, **given)))["supervisor"].parameters
        specs = by_name(nodes(values(name, out="~/runs/now", **given)))
        assert specs["supervisor"].parameters["record_folder"] == specs["recorder"].parameters["folder"] == "~/runs/now"

    class Started(Exception):
        pass

    def start(specs: list[NodeSpec], folder: Path, environment: dict[str, str]) -> None:
        raise Started(by_name(specs))

    monkeypatch.setattr(session, "Stack", start)
    out = tmp_path / "out"
    plan = session.Plan("run", "a drive", session.stack_specs(mine, {}, list(Tier), view=False), out)
    with pytest.raises(Started) as started:
        session.run(plan, Console(), live=False)
    (specs,) = started.value.args
    assert specs["supervisor"].parameters["record_folder"] == specs["recorder"].parameters["folder"] == str(out)
    assert specs["supervisor"].parameters["latch_file"] == str(out / session.LATCH)


def test_a_lidar_is_started_and_expected_where_there_is_one(tmp_path: Path) -> None:
    """Without the argument the parameter file decides, but for a replay: there are no scans in it."""
    assert "lidar" not in by_name(stack_nodes(values("stack")))
    assert "lidar_expected" not in by_name(stack_nodes(values("stack")))["supervisor"].parameters
    specs = by_name(stack_nodes(values("stack", lidar="true", points="/velodyne_points")))
    assert specs["lidar"].module == "triptych.nodes.lidar_node" and specs["lidar"].respawn
    assert specs["lidar"].remaps["lidar/points"] == "/velodyne_points"
    assert specs["supervisor"].parameters["lidar_expected"] is True
    recording = tmp_path / "drive.mp4"
    recording.touch()
    replayed = by_name(replay_nodes(values("replay", input=str(recording))))
    assert "lidar" not in replayed and replayed["supervisor"].parameters["lidar_expected"] is False


def test_the_scenario_scans_for_a_lidar() -> None:
    """One that is started together with the built-in drive gets something to look at."""
    assert by_name(stack_nodes(values("stack", scenario="true", lidar="true")))["scenario"].parameters == {
        "lidar_rate_hz": 10.0
    }
    assert "lidar_rate_hz" not in by_name(stack_nodes(values("stack", scenario="true")))["scenario"].parameters


def test_the_notifier_starts_where_a_target_is_configured(tmp_path: Path) -> None:
    """By argument or by parameter file, whatever pattern names the node; a replay tells nobody unless asked to."""
    assert "remote" not in by_name(stack_nodes(values("stack")))
    asked = by_name(stack_nodes(values("stack", remote="https://centre/hook", vehicle_id="car-7")))
    assert asked["remote"].module == "triptych.nodes.remote_node" and asked["remote"].respawn
    assert asked["remote"].parameters == {"target": "https://centre/hook", "vehicle_id": "car-7"}
    mine, recording = tmp_path / "mine.yaml", tmp_path / "drive.mp4"
    recording.touch()
    for pattern, started in (("/**/remote", True), ("remote", True), ("/car/remote", True), ("/**/view", False)):
        mine.write_text(f"{pattern}:\n  ros__parameters:\n    target: mqtts://broker\n")
        specs = by_name(stack_nodes(values("stack", params=str(mine))))
        assert ("remote" in specs) is started
        assert "remote" not in by_name(replay_nodes(values("replay", input=str(recording), params=str(mine))))
    replayed = by_name(replay_nodes(values("replay", input=str(recording), remote="https://centre/hook")))
    assert "remote" in replayed
    mine.write_text("remote: [\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        stack_nodes(values("stack", params=str(mine)))


def test_the_view_starts_nothing_of_ours_unless_asked() -> None:
    assert view_nodes(values("view")) == []
    assert [s.name for s in view_nodes(values("view", view="true"))] == ["view"]


WRONG = {
    "not a switch": ("stack", {"full": "maybe"}, "full: must be true or false (got 'maybe')"),
    "not a number": ("replay", {"rate": "fast"}, "rate: must be a number (got 'fast')"),
    "not whole": ("stack", {"scenario": "true", "seed": "1.5"}, "seed: must be a whole number (got '1.5')"),
    "no parameter file": ("stack", {"params": "/nowhere.yaml"}, "/nowhere.yaml: no such parameter file"),
    "no recording": ("replay", {"input": "/nowhere.mp4"}, "input: no such recording (got '/nowhere.mp4')"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, given, sentence = WRONG[case]
    if name == "replay":
        given = {"input": str(tmp_path), **given}
    nodes = {"stack": stack_nodes, "replay": replay_nodes}[name]
    with pytest.raises(TriptychError) as refusal:
        nodes(values(name, **given))
    assert sentence in str(refusal.value)


def test_pages_name_only_arguments_that_exist() -> None:
    known = {name: {a.name for a in table} | {"sigterm_timeout", "sigkill_timeout"} for name, table in FILES.items()}
    found = 0
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if (ROOT / "README.md").exists() else []:
        for name, rest in re.findall(r"triptych_ros (\w+)\.launch\.py([^\n`#]*)", page.read_text()):
            for argument in re.findall(r"(\w+):=", rest):
                assert argument in known[name], f"{page.name}: {name}.launch.py {argument}:="
                found += 1
    assert found or not (ROOT / "README.md").exists()


# -- under the real launch ---------------------------------------------------------------------------------------------

needs_launch = pytest.mark.skipif(
    importlib.util.find_spec("launch_ros") is None or importlib.util.find_spec("launch") is None,
    reason="launch and launch_ros are not installed; they come with a ROS 2 installation",
)


def installed() -> bool:
    """Whether launch_ros will find the executables of this package."""
    if importlib.util.find_spec("ament_index_python") is None:
        return False
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        return (Path(get_package_prefix("triptych_ros")) / "lib" / "triptych_ros" / "tier_node").exists()
    except (PackageNotFoundError, OSError):  # OSError: the variable is not set
        return False


needs_executables = pytest.mark.skipif(
    not installed(), reason="triptych_ros is in no prefix of AMENT_PREFIX_PATH; source the installation's setup file"
)

RUNNER = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import ExecuteProcess, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
arguments = [tuple(a.split(":=", 1)) for a in sys.argv[2:]]
service = LaunchService(noninteractive=True)
include = IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), launch_arguments=arguments)
say = "echo BESIDE=$FASTRTPS_DEFAULT_PROFILES_FILE$TRIPTYCH_STARTER_PID."
beside = ExecuteProcess(cmd=["sh", "-c", say], output="screen", prefix="")
service.include_launch_description(LaunchDescription([include, beside]))
sys.exit(service.run())
"""
"""What ``ros2 launch`` does, so that the test needs ``launch_ros`` alone, and something beside our file."""
REPORTER = """
import json, os, sys
print("STARTED " + json.dumps({"command": sys.argv[1:], "environment": dict(os.environ)}), flush=True)
"""
"""Takes the place of a node (as its launch prefix) and says how it was started."""


def start(name: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    # Ours first; a ROS 2 installation keeps launch itself on this path.
    paths = [str(Path(launching.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(resource("launch", f"{name}.launch.py")), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A DDS domain for one launch; whatever is left in it afterwards is killed."""
    number = dds.claim_domain()
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "log"))
    yield number
    for pid in nodes_of(number):
        os.kill(pid, signal.SIGKILL)


def nodes_of(domain: int) -> dict[int, str]:
    """Process ids and command lines of our nodes on a DDS domain."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"triptych.nodes" in line and f"ROS_DOMAIN_ID={domain}".encode() in environment:
            found[int(folder.name)] = line.replace(b"\0", b" ").decode()
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.1)


@needs_launch
@pytest.mark.parametrize("name", FILES)
def test_the_file_declares_its_table(name: str) -> None:
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    source = PythonLaunchDescriptionSource(str(resource("launch", f"{name}.launch.py")))
    description = source.try_get_launch_description_without_context()
    assert description is not None
    declared = {a.name: a for a in description.get_launch_arguments()}
    assert list(declared) == [a.name for a in FILES[name]]
    for argument in FILES[name]:
        action = declared[argument.name]
        assert action.description == argument.description
        if argument.default is None:
            assert action.default_value is None
        else:
            shown = " + ".join(part.describe() for part in action.default_value)  # as --show-args does
            assert shown.startswith(f"'{argument.default}'")


def commands(output: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Node name -> command line and environment, as REPORTER said them."""
    found = {}
    for text in re.findall(r"STARTED (\{.*\})", output):
        report = json.loads(text)
        (name,) = [word.partition(":=")[2] for word in report["command"] if word.startswith("__node:=")]
        found[name] = (report["command"], report["environment"])
    return found


def parameters_of(command: list[str], node: str) -> dict[str, Any]:
    """Parameters a node would get, from all files of its command line in order."""
    merged: dict[str, Any] = {}
    for flag, path in itertools.pairwise(command):
        if flag == "--params-file":
            for key, section in yaml.safe_load(Path(path).read_text()).items():
                if key.split("/")[-1] in (node, "**"):
                    merged.update(section["ros__parameters"])
    return merged


@needs_launch
@needs_executables
def test_parameters_remaps_and_environment_reach_the_processes(domain: int) -> None:
    """``launch-prefix`` puts a reporter in the place of every node."""
    launch = start(
        "stack",
        f"launch-prefix:={shlex.join([sys.executable, '-c', REPORTER])}",
        "respawn:=false",
        "namespace:=car",
        "camera:=/front/image",
        "detector_engine:=yolox-nano",
        "distilled:=false",
        "log_level:=warn",
        environment={
            "MALLOC_TOP_PAD_": "4711",
            "FASTRTPS_DEFAULT_PROFILES_FILE": "",
            "FASTDDS_DEFAULT_PROFILES_FILE": "",
        },
    )
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 0, output
    assert "BESIDE=." in output  # a launch file that includes ours keeps its own environment
    started = commands(output)
    assert set(started) == {"supervisor", "safety_core", "detector", "full", "view"}
    for name, (command, environment) in started.items():
        words = " ".join(command)
        assert command[0].endswith(f"/lib/triptych_ros/{NODES[name].executable}")
        assert "-r __ns:=/car" in words and "--log-level warn" in words
        assert "-r camera/image_raw:=/front/image " in words + " "
        assert environment["FASTRTPS_DEFAULT_PROFILES_FILE"] == str(resource("config", "dds", "fastdds.xml"))
        assert environment["RMW_IMPLEMENTATION"] == "rmw_fastrtps_cpp"
        assert environment["MALLOC_TOP_PAD_"] == "4711" and "MALLOC_MMAP_THRESHOLD_" not in environment  # the user's
        schema = {key: info.default for key, info in NODES[name].params.model_fields.items()}
        changed = {"detector": {"engine": "yolox-nano"}, "supervisor": {"distilled_expected": False}}.get(name, {})
        assert parameters_of(command, name) == {**schema, **changed}


@needs_launch
@needs_executables
@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("replay", [], "input"),
        ("stack", ["full:=maybe"], "launch arguments: full: must be true or false (got 'maybe')."),
        ("stack", ["log_level:=loud"], "log_level: must be one of debug, info, warn, error, fatal (got 'loud')."),
    ],
)
def test_a_mistake_ends_the_launch_in_one_sentence(name: str, arguments: list[str], sentence: str, domain: int) -> None:
    launch = start(name, *arguments)
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 1
    assert sentence in output and "Traceback" not in output
    assert nodes_of(domain) == {}


@needs_launch
@needs_executables
def test_a_node_that_refuses_its_set_up_ends_the_launch(domain: int, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("/**/supervisor:\n  ros__parameters:\n    takeover_wait_s: -1.0\n")
    launch = start("stack", f"params:={mine}", "distilled:=false", "full:=false", "view:=false")
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 1
    assert "parameters of node supervisor: takeover_wait_s: must be above 0 to 60 (got -1.0)" in output
    assert "supervisor refused to start" in output and "Traceback" not in output
    assert nodes_of(domain) == {}


@needs_launch
@needs_executables
def test_the_stack_drives_comes_back_after_a_crash_and_ends_without_orphans(domain: int, tmp_path: Path) -> None:
    from stack_probe import Probe

    from triptych.contract import DegradationState, Origin

    launch = start(
        "stack",
        *("scenario:=true", "distilled:=false", "full:=false", "view:=false"),
        *("camera:=front/image", f"out:={tmp_path / 'run'}"),
    )
    probe = Probe(domain)
    results = topics.RESULTS[Tier.DETECTOR]

    def fresh() -> int:
        return sum(r.origin is Origin.FRESH for r in probe.all(results))

    def driving() -> bool:
        state = probe.last(topics.STATE)
        return state is not None and state.state is not DegradationState.INITIALISING

    def detector() -> int:
        return next((pid for pid, line in nodes_of(domain).items() if "__node:=detector" in line), 0)

    try:
        probe.wait("a fresh result", lambda: fresh() > 0)
        probe.wait("the state", driving)
        names = dict(probe.node.get_topic_names_and_types())
        assert "/front/image" in names and "/camera/image_raw" not in names
        assert len(nodes_of(domain)) == 4
        first = detector()
        os.kill(first, signal.SIGKILL)
        probe.wait("the detector's next life", lambda: detector() not in (0, first))
        before = fresh()
        probe.wait("a fresh result of it", lambda: fresh() > before)
    finally:
        probe.close()
        launch.send_signal(signal.SIGINT)
        asked_s = time.monotonic()
        try:
            output, _ = launch.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            launch.kill()
            raise
    assert time.monotonic() - asked_s < 10.0  # 2 s by the settings; the rest is a busy machine's
    assert nodes_of(domain) == {}
    assert launch.returncode == 0, output
    assert (tmp_path / "run" / "record.jsonl").is_file()


@needs_launch
@needs_executables
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_no_orphans_when_the_launch_itself_is_killed(number: signal.Signals, domain: int) -> None:
    launch = start("stack", "distilled:=false", "full:=false", "view:=false")
    wait_for(lambda: sum("librmw" in (Path("/proc") / str(p) / "maps").read_text() for p in nodes_of(domain)) == 2)
    launch.send_signal(number)
    launch.communicate(timeout=60)
    assert launch.returncode != 0
    wait_for(lambda: nodes_of(domain) == {})


@needs_launch
@needs_executables
def test_the_end_of_the_source_is_the_end_of_the_launch(domain: int) -> None:
    launch = start("stack", "scenario:=true", "duration:=1", "distilled:=false", "full:=false", "view:=false")
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 0, output
    assert nodes_of(domain) == {}


@needs_launch
@needs_executables
def test_viewers_get_layout_namespace_and_port(domain: int, tmp_path: Path) -> None:
    """A reporter stands in for RViz and foxglove_bridge: what they are told is ours, what they do with it is not."""
    for package in ("rviz2", "foxglove_bridge"):
        marker = tmp_path / "share" / "ament_index" / "resource_index" / "packages" / package
        program = tmp_path / "lib" / package / package
        for file in (marker, program):
            file.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        program.write_text(f"#!{sys.executable}\n" + REPORTER.replace("sys.argv[1:]", "sys.argv"))
        program.chmod(0o755)
    prefixes = os.pathsep.join([str(tmp_path), os.environ["AMENT_PREFIX_PATH"]])
    launch = start(
        "view", "foxglove:=true", "port:=9000", "namespace:=car", environment={"AMENT_PREFIX_PATH": prefixes}
    )
    output, _ = launch.communicate(timeout=120)
    assert launch.returncode == 0, output
    started = {name: command for name, (command, _) in commands(output).items()}
    assert set(started) == {"triptych_rviz", "triptych_foxglove_bridge"}
    rviz = started["triptych_rviz"]
    assert rviz[1:3] == ["-d", str(resource("config", "rviz", "triptych.rviz"))]
    assert "/view/markers:=/car/view/markers" in rviz and not any("diagnostics" in word for word in rviz)
    assert parameters_of(started["triptych_foxglove_bridge"], "triptych_foxglove_bridge") == {"port": 9000}
    assert "ws://localhost:9000" in output and str(resource("config", "foxglove", "triptych.json")) in output
    assert nodes_of(domain) == {}


def test_a_viewer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ament_index_python", reason="ament_index_python is not installed")
    monkeypatch.setenv("AMENT_PREFIX_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"package rviz2 is not installed; sudo apt install ros-\$ROS_DISTRO-rviz2"):
        launching.require("rviz2")
