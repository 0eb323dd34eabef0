"""The answer grammar: whatever a model says comes out as a valid answer within the contract's bounds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import Advice, EngineError, Hazard, Light, Road, SceneAdvice, Weather
from triptych.contract.result import MAX_HAZARDS, MAX_TEXT, MAX_TOKENS
from triptych.language.config import Sentence
from triptych.language.decode import greedy
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary, field_token
from triptych_forge.vlm.words import SEVERITY, TOPICS, Truth, answer_tokens, make_vocabulary, vocabulary_file

VOCABULARY = make_vocabulary()
GRAMMAR = Grammar(VOCABULARY, MAX_TOKENS)


def random_step(seed: int, scale: float = 5.0):
    generator = np.random.default_rng(seed)
    return lambda tokens: (generator.standard_normal(len(VOCABULARY)) * scale).astype(np.float32)


def check(answer: SceneAdvice, tokens: tuple[int, ...]) -> None:
    """An answer every consumer may rely on."""
    assert len(tokens) <= MAX_TOKENS and len(answer.token_probabilities) == len(tokens)
    assert len(answer.hazards) <= MAX_HAZARDS and len(set(answer.hazards)) == len(answer.hazards)
    assert 0 < len(answer.text) <= MAX_TEXT
    assert isinstance(answer.road, Road) and isinstance(answer.advice, Advice)
    assert all(0.0 <= p <= 1.0 for p in answer.token_probabilities)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 50.0))
def test_any_logits_give_an_answer_that_parses_and_keeps_the_bounds(seed: int, scale: float) -> None:
    decoded = greedy(random_step(seed, scale), GRAMMAR, VOCABULARY.question(""))
    assert not decoded.cut
    again = GRAMMAR.parse(decoded.tokens)
    assert again.done
    answer = GRAMMAR.payload(again, "", decoded.probabilities)
    check(answer, decoded.tokens)
    assert answer == GRAMMAR.payload(decoded.state, "", decoded.probabilities)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(VOCABULARY) - 1))
def test_a_model_that_repeats_one_token_for_ever_still_ends(favourite: int) -> None:
    """A7: the grammar allows no hazard twice and every sentence ends."""
    logits = np.zeros(len(VOCABULARY), np.float32)
    logits[favourite] = 40.0
    decoded = greedy(lambda tokens: logits, GRAMMAR, VOCABULARY.question(""))
    assert not decoded.cut
    check(GRAMMAR.payload(decoded.state, "", decoded.probabilities), decoded.tokens)


def test_a_model_that_names_every_hazard_names_each_once() -> None:
    logits = np.zeros(len(VOCABULARY), np.float32)
    for hazard in Hazard:
        logits[VOCABULARY.index[field_token("hazard", hazard)]] = 9.0
    decoded = greedy(lambda tokens: logits, GRAMMAR, [])
    assert GRAMMAR.payload(decoded.state, "", decoded.probabilities).hazards == tuple(Hazard)


def test_the_text_cannot_contradict_the_fields() -> None:
    red = VOCABULARY.index["hazard:red_light"]
    fields = [VOCABULARY.index[t] for t in ("road:urban", "weather:clear", "light:day")]
    advice = VOCABULARY.index["advice:caution"]

    def texts(state) -> set[str]:
        found, open_states = set(), [state]
        while open_states:
            at = open_states.pop()
            for token in np.flatnonzero(GRAMMAR.allowed(at)):
                after = GRAMMAR.advance(at, int(token))
                if after.done:
                    found.add(GRAMMAR.payload(after, "", ()).text)
                else:
                    open_states.append(after)
        return found

    without, with_red = texts(GRAMMAR.parse([*fields, advice])), texts(GRAMMAR.parse([*fields, red, advice]))
    assert "no, no red traffic light seen" in without and "yes, red traffic light" not in without
    assert "yes, red traffic light" in with_red and "no, no red traffic light seen" not in with_red
    assert not any("rain" in text and "not" not in text for text in without)


def test_every_true_answer_is_in_the_language_and_survives_the_trip() -> None:
    for road in Road:
        for hazards in [(), (Hazard.LEAD_VEHICLE,), (Hazard.TWO_WHEELER, Hazard.RED_LIGHT), tuple(Hazard)]:
            for advice in Advice:
                truth = Truth(road, Weather.RAIN, Light.DUSK, hazards, advice)
                for topic in TOPICS:
                    tokens, known = answer_tokens(VOCABULARY, truth, topic)
                    assert all(known) and len(tokens) <= MAX_TOKENS
                    answer = GRAMMAR.payload(GRAMMAR.parse(tokens), "", ())
                    assert Truth(answer.road, answer.weather, answer.light, answer.hazards, answer.advice) == truth


def test_every_hazard_has_a_severity() -> None:
    assert sorted(SEVERITY) == sorted(Hazard)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_out_of_range_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="does not continue"):
        GRAMMAR.advance(GRAMMAR.start(), token)


def test_nothing_follows_the_end() -> None:
    decoded = greedy(random_step(1), GRAMMAR, [])
    assert not GRAMMAR.allowed(decoded.state).any()


def broken(**changes: object) -> Vocabulary:
    return Vocabulary(vocabulary_file().model_copy(update=changes))


def test_a_sentence_that_breaks_a_bound_is_refused_at_load() -> None:
    long = Sentence(words="now " * 60)
    with pytest.raises(EngineError, match="above 64"):
        Grammar(broken(sentences=(*vocabulary_file().sentences, long)), MAX_TOKENS)
    wide = Sentence(words="pedestrian " * 30)
    with pytest.raises(EngineError, match="256 characters"):
        Grammar(broken(sentences=(*vocabulary_file().sentences, wide)), MAX_TOKENS)


def test_a_vocabulary_that_leaves_an_answer_without_a_sentence_is_refused() -> None:
    with pytest.raises(EngineError, match="without conditions"):
        Grammar(broken(sentences=(Sentence(words="{hazard}", when=("hazard:*",)),)), MAX_TOKENS)


def test_an_unknown_condition_is_refused() -> None:
    odd = Sentence(words="stop", when=("hazard:dragon",))
    with pytest.raises(EngineError, match=r"no field value.*dragon"):
        Grammar(broken(sentences=(*vocabulary_file().sentences, odd)), MAX_TOKENS)


def test_a_payload_of_nothing_is_cautious() -> None:
    answer = GRAMMAR.payload(GRAMMAR.start(), "", ())
    assert dataclasses.astuple(answer)[:5] == (0, 0, 0, (), Advice.CAUTION) and answer.text == "..."
