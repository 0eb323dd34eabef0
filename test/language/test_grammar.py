"""The answer grammar: whatever a model says comes out as a valid answer within the contract's bounds."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import uncounted_file

from triptych.contract import Advice, EngineError, Hazard, Light, Road, SceneAdvice, Weather
from triptych.contract.result import (
    COUNTED,
    MAX_HAZARDS,
    MAX_TEXT,
    MAX_TOKENS,
    MOST_COUNTED,
    NOT_COUNTED,
    is_count,
)
from triptych.language.config import Sentence, VocabularyFile
from triptych.language.decode import greedy
from triptych.language.grammar import Grammar, State
from triptych.language.tokeniser import Vocabulary, count_token, field_token
from triptych_forge.vlm.words import (
    SEVERITY,
    TOPICS,
    Truth,
    answer_tokens,
    make_vocabulary,
    truth_of,
    vocabulary_file,
)

VOCABULARY = make_vocabulary()
GRAMMAR = Grammar(VOCABULARY, MAX_TOKENS)
UNCOUNTED = Grammar(Vocabulary(uncounted_file()), MAX_TOKENS)
NUMBERS = st.tuples(*[st.integers(0, MOST_COUNTED)] * 3)


def random_step(seed: int, scale: float = 5.0, size: int = len(VOCABULARY)):
    generator = np.random.default_rng(seed)
    return lambda tokens: (generator.standard_normal(size) * scale).astype(np.float32)


def counts_of(answer: SceneAdvice) -> tuple[int, ...]:
    return tuple(getattr(answer, name) for name in COUNTED)


def numbers(*counts: int) -> list[int]:
    """Tokens of counts, in the order of the answer."""
    return [VOCABULARY.index[count_token(name, count)] for name, count in zip(COUNTED, counts, strict=False)]


def texts(state: State, grammar: Grammar = GRAMMAR) -> set[str]:
    """Every text that may follow."""
    found, open_states = set(), [state]
    while open_states:
        at = open_states.pop()
        for token in np.flatnonzero(grammar.allowed(at)):
            after = grammar.advance(at, int(token))
            if after.done:
                found.add(grammar.payload(after, "", ()).text)
            else:
                open_states.append(after)
    return found


def check(answer: SceneAdvice, tokens: tuple[int, ...]) -> None:
    """An answer every consumer may rely on."""
    assert len(tokens) <= MAX_TOKENS and len(answer.token_probabilities) == len(tokens)
    assert len(answer.hazards) <= MAX_HAZARDS and len(set(answer.hazards)) == len(answer.hazards)
    assert 0 < len(answer.text) <= MAX_TEXT
    assert isinstance(answer.road, Road) and isinstance(answer.advice, Advice)
    assert all(map(is_count, counts_of(answer)))
    assert all(0.0 <= p <= 1.0 for p in answer.token_probabilities)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([GRAMMAR, UNCOUNTED]), st.integers(0, 2**32 - 1), st.floats(0.0, 50.0))
def test_any_logits_give_an_answer_that_parses_and_keeps_the_bounds(grammar: Grammar, seed: int, scale: float) -> None:
    """Counts are given by every answer of a model that counts and by none of one that does not."""
    vocabulary = grammar.vocabulary
    decoded = greedy(random_step(seed, scale, len(vocabulary)), grammar, vocabulary.question(""))
    assert not decoded.cut
    again = grammar.parse(decoded.tokens)
    assert again.done
    answer = grammar.payload(again, "", decoded.probabilities)
    check(answer, decoded.tokens)
    assert answer == grammar.payload(decoded.state, "", decoded.probabilities)
    assert [count == NOT_COUNTED for count in counts_of(answer)] == [not vocabulary.counts] * 3


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
    fields = [*SCENE, *numbers(3, 0, 1)]
    advice = VOCABULARY.index["advice:caution"]
    without, with_red = texts(GRAMMAR.parse([*fields, advice])), texts(GRAMMAR.parse([*fields, red, advice]))
    assert "no, no red traffic light seen" in without and "yes, red traffic light" not in without
    assert "yes, red traffic light" in with_red and "no, no red traffic light seen" not in with_red
    assert not any("rain" in text and "not" not in text for text in without)
    assert "three vehicles, no two wheeler, one pedestrian" in without
    assert not any("two vehicles" in text or "two pedestrians" in text for text in without)


SCENE = [VOCABULARY.index[t] for t in ("road:urban", "weather:clear", "light:day")]


@settings(deadline=None)
@given(NUMBERS, st.integers(0, 3))
def test_counts_are_said_between_light_and_hazards_and_arrive(counts: tuple[int, int, int], said: int) -> None:
    """A model cannot leave a count out, nor swap two; what a cut answer did not reach is not counted."""
    state = GRAMMAR.parse(SCENE)
    for name, token in zip(COUNTED, numbers(*counts), strict=True):
        only = {VOCABULARY.index[count_token(name, number)] for number in range(MOST_COUNTED + 1)}
        assert set(np.flatnonzero(GRAMMAR.allowed(state))) == only and not state.fields_complete
        state = GRAMMAR.advance(state, token)
    after = {VOCABULARY.tokens[t].split(":")[0] for t in np.flatnonzero(GRAMMAR.allowed(state))}
    assert after == {"hazard", "advice"}
    assert counts_of(GRAMMAR.payload(state, "", ())) == counts
    cut = GRAMMAR.payload(GRAMMAR.parse([*SCENE, *numbers(*counts[:said])]), "", ())
    assert counts_of(cut) == counts[:said] + (NOT_COUNTED,) * (3 - said)
    assert cut.advice is Advice.CAUTION and cut.text == "..."


def test_fields_are_complete_once_the_advice_was_said() -> None:
    for grammar, counts in ((GRAMMAR, ["vehicles:2", "two_wheelers:0", "pedestrians:9"]), (UNCOUNTED, [])):
        names = ["road:urban", "weather:clear", "light:day", *counts, "hazard:works", "advice:stop"]
        tokens = [grammar.vocabulary.index[name] for name in names]
        assert not any(grammar.parse(tokens[:n]).fields_complete for n in range(len(tokens)))
        state = grammar.parse(tokens)
        while not state.done:
            assert state.fields_complete
            state = grammar.advance(state, int(np.flatnonzero(grammar.allowed(state))[0]))
        assert state.fields_complete


def test_a_model_that_does_not_count_says_everything_else() -> None:
    vocabulary = UNCOUNTED.vocabulary
    assert not vocabulary.counts and UNCOUNTED.order == ("road", "weather", "light", "hazard", "advice")
    names = ("road:urban", "weather:clear", "light:day", "hazard:red_light", "advice:stop")
    state = UNCOUNTED.parse([vocabulary.index[name] for name in names])
    answer = UNCOUNTED.payload(state, "", ())
    assert (answer.road, answer.hazards, answer.advice) == (Road.URBAN, (Hazard.RED_LIGHT,), Advice.STOP)
    assert counts_of(answer) == (NOT_COUNTED,) * 3
    assert "yes, red traffic light" in texts(state, UNCOUNTED)


def test_a_sentence_may_depend_on_a_count_only_where_there_are_counts() -> None:
    empty = Sentence(words="no vehicle", when=("vehicles:0",))
    grammar = Grammar(broken(sentences=(*vocabulary_file().sentences, empty)), MAX_TOKENS)
    advice = VOCABULARY.index["advice:caution"]
    assert "no vehicle" in texts(grammar.parse([*SCENE, *numbers(0, 1, 1), advice]), grammar)
    assert "no vehicle" not in texts(grammar.parse([*SCENE, *numbers(1, 0, 0), advice]), grammar)
    content = uncounted_file()
    with pytest.raises(EngineError, match=r"no field value.*vehicles:0"):
        Grammar(Vocabulary(content.model_copy(update={"sentences": (*content.sentences, empty)})), MAX_TOKENS)


def test_every_true_answer_is_in_the_language_and_survives_the_trip() -> None:
    for road in Road:
        for hazards in [(), (Hazard.LEAD_VEHICLE,), (Hazard.TWO_WHEELER, Hazard.RED_LIGHT), tuple(Hazard)]:
            for advice in Advice:
                truth = Truth(road, Weather.RAIN, Light.DUSK, hazards, advice, (0, MOST_COUNTED, int(road)))
                for topic in TOPICS:
                    tokens, known = answer_tokens(VOCABULARY, truth, topic)
                    assert all(known) and len(tokens) <= MAX_TOKENS
                    answer = GRAMMAR.payload(GRAMMAR.parse(tokens), "", ())
                    assert truth_of(answer) == truth


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


@pytest.mark.parametrize("content", [vocabulary_file(), uncounted_file()], ids=["counted", "uncounted"])
def test_the_longest_answer_is_reckoned_to_the_token(content: VocabularyFile) -> None:
    """Fields, all hazards and <eos> leave room for so many words: one more could break the contract's bound."""
    vocabulary = Vocabulary(content)
    fields = ["road:urban", "weather:clear", "light:day", *(f"{n}:9" for n in COUNTED if vocabulary.counts)]
    fields += [*(field_token("hazard", hazard) for hazard in Hazard), "advice:stop"]
    room = MAX_TOKENS - len(fields) - 1
    for words, fits in ((room, True), (room + 1, False)):
        long = Sentence(words="now " * words)
        changed = Vocabulary(content.model_copy(update={"sentences": (*content.sentences, long)}))
        if fits:
            answer = [*fields, *["now"] * words, "<eos>"]
            assert len(answer) == MAX_TOKENS
            assert Grammar(changed, MAX_TOKENS).parse([changed.index[token] for token in answer]).done
        else:
            with pytest.raises(EngineError, match="of 65 tokens, above 64"):
                Grammar(changed, MAX_TOKENS)


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
    assert counts_of(answer) == (NOT_COUNTED,) * 3
