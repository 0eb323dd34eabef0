"""Solid models made of convex polygons: vehicles, people, furniture of the road, buildings, trees.

Local coordinates: x to the right, y up, z forward, metres; origin on the ground. Polygons are kept in the order in
which they are painted; faces that look away are culled by their normal. Colours are BGR 0..255 in full daylight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

Colour = tuple[float, float, float]
Point = tuple[float, float, float]


class Role(IntEnum):
    """What a polygon's colour depends on besides the light."""

    PLAIN = 0
    SHADOW = 1
    """On the ground below an object; not part of its box."""
    GLOW = 2
    """Shines by itself, always."""
    BRAKE = 3
    """Tail light: dim red, bright when braking."""
    HEAD = 4
    """Head light: shines at dusk and night."""
    WINDOW = 5
    """A lit window at dusk and night, dark glass by day."""
    BLINK = 6
    """Amber, flashing (works, warning beacons)."""
    RED = 7
    YELLOW = 8
    GREEN = 9
    RETRO = 10
    """Retro-reflecting: bright in the head lights."""


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """``vertices`` (V, 3) float32; polygon i is ``vertices[starts[i]:starts[i] + counts[i]]``; ``normals`` (P, 3),
    zero for polygons seen from both sides; ``colours`` (P, 3) BGR; ``roles`` (P,); the first ``unboxed`` vertices
    (shadow) don't count for the bounding box."""

    vertices: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    normals: npt.NDArray[np.float32]
    colours: npt.NDArray[np.float32]
    roles: npt.NDArray[np.uint8]
    unboxed: int
    size_m: float
    """The greater of height and width."""
    radius_m: float
    """Greatest horizontal distance from the origin."""
    far: Mesh | None = None
    """A simpler version for a distance, if there is one."""


class Builder:
    """Collects polygons and orients their normals away from ``centre``."""

    def __init__(self) -> None:
        self._polygons: list[tuple[list[Point], Point, Colour, Role]] = []

    def add(
        self,
        points: Sequence[Point],
        colour: Colour,
        *,
        centre: Point | None = None,
        role: Role = Role.PLAIN,
    ) -> None:
        """A polygon; without ``centre`` it is seen from both sides."""
        normal: Point = (0.0, 0.0, 0.0)
        if centre is not None:
            p = np.asarray(points, float)
            n = np.cross(p[1] - p[0], p[2] - p[0])
            length = float(np.linalg.norm(n))
            if length > 1e-9:
                n /= length
                if float(n @ (p.mean(axis=0) - np.asarray(centre))) < 0:
                    n = -n
                normal = (float(n[0]), float(n[1]), float(n[2]))
        self._polygons.append((list(points), normal, colour, role))

    def shadow(self, half_width: float, rear: float, front: float) -> None:
        """Darkness on the road below."""
        w = half_width
        points = [(-w, 0.0, rear + 0.1), (-w, 0.0, front - 0.1), (w, 0.0, front - 0.1), (w, 0.0, rear + 0.1)]
        self.add(points, (44, 42, 42), role=Role.SHADOW)

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        colour: Colour,
        *,
        top: Colour | None = None,
        role: Role = Role.PLAIN,
        faces: str = "brflt",
    ) -> None:
        """A cuboid; ``faces`` from b(ack) r(ight) f(ront) l(eft) t(op)."""
        (x0, x1), (y0, y1), (z0, z1) = x, y, z
        centre = ((x0 + x1) / 2, (y0 + y1) / 2, (z0 + z1) / 2)
        quads = {
            "b": [(x0, y0, z0), (x1, y0, z0), (x1, y1, z0), (x0, y1, z0)],
            "f": [(x0, y0, z1), (x1, y0, z1), (x1, y1, z1), (x0, y1, z1)],
            "l": [(x0, y0, z0), (x0, y0, z1), (x0, y1, z1), (x0, y1, z0)],
            "r": [(x1, y0, z0), (x1, y0, z1), (x1, y1, z1), (x1, y1, z0)],
            "t": [(x0, y1, z0), (x1, y1, z0), (x1, y1, z1), (x0, y1, z1)],
        }
        for face in faces:
            self.add(quads[face], top if face == "t" and top is not None else colour, centre=centre, role=role)

    def rear(
        self, x0: float, x1: float, y0: float, y1: float, z: float, colour: Colour, role: Role = Role.PLAIN
    ) -> None:
        """A rectangle seen from behind only."""
        self.add([(x0, y0, z), (x1, y0, z), (x1, y1, z), (x0, y1, z)], colour, centre=(0, y0, z + 1), role=role)

    def front(
        self, x0: float, x1: float, y0: float, y1: float, z: float, colour: Colour, role: Role = Role.PLAIN
    ) -> None:
        """A rectangle seen from the front only."""
        self.add([(x0, y0, z), (x1, y0, z), (x1, y1, z), (x0, y1, z)], colour, centre=(0, y0, z - 1), role=role)

    def side(self, points: Iterable[tuple[float, float]], x: float, colour: Colour, role: Role = Role.PLAIN) -> None:
        """A polygon of (z, y) points in the planes x and -x, each seen from outside."""
        outline = list(points)
        for sign in (-1.0, 1.0):
            self.add([(sign * x, y, z) for z, y in outline], colour, centre=(0.0, 0.5, 0.0), role=role)

    def flat(
        self, points: Iterable[tuple[float, float]], colour: Colour, z: float = 0.0, role: Role = Role.PLAIN
    ) -> None:
        """A polygon of (x, y) points facing the camera, seen from both sides."""
        self.add([(x, y, z) for x, y in points], colour, role=role)

    def disc(
        self,
        x: float,
        y: float,
        radius: float,
        colour: Colour,
        z: float = 0.0,
        n: int = 12,
        role: Role = Role.PLAIN,
        squash: float = 1.0,
    ) -> None:
        """A round patch facing the camera."""
        turns = [2 * math.pi * (k + 0.5) / n for k in range(n)]
        self.flat([(x + radius * squash * math.cos(t), y + radius * math.sin(t)) for t in turns], colour, z, role)

    def bar(
        self,
        a: tuple[float, float],
        b: tuple[float, float],
        width: float,
        colour: Colour,
        z: float = 0.0,
        end_width: float | None = None,
        role: Role = Role.PLAIN,
    ) -> None:
        """A straight stroke from a to b facing the camera (limbs, poles, digits)."""
        (ax, ay), (bx, by) = a, b
        length = math.hypot(bx - ax, by - ay) or 1.0
        nx, ny = -(by - ay) / length / 2, (bx - ax) / length / 2
        w0, w1 = width, width if end_width is None else end_width
        self.flat(
            [
                (ax + nx * w0, ay + ny * w0),
                (bx + nx * w1, by + ny * w1),
                (bx - nx * w1, by - ny * w1),
                (ax - nx * w0, ay - ny * w0),
            ],
            colour,
            z,
            role,
        )

    def build(self, far: Mesh | None = None) -> Mesh:
        """The finished mesh; ``far`` is its simpler version."""
        polygons = sorted(self._polygons, key=lambda p: p[3] is not Role.SHADOW)  # stable: shadows first
        counts = np.array([len(p[0]) for p in polygons], np.int32)
        starts = (np.cumsum(counts) - counts).astype(np.int32)
        vertices = np.array([point for p in polygons for point in p[0]], np.float32)
        normals = np.array([p[1] for p in polygons], np.float32)
        colours = np.array([p[2] for p in polygons], np.float32)
        roles = np.array([p[3] for p in polygons], np.uint8)
        unboxed = int(sum(len(p[0]) for p in polygons if p[3] is Role.SHADOW))
        for array in (vertices, starts, counts, normals, colours, roles):
            array.setflags(write=False)
        size = float(np.ptp(vertices[:, :2], axis=0).max())
        radius = float(np.hypot(vertices[:, 0], vertices[:, 2]).max())
        return Mesh(vertices, starts, counts, normals, colours, roles, unboxed, size, radius, far)


