"""An engine whose manifest lists adapters: which one answers, that it is exact, and what is refused at the start."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from triptych.contract import CAUTIOUS_ADVICE, EngineError, Frame, Light, Road, SceneAdvice, Tier, Weather
from triptych.engines import check, load_engine, self_test
from triptych.engines.check import try_adapters
from triptych.engines.manifest import When
from triptych.engines.protocol import EngineOutput
from triptych.engines.session import OnnxSession
from triptych.language.adapters import SWITCH_AFTER, AdaptedSession, AdapterChoice
from triptych.language.engine import WARM_UP_RUNS, VlmEngine
from triptych.tiers import SelfTest

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("onnx", reason="the forge extra is not installed")

from triptych_forge.adapt.export import export_switchable, write_adapter  # noqa: E402
from triptych_forge.adapt.lora import Adapter, AdapterFacts, target_layers  # noqa: E402
from triptych_forge.vlm.model import Shape, Vlm  # noqa: E402
from triptych_forge.vlm.words import make_vocabulary  # noqa: E402

torch.set_num_threads(1)
BASE = "ab" * 32
WHEN: dict[str, dict[str, str]] = {"night": {"light": "night"}, "rain": {"weather": "rain"}, "works": {"road": "works"}}
RANKS = {"night": 2, "rain": 2, "works": 3}


def write_scene(folder: Path, scene: str, seed: int, base: str = BASE, loud: float = 0.15) -> Path:
    """An adapter with random weights for the tiny decoder."""
    shape = Shape(64, 32, 1, (8, 8, 16), (1, 1, 1), 32, 2, 2, 1, 32)
    generator, rank = torch.Generator().manual_seed(seed), RANKS[scene]
    tensors = {}
    for name, layer in target_layers(Vlm(shape, len(make_vocabulary())).decoder).items():
        tensors[f"{name}.lora_A"] = torch.randn(rank, layer.in_features, generator=generator) * loud
        tensors[f"{name}.lora_B"] = torch.randn(layer.out_features, rank, generator=generator) * loud
    adapter = Adapter(AdapterFacts(scene, base, rank, 2.0 * rank, "0"), tensors)
    path = folder / f"{scene}.onnx_adapter"
    if not (folder / "plain.onnx").exists():
        (folder / "decoder.onnx").rename(folder / "plain.onnx")
        export_switchable(folder / "plain.onnx", folder / "decoder.onnx", adapter.layers, BASE)
    write_adapter(adapter, path)
    return path


def described(folder: Path, change: Callable[[dict[str, Any]], Any] | None = None) -> Path:
    """Write the manifest anew: hashes of what lies there, adapters as listed, then ``change``."""
    content = yaml.safe_load((folder / "manifest.yaml").read_text())
    content["adapters"] = {
        scene: {"path": f"{scene}.onnx_adapter", "when": when}
        for scene, when in WHEN.items()
        if (folder / f"{scene}.onnx_adapter").exists()
    }
    for entry in [*content["files"].values(), *content["adapters"].values()]:
        entry["sha256"] = hashlib.sha256((folder / entry["path"]).read_bytes()).hexdigest()
    if change:
        change(content)
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


@pytest.fixture(scope="module", params=["distilled", "full"])
def source(request: pytest.FixtureRequest, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine folder with three adapters."""
    folder = tmp_path_factory.mktemp("adapted") / "engine"
    shutil.copytree(tiny[request.param], folder)
    for seed, scene in enumerate(WHEN):
        write_scene(folder, scene, seed)
    return described(folder)


@pytest.fixture(scope="module")
def engine(source: Path) -> VlmEngine:
    return loaded(source)


@pytest.fixture
def fresh(engine: VlmEngine) -> VlmEngine:
    """The engine as it begins a drive."""
    engine.infer([engine.golden()])
    assert engine.adapter == ""
    return engine


@pytest.fixture
def folder(tiny: dict[str, Path], tmp_path: Path) -> Path:
    """A folder that a test may damage, with one adapter."""
    target = tmp_path / "engine"
    shutil.copytree(tiny["distilled"], target)
    write_scene(target, "night", 0)
    return described(target)


def loaded(folder: Path) -> VlmEngine:
    engine = load_engine(folder)
    assert isinstance(engine, VlmEngine)
    return engine


def picture(seed: int) -> Frame:
    """Noise or a plain colour, so that answers differ."""
    if seed % 3 == 0:
        return Frame(np.full((90, 160, 3), seed * 29 % 255, np.uint8), seed * 10**8, seed + 1)
    image = np.random.default_rng(seed).integers(0, 255, (90, 160, 3), dtype=np.uint8)
    return Frame(image, seed * 10**8, seed + 1)


