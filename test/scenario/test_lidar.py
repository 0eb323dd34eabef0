"""The lidar sees the same world as the camera, by other means."""

from __future__ import annotations

import math
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triptych.contract import ConfigError, DetectionClass, Light, PointCloud, Road, Weather
from triptych.scenario import LidarModel, Scenario, ScenarioConfig, lidar, random_config, street, vehicles
from triptych.scenario.actors import Actor, make_pedestrian, make_vehicle
from triptych.scenario.lidar import Pose, solids, sweep
from triptych.scenario.mesh import Builder
from triptych.scenario.props import Instance
from triptych.scenario.road import BEND_AT_M

SRC = Path(__file__).parents[2] / "src"
STRAIGHT = np.zeros(len(BEND_AT_M))
CLEAR = lidar.CLEAR_PER_M
QUIET = LidarModel(noise_m=0.0)

_PROGRAM = """
import zlib
from triptych.scenario import Scenario, random_config
total = 0
for seed in (3, 4, 11):
    s = Scenario(random_config(seed))
    for k in range(30):
        s.step(0.05, None)
        if k % 6 == 0:
            total = zlib.crc32(s.scan(), total)
print(total)
"""


def _bare(model: LidarModel | None = None, **overrides: object) -> Scenario:
    """A road with nobody and nothing on it or beside it."""
    values: dict[str, object] = {
        "traffic": 0.0,
        "pedestrians": 0.0,
        "two_wheelers": 0.0,
        "curvature": 0.0,
        "width_px": 640,
        "height_px": 360,
        "seed": 2,
    }
    s = Scenario(ScenarioConfig(**(values | overrides)), model)  # type: ignore[arg-type]
    s._traffic.actors.clear()
    s._traffic.furnished.clear()
    return s


def _put(s: Scenario, actor: Actor, ahead_m: float, d_m: float) -> Actor:
    actor.s, actor.d = s.position_m + ahead_m, d_m
    s._traffic.actors.append(actor)
    return actor


def _car() -> Actor:
    shape = vehicles.CAR_SHAPES[0]
    mesh = vehicles.car(shape, vehicles.CAR_COLOURS[0])
    return Actor("car", DetectionClass.VEHICLE, 0, 0, 0, 1, shape.length, shape.width, mesh)


def _above(s: Scenario, points: npt.NDArray[np.float32], clearance_m: float = 0.1) -> npt.NDArray[np.float32]:
    return points[points[:, 2] > clearance_m - s.lidar.height_m]


def _block(x: tuple[float, float], y: tuple[float, float], z: tuple[float, float], **place: float) -> Instance:
    b = Builder()
    b.box(x, y, z, (0, 0, 0))
    return Instance(b.build(), place.get("s", 0.0), place.get("d", 0.0), place.get("y", 0.0))


def _sweep(things: list[Instance], model: LidarModel = QUIET, extinction_per_m: float = CLEAR) -> lidar.Sweep:
    return sweep(model, things, Pose(0.0, 0.0, 0.0, STRAIGHT), extinction_per_m, np.random.default_rng(0))


# ---- the road


def test_an_empty_world_gives_the_road_and_nothing_else() -> None:
    """Every ring that points down comes back from the road at its height; no other does."""
    s = _bare()
    points = s.scan()
    assert points.dtype == np.float32
    assert PointCloud(points, 0).points is points
    model = s.lidar
    down = [r for r in model.rings_deg if r < 0.0 and model.height_m / math.sin(math.radians(-r)) < model.max_range_m]
    assert len(points) == len(down) * len(model.azimuths_rad())
    # the range is uncertain, so the height is by the sine of the elevation, and never by more than six deviations
    steepest = math.sin(math.radians(18.0))
    assert np.abs(points[:, 2] + 1.8).max() < 6 * 0.02 * steepest
    assert points[:, 2].mean() == pytest.approx(-1.8, abs=1e-3)


def test_several_rings_meet_the_road_where_the_vehicle_will_brake() -> None:
    """At least eight rings between 5 and 20 m straight ahead."""
    points = _bare(QUIET).scan()
    ahead = points[np.abs(points[:, 1]) < 0.01 * points[:, 0]]
    distances = np.unique(np.round(ahead[(ahead[:, 0] > 5.0) & (ahead[:, 0] < 20.0), 0], 2))
    assert len(distances) >= 8
    assert distances[0] < 6.0