def scaled(colour: Colour, factor: float) -> Colour:
    """A darker or lighter shade, kept below white."""
    return (min(255.0, colour[0] * factor), min(255.0, colour[1] * factor), min(255.0, colour[2] * factor))


GLASS: Colour = (70, 58, 46)
TYRE: Colour = (28, 26, 26)
RIM: Colour = (120, 118, 116)
TRIM: Colour = (38, 36, 36)
LAMP_RED: Colour = (30, 24, 150)
WHITE: Colour = (235, 238, 238)

CAR_COLOURS: tuple[Colour, ...] = (
    (225, 228, 228),
    (200, 204, 204),
    (165, 168, 170),
    (110, 112, 116),
    (60, 60, 62),
    (34, 32, 32),
    (40, 30, 150),
    (30, 30, 110),
    (140, 70, 30),
    (95, 50, 22),
    (70, 90, 60),
    (60, 110, 160),
    (120, 150, 180),
    (150, 120, 60),
)


def _wheels(b: Builder, half_width: float, axles: Sequence[float], radius: float) -> None:
    for z in axles:
        turns = [2 * math.pi * k / 10 for k in range(10)]
        b.side([(z + radius * math.cos(t), radius + radius * math.sin(t)) for t in turns], half_width + 0.01, TYRE)
        b.side(
            [(z + 0.6 * radius * math.cos(t), radius + 0.6 * radius * math.sin(t)) for t in turns],
            half_width + 0.02,
            RIM,
        )


def _tyre_treads(b: Builder, half_width: float, rear: float, front: float, top: float, tread: float = 0.22) -> None:
    for sign in (-1, 1):
        x0, x1 = sorted((sign * half_width, sign * (half_width - tread)))
        b.rear(x0, x1, 0.0, top, rear, TYRE)
        b.front(x0, x1, 0.0, top, front, TYRE)
    b.rear(-half_width + tread, half_width - tread, 0.14, top, rear, TRIM)
    b.front(-half_width + tread, half_width - tread, 0.14, top, front, TRIM)


@dataclass(frozen=True, slots=True)
class CarShape:
    """Proportions of a passenger car or van, metres."""

    length: float
    width: float
    height: float
    belt: float
    hood: float
    trunk: float
    front_slope: float
    rear_slope: float
    roof_inset: float


CAR_SHAPES: tuple[CarShape, ...] = (
    CarShape(4.2, 1.78, 1.47, 0.92, 1.15, 0.08, 0.75, 0.45, 0.19),  # hatchback
    CarShape(4.7, 1.84, 1.45, 0.90, 1.35, 0.75, 0.85, 0.70, 0.22),  # saloon
    CarShape(4.75, 1.85, 1.49, 0.92, 1.30, 0.06, 0.80, 0.35, 0.20),  # estate
    CarShape(4.65, 1.92, 1.68, 1.05, 1.20, 0.06, 0.65, 0.30, 0.16),  # sport utility
    CarShape(3.7, 1.68, 1.50, 0.92, 0.85, 0.05, 0.65, 0.30, 0.17),  # city car
    CarShape(4.95, 1.96, 1.95, 1.12, 0.80, 0.03, 0.70, 0.12, 0.10),  # van
)


@lru_cache(maxsize=256)
def car(shape: CarShape, colour: Colour, seed: int = 0) -> Mesh:
    """A passenger car or van."""
    b = Builder()
    hw, rear, front = shape.width / 2, -shape.length / 2, shape.length / 2
    sill, belt, roof = 0.24, shape.belt, shape.height
    nose = belt - 0.20
    dark, light = scaled(colour, 0.72), scaled(colour, 1.12)
    b.shadow(hw + 0.12, rear, front)
    _tyre_treads(b, hw - 0.02, rear + 0.12, front - 0.12, sill + 0.14)
    middle = (0.0, 0.6, 0.0)
    ws = front - shape.hood  # foot of the windscreen
    rs = rear + shape.trunk  # foot of the rear window
    # body
    b.side(
        [
            (rear + 0.06, sill),
            (rear, 0.55),
            (rear + 0.05, belt),
            (ws, belt),
            (front - 0.08, nose),
            (front, 0.5),
            (front - 0.05, sill),
        ],
        hw,
        colour,
    )
    b.side([(rear + 0.06, sill), (rear + 0.03, 0.42), (front - 0.03, 0.42), (front - 0.05, sill)], hw, dark)
    b.add([(-hw, belt, rear + 0.05), (hw, belt, rear + 0.05), (hw, belt, rs), (-hw, belt, rs)], light, centre=middle)
    b.add([(-hw, belt, ws), (hw, belt, ws), (hw, nose, front - 0.08), (-hw, nose, front - 0.08)], light, centre=middle)

    def end(z: float, top: float, inset: float, c: Colour, away: float) -> None:
        outline = [
            (-hw + 0.1, sill),
            (hw - 0.1, sill),
            (hw, sill + 0.14),
            (hw, top - 0.12),
            (hw - inset, top),
            (inset - hw, top),
            (-hw, top - 0.12),
            (-hw, sill + 0.14),
        ]
        b.add([(x, y, z) for x, y in outline], c, centre=(0.0, 0.6, z - away))

    end(rear, belt, 0.08, colour, -1.0)
    end(rear - 0.005, 0.54, 0.0, dark, -1.0)
    b.rear(-hw + 0.06, hw - 0.06, 0.70 if shape.height < 1.6 else 0.8, belt - 0.03, rear - 0.006, scaled(colour, 1.06))
    b.rear(-hw + 0.14, hw - 0.14, sill, sill + 0.08, rear - 0.01, TRIM)
    end(front, nose, 0.12, colour, 1.0)
    end(front + 0.005, 0.46, 0.0, dark, 1.0)
    b.front(-0.55 * hw, 0.55 * hw, 0.5, nose - 0.06, front, TRIM)
    _wheels(b, hw, (rear + 0.2 * shape.length, front - 0.19 * shape.length), 0.32)
    # lights and plates
    lamp_low, lamp_high = (0.62, belt - 0.06) if shape.height < 1.6 else (0.7, belt)
    lamp = 0.30 if seed % 3 else 0.22
    for sign in (-1, 1):
        x0, x1 = sorted((sign * hw, sign * (hw - lamp)))
        b.rear(x0, x1, lamp_low, lamp_high, rear - 0.01, LAMP_RED, Role.BRAKE)
        x0, x1 = sorted((sign * (hw - 0.04), sign * (hw - 0.42)))
        b.front(x0, x1, nose - 0.20, nose - 0.05, front + 0.01, (210, 215, 215), Role.HEAD)
    b.rear(-0.26, 0.26, 0.56, 0.67, rear - 0.02, (205, 215, 215), Role.RETRO)
    b.front(-0.26, 0.26, 0.36, 0.46, front + 0.02, (205, 215, 215), Role.RETRO)
    # cabin
    rw = hw - shape.roof_inset
    tw = hw - 0.06
    r0, r1 = rs + shape.rear_slope, ws - shape.front_slope
    cc = (0.0, (belt + roof) / 2, (rs + ws) / 2)
    b.add([(-tw, belt, rs), (tw, belt, rs), (rw, roof, r0), (-rw, roof, r0)], scaled(colour, 0.95), centre=cc)
    b.add([(-tw, belt, ws), (tw, belt, ws), (rw, roof, r1), (-rw, roof, r1)], scaled(colour, 0.95), centre=cc)
    for sign in (-1, 1):
        b.add(
            [(sign * tw, belt, rs), (sign * tw, belt, ws), (sign * rw, roof, r1), (sign * rw, roof, r0)],
            colour,
            centre=cc,
        )
    b.add([(-rw, roof, r0), (rw, roof, r0), (rw, roof, r1), (-rw, roof, r1)], light, centre=cc)

    def lerp(p: Point, q: Point, t: float) -> Point:
        return (p[0] + (q[0] - p[0]) * t, p[1] + (q[1] - p[1]) * t, p[2] + (q[2] - p[2]) * t)

    def pane(p0: Point, p1: Point, p2: Point, p3: Point, inset: float, top: float = 0.9, bottom: float = 0.1) -> None:
        low0, low1 = lerp(p0, p3, bottom), lerp(p1, p2, bottom)
        high0, high1 = lerp(p0, p3, top), lerp(p1, p2, top)
        a, c = lerp(low0, low1, inset), lerp(low0, low1, 1 - inset)
        e, g = lerp(high0, high1, 1 - inset), lerp(high0, high1, inset)
        b.add([a, c, e, g], GLASS, centre=cc)
        ha, hc = lerp(a, g, 0.55), lerp(c, e, 0.55)
        b.add([ha, hc, e, g], scaled(GLASS, 1.75), centre=cc)  # sky in the upper part of the pane

    pane((-tw, belt, rs), (tw, belt, rs), (rw, roof, r0), (-rw, roof, r0), 0.09)
    pane((-tw, belt, ws), (tw, belt, ws), (rw, roof, r1), (-rw, roof, r1), 0.06)
    for sign in (-1, 1):
        p = [(sign * tw, belt, rs), (sign * tw, belt, ws), (sign * rw, roof, r1), (sign * rw, roof, r0)]
        pane(p[0], p[1], p[2], p[3], 0.07)
    b.rear(-0.22, 0.22, roof - 0.09, roof - 0.05, r0 - 0.03, LAMP_RED, Role.BRAKE)
    return b.build()


