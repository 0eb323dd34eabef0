"""Several payloads, one answer: fields, counts, hazards, boxes, and what sets two payloads apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from triptych.contract import Advice, Detection, Detections, EngineError, Hazard, Light, Road, SceneAdvice, Weather
from triptych.contract.result import MAX_DETECTIONS, NOT_COUNTED
from triptych.tiers.redundancy import CLOSE, EXACT, Tolerance, differences, vote
from triptych.tiers.redundancy.vote import CARE, MATCH_IOU, vote_answers, vote_detections

ANSWER = SceneAdvice(
    Road.URBAN, Weather.CLEAR, Light.DAY, (Hazard.WORKS, Hazard.LEAD_VEHICLE), Advice.CAUTION, 2, 0, 1, "", "busy",
    (0.5,),
)  # fmt: skip
CAR = Detection("car", 0, 0.9, 100.0, 100.0, 200.0, 200.0)
FAR = Detection("car", 0, 0.5, 600.0, 100.0, 640.0, 130.0)


def boxes(*items: Detection, size: tuple[int, int] = (1280, 720)) -> Detections:
    return Detections(*size, items)


def voted(name: str, *values: Any) -> Any:
    """The field of a vote whose voters differ in it, and each in its words, so that no two are the same as a whole."""
    voters = [replace(ANSWER, **{name: value}, text=f"I am {number}") for number, value in enumerate(values)]
    return getattr(vote(voters), name)


def test_the_order_of_care_is_whole() -> None:
    """Every value of every field has its place, once."""
    kinds = {"road": Road, "weather": Weather, "light": Light, "advice": Advice}
    assert {name: set(values) for name, values in CARE.items()} == {name: set(kind) for name, kind in kinds.items()}
    assert all(len(set(values)) == len(values) for values in CARE.values())
    assert CARE["advice"] == tuple(sorted(Advice))


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("advice", (Advice.PROCEED, Advice.PROCEED, Advice.STOP), Advice.PROCEED),
        ("advice", (Advice.PROCEED, Advice.STOP), Advice.STOP),
        ("advice", (Advice.STOP, Advice.PROCEED), Advice.STOP),
        ("advice", (Advice.PROCEED, Advice.CAUTION, Advice.STOP), Advice.STOP),
        ("advice", (Advice.PROCEED, Advice.PROCEED, Advice.CAUTION, Advice.STOP), Advice.STOP),
        ("advice", (Advice.PROCEED, Advice.PROCEED, Advice.STOP, Advice.STOP), Advice.STOP),
        ("advice", (Advice.PROCEED,) * 3 + (Advice.STOP,) * 2, Advice.PROCEED),
        ("weather", (Weather.CLEAR, Weather.FOG), Weather.FOG),
        ("weather", (Weather.CLEAR, Weather.UNKNOWN), Weather.UNKNOWN),
        ("weather", (Weather.FOG, Weather.UNKNOWN), Weather.FOG),
        ("light", (Light.NIGHT, Light.DAY), Light.NIGHT),
        ("light", (Light.DAY, Light.UNKNOWN), Light.UNKNOWN),
        ("road", (Road.HIGHWAY, Road.WORKS), Road.WORKS),
        ("road", (Road.URBAN, Road.UNKNOWN), Road.URBAN),
        ("vehicles", (0, 0, 9), 0),
        ("vehicles", (9, 0, 4), 4),
        ("vehicles", (2, 3), 3),
        ("vehicles", (2, NOT_COUNTED, NOT_COUNTED), NOT_COUNTED),
        ("pedestrians", (0, NOT_COUNTED), NOT_COUNTED),
        ("pedestrians", (1, 2, 3, 4), 3),
        ("question", ("a", "a", "b"), "a"),
        ("question", ("a", "b"), ""),
        ("hazards", ((Hazard.WORKS,), (Hazard.WORKS,), ()), (Hazard.WORKS,)),
        ("hazards", ((Hazard.WORKS,), (), ()), ()),
        ("hazards", ((Hazard.WORKS,), ()), (Hazard.WORKS,)),
        ("hazards", ((Hazard.WORKS, Hazard.WORKS), (), ()), ()),
        ("hazards", ((Hazard.WORKS,), (Hazard.RED_LIGHT,)), (Hazard.RED_LIGHT, Hazard.WORKS)),
        ("hazards", ((Hazard.WORKS,), (Hazard.WORKS,), (), ()), (Hazard.WORKS,)),
        ("hazards", ((Hazard.WORKS,), (Hazard.WORKS,), (), (), ()), ()),
    ],
)
def test_one_field(name: str, values: tuple[Any, ...], result: Any) -> None:
    """More than half, else the more careful; at least half name a hazard; the median of a count."""
    assert voted(name, *values) == result


def test_an_answer_nobody_gave_says_what_was_in_dispute() -> None:
    """Its text is nobody's, nor are its tokens."""
    found = vote(
        [replace(ANSWER, road=Road.WORKS, text="x"), replace(ANSWER, advice=Advice.STOP, hazards=(), text="y")]
    )
    assert found == replace(
        ANSWER, road=Road.WORKS, advice=Advice.STOP, hazards=(Hazard.LEAD_VEHICLE, Hazard.WORKS),
        text="voted, in dispute: advice, hazards, road", token_probabilities=(),
    )  # fmt: skip


