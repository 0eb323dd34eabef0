"""End-to-end protection: sequence counter and CRC-32, after the AUTOSAR E2E profiles' idea.

The CRC covers a canonical encoding of the whole content, so that it does not depend on the middleware's
serialisation (whose padding bytes are undefined). Fields go in declaration order, ``crc`` itself left out:
bool and int as little-endian 64 bits, two's complement (enumerations too), float as IEEE-754 double, text as UTF-8 with
an uint32 length, sequences with an uint32 count, nested records inline.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from typing import Any, TypeVar

T = TypeVar("T")
_INT, _FLOAT, _COUNT = struct.Struct("<Q"), struct.Struct("<d"), struct.Struct("<I")
_WORD = (1 << 64) - 1  # a message's counters are unsigned: half of them are no int64


def canonical_bytes(value: Any) -> bytes:
    """Encode a contract record, number, text or sequence of them (see the module's docstring).

    Raises:
        TypeError: for a type the encoding does not define.
    """
    out = bytearray()
    _encode(value, out)
    return bytes(out)


def _encode(value: Any, out: bytearray) -> None:
    if isinstance(value, (bool, int)):
        out += _INT.pack(int(value) & _WORD)
    elif isinstance(value, float):
        out += _FLOAT.pack(value)
    elif isinstance(value, str):
        data = value.encode()
        out += _COUNT.pack(len(data)) + data
    elif isinstance(value, (tuple, list)):
        out += _COUNT.pack(len(value))
        for item in value:
            _encode(item, out)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field, real in _fields(type(value)):
            item = getattr(value, field)
            _encode(float(item) if real else item, out)
    else:
        raise TypeError(f"no canonical encoding for {type(value).__name__}")


_FIELDS: dict[type, tuple[tuple[str, bool], ...]] = {}


def _fields(cls: type) -> tuple[tuple[str, bool], ...]:
    """Name of each field and whether it is a float: an int put there must encode as what the receiver will read."""
    if cls not in _FIELDS:
        fields = (f for f in dataclasses.fields(cls) if f.name != "crc")
        _FIELDS[cls] = tuple((f.name, f.type in (float, "float")) for f in fields)
    return _FIELDS[cls]


def crc_of(record: Any) -> int:
    """CRC-32 (zlib polynomial) over the canonical encoding of ``record`` without its ``crc`` field."""
    return zlib.crc32(canonical_bytes(record))


def protect(record: T, sequence_counter: int) -> T:
    """Return ``record`` with its sequence counter (modulo 256) and CRC filled in."""
    counter = sequence_counter % 256
    out = bytearray()
    for field, real in _fields(type(record)):
        item = counter if field == "sequence_counter" else getattr(record, field)
        _encode(float(item) if real else item, out)
    return dataclasses.replace(record, sequence_counter=counter, crc=zlib.crc32(out))  # type: ignore[type-var]


def crc_ok(record: Any) -> bool:
    """Whether the CRC in ``record`` fits its content."""
    return bool(record.crc == crc_of(record))


class SequenceChecker:
    """Follows an 8-bit sequence counter.

    :meth:`update` returns how many messages were skipped (0: none, -1: the counter repeated).
    """

    def __init__(self) -> None:
        self._last: int | None = None

    def update(self, counter: int) -> int:
        previous, self._last = self._last, counter
        if previous is None:
            return 0
        return (counter - previous) % 256 - 1

    def reset(self) -> None:
        """Forget the last counter, e.g. when the sender was restarted."""
        self._last = None
