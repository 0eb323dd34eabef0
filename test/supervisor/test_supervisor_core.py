"""The whole supervisor on a driving vehicle: what comes in, what goes out, and when."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from supervisor_rig import LATENCY_MS, MS, SECOND, Rig, driving, make_result, row, table

from triptych.contract import (
    BUDGETS,
    Advice,
    Budget,
    DegradationState,
    Detections,
    DriverState,
    Odometry,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VerdictLevel,
    crc_ok,
    safe_default,
)
from triptych.supervisor import MachineState, SupervisorConfig, SupervisorCore
from triptych.supervisor.monitors import METRICS
from triptych.supervisor.records import NOTHING, Commands, Transition

S = DegradationState
L1, L2, L3 = S.L1_MINIMAL_RISK_MANOEUVRE, S.L2_TAKEOVER_REQUEST, S.L3_PERCEPTION_ONLY


# ---- start ----


def test_start_up() -> None:
    """Everything there: NOMINAL at once, the limit rises from standstill at 2 m/s2."""
    rig = Rig()
    rig.tick()
    assert rig.visited() == ["NOMINAL"]
    assert rig.record.reason == "every required input is valid"
    assert rig.record.previous is S.INITIALISING
    assert rig.record.since_ns == rig.record.stamp_ns
    rig.obeys = False
    rig.run(5.0)
    assert rig.constraint.speed_limit_mps == pytest.approx(10.0, abs=0.1)
    assert rig.visited() == ["NOMINAL"] and rig.faults() == []
    rig = driving(36.0)
    rig.run(0.2)
    assert rig.constraint.speed_limit_mps == 36.1
    assert rig.constraint.deceleration_mps2 == 1.5
    assert not (rig.constraint.hazard_lights or rig.constraint.pull_over or rig.constraint.remote_notification)


def test_before_the_start_nothing_moves_and_says_why() -> None:
    """A9: what is waited for is named in the state and in the constraint."""
    rig = Rig()
    rig.alive = {"driver", "odometry"}
    rig.run(1.0)
    assert rig.state is S.INITIALISING
    assert rig.record.reason == rig.constraint.reason == "waiting for detector, distilled, full"
    assert (rig.constraint.speed_limit_mps, rig.constraint.deceleration_mps2) == (0.0, 2.0)
    assert not rig.constraint.hazard_lights and not rig.constraint.remote_notification
    rig.alive |= {"distilled", "full"}
    rig.run(2.0)
    assert rig.record.reason == "waiting for detector"
    rig.origin[Tier.DETECTOR] = Origin.DEFAULT
    rig.alive |= {"detector"}
    rig.run(1.0)
    assert rig.record.reason == "waiting for detector"
    rig.origin[Tier.DETECTOR] = Origin.FRESH
    rig.run(1.1)
    assert rig.state is S.NOMINAL


def test_ready_but_in_doubt_waits() -> None:
    """All was valid once, but a fault is active: not yet; the fault is the reason."""
    rig = Rig()
    rig.alive -= {"full"}
    rig.run(1.0)
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    rig.alive |= {"full"}
    rig.run(3.0)
    assert rig.state is S.INITIALISING
    assert rig.record.reason == "The detector reports that it is not healthy."


def test_without_faults_and_inputs_it_is_starting() -> None:
    """A reason is never empty."""
    rig = Rig(faults=tuple(r for r in table() if r.id == "detector.lost"))
    rig.alive = {"detector", "odometry", "driver", "distilled", "full"}
    rig.core._missing = ()
    assert rig.core._reason() == "starting"


@pytest.mark.parametrize("grace_s", [1.0, 3.0])
def test_a_tier_that_is_never_started(grace_s: float) -> None:
    """A2: found by our own timers after the grace; the vehicle then drives without it."""
    rig = Rig(startup_grace_s=grace_s)
    rig.alive -= {"distilled", "full"}
    rig.run(grace_s)
    assert rig.state is S.INITIALISING and rig.faults() == []
    assert rig.record.reason == "waiting for distilled, full"
    rig.run(0.05)
    assert rig.faults() == ["distilled.never_received", "full.never_received"]
    assert rig.visited() == ["L3_PERCEPTION_ONLY"]
    assert rig.record.reason == "The distilled VLM has never been ready within the start-up grace."
    rig.alive |= {"distilled"}
    rig.run(1.0)
    assert rig.state is S.NOMINAL


def test_the_grace_of_a_missing_required_input_is_reported_without_a_manoeuvre_at_standstill() -> None:
    """A9: a standing vehicle just stands."""
    rig = Rig(startup_grace_s=3.0)
    rig.alive -= {"detector"}
    rig.run(5.0)
    assert rig.state is S.INITIALISING and rig.visited() == []
    assert rig.faults() == ["detector.never_received"]
    assert "detector.never_received" in rig.record.active_faults
    rig.alive |= {"detector"}
    rig.run(1.0)
    assert rig.visited() == ["NOMINAL"]


def test_a_moving_vehicle_that_is_not_ready_after_the_grace_is_stopped() -> None:
    """The grace is bounded."""
    rig = Rig(startup_grace_s=3.0)
    rig.obeys, rig.speed_mps = False, 5.0
    rig.alive -= {"detector"}
    rig.run(3.0)
    assert rig.state is S.INITIALISING
    rig.run(0.1)
    assert rig.state is L1
    assert rig.record.reason == "The detector has never been ready within the start-up grace."


def test_unknown_speed_after_the_grace_is_not_standing() -> None:
    """A10: without odometry the manoeuvre begins, and never ends by itself."""
    rig = Rig(startup_grace_s=3.0)
    rig.alive -= {"odometry"}
    rig.run(3.05)
    assert rig.state is L1
    rig.run(5.0)
    assert rig.state is L1
    assert rig.constraint.deceleration_mps2 == 2.0


@pytest.mark.parametrize("name", ["detector", "distilled", "full", "odometry", "driver"])
def test_every_input_is_waited_for(name: str) -> None:
    """Each of them alone keeps the vehicle waiting."""
    rig = Rig()
    rig.alive -= {name}
    rig.run(3.0)
    assert rig.record.reason == f"waiting for {name}"


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tier_is_seen_with_result_and_status(tier: Tier) -> None:
    """One without the other is not enough; the order does not matter."""
    rig = Rig()
    rig.heartbeats -= {tier}
    rig.run(3.0)
    assert rig.record.reason == f"waiting for {tier.key}"
    rig.heartbeats |= {tier}
    rig.run(1.0)
    assert rig.state is S.NOMINAL
    rig = Rig()
    rig.origin[tier] = Origin.LAST_FRAME
    rig.run(3.0)
    assert rig.record.reason == f"waiting for {tier.key}"


def test_tiers_that_are_not_expected() -> None:
    """A vehicle without VLMs drives in L3, and nobody waits for them or speaks of them."""
    rig = Rig(distilled_expected=False, full_expected=False)
    rig.run(2.0)
    assert rig.visited() == ["L3_PERCEPTION_ONLY"]
    assert rig.record.reason == "this vehicle has no VLM tier"
    assert rig.faults() == []
    verdicts = [c.verdicts for c in rig.commands if c.verdicts][-1]
    assert {v.source for v in verdicts} == {"detector", "odometry", "driver", "supervisor", "clock", "machine"}
    one = Rig(full_expected=False)
    one.run(2.0)
    assert one.visited() == ["NOMINAL"]
    one.alive -= {"distilled"}
    one.run(2.0)
    assert one.state is L3


def test_a_stronger_demand_wins_over_the_missing_vlm() -> None:
    """L3 by configuration does not hide L1."""
    rig = Rig(distilled_expected=False, full_expected=False)
    rig.run(2.0)
    rig.alive -= {"detector"}
    rig.run(0.2)
    assert rig.state is L1
    assert rig.record.reason.startswith("The detector is lost: no valid result for 0.1")


# ---- tier 1 ----


def test_loss_of_tier_one_is_a_stop_on_the_command_topic() -> None:
    """A1: at 20 m/s the command slows within 100 ms of the last result and stops the vehicle from 130 ms on."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.edit_result = lambda r: r
    last_ns = rig.now_ns - 50 * MS
    rig.run(0.3)
    slower = next(t for t, c in rig.constraints[1:] if c.speed_limit_mps < 20.0)
    stop = next((t, c) for t, c in rig.constraints if c.speed_limit_mps == 0.0)
    assert slower - last_ns <= 100 * MS
    assert stop[0] - last_ns <= 130 * MS
    first = next(c for t, c in rig.constraints if t == slower)
    assert first.state is L2 and first.deceleration_mps2 == 2.0 and first.speed_limit_mps == 8.3
    command = stop[1]
    assert command.state is L1 and command.deceleration_mps2 == 2.0
    assert command.hazard_lights and command.remote_notification and not command.pull_over
    assert rig.visited() == ["L2_TAKEOVER_REQUEST", "L1_MINIMAL_RISK_MANOEUVRE"]
    assert rig.faults() == ["detector.stalled", "detector.stale", "detector.lost"]


