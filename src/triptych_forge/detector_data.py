"""What the built-in detector learns from, and what it is judged on. The two never share a picture."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from triptych.contract import Frame
from triptych.engines.load import load_engine
from triptych.engines.manifest import load_manifest
from triptych.engines.protocol import Engine
from triptych.resources import resource
from triptych.scenario import Scenario, TruthBox, random_config
from triptych_forge import data
from triptych_forge.data import NAMES, VEHICLE, Image, Sample

CLIP = "video/udacity_solidWhiteRight_960x540_25fps.mp4"
"""Held out: judged on, never trained on."""
CLIP_STILLS = ("lanelines_solidWhiteRight.jpg",)
"""Stills that are frames of the held-out clip, so not trained on either."""
TRAINING_SEEDS = tuple(range(1000, 1100))
VALIDATION_SEEDS = tuple(range(9000, 9020))
"""Seeds of random drives; disjoint, and far from those of the demo."""
SCENARIO_SIZE = (768, 432)
SCENARIO_STEP_S = 0.1


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
    """The YOLOX-nano teacher of real pictures, see :func:`load_published`."""
    return load_published("yolox-nano", folder, score)


def load_published(name: str, folder: Path, score: float) -> Engine:
    """A published detector with another score cut than its manifest's.

    Args:
        name: of a manifest in config/engines.

    Raises:
        EngineError: the engine file is not in ``folder``/detectors.
    """
    manifest = load_manifest(resource("config", "engines", f"{name}.yaml"))
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
    scenario = scenario_samples(TRAINING_SEEDS)
    sources = [Source("carla", 0.45, carla), Source("real", 0.2, real), Source("scenario", 0.35, scenario)]
    return Pool(sources, data.cutouts_of(real, VEHICLE))


def _is_clear(box: TruthBox) -> bool:
    large = box.y_max - box.y_min >= 6 and box.x_max - box.x_min >= 3.5
    return large and box.visible >= 0.35 and box.contrast >= 0.2


def scenario_samples(seeds: Sequence[int], per_seed: int = 8, gap_s: float = 2.0) -> list[Sample]:
    """Frames of the driving scenario with its ground truth, ``per_seed`` from each seed's random drive.

    Objects mostly hidden, very small or almost lost in haze are ignored: nobody could fairly be asked to see them.
    """
    samples = []
    for seed in seeds:
        drive = Scenario(random_config(seed, width_px=SCENARIO_SIZE[0], height_px=SCENARIO_SIZE[1]))
        for _ in range(per_seed):
            for _ in range(round(gap_s / SCENARIO_STEP_S)):
                drive.step(SCENARIO_STEP_S)
            rows = drive.truth().boxes
            boxes = np.array([[b.x_min, b.y_min, b.x_max, b.y_max] for b in rows], np.float32).reshape(-1, 4)
            clear = np.array(
                [
                    b.visible >= 0.35 and b.contrast >= 0.2 and b.y_max - b.y_min >= 7 and b.x_max - b.x_min >= 4
                    for b in rows
                ],
                bool,
            )
            labels = np.array([int(b.class_id) for b in rows], np.int64)
            image = drive.render().copy()
            samples.append(Sample(image, boxes[clear], labels[clear], tuple(range(len(NAMES))), boxes[~clear]))
    return samples


def frame_of(image: Image) -> Frame:
    """A picture as a frame without a history."""
    return Frame(np.ascontiguousarray(image), 0, 1)