# ---- a vehicle


def test_a_vehicle_20_m_ahead_is_met_at_its_rear_face_and_casts_a_shadow() -> None:
    """The lowest part comes back from the bumper, within the noise; behind it the road is dark up to where the beams
    over the roof come down."""
    s = _bare()
    empty = s.scan()
    car = _put(s, _car(), 20.0, 0.0)
    points = s.scan()
    rear_m = 20.0 - car.length / 2
    body = points[(points[:, 2] > -1.6) & (points[:, 2] < -1.0) & (np.abs(points[:, 1]) < car.width / 2 - 0.1)]
    body = body[body[:, 0] < rear_m + 1.0]
    assert len(body) > 40
    assert body[:, 0].mean() == pytest.approx(rear_m, abs=0.02)
    assert body[:, 0].std() == pytest.approx(0.02, abs=0.006)
    tall = points[(np.abs(points[:, 1]) < 2.0) & (points[:, 2] > -1.6)]
    assert tall[:, 2].max() == pytest.approx(float(car.mesh.vertices[:, 1].max()) - 1.8, abs=0.15)
    assert np.ptp(tall[:, 1]) == pytest.approx(car.width, abs=0.2)

    def behind(cloud: npt.NDArray[np.float32]) -> int:
        inside = np.abs(cloud[:, 1]) < 0.4 * car.width * cloud[:, 0] / rear_m
        return int(np.count_nonzero(inside & (cloud[:, 0] > 20.0 + car.length / 2) & (cloud[:, 0] < 55.0)))

    assert behind(empty) > 40
    assert behind(points) == 0


@pytest.mark.parametrize(("ahead_m", "least"), [(40.0, 15), (55.0, 4)])
def test_a_car_far_ahead_still_returns(ahead_m: float, least: int) -> None:
    """At 40 m several rings meet it, near the end of the range some."""
    s = _bare()
    _put(s, _car(), ahead_m, 0.0)
    assert len(_above(s, s.scan(), 0.2)) >= least


def test_a_pedestrian_at_30_m_returns() -> None:
    """A person is a few beams wide."""
    s = _bare()
    _put(s, make_pedestrian(np.random.default_rng(6)), 30.0, 1.0)
    points = _above(s, s.scan(), 0.2)
    assert len(points) >= 8
    assert points[:, 0] == pytest.approx(30.0, abs=0.3)
    assert points[:, 1] == pytest.approx(-1.0, abs=0.5)


def test_a_vehicle_across_the_road_shows_its_side() -> None:
    """Turned by 90 degrees it is as wide as it is long."""
    s = _bare()
    car = make_vehicle(np.random.default_rng(1), 0, 0.0)
    car.across = 1
    _put(s, car, 20.0, 0.0)
    points = _above(s, s.scan(), 0.2)
    assert np.ptp(points[:, 1]) == pytest.approx(car.length, abs=0.3)
    assert points[:, 0].min() == pytest.approx(20.0 - car.width / 2, abs=0.12)


def test_left_is_left() -> None:
    """REP-103: what stands to the left has positive y."""
    s = _bare()
    _put(s, _car(), 15.0, -3.5)
    assert _above(s, s.scan())[:, 1].min() > 2.0


def test_a_mount_ahead_of_the_origin_brings_things_nearer() -> None:
    """Frame ``lidar`` begins at the sensor."""
    far, near = _bare(LidarModel(noise_m=0.0)), _bare(LidarModel(noise_m=0.0, mount_x_m=1.5))
    for s in (far, near):
        _put(s, _car(), 20.0, 0.0)
    x = [_above(s, s.scan())[:, 0].min() for s in (far, near)]
    assert x[0] - x[1] == pytest.approx(1.5, abs=0.01)


# ---- what hangs above the road


def test_an_arm_above_the_road_is_not_a_wall_down_to_it() -> None:
    """The post of a traffic light comes back, and below its arm there is nothing but road."""
    arm = Instance(street.post(5.6, 0.18, (70, 72, 72), -4.4), 15.0, 4.7)
    high = Instance(street.traffic_light(True), 14.8, 0.3, y=5.1)
    found = _sweep([arm, high])
    over = found.points[(found.things >= 0) & (found.points[:, 1] > -4.4)]
    assert len(over) == 0 or over[:, 2].min() > 5.0 - QUIET.height_m
    assert np.count_nonzero(found.things == 0) > 10
    boxes = solids(arm.mesh)
    wide = boxes[:, 3] - boxes[:, 0] > 2.0
    assert wide.sum() == 1
    assert boxes[wide, 1] > 5.2


