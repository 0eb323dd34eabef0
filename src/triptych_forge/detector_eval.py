"""Figures of a detector: average precision per class, precision and recall of one class, figures on a clip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract import DetectionClass, Detections, Frame
from triptych.engines.protocol import Engine
from triptych.vision.boxes import area, iou_matrix
from triptych_forge.data import NAMES, Boxes, Image, Sample

MATCH_IOU = 0.5
SMALL_PX2 = 32 * 32
"""COCO's "small": neither demanded nor counted where this is the limit."""


@dataclass(frozen=True)
class Found:
    """Detections of one picture as arrays: (N, 4) px, (N,) scores, (N,) class values."""

    boxes: Boxes
    scores: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


def detect(engine: Engine, image: Image) -> Found:
    """Run the engine on one picture."""
    payload = engine.infer([Frame(np.ascontiguousarray(image), 0, 1)]).payload
    assert isinstance(payload, Detections)
    rows = payload.detections
    return Found(
        np.array([[d.x_min, d.y_min, d.x_max, d.y_max] for d in rows], np.float32).reshape(-1, 4),
        np.array([d.score for d in rows], np.float32),
        np.array([d.class_id for d in rows], np.int64),
    )


def match(boxes: Boxes, scores: npt.NDArray[np.float32], truth: Boxes) -> npt.NDArray[np.int64]:
    """Index of the true box each detection hits, -1 for none; best scores choose first and no box is hit twice."""
    hit = np.full(len(boxes), -1, np.int64)
    if not len(boxes) or not len(truth):
        return hit
    overlap = iou_matrix(boxes, truth)
    for index in np.argsort(-scores, kind="stable"):
        best = int(overlap[index].argmax())
        if overlap[index, best] >= MATCH_IOU:
            hit[index] = best
            overlap[:, best] = -1
    return hit


def vehicles_at(found: Sequence[Found], truth: Sequence[Boxes], cut: float, small_px2: float) -> tuple[float, float]:
    """Precision and recall of vehicles scored ``cut`` or more; smaller ones are neither demanded nor counted."""
    hits = claims = objects = 0
    for f, boxes in zip(found, truth, strict=True):
        mine = (f.classes == int(DetectionClass.VEHICLE)) & (f.scores >= cut)
        hit = match(f.boxes[mine], f.scores[mine], boxes)
        small = area(boxes) < small_px2
        on_small = (hit >= 0) & np.append(small, False)[hit]  # -1, no hit, picks the appended False
        hits += int(((hit >= 0) & ~on_small).sum())
        claims += int((~on_small).sum())
        objects += int((~small).sum())
    return round(hits / max(claims, 1), 4), round(hits / max(objects, 1), 4)


def average_precision(found: Sequence[Found], truth: Sequence[Boxes], kind: int) -> float:
    """Area under the precision-recall curve (precision made monotone) at IoU 0.5; NaN without true objects."""
    scores, hits = [], []
    objects = 0
    for f, boxes in zip(found, truth, strict=True):
        mine = f.classes == kind
        hits.append(match(f.boxes[mine], f.scores[mine], boxes) >= 0)
        scores.append(f.scores[mine])
        objects += len(boxes)
    if objects == 0:
        return float("nan")
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit = np.concatenate(hits)[order]
    true = np.cumsum(hit)
    precision = true / np.arange(1, len(hit) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float((precision * hit).sum() / objects)


def mean_average_precision(found: Sequence[Found], samples: Sequence[Sample]) -> dict[str, float]:
    """AP50 per class the samples label, plus ``mean``; of what an engine with a low score cut found in them."""
    result = {}
    for label in samples[0].known:
        truth = [s.boxes[s.labels == label] for s in samples]
        value = average_precision(found, truth, label)
        if not np.isnan(value):
            result[NAMES[label]] = round(value, 4)
    result["mean"] = round(float(np.mean(list(result.values()))), 4)
    return result


def clip_figures(
    engine: Engine, teacher: Engine, frames: Iterable[Image], teacher_score: float = 0.5
) -> dict[str, float]:
    """Vehicles on a clip without ground truth, judged by a teacher's boxes above ``teacher_score``.

    ``frames_with_vehicle``: share of frames in which the engine reports at least one vehicle.
    ``frames_with_confirmed_vehicle``: at least one that hits a teacher's box.
    ``precision_lenient`` counts a hit on any teacher box of at least half that score.
    """
    vehicle = int(DetectionClass.VEHICLE)
    total = some = confirmed = hits = lenient = claims = objects = 0
    for image in frames:
        mine, other = detect(engine, image), detect(teacher, image)
        keep = mine.classes == vehicle
        boxes, scores = mine.boxes[keep], mine.scores[keep]
        theirs = other.boxes[other.classes == vehicle]
        sure = theirs[other.scores[other.classes == vehicle] >= teacher_score]
        good = match(boxes, scores, sure) >= 0
        total, some, confirmed = total + 1, some + bool(len(boxes)), confirmed + bool(good.any())
        hits, claims, objects = hits + int(good.sum()), claims + len(boxes), objects + len(sure)
        lenient += int((match(boxes, scores, theirs) >= 0).sum())
    return {
        "frames": total,
        "frames_with_vehicle": round(some / max(total, 1), 4),
        "frames_with_confirmed_vehicle": round(confirmed / max(total, 1), 4),
        "precision": round(hits / max(claims, 1), 4),
        "precision_lenient": round(lenient / max(claims, 1), 4),
        "recall": round(hits / max(objects, 1), 4),
    }
