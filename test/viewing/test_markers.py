"""Markers: geometry against hand-computed cases, a round trip through the projection, and hostile numbers."""

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from triptych.contract import (
    ConfigError,
    DegradationState,
    Detection,
    DetectionClass,
    Detections,
    LatencySplit,
    MotionConstraint,
    Obstacle,
    Obstacles,
    Origin,
    Tier,
    TierResult,
)
from triptych.viewing.markers import (
    MAX_RANGE_M,
    TYPICAL_SIZE_M,
    GroundCamera,
    MarkerKind,
    detection_markers,
    locate,
    obstacle_markers,
    scene_markers,
    state_markers,
)

CAMERA = GroundCamera(1000.0, 1000.0, 640.0, 360.0, height_m=1.5, forward_m=1.0)


def detection(left: float, top: float, right: float, bottom: float, kind: int = 0) -> Detection:
    return Detection("thing", kind, 0.8, left, top, right, bottom)


def test_ground_contact_ahead() -> None:
    """100 px below the horizon at 1000 px focal length and 1.5 m height is 15 m ahead of the camera."""
    position = CAMERA.on_ground(640.0, 460.0)
    assert position == pytest.approx((16.0, 0.0))


def test_right_of_the_image_is_negative_y() -> None:
    """REP-103: y points left."""
    x, y = CAMERA.on_ground(840.0, 460.0) or (0.0, 0.0)
    assert (x, y) == pytest.approx((16.0, -3.0))


def test_nothing_at_or_above_the_horizon() -> None:
    assert CAMERA.on_ground(640.0, 360.0) is None
    assert CAMERA.on_ground(640.0, 100.0) is None


@given(x=st.floats(2.0, 100.0), y=st.floats(-20.0, 20.0), pitch=st.floats(-0.1, 0.2), height=st.floats(0.8, 3.0))
def test_ground_points_survive_the_round_trip(x: float, y: float, pitch: float, height: float) -> None:
    """Project a ground point with the textbook matrix and find it again."""
    camera = dataclasses.replace(CAMERA, pitch_rad=pitch, height_m=height)
    forward = x - camera.forward_m
    depth = forward * math.cos(pitch) + height * math.sin(pitch)
    below = height * math.cos(pitch) - forward * math.sin(pitch)
    assume(depth > 0.1 and abs(math.atan2(below, depth) + pitch) > 0.002)
    u, v = camera.cx_px - y / depth * camera.fx_px, camera.cy_px + below / depth * camera.fy_px
    assert camera.on_ground(u, v) == pytest.approx((x, y), rel=1e-6, abs=1e-6)
    assert camera.at_depth(u, v, depth) == pytest.approx((x, y, 0.0), rel=1e-6, abs=1e-6)


def test_vehicle_stands_on_the_ground_half_a_length_behind_its_bottom_edge() -> None:
    length, _, height = TYPICAL_SIZE_M[DetectionClass.VEHICLE]
    assert locate(detection(540, 380, 740, 460), CAMERA) == pytest.approx((16.0 + length / 2, 0.0, height / 2))


def test_traffic_light_hangs_at_the_distance_of_its_typical_height() -> None:
    """0.9 m over 30 px at 1000 px focal length is 30 m; 200 px above the axis is 6 m above the camera."""
    centre = locate(detection(635, 145, 645, 175, DetectionClass.TRAFFIC_LIGHT), CAMERA)
    assert centre == pytest.approx((31.0, 0.0, 7.5))


def test_vehicle_at_the_horizon_is_placed_by_its_height() -> None:
    """Uphill, the bottom edge is above the flat ground's horizon: the distance comes from the box height."""
    centre = locate(detection(600, 330, 680, 360), CAMERA)
    assert centre is not None and centre[0] == pytest.approx(1.0 + 50.0, abs=0.1)


@pytest.mark.parametrize(
    "corners",
    [(math.nan, 0, 1, 1), (0, 0, math.inf, 1), (5, 5, 1, 9), (5, 5, 9, 5), (600, 355, 600.5, 355.5)],
)
def test_unusable_boxes_have_no_position(corners: tuple[float, float, float, float]) -> None:
    """A6; the last one would stand three kilometres away."""
    assert locate(detection(*corners), CAMERA) is None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4), st.integers(-3, 300))
def test_positions_are_finite_and_in_range(corners: list[float], class_id: int) -> None:
    """A6: whatever the corners, a position is either absent or finite and within range."""
    centre = locate(Detection("x", class_id, 0.5, *corners), CAMERA)
    assert centre is None or (all(map(math.isfinite, centre)) and math.hypot(centre[0], centre[1]) <= MAX_RANGE_M)


