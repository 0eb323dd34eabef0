"""The record of one run: everything a report is made of, in memory and as JSON lines.

The recorder node and the lockstep loop both fill a :class:`RunRecord`; ``triptych.report`` turns it into
``result.json`` and ``report.html``. Every time ``t_ns`` is the moment of *receipt* (or of the decision) in int
nanoseconds on the clock of source stamps, so that it can be compared with the stamps inside the records.

File format (``record.jsonl``): one JSON object per line, ``{"kind": ..., "t_ns": ..., ...}``; the first line is of kind
``meta``. Enumerations are their numbers, non-finite floats the strings ``nan``, ``inf``, ``-inf``, JPEG data base64. A
last line that was cut off by a crash is ignored on loading and noted in ``RunRecord.warnings``.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import io
import json
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from triptych.contract import (
    DegradationState,
    Detections,
    DriverState,
    InputError,
    MotionConstraint,
    Odometry,
    SceneAdvice,
    Tier,
    TierResult,
    TierStatus,
    VerdictLevel,
)
from triptych.contract.supervision import StateRecord as PublishedState
from triptych.contract.supervision import Verdict
from triptych.documents import parse_json

FORMAT_VERSION = 2
"""Raised whenever a recorded message gets another content, since its CRC would no longer fit when read."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Received:
    """A tier result and when it was received; the split of the two is the transport behind the tier."""

    t_ns: int
    result: TierResult


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One degradation state as published. ``t_ns`` is the moment it was entered or reported."""

    t_ns: int
    state: DegradationState
    previous: DegradationState
    reason: str = ""
    active_faults: tuple[str, ...] = ()
    takeover_requested: bool = False
    takeover_remaining_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConstraintRecord:
    """A motion constraint and when it was received."""

    t_ns: int
    constraint: MotionConstraint


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """A heartbeat and when it was received."""

    t_ns: int
    status: TierStatus


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """A verdict of one monitor. Collectors add one only when level or activity of its ``fault_id`` changed."""

    t_ns: int
    fault_id: str
    source: str
    level: VerdictLevel
    active: bool
    value: float
    threshold: float
    text: str


@dataclass(frozen=True, slots=True)
class OdometryRecord:
    """Vehicle speed as received."""

    t_ns: int
    odometry: Odometry


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """Driver state as received. Collectors may leave out repetitions."""

    t_ns: int
    driver: DriverState


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Load of one process: ``percent`` of one core over the sampling interval, resident memory in bytes."""

    t_ns: int
    process: str
    percent: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class SampleFrame:
    """A camera image kept for the report: JPEG bytes, its source stamp and its size in pixels."""

    t_ns: int
    stamp_ns: int
    width: int
    height: int
    jpeg: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line in the report: a process that was restarted, an input that was refused, ..."""

    t_ns: int
    source: str
    text: str


Entry = (
    Received
    | StateRecord
    | ConstraintRecord
    | StatusRecord
    | VerdictRecord
    | OdometryRecord
    | DriverRecord
    | CpuSample
    | SampleFrame
    | Event
)

_KINDS: dict[str, tuple[type, str]] = {
    "result": (Received, "results"),
    "state": (StateRecord, "states"),
    "constraint": (ConstraintRecord, "constraints"),
    "status": (StatusRecord, "statuses"),
    "verdict": (VerdictRecord, "verdicts"),
    "odometry": (OdometryRecord, "odometry"),
    "driver": (DriverRecord, "drivers"),
    "cpu": (CpuSample, "cpu"),
    "frame": (SampleFrame, "sample_frames"),
    "event": (Event, "events"),
}
_KIND_OF = {cls: (kind, attribute) for kind, (cls, attribute) in _KINDS.items()}


@dataclass(slots=True)
class RunRecord:
    """All that was seen of one run, each list in order of receipt.

    Attributes:
        meta: plain JSON values. Known keys: ``mode`` ("live" or "lockstep"), ``input`` (what was played),
            ``started_ns`` and ``ended_ns`` (stamp clock), ``budgets`` (tier key -> {budget_s, keep_s, period_s}),
            ``camera`` ({width, height, frames}), ``synthesised`` (inputs that replay made up because the recording has
            none), ``identity`` (lockstep: what the decisions follow from), ``warnings``.
        warnings: what was wrong with the record itself.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    results: list[Received] = field(default_factory=list)
    states: list[StateRecord] = field(default_factory=list)
    constraints: list[ConstraintRecord] = field(default_factory=list)
    statuses: list[StatusRecord] = field(default_factory=list)
    verdicts: list[VerdictRecord] = field(default_factory=list)
    odometry: list[OdometryRecord] = field(default_factory=list)
    drivers: list[DriverRecord] = field(default_factory=list)
    cpu: list[CpuSample] = field(default_factory=list)
    sample_frames: list[SampleFrame] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Append ``entry`` to the list of its kind."""
        getattr(self, _KIND_OF[type(entry)][1]).append(entry)

    def results_of(self, tier: Tier) -> list[TierResult]:
        """The results of one tier, in order of receipt."""
        return [r.result for r in self.results if r.result.tier is tier]

    def state_changes(self) -> list[StateRecord]:
        """The states without repetitions of the same state; the reason is that of the first report."""
        changes: list[StateRecord] = []
        for record in self.states:
            if not changes or changes[-1].state is not record.state:
                changes.append(record)
        return changes

    def entries(self) -> Iterator[Entry]:
        """Every entry, merged by time; entries of one moment keep the order of the kinds."""
        merged = [e for _, attribute in _KINDS.values() for e in getattr(self, attribute)]
        yield from sorted(merged, key=lambda e: e.t_ns)

    def save(self, path: Path | str) -> None:
        """Write everything as JSON lines, beside the target first and then renamed onto it."""
        target = Path(path)
        with RecordWriter(target, self.meta) as writer:
            for entry in self.entries():
                writer.add(entry)

    @classmethod
    def load(cls, path: Path | str) -> RunRecord:
        """Read what :meth:`save` or :class:`RecordWriter` wrote.

        Raises:
            InputError: no such file, a line other than the last that is not valid, a format we do not know.
        """
        source = Path(path)
        record = cls()
        try:
            lines = source.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=source, remedy="name a record.jsonl") from None
        last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
        if last < 0:
            raise InputError("is empty", where=source, remedy="name the record of a run that started")
        for index, line in enumerate(lines[: last + 1]):
            if not line.strip():
                continue
            try:
                value = parse_json(line)
                kind = value.pop("kind")
                if index == 0:
                    _check_head(kind, value, source)
                if kind == "meta":
                    record.meta.update(value["meta"])
                else:
                    cls_of_kind, attribute = _KINDS[kind]
                    getattr(record, attribute).append(from_plain(cls_of_kind, value))
            except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
                if index == last and index > 0:
                    record.warnings.append(f"the last line of {source.name} was cut off and is left out")
                    break
                raise InputError(
                    f"not a line of a run record ({type(error).__name__}: {error})",
                    where=source,
                    field=f"line {index + 1}",
                    remedy="record the run again",
                ) from None
        return record


def _check_head(kind: str, value: Mapping[str, Any], source: Path) -> None:
    if kind != "meta":
        raise InputError("is not a run record", where=source, field="kind", value=kind, remedy="name a record.jsonl")
    if value.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"has another format version than {FORMAT_VERSION}",
            where=source,
            field="format_version",
            value=value.get("format_version"),
            remedy="read it with the version that wrote it",
        )


class Said:
    """Adds to a record what a supervisor on a virtual clock says, as the recorder of a running one does."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._verdicts: dict[str, tuple[VerdictLevel, bool]] = {}

    def add(self, t_ns: int, state: PublishedState | None, verdicts: Sequence[Verdict]) -> None:
        """One tick's; of the verdicts those whose level or activity changed."""
        if state is not None:
            self._record.add(
                StateRecord(
                    t_ns,
                    state.state,
                    state.previous,
                    state.reason,
                    state.active_faults,
                    state.takeover_requested,
                    state.takeover_remaining_s,
                )
            )
        for verdict in verdicts:
            if self._verdicts.get(verdict.fault_id) != (verdict.level, verdict.active):
                self._verdicts[verdict.fault_id] = (verdict.level, verdict.active)
                fields = {f.name: getattr(verdict, f.name) for f in dataclasses.fields(verdict)}
                self._record.add(VerdictRecord(t_ns, **fields))


