"""The safety properties of PROPERTIES.md that concern what the tiers say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from supervisor_rig import MS, Rig, driving, make_answer, make_result, table
from test_properties_supervisor import events, happen

from triptych.contract import (
    BUDGETS,
    Advice,
    Detection,
    Detections,
    Hazard,
    LatencySplit,
    Light,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    Weather,
)
from triptych.contract.result import MAX_TOKENS, NOT_COUNTED
from triptych.supervisor import SupervisorConfig
from triptych.supervisor.channel import TierChannel
from triptych.supervisor.monitors import ADVISERS_SAY
from triptych.supervisor.monitors.consistency import Consistency, Said, similarity
from triptych.supervisor.monitors.cross_modal import Seen
from triptych.supervisor.monitors.entropy import answer_entropy, token_entropy
from triptych.supervisor.monitors.invalid import result_is_valid
from triptych.supervisor.monitors.perplexity import perplexity
from triptych.supervisor.monitors.repetition import repetition

CONFIG = SupervisorConfig()

chances = st.floats(0.0, 1.0)
tokens = st.lists(chances, max_size=MAX_TOKENS).map(tuple)
counts = st.one_of(st.integers(0, 9), st.just(NOT_COUNTED))
words = st.lists(st.sampled_from(["road", "in", "rain", "fog,", "stop", "go", "on."]), max_size=20).map(" ".join)
answers = st.builds(
    SceneAdvice,
    road=st.sampled_from(Road),
    weather=st.sampled_from(Weather),
    light=st.sampled_from(Light),
    hazards=st.lists(st.sampled_from(Hazard), max_size=8, unique=True).map(tuple),
    advice=st.sampled_from(Advice),
    vehicles=counts,
    two_wheelers=counts,
    pedestrians=counts,
    text=words,
    token_probabilities=tokens,
)
numbers = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1e308, -1e308, 5e-324]))
whole = st.one_of(st.integers(-3, 2**62), st.sampled_from([0, 1, 640, 1280]))
odd_answers = st.builds(
    SceneAdvice,
    road=whole,
    hazards=st.lists(whole, max_size=8).map(tuple),
    advice=whole,
    vehicles=whole,
    pedestrians=whole,
    text=st.text(max_size=256),
    token_probabilities=st.lists(numbers, max_size=70).map(tuple),
)
pixels = st.one_of(st.floats(-200.0, 1500.0), numbers)
boxes = st.builds(
    Detection,
    label=st.sampled_from(["car", "person", ""]),
    class_id=st.sampled_from([0, 1, 2, 3, 4, 255, -1]),
    score=st.one_of(chances, numbers),
    x_min=pixels,
    y_min=pixels,
    x_max=pixels,
    y_max=pixels,
)
detections = st.builds(Detections, whole, whole, st.lists(boxes, max_size=40).map(tuple))


@st.composite
def results(draw: st.DrawFn) -> TierResult:
    """Anything that the check of validity accepts."""
    tier = draw(st.sampled_from(Tier))
    payload: Any = draw(detections if tier is Tier.DETECTOR else st.one_of(answers, odd_answers))
    result = replace(
        make_result(tier, draw(whole)),
        origin=draw(st.sampled_from(Origin)),
        reason=draw(st.sampled_from(["", "timeout", "timeout, too_old", "no_frame"])),
        latency=LatencySplit(draw(numbers), draw(numbers), draw(numbers), draw(numbers)),
        uncertainty=draw(st.one_of(chances, st.just(math.nan))),
        payload=payload,
    )
    assume(result_is_valid(result))
    return result


def vlm_speaks(rig: Rig, what: list[SceneAdvice]) -> None:
    """The VLMs of this rig say these answers in turn, with the rig's advice."""
    said = dict.fromkeys(Tier, 0)

    def edit(result: TierResult) -> TierResult:
        if result.tier is Tier.DETECTOR:
            return result
        said[result.tier] += 1
        answer = what[said[result.tier] // 7 % len(what)]
        return replace(result, payload=replace(answer, advice=rig.advice[result.tier]))

    rig.edit_result = edit


@given(events, st.lists(answers, min_size=1, max_size=4))
@example([("careful", 120), ("sure", 120), ("sure", 120), ("sure", 120)], [make_answer()])
@example([("careful", 120), ("stop full", 120)] + [("sure", 120)] * 6, [make_answer(token_probabilities=(0.01,) * 20)])
def test_p18_doubt_never_raises_the_limit(sequence: list[tuple[str, int]], what: list[SceneAdvice]) -> None:
    """P-18: two vehicles with the same inputs; the one that doubts what VLMs say is nowhere allowed more."""
    trusting = tuple(row for row in table() if row.metric not in ADVISERS_SAY)
    rigs = driving(25.0), driving(25.0, faults=trusting)
    for rig in rigs:
        vlm_speaks(rig, what)
    for event, ticks in [*sequence, ("start full", 100), ("start distilled", 200)]:
        for rig in rigs:
            happen(rig, event)
            rig.obeys = False
        for _ in range(ticks):
            for rig in rigs:
                rig.tick()
            assert rigs[0].core._limit_mps <= rigs[1].core._limit_mps


@given(st.lists(st.tuples(results(), st.booleans(), st.booleans(), numbers), max_size=12))
@settings(max_examples=60)
def test_p19_no_monitor_fails_at_what_is_valid(sequence: list[tuple[TierResult, bool, bool, float]]) -> None:
    """P-19 (A6): every metric stays unknown or a number that is not negative, or NaN."""
    seen = Seen(CONFIG)
    channels = {tier: TierChannel(tier, BUDGETS[tier], CONFIG, seen) for tier in Tier}
    for number, (result, judge_age, moving, age_s) in enumerate(sequence):
        channel = channels[result.tier]
        now_ns = number * 50 * MS
        channel.take_result(result, now_ns, age_s % 0.1, judge_age, True, None, moving)
        for metric in channel.metrics().values():
            value = metric(now_ns)
            assert value is None or math.isnan(value) or value >= 0.0


@given(answers, answers)
@settings(max_examples=60)
def test_p20_similarity_is_a_similarity(one: SceneAdvice, other: SceneAdvice) -> None:
    """P-20: within 0..1, symmetric, 1 for equal answers."""
    a, b = Said.of(one), Said.of(other)
    assert 0.0 <= similarity(a, b, CONFIG) == similarity(b, a, CONFIG) <= 1.0
    assert similarity(a, a, CONFIG) == 1.0


@given(st.lists(answers, min_size=1, max_size=12), st.integers(2, 7))
@settings(max_examples=40)
def test_p20_inconsistency_is_a_share(said: list[SceneAdvice], window: int) -> None:
    """P-20: 0..1 from the K-th answer on, unknown before, and 0 once the last K are equal."""
    monitor = Consistency(SupervisorConfig(consistency_window_n=window))
    for number, answer in enumerate([*said, *[said[-1]] * window], 1):
        monitor.observe(answer)
        value = monitor.inconsistency(0)
        assert (value is None) is (number < window)
        assert value is None or 0.0 <= value <= 1.0
    assert value == 0.0


@given(tokens, chances, chances, st.integers(2, 10**6))
@settings(max_examples=100)
def test_p21_doubt_grows_with_danger(said: tuple[float, ...], one: float, other: float, outcomes: int) -> None:
    """P-21: perplexity is 1 or more and entropy within 0..1, and a less probable token never lowers either."""
    low, high = sorted((one, other))
    ppl, entropy = perplexity((*said, high)), answer_entropy(make_answer(token_probabilities=(high, *said)), outcomes)
    worse = perplexity((*said, low))
    assert ppl is not None and worse is not None and 1.0 - 1e-12 <= ppl <= worse * (1 + 1e-12)
    assert entropy is not None and -1e-12 <= entropy <= 1.0 + 1e-12
    assert token_entropy(high, outcomes) <= token_entropy(low, outcomes) + 1e-12


@given(answers, st.integers(1, 16))
@settings(max_examples=100)
def test_p21_repetition_is_a_share(answer: SceneAdvice, ngram: int) -> None:
    """P-21: 0..1, and saying it all twice never lowers it."""
    share = repetition(answer, ngram)
    assert share is None or 0.0 <= share <= 1.0
    twice = repetition(replace(answer, text=f"{answer.text} {answer.text}"), ngram)
    assert share is None or (twice is not None and twice >= share - 1e-12)