def test_the_manoeuvre_ends_in_the_minimal_risk_condition() -> None:
    """20 m/s at 2 m/s2: 10 s and one second of standing; then held, whatever comes back."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    assert rig.until(S.MRC) == pytest.approx(11.2, abs=0.3)
    assert rig.record.reason == "the vehicle stands"
    rig.alive |= {"detector"}
    rig.run(5.0)
    assert rig.state is S.MRC
    command = rig.constraint
    assert command.speed_limit_mps == 0.0 and command.hazard_lights and command.remote_notification
    assert not command.pull_over


def test_a_hiccup_of_tier_one_slows_down_and_goes_on() -> None:
    """A result that comes 60 ms late: L2 for a second, no manoeuvre."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.run(0.06)
    rig.send_result(Tier.DETECTOR)
    rig.alive |= {"detector"}
    rig.run(3.0)
    assert rig.visited() == ["L2_TAKEOVER_REQUEST", "NOMINAL"]
    assert rig.faults() == ["detector.stalled"]
    assert rig.record.previous is L2
    lowest = min(rig.limits_mps)
    assert lowest == 8.3


@pytest.mark.parametrize(
    ("change", "first", "then"),
    [
        ({"origin": Origin.DEFAULT}, "detector.no_content", "detector.blind"),
        ({"age_ms": math.nan}, "detector.invalid", "detector.lost"),
        ({"payload": SceneAdvice()}, "detector.invalid", "detector.lost"),
    ],
)
def test_a_detector_that_sends_rubbish(change: dict[str, object], first: str, then: str) -> None:
    """A6: sending is not seeing. L2 at once, the manoeuvre soon after."""
    rig = driving(20.0)
    rig.edit_result = lambda r: replace(r, **change) if r.tier is Tier.DETECTOR else r  # type: ignore[arg-type]
    rig.run(0.4)
    assert rig.state is L1
    assert {first, then} <= set(rig.faults())


def test_an_uncertain_detector_asks_the_driver() -> None:
    """Above 0.8 for half a second; the driver has 10 s; the remaining time is shown."""
    rig = driving(20.0)
    rig.uncertainty[Tier.DETECTOR] = 0.81
    rig.run(0.45)
    assert rig.state is S.NOMINAL
    rig.run(0.15)
    assert rig.state is L2
    assert rig.record.takeover_requested
    assert rig.record.takeover_remaining_s == pytest.approx(10.0, abs=0.15)
    assert rig.constraint.deceleration_mps2 == 2.0
    rig.run(5.0)
    assert rig.record.takeover_remaining_s == pytest.approx(5.0, abs=0.2)
    assert rig.until(L1) == pytest.approx(5.0, abs=0.2)
    assert rig.record.reason == "the driver did not take over"
    assert not rig.record.takeover_requested and rig.record.takeover_remaining_s == 0.0
    assert rig.constraint.pull_over
    rig.until(S.MRC)
    assert not rig.constraint.pull_over


def test_pulling_over_ends_with_the_sight_of_tier_one() -> None:
    """Nobody leaves the lane blind; seeing again does not bring it back."""
    rig = driving(20.0)
    rig.uncertainty[Tier.DETECTOR] = 1.0
    rig.until(L1)
    rig.tick()
    assert rig.constraint.pull_over
    rig.alive -= {"detector"}
    rig.run(0.3)
    assert rig.state is L1 and not rig.constraint.pull_over
    rig.alive |= {"detector"}
    rig.run(2.0)
    assert rig.state is L1 and not rig.constraint.pull_over


def test_nan_uncertainty_is_uncertain() -> None:
    """A6."""
    rig = driving(20.0)
    rig.uncertainty[Tier.DETECTOR] = math.nan
    rig.run(0.7)
    assert rig.state is L2
    assert rig.record.reason == "The detector is uncertain: nan (limit 0.80)."


def test_a_frozen_camera() -> None:
    """A5: the same stamp: L2 after 3, the manoeuvre after 10 results; the same picture counts while moving."""
    rig = driving(20.0)
    stamp_ns = rig.stamp_ns - 20 * MS
    rig.edit_result = lambda r: replace(r, source_stamp_ns=stamp_ns) if r.tier is Tier.DETECTOR else r
    rig.run(0.13)
    assert "detector.repeated_frame" not in rig.faults()
    rig = driving(20.0)
    for count in range(1, 13):
        rig.alive -= {"detector"}
        rig.core.on_result(make_result(stamp_ns=rig.stamp_ns - 20 * MS, sequence_counter=count), rig.now_ns, True, 77)
        rig.run(0.05)
        assert ("detector.repeated_frame" in rig.faults()) is (count >= 4)
        assert ("detector.frozen" in rig.faults()) is (count >= 11)
    assert rig.state is L1


def test_the_same_picture_at_standstill_is_no_fault() -> None:
    """A6, A18: no false error at standstill."""
    rig = Rig()
    rig.obeys = False
    rig.run(1.0)
    rig.alive -= {"detector"}
    rig.heartbeats -= {Tier.DETECTOR}
    for count in range(100):
        if count % 2 == 0:
            status = TierStatus(rig.stamp_ns, Tier.DETECTOR, TierState.ACTIVE, True)
            rig.core.on_status(status, rig.now_ns, True)
        rig.core.on_result(make_result(stamp_ns=rig.stamp_ns - 20 * MS, sequence_counter=count), rig.now_ns, True, 77)
        rig.run(0.05)
    assert [f for f in rig.faults() if f != "detector.sequence_gap"] == []


def test_late_results_are_reported_not_punished() -> None:
    """A3: a slow but legal tier stays in."""
    rig = driving(20.0)
    rig.edit_result = lambda r: (
        replace(r, source_stamp_ns=r.source_stamp_ns - 40 * MS) if r.tier is Tier.DETECTOR else r
    )
    rig.run(1.0)
    assert rig.faults() == ["detector.late"]
    assert rig.state is S.NOMINAL


