"""Camera against lidar, alone at 0.99 / 1.0 / 1.01 of each limit and through the whole supervisor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervisor_rig import MS, SECOND, Rig, driving, flickering

from triptych.contract import (
    DegradationState,
    Detection,
    DetectionClass,
    Detections,
    Obstacle,
    Obstacles,
    Origin,
    TierResult,
)
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.lidar import LidarMonitor

S = DegradationState
CONFIG = SupervisorConfig(lidar_expected=True, camera_forward_m=0.0)
"""The camera is the origin."""
NAN, INF = math.nan, math.inf
WIDTH, HEIGHT = 1000, 500
FOCAL_PX = CONFIG.camera_focal_share * WIDTH
NOW_NS = 10 * SECOND


def seeing(
    *boxes: tuple[float, float, float, float], kind: int = DetectionClass.VEHICLE, score: float = 0.9
) -> Detections:
    """Boxes by their left upper corner and size, pixels."""
    found = (Detection("", kind, score, x, y, x + w, y + h) for x, y, w, h in boxes)
    return Detections(WIDTH, HEIGHT, tuple(found))


def standing(x: float = 10.0, y: float = 0.0, width: float = 1.8, height: float = 1.5, length: float = 0.3) -> Obstacle:
    """An obstacle whose rear face is ``x`` ahead and whose centre is ``y`` to the left."""
    return Obstacle(x, x + length, y - width / 2, y + width / 2, height, 40)


def scan(*obstacles: Obstacle, stamp_ns: int = NOW_NS, **changes: object) -> Obstacles:
    """A healthy scan."""
    return replace(Obstacles(stamp_ns, "base_link", 5000, 60.0, True, "", obstacles), **changes)  # type: ignore[arg-type]


def after(
    payload: Detections, said: Obstacles, times: int = 1, ages_ms: tuple[int, ...] = (70, 20), **config: object
) -> LidarMonitor:
    """The monitor after so many scans, each with detector results so much older than it."""
    monitor = LidarMonitor(SupervisorConfig(**{**CONFIG.model_dump(), **config}))  # type: ignore[arg-type]
    for turn in range(times):
        stamp_ns = said.stamp_ns + turn * 100 * MS
        for age_ms in ages_ms:
            monitor.see(payload, stamp_ns - age_ms * MS)
        monitor.observe(replace(said, stamp_ns=stamp_ns), stamp_ns, stamp_ns, True, True)
    return monitor


def column(x: float, y: float) -> float:
    """Where the camera sees a point."""
    return WIDTH / 2 - FOCAL_PX * y / x


NOTHING = seeing()
AHEAD = seeing((430, 200, 140, 110))
"""A car 10 m ahead."""


# ---- what the camera misses ----


def test_what_both_see_is_no_matter() -> None:
    """A car ahead, seen by both."""
    monitor = after(AHEAD, scan(standing()), 3)
    assert (monitor.unseen_n(0), monitor.unreturned_n(0)) == (0, 0)


def test_an_obstacle_that_no_box_covers_is_counted() -> None:
    """As often as it comes in a row; once it is seen the run ends."""
    assert after(NOTHING, scan(standing()), 4).unseen_n(0) == 4
    monitor = after(NOTHING, scan(standing()), 2)
    for age_ms in (70, 20):
        monitor.see(AHEAD, NOW_NS + 200 * MS - age_ms * MS)
    at_ns = NOW_NS + 200 * MS
    monitor.observe(scan(standing(), stamp_ns=at_ns), at_ns, at_ns, True, True)
    assert monitor.unseen_n(0) == 0


@pytest.mark.parametrize(
    ("obstacle", "unseen"),
    [
        (standing(x=14.85), 1), (standing(x=15.0), 1), (standing(x=15.15), 0), (standing(x=0), 0), (standing(x=-3), 0),
        (standing(y=1.792, width=2), 1), (standing(y=1.8, width=2), 0), (standing(y=1.808, width=2), 0),
        (standing(y=-1.792, width=2), 1), (standing(y=-1.8, width=2), 0), (standing(y=-1.808, width=2), 0),
        (standing(height=0.99), 0), (standing(height=1.0), 1), (standing(height=1.01), 1),
        (standing(width=0.3), 1),
    ],
)  # fmt: skip
def test_only_what_stands_close_ahead_must_be_seen(obstacle: Obstacle, unseen: int) -> None:
    """Near, in the lane, as high as a child."""
    assert after(NOTHING, scan(obstacle)).unseen_n(0) == unseen


@pytest.mark.parametrize(("pixels", "unseen"), [(29.7, 0), (30.0, 0), (30.3, 1)])
@pytest.mark.parametrize("side", [1, -1])
def test_a_box_explains_what_is_at_its_bearing(pixels: float, unseen: int, side: int) -> None:
    """Of any kind, beside it by no more than the margin."""
    edge = column(10.0, side * 0.9) - side * (pixels - 1e-9)
    left = edge - 50 if side > 0 else edge
    assert (
        after(seeing((left, 200, 50, 20), kind=DetectionClass.OTHER, score=0.1), scan(standing())).unseen_n(0) == unseen
    )


def test_any_result_about_that_time_may_explain_it() -> None:
    """A detector that blinks is not blind."""
    monitor = LidarMonitor(CONFIG)
    monitor.see(NOTHING, NOW_NS - 70 * MS)
    monitor.see(AHEAD, NOW_NS - 20 * MS)
    monitor.observe(scan(standing()), NOW_NS, NOW_NS, True, True)
    assert monitor.unseen_n(0) == 0


def test_the_place_of_the_camera_counts() -> None:
    """What is behind it cannot be seen; what is before it is nearer."""
    assert after(NOTHING, scan(standing(x=2.0)), camera_forward_m=2.5).unseen_n(0) == 0
    assert after(NOTHING, scan(standing(x=16.0)), camera_forward_m=2.5).unseen_n(0) == 1
    beside = seeing((column(10.0, 1.5) - 40, 200, 80, 20))
    assert after(beside, scan(standing(x=12.5, y=1.5)), camera_forward_m=2.5).unseen_n(0) == 0


# ---- what the lidar does not return ----


def test_a_vehicle_where_nothing_returns_a_beam_is_counted() -> None:
    """Free road says the lidar, a large car the detector."""
    assert after(AHEAD, scan(), 3).unreturned_n(0) == 3
    assert after(AHEAD, scan(standing(y=6.0)), 3).unreturned_n(0) == 3


@pytest.mark.parametrize(("height", "counted"), [(99, 0), (100, 1), (101, 1)])
def test_only_a_large_vehicle_must_return(height: float, counted: int) -> None:
    """A fifth of the picture's height."""
    assert after(seeing((430, 200, 140, height)), scan()).unreturned_n(0) == counted


