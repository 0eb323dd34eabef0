"""``triptych replay --limits --golden --compare`` and ``triptych gate``: options, exit codes, the built-in engines."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from triptych.cli import app
from triptych.contract import TriptychError
from triptych.gates.metrics import METRICS
from triptych.resources import resource
from triptych.scenario import ScenarioConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
import golden_drive
from replay_data import CLIP, data

LIMITS = """
schema_version: 1
occasions: [{name: camera lost, from_s: 1.6}]
limits:
  - {name: stops in time, metric: time_to_stop_command_s, max: %s, why: three results without content}
  - {name: holds, metric: hold_broken_s, max: 0, why: the camera stays lost}
  - {name: no false stop, metric: false_stops_n, max: 0, why: nothing else is wrong}
"""


def triptych(*arguments: object) -> Result:
    """In this process; a user's mistake comes out as the exception that ``main`` prints."""
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})


def mistake(result: Result) -> str:
    assert isinstance(result.exception, TriptychError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2.4 s of the built-in scenario; the camera is lost after 1.6 s."""
    folder = tmp_path_factory.mktemp("gates") / "drive"
    golden_drive.write_bag(folder, ScenarioConfig(seed=3, width_px=160, height_px=90, duration_s=2.4), 1.6)
    return folder


@pytest.fixture(scope="module")
def made(drive: Path) -> Path:
    """Its first run with the built-in engines: report, golden file and a limits file that holds."""
    out = drive.parent
    (out / "limits.yaml").write_text(LIMITS % 0.3)
    done = triptych(
        "replay", drive, "--lockstep", "-o", out / "run", "--golden", out / "g", "--limits", out / "limits.yaml"
    )
    assert done.exit_code == 0, done.output
    return out


def test_the_built_in_engines_decide_the_same_twice(drive: Path, made: Path) -> None:
    """A12: on one machine without any tolerance."""
    done = triptych(
        "replay", drive, "--lockstep", "-o", made / "again", "--compare", made / "g", "--tolerance", 0.0
    )  # fmt: skip
    assert done.exit_code == 0 and "As before" in done.output, done.output
    kinds = [json.loads(line)["kind"] for line in (made / "g").read_text().splitlines()]
    assert kinds[0] == "golden" and {"state", "fault", "constraint"} <= set(kinds)


def test_an_earlier_run_is_held_against_limits(made: Path, tmp_path: Path) -> None:
    held = triptych("gate", made / "run", "--limits", made / "limits.yaml", "--compare", made / "g", "-o", tmp_path)
    assert held.exit_code == 0, held.output
    assert json.loads((tmp_path / "gate.json").read_text())["held"] is True
    (tmp_path / "l.yaml").write_text(LIMITS % 0.05)
    missed = triptych("gate", made / "run" / "record.jsonl", "--limits", tmp_path / "l.yaml", "-o", tmp_path)
    assert missed.exit_code == 1 and re.search(r"stops in time: .* at most 0.05 is asked for", missed.output)
    report = json.loads((tmp_path / "gate.json").read_text())
    assert report["held"] is False and [r["outcome"] for r in report["limits"]] == ["missed", "held", "held"]


def test_another_decision_ends_with_1_and_says_which(made: Path, tmp_path: Path) -> None:
    lines = (made / "g").read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"after":"NOMINAL"' in line)
    lines[index] = lines[index].replace('"after":"NOMINAL"', '"after":"L3_PERCEPTION_ONLY"')
    (tmp_path / "g").write_text("\n".join(lines) + "\n")
    done = triptych("gate", made / "run", "--compare", tmp_path / "g", "-o", tmp_path)
    assert done.exit_code == 1 and "first divergence at" in done.output
    assert re.search(r"changed +INITIALISING → L3_PERCEPTION_ONLY .*\n +now: INITIALISING → NOMINAL", done.output)


def test_other_engines_are_refused_before_anything_is_compared(drive: Path, made: Path, tmp_path: Path) -> None:
    done = triptych(
        "replay", drive, "--lockstep", "-o", tmp_path / "o", "--compare", made / "g", "--without", "full", "-d", 0.5
    )
    said = mistake(done)
    assert "config.supervisor was" in said and "engines.full" in said and "--golden" in said


@pytest.mark.parametrize("option", ["--golden", "--compare"])
def test_golden_files_need_lockstep(option: str, tmp_path: Path) -> None:
    path = tmp_path / "g"
    shutil.copy(golden_drive.GOLDEN, path)
    said = mistake(triptych("replay", "x.mp4", option, path))
    assert said.startswith(f"{option}: needs --lockstep") and said.endswith("add --lockstep.")


def test_gates_are_read_before_the_recording(tmp_path: Path) -> None:
    (tmp_path / "l.yaml").write_text("schema_version: 1\nlimits: []")
    assert "l.yaml: limits" in mistake(triptych("replay", "no.mp4", "--limits", tmp_path / "l.yaml"))
    assert "no.golden: cannot be read" in mistake(triptych("replay", "no.mp4", "--compare", tmp_path / "no.golden"))


def test_a_gate_without_anything_to_hold_against_is_refused(tmp_path: Path) -> None:
    assert mistake(triptych("gate", tmp_path)).startswith("--limits: is not given")
    limits = resource("config", "gates.yaml")
    assert mistake(triptych("gate", "--limits", limits)).startswith("RUN: is not given")
    assert "record.jsonl: cannot be read" in mistake(triptych("gate", tmp_path, "--limits", limits))


def test_every_metric_is_listed() -> None:
    done = triptych("gate", "--metrics")
    assert done.exit_code == 0 and all(name in done.output for name in METRICS)


def test_the_record_of_a_drive_needs_one_fault_and_one_seed(tmp_path: Path) -> None:
    assert mistake(triptych("inject", "--record", "-o", tmp_path)).startswith("--record: is of one drive; ")
    said = mistake(triptych("inject", "--record", "--seed", 1, "--only", "detector", "-o", tmp_path))
    assert said.startswith("--record: is of one drive with one fault") and said.endswith("--only.")


def test_a_real_clip_is_held_against_limits(tmp_path: Path) -> None:
    """The dashcam clip has no reason to stop; its pictures and the built-in detector are real."""
    clip = data(CLIP)
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        "schema_version: 1\nlimits:\n"
        "  - {name: no false stop, metric: false_stops_n, max: 0, why: an empty road}\n"
        "  - {name: no false request, metric: false_takeover_requests_n, max: 0, why: an empty road}\n"
        "  - {name: recent, metric: detector_age_max_s, max: 0.12, why: detector.stale}\n"
    )
    options = ("--lockstep", "-d", 1.5, "--without", "full", "--limits", limits)
    first = triptych("replay", clip, *options, "--golden", tmp_path / "g", "-o", tmp_path / "a")
    assert first.exit_code == 0, first.output
    again = triptych("replay", clip, *options, "--compare", tmp_path / "g", "-o", tmp_path / "b")
    assert again.exit_code == 0 and "As before" in again.output, again.output
