"""The limits file: named limits on metrics, and the occasions of the run they are about."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import ConfigError
from triptych.documents import parse_yaml
from triptych.gates.metrics import METRICS, Measured
from triptych.gates.run import Demand, Occasion, Run
from triptych.replay.record import RunRecord

GREATEST = {"_share": 1.0}
"""Greatest value a metric can have, by the unit in its name; the least is 0 for all."""
END_SLACK_S = 0.1
"""An occasion may end this much after the last message of its recording: times in a limits file are rounded."""


Name = Annotated[str, Field(min_length=1, max_length=80)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class OccasionRow(_Strict):
    """See :class:`triptych.gates.run.Occasion`."""

    name: Name
    from_s: Seconds
    to_s: Seconds | None = None
    demand: Literal["stop", "takeover", "nothing"] = "stop"

    def occasion(self) -> Occasion:
        """As the metrics want it."""
        return Occasion(self.name, self.from_s, math.inf if self.to_s is None else self.to_s, Demand(self.demand))


class LimitRow(_Strict):
    """One limit.

    Attributes:
        name, why: for people; a limit nobody can give a reason for should not be one.
        metric: a key of :data:`triptych.gates.metrics.METRICS`; its unit is in its name.
        max, min: the value must be at most, at least this; one of them or both.
        may_be_unmeasured: why it is no fault if there is nothing to measure; without it that is a miss.
    """

    name: Name
    metric: str
    max: float | None = None
    min: float | None = None
    why: Annotated[str, Field(min_length=1, max_length=400)]
    may_be_unmeasured: Annotated[str, Field(min_length=1, max_length=400)] | None = None


class LimitsFile(_Strict):
    """The file."""

    schema_version: Literal[1]
    occasions: tuple[OccasionRow, ...] = Field((), strict=False)
    limits: tuple[LimitRow, ...] = Field(min_length=1, strict=False)


class Outcome(str, Enum):
    """What became of a limit."""

    HELD = "held"
    MISSED = "missed"
    UNMEASURED = "unmeasured"
    NOT_APPLICABLE = "not applicable"


FINE = frozenset({Outcome.HELD, Outcome.NOT_APPLICABLE})


@dataclass(frozen=True, slots=True)
class Compared:
    """A limit beside what was measured."""

    limit: LimitRow
    measured: Measured
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """All limits of a file, in its order."""

    rows: tuple[Compared, ...]

    @property
    def held(self) -> bool:
        """Whether at least one limit was compared and none was missed or left unmeasured without leave."""
        return all(r.outcome in FINE for r in self.rows) and any(r.outcome is Outcome.HELD for r in self.rows)

    @property
    def reasons(self) -> list[str]:
        """One sentence for each limit that was not held."""
        found = [f"{r.limit.name}: {_complaint(r)}." for r in self.rows if r.outcome not in FINE]
        if not found and not self.held:
            found.append("No limit was compared: nothing could be measured.")
        return found


def _complaint(row: Compared) -> str:
    metric, measured = row.limit.metric, row.measured
    if row.outcome is Outcome.UNMEASURED:
        return f"{metric} could not be measured, {measured.text}"
    value = "never" if measured.value is None or math.isinf(measured.value) else f"{measured.value:.4g}"
    return f"{metric} is {value}, {bounds(row.limit)} is asked for{f' ({measured.text})' if measured.text else ''}"


def bounds(limit: LimitRow) -> str:
    """The limit in words: ``at most 0.3``."""
    parts = [f"{word} {v:g}" for word, v in (("at least", limit.min), ("at most", limit.max)) if v is not None]
    return " and ".join(parts)


def compare(limits: LimitsFile, record: RunRecord, where: object = None) -> Comparison:
    """Hold a run against the limits.

    Args:
        where: the limits file, for what is said of its occasions.

    Raises:
        ConfigError: an occasion lies outside the run.
    """
    run = Run(record, tuple(row.occasion() for row in limits.occasions))
    for row in limits.occasions:
        for field, value in (("from_s", row.from_s), ("to_s", row.to_s)):
            if value is not None and value > run.end_s + END_SLACK_S:
                raise ConfigError(
                    f"lies after the end of the run, which took {run.end_s:.2f} s",
                    where=where,
                    field=f"occasions.{row.name}.{field}",
                    value=value,
                    remedy="give seconds since the start of the run; leave to_s out if it lasts to the end",
                )
    return Comparison(tuple(_judge(limit, METRICS[limit.metric].measure(run)) for limit in limits.limits))


def _judge(limit: LimitRow, measured: Measured) -> Compared:
    value = measured.value
    if value is None or math.isnan(value):
        excused = limit.may_be_unmeasured is not None
        return Compared(limit, measured, Outcome.NOT_APPLICABLE if excused else Outcome.UNMEASURED)
    above = limit.min is None or value >= limit.min
    below = limit.max is None or value <= limit.max
    held = above and below and math.isfinite(value)
    return Compared(limit, measured, Outcome.HELD if held else Outcome.MISSED)


def load_limits(path: Path | str) -> LimitsFile:
    """Read and check a limits file.

    Raises:
        ConfigError: missing, not YAML, an unknown key or metric, a number that cannot be (NaN, a share above 1), a
            name twice, limits that contradict each other, an occasion that ends before it begins.
    """
    source = Path(path)
    remedy = "see docs/gates.md"
    try:
        document = parse_yaml(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=source, remedy="name a limits file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot be read as YAML: {str(error).splitlines()[0]}", where=source, remedy=remedy
        ) from None
    if not isinstance(document, Mapping):
        raise ConfigError("must be a mapping", where=source, value=type(document).__name__, remedy=remedy)
    try:
        limits = LimitsFile.model_validate(document)
    except ValidationError as error:
        raise _config_error(error, document, source) from None
    _check_names([("limits", row.name) for row in limits.limits], source)
    _check_names([("occasions", row.name) for row in limits.occasions], source)
    for row in limits.occasions:
        if row.to_s is not None and not row.to_s > row.from_s:
            raise ConfigError(
                f"must be above from_s, {row.from_s:g}",
                where=source,
                field=f"occasions.{row.name}.to_s",
                value=row.to_s,
                remedy="correct it, or leave it out if the occasion lasts to the end of the run",
            )
    for limit in limits.limits:
        _check_limit(limit, source)
    _check_contradictions(limits.limits, source)
    return limits


def _check_names(names: Sequence[tuple[str, str]], source: Path) -> None:
    for index, (field, name) in enumerate(names):
        if (field, name) in names[:index]:
            raise ConfigError(
                "is there twice", where=source, field=f"{field}.name", value=name, remedy="give each its own name"
            )


def _check_limit(limit: LimitRow, source: Path) -> None:
    field = f"limits.{limit.name}"
    if limit.metric not in METRICS:
        near = difflib.get_close_matches(limit.metric, METRICS, n=1, cutoff=0.5)
        raise ConfigError(
            "no such metric",
            where=source,
            field=f"{field}.metric",
            value=limit.metric,
            remedy=f"use {near[0]}, if that was meant" if near else "see 'triptych gate --metrics'",
        )
    if limit.max is None and limit.min is None:
        raise ConfigError("has neither max nor min", where=source, field=field, remedy="give one of them")
    greatest = next((v for unit, v in GREATEST.items() if limit.metric.endswith(unit)), math.inf)
    for name, value in (("max", limit.max), ("min", limit.min)):
        if value is not None and not 0.0 <= value <= greatest:
            upper = f"..{greatest:g}" if math.isfinite(greatest) else " or above"
            raise ConfigError(
                f"must be 0{upper} for {limit.metric}",
                where=source,
                field=f"{field}.{name}",
                value=value,
                remedy="correct the number; its unit is in the name of the metric",
            )


def _check_contradictions(limits: Sequence[LimitRow], source: Path) -> None:
    """No value of a metric may be forbidden by its limits altogether."""
    for low in limits:
        for high in limits:
            if low.metric == high.metric and low.min is not None and high.max is not None and low.min > high.max:
                other = "its own max" if low is high else f"the max of '{high.name}'"
                raise ConfigError(
                    f"contradicts {other}, {high.max:g}: no value of {low.metric} holds both",
                    where=source,
                    field=f"limits.{low.name}.min",
                    value=low.min,
                    remedy="correct one of them",
                )


def _config_error(error: ValidationError, document: Mapping[str, Any], source: Path) -> ConfigError:
    """The first complaint of pydantic, with the row's name in place of its number."""
    first = error.errors(include_url=False)[0]
    loc = list(first["loc"])
    if len(loc) > 1 and isinstance(loc[1], int):
        row = document[str(loc[0])][loc[1]]
        loc[1] = row.get("name", loc[1] + 1) if isinstance(row, Mapping) else loc[1] + 1
    field = ".".join(map(str, loc))
    kind = first["type"]
    missing = kind == "missing"
    problem = {"missing": "is missing", "extra_forbidden": "is not a known field"}.get(kind, first["msg"].lower())
    remedy = {"missing": "add it", "extra_forbidden": "remove it or correct its name"}.get(kind, "correct it")
    value = None if missing else first.get("input")
    return ConfigError(problem, where=source, field=field, value=value, remedy=f"{remedy}; see docs/gates.md")