def said(output: EngineOutput) -> tuple[Any, ...]:
    return output.payload, output.uncertainty, output.adapter


def scene(light: str = "day", weather: str = "clear", road: str = "highway") -> SceneAdvice:
    return SceneAdvice(road=Road[road.upper()], weather=Weather[weather.upper()], light=Light[light.upper()])


def scripted(engine: VlmEngine, monkeypatch: pytest.MonkeyPatch, scenes: Iterable[SceneAdvice]) -> None:
    """The engine's next answers say these scenes, whatever the picture."""
    script, payload = iter(scenes), engine.grammar.payload

    def say(*arguments: Any) -> SceneAdvice:
        now = next(script)
        return dataclasses.replace(payload(*arguments), road=now.road, weather=now.weather, light=now.light)

    monkeypatch.setattr(engine.grammar, "payload", say)


# -- the choice -----------------------------------------------------------------------------------------------------

ANSWERS = st.builds(SceneAdvice, st.sampled_from(Road), st.sampled_from(Weather), st.sampled_from(Light))
CONDITIONS = {name: When(**when) for name, when in WHEN.items()}


def last_run(wanted: Sequence[str]) -> int:
    """How many of the last answers ask for the same."""
    return next((n for n, name in enumerate(reversed(wanted)) if name != wanted[-1]), len(wanted))


@given(st.lists(ANSWERS, max_size=60), st.integers(1, 5))
def test_it_is_what_the_last_answers_all_ask_for(answers: list[SceneAdvice], after: int) -> None:
    """Against a second description of the rule: find the newest run that is long enough."""
    choice = AdapterChoice(CONDITIONS, after)
    asked: list[str] = []
    expected = ""
    for answer in answers:
        choice.see(answer)
        asked.append(
            "night"
            if answer.light is Light.NIGHT
            else "rain"
            if answer.weather is Weather.RAIN
            else "works"
            if answer.road is Road.WORKS
            else ""
        )
        if last_run(asked) >= after:
            expected = asked[-1]
        assert choice.current == expected


@given(st.lists(st.tuples(ANSWERS, st.integers(SWITCH_AFTER, 6)), max_size=10), st.data())
def test_odd_answers_change_nothing(stretches: list[tuple[SceneAdvice, int]], data: st.DataObject) -> None:
    """Up to two wrong answers in a row, with a right one before and after, never switch anything."""
    choice, odd = AdapterChoice(CONDITIONS), data.draw(st.lists(ANSWERS, min_size=1, max_size=SWITCH_AFTER - 1))
    for answer, count in stretches:
        for _ in range(count):
            choice.see(answer)
        now = choice.current
        assert now == choice.wanted(answer)
        for other in odd:
            choice.see(other)
            assert choice.current == now or choice.wanted(odd[0]) == now
        for _ in range(SWITCH_AFTER):
            choice.see(answer)
            assert choice.current == now


@given(st.lists(ANSWERS, max_size=30), st.lists(ANSWERS, max_size=30))
def test_a_reset_forgets_everything(before: list[SceneAdvice], after: list[SceneAdvice]) -> None:
    old, new = AdapterChoice(CONDITIONS), AdapterChoice(CONDITIONS)
    for answer in before:
        old.see(answer)
    old.reset()
    for answer in after:
        assert old.current == new.current
        old.see(answer)
        new.see(answer)
    assert old.current == new.current


@given(st.permutations(list(WHEN)), ANSWERS)
def test_the_first_listed_that_holds_wins(order: list[str], answer: SceneAdvice) -> None:
    wanted = AdapterChoice({name: CONDITIONS[name] for name in order}).wanted(answer)
    holding = [name for name in order if CONDITIONS[name].holds(answer)]
    assert wanted == (holding[0] if holding else "")


def test_every_condition_must_hold() -> None:
    both = When(light="night", weather="rain")
    assert (
        both.holds(scene("night", "rain")) and not both.holds(scene("night")) and not both.holds(scene("day", "rain"))
    )
    assert not any(when.holds(CAUTIOUS_ADVICE) for when in CONDITIONS.values())
    assert not any(when.holds(SceneAdvice()) for when in CONDITIONS.values()), "what is unknown asks for nothing"


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="asks for it"):
        AdapterChoice(CONDITIONS, 0)