def test_a_bridge_is_met_from_below_and_the_road_under_it_is_seen() -> None:
    """A slab above the road hides none of it, and comes back at its underside or front."""
    bridge = _block((-20.0, 20.0), (5.3, 6.6), (-4.5, 4.5), s=40.0)
    found = _sweep([bridge])
    slab = found.points[found.things == 0]
    assert len(slab) > 20
    assert slab[:, 2].min() > 5.29 - QUIET.height_m
    assert np.count_nonzero(found.things == -1) == np.count_nonzero(_sweep([]).things == -1)


@pytest.mark.parametrize("seed", range(6))
def test_the_boxes_of_a_mesh_hold_it_and_not_much_more(seed: int) -> None:
    """Their union has the extents of the mesh without its shadow, up to the depth flat parts are given."""
    for actor in (make_vehicle(np.random.default_rng(seed), 1, 0.5), make_pedestrian(np.random.default_rng(seed))):
        mesh, boxes = actor.mesh, solids(actor.mesh)
        v = mesh.vertices[mesh.unboxed :]
        assert boxes[:, :3].min(axis=0) == pytest.approx(v.min(axis=0), abs=0.11)
        assert boxes[:, 3:].max(axis=0) == pytest.approx(v.max(axis=0), abs=0.11)
        assert np.all(boxes[1:, 1] >= boxes[:-1, 4] - 0.01)
        inside = (v[:, None] >= boxes[None, :, :3] - 1e-4) & (v[:, None] <= boxes[None, :, 3:] + 1e-4)
        assert inside.all(axis=2).any(axis=1).all()
        assert len(boxes) <= 16


# ---- against a slower way to say the same

_SIDE = st.tuples(st.floats(-12.0, 12.0), st.floats(0.2, 8.0))
_BLOCKS = st.lists(st.tuples(_SIDE, st.tuples(st.floats(0.0, 4.0), st.floats(0.1, 3.0)), _SIDE), max_size=5)


def _cast(model: LidarModel, things: list[Instance], yaw: float, d: float, grown_m: float) -> npt.NDArray[np.float64]:
    """Range of every beam (rings, columns), 0 from within a box, infinite into the open: each beam with each box."""
    elevation, azimuth = np.meshgrid(np.radians(model.rings_deg), model.azimuths_rad(), indexing="ij")
    level = np.cos(elevation)
    x, y, z = -np.sin(azimuth) * level, np.sin(elevation), np.cos(azimuth) * level
    ray = np.stack([x + yaw * z, y, z], axis=2)  # what shears the boxes for the sensor, shears the ray for the boxes
    with np.errstate(divide="ignore"):
        r = np.where(y < 0.0, -model.height_m / y, np.inf)
        for thing in things:
            v = thing.mesh.vertices.astype(float) + np.array([-d, -model.height_m, thing.s])
            a, b = (v.min(axis=0) - grown_m) / ray, (v.max(axis=0) + grown_m) / ray
            enter, leave = np.maximum(0.0, np.minimum(a, b).max(axis=2)), np.maximum(a, b).min(axis=2)
            r = np.where(enter <= leave, np.minimum(r, enter), r)
    return np.asarray(r)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(_BLOCKS, st.floats(-0.3, 0.3), st.floats(-1.0, 1.0))