TRUCK_COLOURS: tuple[Colour, ...] = (
    (220, 222, 222),
    (180, 190, 195),
    (150, 90, 40),
    (40, 60, 160),
    (90, 130, 60),
    (60, 160, 200),
    (110, 110, 112),
)


@lru_cache(maxsize=128)
def truck(length: float, height: float, colour: Colour, cab: Colour, from_front: bool) -> Mesh:
    """A lorry with a box body; ``from_front`` orders the parts for an oncoming one."""
    b = Builder()
    hw, rear, front = 1.25, -length / 2, length / 2
    b.shadow(hw + 0.1, rear, front)
    split = front - 2.2

    def body() -> None:
        _tyre_treads(b, hw - 0.05, rear + 0.5, split, 0.95, tread=0.5)
        b.box((-hw, hw), (0.95, height), (rear, split - 0.3), colour, top=scaled(colour, 1.1))
        b.side([(rear, 0.95), (rear, 1.25), (split - 0.3, 1.25), (split - 0.3, 0.95)], hw + 0.005, scaled(colour, 0.6))
        axles = [rear + 1.2, rear + 2.4] if length > 8 else [rear + 1.3]
        _wheels(b, hw, [*axles, front - 1.2], 0.48)
        b.rear(-hw, hw, 0.95, height, rear - 0.01, scaled(colour, 0.92))
        b.rear(-0.02, 0.02, 1.0, height - 0.08, rear - 0.02, scaled(colour, 0.5))
        for x in (-hw + 0.05, hw - 0.05):
            b.rear(x - 0.03, x + 0.03, 1.0, height - 0.05, rear - 0.02, scaled(colour, 0.6))
        b.rear(-hw, hw, 0.62, 0.95, rear + 0.02, TRIM)
        for sign in (-1, 1):
            x0, x1 = sorted((sign * (hw - 0.02), sign * (hw - 0.42)))
            b.rear(x0, x1, 0.72, 0.9, rear, LAMP_RED, Role.BRAKE)
            x0, x1 = sorted((sign * (hw - 0.5), sign * (hw - 0.95)))
            b.rear(x0, x1, 0.72, 0.84, rear, (30, 110, 200), Role.RETRO)
        b.rear(-0.26, 0.26, 0.72, 0.84, rear, (205, 215, 215), Role.RETRO)

    def tractor() -> None:
        top = min(height - 0.15, 2.95)
        b.box((-hw + 0.03, hw - 0.03), (0.45, top), (split, front), cab, top=scaled(cab, 1.1))
        _tyre_treads(b, hw - 0.1, split, front - 0.2, 0.5, tread=0.35)
        b.front(-hw + 0.12, hw - 0.12, 1.55, top - 0.35, front + 0.01, GLASS)
        b.front(-hw + 0.12, hw - 0.12, 0.1 + (1.55 + top) / 2, top - 0.35, front + 0.02, scaled(GLASS, 1.6))
        b.front(-0.75, 0.75, 0.75, 1.35, front + 0.01, TRIM)
        b.side([(split + 0.7, 1.6), (split + 0.7, top - 0.4), (front - 0.1, top - 0.4), (front - 0.1, 1.6)], hw, GLASS)
        for sign in (-1, 1):
            x0, x1 = sorted((sign * (hw - 0.1), sign * (hw - 0.5)))
            b.front(x0, x1, 0.6, 0.82, front + 0.02, (215, 215, 215), Role.HEAD)
        b.front(-0.26, 0.26, 0.5, 0.61, front + 0.02, (205, 215, 215))

    for part in (body, tractor) if from_front else (tractor, body):
        part()
    return b.build()


