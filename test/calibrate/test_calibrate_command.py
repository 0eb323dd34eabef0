"""``triptych calibrate`` as a user runs it: recordings in, files out, and a run that starts with these files."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest
import yaml
from typer.testing import CliRunner, Result

from triptych import cli
from triptych.contract import ConfigError, InputError, Light, Tier, Weather
from triptych.replay.record import RunRecord
from triptych.replay.writer import BagWriter
from triptych.resources import resource
from triptych.scenario import Scenario, random_config
from triptych.session import input_settings, supervisor_tables
from triptych.supervisor.faults import load_faults
from triptych.tiers.monitors import MONITORS

T0_NS = 1_700_000_000_000_000_000
RATE = ["--false-alarms-per-hour", "29"]
LIGHTS = (Light.DAY, Light.DUSK, Light.NIGHT)


def drive(folder: Path, light: Light, seconds: float, fps: float) -> Path:
    """A camera bag of the built-in scenario without traffic."""
    config = random_config(
        3, weather=Weather.CLEAR, light=light, traffic=0.0, width_px=160, height_px=90, fps=fps, duration_s=seconds
    )
    scenario = Scenario(config)
    with BagWriter(folder) as bag:
        while not scenario.finished:
            t_ns = T0_NS + round(scenario.time_s * 1e9)
            _, jpeg = cv2.imencode(".jpg", scenario.render())
            bag.write_jpeg("camera/image_raw/compressed", jpeg.tobytes(), t_ns, "camera", t_ns)
            scenario.step(config.period_s / 2, None)
            scenario.step(config.period_s / 2, None)
    return folder


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six minutes and a little, in drives long enough for drift."""
    folder = tmp_path_factory.mktemp("drives")
    return [drive(folder / light.name.lower(), light, 125.0, 1.0) for light in LIGHTS]


def command(*arguments: object) -> Result:
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_run_starts_with_what_the_command_wrote(drives: list[Path], tmp_path: Path) -> None:
    """Sound drives raise no alarm with the limits made from them; a threshold in the written table is obeyed."""
    out = tmp_path / "camera.yaml"
    result = command("calibrate", *drives, *RATE, "--out", out)
    assert result.exit_code == 0
    found = input_settings(out)[Tier.DETECTOR]
    for row in (row for row in MONITORS if row.limit):
        assert row.code in result.output
        assert getattr(found, row.limit) > 0.0
    assert "detector.uncertain" in result.output and "0 of 36" in result.output
    assert f"triptych run --params {out}" in result.output.replace("\n", "")

    table, policy = supervisor_tables(out)
    assert table == tmp_path / "camera.faults.yaml" and policy == resource("config", "policy.yaml")
    short = drive(tmp_path / "short", Light.DAY, 3.0, 20.0)

    def faults(name: str, exit_code: int) -> set[str]:
        parts = ("--params", out, "--without", "full", "--without", "distilled", "--out", tmp_path / name)
        assert command("replay", "--lockstep", short, *parts).exit_code == exit_code
        return {v.fault_id for v in RunRecord.load(tmp_path / name / "record.jsonl").verdicts if v.active}

    assert not faults("sound", 0) & {"detector.uncertain", "detector.self_report"}
    content = yaml.safe_load(table.read_text())
    (row,) = [row for row in content["faults"] if row["id"] == "detector.uncertain"]
    assert 0.05 < row["threshold"] <= 1.0
    row["threshold"] = row["hysteresis"] = 0.001
    table.write_text(yaml.safe_dump(content))
    assert "detector.uncertain" in faults("strict", cli.EXIT_NOT_HELD)


def test_too_short_a_recording_is_refused_at_once_and_writes_nothing(drives: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2\.1 min .* cannot support 29 .*record at least 6 min"):
        command("calibrate", drives[0], *RATE, "--out", tmp_path / "camera.yaml")
    assert not list(tmp_path.iterdir())


def test_what_is_no_recording_is_refused_by_name(drives: list[Path], tmp_path: Path) -> None:
    """A run's folder holds decisions, not pictures; a sound recording beside it does not help."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "record.jsonl").write_text('{"kind": "meta"}\n')
    for wrong in (run, run / "record.jsonl", tmp_path / "missing.mcap"):
        with pytest.raises(InputError, match=wrong.name):
            command("calibrate", drives[0], wrong, *RATE, "--out", tmp_path / "camera.yaml")
    assert not list(tmp_path.glob("camera*"))


def test_a_place_for_the_limits_that_makes_no_sense_is_refused_at_once(drives: list[Path], tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("/**/detector:\n  ros__parameters:\n    engine: yolox-nano\n")
    before = mine.read_text()
    for out, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.yaml", "has no folder"), (mine, "--params")):
        with pytest.raises(ConfigError, match=words):
            command("calibrate", *drives, *RATE, "--params", mine, "--out", out)
    assert mine.read_text() == before


def test_without_a_table_named_the_shipped_ones_count(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("/**/supervisor:\n  ros__parameters:\n    fault_table: ''\n    policy_table: /etc/mine.yaml\n")
    assert supervisor_tables(mine) == (resource("config", "faults.yaml"), Path("/etc/mine.yaml"))
    assert len(load_faults(supervisor_tables(resource("config", "params.yaml"))[0])) > 10
