"""The log of every decision the tool chain takes: JSON lines, each with a CRC and the hash of the one before.

A line cannot be changed, left out or moved without breaking the chain behind it, and a line cut short by a crash is
found by its CRC. The safety evidence is built on these files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.contract import ConfigError

GENESIS = "0" * 64
"""What the first line names as its predecessor."""


@dataclass(frozen=True)
class Decision:
    """One line.

    Attributes:
        number: from 0, without gaps.
        kind: what was decided, e.g. ``prune.layer``, ``quantise.reject``.
        subject: of what: a layer, an engine, a step.
        facts: JSON-able: ratio, sensitivity, accuracy before and after, both timings...
        config_sha256: of the configuration that it was taken under.
        previous_sha256: :attr:`sha256` of the line before.
        sha256: of this line's canonical JSON without ``crc32`` and ``sha256``.
    """

    number: int
    kind: str
    subject: str
    facts: Mapping[str, Any]
    config_sha256: str
    previous_sha256: str
    sha256: str


def canonical(value: Any) -> str:
    """ASCII JSON with sorted keys and no spaces; what is not finite becomes a text (``"nan"``, ``"inf"``)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration's canonical JSON."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()


class DecisionLog:
    """Appends decisions to a file, flushed to disk one by one; an existing file is checked and continued.

    Args:
        path: of the JSON-lines file.
        config: of the run; its hash goes into every line.

    Raises:
        ConfigError: the file is there and damaged.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self._config_sha256 = config_hash(config)
        self.decisions: list[Decision] = read_decisions(path) if path.is_file() else []

    def add(self, kind: str, subject: str, **facts: Any) -> Decision:
        """Append one decision and return it."""
        previous = self.decisions[-1].sha256 if self.decisions else GENESIS
        body = {
            "number": len(self.decisions),
            "kind": kind,
            "subject": subject,
            "facts": _plain(facts),
            "config_sha256": self._config_sha256,
            "previous_sha256": previous,
        }
        text = canonical(body)
        digest = hashlib.sha256(text.encode()).hexdigest()
        line = canonical({**body, "crc32": zlib.crc32(text.encode()), "sha256": digest})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        decision = Decision(**body, sha256=digest)  # type: ignore[arg-type]
        self.decisions.append(decision)
        return decision


def fresh_log(path: Path, config: Mapping[str, Any]) -> DecisionLog:
    """An empty log: what an interrupted try wrote is not continued."""
    path.unlink(missing_ok=True)
    return DecisionLog(path, config)


def joined_log(path: Path, config: Mapping[str, Any], parts: Mapping[str, Path]) -> DecisionLog:
    """The decisions of several steps, name to log, as one chain; each says which step it is of.

    Raises:
        ConfigError: a log that is damaged or not there.
    """
    log = fresh_log(path, config)
    for step, part in parts.items():
        for decision in read_decisions(part):
            log.add(decision.kind, decision.subject, **{**decision.facts, "step": step})
    return log


def read_decisions(path: Path) -> list[Decision]:
    """All decisions of a file, with CRCs, hashes and numbers checked.

    Raises:
        ConfigError: unreadable, a line that is no decision, a wrong CRC or hash, a gap; says in which line.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n") if path.stat().st_size else []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=path) from None
    found: list[Decision] = []
    previous = GENESIS
    for number, line in enumerate(lines):
        where = f"{path}, line {number + 1}"
        try:
            body = json.loads(line)
            crc, digest = body.pop("crc32"), body.pop("sha256")
            decision = Decision(**body, sha256=digest)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError("is no decision", where=where, remedy="the file was damaged; make it again") from None
        text = canonical(body).encode()
        if zlib.crc32(text) != crc or hashlib.sha256(text).hexdigest() != digest:
            raise ConfigError("was changed: CRC or hash do not fit", where=where, remedy="make it again")
        if decision.number != number or decision.previous_sha256 != previous:
            raise ConfigError("does not follow the line before", where=where, remedy="a line was removed or moved")
        found.append(decision)
        previous = digest
    return found


def _plain(value: Any) -> Any:
    """``value`` as JSON can say it: tuples as lists, numbers of numpy and torch as Python's, paths as texts."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return _plain(value.item())
    number = float(value)
    return number if math.isfinite(number) else str(number)
