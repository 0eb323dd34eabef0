"""The monitors of what the detector says, alone and against the VLMs: at 0.99 / 1.0 / 1.01 of each limit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from supervisor_rig import MS, make_answer

from triptych.contract import Detection, DetectionClass, Detections, Hazard
from triptych.contract.result import MAX_DETECTIONS, NOT_COUNTED
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.cross_modal import Disagreement, Seen
from triptych.supervisor.monitors.plausibility import Plausibility, plausible, tracks

CONFIG = SupervisorConfig()
NAN, INF = math.nan, math.inf
WIDTH, HEIGHT = 1000, 500
CAR, BIKE, PERSON, LIGHT = (
    DetectionClass.VEHICLE,
    DetectionClass.TWO_WHEELER,
    DetectionClass.PEDESTRIAN,
    DetectionClass.TRAFFIC_LIGHT,
)


def box(x: float, y: float, w: float, h: float, kind: int = CAR, score: float = 0.9, label: str = "") -> Detection:
    """A detection by its left upper corner and size."""
    return Detection(label, kind, score, x, y, x + w, y + h)


def seeing(*boxes: Detection, width: int = WIDTH, height: int = HEIGHT) -> Detections:
    """A detector's result."""
    return Detections(width, height, boxes)


# ---- what no camera can give ----


@pytest.mark.parametrize(
    ("seen", "possible"),
    [
        ((0, 0, 1000, 500), True),
        ((-99, 0, 50, 50), True), ((-100, 0, 50, 50), True), ((-101, 0, 50, 50), False),
        ((0, -49.5, 50, 50), True), ((0, -50, 50, 50), True), ((0, -50.5, 50, 50), False),
        ((1050, 0, 49, 50), True), ((1050, 0, 50, 50), True), ((1050, 0, 51, 50), False),
        ((0, 500, 50, 49.5), True), ((0, 500, 50, 50), True), ((0, 500, 50, 50.5), False),
        ((30, 30, 0, 5), False), ((30, 30, 5, 0), False), ((30, 30, -5, 5), False), ((0, 0, -5, 5), False),
        ((0, 0, 0, 5), True), ((1000, 0, 0, 5), True), ((0, 0, 1e-200, 1e-200), True),
        ((300, 100, 20, 237.6), True), ((300, 100, 20, 240), True), ((300, 100, 20, 242.4), False),
        ((300, 100, 242.4, 20), False), ((300, 100, 240, 20), True),
        ((0, 100, 20, 300), True), ((300, 0, 300, 20), True), ((980.5, 100, 19, 300), True),
        ((NAN, 10, 5, 5), False), ((10, NAN, 5, 5), False), ((10, 10, NAN, 5), False), ((10, 10, 5, INF), False),
        ((-INF, 10, INF, 5), False), ((-1e308, 10, 1.1e308, 5), False),
    ],
)  # fmt: skip
def test_a_box_a_camera_can_give(seen: tuple[float, float, float, float], possible: bool) -> None:
    """A6: in the picture but for a margin of a tenth, with an area and a shape unless the edge cuts it."""
    assert plausible(seeing(box(*seen)), CONFIG) is possible


@pytest.mark.parametrize(("share", "possible"), [(0.792, True), (0.8, True), (0.808, False)])
def test_only_a_vehicle_fills_the_picture(share: float, possible: bool) -> None:
    """A lorry in front may cover all of it."""
    assert plausible(seeing(box(0, 0, WIDTH * share, HEIGHT, PERSON)), CONFIG) is possible
    assert plausible(seeing(box(0, 0, WIDTH, HEIGHT, CAR)), CONFIG)


@pytest.mark.parametrize(("iou", "possible"), [(0.891, True), (0.9, True), (0.909, False)])
@pytest.mark.parametrize("across", [True, False])
def test_one_object_twice(iou: float, possible: bool, across: bool) -> None:
    """Two boxes of one label that overlap more than suppression leaves; of two labels they may be two things."""
    size = 100.0 * iou
    part = box(300, 100, size, 100) if across else box(300, 100, 100, size)
    rear = box(400 - size, 100, size, 100) if across else box(300, 200 - size, 100, size)
    for other in (part, rear):
        assert plausible(seeing(box(300, 100, 100, 100), other), CONFIG) is possible
    others = seeing(box(300, 100, 100, 100, label="car"), box(300, 100, 100, 100, label="truck"))
    assert plausible(others, CONFIG)
    assert plausible(seeing(box(300, 100, 100, 100, CAR), box(300, 100, 100, 100, BIKE)), CONFIG)


