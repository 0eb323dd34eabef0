"""Models of what stands on and beside a road: signs, lights, rails, works."""

from __future__ import annotations

from functools import lru_cache

from triptych.scenario.mesh import GLASS, WHITE, Builder, Colour, Mesh, Role, scaled

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