@lru_cache(maxsize=32)
def bus(colour: Colour, length: float = 11.0) -> Mesh:
    """A city bus."""
    b = Builder()
    hw, rear, front, top = 1.27, -length / 2, length / 2, 3.0
    b.shadow(hw + 0.1, rear, front)
    _tyre_treads(b, hw - 0.05, rear + 0.4, front - 0.3, 0.55, tread=0.3)
    b.box((-hw, hw), (0.35, top), (rear, front), colour, top=scaled(colour, 1.1))
    for k in range(6):
        z0 = rear + 0.5 + k * (length - 1.0) / 6
        b.side([(z0, 1.35), (z0, 2.4), (z0 + 1.45, 2.4), (z0 + 1.45, 1.35)], hw + 0.01, GLASS, Role.WINDOW)
    b.side([(rear, 0.35), (rear, 0.75), (front, 0.75), (front, 0.35)], hw + 0.01, scaled(colour, 0.6))
    _wheels(b, hw + 0.01, (rear + 2.6, front - 2.5), 0.48)
    b.rear(-hw + 0.2, hw - 0.2, 1.6, 2.55, rear - 0.01, GLASS)
    b.rear(-0.6, 0.6, 0.6, 1.2, rear - 0.01, scaled(colour, 0.7))
    b.front(-hw + 0.08, hw - 0.08, 1.1, 2.55, front + 0.01, GLASS)
    b.front(-hw + 0.15, hw - 0.15, 2.62, 2.9, front + 0.01, (40, 150, 230), Role.GLOW)
    for sign in (-1, 1):
        x0, x1 = sorted((sign * (hw - 0.02), sign * (hw - 0.25)))
        b.rear(x0, x1, 0.8, 1.4, rear - 0.02, LAMP_RED, Role.BRAKE)
        b.front(x0, x1, 0.55, 0.85, front + 0.02, (215, 215, 215), Role.HEAD)
    return b.build()


SKIN: tuple[Colour, ...] = ((150, 180, 225), (120, 150, 200), (80, 110, 160), (50, 70, 105))
HAIR: tuple[Colour, ...] = ((24, 28, 34), (30, 45, 70), (60, 100, 140), (140, 140, 145))
CLOTHES: tuple[Colour, ...] = (
    (60, 50, 45),
    (120, 70, 40),
    (40, 40, 160),
    (60, 110, 60),
    (180, 175, 170),
    (90, 90, 95),
    (40, 130, 190),
    (150, 60, 110),
    (30, 30, 34),
    (170, 140, 90),
)
HI_VIS: Colour = (30, 180, 255)


@dataclass(frozen=True, slots=True)
class Person:
    """Looks of a pedestrian; indices into the tables above."""

    height: float
    skin: int
    hair: int
    top: int
    legs: int
    bag: bool = False
    hi_vis: bool = False


@lru_cache(maxsize=1024)
def pedestrian(person: Person, view: str, phase: int) -> Mesh:
    """A walking person as a flat figure facing the camera.

    Args:
        view: "back", "front", "left" or "right": what the camera sees of them (left: walks to the left).
        phase: 0..7 of the step; -1 stands.
    """
    b = Builder()
    h = person.height
    skin, hair = SKIN[person.skin], HAIR[person.hair]
    top = HI_VIS if person.hi_vis else CLOTHES[person.top]
    legs = CLOTHES[person.legs]
    hip, shoulder, head = 0.50 * h, 0.81 * h, 0.925 * h
    swing = 0.0 if phase < 0 else math.sin(2 * math.pi * phase / 8)
    lift = 0.0 if phase < 0 else math.cos(2 * math.pi * phase / 8)
    b.add([(-0.3, 0, -0.25), (-0.3, 0, 0.25), (0.3, 0, 0.25), (0.3, 0, -0.25)], (50, 48, 48), role=Role.SHADOW)
    sideways = view in ("left", "right")
    sign = -1.0 if view == "left" else 1.0
    if sideways:
        stride = 0.20 * h * swing
        for k, s in enumerate((-stride, stride)):
            shade = scaled(legs, 0.8 if k == 0 else 1.0)
            bend = 0.05 * h * max(0.0, lift if k else -lift)
            knee = (sign * (s * 0.45 + bend), hip * 0.52)
            foot = (sign * (s - bend * 0.6), 0.045 * h + bend * 0.6)
            b.bar((0.0, hip + 0.02), knee, 0.105 * h, shade, end_width=0.085 * h)
            b.bar(knee, foot, 0.08 * h, shade, end_width=0.055 * h)
            b.bar(
                (foot[0] - sign * 0.02 * h, foot[1] - 0.02 * h),
                (foot[0] + sign * 0.09 * h, foot[1] - 0.025 * h),
                0.045 * h,
                TRIM,
            )
        b.bar((0.0, shoulder), (sign * stride * 0.55, hip + 0.02 * h), 0.06 * h, scaled(top, 0.75), end_width=0.045 * h)
        b.flat(
            [
                (-0.085 * h, hip - 0.02 * h),
                (0.085 * h, hip - 0.02 * h),
                (0.10 * h, shoulder - 0.06 * h),
                (0.05 * h, shoulder + 0.03 * h),
                (-0.05 * h, shoulder + 0.03 * h),
                (-0.09 * h, shoulder - 0.06 * h),
            ],
            top,
        )
        b.bar(
            (0.0, shoulder - 0.02 * h),
            (-sign * stride * 0.55, hip + 0.02 * h),
            0.062 * h,
            scaled(top, 1.12),
            end_width=0.045 * h,
        )
        b.disc(-sign * stride * 0.58, hip + 0.005 * h, 0.028 * h, skin, n=7)
        if person.bag:
            b.flat(
                [
                    (-sign * 0.08 * h, 0.58 * h),
                    (-sign * 0.19 * h, 0.6 * h),
                    (-sign * 0.19 * h, 0.78 * h),
                    (-sign * 0.08 * h, 0.8 * h),
                ],
                (50, 60, 90),
            )
        b.disc(0.01 * sign * h, head, 0.072 * h, skin, squash=0.85)
        b.flat(
            [
                (sign * 0.03 * h, head + 0.075 * h),
                (-sign * 0.07 * h, head + 0.06 * h),
                (-sign * 0.075 * h, head - 0.03 * h),
                (-sign * 0.02 * h, head),
            ],
            hair,
        )
    else:
        for k, x in enumerate((-0.055 * h, 0.055 * h)):
            up = 0.06 * h * max(0.0, swing if k else -swing)
            foot = (x * 1.05, 0.04 * h + up)
            b.bar(
                (x, hip + 0.03 * h),
                (x, hip * 0.5 + up * 0.5),
                0.105 * h,
                scaled(legs, 0.9 + 0.1 * k),
                end_width=0.085 * h,
            )
            b.bar((x, hip * 0.5 + up * 0.5), foot, 0.08 * h, scaled(legs, 0.85 + 0.1 * k), end_width=0.06 * h)
            b.bar((x - 0.035 * h, foot[1] - 0.018 * h), (x + 0.035 * h, foot[1] - 0.018 * h), 0.045 * h, TRIM)
        for k, x in enumerate((-1, 1)):
            up = 0.07 * h * max(0.0, -swing if k else swing)
            hand = (x * 0.165 * h, hip + 0.01 * h + up)
            b.bar((x * 0.115 * h, shoulder - 0.01 * h), hand, 0.06 * h, scaled(top, 0.85), end_width=0.045 * h)
            b.disc(hand[0], hand[1] - 0.02 * h, 0.026 * h, skin, n=7)
        b.flat(
            [
                (-0.095 * h, hip - 0.02 * h),
                (0.095 * h, hip - 0.02 * h),
                (0.125 * h, shoulder - 0.03 * h),
                (0.06 * h, shoulder + 0.03 * h),
                (-0.06 * h, shoulder + 0.03 * h),
                (-0.125 * h, shoulder - 0.03 * h),
            ],
            top,
        )
        if person.bag and view == "back":
            b.flat(
                [(-0.09 * h, 0.58 * h), (0.09 * h, 0.58 * h), (0.08 * h, 0.8 * h), (-0.08 * h, 0.8 * h)], (50, 60, 90)
            )
        b.bar((0.0, shoulder), (0.0, head), 0.05 * h, skin)
        b.disc(0.0, head, 0.072 * h, hair if view == "back" else skin, squash=0.82)
        if view == "front":
            b.flat(
                [
                    (-0.06 * h, head + 0.02 * h),
                    (-0.04 * h, head + 0.072 * h),
                    (0.04 * h, head + 0.072 * h),
                    (0.06 * h, head + 0.02 * h),
                ],
                hair,
            )
    if person.hi_vis:
        b.bar((-0.09 * h, 0.62 * h), (0.09 * h, 0.62 * h), 0.03 * h, (225, 230, 230), role=Role.RETRO)
        b.bar((-0.1 * h, 0.70 * h), (0.1 * h, 0.70 * h), 0.03 * h, (225, 230, 230), role=Role.RETRO)
        b.flat(
            [
                (-0.075 * h, head + 0.02 * h),
                (-0.05 * h, head + 0.085 * h),
                (0.05 * h, head + 0.085 * h),
                (0.075 * h, head + 0.02 * h),
            ],
            (30, 200, 240),
        )
    return b.build()


