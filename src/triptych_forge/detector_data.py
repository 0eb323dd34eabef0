"""What the built-in detector learns from, and what it is judged on. The two never share a picture."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from triptych import engines as _engines
from triptych.contract import Frame
from triptych.engines.load import load_engine
from triptych.engines.manifest import load_manifest
from triptych.engines.protocol import Engine
from triptych_forge import data
from triptych_forge.data import VEHICLE, Image, Sample

CLIP = "video/udacity_solidWhiteRight_960x540_25fps.mp4"
"""Held out: judged on, never trained on."""
CLIP_STILLS = ("lanelines_solidWhiteRight.jpg",)
"""Stills that are frames of the held-out clip, so not trained on either."""
REPOSITORY = Path(_engines.__file__).resolve().parents[3]
TEACHER = REPOSITORY / "config" / "engines" / "yolox-nano.yaml"


@dataclass(frozen=True)
class Source:
    """Pictures of one origin and how often they are drawn, relative to the others."""

    name: str
    weight: float
    samples: Sequence[Sample]


@dataclass(frozen=True)
class Pool:
    """All sources, and cut-outs to paste."""

    sources: Sequence[Source]
    cutouts: Sequence[tuple[Image, int]] = field(default_factory=tuple)

    def draw(self, rng: np.random.Generator) -> Sample:
        """One picture: a source by weight, then any of its pictures."""
        weights = np.array([s.weight for s in self.sources])
        source = self.sources[int(rng.choice(len(self.sources), p=weights / weights.sum()))]
        return source.samples[int(rng.integers(len(source.samples)))]

    def counts(self) -> dict[str, int]:
        """Number of pictures per source."""
        return {s.name: len(s.samples) for s in self.sources}


def load_teacher(folder: Path, score: float) -> Engine:
    """The YOLOX-nano teacher with another score cut than its manifest's.

    Raises:
        EngineError: the engine file is not in ``folder``/detectors.
    """
    manifest = load_manifest(TEACHER)
    changed = manifest.model_copy(update={"thresholds": manifest.thresholds.model_copy(update={"score": score})})
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "manifest.yaml"
        path.write_text(yaml.safe_dump(changed.model_dump(mode="json")), encoding="utf-8")
        return load_engine(path, engine_dir=folder / "detectors")


def real_samples(folder: Path) -> list[Sample]:
    """Real stills with a teacher's labels, without frames of the held-out clip."""
    teacher = load_teacher(folder, data.TEACHER_DOUBT)
    paths = [p for p in sorted((folder / "images" / "udacity").glob("*.jpg")) if p.name not in CLIP_STILLS]
    paths += [folder / "can_gps" / "comma2k19_segment" / "preview.png"]
    return [data.teach(data.read_image(p), teacher) for p in paths]


def training_pool(folder: Path, seed: int) -> Pool:
    """All training pictures.

    Raises:
        ConfigError, EngineError: a source is missing.
    """
    real = real_samples(folder)
    carla = data.carla(folder / "images" / "carla_boxes", "train")
    sources = [Source("carla", 0.55, carla), Source("real", 0.45, real)]
    return Pool(sources, data.cutouts_of(real, VEHICLE))


def frame_of(image: Image) -> Frame:
    """A picture as a frame without a history."""
    return Frame(np.ascontiguousarray(image), 0, 1)
