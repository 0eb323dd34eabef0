"""Training pictures for the detector, and how they are varied.

A source says which classes it labels; where it is silent, the loss is silent too. Boxes that are doubtful (a teacher
half sure, an object cut to a sliver) are neither object nor background: they are listed as ``ignored``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError, DetectionClass, Detections, Frame
from triptych.engines.protocol import Engine
from triptych.vision.boxes import area, suppress

CLASSES = tuple(c for c in DetectionClass if c is not DetectionClass.OTHER)
"""Order of the network's class outputs."""
NAMES = tuple(c.name.lower() for c in CLASSES)
VEHICLE, TWO_WHEELER, PEDESTRIAN, TRAFFIC_LIGHT, SIGN = range(5)
CARLA_LABELS = {
    "vehicle": VEHICLE,
    "bike": TWO_WHEELER,
    "motobike": TWO_WHEELER,
    "traffic_light": TRAFFIC_LIGHT,
    "traffic_sign": SIGN,
}
CARLA_KNOWN = (VEHICLE, TWO_WHEELER, TRAFFIC_LIGHT, SIGN)
TEACHER_KNOWN = (VEHICLE, TWO_WHEELER, PEDESTRIAN)
"""A COCO teacher hardly finds traffic lights and knows no sign but the stop sign: it says nothing about these."""
TEACHER_SURE, TEACHER_DOUBT = 0.45, 0.12
"""Teacher scores: from the first on an object, between the two ignored, below background."""
OWN_BONNET = 0.6
"""A teacher's box wider than this share of the picture is taken for the bonnet of the car that carries the camera."""
WIDEST_DOUBT = 0.3
"""Doubtful boxes wider than this share of the picture would silence half of the road; they count as background."""

Image = npt.NDArray[np.uint8]
Boxes = npt.NDArray[np.float32]


def _no_boxes() -> Boxes:
    return np.zeros((0, 4), np.float32)


@dataclass(frozen=True)
class Sample:
    """One picture: BGR uint8, boxes (N, 4) px, labels (N,) indices of :data:`CLASSES`, classes its source labels."""

    image: Image
    boxes: Boxes
    labels: npt.NDArray[np.int64]
    known: tuple[int, ...]
    ignored: Boxes = field(default_factory=_no_boxes)


def carla(folder: Path, split: str) -> list[Sample]:
    """The simulated frames with boxes; ``split`` is ``train`` or ``val``.

    Raises:
        ConfigError: the index is missing or does not fit its pictures.
    """
    index = folder / f"{split}.json"
    if not index.is_file():
        raise ConfigError("no such index of labelled pictures", where=index, remedy="name the data folder with --data")
    data = json.loads(index.read_text(encoding="utf-8"))
    label_of = {c["id"]: CARLA_LABELS[c["name"]] for c in data["categories"]}
    rows: dict[int, list[tuple[list[float], int]]] = {image["id"]: [] for image in data["images"]}
    for note in data["annotations"]:
        x, y, width, height = note["bbox"]
        rows[note["image_id"]].append(([x, y, x + width, y + height], label_of[note["category_id"]]))
    return [
        _sample(read_image(folder / image["file_name"]), rows[image["id"]], CARLA_KNOWN) for image in data["images"]
    ]


def _sample(image: Image, rows: Sequence[tuple[list[float], int]], known: tuple[int, ...]) -> Sample:
    boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
    return Sample(image, boxes, np.array([row[1] for row in rows], np.int64), known)


def read_image(path: Path) -> Image:
    """Read a picture as BGR.

    Raises:
        ConfigError: not there or not a picture.
    """
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise ConfigError("cannot be read as a picture", where=path)
    return np.asarray(image, np.uint8)


def read_video(path: Path) -> Iterable[Image]:
    """The frames of a video file, BGR."""
    video = cv2.VideoCapture(str(path))
    try:
        while True:
            good, image = video.read()
            if not good:
                return
            yield np.asarray(image, np.uint8)
    finally:
        video.release()


