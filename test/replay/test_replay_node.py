"""The replay node over DDS: what a subscriber in another process receives."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from bag_maker import MS, T0, bag, camera_rows, image, merge

from triptych.contract import DriverState, protect
from triptych.resources import share

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("rclpy") is None or importlib.util.find_spec("triptych_ros") is None,
    reason="needs rclpy and the built messages",
)

LISTENER = """
import json, sys, time
import rclpy
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Image
from triptych.contract import crc_ok
from triptych.nodes import convert
from triptych_ros.msg import DriverState
rclpy.init()
node = rclpy.create_node("listener")
seen = {"camera": [], "speed": [], "driver": []}
def camera(msg):
    now = time.time_ns()
    stamp = convert.from_time(msg.header.stamp)
    seen["camera"].append([(now - stamp) / 1e6, stamp, msg.width, msg.height, msg.encoding, int(msg.data[0])])
node.create_subscription(Image, "camera/image_raw", camera, 10)
node.create_subscription(Odometry, "odometry", lambda m: seen["speed"].append(m.twist.twist.linear.x), 10)
node.create_subscription(DriverState, "driver/state",
    lambda m: seen["driver"].append([crc_ok(convert.driver_from_msg(m)), m.attentive]), 10)
print("ready", flush=True)
end, quiet = time.monotonic() + float(sys.argv[1]), None
while time.monotonic() < end:
    rclpy.spin_once(node, timeout_sec=0.1)
    if seen["camera"] and node.count_publishers("camera/image_raw") == 0:
        break
print(json.dumps(seen), flush=True)
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2] / "src"), *sys.path]),
        "ROS_DOMAIN_ID": str(100 + os.getpid() % 100),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "FASTRTPS_DEFAULT_PROFILES_FILE": str(share() / "config" / "dds" / "fastdds.xml"),
    }


def start(**parameters: object) -> subprocess.Popen[str]:
    # Without the role's own core and priority: a test must not compete with another one for them.
    values = {"tiers": "''", "cpus": "all", "scheduling": "normal", **parameters}
    arguments = [part for key, value in values.items() for part in ("-p", f"{key}:={value}")]
    return spawn([sys.executable, "-m", "triptych.nodes.replay_node", "--ros-args", *arguments])


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    yield
    for process in _STARTED:
        process.kill()
        process.wait()
    _STARTED.clear()


def spawn(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _STARTED.append(process)
    return process


def test_a_bag_of_years_ago_arrives_fresh(tmp_path: Path) -> None:
    """A12: a recording is played with stamps of now, in its own rhythm."""
    drivers = [("driver/state", T0 + i * 100 * MS, protect(DriverState(T0 + i * 100 * MS), i)) for i in range(20)]
    path = bag(tmp_path / "b", merge(camera_rows(40), drivers))
    listener = spawn([sys.executable, "-c", LISTENER, "30"])
    assert listener.stdout is not None and listener.stdout.readline().strip() == "ready"
    player = start(input=path)
    _, errors = player.communicate(timeout=40)
    assert player.returncode == 0, errors
    seen = json.loads(listener.communicate(timeout=40)[0])
    frames = seen["camera"]
    assert len(frames) >= 36, "discovery may cost the first ones"
    assert all(f[2:5] == [32, 24, "bgr8"] for f in frames)
    delays_ms = sorted(f[0] for f in frames)
    assert delays_ms[0] > -1 and delays_ms[len(frames) // 2] < 50, "stamped at the moment of publication"
    stamps = [f[1] for f in frames]
    assert stamps == sorted(set(stamps))
    gaps_ms = sorted((b - a) / MS for a, b in pairwise(stamps))
    assert gaps_ms[len(gaps_ms) // 2] == pytest.approx(50, abs=10)
    assert len(seen["driver"]) >= 15 and all(ok and attentive for ok, attentive in seen["driver"])
    assert len(seen["speed"]) >= 36 and set(seen["speed"]) == {20.0}, "made up: the bag has none"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: bag(p / "b", [*camera_rows(5), ("camera/image_raw", T0 + 300 * MS, image(T0 + 300 * MS, step=1))]),
         "message 6: step: must be at least 96 bytes"),
        (lambda p: p / "nothing", "does not exist; check the path"),
    ],
)  # fmt: skip
def test_a_recording_that_breaks_off_is_one_sentence_and_exit_2(tmp_path: Path, make: object, words: str) -> None:
    player = start(input=make(tmp_path))
    _, errors = player.communicate(timeout=40)
    assert player.returncode == 2
    said = [line for line in errors.splitlines() if line.strip()]
    assert words in said[-1] and "Traceback" not in errors


def test_bad_topic_parameter(tmp_path: Path) -> None:
    player = start(input=bag(tmp_path / "b", camera_rows(5)), topics="['camera']")
    _, errors = player.communicate(timeout=40)
    assert player.returncode == 2 and "topics: must be role=topic (got 'camera')" in errors


def test_ctrl_c_ends_an_endless_play_at_once(tmp_path: Path) -> None:
    player = start(input=bag(tmp_path / "b", camera_rows(5)), loop=True)
    time.sleep(4.0)
    assert player.poll() is None, "it plays in a loop"
    player.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, errors = player.communicate(timeout=10)
    assert player.returncode == 0 and time.monotonic() - started < 5.0, errors