@pytest.mark.parametrize(
    ("reason", "late"), [("timeout", True), ("timeout, too_old", True), ("no_frame", False), ("", False)]
)
@pytest.mark.parametrize("origin", [Origin.LAST_FRAME, Origin.DEFAULT])
def test_a_missed_deadline_is_late(origin: Origin, reason: str, late: bool) -> None:
    """A3: a busy tier 3 answers in time with what it had, and is reported late; tiers 1 and 2 are untouched."""
    rig = driving(20.0)
    rig.edit_result = lambda r: replace(r, origin=origin, reason=reason) if r.tier is Tier.FULL else r
    rig.run(2.5)
    assert ("full.late" in rig.faults()) is late
    assert not any(name.startswith(("detector", "distilled")) for name in rig.faults())
    assert rig.state is S.NOMINAL


def test_old_content_that_is_repeated_is_not_a_late_inference() -> None:
    """The age of a last frame says nothing of its inference; right after a clock step no age says anything."""
    rig = driving(20.0)
    rig.edit_result = lambda r: (
        replace(r, origin=Origin.LAST_FRAME, reason="no_frame", source_stamp_ns=r.source_stamp_ns - 40 * MS)
        if r.tier is Tier.DETECTOR
        else r
    )
    rig.run(0.5)
    assert "detector.late" not in rig.faults()
    rig.edit_result = lambda r: (
        replace(r, source_stamp_ns=r.source_stamp_ns - 40 * MS) if r.tier is Tier.DETECTOR else r
    )
    rig.clock_step_ns += SECOND
    rig.run(rig.config.clock_settle_s - 0.1)
    assert "detector.late" not in rig.faults()
    rig.run(0.5)
    assert "detector.late" in rig.faults()


def test_results_older_than_may_be_kept_are_no_results() -> None:
    """100 ms and 20 ms of transport."""
    for extra_ms, alive in [(99, True), (101, False)]:
        rig = driving(20.0)
        rig.edit_result = lambda r, ms=extra_ms: (  # type: ignore[misc]
            replace(r, source_stamp_ns=r.source_stamp_ns - ms * MS) if r.tier is Tier.DETECTOR else r
        )
        rig.run(1.0)
        assert (rig.state is not L1) is alive


def test_crc_mismatches() -> None:
    """Corrupt results and statuses are refused; two within a second are a fault."""
    rig = driving(20.0)
    rig.core.on_result(make_result(stamp_ns=rig.stamp_ns), rig.now_ns, False)
    rig.run(0.1)
    assert rig.faults() == []
    bad = TierStatus(rig.stamp_ns, Tier.DETECTOR, TierState.ERROR, False)
    rig.core.on_status(bad, rig.now_ns, False)
    rig.run(0.1)
    assert rig.faults() == ["detector.crc"]
    assert rig.state is L2
    rig.run(3.0)
    assert rig.state is S.NOMINAL


def test_lost_messages_are_reported() -> None:
    """Three gaps within a second, while results keep coming often enough."""
    rig = driving(20.0)
    rig.run(0.05)
    for _ in range(3):
        rig.counters[Tier.DETECTOR] += 5
        rig.run(0.2)
    assert rig.faults() == ["detector.sequence_gap"]
    assert rig.state is S.NOMINAL


def test_a_restarted_tier_makes_no_gap_storm() -> None:
    """Counter and stamps begin anew after a status that is not active, or whose counters fell."""
    rig = driving(20.0)
    faults = ("distilled.sequence_gap", "distilled.repeated_frame")
    for number in range(6):
        state = TierState.LOADED if number % 2 else TierState.ACTIVE
        frames = 0 if number % 2 == 0 else 50
        rig.core.on_status(TierStatus(0, Tier.DISTILLED, TierState.ACTIVE, True, frames_received=100), rig.now_ns, True)
        rig.core.on_status(TierStatus(0, Tier.DISTILLED, state, True, frames_received=100 + frames), rig.now_ns, True)
        if state is TierState.ACTIVE:
            rig.core.on_status(TierStatus(0, Tier.DISTILLED, state, True, frames_received=3), rig.now_ns, True)
        rig.counters[Tier.DISTILLED] = 0
        rig.run(0.4)
    assert not set(faults) & set(rig.faults())


def test_self_report_of_tier_one() -> None:
    """Not healthy: L2; the status says why, the state says that."""
    rig = driving(20.0)
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False, fault="golden frame")
    rig.run(0.2)
    assert rig.state is L2 and rig.faults() == ["detector.self_report"]
    assert rig.core._channels[Tier.DETECTOR].fault == "golden frame"


def test_heartbeat_of_tier_one() -> None:
    """Results alone are not enough: half a second without a status is L2."""
    rig = driving(20.0)
    rig.heartbeats -= {Tier.DETECTOR}
    rig.run(0.4)
    assert rig.state is S.NOMINAL
    rig.run(0.15)
    assert rig.state is L2 and rig.faults() == ["detector.heartbeat"]


# ---- tiers 2 and 3 ----


def test_one_lost_vlm_is_no_degradation_but_caution() -> None:
    """The other still speaks; the lost one counts as CAUTION."""
    rig = driving(30.0)
    rig.obeys = False
    rig.run(8.0)
    assert rig.constraint.speed_limit_mps == 36.1
    rig.alive -= {"full"}
    rig.run(8.0)
    assert rig.state is S.NOMINAL and set(rig.faults()) == {"full.stale", "full.heartbeat"}
    assert rig.constraint.speed_limit_mps == 25.0
    rig.alive |= {"full"}
    rig.run(6.0)
    assert rig.constraint.speed_limit_mps > 30.0


def test_a_late_vlm_is_not_a_lost_one() -> None:
    """What is only reported does not take a tier's voice away."""
    rig = driving(30.0)
    rig.obeys = False
    rig.edit_result = lambda r: replace(r, origin=Origin.LAST_FRAME, reason="timeout") if r.tier is Tier.FULL else r
    rig.alive -= {"distilled"}
    rig.driver = replace(rig.driver, present=False)
    rig.run(2.7)
    assert {"distilled.heartbeat", "full.late"} <= set(rig.record.active_faults)
    assert rig.state is S.NOMINAL and rig.core._lost == {"distilled"}
    rig.run(2.0)
    assert rig.state is L2
    rig.alive -= {"full"}
    rig.driver = replace(rig.driver, present=True)
    rig.run(3.0)
    assert rig.core._lost == {"distilled", "full"} and rig.state is L3


def test_both_vlms_lost_is_l3() -> None:
    """Perception only, 60 km/h, comfortable braking; back when one is."""
    rig = driving(20.0)
    rig.alive -= {"full", "distilled"}
    rig.run(1.5)
    assert rig.state is L3
    assert rig.record.reason.startswith("The distilled VLM is silent") or rig.record.reason.startswith("The distilled")
    assert rig.constraint.speed_limit_mps == 12.5 and rig.constraint.deceleration_mps2 == 1.5
    rig.alive |= {"distilled"}
    rig.run(3.0)
    assert rig.state is S.NOMINAL
    assert rig.record.reason == "all tiers are healthy"


@pytest.mark.parametrize("tier", [Tier.DISTILLED, Tier.FULL])
@pytest.mark.parametrize(
    ("advice", "limit"),
    [
        (Advice.PROCEED, 36.1),
        (Advice.CAUTION, 25.0),
        (Advice.SLOW_DOWN, 13.9),
        (Advice.PREPARE_TO_STOP, 5.6),
        (Advice.STOP, 0),
    ],
)
def test_advice_caps_the_speed(tier: Tier, advice: Advice, limit: float) -> None:
    """Each tier's advice alone."""
    rig = driving(36.1)
    rig.obeys = False
    rig.advice[tier] = advice
    rig.run(2.5)
    assert rig.constraint.speed_limit_mps == limit
    assert rig.state is S.NOMINAL


