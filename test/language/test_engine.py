"""The VLM engine on a tiny random model: cache, determinism, deadlines, and every misfit of its files."""

import hashlib
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from vocabularies import uncounted_file

from triptych.contract import Advice, EngineError, Frame, InputError, SceneAdvice, Tier
from triptych.contract.result import COUNTED, MOST_COUNTED, NOT_COUNTED
from triptych.engines.load import load_engine
from triptych.language.engine import VlmEngine
from triptych.language.tokeniser import COUNT_TOKENS
from triptych.tiers.checks import unusable
from triptych_forge.vlm.words import vocabulary_file

RNG = np.random.default_rng(8)


def frame(number: int = 1, seed: int = 0, stamp_ns: int | None = None, size: tuple[int, int] = (90, 160)) -> Frame:
    image = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    return Frame(image, stamp_ns if stamp_ns is not None else number * 10**8, number)


@pytest.fixture(scope="module", params=["distilled", "full"])
def engine(request: pytest.FixtureRequest, tiny: dict[str, Path]) -> VlmEngine:
    loaded = load_engine(tiny[request.param])
    assert isinstance(loaded, VlmEngine)
    return loaded


def logits_of(engine: VlmEngine, frames: list[Frame]) -> np.ndarray:
    """Logits of the first token."""
    count = engine.manifest.frames
    pictures = np.stack([engine._preprocess(f.image)[0][0].copy() for f in ([frames[0]] * count + frames)[-count:]])
    memory = engine._encoder.run({"frames": pictures, "ages_s": np.zeros(count, np.float32)})
    return engine._stepper(memory)([engine.vocabulary.bos, engine.vocabulary.answer])


def test_the_golden_frame_passes_and_another_expectation_fails(engine: VlmEngine) -> None:
    output = engine.infer([engine.golden()])
    assert engine.golden_ok(output) == ""
    assert isinstance(output.payload, SceneAdvice) and 0.0 <= output.uncertainty <= 1.0
    wrong = {"road": "works" if output.payload.road.name != "WORKS" else "rural"}
    golden = engine.manifest.golden.model_copy(update={"answer": wrong})
    before = engine.manifest
    engine.manifest = before.model_copy(update={"golden": golden})
    try:
        assert "on the golden frame, expected" in engine.golden_ok(output)
    finally:
        engine.manifest = before


def test_an_unsure_golden_answer_fails(engine: VlmEngine) -> None:
    output = engine.infer([engine.golden()])
    before = engine.config
    engine.config = before.model_copy(update={"uncertainty_max": max(output.uncertainty / 2, 1e-9)})
    try:
        assert "too unsure" in engine.golden_ok(output)
    finally:
        engine.config = before


def test_the_same_input_gives_the_same_answer_bit_for_bit(engine: VlmEngine) -> None:
    frames = [frame(i, i) for i in range(1, 4)]
    first = engine.infer(frames, "what is ahead")
    engine.infer([frame(9, 9)])
    second = engine.infer(frames, "what is ahead")
    assert first.payload == second.payload and first.uncertainty == second.uncertainty


def test_the_cache_says_what_one_go_says(engine: VlmEngine) -> None:
    count = engine.manifest.frames
    pictures = np.stack([engine._preprocess(frame().image)[0][0].copy()] * count)
    memory = engine._encoder.run({"frames": pictures, "ages_s": np.zeros(count, np.float32)})
    tokens = [1, 2, 9, 14, 17, 30]
    whole = engine._stepper(memory)(tokens)
    step = engine._stepper(memory)
    for token in tokens:
        last = step([token])
    np.testing.assert_allclose(last, whole, atol=2e-4)


def test_another_picture_changes_the_distribution(engine: VlmEngine) -> None:
    """V1, V10: the answer hangs on the pixels; a blank picture says something else than a real one."""
    seen = logits_of(engine, [frame(1, 1)])
    blank = logits_of(engine, [Frame(np.zeros((90, 160, 3), np.uint8), 1, 1)])
    other = logits_of(engine, [frame(1, 2)])
    assert np.abs(seen - blank).max() > 0.05
    assert np.abs(seen - other).max() > 1e-3


