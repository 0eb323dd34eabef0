"""Greedy decoding: honest probabilities, a hard deadline, no trust in broken logits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import uncounted_file

from triptych.contract import Advice, EngineError
from triptych.contract.result import COUNTED, MOST_COUNTED, NOT_COUNTED
from triptych.language.decode import Decoded, greedy
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary
from triptych_forge.vlm.words import make_vocabulary

VOCABULARY = make_vocabulary()
GRAMMAR = Grammar(VOCABULARY, 64)
SIZE = len(VOCABULARY)


class Stepper:
    """A model whose every step takes ``cost_ns`` on its own clock."""

    def __init__(self, cost_ns: int = 0, seed: int = 0) -> None:
        self.now, self.cost_ns, self.fed = 0, cost_ns, []
        self._generator = np.random.default_rng(seed)

    def __call__(self, tokens: list[int]) -> np.ndarray:
        self.now += self.cost_ns
        self.fed.append(tokens)
        return self._generator.standard_normal(SIZE).astype(np.float32) * 3


def test_the_prompt_is_fed_once_and_then_one_token_at_a_time() -> None:
    step = Stepper()
    decoded = greedy(step, GRAMMAR, [7, 8, 9])
    assert step.fed[0] == [7, 8, 9]
    assert [tokens[0] for tokens in step.fed[1:]] == list(decoded.tokens[:-1])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(0, 60_000), st.integers(0, 500))
def test_the_deadline_is_kept_and_the_answer_stays_valid(seed: int, cost: int, deadline: int, margin: int) -> None:
    """A7: a hard deadline in the decoder; what was said so far is a valid, cautious answer."""
    step = Stepper(cost, seed)
    decoded = greedy(step, GRAMMAR, [1], deadline, margin, now_ns=lambda: step.now)
    # The first two steps are begun before a step's cost is known; later ones must fit in as a whole.
    assert step.now <= max(deadline - margin, 0) + cost
    if len(decoded.tokens) > 2:
        assert step.now <= deadline - margin
    answer = GRAMMAR.payload(decoded.state, "", decoded.probabilities)
    assert len(answer.token_probabilities) == len(decoded.tokens)
    counted = min(max(decoded.field_count - 3, 0), 3)
    counts = [getattr(answer, name) for name in COUNTED]
    assert all(count <= MOST_COUNTED for count in counts[:counted]) and counts[counted:] == [NOT_COUNTED] * (
        3 - counted
    )
    if not decoded.state.fields_complete:
        assert answer.advice is Advice.CAUTION and decoded.uncertainty == 1.0
    assert decoded.cut is not decoded.state.done
    assert answer.text.endswith("...") is decoded.cut


def test_an_expired_deadline_asks_the_model_nothing() -> None:
    step = Stepper(1)
    decoded = greedy(step, GRAMMAR, [1], deadline_monotonic_ns=0, now_ns=lambda: step.now)
    assert step.fed == [] and decoded.tokens == () and decoded.uncertainty == 1.0


def test_no_deadline_means_the_whole_answer() -> None:
    assert not greedy(Stepper(10**12), GRAMMAR, [1], None).cut


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 3])
def test_logits_that_are_not_finite_are_refused(bad: float, at: int) -> None:
    """A6: NaN and infinity are errors, wherever they come up."""
    calls = 0

    def step(tokens: list[int]) -> np.ndarray:
        nonlocal calls
        logits = np.zeros(SIZE, np.float32)
        if calls == at:
            logits[SIZE // 2] = bad
        calls += 1
        return logits

    with pytest.raises(EngineError, match="not finite"):
        greedy(step, GRAMMAR, [1])


def test_logits_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(EngineError, match="export model and vocabulary together"):
        greedy(lambda tokens: np.zeros(SIZE + 1, np.float32), GRAMMAR, [1])


def test_probabilities_are_those_before_the_mask() -> None:
    """A model that wants what the grammar forbids is unsure, however few choices are left."""
    logits = np.zeros(SIZE, np.float32)
    logits[VOCABULARY.eos] = 10.0  # never allowed among the fields
    decoded = greedy(lambda tokens: logits, GRAMMAR, [1])
    expected = 1.0 / (math.exp(10.0) + SIZE - 1)
    assert decoded.probabilities[0] == pytest.approx(expected, rel=1e-6)
    assert decoded.uncertainty > 0.99


COUNTS = ("vehicles:2", "two_wheelers:0", "pedestrians:9")


def spoken(grammar: Grammar, fields: tuple[str, ...], unsure: str = "") -> Decoded:
    """What a model says that is sure of ``fields`` but for one of them, and of no word."""
    vocabulary = grammar.vocabulary
    plan = [(vocabulary.index[name], 0.1 if name == unsure else 30.0) for name in fields]

    def step(tokens: list[int]) -> np.ndarray:
        logits = np.zeros(len(vocabulary), np.float32)
        if plan:
            token, height = plan.pop(0)
            logits[token] = height
        return logits

    return greedy(step, grammar, [1])


@pytest.mark.parametrize(
    ("grammar", "counts"), [(GRAMMAR, COUNTS), (Grammar(Vocabulary(uncounted_file()), 64), ())], ids=["counted", "not"]
)
def test_a_sure_model_has_low_uncertainty_and_ties_go_to_the_first(grammar: Grammar, counts: tuple[str, ...]) -> None:
    fields = ("road:rural", "weather:fog", "light:night", *counts, "advice:slow_down")
    decoded = spoken(grammar, fields)
    assert decoded.uncertainty < 1e-6 and decoded.field_count == len(fields)
    first = np.flatnonzero(grammar.allowed(grammar.parse(decoded.tokens[: len(fields)])))[0]
    assert decoded.tokens[len(fields)] == int(first)
    answer = grammar.payload(decoded.state, "", decoded.probabilities)
    said = (2, 0, 9) if counts else (NOT_COUNTED,) * 3
    assert (answer.vehicles, answer.two_wheelers, answer.pedestrians) == said


@pytest.mark.parametrize("unsure", COUNTS)
def test_doubt_about_a_count_is_doubt_about_the_answer(unsure: str) -> None:
    fields = ("road:rural", "weather:fog", "light:night", *COUNTS, "advice:slow_down")
    decoded = spoken(GRAMMAR, fields, unsure)
    assert decoded.tokens[:7] == tuple(VOCABULARY.index[name] for name in fields)
    chance = math.exp(0.1) / (math.exp(0.1) + SIZE - 1)
    assert decoded.uncertainty == pytest.approx(1 - chance ** (1 / 7), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-8, 8), min_size=5, max_size=5), st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_a_higher_quantile_never_makes_advice_less_careful(levels: list[float], first: float, second: float) -> None:
    logits = np.full(SIZE, -20.0, np.float32)
    logits[list(GRAMMAR.advice)] = levels

    def advice(quantile: float) -> Advice:
        decoded = greedy(lambda tokens: logits, GRAMMAR, [1], advice_quantile=quantile)
        return GRAMMAR.payload(decoded.state, "", decoded.probabilities).advice

    low, high = sorted((first, second))
    assert advice(low) <= advice(high)
    chances = np.exp(np.array(levels)) / np.exp(np.array(levels)).sum()
    assert chances[: advice(high) + 1].sum() >= high - 1e-5


def test_the_median_of_split_advice_is_said_not_the_loudest() -> None:
    logits = np.full(SIZE, -20.0, np.float32)
    chances = [0.4, 0.15, 0.15, 0.15, 0.15]
    logits[list(GRAMMAR.advice)] = np.log(chances)
    decoded = greedy(lambda tokens: logits, GRAMMAR, [1])
    assert GRAMMAR.payload(decoded.state, "", decoded.probabilities).advice is Advice.CAUTION
