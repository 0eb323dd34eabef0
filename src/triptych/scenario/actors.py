"""Everybody else on the road, and how they move."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from triptych.contract import DetectionClass
from triptych.scenario import people, vehicles
from triptych.scenario.mesh import Colour, Mesh
from triptych.scenario.people import Person

IDM_ACCELERATION_MPS2 = 1.6
IDM_DECELERATION_MPS2 = 2.0
IDM_HEADWAY_S = 1.5
IDM_GAP_M = 2.5
HARDEST_BRAKING_MPS2 = 3.6
"""Nobody who drives along the road brakes harder."""


def idm(speed: float, wanted: float, gap: float, lead_speed: float, headway_s: float = IDM_HEADWAY_S) -> float:
    """Acceleration (m/s²) of the intelligent driver model (Treiber, Hennecke, Helbing 2000).

    Args:
        gap: bumper to bumper in metres; infinite on a free road.
    """
    free = 1.0 - (speed / max(wanted, 0.1)) ** 4
    if speed > wanted:  # come down gently instead of with the fourth power
        free = max(free, -1.0)
    if math.isinf(gap):
        return IDM_ACCELERATION_MPS2 * free
    brake = 2.0 * math.sqrt(IDM_ACCELERATION_MPS2 * IDM_DECELERATION_MPS2)
    star = IDM_GAP_M + max(0.0, speed * headway_s + speed * (speed - lead_speed) / brake)
    return IDM_ACCELERATION_MPS2 * (free - (star / max(gap, 0.1)) ** 2)


STAND_OFF_M = 2.0
"""Vehicles come to rest this far from what they stop for."""


def halt(speed: float, gap: float, comfortable: float = 1.8) -> float:
    """Greatest acceleration (m/s²) that still ends in front of something that stands, without creeping up to it.

    Args:
        gap: bumper to obstacle in metres.
        comfortable: the deceleration to stop with when there is room.
    """
    room = gap - STAND_OFF_M
    if room < 0.25:
        return -4.0 if speed > 1.5 else -1.2
    needed = speed * speed / (2.0 * room)
    if needed >= 0.88 * comfortable:
        return -1.04 * needed
    return 0.8 * (math.sqrt(2.0 * comfortable * room) - speed)


@dataclass(slots=True)
class Actor:
    """Somebody or something that moves, or could.

    Attributes:
        s, d: position in road coordinates, of the centre.
        speed: along ``heading``.
        heading: 1 our direction, -1 oncoming, 0 across the road (then ``across`` is 1 to the right, -1 to the left).
        length, width: of the footprint along and across the road.
        wanted: the speed it would like.
        lane: the ``d`` it steers to.
        brakes: brake lights on.
        hazard: hazard lights flash.
    """

    kind: str
    class_id: DetectionClass
    s: float
    d: float
    speed: float
    heading: int
    length: float
    width: float
    mesh: Mesh
    wanted: float = 0.0
    lane: float = 0.0
    across: int = 0
    acceleration: float = 0.0
    brakes: bool = False
    hazard: bool = False
    person: Person | None = None
    colour: tuple[float, float, float] = (0.0, 0.0, 0.0)
    walked: float = 0.0
    state: str = ""
    slow_until: float = -1.0
    next_slow: float = math.inf
    merged: bool = False
    junction: float = field(default=math.nan)

    def shown_mesh(self) -> Mesh:
        """The mesh for the present phase of the step or the pedals."""
        if self.person is None:
            return self.mesh
        if self.kind == "pedestrian":
            phase = -1 if self.speed < 0.05 else int(self.walked / 0.18) % 8
            if self.heading == 0:
                view = "right" if self.across > 0 else "left"
            else:
                view = "back" if self.heading > 0 else "front"
            return people.pedestrian(self.person, view, phase)
        if self.kind == "bicycle":
            return people.bicycle(self.person, self.colour, int(self.walked / 1.3) % 4)
        return self.mesh


def _pick(rng: np.random.Generator, items: tuple[Colour, ...]) -> Colour:
    return items[int(rng.integers(0, len(items)))]


def make_person(rng: np.random.Generator, hi_vis: bool = False) -> Person:
    """Random looks; few enough variants that meshes are shared."""
    return Person(
        (1.62, 1.7, 1.78, 1.86, 1.25)[int(rng.integers(0, 5 if not hi_vis else 4))],
        int(rng.integers(0, 4)),
        int(rng.integers(0, 4)),
        int(rng.integers(0, len(people.CLOTHES))),
        int(rng.integers(0, 6)),
        bool(rng.random() < 0.3),
        hi_vis,
    )


def make_vehicle(rng: np.random.Generator, heading: int, heavy: float = 0.18, urban: bool = False) -> Actor:
    """A car, van, lorry or bus at s = d = 0, at rest. ``heavy``: share of lorries and buses."""
    if rng.random() < heavy:
        if urban and rng.random() < 0.5:
            colour = _pick(rng, vehicles.TRUCK_COLOURS)
            return Actor("bus", DetectionClass.VEHICLE, 0, 0, 0, heading, 11.0, 2.54, vehicles.bus(colour))
        length, height = ((7.0, 3.2), (10.0, 3.7), (14.0, 3.95))[int(rng.integers(0, 2 if urban else 3))]
        body, cab = _pick(rng, vehicles.TRUCK_COLOURS), _pick(rng, vehicles.TRUCK_COLOURS)
        mesh = vehicles.truck(length, height, body, cab, heading < 0)
        return Actor("truck", DetectionClass.VEHICLE, 0, 0, 0, heading, length, 2.5, mesh)
    shape = vehicles.CAR_SHAPES[int(rng.choice(6, p=[0.24, 0.2, 0.18, 0.18, 0.1, 0.1]))]
    mesh = vehicles.car(shape, _pick(rng, vehicles.CAR_COLOURS), int(rng.integers(0, 3)))
    kind = "van" if shape is vehicles.CAR_SHAPES[5] else "car"
    return Actor(kind, DetectionClass.VEHICLE, 0, 0, 0, heading, shape.length, shape.width, mesh)


def make_motorbike(rng: np.random.Generator, heading: int) -> Actor:
    """A motorcycle with rider at s = d = 0."""
    mesh = people.motorbike(make_person(rng), _pick(rng, vehicles.CAR_COLOURS))
    return Actor("motorbike", DetectionClass.TWO_WHEELER, 0, 0, 0, heading, 2.1, 0.8, mesh)


def make_bicycle(rng: np.random.Generator, heading: int) -> Actor:
    """A cyclist at s = d = 0."""
    person, colour = make_person(rng), _pick(rng, vehicles.CAR_COLOURS)
    actor = Actor(
        "bicycle",
        DetectionClass.TWO_WHEELER,
        0,
        0,
        0,
        heading,
        1.7,
        0.6,
        people.bicycle(person, colour, 0),
        person=person,
        colour=colour,
    )
    actor.walked = float(rng.uniform(0, 5))
    return actor


def make_pedestrian(rng: np.random.Generator, hi_vis: bool = False) -> Actor:
    """A pedestrian at s = d = 0, standing."""
    person = make_person(rng, hi_vis)
    actor = Actor(
        "pedestrian",
        DetectionClass.PEDESTRIAN,
        0,
        0,
        0,
        1,
        0.5,
        0.5,
        people.pedestrian(person, "back", -1),
        person=person,
    )
    actor.walked = float(rng.uniform(0, 5))
    return actor
