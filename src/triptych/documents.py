"""YAML and JSON from outside: only plain values of bounded size and depth come out, and one kind of error per format.

The parsers themselves let more through: of equal keys in YAML the last one wins, where nobody may choose; YAML's
aliases make a gigabyte of a few lines; a date that does not exist or a number of 5000 digits is a ValueError from
within, deep nesting a RecursionError; both formats' escapes can say half a surrogate pair, which no message, file or
terminal can then take.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MAX_VALUES = 100_000
"""Values of a YAML document, aliases counted as often as they stand for something; ours have some hundreds."""
MAX_DEPTH = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_yaml(data: bytes | str) -> Any:
    """What a YAML document says; bytes say their encoding themselves (UTF-8 unless marked).

    Raises:
        yaml.YAMLError: not YAML, a value that its tag cannot be, half a surrogate pair, a key twice, too many values or
            too deep.
    """
    try:
        loader = yaml.SafeLoader(data)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _measure(node, {}, 0)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise yaml.YAMLError(f"a value that cannot be: {error}") from None


def _measure(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Values that a node stands for."""
    if depth > MAX_DEPTH:
        raise yaml.YAMLError(f"nested more than {MAX_DEPTH} deep")
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, yaml.ScalarNode):
        if _SURROGATE.search(node.value):
            raise yaml.YAMLError("half a surrogate pair in a text")
        return 1
    inner = node.value
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
        _check_keys([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
    total = 1
    for part in inner:
        total += _measure(part, known, depth + 1)
        if total > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES} values")
    known[id(node)] = total
    return total


def _check_keys(keys: list[yaml.ScalarNode]) -> None:
    seen: set[tuple[str, str]] = set()
    for key in keys:
        if (key.tag, key.value) in seen:
            raise yaml.YAMLError(f"'{key.value}' is there twice, {str(key.start_mark).strip()}")
        seen.add((key.tag, key.value))


def parse_json(data: bytes | str) -> Any:
    """What a JSON text in UTF-8 says.

    Raises:
        ValueError: not JSON, not UTF-8, half a surrogate pair, or nested too deeply.
    """
    raw = data.encode() if isinstance(data, str) else data
    try:
        found = json.loads(raw.decode())
        if _ESCAPE.search(raw):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return found
