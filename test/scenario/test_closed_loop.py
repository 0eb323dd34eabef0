"""The ego vehicle: it obeys, it stops, it pulls over, it touches nobody."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triptych.contract import DegradationState, InputError, Light, MotionConstraint, Road, Weather
from triptych.scenario import DriverAction, DriverEvent, Scenario, ScenarioConfig, demo_config, random_config
from triptych.scenario.ego import EGO_WIDTH_M
from triptych.scenario.signals import Aspect

DT = 0.05


def _constraint(
    limit: float,
    deceleration: float = 2.0,
    *,
    pull_over: bool = False,
    lights: bool = True,
    state: DegradationState = DegradationState.L1_MINIMAL_RISK_MANOEUVRE,
) -> MotionConstraint:
    return MotionConstraint(0, limit, deceleration, lights, pull_over, True, state, "test")


def _empty(**overrides: object) -> ScenarioConfig:
    values: dict[str, object] = {
        "traffic": 0.0,
        "pedestrians": 0.0,
        "two_wheelers": 0.0,
        "width_px": 128,
        "height_px": 72,
    }
    return ScenarioConfig(**(values | overrides))  # type: ignore[arg-type]


@pytest.mark.parametrize("deceleration", [1.0, 2.0, 3.5, 4.0])
def test_a_limit_of_zero_stops_within_the_deceleration(deceleration: float) -> None:
    """From 20 m/s to rest, never braking harder than told, with limited jerk; then it stays."""
    s = Scenario(_empty(road=Road.HIGHWAY, curvature=0.0))
    assert s.speed_mps == pytest.approx(20.0)
    previous, worst, jerk, speed, elapsed = 0.0, 0.0, 0.0, 20.0, 0.0
    while s.speed_mps > 0 and elapsed < 60:
        s.step(DT, _constraint(0.0, deceleration))
        elapsed += DT
        worst = min(worst, (s.speed_mps - speed) / DT)
        if s.speed_mps > 0.5:
            jerk = max(jerk, abs(s.acceleration_mps2 - previous) / DT)
        previous, speed = s.acceleration_mps2, s.speed_mps
    assert s.speed_mps == 0.0
    assert worst >= -deceleration - 1e-6
    assert 20.0 / deceleration <= elapsed <= 20.0 / deceleration + 3.0
    assert jerk <= 12.0 + 1e-6
    assert s.hazard_lights
    place = s.position_m
    for _ in range(40):
        s.step(DT, _constraint(0.0, deceleration))
    assert s.position_m == place
    assert s.speed_mps == 0.0


def test_an_excessive_deceleration_is_capped() -> None:
    """A constraint may ask for 9 m/s²; the vehicle brakes with 4."""
    s = Scenario(_empty(road=Road.HIGHWAY))
    worst = 0.0
    for _ in range(100):
        before = s.speed_mps
        s.step(DT, _constraint(0.0, 9.0))
        worst = min(worst, (s.speed_mps - before) / DT)
    assert -4.0 - 1e-6 <= worst < -3.8


def test_a_speed_limit_is_reached_and_kept_and_released() -> None:
    """Down to 8 m/s and held there; back to the set speed when released."""
    s = Scenario(_empty(road=Road.HIGHWAY))
    for _ in range(200):
        s.step(DT, _constraint(8.0, lights=False))
    assert 7.5 <= s.speed_mps <= 8.1
    assert not s.hazard_lights
    for _ in range(600):
        s.step(DT, None)
    assert s.speed_mps == pytest.approx(20.0, abs=0.7)


@pytest.mark.parametrize("road", [Road.HIGHWAY, Road.RURAL])
def test_pull_over_ends_on_the_shoulder(road: Road) -> None:
    """The whole vehicle stands right of the edge line; on release it returns to its lane."""
    s = Scenario(_empty(road=road, seed=3))
    for _ in range(400):
        s.step(DT, _constraint(0.0, pull_over=True))
    edge = s._plan.at(s.position_m).layout.right_edge
    assert s.speed_mps == 0.0
    assert s.lateral_m - EGO_WIDTH_M / 2 >= edge - 0.25
    assert s.on_shoulder
    assert not s.truth().collision
    for _ in range(500):
        s.step(DT, None)
    assert abs(s.lateral_m) < 0.1
    assert s.speed_mps > 10


def test_without_a_shoulder_it_stays_in_the_lane() -> None:
    """Works leave no room: it stops where it is."""
    s = Scenario(_empty(road=Road.WORKS, seed=2))
    for _ in range(400):
        s.step(DT, _constraint(0.0, pull_over=True))
    assert s.speed_mps == 0.0
    assert abs(s.lateral_m) < 0.05
    assert not s.on_shoulder


def test_the_shoulder_is_not_taken_while_somebody_is_there() -> None:
    """A stopped vehicle on the shoulder beside the path keeps the ego in its lane until it is past."""
    s = Scenario(_empty(road=Road.HIGHWAY, seed=3))
    from triptych.scenario.actors import make_vehicle

    car = make_vehicle(np.random.default_rng(1), 1, 0.0)
    car.s, car.d, car.state, car.kind = s.position_m + 30.0, 3.2, "parked", "parked car"
    s._traffic.actors.append(car)
    for _ in range(400):
        s.step(DT, _constraint(0.0, pull_over=True))
        assert not s.outcome.collisions
    assert s.speed_mps == 0.0
    assert s.position_m > car.s + 5
    assert s.on_shoulder


def test_a_driver_who_overrides_is_not_bound() -> None:
    """Scripted driver: silent, takes over, hands back; the constraint binds only the automation."""
    events = (
        DriverEvent(1.0, DriverAction.SILENT),
        DriverEvent(2.0, DriverAction.TAKE_OVER),
        DriverEvent(6.0, DriverAction.HAND_BACK),
        DriverEvent(8.0, DriverAction.ABSENT),
    )
    s = Scenario(_empty(road=Road.HIGHWAY, driver_events=events))
    seen = {}
    for k in range(200):
        s.step(DT, _constraint(5.0) if s.time_s >= 2.0 else None)
        seen[round((k + 1) * DT, 2)] = (s.driver(k), s.speed_mps, s.hazard_lights)
    assert seen[0.5][0].attentive
    assert not seen[1.5][0].attentive
    assert seen[1.5][0].present
    assert seen[4.0][0].override_active
    assert not seen[4.0][0].automation_engaged
    assert seen[5.9][1] > 19.0
    assert not seen[5.9][2]
    assert not seen[7.0][0].override_active
    assert seen[7.0][1] < 19.0
    assert seen[7.0][2]
    assert not seen[9.0][0].present
    assert seen[9.0][0].stamp_ns == 179


def test_an_attentive_driver_can_answer_a_takeover_request() -> None:
    """With a reaction time configured, a request is answered that much later; a silent driver never answers."""
    request = _constraint(15.0, state=DegradationState.L2_TAKEOVER_REQUEST)
    for events, answers in (((), True), ((DriverEvent(0.0, DriverAction.SILENT),), False)):
        s = Scenario(_empty(takeover_reaction_s=2.0, driver_events=events))
        when = None
        for _ in range(100):
            s.step(DT, request)
            if when is None and s.driver(0).override_active:
                when = s.time_s
        assert (when is not None) == answers
        if answers:
            assert when == pytest.approx(2.05, abs=0.06)


@pytest.mark.parametrize("seed", range(30))
def test_healthy_random_drives_touch_nobody(seed: int) -> None:
    """Property over seeds, roads, weather and densities: no collision, never more than 4 m/s², always finite."""
    s = Scenario(random_config(seed, width_px=128, height_px=72))
    for _ in range(400):
        before = s.speed_mps
        s.step(DT, None)
        assert not s.outcome.collisions
        assert -4.0 - 1e-6 <= (s.speed_mps - before) / DT <= 1.9
        assert math.isfinite(s.position_m + s.lateral_m)
        assert abs(s.lateral_m) < 0.05
    assert s.position_m > 10


@pytest.mark.parametrize("seed", range(6))
def test_constrained_random_drives_touch_nobody(seed: int) -> None:
    """A minimal-risk manoeuvre in the middle of any traffic ends at rest without contact."""
    s = Scenario(random_config(100 + seed, width_px=128, height_px=72))
    for _ in range(60 + 20 * seed):
        s.step(DT, None)
    for _ in range(400):
        s.step(DT, _constraint(0.0, pull_over=True))
        assert not s.outcome.collisions
    assert s.speed_mps == 0.0


def test_the_demo_drive_is_healthy_and_sees_what_it_promises() -> None:
    """50 s: no contact; highway, works, town; rain and dusk; people; a red light or a pedestrian makes it stop."""
    s = Scenario(demo_config(width_px=256, height_px=144))
    roads, weathers, lights, kinds, slowest = set(), set(), set(), set(), 99.0
    while not s.finished:
        s.step(DT, None)
        if round(s.time_s / DT) % 10 == 0:
            truth = s.truth()
            roads.add(truth.road)
            weathers.add(truth.weather)
            lights.add(truth.light)
            kinds |= {box.class_id for box in truth.boxes}
            slowest = min(slowest, truth.ego_speed_mps)
            assert not truth.collision
    assert {Road.HIGHWAY, Road.WORKS, Road.URBAN, Road.CROSSING} <= roads
    assert {Weather.CLEAR, Weather.RAIN} <= weathers
    assert len(lights) >= 2 and Light.DAY in lights
    assert len(kinds) == 5
    assert slowest < 1.0


def _meets_red(seed: int) -> bool:
    """Drive 35 s towards signals; checks every passage, says whether the vehicle met a red light."""
    s = Scenario(_empty(road=Road.CROSSING, seed=seed, set_speed_mps=13.0))
    stood = met_red = False
    for _ in range(700):
        before = s._ego.front
        s.step(DT, None)
        for k, signal in s._traffic.signals.items():
            line = s._traffic.furnished[k].stretch.stop_line_m
            assert line is not None
            red = signal.aspect(s.time_s) is Aspect.RED
            after = line - s._ego.front
            if line - before > 0 >= after:
                assert not red, f"seed {seed} passed a red light at {s.time_s:.2f} s"
            if red and 0 <= after < 5 and signal.remaining_s(s.time_s) > 3:
                met_red = True
                stood = stood or s.speed_mps < 0.05
    assert stood or not met_red, f"seed {seed} did not stand at its red light"
    return met_red


def test_it_never_passes_a_red_light_and_stands_at_one() -> None:
    """Whenever the bumper crosses a stop line the light is not red; most drives meet one and stand."""
    assert sum(_meets_red(seed) for seed in range(8)) >= 3


@pytest.mark.parametrize("dt", [0.0, -0.05, math.nan, math.inf, 0.6, "x", None, True])
def test_unusable_time_steps_are_refused(dt: object) -> None:
    """And leave the world as it was."""
    s = Scenario(_empty())
    with pytest.raises(InputError, match="dt_s"):
        s.step(dt, None)  # type: ignore[arg-type]
    assert s.time_s == 0.0


@pytest.mark.parametrize(
    ("limit", "deceleration"), [(math.nan, 2.0), (5.0, math.nan), (math.inf, 2.0), (-1.0, 2.0), (5.0, -2.0)]
)
def test_unusable_constraints_are_refused(limit: float, deceleration: float) -> None:
    """NaN or infinity in a command never reaches the vehicle."""
    s = Scenario(_empty())
    with pytest.raises(InputError, match="constraint"):
        s.step(DT, _constraint(limit, deceleration))
    assert s.time_s == 0.0


def test_odometry_says_the_speed() -> None:
    """Speed and stamp as given."""
    s = Scenario(_empty())
    s.step(DT, None)
    assert s.odometry(42).stamp_ns == 42
    assert s.odometry(42).speed_mps == s.speed_mps