def test_frames_missing_at_the_start_are_stood_in_for(engine: VlmEngine) -> None:
    one = engine.infer([frame(1, 3)])
    many = engine.infer([frame(1, 3)] * 3)
    assert one.payload == many.payload


def test_only_the_newest_frames_count(engine: VlmEngine) -> None:
    frames = [frame(i, i) for i in range(1, 6)]
    assert engine.infer(frames).payload == engine.infer(frames[-engine.frames_wanted :]).payload


def test_history_and_its_timing_matter_to_a_model_of_several_frames(tiny: dict[str, Path]) -> None:
    engine = load_engine(tiny["full"])
    now = frame(3, 3)
    alone = engine.infer([now])
    assert isinstance(alone.payload, SceneAdvice)

    def probabilities(frames: list[Frame]) -> tuple[float, ...]:
        payload = engine.infer(frames).payload
        assert isinstance(payload, SceneAdvice)
        return payload.token_probabilities

    moved = probabilities([frame(1, 1), frame(2, 2), now])
    assert moved != alone.payload.token_probabilities
    slow = [Frame(frame(1, 1).image, 0, 1), Frame(frame(2, 2).image, 10**9, 2), Frame(now.image, 2 * 10**9, 3)]
    fast = [Frame(f.image, f.stamp_ns // 10, f.number) for f in slow]
    assert probabilities(slow) != probabilities(fast)
    # Stamps that run backwards or jump are clipped, not believed.
    wild = [Frame(frame(1, 1).image, 10**15, 1), Frame(frame(2, 2).image, -(10**15), 2), now]
    assert all(np.isfinite(probabilities(wild)))


def test_questions_are_answered_only_by_a_model_that_takes_them(engine: VlmEngine) -> None:
    payload = engine.infer([frame()], "What is ahead?").payload
    assert isinstance(payload, SceneAdvice)
    assert payload.question == ("What is ahead?" if engine.config.questions else "")
    if engine.config.questions:
        with pytest.raises(InputError, match="characters"):
            engine.infer([frame()], "why " * 40)


def test_an_expired_deadline_gives_a_cautious_answer_and_the_next_request_works(engine: VlmEngine) -> None:
    """A7: hard deadline; the next request is served."""
    late = engine.infer([frame()], deadline_monotonic_ns=time.monotonic_ns() - 1)
    assert isinstance(late.payload, SceneAdvice)
    assert late.payload.advice is Advice.CAUTION and late.uncertainty == 1.0
    assert engine.golden_ok(engine.infer([engine.golden()])) == ""


def test_a_model_that_counts_gives_every_count(engine: VlmEngine) -> None:
    """Unless the deadline cut them off."""
    payload = engine.infer([frame()]).payload
    late = engine.infer([frame()], deadline_monotonic_ns=time.monotonic_ns() - 1).payload
    assert all(0 <= getattr(payload, name) <= MOST_COUNTED for name in COUNTED)
    assert [getattr(late, name) for name in COUNTED] == [NOT_COUNTED] * 3


def test_a_model_whose_vocabulary_does_not_count_gives_no_count(tiny: dict[str, Path], tmp_path: Path) -> None:
    """The same graph, whose numbers stand for words: what was made before there were counts goes on working."""
    folder = copied(tiny["full"], tmp_path / "m")
    content = uncounted_file()
    spare = tuple(f"spare{number}" for number in range(len(COUNT_TOKENS)))
    whole = content.model_copy(update={"tokens": (*content.tokens, *spare)})
    (folder / "vocabulary.json").write_text(whole.model_dump_json())
    rehash(folder, "tokenizer", "vocabulary.json")
    engine = load_engine(folder)
    for question in ("", "what is ahead", "how many vehicles do you see"):
        output = engine.infer([frame()], question)
        assert isinstance(output.payload, SceneAdvice) and not unusable(Tier.FULL, output)
        assert [getattr(output.payload, name) for name in COUNTED] == [NOT_COUNTED] * 3


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_nan_in_an_output_is_an_engine_error_and_the_next_request_works(engine: VlmEngine, graph: str) -> None:
    """A6: NaN never becomes advice."""
    session = getattr(engine, f"_{graph}")

    class Broken:
        def run(self, feeds: dict[str, Any]) -> list[np.ndarray]:
            outputs = session.run(feeds)
            return [np.full_like(outputs[0], np.nan), *outputs[1:]]

    setattr(engine, f"_{graph}", Broken())
    try:
        with pytest.raises(EngineError, match=r"NaN|not finite"):
            engine.infer([frame()])
    finally:
        setattr(engine, f"_{graph}", session)
    assert engine.golden_ok(engine.infer([engine.golden()])) == ""


def test_no_frame_is_an_engine_error(engine: VlmEngine) -> None:
    with pytest.raises(EngineError, match="no frame"):
        engine.infer([])


@pytest.mark.parametrize("size", [(1, 1), (7, 2000), (1080, 1920)])
def test_any_picture_size_is_taken(engine: VlmEngine, size: tuple[int, int]) -> None:
    assert isinstance(engine.infer([frame(size=size)]).payload, SceneAdvice)


def test_the_report_names_the_device_and_counts_both_graphs(engine: VlmEngine) -> None:
    """V9: the actual device is always known."""
    report = engine.device
    assert report.requested == report.actual == "cpu" and report.nodes_fallback == 0
    assert report.nodes_total == engine._encoder.device.nodes_total + engine._decoder.device.nodes_total > 0


# -- files that do not fit (A14) --


def copied(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a model folder with its manifest changed: dotted keys."""
    shutil.copytree(source, target)
    content = yaml.safe_load((target / "manifest.yaml").read_text())
    for key, value in changes.items():
        at = content
        *path, last = key.split(".")
        for part in path:
            at = at[part]
        at[last] = value
    (target / "manifest.yaml").write_text(yaml.safe_dump(content))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": "yolox"}, "unknown decoder"),
        ({"input.width": 96}, "frames: has shape"),
        ({"frames": 2}, "frames: has shape"),
        ({"input.dtype": "float32"}, "normalises by itself"),
        ({"language.layers": 1}, "nobody feeds"),
        ({"language.layers": 3}, "no such"),
        ({"language.heads": 4}, "has shape"),
        ({"language.head_size": 8}, "has shape"),
        ({"language.max_tokens": 16}, "above 16"),
        ({"language.max_tokens": 65}, "language.max_tokens"),
        ({"language.step_margin_ms": -1.0}, "language.step_margin_ms"),
        ({"language.colour": "red"}, "language.colour"),
        ({"golden.answer": {"mood": "good"}}, "no field of an answer"),
        ({"files.encoder.sha256": "0" * 64}, "sha256"),
        ({"files.encoder.path": "other.onnx"}, "not found"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tiny: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A14: refused with the reason before ACTIVE."""
    with pytest.raises(EngineError, match=message):
        load_engine(copied(tiny["distilled"], tmp_path / "m", **changes))


def rehash(folder: Path, role: str, name: str) -> None:
    content = yaml.safe_load((folder / "manifest.yaml").read_text())
    content["files"][role]["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content))


def test_swapped_graphs_are_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(tiny["distilled"], tmp_path / "m")
    (folder / "encoder.onnx").rename(folder / "x")
    (folder / "decoder.onnx").rename(folder / "encoder.onnx")
    (folder / "x").rename(folder / "decoder.onnx")
    rehash(folder, "encoder", "encoder.onnx")
    rehash(folder, "decoder", "decoder.onnx")
    with pytest.raises(EngineError, match="no such input"):
        load_engine(folder)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_truncated_graph_is_refused(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = copied(tiny["distilled"], tmp_path / "m")
    path = folder / f"{name}.onnx"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(EngineError, match="sha256"):
        load_engine(folder)
    rehash(folder, name, path.name)
    with pytest.raises(EngineError, match="cannot load"):
        load_engine(folder)


def test_a_vocabulary_of_another_size_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(tiny["distilled"], tmp_path / "m")
    content = vocabulary_file()
    longer = content.model_copy(update={"tokens": (*content.tokens, "zeppelin")})
    (folder / "vocabulary.json").write_text(longer.model_dump_json())
    rehash(folder, "tokenizer", "vocabulary.json")
    with pytest.raises(EngineError, match="logits: has shape"):
        load_engine(folder)
