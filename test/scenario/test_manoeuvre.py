"""The minimal risk manoeuvre in closed loop: how it slows, where it ends, that it holds, and what it may know."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from triptych.contract import DegradationState, DetectionClass, Light, MotionConstraint, Road, Weather
from triptych.scenario import DriverAction, DriverEvent, Scenario, ScenarioConfig, Segment, random_config
from triptych.scenario.actors import Actor, make_bicycle, make_vehicle
from triptych.scenario.ego import EGO_WIDTH_M, JERK_DOWN_MPS3, MAX_DECELERATION_MPS2, Ego
from triptych.scenario.outcome import Outcome, Step, after, gaps_m, nearest_of
from triptych.scenario.road import HALF_LANE_M

DT = 0.05
EMPTY = {"traffic": 0.0, "pedestrians": 0.0, "two_wheelers": 0.0, "width_px": 128, "height_px": 72}


def constraint(
    *,
    pull_over: bool = False,
    deceleration: float = 2.0,
    limit: float = 0.0,
    state: DegradationState = DegradationState.L1_MINIMAL_RISK_MANOEUVRE,
) -> MotionConstraint:
    manoeuvre = state in (DegradationState.L1_MINIMAL_RISK_MANOEUVRE, DegradationState.MRC)
    return MotionConstraint(0, limit, deceleration, manoeuvre, pull_over, manoeuvre, state, "test")


MRC = constraint(state=DegradationState.MRC)


def drive(scenario: Scenario, seconds: float, command: MotionConstraint | None) -> None:
    for _ in range(round(seconds / DT)):
        scenario.step(DT, command)


def stand(scenario: Scenario, command: MotionConstraint, seconds: float = 60.0) -> None:
    """Until it stands, with the hazard lights on all the way; fails if it never does."""
    for _ in range(round(seconds / DT)):
        scenario.step(DT, command)
        assert scenario.hazard_lights
        if scenario.speed_mps == 0.0:
            return
    pytest.fail(f"still {scenario.speed_mps} m/s after {seconds} s")


def parked(scenario: Scenario, ahead_m: float, d: float = 3.15) -> Actor:
    car = make_vehicle(np.random.default_rng(1), 1, 0.0)
    car.s, car.d, car.lane, car.state, car.kind = scenario.position_m + ahead_m, d, d, "parked", "parked car"
    scenario._traffic.actors.append(car)
    return car


def empty(road: Road = Road.HIGHWAY, **more: object) -> Scenario:
    return Scenario(ScenarioConfig(**{**EMPTY, "road": road, "seed": 3, **more}))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, 2, 5])
@pytest.mark.parametrize("weather", [Weather.CLEAR, Weather.RAIN, Weather.FOG])
@pytest.mark.parametrize("road", [Road.HIGHWAY, Road.RURAL, Road.URBAN, Road.CROSSING, Road.WORKS])
def test_the_manoeuvre_ends_safely_in_any_traffic(road: Road, weather: Weather, seed: int) -> None:
    """From ordinary traffic to rest: no contact, braking and jerk in bounds, in the lane or wholly on the shoulder, and
    held for 15 s in L1 and MRC."""
    light = (Light.DAY, Light.DUSK, Light.NIGHT)[seed % 3]
    deceleration = 4.0 if seed == 2 else 2.0
    s = Scenario(random_config(seed, road=road, weather=weather, light=light, width_px=128, height_px=72))
    drive(s, 2.0 + seed, None)
    command = constraint(pull_over=seed != 5, deceleration=deceleration)
    stand(s, command)
    drive(s, 2.0, command)
    place = (s.position_m, s.lateral_m)
    for _ in range(round(15.0 / DT)):
        s.step(DT, MRC)
        assert (s.position_m, s.lateral_m, s.speed_mps) == (*place, 0.0)
        assert s.hazard_lights
    outcome = s.outcome
    assert outcome.collisions == ()
    assert outcome.min_distance_m > 0.3
    assert outcome.max_deceleration_mps2 <= MAX_DECELERATION_MPS2 + 1e-9
    assert outcome.max_jerk_mps3 <= JERK_DOWN_MPS3 + 1e-6
    assert outcome.stop is not None and outcome.stop.place in ("lane", "shoulder")
    assert (outcome.stop.s_m, outcome.stop.d_m) == place
    if seed == 5 or road is Road.WORKS:
        assert outcome.stop.place == "lane" and abs(s.lateral_m) < 0.05


@pytest.mark.parametrize("deceleration", [1.0, 2.0, 3.96, 4.0, 4.04, 9.0])
@pytest.mark.parametrize("speed", [5.0, 20.0, 33.0])
def test_slowing_by_the_constraint_is_gentle_to_the_last(speed: float, deceleration: float) -> None:
    """As hard as told and never above 4 m/s²; the brakes let go before it stands instead of with a jolt."""
    s = empty(curvature=0.0, set_speed_mps=speed)
    last = 0.0
    while s.speed_mps > 0.0:
        last = s.acceleration_mps2
        s.step(DT, constraint(deceleration=deceleration))
    assert s.outcome.max_deceleration_mps2 == pytest.approx(min(deceleration, 4.0), abs=1e-6)
    assert s.outcome.max_jerk_mps3 <= JERK_DOWN_MPS3 + 1e-6
    assert abs(last) < 0.3


@pytest.mark.parametrize("road", [Road.HIGHWAY, Road.RURAL])
def test_a_free_shoulder_is_taken(road: Road) -> None:
    """Wholly right of the edge line, by at most the tolerance."""
    s = empty(road)
    stand(s, constraint(pull_over=True))
    assert s.outcome.stop is not None and s.outcome.stop.place == "shoulder"
    assert s.lateral_m - EGO_WIDTH_M / 2 >= HALF_LANE_M - 0.25


def test_it_stays_in_the_lane_where_the_shoulder_ends() -> None:
    """Works, a road without shoulder or a junction before the place of rest: the shoulder is not entered at all."""
    ends = (Segment(Road.HIGHWAY, 65.0), Segment(Road.WORKS, 400.0))
    crossing = (Segment(Road.RURAL, 60.0), Segment(Road.CROSSING, 90.0), Segment(Road.RURAL, 400.0))
    for segments, speed in ((ends, 20.0), (crossing, 22.0)):
        s = empty(segments=segments, set_speed_mps=speed, start_speed_mps=speed)
        greatest = 0.0
        while s.speed_mps > 0.0:
            s.step(DT, constraint(pull_over=True))
            greatest = max(greatest, s.lateral_m)
        assert greatest < 0.05
    beside = empty(lanes_right=1)
    stand(beside, constraint(pull_over=True))
    assert abs(beside.lateral_m) < 0.05


def test_it_stays_in_the_lane_beside_parked_cars() -> None:
    """A town's road with parked cars has no shoulder."""
    for seed in range(20):
        s = empty(Road.URBAN, seed=seed)
        if s._plan.at(0.0).layout.parking:
            stand(s, constraint(pull_over=True))
            assert abs(s.lateral_m) < 0.05
            return
    pytest.fail("no seed with parked cars")


