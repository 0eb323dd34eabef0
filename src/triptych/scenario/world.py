"""The scenario: the world, the ego in it, and the camera's view of both."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import (
    ConfigError,
    DegradationState,
    DetectionClass,
    DriverState,
    InputError,
    Light,
    MotionConstraint,
    Odometry,
    Road,
    Weather,
)
from triptych.scenario import atmosphere
from triptych.scenario.actors import Actor
from triptych.scenario.advice import Situation, assess
from triptych.scenario.camera import Camera
from triptych.scenario.config import DriverAction, ScenarioConfig
from triptych.scenario.ego import (
    CURVE_ACCELERATION_MPS2,
    EGO_FRONT_M,
    EGO_REAR_M,
    EGO_WIDTH_M,
    Ego,
)
from triptych.scenario.props import BEYOND, ROADSIDE, Instance
from triptych.scenario.render import Drawing, Renderer
from triptych.scenario.road import HALF_LANE_M, LANE_M, Plan, Stretch
from triptych.scenario.signals import Aspect
from triptych.scenario.traffic import Traffic
from triptych.scenario.truth import SceneTruth, TruthBox

MAX_STEP_S = 0.5
LABEL_AHEAD_M = 12.0
"""The road, weather and light named in the truth are those this far ahead."""
MIN_BOX_PX = 3.0
"""Smaller boxes (shorter side) are left out."""
MIN_CONTRAST = 0.05
_CORRIDOR_M = EGO_WIDTH_M / 2 + 0.3


class Scenario:
    """A deterministic closed-loop drive.

    The same configuration and the same sequence of :meth:`step` calls give the same frames, byte for byte. While the
    driver overrides (``override_active``) the constraint does not bind the vehicle; a person drives it then.

    Args:
        config: see :class:`ScenarioConfig`.

    Raises:
        ConfigError: not a configuration.
    """

    def __init__(self, config: ScenarioConfig) -> None:
        if not isinstance(config, ScenarioConfig):
            raise ConfigError("must be a ScenarioConfig", field="config", value=type(config).__name__)
        self.config = config
        self._plan = Plan(config)
        self._ego = Ego()
        start = self._allowed_mps(0.0) if config.start_speed_mps is None else config.start_speed_mps
        self._ego.speed = start
        self._traffic = Traffic(config, self._plan)
        self._traffic.populate(self._ego)
        self._ticks = 0
        self._time_s = 0.0
        self._heading_rad = 0.0
        self._collision = False
        self._committed: set[int] = set()
        self._asked_since_s: float | None = None
        self._took_over_at_s: float | None = None
        self._renderer: Renderer | None = None
        self._drawn: tuple[int, Drawing, npt.NDArray[np.float64]] | None = None

    # ---- state

    @property
    def time_s(self) -> float:
        """Scenario time."""
        return self._time_s

    @property
    def speed_mps(self) -> float:
        """Of the ego."""
        return self._ego.speed

    @property
    def acceleration_mps2(self) -> float:
        """Of the ego, forward positive."""
        return self._ego.acceleration

    @property
    def position_m(self) -> float:
        """Distance driven."""
        return self._ego.s

    @property
    def lateral_m(self) -> float:
        """To the right of the centre of the lane."""
        return self._ego.d

    @property
    def hazard_lights(self) -> bool:
        """Whether the ego's hazard lights flash."""
        return self._ego.hazard_lights

    @property
    def on_shoulder(self) -> bool:
        """Whether the whole vehicle is right of the carriageway's edge line."""
        stretch = self._plan.at(self._ego.s)
        return self._ego.d - EGO_WIDTH_M / 2 >= stretch.layout.right_edge - 0.25

    @property
    def finished(self) -> bool:
        """Whether ``duration_s`` is over."""
        return self._time_s >= self.config.duration_s - 1e-9

    @property
    def camera(self) -> Camera:
        """The camera's intrinsics."""
        return self._render().camera

    # ---- time

    def step(self, dt_s: float, constraint: MotionConstraint | None = None) -> None:
        """Advance the world by ``dt_s`` (above 0, at most 0.5 s); the ego obeys ``constraint``.

        Raises:
            InputError: a time step or a constraint with numbers that cannot be used; nothing has changed then.
        """
        if isinstance(dt_s, bool) or not isinstance(dt_s, (int, float, np.floating, np.integer)):
            raise InputError("must be a number of seconds", field="dt_s", value=dt_s)
        dt = float(dt_s)
        if not (math.isfinite(dt) and 0.0 < dt <= MAX_STEP_S):
            raise InputError(f"must be above 0 and at most {MAX_STEP_S} s", field="dt_s", value=dt_s)
        if constraint is not None:
            for name in ("speed_limit_mps", "deceleration_mps2"):
                value = getattr(constraint, name)
                if not (math.isfinite(value) and value >= 0):
                    raise InputError("must be finite and at least 0", field=f"constraint.{name}", value=value)
        ego = self._ego
        self._ticks += 1
        self._time_s += dt
        self._answer_request(constraint)
        if self._override():
            constraint = None
        ego.hazard_lights = constraint is not None and constraint.hazard_lights
        limit = None if constraint is None else (constraint.speed_limit_mps, constraint.deceleration_mps2)
        before = ego.s
        ego.drive(dt, self._wanted_mps(), self._obstacles(), limit, self._target_d(constraint))
        self._traffic.step(dt, self._time_s, ego)
        kappa = float(self._plan.curvature(np.array([ego.s]))[0])
        self._heading_rad += kappa * (ego.s - before)
        self._plan.forget_before(ego.s - 200.0)
        self._collision = self._collision or self._touches()
        self._drawn = None

    def _allowed_mps(self, s: float) -> float:
        """Set speed, limits here and ahead, and curves."""
        speed = min(self.config.set_speed_mps, self._plan.at(s).layout.limit_mps)
        for x in self._plan.between(s, s + 220.0)[1:]:
            speed = min(speed, math.sqrt(x.layout.limit_mps**2 + 2 * 1.0 * max(0.0, x.start_m - s)))
        kappa = float(np.abs(self._plan.curvature(s + np.arange(0.0, 70.0, 10.0))).max())
        if kappa > 1e-6:
            speed = min(speed, math.sqrt(CURVE_ACCELERATION_MPS2 / kappa))
        return speed

    def _wanted_mps(self) -> float:
        return self._allowed_mps(self._ego.s)

    def _in_path(self, actor: Actor, target_d: float | None = None) -> bool:
        """Whether an actor is, or is about to be, where the ego drives."""
        ego = self._ego
        ahead = ego.d if target_d is None else ego.d + min(max(target_d - ego.d, -1.2), 1.2)
        low, high = min(ego.d, ahead) - _CORRIDOR_M, max(ego.d, ahead) + _CORRIDOR_M
        a_low, a_high = actor.d - actor.width / 2, actor.d + actor.width / 2
        if actor.heading == 0 and actor.state in ("cross", "crossing traffic"):
            if actor.state == "crossing traffic" and abs(actor.d) > 14:
                return False
            reach = actor.across * max(actor.speed, actor.wanted if actor.state == "cross" else 0.0) * 3.0
            a_low, a_high = min(a_low, a_low + reach) - 0.3, max(a_high, a_high + reach) + 0.3
        elif actor.heading > 0 and actor.state == "":
            a_low, a_high = min(a_low, actor.lane - actor.width / 2), max(a_high, actor.lane + actor.width / 2)
        return a_low < high and a_high > low

    def _obstacles(self) -> list[tuple[float, float]]:
        ego = self._ego
        out: list[tuple[float, float]] = []
        for actor in self._traffic.actors:
            if actor.s < ego.s - 1.0 or (actor.heading < 0 and actor.state not in ("parked", "walk", "will cross")):
                continue
            if not self._in_path(actor):
                continue
            gap = actor.s - actor.length / 2 - ego.front
            along = actor.speed if actor.heading > 0 and actor.state == "" else 0.0
            out.append((gap, along))
        for index, signal in self._traffic.signals.items():
            line = self._traffic.furnished[index].stretch.stop_line_m
            assert line is not None
            gap = line - ego.front
            aspect = signal.aspect(self._time_s)
            if aspect is Aspect.GREEN or gap < -0.3:
                if gap > 0:
                    self._committed.discard(index)
                continue
            needed = ego.speed**2 / (2 * max(gap, 0.1))
            if aspect is Aspect.AMBER and needed > 2.6:
                self._committed.add(index)
            if index not in self._committed:
                out.append((gap + 1.2, 0.0))
        return out

    def _target_d(self, constraint: MotionConstraint | None) -> float:
        ego = self._ego
        if constraint is None or not constraint.pull_over:
            return 0.0
        layout = self._plan.at(ego.s).layout
        target = layout.pull_over_d
        room = max(12.0, ego.speed * 2.0)
        around = self._plan.between(ego.s, ego.s + room)
        if target is None or any(x.layout.pull_over_d is None for x in around):
            return ego.d if ego.d > 0.3 else 0.0
        target = max(x.layout.pull_over_d or 0.0 for x in around) if len(around) > 1 else target
        junctions = [x.junction_m for x in around if x.junction_m is not None]
        if any(j - 4.0 < ego.s + room and ego.s < j + 30.0 for j in junctions):
            return ego.d if ego.d > 0.3 else 0.0
        half = EGO_WIDTH_M / 2 + 0.5
        for actor in self._traffic.actors:
            behind = 14.0 + (actor.speed * 2 if actor.heading > 0 else 0.0)
            beside = abs(actor.d - target) < half + actor.width / 2 and -behind < actor.s - ego.s < room + 12.0
            if beside and abs(actor.d - ego.d) > 0.2 and abs(target - ego.d) > 0.3:
                return ego.d if ego.d > 0.3 else 0.0
        return target

    def _touches(self) -> bool:
        ego = self._ego
        low, high = ego.s - EGO_REAR_M, ego.s + EGO_FRONT_M
        for actor in self._traffic.actors:
            if (
                actor.s + actor.length / 2 > low
                and actor.s - actor.length / 2 < high
                and abs(actor.d - ego.d) < (actor.width + EGO_WIDTH_M) / 2
            ):
                return True
        return False

    # ---- driver and vehicle state

    def _scripted(self) -> DriverAction | None:
        last: DriverAction | None = None
        for event in self.config.driver_events:
            if event.t_s <= self._time_s + 1e-9:
                last = event.action
        return last

    def _answer_request(self, constraint: MotionConstraint | None) -> None:
        reaction = self.config.takeover_reaction_s
        if reaction is None:
            return
        asked = constraint is not None and constraint.state is DegradationState.L2_TAKEOVER_REQUEST
        scripted = self._scripted()
        if scripted is DriverAction.HAND_BACK and not asked:
            self._took_over_at_s = None
        if not asked or scripted in (DriverAction.SILENT, DriverAction.ABSENT):
            self._asked_since_s = None
            return
        if self._asked_since_s is None:
            self._asked_since_s = self._time_s
        if self._time_s - self._asked_since_s >= reaction:
            self._took_over_at_s = self._time_s

    def _override(self) -> bool:
        return self._scripted() is DriverAction.TAKE_OVER or self._took_over_at_s is not None

    def odometry(self, stamp_ns: int) -> Odometry:
        """The vehicle's speed, stamped."""
        return Odometry(stamp_ns, self._ego.speed)

    def driver(self, stamp_ns: int) -> DriverState:
        """The driver's state, stamped; unprotected (no counter, no CRC)."""
        action = self._scripted()
        override = self._override()
        return DriverState(
            stamp_ns,
            present=action is not DriverAction.ABSENT,
            attentive=override or action not in (DriverAction.ABSENT, DriverAction.SILENT),
            override_active=override,
            automation_engaged=not override,
        )

    # ---- seeing

    def _render(self) -> Renderer:
        if self._renderer is None:
            self._renderer = Renderer(self.config)
            self._renderer.prepare(Plan(self.config))
        return self._renderer

    def _instances(self) -> list[Instance]:
        out: list[Instance] = []
        for index, furnished in self._traffic.furnished.items():
            signal = self._traffic.signals.get(index)
            aspect = signal.aspect(self._time_s) if signal is not None else None
            if signal is not None:
                for prop in furnished.props:
                    if prop.kind == "signal":
                        prop.aspect = aspect
            out += furnished.props
        for a in self._traffic.actors:
            cos, sin = (1.0, 0.0) if a.heading > 0 else (-1.0, 0.0)
            if a.heading == 0:
                cos, sin = 0.0, float(a.across)
            if a.class_id is DetectionClass.PEDESTRIAN:
                cos, sin = 1.0, 0.0
            bucket = ROADSIDE
            if a.heading < 0 and a.class_id is DetectionClass.VEHICLE:
                layout = self._plan.at(a.s).layout
                if layout.median != "line":
                    bucket = BEYOND
            out.append(
                Instance(a.shown_mesh(), a.s, a.d, 0.0, cos, sin, bucket, a.class_id, a.kind, a.brakes, a.hazard)
            )
        return out

    def _draw(self) -> tuple[Drawing, npt.NDArray[np.float64]]:
        if self._drawn is None or self._drawn[0] != self._ticks:
            renderer, ego = self._render(), self._ego
            curve = renderer.curve(self._plan, ego.s)
            air = atmosphere.air_at(self._plan, ego.s)
            drawing = renderer.compose(
                self._instances(), ego.s, ego.d, ego.yaw_rad, curve, renderer.look(air), self._time_s
            )
            self._drawn = (self._ticks, drawing, curve)
        return self._drawn[1], self._drawn[2]

    def render(self, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """The camera's picture now: (height_px, width_px, 3) uint8 BGR.

        Args:
            out: an array of that shape and type to draw into, to save the allocation.

        Raises:
            InputError: ``out`` has another shape or type.
        """
        shape = (self.config.height_px, self.config.width_px, 3)
        if out is not None and (out.shape != shape or out.dtype != np.uint8):
            raise InputError(f"must be {shape} uint8", field="out", value=f"{out.shape} {out.dtype}")
        drawing, curve = self._draw()
        ego = self._ego
        air = atmosphere.air_at(self._plan, ego.s)
        return self._render().paint(
            drawing, self._plan, ego.s, ego.d, ego.yaw_rad, self._heading_rad, curve, air, self._ticks, out
        )

    def truth(self) -> SceneTruth:
        """Ground truth of the frame that :meth:`render` gives now."""
        ego = self._ego
        here = self._plan.at(ego.s + LABEL_AHEAD_M)
        air = atmosphere.air_at(self._plan, ego.s)
        weather, light = air.now
        boxes = self._boxes()
        situation = self._situation(here, weather, light)
        hazards, advice = assess(situation)
        return SceneTruth(
            boxes, here.layout.road, weather, light, hazards, advice, ego.speed, self._min_gap(), self._collision
        )

    def _min_gap(self) -> float:
        gaps = [
            a.s - a.length / 2 - self._ego.front
            for a in self._traffic.actors
            if a.s > self._ego.s - 1.0 and self._in_path(a) and (a.heading >= 0 or a.state == "parked")
        ]
        return max(0.0, min(gaps)) if gaps else math.inf

    def situation(self) -> Situation:
        """What the advice table looks at."""
        here = self._plan.at(self._ego.s + LABEL_AHEAD_M)
        weather, light = atmosphere.air_at(self._plan, self._ego.s).now
        return self._situation(here, weather, light)

    def _situation(self, here: Stretch, weather: Weather, light: Light) -> Situation:
        ego = self._ego
        look = self._render().look(atmosphere.air_at(self._plan, ego.s))
        visual = 3.0 / look.extinction_per_m
        if light is Light.NIGHT and weather is not Weather.CLEAR:
            visual = min(visual, 150.0)
        seen = min(visual, 200.0)
        lead_gap, lead_speed, lead_braking = math.inf, 0.0, False
        in_lane = entering = near = wheeler = wheeler_close = red = works = math.inf
        vehicles = 0
        low, high = ego.d - HALF_LANE_M, ego.d + HALF_LANE_M
        for a in self._traffic.actors:
            gap = a.s - a.length / 2 - ego.front
            if gap > seen or a.s < ego.s:
                continue
            gap = max(gap, 0.0)
            side = max(low - (a.d + a.width / 2), (a.d - a.width / 2) - high)  # distance from our lane, < 0 inside
            if a.class_id is DetectionClass.PEDESTRIAN:
                toward = a.heading == 0 and a.state == "cross" and (ego.d - a.d) * a.across > 0
                if side < 0:
                    in_lane = min(in_lane, gap)
                if side < 0 or (toward and side < max(a.speed, 0.5) * 2.0):
                    entering = min(entering, gap)
                if (side < 2.0 and a.state != "worker") or toward:
                    near = min(near, gap)
                continue
            if a.class_id is DetectionClass.TWO_WHEELER:
                beside = abs(a.d - ego.d) - EGO_WIDTH_M / 2 - a.width / 2
                if beside < 3.5 and a.heading >= 0:
                    wheeler = min(wheeler, gap)
                if beside < 2.0 and a.heading >= 0:
                    wheeler_close = min(wheeler_close, gap)
            if a.state == "parked":
                continue
            on_road = self._plan.at(a.s).layout
            if gap < 60 and on_road.left_edge - LANE_M - 1 < a.d < on_road.right_edge + 1 and a.kind != "bicycle":
                vehicles += 1
            if a.heading > 0 and self._in_path(a) and gap < lead_gap:
                lead_gap, lead_speed, lead_braking = gap, a.speed, a.brakes
        for index, signal in self._traffic.signals.items():
            line = self._traffic.furnished[index].stretch.stop_line_m
            assert line is not None
            if signal.aspect(self._time_s) is not Aspect.GREEN and -1.0 < line - ego.front < seen:
                red = min(red, max(0.0, line - ego.front))
        if here.layout.road is Road.WORKS:
            works = 0.0
        else:
            for x in self._plan.between(ego.s, ego.s + 60.0):
                if x.layout.road is Road.WORKS and x.start_m > ego.s:
                    works = min(works, x.start_m - ego.s)
        return Situation(
            ego.speed,
            lead_gap,
            lead_speed,
            lead_braking,
            in_lane,
            entering,
            near,
            wheeler,
            wheeler_close,
            red,
            works,
            visual,
            vehicles,
        )

    def _boxes(self) -> tuple[TruthBox, ...]:
        drawing, _ = self._draw()
        width, height = self.config.width_px, self.config.height_px
        labelled = [k for k, i in enumerate(drawing.instances) if i.class_id is not None]
        candidates: dict[int, tuple[float, float, float, float, float, float, float]] = {}
        look = drawing.look
        for k in labelled:
            instance = drawing.instances[k]
            a = int(drawing.first_vertex[k]) + drawing.meshes[k].unboxed
            b = int(drawing.first_vertex[k + 1])
            z = drawing.z_m[a:b]
            nearest = float(z.min())
            if float(z.max()) < 1.0:
                continue
            p = drawing.points[a:b]
            x0, y0 = (float(v) for v in p.min(axis=0))
            x1, y1 = (float(v) for v in p.max(axis=0))
            cx0, cy0, cx1, cy1 = max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)
            if cx1 - cx0 < MIN_BOX_PX or cy1 - cy0 < MIN_BOX_PX:
                continue
            inside = (cx1 - cx0) * (cy1 - cy0) / max((x1 - x0) * (y1 - y0), 1e-6)
            if nearest < 0.5:  # partly beside the camera: how much is inside cannot be told from the projection
                inside = min(inside, 0.5)
            contrast = float(np.exp(-look.extinction_per_m * max(nearest, 0.0)))
            if look.beam > 0.5:
                lit = float(
                    atmosphere.beam(
                        look, np.array([instance.d - self._ego.d], np.float32), np.array([nearest], np.float32)
                    )[0]
                )
                shines = instance.kind in ("car", "van", "truck", "bus", "motorbike", "signal")
                contrast *= 1.0 if shines else min(1.0, 4.0 * (lit + max(look.ambient) * 0.5))
            if contrast < MIN_CONTRAST:
                continue
            candidates[k] = (cx0, cy0, cx1, cy1, inside, max(nearest, 0.0), contrast)
        shares = _visible_shares(drawing, set(candidates), width, height)
        boxes = []
        for k, (x0, y0, x1, y1, inside, nearest, contrast) in candidates.items():
            instance = drawing.instances[k]
            assert instance.class_id is not None
            boxes.append(
                TruthBox(
                    instance.class_id,
                    x0,
                    y0,
                    x1,
                    y1,
                    round(inside * shares.get(k, 0.0), 3),
                    nearest,
                    instance.brakes,
                    instance.kind,
                    round(contrast, 3),
                )
            )
        boxes.sort(key=lambda box: (box.distance_m, box.x_min))
        return tuple(boxes)


