"""The launch files under the real ``launch`` and ``launch_ros``; skipped where those are not installed (pip route)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stack_probe import Probe

from triptych.contract import DegradationState, Origin, Tier
from triptych.nodes import topics
from triptych.resources import resource

pytest.importorskip("launch_ros.actions", reason="launch_ros is not installed; it comes with a ROS 2 installation")

FILES = ("stack", "replay", "view")


def executables() -> Path | None:
    """Folder of the installed executables that launch_ros will start."""
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        folder = Path(get_package_prefix("triptych_ros")) / "lib" / "triptych_ros"
    except PackageNotFoundError:
        return None
    return folder if (folder / "tier_node").exists() else None


needs_executables = pytest.mark.skipif(executables() is None, reason="triptych_ros is not installed into a prefix")

RUNNER = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
arguments = [tuple(a.split(":=", 1)) for a in sys.argv[2:]]
service = LaunchService(noninteractive=True)
include = IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), launch_arguments=arguments)
service.include_launch_description(LaunchDescription([include]))
sys.exit(service.run())
"""


def start(name: str, domain: int, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(resource("launch", f"{name}.launch.py")), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def nodes_of(domain: int) -> list[int]:
    """Process ids of our nodes on a DDS domain."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"triptych.nodes" in line and f"ROS_DOMAIN_ID={domain}".encode() in environment:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_argument_is_described(name: str) -> None:
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    description = PythonLaunchDescriptionSource(
        str(resource("launch", f"{name}.launch.py"))
    ).try_get_launch_description_without_context()
    assert description is not None
    arguments = description.get_launch_arguments()
    assert {"params", "namespace", "camera", "log_level"} <= {a.name for a in arguments}
    for argument in arguments:
        assert argument.description and argument.description != "no description given", argument.name
        assert argument.default_value is not None, argument.name


@needs_executables
def test_stack_drives_and_ends_without_orphans(tmp_path: Path) -> None:
    domain = random.randint(1, 100)
    launch = start(
        "stack",
        domain,
        "scenario:=true",
        "distilled:=false",
        "full:=false",
        "camera:=front/image",
        f"record:={tmp_path}",
    )
    probe = Probe(domain)
    try:
        probe.wait(
            "a fresh result", lambda: any(r.origin is Origin.FRESH for r in probe.all(topics.RESULTS[Tier.DETECTOR]))
        )
        probe.wait(
            "the state",
            lambda: probe.last(topics.STATE) and probe.last(topics.STATE).state is not DegradationState.INITIALISING,
        )
        names = dict(probe.node.get_topic_names_and_types())
        assert "/front/image" in names and "/camera/image_raw" not in names
        assert len(nodes_of(domain)) == 4
    finally:
        probe.close()
        launch.send_signal(signal.SIGINT)
        try:
            launch.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            launch.kill()
    end = time.monotonic() + 10
    while nodes_of(domain) and time.monotonic() < end:
        time.sleep(0.1)
    assert nodes_of(domain) == []
    assert (tmp_path / "record.jsonl").is_file()


@needs_executables
def test_replay_without_input_refuses_in_one_sentence() -> None:
    domain = random.randint(1, 100)
    launch = start("replay", domain)
    output, _ = launch.communicate(timeout=60)
    assert launch.returncode != 0
    assert "input: names no recording; add input:=PATH." in output and "Traceback" not in output
    assert nodes_of(domain) == []