@pytest.mark.parametrize(("share", "taken"), [(0.99, False), (1.01, True)])
def test_somebody_where_it_would_come_to_rest_keeps_it_in_the_lane(share: float, taken: bool) -> None:
    """A car just before, or just behind, the place of rest plus the room kept."""
    free = empty()
    stand(free, constraint(pull_over=True))
    s = empty()
    car = parked(s, 0.0)
    car.s = (free._ego.front + 5.0) * share + car.length / 2
    stand(s, constraint(pull_over=True))
    assert s.on_shoulder is taken
    assert s.outcome.collisions == ()
    assert not taken or s.position_m == pytest.approx(free.position_m)


def test_too_slow_to_reach_the_shoulder_it_stays_in_its_lane() -> None:
    """Half on the shoulder would be worse than either; at 6 m/s there is no way to it before it stands."""
    s = empty(set_speed_mps=6.0)
    stand(s, constraint(pull_over=True))
    assert s.outcome.stop is not None and s.outcome.stop.place == "lane" and abs(s.lateral_m) < 0.05


def test_a_shoulder_beyond_the_sight_is_not_known_to_be_free() -> None:
    """At 30 m/s it needs 235 m, in clear air it sees 200 m: unknown is not free. From 20 m/s it does take it."""
    s = empty(set_speed_mps=30.0)
    stand(s, constraint(pull_over=True))
    assert not s.on_shoulder
    slower = empty(set_speed_mps=20.0)
    stand(slower, constraint(pull_over=True))
    assert slower.on_shoulder


