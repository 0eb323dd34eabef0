"""One payload out of several about the same picture, and what sets two payloads apart. Pure, and blind to the order.

Answers: a field takes the value that more than half of the voters give, else the most careful value named. A hazard is
kept when at least half name it and a detection when at least half have it, so that a tie is decided for care, yet one
voter of three neither invents nor hides anything; a union would let any single fault invent hazards. Counts take the
median, of two middle values the greater.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import median
from typing import Any, TypeVar

import numpy as np

from triptych.contract import Detection, Detections, EngineError, Light, Payload, Road, SceneAdvice, Weather
from triptych.contract.e2e import canonical_bytes
from triptych.contract.result import COUNTED, MAX_DETECTIONS, MAX_TEXT
from triptych.contract.terms import Advice
from triptych.vision.boxes import iou_matrix

MATCH_IOU = 0.5
"""Boxes of one class that overlap by this much are of one object (the criterion of PASCAL VOC)."""

CARE: dict[str, tuple[IntEnum, ...]] = {
    "road": (Road.HIGHWAY, Road.UNKNOWN, Road.RURAL, Road.URBAN, Road.CROSSING, Road.WORKS),
    "weather": (Weather.CLEAR, Weather.UNKNOWN, Weather.RAIN, Weather.FOG),
    "light": (Light.DAY, Light.UNKNOWN, Light.DUSK, Light.NIGHT),
    "advice": tuple(Advice),
}
"""Values from least to most careful, for ties. Unknown is worse than the mildest value and gives way to any warning."""

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two runs may lie apart and still say the same: box sides in pixels; scores, probabilities 0..1."""

    pixels: float
    share: float


EXACT = Tolerance(0.0, 0.0)
"""One thread on a CPU computes the same numbers every time."""
CLOSE = Tolerance(0.5, 0.01)
"""For devices and thread counts whose sums depend on the order: far above rounding, far below a fault that matters."""


def vote(payloads: Sequence[Payload]) -> Payload:
    """What the voters say together; an answer that more than half give to the last bit is that answer.

    Args:
        payloads: one per voter, each fit to be published; at least one. Those of another kind, or about a picture of
            another size, than most have no say.

    Raises:
        EngineError: no majority for the kind of payload or the size of the picture.
    """
    same = _majority((canonical_bytes(p), type(p)) for p in payloads)
    if same is not None:
        return next(p for p in payloads if (canonical_bytes(p), type(p)) == same)
    boxes = _majority(isinstance(p, Detections) for p in payloads)
    if boxes is None:
        raise EngineError("instances do not agree on the kind of payload")
    if boxes:
        return vote_detections([p for p in payloads if isinstance(p, Detections)])
    return vote_answers([p for p in payloads if isinstance(p, SceneAdvice)])


def _majority(values: Iterable[V]) -> V | None:
    """The value that more than half have."""
    counted = Counter(values)
    ((value, count),) = counted.most_common(1)
    return value if 2 * count > sum(counted.values()) else None


# -- answers -----------------------------------------------------------------------------------------------------------


