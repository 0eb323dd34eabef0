"""Golden files: what a lockstep run decided, small enough to be read and kept beside the code, and the way to compare.

File format: JSON lines. The first is the head, ``{"kind": "golden", "schema_version": 1, "version": ..., "data": ...,
"config": {...}, "engines": {...}, "played": {...}, "decisions": N}``; then one decision a line, in order of time, with
``t_s`` in seconds since the start of the run, in whole milliseconds:

* ``state``: a transition of the degradation machine, with its reason;
* ``fault``: a row of the fault table that became active or was cleared;
* ``constraint``: the command changed its state or a flag, its limit fell, or began or ceased to rise, or its
  deceleration moved by :data:`DECELERATION_STEP_MPS2`. Repetitions, and the steps of a rise, are no decisions.

Two decisions are the same one if they say the same (:func:`_says`) within the tolerance of time. Numbers within a
reason do not count: they are measured values, and the last digits of an engine's differ from one CPU to the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from triptych import __version__
from triptych.contract import InputError, MotionConstraint
from triptych.documents import parse_json
from triptych.replay.record import RunRecord, canonical_json, to_plain
from triptych.report.schema import write_text
from triptych.report.summary import span_ns

SCHEMA_VERSION = 1
DECELERATION_STEP_MPS2 = 0.5
TOLERANCE_S = 0.05
"""Default tolerance of time: a period of camera and command. A fault found one picture later is the same decision."""
LIMIT_TOLERANCE_MPS, DECELERATION_TOLERANCE_MPS2 = 0.3, 0.3
"""A rise of 2 m/s² that begins or ends two periods later, and the rounding of a step of the deceleration."""
IDENTITY = ("data", "config", "engines", "played")
"""Parts of the head that must agree for two runs to be comparable; ``version`` may differ: that is what is tested."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
Decision = dict[str, Any]


def decisions(record: RunRecord) -> list[Decision]:
    """What was decided in a run, in order of time; at one moment states first, then faults, then constraints."""
    start_ns, _ = span_ns(record)
    found = [*_states(record), *_faults(record), *_constraints(record)]
    found.sort(key=lambda pair: pair[0])
    return [{"t_s": round((t_ns - start_ns) / 1e9, 3), **decision} for t_ns, decision in found]


def _states(record: RunRecord) -> Iterator[tuple[int, Decision]]:
    before = "INITIALISING"
    for change in record.state_changes():
        after = change.state.name
        if after != before:
            yield change.t_ns, {"kind": "state", "before": before, "after": after, "reason": change.reason}
        before = after


def _faults(record: RunRecord) -> Iterator[tuple[int, Decision]]:
    active: set[str] = set()
    for verdict in record.verdicts:
        if verdict.active is not (verdict.fault_id in active):
            (active.add if verdict.active else active.discard)(verdict.fault_id)
            yield verdict.t_ns, {"kind": "fault", "fault": verdict.fault_id, "active": verdict.active}


def _constraints(record: RunRecord) -> Iterator[tuple[int, Decision]]:
    last: MotionConstraint | None = None
    noted_key, rising, noted_mps2 = None, False, 0.0
    for entry in record.constraints:
        now = entry.constraint
        rises = last is not None and now.speed_limit_mps > last.speed_limit_mps
        falls = last is not None and not now.speed_limit_mps >= last.speed_limit_mps
        key = (now.state.name, now.hazard_lights, now.pull_over, now.remote_notification)
        harder = not abs(now.deceleration_mps2 - noted_mps2) < DECELERATION_STEP_MPS2
        if key != noted_key or falls or rises is not rising or harder:
            noted_key, rising, noted_mps2 = key, rises, now.deceleration_mps2
            yield (
                entry.t_ns,
                {
                    "kind": "constraint",
                    "state": now.state.name,
                    "limit_mps": round(now.speed_limit_mps, 2),
                    "rising": rises,
                    "deceleration_mps2": round(now.deceleration_mps2, 2),
                    "hazard_lights": now.hazard_lights,
                    "pull_over": now.pull_over,
                    "remote_notification": now.remote_notification,
                },
            )
        last = now


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Golden:
    """What a golden file says."""

    head: dict[str, Any]
    decisions: list[Decision]


def golden_of(record: RunRecord) -> Golden:
    """What a run would be as a golden file.

    Raises:
        InputError: not a lockstep run, or nothing was decided in it.
    """
    identity = record.meta.get("identity")
    if not isinstance(identity, Mapping) or set(IDENTITY) - set(identity):
        raise InputError(
            "was not made in lockstep: on a real clock no two runs decide alike",
            field="mode",
            value=record.meta.get("mode"),
            remedy="play the recording with 'triptych replay --lockstep'",
        )
    found: list[Decision] = to_plain(decisions(record))
    if not found:
        raise InputError("decided nothing: there is nothing to compare", remedy="play more of the recording")
    head = {"kind": "golden", "schema_version": SCHEMA_VERSION, "version": __version__}
    return Golden({**head, **{k: to_plain(identity[k]) for k in IDENTITY}, "decisions": len(found)}, found)


