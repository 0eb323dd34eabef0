"""Models of trees, woods and houses."""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import numpy as np

from triptych.scenario.mesh import GLASS, Builder, Colour, Mesh, Role, scaled


@lru_cache(maxsize=64)
def tree(kind: int, seed: int, green: Colour) -> Mesh:
    """kind 0: broad-leaved, 1: conifer, 2: bush."""
    if kind == 1:
        return _conifer(seed, green)
    return _leafy(kind, seed, green, 6, 8, _leafy(kind, seed, green, 0, 3, None))


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


_AWNINGS: tuple[Colour, ...] = ((40, 30, 150), (30, 30, 110), (140, 70, 30), (95, 50, 22), (70, 90, 60), (60, 110, 160))
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
        pane(-half + 0.2, half - 0.2, 2.8, 3.4, _AWNINGS[int(rng.integers(0, len(_AWNINGS)))])
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