def test_advice_caps_in_l2_and_l3_too() -> None:
    """The minimum of all, in every automated state."""
    rig = driving(20.0)
    rig.alive -= {"full"}
    rig.run(7.0)
    rig.advice[Tier.DISTILLED] = Advice.PREPARE_TO_STOP
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    rig.run(0.5)
    assert rig.state is L2 and rig.constraint.speed_limit_mps == 5.6


def test_the_cautious_policy_of_a_vlm_is_obeyed_before_it_is_a_fault() -> None:
    """One DEFAULT answer of the distilled tier: its advice counts."""
    rig = driving(36.1)
    rig.obeys = False
    rig.run(0.2)
    rig.alive -= {"distilled"}
    default = make_result(
        Tier.DISTILLED, 0, origin=Origin.DEFAULT, payload=SceneAdvice(advice=Advice.SLOW_DOWN), uncertainty=1.0,
        sequence_counter=rig.counters[Tier.DISTILLED] + 1,
    )  # fmt: skip
    rig.core.on_result(default, rig.now_ns, True)
    rig.run(0.1)
    assert rig.constraint.speed_limit_mps == 13.9
    assert rig.faults() == []


def test_a_result_of_a_tier_nobody_expects_is_ignored() -> None:
    """Neither its advice nor its state."""
    rig = Rig(full_expected=False)
    rig.run(1.0)
    rig.advice[Tier.FULL] = Advice.STOP
    rig.status[Tier.FULL] = replace(rig.status[Tier.FULL], healthy=False)
    rig.run(4.0)
    assert rig.state is S.NOMINAL and rig.constraint.speed_limit_mps > 0


def test_budgets_can_be_given() -> None:
    """The timing contract is an argument."""
    slow = {**BUDGETS, Tier.DETECTOR: Budget(0.5, 1.0, 0.05)}
    core = SupervisorCore(SupervisorConfig(), table(), budgets=slow)
    channel = core._channels[Tier.DETECTOR]
    channel.take_result(make_result(), 0, 0.51, True, True, None, False)
    assert channel.metrics()["late_n"](0) == 0
    channel.take_result(make_result(), 0, 1.01, True, True, None, False)
    assert channel.metrics()["gap_s"](SECOND) == 1.0
    channel.take_result(make_result(), SECOND, 1.03, True, True, None, False)
    assert channel.metrics()["gap_s"](SECOND) == 1.0


# ---- vehicle and driver ----


def test_odometry_lost() -> None:
    """The driver is asked; unknown speed is not standstill, so time runs."""
    rig = driving(20.0)
    rig.alive -= {"odometry"}
    rig.run(0.4)
    assert rig.state is L2 and rig.faults() == ["odometry.lost"]
    assert rig.record.takeover_requested
    assert rig.until(L1) == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize(("bad", "fault"), [(math.nan, "odometry.invalid"), (60.0, "odometry.jump")])
def test_odometry_unusable(bad: float, fault: str) -> None:
    """A6, A10: two impossible speeds ask the driver."""
    rig = driving(20.0)
    rig.alive -= {"odometry"}
    for _ in range(2):
        rig.core.on_odometry(Odometry(rig.stamp_ns, bad), rig.now_ns)
        rig.run(0.02)
    assert rig.state is L2 and rig.faults() == [fault]


@pytest.mark.parametrize("age_s", [2.0, -0.1])
def test_messages_of_another_time_are_no_news(age_s: float) -> None:
    """A10, A12: old or future speeds and overrides are not believed."""
    rig = driving(20.0)
    rig.alive -= {"odometry", "driver"}
    for _ in range(32):
        stamp_ns = rig.stamp_ns - round(age_s * SECOND)
        rig.core.on_odometry(Odometry(stamp_ns, 20.0), rig.now_ns)
        rig.core.on_driver(DriverState(stamp_ns, override_active=True), rig.now_ns, True)
        rig.tick()
    assert rig.faults() == ["odometry.lost"] and rig.state is L2


def test_driver_lost_absent_inattentive() -> None:
    """L2, L2, only a report."""
    rig = driving(20.0)
    rig.alive -= {"driver"}
    rig.run(1.2)
    assert rig.state is L2 and rig.faults() == ["driver.lost"]
    rig = driving(20.0)
    rig.driver = replace(rig.driver, present=False)
    rig.run(2.9)
    assert rig.state is S.NOMINAL
    rig.run(0.3)
    assert rig.state is L2 and rig.faults() == ["driver.absent"]
    rig = driving(20.0)
    rig.driver = replace(rig.driver, attentive=False)
    rig.run(5.3)
    assert rig.state is S.NOMINAL and rig.faults() == ["driver.inattentive"]


def test_driver_messages_with_a_wrong_crc() -> None:
    """Refused, and a fault after three."""
    rig = driving(20.0)
    for count in range(3):
        assert rig.faults() == []
        rig.core.on_driver(DriverState(rig.stamp_ns, override_active=True), rig.now_ns, False)
        rig.run(0.05 + count / 100)
    assert rig.faults() == ["driver.crc"] and rig.state is L2


@pytest.mark.parametrize("change", [{"override_active": True}, {"automation_engaged": False}])
@pytest.mark.parametrize("stage", ["nominal", "l3", "l2", "l1", "mrc", "initialising"])
def test_the_driver_may_take_over_from_any_state(stage: str, change: dict[str, bool]) -> None:
    """At once, with nothing of the manoeuvre left."""
    rig = driving(20.0) if stage != "initialising" else Rig()
    if stage == "initialising":
        rig.alive -= {"detector"}
        rig.run(1.0)
    elif stage == "l3":
        rig.alive -= {"distilled", "full"}
        rig.until(L3)
    elif stage == "l2":
        rig.uncertainty[Tier.DETECTOR] = 1.0
        rig.until(L2)
    elif stage in {"l1", "mrc"}:
        rig.alive -= {"detector"}
        rig.until(L1 if stage == "l1" else S.MRC)
    rig.driver = replace(rig.driver, **change)
    rig.run(0.15)
    assert rig.state is S.MANUAL
    assert rig.record.reason == "the driver drives"
    command = rig.constraint
    assert command.speed_limit_mps == 36.1 and command.deceleration_mps2 == 1.5
    assert not (command.hazard_lights or command.pull_over or command.remote_notification)
    assert not rig.record.takeover_requested
    assert rig.core.latched is (stage == "mrc")


def test_handing_back() -> None:
    """A second of handing over, everything healthy; the limit goes on from the present speed."""
    rig = driving(20.0)
    rig.obeys = False
    rig.driver = replace(rig.driver, override_active=True)
    rig.run(1.0)
    assert rig.constraint.speed_limit_mps == 36.1
    rig.driver = replace(rig.driver, override_active=False)
    rig.run(0.95)
    assert rig.state is S.MANUAL
    rig.run(0.2)
    assert rig.state is S.NOMINAL
    assert rig.record.reason == "the driver handed over"
    assert 20.0 < rig.constraint.speed_limit_mps < 20.3


def test_handing_back_to_a_sick_vehicle_is_refused() -> None:
    """MANUAL stays until tier 1 is well again."""
    rig = driving(20.0)
    rig.driver = replace(rig.driver, override_active=True)
    rig.run(0.5)
    rig.alive -= {"detector"}
    rig.driver = replace(rig.driver, override_active=False)
    rig.run(5.0)
    assert rig.state is S.MANUAL
    rig.alive |= {"detector"}
    rig.run(0.9)
    assert rig.state is S.MANUAL
    rig.run(0.3)
    assert rig.state is S.NOMINAL