def test_what_the_edge_has_left_of_two_objects_may_be_the_same() -> None:
    """Boxes are clipped after suppression."""
    assert plausible(seeing(*[box(0, 100, 20, 90)] * 2, *[box(990, 100, 10, 90)] * 2), CONFIG)


def test_one_object_twice_wherever_it_stands_in_the_list() -> None:
    """Also shifted, among others, and with neighbours in between."""
    boxes = [box(30 + 40 * n, 100, 30, 60) for n in range(20)]
    assert plausible(seeing(*boxes), CONFIG)
    for n in (0, 7, 19):
        assert not plausible(seeing(*boxes, box(31 + 40 * n, 101, 30, 60)), CONFIG)


def test_without_a_picture_there_is_nothing_to_see() -> None:
    """A size of 0 is allowed with no boxes only."""
    assert plausible(seeing(width=0, height=0), CONFIG)
    assert not plausible(seeing(box(0, 0, 1, 1), width=0), CONFIG)
    assert tracks(seeing(box(0, 0, 1, 1), height=0), CONFIG) == (0, [])


class Feed:
    """Results 50 ms apart."""

    def __init__(self) -> None:
        self.monitor = Plausibility(CONFIG)
        self.stamp_ns = 0

    def see(self, *boxes: Detection, after_ms: float = 50.0) -> Plausibility:
        self.stamp_ns += round(after_ms * MS)
        self.monitor.observe(seeing(*boxes), self.stamp_ns)
        return self.monitor


def test_implausible_results_in_a_row() -> None:
    """Counted from the first; one that is possible ends the run."""
    feed = Feed()
    assert feed.monitor.implausible_n(0) is None
    for bad, run in [(True, 1), (True, 2), (False, 0), (True, 1)]:
        assert feed.see(box(30, 30, 0 if bad else 5, 5)).implausible_n(0) == run


# ---- what cannot follow from what was before ----


@pytest.mark.parametrize(("widths", "run"), [(0.198, 0), (0.2 - 1e-9, 0), (0.202, 1)])
@pytest.mark.parametrize("how", ["right", "left", "down", "growth"])
def test_an_object_that_jumps(widths: float, run: int, how: str) -> None:
    """Four picture widths a second are 0.2 in 50 ms."""
    feed, px = Feed(), widths * WIDTH
    move = {"right": (px, 0, 0), "left": (-px, 0, 0), "down": (0, px, 0), "growth": (0, -px / 2, px)}[how]
    assert feed.see(box(400, 150, 100, 100)).unsteady_n(0) is None
    feed.see(box(400 + move[0], 150 + move[1], 100, 100 + move[2]))
    assert feed.monitor.unsteady_n(0) == run


def test_jumping_in_a_row() -> None:
    """An object that is now here, now there, counts each time; when it stays the run ends."""
    feed = Feed()
    for n in range(5):
        feed.see(box(100 + 500 * (n % 2), 150, 100, 100))
    assert feed.monitor.unsteady_n(0) == 4
    assert feed.see(box(100, 150, 100, 100)).unsteady_n(0) == 0


def test_objects_may_come_and_go() -> None:
    """A class of which one came or went is left out; so are small, unsure and cut ones."""
    feed = Feed()
    feed.see(box(100, 150, 100, 100))
    assert feed.see(box(700, 150, 100, 100), box(400, 150, 100, 100)).unsteady_n(0) == 0
    assert feed.see(box(100, 150, 100, 100, PERSON)).unsteady_n(0) == 0
    for size, score, x in [(49.5, 0.9, 100), (100, 0.495, 100), (100, 0.9, 0)]:
        feed = Feed()
        feed.see(box(x, 150, 100, size, score=score))
        assert feed.see(box(700, 150, 100, size, score=score)).unsteady_n(0) == 0
    feed = Feed()
    feed.see(box(100, 150, 100, 50, score=0.5))
    assert feed.see(box(700, 150, 100, 50, score=0.5)).unsteady_n(0) == 1


