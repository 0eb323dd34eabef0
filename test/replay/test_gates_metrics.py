"""Each metric on a run whose value is known beforehand, and what cannot be measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from gate_runs import Sketch, ns, stop, takeover

from triptych.contract import BUDGETS, DegradationState, Origin, Tier
from triptych.gates.metrics import METRICS
from triptych.gates.run import Demand, Occasion
from triptych.replay import record as rec

S = DegradationState
SOUND = [(0.0, "init"), (0.5, "drive")]
STOPS = [(0.0, "init"), (0.5, "drive"), (3.2, "stop"), (6.4, "drive")]


# -- nav2's four ----------------------------------------------------------------------------------------------------


def test_the_time_to_stop_is_that_of_the_command() -> None:
    """A1: the command on the wire counts, not the state."""
    sketch = Sketch(8.0, STOPS)
    assert sketch.value("time_to_stop_command_s", stop(3.0, 6.0)) == 0.2
    sketch.state(3.05, S.L1_MINIMAL_RISK_MANOEUVRE)
    assert sketch.value("time_to_stop_command_s", stop(3.0, 6.0)) == 0.2


def test_a_stop_that_never_comes_takes_for_ever() -> None:
    assert Sketch(8.0, SOUND).value("time_to_stop_command_s", stop(3.0)) == math.inf
    assert Sketch(8.0, STOPS).value("time_to_stop_command_s", stop(2.0, 3.1)) == math.inf, "it came when it was over"


def test_several_occasions_count_as_their_worst_and_one_unmeasured_spoils_all() -> None:
    phases = [(0.0, "init"), (0.5, "drive"), (2.1, "stop"), (3.0, "drive"), (5.3, "stop")]
    sketch = Sketch(8.0, phases)
    measured = sketch.measure("time_to_stop_command_s", stop(2.0, 3.0, "first"), stop(5.0, name="second"))
    assert measured.value == pytest.approx(0.3) and measured.text.startswith("second")
    early = stop(0.2, 0.4, "too early")
    measured = sketch.measure("time_to_stop_command_s", early, stop(5.0))
    assert measured.value is None and "too early: automation did not drive" in measured.text


def test_a_silent_supervisor_stops_its_consumers() -> None:
    """A11: a command that is not repeated is a stop 0.15 s later, wanted or not."""
    sketch = Sketch(8.0, SOUND)
    sketch.record.constraints = [c for c in sketch.record.constraints if not ns(3.01) < c.t_ns < ns(5.0)]
    assert sketch.value("time_to_stop_command_s", stop(3.01, 5.0)) == pytest.approx(0.14)
    assert sketch.value("false_stops_n") == 1 and sketch.value("false_stops_n", stop(3.0, 5.0)) == 0


def test_commands_that_a_consumer_refuses_count_as_silence() -> None:
    """A6: a limit that is no number, and a command that fails its CRC, let nobody drive on."""
    sketch = Sketch(8.0, SOUND)
    for index, entry in enumerate(sketch.record.constraints):
        if entry.t_ns >= ns(3.0):
            wrong = replace(entry.constraint, speed_limit_mps=math.nan if index % 2 else 99.0)
            sketch.record.constraints[index] = rec.ConstraintRecord(entry.t_ns, wrong)
    assert sketch.value("time_to_stop_command_s", stop(3.0)) == pytest.approx(0.1)
    assert sketch.value("refused_messages_n") == 101
    assert sketch.value("constraint_gap_max_s") == pytest.approx(5.05)


def test_hold_is_broken_for_as_long_as_the_vehicle_may_drive() -> None:
    phases = [(0.0, "init"), (0.5, "drive"), (3.2, "stop"), (4.0, "drive"), (4.4, "stop")]
    sketch = Sketch(8.0, phases)
    assert sketch.value("hold_broken_s", stop(3.0)) == 0.4
    assert "let go at 4.00 s" in sketch.measure("hold_broken_s", stop(3.0)).text
    assert sketch.value("hold_broken_s", stop(3.0, 4.2)) == 0.2, "what comes after the occasion is allowed"
    assert sketch.value("hold_broken_s", stop(3.0, 4.0)) == 0.0
    assert Sketch(8.0, SOUND).value("hold_broken_s", stop(3.0)) == math.inf


def test_a_driver_who_takes_over_breaks_no_hold_and_no_time_to_stop() -> None:
    manual = Sketch(8.0, [(0.0, "init"), (0.5, "drive"), (3.2, "stop"), (5.0, "manual")])
    assert manual.value("hold_broken_s", stop(3.0)) == 0.0
    first = Sketch(8.0, [(0.0, "init"), (0.5, "drive"), (3.1, "manual"), (4.0, "stop")])
    measured = first.measure("time_to_stop_command_s", stop(3.0))
    assert measured.value is None and "the driver took over at 3.10 s" in measured.text


def test_the_time_to_resume_counts_from_the_end_of_the_occasion() -> None:
    sketch = Sketch(8.0, STOPS)
    assert sketch.value("time_to_resume_s", stop(3.0, 6.0)) == 0.4
    assert sketch.value("time_to_resume_s", stop(3.0, 6.4)) == 0.0
    assert sketch.value("time_to_resume_s", stop(3.0)) is None, "it does not end"
    assert sketch.value("time_to_resume_s", stop(3.0, 7.0)) is None, "it drove before it was over"
    assert Sketch(8.0, STOPS[:3]).value("time_to_resume_s", stop(3.0, 6.0)) == math.inf
    assert Sketch(8.0, [*STOPS[:3], (6.2, "manual")]).value("time_to_resume_s", stop(3.0, 6.0)) == 0.2


def test_false_stops_are_those_without_an_occasion() -> None:
    sketch = Sketch(8.0, STOPS)
    assert sketch.value("false_stops_n") == 1
    assert sketch.value("false_stops_n", stop(3.0, 6.0)) == 0
    assert sketch.value("false_stops_n", takeover(3.0, 6.0)) == 0
    assert sketch.value("false_stops_n", stop(3.5, 6.0)) == 1
    assert sketch.value("false_stops_n", Occasion("a lost model", 3.0, 6.0, Demand.NOTHING)) == 1
    assert Sketch(8.0, [(0.0, "init")]).value("false_stops_n") is None, "who never drove proves nothing"


# -- the driver, the states, the faults -----------------------------------------------------------------------------


def test_takeover_requests_are_counted_once_each() -> None:
    sketch = Sketch(8.0, SOUND)
    for t_s, asking in ((2.0, True), (2.5, True), (3.0, False), (5.0, True)):
        sketch.state(t_s, S.L2_TAKEOVER_REQUEST if asking else S.NOMINAL, asking)
    assert sketch.value("takeover_requests_n") == 2
    assert sketch.value("false_takeover_requests_n") == 2
    assert sketch.value("false_takeover_requests_n", takeover(1.5, 4.0)) == 1
    assert sketch.value("time_to_takeover_request_s", takeover(1.5, 4.0)) == 0.5
    assert sketch.value("time_to_takeover_request_s", takeover(5.5)) == math.inf
    assert sketch.value("time_to_takeover_request_s", takeover(4.0, 4.9)) == math.inf, "it came when it was over"
    assert sketch.value("time_to_takeover_request_s") is None


def test_a_request_at_standstill_is_found() -> None:
    """A18."""
    sketch = Sketch(8.0, SOUND).state(3.0, S.L2_TAKEOVER_REQUEST, True)
    assert sketch.value("takeover_requests_at_standstill_n") is None, "without a speed nobody knows"
    for speed_mps, count in ((0.099, 1), (0.1, 0), (0.101, 0), (-0.05, 1), (math.nan, 0)):
        moving = Sketch(8.0, SOUND).state(3.0, S.L2_TAKEOVER_REQUEST, True).speeds((2.9, speed_mps), (3.1, 20.0))
        assert moving.value("takeover_requests_at_standstill_n") == count, speed_mps


def test_start_up_ends_when_the_vehicle_is_let_go() -> None:
    assert Sketch(8.0, SOUND).value("start_up_s") == 0.5
    assert Sketch(8.0, [(0.0, "init"), (0.8, "manual")]).value("start_up_s") == 0.8
    assert Sketch(8.0, [(0.0, "init")]).value("start_up_s") == math.inf


def test_the_nominal_share_leaves_out_start_up_and_the_driver() -> None:
    phases = [(0.0, "init"), (1.0, "drive"), (4.0, "stop"), (5.0, "manual")]
    assert Sketch(8.0, phases).value("nominal_share") == 0.75
    assert Sketch(8.0, [(0.0, "init"), (1.0, "manual")]).value("nominal_share") is None
    assert Sketch(8.0, [(0.0, "init")]).value("nominal_share") is None


def test_state_changes_do_not_count_repetitions() -> None:
    assert Sketch(8.0, STOPS).state(1.0, S.NOMINAL).state(2.0, S.NOMINAL).value("state_changes_n") == 3


def test_faults_outside_every_occasion_are_false_ones() -> None:
    sketch = Sketch(8.0, SOUND).fault(2.0, "a").fault(2.2, "a").fault(2.5, "a", False).fault(3.0, "a").fault(3.0, "b")
    assert sketch.value("false_faults_n") == 3
    assert sketch.value("false_faults_n", Occasion("expected", 2.9, 3.1, Demand.NOTHING)) == 1
    assert Sketch(8.0, SOUND).value("false_faults_n") is None


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_longest_gap_between_commands_includes_the_end() -> None:
    sketch = Sketch(8.0, SOUND)
    assert sketch.value("constraint_gap_max_s") == pytest.approx(0.05)
    sketch.record.constraints = [c for c in sketch.record.constraints if c.t_ns <= ns(7.5)]
    assert sketch.value("constraint_gap_max_s") == pytest.approx(0.5)
    sketch.record.constraints = []
    assert sketch.value("constraint_gap_max_s") is None


def test_the_hardest_braking_commanded_counts_and_no_number_is_the_hardest() -> None:
    sketch = Sketch(8.0, SOUND)
    sketch.command(8.0, "drive", 0, deceleration_mps2=4.0)
    assert sketch.value("deceleration_max_mps2") == 4.0
    sketch.command(8.0, "drive", 0, deceleration_mps2=math.nan)
    assert sketch.value("deceleration_max_mps2") == math.inf


def test_lost_messages_are_found_by_their_counters() -> None:
    sketch = Sketch(8.0, SOUND)
    assert sketch.value("lost_messages_n") == 0
    del sketch.record.constraints[20:23]
    assert sketch.value("lost_messages_n") == 3


# -- tiers ----------------------------------------------------------------------------------------------------------


def test_the_worst_age_is_that_just_before_newer_content() -> None:
    sketch = Sketch(3.0, SOUND)
    for index in range(60):
        origin = Origin.FRESH if not 20 <= index < 26 else Origin.DEFAULT
        sketch.result(index * 0.05 + 0.02, 0.02, index, origin)
    # content of 0.95 s; the next is received at 1.32 s
    assert sketch.value("detector_age_max_s") == pytest.approx(0.37)
    assert sketch.value("detector_fresh_share") == pytest.approx(54 / 60)
    assert sketch.value("full_age_max_s") is None and sketch.value("full_fresh_share") is None


def test_a_repeated_result_makes_nothing_younger_and_neither_does_silence() -> None:
    sketch = Sketch(3.0, SOUND).result(1.0, 0.02, 0)
    sketch.result(1.5, 0.52, 1, Origin.LAST_FRAME, reason="timeout")
    assert sketch.value("detector_age_max_s") == pytest.approx(2.02), "to the end of the run"
    assert sketch.value("detector_fresh_share") == 0.5


@pytest.mark.parametrize("tier", list(Tier), ids=lambda t: t.key)
def test_latency_is_measured_from_stamp_to_publication(tier: Tier) -> None:
    sketch = Sketch(3.0, SOUND)
    budget_s = BUDGETS[tier].budget_s
    for index in range(10):
        sketch.result(2.0 + index * 0.05, budget_s, index, tier=tier, latency_s=budget_s * (0.5 + 0.05 * index))
    assert sketch.value(f"{tier.key}_latency_p99_ms") == pytest.approx(0.95e3 * budget_s)


# -- where the vehicle obeys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speed_mps", "stood_s"), [(0.099, 1.5), (0.1, math.inf), (0.101, math.inf)])
def test_the_time_to_standstill_is_that_of_the_vehicle(speed_mps: float, stood_s: float) -> None:
    sketch = Sketch(8.0, STOPS).speeds((3.0, 10.0), (4.5, speed_mps), (5.0, speed_mps))
    assert sketch.value("time_to_standstill_s", stop(3.0, 6.0)) == stood_s


def test_a_vehicle_that_creeps_is_found() -> None:
    sketch = Sketch(8.0, STOPS[:3]).speeds((3.0, 10.0), (4.5, 0.0), (5.0, -0.3), (5.5, 0.0))
    assert sketch.value("hold_speed_max_mps", stop(3.0)) == 0.3
    assert sketch.value("hold_speed_max_mps", stop(3.0, 4.9)) == 0.0
    assert sketch.speeds((6.0, math.nan)).value("hold_speed_max_mps", stop(3.0)) == math.inf


@pytest.mark.parametrize("metric", ["time_to_standstill_s", "hold_speed_max_mps"])
def test_the_vehicle_of_a_recording_proves_nothing(metric: str) -> None:
    sketch = Sketch(8.0, STOPS, mode="lockstep").speeds((3.0, 10.0), (4.5, 0.0))
    measured = sketch.measure(metric, stop(3.0, 6.0))
    assert measured.value is None and "obeys nobody" in measured.text


# -- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", list(METRICS))
def test_an_empty_record_measures_nothing(metric: str) -> None:
    """Nothing compared is never a pass."""
    empty = rec.RunRecord(meta={"mode": "run", "started_ns": ns(0), "ended_ns": ns(8)})
    sketch = Sketch(8.0, SOUND)
    sketch.record = empty
    for occasions in ((), (stop(3.0, 6.0),), (takeover(3.0),)):
        assert sketch.measure(metric, *occasions).value is None
        assert sketch.measure(metric, *occasions).text


@pytest.mark.parametrize("metric", list(METRICS))
def test_the_unit_of_a_metric_is_in_its_name(metric: str) -> None:
    assert metric.endswith(("_s", "_ms", "_n", "_share", "_mps", "_mps2")) and METRICS[metric].text.endswith(".")


def test_faults_injected_on_purpose_are_occasions() -> None:
    sketch = Sketch(8.0, STOPS[:3])
    fault = {"fault": "kill", "target": "detector", "from_s": 3.05, "expect": "L1_MINIMAL_RISK_MANOEUVRE"}
    sketch.record.meta["injected"] = [fault]
    assert sketch.value("time_to_stop_command_s") == 0.15 and sketch.value("false_stops_n") == 0
    sketch.record.meta["injected"] = [{**fault, "expect": "L3_PERCEPTION_ONLY"}]
    assert sketch.value("time_to_stop_command_s") is None and sketch.value("false_stops_n") == 1
