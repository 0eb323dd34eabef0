"""The monitors of what a VLM says: unknown before the first answer, 0.99 / 1.0 / 1.01 of each limit, NaN is unsafe."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from supervisor_rig import MS, make_answer, make_result

from triptych.contract import (
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
    Weather,
)
from triptych.contract.result import MAX_TOKENS, NOT_COUNTED
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.consistency import Consistency, Said, similarity
from triptych.supervisor.monitors.entropy import Entropy, answer_entropy, field_tokens, token_entropy
from triptych.supervisor.monitors.perplexity import Perplexity, perplexity
from triptych.supervisor.monitors.repetition import Repetition, repetition
from triptych.supervisor.monitors.unchanging import Unchanging
from triptych.supervisor.monitors.very_late import VeryLate

CONFIG = SupervisorConfig()
NAN, INF = math.nan, math.inf


def saying(*probabilities: float, **changes: Any) -> SceneAdvice:
    """An answer with these token probabilities."""
    return make_answer(token_probabilities=probabilities, **changes)


# ---- entropy ----


@pytest.mark.parametrize(
    ("probability", "outcomes", "entropy"),
    [
        (1.0, 256, 0.0), (0.5, 256, 0.6247), (0.25, 256, 0.8509), (1 / 256, 256, 1.0), (0.001, 256, 1.0),
        (0.0, 256, 1.0), (0.5, 150_000, 0.5582), (0.5, 2, 1.0), (0.9, 2, 0.4690),
    ],
)  # fmt: skip
def test_entropy_of_a_token(probability: float, outcomes: int, entropy: float) -> None:
    """Fano's bound by hand; of two outcomes it is the entropy itself."""
    assert token_entropy(probability, outcomes) == pytest.approx(entropy, abs=1e-4)


def test_the_bound_is_the_entropy_of_the_widest_distribution() -> None:
    """Calculated the long way: the rest of the probability spread evenly."""
    rest = [0.3 / 99] * 99
    entropy = -sum(p * math.log(p) for p in [0.7, *rest]) / math.log(100)
    assert token_entropy(0.7, 100) == pytest.approx(entropy)


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -0.01, 1.01])
def test_entropy_of_no_probability_is_nan(bad: float) -> None:
    """A6."""
    assert math.isnan(token_entropy(bad, 256))


def test_entropy_is_of_the_fields() -> None:
    """Road, weather, light, counts, hazards and advice; not of the text, which would hide their doubt."""
    counting = saying(*[0.5] * 8, *[1.0] * 20, hazards=(Hazard.WORKS,))
    assert field_tokens(counting) == 8
    assert answer_entropy(counting, 256) == pytest.approx(token_entropy(0.5, 256))
    silent = replace(counting, vehicles=NOT_COUNTED, two_wheelers=NOT_COUNTED, pedestrians=NOT_COUNTED, hazards=())
    assert field_tokens(silent) == 4
    cut_short = saying(0.5, 1.0)
    assert answer_entropy(cut_short, 256) == pytest.approx(token_entropy(0.5, 256) / 2)
    assert answer_entropy(saying(), 256) is None


@pytest.mark.parametrize(("factor", "run"), [(0.99, 0), (1.0, 0), (1.01, 1)])
def test_entropy_limit(factor: float, run: int) -> None:
    """At the limit an answer is not yet open."""
    answer = saying(*[0.25] * 7)
    entropy = answer_entropy(answer, 256)
    assert entropy is not None
    monitor = Entropy(SupervisorConfig(entropy_limit_share=entropy / factor))
    monitor.observe(answer)
    assert monitor.entropy_n(0) == run


def test_entropy_counts_answers_in_a_row() -> None:
    """One sure answer ends the run; answers without tokens do not count either way; NaN is open."""
    monitor = Entropy(CONFIG)
    monitor.observe(saying())
    assert monitor.entropy_n(0) is None
    for probability, run in [(0.05, 1), (0.0, 2), (NAN, 3), (0.9, 0), (0.05, 1)]:
        monitor.observe(saying(*[probability] * 7))
        assert monitor.entropy_n(0) == run
        monitor.observe(saying())
        assert monitor.entropy_n(0) == run


# ---- perplexity ----