def _upright_wheel(b: Builder, z: float, radius: float, tread: float, spokes: bool) -> None:
    turns = [2 * math.pi * k / 14 for k in range(14)]
    b.add([(0.0, radius + radius * math.sin(t), z + radius * math.cos(t)) for t in turns], TYRE)
    inner = radius * (0.86 if spokes else 0.62)
    b.add(
        [(0.0, radius + inner * math.sin(t), z + inner * math.cos(t)) for t in turns],
        (118, 116, 114) if spokes else RIM,
    )
    b.flat([(-tread, 0.0), (tread, 0.0), (tread, 2 * radius), (-tread, 2 * radius)], TYRE, z)


@lru_cache(maxsize=512)
def bicycle(person: Person, frame: Colour, phase: int) -> Mesh:
    """A cyclist; ``phase`` 0..3 of the pedals."""
    b = Builder()
    b.shadow(0.25, -0.8, 0.8)
    legs, top = CLOTHES[person.legs], CLOTHES[person.top]
    turn = math.pi * phase / 2
    _upright_wheel(b, 0.52, 0.34, 0.03, True)
    b.bar((-0.28, 1.02), (0.28, 1.02), 0.05, TRIM, 0.38)
    for a, c in (
        ((-0.45, 0.34), (0.0, 0.34)),
        ((0.0, 0.34), (0.36, 0.86)),
        ((-0.18, 0.9), (0.36, 0.86)),
        ((-0.18, 0.95), (0.0, 0.34)),
        ((0.36, 1.0), (0.52, 0.34)),
    ):
        b.add(
            [
                (0.0, a[1] - 0.025, a[0]),
                (0.0, a[1] + 0.025, a[0]),
                (0.0, c[1] + 0.025, c[0]),
                (0.0, c[1] - 0.025, c[0]),
            ],
            frame,
        )
    _upright_wheel(b, -0.52, 0.34, 0.03, True)
    for k, x in enumerate((-0.11, 0.11)):
        t = turn + k * math.pi
        pedal_y, pedal_z = 0.30 + 0.17 * math.sin(t), 0.17 * math.cos(t)
        knee_y, knee_z = (pedal_y + 0.98) / 2 + 0.05, 0.22
        for (y0, z0), (y1, z1), w in (
            ((0.98, -0.15), (knee_y, knee_z), 0.15),
            ((knee_y, knee_z), (pedal_y, pedal_z), 0.11),
        ):
            b.add(
                [(x - w / 2, y0, z0), (x + w / 2, y0, z0), (x + w / 2.4, y1, z1), (x - w / 2.4, y1, z1)],
                scaled(legs, 0.9 + 0.1 * k),
            )
            b.add(
                [(x, y0, z0 - w / 2), (x, y0, z0 + w / 2), (x, y1, z1 + w / 2.4), (x, y1, z1 - w / 2.4)],
                scaled(legs, 0.9 + 0.1 * k),
            )
    b.add([(-0.18, 1.48, 0.12), (0.18, 1.48, 0.12), (0.26, 1.04, 0.38), (-0.26, 1.04, 0.38)], scaled(top, 0.8))
    b.add(
        [
            (-0.16, 0.95, -0.2),
            (0.16, 0.95, -0.2),
            (0.22, 1.45, 0.1),
            (0.1, 1.54, 0.14),
            (-0.1, 1.54, 0.14),
            (-0.22, 1.45, 0.1),
        ],
        top,
    )
    b.add(
        [(0.0, 0.95, -0.3), (0.0, 0.95, -0.04), (0.0, 1.42, 0.24), (0.0, 1.54, 0.16), (0.0, 1.44, -0.02)],
        scaled(top, 1.1),
    )
    skin, hat = SKIN[person.skin], HAIR[person.hair] if person.bag else CLOTHES[(person.top + 3) % len(CLOTHES)]
    turns = [2 * math.pi * k / 10 for k in range(10)]
    b.add([(0.0, 1.66 + 0.125 * math.sin(t), 0.2 + 0.11 * math.cos(t)) for t in turns], skin)
    b.add([(0.11 * math.cos(t), 1.66 + 0.125 * math.sin(t), 0.2) for t in turns], skin)
    cap = [math.pi * k / 5 for k in range(6)]
    b.add([(0.0, 1.68 + 0.13 * math.sin(t), 0.2 + 0.14 * math.cos(t)) for t in cap], hat)
    b.add([(0.125 * math.cos(t), 1.64 + 0.16 * math.sin(t), 0.2) for t in cap], hat)
    b.flat([(-0.04, 0.78), (0.04, 0.78), (0.04, 0.86), (-0.04, 0.86)], LAMP_RED, -0.3, Role.BRAKE)
    return b.build()