def test_who_comes_from_behind_on_the_shoulder_is_not_cut_in_on() -> None:
    """A bicycle close behind on the shoulder: the vehicle waits until it has left it behind."""
    s = empty(Road.RURAL, set_speed_mps=15.0)
    bicycle = make_bicycle(np.random.default_rng(1), 1)
    bicycle.s, bicycle.d, bicycle.lane, bicycle.speed, bicycle.wanted = s.position_m - 20.0, 2.75, 2.75, 6.0, 6.0
    s._traffic.actors.append(bicycle)
    first = math.nan
    while s.speed_mps > 0.0:
        s.step(DT, constraint(pull_over=True))
        if math.isnan(first) and s.lateral_m > 0.0:
            first = s.position_m - bicycle.s
    assert first > 14.0 + 2.0 * 6.0
    assert s.outcome.collisions == ()


def test_where_it_ends_follows_from_what_was_known_when_it_began() -> None:
    """The shoulder was free then: a car that appears on it later does not change the steering, the eyes still stop the
    vehicle before it. The shoulder was taken then: that it has become free is not known."""
    s = empty()
    drive(s, 0.5, constraint(pull_over=True))
    car = parked(s, 75.0)
    stand(s, constraint(pull_over=True))
    assert s.on_shoulder and s.outcome.collisions == () and s.position_m < car.s
    free = empty()
    stand(free, constraint(pull_over=True))
    s = empty()
    car = parked(s, free.position_m + 5.0)
    drive(s, 0.5, constraint(pull_over=True))
    s._traffic.actors.remove(car)
    stand(s, constraint(pull_over=True))
    assert not s.on_shoulder


@pytest.mark.parametrize("seed", [101, 104, 110, 117])
def test_without_perception_nothing_newer_than_the_fault_moves_the_vehicle(seed: int) -> None:
    """Everybody vanishes, or a car stands in the way, after the manoeuvre began: the same metre, bit for bit."""
    paths = []
    for change in (None, "nobody", "somebody"):
        s = Scenario(random_config(seed, width_px=128, height_px=72))
        drive(s, 4.0, None)
        lead = make_vehicle(np.random.default_rng(seed), 1, 0.0)
        lead.s, lead.speed, lead.wanted = s.position_m + 14.0, s.speed_mps, s.speed_mps
        s._traffic.actors.append(lead)
        s.step(DT, constraint())
        if change == "nobody":
            s._traffic.actors.clear()
        elif change == "somebody":
            parked(s, 3 * s.speed_mps + 10.0, d=0.0)
        path = []
        for _ in range(round(25.0 / DT)):
            s.step(DT, constraint())
            path.append((s.position_m, s.lateral_m, s.speed_mps))
        paths.append(path)
    assert paths[0] == paths[1] == paths[2]
    assert paths[0][-1][2] == 0.0


def test_without_perception_it_expects_the_vehicle_ahead_to_brake() -> None:
    """Known ahead at 15 m and as fast: it brakes harder than told, and does not touch when that one does its worst."""
    s = empty(set_speed_mps=15.0)
    lead = make_vehicle(np.random.default_rng(1), 1, 0.0)
    lead.s, lead.speed, lead.wanted = s.position_m + 1.8 + 15.0 + lead.length / 2, 15.0, 0.1
    lead.slow_until = 1e9
    s._traffic.actors.append(lead)
    stand(s, constraint())
    drive(s, 5.0, constraint())
    assert s.outcome.collisions == ()
    assert 2.2 < s.outcome.max_deceleration_mps2 <= 4.0


def test_without_perception_every_signal_is_red() -> None:
    """Whatever it showed: it stands before the line if that needs no more than a driver would brake for amber."""
    met = 0
    for seed in range(12):
        s = empty(Road.CROSSING, seed=seed, set_speed_mps=12.0, start_speed_mps=12.0)
        if not s._traffic.signals:
            continue
        line = s._traffic.furnished[min(s._traffic.signals)].stretch.stop_line_m
        assert line is not None
        while line - s._ego.front > 12.0**2 / (2 * 2.5):
            s.step(DT, None)
            if s.speed_mps < 11.0:
                break
        else:
            met += 1
            stand(s, constraint())
            assert s._ego.front < line + 0.3
    assert met >= 2


def test_a_vehicle_that_loses_its_sight_on_the_way_neither_goes_on_nor_turns_back() -> None:
    """Withdrawn half-way: it stays at its place across; so it does in MRC."""
    s = empty()
    while s.lateral_m < 1.0:
        s.step(DT, constraint(pull_over=True))
    stand(s, constraint(pull_over=False))
    assert 1.0 <= s.lateral_m < 1.8
    place = s.lateral_m
    drive(s, 5.0, MRC)
    drive(s, 5.0, constraint(pull_over=True))
    assert s.lateral_m == place


