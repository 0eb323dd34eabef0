"""The ground as textures: every cross-section of road is painted once, as a pyramid for six ranges of distance, and
looked up per pixel with one remap per range and frame. Markings are anti-aliased analytically when painted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Road
from triptych.scenario import atmosphere
from triptych.scenario.atmosphere import Look
from triptych.scenario.camera import Camera
from triptych.scenario.road import HALF_LANE_M, JUNCTION_M, LANE_M, ZEBRA_M, Layout

LEVELS = 6
PERIOD_M = 48.0
"""Textures repeat after this; all dash patterns divide it."""
JUNCTION_LEAD_M = 2.0
"""The junction's own texture begins this much before it (with the stop line) and ends as much behind it."""
_ROW_M = (0.05, 0.1, 0.2, 0.8, 3.2, 12.0)


@dataclass(frozen=True, slots=True, eq=False)
class Texture:
    """Pyramid: per level an image (rows along the road, columns across it), its ``d`` of column 0 and texel sizes."""

    images: tuple[npt.NDArray[np.uint8], ...]
    d_min: tuple[float, ...]
    column_m: tuple[float, ...]
    row_m: tuple[float, ...]
    period_m: float


@dataclass(slots=True)
class _Paint:
    """One rectangle of paint: d0..d1 across, along everywhere or dashes (on, off, phase) or s0..s1."""

    d0: float
    d1: float
    colour: tuple[float, float, float]
    asphalt: float = 0.0
    grass: float = 0.0
    alpha: float = 1.0
    dash: tuple[float, float] | None = None
    s0: float | None = None
    s1: float | None = None


_FAR = 1e6
_GRASS = ((58, 118, 96), (50, 104, 78), (66, 126, 122), (62, 112, 110), (116, 160, 186), (84, 134, 150))
_ASPHALT = ((104, 102, 101), (88, 87, 88), (120, 119, 118), (98, 100, 104))
_WHITE = (214, 217, 218)
_YELLOW = (60, 180, 222)
_WALK = (150, 152, 154)
_GRAVEL = (118, 130, 140)


