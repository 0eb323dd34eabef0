"""Samples from pictures: frames of the built-in drive with their truth, or a folder of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError, Light, Weather
from triptych.engines.manifest import InputGeometry, Manifest
from triptych.scenario import Scenario, SceneTruth, TruthBox
from triptych.vision.preprocess import Preprocessor
from triptych_forge.verify.engines import BundleSubject, OnnxSubject, Subject
from triptych_forge.verify.samples import Sample
from triptych_forge.vlm.batches import token_row
from triptych_forge.vlm.scenes import config_of, truth_of_scene
from triptych_forge.vlm.words import STANDING, Truth

Picture = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
FIRST_SEED = 900_000
"""Drives from here on are used by no training."""
STEP_S, SPACING_S = 0.25, 0.5
PER_DRIVE = 12
SMALL_PX = 16
"""Objects lower than this in a picture of :data:`RENDER_PX` are small."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")


@dataclass(frozen=True)
class View:
    """What a camera saw.

    Attributes:
        pictures: (H, W, 3) uint8 BGR each, the newest last.
        ages_s: of each, before the newest.
        truth: what is right; None: nobody knows.
        slices: conditions.
    """

    pictures: tuple[Picture, ...]
    ages_s: tuple[float, ...]
    truth: Truth | None
    slices: frozenset[str]


def drive_views(count: int, frames: int = 1, seed: int = FIRST_SEED) -> Iterator[View]:
    """Pictures of unseen drives, :data:`PER_DRIVE` of each, :data:`SPACING_S` apart."""
    made = 0
    while made < count:
        drive = Scenario(config_of(seed))
        seed += 1
        seen: list[Picture] = []
        for number in range(frames - 1 + min(PER_DRIVE, count - made)):
            for _ in range(round(SPACING_S / STEP_S)):
                drive.step(STEP_S)
            seen = [*seen, drive.render().copy()][-frames:]
            if number < frames - 1:
                continue
            truth = drive.truth()
            ages = tuple(SPACING_S * back for back in reversed(range(frames)))
            yield View(tuple(seen), ages, truth_of_scene(truth, drive.situation()), slices_of(truth))
            made += 1


def slices_of(truth: SceneTruth) -> frozenset[str]:
    """Conditions of a frame: ``night``, ``rain``, ``fog``, ``small objects``."""
    conditions = {
        "night": truth.light is Light.NIGHT,
        "rain": truth.weather is Weather.RAIN,
        "fog": truth.weather is Weather.FOG,
        "small objects": any(_small(box) for box in truth.boxes),
    }
    return frozenset(name for name, holds in conditions.items() if holds)


def _small(box: TruthBox) -> bool:
    return box.visible >= 0.35 and box.contrast >= 0.2 and box.y_max - box.y_min < SMALL_PX


def folder_views(folder: Path, frames: int = 1) -> Iterator[View]:
    """All pictures of a folder and of those below it, whose names become slices (``night/0001.png``).

    Raises:
        ConfigError: no picture, or one that cannot be read.
    """
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise ConfigError("holds no picture", where=folder, remedy=f"put {', '.join(SUFFIXES)} files there")
    for path in paths:
        picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if picture is None:
            raise ConfigError("cannot be read as a picture", where=path, remedy="restore or remove it")
        image = np.asarray(picture, np.uint8)
        yield View((image,) * frames, (0.0,) * frames, None, frozenset(path.relative_to(folder).parts[:-1]))


def to_samples(
    subject: Subject, manifest: Manifest | None, views: Iterator[View], count: int | None, progress: Progress | None
) -> list[Sample]:
    """What the subject is fed for each view, up to ``count`` of them (None: all).

    A VLM is teacher-forced along the true answer to the standing question or, where nobody knows it, along its own.

    Raises:
        ConfigError: an engine that is no VLM bundle, no detector bundle and takes no picture of bytes.
    """
    make = _maker(subject, manifest)
    samples: list[Sample] = []
    for view in views:
        samples.append(make(view))
        if progress:
            progress(len(samples), count or len(samples))
        if count is not None and len(samples) >= count:
            break
    return samples


def _maker(subject: Subject, manifest: Manifest | None) -> Callable[[View], Sample]:
    if isinstance(subject, BundleSubject):
        return _vlm_maker(subject)
    if manifest is not None:
        return _picture_maker(subject.inputs[0], manifest.input)
    if isinstance(subject, OnnxSubject) and len(subject.inputs) == 1:
        name = subject.inputs[0]
        shape: Sequence[Any] = subject.shapes[name]
        if subject.types[name] == "tensor(uint8)" and len(shape) == 4 and isinstance(shape[1], int) and shape[-1] == 3:
            geometry = InputGeometry(
                width=shape[2], height=shape[1], fit="stretch", colour="bgr", layout="nhwc", dtype="uint8"
            )
            return _picture_maker(name, geometry)
    raise ConfigError(
        "cannot know what this engine is fed",
        where=subject.name,
        remedy="give --data with an .npz that holds one array per input, or a bundle folder with its manifest",
    )


def _picture_maker(name: str, geometry: InputGeometry) -> Callable[[View], Sample]:
    prepare = Preprocessor(geometry)
    return lambda view: Sample({name: prepare(view.pictures[-1])[0].copy()}, slices=view.slices)


def _vlm_maker(subject: BundleSubject) -> Callable[[View], Sample]:
    prepare, vocabulary = Preprocessor(subject.manifest.input), subject.vocabulary
    prompt = vocabulary.question("")

    def make(view: View) -> Sample:
        feeds: dict[str, Any] = {
            "frames": np.stack([prepare(picture)[0][0].copy() for picture in view.pictures]),
            "ages_s": np.array(view.ages_s, np.float32),
            "input_ids": np.array([prompt], np.int64),
        }
        if view.truth is None:
            answer, reference = subject.answer(feeds, len(prompt)), ""
        else:
            row, _ = token_row(vocabulary, "", view.truth, STANDING)
            answer = row[len(prompt) :]
            reference = subject.text(answer)
        row = [*prompt, *answer]
        feeds["input_ids"] = np.array([row[:-1]], np.int64)
        targets = np.array([-1] * (len(prompt) - 1) + answer, np.int64)
        return Sample(feeds, targets, reference, len(prompt), view.slices)

    return make
