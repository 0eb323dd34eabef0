"""Lockstep: the real tiers and the real supervisor on a virtual clock, with the same decisions on every run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from bag_maker import MS, T0, bag, camera_rows, image, merge
from replay_data import CLIP, DATA, data, needs_data

from triptych.contract import (
    BUDGETS,
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    EngineError,
    Frame,
    InputError,
    Odometry,
    Origin,
    SceneAdvice,
    Tier,
    TriptychError,
    crc_ok,
    protect,
)
from triptych.engines.load import load_engine
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.replay.lockstep import run_lockstep
from triptych.replay.player import Options
from triptych.replay.record import RunRecord
from triptych.replay.recording import inspect, open_recording
from triptych.resources import share
from triptych.supervisor.config import supervisor_config
from triptych.supervisor.faults import load_faults
from triptych.tiers.monitors import InputConfig
from triptych.virtual import CAMERA_TRANSPORT_NS

FAULTS = load_faults(share() / "config" / "faults.yaml")
S = DegradationState


class Brightness:
    """An engine whose answer is computed from the picture, with durations that differ from run to run on purpose."""

    version = "1"
    device = DeviceReport("cpu", "cpu", "numpy")

    def __init__(self, tier: Tier, *, advice: Advice = Advice.PROCEED, fail_on: int | None = None) -> None:
        self.tier, self.id = tier, f"brightness-{tier.key}"
        self.frames_wanted = 3 if tier is Tier.FULL else 1
        self.advice, self.fail_on = advice, fail_on
        self.questions: list[str] = []
        self.deadlines: list[int | None] = []

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        self.questions.append(question)
        self.deadlines.append(deadline_monotonic_ns)
        frame = frames[-1]
        if frame.number == self.fail_on:
            raise ZeroDivisionError("on purpose")
        mean = float(frame.image.mean()) / 255
        measured_ms = time.perf_counter() % 1.0
        payload: Detections | SceneAdvice
        if self.tier is Tier.DETECTOR:
            box = Detection("vehicle", 0, 0.5 + mean / 2, 1.0, 2.0, 3.0, 4.0)
            payload = Detections(frame.width, frame.height, (box,))
        else:
            payload = SceneAdvice(advice=self.advice, text=f"{mean:.6f}", token_probabilities=(1.0 - mean / 2,))
        return EngineOutput(payload, mean / 4, measured_ms, measured_ms, measured_ms)

    def golden(self) -> Frame:
        return Frame(np.zeros((8, 8, 3), np.uint8), 0, 1)

    def golden_ok(self, output: EngineOutput) -> str:
        return ""

    def close(self) -> None:
        pass


def engines(**of: Brightness) -> dict[Tier, Engine]:
    return {tier: of.get(tier.key) or Brightness(tier) for tier in Tier}


def run(path: Path, chosen: dict[Tier, Engine] | None = None, **options: object) -> RunRecord:
    with open_recording(path) as recording:
        return run_lockstep(recording, engines() if chosen is None else chosen, faults=FAULTS, **options)


def states(record: RunRecord) -> list[tuple[str, float]]:
    start_ns = record.meta["started_ns"]
    return [(c.state.name, (c.t_ns - start_ns) / 1e9) for c in record.state_changes()]


def origins(record: RunRecord, tier: Tier) -> Counter[str]:
    return Counter(r.origin.name for r in record.results_of(tier))


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 s of camera, speed and driver."""
    rows = merge(
        camera_rows(120),
        [("odometry", T0 + i * 20 * MS, Odometry(T0 + i * 20 * MS, 20.0)) for i in range(300)],
        [("driver/state", T0 + i * 100 * MS, protect(DriverState(T0 + i * 100 * MS), i)) for i in range(60)],
    )
    return bag(tmp_path_factory.mktemp("drive") / "b", rows)


def test_nobody_starts_to_drive_on_a_blank_camera(tmp_path: Path) -> None:
    """V10: the control with blank images, each another grey so that nothing is frozen: results go on as if nothing
    were, and only who looks at the pictures says so."""
    rows = merge(
        [("camera/image_raw", T0 + i * 50 * MS + 7 * MS, image(T0 + i * 50 * MS, i % 12)) for i in range(60)],
        [("odometry", T0 + i * 20 * MS, Odometry(T0 + i * 20 * MS, 20.0)) for i in range(150)],
        [("driver/state", T0 + i * 100 * MS, protect(DriverState(T0 + i * 100 * MS), i)) for i in range(30)],
    )
    blank = bag(tmp_path / "b", rows)
    unseen = run(blank)
    seen = run(blank, inputs={Tier.DETECTOR: InputConfig()})
    assert [name for name, _ in states(unseen)] == ["INITIALISING", "NOMINAL"]
    assert [name for name, _ in states(seen)] == ["INITIALISING"]
    faults = {s.status.fault for s in seen.statuses if s.status.tier is Tier.DETECTOR}
    assert any("dark_picture" in fault and "blurred_picture" in fault for fault in faults)
    assert origins(seen, Tier.DETECTOR) == origins(unseen, Tier.DETECTOR)


