"""Nodes on a disk without room: they live, say so, and leave nothing half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from node_peer import Peer
from test_scenario_view_recorder import constraint

from full_disk import Disk, small_disk
from triptych import dds
from triptych.contract import protect
from triptych.nodes import convert, io, topics
from triptych.nodes.process import REFUSED_CODE
from triptych.nodes.recorder_node import RecorderNode
from triptych.nodes.runtime import EXIT_DEFECT
from triptych.replay.record import RunRecord
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg

SRC = Path(__file__).parents[2] / "src"


def told(reports: list[Any], name: str) -> list[Any]:
    """The diagnostics of one node, in order."""
    return [s for r in reports for s in r.status if s.name == name]


def record_until(peer: Peer, condition: Any) -> None:
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.CONSTRAINT.name, io.DATA_QOS)
    sent = 0

    def speak() -> None:
        nonlocal sent
        sent += 1
        commands.publish(convert.constraint_to_msg(protect(constraint(9.0, reason="x" * 100), sent)))

    peer.until(condition, speak)


def test_a_disk_that_fills_up_ends_the_recording_and_the_recorder_says_so(peer: Peer, tmp_path: Path) -> None:
    """A real disk: whole lines are kept, the bag gives its room back, diagnostics name folder and remedy."""
    reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
    with small_disk(tmp_path) as disk:
        run = disk.path / "run"
        node = peer.start(RecorderNode, "recorder", folder=str(run), sample_frames=0)
        part = run / "record.jsonl.part"
        record_until(peer, lambda: part.read_bytes().count(b"constraint") > 20)
        disk.fill()
        record_until(
            peer, lambda: told(reports, "triptych: recorder") and told(reports, "triptych: recorder")[-1].level != b"\0"
        )
        status = told(reports, "triptych: recorder")[-1]
        assert status.level == b"\x02" and str(run) in status.message and "No space left" in status.message
        assert "free space" in status.message and not node.notes.finished
        node.close()
        assert {p.name for p in run.iterdir()} == {"record.jsonl"}
        record = RunRecord.load(run / "record.jsonl")
        assert len(record.constraints) > 20 and record.warnings == []


def test_a_recorder_that_starts_on_a_full_disk_lives_and_says_so(peer: Peer, tmp_path: Path) -> None:
    """It may be a restart during a drive: no reason to end anything."""
    reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
    with small_disk(tmp_path) as disk:
        disk.fill()
        peer.start(RecorderNode, "recorder", folder=str(disk.path / "run"))
        peer.until(lambda: told(reports, "triptych: recorder"))
        status = told(reports, "triptych: recorder")[-1]
        assert status.level == b"\x02" and "No space left" in status.message


NODES = {
    "mistake": "raise ConfigError('is wrong', field='x')",
    "defect": "raise RuntimeError('broken')",
    "thread": "threading.Thread(target=lambda: 1 / 0).start()",
    "memory": "threading.Thread(target=lambda: (_ for _ in ()).throw(MemoryError())).start()",
    "good": "threading.Timer(1.0, self.notes.finish).start()",
}
PROGRAM = """
import threading
from rclpy.node import Node
from triptych.contract import ConfigError
from triptych.nodes.runtime import Notes, main
class Some(Node):
    def __init__(self):
        super().__init__("some")
        self.notes = Notes(self)
    def begin(self):
        self.notes.log("error", "a line for the log")
        WHAT
    def close(self):
        pass
main(Some)
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [("mistake", REFUSED_CODE), ("defect", EXIT_DEFECT), ("thread", EXIT_DEFECT), ("memory", EXIT_DEFECT), ("good", 0)],
)
def test_a_log_that_takes_nothing_changes_no_exit_code(what: str, code: int) -> None:
    """Output to /dev/full. A node whose thread died and whose last words fit nowhere must end all the same."""
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.replace("WHAT", NODES[what])],
            env={**os.environ, "PYTHONPATH": str(SRC), "ROS_DOMAIN_ID": str(dds.claim_domain())},
            stdout=full,
            stderr=full,
        )
        try:
            assert process.wait(60) == code
        finally:
            process.kill()
            process.wait()


def supervise(disk: Disk, seconds: float) -> tuple[int | None, str]:
    """A real supervisor whose log files belong on this disk: its exit code, None if it lives, and its last line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "triptych.nodes.supervisor_node", "--ros-args", "-p", "scheduling:=normal"],
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "ROS_DOMAIN_ID": str(dds.claim_domain()),
            "ROS_LOG_DIR": str(disk.path / "log"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        end = time.monotonic() + seconds
        line = process.stdout.readline()
        while "no log file" not in line and line and time.monotonic() < end:
            line = process.stdout.readline()
        code = process.poll()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        return code, line
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_supervisor_starts_where_no_log_file_can_be_made(tmp_path: Path) -> None:
    """The middleware refuses to; a supervisor that comes back for nothing is worse than one without a log file."""
    with small_disk(tmp_path) as disk:
        disk.fill()
        code, line = supervise(disk, 60)
        assert code is None and "no log file" in line and "make room" in line
