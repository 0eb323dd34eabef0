"""The road: layouts per kind, the plan of the drive, curvature.

Road coordinates: ``s`` metres along the road, ``d`` metres to the right of the centre of the ego lane. The ego lane is
``d = 0`` on every road, so that a change of road needs no lane change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Road, Weather
from triptych.scenario.config import ScenarioConfig, Segment

LANE_M = 3.5
HALF_LANE_M = LANE_M / 2
JUNCTION_M = 24.0
"""Length of the junction with the zebra crossings before and behind it."""
ZEBRA_M = 3.5
BLEND_ROAD_M = 40.0
"""Lanes of the other direction move over within this distance of a change of road."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Cross-section of a stretch of road; all values are ``d`` in metres.

    Attributes:
        same: centres of the lanes in our direction, without the ego lane.
        oncoming: centres of the lanes of the other direction.
        left_edge, right_edge: the carriageway of our direction (and of the other one when there is no median).
        shoulder: from..to, where the ego may stop; None without one beside its lane.
        median: "barrier", "grass" or "line".
        median_from, median_to: extent of the median; equal for a line.
        far_edge: left edge of everything paved.
        base: look of the surroundings: HIGHWAY, RURAL or URBAN also for CROSSING and WORKS.
        parking: whether cars are parked at the right.
        limit_mps: speed limit.
        style: 0..11, variant of colours and markings.
    """

    road: Road
    base: Road
    same: tuple[float, ...]
    oncoming: tuple[float, ...]
    left_edge: float
    right_edge: float
    shoulder: tuple[float, float] | None
    median: str
    median_from: float
    median_to: float
    far_edge: float
    parking: bool
    limit_mps: float
    style: int

    @property
    def pull_over_d(self) -> float | None:
        """Where the ego comes to rest when it pulls over."""
        if self.shoulder is None:
            return None
        return min(sum(self.shoulder) / 2, self.shoulder[0] + 1.4)


def _highway(rng: np.random.Generator, style: int, limit: float, right: int = 0) -> Layout:
    left = int(rng.integers(1, 3)) if right == 0 else 1
    same = tuple(-LANE_M * k for k in range(1, left + 1)) + tuple(LANE_M * k for k in range(1, right + 1))
    right_edge = HALF_LANE_M + right * LANE_M
    left_edge = -HALF_LANE_M - left * LANE_M
    median = "barrier" if rng.random() < 0.6 else "grass"
    width = 1.6 if median == "barrier" else 7.0
    near, far = left_edge - 0.8, left_edge - 0.8 - width
    oncoming = tuple(far - 0.8 - HALF_LANE_M - LANE_M * k for k in range(2))
    return Layout(
        Road.HIGHWAY,
        Road.HIGHWAY,
        same,
        oncoming,
        left_edge,
        right_edge,
        (right_edge, right_edge + 3.0) if right == 0 else None,
        median,
        near,
        far,
        oncoming[-1] - HALF_LANE_M - 2.5,
        False,
        limit,
        style,
    )


def _rural(rng: np.random.Generator, style: int, limit: float) -> Layout:
    return Layout(
        Road.RURAL,
        Road.RURAL,
        (),
        (-LANE_M,),
        -HALF_LANE_M,
        HALF_LANE_M,
        (HALF_LANE_M, 4.1),
        "line",
        -HALF_LANE_M,
        -HALF_LANE_M,
        -LANE_M - HALF_LANE_M - 0.4,
        False,
        limit,
        style,
    )


def _urban(rng: np.random.Generator, style: int, limit: float, parking: bool | None = None) -> Layout:
    parking = bool(rng.random() < 0.5) if parking is None else parking
    return Layout(
        Road.URBAN,
        Road.URBAN,
        (),
        (-LANE_M,),
        -HALF_LANE_M,
        HALF_LANE_M,
        None if parking else (HALF_LANE_M, 4.3),
        "line",
        -HALF_LANE_M,
        -HALF_LANE_M,
        -LANE_M - HALF_LANE_M - 2.5,
        parking,
        limit,
        style,
    )


def make_layout(
    road: Road, before: Layout | None, rng: np.random.Generator, style: int, lanes_right: int = 0
) -> Layout:
    """The cross-section of a stretch; works narrow the one before them, if any, to the ego lane."""
    if road is Road.HIGHWAY:
        return _highway(rng, style, 33.3, lanes_right)
    if road is Road.RURAL:
        return _rural(rng, style, 25.0)
    if road is Road.URBAN:
        return _urban(rng, style, 13.9)
    if road is Road.CROSSING:
        return replace(_urban(rng, style, 13.9, parking=False), road=Road.CROSSING)
    bases = (_highway, _rural, _urban)
    base = before if before is not None else bases[int(rng.integers(0, 3))](rng, style, 13.9)
    limit = {Road.HIGHWAY: 16.7, Road.RURAL: 11.1}.get(base.base, 8.3)
    return replace(base, road=Road.WORKS, same=(), shoulder=None, parking=False, limit_mps=limit)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the plan: ``start_m``..``end_m`` along the road.

    ``junction_m`` is the start of the junction (JUNCTION_M long), ``signal`` whether it has traffic lights (otherwise
    only zebra crossings).
    """

    index: int
    start_m: float
    end_m: float
    layout: Layout
    weather: Weather
    light: Light
    junction_m: float | None
    signal: bool

    @property
    def stop_line_m(self) -> float | None:
        """Where vehicles wait, if there is a junction."""
        return None if self.junction_m is None else self.junction_m - 1.0


