"""Golden files of decisions: what is one, what is compared, and the one this repository holds the supervisor to."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import golden_drive
import pytest
from gate_runs import Sketch, ns
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from triptych.contract import ConfigError, DegradationState, InputError, Tier
from triptych.gates.command import REPORT, Gates, check, divergences, gates_of
from triptych.gates.golden import (
    DECELERATION_STEP_MPS2,
    LIMIT_TOLERANCE_MPS,
    Decision,
    Difference,
    compare,
    decisions,
    golden_of,
    paired,
    read_golden,
    write_golden,
)
from triptych.gates.limits import compare as hold_against
from triptych.gates.limits import load_limits
from triptych.replay.player import Options
from triptych.replay.record import RunRecord
from triptych.supervisor import core, machine
from triptych.supervisor.config import supervisor_config

S = DegradationState
ANEW = "if that is meant: PYTHONPATH=src python test/replay/golden_drive.py --golden-only, and look at git diff"
QUIET = Console(file=open(os.devnull, "w"))  # noqa: SIM115


@pytest.fixture(scope="module")
def drive() -> RunRecord:
    return golden_drive.play()


def seen(record: RunRecord) -> list[Decision]:
    return decisions(record)


# -- the one of this repository --------------------------------------------------------------------------------------


def test_the_supervisor_decides_as_before(drive: RunRecord) -> None:
    """A12, A14: the recorded answers of the built-in engines, through tiers and supervisor; every state, fault and
    constraint as in the file, within 0.05 s, limits within 0.3 m/s, reasons but for their numbers."""
    golden = read_golden(golden_drive.GOLDEN)
    try:
        found = divergences(drive, golden, golden_drive.GOLDEN, 0.05)
    except InputError as error:
        pytest.fail(f"{error}\n{ANEW}")
    assert not found, "\n".join(["decided otherwise:", *(d.text() for d in found), ANEW])
    kinds = [d["kind"] for d in golden.decisions]
    assert all(kinds.count(kind) >= 3 for kind in ("state", "fault", "constraint")), "the drive has something to decide"


def test_the_recorded_drive_holds_its_limits(drive: RunRecord) -> None:
    path = golden_drive.FOLDER / "limits.yaml"
    compared = hold_against(load_limits(path), drive, path)
    assert compared.held, "\n".join(compared.reasons)


def broken_rule(drop: str) -> dict[S, Any]:
    return {state: tuple(r for r in rules if r is not getattr(machine, drop)) for state, rules in machine.RULES.items()}


@pytest.mark.parametrize(
    ("drop", "kind", "words"),
    [
        ("_UNSURE", Difference.REMOVED, "NOMINAL → L2_TAKEOVER_REQUEST"),
        ("_LOST", Difference.REMOVED, "L2_TAKEOVER_REQUEST → L1_MINIMAL_RISK_MANOEUVRE"),
    ],
)
def test_a_supervisor_without_a_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, drop: str, kind: Difference, words: str
) -> None:
    monkeypatch.setattr(machine, "RULES", broken_rule(drop))
    golden = read_golden(golden_drive.GOLDEN)
    found = divergences(golden_drive.play(), golden, golden_drive.GOLDEN, 0.05)
    assert found[0].t_s >= 8.0, "nothing differs before the camera is lost"
    assert any(d.kind is kind and words in d.text() for d in found)


def test_a_limit_that_rises_faster_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = core.next_limit_mps
    monkeypatch.setattr(core, "next_limit_mps", lambda a, b, c, rise: usual(a, b, c, 1.5 * rise))
    golden = read_golden(golden_drive.GOLDEN)
    found = divergences(golden_drive.play(), golden, golden_drive.GOLDEN, 0.05)
    assert {d.kind for d in found} == {Difference.ADDED, Difference.MOVED}
    assert found[0].t_s == pytest.approx(1.82, abs=0.05) and "limit 25.0 m/s" in found[0].text()


# -- what makes two runs comparable ----------------------------------------------------------------------------------


def test_another_configuration_is_refused_by_its_part(drive: RunRecord, tmp_path: Path) -> None:
    path = tmp_path / "g"
    write_golden(golden_drive.play(options=Options(duration_s=1.0)), path)
    other = golden_drive.play(
        options=Options(duration_s=1.0), config=supervisor_config({"takeover_wait_s": 9.0, "state_period_s": 0.4})
    )
    with pytest.raises(InputError) as caught:
        divergences(other, read_golden(path), path, 0.05)
    message = str(caught.value)
    assert "config.supervisor was" in message and "--golden" in message and str(path) in message
    assert "config.faults" not in message and "data" not in message
    with pytest.raises(InputError, match=r"played.duration_s was 1\.0 and is nothing"):
        divergences(drive, read_golden(path), path, 0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i: i.update(data="sha256:0"), "data was"),
        (lambda i: i["config"].update(faults="0"), "config.faults was"),
        (lambda i: i["engines"]["detector"].update(sha256="0"), "engines.detector.sha256 was"),
        (lambda i: i["engines"].pop("full"), "engines.full.id was"),
        (lambda i: i["played"].update(start_s=1.0), "played.start_s was"),
    ],
    ids=["data", "faults", "engine", "tier", "played"],
)
def test_other_data_engines_or_options_are_refused(drive: RunRecord, change: Any, words: str) -> None:
    golden = golden_of(drive)
    other = RunRecord(copy.deepcopy(drive.meta), states=drive.states)
    change(other.meta["identity"])
    with pytest.raises(InputError, match=words):
        divergences(other, golden, Path("g"), 0.05)


def test_the_hash_of_the_fault_table_follows_every_row() -> None:
    table = golden_drive._shipped()["faults"]
    shorter = golden_drive.play(options=Options(duration_s=0.3)).meta["identity"]["config"]
    faults = [
        row.model_copy(update={"threshold": row.threshold * 1.001}) if n == 7 else row for n, row in enumerate(table)
    ]
    drive = golden_drive.RecordedDrive()
    engines = {tier: golden_drive.Recorded(drive.content["engines"][tier.key]) for tier in Tier}
    other = golden_drive.run_lockstep(
        drive, engines, faults=faults, policy=golden_drive._shipped()["policy"], options=Options(duration_s=0.3)
    ).meta["identity"]["config"]
    assert {name for name in other if other[name] != shorter[name]} == {"faults"}


def test_a_run_on_a_real_clock_makes_no_golden_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was not made in lockstep"):
        write_golden(Sketch(8.0, [(0.0, "init")]).record, tmp_path / "g")
    assert not (tmp_path / "g").exists()


# -- the file --------------------------------------------------------------------------------------------------------


def test_a_golden_file_says_what_was_read_back(drive: RunRecord, tmp_path: Path) -> None:
    made = write_golden(drive, tmp_path / "g")
    assert read_golden(tmp_path / "g") == made and made.decisions == seen(drive)
    assert (tmp_path / "g").stat().st_size < 8192 and os.listdir(tmp_path) == ["g"]
    write_golden(drive, tmp_path / "h")
    assert (tmp_path / "g").read_bytes() == (tmp_path / "h").read_bytes()


def test_a_record_read_from_its_file_decides_the_same(drive: RunRecord, tmp_path: Path) -> None:
    drive.save(tmp_path / "record.jsonl")
    assert golden_of(RunRecord.load(tmp_path / "record.jsonl")) == golden_of(drive)


def test_a_golden_file_that_cannot_be_finished_leaves_the_old_one(
    drive: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_golden(drive, tmp_path / "g")
    assert (tmp_path / "g").read_text() == "old" and os.listdir(tmp_path) == ["g"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda rows: rows[0].update(schema_version=2), "schema_version: has another schema version than 1 (got 2)"),
        (lambda rows: rows.pop(), f"is cut off: its head promises {len(lines(golden_drive.GOLDEN)) - 1}"),
        (lambda rows: rows[0].update(kind="lockstep"), "is not a golden file (got 'lockstep')"),
        (lambda rows: rows.pop(0), "is not a golden file"),
        (lambda rows: rows.clear(), "is not a golden file"),
        (lambda rows: rows[3].pop("kind"), "line 4: is not a decision"),
        (lambda rows: rows[3].update(t_s="soon"), "line 4: is not a decision"),
        (lambda rows: (rows[0].update(decisions=0), rows.__delitem__(slice(1, None))), "is cut off"),
    ],
    ids=["version", "cut", "kind", "headless", "empty", "row", "time", "nothing"],
)
def test_a_damaged_golden_file_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    rows = lines(golden_drive.GOLDEN)
    damage(rows)
    (tmp_path / "g").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError) as caught:
        read_golden(tmp_path / "g")
    assert words in str(caught.value) and "--golden" in str(caught.value) and str(tmp_path / "g") in str(caught.value)


def test_a_missing_golden_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file.*--golden"):
        read_golden(tmp_path / "g")


# -- what is a decision ----------------------------------------------------------------------------------------------


def constraints(*rows: tuple[float, float]) -> list[Decision]:
    """Decisions of commands with these limits and decelerations, 50 ms apart."""
    sketch = Sketch(0.0, [])
    for count, (limit_mps, deceleration_mps2) in enumerate(rows):
        sketch.command(
            count * 0.05, "drive", count, speed_limit_mps=limit_mps, deceleration_mps2=deceleration_mps2
        )  # fmt: skip
    return [d for d in decisions(sketch.record) if d["kind"] == "constraint"]


def test_repetitions_and_the_steps_of_a_rise_are_no_decisions() -> None:
    found = constraints((5.0, 2.0), (5.0, 2.0), (5.1, 2.0), (5.2, 2.0), (5.3, 2.0), (5.3, 2.0), (5.3, 2.0))
    assert [(d["limit_mps"], d["rising"]) for d in found] == [(5.0, False), (5.1, True), (5.3, False)]


def test_every_fall_of_the_limit_is_a_decision() -> None:
    found = constraints((5.0, 2.0), (4.99, 2.0), (4.0, 2.0), (4.0, 2.0), (math.nan, 2.0))
    assert [d["limit_mps"] for d in found][:3] == [5.0, 4.99, 4.0] and len(found) == 4


@pytest.mark.parametrize(("factor", "count"), [(0.99, 1), (1.0, 2), (1.01, 2)])
def test_a_step_of_the_deceleration_is_a_decision(factor: float, count: int) -> None:
    assert len(constraints((5.0, 2.0), (5.0, 2.0 + factor * DECELERATION_STEP_MPS2))) == count


def test_a_fault_is_a_decision_when_it_comes_and_when_it_goes() -> None:
    sketch = Sketch(0.0, []).fault(1.0, "a").fault(1.5, "a").fault(2.0, "a", False).fault(2.5, "b", False)
    assert decisions(sketch.record) == [
        {"t_s": 1.0, "kind": "fault", "fault": "a", "active": True},
        {"t_s": 2.0, "kind": "fault", "fault": "a", "active": False},
    ]


def test_a_state_is_a_decision_with_its_reason() -> None:
    sketch = Sketch(0.0, []).state(0.0, S.INITIALISING).state(1.0, S.NOMINAL, reason="all well").state(1.5, S.NOMINAL)
    assert decisions(sketch.record) == [
        {"t_s": 1.0, "kind": "state", "before": "INITIALISING", "after": "NOMINAL", "reason": "all well"}
    ]


# -- the comparison --------------------------------------------------------------------------------------------------


def fault(t_s: float, name: str = "a", active: bool = True) -> Decision:
    return {"t_s": t_s, "kind": "fault", "fault": name, "active": active}


def state(t_s: float, after: str = "NOMINAL", reason: str = "all well") -> Decision:
    return {"t_s": t_s, "kind": "state", "before": "INITIALISING", "after": after, "reason": reason}


def command(t_s: float, limit_mps: float | str = 5.0, **change: Any) -> Decision:
    flags = {"hazard_lights": False, "pull_over": False, "remote_notification": False, "rising": False}
    return {
        "t_s": t_s, "kind": "constraint", "state": "NOMINAL", "limit_mps": limit_mps, "deceleration_mps2": 2.0,
        **flags, **change,
    }  # fmt: skip


def kinds(old: list[Decision], new: list[Decision], tolerance_s: float = 0.05) -> list[tuple[Difference, float]]:
    return [(d.kind, d.t_s) for d in compare(old, new, tolerance_s)]


def test_the_same_is_the_same() -> None:
    rows = [state(1.0), fault(2.0), command(2.0)]
    assert kinds(rows, copy.deepcopy(rows), 0.0) == []


@pytest.mark.parametrize(("factor", "same"), [(0.99, True), (1.0, True), (1.01, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_decision_may_move_by_the_tolerance(factor: float, same: bool, sign: int) -> None:
    moved = compare([fault(2.0)], [fault(2.0 + sign * factor * 0.5)], 0.5)
    assert (moved == []) is same
    if not same:
        assert moved[0].kind is Difference.MOVED and f"{sign * 0.505:+.3f} s" in moved[0].text()


@pytest.mark.parametrize(("factor", "same"), [(0.99, True), (1.0, True), (1.01, False)])
@pytest.mark.parametrize("name", ["limit_mps", "deceleration_mps2"])
def test_a_limit_may_differ_by_its_tolerance(factor: float, same: bool, name: str) -> None:
    old, new = command(2.0), command(2.0)
    new[name] += factor * LIMIT_TOLERANCE_MPS
    assert kinds([old], [new]) == ([] if same else [(Difference.CHANGED, 2.0)])


def test_what_is_no_number_equals_no_number() -> None:
    assert kinds([command(2.0, 5.0)], [command(2.0, "nan")]) == [(Difference.CHANGED, 2.0)]
    assert kinds([command(2.0, "nan")], [command(2.0, "nan")]) == []


def test_numbers_in_a_reason_do_not_count_and_words_do() -> None:
    old = state(1.0, reason="no result for 0.13 s (limit 0.12 s)")
    assert kinds([old], [state(1.0, reason="no result for 10.5 s (limit 0.12 s)")]) == []
    (changed,) = compare([old], [state(1.0, reason="no answer for 0.13 s (limit 0.12 s)")])
    assert changed.kind is Difference.CHANGED and "now: INITIALISING → NOMINAL (no answer" in changed.text()


def test_added_removed_and_changed_are_told_apart() -> None:
    assert kinds([fault(1.0)], []) == [(Difference.REMOVED, 1.0)]
    assert kinds([], [fault(1.0)]) == [(Difference.ADDED, 1.0)]
    assert kinds([fault(1.0)], [fault(1.0), fault(2.0)]) == [(Difference.ADDED, 2.0)]
    assert kinds([state(1.0)], [state(1.04, "MANUAL")]) == [(Difference.CHANGED, 1.0)]
    assert kinds([state(1.0)], [state(1.06, "MANUAL")]) == [(Difference.REMOVED, 1.0), (Difference.ADDED, 1.06)]
    assert kinds([command(1.0)], [command(1.0, hazard_lights=True)]) == [(Difference.CHANGED, 1.0)]
    assert kinds([fault(1.0, "a")], [fault(1.0, "b")]) == [(Difference.REMOVED, 1.0), (Difference.ADDED, 1.0)]


def test_the_order_within_the_tolerance_does_not_count() -> None:
    assert kinds([fault(1.0, "a"), fault(1.01, "b")], [fault(1.0, "b"), fault(1.01, "a")]) == []


def test_the_first_divergence_comes_first() -> None:
    old = [state(1.0), fault(3.0), command(5.0)]
    new = [state(1.0), fault(2.5), command(5.0, 9.0), fault(0.5, "early")]
    assert [t for _, t in kinds(old, new)] == [0.5, 2.5, 5.0]


times = st.lists(st.integers(0, 40), max_size=6).map(lambda rows: sorted(t / 10 for t in rows))


@given(times, times)
def test_pairs_are_the_cheapest_in_order(old: list[float], new: list[float]) -> None:
    """Against all ways there are."""
    pairs = paired(old, new)
    short, long = (old, new) if len(old) <= len(new) else (new, old)
    assert len(pairs) == len(short) and pairs == sorted(pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    cheapest = min(sum(abs(a - b) for a, b in zip(short, some)) for some in combinations(long, len(short)))
    assert sum(abs(old[i] - new[j]) for i, j in pairs) == pytest.approx(cheapest)


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abc"), st.booleans()), max_size=12), st.data())
def test_a_run_never_differs_from_itself_and_always_from_one_with_more(
    rows: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    old = [fault(t / 10, name, active) for t, name, active in sorted(rows)]
    assert compare(old, copy.deepcopy(old), 0.0) == []
    extra = fault(data.draw(st.integers(0, 100)) / 10, data.draw(st.sampled_from("abcd")))
    more = sorted([*old, extra], key=lambda d: d["t_s"])
    assert Difference.ADDED in {d.kind for d in compare(old, more)}
    assert Difference.REMOVED in {d.kind for d in compare(more, old)}


# -- gate.json -------------------------------------------------------------------------------------------------------


def test_the_report_of_a_gate_says_everything(drive: RunRecord, tmp_path: Path) -> None:
    gates = gates_of(golden_drive.FOLDER / "limits.yaml", golden_drive.GOLDEN, None)
    assert check(drive, gates, tmp_path, QUIET, golden_drive.ANSWERS)
    report = json.loads((tmp_path / REPORT).read_text())
    assert report["held"] is True and report["schema_version"] == 1
    compared = len(lines(golden_drive.GOLDEN)) - 1
    assert report["golden"]["divergences"] == [] and report["golden"]["compared"] == compared
    by_name = {row["name"]: row for row in report["limits"]}
    assert by_name["stops in time"]["outcome"] == "held" and by_name["stops in time"]["value"] <= 0.2
    assert by_name["drives on"]["outcome"] == "not applicable" and by_name["drives on"]["value"] is None
    assert report["run"]["identity"]["config"].keys() == {"faults", "policy", "supervisor", "inputs", "budgets"}
    assert report["provenance"]["data_sha256"] == hashlib.sha256(golden_drive.ANSWERS.read_bytes()).hexdigest()
    assert report["provenance"]["config_sha256"] and "/" not in report["run"]["input"]


def test_a_missed_gate_is_reported_with_what_never_came(drive: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "l.yaml").write_text(
        "schema_version: 1\noccasions: [{name: fog, from_s: 2.0, to_s: 3.0}]\n"
        "limits: [{name: stops, metric: time_to_stop_command_s, max: 0.3, why: fog}]\n"
    )
    assert not check(drive, gates_of(tmp_path / "l.yaml", None, None), tmp_path, QUIET)
    (row,) = json.loads((tmp_path / REPORT).read_text())["limits"]
    assert (row["value"], row["outcome"], row["text"]) == (None, "missed", "fog: no stop was commanded")


def test_a_refusal_leaves_no_verdict_of_before(drive: RunRecord, tmp_path: Path) -> None:
    (tmp_path / REPORT).write_text('{"held": true}')
    golden = golden_of(drive)
    golden.head["data"] = "other"
    with pytest.raises(InputError, match="data was other"):
        check(drive, Gates(None, (Path("g"), golden), None), tmp_path, QUIET)
    assert not (tmp_path / REPORT).exists()


@pytest.mark.parametrize("tolerance_s", [math.nan, -0.01, 1.01, math.inf])
def test_a_tolerance_that_hides_everything_is_refused(tolerance_s: float) -> None:
    with pytest.raises(ConfigError, match=r"--tolerance: must be 0\.\.1 s"):
        gates_of(None, None, None, tolerance_s)


def test_a_golden_file_is_not_replaced_by_what_it_is_compared_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--golden: would be replaced"):
        gates_of(None, golden_drive.GOLDEN, golden_drive.GOLDEN)
    with pytest.raises(ConfigError, match="--golden: has no folder"):
        gates_of(None, None, tmp_path / "no" / "g")


def test_the_start_of_the_run_is_the_zero_of_decisions(drive: RunRecord) -> None:
    assert drive.meta["started_ns"] == golden_drive.T0_NS and ns(0) == golden_drive.T0_NS
    assert [d["t_s"] for d in seen(drive)] == sorted(d["t_s"] for d in seen(drive))
    assert all(round(d["t_s"], 3) == d["t_s"] for d in seen(drive)), "whole milliseconds"
