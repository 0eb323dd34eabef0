"""The fault table (``config/faults.yaml``) and the life of one fault. Adding a fault adds a row, not a branch."""

from __future__ import annotations

import re
from enum import IntEnum
from math import isnan
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import ConfigError
from triptych.contract.supervision import MAX_VERDICTS, Verdict
from triptych.contract.terms import VerdictLevel
from triptych.documents import parse_yaml
from triptych.supervisor.config import config_error
from triptych.supervisor.monitors import METRICS

MAX_ROWS = MAX_VERDICTS
"""Bound of ``msg/Verdicts``."""

_LEAK = 0.5
"""Share of good time that is taken off the debounce: a fault present half of the time still gets through."""

_OK, _UNKNOWN, _FAULT = VerdictLevel.OK, VerdictLevel.UNKNOWN, VerdictLevel.FAULT


class Reaction(IntEnum):
    """What an active fault asks for, from nothing but a record to the minimal risk manoeuvre."""

    LOG = 0
    L3 = 1
    L2 = 2
    L1 = 3


class FaultRow(BaseModel):
    """One row of the table. Nothing has a default: a forgotten field is an error, not a guess."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    id: str = Field(max_length=48, pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$", description="Name of the fault: source.what.")
    source: str = Field(description="Where the metric comes from.")
    metric: str = Field(description="Metric of that source; its unit is in its name.")
    comparison: Literal[">", ">="] = Field(description="At fault above the threshold, or at it too.")
    threshold: float = Field(ge=0, description="In the metric's unit.")
    debounce_s: float = Field(ge=0, le=60, description="Time at fault before the fault becomes active.")
    hysteresis: float = Field(ge=0, description="The metric is well again only this far below the threshold.")
    clear_s: float = Field(ge=0, le=60, description="Time it must be well, without interruption, to end the fault.")
    latch: bool = Field(description="While automation drives, the fault ends by a reset only.")
    reaction: Literal["log", "l3", "l2", "l1"] = Field(description="What an active fault asks for.")
    asil: Literal["QM", "A", "B", "C", "D"] = Field(description="Integrity level claimed for the detection.")
    sentence: str = Field(
        min_length=8, max_length=120, description="For a person; {value} and {threshold} may be used, as format fields."
    )

    def text(self, value: float) -> str:
        """The sentence with its numbers, at most 160 characters."""
        return self.sentence.format(value=value, threshold=self.threshold)[:160]


def load_faults(path: Path) -> tuple[FaultRow, ...]:
    """Read and check a fault table.

    Raises:
        ConfigError: unreadable file, malformed YAML or row, unknown source or metric, an id used twice, too many rows,
            or a table that would not notice the loss of tier 1.
    """
    try:
        document = parse_yaml(path.read_bytes())  # YAML decides on the encoding, not the locale
    except OSError as error:
        raise ConfigError(f"cannot be read: {error}", where=path, remedy="give the path of a fault table") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"is not YAML: {problem}", where=path, remedy="correct the syntax") from None
    rows = document.get("faults") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ConfigError("has no rows", where=path, field="faults", remedy="list the faults under 'faults:'")
    return check_faults(rows, path)


def check_faults(rows: list[Any], where: object) -> tuple[FaultRow, ...]:
    """Check the rows of a table (see :func:`load_faults`)."""
    table = tuple(_row(number, row, where) for number, row in enumerate(rows))
    if len(table) > MAX_ROWS:
        raise ConfigError(f"at most {MAX_ROWS} rows", where=where, field="faults", value=len(table))
    seen: set[str] = set()
    for row in table:
        if row.id in seen:
            raise ConfigError("is used twice", where=where, field="id", value=row.id, remedy="name every fault once")
        seen.add(row.id)
    if not any((row.source, row.metric, row.reaction) == ("detector", "gap_s", "l1") for row in table):
        raise ConfigError(
            "no row answers the loss of tier 1",
            where=where,
            field="faults",
            remedy="add a row with source detector, metric gap_s and reaction l1",
        )
    return table


def _row(number: int, raw: Any, where: object) -> FaultRow:
    name = raw.get("id", f"row {number + 1}") if isinstance(raw, dict) else f"row {number + 1}"
    place = f"{where}, {name}"
    if not isinstance(raw, dict):
        raise ConfigError("is not a mapping", where=place, value=raw, remedy="write 'field: value' lines")
    if isinstance(raw.get("threshold"), bool):
        raise ConfigError("must be a number", where=place, field="threshold", value=raw["threshold"])
    try:
        row = FaultRow(**{str(key): value for key, value in raw.items()})
    except ValidationError as error:
        raise config_error(error, place) from None
    known = METRICS.get(row.source)
    if known is None:
        remedy = f"use one of {', '.join(METRICS)}"
        raise ConfigError("unknown source", where=place, field="source", value=row.source, remedy=remedy)
    if row.metric not in known:
        remedy = f"use one of {', '.join(sorted(known))}"
        raise ConfigError("unknown metric", where=place, field="metric", value=row.metric, remedy=remedy)
    wide = [spec for _, _, spec, _ in _fields(row.sentence) if spec and re.search(r"\d{4}|\{", spec)]
    if wide:
        raise ConfigError("is too wide a field", where=place, field="sentence", value=wide[0], remedy="format simply")
    try:
        row.text(0.0)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        problem = f"cannot be formatted: {error!r}"
        remedy = "use {value} and {threshold} only"
        raise ConfigError(problem, where=place, field="sentence", value=row.sentence, remedy=remedy) from None
    return row


def _fields(sentence: str) -> list[tuple[str, str | None, str | None, str | None]]:
    """Its format fields; none where it cannot be taken apart, which formatting it says."""
    try:
        return list(Formatter().parse(sentence))
    except ValueError:
        return []


class FaultLife:
    """Debounce, hysteresis and latch of one row.

    Time between two looks belongs to the level seen at the first of them. Time at fault charges the debounce, good time
    takes half of itself off it; good time without interruption ends the fault. Unknown does neither.

    Attributes:
        active: the fault counts.
        level: what the metric says now.
        value: the metric, NaN when unknown.
        text: the sentence of the last activation.
        suppressed: comings and goings of the metric that debounce or clearing time kept from becoming transitions.
    """

    __slots__ = (
        "_calm_ns", "_charge_ns", "_clear_ns", "_debounce_ns", "_inclusive", "_known", "_threshold", "_well", "active",
        "level", "row", "suppressed", "text", "value",
    )  # fmt: skip

    def __init__(self, row: FaultRow) -> None:
        self.row = row
        self._threshold = row.threshold
        self._well = row.threshold - row.hysteresis
        self._inclusive = row.comparison == ">="
        self._debounce_ns, self._clear_ns = row.debounce_s * 1e9, row.clear_s * 1e9
        self._charge_ns = 0.0
        self._calm_ns = 0.0
        self._known = _OK
        self.level = _UNKNOWN
        self.active = False
        self.value: float | None = None
        self.text = ""
        self.suppressed = 0

    def _judge(self, value: float | None) -> VerdictLevel:
        if value is None:
            return _UNKNOWN
        limit = self._well if self._known is _FAULT else self._threshold
        well = value < limit if self._inclusive else value <= limit
        return _OK if well else _FAULT

    def update(self, value: float | None, elapsed_ns: int, hold: bool) -> bool:
        """Look at the metric; true when the fault became active or ended.

        Args:
            value: the metric now, ``None`` when unknown.
            elapsed_ns: time since the last look.
            hold: whether a latch holds now (automation drives and nobody has reset).
        """
        before, level = self.level, self._judge(value)
        self.value, self.level = value, level
        if level is _OK and before is _OK and not self.active and self._charge_ns == 0.0:
            return False
        if before is _FAULT:
            self._charge_ns += elapsed_ns
        elif before is _OK:
            self._charge_ns = max(0.0, self._charge_ns - elapsed_ns * _LEAK)
        self._calm_ns = self._calm_ns + elapsed_ns if before is _OK and level is _OK else 0.0
        if self.active:
            if level is _OK and self._calm_ns >= self._clear_ns and not (hold and self.row.latch):
                self.active = False
                self._charge_ns = 0.0
                self._known = level
                return True
        elif level is _FAULT and self._charge_ns >= self._debounce_ns:
            self.active = True
            self._known = level
            self.text = self.row.text(value)  # type: ignore[arg-type]  # a known level has a value
            return True
        if level is not _UNKNOWN:
            # a metric that went bad and well again unnoticed, or well and bad again while the fault stayed
            if level is not self._known and (level is _FAULT) is self.active:
                self.suppressed += 1
            self._known = level
        return False

    @property
    def steady(self) -> bool:
        """Whether further looks change nothing for as long as the metric is neither known anew nor greater."""
        return self.level is _UNKNOWN or (self.level is _OK and not self.active and self._charge_ns == 0.0)

    def settled(self) -> bool:
        """Whether only its latch keeps the fault active: the metric has been well long enough."""
        return self.level is _OK and self._calm_ns >= self._clear_ns

    def verdict(self) -> Verdict:
        """The record of this row."""
        value = float("nan") if self.value is None or isnan(self.value) else float(self.value)
        text = self.text if self.active else ""
        return Verdict(self.row.id, self.row.source, self.level, self.active, value, self._threshold, text)