@pytest.mark.parametrize(
    ("probabilities", "value"),
    [((1.0,), 1.0), ((0.5, 0.5), 2.0), ((1.0, 0.25), 2.0), ((0.1,) * 64, 10.0), ((0.5, 0.0), INF), ((5e-324,), INF)],
)
def test_perplexity(probabilities: tuple[float, ...], value: float) -> None:
    """By hand; what was impossible gives infinity, and so does what does not fit into a number."""
    assert perplexity(probabilities) == pytest.approx(value) or value == INF


def test_perplexity_of_the_impossible() -> None:
    """Zero is infinite surprise, wherever it stands."""
    assert perplexity((0.0,)) == perplexity((0.0, 1.0, 1.0)) == INF
    assert perplexity((1e-323,) * 64) == INF


@pytest.mark.parametrize("bad", [NAN, INF, -0.01, 1.01])
def test_perplexity_of_no_probability_is_nan(bad: float) -> None:
    """A6: NaN, which is a fault, also beside an impossible token."""
    value = perplexity((0.0, bad))
    assert value is not None and math.isnan(value)


def test_perplexity_is_of_the_last_answer() -> None:
    """Without tokens it is unknown."""
    monitor = Perplexity()
    assert monitor.perplexity(0) is None
    monitor.observe(saying(0.5))
    assert monitor.perplexity(0) == 2.0
    monitor.observe(saying())
    assert monitor.perplexity(0) is None


# ---- repetition ----


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("rural road in fog, slow down", 0.0), ("stop", 0.0), ("a a a", 0.0), ("a a a a", 0.5), ("a b a b a b", 0.5),
        ("stop " * 42, 39 / 40), ("a b c d a b c", 1 / 5),
    ],
)  # fmt: skip
def test_repetition(text: str, share: float) -> None:
    """A7: share of three-word sequences that were there before."""
    assert repetition(make_answer(text=text), 3) == pytest.approx(share)


@pytest.mark.parametrize(("tokens", "share"), [(MAX_TOKENS - 1, 0.0), (MAX_TOKENS, 1.0)])
def test_an_answer_that_does_not_end(tokens: int, share: float) -> None:
    """A7: cut by the contract's bound."""
    assert repetition(saying(*[1.0] * tokens, text="on and on it goes"), 3) == share


def test_repetition_of_nothing_is_unknown() -> None:
    """No text and no token; one of the two is an answer."""
    assert repetition(saying(text=""), 3) is None
    assert repetition(saying(0.9, text=""), 3) == 0.0
    monitor = Repetition(CONFIG)
    assert monitor.repetition(0) is None
    monitor.observe(make_answer(text="go on and on and on and on"))
    assert monitor.repetition(0) == pytest.approx(0.5)
    monitor.observe(make_answer())
    assert monitor.repetition(0) == 0.0


# ---- consistency ----

BASE = make_answer(hazards=(Hazard.WORKS,))


def alike(one: SceneAdvice, other: SceneAdvice, config: SupervisorConfig = CONFIG) -> float:
    """Similarity of two answers."""
    return similarity(Said.of(one), Said.of(other), config)


@pytest.mark.parametrize(
    ("changes", "similar"),
    [
        ({}, 1.0),
        ({"road": Road.URBAN}, 1 - 0.4 / 3),
        ({"road": Road.URBAN, "weather": Weather.FOG, "light": Light.NIGHT}, 0.6),
        ({"hazards": ()}, 0.8),
        ({"hazards": (Hazard.WORKS, Hazard.RED_LIGHT)}, 0.9),
        ({"advice": Advice.STOP}, 0.9),
        ({"advice": Advice.SLOW_DOWN}, 0.95),
        ({"vehicles": 2, "pedestrians": 1}, 1.0),
        ({"vehicles": 3}, 1 - 0.1 / 3),
        ({"text": ""}, 0.8),
        ({"text": "Highway in clear weather and daylight no hazard seen go on."}, 1.0),
        ({"token_probabilities": (0.1,)}, 1.0),
    ],
)
def test_similarity_of_its_parts(changes: dict[str, Any], similar: float) -> None:
    """Each part has its weight; counts within one are the same; probabilities are no words."""
    assert alike(BASE, replace(BASE, **changes)) == pytest.approx(similar)


def test_counts_are_left_out_where_one_does_not_count() -> None:
    """Otherwise not to count would be to agree."""
    silent = replace(BASE, vehicles=NOT_COUNTED, two_wheelers=NOT_COUNTED, pedestrians=NOT_COUNTED, advice=Advice.STOP)
    assert alike(BASE, silent) == pytest.approx(1 - 0.1 / 0.9)