def _recipe(layout: Layout, junction: bool) -> list[_Paint]:
    style = layout.style % 4
    base = tuple(float(v) for v in _ASPHALT[style])
    asphalt = (base[0], base[1], base[2])
    lighter = (base[0] * 1.12, base[1] * 1.12, base[2] * 1.13)
    grass = _GRASS[layout.style % len(_GRASS)]
    urban, rural, highway = layout.base is Road.URBAN, layout.base is Road.RURAL, layout.base is Road.HIGHWAY
    works = layout.road is Road.WORKS
    left, right = layout.left_edge, layout.right_edge
    out = [_Paint(-_FAR, _FAR, grass, grass=1.0)]

    def road(d0: float, d1: float, colour: tuple[float, float, float] = asphalt, amount: float = 1.0) -> None:
        out.append(_Paint(d0, d1, colour, asphalt=amount))

    def line(
        d: float, width: float, colour: tuple[float, float, float] = _WHITE, dash: tuple[float, float] | None = None
    ) -> None:
        out.append(_Paint(d - width / 2, d + width / 2, colour, asphalt=0.6, alpha=0.92, dash=dash))

    def tracks(centre: float) -> None:
        for x in (-0.78, 0.78):
            out.append(
                _Paint(
                    centre + x - 0.3,
                    centre + x + 0.3,
                    (base[0] * 0.86, base[1] * 0.86, base[2] * 0.86),
                    asphalt=1.0,
                    alpha=0.45,
                )
            )
        out.append(
            _Paint(centre - 0.25, centre + 0.25, (base[0] * 0.9, base[1] * 0.9, base[2] * 0.9), asphalt=1.0, alpha=0.25)
        )

    if highway:
        road(layout.far_edge, layout.median_to)
        if layout.median == "barrier":
            road(layout.median_to, layout.median_from, lighter)
        road(layout.median_from, right + 3.0)
        road(right, right + 3.0, (base[0] * 1.05, base[1] * 1.05, base[2] * 1.06))
        out.append(_Paint(right + 3.0, right + 5.0, _GRAVEL, grass=0.6, alpha=0.8))
        centre = left + HALF_LANE_M
        while centre < right:
            tracks(centre)
            if centre + LANE_M < right:
                line(centre + HALF_LANE_M, 0.15, dash=(4.0, 8.0))
            centre += LANE_M
        line(left - 0.1, 0.2, _YELLOW if style == 2 else _WHITE)
        line(right + 0.1, 0.22)
        for d in layout.oncoming:
            tracks(d)
        line(layout.oncoming[0] - HALF_LANE_M, 0.15, dash=(4.0, 8.0))
        line(layout.oncoming[0] + HALF_LANE_M + 0.1, 0.2)
        line(layout.oncoming[-1] - HALF_LANE_M - 0.1, 0.22)
    elif rural:
        out.append(_Paint(layout.far_edge - 1.4, 4.1, _GRAVEL, asphalt=1.2, grass=0.3))
        road(layout.far_edge, right + 0.4)
        tracks(0.0)
        tracks(-LANE_M)
        if style % 2:
            line(-HALF_LANE_M, 0.13, _YELLOW if style == 3 else _WHITE, (3.0, 9.0))
        else:
            line(-HALF_LANE_M - 0.12, 0.11, _YELLOW if style == 2 else _WHITE)
            line(-HALF_LANE_M + 0.12, 0.11, _YELLOW if style == 2 else _WHITE, (4.0, 4.0))
        line(right + 0.05, 0.13)
        line(layout.far_edge + 0.35, 0.13)
    elif urban:
        walk_left, walk_right = layout.far_edge, 4.3
        out.append(_Paint(walk_left - 3.7, walk_right + 3.7, _WALK, asphalt=0.7))
        for d0, d1 in ((walk_left - 3.7, walk_left - 2.9), (walk_right + 2.9, walk_right + 3.7)):
            out.append(_Paint(d0, d1, (132, 134, 138), asphalt=0.7))
        road(walk_left, walk_right)
        road(walk_left, walk_left + 2.3, lighter)
        road(right + 0.1, walk_right, lighter)
        tracks(0.0)
        tracks(-LANE_M)
        line(-HALF_LANE_M, 0.13, _YELLOW if style >= 2 else _WHITE, None if style == 2 else (3.0, 3.0))
        if layout.parking:
            line(right + 0.15, 0.1, dash=(0.5, 5.5))
        else:
            line(right + 0.2, 0.12, dash=(1.0, 1.0) if style % 2 else None)
        out.append(_Paint(walk_left - 0.15, walk_left, (170, 172, 172), asphalt=0.5))
        out.append(_Paint(walk_right, walk_right + 0.15, (170, 172, 172), asphalt=0.5))
    if works:
        line(right - 0.12, 0.14, _YELLOW)
        if left < -3.0:
            line(-HALF_LANE_M + 0.12, 0.14, _YELLOW)
    if junction:
        lead, length = JUNCTION_LEAD_M, JUNCTION_M
        inner0, inner1 = lead + ZEBRA_M, lead + length - ZEBRA_M
        out.append(_Paint(-_FAR, _FAR, asphalt, asphalt=1.0, s0=inner0, s1=inner1))
        walk_left, walk_right = layout.far_edge, 4.3
        # no lane markings on the zebra crossings
        for s0 in (lead, inner1):
            out.append(
                _Paint(walk_left + 0.1, walk_right - 0.1, asphalt, asphalt=1.0, s0=s0 - 0.4, s1=s0 + ZEBRA_M + 0.4)
            )
            d = walk_left + 0.5
            while d < walk_right - 0.6:
                out.append(_Paint(d, d + 0.5, _WHITE, asphalt=0.7, alpha=0.93, s0=s0 + 0.2, s1=s0 + ZEBRA_M - 0.2))
                d += 1.0
        out.append(_Paint(-HALF_LANE_M, right, _WHITE, asphalt=0.7, alpha=0.93, s0=lead - 1.2, s1=lead - 0.8))
        middle = (inner0 + inner1) / 2
        for side in ((walk_right, _FAR), (-_FAR, walk_left)):
            out.append(_Paint(side[0], side[1], _WHITE, alpha=0.9, s0=middle - 0.07, s1=middle + 0.07))
        for s0, s1 in ((inner0 - 2.5, inner0), (inner1, inner1 + 2.5)):  # pavements of the crossing street
            for d0, d1 in ((walk_right + 0.15, _FAR), (-_FAR, walk_left - 0.15)):
                out.append(_Paint(d0, d1, _WALK, asphalt=0.7, s0=s0, s1=s1))
    return out


def _coverage(low: float, high: float, first: float, step: float, n: int) -> npt.NDArray[np.float32]:
    """Share of each of n cells (first edge ``first``) inside low..high."""
    edges = first + step * np.arange(n + 1)
    inside = np.clip(edges, low, high)
    return np.asarray((inside[1:] - inside[:-1]) / step, np.float32)