def test_the_hold_timer_counts_in_automated_mode_only() -> None:
    """A13: minutes of driving by hand with the fault present do not use up the driver's time."""
    rig = driving(20.0, takeover_wait_s=3.0)
    rig.uncertainty[Tier.DETECTOR] = 1.0
    rig.until(L2)
    rig.run(2.0)
    rig.driver = replace(rig.driver, override_active=True)
    rig.run(6.0)
    assert rig.state is S.MANUAL
    rig.uncertainty[Tier.DETECTOR] = 0.1
    rig.driver = replace(rig.driver, override_active=False)
    rig.run(3.0)
    assert rig.state is S.NOMINAL
    rig.obeys, rig.speed_mps = False, 20.0
    rig.uncertainty[Tier.DETECTOR] = 1.0
    rig.until(L2)
    assert rig.until(L1) == pytest.approx(3.0, abs=0.1)


def test_no_takeover_alert_at_standstill() -> None:
    """A18: the vehicle is held, nobody is alarmed, no time runs, and it goes on by itself."""
    rig = Rig()
    rig.advice = dict.fromkeys(rig.advice, Advice.STOP)
    rig.run(2.0)
    rig.uncertainty[Tier.DETECTOR] = 1.0
    rig.run(1.0)
    rig.advice = dict.fromkeys(rig.advice, Advice.PROCEED)
    rig.run(12.0)
    assert not any(record.takeover_requested for _, record in rig.states)
    assert rig.state is L2 and rig.constraint.speed_limit_mps == 0.0
    assert rig.record.takeover_remaining_s == 0.0
    rig.uncertainty[Tier.DETECTOR] = 0.1
    rig.run(3.0)
    assert rig.state is S.NOMINAL and rig.constraint.speed_limit_mps > 0.0


def test_the_alert_is_published_at_once_when_the_vehicle_moves() -> None:
    """The state record follows the alert, not only the state."""
    rig = Rig()
    rig.obeys = False
    rig.run(2.0)
    rig.uncertainty[Tier.DETECTOR] = 1.0
    rig.run(1.0)
    assert rig.state is L2 and not rig.record.takeover_requested
    rig.speed_mps = 0.3
    while rig.core._odometry.standstill(rig.now_ns - 10 * MS):
        commands = rig.tick()
    assert commands.state is not None and commands.state.takeover_requested
    assert commands.transitions == ()


# ---- requests ----


def test_takeover_by_service() -> None:
    """Confirmed once; the driver drives until it is withdrawn or the vehicle's own message takes over."""
    rig = driving(20.0)
    assert rig.core.request_takeover(rig.now_ns) == (True, "Takeover accepted: the driver drives.")
    assert rig.core.request_takeover(rig.now_ns) == (False, "Takeover refused: the driver drives already.")
    commands = rig.tick()
    assert rig.state is S.MANUAL
    assert commands.transitions[0] == Transition(
        commands.transitions[0].stamp_ns, "request", "takeover", "", "accepted", "the driver confirmed the takeover"
    )
    rig.run(5.0)
    assert rig.state is S.MANUAL
    assert rig.core.request_takeover(rig.now_ns) == (False, "Takeover refused: the driver drives already.")
    rig.driver = replace(rig.driver, override_active=True)
    rig.run(0.5)
    rig.driver = replace(rig.driver, override_active=False)
    rig.run(1.3)
    assert rig.state is S.NOMINAL


@pytest.mark.parametrize("case", ["absent", "silent"])
def test_takeover_by_nobody(case: str) -> None:
    """Somebody must be known to sit there."""
    rig = driving(20.0)
    if case == "absent":
        rig.driver = replace(rig.driver, present=False)
    else:
        rig.alive -= {"driver"}
    rig.run(1.2)
    assert rig.core.request_takeover(rig.now_ns) == (
        False,
        "Takeover refused: nobody is known to sit in the driver's seat.",
    )
    rig.tick()
    assert rig.state is not S.MANUAL


def test_a_confirmed_takeover_is_withdrawn_by_a_reset_at_standstill() -> None:
    """Then the vehicle drives again, if the driver has handed over."""
    rig = driving(20.0)
    rig.core.request_takeover(rig.now_ns)
    rig.run(1.0)
    assert rig.core.request_reset(rig.now_ns) == (False, "Reset refused: the vehicle is not known to stand still.")
    rig.obeys, rig.speed_mps = False, 0.0
    rig.run(4.0)
    assert rig.core.request_reset(rig.now_ns) == (True, "Reset accepted.")
    rig.tick()
    assert rig.state is S.NOMINAL


def test_reset() -> None:
    """From MRC, at standstill, healthy; refused with the reason otherwise."""
    rig = driving(20.0)
    assert rig.core.request_reset(rig.now_ns) == (False, "Reset refused: there is nothing to reset in NOMINAL.")
    rig.alive -= {"detector"}
    rig.until(L1)
    assert rig.core.request_reset(rig.now_ns) == (
        False,
        "Reset refused: there is nothing to reset in L1_MINIMAL_RISK_MANOEUVRE.",
    )
    rig.until(S.MRC)
    accepted, sentence = rig.core.request_reset(rig.now_ns)
    assert not accepted
    assert sentence.startswith(
        "Reset refused: detector.lost is still there: The detector is lost: no valid result for 0.1"
    )
    rig.alive |= {"detector"}
    rig.run(0.5)
    assert rig.core.request_reset(rig.now_ns)[0] is False
    rig.run(1.0)
    assert rig.core.request_reset(rig.now_ns) == (True, "Reset accepted.")
    commands = rig.tick()
    assert rig.state is S.NOMINAL and rig.record.reason == "reset"
    assert [(t.kind, t.name, t.after, t.reason) for t in commands.transitions] == [
        ("request", "reset", "accepted", "an operator asked for it"),
        ("fault", "detector.lost", "inactive", ""),
        ("state", "state", "NOMINAL", "reset"),
    ]
    assert not rig.constraint.hazard_lights
    rig.run(3.0)
    assert rig.constraint.speed_limit_mps > 1.0
    assert rig.state is S.NOMINAL


def test_a_reset_waits_for_every_fault_that_would_ask_the_driver() -> None:
    """Not only for the one that caused the manoeuvre."""
    rig = driving(2.0)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    rig.driver = replace(rig.driver, attentive=False)
    rig.alive -= {"distilled", "full"}
    rig.run(6.0)
    assert rig.core.request_reset(rig.now_ns) == (
        False,
        "Reset refused: detector.self_report is still there: The detector reports that it is not healthy.",
    )
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=True)
    rig.run(2.0)
    assert {"driver.inattentive", "full.heartbeat"} <= set(rig.record.active_faults)
    assert rig.core.request_reset(rig.now_ns)[0]
    rig.tick()
    assert rig.state is L3


def test_reset_needs_known_standstill() -> None:
    """A10: a vehicle of unknown speed is not reset."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.alive -= {"odometry"}
    rig.run(2.0)
    assert rig.core.request_reset(rig.now_ns) == (False, "Reset refused: the vehicle is not known to stand still.")


def test_a_reset_is_used_once() -> None:
    """A reset given in MANUAL is not kept for the next condition."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.driver = replace(rig.driver, override_active=True)
    rig.run(2.0)
    assert rig.state is S.MANUAL and rig.core.latched
    rig.driver = replace(rig.driver, override_active=False)
    rig.run(3.0)
    assert rig.state is S.MANUAL
    rig.obeys, rig.speed_mps = False, 0.0
    rig.run(5.0)
    assert rig.core.request_reset(rig.now_ns) == (True, "Reset accepted.")
    rig.tick()
    assert rig.state is S.NOMINAL and not rig.core.latched
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.run(5.0)
    assert rig.state is S.MRC


