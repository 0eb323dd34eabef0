"""Models of cars, lorries and buses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from triptych.scenario.mesh import GLASS, LAMP_RED, RIM, TRIM, TYRE, Builder, Colour, Mesh, Point, Role, scaled

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