@lru_cache(maxsize=256)
def motorbike(person: Person, paint: Colour) -> Mesh:
    """A motorcycle with its rider."""
    b = Builder()
    b.shadow(0.35, -1.0, 1.0)
    top = CLOTHES[person.top]
    _upright_wheel(b, 0.72, 0.31, 0.07, False)
    b.bar((-0.36, 1.02), (0.36, 1.02), 0.06, TRIM, 0.45)
    b.add([(-0.16, 0.8, 0.6), (0.16, 0.8, 0.6), (0.14, 1.18, 0.4), (-0.14, 1.18, 0.4)], paint)
    b.disc(0.0, 0.86, 0.1, (225, 225, 225), 0.62, role=Role.HEAD)
    b.add(
        [(0.0, 0.35, -0.4), (0.0, 0.35, 0.4), (0.0, 0.85, 0.55), (0.0, 0.9, 0.1), (0.0, 0.78, -0.8), (0.0, 0.62, -0.8)],
        paint,
    )
    b.box((-0.16, 0.16), (0.32, 0.62), (-0.3, 0.35), (70, 70, 72))
    _upright_wheel(b, -0.68, 0.31, 0.09, False)
    b.box((-0.15, 0.15), (0.62, 0.82), (-0.85, 0.3), paint)
    b.flat([(-0.1, 0.42), (0.1, 0.42), (0.1, 0.56), (-0.1, 0.56)], (205, 215, 215), -0.87, Role.RETRO)
    b.flat([(-0.1, 0.66), (0.1, 0.66), (0.1, 0.76), (-0.1, 0.76)], LAMP_RED, -0.87, Role.BRAKE)
    for x in (-0.2, 0.2):
        b.add(
            [(x - 0.08, 0.85, -0.2), (x + 0.08, 0.85, -0.2), (x + 0.06, 0.42, 0.12), (x - 0.06, 0.42, 0.12)], CLOTHES[8]
        )
        b.add(
            [(x, 0.78, -0.3), (x, 0.95, -0.2), (x, 0.82, 0.28), (x, 0.4, 0.1), (x, 0.36, 0.0), (x, 0.68, 0.1)],
            CLOTHES[8],
        )
    b.add([(-0.2, 1.36, 0.0), (0.2, 1.36, 0.0), (0.34, 1.02, 0.42), (-0.34, 1.02, 0.42)], scaled(top, 0.75))
    b.add(
        [
            (-0.2, 0.8, -0.3),
            (0.2, 0.8, -0.3),
            (0.26, 1.34, -0.05),
            (0.12, 1.44, 0.0),
            (-0.12, 1.44, 0.0),
            (-0.26, 1.34, -0.05),
        ],
        top,
    )
    b.add(
        [(0.0, 0.8, -0.4), (0.0, 0.8, -0.08), (0.0, 1.3, 0.18), (0.0, 1.44, 0.06), (0.0, 1.34, -0.16)], scaled(top, 1.1)
    )
    turns = [2 * math.pi * k / 12 for k in range(12)]
    b.add([(0.0, 1.56 + 0.145 * math.sin(t), 0.1 + 0.15 * math.cos(t)) for t in turns], scaled(paint, 0.9))
    b.add([(0.135 * math.cos(t), 1.56 + 0.145 * math.sin(t), 0.1) for t in turns], scaled(paint, 0.9))
    return b.build()


@lru_cache(maxsize=64)
def tree(kind: int, seed: int, green: Colour) -> Mesh:
    """kind 0: broad-leaved, 1: conifer, 2: bush."""
    if kind == 1:
        return _conifer(seed, green)
    return _leafy(kind, seed, green, 7, 10, _leafy(kind, seed, green, 0, 3, None))


def _conifer(seed: int, green: Colour) -> Mesh:
    rng = np.random.Generator(np.random.PCG64([seed, 23]))
    b = Builder()
    h = float(rng.uniform(6, 11))
    w = h * float(rng.uniform(0.16, 0.24))
    b.bar((0, 0), (0, h * 0.2), 0.35, (45, 60, 80))
    for k in range(4):
        y0, y1 = h * (0.12 + 0.2 * k), h * (0.5 + 0.17 * k)
        x = w * (1 - 0.21 * k)
        b.flat([(-x, y0), (x, y0), (0.0, y1)], scaled(green, 0.52 + 0.05 * k))
        b.flat([(-x, y0), (-0.1 * x, y0 * 1.02), (0.0, y1)], scaled(green, 0.72 + 0.06 * k))
    return b.build()


def _leafy(kind: int, seed: int, green: Colour, outer: int, inner: int, far: Mesh | None) -> Mesh:
    rng = np.random.Generator(np.random.PCG64([seed, 23]))
    b = Builder()
    h = float(rng.uniform(0.8, 1.8)) if kind == 2 else float(rng.uniform(5.0, 10.0))
    crown = h * (0.5 if kind == 2 else 0.62)
    w = h * (0.7 if kind == 2 else float(rng.uniform(0.28, 0.38)))
    ry = h - crown
    if kind == 0:
        b.bar((0, 0), (0.1, crown), 0.045 * h, (52, 66, 84), end_width=0.03 * h)

    def blob(x: float, y: float, rx: float, r: float, colour: Colour, n: int) -> None:
        wobble = rng.uniform(0.84, 1.12, n)
        turns = np.arange(n) * (2 * math.pi / n)
        outline = np.stack([x + rx * wobble * np.cos(turns), np.maximum(0.02, y + r * wobble * np.sin(turns))], axis=1)
        hull = cv2.convexHull(outline.astype(np.float32))[:, 0]  # only convex polygons are drawn cleanly
        b.flat([(float(px), float(py)) for px, py in hull], colour)

    def lobe(angle: float, away: float, size: float, tone: float, n: int) -> None:
        x, y = away * w * math.cos(angle), crown + away * ry * math.sin(angle)
        up = (y - crown) / max(ry, 0.1)
        blob(x, y, w * size, ry * size, scaled(green, tone + 0.2 * up - 0.1 * (x > 0)), n)

    for k in range(outer):  # dark outline of leaves, then lighter ones towards the light
        lobe(2 * math.pi * (k + float(rng.uniform(-0.3, 0.3))) / outer, 0.66, float(rng.uniform(0.36, 0.48)), 0.6, 9)
    size = 0.86 if outer else 1.0
    blob(0.0, crown, w * size, ry * size, scaled(green, 0.66), 12)
    grown = 1.0 if outer else 1.7
    for _ in range(inner):
        away = float(rng.uniform(0.2, 0.78)) / grown
        lobe(float(rng.uniform(0, 2 * math.pi)), away, grown * float(rng.uniform(0.17, 0.3)), 0.86, 8)
    return b.build(far)


@lru_cache(maxsize=48)
def thicket(length: float, height: float, seed: int, green: Colour) -> Mesh:
    """A piece of the edge of a wood or a hedge along the road, centred."""
    return _thicket(length, height, seed, green, 1.6, _thicket(length, height, seed, green, 4.0, None))


def _thicket(length: float, height: float, seed: int, green: Colour, column: float, far: Mesh | None) -> Mesh:
    rng = np.random.Generator(np.random.PCG64([seed, 71]))
    b = Builder()
    n = max(2, int(length / column))
    step = length / n
    tops = height * rng.uniform(0.72, 1.12, n + 1)
    for k in range(n):
        z0 = -length / 2 + k * step
        z1, x = z0 + step * 1.25, float(rng.uniform(-0.06, 0.06))
        low, high = float(tops[k]), float(tops[k + 1])
        tone = float(rng.uniform(0.85, 1.1))
        for share, shade in ((1.0, 0.85), (0.68, 0.66), (0.32, 0.5)) if far is not None else ((1.0, 0.8), (0.5, 0.58)):
            b.add([(x, 0, z0), (x, 0, z1), (x, high * share, z1), (x, low * share, z0)], scaled(green, shade * tone))
    return b.build(far)


BUILDING_COLOURS: tuple[Colour, ...] = (
    (120, 140, 165),
    (150, 165, 180),
    (110, 120, 130),
    (90, 105, 150),
    (170, 180, 185),
    (130, 150, 160),
    (80, 90, 110),
    (140, 150, 145),
)


@lru_cache(maxsize=64)
def building(side: int, length: float, floors: int, colour: Colour, seed: int) -> Mesh:
    """A house beside the road; its front is the plane x = 0 and it extends away from the road.

    Args:
        side: 1 for the right side of the road, -1 for the left.
    """
    return _house(side, length, floors, colour, seed, _house(side, length, floors, colour, seed, None))


