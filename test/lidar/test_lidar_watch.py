"""Health of a lidar: each limit at 0.99, 1.0 and 1.01 of itself, sound scans in silence, damage named."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lidar_world import BEAMS_16, Box, Road, above, car, cast, clouds, raised
from pydantic import ValidationError

from triptych.contract import PointCloud
from triptych.contract.lidar import MAX_OBSTACLES, MAX_SCAN_FAULT
from triptych.debounce import Debounced
from triptych.lidar import LidarConfig, LidarSensing
from triptych.lidar.ground import Plane, road_ahead
from triptych.lidar.scan import ABSURD_RANGE_M, look
from triptych.lidar.watch import MONITORS, Moved, ScanWatch

SHORT = above(moved_scans_n=4, blind_scans_n=4)
EMPTY_ROAD = [cast(seed=k) for k in range(4)]
"""Noise differs from scan to scan."""


def codes(scans: list[np.ndarray], config: LidarConfig = SHORT, moving: bool = True) -> list[tuple[str, ...]]:
    """What is said at each of the scans."""
    watch = ScanWatch(config)
    return [watch.look(look(cloud, config, moving)) for cloud in clouds(scans)]


def repeated(points: np.ndarray, scans_n: int) -> list[np.ndarray]:
    """The same view again and again, with fresh noise of a micrometre."""
    rng = np.random.default_rng(5)
    return [points + rng.normal(0.0, 1e-6, points.shape).astype(np.float32) for _ in range(scans_n)]


def spread(points_n: int) -> np.ndarray:
    """So many valid returns, all around."""
    angle = np.arange(points_n) * 2.399963
    return np.column_stack((9 * np.cos(angle), 9 * np.sin(angle), np.full(points_n, -1.8))).astype(np.float32)


@pytest.mark.parametrize("beams", [BEAMS_16, np.linspace(-25.0, 3.0, 32)], ids=["16", "32"])
def test_sound_scans_are_passed_in_silence(beams: np.ndarray) -> None:
    for world in ((), (car(6.0, 0.0), Box(10.0, 30.0, 5.0, 6.0, 0.0, 3.0))):
        assert codes([cast(world, beams=beams, seed=k) for k in range(8)]) == [()] * 8


@pytest.mark.parametrize(("share", "said"), [(0.99, True), (1.0, False), (1.01, False)])
def test_a_scan_has_a_least_number_of_returns(share: float, said: bool) -> None:
    scans = repeated(spread(int(SHORT.least_points_n * share)), 6)
    run = SHORT.few_scans_n
    assert ["few_points" in c for c in codes(scans)] == [said and k + 1 >= run for k in range(6)]


@pytest.mark.parametrize(("share", "said"), [(0.99, False), (1.0, False), (1.01, True)])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, ABSURD_RANGE_M * 1.01, 3e38])
def test_infinite_and_absurd_ranges_are_counted(bad: float, share: float, said: bool) -> None:
    points = spread(20_000)
    points[: int(20_000 * SHORT.invalid_share * share), 1] = bad
    scans = repeated(points, 5)
    assert ["invalid_points" in c for c in codes(scans)] == [said and k + 1 >= SHORT.invalid_scans_n for k in range(5)]


@pytest.mark.parametrize(("range_m", "said"), [(990.0, False), (1000.0, False), (1010.0, True)])
def test_a_range_is_absurd_beyond_a_kilometre(range_m: float, said: bool) -> None:
    points = spread(2000)
    points[:100] = [range_m, 0.0, 0.0]
    assert (look(PointCloud(points, 1), SHORT).invalid_share > 0) is said


@pytest.mark.parametrize("mark", [math.nan, 0.0], ids=["nan", "zero"])
def test_beams_that_did_not_come_back_are_no_fault(mark: float) -> None:
    points = np.vstack((spread(2000), np.full((8000, 3), mark, np.float32)))
    scan = look(PointCloud(points, 1), SHORT)
    assert (len(scan.base), scan.invalid_share) == (2000, 0.0)


def test_one_point_again_and_again_is_no_scan() -> None:
    scan = look(PointCloud(np.full((5000, 3), 4.0, np.float32), 1), SHORT)
    assert scan.invalid_share == 1.0


@pytest.mark.parametrize(("share", "n"), [(0.99, 0), (1.0, 1), (1.01, 1)])
def test_nearer_than_the_least_range_is_no_return(share: float, n: int) -> None:
    point = np.array([[0.0, SHORT.least_range_m * share, 0.0]], np.float32)
    assert len(look(PointCloud(point, 1), SHORT).base) == n


def covered(points: np.ndarray, from_deg: float, to_deg: float, left_n: int = 0) -> np.ndarray:
    """Without the returns of a sector and half a degree on either side, but for a few in its middle."""
    points = points.copy()
    azimuth = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
    off_deg = np.abs(azimuth - (from_deg + to_deg) / 2)
    order = np.argsort(off_deg)
    gone = order[off_deg[order] <= (to_deg - from_deg) / 2 + 0.5]
    points[gone[left_n:]] = np.nan
    return points


@pytest.mark.parametrize("sector_deg", [-60, -10, 0, 30, 50])
def test_a_blind_sector_ahead_is_named_after_its_limit_of_scans(sector_deg: int) -> None:
    """0.99, 1.0 and 1.01 of 100 scans."""
    config = above(blind_scans_n=100)
    points = covered(cast(beams=BEAMS_16, columns=360), sector_deg, sector_deg + 10)
    said = ["blind_sector" in c for c in codes(repeated(points, 101), config)]
    assert (said[98], said[99], said[100]) == (False, False, True)


@pytest.mark.parametrize(("left_n", "said"), [(2, True), (3, False), (4, False)])
def test_a_sector_must_have_a_few_returns(left_n: int, said: bool) -> None:
    scans = repeated(covered(EMPTY_ROAD[0], 10.0, 20.0, left_n), 6)
    assert ("blind_sector" in codes(scans)[-1]) is said


def test_blind_behind_or_in_turns_is_not_blind_ahead() -> None:
    assert codes(repeated(covered(EMPTY_ROAD[0], 90.0, 180.0), 8))[-1] == ()
    turns = [covered(EMPTY_ROAD[k % 4], 10.0 * (k % 3), 10.0 * (k % 3) + 10.0) for k in range(18)]
    assert codes(turns)[-1] == ()


def test_a_narrow_lidar_is_watched_where_it_looks() -> None:
    narrow = covered(covered(EMPTY_ROAD[0], -180.0, -28.0), 28.0, 180.1)
    for view_deg, said in ((60.0, True), (25.0, False)):
        config = above(blind_scans_n=4, view_deg=view_deg)
        assert ("blind_sector" in codes(repeated(narrow, 8), config)[-1]) is said


def test_a_frozen_scan_is_named_while_moving() -> None:
    """Fresh stamps, old bytes."""
    said = ["frozen_scan" in c for c in codes([EMPTY_ROAD[0]] * 5 + [EMPTY_ROAD[1]])]
    assert said == [False, False, False, True, True, False], "three repeats"
    assert not any("frozen_scan" in c for c in codes([EMPTY_ROAD[0]] * 8, moving=False))
    assert not any("frozen_scan" in c for c in codes(EMPTY_ROAD * 2))


def test_a_frozen_scan_stays_one_when_the_vehicle_stops() -> None:
    watch = ScanWatch(SHORT)
    said = [
        "frozen_scan" in watch.look(look(cloud, SHORT, moving=k < 5))
        for k, cloud in enumerate(clouds([EMPTY_ROAD[0]] * 9))
    ]
    assert said == [k >= 3 for k in range(9)]


@pytest.mark.parametrize(("stamps", "code"), [((1, 2, 2), "repeated_stamp"), ((1, 3, 2), "backward_stamp")])
def test_stamps_must_advance(stamps: tuple[int, ...], code: str) -> None:
    watch = ScanWatch(SHORT)
    said = [watch.look(look(PointCloud(EMPTY_ROAD[k], s), SHORT)) for k, s in enumerate(stamps)]
    assert said == [(), (), (code,)]
    assert watch.look(look(PointCloud(EMPTY_ROAD[3], 9), SHORT)) == ()


def moved_by(plane: Plane, config: LidarConfig, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("triptych.lidar.watch.road_ahead", lambda _: plane)
    monitor = Debounced("moved", Moved(config), 0.0, 1)
    scan = look(PointCloud(spread(10), 1), config)
    said = [monitor.observe(scan) for _ in range(config.moved_scans_n)]
    assert not any(said[:-1]), "not before the window is full"
    return said[-1] == "moved"


@pytest.mark.parametrize(("share", "said"), [(0.99, False), (1.0, False), (1.01, True)])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_moved_mount_is_named_beyond_its_limits(
    share: float, said: bool, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    height, tilt = sign * share * SHORT.moved_height_m, sign * share * SHORT.moved_tilt_deg
    for plane in (Plane(height, 0.0, 0.0), Plane(0.0, tilt, 0.0), Plane(0.0, 0.0, tilt)):
        assert moved_by(plane, SHORT, monkeypatch) is said


@pytest.mark.parametrize(
    "world", [{"z_m": 1.3}, {"z_m": 2.3}, {"nose_down_deg": 4.0}, {"nose_down_deg": -4.0}], ids=str
)
def test_a_sensor_knocked_out_of_place_is_named(world: dict[str, float]) -> None:
    scans = [cast(seed=k, **world) for k in range(6)]
    assert "moved" in codes(scans)[-1]
    assert "moved" not in codes(scans, moving=False)[-1], "a vehicle at the foot of a ramp is not judged"


def test_one_ramp_does_not_make_a_moved_sensor() -> None:
    ramp = cast((), Road(slope=0.1, from_m=4.0), seed=9)
    assert codes([*EMPTY_ROAD, ramp, EMPTY_ROAD[1], EMPTY_ROAD[2]])[-1] == ()
    assert "moved" in codes([ramp + np.float32(1e-5 * k) for k in range(6)])[-1]


def test_the_road_ahead_is_measured() -> None:
    plane = road_ahead(raised(EMPTY_ROAD[0][np.isfinite(EMPTY_ROAD[0][:, 0])]))
    assert plane == pytest.approx((0.0, 0.0, 0.0), abs=0.1)
    tilted = cast((), Road(slope=0.05, crossfall=0.03))
    plane = road_ahead(raised(tilted[np.isfinite(tilted[:, 0])]))
    assert plane is not None
    assert plane.height_m == pytest.approx(0.5, abs=0.05)
    assert plane.slope_x_deg == pytest.approx(math.degrees(math.atan(0.05)), abs=0.3)
    assert plane.slope_y_deg == pytest.approx(math.degrees(math.atan(0.03)), abs=0.3)
    behind_lorry = cast((Box(5.5, 16.0, -1.25, 1.25, 0.5, 4.0),))
    seen = road_ahead(raised(behind_lorry[np.isfinite(behind_lorry[:, 0])]))
    assert seen is None or abs(seen.height_m) < 0.1
    assert road_ahead(np.zeros((0, 3), np.float32)) is None


def test_nan_is_at_fault() -> None:
    monitor = Debounced("x", lambda _: math.nan, 1.0, 2)
    scan = look(PointCloud(spread(10), 1), SHORT)
    assert [monitor.observe(scan) for _ in range(3)] == ["", "x", "x"]


def test_the_table_names_parameters_and_fits_the_message() -> None:
    fields = set(LidarConfig.model_fields) | {""}
    assert all({row.limit, row.run} <= fields for row in MONITORS)
    assert len("; ".join(row.code for row in MONITORS)) <= MAX_SCAN_FAULT
    assert len({row.code for row in MONITORS}) == len(MONITORS)


def test_sensing_says_what_one_scan_says() -> None:
    sensing = LidarSensing(SHORT)
    points = cast((car(12.0, 0.0, top=2.4),))
    (cloud,) = clouds([points])
    report = sensing.take(cloud)
    (only,) = report.obstacles
    assert only.x_min_m == pytest.approx(12.0, abs=0.15)
    assert (report.stamp_ns, report.frame_id, report.reach_m) == (cloud.stamp_ns, "base_link", SHORT.reach_m)
    assert report.points_n == np.isfinite(points[:, 0]).sum()
    assert (report.healthy, report.fault) == (True, "")
    again = sensing.take(cloud)
    assert (again.healthy, again.fault) == (False, "repeated_stamp")
    back = sensing.take(replace(cloud, stamp_ns=0))
    assert (back.healthy, back.fault) == (False, "backward_stamp")


def test_a_full_report_says_how_far_it_is_complete() -> None:
    poles = [Box(x, x + 0.3, y, y + 0.3, 0.0, 2.4) for x in range(5, 30, 4) for y in range(-18, 19, 3)]
    dense = np.vstack([np.random.default_rng(3).uniform((b.x0, b.y0, -1), (b.x1, b.y1, 0), (20, 3)) for b in poles])
    report = LidarSensing(SHORT).take(PointCloud(dense.astype(np.float32), 1))
    assert len(poles) > len(report.obstacles) == MAX_OBSTACLES
    missed = [
        b
        for b in poles
        if not any(
            o.x_min_m < b.x1 and o.x_max_m > b.x0 and o.y_min_m < b.y1 and o.y_max_m > b.y0 for o in report.obstacles
        )
    ]
    nearest = min(math.hypot(b.x0, min(abs(b.y0), abs(b.y1))) for b in missed)
    assert 10.0 < report.reach_m <= nearest + 0.3


@given(
    scans=st.lists(
        hnp.arrays(
            np.float32,
            st.tuples(st.integers(0, 40), st.just(3)),
            elements=st.floats(width=32) | st.floats(-70.0, 70.0, width=32),
        ),
        max_size=4,
    ),
    stamps=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
    moving=st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_whatever_comes_there_is_a_report(scans: list[np.ndarray], stamps: list[int], moving: bool) -> None:
    sensing = LidarSensing(above(moved_scans_n=1, few_scans_n=1, blind_scans_n=1))
    for k, points in enumerate(scans):
        report = sensing.take(PointCloud(points, stamps[k]), moving)
        assert not report.healthy and "few_points" in report.fault and len(report.fault) <= MAX_SCAN_FAULT
        assert len(report.obstacles) <= MAX_OBSTACLES and 0.0 <= report.reach_m <= 60.0
        assert report.points_n <= len(points)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cell_m": 0.0}, "cell_m"),
        ({"z_m": math.nan}, "z_m"),
        ({"reach": 3.0}, "reach"),
        ({"fewest_points": 2.5}, "fewest_points"),
    ],
)
def test_bad_parameters_are_refused(values: dict[str, float], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        LidarConfig(**values)