def test_an_accepted_reset_that_meets_a_new_fault_has_no_effect() -> None:
    """What changed in between counts."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.run(2.0)
    assert rig.core.request_reset(rig.now_ns)[0]
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    rig.core.on_status(replace(rig.status[Tier.DETECTOR], stamp_ns=rig.stamp_ns), rig.now_ns, True)
    rig.tick()
    assert rig.state is S.MRC
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=True)
    rig.run(2.0)
    assert rig.state is S.MRC


def test_a_restart_during_the_manoeuvre_goes_on_with_it() -> None:
    """A latch outlives the process if the node tells; a reset still needs every required input."""
    rig = Rig(latched=True)
    assert rig.core.latched and rig.core.machine == MachineState(
        L1, "restarted during a manoeuvre that is not known to be finished", 0, False
    )
    rig.alive -= {"full"}
    rig.obeys, rig.speed_mps = False, 3.0
    rig.run(1.0)
    assert rig.constraint.hazard_lights and rig.constraint.speed_limit_mps == 0.0 and not rig.constraint.pull_over
    assert rig.record.reason == "restarted during a manoeuvre that is not known to be finished"
    rig.obeys = True
    rig.until(S.MRC)
    assert rig.core.request_reset(rig.now_ns) == (False, "Reset refused: waiting for full.")
    rig.alive |= {"full"}
    rig.run(2.0)
    assert rig.core.request_reset(rig.now_ns)[0]
    rig.tick()
    assert rig.state is S.NOMINAL and not rig.core.latched


# ---- time ----


def test_a_stalled_supervisor_does_not_call_the_tiers_lost() -> None:
    """A late tick takes in what waited, judges one period later, and reports itself."""
    rig = driving(20.0)
    rig.tick(sleep_ms=200)
    rig.ticks += 19
    rig.run(0.5)
    assert rig.visited() == []
    assert rig.faults() == ["supervisor.loop"]
    assert rig.transitions[0].reason == "The supervisor's own tick came late: 0.20 s after the previous one."


def test_a_stalled_supervisor_still_finds_a_lost_tier() -> None:
    """60 ms later at the latest."""
    rig = driving(20.0)
    rig.tick(sleep_ms=200)
    rig.alive -= {"detector"}
    resumed_ns = rig.now_ns
    rig.until(L1)
    assert rig.now_ns - 10 * MS - resumed_ns <= 60 * MS


def test_a_supervisor_that_cannot_keep_up_says_so() -> None:
    """Five late ticks within a second: the driver is asked."""
    rig = driving(20.0)
    for _ in range(12):
        rig.tick(sleep_ms=60)
        rig.ticks = 10 * (rig.ticks // 10) + 9
    assert "supervisor.overloaded" in rig.faults()
    assert rig.state in {L2, L1}


@pytest.mark.parametrize("step_s", [1.0, -1.0, 3600.0])
def test_a_clock_step_is_reported_and_nothing_else(step_s: float) -> None:
    """A12: deadlines are monotonic, ages are not judged while they mean nothing."""
    rig = driving(20.0)
    rig.run(0.3)
    rig.clock_step_ns = round(step_s * SECOND)
    rig.run(5.0)
    assert rig.faults() == ["clock.step"]
    assert rig.visited() == []
    assert rig.transitions[0].reason == f"The clock of stamps was stepped by {abs(step_s):.2f} s."


def test_what_tiers_report_of_a_clock_step_is_excused_for_a_second() -> None:
    """A12: the step is seen here too; the same report without a step, or long after it, is a fault."""
    report = replace(TierStatus(0, Tier.DETECTOR, TierState.ACTIVE, False), fault="clock_step; future_stamp")
    rig = driving(20.0)
    rig.clock_step_ns = -SECOND
    rig.status[Tier.DETECTOR] = report
    rig.run(0.9)
    assert rig.visited() == [] and rig.faults() == ["clock.step"]
    rig.run(0.3)
    assert rig.state is L2 and rig.faults() == ["clock.step", "detector.self_report"]


def test_a_frozen_picture_is_excused_at_standstill() -> None:
    """A6: reported by the tier itself; moving, it is a fault."""
    rig = Rig()
    rig.obeys = False
    rig.run(2.0)
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False, fault="frozen_picture")
    rig.run(2.0)
    assert rig.state is S.NOMINAL and rig.faults() == []
    rig.speed_mps = 0.4
    rig.run(0.2)
    assert rig.state is L2 and rig.faults() == ["detector.self_report"]


def test_future_stamps_are_refused() -> None:
    """A12: named as such."""
    rig = driving(20.0)
    rig.edit_result = lambda r: (
        replace(r, source_stamp_ns=r.source_stamp_ns + 40 * MS) if r.tier is Tier.DETECTOR else r
    )
    rig.run(0.3)
    assert "detector.future_frame" in rig.faults() and rig.state is L1


@pytest.mark.parametrize(
    ("tier", "results", "state"), [(Tier.DETECTOR, 3, S.L2_TAKEOVER_REQUEST), (Tier.DISTILLED, 2, S.NOMINAL)]
)
def test_another_model_in_a_tiers_place_is_not_relied_upon(tier: Tier, results: int, state: S) -> None:
    """Each message is sound; the engine is not the one that passed the self-test."""
    rig = driving(20.0)
    came: list[TierResult] = []

    def edit(result: TierResult) -> TierResult:
        if result.tier is not tier:
            return result
        came.append(result)
        return replace(result, engine_id="another")

    rig.edit_result = edit
    while len(came) < results - 1:
        rig.tick()
    rig.run(0.03)
    assert rig.faults() == []
    while len(came) < results:
        rig.tick()
    rig.run(0.03)
    assert rig.faults() == [f"{tier.key}.foreign"] and rig.state is state


def test_time_does_not_run_backwards() -> None:
    """An older reading of the monotonic clock is treated as no time at all."""
    rig = driving(20.0)
    limit = rig.constraint.speed_limit_mps
    rig.core.step(rig.now_ns - SECOND, rig.stamp_ns - SECOND)
    assert rig.core._limit_mps >= limit
    rig.run(1.0)
    assert rig.visited() == []


# ---- flapping ----


@pytest.mark.parametrize("period_ms", [200, 1000])
def test_a_flapping_fault_does_not_make_the_vehicle_oscillate(period_ms: int) -> None:
    """A8: 1 to 5 Hz: one degradation, the rest is suppressed and counted."""
    rig = driving(20.0)
    for _ in range(round(6000 / period_ms)):
        rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
        rig.run(period_ms / 2000)
        rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=True)
        rig.run(period_ms / 2000)
    assert rig.visited() == ["L2_TAKEOVER_REQUEST"]
    diagnostics = [c.diagnostics for c in rig.commands if c.diagnostics][-1]
    values = dict(next(d for d in diagnostics if d.name == "triptych/detector").values)
    assert int(values["detector.self_report"].split("suppressed=")[1]) >= 3


def test_what_was_suppressed_reaches_the_log_once_a_second() -> None:
    """A8: a doubt that never lasts changes nothing, and is told all the same; silence follows when it is over."""
    rig = driving(20.0)
    for _ in range(20):
        for uncertainty in (0.95, 0.1):
            rig.uncertainty[Tier.DETECTOR] = uncertainty
            rig.run(0.1 if uncertainty > 0.5 else 0.3)
    told = [t for t in rig.transitions if t.kind == "suppressed"]
    assert rig.visited() == [] and rig.faults() == []
    assert {t.name for t in told} == {"detector.uncertain"}
    assert {(t.before, t.after) for t in told} == {("inactive", "inactive")}
    assert 7 <= len(told) <= 9  # 8 s, one line in each
    assert sum(int(t.reason.split()[0]) for t in told) == int(told[-1].reason.split(", ")[1].split()[0])
    rig.run(1.5)
    rig.forget()
    rig.run(3.0)
    assert rig.transitions == []


# ---- what goes out ----


def test_constraint_state_verdicts_and_diagnostics_are_repeated() -> None:
    """20 Hz, 2 Hz, 1 Hz, 1 Hz; nothing in between; protected and counted."""
    rig = driving(20.0)
    rig.obeys = False
    rig.run(10.0)
    assert len(rig.constraints) - 1 == 200
    assert len(rig.states) - 1 == 20
    assert sum(c.verdicts is not None for c in rig.commands) == 10
    assert sum(c.diagnostics is not None for c in rig.commands) == 10
    assert sum(c is NOTHING for c in rig.commands) >= 700
    for records in (rig.constraints, rig.states):
        counters = [record.sequence_counter for _, record in records]
        assert all((b - a) % 256 == 1 for a, b in pairwise(counters))
        assert all(crc_ok(record) for _, record in records)
    assert Commands() == NOTHING


def test_the_first_tick_says_everything() -> None:
    """Whoever listens need not wait; counters begin at 0."""
    rig = Rig(safety_core_expected=True, lidar_expected=True)
    rig.alive.clear()
    commands = rig.tick()
    assert commands.constraint is not None and commands.constraint.sequence_counter == 0
    assert commands.state is not None and commands.state.sequence_counter == 0
    assert commands.state.since_ns == commands.state.stamp_ns == rig.stamp_ns - 10 * MS
    assert commands.state.state is commands.state.previous is S.INITIALISING
    assert commands.verdicts is not None and len(commands.verdicts) == len(table())
    assert commands.diagnostics is not None and commands.transitions == ()


def test_changes_are_published_at_once() -> None:
    """Not at the next period."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    for _ in range(30):
        before = rig.constraint
        commands = rig.tick()
        if commands.transitions:
            assert commands.state is not None and commands.verdicts is not None
            moved = any(t.kind == "state" for t in commands.transitions)
            assert moved is (commands.constraint is not None and commands.constraint.state is not before.state)
            # What a fault does not change is not sent again at once; nothing stricter may be held back.
            assert rig.constraint.state is rig.state and rig.constraint.speed_limit_mps <= rig.core._limit_mps
    rig = driving(20.0)
    rig.core.on_result(
        make_result(
            Tier.DISTILLED, rig.stamp_ns - 150 * MS, payload=SceneAdvice(advice=Advice.STOP),
            sequence_counter=rig.counters[Tier.DISTILLED] + 1,
        ),
        rig.now_ns, True,
    )  # fmt: skip
    rig.alive -= {"distilled"}
    assert rig.tick().constraint is not None
    assert rig.constraint.speed_limit_mps == 0.0