def test_only_a_sure_vehicle_must_return() -> None:
    """The lidar may miss a thin person, and a doubtful box is none."""
    assert after(seeing((430, 200, 140, 110), score=0.49), scan()).unreturned_n(0) == 0
    assert after(seeing((430, 200, 140, 110), score=0.5), scan()).unreturned_n(0) == 1
    assert after(seeing((430, 200, 140, 110), kind=DetectionClass.PEDESTRIAN), scan()).unreturned_n(0) == 0


@pytest.mark.parametrize(("share", "counted"), [(0.99, 0), (1.0, 0), (1.01, 1)])
def test_what_returns_must_not_be_too_far_away(share: float, counted: int) -> None:
    """A lorry of 4 m that looks 110 pixels high is 28 m away; whatever is behind that is another thing."""
    most_m = CONFIG.vehicle_height_m * FOCAL_PX / 110
    assert after(AHEAD, scan(standing(x=most_m * share))).unreturned_n(0) == counted


@pytest.mark.parametrize(("share", "counted"), [(0.99, 0), (1.0, 1), (1.01, 1)])
def test_what_may_be_out_of_reach_is_excused(share: float, counted: int) -> None:
    """The lidar says itself how far it sees."""
    most_m = CONFIG.vehicle_height_m * FOCAL_PX / 110
    assert after(AHEAD, scan(reach_m=most_m * share)).unreturned_n(0) == counted


def test_each_result_about_that_time_must_have_it() -> None:
    """One box in one picture is a flicker."""
    monitor = LidarMonitor(CONFIG)
    monitor.see(NOTHING, NOW_NS - 70 * MS)
    monitor.see(AHEAD, NOW_NS - 20 * MS)
    monitor.observe(scan(), NOW_NS, NOW_NS, True, True)
    assert monitor.unreturned_n(0) == 0


# ---- what is not compared ----


