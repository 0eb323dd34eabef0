"""Obstacles from geometry: what stands is found whole and apart, what is road or passes overhead is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lidar_world import BEAMS_16, BEAMS_32, Box, Road, above, boxed, car, cast, cluster, plain, raised

from triptych.contract import Obstacle
from triptych.contract.lidar import MAX_OBSTACLES
from triptych.lidar import LidarConfig
from triptych.lidar.ground import height_above_ground
from triptych.lidar.obstacles import find_obstacles
from triptych.lidar.scan import to_base

CONFIG = above()
ROADS = [
    Road(),
    Road(slope=0.05),
    Road(slope=-0.05),
    Road(slope=0.05, from_m=12.0),
    Road(slope=-0.05, from_m=12.0),
    Road(slope=0.05, from_m=25.0),
    Road(crossfall=0.04),
]
LIDARS = pytest.mark.parametrize("beams", [BEAMS_16, BEAMS_32], ids=["16", "32"])


def seen_as_one(box: Box, obstacles: list[Obstacle]) -> bool:
    """Whether the nearest box is the face of this thing and no box reaches out of it.

    Returns from the roof of what is lower than the sensor lie metres behind the rear window and may be boxes of their
    own, within the car.
    """
    first = obstacles[0]
    face = (
        abs(first.x_min_m - box.x0) < 0.15 and abs(first.y_min_m - box.y0) < 0.25 and abs(first.y_max_m - box.y1) < 0.25
    )
    return face and all(
        o.x_min_m > box.x0 - 0.15 and o.x_max_m < box.x1 + 0.1 and o.y_min_m > box.y0 - 0.1 and o.y_max_m < box.y1 + 0.1
        for o in obstacles
    )


def found(*boxes: Box, road: Road | None = ROADS[0], beams: np.ndarray = BEAMS_32, **world: float) -> list[Obstacle]:
    return list(find_obstacles(raised(cast(boxes, road, beams=beams, **world)), CONFIG))


@LIDARS
@pytest.mark.parametrize("road", ROADS, ids=str)
def test_a_road_is_no_obstacle_however_it_slopes(road: Road, beams: np.ndarray) -> None:
    assert found(road=road, beams=beams) == []


@LIDARS
def test_a_road_that_rises_and_leans_is_no_obstacle_within_40_m(beams: np.ndarray) -> None:
    """Further out, and 8 m or more aside, scraps of single rings may be taken for obstacles."""
    road = Road(slope=0.05, from_m=8.0, crossfall=-0.02)
    for boxes in ((), (car(12.0, 0.0),)):
        assert [o for o in found(*boxes, road=road, beams=beams) if o.x_max_m > 17.0 and o.x_min_m < 40.0] == []


@LIDARS
@pytest.mark.parametrize("road", ROADS, ids=str)
@pytest.mark.parametrize("x", [6.0, 12.0, 18.0, 25.0, 33.0])
def test_a_car_ahead_is_one_box_at_its_place(x: float, road: Road, beams: np.ndarray) -> None:
    """A VLP-16 puts one or two beams on a car at 33 m. What is higher than the sensor has no roof to be seen."""
    obstacles = found(car(x, 0.0), road=road, beams=beams)
    assert seen_as_one(car(x, 0.0), obstacles) and len(obstacles) <= 4
    assert 0.3 < obstacles[0].z_max_m <= 1.9
    (only,) = found(car(x, 0.0, top=3.5), road=road, beams=beams)
    assert seen_as_one(car(x, 0.0), [only])


@LIDARS
@pytest.mark.parametrize("y", [-6.0, -3.0, 3.0, 6.0])
@pytest.mark.parametrize("x", [3.0, 8.0, 14.0, 20.0])
def test_gaps_between_beams_do_not_break_a_car(x: float, y: float, beams: np.ndarray) -> None:
    """Its side is seen at a flat angle: at 24 m and 0.2 degrees between beams, its returns are 1 m apart."""
    assert len(found(car(x, y), beams=beams, columns=1800)) == 1


@pytest.mark.parametrize("x", [3.0, 8.0, 14.0, 20.0])
@pytest.mark.parametrize("y", [-5.0, 5.0])
def test_two_cars_a_metre_and_a_half_apart_stay_two(x: float, y: float) -> None:
    """One behind the other, and side by side."""
    aside = y + math.copysign(3.3, y)
    first, behind, beside = (car(*at, top=2.4) for at in ((x, y), (x + 6.0, y), (x, aside)))
    parked = found(first, behind, columns=1800)
    assert [o.x_min_m > x + 5.0 for o in parked] == [False, True]
    abreast = found(first, beside, columns=1800)
    assert len(abreast) == 2


def test_a_wall_a_pole_and_a_person_are_found() -> None:
    wall = found(Box(30.0, 30.3, -8.0, 8.0, 0.0, 3.0))
    assert boxed(np.array([[30.0, y, 0.0] for y in np.linspace(-7.5, 7.5, 31)]), tuple(wall)).all()
    for thing in (Box(15.0, 15.15, 1.0, 1.15, 0.0, 4.0), Box(12.0, 12.4, -0.3, 0.3, 0.0, 1.7)):
        (only,) = found(thing)
        assert only.x_min_m == pytest.approx(thing.x0, abs=0.1)
        assert thing.y0 - 0.1 <= only.y_min_m <= only.y_max_m <= thing.y1 + 0.1


@pytest.mark.parametrize("road", ROADS, ids=str)
def test_a_gantry_is_passed_underneath_and_the_car_below_it_is_not(road: Road) -> None:
    gantry = Box(20.0, 20.5, -10.0, 10.0, 3.5, 4.5)
    assert found(gantry, road=road) == []
    assert seen_as_one(car(19.0, 0.0), found(gantry, car(19.0, 0.0), road=road))


def test_a_diagonal_wall_does_not_cover_the_road_beside_it() -> None:
    """As a guard rail does in a curve: the box of the whole would."""
    s = np.linspace(0.0, 40.0, 800)
    rail = np.column_stack((5.0 + s, -4.0 + 0.3 * s, np.full(800, 0.7))).astype(np.float32)
    obstacles = find_obstacles(np.vstack((plain(), rail)), CONFIG)
    assert boxed(rail, obstacles).all()
    assert not boxed(np.array([[30.0, -4.0, 0.0], [10.0, 2.0, 0.0], [40.0, 3.0, 0.0]]), obstacles).any()
    assert len(obstacles) > 1


def test_a_straight_wall_is_few_boxes() -> None:
    s = np.linspace(0.0, 40.0, 800)
    wall = np.column_stack((5.0 + s, np.full(800, 4.0), np.full(800, 0.7))).astype(np.float32)
    assert len(find_obstacles(np.vstack((plain(), wall)), CONFIG)) == 1


@pytest.mark.parametrize("road", ROADS[:4], ids=str)
def test_reflections_from_below_the_road_neither_lift_nor_sink_it(road: Road) -> None:
    """A wet road mirrors: returns 1 to 3 m below it."""
    points = raised(cast((car(15.0, 0.0),), road))
    rng = np.random.default_rng(1)
    mirrored = rng.choice(np.flatnonzero(points[:, 2] < 2.0), 300, replace=False)
    points[mirrored, 2] -= rng.uniform(1.0, 3.0, 300).astype(np.float32)
    obstacles = list(find_obstacles(points, CONFIG))
    assert seen_as_one(car(15.0, 0.0), obstacles) and obstacles[0].z_max_m > 1.0


@LIDARS
@pytest.mark.parametrize("x", [4.0, 10.0, 20.0])
def test_where_no_ground_is_seen_it_is_at_zero(x: float, beams: np.ndarray) -> None:
    """A black, wet road gives nothing back."""
    assert seen_as_one(car(x, 0.0), found(car(x, 0.0), road=None, beams=beams))


def test_one_beam_on_a_car_is_not_taken_for_ground() -> None:
    """No ground further than 20 m, then one row of returns at 0.7 m."""
    ground = plain(ahead_m=20.0)
    row = np.array([[38.0, y, 0.7] for y in np.linspace(-0.9, 0.9, 12)], np.float32)
    (only,) = find_obstacles(np.vstack((ground, row)), CONFIG)
    assert only.x_min_m == pytest.approx(38.0, abs=0.01) and only.points_n == 12


def test_the_lower_edge_of_a_bus_is_not_taken_for_ground() -> None:
    """It crosses 30 m ahead, where no ground is seen: wider than the neighbourhood, but its cells are occupied."""
    rows = [[30.0, y, z] for y in np.linspace(-6.0, 6.0, 120) for z in (0.6, 1.2)]
    obstacles = find_obstacles(np.vstack((plain(ahead_m=15.0), np.array(rows, np.float32))), CONFIG)
    assert sum(o.points_n for o in obstacles) == 240
    assert obstacles[0].z_max_m == pytest.approx(1.2, abs=0.1)


def test_a_lorry_that_fills_the_view_is_no_ground() -> None:
    (only,) = found(Box(4.0, 16.0, -1.25, 1.25, 0.5, 4.0))
    assert only.x_min_m == pytest.approx(4.0, abs=0.1) and only.y_max_m - only.y_min_m == pytest.approx(2.5, abs=0.3)


@pytest.mark.parametrize(("share", "seen"), [(0.99, False), (1.0, False), (1.01, True)])
def test_the_step_may_be_reached_but_not_exceeded(share: float, seen: bool) -> None:
    points = np.vstack((plain(), cluster(15.0, 0.0, CONFIG.step_m * share)))
    assert bool(find_obstacles(points, CONFIG)) is seen


@pytest.mark.parametrize(("share", "seen"), [(0.99, True), (1.0, True), (1.01, False)])
def test_the_clearance_counts_up_to_its_limit(share: float, seen: bool) -> None:
    points = np.vstack((plain(), cluster(15.0, 0.0, CONFIG.clearance_m * share)))
    assert bool(find_obstacles(points, CONFIG)) is seen


@pytest.mark.parametrize(("share", "seen"), [(0.99, True), (1.0, True), (1.01, False)])
@pytest.mark.parametrize(("axis", "limit"), [(0, "reach_m"), (0, "-reach_behind_m"), (1, "reach_side_m")])
def test_nothing_is_reported_beyond_the_reach(axis: int, limit: str, share: float, seen: bool) -> None:
    value = share * getattr(CONFIG, limit.strip("-")) * (-1 if limit[0] == "-" else 1)
    at = np.full((10, 3), 1.0, np.float32)
    at[:, 1 - axis] = np.linspace(3.0, 3.1, 10)
    at[:, axis] = value
    assert bool(find_obstacles(at, CONFIG)) is seen


@pytest.mark.parametrize(("share", "seen"), [(0.99, False), (1.0, False), (1.01, True)])
@pytest.mark.parametrize("place", [(2.0, 0.0), (-2.0, 0.0), (0.0, 1.0), (0.0, -1.0)])
def test_the_vehicles_own_body_is_not_looked_at(place: tuple[float, float], share: float, seen: bool) -> None:
    at = np.repeat(np.array([[*place, 1.0 / share]], np.float32) * np.float32(share), 5, axis=0)
    assert bool(find_obstacles(at, CONFIG)) is seen


@pytest.mark.parametrize(("points_n", "seen"), [(2, False), (3, True), (4, True)])
def test_an_obstacle_has_a_least_number_of_returns(points_n: int, seen: bool) -> None:
    points = np.vstack((plain(), cluster(15.0, 0.0, 1.0, points_n)))
    assert [o.points_n for o in find_obstacles(points, CONFIG)] == ([points_n] if seen else [])


@pytest.mark.parametrize(("gap_m", "obstacles_n"), [(0.9, 1), (1.3, 2), (1.5, 2)])
def test_returns_are_linked_over_a_bounded_gap(gap_m: float, obstacles_n: int) -> None:
    """Wherever the cells of the grid begin."""
    for shift in np.arange(0.0, 0.25, 0.03):
        points = np.vstack((cluster(30.0 + shift, 0.0, 1.0), cluster(30.0 + shift + gap_m, 0.0, 1.0)))
        assert len(find_obstacles(points, CONFIG)) == obstacles_n


def test_nearby_only_neighbours_are_linked() -> None:
    near, far = (np.vstack((cluster(x, 0.0, 1.0), cluster(x, 1.0, 1.0))) for x in (5.0, 25.0))
    assert (len(find_obstacles(near, CONFIG)), len(find_obstacles(far, CONFIG))) == (2, 1)


def test_at_most_64_are_reported_and_the_nearest_first() -> None:
    rng = np.random.default_rng(2)
    places = [(x, y) for x in range(4, 60, 4) for y in range(-18, 19, 4)]
    rng.shuffle(places)
    points = np.vstack([plain(), *(cluster(x, y, 1.0) for x, y in places)])
    obstacles = find_obstacles(points, CONFIG)
    distances = [math.hypot(o.x_min_m, min(abs(o.y_min_m), abs(o.y_max_m))) for o in obstacles]
    assert len(places) > len(obstacles) == MAX_OBSTACLES and distances == sorted(distances)
    expected = sorted(math.hypot(x, min(abs(y), abs(y + 0.1))) for x, y in places)[:MAX_OBSTACLES]
    assert distances == pytest.approx(expected, abs=1e-3)


def test_the_mount_is_taken_out() -> None:
    """A sensor at the right front corner, looking 30 degrees to the left, nose 5 degrees down, rolled by 2."""
    config = above(x_m=1.5, y_m=-0.7, z_m=1.1, yaw_deg=30.0, pitch_deg=5.0, roll_deg=2.0)
    zero = np.zeros((1, 3), np.float32)
    assert to_base(zero, config)[0] == pytest.approx([1.5, -0.7, 1.1])
    ahead, left, up = (to_base(np.eye(3, dtype=np.float32)[k : k + 1], config)[0] - [1.5, -0.7, 1.1] for k in range(3))
    assert math.degrees(math.atan2(ahead[1], ahead[0])) == pytest.approx(30.0, abs=1e-4)
    assert math.degrees(math.asin(ahead[2])) == pytest.approx(-5.0, abs=1e-4), "nose down"
    assert left[2] > 0, "left side up"
    assert np.cross(ahead, left) == pytest.approx(up, abs=1e-6)
    tilted = cast((car(12.0, 0.0),), nose_down_deg=6.0)
    assert seen_as_one(car(12.0, 0.0), list(find_obstacles(to_base(tilted, above(pitch_deg=6.0)), CONFIG)))


def test_height_is_above_the_local_ground() -> None:
    points = np.vstack((plain(), cluster(15.0, 0.0, 1.2)))
    points[:, 2] += np.float32(0.05) * points[:, 0]
    height = height_above_ground(points[points[:, 0] > 0], CONFIG)
    assert np.abs(height[:-10]).max() <= 0.13 and height[-10:] == pytest.approx(1.2, abs=0.1)


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(-70.0, 70.0, width=32)
CLOUDS = hnp.arrays(np.float32, st.tuples(st.integers(0, 60), st.just(3)), elements=FLOATS)


@given(points=CLOUDS)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_whatever_comes_the_report_is_bounded(points: np.ndarray) -> None:
    before = points.copy()
    obstacles = find_obstacles(points, CONFIG)
    assert np.array_equal(points, before, equal_nan=True)
    assert len(obstacles) <= MAX_OBSTACLES and sum(o.points_n for o in obstacles) <= len(points)
    for o in obstacles:
        assert -CONFIG.reach_behind_m <= o.x_min_m <= o.x_max_m <= CONFIG.reach_m
        assert -CONFIG.reach_side_m <= o.y_min_m <= o.y_max_m <= CONFIG.reach_side_m
        assert CONFIG.step_m < o.z_max_m <= CONFIG.clearance_m + 1e-6 and o.points_n >= CONFIG.fewest_points


@given(
    config=st.builds(
        LidarConfig,
        cell_m=st.floats(0.1, 1.0),
        reach_m=st.floats(5.0, 200.0),
        reach_side_m=st.floats(2.0, 50.0),
        reach_behind_m=st.floats(0.0, 200.0),
        link_m=st.floats(0.2, 3.0),
        compact_m=st.floats(3.0, 30.0),
        fewest_points=st.integers(1, 3),
    ),
    seed=st.integers(0, 1000),
    points_n=st.integers(0, 2000),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_no_allowed_parameter_breaks_it(config: LidarConfig, seed: int, points_n: int) -> None:
    """Returns on the very edges of the reach among them."""
    rng = np.random.default_rng(seed)
    low = np.array([-config.reach_behind_m, -config.reach_side_m, -1.0])
    high = np.array([config.reach_m, config.reach_side_m, 3.0])
    points = np.clip(rng.normal(0.0, 1.0, (points_n, 3)) * high, low, high).astype(np.float32)
    obstacles = find_obstacles(points, config)
    assert len(obstacles) <= MAX_OBSTACLES
    assert all(math.isfinite(v) for o in obstacles for v in (o.x_min_m, o.x_max_m, o.y_min_m, o.y_max_m, o.z_max_m))


@pytest.mark.parametrize("points_n", [0, 1])
def test_nothing_and_one_point_are_no_obstacle(points_n: int) -> None:
    assert find_obstacles(np.ones((points_n, 3), np.float32), CONFIG) == ()
    assert find_obstacles(np.full((points_n, 3), np.nan, np.float32), CONFIG) == ()
