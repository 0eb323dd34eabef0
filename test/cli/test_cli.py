"""The command line: arguments, exit codes, and that a user's mistake is one sentence. No nodes are started here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from triptych import cli
from triptych.contract import ConfigError, InputError, Tier

SHARED = Path(__file__).parents[3] / "shared" / "data"


def triptych(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "triptych.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(Path(cli.__file__).parents[1]), "PATH": "/usr/bin:/bin", "COLUMNS": "160"},
    )


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "drive.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, (320, 180))
    for index in range(10):
        writer.write(np.full((180, 320, 3), index * 20, np.uint8))
    writer.release()
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "no/such/file.mp4"), ("no/such/file.mp4",)),
        (("demo", "--engine", "radar=x"), ("--engine", "radar=x", "detector")),
        (("demo", "--without", "detector"), ("--without", "detector")),
        (("demo", "--params", "missing.yaml"), ("missing.yaml", "no such parameter file")),
        (("engines", "check", "no-such-engine"), ("no-such-engine",)),
        (("bag", "info", "/dev/null"), ("/dev/null",)),
        (("report", "/no/such/folder"), ("record.jsonl",)),
        (
            ("calibrate", "--false-alarms-per-hour", "4", "--out", "l.yaml", "--no-uncertainty"),
            ("recordings", "--scenario"),
        ),
        (
            ("calibrate", "no.mp4", "--false-alarms-per-hour", "4", "--out", "l.yaml", "--no-uncertainty"),
            ("no.mp4", "does not exist"),
        ),
        (("calibrate", "no.mp4", "--false-alarms-per-hour", "4", "--out", "/no/l.yaml"), ("--out", "/no")),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = triptych(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("triptych: ") and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr
    for word in words:
        assert word in done.stderr


def test_replay_checks_its_input_before_anything_starts(tmp_path: Path) -> None:
    bad = tmp_path / "x.mp4"
    bad.write_bytes(b"not a video")
    done = triptych("replay", str(bad), "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and "x.mp4" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_made_is_refused(video: Path) -> None:
    done = triptych("replay", str(video), "--lockstep", "--out", str(video / "out"))
    assert done.returncode == 2 and "cannot be written" in done.stderr


def test_from_video_makes_a_bag_that_info_and_replay_accept(video: Path, tmp_path: Path) -> None:
    made = triptych("bag", "from-video", str(video), str(tmp_path / "bag"))
    assert made.returncode == 0, made.stderr
    info = triptych("bag", "info", str(tmp_path / "bag"))
    assert info.returncode == 0 and "10 messages" in info.stdout and "camera" in info.stdout
    again = triptych("bag", "from-video", str(video), str(tmp_path / "bag"))
    assert again.returncode == 2 and "bag" in again.stderr


@pytest.mark.skipif(not (SHARED / "bags" / "damaged").is_dir(), reason="the shared recordings are not here")
def test_calibration_with_too_little_says_how_much_it_takes(video: Path, tmp_path: Path) -> None:
    done = triptych(
        "calibrate", str(video), "--false-alarms-per-hour", "4", "--out", str(tmp_path / "l.yaml"), "--no-uncertainty"
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "cannot support 4 false alarms per hour" in done.stderr and "at least 45 min" in done.stderr
    assert not (tmp_path / "l.yaml").exists()


def test_info_of_a_damaged_bag_ends_without_success() -> None:
    done = triptych("bag", "info", str(SHARED / "bags" / "damaged" / "db3_zero_length"))
    assert done.returncode == 2 and "empty" in done.stderr


def test_engines_list_as_json_names_the_built_in_engines() -> None:
    done = triptych("engines", "list", "--json")
    names = {e["name"]: e["problem"] for e in json.loads(done.stdout)}
    assert names["triptych-detector"] == ""
    assert {"yolox-nano", "nanodet-m", "fastestdet"} <= set(names)


def test_version() -> None:
    assert triptych("--version").stdout.startswith("triptych 0.")


def test_assignments() -> None:
    assert cli.engines_of(["full=mine"]) == {Tier.FULL: "mine"}
    assert cli.topics_of(["camera=/a", "odometry="]) == {"camera": "/a", "odometry": ""}
    assert cli.tiers_of(["full"]) == [Tier.DETECTOR, Tier.DISTILLED]
    with pytest.raises(ConfigError):
        cli.engines_of(["detector"])
    with pytest.raises(InputError):
        cli.topics_of(["/a"])
