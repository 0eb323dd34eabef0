"""Real and foreign pictures with the few labels that can be given by looking at them.

They make the models see more than one renderer's world. Fields nobody labelled are None and not learnt. Two of the
stills (``lanelines_solidWhiteRight``, ``lanelines_solidWhiteCurve``) are frames of the held-out clip and stay out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Advice, Hazard, Light, Road, Weather
from triptych_forge.data import PEDESTRIAN, TEACHER_DOUBT, TWO_WHEELER, VEHICLE, carla, read_image, teach
from triptych_forge.detector_data import load_teacher
from triptych_forge.vlm.scenes import COUNTED_AS, OBJECTS, counted, shrink
from triptych_forge.vlm.words import Truth

Picture = npt.NDArray[np.uint8]
HELD_OUT = ("lanelines_solidWhiteRight.jpg", "lanelines_solidWhiteCurve.jpg")

_FREE = Truth(Road.HIGHWAY, Weather.CLEAR, Light.DAY, (), Advice.PROCEED)
STILLS: dict[str, Truth] = {
    "advlane_straight_lines1.jpg": _FREE,
    "advlane_straight_lines2.jpg": _FREE,
    "advlane_test1.jpg": _FREE,
    "advlane_test2.jpg": _FREE,
    "advlane_test3.jpg": _FREE,
    "advlane_test4.jpg": _FREE,
    "advlane_test5.jpg": _FREE,
    "advlane_test6.jpg": _FREE,
    "lanelines_solidYellowCurve.jpg": _FREE,
    "lanelines_solidYellowCurve2.jpg": _FREE,
    "lanelines_solidYellowLeft.jpg": _FREE,
    "lanelines_whiteCarLaneSwitch.jpg": _FREE,
}
"""Labelled by looking: no still has a vehicle in the own lane near enough to be a hazard in the scenario's sense."""


@dataclass(frozen=True)
class Real:
    """Pictures (shrunk) and what is known of them."""

    pictures: tuple[Picture, ...]
    truths: tuple[Truth, ...]
    objects: tuple[npt.NDArray[np.float32], ...] = ()
    """Of each, (K, 5) as in :class:`triptych_forge.vlm.scenes.Scenes`: what the known counts are of."""


def load_stills(data: Path, size: tuple[int, int]) -> Real:
    """The labelled highway stills under ``data``; empty when the folder is not there.

    What is to be counted in them is what the reference detector under ``data`` is sure of.
    """
    folder, pictures, truths, objects = data / "images" / "udacity", [], [], []
    named = {name: truth for name, truth in STILLS.items() if (folder / name).is_file()}
    teacher = load_teacher(data, TEACHER_DOUBT) if named else None
    for name, truth in named.items():
        image = read_image(folder / name)
        assert teacher is not None
        sample = teach(image, teacher)
        objects.append(_rows(sample.boxes, sample.labels, image))
        pictures.append(shrink(image, size))
        truths.append(replace(truth, counts=counted(objects[-1])))
    return Real(tuple(pictures), tuple(truths), tuple(objects))


COUNTED_LABELS = {label: OBJECTS.index(n) for label, n in zip((VEHICLE, TWO_WHEELER, PEDESTRIAN), COUNTED_AS)}


def _rows(boxes: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], image: Picture) -> npt.NDArray[np.float32]:
    """Boxes in px with a detector's labels as (K, 5) shares of the picture; what is not counted is left out."""
    sides = np.array([image.shape[1], image.shape[0]] * 2, np.float32)
    rows = [[COUNTED_LABELS[int(k)], *box] for k, box in zip(labels, boxes / sides) if int(k) in COUNTED_LABELS]
    return np.array(rows, np.float32).reshape(-1, 5)


def load_carla(data: Path, size: tuple[int, int]) -> Real:
    """The simulated frames of ``train.json``: weather and light by looking (all clear days), road from the town.

    Town 4 is a highway. Towns 2 and 3 are city streets where no traffic light is boxed (else it may be a crossing);
    town 1 is half city, half country: unknown. Vehicles and two-wheelers are counted, pedestrians are not boxed.
    """
    folder = data / "images" / "carla_boxes"
    if not (folder / "train.json").is_file():
        return Real((), ())
    content = json.loads((folder / "train.json").read_text())
    lights = {c["id"] for c in content["categories"] if c["name"] == "traffic_light"}
    with_lights = {a["image_id"] for a in content["annotations"] if a["category_id"] in lights}
    pictures, truths, objects = [], [], []
    for entry, sample in zip(content["images"], carla(folder, "train"), strict=True):
        town = Path(entry["file_name"]).name.split("_")[0]
        road = None
        if town == "Town04":
            road = Road.HIGHWAY
        elif town in ("Town02", "Town03") and entry["id"] not in with_lights:
            road = Road.URBAN
        objects.append(_rows(sample.boxes, sample.labels, sample.image))
        pictures.append(shrink(sample.image, size))
        vehicles, wheelers, _ = counted(objects[-1])
        truths.append(Truth(road, Weather.CLEAR, Light.DAY, None, None, (vehicles, wheelers, None)))
    return Real(tuple(pictures), tuple(truths), tuple(objects))


UNSEEN = Truth(Road.UNKNOWN, Weather.UNKNOWN, Light.UNKNOWN, (Hazard.LOW_VISIBILITY,), Advice.SLOW_DOWN, (0, 0, 0))
"""The true answer about a picture in which nothing can be seen."""


def unseen_picture(generator: np.random.Generator, size: tuple[int, int]) -> Picture:
    """A picture without content: covered, dark, overexposed, noise, smear."""
    width, height = size
    kind = int(generator.integers(0, 5))
    base = generator.uniform(0, 255, 3)
    if kind == 0:
        image = np.broadcast_to(base, (height, width, 3)).copy()
    elif kind == 1:
        image = generator.uniform(0, 255, (height, width, 3))
    elif kind == 2:
        image = np.full((height, width, 3), generator.choice([0.0, 2.0, 250.0, 255.0]))
    elif kind == 3:
        patches = generator.uniform(0, 255, (int(generator.integers(2, 5)), int(generator.integers(2, 5)), 3))
        image = cv2.resize(patches, (width, height), interpolation=cv2.INTER_CUBIC)
    else:
        ramp = np.linspace(0, 1, height if generator.random() < 0.5 else width)
        plane = ramp[:, None] if len(ramp) == height else ramp[None, :]
        image = base + (generator.uniform(0, 255, 3) - base) * np.broadcast_to(plane, (height, width))[..., None]
    noise = generator.normal(0, generator.uniform(0, 12), image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)
