"""Bundles: whole or not at all, the same from the same inputs, and every change is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml

from triptych.contract import ConfigError, EngineError
from triptych.resources import resource
from triptych_forge.bundle import Bundle, check_bundle, content_hash, write_bundle
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


def with_adapter(tmp_path: Path, content: bytes = b"weights", **entry: str) -> dict[str, Path | bytes]:
    """The parts with an adapter that the manifest names."""
    manifest = yaml.safe_load((SOURCE / "manifest.yaml").read_text())
    digest = hashlib.sha256(b"weights").hexdigest()
    listed = {"path": "adapters/night.onnx_adapter", "sha256": digest, "when": {"light": "night"}, **entry}
    text = yaml.safe_dump({**manifest, "adapters": {"night": listed}}).encode()
    return {**parts(tmp_path), "manifest.yaml": text, "adapters/night.onnx_adapter": content}


def test_adapters_are_content(tmp_path: Path) -> None:
    """They decide the answers: their hash is in the bundle's, and a change of them is found."""
    out = tmp_path / "out"
    bundle = write_bundle(out, with_adapter(tmp_path))
    name = "adapters/night.onnx_adapter"
    assert bundle.content[name] == hashlib.sha256(b"weights").hexdigest() and check_bundle(out) == bundle
    assert bundle.content_sha256 != write_bundle(tmp_path / "plain", parts(tmp_path)).content_sha256
    (out / name).write_bytes(b"weightz")
    with pytest.raises(ConfigError, match=f"{name}: was changed"):
        check_bundle(out)
    (out / name).unlink()
    with pytest.raises(ConfigError, match=f"{name}: is missing"):
        check_bundle(out)


def test_an_adapter_that_the_manifest_does_not_mean(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"night\.onnx_adapter: has another SHA-256"):
        write_bundle(tmp_path / "out", with_adapter(tmp_path, b"other"))
    with pytest.raises(ConfigError, match=r"night\.bin: is named by the manifest and not in the bundle"):
        write_bundle(tmp_path / "out", with_adapter(tmp_path, path="adapters/night.bin"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["adapters/night.onnx_adapter", "golden.png", "decoder.onnx"])
def test_a_list_that_was_made_to_fit_a_bundle_without_a_named_file(tmp_path: Path, name: str) -> None:
    """Whoever takes a file out of the folder and out of the list has still not taken it out of the manifest."""
    out = tmp_path / "out"
    write_bundle(out, with_adapter(tmp_path))
    (out / name).unlink()
    listing = json.loads((out / "bundle.json").read_text())
    del listing["content"][name]
    listing["content_sha256"] = content_hash(listing["content"], listing["calibration_sha256"])
    (out / "bundle.json").write_text(json.dumps(listing))
    with pytest.raises(ConfigError, match=f"{name}: is named by the manifest and not in the bundle"):
        check_bundle(out)


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
