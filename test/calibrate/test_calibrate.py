"""From recordings to files that a node starts with, and the refusals on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from triptych.calibrate import run
from triptych.calibrate.levels import Drive, at_rate, drives_of, scenario_drives
from triptych.calibrate.limits import check_length, input_limits, uncertainty_limits
from triptych.calibrate.run import Plan, calibrate
from triptych.contract import Detections, Frame, InputError, Light, Tier, TriptychError, Weather
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.resources import resource
from triptych.session import input_settings
from triptych.supervisor.faults import load_faults
from triptych.tiers.monitors import MONITORS, InputConfig
from triptych.tiers.monitors.drift import FEATURES

FAULTS = load_faults(resource("config", "faults.yaml"))
RNG = np.random.default_rng(5)
SECOND = 1_000_000_000


def measured(minutes: float, rate_hz: float = 20.0, **levels: float) -> Drive:
    """A drive with levels that rise to the given ones, evenly, and 0.01 for the others."""
    count = round(minutes * 60 * rate_hz)
    ramp = np.linspace(0.0, 1.0, count)
    found = {row.code: ramp * levels.get(row.code, 0.01) for row in MONITORS if row.limit}
    features = RNG.normal([80.0, 30.0, 0.5, 3.0], [10.0, 5.0, 0.05, 1.0], (count, len(FEATURES)))
    return Drive(rate_hz, found, features, {Tier.DETECTOR: ramp * 0.6})


class Sure:
    """An engine that is the less sure the darker the picture."""

    id, version, frames_wanted = "sure", "1", 1
    device = DeviceReport("cpu", "cpu", "numpy")

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        return EngineOutput(Detections(8, 8), 1.0 - float(frames[-1].image.mean()) / 255.0, 0.1, 0.1, 0.1)


def frames(count: int, rate_hz: float, start_s: float = 1.0) -> Iterator[Frame]:
    for k in range(count):
        image = RNG.integers(60, 190, (36, 64, 3), dtype=np.uint8)
        yield Frame(image, round((start_s + k / rate_hz) * SECOND), k + 1)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "drive.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 20, (320, 180))
    for frame in frames(60, 20.0):
        writer.write(cv2.resize(frame.image, (320, 180)))
    writer.release()
    return path


def test_limits_are_what_the_drives_reached_within_their_ranges() -> None:
    """A level that rose to a value gets it as its limit, up to the debounce; one that did not gets its least."""
    config, found = input_limits([measured(60, blurred_picture=0.8, noisy_picture=9.0)], InputConfig(), 4.0)
    assert config.input_blur == pytest.approx(0.8, abs=0.002)
    assert config.input_noise == pytest.approx(9.0, abs=0.02)
    assert config.input_dark_share == 0.5
    by_name = {f.name: f for f in found}
    assert set(by_name) == {row.code for row in MONITORS if row.limit}
    assert "the least allowed" in by_name["dark_picture"].note and not by_name["blurred_picture"].note
    assert all(f.tail.bound_per_h <= 4.0 for f in found)
    assert config.input_reference_mean == pytest.approx([80.0, 30.0, 0.5, 3.0], rel=0.02)


def test_a_limit_above_its_range_is_kept_in_it_and_says_so() -> None:
    config, found = input_limits([measured(60, noisy_picture=200.0)], InputConfig(), 4.0)
    assert config.input_noise == 60.0
    assert "more false alarms than wanted" in next(f.note for f in found if f.name == "noisy_picture")


def test_the_margin_widens_from_the_usual_level() -> None:
    narrow, _ = input_limits([measured(60, noisy_picture=9.0)], InputConfig(), 4.0, 1.0)
    wide, _ = input_limits([measured(60, noisy_picture=9.0)], InputConfig(), 4.0, 1.5)
    assert wide.input_noise == pytest.approx(4.5 + 1.5 * (narrow.input_noise - 4.5), rel=0.01)


def test_short_drives_are_refused_with_the_minutes_they_lack() -> None:
    with pytest.raises(InputError, match=r"10\.0 min .* cannot support 4 .*dark_picture.*at least 45 min"):
        input_limits([measured(10)], InputConfig(), 4.0)


def test_recordings_of_different_rates_are_refused() -> None:
    with pytest.raises(InputError, match=r"frame rates.*5\.0 to 20\.0 Hz"):
        input_limits([measured(60), measured(60, rate_hz=5.0)], InputConfig(), 4.0)


def test_the_uncertainty_gets_the_threshold_of_its_row() -> None:
    (found,) = uncertainty_limits([measured(60)], FAULTS, 4.0)
    assert found.name == "detector.uncertain"
    assert found.limit == pytest.approx(0.6, abs=0.002)


def test_frame_counts_follow_a_slower_camera_downwards() -> None:
    slow = at_rate(InputConfig(input_frames=10, input_covered_frames=40), 5.0)
    assert (slow.input_frames, slow.input_covered_frames, slow.input_drift_frames) == (2, 10, 300)
    assert at_rate(InputConfig(), 25.0) == InputConfig()
    assert at_rate(InputConfig(), 0.01).input_frames == 1


def test_a_gap_ends_a_drive_and_engines_are_asked_at_their_rate() -> None:
    drives = drives_of(iter([*frames(40, 20.0), *frames(30, 20.0, 10.0)]), InputConfig(), {Tier.DISTILLED: Sure()})
    assert [len(d.features) for d in drives] == [40, 30]
    assert [len(d.uncertainty[Tier.DISTILLED]) for d in drives] == [10, 8]
    assert drives[0].rate_hz == pytest.approx(20.0)
    assert all(len(levels) == 40 for levels in drives[0].levels.values())


def test_frames_that_follow_too_soon_are_passed_over_as_the_detector_does() -> None:
    (drive,) = drives_of(frames(100, 100.0), InputConfig(), {})
    assert drive.rate_hz == pytest.approx(100 / 3, rel=0.01)


def test_the_scenario_drives_through_every_weather_and_light() -> None:
    drives = list(scenario_drives(60.0, 1))
    assert len(drives) == 30
    first = next(drives[0])
    assert first.image.shape == (360, 640, 3)
    again = next(next(scenario_drives(1.0, 1)))
    assert np.array_equal(first.image, again.image)
    assert len([w for w in Weather if w]) * len([x for x in Light if x]) == 9


def test_files_are_written_that_a_node_and_a_supervisor_start_with(clip: Path, tmp_path: Path) -> None:
    """Parameters, thresholds and where they come from, from a real video through a real engine's interface."""
    out = tmp_path / "limits.yaml"
    seen: list[tuple[float, float]] = []
    long = measured(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "recorded_drives", lambda *_: [long])
        patch.setattr(run, "check_length", lambda *_: None)
        outcome = calibrate(Plan([clip], 4.0), out, engines={Tier.DETECTOR: Sure()}, progress=lambda *p: seen.append(p))
    assert outcome.files == (out, tmp_path / "limits.faults.yaml")
    assert input_settings(out) == {Tier.DETECTOR: outcome.config}
    content = yaml.safe_load(out.read_text())
    assert content["/**/supervisor"]["ros__parameters"]["fault_table"] == str(outcome.files[1])
    table = {row.id: row for row in load_faults(outcome.files[1])}
    assert table["detector.uncertain"].threshold == pytest.approx(0.6, abs=0.002)
    assert {i: r for i, r in table.items() if i != "detector.uncertain"} == {
        r.id: r for r in FAULTS if r.id != "detector.uncertain"
    }
    origin = json.loads(out.read_text().splitlines()[1].removeprefix("# provenance: "))
    assert origin["recordings"][0]["name"] == "drive.mp4" and origin["recordings"][0]["data"].startswith("sha256:")
    assert origin["version"] and origin["date"] and origin["limits"]["dark_picture"]["blocks"] == 360
    assert not list(tmp_path.glob("*.part"))


