"""What became of a drive: the figures a campaign of drives is judged by. Pure; a step costs some microseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from triptych.contract import DetectionClass
from triptych.scenario.actors import Actor
from triptych.scenario.ego import EGO_FRONT_M, EGO_REAR_M, EGO_WIDTH_M, Ego


@dataclass(frozen=True, slots=True)
class Collision:
    """The first contact with somebody.

    Attributes:
        time_s: scenario time.
        kind, class_id: of the other one, e.g. "bicycle".
        ego_speed_mps: of the ego.
        other_speed_mps: of the other one, along his own heading.
    """

    time_s: float
    kind: str
    class_id: DetectionClass
    ego_speed_mps: float
    other_speed_mps: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the ego came to rest.

    Attributes:
        time_s: scenario time.
        s_m, d_m: road coordinates.
        place: "lane", "shoulder", or "edge": wholly in neither.
    """

    time_s: float
    s_m: float
    d_m: float
    place: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """So far, from the start of the drive.

    Attributes:
        min_distance_m: the least distance between the ego's outline and anybody else's, 0 at contact, infinite if
            there never was anybody.
        nearest: who that was, e.g. "car"; empty if there never was anybody.
        collisions: one per road user touched, in order.
        stop: the last time the ego came to rest from motion; None if it never did.
        stops: how often it did.
        max_deceleration_mps2: greatest, at least 0.
        max_jerk_mps3: greatest change of acceleration, either way, while moving: how the wheels come to hold within the
            last step is not modelled.
    """

    min_distance_m: float = math.inf
    nearest: str = ""
    collisions: tuple[Collision, ...] = ()
    stop: Stop | None = None
    stops: int = 0
    max_deceleration_mps2: float = 0.0
    max_jerk_mps3: float = 0.0


def gaps_m(ego: Ego, actor: Actor) -> tuple[float, float]:
    """Gaps along and across the road between the two outlines; negative where they overlap, contact when both are."""
    along = max(actor.s - actor.length / 2 - ego.s - EGO_FRONT_M, ego.s - EGO_REAR_M - actor.s - actor.length / 2)
    return along, abs(actor.d - ego.d) - (actor.width + EGO_WIDTH_M) / 2


def nearest_of(ego: Ego, actors: Iterable[Actor]) -> tuple[float, Actor | None, list[Actor]]:
    """Distance in m to the nearest actor, who that is, and everybody the ego touches."""
    least, nearest, touched = math.inf, None, []
    for actor in actors:
        along, across = gaps_m(ego, actor)
        if along < 0.0 and across < 0.0:
            touched.append(actor)
        if along < least and across < least:
            distance = math.hypot(max(along, 0.0), max(across, 0.0))
            if distance < least:
                least, nearest = distance, actor
    return least, nearest, touched


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the drive.

    Attributes:
        time_s: at its end.
        before_mps, after_mps: speed of the ego at its two ends.
        acceleration_mps2: at its end.
        jerk_mps3: over the step, 0 if it ends at rest.
        nearest_m, nearest: distance to the nearest actor, and its kind.
        collisions: that began in it.
        s_m, d_m, place: of the ego at its end, see :class:`Stop`.
    """

    time_s: float
    before_mps: float
    after_mps: float
    acceleration_mps2: float
    jerk_mps3: float
    nearest_m: float
    nearest: str
    collisions: tuple[Collision, ...]
    s_m: float
    d_m: float
    place: str


def after(outcome: Outcome, step: Step) -> Outcome:
    """The outcome with one more step."""
    nearer = step.nearest_m < outcome.min_distance_m
    stopped = step.before_mps > 0.0 and step.after_mps == 0.0
    return replace(
        outcome,
        min_distance_m=step.nearest_m if nearer else outcome.min_distance_m,
        nearest=step.nearest if nearer else outcome.nearest,
        collisions=outcome.collisions + step.collisions,
        stop=Stop(step.time_s, step.s_m, step.d_m, step.place) if stopped else outcome.stop,
        stops=outcome.stops + stopped,
        max_deceleration_mps2=max(outcome.max_deceleration_mps2, -step.acceleration_mps2),
        max_jerk_mps3=max(outcome.max_jerk_mps3, abs(step.jerk_mps3)),
    )