@pytest.mark.parametrize(("age_ms", "judged"), [(149, True), (150, True), (151, False)])
def test_only_pictures_of_that_time_count(age_ms: int, judged: bool) -> None:
    """And two of them, or there is no judgement."""
    for sign in (1, -1):
        monitor = after(NOTHING, scan(standing()), ages_ms=(sign * age_ms, 10))
        assert (monitor.unseen_n(0) is not None) is judged
    assert after(NOTHING, scan(standing()), ages_ms=(20,)).unseen_n(0) is None


def test_a_scan_that_is_not_trusted_does_not_count() -> None:
    """It is a sign of life, but neither starts nor ends a run."""
    monitor = after(NOTHING, scan(standing(), healthy=False, fault="blind_sector"), 3)
    assert monitor.unseen_n(0) is None
    assert monitor.age_s(NOW_NS + 200 * MS) == 0.0
    assert monitor.unhealthy(0) is None, "a lidar that was never well is starting"
    assert not monitor.never.received
    monitor = after(NOTHING, scan(standing()), 3)
    at_ns = NOW_NS + 300 * MS
    monitor.see(AHEAD, at_ns - 20 * MS)
    monitor.observe(scan(healthy=False, stamp_ns=at_ns), at_ns, at_ns, True, True)
    assert (monitor.unseen_n(0), monitor.unhealthy(0)) == (3, 1.0)


@pytest.mark.parametrize("field", ["x_min_m", "x_max_m", "y_min_m", "y_max_m", "z_max_m"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_numbers_that_cannot_be_used(field: str, value: float) -> None:
    """A6: counted, and not believed."""
    monitor = after(NOTHING, scan(replace(standing(), **{field: value})), 2)  # type: ignore[arg-type]
    assert (monitor.invalid_n(NOW_NS + 100 * MS), monitor.unseen_n(0), monitor.age_s(NOW_NS)) == (2, None, None)


def test_an_inside_out_box_and_an_endless_reach_are_unusable() -> None:
    """The one has no place, the other would excuse everything."""
    for bad in (scan(replace(standing(), x_min_m=11.0)), scan(replace(standing(), y_min_m=2.0)), scan(reach_m=NAN)):
        assert after(NOTHING, bad).invalid_n(NOW_NS) == 1


def test_a_message_that_is_damaged_or_old_is_no_news() -> None:
    """CRC, a repeated stamp, one from the future."""
    monitor = LidarMonitor(CONFIG)
    monitor.observe(scan(), NOW_NS, NOW_NS, True, False)
    assert (monitor.crc.crc_n(NOW_NS), monitor.age_s(NOW_NS)) == (1, None)
    monitor.observe(scan(stamp_ns=NOW_NS + SECOND), NOW_NS, NOW_NS, True, True)
    assert monitor.age_s(NOW_NS) is None
    monitor.observe(scan(), NOW_NS, NOW_NS, True, True)
    monitor.observe(scan(), NOW_NS + 100 * MS, NOW_NS + 100 * MS, True, True)
    assert monitor.age_s(NOW_NS + 100 * MS) == pytest.approx(0.1)


finite = st.floats(-1e6, 1e6)
anything = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.tuples(anything, anything, anything, anything, anything), max_size=8),
    st.lists(st.tuples(anything, anything, anything, anything), max_size=8),
    st.integers(0, 4000),
    anything,
)
def test_whatever_is_said_it_is_judged_or_refused(
    obstacles: list[tuple[float, ...]], boxes: list[tuple[float, ...]], width: int, reach_m: float
) -> None:
    """A6: no number makes it fail."""
    monitor = LidarMonitor(CONFIG)
    found = Detections(width, 500, tuple(Detection("", 0, 0.9, *b) for b in boxes))
    for age_ms in (70, 20):
        monitor.see(found, NOW_NS - age_ms * MS)
    said = scan(*(Obstacle(*o, 3) for o in obstacles), reach_m=reach_m)  # type: ignore[arg-type]
    monitor.observe(said, NOW_NS, NOW_NS, True, True)
    assert monitor.unseen_n(0) in (None, 0, 1) and monitor.unreturned_n(0) in (None, 0, 1)


# ---- through the supervisor ----


def say(rig: Rig, seen: Detections, **changes: object) -> None:
    """Have the detector see this, a little differently each time."""

    def edit(result: TierResult) -> TierResult:
        if not isinstance(result.payload, Detections):
            return result
        return replace(result, payload=flickering(seen, result.source_stamp_ns), **changes)  # type: ignore[arg-type]

    rig.edit_result = edit


