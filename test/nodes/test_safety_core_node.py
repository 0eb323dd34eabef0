"""The last hop, alone in this process with a peer that plays supervisor and vehicle."""

from __future__ import annotations

import math
import struct
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from node_peer import Peer
from std_srvs.srv import Trigger

from triptych.contract import (
    ConfigError,
    DegradationState,
    DriverState,
    MotionConstraint,
    Odometry,
    crc_ok,
    protect,
)
from triptych.nodes import convert, io, topics
from triptych.nodes.safety_core_node import SafetyCoreNode
from triptych.safety.library import BLOCK_BYTES
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg

S = DegradationState
PATIENT = {"supervisor_timeout_s": 0.9, "vehicle_timeout_s": 0.9}


class Vehicle:
    """Both senders, and what the vehicle hears."""

    def __init__(self, peer: Peer, **parameters: Any) -> None:
        self.peer = peer
        self.heard = peer.hear(topics.COMMAND, MotionConstraintMsg, convert.constraint_from_msg)
        self.reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
        self.constraints = io.create_publisher(peer.node, MotionConstraintMsg, topics.CONSTRAINT.name, io.DATA_QOS)
        self.odometry = io.create_publisher(peer.node, OdometryMsg, topics.ODOMETRY.name, io.DATA_QOS)
        self.drivers = io.create_publisher(peer.node, DriverStateMsg, topics.DRIVER_STATE.name, io.DATA_QOS)
        self.limit_mps, self.speed_mps, self.state, self.count = 15.0, 10.0, S.NOMINAL, 0
        self.driver: DriverState | None = None
        self.silent: set[str] = set()
        self.node = peer.start(SafetyCoreNode, "safety_core", **{**PATIENT, **parameters})

    def constraint(self) -> MotionConstraint:
        self.count += 1
        stop = self.state is S.L1_MINIMAL_RISK_MANOEUVRE
        limit_mps = 0.0 if stop else self.limit_mps
        return protect(
            MotionConstraint(time.time_ns(), limit_mps, 2.0, stop, stop, stop, self.state, "why"), self.count
        )

    def send(self) -> None:
        if "supervisor" not in self.silent:
            self.constraints.publish(convert.constraint_to_msg(self.constraint()))
        if "vehicle" not in self.silent:
            self.odometry.publish(convert.odometry_to_msg(Odometry(time.time_ns(), self.speed_mps)))
        if self.driver is not None:
            self.drivers.publish(convert.driver_to_msg(protect(replace(self.driver, stamp_ns=time.time_ns()), 1)))

    def until(self, condition: Any, seconds: float = 30.0) -> MotionConstraint:
        """Send until the newest command fits; returns it."""
        self.peer.until(lambda: self.heard and condition(self.heard[-1]), self.send, seconds)
        return self.heard[-1]

    def passes(self) -> MotionConstraint:
        return self.until(lambda c: c.speed_limit_mps == self.limit_mps and not c.reason)


@pytest.fixture
def vehicle(peer: Peer) -> Vehicle:
    return Vehicle(peer)


def is_own_stop(command: MotionConstraint) -> bool:
    return command.speed_limit_mps == 0.0 and command.hazard_lights and command.reason.startswith("safety core: ")


def test_the_supervisors_word_passes_and_is_protected_anew(vehicle: Vehicle) -> None:
    command = vehicle.passes()
    assert (command.deceleration_mps2, command.state) == (2.0, S.NOMINAL)
    vehicle.until(lambda c: len(vehicle.heard) > 10)
    assert all(crc_ok(c) for c in vehicle.heard)
    counters = [c.sequence_counter for c in vehicle.heard]
    assert all((b - a) % 256 == 1 for a, b in pairwise(counters))
    vehicle.state = S.L1_MINIMAL_RISK_MANOEUVRE
    stop = vehicle.until(lambda c: c.state is S.L1_MINIMAL_RISK_MANOEUVRE)
    assert stop.hazard_lights and stop.pull_over and stop.remote_notification and stop.speed_limit_mps == 0.0


def test_it_is_silent_neither_before_nor_after_it_has_heard_anybody(vehicle: Vehicle) -> None:
    """A9: whoever starts last, the vehicle is told to stand."""
    vehicle.silent = {"supervisor", "vehicle"}
    first = vehicle.until(lambda c: True)
    assert first.speed_limit_mps == 0.0 and first.state is S.INITIALISING and "waiting" in first.reason
    vehicle.silent = set()
    vehicle.passes()