def test_texts_are_compared_as_bags_of_words() -> None:
    """Cosine: one of two words in common."""
    only_text = SupervisorConfig(
        consistency_scene_weight=1e-12, consistency_hazards_weight=0.0, consistency_counts_weight=0.0,
        consistency_advice_weight=0.0, consistency_text_weight=1.0,
    )  # fmt: skip
    one, other = replace(BASE, text="go on"), replace(BASE, text="go back")
    assert alike(one, other, only_text) == pytest.approx(0.5)
    assert alike(replace(BASE, text=""), replace(BASE, text=""), only_text) == 1.0


def test_inconsistency_needs_k_answers() -> None:
    """Unknown before, also after a restart."""
    monitor = Consistency(CONFIG)
    for restart in (False, True):
        if restart:
            monitor.restart()
        for _ in range(CONFIG.consistency_window_n):
            assert monitor.inconsistency(0) is None
            monitor.observe(BASE)
        assert monitor.inconsistency(0) == 0.0


def test_inconsistency_is_the_mean_over_all_pairs_of_the_window() -> None:
    """Against the definition, on answers that keep changing."""
    monitor = Consistency(SupervisorConfig(consistency_window_n=4))
    answers = [
        replace(BASE, road=Road(1 + n * n % 5), hazards=(Hazard(1 + n % 8),), vehicles=n * 5 % 10, text=f"a {n % 3}")
        for n in range(12)
    ]
    for end, answer in enumerate(answers, 1):
        monitor.observe(answer)
        if end >= 4:
            last = answers[end - 4 : end]
            pairs = [alike(last[i], last[j]) for i in range(4) for j in range(i)]
            assert monitor.inconsistency(0) == pytest.approx(1 - sum(pairs) / 6)


OTHER_SCENE = make_answer(
    road=Road.CROSSING, weather=Weather.FOG, light=Light.NIGHT, hazards=(Hazard.RED_LIGHT,), advice=Advice.STOP,
    vehicles=9, two_wheelers=9, pedestrians=9, text="crossing at night",
)  # fmt: skip


def test_a_scene_that_changes_once_is_consistent_again_after_k_answers() -> None:
    """What the debounce has to outlast: K - 1 answers, at most 60 % of the difference of two scenes."""
    monitor = Consistency(CONFIG)
    for _ in range(5):
        monitor.observe(BASE)
    seen = []
    for _ in range(5):
        monitor.observe(OTHER_SCENE)
        seen.append(monitor.inconsistency(0))
    difference = 1 - alike(BASE, OTHER_SCENE)
    assert seen == pytest.approx([0.4 * difference, 0.6 * difference, 0.6 * difference, 0.4 * difference, 0.0])


