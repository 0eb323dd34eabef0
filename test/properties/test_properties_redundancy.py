"""The properties of redundancy in PROPERTIES.md, on generated outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import (
    Advice,
    Detection,
    Detections,
    EngineError,
    Frame,
    Hazard,
    Light,
    Payload,
    Road,
    SceneAdvice,
    Tier,
    Weather,
)
from triptych.contract.result import NOT_COUNTED
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.tiers.checks import unusable
from triptych.tiers.redundancy import RedundantEngine, vote
from triptych.tiers.redundancy.vote import CARE, vote_answers, vote_detections

many = settings(max_examples=100)
FRAME = Frame(np.zeros((4, 4, 3), np.uint8), 1, 1)


class Given:
    """An engine that gives what it was told, one after the other."""

    id, version, frames_wanted = "given", "1", 1
    device = DeviceReport("cpu", "cpu", "none")

    def __init__(self, *outcomes: EngineOutput | Exception) -> None:
        self.outcomes = list(outcomes)

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def golden(self) -> Frame:
        return FRAME

    def golden_ok(self, output: EngineOutput) -> str:
        return ""

    def close(self) -> None:
        pass


counts = st.sampled_from([0, 1, 2, 9, NOT_COUNTED])
answers = st.builds(
    SceneAdvice,
    st.sampled_from(Road),
    st.sampled_from(Weather),
    st.sampled_from(Light),
    st.lists(st.sampled_from(Hazard), max_size=3).map(tuple),
    st.sampled_from(Advice),
    counts,
    counts,
    counts,
    st.just(""),
    st.sampled_from(["", "a", "b"]),
    st.lists(st.floats(0, 1), max_size=2).map(tuple),
)


def box(label: str, kind: int, score: float, x: float, y: float, w: float, h: float) -> Detection:
    return Detection(label, kind, score, x, y, x + w, y + h)


places = st.floats(0, 80)
boxes = st.builds(
    box, st.sampled_from("ab"), st.integers(0, 2), st.floats(0, 1), places, places, st.floats(0, 40), st.floats(0, 40)
)
sights = st.lists(boxes, max_size=6).map(lambda items: Detections(100, 100, tuple(items)))
shares = st.floats(0, 1)


@st.composite
def apart(draw: st.DrawFn) -> Detections:
    """What is left by suppression: objects beside each other, on a grid."""
    cells = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6, unique=True))
    found = [
        box("a", draw(st.integers(0, 2)), draw(shares), 25.0 * x + draw(st.floats(0, 5)), 25.0 * y, 19.0, 20.0)
        for x, y in cells
    ]
    return Detections(100, 100, tuple(sorted(found, key=lambda b: -b.score)))


def outputs(payloads: st.SearchStrategy[Payload]) -> st.SearchStrategy[EngineOutput]:
    return st.builds(lambda p, u: EngineOutput(p, u, 1.0, 1.0, 1.0), payloads, shares)


sound = st.one_of(outputs(answers), outputs(sights))
unsound = st.sampled_from(
    [
        EngineError("broken"),
        RuntimeError("sick"),
        EngineOutput(SceneAdvice(), math.nan, 1.0, 1.0, 1.0),
        EngineOutput(SceneAdvice(vehicles=77), 0.1, 1.0, 1.0, 1.0),
        EngineOutput(SceneAdvice(), 0.1, math.inf, 1.0, 1.0),
        EngineOutput(Detections(100, 100, (Detection("a", 0, math.nan, 0.0, 0.0, 1.0, 1.0),)), 0.1, 1.0, 1.0, 1.0),
        EngineOutput(Detections(9, 9), 0.1, 1.0, 1.0, 1.0),
    ]
)


@many
@given(sound, st.one_of(sound, unsound), st.integers(0, 2))
def test_p35_one_of_three_changes_nothing(agreed: EngineOutput, other: EngineOutput | Exception, place: int) -> None:
    """P-35: two instances agree, the third does whatever it likes."""
    outcomes: list[EngineOutput | Exception] = [agreed, agreed]
    outcomes.insert(place, other)
    engine = RedundantEngine([Given(outcome) for outcome in outcomes], "homogeneous")
    output = engine.infer([FRAME])
    assert output.payload == agreed.payload
    same = isinstance(other, EngineOutput) and (other.payload, other.uncertainty) == (
        agreed.payload,
        agreed.uncertainty,
    )
    assert engine.record.by_instance == tuple(int(n == place and not same) for n in range(3))
    assert engine.record.refused == 0


@many
@given(answers, answers, st.integers(0, 2))
def test_p35_nor_does_one_box_or_word(agreed: SceneAdvice, other: SceneAdvice, place: int) -> None:
    """P-35, field by field: the two agree in their fields but not in their words."""
    voters = [agreed, SceneAdvice(**{**fields_of(agreed), "text": "c", "token_probabilities": (0.25,)})]
    voters.insert(place, other)
    found = vote_answers(voters)
    for name in CARE:
        assert getattr(found, name) == getattr(agreed, name)
    for name in ("vehicles", "two_wheelers", "pedestrians"):
        assert getattr(found, name) == getattr(agreed, name)
    assert set(found.hazards) == set(agreed.hazards)


def fields_of(answer: SceneAdvice) -> dict[str, object]:
    return {name: getattr(answer, name) for name in SceneAdvice.__dataclass_fields__}


@many
@given(apart(), sights, st.integers(0, 2))
def test_p35_nor_do_strange_boxes(agreed: Detections, other: Detections, place: int) -> None:
    """P-35, box by box and not by the identity of the whole."""
    voters = [agreed, agreed]
    voters.insert(place, other)
    found = vote_detections(voters)
    assert set(found.detections) == set(agreed.detections)
    assert [b.score for b in found.detections] == [b.score for b in agreed.detections]


@many
@given(st.one_of(answers, sights), st.integers(1, 5))
def test_p36_identical_answers_come_back(payload: Payload, count: int) -> None:
    """P-36: all alike, or more than half of five."""
    assert vote([payload] * count) == payload
    assert vote([SceneAdvice(text="z"), payload, Detections(7, 7), payload, payload]) == payload


@many
@given(st.one_of(st.lists(outputs(answers), min_size=2, max_size=5), st.lists(outputs(sights), min_size=2, max_size=5)),
       st.randoms(use_true_random=False))  # fmt: skip
def test_p37_the_order_does_not_matter(given_: list[EngineOutput], random: object) -> None:
    """P-37: nor who is called the first."""
    order = list(range(len(given_)))
    random.shuffle(order)  # type: ignore[attr-defined]
    engines = [RedundantEngine([Given(o) for o in row], "homogeneous") for row in (given_, [given_[n] for n in order])]
    one, other = (engine.infer([FRAME]) for engine in engines)
    assert (one.payload, one.uncertainty, one.adapter) == (other.payload, other.uncertainty, other.adapter)
    first, second = (engine.record.by_instance for engine in engines)
    assert [first[n] for n in order] == list(second)


@many
@given(st.lists(st.one_of(outputs(answers)), min_size=2, max_size=5))
def test_p38_dissent_makes_careful_and_unsure(given_: list[EngineOutput]) -> None:
    """P-38: the vote is fit to be published, no less careful than half of the voters, and no surer than its median."""
    engine = RedundantEngine([Given(o) for o in given_], "homogeneous")
    output = engine.infer([FRAME])
    assert unusable(Tier.FULL, output) == ""
    assert isinstance(output.payload, SceneAdvice)
    voters = [o.payload for o in given_ if isinstance(o.payload, SceneAdvice)]
    assert output.payload.advice >= median_low([v.advice for v in voters])
    for hazard in Hazard:
        assert (hazard in output.payload.hazards) is (2 * sum(hazard in v.hazards for v in voters) >= len(voters))
    middle = sorted(o.uncertainty for o in given_)[len(given_) // 2]
    dissenting = sum(engine.record.by_instance)
    assert output.uncertainty >= middle
    assert output.uncertainty == pytest.approx(middle + (1 - middle) * dissenting / len(given_))
    assert bool(engine.record.last) is (dissenting > 0)


@many
@given(st.lists(outputs(sights), min_size=2, max_size=5))
def test_p38_no_object_is_invented(given_: list[EngineOutput]) -> None:
    """P-38: what is kept lies within what the voters of its class saw, and is fit to be published."""
    output = RedundantEngine([Given(o) for o in given_], "homogeneous").infer([FRAME])
    assert unusable(Tier.DETECTOR, output) == ""
    assert isinstance(output.payload, Detections)
    everyone = [b for o in given_ if isinstance(o.payload, Detections) for b in o.payload.detections]
    for kept in output.payload.detections:
        mine = [b for b in everyone if b.class_id == kept.class_id]
        for name in ("score", "x_min", "y_min", "x_max", "y_max"):
            sides = [getattr(b, name) for b in mine]
            assert min(sides) <= getattr(kept, name) <= max(sides)


@many
@given(sound, sound)
def test_p39_what_differs_does_not_get_through(one: EngineOutput, other: EngineOutput) -> None:
    """P-39: temporal, to the last bit."""
    engine = RedundantEngine([Given(one, other)], "temporal")
    if (one.payload, one.uncertainty) == (other.payload, other.uncertainty):
        assert engine.infer([FRAME]).payload == one.payload
        return
    with pytest.raises(EngineError, match="transient fault"):
        engine.infer([FRAME])
    assert engine.record.refused == 1


@many
@given(sound, st.sampled_from(["score", "x_min", "x_max", "uncertainty"]), st.integers(1, 3))
def test_p39_not_even_the_last_bit(one: EngineOutput, name: str, bits: int) -> None:
    """P-39: the smallest steps a number can take."""

    def nudged(value: float) -> float:
        for _ in range(bits):
            value = math.nextafter(value, math.inf if value < 0.5 else -math.inf)
        return value

    payload, uncertainty = one.payload, one.uncertainty
    if name == "uncertainty" or not isinstance(payload, Detections) or not payload.detections:
        uncertainty = nudged(uncertainty)
    else:
        first, *rest = payload.detections
        fields = {n: getattr(first, n) for n in Detection.__dataclass_fields__}
        changed = Detection(**{**fields, name: nudged(getattr(first, name))})
        payload = Detections(payload.image_width, payload.image_height, (changed, *rest))
    engine = RedundantEngine([Given(one, EngineOutput(payload, uncertainty, 1.0, 1.0, 1.0))], "temporal")
    with pytest.raises(EngineError, match="transient fault"):
        engine.infer([FRAME])
    again = RedundantEngine([Given(one, one)], "temporal")
    assert again.infer([FRAME]).payload == one.payload
