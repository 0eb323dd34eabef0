"""A rotating lidar on the roof, in the same world as the camera and independent of it.

Frame ``lidar``: x forward, y to the left, z up (REP-103), metres, level, origin in the sensor, which is ``mount_x_m``
ahead of the camera and ``height_m`` above the road. As the picture does, the scan follows the road: what is ahead along
it stands where the bend has carried it.

Everything that stands in the world is a stack of boxes, one for each layer of its mesh's height, so that an arm above
the road is not a wall down to it. One scan is a snapshot: the vehicle's motion during a turn isn't in it. Glass, gaps
below vehicles and rails, and echoes of the drops themselves aren't modelled either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError
from triptych.scenario.mesh import Mesh
from triptych.scenario.props import Instance
from triptych.scenario.road import BEND_AT_M

Floats = npt.NDArray[np.float64]

CLEAR_PER_M = 0.0015
"""Extinction of clear air, for which the range of a sensor is given."""
_LAYER_M = 0.3
_SAME_M, _SAME_SHARE = 0.12, 0.1
"""Layers whose sides differ by less, in metres or as a share of the width, are one box."""
_DEPTH_M = 0.2
"""Poles, plates and people are flat pictures in the meshes; here they are at least this deep."""
_NEAREST_M = 0.01

RINGS_DEG = (
    *(-18.0, -16.5, -15.0, -13.5, -12.0, -11.0, -10.0, -9.0, -8.0, -7.0, -6.0, -5.0),
    *(-4.4, -4.0, -3.6, -3.2, -2.8, -2.4, -2.0, -1.6, -1.2, -0.8, -0.4, 0.0, 0.4, 0.8, 1.2, 1.6),
    *(2.4, 3.2, 4.1, 5.0),
)
"""32 rings, densest around the horizon as in common roof lidars: 12 meet the road nearer than 21 m, and a car 40 m
ahead is met by five."""


@dataclass(frozen=True, slots=True)
class LidarModel:
    """The sensor as data.

    Attributes:
        rings_deg: elevations of the beams, ascending, negative downwards.
        azimuth_step_deg: between neighbouring beams of a ring.
        field_deg: horizontal field, symmetric about straight ahead.
        min_range_m, max_range_m: in clear air; nearer and further echoes are not reported.
        height_m: of the sensor above the road.
        mount_x_m: of the sensor ahead of the camera.
        noise_m: standard deviation of the range.

    Raises:
        ConfigError: a value out of its range, or NaN.
    """

    rings_deg: tuple[float, ...] = RINGS_DEG
    azimuth_step_deg: float = 0.4
    field_deg: float = 180.0
    min_range_m: float = 0.5
    max_range_m: float = 60.0
    height_m: float = 1.8
    mount_x_m: float = 0.0
    noise_m: float = 0.02

    def __post_init__(self) -> None:
        rings = self.rings_deg
        if not (
            1 <= len(rings) <= 128
            and all(-60.0 <= r <= 60.0 for r in rings)
            and all(a < b for a, b in itertools.pairwise(rings))
        ):
            raise ConfigError("must be 1..128 ascending elevations within ±60 degrees", field="rings_deg", value=rings)
        for name, least, greatest in (
            ("azimuth_step_deg", 0.05, 10.0),
            ("field_deg", 10.0, 180.0),
            ("min_range_m", 0.1, 10.0),
            ("max_range_m", 10.0, 250.0),
            ("height_m", 0.3, 4.0),
            ("mount_x_m", -5.0, 5.0),
            ("noise_m", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not least <= value <= greatest:
                raise ConfigError(f"must be {least:g}..{greatest:g}", field=name, value=value)

    def azimuths_rad(self) -> Floats:
        """Of the beams of a ring, ascending, positive to the left; the middles of steps, so none is straight left."""
        n = max(1, int(self.field_deg / self.azimuth_step_deg + 1e-9))
        return np.asarray(np.radians((np.arange(n) - (n - 1) / 2) * self.azimuth_step_deg))

    def reach_m(self, extinction_per_m: float) -> float:
        """The range at which an echo is as weak as one from ``max_range_m`` in clear air.

        Lidar equation for targets that fill the beam: the power falls with exp(-2 a r) / r² (e.g. Wandinger in
        Weitkamp, Lidar, 2005, chapter 1). Fog of this world leaves 26 to 36 m of 60, rain 45 to 51 m.
        """
        a = max(extinction_per_m, CLEAR_PER_M)
        full = math.log(self.max_range_m) + CLEAR_PER_M * self.max_range_m
        low, high = 0.0, self.max_range_m
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if math.log(middle) + a * middle < full else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
class Pose:
    """Where the vehicle is on its road: ``s_m``, ``d_m`` and ``yaw_rad`` as of the ego, ``bend_m`` from
    :meth:`.road.Plan.bend` there."""

    s_m: float
    d_m: float
    yaw_rad: float
    bend_m: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """``points`` (N, 3) float32 in the frame ``lidar``, by ring from the lowest, each from right to left; ``things``
    (N,): index of what each one has met, -1 for the road."""

    points: npt.NDArray[np.float32]
    things: npt.NDArray[np.int64]


def sweep(
    model: LidarModel, things: Sequence[Instance], pose: Pose, extinction_per_m: float, rng: np.random.Generator
) -> Sweep:
    """One turn among ``things``. Beams that do not come back are left out.

    An echo is lost with the share of light that the air takes on one way beyond what clear air takes: our choice, for
    drops in the beam and on the window. Each beam has its own two random numbers, whatever it meets.
    """
    elevation = np.radians(np.asarray(model.rings_deg))
    slope, azimuth = np.tan(elevation), model.azimuths_rad()
    shape = (len(slope), len(azimuth))
    reach = model.reach_m(extinction_per_m)
    # distances over the ground; the road first
    with np.errstate(divide="ignore"):
        road = np.where(slope < 0.0, -model.height_m / slope, np.inf)
    flat = np.repeat(road, len(azimuth))
    met = np.full(flat.shape, -1, np.int64)
    beam, distance, owner = _hits(slope, azimuth, *_boxes(model, things, pose, reach))
    np.minimum.at(flat, beam, distance)
    nearest = distance == flat[beam]
    met[beam[nearest]] = owner[nearest]

    over = flat.reshape(shape)
    ranges = over / np.cos(elevation)[:, None] + model.noise_m * rng.standard_normal(shape)
    lost = -np.expm1(-max(0.0, extinction_per_m - CLEAR_PER_M) * np.where(np.isfinite(over), over, 0.0))
    back = (ranges >= model.min_range_m) & (ranges <= reach) & (rng.random(shape) >= lost)
    ring, column = np.nonzero(back)
    r = ranges[ring, column]
    ground = r * np.cos(elevation)[ring]
    points = np.stack(
        [ground * np.cos(azimuth)[column], ground * np.sin(azimuth)[column], r * np.sin(elevation)[ring]], axis=1
    )
    return Sweep(points.astype(np.float32), met.reshape(shape)[ring, column])


@lru_cache(maxsize=4096)
def solids(mesh: Mesh) -> Floats:
    """A mesh as boxes (K, 6): least x, y, z and greatest x, y, z in its own coordinates, from the lowest.

    Each layer of height has the extents of the parts of the polygons that lie in it; layers alike are one box.
    """
    starts, counts = mesh.starts, mesh.counts
    solid = starts >= mesh.unboxed
    starts, counts = starts[solid], counts[solid]
    n = int(counts.sum())
    first = np.repeat(starts, counts)
    k = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    vertices = mesh.vertices.astype(np.float64)
    a, b = vertices[first + k], vertices[first + (k + 1) % np.repeat(counts, counts)]
    bottom, top = float(a[:, 1].min()), float(a[:, 1].max())
    layers = max(1, math.ceil((top - bottom) / _LAYER_M - 1e-6))
    levels = np.linspace(bottom, top, layers + 1)
    # every edge cut to every layer: the shares of its length where it enters and leaves
    rise = (b - a)[:, 1][:, None]
    low, high = levels[None, :-1] - a[:, 1][:, None], levels[None, 1:] - a[:, 1][:, None]
    level = np.abs(rise) < 1e-9
    safe = np.where(level, 1.0, rise)
    t0, t1 = np.minimum(low / safe, high / safe), np.maximum(low / safe, high / safe)
    t0, t1 = np.where(level, 0.0, np.maximum(t0, 0.0)), np.where(level, 1.0, np.minimum(t1, 1.0))
    there = np.where(level, (low <= 1e-6) & (high >= -1e-6), t0 <= t1)
    ends = a[:, None, None] + np.stack([t0, t1], axis=2)[..., None] * (b - a)[:, None, None]  # edge, layer, end, axis
    least = np.where(there[:, :, None], ends.min(axis=2), np.inf).min(axis=0)
    most = np.where(there[:, :, None], ends.max(axis=2), -np.inf).max(axis=0)
    boxes: list[Floats] = []
    for lower, upper in zip(least, most, strict=True):
        if not lower[0] <= upper[0]:
            continue
        if boxes and _alike(boxes[-1], lower, upper):
            boxes[-1] = np.concatenate([np.minimum(boxes[-1][:3], lower), np.maximum(boxes[-1][3:], upper)])
        else:
            boxes.append(np.concatenate([lower, upper]))
    out = np.array(boxes)
    for axis in (0, 2):
        grow = np.maximum(0.0, _DEPTH_M - (out[:, axis + 3] - out[:, axis])) / 2
        out[:, axis] -= grow
        out[:, axis + 3] += grow
    out.setflags(write=False)
    return out


def _alike(box: Floats, lower: Floats, upper: Floats) -> bool:
    sides = [0, 2]
    size = np.maximum(box[3:] - box[:3], upper - lower)[sides]
    apart = np.maximum(np.abs(lower - box[:3]), np.abs(upper - box[3:]))[sides]
    touches = bool(lower[1] - box[4] < 0.01)
    return touches and bool(np.all(apart <= np.maximum(_SAME_M, _SAME_SHARE * size)))


def _boxes(
    model: LidarModel, things: Sequence[Instance], pose: Pose, reach_m: float
) -> tuple[Floats, Floats, Floats, npt.NDArray[np.int64]]:
    """What may be met: boxes (K, 6) with x to the right of the line of the road and z forward of the sensor, y up from
    the sensor; that line as place at z = 0 and slope (K,) each; and whose they are."""
    ahead = pose.s_m + model.mount_x_m
    near = [
        k
        for k, i in enumerate(things)
        if -i.mesh.radius_m - _DEPTH_M < i.s - ahead < reach_m + i.mesh.radius_m + _DEPTH_M
    ]
    stacks = [solids(things[k].mesh) for k in near]
    sizes = [len(stack) for stack in stacks]
    owner = np.repeat(np.asarray(near, np.int64), sizes)
    local = np.concatenate([np.zeros((0, 6)), *stacks])
    at = np.array([(i.cos, i.sin, i.d, i.y, i.s) for i in (things[k] for k in near)], np.float64).reshape(-1, 5)
    cos, sin, d, y, s = np.repeat(at, sizes, axis=0).T
    # headings are along the road or across it, so a turned box is a box again
    x0, y0, z0, x1, y1, z1 = local.T
    xa, xb = x0 * cos + z0 * sin + d, x1 * cos + z1 * sin + d
    za, zb = z0 * cos - x0 * sin + s - ahead, z1 * cos - x1 * sin + s - ahead
    height = y - model.height_m
    boxes = np.stack(
        [np.minimum(xa, xb), y0 + height, np.minimum(za, zb), np.maximum(xa, xb), y1 + height, np.maximum(za, zb)],
        axis=1,
    )
    # along a box the road is taken as straight; as the picture does, yaw is a shear
    low, high = boxes[:, 2], boxes[:, 5]
    bend_low = np.interp(low + model.mount_x_m, BEND_AT_M, pose.bend_m)
    bend_high = np.interp(high + model.mount_x_m, BEND_AT_M, pose.bend_m)
    road_slope = (bend_high - bend_low) / (high - low)
    line_slope = road_slope - pose.yaw_rad
    line = bend_low - road_slope * low - pose.d_m - pose.yaw_rad * model.mount_x_m
    x_low, x_high = _corners(boxes, line, line_slope)
    aside = np.maximum(0.0, np.maximum(x_low.min(axis=1), -x_high.max(axis=1)))
    keep = (high > 0.0) & (np.hypot(np.maximum(low, 0.0), aside) < reach_m)
    return boxes[keep], line[keep], line_slope[keep], owner[keep]


def _corners(boxes: Floats, line: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """x of the left and of the right corners, each (K, 2): at the near and at the far end."""
    along = line[:, None] + slope[:, None] * boxes[:, [2, 5]]
    return boxes[:, [0]] + along, boxes[:, [3]] + along


def _ranges(low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """All pairs (k, j) with ``low[k] <= j < high[k]``, as two arrays."""
    n = np.maximum(high - low, 0)
    k = np.repeat(np.arange(len(n)), n)
    return k, np.arange(len(k)) - np.repeat(np.cumsum(n) - n - low, n)


def _hits(
    slope: Floats, azimuth: Floats, boxes: Floats, line: Floats, line_slope: Floats, owner: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]:
    """Every beam through every box: index of the beam (ring by ring), distance over the ground, whose box.

    All beams of one azimuth cut a box between the same two distances, which the slab test gives (Kay, Kajiya 1986);
    seen from the sensor that cut spans an interval of slopes, and the rings in it are those that hit.
    """
    left, right = _corners(boxes, line, line_slope)
    z = boxes[:, [2, 5, 2, 5]]
    turned = np.arctan2(-np.concatenate([left, right], axis=1), z)
    first, last = turned.min(axis=1), turned.max(axis=1)
    around = last - first > math.pi
    begin = np.searchsorted(azimuth, np.where(around, -math.pi, first), "left")
    end = np.searchsorted(azimuth, np.where(around, math.pi, last), "right")
    box, column = _ranges(begin, end)

    ahead, aside = np.cos(azimuth)[column], -np.sin(azimuth)[column] - line_slope[box] * np.cos(azimuth)[column]
    aside = np.where(np.abs(aside) < 1e-9, 1e-9, aside)
    za, zb = boxes[box, 2] / ahead, boxes[box, 5] / ahead
    xa, xb = (boxes[box, 0] + line[box]) / aside, (boxes[box, 3] + line[box]) / aside
    enter = np.maximum(np.maximum(np.minimum(xa, xb), za), _NEAREST_M)
    leave = np.minimum(np.maximum(xa, xb), zb)
    through = enter <= leave
    box, column, enter, leave = box[through], column[through], enter[through], leave[through]

    bottom, top = boxes[box, 1], boxes[box, 4]
    lowest = np.searchsorted(slope, np.minimum(bottom / enter, bottom / leave), "left")
    highest = np.searchsorted(slope, np.maximum(top / enter, top / leave), "right")
    cut, ring = _ranges(lowest, highest)
    k, enter, bottom, top = slope[ring], enter[cut], bottom[cut], top[cut]
    at = k * enter
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(at > top, top / k, np.where(at < bottom, bottom / k, enter))
    return ring * len(azimuth) + column[cut], distance, owner[box[cut]]