def test_it_does_not_start_again_by_itself_and_does_when_released() -> None:
    """A minute in MRC with a free road ahead; then a limit above 0 lets it go."""
    s = empty()
    stand(s, constraint(pull_over=True))
    place = s.position_m
    drive(s, 60.0, MRC)
    assert s.position_m == place and s.outcome.stops == 1
    drive(s, 10.0, constraint(limit=10.0, state=DegradationState.NOMINAL))
    assert s.speed_mps > 5.0
    assert not s.hazard_lights


def test_a_driver_ends_the_manoeuvre() -> None:
    """Who takes over steers; when he hands back within L1, a new manoeuvre begins with what is known then."""
    events = (DriverEvent(2.0, DriverAction.TAKE_OVER), DriverEvent(8.0, DriverAction.HAND_BACK))
    s = empty(driver_events=events, set_speed_mps=20.0)
    drive(s, 7.95, constraint(pull_over=True))
    assert s.speed_mps > 17.0 and abs(s.lateral_m) < 0.3 and not s.hazard_lights
    stand(s, constraint(pull_over=True))
    assert s.on_shoulder


def test_the_shoulder_is_only_taken_to_stop() -> None:
    """With a limit above 0 the vehicle would drive on it."""
    s = empty()
    drive(s, 20.0, constraint(pull_over=True, limit=5.0))
    assert abs(s.lateral_m) < 0.05 and s.speed_mps == pytest.approx(5.0, abs=0.2)


# -- outcome ---------------------------------------------------------------------------------------------------------


def test_distances_are_between_outlines() -> None:
    """Along, across, and over the corner; contact is an overlap in both."""
    ego = Ego(s=100.0)
    car = make_vehicle(np.random.default_rng(1), 1, 0.0)
    car.s, car.d = 100.0 + 1.8 + 3.0 + car.length / 2, (EGO_WIDTH_M + car.width) / 2 + 4.0
    assert gaps_m(ego, car) == pytest.approx((3.0, 4.0))
    assert nearest_of(ego, [car])[0] == pytest.approx(5.0)
    car.d = 0.0
    assert nearest_of(ego, [car])[0] == pytest.approx(3.0)
    car.s = 100.0 - 2.7 - 2.0 - car.length / 2
    assert nearest_of(ego, [car]) == (pytest.approx(2.0), car, [])
    car.s = 100.0
    assert nearest_of(ego, [car]) == (0.0, car, [car])
    assert nearest_of(ego, []) == (math.inf, None, [])


def test_an_outcome_says_who_was_touched_when_and_how_fast() -> None:
    """A car put into the vehicle's way too late: one collision, once."""
    s = empty()
    assert s.outcome == Outcome()
    drive(s, 1.0, constraint())
    car = parked(s, 7.0, d=0.0)
    drive(s, 3.0, constraint())
    (collision,) = s.outcome.collisions
    assert (collision.kind, collision.class_id, collision.other_speed_mps) == (
        "parked car",
        DetectionClass.VEHICLE,
        0.0,
    )
    assert 1.0 < collision.time_s < 1.6 and 15.0 < collision.ego_speed_mps < 20.0
    assert s.outcome.min_distance_m == 0.0 and s.outcome.nearest == "parked car"
    assert s.truth().collision
    s._traffic.actors.remove(car)
    assert s.truth().collision


def test_an_outcome_only_gets_worse() -> None:
    """Each figure is the worst so far; what a step does not touch stays."""
    step = Step(1.0, 5.0, 4.0, -2.0, 3.0, 10.0, "car", (), 7.0, 0.0, "lane")
    first = after(Outcome(), step)
    assert first == Outcome(10.0, "car", (), None, 0, 2.0, 3.0)
    milder = after(first, dataclasses.replace(step, acceleration_mps2=1.0, jerk_mps3=-1.0, nearest_m=20.0, nearest="x"))
    assert milder == first
    worse = after(first, dataclasses.replace(step, acceleration_mps2=-3.0, jerk_mps3=-9.0, after_mps=0.0))
    assert (worse.max_deceleration_mps2, worse.max_jerk_mps3, worse.stops) == (3.0, 9.0, 1)
    assert worse.stop is not None and (worse.stop.s_m, worse.stop.place) == (7.0, "lane")
