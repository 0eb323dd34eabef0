"""The vocabulary file: round trips, and every way it can be broken."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import uncounted_file

from triptych.contract import EngineError, InputError
from triptych.contract.result import COUNTED, MOST_COUNTED
from triptych.language.config import Sentence
from triptych.language.tokeniser import COUNT_TOKENS, Vocabulary, count_token, normalise, render
from triptych_forge.vlm.words import MAX_QUESTION_TOKENS, TOPICS, make_vocabulary, vocabulary_file

VOCABULARY = make_vocabulary()
WORDS = [token for token in VOCABULARY.tokens if "<" not in token and ":" not in token]


@given(st.lists(st.sampled_from(WORDS), max_size=20))
def test_words_survive_the_trip(words: list[str]) -> None:
    text = render(words)
    assert VOCABULARY.decode(VOCABULARY.encode(text)) == text
    assert normalise(text) == words


@given(st.text(max_size=128))
def test_any_text_becomes_tokens(text: str) -> None:
    tokens = VOCABULARY.encode(text)
    assert all(0 <= token < len(VOCABULARY) for token in tokens)


def test_signs_and_capitals_do_not_matter() -> None:
    assert VOCABULARY.encode("May I overtake?") == VOCABULARY.encode("may i overtake")


def test_every_question_of_the_tables_is_in_the_vocabulary() -> None:
    for topic in TOPICS:
        for question in topic.questions:
            assert VOCABULARY.unknown not in VOCABULARY.question(question), question


def test_an_unknown_word_is_marked_and_a_long_question_refused() -> None:
    """V4: a prompt over the limit is a typed error before decoding."""
    assert VOCABULARY.unknown in VOCABULARY.question("is there a zeppelin")
    VOCABULARY.question("is " * MAX_QUESTION_TOKENS)
    with pytest.raises(InputError, match="24 words"):
        VOCABULARY.question("is " * (MAX_QUESTION_TOKENS + 1))
    with pytest.raises(InputError, match="128 characters"):
        VOCABULARY.question("x" * 129)


def test_the_file_is_written_and_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(vocabulary_file().model_dump_json())
    assert Vocabulary.load(path).tokens == VOCABULARY.tokens


@given(st.sampled_from(COUNTED), st.integers(0, 10**6))
def test_every_number_has_a_token(field: str, number: int) -> None:
    """Nine stands for more as well."""
    token = count_token(field, number)
    assert token == f"{field}:{min(number, 9)}" and token in VOCABULARY.index and token in VOCABULARY.phrases


def test_a_vocabulary_counts_everything_or_nothing() -> None:
    assert VOCABULARY.counts and len(COUNT_TOKENS) == 3 * (MOST_COUNTED + 1)
    assert not Vocabulary(uncounted_file()).counts


@pytest.mark.parametrize("kept", [COUNT_TOKENS[:1], COUNT_TOKENS[:10], COUNT_TOKENS[1:]])
def test_a_vocabulary_that_counts_in_part_is_refused_with_the_tokens_it_lacks(kept: tuple[str, ...]) -> None:
    content = uncounted_file()
    phrases = {**content.phrases, **{token: PHRASES[token] for token in kept}}
    odd = content.model_copy(update={"tokens": (*content.tokens, *kept), "phrases": phrases})
    lacking = [token for token in COUNT_TOKENS if token not in kept]
    with pytest.raises(EngineError, match=rf"lacks {len(lacking)} needed tokens .*{lacking[0]}"):
        Vocabulary(odd)


@pytest.mark.parametrize("field", COUNTED)
def test_a_sentence_cannot_name_a_count_that_is_not_made(field: str) -> None:
    """Also where the slot's letters happen to be words of the vocabulary."""
    content = uncounted_file()
    odd = content.model_copy(
        update={
            "tokens": (*content.tokens, *{"vehicles", "two", "wheelers", "pedestrians"} - {*content.tokens}),
            "sentences": (*content.sentences, Sentence(words=f"yes, {{{field}}}")),
        }
    )
    with pytest.raises(EngineError, match=rf"sentences\.\d+\.words: has a slot for what is no field.*\{{{field}\}}"):
        Vocabulary(odd)


def change(**changes: object) -> dict[str, object]:
    return json.loads(vocabulary_file().model_dump_json()) | changes


TOKENS = list(VOCABULARY.tokens)
PHRASES = dict(vocabulary_file().phrases)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not a vocabulary"),
        ("[]", "is not a vocabulary"),
        (change(format="other"), "format"),
        (change(tokens=[*TOKENS, TOKENS[-1]]), "token twice"),
        (change(tokens=[t for t in TOKENS if t != "hazard:works"]), "hazard:works"),
        (change(tokens=[t for t in TOKENS if t != "<eos>"]), "<eos>"),
        (change(tokens=[t for t in TOKENS if t != "pedestrian"]), "no tokens"),
        (change(phrases={k: v for k, v in PHRASES.items() if k != "advice:stop"}), "lacks phrases"),
        (change(tokens=[t for t in TOKENS if t != "pedestrians:9"]), "lacks 1 needed tokens .*pedestrians:9"),
        (change(phrases={k: v for k, v in PHRASES.items() if k != "vehicles:0"}), "lacks phrases .*vehicles:0"),
        (change(sentences=[{"words": "zeppelin ahead"}]), "zeppelin"),
        (change(sentences=[{"words": "{moon} ahead"}]), "slot .*moon"),
        (change(sentences=[{"words": "{stop} ahead"}]), "slot .*stop"),
        (change(sentences=[{"words": "{Road} ahead"}]), "slot .*Road"),
        (change(sentences=[]), "sentences"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(EngineError, match=message):
        Vocabulary.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        Vocabulary.load(tmp_path / "vocabulary.json")
