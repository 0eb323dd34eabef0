"""The decision log notices every change, gap and cut."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.contract import ConfigError
from triptych_forge.decisions import GENESIS, DecisionLog, canonical, config_hash, read_decisions

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def written(path: Path) -> DecisionLog:
    log = DecisionLog(path, {"seed": 1})
    for number in range(4):
        log.add("prune.layer", f"stages.{number}", ratio=number / 4, before=0.5, after=math.nan)
    return log


def test_what_was_written_is_read(tmp_path: Path) -> None:
    log = written(tmp_path / "log.jsonl")
    found = read_decisions(log.path)
    assert found == log.decisions and len(found) == 4
    assert found[0].previous_sha256 == GENESIS and found[3].previous_sha256 == found[2].sha256
    assert found[1].facts == {"ratio": 0.25, "before": 0.5, "after": "nan"}
    assert found[0].config_sha256 == config_hash({"seed": 1}) != config_hash({"seed": 2})


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path)
    DecisionLog(path, {"seed": 1}).add("bundle", "x")
    assert [d.number for d in read_decisions(path)] == [0, 1, 2, 3, 4]


@given(facts=st.dictionaries(st.from_regex(r"\A[a-z]{1,6}\Z"), JSON, max_size=3))
def test_any_facts_survive(tmp_path_factory: pytest.TempPathFactory, facts: dict[str, object]) -> None:
    facts.pop("kind", None)
    facts.pop("self", None)
    log = DecisionLog(tmp_path_factory.mktemp("log") / "log.jsonl", {})
    log.add("x", "y", **{k: v for k, v in facts.items() if k != "subject"})
    assert read_decisions(log.path) == log.decisions


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: [lines[0], lines[1].replace("0.25", "0.26"), *lines[2:]], "line 2"),
        (lambda lines: [lines[0], *lines[2:]], "line 2"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1"),
        (lambda lines: [*lines[:3], lines[3][: len(lines[3]) // 2]], "line 4"),
        (lambda lines: [*lines[:3], "[]"], "line 4"),
        (lambda lines: lines[1:], "line 1"),
    ],
    ids=["edited", "removed", "swapped", "cut", "rubbish", "headless"],
)
def test_damage_is_found(tmp_path: Path, change: object, sentence: str) -> None:
    path = written(tmp_path / "log.jsonl").path
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n")  # type: ignore[operator]
    with pytest.raises(ConfigError, match=sentence):
        read_decisions(path)
    with pytest.raises(ConfigError):
        DecisionLog(path, {})


@given(number=st.integers(0, 3), bit=st.integers(0, 7), at=st.integers(0, 10_000))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, number: int, bit: int, at: int) -> None:
    path = written(tmp_path_factory.mktemp("log") / "log.jsonl").path
    lines = path.read_bytes().split(b"\n")
    line = bytearray(lines[number])
    line[at % len(line)] ^= 1 << bit
    lines[number] = bytes(line)
    damaged = b"\n".join(lines)
    path.write_bytes(damaged)
    with pytest.raises(ConfigError):
        read_decisions(path)


def test_canonical_is_stable() -> None:
    assert canonical({"b": (1, 2), "a": math.inf}) == '{"a":"inf","b":[1,2]}'
