"""Small VLMs as engine folders that the runtime loads, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2

from triptych.contract import Frame, SceneAdvice
from triptych.engines.load import load_engine
from triptych_forge.common import sha256_of, write_atomically
from triptych_forge.demo.recipe import NAME
from triptych_forge.vlm import judge
from triptych_forge.vlm.export import export
from triptych_forge.vlm.model import Vlm
from triptych_forge.vlm.release import manifest_of, vocabulary_bytes, write_manifest
from triptych_forge.vlm.scenes import Scenes
from triptych_forge.vlm.train import Recipe
from triptych_forge.vlm.words import truth_of

ANY_GOLDEN: dict[str, Any] = {"pattern": "stop-sign", "answer": {"road": "unknown"}}
"""A placeholder: engines of the steps in between are judged, never released."""
FIELDS = ("road", "weather", "light", "advice")


def write_engine(model: Vlm, recipe: Recipe, folder: Path) -> Path:
    """Export a model and describe it, so that the runtime can load it; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    export(model, folder)
    describe(model, recipe, folder, ANY_GOLDEN)
    return folder


def describe(model: Vlm, recipe: Recipe, folder: Path, golden: Mapping[str, Any], engine: str = NAME) -> None:
    """Write vocabulary and manifest for the graphs in ``folder``."""
    write_atomically(folder / "vocabulary.json", vocabulary_bytes())
    content = manifest_of(model, replace(recipe, model="distilled"), folder, golden)
    content["name"] = engine
    if engine == NAME:
        content["provenance"] |= {
            "source": "made by triptych forge demo: small, to show the tool chain, not to drive with",
            "data": f"{recipe.drives} rendered drives of triptych.scenario",
            "recipe": "triptych forge demo",
        }
    write_manifest(folder, content)


def figures_of(folder: Path, scenes: Scenes) -> judge.Figures:
    """Answers of the engine in ``folder`` to unseen drives, counted."""
    engine = load_engine(folder)
    try:
        return judge.judge(engine, scenes)
    finally:
        engine.close()


def golden_of(folder: Path, scenes: Scenes) -> dict[str, Any]:
    """Write the picture that the engine is surest about, rightly if it is ever right, as ``golden.png``.

    The self-test asks whether an engine still says what it said when it was released.
    """
    engine = load_engine(folder)
    best: tuple[bool, float, Any, SceneAdvice] | None = None
    for drive, tick in judge.clips(scenes, 4):
        image = scenes.frame(drive, tick)
        output = engine.infer([Frame(image, 0, 1)])
        assert isinstance(output.payload, SceneAdvice)
        wrong = truth_of(output.payload) != scenes.truths[drive][tick]
        if best is None or (wrong, output.uncertainty) < best[:2]:
            best = wrong, output.uncertainty, image, output.payload
    engine.close()
    assert best is not None
    good, encoded = cv2.imencode(".png", best[2], [cv2.IMWRITE_PNG_COMPRESSION, 9])
    assert good
    write_atomically(folder / "golden.png", encoded.tobytes())
    answer = {name: getattr(best[3], name).name.lower() for name in FIELDS}
    return {"file": {"path": "golden.png", "sha256": sha256_of(folder / "golden.png")}, "answer": answer}


def graph_bytes(folder: Path) -> int:
    """Size of both graphs."""
    return sum((folder / name).stat().st_size for name in ("encoder.onnx", "decoder.onnx"))