# -- the engine on the road -----------------------------------------------------------------------------------------


def test_it_begins_on_the_base_weights(source: Path) -> None:
    engine = loaded(source)
    assert engine.adapters == tuple(WHEN) and engine.adapter == ""
    assert engine.version == engine.manifest.version
    assert engine.infer([picture(1)]).adapter == ""


def test_it_follows_the_scene_slowly(
    fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Night for three answers; a single odd answer; rain at night is night; day again; road works."""
    lights = ["night"] * 4 + ["day"] + ["night"] * 2 + ["day"] * 4
    scenes = [scene(light, "rain" if light == "night" else "clear") for light in lights] + [scene(road="works")] * 4
    scripted(fresh, monkeypatch, scenes)
    with caplog.at_level(logging.INFO, logger="triptych.language.engine"):
        outputs = [fresh.infer([picture(i)]) for i in range(len(scenes))]
    used = [output.adapter for output in outputs]
    assert used == [""] * 3 + ["night"] * 7 + [""] * 4 + ["works"]
    assert fresh.adapter == "works" and fresh.version == f"{fresh.manifest.version}+works"
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "answers with night after the base weights",
        "answers with the base weights after night",
        "answers with works after the base weights",
    ]


def test_nothing_that_is_not_listed_is_followed(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(fresh, monkeypatch, [scene("dusk", "fog", "urban")] * 5 + [SceneAdvice()] * 5)
    assert {fresh.infer([picture(i)]).adapter for i in range(10)} == {""}


def test_each_answer_is_that_of_its_adapter_alone(fresh: VlmEngine, source: Path) -> None:
    """On the model's own answers: what drove through other adapters says the very bits of what never did."""
    alone = loaded(source)
    frames = [picture(i) for i in range(24)]
    adapters = ["", *WHEN]
    for number, frame in enumerate(frames):
        name = adapters[number * 7 % 4]
        alone._use(name)
        wanted, _ = alone._answer([frame], "", None)
        fresh._use(name)
        got, _ = fresh._answer([frame], "", None)
        assert said(got) == said(wanted)
    fresh._use("")


def free(manifest: dict[str, Any]) -> None:
    """Conditions that random weights do meet."""
    for adapter, when in zip(manifest["adapters"].values(), ({"weather": "rain"}, {"light": "dusk"}, {"light": "day"})):
        adapter["when"] = when


@pytest.mark.parametrize("change", [None, free])
def test_the_same_frames_in_the_same_order_give_the_same_answers(
    source: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any] | None
) -> None:
    """In one engine, begun anew by its golden frame, and in another one; and each as its own rule says."""
    target = tmp_path / "engine"
    shutil.copytree(source, target)
    one, other = loaded(described(target, change)), loaded(target)
    frames = [picture(i % 10) for i in range(30)]
    runs = []
    for engine in (one, other, one):
        assert engine.golden_ok(engine.infer([engine.golden()])) == ""
        runs.append([said(engine.infer([frame])) for frame in frames])
    assert runs[0] == runs[1] == runs[2]
    choice = AdapterChoice({name: adapter.when for name, adapter in one.manifest.adapters.items()})
    for payload, _, adapter in runs[0]:
        assert adapter == choice.current
        choice.see(payload)


def test_there_and_back_again_is_bit_for_bit(fresh: VlmEngine) -> None:
    answers: dict[str, Any] = {}
    for name in ("night", "rain", "night", "", "works", "rain", "", "night", "works"):
        assert answers.setdefault(name, said(fresh.golden_answer(name))) == said(fresh.golden_answer(name))
    assert len({payload.token_probabilities for payload, _, _ in answers.values()}) == 4, "each says it its own way"
    assert fresh.adapter == ""