class RecordWriter:
    """Streams entries to a record file while the run goes on, so that a crash loses at most one line.

    Lines go to ``<path>.part`` and the file gets its name on :meth:`close`; :func:`RunRecord.load` reads either.
    ``add_meta`` may be called any time: later values win. A line that the disk does not take in whole (OSError) is cut
    away again, so that what stands there stays readable.
    """

    def __init__(self, path: Path | str, meta: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: io.FileIO | None = self.part.open("wb", buffering=0)
        self._size = 0
        try:
            self.add_meta(meta or {})
        except OSError:
            self.drop()
            raise

    def add(self, entry: Entry) -> None:
        """Write one entry and hand it to the operating system."""
        self._line({"kind": _KIND_OF[type(entry)][0], **to_plain(entry)})

    def add_meta(self, meta: Mapping[str, Any]) -> None:
        """Add to or replace what ``meta`` says."""
        self._line({"kind": "meta", "format_version": FORMAT_VERSION, "meta": dict(meta)})

    def _line(self, value: Mapping[str, Any]) -> None:
        if self._file is None:
            raise ValueError("the record is closed")
        line = memoryview(canonical_json(value) + b"\n")
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
                self._file.seek(self._size)
            raise
        self._size += written

    def close(self) -> None:
        """Give the file its name. Safe to call twice."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        os.replace(self.part, self.path)

    def drop(self) -> None:
        """Leave nothing behind. Safe to call at any time; a closed record stays."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self.part.unlink(missing_ok=True)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """On an exception nothing is left, and an older file of that name stays."""
        self.drop() if kind is not None else self.close()


def canonical_json(value: Any) -> bytes:
    """One spelling per value: sorted keys, no spaces, UTF-8, no bare NaN. Equal values give equal bytes."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def to_plain(value: Any) -> Any:
    """Turn records into dicts, enumerations into numbers, bytes into base64, non-finite floats into text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "item"):  # a numpy scalar
        return to_plain(value.item())
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


_HINTS: dict[type, dict[str, Any]] = {}


def from_plain(cls: type[T], value: Mapping[str, Any]) -> T:
    """The inverse of :func:`to_plain` for a dataclass; fields left out get their defaults, unknown ones are ignored.

    Raises:
        ValueError, KeyError, TypeError: if ``value`` does not fit ``cls``.
    """
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    hints = _HINTS[cls]
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: _decode(hints[k], v) for k, v in value.items() if k in known})


def _decode(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if Detections in options:  # the payload of a tier result: told apart by a field only one of them has
            return from_plain(Detections if "image_width" in value else SceneAdvice, value)
        return _decode(next(o for o in options if o is not type(None)), value) if value is not None else None
    if origin is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_decode(item, v) for v in value)
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    if hint is bytes:
        return base64.b64decode(value, validate=True)
    if hint is float:
        return float(value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise TypeError(f"expected {hint.__name__}, found {type(value).__name__}")
    return value


def entry_of(line: Mapping[str, Any]) -> Entry | None:
    """The entry of one parsed line of a record file; None for a ``meta`` line.

    Raises:
        ValueError, KeyError, TypeError: not a line of a record.
    """
    value = dict(line)
    kind = value.pop("kind")
    if kind == "meta":
        return None
    entry: Entry = from_plain(_KINDS[kind][0], value)
    return entry