def write_golden(record: RunRecord, path: Path | str) -> Golden:
    """Write the golden file of a run, beside its place first and then renamed.

    Raises:
        InputError: see :func:`golden_of`, or the file cannot be written.
    """
    golden = golden_of(record)
    lines = [golden.head, *golden.decisions]
    write_text(Path(path), "".join(canonical_json(line).decode() + "\n" for line in lines))
    return golden


def read_golden(path: Path | str) -> Golden:
    """Read a golden file.

    Raises:
        InputError: missing, of another schema version, cut off, or not a golden file.
    """
    source = Path(path)
    anew = "make it anew with --golden"
    try:
        lines = [parse_json(line) for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
        head, rows = lines[0], lines[1:]
        kind, version = head["kind"], head["schema_version"]
    except OSError as error:
        remedy = "name a golden file, or make one with --golden"
        raise InputError(f"cannot be read: {error.strerror}", where=source, remedy=remedy) from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError("is not a golden file", where=source, remedy=anew) from None
    if kind != "golden":
        raise InputError("is not a golden file", where=source, field="kind", value=kind, remedy=anew)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"has another schema version than {SCHEMA_VERSION}",
            where=source,
            field="schema_version",
            value=version,
            remedy=f"{anew}, or read it with the version that wrote it",
        )
    if not rows or head.get("decisions") != len(rows):
        raise InputError(
            f"is cut off: its head promises {head.get('decisions')} decisions",
            where=source,
            field="decisions",
            value=len(rows),
            remedy=anew,
        )
    for number, row in enumerate(rows, 2):
        if not _is_decision(row):
            raise InputError("is not a decision", where=source, field=f"line {number}", value=row, remedy=anew)
    return Golden(head, rows)


_FIELDS: Mapping[str, frozenset[str]] = {
    "state": frozenset({"before", "after", "reason"}),
    "fault": frozenset({"fault", "active"}),
    "constraint": frozenset(
        {"state", "limit_mps", "rising", "deceleration_mps2", "hazard_lights", "pull_over", "remote_notification"}
    ),
}


def _is_decision(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("t_s"), (int, float)):
        return False
    return row.get("kind") in _FIELDS and _FIELDS[row["kind"]] == set(row) - {"kind", "t_s"}