# -- determinism ----------------------------------------------------------------------------------------------------


def test_twenty_runs_are_byte_identical(drive: Path, tmp_path: Path) -> None:
    """A12: 20 replays give identical decisions, although every inference reports another duration."""
    found = set()
    for index in range(20):
        out = tmp_path / str(index)
        record = run(drive, out=out, options=Options(duration_s=1.5), camera_in_bag=False)
        data_ = (out / "decisions.jsonl").read_bytes()
        found.add(data_)
        assert record.meta["decisions_sha256"] == hashlib.sha256(data_).hexdigest()
    assert len(found) == 1
    lines = [json.loads(line) for line in found.pop().splitlines()]
    kinds = Counter(line["kind"] for line in lines)
    assert lines[0]["kind"] == "lockstep" and lines[-1]["kind"] == "end"
    assert kinds["result"] > 35 and kinds["constraint"] >= 30 and kinds["state"] == 1


def test_real_detector_in_other_processes_is_byte_identical(tmp_path: Path) -> None:
    """A12: neither hash seeds nor another process change a bit; the engine is a real network on one thread."""
    clip, folder = data(CLIP), data("detectors/fastestdet_352.onnx").parent
    code = (
        "import sys; from pathlib import Path; from triptych.contract import Tier;"
        "from triptych.engines.load import load_engine; from triptych.replay.lockstep import run_lockstep;"
        "from triptych.replay.player import Options; from triptych.replay.recording import open_recording;"
        "from triptych.resources import share; from triptych.supervisor.config import supervisor_config;"
        "from triptych.supervisor.faults import load_faults\n"
        "engine = load_engine(share() / 'config/engines/fastestdet.yaml', engine_dir=sys.argv[1])\n"
        "config = supervisor_config({'distilled_expected': False, 'full_expected': False})\n"
        "with open_recording(sys.argv[2]) as r:\n"
        "    record = run_lockstep(r, {Tier.DETECTOR: engine}, faults=load_faults(share() / 'config/faults.yaml'),\n"
        "                          config=config, options=Options(duration_s=1.0))\n"
        "seen = sum(bool(x.payload.detections) for x in record.results_of(Tier.DETECTOR))\n"
        "print(record.meta['decisions_sha256'], seen)"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), str(clip)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
    digest, with_objects = found.pop().split()
    assert len(digest) == 64 and int(with_objects) >= 20


BUILT_IN = {tier: share() / "models" / f"triptych-{tier.key}" / "manifest.yaml" for tier in Tier}


@needs_data
@pytest.mark.skipif(not all(p.exists() for p in BUILT_IN.values()), reason="the built-in models are not all there")
def test_built_in_engines_twice_on_a_real_clip() -> None:
    """All three built-in models on the dashcam clip: identical twice, NOMINAL, cars in nearly every frame."""
    found = []
    for _ in range(2):
        loaded = {tier: load_engine(path) for tier, path in BUILT_IN.items()}
        found.append(run(data(CLIP), loaded))
        for engine in loaded.values():
            engine.close()
    first, second = found
    assert first.meta["decisions_sha256"] == second.meta["decisions_sha256"]
    assert [name for name, _ in states(first)] == ["INITIALISING", "NOMINAL"]
    fresh = [r for r in first.results_of(Tier.DETECTOR) if r.origin is Origin.FRESH]
    assert sum(bool(r.payload.detections) for r in fresh) >= 0.9 * len(fresh)


def test_inference_is_not_told_of_a_deadline(drive: Path) -> None:
    """A decoder that stops early on a slow machine would decide differently there."""
    chosen = engines()
    run(drive, chosen, options=Options(duration_s=1.0))
    assert {d for e in chosen.values() for d in e.deadlines} == {None}


# -- what is decided ------------------------------------------------------------------------------------------------


