"""Detector and VLM compared on the same picture: where they disagree on who is there, the more careful one counts.

This is what a VLM tier does in cruise that the policy gives ``redundant_input``. What it sees is joined with what the
detector saw in the same picture, and the joint scene decides on the care taken; what it advises counts only if the
detector confirms somebody to be careful of. Which of the two is right nobody knows here: presence is believed of
either, absence only of both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from enum import IntEnum

from triptych.contract.result import NOT_COUNTED, Detections, Payload, SceneAdvice
from triptych.contract.terms import Advice, DetectionClass, Hazard

AHEAD_HALF_WIDTH = 1 / 32
"""A vehicle is ahead when its box reaches this close to the middle of the picture (share of its width): half a lane,
1.7 m to either side, at the distance below."""
AHEAD_HEIGHT = 1 / 20
"""... and is at least this high (share of the picture's height): 1.5 m of vehicle in about 50 m before a 16:9 camera of
60 degrees. A lead vehicle is a hazard from 50 m on (``triptych.scenario.advice``)."""
SAME_PICTURE_NS = 25_000_000
"""Source stamps this close are of one picture or of its neighbour: half the period of a 20 Hz camera."""
KEPT = 256
"""Detector results kept: more than 5 s, the greatest age of a VLM result, at 40 Hz."""


class Presence(IntEnum):
    """Whether somebody is there, ordered by the care it asks for."""

    ABSENT = 0
    UNKNOWN = 1
    PRESENT = 2


@dataclass(frozen=True, slots=True)
class Scene:
    """Who is there."""

    vehicle_ahead: Presence = Presence.UNKNOWN
    pedestrian: Presence = Presence.UNKNOWN

    def __str__(self) -> str:
        return ", ".join(f"{s} {getattr(self, s).name.lower()}" for s in SUBJECTS)


SUBJECTS = tuple(f.name for f in fields(Scene))
_CARE = {
    "vehicle_ahead": (Advice.PROCEED, Advice.CAUTION, Advice.CAUTION),
    "pedestrian": (Advice.PROCEED, Advice.CAUTION, Advice.SLOW_DOWN),
}
"""By subject and presence. Our choice, after the first steps of ``triptych.scenario.advice``; unknown is no answer."""


def scene_of(payload: Payload) -> Scene:
    """What a result says of who is there; an empty picture size (DEFAULT) or an answer without counts is unknown."""
    return _of_detections(payload) if isinstance(payload, Detections) else _of_answer(payload)


def _of_detections(payload: Detections) -> Scene:
    width, height = payload.image_width, payload.image_height
    if not (width > 0 and height > 0):
        return Scene()
    left, right = (0.5 - AHEAD_HALF_WIDTH) * width, (0.5 + AHEAD_HALF_WIDTH) * width
    ahead = any(
        box.class_id == DetectionClass.VEHICLE
        and box.x_min <= right
        and box.x_max >= left
        and box.y_max - box.y_min >= AHEAD_HEIGHT * height
        for box in payload.detections
    )
    people = any(box.class_id == DetectionClass.PEDESTRIAN for box in payload.detections)
    return Scene(_presence(ahead, True), _presence(people, True))


def _of_answer(payload: SceneAdvice) -> Scene:
    hazards = payload.hazards
    ahead = Hazard.LEAD_VEHICLE in hazards or Hazard.LEAD_VEHICLE_BRAKING in hazards
    people = Hazard.PEDESTRIAN_NEAR_LANE in hazards or 0 < payload.pedestrians < NOT_COUNTED
    return Scene(
        _presence(ahead, payload.vehicles != NOT_COUNTED), _presence(people, payload.pedestrians != NOT_COUNTED)
    )


def _presence(seen: bool, looked: bool) -> Presence:
    return Presence.PRESENT if seen else Presence.ABSENT if looked else Presence.UNKNOWN


def joint(one: Scene, other: Scene) -> Scene:
    """The more careful view of each subject."""
    return Scene(max(one.vehicle_ahead, other.vehicle_ahead), max(one.pedestrian, other.pedestrian))


def care_of(scene: Scene) -> Advice:
    """The care a scene asks for by itself."""
    return max(_CARE[subject][getattr(scene, subject)] for subject in SUBJECTS)


def confirmed(one: Scene, other: Scene) -> bool:
    """Whether both see somebody, and the same."""
    return any(getattr(one, s) is getattr(other, s) is Presence.PRESENT for s in SUBJECTS)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A VLM answer beside the detector.

    Attributes:
        advice: what the VLM advises.
        vlm, detector: what either saw in the picture the answer is about.
    """

    advice: Advice
    vlm: Scene
    detector: Scene

    @property
    def care(self) -> Advice:
        """What the answer comes to: never less care than either scene asks for alone."""
        care = care_of(joint(self.vlm, self.detector))
        return max(care, self.advice) if confirmed(self.vlm, self.detector) else care

    @property
    def disagreements(self) -> tuple[str, ...]:
        """Subjects that one says are there and the other that they are not."""
        return tuple(s for s in SUBJECTS if abs(getattr(self.vlm, s) - getattr(self.detector, s)) == 2)


class Scenes:
    """What the detector saw lately, by source stamp."""

    def __init__(self) -> None:
        self._scenes: deque[tuple[int, Scene]] = deque(maxlen=KEPT)

    def add(self, stamp_ns: int, scene: Scene) -> None:
        """One result."""
        self._scenes.append((stamp_ns, scene))

    def at(self, stamp_ns: int) -> Scene:
        """What it saw in the picture of this stamp; unknown if it did not look at it."""
        near = min(self._scenes, key=lambda entry: abs(entry[0] - stamp_ns), default=None)
        return near[1] if near is not None and abs(near[0] - stamp_ns) <= SAME_PICTURE_NS else Scene()

    def clear(self) -> None:
        """Stamps begin anew."""
        self._scenes.clear()
