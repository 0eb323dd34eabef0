"""A tiny VLM with random weights, exported by the very code that exports the real ones."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

TINY = {"distilled": (64, 32, 1), "full": (64, 32, 3)}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folder per kind; skipped where torch is missing."""
    torch = pytest.importorskip("torch", reason="needs the forge extra (torch)")
    pytest.importorskip("onnx", reason="needs the forge extra (onnx)")
    from triptych_forge.common import sha256_of
    from triptych_forge.vlm.export import export
    from triptych_forge.vlm.model import Shape, Vlm
    from triptych_forge.vlm.release import manifest_of, vocabulary_bytes, write_manifest
    from triptych_forge.vlm.train import RECIPES
    from triptych_forge.vlm.words import make_vocabulary

    folders = {}
    for kind, (width, height, frames) in TINY.items():
        torch.manual_seed(4)
        shape = Shape(width, height, frames, (8, 8, 16), (1, 1, 1), 32, 2, 2, 1, 32)
        model = Vlm(shape, len(make_vocabulary()))
        # Random weights alone hardly look at the picture: make the picture's part loud.
        with torch.no_grad():
            for layer in model.decoder.layers:
                layer.out2.weight.mul_(6)
            model.decoder.head.weight.mul_(8)
        folder = tmp_path_factory.mktemp(kind)
        export(model, folder)
        (folder / "vocabulary.json").write_bytes(vocabulary_bytes())
        picture = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / "golden.png"), picture)
        entry = {"path": "golden.png", "sha256": sha256_of(folder / "golden.png")}
        content = manifest_of(model, RECIPES[kind], folder, {"file": entry, "answer": {"road": "unknown"}})
        content["language"]["uncertainty_max"] = 1.0
        write_manifest(folder, content)
        # The random model's own answer is what the golden picture expects.
        from triptych.engines.load import load_engine

        engine = load_engine(folder)
        payload = engine.infer([engine.golden()]).payload
        names = ("road", "weather", "light", "advice")
        content["golden"]["answer"] = {n: getattr(payload, n).name.lower() for n in names}
        write_manifest(folder, content)
        assert yaml.safe_load((folder / "manifest.yaml").read_text())["task"] == "vlm"
        folders[kind] = folder
    return folders
