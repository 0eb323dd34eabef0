"""Detector and VLM on the same picture: who is there, and which of the two is believed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from supervisor_rig import MS, Rig, driving, flickering, policy

from triptych.contract import Advice, Detection, Detections, Hazard, Origin, SceneAdvice, Tier, TierResult
from triptych.contract.result import CAUTIOUS_ADVICE, CAUTIOUS_DETECTIONS, NOT_COUNTED
from triptych.supervisor.comparison import (
    AHEAD_HALF_WIDTH,
    AHEAD_HEIGHT,
    SAME_PICTURE_NS,
    Comparison,
    Presence,
    Scene,
    Scenes,
    care_of,
    scene_of,
)
from triptych.supervisor.core import _comparison

ABSENT, UNKNOWN, PRESENT = Presence
WIDTH, HEIGHT = 1280, 720
CAR = Detection("car", 0, 0.9, 600.0, 300.0, 700.0, 400.0)
PERSON = Detection("person", 2, 0.9, 100.0, 300.0, 130.0, 400.0)
EMPTY = SceneAdvice(vehicles=0, two_wheelers=0, pedestrians=0, advice=Advice.PROCEED)


def seen(*boxes: Detection) -> Scene:
    return scene_of(Detections(WIDTH, HEIGHT, boxes))


def test_what_the_detector_says() -> None:
    """Looked and found nobody is absent; DEFAULT looked at nothing."""
    assert seen() == Scene(ABSENT, ABSENT)
    assert seen(CAR) == Scene(PRESENT, ABSENT)
    assert seen(PERSON) == Scene(ABSENT, PRESENT)
    assert seen(CAR, PERSON) == Scene(PRESENT, PRESENT)
    assert seen(replace(CAR, class_id=1)) == Scene(ABSENT, ABSENT)
    assert scene_of(CAUTIOUS_DETECTIONS) == Scene(UNKNOWN, UNKNOWN)
    assert scene_of(Detections(WIDTH, 0, (CAR,))) == Scene(UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(("share", "presence"), [(0.99, ABSENT), (1.0, PRESENT), (1.01, PRESENT)])
def test_how_high_a_vehicle_ahead_is(share: float, presence: Presence) -> None:
    """Below the height it is too far away."""
    box = replace(CAR, y_max=CAR.y_min + AHEAD_HEIGHT * HEIGHT * share)
    assert seen(box).vehicle_ahead is presence


@pytest.mark.parametrize(("share", "presence"), [(0.99, PRESENT), (1.0, PRESENT), (1.01, ABSENT)])
@pytest.mark.parametrize("side", [-1, 1])
def test_how_near_the_middle_a_vehicle_ahead_is(share: float, presence: Presence, side: int) -> None:
    """Beside the lane it is not ahead."""
    edge = WIDTH / 2 + side * AHEAD_HALF_WIDTH * WIDTH * share
    box = replace(CAR, x_min=edge, x_max=edge + 90) if side > 0 else replace(CAR, x_min=edge - 90, x_max=edge)
    assert seen(box).vehicle_ahead is presence


@pytest.mark.parametrize(
    ("answer", "scene"),
    [
        (EMPTY, Scene(ABSENT, ABSENT)),
        (replace(EMPTY, vehicles=3), Scene(ABSENT, ABSENT)),
        (replace(EMPTY, hazards=(Hazard.LEAD_VEHICLE,)), Scene(PRESENT, ABSENT)),
        (replace(EMPTY, hazards=(Hazard.LEAD_VEHICLE_BRAKING,)), Scene(PRESENT, ABSENT)),
        (replace(EMPTY, hazards=(Hazard.PEDESTRIAN_NEAR_LANE,)), Scene(ABSENT, PRESENT)),
        (replace(EMPTY, pedestrians=1), Scene(ABSENT, PRESENT)),
        (replace(EMPTY, pedestrians=9), Scene(ABSENT, PRESENT)),
        (replace(EMPTY, pedestrians=NOT_COUNTED), Scene(ABSENT, UNKNOWN)),
        (replace(EMPTY, vehicles=NOT_COUNTED), Scene(UNKNOWN, ABSENT)),
        (replace(EMPTY, hazards=(Hazard.WORKS, Hazard.TWO_WHEELER)), Scene(ABSENT, ABSENT)),
        (SceneAdvice(hazards=(Hazard.LEAD_VEHICLE,)), Scene(PRESENT, UNKNOWN)),
        (CAUTIOUS_ADVICE, Scene(UNKNOWN, UNKNOWN)),
    ],
)
def test_what_a_vlm_says(answer: SceneAdvice, scene: Scene) -> None:
    """An answer that did not count is not an answer that counted nobody."""
    assert scene_of(answer) == scene


def test_the_care_of_a_scene() -> None:
    """Unknown is never as good as absent."""
    assert care_of(Scene(ABSENT, ABSENT)) is Advice.PROCEED
    assert care_of(Scene(PRESENT, ABSENT)) is Advice.CAUTION
    assert care_of(Scene(UNKNOWN, ABSENT)) is Advice.CAUTION
    assert care_of(Scene(ABSENT, UNKNOWN)) is Advice.CAUTION
    assert care_of(Scene(ABSENT, PRESENT)) is Advice.SLOW_DOWN


@pytest.mark.parametrize(("one", "other"), [*product(Presence, Presence)])
def test_who_is_believed(one: Presence, other: Presence) -> None:
    """The more careful of the two, for each pair; advice counts where both see a pedestrian."""
    found = Comparison(Advice.STOP, Scene(ABSENT, one), Scene(ABSENT, other))
    both = one is other is PRESENT
    assert found.care is (Advice.STOP if both else care_of(Scene(ABSENT, max(one, other))))
    assert found.disagreements == (("pedestrian",) if {one, other} == {ABSENT, PRESENT} else ())


def test_mild_advice_takes_no_care_away() -> None:
    """Both see a pedestrian and the VLM advises to proceed."""
    scene = Scene(PRESENT, PRESENT)
    assert Comparison(Advice.PROCEED, scene, scene).care is Advice.SLOW_DOWN
    assert Comparison(Advice.STOP, Scene(PRESENT, ABSENT), Scene(ABSENT, PRESENT)).care is Advice.SLOW_DOWN
    found = Comparison(Advice.STOP, Scene(PRESENT, ABSENT), Scene(ABSENT, PRESENT))
    assert found.disagreements == ("vehicle_ahead", "pedestrian")


@pytest.mark.parametrize(("share", "found"), [(0.99, True), (1.0, True), (1.01, False)])
@pytest.mark.parametrize("side", [-1, 1])
def test_only_the_same_picture_is_compared(share: float, found: bool, side: int) -> None:
    """Else what the detector saw is unknown."""
    memory = Scenes()
    assert memory.at(0) == Scene()
    memory.add(10_000 * MS, Scene(PRESENT, ABSENT))
    memory.add(11_000 * MS, Scene(ABSENT, ABSENT))
    stamp_ns = 10_000 * MS + side * round(SAME_PICTURE_NS * share)
    assert memory.at(stamp_ns) == (Scene(PRESENT, ABSENT) if found else Scene())
    memory.clear()
    assert memory.at(10_000 * MS) == Scene()


def test_the_memory_is_bounded() -> None:
    """Results older than any VLM answer go."""
    memory = Scenes()
    for number in range(1000):
        memory.add(number * 50 * MS, Scene(ABSENT, ABSENT))
    assert len(memory._scenes) == 256
    assert memory.at(0) == Scene()
    assert memory.at(999 * 50 * MS) == Scene(ABSENT, ABSENT)


def compared_rig(detector: Detections, answer: SceneAdvice, detector_origin: Origin = Origin.FRESH) -> Rig:
    """A vehicle whose full VLM is a redundant input; both speak of the same pictures."""
    rig = driving(20.0, policy=policy(cruise_full="redundant_input"))
    rig.obeys = False

    def edit(result: TierResult) -> TierResult:
        if result.tier is Tier.DETECTOR:
            return replace(result, payload=flickering(detector, result.source_stamp_ns), origin=detector_origin)
        if result.tier is Tier.FULL:
            return replace(result, payload=answer)
        return result

    rig.edit_result = edit
    # The full tier's stamps lie 1.5 s back, on the grid of 50 ms of the detector's up to its 20 ms of latency.
    return rig.run(6.0)


FREE = Detections(WIDTH, HEIGHT)
WALKER = Detections(WIDTH, HEIGHT, (PERSON,))
STOP = replace(EMPTY, advice=Advice.STOP, pedestrians=1, hazards=(Hazard.PEDESTRIAN_NEAR_LANE,))


@pytest.mark.parametrize(
    ("detector", "answer", "cap_mps", "message"),
    [
        (FREE, EMPTY, 36.1, "no disagreement"),
        (FREE, STOP, 13.9, "disagree: full and detector on pedestrian"),
        (WALKER, EMPTY, 13.9, "disagree: full and detector on pedestrian"),
        (WALKER, STOP, 0.0, "no disagreement"),
        (FREE, CAUTIOUS_ADVICE, 25.0, "no disagreement"),
    ],
)
def test_the_supervisor_goes_by_the_more_careful(
    detector: Detections, answer: SceneAdvice, cap_mps: float, message: str
) -> None:
    """And says so in its diagnostics."""
    rig = compared_rig(detector, answer)
    assert rig.core._cap_mps(False) == cap_mps
    said = [d for c in rig.commands for d in c.diagnostics or () if d.name == "triptych/comparison"]
    assert said[-1].message == message
    assert said[-1].level == (1 if message.startswith("disagree") else 0)
    assert [key for key, _ in said[-1].values] == ["full"]
    assert f"vlm: {scene_of(answer)} detector: {scene_of(detector)}" in said[-1].values[0][1]


def test_a_scene_in_words() -> None:
    """As the diagnostics show it."""
    assert str(Scene(PRESENT, UNKNOWN)) == "vehicle_ahead present, pedestrian unknown"


def test_all_who_disagree_are_named() -> None:
    """Tier by tier, subject by subject."""
    stop = replace(STOP, vehicles=1, hazards=(Hazard.PEDESTRIAN_NEAR_LANE, Hazard.LEAD_VEHICLE))
    both = {Tier.DISTILLED: stop, Tier.FULL: STOP}
    said = _comparison({t: Comparison(a.advice, scene_of(a), scene_of(FREE)) for t, a in both.items()})
    assert said.message == (
        "disagree: distilled and detector on vehicle_ahead, distilled and detector on pedestrian, "
        "full and detector on pedestrian"
    )


def test_a_detector_without_content_agrees_with_nobody() -> None:
    """DEFAULT says nothing about the picture it names."""
    rig = compared_rig(FREE, EMPTY, Origin.DEFAULT)
    assert rig.core._compared[Tier.FULL].detector == Scene()
    assert rig.core._compared[Tier.FULL].care is Advice.CAUTION


def test_a_step_of_the_clock_forgets_what_was_seen() -> None:
    """Old stamps name other pictures now."""
    rig = compared_rig(FREE, EMPTY)
    assert len(rig.core._seen._scenes) > 0
    rig.alive -= {"detector"}
    rig.clock_step_ns = 3_600_000 * MS
    rig.tick()
    assert len(rig.core._seen._scenes) == 0


def test_without_such_a_permission_nothing_is_compared() -> None:
    """The shipped table: no diagnostics, nothing kept."""
    rig = driving(20.0)
    rig.run(3.0)
    assert not rig.core._seen._scenes and not rig.core._compared
    assert all(d.name != "triptych/comparison" for c in rig.commands for d in c.diagnostics or ())
