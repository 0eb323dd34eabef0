"""Ground truth agrees with what is drawn."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from triptych.contract import Advice, DetectionClass, Hazard, Light, Road, Weather
from triptych.scenario import Scenario, ScenarioConfig, random_config
from triptych.scenario.actors import Actor, make_bicycle, make_pedestrian, make_vehicle

RNG = np.random.default_rng


def _bare(**overrides: object) -> Scenario:
    values: dict[str, object] = {
        "traffic": 0.0,
        "pedestrians": 0.0,
        "two_wheelers": 0.0,
        "curvature": 0.0,
        "width_px": 640,
        "height_px": 360,
        "sensor_noise": 0.0,
        "road": Road.HIGHWAY,
        "seed": 2,
    }
    s = Scenario(ScenarioConfig(**(values | overrides)))  # type: ignore[arg-type]
    s._traffic.actors.clear()
    return s


def _put(s: Scenario, actor: Actor, ahead_m: float, d_m: float) -> Actor:
    actor.s, actor.d, actor.lane = s.position_m + ahead_m, d_m, d_m
    s._traffic.actors.append(actor)
    s._drawn = None
    return actor


@pytest.mark.parametrize("seed", range(24))
def test_boxes_are_inside_the_picture_and_well_formed(seed: int) -> None:
    """Over random drives: boxes in the image, shares and contrasts in 0..1, sorted by distance."""
    width, height = (448, 256) if seed % 2 else (320, 240)
    s = Scenario(random_config(seed, width_px=width, height_px=height))
    for _ in range(4):
        for _ in range(25):
            s.step(0.05, None)
        truth = s.truth()
        distances = [box.distance_m for box in truth.boxes]
        assert distances == sorted(distances)
        for box in truth.boxes:
            assert 0 <= box.x_min < box.x_max <= width
            assert 0 <= box.y_min < box.y_max <= height
            assert box.x_max - box.x_min >= 3.0
            assert 0.0 <= box.visible <= 1.0
            assert 0.05 <= box.contrast <= 1.0
            assert box.class_id is not DetectionClass.OTHER
            assert math.isfinite(box.distance_m)
            assert box.kind
        assert Road.UNKNOWN not in (truth.road,)
        assert truth.weather is s.config.weather
        assert truth.light is s.config.light


def test_all_classes_appear_over_seeds() -> None:
    """A handful of drives shows every class, clearly visible, brake lights and all roads included."""
    counts = dict.fromkeys((c for c in DetectionClass if c is not DetectionClass.OTHER), 0)
    braking = 0
    roads = set()
    for seed in range(14):
        s = Scenario(random_config(seed, width_px=448, height_px=256))
        for _ in range(6):
            for _ in range(40):
                s.step(0.05, None)
            truth = s.truth()
            roads.add(truth.road)
            for box in truth.boxes:
                if box.visible > 0.6 and box.y_max - box.y_min > 8:
                    counts[box.class_id] += 1
                    braking += box.brake_lights
    assert min(counts.values()) >= 5, counts
    assert braking >= 3
    assert len(roads) == 5


@pytest.mark.parametrize(
    ("make", "ahead", "d"),
    [
        (lambda: make_vehicle(RNG(1), 1, 0.0), 14.0, 0.0),
        (lambda: make_vehicle(RNG(2), 1, 0.0), 30.0, -3.5),
        (lambda: make_vehicle(RNG(3), -1, 0.0), 18.0, -1.0),
        (lambda: make_vehicle(RNG(5), 1, 1.0), 25.0, 0.0),
        (lambda: make_pedestrian(RNG(6)), 12.0, 2.0),
        (lambda: make_bicycle(RNG(7), 1), 10.0, 1.5),
    ],
)
def test_a_box_is_tight_around_the_pixels_that_change(make, ahead: float, d: float) -> None:  # type: ignore[no-untyped-def]
    """Draw the scene with and without the object: the changed pixels (without its shadow) span the box."""
    s = _bare(road=Road.WORKS if d == -1.0 else Road.HIGHWAY)
    without = s.render()
    actor = _put(s, make(), ahead, d)
    boxes = [b for b in s.truth().boxes if b.kind == actor.kind]
    assert len(boxes) == 1
    box = boxes[0]
    assert box.visible > 0.95
    changed = np.abs(s.render().astype(int) - without).max(axis=2) > 6
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    assert rows[0] == pytest.approx(box.y_min, abs=2)
    # shadows reach a little beyond the object at its foot, so the foot is checked from inside
    assert box.y_max - 2 <= rows[-1] + 1 <= box.y_max + 4
    upper = changed[: int(box.y_min + 0.8 * (box.y_max - box.y_min))]
    columns = np.flatnonzero(upper.any(axis=0))
    assert columns[0] == pytest.approx(box.x_min, abs=3)
    assert columns[-1] + 1 == pytest.approx(box.x_max, abs=3)


def test_what_is_hidden_is_said_to_be() -> None:
    """A car behind a lorry is hardly visible, beside it fully; one half outside the picture counts half."""
    s = _bare()
    car = _put(s, make_vehicle(RNG(1), 1, 0.0), 60.0, 0.0)
    visible = [b.visible for b in s.truth().boxes if b.kind == car.kind]
    assert visible == [pytest.approx(1.0, abs=0.05)]
    lorry = _put(s, make_vehicle(RNG(5), 1, 1.0), 25.0, 0.0)
    assert lorry.kind == "truck"
    shares = {b.kind: b.visible for b in s.truth().boxes}
    assert shares["truck"] > 0.95
    assert shares[car.kind] < 0.15
    car.d = car.lane = -7.0
    s._drawn = None
    assert {b.kind: b.visible for b in s.truth().boxes}[car.kind] > 0.9
    lorry.s, lorry.d = s.position_m + 9.0, -5.0
    s._drawn = None
    assert {b.kind: b.visible for b in s.truth().boxes}["truck"] < 0.9


def test_distance_and_size_follow_the_pinhole() -> None:
    """A 1.5 m high object at 30 m spans focal * height / distance pixels."""
    s = _bare()
    actor = _put(s, make_pedestrian(RNG(6)), 30.0, 1.0)
    box = next(b for b in s.truth().boxes if b.kind == "pedestrian")
    assert actor.person is not None
    expected = s.camera.fx_px * actor.person.height / 30.0
    assert box.y_max - box.y_min == pytest.approx(expected, rel=0.05)
    assert box.distance_m == pytest.approx(30.0, abs=0.5)
    assert s.camera.matrix()[0, 2] == pytest.approx(320.0)


def test_hazards_come_from_what_is_there() -> None:
    """A braking lead, a pedestrian in the lane, a cyclist: each is named, with the table's advice."""
    s = _bare()
    assert s.truth().advice is Advice.PROCEED
    assert s.truth().min_gap_m == math.inf
    car = _put(s, make_vehicle(RNG(1), 1, 0.0), 30.0, 0.0)
    car.speed = car.wanted = 20.0
    assert s.truth().hazards == (Hazard.LEAD_VEHICLE,)
    assert s.truth().min_gap_m == pytest.approx(30.0 - car.length / 2 - 1.8)
    car.brakes = True
    assert Hazard.LEAD_VEHICLE_BRAKING in s.truth().hazards
    s._traffic.actors.clear()
    walker = _put(s, make_pedestrian(RNG(6)), 25.0, 0.5)
    assert s.truth().advice is Advice.STOP
    walker.d = 6.5
    assert s.truth().advice is Advice.PROCEED
    s._traffic.actors.clear()
    bike = _put(s, make_bicycle(RNG(7), 1), 25.0, 2.6)
    assert s.truth().hazards == (Hazard.TWO_WHEELER,)
    assert s.truth().advice is Advice.CAUTION
    bike.s = s.position_m + 8.0
    assert s.truth().advice is Advice.SLOW_DOWN