def test_two_objects_are_not_mistaken_for_each_other() -> None:
    """Whatever their order."""
    left, right = box(100, 150, 100, 100), box(700, 150, 100, 100)
    feed = Feed()
    feed.see(left, right)
    assert feed.see(right, left).unsteady_n(0) == 0


@pytest.mark.parametrize(("count", "run"), [(7, 0), (8, 0), (9, 1)])
def test_the_number_of_objects_swings(count: int, run: int) -> None:
    """Up or down; unsure ones may come and go."""
    boxes = [box(20 + 90 * n, 200, 30, 20) for n in range(count)]
    feed = Feed()
    feed.see()
    assert feed.see(*boxes).unsteady_n(0) == run
    assert feed.see().unsteady_n(0) == 2 * run
    unsure = [box(20 + 90 * n, 200, 30, 20, score=0.4) for n in range(count)]
    assert feed.see(*unsure).unsteady_n(0) == 0


def test_a_crowd_that_stays_does_not_swing() -> None:
    """It is the change that counts."""
    boxes = [box(20 + 90 * n, 200, 30, 20) for n in range(10)]
    feed = Feed()
    feed.see(*boxes)
    assert feed.see(*boxes).unsteady_n(0) == 0


@pytest.mark.parametrize(("after_ms", "run"), [(148.5, 1), (150.0, 1), (151.5, None), (0.0, None), (-50.0, None)])
def test_results_too_far_apart_are_not_compared(after_ms: float, run: int | None) -> None:
    """Nor those whose stamps do not advance."""
    feed = Feed()
    feed.see(box(50, 150, 100, 100))
    assert feed.see(box(850, 150, 100, 100), after_ms=after_ms).unsteady_n(0) == run


def test_plausibility_after_a_restart() -> None:
    """Nothing is compared with what was before."""
    feed = Feed()
    feed.see(box(50, 150, 100, 100))
    feed.monitor.restart()
    assert feed.see(box(850, 150, 100, 100)).unsteady_n(0) is None


def test_the_work_is_bounded() -> None:
    """Only the best 32 boxes are looked at, whatever a detector says."""
    good = [box(20 + 9 * n, 100, 8, 60) for n in range(32)]
    bad = [box(30, 30, 0, 5)] * (MAX_DETECTIONS - 32)
    assert plausible(seeing(*good, *bad), CONFIG)
    assert not plausible(seeing(*good[:31], *bad), CONFIG)


# ---- detector against VLM ----

LARGE = 0.25 * HEIGHT