def test_the_golden_frame_is_answered_with_the_base_weights(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was driven before: the self-test judges the base weights, votes for nothing and begins a new drive."""
    golden = said(fresh.infer([fresh.golden()]))
    with monkeypatch.context() as patch:
        scripted(fresh, patch, [scene("night")] * 6)
        assert [fresh.infer([picture(i)]).adapter for i in range(6)][-1] == "night"
    assert said(fresh.infer([fresh.golden()])) == golden
    with monkeypatch.context() as patch:
        scripted(fresh, patch, [scene("night")] * 20)
        for _ in range(9):
            assert fresh.infer([fresh.golden()] * fresh.frames_wanted).adapter == ""
        assert fresh.infer([picture(1)]).adapter == ""


def test_both_self_tests_leave_it_on_the_base_weights(fresh: VlmEngine) -> None:
    self_test(fresh)
    assert SelfTest(Tier.DISTILLED, fresh).run() == ""
    assert fresh.infer([picture(2)]).adapter == ""


def test_an_answer_that_was_cut_does_not_count(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for nor against: two whole answers, a cut one, a whole one are three in a row."""
    scripted(fresh, monkeypatch, [scene("night"), scene("night"), SceneAdvice(), scene("night"), scene("night")])
    for _ in range(2):
        fresh.infer([picture(1)])
    assert fresh.infer([picture(1)], deadline_monotonic_ns=0).uncertainty == 1.0
    assert [fresh.infer([picture(1)]).adapter for _ in range(2)] == ["", "night"]


def test_cut_answers_alone_never_switch(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(fresh, monkeypatch, [scene("night")] * 6)
    assert {fresh.infer([picture(1)], deadline_monotonic_ns=0).adapter for _ in range(6)} == {""}


def test_an_answer_that_fails_leads_back_to_the_base_weights(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        scripted(fresh, patch, [scene("night")] * 4)
        assert [fresh.infer([picture(i)]).adapter for i in range(4)][-1] == "night"
    with monkeypatch.context() as patch:
        run = AdaptedSession.run
        patch.setattr(AdaptedSession, "run", lambda *arguments: [np.full_like(o, np.nan) for o in run(*arguments)])
        with pytest.raises(EngineError, match="not finite"):
            fresh.infer([picture(5)])
    assert fresh.infer([picture(5)]).adapter == ""


# -- the start ------------------------------------------------------------------------------------------------------


def test_every_adapter_is_warm_before_the_drive(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each length of the cache is run with each adapter before the first frame."""
    now, runs, lengths = [""], [], {}
    activate, run = AdaptedSession.activate, AdaptedSession.run

    def activated(self: AdaptedSession, adapter: Any) -> None:
        now[0] = adapter.name if adapter else ""
        activate(self, adapter)

    def ran(self: AdaptedSession, feeds: Any, outputs: Any = None) -> list[Any]:
        runs.append(now[0])
        lengths.setdefault(now[0], []).append(feeds["past.0.key"].shape[2])
        return run(self, feeds, outputs)

    monkeypatch.setattr(AdaptedSession, "activate", activated)
    monkeypatch.setattr(AdaptedSession, "run", ran)
    loaded(source)
    assert set(runs) == {"", *WHEN} and runs[-1] == "", "and driving begins on the base weights"
    for seen in lengths.values():
        assert seen.count(0) == WARM_UP_RUNS and max(seen) >= 3


def test_without_adapters_nothing_of_it_is_used(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is the one it was: a plain session, the plain version, no adapter in any answer."""
    monkeypatch.setattr(AdaptedSession, "__init__", lambda *_: pytest.fail("an adapted session was made"))
    engine = loaded(tiny["distilled"])
    assert type(engine._decoder) is OnnxSession and engine.adapters == ()
    outputs = [engine.infer([picture(i)]) for i in range(5)]
    assert {o.adapter for o in outputs} == {""} and engine.version == engine.manifest.version
    with pytest.raises(EngineError, match="no adapters"):
        engine.golden_answer("night")
    with pytest.raises(EngineError, match="no adapters"):
        engine.switch_times()


def test_the_base_weights_answer_as_without_adapters(source: Path, tmp_path: Path, fresh: VlmEngine) -> None:
    """The switchable graph without an adapter against the plain one: the same words, as surely."""
    target = tmp_path / "engine"
    shutil.copytree(source, target)
    (target / "plain.onnx").replace(target / "decoder.onnx")
    plain = loaded(described(target, lambda content: content.pop("adapters")))
    for number in range(10):
        wanted, _ = plain._answer([picture(number)], "", None)
        got, _ = fresh._answer([picture(number)], "", None)
        assert isinstance(wanted.payload, SceneAdvice) and isinstance(got.payload, SceneAdvice)
        assert got.payload.text == wanted.payload.text
        np.testing.assert_allclose(got.payload.token_probabilities, wanted.payload.token_probabilities, atol=1e-5)


def rewrite(path: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> None:
    content = ort.AdapterFormat.read_adapter(str(path))
    tensors = {k: np.array(v.numpy()) for k, v in content.get_parameters().items()}
    edit(tensors)
    new = ort.AdapterFormat()
    new.set_model_version(content.get_model_version())
    new.set_parameters({k: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(t)) for k, t in tensors.items()})
    new.export_adapter(str(path))


def wider(tensors: dict[str, np.ndarray]) -> None:
    name = next(n for n in tensors if n.endswith("lora_A"))
    tensors[name] = np.zeros((tensors[name].shape[0] + 1, 2), np.float32)


def huge(tensors: dict[str, np.ndarray]) -> None:
    for tensor in tensors.values():
        tensor[:] = 1e30


def nan(tensors: dict[str, np.ndarray]) -> None:
    next(iter(tensors.values())).flat[0] = np.nan


@pytest.mark.parametrize(
    ("edit", "message"),
    [(wider, "has shape"), (nan, "NaN"), (huge, "cannot answer the golden frame"), (lambda t: t.popitem(), "missing")],
)
def test_an_adapter_that_does_not_fit_is_refused_at_the_start(
    folder: Path, edit: Callable[[dict[str, np.ndarray]], Any], message: str
) -> None:
    path = folder / "night.onnx_adapter"
    rewrite(path, edit)
    described(folder)
    with pytest.raises(EngineError, match=message) as caught:
        loaded(folder)
    assert str(path) in str(caught.value)


def test_an_adapter_of_another_model_is_refused_at_the_start(folder: Path) -> None:
    write_scene(folder, "night", 0, base="cd" * 32)
    described(folder)
    with pytest.raises(EngineError, match=r"night\.onnx_adapter: was made for another base model"):
        loaded(folder)


def test_adapters_on_a_plain_decoder_are_refused(folder: Path) -> None:
    (folder / "plain.onnx").replace(folder / "decoder.onnx")
    described(folder)
    with pytest.raises(EngineError, match=r"decoder\.onnx: the graph takes no adapters.*out of the manifest"):
        loaded(folder)


def test_a_changed_or_missing_adapter_file_is_refused(folder: Path) -> None:
    path = folder / "night.onnx_adapter"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(EngineError, match=r"night\.onnx_adapter: content does not fit the manifest"):
        loaded(folder)
    path.unlink()
    with pytest.raises(EngineError, match=r"night\.onnx_adapter not found"):
        loaded(folder)


# -- the check ------------------------------------------------------------------------------------------------------


def test_the_check_has_a_row_for_adapters(source: Path) -> None:
    rows = {row.check: row for row in check(source)}
    assert [*rows] == ["manifest", "golden picture", "files", "load", "golden answer", "adapters", "latency"]
    assert rows["adapters"].ok, rows["adapters"].detail
    assert rows["adapters"].detail.startswith("night, rain, works: ") and "switch 0." in rows["adapters"].detail
    assert "night.onnx_adapter" in rows["files"].detail


def test_the_check_finds_an_adapter_that_changes_nothing(folder: Path) -> None:
    write_scene(folder, "night", 0, loud=0.0)
    row = next(row for row in check(described(folder)) if row.check == "adapters")
    assert not row.ok and "adapters.night: changes nothing" in row.detail


def test_the_check_finds_an_answer_that_does_not_come_back(fresh: VlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that carries something over from one adapter to the next."""
    answer, seen = VlmEngine.golden_answer, []

    def leaking(self: VlmEngine, adapter: str = "") -> EngineOutput:
        seen.append(adapter)
        output = answer(self, adapter)
        return dataclasses.replace(output, uncertainty=output.uncertainty / 2 if seen.count(adapter) > 1 else 0.5)

    monkeypatch.setattr(VlmEngine, "golden_answer", leaking)
    with pytest.raises(EngineError, match="another answer after switching"):
        try_adapters(fresh)


def test_the_slowest_adapter_decides_the_latency(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["triptych.engines.check"]  # the package gives the function of the same name
    monkeypatch.setattr(module, "measure", lambda _, adapter="": 1e6 if adapter else 0.1)
    row = check(folder)[-1]
    assert (row.check, row.ok) == ("latency", False) and "with adapter night" in row.detail
    monkeypatch.setattr(module, "measure", lambda _, adapter="": 0.1 if adapter else 0.2)
    assert check(folder)[-1].ok


def test_the_times_of_switching_leave_the_base_weights(fresh: VlmEngine) -> None:
    golden = said(fresh.infer([fresh.golden()]))
    times = fresh.switch_times()
    assert 0.0 < times.switch_ms < 5.0 and times.first_run_ms > 0.0 < times.steady_run_ms
    assert fresh.adapter == "" and said(fresh.infer([picture(1)]))[2] == ""
    assert said(fresh.infer([fresh.golden()])) == golden
