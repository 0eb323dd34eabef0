"""The scenario: the world, the ego in it, and the camera's view of both."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from triptych.contract import (
    ConfigError,
    DegradationState,
    DetectionClass,
    DriverState,
    InputError,
    MotionConstraint,
    Odometry,
)
from triptych.scenario import atmosphere, manoeuvre, observe, outcome
from triptych.scenario.actors import Actor
from triptych.scenario.advice import Situation, assess
from triptych.scenario.camera import Camera
from triptych.scenario.config import DriverAction, ScenarioConfig
from triptych.scenario.ego import CURVE_ACCELERATION_MPS2, Ego
from triptych.scenario.lidar import LidarModel, Pose, Sweep, sweep
from triptych.scenario.manoeuvre import Manoeuvre
from triptych.scenario.outcome import Collision, Outcome
from triptych.scenario.props import BACKDROP, BEYOND, ROADSIDE, Instance
from triptych.scenario.render import Drawing, Renderer
from triptych.scenario.road import Plan
from triptych.scenario.signals import Aspect
from triptych.scenario.traffic import Traffic
from triptych.scenario.truth import SceneTruth

MAX_STEP_S = 0.5


class Scenario:
    """A deterministic closed-loop drive.

    The same configuration and the same sequence of :meth:`step` calls give the same frames, byte for byte. While the
    driver overrides (``override_active``) the constraint does not bind the vehicle; a person drives it then.

    Args:
        config: see :class:`ScenarioConfig`.
        lidar: the sensor behind :meth:`scan`.

    Raises:
        ConfigError: not a configuration.
    """

    def __init__(self, config: ScenarioConfig, lidar: LidarModel | None = None) -> None:
        if not isinstance(config, ScenarioConfig):
            raise ConfigError("must be a ScenarioConfig", field="config", value=type(config).__name__)
        self.config = config
        self.lidar = LidarModel() if lidar is None else lidar
        self._plan = Plan(config)
        self._ego = Ego()
        start = self._allowed_mps(0.0) if config.start_speed_mps is None else config.start_speed_mps
        self._ego.speed = start
        self._traffic = Traffic(config, self._plan)
        self._traffic.populate(self._ego)
        self._ticks = 0
        self._time_s = 0.0
        self._heading_rad = 0.0
        self._touched: list[Actor] = []
        self._outcome = Outcome()
        self._manoeuvre: Manoeuvre | None = None
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
        return self._place() == "shoulder"

    @property
    def outcome(self) -> Outcome:
        """What has become of the drive so far."""
        return self._outcome

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
        target_d = self._target_d(constraint)
        before, before_mps, before_mps2 = ego.s, ego.speed, ego.acceleration
        ego.drive(dt, self._wanted_mps(), self._obstacles(), limit, target_d)
        self._traffic.step(dt, self._time_s, ego)
        kappa = float(self._plan.curvature(np.array([ego.s]))[0])
        self._heading_rad += kappa * (ego.s - before)
        self._plan.forget_before(ego.s - 200.0)
        self._judge(dt, before_mps, before_mps2)
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

    def _obstacles(self) -> list[tuple[float, float]]:
        ego = self._ego
        if self._manoeuvre is not None and self._manoeuvre.blind is not None:
            return self._manoeuvre.blind.obstacles(ego)
        out = observe.obstacles(ego, self._traffic)
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
            if aspect is Aspect.AMBER and needed > manoeuvre.AMBER_MPS2:
                self._committed.add(index)
            if index not in self._committed:
                out.append((gap + observe.LINE_MARGIN_M, 0.0))
        return out

    def _target_d(self, constraint: MotionConstraint | None) -> float:
        if constraint is None or constraint.state not in manoeuvre.STATES:
            self._manoeuvre = None
            return 0.0
        if self._manoeuvre is None:
            self._manoeuvre = Manoeuvre(self._known())
        if not constraint.pull_over and self._manoeuvre.blind is None:
            self._manoeuvre.lose_sight(self._known())
        return self._manoeuvre.target_d(self._ego, constraint, self._time_s)

    def _known(self) -> manoeuvre.Known:
        air = atmosphere.air_at(self._plan, self._ego.s)
        look = atmosphere.make_look(*air.now, int(self.config.seed), self.config.exposure)
        sight_m = min(observe.SIGHT_M, observe.visual_m(look, *air.now))
        return manoeuvre.look(self._time_s, self._ego, self._plan, self._traffic, sight_m)

    def _place(self) -> str:
        return manoeuvre.place(self._ego.d, self._plan.at(self._ego.s).layout.right_edge)

    def _judge(self, dt_s: float, before_mps: float, before_mps2: float) -> None:
        """Take the step that ends now into the outcome."""
        ego = self._ego
        least_m, nearest, touching = outcome.nearest_of(ego, self._traffic.actors)
        new = [actor for actor in touching if not any(actor is known for known in self._touched)]
        self._touched += new
        step = outcome.Step(
            self._time_s,
            before_mps,
            ego.speed,
            ego.acceleration,
            (ego.acceleration - before_mps2) / dt_s if ego.speed > 0.0 else 0.0,
            least_m,
            nearest.kind if nearest is not None else "",
            tuple(Collision(self._time_s, a.kind, a.class_id, ego.speed, a.speed) for a in new),
            ego.s,
            ego.d,
            self._place(),
        )
        self._outcome = outcome.after(self._outcome, step)

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
            if a.state == "crossing traffic" and abs(a.d) > 9.0:
                bucket = BACKDROP  # in the side street, between the houses
            out.append(
                Instance(a.shown_mesh(), a.s, a.d, 0.0, cos, sin, bucket, a.class_id, a.kind, a.brakes, a.hazard)
            )
        return out

    def _draw(self) -> tuple[Drawing, npt.NDArray[np.float64]]:
        if self._drawn is None or self._drawn[0] != self._ticks:
            renderer, ego = self._render(), self._ego
            curve = self._plan.bend(ego.s)
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

    def scan(self) -> npt.NDArray[np.float32]:
        """The lidar's scan now: (N, 3) float32, x forward, y left, z up, metres in the frame of the sensor
        ``lidar``; see :mod:`.lidar`. Beams that do not come back are left out. It doesn't depend on the camera's
        settings, and neither on whether or how often it is called."""
        return self._sweep(self._instances()).points

    def _sweep(self, things: list[Instance]) -> Sweep:
        ego, seed = self._ego, int(self.config.seed)
        air = atmosphere.air_at(self._plan, ego.s)
        a = atmosphere.make_look(air.weather, air.light, seed, 1.0)
        b = atmosphere.make_look(air.next_weather, air.next_light, seed, 1.0)
        extinction_per_m = atmosphere.blend(a, b, air.progress).extinction_per_m
        pose = Pose(ego.s, ego.d, ego.yaw_rad, self._plan.bend(ego.s))
        rng = np.random.Generator(np.random.PCG64([seed, 83, self._ticks]))
        return sweep(self.lidar, things, pose, extinction_per_m, rng)

    def truth(self) -> SceneTruth:
        """Ground truth of the frame that :meth:`render` gives now."""
        ego = self._ego
        weather, light = atmosphere.air_at(self._plan, ego.s).now
        hazards, advice = assess(self.situation())
        drawing, _ = self._draw()
        return SceneTruth(
            observe.boxes(drawing, ego, self.config.width_px, self.config.height_px),
            self._plan.at(ego.s + observe.LABEL_AHEAD_M).layout.road,
            weather,
            light,
            hazards,
            advice,
            ego.speed,
            observe.min_gap_m(ego, self._traffic),
            bool(self._touched),
        )

    def situation(self) -> Situation:
        """What the advice table looks at."""
        air = atmosphere.air_at(self._plan, self._ego.s)
        look = self._render().look(air)
        return observe.observe(self._ego, self._traffic, self._plan, look, *air.now)