def run_after(answer: Any, boxes: list[Detection], results: int = 8, shift_ms: float = 0.0) -> float | None:
    """Disagreement of one answer about the middle of ``results`` detector results that saw ``boxes``."""
    seen = Seen(CONFIG)
    for n in range(results):
        seen.observe(seeing(*boxes), 10**9 + n * 50 * MS)
    monitor = Disagreement(CONFIG, seen)
    assert monitor.disagreement_n(0) is None
    monitor.observe(answer, 10**9 + results // 2 * 50 * MS + round(shift_ms * MS))
    return monitor.disagreement_n(0)


@pytest.mark.parametrize(("factor", "run"), [(0.99, 0), (1.0, 1), (1.01, 1)])
@pytest.mark.parametrize("of", ["height", "score"])
@pytest.mark.parametrize(
    ("kind", "field", "hazard"),
    [
        (CAR, "vehicles", Hazard.LEAD_VEHICLE), (CAR, "vehicles", Hazard.LEAD_VEHICLE_BRAKING),
        (CAR, "vehicles", Hazard.DENSE_TRAFFIC), (BIKE, "two_wheelers", Hazard.TWO_WHEELER),
        (PERSON, "pedestrians", Hazard.PEDESTRIAN_NEAR_LANE),
    ],
)  # fmt: skip
def test_a_vlm_that_denies_what_is_there(
    kind: int, field: str, hazard: Hazard, of: str, factor: float, run: int
) -> None:
    """A large, sure object that it counts as none; counted or named it is not denied."""
    height, score = LARGE * (factor if of == "height" else 1.0), 0.5 * (factor if of == "score" else 1.0)
    seen = [box(400, 100, 90, height, kind, score)]
    nothing = {"vehicles": 0, "two_wheelers": 0, "pedestrians": 0}
    assert run_after(make_answer(**nothing), seen) == run
    assert run_after(make_answer(**{**nothing, field: 1}), seen) == 0
    assert run_after(make_answer(**nothing, hazards=(hazard,)), seen) == 0
    assert run_after(make_answer(**{**nothing, field: NOT_COUNTED}), seen) == 0


def test_a_vlm_that_sees_what_is_not_there() -> None:
    """A vehicle in front while the detector saw not even a small, unsure one; of people it may miss those far away."""
    leading = make_answer(hazards=(Hazard.LEAD_VEHICLE,))
    assert run_after(leading, []) == 1
    assert run_after(leading, [box(400, 100, 90, 90, PERSON)]) == 1
    assert run_after(leading, [box(400, 100, 9, 5, CAR, 0.1)]) == 0
    for hazard in (Hazard.RED_LIGHT, Hazard.WORKS, Hazard.TWO_WHEELER, Hazard.PEDESTRIAN_NEAR_LANE):
        assert run_after(make_answer(hazards=(hazard,)), []) == 0
    assert run_after(make_answer(vehicles=5), []) == 0


def test_an_object_must_be_there_all_the_time_to_be_denied() -> None:
    """One that comes or goes within the tolerance may be missed."""
    seen = Seen(CONFIG)
    for n in range(8):
        seen.observe(seeing(*([box(400, 100, 90, 200, PERSON)] if n != 3 else [])), n * 50 * MS)
    monitor = Disagreement(CONFIG, seen)
    monitor.observe(make_answer(), 200 * MS)
    assert monitor.disagreement_n(0) == 0


def test_a_vlm_that_says_nothing_of_any_kind_is_not_judged() -> None:
    """Not counted is unknown, never agreement."""
    silent = make_answer(vehicles=NOT_COUNTED, two_wheelers=NOT_COUNTED, pedestrians=NOT_COUNTED)
    assert run_after(silent, [box(400, 100, 90, 200, PERSON)]) is None


@pytest.mark.parametrize(("results", "run"), [(0, None), (2, None), (3, 1)])
def test_too_few_detector_results_are_no_witness(results: int, run: int | None) -> None:
    """A detector that is silent or has just begun says nothing."""
    assert run_after(make_answer(hazards=(Hazard.LEAD_VEHICLE,)), [], results) == run


@pytest.mark.parametrize(("shift_ms", "run"), [(249, 1), (250, 1), (251, None), (-301, None), (-300, 1), (-299, 1)])
def test_only_results_about_the_same_time_are_compared(shift_ms: float, run: int | None) -> None:
    """Stamps within 200 ms of the answer's: at least three of eight that are 50 ms apart."""
    assert run_after(make_answer(hazards=(Hazard.LEAD_VEHICLE,)), [], 8, shift_ms) == run


def test_disagreement_in_a_row_and_after_a_restart() -> None:
    """A clock step forgets what was seen; the run stays, since nothing new is known."""
    seen = Seen(CONFIG)
    monitor = Disagreement(CONFIG, seen)
    for n in range(20):
        seen.observe(seeing(box(400, 100, 90, 200, PERSON)), n * 50 * MS)
    for answer, run in [(make_answer(), 1), (make_answer(), 2), (make_answer(pedestrians=1), 0), (make_answer(), 1)]:
        monitor.observe(answer, 500 * MS)
        assert monitor.disagreement_n(0) == run
    seen.restart()
    monitor.observe(make_answer(), 500 * MS)
    assert monitor.disagreement_n(0) == 1


def test_a_result_without_a_picture_is_no_witness() -> None:
    """The cautious policy's 0 x 0."""
    seen = Seen(CONFIG)
    for n in range(8):
        seen.observe(Detections(0, 0), n * 50 * MS)
    assert list(seen.around(200 * MS, 200 * MS)) == []