def test_a_change_starts_the_period_anew() -> None:
    """50 ms from the last one that was sent."""
    rig = driving(20.0)
    rig.obeys = False
    rig.run(0.12)
    rig.core.on_driver(DriverState(rig.stamp_ns, override_active=True), rig.now_ns, True)
    rig.alive -= {"driver"}
    changed_ns = rig.now_ns
    rig.run(0.1)
    after = [t - changed_ns for t, _ in rig.constraints if t >= changed_ns]
    assert after[:2] == [0, 50 * MS]


def test_the_fault_that_counts_is_the_reason() -> None:
    """The strongest, and of equals the first of the table; the list names all, at most 16."""
    rig = driving(20.0)
    rig.heartbeats -= {Tier.DETECTOR}
    rig.driver = replace(rig.driver, attentive=False)
    rig.run(5.5)
    assert rig.record.reason.startswith("The detector's heartbeat stopped 0.5")
    assert rig.record.active_faults == ("detector.heartbeat", "driver.inattentive")
    many = (*(r for r in table() if r.id == "detector.lost"),)
    many += tuple(row(id=f"supervisor.n{n}", source="supervisor", metric="loop_gap_s", comparison=">=", threshold=0.0,
                      reaction="log") for n in range(20))  # fmt: skip
    full = Rig(faults=many)
    full.run(0.2)
    assert len(full.record.active_faults) == 16
    assert full.state is S.NOMINAL


def test_a_long_reason_is_cut() -> None:
    """The message holds 160 characters."""
    long = row(id="supervisor.long", source="supervisor", metric="loop_gap_s", comparison=">=", threshold=0.0,
               sentence="{value:>200.1f}")  # fmt: skip
    rig = Rig(faults=(*(r for r in table() if r.id == "detector.lost"), long))
    rig.run(0.1)
    assert rig.record.reason == " " * 160


def test_verdicts_and_transitions_of_a_fault() -> None:
    """Coming with its sentence, going without."""
    rig = driving(20.0)
    rig.status[Tier.FULL] = replace(rig.status[Tier.FULL], healthy=False)
    rig.run(0.15)
    rig.status[Tier.FULL] = replace(rig.status[Tier.FULL], healthy=True)
    rig.run(3.0)
    came, went = (t for t in rig.transitions if t.kind == "fault")
    sentence = "The full VLM reports that it is not healthy."
    assert (came.name, came.before, came.after, came.reason) == ("full.self_report", "inactive", "active", sentence)
    assert (went.name, went.before, went.after, went.reason) == ("full.self_report", "active", "inactive", "")
    verdicts = [{v.fault_id: v for v in c.verdicts} for c in rig.commands if c.verdicts]
    active = [v["full.self_report"] for v in verdicts if v["full.self_report"].active]
    assert active and active[0].text == sentence and active[0].level is VerdictLevel.FAULT
    assert verdicts[-1]["full.self_report"].level is VerdictLevel.OK
    assert came.stamp_ns < went.stamp_ns


def test_diagnostics() -> None:
    """One status per source: ok, warning, error, or stale while something is unknown (the full VLM's consistency
    needs five answers)."""
    rig = driving(20.0, safety_core_expected=True, lidar_expected=True)
    rig.run(9.0)

    def now() -> dict[str, tuple[int, str]]:
        return {d.name: (d.level, d.message) for d in [c.diagnostics for c in rig.commands if c.diagnostics][-1]}

    assert now() == {f"triptych/{source}": (0, "ok") for source in METRICS}
    rig.heartbeats -= {Tier.DETECTOR}
    rig.driver = replace(rig.driver, attentive=False)
    rig.status[Tier.FULL] = replace(rig.status[Tier.FULL], healthy=False)
    rig.run(7.0)
    assert now()["triptych/detector"][0] == 2
    assert now()["triptych/detector"][1].startswith("The detector's heartbeat stopped")
    assert now()["triptych/driver"] == (1, "The driver does not look at the road.")
    assert now()["triptych/full"] == (1, "The full VLM reports that it is not healthy.")
    assert now()["triptych/clock"] == (0, "ok")


