"""The demonstration's chain on pictures that cost nothing, and the command line around it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("torch_pruning", reason="the forge extra is not installed")
pytest.importorskip("peft", reason="the forge extra is not installed")

from typer.testing import CliRunner  # noqa: E402

from triptych.contract import Advice, ConfigError, Hazard, Light, Road, SceneAdvice, Weather  # noqa: E402
from triptych.engines import load_engine, load_manifest  # noqa: E402
from triptych.engines.check import try_adapters  # noqa: E402
from triptych.engines.manifest import When  # noqa: E402
from triptych.language.engine import VlmEngine  # noqa: E402
from triptych_forge.adapt.lora import SCENES as WHEN  # noqa: E402
from triptych_forge.bundle import check_bundle  # noqa: E402
from triptych_forge.command import app, sizes_of  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.demo.context import Context  # noqa: E402
from triptych_forge.demo.data import IN_SCENE, encoder_feed, places, spread  # noqa: E402
from triptych_forge.demo.prove import bundle_step  # noqa: E402
from triptych_forge.demo.recipe import STEPS, DemoRecipe, folder_of  # noqa: E402
from triptych_forge.demo.run import run_demo  # noqa: E402
from triptych_forge.demo.shrink import _slices, prune_step  # noqa: E402
from triptych_forge.files import sha256_of  # noqa: E402
from triptych_forge.quantise import record  # noqa: E402
from triptych_forge.report import read_report  # noqa: E402
from triptych_forge.vlm.model import SHAPES  # noqa: E402
from triptych_forge.vlm.scenes import SHARD, STORED_PX, TICKS, Scenes  # noqa: E402
from triptych_forge.vlm.words import Truth  # noqa: E402

SMALL = DemoRecipe(
    drives=SHARD, test_drives=SHARD, teacher_steps=12, student_steps=12, batch=4, mend_steps=2, tune_steps=4,
    calibration=4, qat_steps=2, adapter_steps=2, rank=2, verify_positions=60, timed_runs=4,
)  # fmt: skip


def drawn(seed: int) -> Scenes:
    """Drives whose brightness says the light and whose left half says the weather; every field varies.

    In every other drive something is 7 of 360 lines high, in the rest 72.
    """
    generator = np.random.default_rng(seed)
    frames = generator.integers(0, 60, (SHARD, TICKS, STORED_PX[1], STORED_PX[0], 3), dtype=np.uint8)
    truths = []
    for drive in range(SHARD):
        light, weather = (Light.DAY, Light.NIGHT)[drive % 2], (Weather.CLEAR, Weather.RAIN)[drive // 2 % 2]
        road = (Road.HIGHWAY, Road.RURAL, Road.WORKS)[drive % 3]
        frames[drive] += np.uint8(120 if light is Light.DAY else 0)
        frames[drive, :, :, : STORED_PX[0] // 2] += np.uint8(60 if weather is Weather.RAIN else 0)
        hazards = (Hazard.LEAD_VEHICLE,) if drive % 5 == 0 else ()
        truths.append((Truth(road, weather, light, hazards, Advice.CAUTION if hazards else Advice.PROCEED),) * TICKS)
    objects = [np.array([[0, 0.4, 0.5, 0.45, 0.52 if drive % 2 else 0.7]], np.float32) for drive in range(SHARD)]
    return Scenes((frames,), tuple(truths), tuple((rows,) * TICKS for rows in objects))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, with drawn pictures in the place of rendered ones."""
    folder: Path = tmp_path_factory.mktemp("forge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "scenes", lambda self, test=False: drawn(2 if test else 1))
        run_demo(folder, SMALL, threads=1)
    return folder


def test_every_step_leaves_a_section(out: Path) -> None:
    report = read_report(out / "report.json")
    assert [section.key for section in report.sections] == list(STEPS)
    assert all(section.tables for section in report.sections)
    page = (out / "report.html").read_text()
    assert all(f'id="{section.key}"' in page and section.title in page for section in report.sections)


def test_what_does_not_hang_on_training_holds(out: Path) -> None:
    """Accuracy after a dozen steps is nobody's; that the parts fit together is not a matter of training."""
    checks = {
        check.text: check.held for section in read_report(out / "report.json").sections for check in section.checks
    }
    for part in ("with the same channels set to 0", "Merged and unmerged", "bit for bit",
                 "as listed", "same hash", "Nothing was taken"):  # fmt: skip
        found = [held for text, held in checks.items() if part in text]
        assert found == [True], part


def test_the_vehicle_loads_the_bundle(out: Path) -> None:
    """The last of its checks, the self-test, may well find an engine of a dozen steps too unsure of itself."""
    rows = read_report(out / "report.json").sections[-1].tables[0].rows
    assert [row[:2] for row in rows[:4]] == [[n, True] for n in ("manifest", "golden picture", "files", "load")]


def test_the_bundle_is_whole_and_its_decisions_are_one_chain(out: Path) -> None:
    folder = folder_of(out, "bundle") / "bundle"
    bundle = check_bundle(folder)
    assert {"encoder.onnx", "decoder.onnx", "recipe.json"} <= set(bundle.content)
    decisions = read_decisions(folder / "decisions.jsonl")
    kept = {d.subject for d in decisions if d.kind == "adapt.keep"}
    (shipped,) = [set(d.facts["shipped"]) for d in decisions if d.kind == "adapt.ship"]
    assert shipped in (kept, set()), "what does not help is not packed"
    packed = {name for name in bundle.content if name.startswith("adapters/")}
    assert packed == {f"adapters/{scene}.onnx_adapter" for scene in shipped}
    assert set(load_manifest(folder).adapters) == shipped
    assert json.loads((folder / "recipe.json").read_text())["prune_ratio"] == SMALL.prune_ratio
    kinds = {decision.kind for decision in read_decisions(folder / "decisions.jsonl")}
    assert {"prune.layer", "prune.model", "quantise.comparison", "adapt.train", "verify.compression"} <= kinds
    assert kinds & {"quantise.accept", "quantise.reject"}
    shown = CliRunner().invoke(app, ["check", str(folder)])
    assert shown.exit_code == 0 and bundle.content_sha256[:16] in shown.output
    listed = CliRunner().invoke(app, ["log", str(folder / "decisions.jsonl"), "--kind", "adapt"])
    assert listed.exit_code == 0 and "adapt.train" in listed.output and "prune.layer" not in listed.output


def test_the_calibration_data_are_on_record(out: Path) -> None:
    folder = folder_of(out, "quantise")
    kept = record.CalibrationRecord.load(folder / record.FILE)
    assert kept.sha256 == check_bundle(folder_of(out, "bundle") / "bundle").calibration_sha256
    (frames,) = kept.statistics
    assert (frames.input, frames.channel_axis, frames.inputs) == ("frames", 3, SMALL.calibration)
    assert frames.shape[0] == 1 and frames.shape[3] == 3 and kept.count == 2 * SMALL.calibration
    shape = SHAPES["demo-student"]
    feeds = [encoder_feed(drawn(2), place, shape) for place in spread(places(drawn(2)), 4)]
    record.check_recorded(feeds, folder / record.FILE)
    with pytest.raises(ConfigError, match="another scale"):
        record.check_recorded([{**f, "frames": f["frames"] // 4} for f in feeds], folder / record.FILE)


def test_an_engine_of_several_frames_is_fed_the_earlier_ones() -> None:
    """As a tier keeps them: half a second apart, the drive's first where there is none."""
    scenes, shape = drawn(2), SHAPES["full"]
    later, first = (encoder_feed(scenes, place, shape) for place in ((0, 9), (0, 0)))
    assert later["frames"].shape == first["frames"].shape == (4, shape.height_px, shape.width_px, 3)
    assert later["ages_s"].tolist() == [1.5, 1.0, 0.5, 0.0] and not first["ages_s"].any()
    newest = encoder_feed(scenes, (0, 9), replace(shape, frames=1))
    assert np.array_equal(later["frames"][3:], newest["frames"]) and newest["ages_s"].tolist() == [0.0]
    assert np.array_equal(later["frames"][0], encoder_feed(scenes, (0, 3), shape)["frames"][3])
    assert (first["frames"] == first["frames"][3]).all()


def test_a_run_without_controls_tunes_once(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = shutil.copytree(out, tmp_path / "work")
    monkeypatch.setattr(Context, "scenes", lambda self, test=False: drawn(2 if test else 1))
    folder = tmp_path / "prune"
    folder.mkdir()
    section = prune_step(Context(replace(SMALL, control=False), work), folder)
    tuned = [row[0] for row in section.tables[0].rows if "tuned, " in str(row[0])]
    assert tuned == ["pruned, tuned, with distillation"]
    rows = next(s for s in read_report(out / "report.json").sections if s.key == "prune").tables[0].rows
    assert [row[0] for row in rows if "tuned, " in str(row[0])] == ["pruned, tuned, truth alone", *tuned]


def test_another_recipe_does_not_stumble_over_an_old_checkpoint(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = shutil.copytree(out, tmp_path / "work")
    folder = folder_of(work, "prune")
    (before,) = folder.glob("tuning-with-distillation-*.safetensors")
    monkeypatch.setattr(Context, "scenes", lambda self, test=False: drawn(2 if test else 1))
    prune_step(Context(replace(SMALL, tune_steps=5, control=False), work), folder)
    (after,) = folder.glob("tuning-with-distillation-*.safetensors")
    assert after != before


def test_ranges_are_judged_by_slice(out: Path) -> None:
    section = next(s for s in read_report(out / "report.json").sections if s.key == "quantise")
    (table,) = (t for t in section.tables if t.title == "Ranges of the encoder")
    assert table.columns[2:] == ["night", "rain", "works", "small objects"]
    assert len(table.rows) == 3 and all(isinstance(e, float) and 0 < e < 1 for row in table.rows for e in row[1:])
    scenes = drawn(2)
    small = _slices(scenes, SHAPES["demo-student"], 1000)["small objects"]
    assert len(small) == SHARD * TICKS // 2
    assert set(_slices(Scenes(scenes.shards, scenes.truths), SHAPES["demo-student"], 2)) == {"night", "rain", "works"}


@pytest.mark.parametrize(
    ("decoder", "kept", "shipped", "sentence"),
    [
        ("float", ["night", "rain"], ["night", "rain"], "switches between the base weights and adapters for night and"),
        ("float", ["rain"], ["rain"], "adapters for rain. The gates judged the base weights"),
        ("float", [], [], "none lowered the loss on its scene"),
        ("quantised", ["night", "rain"], [], "judged over the float decoder, and a quantised one was taken"),
    ],
)
def test_the_bundle_holds_the_adapters_that_its_engine_can_use(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, kept: list[str], shipped: list[str],
    sentence: str,
) -> None:  # fmt: skip
    """Whatever this machine's timings chose: all that was kept over the float decoder, nothing over another one."""
    work = shutil.copytree(out, tmp_path / "work")
    quantise, adapt = folder_of(work, "quantise"), folder_of(work, "adapt")
    other = next(path for path in (quantise / "decoder").glob("*.onnx") if "float" not in path.name)
    taken = quantise / "float" / "decoder.onnx" if decoder == "float" else other
    described = (quantise / "chosen" / "manifest.yaml").read_text()
    before = load_manifest(quantise / "chosen").files["decoder"].sha256
    (quantise / "chosen" / "decoder.onnx").write_bytes(taken.read_bytes())
    (quantise / "chosen" / "manifest.yaml").write_text(described.replace(before, sha256_of(taken)))
    (adapt / "decisions.jsonl").unlink()
    log = DecisionLog(adapt / "decisions.jsonl", {})
    for scene in ("night", "rain"):
        log.add("adapt.keep" if scene in kept else "adapt.drop", scene)
    monkeypatch.setattr(Context, "scenes", lambda self, test=False: drawn(2 if test else 1))
    section = bundle_step(Context(SMALL, work), folder_of(work, "bundle"))
    folder = folder_of(work, "bundle") / "bundle"
    bundle, manifest = check_bundle(folder), load_manifest(folder)
    assert sentence in section.text and sentence in (folder / "MODEL_CARD.md").read_text()
    assert [check.text for check in section.checks[1:] if not check.held] == []
    assert [*manifest.adapters] == shipped
    assert {n for n in bundle.content if n.startswith("adapters/")} == {f"adapters/{s}.onnx_adapter" for s in shipped}
    assert not list(folder.rglob("*.safetensors"))
    assert (bundle.content["decoder.onnx"] == sha256_of(taken)) is not bool(shipped)
    engine = load_engine(folder)
    assert isinstance(engine, VlmEngine) and engine.adapters == tuple(shipped)
    if shipped:
        assert "Without an adapter" in section.checks[-1].text
        assert try_adapters(engine).startswith(", ".join(shipped))
        for scene in shipped:
            assert manifest.adapters[scene].when.conditions == WHEN[scene]
            assert manifest.adapters[scene].sha256 == sha256_of(adapt / f"{scene}.onnx_adapter")


def test_an_adapter_is_used_where_it_was_trained() -> None:
    """The pictures an adapter learns from are those whose true answer asks for it."""
    for scene, holds in IN_SCENE.items():
        when = When(**WHEN[scene])
        for road in Road:
            for weather in Weather:
                for light in Light:
                    truth = Truth(road, weather, light, (), Advice.PROCEED)
                    assert holds(truth) is when.holds(SceneAdvice(road, weather, light))


def test_a_finished_run_is_only_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a step ran again")

    monkeypatch.setattr(Context, "scenes", fail)
    before = (out / "report.json").read_text()
    begun: list[int] = []
    run_demo(out, SMALL, threads=1, begun=lambda number, step: begun.append(number))
    assert begun == []
    assert json.loads(before)["sections"] == json.loads((out / "report.json").read_text())["sections"]


def test_places_are_of_the_scene_asked_for() -> None:
    scenes = drawn(3)
    assert len(places(scenes)) == SHARD * TICKS
    night = places(scenes, "night")
    assert night and all(scenes.truths[d][t].light is Light.NIGHT for d, t in night)
    some = spread(night, 5)
    assert len(some) == 5 and len(set(some)) == 5 and set(some).isdisjoint(spread(night, 5, 1))


def test_free_sizes() -> None:
    assert sizes_of(["past=16", "tokens=1"]) == {"past": 16, "tokens": 1} and sizes_of(None) == {}
    for wrong in ("past", "past=", "=3", "past=-1", "past=0", "past=x"):
        with pytest.raises(ConfigError, match="NAME=NUMBER"):
            sizes_of([wrong])


def test_operators_on_the_command_line() -> None:
    model = Path(__file__).parents[2] / "models" / "triptych-full" / "decoder.onnx"
    good = CliRunner().invoke(app, ["operators", str(model), "onnxruntime-cpu", "--no-probe"])
    assert good.exit_code == 0 and "accepted" in good.output
    bad = CliRunner().invoke(app, ["operators", str(model), "tensorrt-dla"])
    assert bad.exit_code == 1 and "refused" in bad.output
