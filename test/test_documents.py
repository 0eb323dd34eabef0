"""YAML and JSON from outside: what is too large, too deep or no text is one kind of error."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from triptych.documents import MAX_DEPTH, MAX_VALUES, parse_json, parse_yaml

SCALARS = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text("abcäß 1:-", max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
)


@given(VALUES)
def test_sound_documents_say_what_the_parsers_say(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value)) == value
    assert parse_json(json.dumps(value)) == value and parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "a: 2024-13-45", "a: " + "1" * 5000, "[" * 5000, "!!int x", "!!float x", "!!timestamp x", '"\\uD800"', "a: [",
        "&a [*a]", "{? [1]: 2}", "--- a\n--- b", "!!python/object:os.system x", "!!bool x", "!!binary ä",
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_yaml_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        parse_yaml(text)
    assert str(caught.value).strip()


@pytest.mark.parametrize(("values", "fits"), [(MAX_VALUES - 1, True), (MAX_VALUES, False)])
def test_aliases_count_as_what_they_stand_for(values: int, fits: bool) -> None:
    """A list of lists: the greatest number of values, and one more."""
    inner = 999
    rows, rest = divmod(values, inner + 1)
    text = f"- &a [{','.join(['1'] * inner)}]\n" + "- *a\n" * (rows - 1) + "- 1\n" * rest
    if fits:
        assert len(parse_yaml(text)) == rows + rest
    else:
        with pytest.raises(yaml.YAMLError, match="values"):
            parse_yaml(text)


@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_depth_is_bounded(depth: int, fits: bool) -> None:
    text = "[" * depth + "1" + "]" * depth
    if fits:
        assert parse_yaml(text) == json.loads(text)
    else:
        with pytest.raises(yaml.YAMLError, match="deep"):
            parse_yaml(text)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'"\\ud800"', b'{"a":"\\uDfFf"}', b"\xac", b"1" * 5000, b"", b"{"])
def test_what_cannot_be_is_a_value_error_of_json(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(data)


def test_a_whole_surrogate_pair_is_a_letter() -> None:
    assert parse_json('"\\ud83d\\ude97"') == "🚗"


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "rows:\n- {max: 1, max: 2}", "{1: a, 2: b, 0x1: c, 1: d}"])
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    """The last one would win without a word."""
    with pytest.raises(yaml.YAMLError, match="is there twice"):
        parse_yaml(text)


def test_equal_words_of_other_kinds_are_other_keys() -> None:
    assert parse_yaml("{1: a, '1': b, x: {y: 1}, z: {y: 2}}") == {1: "a", "1": "b", "x": {"y": 1}, "z": {"y": 2}}