@example([((0.0, 1.0), (0.0, 2.0), (0.0, 1.0))], 0.0, 0.0)
@example([((-6.0, 12.0), (3.0, 1.0), (-4.0, 8.0))], 0.1, 0.0)
@example([((-1.0, 0.9), (0.5, 3.0), (-4.0, 8.0))], 0.3, 0.0)
@example([((-6.0, 3.0), (1.8, 1.0), (5.0, 0.5))], -0.3, 1.0)
@example([((0.0, 1.0), (1.7974479668831278, 1.0), (0.0, 1.0))], 0.0, 0.0)
def test_every_beam_ends_where_a_ray_through_all_boxes_would(blocks: list, yaw: float, d: float) -> None:  # type: ignore[type-arg]
    """What the intervals of columns and rings give lies between what a test of each beam with each box gives for boxes
    a millimetre larger and a millimetre smaller; from within a box nothing comes back."""
    things = [
        _block((x, x + w), (y, y + h), (z, z + depth), s=9.0 * k)
        for k, ((x, w), (y, h), (z, depth)) in enumerate(blocks)
    ]
    model = LidarModel((-17.0, -9.0, -4.0, -1.0, 0.0, 2.0, 7.0), azimuth_step_deg=3.0, noise_m=0.0, min_range_m=0.1)
    found = sweep(model, things, Pose(0.0, d, yaw, STRAIGHT), CLEAR, np.random.default_rng(0))
    p = found.points.astype(float)
    r = np.linalg.norm(p, axis=1)
    ring = np.abs(np.degrees(np.arcsin(p[:, 2] / r))[:, None] - np.array(model.rings_deg)).argmin(axis=1)
    column = np.abs(np.arctan2(p[:, 1], p[:, 0])[:, None] - model.azimuths_rad()).argmin(axis=1)
    ranges = np.full((len(model.rings_deg), len(model.azimuths_rad())), np.nan)
    ranges[ring, column] = r
    assert np.count_nonzero(np.isfinite(ranges)) == len(p), "no beam comes back twice"

    nearest, furthest = (_cast(model, things, yaw, d, grown_m) for grown_m in (0.001, -0.001))
    between = (ranges >= nearest - 1e-3) & (ranges <= furthest + 1e-3)
    silent = np.isnan(ranges) & ((nearest < model.min_range_m + 1e-3) | (furthest > model.max_range_m - 1e-3))
    on_the_lens = furthest <= 0.02  # of what is nearer than that, nothing is promised
    assert np.all(between | silent | on_the_lens)


# ---- together with the camera


@pytest.mark.parametrize("seed", range(10))
def test_bearings_agree_with_the_picture(seed: int) -> None:
    """Projected through the camera, what comes back from a road user lies in its truth box, grown by 0.2 m at its
    distance, on bends, with yaw and beside the centre of the lane as well."""
    overrides = {} if seed % 2 else {"road": Road.URBAN, "traffic": 2.0, "pedestrians": 3.0, "two_wheelers": 3.0}
    s = Scenario(random_config(seed, width_px=640, height_px=360, curvature=2.0, **overrides))
    width, height = 640, 360
    met = 0
    for turn in range(3):
        for _ in range(40):
            s.step(0.05, None)
        s._ego.d, s._ego.yaw_rad, s._drawn = 0.4 * turn, 0.03 * (turn - 1), None
        things = s._instances()
        found, truth, drawing = s._sweep(things), s.truth(), s._draw()[0]
        assert np.array_equal(found.points, s.scan())
        nearest = {}
        for k, i in enumerate(drawing.instances):
            z = drawing.z_m[int(drawing.first_vertex[k]) + drawing.meshes[k].unboxed : int(drawing.first_vertex[k + 1])]
            nearest[i.kind, i.s, i.d] = max(float(z.min()), 0.0)
        for index in range(len(things) - len(s._traffic.actors), len(things)):
            thing = things[index]
            boxes = [
                b
                for b in truth.boxes
                if b.kind == thing.kind and b.distance_m == nearest.get((thing.kind, thing.s, thing.d))
            ]
            p = found.points[found.things == index]
            p = p[p[:, 0] > 1.0]
            if len(boxes) != 1 or not len(p):
                continue
            box = boxes[0]
            uv = s.camera.project(-p[:, 1], p[:, 2] + np.float32(s.lidar.height_m), p[:, 0] + s.lidar.mount_x_m)
            inside = (uv[:, 0] > 0) & (uv[:, 0] < width) & (uv[:, 1] > 0) & (uv[:, 1] < height)
            uv, grown = uv[inside], 0.2 * s.camera.fx_px / p[inside, 0] + 1.0
            assert np.all(uv[:, 0] >= box.x_min - grown), thing.kind
            assert np.all(uv[:, 0] <= box.x_max + grown), thing.kind
            assert np.all(uv[:, 1] >= box.y_min - grown), thing.kind
            assert np.all(uv[:, 1] <= box.y_max + grown), thing.kind
            met += len(uv) > 0
    assert met > 0