def test_a_vlm_that_makes_up_every_answer_is_inconsistent() -> None:
    """Well above the shipped limit; one that only wavers in its advice is well below it (P-03)."""
    monitor, wavering = Consistency(CONFIG), Consistency(CONFIG)
    for n in range(20):
        made_up = make_answer(
            road=Road(1 + n % 5), weather=Weather(1 + n % 3), light=Light(1 + n // 2 % 3), hazards=(Hazard(1 + n % 8),),
            advice=Advice(n % 5), vehicles=n * 7 % 10, text=" ".join(f"word{n * 3 + i}" for i in range(9)),
        )  # fmt: skip
        monitor.observe(made_up)
        wavering.observe(replace(BASE, advice=(Advice.PROCEED, Advice.STOP)[n % 2]))
    value, low = monitor.inconsistency(0), wavering.inconsistency(0)
    assert value is not None and value > 0.6
    assert low is not None and low <= 0.1


# ---- unchanging ----


def test_unchanging() -> None:
    """V10: the same bits about another picture; equal words alone are normal."""
    monitor = Unchanging()
    assert monitor.unchanging_n(0) is None
    answer = make_answer()
    monitor.observe(answer, True)
    assert monitor.unchanging_n(0) is None
    for number, run in [(0, 1), (0, 2), (1, 0), (1, 1)]:
        monitor.observe(make_answer(number), True)
        assert monitor.unchanging_n(0) == run
    tiny = replace(make_answer(1), token_probabilities=(0.9 - 1e-4 + 1e-16, *[0.95] * 17))
    assert tiny.text == make_answer(1).text
    monitor.observe(tiny, True)
    assert monitor.unchanging_n(0) == 0


def test_unchanging_says_nothing_at_standstill_or_without_tokens() -> None:
    """A6: no false error where the picture may be the same; what was counted stays."""
    monitor = Unchanging()
    for _ in range(5):
        monitor.observe(make_answer(), False)
        assert monitor.unchanging_n(0) is None
    monitor.observe(make_answer(), True)
    assert monitor.unchanging_n(0) == 1
    monitor.observe(make_answer(), False)
    for _ in range(3):
        monitor.observe(saying(), True)
        assert monitor.unchanging_n(0) == 1


def test_a_detector_is_judged_by_its_boxes() -> None:
    """An empty road may well give the same nothing again; the same boxes to the last bit may not."""
    monitor, nothing = Unchanging(), Detections(8, 8)
    for _ in range(3):
        monitor.observe(nothing, True)
        assert monitor.unchanging_n(0) is None
    seen = Detections(8, 8, (Detection("car", 0, 0.9, 1.0, 2.0, 3.0, 4.0),))
    nearly = replace(seen, detections=(replace(seen.detections[0], x_min=1.0 + 1e-12),))
    for boxes, run in [(seen, 0), (seen, 1), (seen, 2), (nothing, 2), (seen, 0), (seen, 1), (nearly, 0)]:
        monitor.observe(boxes, True)
        assert monitor.unchanging_n(0) == run


def test_unchanging_after_a_restart() -> None:
    """The first answer has none before it."""
    monitor = Unchanging()
    monitor.observe(make_answer(), True)
    monitor.restart()
    monitor.observe(make_answer(), True)
    assert monitor.unchanging_n(0) is None


# ---- very late ----


def timed(origin: Origin, stamp_ms: int, taken_ms: float = 0.0) -> Any:
    """A result whose content took this long."""
    split = LatencySplit(50.0, 30.0, taken_ms - 100.0, 20.0)
    return make_result(Tier.DISTILLED, stamp_ms * MS, origin=origin, latency=split)


@pytest.mark.parametrize(("age_s", "run"), [(0.4158, 0), (0.42, 0), (0.4242, 1), (NAN, 1), (INF, 1)])
def test_a_fresh_result_is_very_late_by_its_age(age_s: float, run: int) -> None:
    """At 0.99, 1.0 and 1.01 of the limit; NaN is late."""
    monitor = VeryLate(0.42)
    assert monitor.very_late_n(0) is None
    monitor.observe(timed(Origin.FRESH, 0), age_s, False)
    assert monitor.very_late_n(0) == run


@pytest.mark.parametrize(("taken_ms", "run"), [(415.8, 0), (420.0, 0), (424.2, 1), (NAN, 1)])
def test_a_late_inference_shows_in_the_content_that_is_repeated(taken_ms: float, run: int) -> None:
    """Counted once, however often it is repeated; not by the age of what is repeated."""
    monitor = VeryLate(0.42)
    for _ in range(3):
        monitor.observe(timed(Origin.LAST_FRAME, 10, taken_ms), 0.9, True)
        assert monitor.very_late_n(0) == run


def test_content_that_was_fresh_is_no_news() -> None:
    """A fresh result that is repeated does not count again; the next late inference does."""
    monitor = VeryLate(0.42)
    monitor.observe(timed(Origin.FRESH, 10, 500.0), 0.1, False)
    monitor.observe(timed(Origin.LAST_FRAME, 10, 500.0), 0.5, True)
    assert monitor.very_late_n(0) == 0
    monitor.observe(timed(Origin.LAST_FRAME, 20, 500.0), 0.5, True)
    assert monitor.very_late_n(0) == 1


def test_no_content_at_all_is_very_late_if_it_timed_out() -> None:
    """A missing camera is none of the engine's lateness."""
    monitor = VeryLate(0.42)
    monitor.observe(timed(Origin.DEFAULT, 0), 2.0, False)
    assert monitor.very_late_n(0) is None
    for run in (1, 2):
        monitor.observe(timed(Origin.DEFAULT, 0), 2.0, True)
        assert monitor.very_late_n(0) == run
    monitor.observe(timed(Origin.FRESH, 10), 0.1, False)
    assert monitor.very_late_n(0) == 0
