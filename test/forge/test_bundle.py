"""Bundles: whole or not at all, the same from the same inputs, and every change is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from triptych.contract import ConfigError, EngineError
from triptych.resources import resource
from triptych_forge.bundle import Bundle, check_bundle, write_bundle
from triptych_forge.decisions import DecisionLog

SOURCE = resource("models") / "triptych-distilled"


def parts(tmp_path: Path, note: str = "x") -> dict[str, Path | bytes]:
    log = tmp_path / "log" / "decisions.jsonl"
    if not log.exists():
        DecisionLog(log, {}).add("quantise.accept", "encoder", milliseconds=1.5)
    names = ("manifest.yaml", "encoder.onnx", "decoder.onnx", "vocabulary.json", "golden.png", "MODEL_CARD.md")
    files: dict[str, Path | bytes] = {name: SOURCE / name for name in names}
    return {**files, "recipe.json": b"{}\n", "decisions.jsonl": log, "fidelity.json": note.encode()}


def test_the_same_inputs_give_the_same_hash(tmp_path: Path) -> None:
    one = write_bundle(tmp_path / "one", parts(tmp_path), "aa")
    other = write_bundle(tmp_path / "other", parts(tmp_path, "another timing"), "aa")
    assert one.content_sha256 == other.content_sha256 and one.evidence != other.evidence
    assert check_bundle(tmp_path / "one") == one and one.decisions == 1
    changed = {**parts(tmp_path), "recipe.json": b'{"seed": 2}\n'}
    assert write_bundle(tmp_path / "third", changed, "aa").content_sha256 != one.content_sha256
    assert write_bundle(tmp_path / "fourth", parts(tmp_path), "bb").content_sha256 != one.content_sha256


def test_a_bundle_replaces_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    write_bundle(out, {**parts(tmp_path), "extra.txt": b"old"})
    assert "extra.txt" not in write_bundle(out, parts(tmp_path)).content and not (out / "extra.txt").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["manifest.yaml", "recipe.json", "decisions.jsonl", "fidelity.json", "decoder.onnx"])
def test_what_is_missing_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    files = parts(tmp_path)
    del files[name]
    with pytest.raises(ConfigError, match=name):
        write_bundle(tmp_path / "out", files)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "bundle.json"])
def test_no_file_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no name"):
        write_bundle(tmp_path / "out", {**parts(tmp_path), name: b""})


def test_an_engine_that_the_manifest_does_not_mean(tmp_path: Path) -> None:
    """V3: what was exported and what was described must be the same."""
    with pytest.raises(ConfigError, match=r"encoder\.onnx"):
        write_bundle(tmp_path / "out", {**parts(tmp_path), "encoder.onnx": b"other"})
    with pytest.raises(EngineError):
        write_bundle(tmp_path / "out", {**parts(tmp_path), "manifest.yaml": b"[]"})


def damaged(folder: Path, how: str) -> None:
    listing = folder / "bundle.json"
    content = json.loads(listing.read_text())
    if how == "changed":
        (folder / "decoder.onnx").write_bytes((folder / "decoder.onnx").read_bytes()[:-1])
    elif how == "gone":
        (folder / "vocabulary.json").unlink()
    elif how == "more":
        (folder / "more.bin").write_bytes(b"")
    elif how == "listing":
        content["content_sha256"] = "0" * 64
        listing.write_text(json.dumps(content))
    elif how == "name":
        content["name"] = "another"
        listing.write_text(json.dumps(content))
    elif how == "count":
        content["decisions"] = 7
        listing.write_text(json.dumps(content))
    elif how == "field":
        content["more"] = 7
        listing.write_text(json.dumps(content))
    else:
        listing.unlink()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("changed", "decoder.onnx: was changed"),
        ("gone", "vocabulary.json: is missing"),
        ("more", "more.bin: is not listed"),
        ("listing", "content_sha256"),
        ("name", "is not the manifest's"),
        ("count", "lines were added or removed"),
        ("field", "more"),
        ("none", "cannot be read"),
    ],
)
def test_damage_is_found(tmp_path: Path, how: str, sentence: str) -> None:
    write_bundle(tmp_path / "out", parts(tmp_path))
    damaged(tmp_path / "out", how)
    with pytest.raises(ConfigError, match=sentence):
        check_bundle(tmp_path / "out")


def test_a_copy_is_as_good(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "out", parts(tmp_path))
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert isinstance(check_bundle(tmp_path / "copy"), Bundle) and check_bundle(tmp_path / "copy") == bundle
