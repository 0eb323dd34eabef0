"""The vocabulary file: round trips, and every way it can be broken."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.contract import EngineError, InputError
from triptych.language.tokeniser import Vocabulary, normalise, render
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
        (change(sentences=[{"words": "zeppelin ahead"}]), "zeppelin"),
        (change(sentences=[{"words": "{moon} ahead"}]), "moon"),
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