def test_what_the_camera_shows_plainly_the_lidar_meets() -> None:
    """Vehicles and people fully visible within 30 m come back, over several busy streets: none is missing."""
    counted = 0
    for seed in range(8):
        s = Scenario(random_config(seed, width_px=640, height_px=360, road=Road.URBAN, pedestrians=2.0))
        for _ in range(60):
            s.step(0.05, None)
        model = LidarModel(noise_m=0.0)
        bend = s._plan.bend(s.position_m)
        things = s._instances()
        pose = Pose(s.position_m, s.lateral_m, s._ego.yaw_rad, bend)
        found = sweep(model, things, pose, CLEAR, np.random.default_rng(0))
        met = {round(float(things[k].s), 6) for k in np.unique(found.things) if k >= 0}
        drawing = s._draw()[0]
        plain = {(b.kind, b.distance_m) for b in s.truth().boxes if b.visible > 0.9 and 3.0 < b.distance_m < 30.0}
        for k, i in enumerate(drawing.instances):
            z = drawing.z_m[int(drawing.first_vertex[k]) + drawing.meshes[k].unboxed : int(drawing.first_vertex[k + 1])]
            if (i.kind, float(z.min())) in plain and i.kind in (
                "car",
                "van",
                "truck",
                "bus",
                "parked car",
                "pedestrian",
            ):
                counted += 1
                assert round(float(i.s), 6) in met, (seed, i.kind)
    assert counted > 15


# ---- weather


def test_fog_shortens_the_range_and_rain_a_little() -> None:
    """The same turn in clear air, rain and fog: fewer and nearer echoes; nothing beyond the range of the equation."""
    points = {w: _bare(weather=w).scan() for w in (Weather.CLEAR, Weather.RAIN, Weather.FOG)}
    far = {w: float(np.linalg.norm(p, axis=1).max()) for w, p in points.items()}
    assert far[Weather.CLEAR] > 50.0
    assert far[Weather.CLEAR] > far[Weather.RAIN] > far[Weather.FOG]
    assert far[Weather.FOG] < 37.0
    assert len(points[Weather.CLEAR]) > 1.1 * len(points[Weather.RAIN]) > 1.1 * len(points[Weather.FOG])


@pytest.mark.parametrize("extinction", [0.0, CLEAR, 0.005, 0.008, 0.018, 0.036, 0.2])
def test_an_echo_at_the_reach_is_as_weak_as_one_at_full_range_in_clear_air(extinction: float) -> None:
    """exp(-2 a r) / r² is equal; better air than clear does not lengthen the range."""
    model = LidarModel()
    r, a = model.reach_m(extinction), max(extinction, CLEAR)
    assert math.exp(-2 * a * r) / r**2 == pytest.approx(math.exp(-2 * CLEAR * 60.0) / 60.0**2)
    assert r <= 60.0 + 1e-9


def test_darkness_does_not_matter() -> None:
    """The lidar brings its own light."""
    day, night = (_bare(light=light) for light in (Light.DAY, Light.NIGHT))
    assert np.array_equal(day.scan(), night.scan())


@pytest.mark.parametrize(("share", "back"), [(0.99, True), (1.01, False)])
def test_nothing_comes_back_from_beyond_the_range(share: float, back: bool) -> None:
    """At 0.99 and 1.01 of the greatest range (both limits)."""
    model = LidarModel((0.0,), noise_m=0.0)
    wall = _sweep([_block((-9.0, 9.0), (0.0, 4.0), (0.0, 1.0), s=60.0 * share)], model)
    ahead = wall.points[np.abs(wall.points[:, 1]) < 0.3]
    assert (len(ahead) > 0) is back
    model = LidarModel((0.0,), noise_m=0.0, min_range_m=2.0)
    wall = _sweep([_block((-9.0, 9.0), (0.0, 4.0), (0.0, 1.0), s=2.0 / share)], model)
    ahead = wall.points[np.abs(wall.points[:, 1]) < 0.02]
    assert (len(ahead) > 0) is back


# ---- the drive


def test_two_processes_give_the_same_scans() -> None:
    """Byte for byte, with different hash seeds (A12: twenty runs identical)."""
    out = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={"PYTHONPATH": str(SRC), "PYTHONHASHSEED": h, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for h in ("1", "2")
    }
    assert len(out) == 1
    assert out.pop().isdigit()