def _house(side: int, length: float, floors: int, colour: Colour, seed: int, far: Mesh | None) -> Mesh:
    rng = np.random.Generator(np.random.PCG64([seed, 29]))
    b = Builder()
    depth, ground, storey = 12.0, 3.8, 3.1
    height = ground + storey * (floors - 1) + 0.5
    x = (0.0, depth) if side > 0 else (-depth, 0.0)
    half = length / 2
    b.box(x, (0.0, height), (-half, half), colour, faces="b" + ("l" if side > 0 else "r"))
    if rng.random() < 0.5 and floors < 5:  # pitched roof
        ridge, inner = height + 2.2, side * depth / 2
        b.add(
            [(0.0, height, -half), (0.0, height, half), (inner, ridge, half), (inner, ridge, -half)],
            (70, 75, 120),
            centre=(inner, 0, 0),
        )
        b.add(
            [(0.0, height, -half), (side * depth, height, -half), (inner, ridge, -half)],
            scaled(colour, 0.9),
            centre=(inner, height, 0),
        )
    face = -side * 0.02

    def pane(z0: float, z1: float, y0: float, y1: float, c: Colour, role: Role = Role.PLAIN) -> None:
        b.add(
            [(face, y0, z0), (face, y0, z1), (face, y1, z1), (face, y1, z0)],
            c,
            centre=(side, y0, (z0 + z1) / 2),
            role=role,
        )

    pane(-half, half, 0.0, 0.5, scaled(colour, 0.6))
    shop = rng.random() < 0.5
    if shop:
        pane(-half + 0.4, half - 0.4, 0.6, 2.7, scaled(GLASS, 1.1), Role.WINDOW)
        pane(-half + 0.2, half - 0.2, 2.8, 3.4, CAR_COLOURS[int(rng.integers(6, 13))])
    n = max(2, int(length / 2.8))
    step = length / n
    for floor in range(1 if shop else 0, floors):
        y0 = 1.1 if floor == 0 else ground + storey * (floor - 1) + 0.7
        if far is None:  # from afar, a row of windows is a darker band
            pane(-half + 0.8, half - 0.8, y0, y0 + 1.55, scaled(colour, 0.76))
            continue
        for k in range(n):
            z0 = -half + step * k + step * 0.28
            lit = rng.random() < 0.35
            pane(
                z0,
                z0 + step * 0.48,
                y0,
                y0 + 1.55,
                scaled(GLASS, float(rng.uniform(0.9, 1.6))),
                Role.WINDOW if lit else Role.PLAIN,
            )
    rear_n = 3
    for floor in range(floors if far is not None else 0):
        y0 = 1.1 if floor == 0 else ground + storey * (floor - 1) + 0.7
        for k in range(rear_n):
            x0 = side * (1.2 + k * 3.6)
            x1 = side * (2.6 + k * 3.6)
            b.add(
                [
                    (x0, y0, -half - 0.02),
                    (x1, y0, -half - 0.02),
                    (x1, y0 + 1.5, -half - 0.02),
                    (x0, y0 + 1.5, -half - 0.02),
                ],
                scaled(GLASS, 1.2),
                centre=(side, 0, 0),
            )
    return b.build(far)


_STROKES = {  # seven-segment strokes in a 1 x 2 cell: a..g
    "a": ((0, 2), (1, 2)),
    "b": ((1, 2), (1, 1)),
    "c": ((1, 1), (1, 0)),
    "d": ((0, 0), (1, 0)),
    "e": ((0, 1), (0, 0)),
    "f": ((0, 2), (0, 1)),
    "g": ((0, 1), (1, 1)),
}
_DIGITS = {
    "0": "abcdef",
    "1": "bc",
    "2": "abged",
    "3": "abgcd",
    "4": "fgbc",
    "5": "afgcd",
    "6": "afgcde",
    "7": "abc",
    "8": "abcdefg",
    "9": "abcdfg",
}


def _number(b: Builder, text: str, x: float, y: float, size: float, colour: Colour, z: float) -> None:
    for k, digit in enumerate(text):
        x0 = x + (k - len(text) / 2) * size * 0.95 + size * 0.16
        for stroke in _DIGITS[digit]:
            (ax, ay), (bx, by) = _STROKES[stroke]
            b.bar(
                (x0 + ax * size * 0.6, y + (ay - 1) * size * 0.62),
                (x0 + bx * size * 0.6, y + (by - 1) * size * 0.62),
                size * 0.2,
                colour,
                z,
            )


@lru_cache(maxsize=64)
def sign_face(kind: str) -> Mesh:
    """The plate of a traffic sign, centre at y = 0: "limit50", "warning", "works", "stop", "yield", "crossing",
    "no_entry", "curve", "city", "priority"."""
    b = Builder()
    red, white, black = (40, 30, 190), (232, 236, 236), (30, 28, 28)
    r = Role.RETRO

    def triangle(size: float, c: Colour, down: bool = False) -> None:
        s = -1 if down else 1
        b.flat([(-size, -s * size * 0.58), (size, -s * size * 0.58), (0.0, s * size * 1.15)], c, role=r)

    if kind.startswith("limit"):
        b.disc(0, 0, 0.36, red, n=18, role=r)
        b.disc(0, 0, 0.275, white, n=18, role=r)
        _number(b, kind[5:], 0, 0, 0.22 if len(kind) < 8 else 0.17, black, 0.0)
    elif kind in ("warning", "works", "curve"):
        triangle(0.48, red)
        triangle(0.33, (60, 210, 245) if kind == "works" else white)
        if kind == "works":
            b.bar((-0.1, -0.14), (0.06, 0.1), 0.07, black)
            b.disc(0.05, 0.16, 0.045, black, n=8)
            b.flat([(0.03, -0.16), (0.2, -0.16), (0.12, -0.02)], black)
        elif kind == "curve":
            b.bar((-0.06, -0.15), (-0.06, 0.02), 0.06, black)
            b.bar((-0.06, 0.02), (0.08, 0.16), 0.06, black)
        else:
            b.bar((0, -0.02), (0, 0.2), 0.07, black)
            b.disc(0, -0.12, 0.045, black, n=8)
    elif kind == "yield":
        triangle(0.48, red, True)
        triangle(0.31, white, True)
    elif kind == "stop":
        b.disc(0, 0, 0.42, white, n=8, role=r)
        b.disc(0, 0, 0.385, red, n=8, role=r)
        for x in (-0.24, -0.08, 0.08, 0.24):
            b.bar((x, -0.09), (x, 0.09), 0.06, white)
    elif kind == "no_entry":
        b.disc(0, 0, 0.36, red, n=18, role=r)
        b.bar((-0.24, 0), (0.24, 0), 0.11, white)
    elif kind == "crossing":
        b.flat([(-0.34, -0.34), (0.34, -0.34), (0.34, 0.34), (-0.34, 0.34)], (170, 80, 20), role=r)
        b.flat([(-0.26, -0.24), (0.26, -0.24), (0.0, 0.27)], white, role=r)
        b.bar((-0.05, -0.2), (0.0, 0.05), 0.05, black)
        b.bar((0.07, -0.2), (0.0, 0.05), 0.05, black)
        b.disc(0, 0.1, 0.04, black, n=8)
    elif kind == "city":
        b.flat([(-0.75, -0.3), (0.75, -0.3), (0.75, 0.3), (-0.75, 0.3)], black, role=r)
        b.flat([(-0.72, -0.27), (0.72, -0.27), (0.72, 0.27), (-0.72, 0.27)], (60, 215, 245), role=r)
        for k, w in enumerate((0.5, 0.36)):
            b.bar((-w, 0.1 - 0.2 * k), (w, 0.1 - 0.2 * k), 0.09, black)
    elif kind == "priority":
        b.flat([(-0.36, 0), (0, -0.36), (0.36, 0), (0, 0.36)], white, role=r)
        b.flat([(-0.25, 0), (0, -0.25), (0.25, 0), (0, 0.25)], (40, 200, 245), role=r)
    else:
        raise KeyError(kind)
    return b.build()