def test_the_voter_who_says_what_was_voted_speaks() -> None:
    """With its own words and tokens; of several the same one whatever the order."""
    careful = replace(ANSWER, advice=Advice.STOP, text="stop", token_probabilities=(0.1, 0.2))
    assert vote([ANSWER, careful]) is careful
    other = replace(careful, text="halt")
    assert vote([ANSWER, careful, ANSWER, other]) == vote([other, ANSWER, careful, ANSWER])
    assert vote([ANSWER, careful, ANSWER, other]).text in {"stop", "halt"}


def test_kinds_and_sizes() -> None:
    """A voter of another kind or about another picture has no say; without a majority there is no answer."""
    assert vote([ANSWER, boxes(CAR), replace(ANSWER, advice=Advice.STOP)]).advice is Advice.STOP
    with pytest.raises(EngineError, match="kind of payload"):
        vote([ANSWER, boxes(CAR)])
    small = boxes(FAR, size=(640, 360))
    near = replace(CAR, score=0.8)
    assert vote([small, boxes(CAR), boxes(near)]) == boxes(replace(CAR, score=pytest.approx(0.85)))
    with pytest.raises(EngineError, match="size of the picture"):
        vote([small, boxes(CAR)])


def test_an_object_is_kept_that_at_least_half_have() -> None:
    """Two of three, one of two, two of four."""
    other = boxes(replace(CAR, score=0.7))
    assert vote([boxes(CAR, FAR), other, boxes()]).detections == (replace(CAR, score=pytest.approx(0.8)),)
    assert vote([boxes(CAR), boxes(CAR, FAR), boxes(FAR)]).detections == (CAR, FAR)
    assert vote([boxes(CAR), boxes(FAR)]).detections == (CAR, FAR)
    assert vote([boxes(CAR), boxes(CAR), boxes(FAR), boxes()]).detections == (CAR,)
    assert vote([boxes(), boxes(), boxes(CAR)]).detections == ()


def test_boxes_are_of_one_object_by_class_and_overlap() -> None:
    """At 0.99, 1 and 1.01 of the overlap; a pedestrian on a car is not the car."""
    side = CAR.x_max - CAR.x_min
    for share, count in ((0.99, 2), (1.0, 1), (1.01, 1)):
        iou = MATCH_IOU * share
        shift = side * (1 - iou) / (1 + iou)
        moved = replace(CAR, x_min=CAR.x_min + shift - 1e-4, x_max=CAR.x_max + shift - 1e-4)
        assert len(vote([boxes(CAR), boxes(moved)]).detections) == count
    assert len(vote([boxes(CAR), boxes(replace(CAR, class_id=2))]).detections) == 2


def test_sides_and_score_are_medians_and_the_label_the_commonest() -> None:
    """A wild side of one voter of three is not the average's business."""
    wild = replace(CAR, label="truck", score=0.1, x_max=240.0)
    near = replace(CAR, score=0.8, x_max=202.0, y_min=101.0)
    (found,) = vote([boxes(wild), boxes(CAR), boxes(near)]).detections
    assert found == Detection("car", 0, 0.8, 100.0, 100.0, 202.0, 200.0)
    (pair,) = vote([boxes(CAR), boxes(near)]).detections
    assert pair.x_max == 201.0 and pair.y_min == 100.5
    (tied,) = vote([boxes(wild), boxes(CAR)]).detections
    assert tied.label == "car"


def test_no_voter_has_two_votes() -> None:
    """Two boxes of one voter on one object are not two voters."""
    twice = boxes(CAR, replace(CAR, score=0.8, x_max=205.0))
    assert len(vote([twice, boxes(), boxes()]).detections) == 0
    assert len(vote([twice, boxes(CAR), boxes()]).detections) == 1


def test_the_best_are_kept_of_too_many() -> None:
    """The contract's bound holds for a union of two full answers as well; best score first."""

    def row(y: float, best: float) -> Detections:
        return boxes(*(replace(CAR, score=best - n / 1000, x_min=9.0 * n, x_max=9.0 * n + 8, y_min=y, y_max=y + 8)
                       for n in range(MAX_DETECTIONS)))  # fmt: skip

    found = vote([row(0.0, 0.9), row(300.0, 0.9005)]).detections
    assert len(found) == MAX_DETECTIONS
    scores = [box.score for box in found]
    assert scores == sorted(scores, reverse=True)
    assert {box.y_min for box in found} == {0.0, 300.0}