def test_scanning_does_not_change_the_drive() -> None:
    """A drive with scans and one without: same world, same random numbers, same picture; asking twice is the same."""
    config = random_config(5, width_px=256, height_px=144, road=Road.URBAN, pedestrians=2.0)
    a, b = Scenario(config), Scenario(config)
    for k in range(60):
        a.step(0.05, None)
        b.step(0.05, None)
        for _ in range(k % 3):
            a.scan()
    assert a._traffic._rng.bit_generator.state == b._traffic._rng.bit_generator.state
    assert a.outcome == b.outcome
    assert np.array_equal(a.scan(), b.scan())
    assert np.array_equal(a.scan(), a.scan())
    assert a.truth() == b.truth()
    assert np.array_equal(a.render(), b.render())


def test_the_camera_and_the_lidar_are_set_apart() -> None:
    """Another size, exposure or noise of the picture leaves the scan as it is."""
    values = {"weather": Weather.FOG, "seed": 4}
    a = Scenario(ScenarioConfig(width_px=128, height_px=72, **values))  # type: ignore[arg-type]
    b = Scenario(ScenarioConfig(exposure=0.5, sensor_noise=9.0, camera_pitch_deg=5.0, **values))  # type: ignore[arg-type]
    assert np.array_equal(a.scan(), b.scan())
    assert a._renderer is None, "a scan needs no picture"


def test_successive_scans_of_a_standstill_differ() -> None:
    """Noise belongs to the tick, so a frozen lidar can be told from a standing vehicle; seeds differ as well."""
    s = _bare(set_speed_mps=0.0)
    seen = set()
    for _ in range(3):
        s.step(0.05, None)
        s._traffic.furnished.clear()
        assert s.speed_mps == 0.0
        assert not s._instances()
        seen.add(zlib.crc32(s.scan()))
    assert len(seen) == 3
    assert zlib.crc32(_bare(seed=3).scan()) != zlib.crc32(_bare(seed=2).scan())


def test_the_work_of_a_scan_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the busiest streets a scan looks at few boxes, columns and beams: below 1000, 20 000 and 100 000."""
    sizes: list[tuple[int, int]] = []
    pairs = lidar._ranges

    def counted(low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        out = pairs(low, high)
        sizes.append((len(low), len(out[0])))
        return out

    monkeypatch.setattr(lidar, "_ranges", counted)
    for seed in range(6):
        s = Scenario(random_config(seed, road=Road.URBAN, traffic=3.0, pedestrians=3.0, two_wheelers=3.0))
        for _ in range(3):
            for _ in range(20):
                s.step(0.05, None)
            s.scan()
    assert sizes
    assert max(boxes for boxes, _ in sizes[0::2]) < 1000
    assert max(columns for _, columns in sizes[0::2]) < 20_000
    assert max(beams for _, beams in sizes[1::2]) < 100_000


# ---- the model


@pytest.mark.parametrize(
    "values",
    [
        {"rings_deg": ()},
        {"rings_deg": (1.0, 0.0)},
        {"rings_deg": (0.0, math.nan)},
        {"rings_deg": (-61.0,)},
        {"azimuth_step_deg": 0.0},
        {"azimuth_step_deg": math.nan},
        {"field_deg": 181.0},
        {"min_range_m": 0.0},
        {"max_range_m": math.inf},
        {"height_m": -1.8},
        {"mount_x_m": math.nan},
        {"noise_m": -0.01},
    ],
)
def test_a_sensor_that_cannot_be_is_refused(values: dict[str, object]) -> None:
    """One sentence that names the field."""
    with pytest.raises(ConfigError, match=next(iter(values))):
        LidarModel(**values)  # type: ignore[arg-type]


def test_the_beams_are_symmetric_and_as_many_as_the_field_holds() -> None:
    """450 columns of 0.4 degrees in 180, none of them straight to the side."""
    azimuths = np.degrees(LidarModel().azimuths_rad())
    assert len(azimuths) == 450
    assert azimuths == pytest.approx(-azimuths[::-1])
    assert np.diff(azimuths) == pytest.approx(0.4)
    assert azimuths[-1] == pytest.approx(89.8)
