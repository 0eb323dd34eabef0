"""The stack as real processes over DDS: what the vehicle is told when parts of it die, hang or never start."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from stack_probe import Probe, node, patient_faults, poll_for, running

from triptych.contract import BUDGETS, DegradationState, Origin, Tier, TierState, VerdictLevel, crc_ok
from triptych.nodes import topics
from triptych.nodes.io import Subscription, create_publisher
from triptych.nodes.process import NodeSpec
from triptych.replay.record import RunRecord
from triptych.resources import share
from triptych_ros.msg import Detections, TierStatus

S = DegradationState
RESULT, STATUS = topics.RESULTS[Tier.DETECTOR], topics.STATUSES[Tier.DETECTOR]
CAMERA = {"width_px": 480, "height_px": 270, "camera_rate_hz": 10.0, "preset": "fixed", "start_speed_mps": 15.0}
SLOW_TIER = {"budget_s": 1.0, "keep_s": 5.0, "period_s": 0.1}

pytestmark = pytest.mark.skipif(
    not (share() / "models" / "triptych-detector" / "manifest.yaml").is_file(),
    reason="the built-in detector is not there",
)


def detector(**parameters: object) -> NodeSpec:
    return node("detector", "tier_node", **{**SLOW_TIER, **parameters})


def supervisor(folder: Path, **parameters: object) -> NodeSpec:
    values = {"distilled_expected": False, "full_expected": False, **parameters}
    return node("supervisor", "supervisor_node", fault_table=str(patient_faults(folder)), **values)


def safety_core(**parameters: object) -> NodeSpec:
    patient = {"supervisor_timeout_s": 0.9, "vehicle_timeout_s": 0.9}
    return node("safety_core", "safety_core_node", **{**patient, **parameters})


def scenario(**parameters: object) -> NodeSpec:
    return node("scenario", "scenario_node", **{**CAMERA, **parameters})


def state_is(probe: Probe, state: S) -> bool:
    """Whether the last state heard, if any, is this one."""
    last = probe.last(topics.STATE)
    return last is not None and last.state is state


def drives(probe: Probe, least_mps: float = 3.0) -> bool:
    """Whether the last hop lets the vehicle drive, and it does; it starts at speed, so odometry alone says little."""
    command, odometry = probe.last(topics.COMMAND), probe.last(topics.ODOMETRY)
    return bool(command and odometry and command.speed_limit_mps > least_mps and odometry.speed_mps > least_mps)


def is_stop(constraint: object) -> bool:
    """A stop behaviour: come down to standstill, at a sane rate, with hazard lights."""
    return bool(
        constraint.speed_limit_mps == 0.0  # type: ignore[attr-defined]
        and 0 < constraint.deceleration_mps2 <= 4.0  # type: ignore[attr-defined]
        and constraint.hazard_lights  # type: ignore[attr-defined]
        and constraint.remote_notification  # type: ignore[attr-defined]
    )


def test_a_lost_detector_stops_the_vehicle_and_its_return_does_not_start_it(tmp_path: Path) -> None:
    """A1: the tier dies while driving; what counts is the stop on the command topic. A8: no self-resume."""
    specs = [
        supervisor(tmp_path),
        safety_core(),
        detector(),
        scenario(),
        node("recorder", "recorder_node", folder=str(tmp_path / "run")),
    ]
    with running(tmp_path, *specs) as (stack, probe):
        probe.wait("a fresh result", lambda: any(r.origin is Origin.FRESH for r in probe.all(RESULT)))
        fresh = next(r for r in probe.all(RESULT) if r.origin is Origin.FRESH)
        assert crc_ok(fresh) and fresh.engine_id == "triptych-detector" and "cpu" in fresh.device.lower()
        assert fresh.latency.infer_ms > 0 and fresh.payload.image_width == CAMERA["width_px"]
        probe.wait(  # a busy machine may have lost a frame meanwhile, which costs a second of L2
            "driving without a VLM",
            lambda: drives(probe) and state_is(probe, S.L3_PERCEPTION_ONLY),
        )
        assert crc_ok(probe.last(topics.STATE))
        assert all(crc_ok(c) for c in probe.all(topics.CONSTRAINT))

        speed = probe.last(topics.ODOMETRY).speed_mps
        killed = time.monotonic()
        os.kill(stack.pids()["detector"], signal.SIGKILL)
        probe.wait("a stop behaviour", lambda: is_stop(probe.last(topics.COMMAND)), 20)
        assert crc_ok(probe.last(topics.COMMAND))
        constraint = probe.last(topics.CONSTRAINT)
        assert constraint.state is S.L1_MINIMAL_RISK_MANOEUVRE and "detector" in constraint.reason.lower()
        probe.wait("slowing down", lambda: probe.last(topics.ODOMETRY).speed_mps < speed - 1.0, 30)

        events = poll_for(stack, 60, lambda: any(r.origin is Origin.FRESH for r in probe.all(RESULT, killed + 0.5)))
        assert [e.kind for e in events] == ["crashed", "restarted"] and "SIGKILL" in events[0].text
        assert stack.restarts["detector"] == 1
        poll_for(stack, 3)
        assert is_stop(probe.last(topics.COMMAND)), "the detector is back, the vehicle must still come to a stop"
        assert probe.last(topics.STATE).state in (S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC)
        pids = list(stack.pids().values())
        began = time.monotonic()
        stack.stop()
        assert time.monotonic() - began < 3.0, "2 s and what a busy machine adds"
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    path = tmp_path / "run" / "record.jsonl"
    if not path.exists():  # stopped the hard way on a busy machine; what was written is complete all the same
        path = path.with_name("record.jsonl.part")
    record = RunRecord.load(path)
    assert record.results_of(Tier.DETECTOR) and record.constraints and record.odometry and record.cpu
    assert S.L1_MINIMAL_RISK_MANOEUVRE in [s.state for s in record.state_changes()]
    assert {c.process for c in record.cpu} >= {"supervisor", "detector", "scenario", "recorder"}
    if path.suffix == ".jsonl":
        assert (tmp_path / "run" / "results" / "metadata.yaml").is_file()


def test_a_tier_that_never_starts_is_named_after_the_grace(tmp_path: Path) -> None:
    """A2, A9: "never received" comes from our own timers, after a bounded start-up during which the vehicle is held."""
    specs = [
        supervisor(tmp_path, distilled_expected=True, startup_grace_s=4.0),
        safety_core(),
        detector(),
        scenario(start_speed_mps=0.0),
    ]
    with running(tmp_path, *specs) as (_, probe):
        probe.wait("the supervisor", lambda: probe.last(topics.STATE))
        assert probe.last(topics.STATE).state is S.INITIALISING
        probe.wait("a result", lambda: probe.last(RESULT))
        assert all(c.speed_limit_mps == 0 for c in probe.all(topics.CONSTRAINT) if c.state is S.INITIALISING)

        def verdict() -> bool:
            verdicts = probe.last(topics.VERDICTS) or ()
            found = [v for v in verdicts if v.fault_id == "distilled.never_received"]
            return bool(found) and found[0].active and found[0].level is VerdictLevel.FAULT

        probe.wait("the verdict", verdict)
        probe.wait("driving without it", lambda: drives(probe, 0.5))
        probe.wait("perception alone", lambda: state_is(probe, S.L3_PERCEPTION_ONLY))
        assert "distilled.never_received" in probe.last(topics.STATE).active_faults


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_supervisor_is_noticed_by_the_safety_core_which_stops_the_vehicle(
    tmp_path: Path, how: signal.Signals
) -> None:
    """A11: a second watchdog stops and says so; a supervisor that comes back does not start the vehicle again."""
    latch = tmp_path / "latch"
    specs = [supervisor(tmp_path, latch_file=str(latch)), safety_core(), detector(), scenario()]
    with running(tmp_path, *specs) as (stack, probe):
        probe.wait("driving", lambda: drives(probe))
        core = "triptych: safety core"
        probe.wait("the core's report", lambda: probe.diagnostic(core))
        speed = probe.last(topics.ODOMETRY).speed_mps
        killed = time.monotonic()
        os.kill(stack.pids()["supervisor"], how)

        def reported() -> bool:
            status = probe.diagnostic(core, killed)
            return bool(status) and status["level"] == 2

        took = probe.wait("the second watchdog", reported, 20)
        assert took < 5, "0.9 s and what a busy machine adds"
        assert "supervisor" in probe.diagnostic(core, killed)["message"]
        command = probe.last(topics.COMMAND)
        assert is_stop(command) and crc_ok(command) and command.state is S.L1_MINIMAL_RISK_MANOEUVRE
        probe.wait("slowing down", lambda: probe.last(topics.ODOMETRY).speed_mps < speed - 1.0, 30)
        assert not probe.all(topics.CONSTRAINT, killed + 1.0)
        assert not latch.exists(), "nothing was latched before"
        if how is signal.SIGSTOP:
            return
        poll_for(stack, 60, lambda: probe.all(topics.CONSTRAINT, killed + 1.0))
        probe.wait("standstill", lambda: probe.last(topics.ODOMETRY).speed_mps == 0.0, 30)

        def held() -> bool:  # in the minimal risk condition, or, if it had not begun to drive yet, where it begins
            state = probe.last(topics.STATE)
            return state.state in (S.INITIALISING, S.MRC) and "safety_core.own_stop" in state.active_faults

        probe.wait("the supervisor knows", held, 30)
        refused = probe.trigger(topics.RESET)
        assert not refused.success and refused.message
        probe.wait("the core's reset", lambda: probe.trigger(topics.SAFETY_RESET).success, 20)
        if probe.last(topics.STATE).state is S.MRC:
            probe.wait("the supervisor's reset", lambda: probe.trigger(topics.RESET).success, 20)
        probe.wait("driving again", lambda: drives(probe, 0.5), 30)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_safety_core_leaves_the_vehicle_in_its_safe_default(tmp_path: Path, how: signal.Signals) -> None:
    """A11: the last hop itself: the vehicle stops alone and says so, and the supervisor holds it there."""
    specs = [supervisor(tmp_path), safety_core(), detector(), scenario()]
    with running(tmp_path, *specs) as (stack, probe):
        probe.wait("driving", lambda: drives(probe))
        vehicle = "triptych: vehicle"
        probe.wait("the vehicle's report", lambda: probe.diagnostic(vehicle))
        speed = probe.last(topics.ODOMETRY).speed_mps
        killed = time.monotonic()
        os.kill(stack.pids()["safety_core"], how)

        def reported() -> bool:
            status = probe.diagnostic(vehicle, killed)
            return bool(status) and status["level"] == 2

        probe.wait("the vehicle's watchdog", reported, 20)
        status = probe.diagnostic(vehicle, killed)
        assert status["message"].startswith("safe default: no constraint for")
        assert status["values"]["speed limit m/s"] == "0.00"
        probe.wait("slowing down", lambda: probe.last(topics.ODOMETRY).speed_mps < speed - 1.0, 30)
        if how is signal.SIGKILL:
            poll_for(stack, 60, lambda: probe.all(topics.COMMAND, killed + 1.0))


def test_takeover_reset_and_a_restart_within_the_manoeuvre(tmp_path: Path) -> None:
    """The services over ROS; and a supervisor that dies within a manoeuvre goes on with it."""
    latch = tmp_path / "latch"
    specs = [supervisor(tmp_path, latch_file=str(latch)), safety_core(), detector(), scenario()]
    with running(tmp_path, *specs) as (stack, probe):
        probe.wait("driving", lambda: drives(probe))
        refused = probe.trigger(topics.RESET)
        assert not refused.success and refused.message
        os.kill(stack.pids()["detector"], signal.SIGKILL)
        probe.wait("the manoeuvre", lambda: is_stop(probe.last(topics.CONSTRAINT)), 20)
        probe.wait("the latch", latch.exists, 10)
        killed = time.monotonic()
        os.kill(stack.pids()["supervisor"], signal.SIGKILL)
        poll_for(stack, 60, lambda: probe.all(topics.CONSTRAINT, killed + 0.3))
        first = probe.all(topics.CONSTRAINT, killed + 0.3)[0]
        assert first.state is S.L1_MINIMAL_RISK_MANOEUVRE and is_stop(first)

        probe.wait("the driver is known", lambda: _accepted(probe), 30)
        probe.wait("manual", lambda: state_is(probe, S.MANUAL), 10)


def _accepted(probe: Probe) -> bool:
    return bool(probe.trigger(topics.TAKEOVER).success)


def test_incompatible_qos_is_named_in_the_diagnostics(tmp_path: Path) -> None:
    """A15: a subscriber that asks for what a tier does not offer, a publisher that offers less than we ask for."""
    with running(tmp_path, supervisor(tmp_path), detector()) as (_, probe):
        probe.wait("a heartbeat", lambda: probe.last(STATUS))
        wanted = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        subscription = Subscription(probe.node, Detections, RESULT.name, wanted)
        offered = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        publisher = create_publisher(probe.node, TierStatus, topics.STATUSES[Tier.FULL].name, offered)

        def says(name: str, topic: str, policy: str) -> bool:
            values = (probe.diagnostic(name) or {"values": {}})["values"]
            return any(topic in text and policy in text for text in values)

        probe.wait("the detector names it", lambda: says("triptych: detector", "/detector/result", "DURABILITY"), 30)
        probe.wait("the supervisor names it", lambda: says("triptych: supervisor", "/full/status", "RELIABILITY"), 30)
        subscription.close()
        probe.node.destroy_publisher(publisher)


def test_lifecycle_of_a_tier(tmp_path: Path) -> None:
    """A16, A14: invalid transitions are refused, a bad engine is named in the heartbeat, and the node lives on."""
    manifest = tmp_path / "broken" / "manifest.yaml"
    manifest.parent.mkdir()
    manifest.write_text("name: broken\n")
    bad = node("detector", "tier_node", autostart=False, engine=str(manifest))
    good = node("full", "tier_node", tier="detector", autostart=False, **SLOW_TIER)
    with running(tmp_path, bad, NodeSpec(good.name, good.module, good.params_file, good.parameters, _AWAY)) as (
        stack,
        probe,
    ):

        def change(name: str, transition: int) -> bool:
            request = ChangeState.Request(transition=Transition(id=transition))
            return bool(probe.call(ChangeState, f"{name}/change_state", request).success)

        def state(name: str) -> int:
            return int(probe.call(GetState, f"{name}/get_state", GetState.Request()).current_state.id)

        probe.wait("a heartbeat", lambda: probe.last(STATUS))
        assert probe.last(STATUS).state is TierState.UNCONFIGURED and not probe.last(STATUS).healthy
        assert not change("detector", Transition.TRANSITION_ACTIVATE), "not before it is configured"
        assert state("detector") == State.PRIMARY_STATE_UNCONFIGURED
        assert not change("detector", Transition.TRANSITION_CONFIGURE)
        assert state("detector") == State.PRIMARY_STATE_UNCONFIGURED
        probe.wait("the fault", lambda: "manifest.yaml" in probe.last(STATUS).fault, 10)
        assert probe.last(STATUS).state is TierState.ERROR and crc_ok(probe.last(STATUS))

        assert change("full", Transition.TRANSITION_CONFIGURE)
        assert not change("full", Transition.TRANSITION_CONFIGURE), "is configured already"
        for _ in range(2):
            assert change("full", Transition.TRANSITION_ACTIVATE)
            assert state("full") == State.PRIMARY_STATE_ACTIVE
            assert change("full", Transition.TRANSITION_DEACTIVATE)
        assert state("full") == State.PRIMARY_STATE_INACTIVE
        assert change("full", Transition.TRANSITION_CLEANUP)
        assert state("full") == State.PRIMARY_STATE_UNCONFIGURED
        assert len(stack.pids()) == 2 and stack.poll() == []


_AWAY = {"detector/result": "other/result", "detector/status": "other/status"}


def test_no_camera_is_never_silence(tmp_path: Path) -> None:
    """A2, from the tier's side: an active tier without frames says DEFAULT every period and why."""
    with running(tmp_path, node("detector", "tier_node", period_s=0.1)) as (stack, probe):
        probe.wait("active", lambda: probe.last(STATUS) and probe.last(STATUS).state is TierState.ACTIVE)
        since = time.monotonic()
        poll_for(stack, 3)
        results = probe.all(RESULT, since)
        assert 15 <= len(results) <= 35
        assert {(r.origin, r.reason) for r in results} == {(Origin.DEFAULT, "no_frame")}
        counters = [r.sequence_counter for r in results]
        assert all((b - a) % 256 == 1 for a, b in itertools.pairwise(counters))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"threads": 0}, "threads"), ({"no_such": 1}, "no_such"), ({"cpus": "9999"}, "cpus"), ({"tier": "third"}, "tier")],
)
def test_a_wrong_parameter_ends_a_node_with_one_sentence(tmp_path: Path, parameters: dict, field: str) -> None:
    spec = NodeSpec("detector", "triptych.nodes.tier_node", parameters=parameters, respawn=False)
    with running(tmp_path, spec) as (stack, _):
        events = poll_for(stack, 60, lambda: stack.over)
        text = stack.log_path("detector").read_text()
    assert events[-1].kind == "refused" and field in events[-1].text
    assert field in text and "Traceback" not in text and len(text.strip().splitlines()) == 1


def test_budgets_of_the_contract_are_the_defaults(tmp_path: Path) -> None:
    """What the node promises without any parameter is the table in the documentation."""
    with running(tmp_path, node("detector", "tier_node")) as (_, probe):
        probe.wait("active", lambda: probe.last(STATUS) and probe.last(STATUS).state is TierState.ACTIVE)
        since = time.monotonic() + 0.5
        probe.wait("results", lambda: len(probe.all(RESULT, since)) > 20)
        results = probe.all(RESULT, since)
        period_s = (results[-1].published_ns - results[0].published_ns) / 1e9 / (len(results) - 1)
        assert period_s == pytest.approx(BUDGETS[Tier.DETECTOR].period_s, rel=0.5)
