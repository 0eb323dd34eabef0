"""Solid models made of convex polygons, and how to build them.

Local coordinates: x to the right, y up, z forward, metres; origin on the ground. Polygons are kept in the order in
which they are painted; faces that look away are culled by their normal. Colours are BGR 0..255 in full daylight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

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