def teach(image: Image, teacher: Engine) -> Sample:
    """Label a picture with a teacher detector: once as a whole and once in four overlapping, enlarged parts, merged.

    The parts show the teacher distant objects at twice the size, which is where a small student learns most.
    The teacher should have been loaded with a score cut of at most :data:`TEACHER_DOUBT`.
    """
    height, width = image.shape[:2]
    part_width, part_height = int(width * 0.56), int(height * 0.56)
    corners = [(0, 0, width, height)] + [
        (x, y, part_width, part_height)
        for x in (0, width - part_width)
        for y in (0, int(height * 0.25), height - part_height)
    ]
    boxes, scores, labels = [], [], []
    for x, y, w, h in corners:
        payload = teacher.infer([Frame(np.ascontiguousarray(image[y : y + h, x : x + w]), 0, 1)]).payload
        assert isinstance(payload, Detections)
        for d in payload.detections:
            if d.class_id not in TEACHER_KNOWN:
                continue
            inner_edge = (
                (x > 0 and d.x_min < 2)
                or (y > 0 and d.y_min < 2)
                or (x + w < width and d.x_max > w - 2)
                or (y + h < height and d.y_max > h - 2)
            )
            if inner_edge:
                continue  # cut by the part's own edge; another part or the whole shows all of it
            boxes.append([d.x_min + x, d.y_min + y, d.x_max + x, d.y_max + y])
            scores.append(d.score)
            labels.append(d.class_id)
    b, s = np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32)
    k = np.array(labels, np.int64)
    kept = suppress(b, s, k, 0.5, 200)
    b, s, k = b[kept], s[kept], k[kept]
    sure = (s >= TEACHER_SURE) & (b[:, 2] - b[:, 0] < OWN_BONNET * width)
    doubtful = ~sure & ((b[:, 2] - b[:, 0] < WIDEST_DOUBT * width) | (s >= TEACHER_SURE))
    return Sample(image, b[sure], k[sure], TEACHER_KNOWN, b[doubtful])


@dataclass(frozen=True)
class Variation:
    """Ranges of the random changes. ``zoom`` is relative to the picture fitted into the network's input."""

    zoom: tuple[float, float] = (0.7, 2.4)
    aim_at_object: float = 0.7
    aspect: float = 0.12
    min_visible: float = 0.35
    min_side_px: float = 3.0
    paste: float = 0.35
    plain: float = 0.15


def vary(
    sample: Sample,
    size: tuple[int, int],
    full: tuple[int, int],
    rng: np.random.Generator,
    how: Variation,
    cutouts: Sequence[tuple[Image, int]] = (),
) -> Sample:
    """A random view of ``sample``: crop, zoom, flip, pasted objects, light, weather, sensor.

    Args:
        size: width, height of the result in pixels.
        full: width, height of the network's input, which zoom 1 fits the whole picture into.
        cutouts: small pictures of objects with their label, to paste.
    """
    height, width = sample.image.shape[:2]
    fit = min(full[0] / width, full[1] / height)
    if rng.random() < how.plain and size == full:
        zoom, stretch, centre = 1.0, 1.0, np.array([width / 2, height / 2])
    else:
        zoom = float(np.exp(rng.uniform(*np.log(how.zoom))))
        stretch = float(np.exp(rng.uniform(-how.aspect, how.aspect)))
        if len(sample.boxes) and rng.random() < how.aim_at_object:
            box = sample.boxes[rng.integers(len(sample.boxes))]
            centre = (box[:2] + box[2:]) / 2 + rng.uniform(-0.4, 0.4, 2) * np.array(size) / (fit * zoom)
        else:
            centre = rng.uniform(0.2, 0.8, 2) * (width, height)
    scale = np.array([fit * zoom * stretch, fit * zoom / stretch])
    flip = rng.random() < 0.5
    # The view stays on the picture where it can: padding teaches nothing.
    reach = np.array(size) / (2 * scale)
    edge = np.array([width, height], float)
    centre = np.where(2 * reach <= edge, np.clip(centre, reach, np.maximum(edge - reach, reach)), centre)
    centre = np.where(2 * reach > edge, np.clip(centre, edge - reach, reach), centre)
    matrix = np.zeros((2, 3))
    matrix[0, 0], matrix[1, 1] = -scale[0] if flip else scale[0], scale[1]
    matrix[:, 2] = np.array(size) / 2 - np.array([matrix[0, 0], matrix[1, 1]]) * centre
    source = sample.image
    if min(scale) < 0.4 and rng.random() < 0.3:
        source = np.asarray(cv2.blur(source, (3, 3)), np.uint8)
    fill = (114, 114, 114)
    image = np.asarray(cv2.warpAffine(source, matrix, size, flags=cv2.INTER_LINEAR, borderValue=fill), np.uint8)

    def move(boxes: Boxes) -> Boxes:
        if not len(boxes):
            return boxes
        corners = boxes.reshape(-1, 2, 2) * (matrix[0, 0], matrix[1, 1]) + matrix[:, 2]
        return np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)

    moved, ignored = move(sample.boxes), move(sample.ignored)
    cut, labels = _clip(moved, size), sample.labels
    visible = area(cut) / np.maximum(area(moved), 1e-6)
    sides = (cut[:, 2:] - cut[:, :2]).min(1) if len(cut) else np.zeros(0)
    good = (visible >= how.min_visible) & (sides >= how.min_side_px)
    some = (visible > 0) & ~good
    ignored = np.concatenate([_clip(ignored, size), cut[some]])
    boxes, labels = cut[good], labels[good]
    if cutouts and rng.random() < how.paste:
        boxes, labels = _paste(image, boxes, labels, rng, cutouts)
    return Sample(_relight(image, rng), boxes, labels, sample.known, ignored)


