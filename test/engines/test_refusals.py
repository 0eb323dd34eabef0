"""What a wrong engine gets: one sentence, never a traceback, never ACTIVE (A14, A5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.contract import EngineError, Frame
from triptych.engines import check, load_engine, self_test
from triptych.engines.session import OnnxSession

Edit = Callable[..., Path]


def refused(path: Path, **arguments: Any) -> str:
    """The sentence load_engine refuses ``path`` with."""
    with pytest.raises(EngineError) as caught:
        load_engine(path, **arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 700
    return sentence


def rehash(folder: Path, edit: Edit) -> Path:
    """Write the present file's hash into the manifest, as somebody who means the change would."""
    return edit({"files.model.sha256": hashlib.sha256((folder / "detector.onnx").read_bytes()).hexdigest()})


def test_the_copy_itself_is_fine(folder: Path) -> None:
    """Guards the tests below: what they refuse is refused for the change they made."""
    assert self_test(load_engine(folder)).payload is not None


def test_no_manifest(tmp_path: Path) -> None:
    assert "no such manifest" in refused(tmp_path)
    assert "no such manifest" in refused(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: [1,", "not valid YAML at line"), ("- 1", "YAML mapping"), ("", "YAML mapping"), ("\0", "not valid YAML")],
)
def test_a_manifest_that_is_no_manifest(folder: Path, text: str, expected: str) -> None:
    (folder / "manifest.yaml").write_text(text, encoding="utf-8")
    assert expected in refused(folder)


def test_a_manifest_that_is_not_text(folder: Path) -> None:
    (folder / "manifest.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"name": "../x"}, "name"),
        ({"version": None}, "version: is missing"),
        ({"colour_of_box": "red"}, "colour_of_box: is not a known field"),
        ({"task": "segmenter"}, "task"),
        ({"task": "vlm"}, "files of a vlm must be exactly encoder, decoder, tokenizer"),
        ({"files.model.path": "/etc/passwd"}, "must be relative"),
        ({"files.model.path": "../detector.onnx"}, "must be relative"),
        ({"files.model.sha256": "abc"}, "files.model.sha256"),
        ({"input.width": 0}, "input.width"),
        ({"input.width": float("nan")}, "input.width"),
        ({"input.scale": float("nan")}, "input.scale"),
        ({"input.scale": float("inf")}, "input.scale"),
        ({"input.scale": 2.0}, "takes no scale"),
        ({"thresholds.score": 1.5}, "thresholds.score"),
        ({"thresholds.nms_iou": float("nan")}, "thresholds.nms_iou"),
        ({"thresholds.per_label": {"lorry": 0.3}}, "'lorry', which is not among labels"),
        ({"classes": {"vehicle": "spaceship"}}, "unknown class 'spaceship'"),
        ({"classes": {"lorry": "vehicle"}}, "'lorry', which is not among labels"),
        ({"classes": {}}, "classes is empty"),
        ({"labels": ["vehicle"] * 5}, "labels must be distinct"),
        ({"labels": []}, "a detector needs labels"),
        ({"latency.budget_ms": 0}, "latency.budget_ms"),
        ({"latency.nominal_ms": float("inf")}, "latency.nominal_ms"),
        ({"golden.minimum": {}}, "must expect something"),
        ({"golden.minimum": {"spaceship": 1}}, "unknown class 'spaceship'"),
        ({"golden.pattern": "stop-sign"}, "either file or pattern"),
        ({"max_fallback_share": 2}, "max_fallback_share"),
        ({"language": {}}, "no language section"),
    ],
)
def test_fields_that_do_not_fit(edit: Edit, changes: dict[str, Any], expected: str) -> None:
    """A6, A14: each wrong field is named, NaN and infinity included."""
    assert expected in refused(edit(changes))


def test_unknown_decoder(edit: Edit) -> None:
    sentence = refused(edit({"decoder": "yolo99"}))
    assert "unknown decoder" in sentence
    assert "yolox" in sentence


def test_missing_engine_file(folder: Path) -> None:
    (folder / "detector.onnx").rename(folder / "renamed.onnx")
    sentence = refused(folder)
    assert "detector.onnx not found in" in sentence
    assert "TRIPTYCH_ENGINE_DIR" in sentence


def test_a_truncated_file_does_not_fit_its_hash(folder: Path) -> None:
    file = folder / "detector.onnx"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "sha256" in refused(folder)


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_a_broken_file_whose_hash_was_written_down(folder: Path, edit: Edit, content: bytes | None) -> None:
    """Empty, text, or cut in half (None)."""
    file = folder / "detector.onnx"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content is None else content)
    assert "ONNX Runtime cannot load it" in refused(rehash(folder, edit))


def test_another_engine_under_this_name(folder: Path, edit: Edit, shared_data: Path) -> None:
    (folder / "detector.onnx").write_bytes((shared_data / "detectors" / "fastestdet_352.onnx").read_bytes())
    assert "shapes do not fit: the file has 1x3x352x352" in refused(rehash(folder, edit))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input.width": 416}, "the manifest's input needs 1x256x416x3"),
        ({"input.layout": "nchw"}, "the manifest's input needs 1x3x256x448"),
        ({"input.dtype": "float32"}, "input type is not float32"),
        ({"decoder": "yolox"}, "decoder yolox with 5 labels needs 1x2352x10"),
        (
            {"labels": ["vehicle", "two_wheeler", "pedestrian", "sign"], "classes": {"sign": "sign"},
             "thresholds.per_label": {}},
            "decoder triptych with 4 labels needs 1x2352x8",
        ),
    ],
)  # fmt: skip
def test_shapes_and_labels_that_do_not_fit_the_file(edit: Edit, changes: dict[str, Any], expected: str) -> None:
    assert expected in refused(edit(changes))


