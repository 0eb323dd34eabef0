"""The notifier node with a real supervisor's topics on one side and a real web server on the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import NavSatFix
from test_scenario_view_recorder import Peer

from triptych.contract import ConfigError, DegradationState, MotionConstraint, protect
from triptych.contract.supervision import StateRecord
from triptych.nodes import convert, io, topics
from triptych.nodes.remote_node import SILENT, RemoteNode
from triptych_ros.msg import DegradationState as DegradationStateMsg
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "remote"))
from remote_rig import WebServer

S = DegradationState
L1 = S.L1_MINIMAL_RISK_MANOEUVRE


class Supervisor:
    """Publishes a state and its constraint at 50 Hz, as the real one does."""

    def __init__(self, peer: Peer) -> None:
        self._state = io.create_publisher(peer.node, DegradationStateMsg, topics.STATE.name, io.LATCHED_QOS)
        self._constraint = io.create_publisher(peer.node, MotionConstraintMsg, topics.CONSTRAINT.name, io.DATA_QOS)
        self._fix = io.create_publisher(peer.node, NavSatFix, topics.POSITION.name, io.DATA_QOS)
        self.state, self.since_ns, self.faults, self.break_crc = S.NOMINAL, time.time_ns(), (), False
        self._count = 0

    def enter(self, state: DegradationState, *faults: str) -> None:
        self.state, self.since_ns, self.faults = state, time.time_ns(), faults

    def speak(self) -> None:
        self._count += 1
        now_ns, told = time.time_ns(), self.state in (L1, S.MRC)
        record = StateRecord(now_ns, self.state, S.NOMINAL, self.since_ns, "a reason", self.faults)
        constraint = MotionConstraint(now_ns, 0.0, 2.0, told, False, told, self.state, "a reason")
        messages = protect(record, self._count), protect(constraint, self._count)
        if self.break_crc:
            messages = replace(messages[0], crc=1), replace(messages[1], crc=1)
        self._state.publish(convert.state_to_msg(messages[0]))
        self._constraint.publish(convert.constraint_to_msg(messages[1]))

    def locate(self, latitude: float, longitude: float, status: int = 0) -> None:
        fix = NavSatFix(latitude=latitude, longitude=longitude, altitude=float("nan"))
        fix.status.status = status
        fix.header.stamp = convert.to_time(time.time_ns())
        self._fix.publish(fix)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.close()


def values(web: WebServer, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "target": web.url(),
        "vehicle_id": "car-7",
        "allow_plain": True,
        "queue_file": str(folder / "queue"),
        "retry_first_s": 0.05,
        "timeout_s": 2.0,
        **more,
    }


def bodies(web: WebServer) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in web.requests]


def test_a_manoeuvre_is_told_once_through_failures_and_a_restart(peer: Peer, web: WebServer, tmp_path: Path) -> None:
    """A1 seen from outside: L1, MRC and the release arrive, with position, faults and a number each; while the far end
    is down they wait; a restarted node neither forgets nor repeats them."""
    reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
    supervisor = Supervisor(peer)
    web.statuses = [503] * 10_000
    peer.start(RemoteNode, "remote", **values(web, tmp_path))

    def beat() -> None:
        supervisor.speak()
        supervisor.locate(48.25, 11.5)
        supervisor.locate(1.0, 1.0, -1)
        supervisor.locate(float("nan"), 1.0)
        supervisor.locate(91.0, 1.0)

    def levels() -> list[tuple[int, str, dict[str, str]]]:
        return [
            (s.level[0], s.message, {v.key: v.value for v in s.values})
            for r in reports
            for s in r.status
            if s.name == "triptych: remote"
        ]

    peer.until(lambda: levels() and levels()[-1][0] == 0 and peer.under_test._position, beat)
    assert web.requests == []
    supervisor.enter(L1, "detector.lost")
    peer.until(lambda: len(web.requests) >= 2, beat)
    peer.until(lambda: levels()[-1][0] == 2, beat)
    assert levels()[-1][2]["last error"] == "answered with HTTP status 503"
    assert levels()[-1][2]["queue length"] == levels()[-1][2]["urgent waiting"] == "1"
    supervisor.enter(S.MRC, "detector.lost")
    peer.until(lambda: len(peer.under_test.outbox) == 2, beat)
    peer.under_test.close()
    peer.under_test.destroy_node()

    web.statuses = []
    web.requests.clear()
    peer.start(RemoteNode, "remote", **values(web, tmp_path))
    peer.until(lambda: len(bodies(web)) >= 2, beat)
    supervisor.enter(S.NOMINAL)
    peer.until(lambda: len(bodies(web)) >= 3, beat)
    peer.until(lambda: levels()[-1][2]["queue length"] == "0" and levels()[-1][2]["s since last success"], beat)
    found = bodies(web)
    assert [(b["sequence"], b["state"], b["kind"]) for b in found] == [
        (1, L1.name, "entered"),
        (2, "MRC", "entered"),
        (3, "NOMINAL", "released"),
    ]
    assert found[0]["vehicle_id"] == "car-7" and found[0]["faults"] == ["detector.lost"]
    assert (found[0]["position"]["latitude_deg"], found[0]["position"]["altitude_m"]) == (48.25, None)
    assert len({b["event_id"] for b in found}) == 3


def test_a_supervisor_that_falls_silent_is_told_as_well(peer: Peer, web: WebServer, tmp_path: Path) -> None:
    """A11: whoever obeys the constraint stops now; nobody else would say so. Before its first word it is not missed; a
    message with a wrong CRC is no word."""
    supervisor = Supervisor(peer)
    supervisor.break_crc = True
    supervisor.enter(L1)
    node = peer.start(RemoteNode, "remote", **values(web, tmp_path, constraint_timeout_s=0.5))
    begin_s = time.monotonic()
    peer.until(lambda: time.monotonic() - begin_s > 2.0 and node.notes.values(), supervisor.speak)
    assert bodies(web) == []
    supervisor.break_crc = False
    supervisor.enter(S.NOMINAL)
    begin_s = time.monotonic()
    peer.until(lambda: time.monotonic() - begin_s > 1.0, supervisor.speak)
    assert bodies(web) == []
    peer.until(lambda: bodies(web))
    (told,) = bodies(web)
    assert (told["state"], told["reason"], told["position"]) == (L1.name, SILENT, None)
    peer.until(lambda: len(bodies(web)) == 2, supervisor.speak)
    assert bodies(web)[1]["kind"] == "released"


def test_a_mistake_in_the_parameters_ends_the_node_with_a_sentence(peer: Peer, web: WebServer, tmp_path: Path) -> None:
    """Better no start than a vehicle that cannot call."""
    with pytest.raises(ConfigError, match="vehicle_id"):
        peer.start(RemoteNode, "remote", **values(web, tmp_path, vehicle_id=""))
    with pytest.raises(ConfigError, match="not encrypted"):
        peer.start(RemoteNode, "remote2", **values(web, tmp_path, allow_plain=False))