def test_fog_and_works_call_for_slow_driving() -> None:
    """Scene-wide hazards."""
    fog = _bare(weather=Weather.FOG).truth()
    assert fog.hazards == (Hazard.LOW_VISIBILITY,)
    assert fog.advice is Advice.SLOW_DOWN
    assert Hazard.LOW_VISIBILITY in _bare(weather=Weather.RAIN, light=Light.NIGHT).truth().hazards
    assert Hazard.LOW_VISIBILITY not in _bare(light=Light.NIGHT).truth().hazards
    works = _bare(road=Road.WORKS).truth()
    assert Hazard.WORKS in works.hazards
    assert works.road is Road.WORKS


def test_a_touch_is_reported_and_remembered() -> None:
    """Somebody placed onto the vehicle: collision, also after they are gone."""
    s = _bare()
    _put(s, make_vehicle(RNG(1), 1, 0.0), 2.0, 0.0)
    s.step(0.05, None)
    assert s.truth().collision
    s._traffic.actors.clear()
    s.step(0.05, None)
    assert s.truth().collision


def test_light_and_weather_show_in_the_picture() -> None:
    """Night is darker than dusk than day; fog takes contrast; brake lights are red; nothing depends on labels."""

    def mean(light: Light) -> float:
        return float(_bare(light=light).render().mean())

    assert mean(Light.NIGHT) < 0.7 * mean(Light.DUSK) < 0.6 * mean(Light.DAY)
    clear = cv2.cvtColor(_bare().render(), cv2.COLOR_BGR2GRAY)
    fog = cv2.cvtColor(_bare(weather=Weather.FOG).render(), cv2.COLOR_BGR2GRAY)
    assert fog.std() < 0.8 * clear.std()
    s = _bare()
    car = _put(s, make_vehicle(RNG(1), 1, 0.0), 12.0, 0.0)
    box = next(b for b in s.truth().boxes if b.kind == car.kind)
    cut = (slice(int(box.y_min), int(box.y_max)), slice(int(box.x_min), int(box.x_max)))

    def red(image: np.ndarray) -> int:
        b, _, r = (image[cut][..., k].astype(int) for k in range(3))
        return int(np.count_nonzero((r > 200) & (b < 120)))

    off = red(s.render())
    car.brakes = True
    s._drawn = None
    assert red(s.render()) > off + 30


def test_the_contact_sheet_is_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """``python -m triptych.scenario`` writes a picture, and one sentence when it cannot."""
    from triptych.scenario import __main__ as tool

    out = tmp_path / "sheet.png"
    base = [
        "scenario",
        "--seed",
        "3",
        "--columns",
        "2",
        "--rows",
        "1",
        "--width",
        "160",
        "--height",
        "90",
        "--duration",
        "2",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [*base, "--out", str(out)])
        assert tool.main() == 0
        assert cv2.imread(str(out)).shape == (90, 320, 3)
        patch.setattr("sys.argv", [*base, "--out", str(tmp_path / "no" / "sheet.png")])
        assert tool.main() == 2
        patch.setattr("sys.argv", [*base, "--out", str(out), "--width", "3"])
        assert tool.main() == 2
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]