def _visible_shares(drawing: Drawing, wanted: set[int], width: int, height: int) -> dict[int, float]:
    """Share of each wanted instance's pixels that nothing painted later covers.

    Counted on a small picture (at most 480 px wide) of instance numbers.
    """
    scale = min(1.0, 480.0 / width)
    w, h = max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale))
    ids = np.zeros((h, w), np.uint16)
    points = np.rint(drawing.points * (scale * 8.0) - 4.0).astype(np.int32)
    alone: dict[int, int] = {}
    where: dict[int, tuple[int, int, int, int]] = {}
    owner = drawing.polygon_instance.tolist()
    n = len(owner)
    k = 0
    while k < n:
        instance = owner[k]
        unboxed_end = int(drawing.first_vertex[instance]) + drawing.meshes[instance].unboxed
        first = k
        while k < n and owner[k] == instance:
            start, end = drawing.polygon_starts[k], drawing.polygon_ends[k]
            if start >= unboxed_end:
                cv2.fillConvexPoly(ids, points[start:end], instance + 1, cv2.LINE_8, 3)
            k += 1
        if instance in wanted:
            a, b = drawing.polygon_starts[first], drawing.polygon_ends[k - 1]
            p = points[a:b]
            x0, y0 = (int(v) for v in np.maximum(p.min(axis=0) // 8 - 1, 0))
            x1, y1 = (int(v) for v in p.max(axis=0) // 8 + 2)
            part = ids[y0:y1, x0:x1]
            alone[instance] = int(np.count_nonzero(part == instance + 1))
            where[instance] = (x0, y0, x1, y1)
    out: dict[int, float] = {}
    for instance, total in alone.items():
        x0, y0, x1, y1 = where[instance]
        left = int(np.count_nonzero(ids[y0:y1, x0:x1] == instance + 1))
        out[instance] = left / total if total else 0.0
    return out