@pytest.mark.parametrize(("who", "word"), [("supervisor", "supervisor"), ("vehicle", "motion")])
def test_silence_of_either_ends_in_a_stop_that_only_a_reset_ends(vehicle: Vehicle, who: str, word: str) -> None:
    """A11."""
    vehicle.passes()
    vehicle.silent = {who}
    stop = vehicle.until(is_own_stop)
    assert word in stop.reason
    vehicle.silent = set()
    end = time.monotonic() + 0.5
    vehicle.until(lambda c: time.monotonic() > end)
    assert is_own_stop(vehicle.heard[-1]), "the return of who was silent is no reason to drive"

    def level() -> int:
        found = [s.level[0] for r in vehicle.reports for s in r.status if s.name == "triptych: safety core"]
        return found[-1] if found else 0

    vehicle.until(lambda c: level() == 2)
    answer = vehicle.node._on_reset(Trigger.Request(), Trigger.Response())
    assert not answer.success and "does not stand" in answer.message


def test_a_reset_at_standstill_ends_the_stop(vehicle: Vehicle) -> None:
    vehicle.speed_mps = 0.0
    vehicle.passes()
    vehicle.silent = {"supervisor"}
    vehicle.until(is_own_stop)
    vehicle.silent = set()
    assert vehicle.until(is_own_stop).state is S.MRC
    end = time.monotonic() + 0.3
    vehicle.until(lambda c: time.monotonic() > end)
    assert is_own_stop(vehicle.heard[-1]), "the supervisor is back, and nothing happens yet"
    vehicle.node._inputs.resets += 1
    vehicle.passes()
    answer = vehicle.node._on_reset(Trigger.Request(), Trigger.Response())
    assert answer.success and answer.message == "There was nothing to reset."


def test_damaged_repeated_and_impossible_messages_are_not_handed_on(vehicle: Vehicle) -> None:
    """A6: what does not count as heard ends like silence."""
    vehicle.passes()
    vehicle.silent = {"supervisor"}
    good = vehicle.constraint()
    damaged = convert.constraint_to_msg(good)
    damaged.speed_limit_mps += 1.0
    bad = [damaged, convert.constraint_to_msg(protect(replace(good, speed_limit_mps=math.nan), good.sequence_counter))]
    repeated = convert.constraint_to_msg(good)
    vehicle.constraints.publish(repeated)

    def send() -> None:
        vehicle.send()
        for msg in (*bad, repeated):
            vehicle.constraints.publish(msg)

    vehicle.peer.until(lambda: is_own_stop(vehicle.heard[-1]), send)
    said = vehicle.node.notes.values()
    assert any("CRC" in text for text in said) and any("repeated" in text for text in said)
    assert any("speed_limit_mps" in text for text in said)


def test_a_speed_that_is_no_number_ends_like_a_silent_vehicle(vehicle: Vehicle) -> None:
    vehicle.passes()
    vehicle.speed_mps = math.nan
    assert "motion" in vehicle.until(is_own_stop).reason


def test_a_driver_drives_whatever_was_stopped_for(vehicle: Vehicle) -> None:
    vehicle.passes()
    vehicle.silent = {"supervisor"}
    vehicle.until(is_own_stop)
    vehicle.driver = DriverState(0, override_active=True)
    assert vehicle.until(lambda c: c.state is S.MANUAL).speed_limit_mps == 40.0
    vehicle.driver = DriverState(0, override_active=False, automation_engaged=False)
    vehicle.until(lambda c: False not in [h.state is S.MANUAL for h in vehicle.heard[-3:]])
    end = time.monotonic() + 0.7  # the override is over, and longer ago than it counts
    vehicle.until(lambda c: time.monotonic() > end)
    assert vehicle.heard[-1].state is S.MANUAL, "who has not handed over drives"
    vehicle.driver = None
    assert is_own_stop(vehicle.until(lambda c: c.state is not S.MANUAL)), "unheard, a driver does not drive"


def test_the_block_can_be_a_file_that_others_map(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "block"
    vehicle = Vehicle(peer, block=str(path))
    vehicle.passes()
    content = path.read_bytes()
    assert len(content) == BLOCK_BYTES and struct.unpack_from("<I", content)[0] == 1
    assert struct.unpack_from("<i", content, 4 + 28 + 20 + 4)[0] == 15000, "the command's limit in mm/s"


def test_a_block_that_cannot_be_made_is_refused_by_name(peer: Peer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"block: .*nowhere"):
        peer.start(SafetyCoreNode, "safety_core", block=str(tmp_path / "nowhere" / "block"))


def test_limits_that_do_not_fit_together_are_refused(peer: Peer) -> None:
    with pytest.raises(ConfigError, match="do not fit together"):
        peer.start(SafetyCoreNode, "safety_core", stop_deceleration_mps2=4.5)
