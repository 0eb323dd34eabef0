"""``result.json``: every figure against a record whose truth is known, and every check failing when it must."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import START_NS, Plan, S, make

from triptych.contract import (
    DegradationState,
    DriverState,
    InputError,
    Origin,
    Tier,
    TierStatus,
    protect,
)
from triptych.replay.record import ConstraintRecord, DriverRecord, Event, Received, RunRecord, StateRecord, StatusRecord
from triptych.report.provenance import config_hash, cpu_model, data_hash, git_state, host, provenance
from triptych.report.schema import SCHEMA_VERSION, Host, Provenance, ResultJson, models
from triptych.report.summary import Limits, distribution, percentile, summarise

ORIGIN = Provenance(
    package="triptych_ros",
    version="0",
    config_sha256="0",
    date="2026-01-01T00:00:00+00:00",
    host=Host(cpu="c", cores=2, memory_mb=1, architecture="x", kernel="k", python="3"),
)
STATES = DegradationState


def result_of(plan: Plan | None = None, limits: Limits | None = None) -> ResultJson:
    return summarise(make(plan), ORIGIN, limits)


def failed(result: ResultJson) -> set[str]:
    """Ids of the checks that did not hold; also asserts that the verdict follows from them."""
    ids = {check.id for check in result.checks if not check.held}
    assert result.contract_held == (not ids)
    assert len(result.reasons) == len(ids)
    return ids


def change_results(record: RunRecord, tier: Tier, change: object) -> None:
    """Apply ``change(index, result) -> result | None`` to the results of a tier; None removes one."""
    kept, index = [], 0
    for entry in record.results:
        result = entry.result
        if result.tier is tier:
            result = change(index, result)  # type: ignore[operator]
            index += 1
        if result is not None:
            kept.append(Received(entry.t_ns, result))
    record.results = kept


def test_healthy_run_holds_the_contract() -> None:
    result = result_of()
    assert result.contract_held and result.reasons == []
    assert result.schema_version == SCHEMA_VERSION
    assert [s.state for s in result.supervisor.states] == ["INITIALISING", "NOMINAL"]
    assert result.supervisor.nominal_after_s == pytest.approx(2.3)
    assert result.run.duration_s == 30.0 and result.run.camera is not None and result.run.camera.width == 1280


def test_fields_the_issue_names_are_in_the_json() -> None:
    """The promised minimum, by path."""
    data = json.loads(result_of().model_dump_json())
    for tier in ("detector", "distilled", "full"):
        part = data["tiers"][tier]
        assert {"budget_ms", "latency_ms", "origin", "frames", "device", "engine"} <= part.keys()
        assert {"p50", "p99", "max"} <= part["latency_ms"].keys()
        assert set(part["origin"]) == {"FRESH", "LAST_FRAME", "DEFAULT"}
    assert isinstance(data["tiers"]["detector"]["frames_with_objects"], int)
    assert {"state", "from_s", "reason"} <= data["supervisor"]["states"][0].keys()
    assert isinstance(data["supervisor"]["cpu_percent"], float)
    assert isinstance(data["contract_held"], bool) and data["provenance"]["host"]["cores"] == 2


def test_figures_of_a_tier_are_those_of_its_results() -> None:
    record = make()
    result = summarise(record, ORIGIN)
    results = record.results_of(Tier.DETECTOR)
    latencies = sorted((r.published_ns - r.source_stamp_ns) / 1e6 for r in results)
    tier = result.tiers.detector
    assert tier.latency_ms is not None and tier.split_ms is not None
    assert tier.latency_ms.max == pytest.approx(latencies[-1], abs=1e-4)
    assert tier.latency_ms.p99 == pytest.approx(latencies[math.ceil(0.99 * len(latencies)) - 1], abs=1e-4)
    assert tier.latency_ms.count == tier.frames == tier.origin.FRESH == len(results) == 560
    assert tier.frames_with_objects == 560
    assert tier.frames_with_class is not None and tier.frames_with_class["vehicle"] == 560
    parts = [tier.split_ms.transport, tier.split_ms.pre, tier.split_ms.infer, tier.split_ms.post, tier.split_ms.other]
    assert sum(part.mean for part in parts) == pytest.approx(tier.latency_ms.mean, abs=0.01)
    assert tier.rate_hz == pytest.approx(20.0, abs=0.1)
    assert (tier.engine, tier.engine_version, tier.device_requested, tier.device) == (
        "triptych-detector",
        "0.1.0",
        "auto",
        "cpu",
    )
    assert tier.budget_ms == 30.0 and tier.keep_ms == 100.0 and tier.period_ms == 50.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.floats(0.1, 100))
def test_percentile_is_a_value_that_occurred_with_the_right_rank(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share / 100 * len(values) - 1e-6
    assert sum(v < found for v in values) < share / 100 * len(values) + 1e-6


def test_distribution_ignores_what_is_not_finite() -> None:
    """A6: NaN in a measurement neither spoils the others nor counts."""
    assert distribution([math.nan, math.inf]) is None
    found = distribution([1.0, math.nan, 3.0])
    assert found is not None and (found.count, found.mean, found.p50, found.max) == (2, 2.0, 1.0, 3.0)


def test_missing_tier_is_named() -> None:
    """A2: a tier that was never started is a reason, not an empty field."""
    result = result_of(Plan(tiers=(Tier.DETECTOR,)))
    assert failed(result) == {"distilled.start_up", "full.start_up"}
    assert "The full tier never published a fresh result." in result.reasons
    assert not result.tiers.full.started and result.tiers.full.latency_ms is None


def test_tier_that_was_not_part_of_the_run_is_not_demanded() -> None:
    result = result_of(Plan(tiers=(Tier.DETECTOR,), meta={"tiers": ["detector", "distilled"]}))
    assert failed(result) == {"distilled.start_up"}
    assert not result.tiers.full.expected


def test_perception_alone_is_healthy_where_it_is_meant() -> None:
    """Without VLM tiers by design, L3 is the healthy state; with them it is a reason."""
    for tiers, held in ((["detector"], True), (["detector", "full"], False)):
        record = make(Plan(tiers=(Tier.DETECTOR,), meta={"tiers": tiers}))
        record.states[1] = StateRecord(
            record.states[1].t_ns, STATES.L3_PERCEPTION_ONLY, STATES.INITIALISING, "no VLM tier"
        )
        assert ("supervisor.start_up" not in failed(summarise(record, ORIGIN))) == held


def test_late_answers_show_although_they_are_never_published() -> None:
    """The percentile over FRESH results alone cannot exceed the budget; the share of late ones tells the truth."""
    plan = Plan(slow={Tier.DISTILLED: 1.9})
    result = result_of(plan)
    assert failed(result) == {"distilled.on_time", "distilled.fresh"}
    tier = result.tiers.distilled
    assert tier.late > 20 and tier.late == tier.origin.LAST_FRAME + tier.origin.DEFAULT
    assert tier.fallback_reasons == {"timeout": tier.late}
    assert tier.latency_ms is not None and tier.latency_ms.p99 <= 200.0
    origins = [r.origin for r in make(plan).results_of(Tier.DISTILLED)]
    judged = origins[origins.index(Origin.FRESH) :]
    assert tier.on_time_share == pytest.approx(judged.count(Origin.FRESH) / len(judged), abs=1e-6)


@pytest.mark.parametrize("number,held", [(5, True), (6, False)])
def test_one_late_answer_in_a_hundred_is_allowed(number: int, held: bool) -> None:
    """Of 560 frames 5 may be late, 6 may not."""
    record = make()

    def late(index: int, result: object) -> object:
        if index % 50 == 10 and index // 50 < number:
            return dataclasses.replace(result, published_ns=result.source_stamp_ns + 31_000_000)  # type: ignore
        return result

    change_results(record, Tier.DETECTOR, late)
    for entry in record.results:  # content changed, so it is protected anew
        entry_result = protect(entry.result, entry.result.sequence_counter)
        record.results[record.results.index(entry)] = Received(entry.t_ns, entry_result)
    result = summarise(record, ORIGIN)
    assert ("detector.on_time" not in failed(result)) == held
    assert result.tiers.detector.late == number


def test_silence_beyond_keep_breaks_the_contract() -> None:
    record = make()
    silenced = {100, 101, 102}
    sequence = 0

    def quiet(index: int, result: object) -> object:
        nonlocal sequence
        if index in silenced:
            return None
        sequence += 1
        return protect(result, sequence - 1)

    change_results(record, Tier.DETECTOR, quiet)
    result = summarise(record, ORIGIN)
    assert failed(result) == {"detector.cadence_max"}
    assert result.tiers.detector.gap_ms is not None and result.tiers.detector.gap_ms.max == pytest.approx(200, abs=10)


def test_lost_messages_are_loss_and_not_silence() -> None:
    """The same three results missing, but the counter says that they were sent."""
    record = make()
    change_results(record, Tier.DETECTOR, lambda i, r: None if i in {100, 101, 102} else r)
    result = summarise(record, ORIGIN)
    assert failed(result) == {"detector.loss"}
    integrity = result.tiers.detector.integrity
    assert (integrity.sequence_gaps, integrity.messages_lost) == (1, 3)


def test_a_tier_that_dies_near_the_end_is_noticed() -> None:
    record = make()
    change_results(record, Tier.DISTILLED, lambda i, r: r if i < 130 else None)
    assert failed(summarise(record, ORIGIN)) == {"distilled.cadence_max"}


def test_shut_down_is_not_judged() -> None:
    """What comes after ``ended_ns`` is left out; without it the same silence would count."""
    record = make(Plan(meta={"ended_ns": START_NS + 20 * S}))
    change_results(record, Tier.DETECTOR, lambda i, r: r if r.published_ns < START_NS + 20 * S else None)
    assert failed(summarise(record, ORIGIN)) == set()
    del record.meta["ended_ns"]
    assert "detector.cadence_max" in failed(summarise(record, ORIGIN))


@pytest.mark.parametrize("mode,held", [("replay", True), ("run", False)])
def test_end_of_a_recording_is_no_loss_of_the_camera(mode: str, held: bool) -> None:
    """Between its last frame and the order to stop the stack rightly degrades; on a vehicle the same is a fault."""
    record = make(Plan(meta={"mode": mode}))
    last_ns = START_NS + 29 * S
    record.results = [r for r in record.results if r.result.source_stamp_ns < last_ns]
    record.odometry = [o for o in record.odometry if o.t_ns < last_ns]
    record.sample_frames = [f for f in record.sample_frames if f.stamp_ns < last_ns]
    record.add(StateRecord(last_ns + S // 4, STATES.L1_MINIMAL_RISK_MANOEUVRE, STATES.NOMINAL, "detector blind"))
    result = summarise(record, ORIGIN)
    assert (failed(result) == set()) == held
    assert result.tiers.full.frames == len(record.results_of(Tier.FULL)), "the last answer came after the last frame"
    assert (len(result.supervisor.states) == 2) == held


def test_detector_that_dies_while_the_vehicle_goes_on_is_not_the_end() -> None:
    record = make(Plan(detector_lost_s=28.5, meta={"mode": "demo"}))
    assert {"detector.cadence_max", "supervisor.nominal"} <= failed(summarise(record, ORIGIN))


def test_corrupt_content_is_found_again() -> None:
    record = make()
    change_results(record, Tier.FULL, lambda i, r: dataclasses.replace(r, uncertainty=0.0) if i == 3 else r)
    result = summarise(record, ORIGIN)
    assert failed(result) == {"full.crc"}
    assert result.tiers.full.integrity.crc_errors == 1


def test_corrupt_command_and_heartbeat_are_found() -> None:
    record = make()
    command = record.constraints[50]
    record.constraints[50] = ConstraintRecord(
        command.t_ns, dataclasses.replace(command.constraint, speed_limit_mps=99.0)
    )
    status = record.statuses[5]
    record.statuses[5] = StatusRecord(status.t_ns, dataclasses.replace(status.status, healthy=False))
    assert failed(summarise(record, ORIGIN)) == {"supervisor.crc", "detector.crc"}


def test_silent_command_breaks_the_contract() -> None:
    record = make()
    record.constraints = [c for c in record.constraints if not 10 * S < c.t_ns - START_NS < 10.3 * S]
    assert failed(summarise(record, ORIGIN)) == {"supervisor.cadence"}


def test_supervisor_that_dies_near_the_end_is_noticed() -> None:
    record = make()
    record.constraints = [c for c in record.constraints if c.t_ns - START_NS < 29 * S]
    assert failed(summarise(record, ORIGIN)) == {"supervisor.cadence"}


def test_no_supervisor_at_all() -> None:
    record = make()
    record.states, record.constraints = [], []
    assert failed(summarise(record, ORIGIN)) == {"supervisor.start_up", "supervisor.cadence"}


def test_leaving_nominal_in_a_healthy_run_is_a_reason() -> None:
    record = make()
    record.add(StateRecord(START_NS + 9 * S, STATES.L3_PERCEPTION_ONLY, STATES.NOMINAL, "both VLM tiers late"))
    record.add(StateRecord(START_NS + 12 * S, STATES.NOMINAL, STATES.L3_PERCEPTION_ONLY, "recovered"))
    result = summarise(record, ORIGIN)
    assert failed(result) == {"supervisor.nominal"}
    assert result.reasons == ["The state left NOMINAL for L3_PERCEPTION_ONLY after 9.00 s (both VLM tiers late)."]


@pytest.mark.parametrize("override", [True, False])
def test_manual_is_fine_only_by_the_drivers_will(override: bool) -> None:
    record = make()
    t_ns = START_NS + 9 * S
    record.add(DriverRecord(t_ns, DriverState(t_ns, override_active=override)))
    record.add(StateRecord(t_ns + 1000, STATES.MANUAL, STATES.NOMINAL, "driver"))
    assert failed(summarise(record, ORIGIN)) == (set() if override else {"supervisor.nominal"})


def killed(within_ms: float = 150.0, expect: str = "L1_MINIMAL_RISK_MANOEUVRE", at_s: float = 15.0) -> Plan:
    injected = {
        "fault": "kill",
        "target": "detector",
        "from_s": at_s,
        "to_s": None,
        "expect": expect,
        "within_ms": within_ms,
    }
    return Plan(detector_lost_s=15.0, meta={"injected": [injected]})


def test_demanded_reaction_holds_the_contract() -> None:
    """A1: what counts is the command in time; the killed tier itself is excused."""
    result = result_of(killed())
    assert failed(result) == set()
    assert result.injections[0].reaction_ms == pytest.approx(120.0)
    assert [f.fault for f in result.supervisor.faults] == ["tier1_lost"] and result.supervisor.faults[0].to_s is None


def test_same_loss_unasked_breaks_the_contract() -> None:
    result = result_of(Plan(detector_lost_s=15.0))
    assert failed(result) == {"detector.cadence_max", "supervisor.nominal"}


@pytest.mark.parametrize(
    "plan", [killed(within_ms=100.0), killed(expect="MRC"), killed(at_s=14.5)], ids=["slow", "too_mild", "late"]
)
def test_reaction_that_is_late_or_too_mild_is_a_reason(plan: Plan) -> None:
    assert "supervisor.reaction.1" in failed(result_of(plan))


def test_reaction_that_never_comes() -> None:
    record = make(Plan(meta=killed().meta))
    change_results(record, Tier.DETECTOR, lambda i, r: r if r.published_ns < START_NS + 15 * S else None)
    result = summarise(record, ORIGIN)
    assert failed(result) == {"supervisor.reaction.1"}
    assert result.injections[0].reaction_ms is None and "never followed" in result.reasons[0]


def test_leaving_nominal_before_the_injected_fault_still_counts() -> None:
    record = make(killed())
    record.states.insert(2, StateRecord(START_NS + 8 * S, STATES.L2_TAKEOVER_REQUEST, STATES.NOMINAL, "uncertain"))
    assert "supervisor.nominal" in failed(summarise(record, ORIGIN))


@pytest.mark.parametrize("slow", [19.9, 20.1])
def test_start_up_has_a_limit(slow: float) -> None:
    ids = failed(result_of(Plan(seconds=40.0, start_s=slow - 0.3)))
    assert ("supervisor.start_up" in ids) == (slow > 20.0)


def test_bridged_camera_gaps_do_not_lower_the_fresh_share() -> None:
    """A 10 Hz camera lets the detector bridge every other period, which is what LAST_FRAME is for."""
    record = make()

    def bridge(index: int, result: object) -> object:
        if index % 2 == 0 or index == 0:
            return result
        return protect(
            dataclasses.replace(result, origin=Origin.LAST_FRAME, reason="no_frame"), result.sequence_counter
        )  # type: ignore

    change_results(record, Tier.DETECTOR, bridge)
    result = summarise(record, ORIGIN)
    assert failed(result) == set()
    assert result.tiers.detector.fresh_share == 1.0 and result.tiers.detector.origin.LAST_FRAME == 280


def test_default_for_want_of_frames_does_lower_it() -> None:
    record = make()
    change_results(
        record,
        Tier.DETECTOR,
        lambda i, r: (
            protect(dataclasses.replace(r, origin=Origin.DEFAULT, reason="no_frame, too_old"), r.sequence_counter)
            if 50 <= i < 90
            else r
        ),
    )
    assert "detector.fresh" in failed(summarise(record, ORIGIN))


def test_restarts_are_seen_in_counters_and_events() -> None:
    record = make()
    record.statuses = [
        StatusRecord(e.t_ns, protect(dataclasses.replace(e.status, frames_received=e.status.frames_received % 200), i))
        if e.status.tier is Tier.FULL
        else e
        for i, e in enumerate(record.statuses)
    ]
    result = summarise(record, ORIGIN)
    assert result.tiers.full.restarts == 2
    assert failed(result) >= {"processes.restarts"}
    assert result.tiers.full.frames_received == pytest.approx(558, abs=5), "growth over all lives of the process"
    record = make()
    record.add(Event(START_NS + 5 * S, "scenario", "process was restarted after exit code 1"))
    result = summarise(record, ORIGIN)
    assert failed(result) == {"processes.restarts"}
    assert {p.name: p.restarts for p in result.processes}["scenario"] == 1


def test_self_reported_faults_are_kept_once_each() -> None:
    record = make()
    status = TierStatus(START_NS, Tier.FULL, 3, False, "engine_hung")  # type: ignore[arg-type]
    record.statuses += [StatusRecord(START_NS + 29 * S, protect(status, i)) for i in (1, 2)]
    assert summarise(record, ORIGIN).tiers.full.faults == ["engine_hung"]


def test_load_is_summed_and_averaged() -> None:
    result = result_of()
    by_name = {process.name: process for process in result.processes}
    assert result.supervisor.cpu_percent == pytest.approx(1.4, abs=0.2)
    assert by_name["full"].memory_peak_mb == pytest.approx(540.5, abs=1)
    assert result.memory_peak_mb == pytest.approx(90 + 160 + 210 + 320 + 540, abs=6)


def test_empty_record_gives_a_result_with_reasons() -> None:
    """Nothing at all was recorded: no traceback, but a clear no."""
    result = summarise(RunRecord(), ORIGIN)
    assert not result.contract_held and len(result.reasons) >= 4


def test_no_path_leaves_the_machine() -> None:
    warnings = ["/home/somebody/secret/drive.mcap: has no metadata"]
    result = result_of(Plan(meta={"input": "/home/somebody/secret places/drive.mcap", "warnings": warnings}))
    assert result.run.input == "drive.mcap" and result.run.warnings == ["drive.mcap: has no metadata"]
    assert result_of(Plan(meta={"input": "live topic camera/image_raw"})).run.input == "live topic camera/image_raw"
    assert result_of(Plan(meta={"input": "replay of ../secret/a.mp4"})).run.input == "replay of a.mp4"
    assert "/home" not in result.model_dump_json()


# -- file format -----------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    result = result_of()
    path = tmp_path / "new" / "result.json"
    result.save(path)
    assert ResultJson.load(path) == result
    assert list(path.parent.iterdir()) == [path], "no unfinished file stays behind"


def test_newer_minor_version_and_unknown_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    data = json.loads(result_of().model_dump_json()) | {"schema_version": "1.9", "added_later": 1}
    path.write_text(json.dumps(data))
    assert ResultJson.load(path).contract_held


@pytest.mark.parametrize(
    "text,says",
    [
        ("", "not a result"),
        ("[]", "not a result"),
        ('{"schema_version": "2.0"}', "schema_version"),
        ('{"schema_version": "1.0", "contract_held": "perhaps"}', "contract_held"),
    ],
)
def test_unusable_result_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        ResultJson.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        ResultJson.load(tmp_path / "absent.json")


def test_unwritable_target_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        result_of().save(tmp_path / "file" / "result.json")


def test_every_field_is_described() -> None:
    for model in models():
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


# -- provenance ------------------------------------------------------------------------------------------------------


def test_config_hash_depends_on_content_and_settings_but_not_on_the_place(tmp_path: Path) -> None:
    hashes = set()
    for folder, text in (("a", "x: 1\n"), ("b", "x: 1\n"), ("c", "x: 2\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "faults.yaml").write_text(text)
        hashes.add(config_hash([tmp_path / folder]))
    assert len(hashes) == 2
    assert config_hash([], {"seed": 1}) != config_hash([], {"seed": 2})
    assert config_hash([], {"a": 1, "b": 2}) == config_hash([], {"b": 2, "a": 1})


def test_data_hash_of_file_and_folder(tmp_path: Path) -> None:
    import hashlib

    file = tmp_path / "bag.mcap"
    file.write_bytes(b"abc")
    assert data_hash(file) == hashlib.sha256(b"abc").hexdigest()
    before = data_hash(tmp_path)
    (tmp_path / "more").write_bytes(b"d")
    assert before is not None and data_hash(tmp_path) != before
    assert data_hash(tmp_path / "absent") is None


def test_host_names_no_person() -> None:
    import getpass
    import socket

    text = host().model_dump_json()
    assert socket.gethostname() not in text
    assert getpass.getuser() == "root" or getpass.getuser() not in text
    assert host().cores >= 1 and host().memory_mb > 100 and cpu_model()


def test_cpu_model_of_a_board_without_a_model_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nHardware : Jetson Thor\n")
    assert cpu_model(cpuinfo) == "Jetson Thor"
    assert cpu_model(tmp_path / "absent")


def test_git_state_only_of_our_own_checkout(tmp_path: Path) -> None:
    """Installed into somebody else's repository, their commit is not ours."""
    import subprocess

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert git_state(tmp_path) == (None, None)
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    assert git_state(tmp_path) == (None, None)
    (tmp_path / "package.xml").write_text("<name>triptych_ros</name>")
    git("add", ".")
    git("commit", "-q", "-m", "m")
    commit, dirty = git_state(tmp_path)
    assert commit is not None and len(commit) == 40 and dirty is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == (commit, True)


def test_provenance_is_dated_in_utc() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    made = provenance(now=moment)
    assert made.date == "2026-01-02T03:04:05+00:00"
    assert len(made.config_sha256) == 64 and made.data_sha256 is None