def test_a_sound_drive_is_nominal_and_in_budget(drive: Path, tmp_path: Path) -> None:
    record = run(drive, out=tmp_path / "out")
    assert [name for name, _ in states(record)] == ["INITIALISING", "NOMINAL"] and states(record)[1][1] < 1.5
    for tier in Tier:
        results = record.results_of(tier)
        assert set(origins(record, tier)) == {"FRESH"}
        assert all(r.age_ms <= BUDGETS[tier].budget_s * 1e3 and crc_ok(r) for r in results)
        assert all(r.latency.transport_ms == CAMERA_TRANSPORT_NS / 1e6 for r in results)
    assert origins(record, Tier.DETECTOR)["FRESH"] == 120
    assert 29 <= origins(record, Tier.DISTILLED)["FRESH"] <= 31
    assert 3 <= origins(record, Tier.FULL)["FRESH"] <= 4
    assert record.meta["synthesised"] == [] and record.meta["mode"] == "lockstep"
    assert record.meta["camera"] == {"width": 32, "height": 24, "frames": 120, "rate_hz": pytest.approx(20.0)}
    assert 10 <= len(record.sample_frames) <= 13


def test_tier_1_goes_blind_when_the_camera_stops(tmp_path: Path) -> None:
    """A1: the stop is seen as a command on the wire in time, not only as a state."""
    rows = merge(
        camera_rows(60),
        [("odometry", T0 + i * 20 * MS, Odometry(T0 + i * 20 * MS, 20.0)) for i in range(250)],
        [("driver/state", T0 + i * 100 * MS, protect(DriverState(T0 + i * 100 * MS), i)) for i in range(50)],
    )
    record = run(bag(tmp_path / "b", rows))
    names = [name for name, _ in states(record)]
    assert names[:2] == ["INITIALISING", "NOMINAL"] and names[-1] == "L1_MINIMAL_RISK_MANOEUVRE"
    last_frame_ns = T0 + 59 * 50 * MS
    stop = next(c for c in record.constraints if c.constraint.state is S.L1_MINIMAL_RISK_MANOEUVRE)
    assert 0 < (stop.t_ns - last_frame_ns) / MS < 400
    final = record.constraints[-1].constraint
    assert final.hazard_lights and final.remote_notification and final.speed_limit_mps < 20.0
    assert origins(record, Tier.DETECTOR).keys() == {"FRESH", "LAST_FRAME", "DEFAULT"}
    reasons = {r.reason for r in record.results_of(Tier.DETECTOR) if r.origin is not Origin.FRESH}
    assert any("no_frame" in reason for reason in reasons)


def test_frozen_camera_is_reported(tmp_path: Path) -> None:
    """A5: the same stamp over and over is an input anomaly within a few frames."""
    rows = [("camera/image_raw", T0 + i * 50 * MS, image(T0 + min(i, 20) * 50 * MS, i)) for i in range(60)]
    record = run(bag(tmp_path / "b", rows))
    faults = {s.status.fault for s in record.statuses if s.status.tier is Tier.DETECTOR}
    assert any("repeated_frame" in f for f in faults)
    assert states(record)[-1][0] != "NOMINAL"


def test_advice_lowers_the_limit(drive: Path) -> None:
    calm = run(drive).constraints[-1].constraint.speed_limit_mps
    careful = run(drive, engines(full=Brightness(Tier.FULL, advice=Advice.SLOW_DOWN))).constraints[-1].constraint
    assert careful.speed_limit_mps < calm and careful.state is S.NOMINAL


def test_a_failing_engine_becomes_a_fallback_not_a_crash(drive: Path) -> None:
    record = run(drive, engines(detector=Brightness(Tier.DETECTOR, fail_on=60)))
    wrong = [r for r in record.results_of(Tier.DETECTOR) if r.origin is not Origin.FRESH]
    assert [r.reason for r in wrong] == ["engine_error"] and wrong[0].origin is Origin.LAST_FRAME
    assert any("on purpose" in s.status.fault for s in record.statuses)


def test_a_slow_model_is_late_on_the_virtual_clock(drive: Path) -> None:
    record = run(drive, nominal_ms={Tier.DISTILLED: 500.0})
    assert origins(record, Tier.DISTILLED)["FRESH"] == 0
    assert {r.reason for r in record.results_of(Tier.DISTILLED)} & {"timeout"}
    assert set(origins(record, Tier.DETECTOR)) == {"FRESH"}, "the other tiers are untouched"


def test_the_question_goes_to_the_full_tier_only(drive: Path) -> None:
    chosen = engines()
    run(drive, chosen, question="is the road wet", options=Options(duration_s=1.0))
    assert set(chosen[Tier.FULL].questions[1:]) == {"is the road wet"}
    assert set(chosen[Tier.DISTILLED].questions) == {""} == set(chosen[Tier.DETECTOR].questions)


# -- inputs and options ---------------------------------------------------------------------------------------------


