"""The gates' metrics where the vehicle obeys: drives of the scenario in closed loop, on a virtual clock."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from injection_rig import DRIVE, ENGINES, TABLE, campaign

from triptych.contract import Odometry, Tier
from triptych.gates.limits import FINE, Outcome, compare, load_limits
from triptych.gates.metrics import METRICS
from triptych.gates.run import Demand, Run
from triptych.injection.faults import Nothing, Parameters
from triptych.injection.loop import NS, ClosedLoop
from triptych.injection.trial import Trial, run_trial
from triptych.replay.record import OdometryRecord, RunRecord
from triptych.resources import resource
from triptych.supervisor.config import supervisor_config
from triptych.virtual import modelled_ms


def driven(drive: dict[str, Any], kind: str, **parameters: object) -> tuple[RunRecord, Trial]:
    plan = campaign({"kind": kind, "with": parameters, "expect": {"least": "l1"}}, drive=drive)
    record = RunRecord()
    return record, run_trial(plan, plan.faults[0], 3, ENGINES, TABLE, record)


@pytest.fixture(scope="module")
def lost() -> tuple[RunRecord, Trial]:
    """The camera is lost for good at some speed; the vehicle has time to stop."""
    return driven({**DRIVE, "after_s": 11.0}, "wire.drop", hop="camera")


def test_a_lost_camera_stops_the_vehicle_and_it_stays_stopped(lost: tuple[RunRecord, Trial]) -> None:
    """A1: from the fault to the command, to standstill, and held."""
    record, trial = lost
    run = Run(record)
    (occasion,) = run.occasions
    assert (occasion.demand, occasion.from_s, run.open_loop) == (Demand.STOP, trial.at_s, False)
    measured = {name: METRICS[name].measure(run).value for name in METRICS}
    command_s, standstill_s = measured["time_to_stop_command_s"], measured["time_to_standstill_s"]
    assert command_s is not None and standstill_s is not None
    assert 0.1 < command_s < 0.3, "some periods without content, and the way through the safety core"
    assert trial.speed_at_fault_mps > 3.0 and trial.speed_at_fault_mps / 4.0 < standstill_s < 11.0
    assert measured["hold_broken_s"] == 0.0 and measured["hold_speed_max_mps"] < 0.1
    assert measured["false_stops_n"] == 0 and measured["constraint_gap_max_s"] <= 0.06
    assert measured["deceleration_max_mps2"] <= 4.0
    assert measured["time_to_resume_s"] is None, "it does not end"


def test_the_shipped_limits_hold_in_a_drive_that_stops(lost: tuple[RunRecord, Trial]) -> None:
    """The tiers' own figures aside: a lost camera makes old content."""
    compared = compare(load_limits(resource("config", "gates.yaml")), lost[0])
    missed = {row.limit.metric for row in compared.rows if row.outcome not in FINE}
    tiers = {f"{tier.key}_{what}" for tier in Tier for what in ("fresh_share", "age_max_s")}
    assert {"detector_fresh_share", "detector_age_max_s"} <= missed <= tiers


def test_a_vehicle_that_does_not_obey_is_found(lost: tuple[RunRecord, Trial]) -> None:
    record = RunRecord(lost[0].meta, constraints=lost[0].constraints, states=lost[0].states)
    for entry in lost[0].odometry:
        rolling = Odometry(entry.odometry.stamp_ns, max(0.5, entry.odometry.speed_mps))
        record.add(OdometryRecord(entry.t_ns, rolling))
    assert METRICS["time_to_standstill_s"].measure(Run(record)).value == math.inf


def test_a_sound_drive_has_nothing_to_stop_for_and_never_stops() -> None:
    plan = campaign({"kind": "none"}, drive=DRIVE)
    record = RunRecord()
    run_trial(plan, plan.faults[0], 3, ENGINES, TABLE, record)
    compared = compare(load_limits(resource("config", "gates.yaml")), record)
    assert compared.held, "\n".join(compared.reasons)
    by_metric = {row.limit.metric: row.outcome for row in compared.rows}
    assert by_metric["time_to_stop_command_s"] is Outcome.NOT_APPLICABLE
    assert by_metric["false_stops_n"] is by_metric["constraint_gap_max_s"] is Outcome.HELD


def test_recording_changes_nothing() -> None:
    plan = campaign({"kind": "wire.drop", "with": {"hop": "camera"}}, drive={**DRIVE, "after_s": 1.0})
    with_record, without = (run_trial(plan, plan.faults[0], 3, ENGINES, TABLE, r) for r in (RunRecord(), None))
    assert with_record == without and with_record.reaction_s is not None


def test_a_silent_safety_core_stops_the_vehicle_by_its_own_timeout() -> None:
    """A11: the record holds no command from then on, and the metrics know what a consumer makes of it."""
    record, _ = driven({**DRIVE, "after_s": 1.0}, "process.kill", process="safety_core", restart_s=0.0)
    value = METRICS["time_to_stop_command_s"].measure(Run(record)).value
    assert value is not None and 0.1 < value <= 0.16


def test_a_record_begins_with_its_run_wherever_the_clock_began() -> None:
    """E.g. shortly before the safety core's milliseconds wrap."""
    plan = campaign({"kind": "none"})
    record, fault = RunRecord(), Nothing(Parameters(), 0, np.random.default_rng(3))
    modelled = {tier: modelled_ms(tier, engine, {}) for tier, engine in ENGINES.items()}
    begin_ns = 2**32 * 1_000_000 - NS
    config = plan.drive.config(3)
    loop = ClosedLoop(config, ENGINES, TABLE, supervisor_config({}), fault, modelled, record, begin_ns)
    loop.run(0.5)
    started_ns, ended_ns = record.meta["started_ns"], record.meta["ended_ns"]
    times = [entry.t_ns for entry in (*record.odometry, *record.states, *record.constraints)]
    assert ended_ns - started_ns == NS // 2 and record.states and record.odometry
    assert started_ns <= min(times) <= started_ns + NS // 10 and max(times) <= ended_ns