def differences_of_heads(golden: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which values of the identity differ, as ``config.faults: golden ..., now ...``."""
    found = []
    for part in IDENTITY:
        old, new = _flat(part, golden.get(part)), _flat(part, now.get(part))
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                found.append(f"{name} was {_short(old.get(name))} and is {_short(new.get(name))}")
    return found


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {key: v for k, inner in value.items() for key, v in _flat(f"{name}.{k}", inner).items()}


def _short(value: Any) -> str:
    text = str(value)
    return "nothing" if value is None else text if len(text) <= 24 else f"{text[:19]}…"


# -- comparison --------------------------------------------------------------------------------------------------------


class Difference(str, Enum):
    """How a run differs from its golden file in one decision."""

    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One difference; ``golden`` is None for what was added, ``now`` for what was removed."""

    kind: Difference
    golden: Decision | None
    now: Decision | None

    @property
    def t_s(self) -> float:
        """When it first shows."""
        return min(float(d["t_s"]) for d in (self.golden, self.now) if d is not None)

    def text(self) -> str:
        """For a person, one line."""
        if self.golden is None:
            assert self.now is not None
            return f"{self.now['t_s']:9.3f} s  {self.kind.value:8}{words(self.now)}"
        line = f"{self.golden['t_s']:9.3f} s  {self.kind.value:8}{words(self.golden)}"
        if self.now is None:
            return line
        shift_s = self.now["t_s"] - self.golden["t_s"]
        moved = f", {shift_s:+.3f} s" if shift_s else ""
        if self.kind is Difference.MOVED:
            return f"{line}{moved}"
        return f"{line}\n{'':21}now: {words(self.now)}{moved}"


def words(decision: Decision) -> str:
    """A decision as a person reads it."""
    if decision["kind"] == "state":
        return f"{decision['before']} → {decision['after']} ({decision['reason']})"
    if decision["kind"] == "fault":
        return f"{decision['fault']} {'active' if decision['active'] else 'cleared'}"
    flags = [n.replace("_", " ") for n in ("rising", "hazard_lights", "pull_over") if decision[n]]
    limit, deceleration = decision["limit_mps"], decision["deceleration_mps2"]
    return f"limit {limit} m/s at {deceleration} m/s² in {decision['state']}{', ' if flags else ''}{', '.join(flags)}"


def _subject(decision: Decision) -> tuple[Any, ...]:
    """What a decision is about: only decisions about the same are one that moved."""
    if decision["kind"] == "state":
        return ("state", decision["before"], decision["after"])
    if decision["kind"] == "fault":
        return ("fault", decision["fault"], decision["active"])
    flags = ("state", "rising", "hazard_lights", "pull_over", "remote_notification")
    return ("constraint", *(decision[name] for name in flags))


def _says(a: Decision, b: Decision) -> bool:
    """Whether two decisions about the same say the same: reasons but for their numbers, limits within a tolerance."""
    if a["kind"] == "state":
        return _NUMBER.sub("#", a["reason"]) == _NUMBER.sub("#", b["reason"])
    if a["kind"] == "constraint":
        return _near(a, b, "limit_mps", LIMIT_TOLERANCE_MPS) and _near(
            a, b, "deceleration_mps2", DECELERATION_TOLERANCE_MPS2
        )
    return True


def _near(a: Decision, b: Decision, name: str, tolerance: float) -> bool:
    """Numbers within a tolerance; what is no finite number is written as a word and must be the same word."""
    if isinstance(a[name], str) or isinstance(b[name], str):
        return bool(a[name] == b[name])
    return bool(abs(a[name] - b[name]) <= tolerance + 1e-9)


def compare(golden: Sequence[Decision], now: Sequence[Decision], tolerance_s: float = TOLERANCE_S) -> list[Divergence]:
    """Every difference, in order of time; empty if the same was decided.

    Decisions about the same are paired in their order so that the fewest are left over and they move the least. What is
    left over on both sides within the tolerance, of one kind, is one that changed. The order of decisions within the
    tolerance does not count.

    Args:
        tolerance_s: finite, at least 0; a decision may come this much earlier or later.
    """
    found: list[Divergence] = []
    removed: list[Decision] = []
    added: list[Decision] = []
    for subject in dict.fromkeys([*map(_subject, golden), *map(_subject, now)]):
        old = [d for d in golden if _subject(d) == subject]
        new = [d for d in now if _subject(d) == subject]
        pairs = paired([d["t_s"] for d in old], [d["t_s"] for d in new])
        for i, j in pairs:
            if not abs(old[i]["t_s"] - new[j]["t_s"]) <= tolerance_s + 1e-9:
                found.append(Divergence(Difference.MOVED, old[i], new[j]))
            if not _says(old[i], new[j]):
                found.append(Divergence(Difference.CHANGED, old[i], new[j]))
        kept_old, kept_new = {i for i, _ in pairs}, {j for _, j in pairs}
        removed += [d for i, d in enumerate(old) if i not in kept_old]
        added += [d for j, d in enumerate(new) if j not in kept_new]
    for gone in removed:
        same = [d for d in added if _could_be(gone, d) and abs(d["t_s"] - gone["t_s"]) <= tolerance_s + 1e-9]
        instead = min(same, key=lambda d: abs(d["t_s"] - gone["t_s"]), default=None)
        if instead is not None:
            added.remove(instead)
        found.append(Divergence(Difference.CHANGED if instead else Difference.REMOVED, gone, instead))
    found += [Divergence(Difference.ADDED, None, d) for d in added]
    return sorted(found, key=lambda d: d.t_s)


def _could_be(gone: Decision, added: Decision) -> bool:
    return bool(gone["kind"] == added["kind"] and gone.get("fault") == added.get("fault"))


def paired(old: Sequence[float], new: Sequence[float]) -> list[tuple[int, int]]:
    """Pair two ascending lists of times in order: as many pairs as the shorter has, with the least sum of shifts.

    Dynamic programming over (i, j), as an alignment whose only gaps are in the longer list.
    """
    if len(old) > len(new):
        return [(i, j) for j, i in paired(new, old)]
    costs: list[list[float]] = [[0.0] * (len(new) + 1)]
    for i, t_s in enumerate(old):
        row = [float("inf")] * (len(new) + 1)
        for j, u_s in enumerate(new):
            row[j + 1] = min(row[j], costs[i][j] + abs(t_s - u_s))
        costs.append(row)
    pairs, j = [], len(new)
    for i in range(len(old), 0, -1):
        while costs[i][j] == costs[i][j - 1]:
            j -= 1
        pairs.append((i - 1, j - 1))
        j -= 1
    return pairs[::-1]