def _clip(boxes: Boxes, size: tuple[int, int]) -> Boxes:
    return np.clip(boxes, 0, np.array([*size, *size], np.float32)) if len(boxes) else boxes.reshape(-1, 4)


def _paste(
    image: Image,
    boxes: Boxes,
    labels: npt.NDArray[np.int64],
    rng: np.random.Generator,
    cutouts: Sequence[tuple[Image, int]],
) -> tuple[Boxes, npt.NDArray[np.int64]]:
    """Paste up to three cut-outs in the middle band where no box is, with soft edges."""
    height, width = image.shape[:2]
    for _ in range(int(rng.integers(1, 4))):
        patch, label = cutouts[int(rng.integers(len(cutouts)))]
        target = float(np.exp(rng.uniform(np.log(8), np.log(70))))
        scale = target / patch.shape[0]
        w, h = max(6, round(patch.shape[1] * scale)), max(6, round(target))
        if scale > 1.6 or w >= width - 2 or h >= height - 2:
            continue
        x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
        box = np.array([[x, y, x + w, y + h]], np.float32)
        if len(boxes):
            low, high = np.maximum(boxes[:, :2], box[0, :2]), np.minimum(boxes[:, 2:], box[0, 2:])
            if (np.maximum(high - low, 0).prod(1) > 0).any():
                continue
        small = cv2.resize(patch, (w, h), interpolation=cv2.INTER_AREA)
        if rng.random() < 0.5:
            small = small[:, ::-1]
        mask = np.zeros((h, w), np.float32)
        border = max(1, min(w, h) // 10)
        mask[border:-border, border:-border] = 1
        mask = cv2.blur(mask, (2 * border + 1, 2 * border + 1))[..., None]
        place = image[y : y + h, x : x + w]
        place[:] = (small * mask + place * (1 - mask)).astype(np.uint8)
        boxes, labels = np.concatenate([boxes, box]), np.append(labels, label)
    return boxes, labels


def _relight(image: Image, rng: np.random.Generator) -> Image:
    """Random light, haze, colour and sensor noise."""
    if rng.random() < 0.8:
        gamma, gain = float(np.exp(rng.uniform(-0.4, 0.4))), float(np.exp(rng.uniform(-0.25, 0.25)))
        shift = rng.uniform(-20, 20)
        tint = np.exp(rng.uniform(-0.08, 0.08, 3))
        ramp = np.linspace(0, 1, 256)[:, None] ** gamma
        table = np.clip(ramp * 255 * gain * tint + shift, 0, 255).astype(np.uint8).reshape(256, 1, 3)
        image = np.asarray(cv2.LUT(image, table), np.uint8)
    if rng.random() < 0.5:
        grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
        amount = rng.uniform(0.2, 1.5)
        image = np.asarray(cv2.addWeighted(image, amount, grey, 1 - amount, 0), np.uint8)
    if rng.random() < 0.12:
        haze = rng.uniform(0.2, 0.5)
        image = np.asarray(cv2.addWeighted(image, 1 - haze, np.full_like(image, 190), haze, 0), np.uint8)
    if rng.random() < 0.2:
        kernel = (3, 3) if rng.random() < 0.7 else (5, 1)
        image = np.asarray(cv2.blur(image, kernel), np.uint8)
    if rng.random() < 0.25:
        noise = rng.normal(0, rng.uniform(2, 9), image.shape).astype(np.float32)
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
    return image


def cutouts_of(samples: Sequence[Sample], label: int, min_side_px: int = 18) -> list[tuple[Image, int]]:
    """Cut the clearly visible objects of one class out of their pictures, for pasting."""
    found = []
    for sample in samples:
        height, width = sample.image.shape[:2]
        for box in sample.boxes[sample.labels == label]:
            x0, y0, x1, y1 = (round(float(v)) for v in box)
            if min(x1 - x0, y1 - y0) < min_side_px or x0 < 3 or y0 < 3 or x1 > width - 3 or y1 > height - 3:
                continue
            found.append((sample.image[y0:y1, x0:x1].copy(), label))
    return found
