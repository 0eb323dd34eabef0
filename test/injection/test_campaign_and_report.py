"""Files of campaigns, the running of many trials, and what is said about them."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from injection_rig import DRIVE, ENGINES, campaign
from typer.testing import CliRunner

import triptych.injection.run as running
from triptych.cli import app
from triptych.contract import ConfigError
from triptych.injection.campaign import load_campaign
from triptych.injection.command import narrowed
from triptych.injection.faults import KINDS
from triptych.injection.report import document, limits_of, row_of, summarise, write
from triptych.injection.run import PACKAGE, TRIALS_FILE, _in_a_copy, digest, load_engines, plain, run_campaign, trial_of
from triptych.injection.trial import Trial, Verdict, run_trial
from triptych.resources import resource
from triptych.supervisor.faults import load_faults

STANDARD = resource("config", "inject", "standard.yaml")


def test_the_shipped_campaign() -> None:
    plan = load_campaign(STANDARD)
    assert len(plan.faults) >= 40 and plan.seeds >= 25
    assert {e.kind for e in plan.faults} == set(KINDS), "everything that can be broken is"
    sources = {row.source for row in load_faults(resource("config", "faults.yaml"))} | {"vehicle"}
    for entry in plan.faults:
        assert {start.partition(".")[0] for start in entry.expect.by} <= sources, entry.id


def written(folder: Path, **changes: Any) -> Path:
    entry = {"id": "one", "kind": "wire.bit_flip", "with": {"hop": "constraint", "field": "crc", "mask": 1}}
    path = folder / "c.yaml"
    path.write_text(
        yaml.safe_dump({"schema_version": 1, "name": "c", "faults": [{**entry, **changes.pop("entry", {})}], **changes})
    )
    return path


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"entry": {"kind": "wire.eat"}}, r"one\.kind: no such fault .*wire\.eat.* use one of none"),
        (
            {"entry": {"with": {"hop": "constraint", "field": "speed"}}},
            r"one\.with\.field: no such field of MotionConst",
        ),
        ({"entry": {"with": {"hop": "radio"}}}, r"one\.with\.hop: no such hop"),
        (
            {"entry": {"with": {"hop": "constraint", "field": "sequence_counter", "mask": 256}}},
            r"one\.with\.mask: a bit beyond the field, which has 8",
        ),
        (
            {"entry": {"with": {"hop": "constraint", "field": "hazard_lights", "mask": 2}}},
            "a bit beyond the field, which has 1",
        ),
        ({"entry": {"with": {"hop": "constraint", "power": 3}}}, r"one\.with\.power"),
        ({"entry": {"with": {"cycle": 0}}}, r"one\.with\.cycle"),
        ({"entry": {"kind": "lidar.scan", "with": {}}}, r"one\.lidar: needs a lidar"),
        ({"entry": {"with": {"hop": "obstacles", "field": "healthy"}}}, r"one\.lidar: needs a lidar"),
        ({"entry": {"kind": "process.kill", "with": {"process": "lidar"}}}, r"one\.lidar: needs a lidar"),
        ({"schema_version": 2}, "schema_version"),
        ({"seeds": 0}, "seeds"),
        ({"colour": "red"}, "colour"),
        ({"entry": {"expect": {"least": "l9"}}}, "least"),
    ],
)
def test_a_campaign_that_cannot_be_meant_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_campaign(written(tmp_path, **changes))
    assert "c.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"), [("[", "is not YAML"), ("- a", "must be a mapping"), (None, "cannot be read")]
)
def test_a_file_that_is_no_campaign_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "c.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_campaign(path)


def test_two_faults_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    document = yaml.safe_load(path.read_text())
    document["faults"] *= 2
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="two faults of this name"):
        load_campaign(path)


@pytest.fixture
def prompt_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "load_engines", lambda engines: ENGINES)


FAULTS = (
    {"id": "healthy", "kind": "none"},
    {
        "id": "detector-killed",
        "kind": "process.kill",
        "expect": {"by": ["detector."], "within_s": 0.15, "least": "l1"},
    },
)


def test_an_interrupted_campaign_goes_on_where_it_stopped(tmp_path: Path, prompt_engines: None) -> None:
    plan = campaign(*FAULTS)
    whole = run_campaign(plan, tmp_path)
    assert [t.id for t in whole] == ["healthy", "detector-killed"]
    lines = (tmp_path / TRIALS_FILE).read_text().splitlines()
    (tmp_path / TRIALS_FILE).write_text(lines[0] + "\n" + lines[1][:40])  # the second was cut off
    newest: list[Trial | None] = []
    again = run_campaign(plan, tmp_path, progress=lambda done, total, trial: newest.append(trial))
    assert again == whole and [t.id for t in newest if t] == ["detector-killed"], "only what was missing is run"
    run_campaign(plan, tmp_path, progress=lambda done, total, trial: newest.append(trial))
    assert newest[-1] is None, "nothing was"


def test_lines_of_another_campaign_are_not_taken_over(tmp_path: Path, prompt_engines: None) -> None:
    run_campaign(campaign(FAULTS[0]), tmp_path)
    newest: list[Trial | None] = []
    other = campaign(FAULTS[0], drive={**DRIVE, "after_s": 2.0})
    run_campaign(other, tmp_path, progress=lambda done, total, trial: newest.append(trial))
    assert [t.id for t in newest if t] == ["healthy"]


@pytest.mark.parametrize("changed", ["supervisor/core.py", "scenario/ego.py", "virtual.py"])
def test_lines_of_other_code_are_not_taken_over(tmp_path: Path, changed: str) -> None:
    """Whoever changes a monitor and tries again wants to see the change."""
    plan, folder = campaign(FAULTS[0]), tmp_path / "triptych"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = digest(plan, {}, folder)
    assert before == digest(plan, {}, folder) == digest(plan, {})
    (folder / "cli.py").write_text("# decides nothing")
    assert digest(plan, {}, folder) == before
    path = folder / changed
    path.write_text(path.read_text() + "# another\n")
    assert digest(plan, {}, folder) != before


def test_the_report_counts_and_shows(tmp_path: Path, prompt_engines: None) -> None:
    plan = campaign(*FAULTS)
    trials = run_campaign(plan, tmp_path)
    summary = summarise(plan, trials, {})
    assert summary.held and summary.total.coverage == 1.0 and not summary.complaints
    page = write(summary, trials, tmp_path).read_text()
    assert "All limits held" in page and "detector-killed" in page and "Nothing: every trial went as it must" in page
    stored = json.loads((tmp_path / "campaign.json").read_text())
    assert stored["held"] and len(stored["trials"]) == 2 and stored["provenance"]["config_sha256"]
    assert [trial_of(line) for line in stored["trials"]] == trials
    assert stored == json.loads(json.dumps(document(summary, trials)))

    bad = [trials[0], replace(trials[1], verdict=Verdict.MISSED, why="<b>nobody</b> saw it", detection_s=None)]
    summary = summarise(plan, bad, {})
    assert not summary.held and [t.id for t in summary.complaints] == ["detector-killed"]
    page = write(summary, bad, tmp_path).read_text()
    assert "Not all limits held" in page and "&lt;b&gt;nobody" in page


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.DETECTED, Verdict.TOLERATED)])
def test_each_kind_of_complaint_breaks_a_limit(verdict: Verdict) -> None:
    good = Trial(
        "x", "process.kill", {}, 1, 4.0, Verdict.DETECTED, "", "detector.lost", 0.1, 0.12, (), ("MRC", "MRC"), 9.0,
        {"min_distance_m": 3.0, "stop": None},
    )  # fmt: skip
    demanding = frozenset({"x"})
    assert all(limit.held for limit in limits_of(row_of("all", [good] * 3, demanding), [], [good] * 3))
    trials = [good, good, replace(good, verdict=verdict)]
    assert not all(limit.held for limit in limits_of(row_of("all", trials, demanding), [], trials))
    assert plain(trials[2])["verdict"] == verdict.value


def test_trials_that_share_a_drive_are_those_of_their_own_drives(tmp_path: Path) -> None:
    """Whatever a fault does to its copy of the drive, the next one does not notice."""
    entries = [
        {"id": name, "kind": kind, "with": parameters}
        for name, kind, parameters in (
            ("killed", "process.kill", {"process": "detector"}),
            ("healthy", "none", {}),
            ("stepped", "clock.offset", {"step_s": 1.0}),
            ("frozen", "camera.freeze", {}),
        )
    ]
    plan = campaign(*entries)
    engines = load_engines({})
    table = load_faults(resource("config", "faults.yaml"))
    together = run_campaign(plan, tmp_path, workers=2)
    assert together == [run_trial(plan, entry, 1, engines, table) for entry in plan.faults]


def test_a_trial_that_dies_is_no_result() -> None:
    with pytest.raises(RuntimeError, match="ended without a result, exit code 3"):
        _in_a_copy(lambda: os._exit(3))


def test_a_campaign_in_which_nothing_was_tried_holds_nothing() -> None:
    assert not any(limit.held for limit in limits_of(row_of("all", [], frozenset()), [], []))


def test_a_slow_reaction_breaks_its_limit() -> None:
    trial = Trial(
        "detector-killed", "process.kill", {}, 1, 4.0, Verdict.DETECTED, "", "detector.lost", 0.1, 0.151, (),
        ("MRC", "MRC"), 9.0, {"min_distance_m": None, "stop": {"place": "shoulder"}},
    )  # fmt: skip
    row = row_of("detector-killed", [trial], frozenset({"detector-killed"}))
    assert row.shoulder == 1 and row.min_distance_m is None
    (limit,) = [limit for limit in limits_of(row, [row], [trial]) if "150 ms" in limit.text]
    assert not limit.held and limit.value == "151 ms"


def test_a_part_of_a_campaign() -> None:
    plan = load_campaign(STANDARD)
    part = narrowed(plan, ["camera-b", "core"], 2, None)
    assert {e.id for e in part.faults} == {"camera-black", "camera-blurred", "core-killed", "core-stopped"}
    assert part.seeds == 2 and narrowed(plan, [], None, 9).first_seed == 9
    with pytest.raises(ConfigError, match="no fault of this name"):
        narrowed(plan, ["nothing"], None, None)


def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inject", str(tmp_path / "no.yaml"), "--out", str(tmp_path / "o")])
    assert isinstance(result.exception, ConfigError) and "cannot be read" in str(result.exception)
    assert not (tmp_path / "o").exists()
    kinds = CliRunner().invoke(app, ["inject", "--kinds"])
    assert kinds.exit_code == 0 and "wire.bit_flip" in kinds.output
