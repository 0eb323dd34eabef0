"""Obstacles of one scan: what stands on the ground, put together to boxes.

Geometry and no learning, on purpose: it errs in other places than a detector of pictures does.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract.lidar import MAX_OBSTACLES, Obstacle
from triptych.lidar.config import LidarConfig
from triptych.lidar.ground import height_above_ground
from triptych.lidar.scan import Points

Indices = npt.NDArray[np.int64]

FILLED_SHARE = 0.25
"""A long box is given as one if its cells with returns cover this share of it: a wall along an axis, not a diagonal."""


def find_obstacles(points_base: Points, config: LidarConfig) -> tuple[Obstacle, ...]:
    """Boxes of what stands higher than ``step_m`` above the local ground and lower than ``clearance_m``.

    Args:
        points_base: (N, 3) float32 in ``base_link``, metres; NaN, infinite and out of reach is left out.

    Returns:
        At most 64, by the distance of their nearest return from ``base_link``.
    """
    points = points_base[_in_reach(points_base, config)]
    height = height_above_ground(points - np.array([config.x_m, config.y_m, 0.0], np.float32), config)
    standing = (height > config.step_m) & (height <= config.clearance_m)
    points, height = points[standing], height[standing]
    row, column = _cells(points, config)
    component = _linked(points, row, column, config)
    enough = np.bincount(component, minlength=1)[component] >= config.fewest_points
    if not enough.any():
        return ()
    points, height, row, column = points[enough], height[enough], row[enough], column[enough]
    group = _compact(row, column, component[enough], config)
    points_n = np.bincount(group)
    x, y = points[:, 0], points[:, 1]
    x_min, y_min, distance = (_least(values, group, len(points_n)) for values in (x, y, np.hypot(x, y)))
    x_max, y_max, z_max = (-_least(-values, group, len(points_n)) for values in (x, y, height))
    return tuple(
        Obstacle(
            x_min_m=float(x_min[k]),
            x_max_m=float(x_max[k]),
            y_min_m=float(y_min[k]),
            y_max_m=float(y_max[k]),
            z_max_m=float(z_max[k]),
            points_n=int(points_n[k]),
        )
        for k in np.argsort(distance, kind="stable")[: min(MAX_OBSTACLES, np.count_nonzero(points_n))]
    )


def _least(values: Points, group: Indices, groups_n: int) -> Points:
    """Least value of each group."""
    least = np.full(groups_n, np.inf, np.float32)
    np.minimum.at(least, group, values)
    return least


def _in_reach(points: Points, config: LidarConfig) -> npt.NDArray[np.bool_]:
    """What may be looked at: NaN compares false, so it goes with the rest."""
    x, y, z = points.T
    seen = (x <= config.reach_m) & (x >= -config.reach_behind_m) & (np.abs(y) <= config.reach_side_m)
    own = (x <= config.body_front_m) & (x >= -config.body_rear_m) & (np.abs(y) <= config.body_half_width_m)
    allowed: npt.NDArray[np.bool_] = seen & ~own & (np.abs(z) <= config.reach_m)
    return allowed


def _cells(points: Points, config: LidarConfig) -> tuple[Indices, Indices]:
    """Row (to the left) and column (forward) of each return in the occupancy grid, each (N,)."""
    row = ((points[:, 1] + config.reach_side_m) / config.cell_m).astype(np.int64)
    column = ((points[:, 0] + config.reach_behind_m) / config.cell_m).astype(np.int64)
    return row, column


def _linked(points: Points, row: Indices, column: Indices, config: LidarConfig) -> Indices:
    """Which connected component each return belongs to, (N,).

    Cells grown to n by n meet over n - 1 empty ones, so between returns less than n + 1 cells apart.
    """
    shape = (
        int(2 * config.reach_side_m / config.cell_m) + 2,
        int((config.reach_m + config.reach_behind_m) / config.cell_m) + 2,
    )
    grid = np.zeros(shape, np.uint8)
    grid[row, column] = 1
    grown = grid
    bridged_m = np.minimum(np.hypot(points[:, 0], points[:, 1]) * config.link_share, config.link_m)
    for n in range(2, int(config.link_m / config.cell_m + 1e-9)):
        far = bridged_m >= (n + 1) * config.cell_m
        layer = np.zeros_like(grid)
        layer[row[far], column[far]] = 1
        grown = np.maximum(grown, cv2.dilate(layer, np.ones((n, n), np.uint8)))
    labels = cv2.connectedComponents(grown, connectivity=8)[1]
    component: Indices = labels[row, column].astype(np.int64)
    return component


def _compact(row: Indices, column: Indices, component: Indices, config: LidarConfig) -> Indices:
    """Group of each return, (N,) from 0, with gaps: a long component whose box would be mostly empty is halved until
    none is. The box of a curved guard rail covers the road beside it; those of its pieces do not.
    """
    wide = int(column.max()) + 1
    at = row * wide + column
    component_at = np.full(int(at.max()) + 1, -1, np.int64)
    component_at[at] = component
    cells = np.flatnonzero(component_at >= 0)
    place = np.divmod(cells, wide)
    group_of = component_at[cells]
    count = int(group_of.max()) + 1
    long = np.zeros(count, np.bool_)
    for along in place:
        high, low = np.full((2, count), -1, np.int64)
        np.maximum.at(high, group_of, along)
        np.maximum.at(low, group_of, int(along.max()) - along)
        long |= (high + low - int(along.max()) + 1) * config.cell_m > config.compact_m
    pending = [np.flatnonzero(group_of == k) for k in np.flatnonzero(long)]
    while pending:
        members = pending.pop()
        inside = [along[members] for along in place]
        extent = [int(np.ptp(along)) + 1 for along in inside]
        axis = int(np.argmax(extent))
        if extent[axis] * config.cell_m <= config.compact_m or len(members) >= FILLED_SHARE * extent[0] * extent[1]:
            continue
        lower = inside[axis] < inside[axis].min() + extent[axis] // 2
        group_of[members[lower]] = count
        count += 1
        pending += [members[lower], members[~lower]]
    component_at[cells] = group_of
    group: Indices = component_at[at]
    return group
