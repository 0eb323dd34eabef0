"""The section ``adapters`` of a manifest: what it may say, which is used, and that its files are the engine's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from triptych.contract import EngineError, Light, Road, SceneAdvice, Weather
from triptych.engines.manifest import (
    MAX_ADAPTERS,
    MAX_VERSION,
    SCENE_FIELDS,
    Manifest,
    When,
    load_manifest,
    resolve_files,
)

REPOSITORY = Path(__file__).resolve().parents[2]
VLM = REPOSITORY / "models" / "triptych-distilled" / "manifest.yaml"
ZEROS = "0" * 64


def entry(**when: Any) -> dict[str, Any]:
    return {"path": "a.onnx_adapter", "sha256": ZEROS, "when": when}


def written(folder: Path, adapters: Any, **changes: Any) -> Path:
    """The built-in model's manifest with adapters."""
    path = folder / "manifest.yaml"
    path.write_text(
        yaml.safe_dump({**yaml.safe_load(VLM.read_text()), "adapters": adapters, **changes}, sort_keys=False)
    )
    return path


def test_every_scene_can_be_asked_for(tmp_path: Path) -> None:
    """Each value of each field but the unknown one, as the contract has them."""
    for field, kind in SCENE_FIELDS.items():
        for value in kind:
            name = value.name.lower()
            path = written(tmp_path, {"one": entry(**{field: name})})
            if name == "unknown":
                with pytest.raises(EngineError, match=rf"adapters\.one\.when\.{field}: unknown {field} 'unknown'"):
                    load_manifest(path)
            else:
                when = load_manifest(path).adapters["one"].when
                assert when.conditions == {field: name} and when.holds(SceneAdvice(**{field: value}))  # type: ignore[arg-type]


@given(
    st.fixed_dictionaries(
        {}, optional={f: st.sampled_from([v.name.lower() for v in kind if v]) for f, kind in SCENE_FIELDS.items()}
    ).filter(bool),
    st.builds(SceneAdvice, st.sampled_from(Road), st.sampled_from(Weather), st.sampled_from(Light)),
)
def test_all_conditions_and_only_they_decide(conditions: dict[str, str], answer: SceneAdvice) -> None:
    found = {field: getattr(answer, field).name.lower() for field in conditions}
    assert When(**conditions).holds(answer) is (found == conditions)


def test_the_order_is_that_of_the_file(tmp_path: Path) -> None:
    adapters = {n: entry(light="night", weather=w) for n, w in (("z", "rain"), ("a", "fog"), ("m", "clear"))}
    manifest = load_manifest(written(tmp_path, {**adapters, "b": entry(light="night")}))
    assert [*manifest.adapters] == ["z", "a", "m", "b"]
    assert [*manifest.engine_files()] == [*manifest.files, *(f"adapters.{n}" for n in "zamb")]


@pytest.mark.parametrize(
    ("adapters", "expected"),
    [
        (
            {"night": entry(light="dark")},
            "adapters.night.when.light: unknown light 'dark', known are day, dusk, night;",
        ),
        (
            {"night": entry(weather="snow")},
            "adapters.night.when.weather: unknown weather 'snow', known are clear, rain",
        ),
        ({"night": entry(road="works", light="dark")}, "adapters.night.when.light: unknown light 'dark'"),
        ({"night": entry(light=["night"])}, "adapters.night.when.light"),
        ({"night": entry(sky="dark")}, "adapters.night.when.sky: is not a known field (got 'dark')"),
        ({"night": entry(advice="stop")}, "adapters.night.when.advice: is not a known field"),
        ({"night": entry()}, "adapters.night.when: is empty: name at least one of road, weather, light"),
        ({"night": entry(light=None)}, "adapters.night.when: is empty"),
        ({"night": {"path": "a", "sha256": ZEROS}}, "adapters.night.when: is missing"),
        ({"night": {**entry(light="night"), "path": "../a"}}, "adapters.night.path: must be relative"),
        ({"night": {**entry(light="night"), "sha256": "abc"}}, "adapters.night.sha256"),
        ({"night": {**entry(light="night"), "rank": 4}}, "adapters.night.rank: is not a known field"),
        ({"Night": entry(light="night")}, "'Night' is no name"),
        ({"": entry(light="night")}, "'' is no name"),
        ({"n" * 30: entry(light="night")}, f"above {MAX_VERSION} characters"),
        (
            {"night": entry(light="night"), "wet": entry(weather="rain", light="night")},
            "'wet' would never be used: 'night' is listed before it",
        ),
        ({"night": entry(light="night"), "dark": entry(light="night")}, "'dark' would never be used"),
        ({f"n{i}": entry(light="night") for i in range(MAX_ADAPTERS + 1)}, "adapters: dictionary should have at most"),
        ([], "adapters: input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, adapters: Any, expected: str) -> None:
    path = written(tmp_path, adapters)
    with pytest.raises(EngineError) as caught:
        load_manifest(path)
    sentence = str(caught.value)
    assert expected in sentence and str(path) in sentence and "correct the manifest" in sentence
    assert "\n" not in sentence and len(sentence) < 700


def test_a_narrower_one_before_a_wider_one_is_fine(tmp_path: Path) -> None:
    adapters = {"wet-night": entry(weather="rain", light="night"), "night": entry(light="night")}
    assert [*load_manifest(written(tmp_path, adapters)).adapters] == ["wet-night", "night"]


def test_a_detector_has_none(edit: Callable[..., Path]) -> None:
    with pytest.raises(EngineError, match="a detector has no adapters"):
        load_manifest(edit({"adapters": {"night": entry(light="night")}}))


def test_the_version_says_which_is_in_use() -> None:
    manifest = load_manifest(VLM)
    assert manifest.adapters == {} and [*manifest.engine_files()] == [*manifest.files]
    assert manifest.version_with("") == manifest.version
    assert manifest.version_with("night") == f"{manifest.version}+night"


def test_the_longest_version_fits_the_messages(tmp_path: Path) -> None:
    version = "1" * (MAX_VERSION - len("+night"))
    path = written(tmp_path, {"night": entry(light="night")}, version=version)
    assert len(load_manifest(path).version_with("night")) == MAX_VERSION
    with pytest.raises(EngineError, match=r"version and adapter name make"):
        load_manifest(written(tmp_path, {"night": entry(light="night")}, version=version + "1"))


def test_its_files_are_found_and_verified_like_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("encoder.onnx", "decoder.onnx", "vocabulary.json"):
        (tmp_path / name).write_bytes((VLM.parent / name).read_bytes())
    (tmp_path / "a.onnx_adapter").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    path = written(tmp_path, {"night": {**entry(light="night"), "sha256": digest}})
    manifest: Manifest = load_manifest(path)
    found = resolve_files(manifest, path)
    assert found["adapters.night"] == tmp_path / "a.onnx_adapter" and set(found) == {*manifest.files, "adapters.night"}
    (tmp_path / "a.onnx_adapter").write_bytes(b"weight5")
    with pytest.raises(EngineError, match=r"a\.onnx_adapter: content does not fit the manifest"):
        resolve_files(manifest, path)
    (tmp_path / "a.onnx_adapter").unlink()
    with pytest.raises(EngineError, match=r"engine file a\.onnx_adapter not found"):
        resolve_files(manifest, path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.onnx_adapter").write_bytes(b"weights")
    monkeypatch.setenv("TRIPTYCH_ENGINE_DIR", str(elsewhere))
    assert resolve_files(manifest, path)["adapters.night"] == elsewhere / "a.onnx_adapter"