def test_markers_have_distinct_identities_and_fade_when_stale() -> None:
    detections = Detections(1280, 720, (detection(540, 380, 740, 460), detection(140, 380, 240, 480, 2)))
    fresh, stale = detection_markers(detections, CAMERA), detection_markers(detections, CAMERA, stale=True)
    assert len({(m.namespace, m.id) for m in fresh}) == len(fresh) == 4
    cubes = [(a, b) for a, b in zip(fresh, stale, strict=True) if a.kind is MarkerKind.CUBE]
    assert all(b.colour[3] < a.colour[3] for a, b in cubes)
    assert all("old" in m.text for m in stale if m.kind is MarkerKind.TEXT_VIEW_FACING)
    assert "18 m" in fresh[1].text


def test_what_a_lidar_sees_stands_where_it_is_and_pales_with_its_health() -> None:
    car = Obstacle(8.0, 12.0, -1.0, 1.0, 1.5, 40)
    nowhere = Obstacle(math.nan, 1.0, 0.0, 1.0, 1.0, 3)
    scan = Obstacles(1, "base_link", 5000, 60.0, True, "", (car, nowhere))
    (box,) = obstacle_markers(scan)
    assert (box.kind, box.position_m, box.size_m) == (MarkerKind.CUBE, (10.0, 0.0, 0.75), (4.0, 2.0, 1.5))
    (pale,) = obstacle_markers(dataclasses.replace(scan, healthy=False, fault="blind_sector"))
    assert pale.colour[3] < box.colour[3]
    shown = scene_markers(None, CAMERA, DegradationState.NOMINAL, scan=scan)
    assert box in shown and box not in scene_markers(None, CAMERA, DegradationState.NOMINAL)


def test_state_text_says_state_reason_limit_and_countdown() -> None:
    constraint = MotionConstraint(0, 5.0, 2.0, True, True, True, DegradationState.L2_TAKEOVER_REQUEST, "")
    text = state_markers(DegradationState.L2_TAKEOVER_REQUEST, "stalled", constraint, 10.0, 7.6)[0].text
    assert text == (
        "L2 TAKEOVER REQUEST\nstalled\ntake over: 8 s\n"
        "36 km/h, limit 18 km/h, hazard lights, pull over, remote centre told"
    )
    assert "NO SUPERVISOR" in state_markers(None)[0].text


def test_stop_line_is_at_the_braking_distance() -> None:
    """20 m/s at 2 m/s2 takes 100 m; no line without a stop command or with an unknown speed."""
    stop = MotionConstraint(0, 0.0, 2.0, True, False, True, DegradationState.L1_MINIMAL_RISK_MANOEUVRE, "")
    line = [m for m in state_markers(stop.state, "", stop, 20.0) if m.kind is MarkerKind.LINE_STRIP]
    assert len(line) == 1 and line[0].position_m[0] == pytest.approx(103.5)
    assert not [m for m in state_markers(stop.state, "", stop, math.nan) if m.kind is MarkerKind.LINE_STRIP]
    go = dataclasses.replace(stop, speed_limit_mps=3.0)
    assert not [m for m in state_markers(go.state, "", go, 20.0) if m.kind is MarkerKind.LINE_STRIP]


@pytest.mark.parametrize(
    "origin,cubes,unknown", [(Origin.FRESH, 2, False), (Origin.LAST_FRAME, 2, False), (Origin.DEFAULT, 1, True)]
)
def test_default_is_unknown_not_free(origin: Origin, cubes: int, unknown: bool) -> None:
    """One cube is the vehicle itself."""
    result = TierResult(
        Tier.DETECTOR,
        origin,
        "",
        0,
        "c",
        1,
        0,
        1.0,
        LatencySplit(),
        "e",
        "1",
        "cpu",
        0.0,
        Detections(1280, 720, (detection(540, 380, 740, 460),)),
    )
    markers = scene_markers(result, CAMERA, DegradationState.NOMINAL)
    assert sum(m.kind is MarkerKind.CUBE for m in markers) == cubes
    assert any("unknown" in m.text for m in markers) is unknown


@pytest.mark.parametrize(
    "change", [{"fx_px": 0.0}, {"fy_px": -1.0}, {"height_m": 0.0}, {"cx_px": math.nan}, {"pitch_rad": math.inf}]
)
def test_camera_refuses_unusable_numbers(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(CAMERA, **change)


def test_camera_from_field_of_view() -> None:
    camera = GroundCamera.from_fov(1280, 720, 90.0)
    assert (camera.fx_px, camera.cx_px, camera.cy_px) == pytest.approx((640.0, 640.0, 360.0))
    for fov in (0.0, 180.0, math.nan):
        with pytest.raises(ConfigError):
            GroundCamera.from_fov(1280, 720, fov)