@lru_cache(maxsize=16)
def gantry_face(colour: Colour, lanes: int) -> Mesh:
    """A direction board above a motorway, lower edge at y = 0."""
    b = Builder()
    w, h = 1.9 * lanes, 2.4
    b.flat([(-w, 0), (w, 0), (w, h), (-w, h)], WHITE, role=Role.RETRO)
    b.flat([(-w + 0.07, 0.07), (w - 0.07, 0.07), (w - 0.07, h - 0.07), (-w + 0.07, h - 0.07)], colour, role=Role.RETRO)
    for k in range(lanes):
        x = -w + (k + 0.5) * 2 * w / lanes
        b.bar((x - 1.2, h * 0.72), (x + 0.9, h * 0.72), 0.3, WHITE, role=Role.RETRO)
        b.bar((x - 1.2, h * 0.45), (x + 0.3, h * 0.45), 0.26, WHITE, role=Role.RETRO)
        b.bar((x, 0.2), (x, 0.6), 0.14, WHITE, role=Role.RETRO)
    return b.build()


@lru_cache(maxsize=64)
def post(height: float, width: float, colour: Colour, arm: float = 0.0) -> Mesh:
    """A pole, with a horizontal arm of ``arm`` metres (signed) at its top."""
    b = Builder()
    b.bar((0, 0), (0, height), width, colour)
    if arm:
        b.bar((0, height), (arm, height), width * 0.8, colour)
    return b.build()


@lru_cache(maxsize=8)
def lamp_head(arm: float) -> Mesh:
    """The luminaire at the end of a street lamp's arm, origin at the foot of its post."""
    b = Builder()
    b.flat(
        [(arm - 0.35, 7.9), (arm + 0.35, 7.9), (arm + 0.3, 8.05), (arm - 0.3, 8.05)], (150, 200, 225), role=Role.HEAD
    )
    return b.build()


@lru_cache(maxsize=8)
def traffic_light(facing: bool) -> Mesh:
    """The housing with three lamps, lower edge at y = 0, 1.1 m high."""
    b = Builder()
    b.box((-0.2, 0.2), (0.0, 1.1), (0.0, 0.24), (36, 38, 36), faces="rlb")
    if facing:
        for y, role in ((0.9, Role.RED), (0.55, Role.YELLOW), (0.2, Role.GREEN)):
            b.disc(0, y, 0.135, (40, 40, 40), -0.01, role=role)
    return b.build()


@lru_cache(maxsize=4)
def cone() -> Mesh:
    """A traffic cone."""
    b = Builder()
    b.flat([(-0.2, 0), (0.2, 0), (0.2, 0.04), (-0.2, 0.04)], (30, 70, 200))
    b.flat([(-0.15, 0.04), (0.15, 0.04), (0.03, 0.75), (-0.03, 0.75)], (30, 90, 235))
    b.flat([(-0.105, 0.3), (0.105, 0.3), (0.075, 0.46), (-0.075, 0.46)], WHITE, role=Role.RETRO)
    return b.build()


@lru_cache(maxsize=4)
def beacon_board() -> Mesh:
    """A striped vertical panel with a warning lamp."""
    b = Builder()
    b.flat([(-0.13, 0.1), (0.13, 0.1), (0.13, 1.1), (-0.13, 1.1)], WHITE, role=Role.RETRO)
    for k in range(3):
        y = 0.12 + 0.34 * k
        b.flat([(-0.13, y), (0.13, y + 0.12), (0.13, y + 0.29), (-0.13, y + 0.17)], (35, 35, 205), role=Role.RETRO)
    b.disc(0, 1.2, 0.08, (30, 130, 190), n=8, role=Role.BLINK)
    return b.build()


@lru_cache(maxsize=8)
def works_barrier(width: float) -> Mesh:
    """A red and white barrier across the direction of travel."""
    b = Builder()
    for x in (-width / 2 + 0.1, width / 2 - 0.1):
        b.bar((x, 0), (x, 1.0), 0.06, (120, 120, 120))
    for y in (0.45, 0.85):
        b.flat([(-width / 2, y), (width / 2, y), (width / 2, y + 0.2), (-width / 2, y + 0.2)], WHITE, role=Role.RETRO)
        n = int(width / 0.5)
        for k in range(n):
            x = -width / 2 + k * width / n
            b.flat(
                [(x, y), (x + width / n / 2, y), (x + width / n / 2, y + 0.2), (x, y + 0.2)],
                (35, 35, 205),
                role=Role.RETRO,
            )
    return b.build()


@lru_cache(maxsize=4)
def excavator() -> Mesh:
    """A yellow machine of a works zone."""
    b = Builder()
    yellow = (30, 170, 225)
    b.shadow(1.4, -2.0, 2.0)
    b.box((-1.3, 1.3), (0.0, 0.75), (-1.9, 1.9), (45, 45, 46))
    b.box((-1.25, 1.25), (0.8, 1.8), (-2.0, 1.2), yellow, top=scaled(yellow, 1.1))
    b.box((-1.2, 0.1), (1.8, 3.0), (-0.2, 1.3), scaled(yellow, 0.9))
    b.add([(-1.1, 1.95, -0.22), (0.0, 1.95, -0.22), (0.0, 2.85, -0.22), (-1.1, 2.85, -0.22)], GLASS, centre=(0, 2, 1))
    b.bar((0.7, 1.7), (1.4, 4.2), 0.4, yellow, 0.8)
    b.bar((1.4, 4.2), (2.4, 2.2), 0.3, scaled(yellow, 0.9), 0.9)
    b.disc(-0.5, 3.1, 0.1, (30, 130, 200), role=Role.BLINK, n=8)
    return b.build()


@lru_cache(maxsize=16)
def strip(length: float, low: float, high: float, colour: Colour, thickness: float, posts: bool) -> Mesh:
    """A piece of guard rail, wall, kerb or fence along the road, centred."""
    b = Builder()
    half = length / 2
    if posts:
        for k in range(2):
            z = -half + (k + 0.5) * length / 2
            b.flat([(-0.06, 0), (0.06, 0), (0.06, high), (-0.06, high)], scaled(colour, 0.6), z)
        middle = (low + high) / 2
        b.add([(0, low, -half), (0, low, half), (0, middle, half), (0, middle, -half)], scaled(colour, 0.8))
        b.add([(0, middle, -half), (0, middle, half), (0, high, half), (0, high, -half)], colour)
    else:
        t = thickness / 2
        b.box((-t, t), (low, high), (-half, half), colour, top=scaled(colour, 1.15), faces="rlt")
    return b.build()
