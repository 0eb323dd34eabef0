"""Models of pedestrians, cyclists and motorcyclists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from triptych.scenario.mesh import LAMP_RED, RIM, TRIM, TYRE, Builder, Colour, Mesh, Role, scaled

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
