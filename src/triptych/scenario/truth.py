"""Ground truth of a frame."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract import Advice, DetectionClass, Hazard, Light, Road, Weather


@dataclass(frozen=True, slots=True)
class TruthBox:
    """One object in the picture.

    Attributes:
        class_id: never OTHER.
        x_min, y_min, x_max, y_max: pixels, tight around what is drawn, clipped to the image.
        visible: share of the object that is neither hidden by others nor outside the image, 0..1.
        distance_m: from the camera along the road to its nearest point.
        brake_lights: whether they are on.
        kind: finer than the class, e.g. "car", "truck", "bicycle", "signal", "limit50".
        contrast: what haze and darkness leave of it, 0..1; objects below 0.05 are left out.
    """

    class_id: DetectionClass
    x_min: float
    y_min: float
    x_max: float
    y_max: float
    visible: float
    distance_m: float
    brake_lights: bool = False
    kind: str = ""
    contrast: float = 1.0


@dataclass(frozen=True, slots=True)
class SceneTruth:
    """What a perfect observer of the frame would say.

    Attributes:
        boxes: nearest first.
        road, weather, light: what surrounds the vehicle and the next metres of road.
        hazards, advice: after the table of :mod:`.advice`.
        ego_speed_mps: of the vehicle.
        min_gap_m: from the front bumper to the nearest thing in the path; infinite if there is none.
        collision: whether the vehicle has touched anything since the start.
    """

    boxes: tuple[TruthBox, ...]
    road: Road
    weather: Weather
    light: Light
    hazards: tuple[Hazard, ...]
    advice: Advice
    ego_speed_mps: float
    min_gap_m: float
    collision: bool