def test_devices(folder: Path) -> None:
    """V9: an unknown or absent device is refused by name; the actual device and the fallback count are reported."""
    assert "unknown device" in refused(folder, device="tpu")
    assert "not available here, available are cpu" in refused(folder, device="tensorrt")
    assert "threads" in refused(folder, threads=0)
    report = load_engine(folder).device
    assert (report.requested, report.actual, report.nodes_fallback) == ("cpu", "cpu", 0)


def test_too_many_fallback_nodes_are_refused(folder: Path) -> None:
    """V9: above the manifest's share the session is refused, with count and names; at the share it is not."""
    session = OnnxSession(folder / "detector.onnx")
    session.refuse_fallback_above(0.0)
    total = max(session.device.nodes_total, 10)
    names = tuple(f"Conv_{i}" for i in range(total // 2))
    session.device = type(session.device)("cuda", "cuda", "test", total, len(names))
    session.fallback_nodes = names
    session.refuse_fallback_above(0.5)
    with pytest.raises(EngineError, match=rf"{len(names)} of {total} nodes fell back to the CPU \(Conv_0, Conv_1"):
        session.refuse_fallback_above(0.3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"golden.minimum": {"vehicle": 40}}, "at least 40 expected"),
        ({"thresholds": {"score": 1.0}}, r"found 0 \w+ on the golden frame"),
    ],
)
def test_a_golden_frame_without_the_expected_answer(edit: Edit, changes: dict[str, Any], expected: str) -> None:
    """A5: a model that returns nothing on the golden frame is not activated."""
    engine = load_engine(edit(changes))
    with pytest.raises(EngineError, match=expected):
        self_test(engine)


def test_golden_pictures_that_cannot_be_used(folder: Path, edit: Edit) -> None:
    golden = folder / "golden.png"
    golden.write_bytes(golden.read_bytes()[:-1] + b"x")
    assert "sha256" in refused(folder)
    golden.write_bytes(b"no picture")
    digest = hashlib.sha256(b"no picture").hexdigest()
    assert "is not a picture" in refused(edit({"golden.file.sha256": digest}))
    assert "unknown pattern" in refused(edit({"golden": {"pattern": "unicorn", "minimum": {"sign": 1}}}))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_network_that_computes_nonsense(folder: Path, monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """A6: NaN or infinity anywhere in the output is an error, not a detection."""
    engine = load_engine(folder)
    run = OnnxSession.run

    def poisoned(self: OnnxSession, *arguments: Any) -> list[Any]:
        outputs = run(self, *arguments)
        outputs[0][0, 17, 2] = bad
        return outputs

    monkeypatch.setattr(OnnxSession, "run", poisoned)
    with pytest.raises(EngineError, match="NaN or infinity"):
        engine.infer([engine.golden()])


def test_a_network_that_changes_its_shape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_engine(folder)
    run = OnnxSession.run
    monkeypatch.setattr(OnnxSession, "run", lambda self, *a: [o[:, :-1] for o in run(self, *a)])
    with pytest.raises(EngineError, match="shapes do not fit"):
        engine.infer([engine.golden()])


def test_no_frame(folder: Path) -> None:
    with pytest.raises(EngineError, match="no frame"):
        load_engine(folder).infer([])


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (7, 5)])
def test_odd_pictures_give_a_bounded_answer(folder: Path, size: tuple[int, int]) -> None:
    """A6: the smallest and the thinnest pictures are answered with boxes inside the picture."""
    image = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    payload = load_engine(folder).infer([Frame(image, 1, 1)]).payload
    assert (payload.image_width, payload.image_height) == (size[1], size[0])
    for d in payload.detections:
        assert 0 <= d.x_min < d.x_max <= size[1]
        assert 0 <= d.y_min < d.y_max <= size[0]


def test_check_names_the_step_that_failed(folder: Path, edit: Edit) -> None:
    """The command's rows: all good for the built-in engine, and the first failure with its remedy otherwise."""
    rows = check(folder)
    assert [r.check for r in rows] == ["manifest", "golden picture", "files", "load", "golden answer", "latency"]
    assert [r.detail for r in rows if not r.ok and r.check != "latency"] == []
    rows = check(edit({"golden.minimum": {"vehicle": 40}}))
    assert [(r.check, r.ok) for r in rows][-1] == ("golden answer", False)
    rows = check(edit({"latency.budget_ms": 0.001, "golden.minimum": {"vehicle": 1}}))
    assert (rows[-1].check, rows[-1].ok) == ("latency", False)
    assert "above the budget of 0.001 ms" in rows[-1].detail
    (folder / "detector.onnx").write_bytes(b"")
    assert [(r.check, r.ok) for r in check(folder)][-1] == ("files", False)
    assert [(r.check, r.ok) for r in check(folder / "none.yaml")] == [("manifest", False)]
