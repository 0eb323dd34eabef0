"""What stands beside the road, generated once per stretch: furniture, buildings, plants, parked cars, works."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from triptych.contract import DetectionClass, Road
from triptych.scenario import scenery, street
from triptych.scenario.actors import Actor, make_pedestrian, make_vehicle
from triptych.scenario.config import ScenarioConfig
from triptych.scenario.mesh import Builder, Colour, Mesh
from triptych.scenario.road import JUNCTION_M, ZEBRA_M, Stretch
from triptych.scenario.signals import Aspect

# painting order: everything of a lower bucket is behind everything of a higher one, by depth within a bucket
BACKDROP, BEYOND, RAIL, ROADSIDE = range(4)


@dataclass(slots=True, eq=False)
class Instance:
    """A mesh at a place, and what it is.

    Attributes:
        y: height of the mesh's origin above the road.
        cos, sin: of the heading: 1, 0 along the road; 0, 1 across it to the right.
        class_id: what the detector should call it; None if nothing.
        brakes, hazard: lights of a vehicle.
        aspect: of a traffic light.
    """

    mesh: Mesh
    s: float
    d: float
    y: float = 0.0
    cos: float = 1.0
    sin: float = 0.0
    bucket: int = ROADSIDE
    class_id: DetectionClass | None = None
    kind: str = ""
    brakes: bool = False
    hazard: bool = False
    aspect: Aspect | None = None


@dataclass(slots=True)
class Furnished:
    """A stretch with its props, and the actors that belong to it: parked cars, workers."""

    stretch: Stretch
    props: list[Instance] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)


GREENS: tuple[Colour, ...] = ((46, 112, 82), (40, 96, 62), (52, 120, 104), (36, 84, 70), (44, 108, 122))
METAL: Colour = (140, 140, 138)


class _Stage:
    """Helpers around one stretch."""

    def __init__(self, config: ScenarioConfig, stretch: Stretch) -> None:
        self.config, self.stretch, self.layout = config, stretch, stretch.layout
        self.rng = np.random.Generator(np.random.PCG64([int(config.seed), 31, stretch.index]))
        self.out = Furnished(stretch)
        self.start, self.end = stretch.start_m, stretch.end_m
        self.junction = (
            (stretch.junction_m - 4.0, stretch.junction_m + JUNCTION_M + 4.0)
            if stretch.junction_m is not None
            else None
        )
        self.green = GREENS[int(self.rng.integers(0, len(GREENS)))]

    def clear(self, s: float, margin: float = 0.0) -> bool:
        """Not in the junction."""
        return self.junction is None or not (self.junction[0] - margin < s < self.junction[1] + margin)

    def along(self, every: float, jitter: float = 0.3) -> list[float]:
        """Places along the stretch about ``every`` metres apart."""
        n = int((self.end - self.start) / every)
        step = (self.end - self.start) / max(n, 1)
        return [self.start + (k + 0.5) * step + float(self.rng.uniform(-jitter, jitter)) * step for k in range(n)]

    def add(self, mesh: Mesh, s: float, d: float, **more: object) -> None:
        self.out.props.append(Instance(mesh, s, d, **more))  # type: ignore[arg-type]

    def tree(self, s: float, d: float, bucket: int, kind: int | None = None) -> None:
        kind = int(self.rng.choice(3, p=[0.6, 0.2, 0.2])) if kind is None else kind
        self.add(scenery.tree(kind, int(self.rng.integers(0, 6)), self.green), s, d, bucket=bucket)

    def sign(self, kind: str, s: float, d: float, height: float = 2.2, bucket: int = ROADSIDE) -> None:
        self.add(street.post(height, 0.08, METAL), s, d, bucket=bucket)
        self.add(
            street.sign_face(kind), s - 0.05, d, y=height + 0.15, class_id=DetectionClass.SIGN, kind=kind, bucket=bucket
        )

    def strip(
        self,
        d: float,
        length: float,
        low: float,
        high: float,
        colour: Colour,
        thickness: float,
        posts: bool,
        bucket: int,
        from_m: float | None = None,
        to_m: float | None = None,
    ) -> None:
        mesh = street.strip(length, low, high, colour, thickness, posts)
        s = (self.start if from_m is None else from_m) + length / 2
        end = (self.end if to_m is None else to_m) - length / 2
        while s <= end:
            if self.clear(s, length / 2):
                self.add(mesh, s, d, bucket=bucket, kind="strip")
            s += length


def _woods(g: _Stage, right: float, left: float, share: float) -> None:
    """The edge of a wood beside parts of the road, at ``d`` = right and left."""
    for d in (right, left):
        if g.rng.random() > share:
            continue
        height = float(g.rng.choice([1.8, 4.0, 7.0, 10.0]))
        s = g.start + float(g.rng.uniform(6, 60))
        end = g.end - float(g.rng.uniform(6, 60))
        while s < end:
            mesh = scenery.thicket(12.0, height, int(g.rng.integers(0, 8)), g.green)
            g.add(mesh, s, d + float(g.rng.uniform(-0.8, 0.8)), bucket=BACKDROP)
            if height > 5 and g.rng.random() < 0.4:
                g.tree(s, d, BACKDROP, int(g.rng.integers(0, 2)))
            s += 11.4


def _highway(g: _Stage) -> None:
    layout, rng = g.layout, g.rng
    rail_d = layout.right_edge + 3.6
    # the rails begin a little inside, where the lanes of the other direction have found their place
    inner = g.start + (0.0 if g.stretch.index == 0 else 36.0)
    g.strip(rail_d, 8.0, 0.45, 0.8, (165, 165, 162), 0.1, True, RAIL)
    if layout.median == "barrier":
        g.strip(
            (layout.median_from + layout.median_to) / 2,
            8.0,
            0.0,
            0.95,
            (158, 162, 164),
            0.5,
            False,
            RAIL,
            inner,
            g.end - 20,
        )
    else:
        for d in (layout.median_from - 0.9, layout.median_to + 0.9):
            g.strip(d, 8.0, 0.45, 0.8, (165, 165, 162), 0.1, True, RAIL, inner, g.end - 20)
        for s in g.along(14):
            if s > inner:
                g.tree(s, (layout.median_from + layout.median_to) / 2, BEYOND, 2)
    wall = rng.random() < 0.2
    if wall:
        g.strip(rail_d + 2.5, 12.0, 0.0, 3.2, (110, 130, 120), 0.2, False, BEYOND)
    _woods(g, rail_d + float(rng.uniform(7, 16)), layout.far_edge - float(rng.uniform(4, 14)), 0.5)
    for s in g.along(float(rng.choice([7.0, 12.0, 30.0]))):
        side = rng.random() < 0.55
        d = (
            float(rng.uniform(rail_d + 4, rail_d + 34))
            if side
            else float(rng.uniform(layout.far_edge - 34, layout.far_edge - 4))
        )
        if side and wall and d < rail_d + 4:
            continue
        g.tree(s, d, BACKDROP if abs(d) > 22 else BEYOND)
    for s in g.along(170):
        g.sign(str(rng.choice(["limit100", "limit120", "limit80", "warning"])), s, rail_d + 0.6, 2.4, BEYOND)
    for s in g.along(330):
        colour = ((150, 70, 20), (70, 110, 20))[layout.style % 2]
        lanes = 1 + len(layout.same)
        centre = (layout.left_edge + layout.right_edge) / 2
        if rng.random() < 0.6:
            for d in (layout.left_edge - 0.9, rail_d + 0.5):
                g.add(street.post(7.9, 0.35, METAL), s, d)
            g.add(street.strip(0.4, 0.0, 0.4, METAL, 2 * (rail_d + 0.5 - centre), False), s, centre, y=7.4)
            g.add(
                street.gantry_face(colour, min(lanes, 2)),
                s - 0.3,
                centre,
                y=5.6,
                class_id=DetectionClass.SIGN,
                kind="direction",
            )
        else:
            for d in (rail_d + 1.2, rail_d + 4.2):
                g.add(street.post(4.2, 0.16, METAL), s, d, bucket=BEYOND)
            g.add(
                street.gantry_face(colour, 1),
                s - 0.1,
                rail_d + 2.7,
                y=1.9,
                class_id=DetectionClass.SIGN,
                kind="direction",
                bucket=BEYOND,
            )
    if g.end - g.start > 300 and rng.random() < 0.5:
        s = float(rng.uniform(g.start + 100, g.end - 60))
        centre = (layout.far_edge + rail_d) / 2
        half = (rail_d - layout.far_edge) / 2 + 6
        for d in (rail_d + 2.0, layout.far_edge - 2.0):
            g.add(street.strip(7.0, 0.0, 5.4, (135, 138, 140), 1.4, False), s, d, bucket=BEYOND)
        g.add(_bridge(half), s, centre, kind="bridge")
    for s in g.along(50):
        g.add(street.post(1.0, 0.12, (225, 228, 228)), s, rail_d + 0.3, bucket=BEYOND)


def _bridge(half_width: float) -> Mesh:
    b = Builder()
    b.box((-half_width, half_width), (5.3, 6.6), (-4.5, 4.5), (140, 143, 146), faces="b")
    b.flat([(-half_width, 6.6), (half_width, 6.6), (half_width, 7.6), (-half_width, 7.6)], (120, 122, 118), -4.6)
    b.add(
        [(-half_width, 5.3, -4.5), (half_width, 5.3, -4.5), (half_width, 5.3, 4.5), (-half_width, 5.3, 4.5)],
        (62, 62, 64),
    )
    b.box((-half_width, half_width), (5.3, 5.75), (-4.55, -4.5), (105, 108, 110), faces="b")
    return b.build()


def _rural(g: _Stage) -> None:
    layout, rng = g.layout, g.rng
    alley = rng.random() < 0.4
    for s in g.along(25, 0.0):
        for d in (4.7, layout.far_edge - 1.2):
            g.add(street.post(0.95, 0.12, (228, 230, 230)), s, d)
    if alley:
        for s in g.along(16, 0.1):
            for d in (6.4, layout.far_edge - 3.0):
                g.tree(s, d + float(rng.uniform(-0.4, 0.4)), ROADSIDE, 0)
    _woods(g, float(rng.uniform(9, 22)), layout.far_edge - float(rng.uniform(6, 18)), 0.45)
    for s in g.along(float(rng.choice([7.0, 10.0, 22.0]))):
        side = 1 if rng.random() < 0.5 else -1
        d = float(rng.uniform(8, 45)) if side > 0 else float(rng.uniform(layout.far_edge - 45, layout.far_edge - 4))
        g.tree(s, d, BACKDROP if abs(d) > 25 else ROADSIDE)
    if rng.random() < 0.5:
        g.strip(7.6, 8.0, 0.5, 1.1, (70, 95, 120), 0.05, True, ROADSIDE)
    for s in g.along(150):
        if rng.random() < 0.7:
            side = 1 if rng.random() < 0.5 else -1
            d = float(rng.uniform(14, 24)) if side > 0 else layout.far_edge - float(rng.uniform(10, 20))
            colour = scenery.BUILDING_COLOURS[int(rng.integers(0, len(scenery.BUILDING_COLOURS)))]
            g.add(scenery.building(side, 14.0, 2, colour, int(rng.integers(0, 6))), s, d, bucket=BACKDROP)
    for s in g.along(120):
        g.sign(str(rng.choice(["limit70", "limit80", "curve", "warning", "priority", "limit60"])), s, 4.9, 1.9)
    for s in g.along(140):
        g.sign(str(rng.choice(["limit70", "priority", "curve"])), s, layout.far_edge - 1.6, 1.9)


def _urban(g: _Stage) -> None:
    layout, rng = g.layout, g.rng
    walk_left, walk_right = layout.far_edge - 0.1, 4.35
    for d in (walk_left, walk_right):
        g.strip(d, 10.0, 0.0, 0.13, (150, 153, 155), 0.2, False, RAIL)
    park = rng.random() < 0.15
    for side, front in ((1, walk_right + 3.6), (-1, walk_left - 3.6)):
        s = g.start
        while s < g.end - 6:
            length = float(rng.choice([10.0, 14.0, 18.0, 22.0]))
            middle = s + length / 2
            if g.clear(middle, length / 2 + 1.0) and s + length <= g.end + 4:
                if park or rng.random() < 0.12:
                    for _ in range(3):
                        g.tree(
                            middle + float(rng.uniform(-length / 2, length / 2)),
                            front * 1.0 + side * float(rng.uniform(1, 9)),
                            BACKDROP,
                        )
                else:
                    colour = scenery.BUILDING_COLOURS[int(rng.integers(0, len(scenery.BUILDING_COLOURS)))]
                    floors = int(rng.integers(2, 6))
                    g.add(
                        scenery.building(side, length, floors, colour, int(rng.integers(0, 6))),
                        middle,
                        front + side * float(rng.uniform(0, 0.8)),
                        bucket=BACKDROP,
                    )
            s += length + float(rng.choice([0.0, 0.0, 1.5, 5.0]))
    for k, s in enumerate(g.along(26, 0.1)):
        if not g.clear(s, 2.0):
            continue
        side = 1 if k % 2 else -1
        d = walk_right + 0.6 if side > 0 else walk_left - 0.6
        g.add(street.post(8.0, 0.16, (95, 98, 96), -side * 1.8), s, d)
        g.add(street.lamp_head(-side * 1.8), s - 0.1, d)
        if rng.random() < 0.6:
            other = walk_left - 0.9 if side > 0 else walk_right + 0.9
            g.tree(s + 6, other, ROADSIDE, 0)
    for s in g.along(55):
        if g.clear(s, 3.0):
            kind = str(rng.choice(["limit50", "limit30", "crossing", "no_entry", "warning", "priority", "yield"]))
            g.sign(kind, s, walk_right + 0.4)
    for s in g.along(60):
        if g.clear(s, 3.0):
            g.sign(str(rng.choice(["limit50", "crossing", "no_entry", "limit30"])), s, walk_left - 0.4)
    parking = ((3.05, 1, layout.parking), (walk_left + 1.25, -1, rng.random() < 0.7))
    for d, heading, there in parking:
        if not there:
            continue
        for s in g.along(6.6, 0.06):
            if rng.random() < 0.62 and g.clear(s, 6.0) and g.start + 8 < s < g.end - 8:
                car = make_vehicle(rng, heading, heavy=0.0)
                car.s, car.d, car.state, car.kind = s, d + float(rng.uniform(-0.1, 0.1)), "parked", "parked car"
                g.out.actors.append(car)
    if g.stretch.index > 0 and g.stretch.layout.road is Road.URBAN:
        g.sign("city", g.start + 4.0, walk_right + 0.5)


def _junction(g: _Stage) -> None:
    start = g.stretch.junction_m
    assert start is not None
    rng = g.rng
    if not g.stretch.signal:
        for d, s in ((4.8, start - 0.5), (g.layout.far_edge - 0.6, start + JUNCTION_M + 0.5)):
            g.sign("crossing", s, d, 2.3)
        return
    overhead = rng.random() < 0.5
    for s, d, arm in ((start - 1.2, 4.7, -4.4 if overhead else 0.0), (start + JUNCTION_M - ZEBRA_M + 0.2, 4.7, -3.2)):
        g.add(street.post(5.6 if arm else 3.4, 0.18, (70, 72, 72), arm), s, d)
        g.add(street.traffic_light(True), s - 0.2, d, y=2.4, class_id=DetectionClass.TRAFFIC_LIGHT, kind="signal")
        if arm:
            g.add(
                street.traffic_light(True),
                s - 0.2,
                d + arm,
                y=5.1,
                class_id=DetectionClass.TRAFFIC_LIGHT,
                kind="signal",
            )
    left = g.layout.far_edge - 0.5
    g.add(street.post(3.4, 0.18, (70, 72, 72)), start + JUNCTION_M + 1.2, left)
    g.add(
        street.traffic_light(False),
        start + JUNCTION_M + 1.2,
        left,
        y=2.4,
        class_id=DetectionClass.TRAFFIC_LIGHT,
        kind="signal back",
    )


def _works(g: _Stage) -> None:
    layout, rng = g.layout, g.rng
    edge = layout.right_edge
    start, end = g.start + 45.0, g.end - 12.0
    post = edge + 2.6
    g.sign("works", g.start + 8.0, post, 2.0)
    g.sign({Road.HIGHWAY: "limit60", Road.RURAL: "limit40"}.get(layout.base, "limit30"), g.start + 26.0, post, 2.0)
    g.add(street.works_barrier(2.4), start - 1.0, edge + 1.7, kind="barrier")
    s = start
    boards = rng.random() < 0.5
    k = 0
    while s < end:
        shift = max(0.0, 1.6 - (s - start) * 0.15)
        g.add(street.beacon_board() if boards else street.cone(), s, edge + 0.45 + shift, kind="works")
        s += 6.0
        k += 1
    if layout.left_edge < -3.0:  # the lane beside ours is closed too
        s = start - 40.0
        while s < end:
            closing = max(0.0, min(1.0, (s - start + 40.0) / 40.0))
            d = layout.left_edge + 0.2 + closing * (-2.1 - layout.left_edge - 0.2)
            g.add(street.cone() if boards else street.beacon_board(), s, d, kind="works")
            s += 8.0
    s = start + 12
    while s < end - 6:
        what = int(rng.integers(0, 4))
        if what == 0:
            g.add(street.excavator(), s, edge + 2.6, kind="machine")
            s += 8
        elif what in (1, 2):
            for _ in range(int(rng.integers(1, 3))):
                worker = make_pedestrian(rng, hi_vis=True)
                worker.s, worker.d, worker.state = (
                    s + float(rng.uniform(0, 3)),
                    edge + float(rng.uniform(1.7, 4.0)),
                    "worker",
                )
                worker.heading = 1 if rng.random() < 0.5 else -1
                g.out.actors.append(worker)
        else:
            g.add(street.works_barrier(1.6), s, edge + float(rng.uniform(2.0, 3.0)), kind="barrier")
        s += float(rng.uniform(9, 24))


def furnish(config: ScenarioConfig, stretch: Stretch) -> Furnished:
    """Everything that stands on and beside a stretch; depends on the seed and the stretch only."""
    g = _Stage(config, stretch)
    {Road.HIGHWAY: _highway, Road.RURAL: _rural, Road.URBAN: _urban}[stretch.layout.base](g)
    if stretch.junction_m is not None:
        _junction(g)
    if stretch.layout.road is Road.WORKS:
        _works(g)
    return g.out