def test_what_is_made_up_is_said(tmp_path: Path) -> None:
    record = run(bag(tmp_path / "b", camera_rows(40)), options=Options(rate=2.0))
    assert record.meta["synthesised"] == ["odometry", "driver"]
    said = " ".join(record.meta["warnings"])
    assert "a constant speed of 20 m/s and an attentive driver" in said and "rate has no effect in lockstep" in said
    assert {o.odometry.speed_mps for o in record.odometry} == {20.0} and len(record.drivers) == 20
    assert states(record)[-1][0] == "NOMINAL"


def test_start_and_duration_choose_a_part(drive: Path) -> None:
    record = run(drive, options=Options(start_s=1.0, duration_s=2.0))
    assert record.meta["camera"]["frames"] == 40
    assert (record.meta["ended_ns"] - record.meta["started_ns"]) / 1e9 == pytest.approx(2.0, abs=0.06)


def test_loop_is_refused(drive: Path) -> None:
    with pytest.raises(InputError, match="loop: would never end in lockstep"):
        run(drive, options=Options(loop=True))


def test_an_engine_that_fails_its_golden_frame_is_refused(drive: Path) -> None:
    class Wrong(Brightness):
        def golden_ok(self, output: EngineOutput) -> str:
            return "expected a car"

    class Broken(Brightness):
        def golden(self) -> Frame:
            raise KeyError("golden")

    for kind, words in (
        (Wrong, "fails its golden frame: expected a car"),
        (Broken, "fails its golden frame: KeyError"),
    ):
        with pytest.raises(EngineError, match=words):
            run(drive, engines(full=kind(Tier.FULL)))


def test_without_vlm_tiers_the_classical_chain_runs_alone(drive: Path) -> None:
    config = supervisor_config({"distilled_expected": False, "full_expected": False})
    record = run(drive, {Tier.DETECTOR: Brightness(Tier.DETECTOR)}, config=config)
    assert states(record)[-1][0] == "L3_PERCEPTION_ONLY" and record.meta["tiers"] == ["detector"]


def test_a_lidar_that_is_not_in_the_recording_is_not_waited_for(drive: Path) -> None:
    """Even where the vehicle's parameters expect one."""
    record = run(drive, config=supervisor_config({"lidar_expected": True}))
    assert states(record)[-1][0] == "NOMINAL"


# -- files ----------------------------------------------------------------------------------------------------------


def test_files_are_complete_and_agree(drive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps: list[tuple[float, float]] = []
    record = run(drive, out=out, progress=lambda *s: steps.append(s))
    assert sorted(p.name for p in out.iterdir()) == ["decisions.jsonl", "record.jsonl", "results"]
    loaded = RunRecord.load(out / "record.jsonl")
    assert loaded.results == record.results and loaded.meta == json.loads(json.dumps(record.meta))
    info = inspect(out / "results")
    counts = {t.name: t.count for t in info.topics}
    assert info.problems == () and counts["/camera/image_raw/compressed"] == 120
    assert counts["/detector/result"] == len(record.results_of(Tier.DETECTOR)) == 120
    assert counts["/supervisor/constraint"] == len(record.constraints)
    assert {"/supervisor/state", "/odometry", "/driver/state", "/full/status"} <= counts.keys()
    assert [s[0] for s in steps] == sorted(s[0] for s in steps) and steps[-1][0] == steps[-1][1]
    again = run(out / "results")  # the results are themselves a recording
    assert again.meta["camera"]["frames"] == 120 and again.meta["synthesised"] == []


def test_a_recording_that_breaks_off_leaves_no_files(tmp_path: Path) -> None:
    rows = [*camera_rows(30), ("camera/image_raw", T0 + 1600 * MS, image(T0 + 1600 * MS, step=1))]
    path = bag(tmp_path / "b", rows)
    with pytest.raises(InputError, match="message 31: step: must be at least"):
        run(path, out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_ctrl_c_leaves_no_files(drive: Path, tmp_path: Path) -> None:
    def interrupt(done_s: float, _: float) -> None:
        if done_s > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(drive, out=tmp_path / "out", progress=interrupt)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_out_folder_that_cannot_be_written(drive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TriptychError, match="cannot be written"):
        run(drive, out=tmp_path / "file")


def test_the_data_folder_is_not_written_to() -> None:
    """The clip's folder may be read-only; a run leaves it as it was."""
    if not DATA.is_dir():
        pytest.skip("no real data")
    before = sorted(os.listdir(data(CLIP).parent))
    run(data(CLIP), options=Options(duration_s=0.5))
    assert sorted(os.listdir(data(CLIP).parent)) == before