_DEFAULT_LENGTH_M = {Road.HIGHWAY: 500.0, Road.RURAL: 500.0, Road.URBAN: 400.0, Road.CROSSING: 120.0, Road.WORKS: 400.0}


BEND_AT_M = np.arange(-20.0, 420.0, 4.0)
"""Distances along the road from the ego at which :meth:`Plan.bend` says where the road is."""


class Plan:
    """The stretches of a drive, generated as far as anybody looks and forgotten behind the ego."""

    def __init__(self, config: ScenarioConfig) -> None:
        self._config = config
        self._segments = config.segments or (Segment(config.road, _DEFAULT_LENGTH_M[config.road]),)
        rng = np.random.Generator(np.random.PCG64([int(config.seed), 11]))
        self._style = int(rng.integers(0, 12))
        self._phases = rng.uniform(0, 2 * np.pi, 4)
        self._waves = 2 * np.pi / rng.uniform((150, 260, 420, 700), (220, 400, 650, 1100))
        self._stretches: list[Stretch] = []
        self._layouts: dict[int, Layout] = {}
        self._next = 0

    def _extend(self) -> None:
        index = self._next
        self._next += 1
        which = index % len(self._segments)
        segment = self._segments[which]
        previous = self._stretches[-1] if self._stretches else None
        rng = np.random.Generator(np.random.PCG64([int(self._config.seed), 13, which]))
        layout = self._layouts.get(which)
        if layout is None:
            layout = make_layout(
                segment.road, previous.layout if previous else None, rng, self._style, self._config.lanes_right
            )
            self._layouts[which] = layout
        # the drive starts inside the first stretch, with road behind the ego as well
        start = previous.end_m if previous else -60.0
        end = start + segment.length_m + (0.0 if previous else 60.0)
        junction = None
        signal = False
        if segment.road is Road.CROSSING:
            junction = end - JUNCTION_M - 6.0
            signal = bool(np.random.Generator(np.random.PCG64([int(self._config.seed), 17, index])).random() < 0.8)
        self._stretches.append(
            Stretch(
                index,
                start,
                end,
                layout,
                segment.weather or self._config.weather,
                segment.light or self._config.light,
                junction,
                signal,
            )
        )

    def forget_before(self, s_m: float) -> None:
        """Drop stretches that end before ``s_m``; at least one is kept."""
        while len(self._stretches) > 1 and self._stretches[0].end_m < s_m:
            self._stretches.pop(0)

    def between(self, from_m: float, to_m: float) -> list[Stretch]:
        """Stretches that touch from..to, in order."""
        while not self._stretches or self._stretches[-1].end_m <= to_m:
            self._extend()
        return [x for x in self._stretches if x.end_m > from_m and x.start_m <= to_m]

    def at(self, s_m: float) -> Stretch:
        """The stretch at ``s_m`` (the oldest one known, if that is already forgotten)."""
        found = self.between(s_m, s_m)
        return found[0] if found else self._stretches[0]

    def curvature(self, s_m: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """1/m, positive to the right. Highways bend least, rural roads most; junctions are straight."""
        # a margin of 100 m on both sides, so that the value at one place never depends on who asks
        known = self.between(float(s_m[0]) - 100.0, float(s_m[-1]) + 100.0)
        xs: list[float] = []
        ys: list[float] = []
        for x in known:
            a = {Road.HIGHWAY: 1 / 1200, Road.RURAL: 1 / 260, Road.URBAN: 1 / 700}[x.layout.base]
            a = 0.0 if x.layout.road is Road.CROSSING else a
            margin = min(50.0, (x.end_m - x.start_m) / 2.01)
            xs += [x.start_m + margin, x.end_m - margin]
            ys += [a, a]
        amplitude = np.interp(s_m, xs, ys) * self._config.curvature
        waves = np.sin(s_m[:, None] * self._waves + self._phases) @ np.array((0.25, 0.35, 0.3, 0.3))
        return np.asarray(amplitude * waves)

    def bend(self, s_m: float) -> npt.NDArray[np.float64]:
        """How far the road has moved to the right at the distances ``BEND_AT_M``, seen along the road at ``s_m``;
        metres. Between them it is straight."""
        step = BEND_AT_M[1] - BEND_AT_M[0]
        kappa = self.curvature(s_m + BEND_AT_M)
        heading = np.cumsum(kappa) * step
        zero = round(-BEND_AT_M[0] / step)
        heading -= heading[zero]
        offset = np.cumsum(heading) * step
        return np.asarray(offset - offset[zero])