def with_lidar() -> Rig:
    """A vehicle with a lidar, in NOMINAL."""
    rig = driving(lidar_expected=True)
    say(rig, AHEAD)
    rig.scan = replace(rig.scan, obstacles=(standing(),))
    rig.run(1.0)
    assert rig.state is S.NOMINAL and not rig.faults()
    return rig


def silent(rig: Rig) -> None:
    rig.alive.discard("lidar")


def ailing(rig: Rig) -> None:
    rig.scan = replace(rig.scan, healthy=False, fault="blind_sector")


def unusable(rig: Rig) -> None:
    rig.scan = replace(rig.scan, obstacles=(replace(standing(), x_min_m=NAN),))


def unseen(rig: Rig) -> None:
    say(rig, seeing((10, 200, 30, 30)))


def unreturned(rig: Rig) -> None:
    rig.scan = replace(rig.scan, obstacles=())


@pytest.mark.parametrize(
    ("fail", "fault", "state", "within_s"),
    [
        (silent, "lidar.stale", S.L3_PERCEPTION_ONLY, 0.5),
        (ailing, "lidar.self_report", S.L3_PERCEPTION_ONLY, 0.2),
        (unusable, "lidar.invalid", S.L3_PERCEPTION_ONLY, 0.3),
        (unseen, "lidar.unseen", S.L2_TAKEOVER_REQUEST, 0.8),
        (unreturned, "lidar.unreturned", S.L2_TAKEOVER_REQUEST, 1.1),
    ],
)
def test_what_follows(fail: Callable[[Rig], None], fault: str, state: S, within_s: float) -> None:
    """Without the cross-check the vehicle goes slowly; contradicted, it asks the driver."""
    rig = with_lidar()
    fail(rig)
    assert rig.until(state, 3.0) <= within_s
    assert fault in rig.faults()


def test_one_that_never_speaks_is_waited_for_and_then_done_without() -> None:
    """A2: held still through the grace, then slowly, with the reason."""
    rig = Rig(lidar_expected=True, startup_grace_s=2.0)
    rig.alive.discard("lidar")
    rig.run(1.9)
    assert rig.state is S.INITIALISING and "lidar" in rig.record.reason
    rig.run(0.5)
    assert rig.state is S.L3_PERCEPTION_ONLY and rig.faults() == ["lidar.never_received"]


def test_none_is_missed_where_none_is_expected() -> None:
    """And what a stray one says is not heard."""
    rig = driving()
    rig.core.on_obstacles(scan(standing(), stamp_ns=rig.stamp_ns), rig.now_ns, True)
    rig.run(3.0)
    assert rig.state is S.NOMINAL and not rig.faults()


def test_only_fresh_results_are_held_against_it() -> None:
    """What the detector repeats is about another time."""
    rig = with_lidar()
    say(rig, AHEAD, origin=Origin.LAST_FRAME)
    rig.scan = replace(rig.scan, obstacles=())
    rig.run(2.0)
    assert "lidar.unreturned" not in rig.faults()


def test_after_a_clock_step_nothing_old_is_compared() -> None:
    """A12: pictures of the old time explain nothing of the new one."""
    monitor = LidarMonitor(CONFIG)
    for age_ms in (70, 20):
        monitor.see(AHEAD, NOW_NS - age_ms * MS)
    monitor.restart()
    monitor.see(NOTHING, NOW_NS - 20 * MS)
    monitor.observe(scan(standing()), NOW_NS, NOW_NS, True, True)
    assert monitor.unseen_n(0) is None, "one picture is too few"
    rig = with_lidar()
    assert rig.core._lidar is not None and rig.core._lidar._pictures
    rig.alive -= {"detector"}
    rig.clock_step_ns -= SECOND // 2
    rig.tick()
    assert not rig.core._lidar._pictures


def test_a_clock_that_is_set_back_again_and_again_silences_no_lidar() -> None:
    """A12: its stamps begin anew each time, also when ages are judged at once."""
    rig = with_lidar()
    for _ in range(3):
        rig.clock_step_ns -= 30 * SECOND
        rig.run(1.2)
    assert not {"lidar.unseen", "lidar.unreturned", "lidar.stale"} & set(rig.faults())