def test_progress_reaches_the_length_of_the_recordings(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short clips are short in the end as well, whatever was said at the beginning."""
    monkeypatch.setattr(run, "check_length", lambda *_: None)
    seen: list[tuple[float, float]] = []
    with pytest.raises(InputError, match="drives of at least 10 s"):
        calibrate(Plan([clip, clip], 4.0), tmp_path / "l.yaml", progress=lambda *p: seen.append(p))
    assert seen[-1][0] == pytest.approx(seen[-1][1], abs=0.1)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("total_s", [0.99, 1.0, 1.01])
def test_what_is_surely_too_short_is_refused_before_it_is_looked_at(total_s: float) -> None:
    """Nine tenths of the 45 minutes that four alarms an hour take: the rest is not known before."""
    needed_s = 0.9 * 269 * 10.0
    if total_s < 1.0:
        with pytest.raises(InputError, match=r"39\.9 min .* cannot support 4 .*at least 45 min"):
            check_length(total_s * needed_s, InputConfig(), 4.0)
    else:
        check_length(total_s * needed_s, InputConfig(), 4.0)
    with pytest.raises(InputError, match="cannot support"):
        check_length(float("nan"), InputConfig(), 4.0)


def test_no_picture_is_looked_at_in_vain(clip: Path, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    with pytest.raises(InputError, match="cannot support 4"):
        calibrate(Plan([clip], 4.0), tmp_path / "limits.yaml", progress=lambda *p: seen.append(p))
    assert not seen and not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.0, "below 360 for dark_picture"), (float("nan"), "below 360"), (30.0, "below 30 for input_drift")],
)
def test_a_rate_that_makes_no_sense_is_refused(rate: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_length(1e6, InputConfig(), rate)


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing.mp4", "does not exist"), ("notes.txt", "notes"), ("empty.mp4", "empty")],
)
def test_what_is_no_recording_is_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    if name != "missing.mp4":
        (tmp_path / name).write_text("" if name == "empty.mp4" else "not a recording")
    with pytest.raises(InputError, match=words) as refusal:
        calibrate(Plan([tmp_path / name], 4.0), tmp_path / "limits.yaml")
    assert name in str(refusal.value)


def test_nothing_to_calibrate_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recordings"):
        calibrate(Plan([], 4.0), tmp_path / "limits.yaml")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "scenario_drives", lambda *_: iter([frames(0, 1.0)]))
        patch.setattr(run, "drives_of", lambda *_: [measured(60)])
        patch.setattr(run, "check_length", lambda *_: None)
        with pytest.raises(TriptychError, match="cannot be written"):
            calibrate(Plan([], 4.0, scenario_min=1.0), tmp_path / "no" / "limits.yaml")