@lru_cache(maxsize=4)
def _noise(columns: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Asphalt and grass grain over one period in both directions, about -1..1, at 5 cm per cell."""
    rng = np.random.Generator(np.random.PCG64([seed, 41]))
    n = columns

    def octave(cells: int) -> npt.NDArray[np.float32]:
        coarse = rng.standard_normal((cells, cells)).astype(np.float32)
        wrapped = np.pad(coarse, 2, mode="wrap")
        big = cv2.resize(wrapped, None, fx=n / cells, fy=n / cells, interpolation=cv2.INTER_CUBIC)
        cut = int(2 * n / cells)
        return np.asarray(big[cut : cut + n, cut : cut + n], np.float32)

    fine = rng.standard_normal((n, n)).astype(np.float32)
    asphalt = 0.45 * fine + 0.35 * octave(24) + 0.3 * octave(96)
    # patches and cracks
    for _ in range(10):
        x, y = rng.integers(0, n, 2)
        w, h = int(rng.integers(n // 40, n // 12)), int(rng.integers(n // 20, n // 5))
        asphalt[y : y + h, x : x + w] -= float(rng.uniform(0.2, 0.8))
    cracks = np.zeros((n, n), np.uint8)
    for _ in range(14):
        points = np.cumsum(rng.integers(-n // 60, n // 60 + 1, (12, 2)), axis=0) + rng.integers(0, n, 2)
        cv2.polylines(cracks, [points.astype(np.int32)], False, 255, 1)
    asphalt -= 1.2 * (cracks > 0)
    grass = 0.55 * fine + 0.5 * octave(12) + 0.5 * octave(48) + 0.4 * octave(190)
    return asphalt, grass


@lru_cache(maxsize=12)
def _grain(style: int, columns: int, rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Asphalt and grass grain in grey levels, one period in ``columns`` x ``rows`` cells."""
    asphalt, grass = _noise(960, style)
    shrink = columns < 960 and rows < 960
    how = cv2.INTER_AREA if shrink else cv2.INTER_LINEAR
    return (
        np.asarray(cv2.resize(asphalt, (columns, rows), interpolation=how) * 8.0, np.float32),
        np.asarray(cv2.resize(grass, (columns, rows), interpolation=how) * 15.0, np.float32),
    )


class _Canvas:
    """One level of a texture while it is painted.

    As long as paints run along the whole road a single row is enough; only dashes and rectangles need all of them.
    """

    def __init__(self, rows: int, columns: int, row_m: float, column_m: float, half_m: float, length_m: float) -> None:
        self._rows, self._columns, self._row_m, self._column_m = rows, columns, row_m, column_m
        self._half_m, self._length_m = half_m, length_m
        self._colour = np.zeros((1, columns, 3), np.float32)
        self._grain = np.zeros((2, 1, columns), np.float32)

    def _along(self, p: _Paint) -> npt.NDArray[np.float32] | None:
        """Share of each row that is painted; None for all of all."""
        if p.dash is not None:
            on, off = p.dash
            out = np.zeros(self._rows, np.float32)
            for k in range(round(self._length_m / (on + off))):
                out += _coverage(k * (on + off), k * (on + off) + on, 0.0, self._row_m, self._rows)
            return out
        if p.s0 is not None and p.s1 is not None:
            return _coverage(p.s0, p.s1, 0.0, self._row_m, self._rows)
        return None

    def paint(self, p: _Paint) -> None:
        """Lay ``p`` over what is there."""
        across = _coverage(p.d0, p.d1, -self._half_m, self._column_m, self._columns) * p.alpha
        touched = np.flatnonzero(across)
        along = self._along(p)
        hit = np.flatnonzero(along) if along is not None else np.zeros(1, int)
        if touched.size == 0 or hit.size == 0:
            return
        cut = slice(int(touched[0]), int(touched[-1]) + 1)
        lines = slice(0, self._colour.shape[0])
        cover = across[None, cut]
        if along is not None:
            if self._colour.shape[0] == 1:
                self._colour = np.repeat(self._colour, self._rows, axis=0)
                self._grain = np.repeat(self._grain, self._rows, axis=1)
            lines = slice(int(hit[0]), int(hit[-1]) + 1)
            cover = along[lines, None] * cover
        self._colour[lines, cut] += cover[:, :, None] * (np.array(p.colour, np.float32) - self._colour[lines, cut])
        for k, value in enumerate((p.asphalt, p.grass)):
            self._grain[k, lines, cut] += cover * (value - self._grain[k, lines, cut])

    def finish(self, style: int) -> npt.NDArray[np.uint8]:
        """(rows, columns, 3) with grain."""
        size = max(1, round(PERIOD_M / self._column_m)), max(2, round(PERIOD_M / self._row_m))
        total = np.zeros((self._rows, self._columns), np.float32)
        for tile, strength in zip(_grain(style, *size), self._grain):
            repeats = (math.ceil(self._rows / tile.shape[0]), math.ceil(self._columns / tile.shape[1]))
            total += np.tile(tile, repeats)[: self._rows, : self._columns] * strength
        image = np.empty((self._rows, self._columns, 3), np.uint8)
        image[:] = np.rint(self._colour)
        # one half of the grain after the other, saturating
        for operation, sign in ((cv2.add, 1.0), (cv2.subtract, -1.0)):
            part = np.clip(total * np.float32(sign), 0, 255).astype(np.uint8)
            operation(image, cv2.merge([part, part, part]), dst=image)
        return image


@lru_cache(maxsize=12)
def make_texture(layout: Layout, junction: bool, coarseness: float) -> Texture:
    """Paint a cross-section (one period of it, or a whole junction).

    Args:
        coarseness: texel size relative to a 1280 px wide picture; 1 is finest.
    """
    paints = _recipe(layout, junction)
    length = JUNCTION_M + 2 * JUNCTION_LEAD_M if junction else PERIOD_M
    images, d_mins, columns_m, rows_m = [], [], [], []
    for level in range(LEVELS):
        column_m = 0.025 * coarseness * 2**level
        half = 16.0 * 2**level
        columns = round(2 * half / column_m)
        row_m = _ROW_M[level] * (coarseness if level < 3 else 1.0)
        rows = max(2, round(length / row_m))
        canvas = _Canvas(rows, columns, length / rows, column_m, half, length)
        for paint in paints:
            canvas.paint(paint)
        image = canvas.finish(layout.style)
        images.append(np.ascontiguousarray(np.concatenate([image, image[-1:] if junction else image[:1]])))
        d_mins.append(-half)
        columns_m.append(column_m)
        rows_m.append(length / rows)
    return Texture(tuple(images), tuple(d_mins), tuple(columns_m), tuple(rows_m), length)


@dataclass(frozen=True, slots=True)
class GroundPiece:
    """A texture from ``start_m`` to the next piece; its row 0 is at ``origin_m``."""

    start_m: float
    origin_m: float
    texture: Texture
    periodic: bool


class _Grid:
    """Rows of the picture below the horizon, sampled at every ``step_x``-th column and ``step_y``-th row."""

    def __init__(self, camera: Camera, coarseness: float, first: int, last: int, step_x: int, step_y: int) -> None:
        self.first, self.last = first, last
        rows = max(1, math.ceil((last - first) / step_y))
        columns = max(1, math.ceil(camera.width_px / step_x))
        # pixel centres the way cv2.resize maps them
        v = first + (np.arange(rows) + 0.5) * ((last - first) / rows)
        u = (np.arange(columns) + 0.5) * (camera.width_px / columns)
        self.z_m = (camera.fy_px * camera.height_m / np.maximum(v - camera.cy_px, 0.25)).astype(np.float32)
        # one level finer than the pixel footprint asks for would shimmer, one coarser would blur
        self.levels = np.clip(np.floor(np.log2(np.maximum(self.z_m, 1e-3) / 4.0)), 0, LEVELS - 1).astype(int)
        column_m = 0.025 * coarseness * 2.0**self.levels
        x = (u - camera.cx_px).astype(np.float32)
        self.x_m = (x[None, :] * (self.z_m / camera.fx_px)[:, None]).astype(np.float32)
        self._map_x0 = (self.x_m / column_m[:, None]).astype(np.float32)
        self._map_x = np.empty_like(self._map_x0)
        self._map_y = np.empty_like(self._map_x0)
        self.buffer = np.empty((rows, columns, 3), np.uint8)
        self._lights: dict[Look, tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]] = {}
        self.gain = np.empty_like(self.buffer)
        self.lift = np.empty_like(self.buffer)

    def lookup(
        self,
        pieces: list[GroundPiece],
        s_m: float,
        d_m: float,
        offset_m: npt.NDArray[np.float32],
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Unlit ground into ``out`` (of the grid's own size)."""
        s = s_m + self.z_m.astype(np.float64)
        starts = np.array([p.start_m for p in pieces])
        which = np.clip(np.searchsorted(starts, s, side="right") - 1, 0, len(pieces) - 1)
        breaks = np.flatnonzero(np.diff(which * LEVELS + self.levels)) + 1
        first = 0
        for last in [*breaks.tolist(), len(s)]:
            piece, level = pieces[int(which[first])], int(self.levels[first])
            texture = piece.texture
            column_m, row_m = texture.column_m[level], texture.row_m[level]
            shift = ((d_m - offset_m[first:last] - texture.d_min[level]) / column_m - 0.5).astype(np.float32)
            along = s[first:last] - piece.origin_m
            along = np.mod(along, texture.period_m) if piece.periodic else np.clip(along, 0, texture.period_m)
            map_x, map_y = self._map_x[first:last], self._map_y[first:last]
            np.add(self._map_x0[first:last], shift[:, None], out=map_x)
            map_y[:] = np.clip(along / row_m - 0.5, 0, None).astype(np.float32)[:, None]
            cv2.remap(
                texture.images[level],
                map_x,
                map_y,
                cv2.INTER_LINEAR,
                dst=out[first:last],
                borderMode=cv2.BORDER_REPLICATE,
            )
            first = last

    def light(self, before: Look, after: Look, progress: float) -> None:
        """Prepare for an atmosphere between two looks; those are kept, so that a change along the road is cheap."""
        gain, lift = self._of(before)
        if progress > 0.0:
            gain_after, lift_after = self._of(after)
            cv2.addWeighted(gain, 1.0 - progress, gain_after, progress, 0.0, dst=self.gain)
            cv2.addWeighted(lift, 1.0 - progress, lift_after, progress, 0.0, dst=self.lift)
        else:
            self.gain, self.lift = gain.copy(), lift.copy()

    def _of(self, look: Look) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        if look in self._lights:
            return self._lights[look]
        clear = atmosphere.transmittance(look, self.z_m)[:, None]
        ambient = np.array(look.ambient, np.float32) * (1.0 - 0.16 * look.rain)  # wet roads are darker
        gain = np.empty(self.buffer.shape, np.float32)
        gain[:] = ambient
        if look.beam > 0:
            gain += atmosphere.beam(look, self.x_m, np.broadcast_to(self.z_m[:, None], self.x_m.shape))[:, :, None]
        gain *= clear[:, :, None]
        lift = np.clip(np.array(look.fog, np.float32) * (1 - clear), 0, 255).astype(np.uint8)
        self._lights[look] = (
            np.clip(gain * _GAIN_ONE, 0, 255).astype(np.uint8),
            np.ascontiguousarray(np.broadcast_to(lift[:, None, :], self.buffer.shape)),
        )
        return self._lights[look]


_GAIN_ONE = 160.0
"""Stored gain of factor 1, so that bytes reach to 1.6."""
_NEAR_M = 22.0
_WIDE_PX = 800


class GroundPainter:
    """Paints the ground below the horizon for one camera.

    Textures are magnified three to six times across the road at every distance, so they are looked up at a half or a
    third of the columns and enlarged; along the road only the nearest part of wide pictures is, at half of the rows.
    It takes a third of the time and makes no visible difference.
    """

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self.coarseness = float(min(4.0, max(1.0, 1280.0 / camera.width_px)))
        self.first_row = min(camera.height_px - 1, math.floor(camera.cy_px) + 1)
        height = camera.height_px
        near_row = math.ceil(camera.cy_px + camera.fy_px * camera.height_m / _NEAR_M)
        near_row = min(max(near_row, self.first_row + 1), height - 1)
        wide = camera.width_px >= _WIDE_PX
        self._grids: list[_Grid] = []
        if near_row > self.first_row:
            self._grids.append(_Grid(camera, self.coarseness, self.first_row, near_row, 2, 1))
        self._grids.append(_Grid(camera, self.coarseness, near_row, height, *((3, 2) if wide else (2, 1))))

    def light(self, before: Look, after: Look, progress: float) -> None:
        """Prepare for an atmosphere; needed before :meth:`paint` and whenever it changes."""
        for grid in self._grids:
            grid.light(before, after, progress)

    def paint(
        self,
        out: npt.NDArray[np.uint8],
        pieces: list[GroundPiece],
        s_m: float,
        d_m: float,
        offset: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]],
    ) -> None:
        """Fill the rows of ``out`` below the horizon.

        Args:
            pieces: in order along the road, without gaps; the last one reaches to the horizon.
            s_m, d_m: of the camera.
            offset: how far the road has moved to the right at given distances (curvature and heading).
        """
        for grid in self._grids:
            rows = out[grid.first : grid.last]
            small = grid.buffer
            grid.lookup(pieces, s_m, d_m, offset(grid.z_m), small)
            cv2.multiply(small, grid.gain, dst=small, scale=1.0 / _GAIN_ONE)
            cv2.add(small, grid.lift, dst=small)
            cv2.resize(small, (rows.shape[1], rows.shape[0]), dst=rows, interpolation=cv2.INTER_LINEAR)
