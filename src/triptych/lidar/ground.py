"""Where the ground lies, from geometry alone: beneath each return, and before the vehicle as a plane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triptych.lidar.config import LidarConfig
from triptych.lidar.scan import Points

SECTORS = 120
"""Of the circle, 3 degrees each."""
RING_M = 1.0
"""Depth of a cell of the polar grid."""
NEIGHBOURS = 4
"""Sectors on either side that vote on a cell's ground: more than a car takes at the distance where rings get sparse."""
QUORUM = 5
"""Of these nine must see ground, within DEPTH cells, for their median to count: again more than a car takes."""
DEPTH = 2
LOOSE_M = np.float32(8.0)
"""Beyond this distance from the last ground seen, nothing more is conceded to what claims to be ground."""
LEVER_M = np.float32(5.0)
"""Nearer ground gives no slope: its noise would be multiplied."""
_ELECTORATE = (np.arange(SECTORS)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1)) % SECTORS

AHEAD_M = (5.0, 15.0)
"""Where the road before the vehicle is looked for."""
AHEAD_SIDE_M = 3.0
FEWEST_CELLS = 15
"""Of 60 cells of 1 m² there: a lidar with beams 2 degrees apart fills half of them on an empty road."""
FEWEST_DEPTH_M = 3.0
"""Ground on a shorter stretch says nothing of pitch."""


def height_above_ground(points: Points, config: LidarConfig) -> npt.NDArray[np.float32]:
    """Height of each return above the local ground, (N,) float32 metres.

    The lowest return of each cell of a polar grid claims to be ground. From the vehicle outwards a claim is believed
    if it fits what is expected there, within noise and a slope per metre since ground was last seen; a cell in which
    something stands gets the slope of one cell only, since its lowest return may belong to that. Expected is the
    straight line from the road beneath the vehicle through the ground last believed, in the median over neighbouring
    sectors. Where most sectors of a neighbourhood believe something, the median of that is the ground, elsewhere what
    is expected: neither a car on which one beam falls nor reflections from below the road lift or sink it. At the
    vehicle the ground is z = 0, and stays so where nothing is seen.

    Args:
        points: (N, 3) float32, finite, as in ``base_link`` but with the origin on the road beneath the sensor, so that
            the grid's rings are those of its beams.
    """
    if not len(points):
        return np.zeros(0, np.float32)
    x, y, z = points.T
    ring = (np.hypot(x, y) / RING_M).astype(np.int32)
    sector = (np.arctan2(y, x) * (SECTORS / (2 * np.pi)) + SECTORS).astype(np.int32) % SECTORS
    rings = int(ring.max()) + 1
    cell = ring * SECTORS + sector
    lowest = np.full(rings * SECTORS, np.inf, np.float32)
    np.minimum.at(lowest, cell, z)
    rise = z - lowest[cell]
    stands = (rise > config.step_m) & (rise <= config.clearance_m)
    occupied = np.bincount(cell[stands], minlength=lowest.size) > 0
    ground = _agreed(*_walk(lowest.reshape(rings, SECTORS), occupied.reshape(rings, SECTORS), config))
    height: npt.NDArray[np.float32] = z - ground.reshape(-1)[cell]
    return height


def _walk(lowest: Points, occupied: npt.NDArray[np.bool_], config: LidarConfig) -> tuple[Points, Points]:
    """From the lowest return of each cell (inf: none) and whether something stands there, both (rings, sectors): the
    ground expected, and what is believed of it (inf: nothing).
    """
    expected, believed = np.empty_like(lowest), np.empty_like(lowest)
    last = np.zeros(SECTORS, np.float32)  # the ground last believed in each sector, and its distance
    last_m = np.zeros(SECTORS, np.float32)
    noise_m, slope_max = np.float32(config.ground_noise_m), np.float32(config.ground_slope_share)
    for k, claim in enumerate(lowest):
        here_m = np.float32((k + 0.5) * RING_M)
        gap_m = here_m - last_m
        line = last / np.maximum(last_m, LEVER_M)
        lines = last + gap_m * np.minimum(np.maximum(line, -slope_max), slope_max)
        expected[k] = np.partition(lines[_ELECTORATE], NEIGHBOURS, axis=1)[:, NEIGHBOURS]
        conceded_m = np.where(occupied[k], np.float32(RING_M), np.minimum(gap_m, LOOSE_M))
        fits = np.abs(claim - expected[k]) <= noise_m + slope_max * conceded_m
        believed[k] = np.where(fits, claim, np.float32(np.inf))
        last = np.where(fits, claim, last)
        last_m = np.where(fits, here_m, last_m)
    return expected, believed


def _agreed(expected: Points, believed: Points) -> Points:
    """The ground of each cell, (rings, sectors): the median of what is believed in its neighbourhood, if enough of its
    sectors believe anything, else what is expected.
    """
    rings = len(believed)
    padded = np.pad(believed, ((DEPTH, DEPTH), (0, 0)), constant_values=np.inf)
    near = believed
    for d in range(1, DEPTH + 1):  # the nearest ring of a sector that has something speaks for it, the inner one first
        for shift in (-d, d):
            near = np.where(np.isinf(near), padded[DEPTH + shift : DEPTH + shift + rings], near)
    votes = np.sort(near[:, _ELECTORATE], axis=2)
    votes_n = np.count_nonzero(np.isfinite(votes), axis=2)
    median = np.take_along_axis(votes, np.maximum(votes_n - 1, 0)[..., None] // 2, axis=2)[..., 0]
    return np.where(votes_n >= QUORUM, median, expected)


class Plane(NamedTuple):
    """The road before the vehicle, as seen from a sensor believed to be on its mount: z at 10 m ahead, its slopes."""

    height_m: float
    slope_x_deg: float
    slope_y_deg: float


def road_ahead(points: Points) -> Plane | None:
    """The plane through the lowest returns 5 to 15 m ahead and 3 m to either side, or ``None`` if too little is seen.

    Least squares, then three rounds in which what lies 0.15 m or more above the plane is left out.

    Args:
        points: (N, 3) float32 in ``base_link``, finite.
    """
    x, y, z = points.T
    near = (x >= AHEAD_M[0]) & (x < AHEAD_M[1]) & (np.abs(y) < AHEAD_SIDE_M)
    x, y, z = x[near], y[near], z[near]
    width = int(2 * AHEAD_SIDE_M)
    cell = (x - AHEAD_M[0]).astype(np.int32) * width + (y + AHEAD_SIDE_M).astype(np.int32)
    order = np.lexsort((z, cell))
    _, first = np.unique(cell[order], return_index=True)
    low = order[first]
    x, y, z = x[low], y[low], z[low]
    for _ in range(4):
        if len(x) < FEWEST_CELLS or np.ptp(x) < FEWEST_DEPTH_M:
            return None
        design = np.column_stack((np.ones_like(x), x - 10.0, y)).astype(np.float64)
        plane = np.linalg.lstsq(design, z.astype(np.float64), rcond=None)[0]
        keep = z - design @ plane < 0.15
        x, y, z = x[keep], y[keep], z[keep]
    slope_x_deg, slope_y_deg = np.degrees(np.arctan(plane[1:]))
    return Plane(float(plane[0]), float(slope_x_deg), float(slope_y_deg))