def vote_answers(answers: Sequence[SceneAdvice]) -> SceneAdvice:
    """The answer field by field; its text is that of a voter who says just that, else which fields were in dispute."""
    voted: dict[str, Any] = {name: _field(name, [getattr(a, name) for a in answers]) for name in CARE}
    for name in COUNTED:
        voted[name] = sorted(getattr(a, name) for a in answers)[len(answers) // 2]
    named = Counter(hazard for a in answers for hazard in set(a.hazards))
    hazards = frozenset(hazard for hazard, count in named.items() if 2 * count >= len(answers))
    voted["question"] = _majority(a.question for a in answers) or ""
    agreeing = [
        a for a in answers if frozenset(a.hazards) == hazards and all(getattr(a, n) == v for n, v in voted.items())
    ]
    if agreeing:
        return min(agreeing, key=canonical_bytes)
    disputed = [n for n, v in voted.items() if any(getattr(a, n) != v for a in answers)]
    if any(frozenset(a.hazards) != hazards for a in answers):
        disputed.append("hazards")
    text = f"voted, in dispute: {', '.join(sorted(disputed))}"[:MAX_TEXT]
    return SceneAdvice(**voted, hazards=tuple(sorted(hazards)), text=text)


def _field(name: str, values: list[IntEnum]) -> IntEnum:
    value = _majority(values)
    return max(values, key=CARE[name].index) if value is None else value


# -- detections --------------------------------------------------------------------------------------------------------


def vote_detections(payloads: Sequence[Detections]) -> Detections:
    """Objects that at least half have: median of score and of each side, the commonest label, best score first.

    Raises:
        EngineError: no majority for the size of the picture.
    """
    size = _majority((p.image_width, p.image_height) for p in payloads)
    if size is None:
        raise EngineError("instances do not agree on the size of the picture")
    voters = [p.detections for p in payloads if (p.image_width, p.image_height) == size]
    kept = [_middle(members) for members in _clusters(voters) if 2 * len(members) >= len(voters)]
    return Detections(*size, tuple(sorted(kept, key=_rank)[:MAX_DETECTIONS]))


def _rank(box: Detection) -> tuple[Any, ...]:
    """Best score first; what follows only makes the order unique."""
    return (-box.score, box.class_id, box.x_min, box.y_min, box.x_max, box.y_max, box.label)


def _clusters(voters: Sequence[Sequence[Detection]]) -> list[list[Detection]]:
    """Boxes of one object, at most one of each voter; the best scores choose first, whoever they are from."""
    everyone = sorted(((box, voter) for voter, boxes in enumerate(voters) for box in boxes), key=lambda e: _rank(e[0]))
    overlap = _overlap([box for box, _ in everyone], [box for box, _ in everyone])
    owner = np.array([voter for _, voter in everyone])
    of_voter = [np.flatnonzero(owner == voter) for voter in range(len(voters))]
    free = np.ones(len(everyone), bool)
    clusters = []
    for seed, (box, own) in enumerate(everyone):
        if not free[seed]:
            continue
        free[seed] = False
        members = [box]
        for voter, candidates in enumerate(of_voter):
            best = None if voter == own else _best(overlap[seed], candidates, free)
            if best is not None:
                free[best] = False
                members.append(everyone[best][0])
        clusters.append(members)
    return clusters


def _best(overlap: Any, candidates: Any, free: Any) -> int | None:
    """Of the free candidates, the one that overlaps most, the first of equals; None when none does enough."""
    shares = np.where(free[candidates], overlap[candidates], 0.0)
    if not len(shares) or not shares.max() >= MATCH_IOU:
        return None
    return int(candidates[shares.argmax()])


def _overlap(one: Sequence[Detection], other: Sequence[Detection]) -> Any:
    """(len(one), len(other)) IoU, 0 between classes."""

    def sides(boxes: Sequence[Detection]) -> Any:
        rows = [(b.x_min, b.y_min, b.x_max, b.y_max) for b in boxes]
        return np.array(rows, np.float32).reshape(len(boxes), 4)

    classes = np.array([b.class_id for b in one])[:, None] == np.array([b.class_id for b in other])[None, :]
    return np.where(classes, iou_matrix(sides(one), sides(other)), 0.0)


def _middle(members: Sequence[Detection]) -> Detection:
    def of(take: Callable[[Detection], float]) -> float:
        return float(median(take(box) for box in members))

    labels = Counter(box.label for box in members)
    label = min(labels, key=lambda name: (-labels[name], name))
    return Detection(
        label,
        members[0].class_id,
        of(lambda b: b.score),
        of(lambda b: b.x_min),
        of(lambda b: b.y_min),
        of(lambda b: b.x_max),
        of(lambda b: b.y_max),
    )


# -- what sets two payloads apart --------------------------------------------------------------------------------------


def differences(one: Payload, other: Payload, tolerance: Tolerance = EXACT) -> tuple[str, ...]:
    """In what ``one`` differs from ``other``, a word or two each; empty when they say the same. NaN never does."""
    if one == other:
        return ()
    if isinstance(one, Detections) and isinstance(other, Detections):
        return _of_detections(one, other, tolerance)
    if isinstance(one, SceneAdvice) and isinstance(other, SceneAdvice):
        return _of_answers(one, other, tolerance)
    return ("kind of payload",)


def _of_answers(one: SceneAdvice, other: SceneAdvice, tolerance: Tolerance) -> tuple[str, ...]:
    names = (*CARE, *COUNTED, "question", "text")
    found = [name for name in names if getattr(one, name) != getattr(other, name)]
    if set(one.hazards) != set(other.hazards):
        found.append("hazards")
    a, b = one.token_probabilities, other.token_probabilities
    if len(a) != len(b) or not all(abs(x - y) <= tolerance.share for x, y in zip(a, b)):
        found.append("token_probabilities")
    return tuple(found) or _unless_close(tolerance)


def _of_detections(one: Detections, other: Detections, tolerance: Tolerance) -> tuple[str, ...]:
    if (one.image_width, one.image_height) != (other.image_width, other.image_height):
        return ("size of the picture",)
    overlap = _overlap(one.detections, other.detections)
    everyone, free = np.arange(len(other.detections)), np.ones(len(other.detections), bool)
    alone = moved = 0
    for row, box in enumerate(one.detections):
        best = _best(overlap[row], everyone, free)
        if best is None:
            alone += 1
            continue
        free[best] = False
        moved += not _close(box, other.detections[best], tolerance)
    counts = {"missed": int(free.sum()), "alone": alone, "moved": moved}
    return tuple(f"{word} {count}" for word, count in counts.items() if count) or _unless_close(tolerance)


def _close(one: Detection, other: Detection, tolerance: Tolerance) -> bool:
    sides = ((one.x_min, other.x_min), (one.y_min, other.y_min), (one.x_max, other.x_max), (one.y_max, other.y_max))
    return (
        one.label == other.label
        and abs(one.score - other.score) <= tolerance.share
        and all(abs(a - b) <= tolerance.pixels for a, b in sides)
    )


def _unless_close(tolerance: Tolerance) -> tuple[str, ...]:
    """Equal in all parts, but not as a whole: their order."""
    return ("order",) if tolerance == EXACT else ()


def without_words(answer: Payload) -> Payload:
    """The payload without its text and its tokens' probabilities."""
    return replace(answer, text="", token_probabilities=()) if isinstance(answer, SceneAdvice) else answer