@pytest.mark.parametrize("count", range(1, 6))
def test_identical_voters_need_no_shortcut(count: int) -> None:
    """Field by field and box by box it comes to the same."""
    assert vote_answers([ANSWER] * count) == ANSWER
    assert vote_detections([boxes(CAR, FAR)] * count) == boxes(CAR, FAR)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"road": Road.RURAL}, ("road",)),
        ({"weather": Weather.RAIN, "light": Light.DUSK}, ("weather", "light")),
        ({"advice": Advice.STOP}, ("advice",)),
        ({"vehicles": 3}, ("vehicles",)),
        ({"two_wheelers": 1}, ("two_wheelers",)),
        ({"pedestrians": NOT_COUNTED}, ("pedestrians",)),
        ({"text": "quiet"}, ("text",)),
        ({"question": "why"}, ("question",)),
        ({"hazards": (Hazard.WORKS,)}, ("hazards",)),
        ({"hazards": (Hazard.LEAD_VEHICLE, Hazard.WORKS)}, ("order",)),
        ({"token_probabilities": (0.5, 0.5)}, ("token_probabilities",)),
        ({"token_probabilities": (math.nan,)}, ("token_probabilities",)),
        ({"token_probabilities": (math.nextafter(0.5, 1.0),)}, ("token_probabilities",)),
        ({}, ()),
    ],
)
def test_in_what_two_answers_differ(change: dict[str, Any], words: tuple[str, ...]) -> None:
    """To the last bit."""
    assert differences(replace(ANSWER, **change), ANSWER) == words
    assert differences(ANSWER, replace(ANSWER, **change)) == words


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((CAR, FAR), (CAR, FAR), ()),
        ((CAR,), (CAR, FAR), ("missed 1",)),
        ((CAR, FAR), (CAR,), ("alone 1",)),
        ((CAR,), (FAR,), ("missed 1", "alone 1")),
        ((FAR, CAR), (CAR, FAR), ("order",)),
        ((replace(CAR, label="truck"),), (CAR,), ("moved 1",)),
        ((replace(CAR, class_id=1),), (CAR,), ("missed 1", "alone 1")),
        ((replace(CAR, score=math.nextafter(0.9, 1.0)),), (CAR,), ("moved 1",)),
        ((replace(CAR, y_max=math.nextafter(200.0, 0.0)),), (CAR,), ("moved 1",)),
        ((replace(CAR, score=math.nan),), (CAR,), ("moved 1",)),
    ],
)
def test_in_what_two_sets_of_boxes_differ(
    one: tuple[Detection, ...], other: tuple[Detection, ...], words: tuple[str, ...]
) -> None:
    """To the last bit."""
    assert differences(boxes(*one), boxes(*other)) == words


def test_other_kinds_and_sizes_differ() -> None:
    """Whatever is in them."""
    assert differences(ANSWER, boxes()) == ("kind of payload",)
    assert differences(boxes(), boxes(size=(1280, 721))) == ("size of the picture",)


@pytest.mark.parametrize(("share", "words"), [(0.99, ()), (1.0, ()), (1.01, ("moved 1",))])
def test_a_tolerance_for_boxes(share: float, words: tuple[str, ...]) -> None:
    """At 0.99, 1 and 1.01 of it, each number on its own."""
    tolerance = Tolerance(0.5, 0.125)
    for name in ("x_min", "y_min", "x_max", "y_max"):
        moved = replace(CAR, **{name: getattr(CAR, name) + 0.5 * share})
        assert differences(boxes(moved), boxes(CAR), tolerance) == words
    low = replace(CAR, score=0.5)
    assert differences(boxes(replace(CAR, score=0.5 - 0.125 * share)), boxes(low), tolerance) == words


@pytest.mark.parametrize(("share", "words"), [(0.99, ()), (1.0, ()), (1.01, ("token_probabilities",))])
def test_a_tolerance_for_probabilities(share: float, words: tuple[str, ...]) -> None:
    """Fields have none: they are one value or another."""
    near = replace(ANSWER, token_probabilities=(0.5 + 0.125 * share,))
    assert differences(near, ANSWER, Tolerance(0.5, 0.125)) == words
    assert differences(replace(ANSWER, road=Road.RURAL), ANSWER, CLOSE) == ("road",)
    assert differences(boxes(FAR, CAR), boxes(CAR, FAR), CLOSE) == ()
    assert Tolerance(0.0, 0.0) == EXACT