def test_diagnostics_at_the_start() -> None:
    """Unknown is not ok, and the values say so."""
    rig = Rig()
    rig.alive.clear()
    diagnostics = {d.name: d for d in rig.tick().diagnostics or ()}
    odometry = diagnostics["triptych/odometry"]
    assert (odometry.level, odometry.message) == (3, "unknown: odometry.never_received, odometry.lost")
    assert odometry.values == (
        ("odometry.never_received", "UNKNOWN inactive value=? limit=0 suppressed=0"),
        ("odometry.lost", "UNKNOWN inactive value=? limit=0.3 suppressed=0"),
        ("odometry.invalid", "OK inactive value=0 limit=2 suppressed=0"),
        ("odometry.jump", "OK inactive value=0 limit=2 suppressed=0"),
    )
    assert diagnostics["triptych/supervisor"].level == 0
    rig.alive = {"odometry"}
    rig.obeys = False
    rig.run(1.9)
    rig.speed_mps = math.nan
    rig.run(1.2)
    last = {d.name: d for d in [c.diagnostics for c in rig.commands if c.diagnostics][-1]}["triptych/odometry"]
    assert last.level == 2
    text = dict(last.values)["odometry.lost"]
    assert text.startswith("FAULT active value=") and text.endswith("limit=0.3 suppressed=0")


def test_every_metric_of_the_table_exists() -> None:
    """What rows may refer to and what the core offers are the same."""
    core = SupervisorCore(SupervisorConfig(lidar_expected=True), table())
    assert {source: set(metrics) for source, metrics in core._metrics().items()} == {
        source: set(metrics) for source, metrics in METRICS.items()
    }


@cache
def driven() -> Rig:
    """A rig after as long a drive as the slowest metric needs."""
    return driving(20.0, safety_core_expected=True, lidar_expected=True).run(9.0)


@pytest.mark.parametrize(("source", "metric"), [(s, m) for s, metrics in METRICS.items() for m in sorted(metrics)])
def test_every_metric_is_a_number_while_driving(source: str, metric: str) -> None:
    """With all inputs there, nothing is unknown, and everything is good."""
    rig = driven()
    value = rig.core._metrics()[source][metric](rig.now_ns)
    assert value is not None and 0.0 <= value <= max(LATENCY_MS.values())


# ---- the last hop ----


def test_a_vehicle_without_its_last_hop_is_not_let_go() -> None:
    rig = Rig(safety_core_expected=True)
    rig.alive -= {"safety_core"}
    rig.run(2.0)
    assert rig.state is S.INITIALISING and rig.record.reason == "waiting for safety_core"
    rig.run(30.0)
    assert "safety_core.never_received" in rig.faults()
    rig.alive |= {"safety_core"}
    rig.until(S.NOMINAL)


def test_a_lost_safety_core_ends_in_the_manoeuvre() -> None:
    rig = driving(20.0, safety_core_expected=True)
    rig.alive -= {"safety_core"}
    assert 0.25 <= rig.until(S.L1_MINIMAL_RISK_MANOEUVRE, 1.0) <= 0.33
    assert rig.faults() == ["safety_core.lost"]
    rig.alive |= {"safety_core"}
    rig.until(S.MRC)


def test_commands_with_a_wrong_crc_are_no_sign_of_life() -> None:
    rig = driving(20.0, safety_core_expected=True)
    rig.alive -= {"safety_core"}
    for _ in range(50):
        rig.core.on_command(rig.constraint, rig.now_ns, False)
        rig.tick()
    assert {"safety_core.lost", "safety_core.crc"} <= set(rig.faults())


def test_a_stop_by_the_safety_core_is_taken_over_and_held_until_both_are_reset() -> None:
    """It stops the vehicle on its own: the supervisor must not believe that the drive goes on."""
    rig = driving(20.0, safety_core_expected=True)
    stop = safe_default(0, 3.0, "safety core: the vehicle does not keep its speed limit")
    rig.edit_command = lambda command: stop
    assert rig.until(S.L1_MINIMAL_RISK_MANOEUVRE, 1.0) <= 0.25
    assert rig.faults() == ["safety_core.own_stop"]
    rig.until(S.MRC)
    rig.run(3.0)
    accepted, why = rig.core.request_reset(rig.now_ns)
    assert not accepted and "safety_core.own_stop is still there" in why
    rig.edit_command = lambda command: command
    rig.run(2.0)
    assert rig.state is S.MRC
    assert rig.core.request_reset(rig.now_ns)[0]
    rig.until(S.NOMINAL, 5.0)


def test_the_supervisors_own_manoeuvre_is_not_taken_for_one_of_the_safety_core() -> None:
    """Neither when it begins, nor when the last command of it comes after the reset."""
    rig = driving(20.0, safety_core_expected=True)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    rig.alive |= {"detector"}
    rig.run(3.0)
    assert rig.core.request_reset(rig.now_ns)[0]
    rig.run(3.0)
    assert rig.state is S.NOMINAL and not [f for f in rig.faults() if f.startswith("safety_core")]


def test_messages_of_the_last_tick_are_taken_in_order() -> None:
    """An override and its end within one tick: the last one counts."""
    rig = driving(20.0)
    rig.alive -= {"driver"}
    rig.core.on_driver(DriverState(rig.stamp_ns - 2, override_active=True), rig.now_ns, True)
    rig.core.on_driver(DriverState(rig.stamp_ns - 1, override_active=False), rig.now_ns, True)
    rig.tick()
    assert rig.state is S.NOMINAL


def test_the_inbox_is_bounded() -> None:
    """A supervisor that does not tick keeps the newest messages only."""
    core = SupervisorCore(SupervisorConfig(), table())
    for n in range(5000):
        core.on_result(make_result(payload=Detections(0, 0)), n, True)
    assert len(core._inbox) == 4096


@pytest.mark.skipif("MUTANT_UNDER_TEST" in os.environ, reason="mutated code is instrumented")
def test_a_tick_costs_little() -> None:
    """A17: at 100 Hz, 200 us are 2 % of a core; the median is about 20 us."""
    rig = driving(20.0)
    rig.obeys = False
    costs_ns: list[int] = []
    for _ in range(1000):
        rig.tick()
        before_ns = time.thread_time_ns()
        rig.core.step(rig.now_ns, rig.stamp_ns)
        costs_ns.append(time.thread_time_ns() - before_ns)
    assert sorted(costs_ns)[500] < 200_000


def test_counters_go_round_without_a_repetition() -> None:
    """One more than the last, 0 after 255."""
    counters = [c.sequence_counter for _, c in driving(20.0).run(15.0).constraints]
    assert len(counters) > 257
    assert all((b - a) % 256 == 1 for a, b in pairwise(counters))


@pytest.mark.parametrize(("verdict_s", "diagnostics_s"), [(1.0, 10.0), (5.0, 1.0)])
def test_what_is_reported_is_what_holds_now(verdict_s: float, diagnostics_s: float) -> None:
    """A count that has left its window is reported as 0, though nobody has spoken since."""
    rig = driving(20.0, verdict_period_s=verdict_s, diagnostics_period_s=diagnostics_s)
    rig.alive -= {"full"}
    rig.core.on_result(make_result(Tier.FULL, rig.stamp_ns - SECOND), rig.now_ns, False)
    rig.run(1.15)
    rig.forget()
    rig.run(1.1)
    reported = [
        *(v.value for c in rig.commands for v in c.verdicts or () if v.fault_id == "full.crc"),
        *(
            float(text.split("value=")[1].split()[0])
            for c in rig.commands
            for d in c.diagnostics or ()
            for name, text in d.values
            if name == "full.crc"
        ),
    ]
    assert reported and set(reported) == {0.0}
