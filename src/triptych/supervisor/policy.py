"""The policy (``config/policy.yaml``): how far the result of each tier may go in each function of the vehicle.

Integrity levels are those of ISO 26262-3, clause 6; assigning them to our functions is our own doing, not the outcome
of a hazard analysis. No table can let a VLM raise a limit: arbitration is a minimum, and what a table may grant is
bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import ConfigError
from triptych.contract.terms import Tier
from triptych.documents import parse_yaml


class Function(Enum):
    """What the vehicle does with results."""

    BRAKING = "braking"
    STEERING = "steering"
    EMERGENCY_AVOIDANCE = "emergency_avoidance"
    CRUISE = "cruise"
    HINT = "hint"
    INFOTAINMENT = "infotainment"


class Permission(IntEnum):
    """How far a result may go, ordered from not at all."""

    NEVER = 0
    REDUNDANT_INPUT = 1
    """Only together with an agreeing independent source."""
    ADVICE = 2
    """May make the vehicle more careful, never less."""
    MAIN_SOURCE = 3


Grant = Literal["never", "redundant_input", "advice", "main_source"]

VLM = (Tier.DISTILLED, Tier.FULL)
SAFETY = (Function.BRAKING, Function.STEERING, Function.EMERGENCY_AVOIDANCE)
"""Functions whose failure hurts somebody at once: at least ASIL C, and no VLM beyond a redundant input."""
COMMANDED = (Function.BRAKING, Function.CRUISE)
"""Functions that the motion constraint carries; both rest on the detector."""
AUTHORITATIVE = (*SAFETY, Function.CRUISE)
"""Functions that act on the vehicle; the others are read by a person."""


class PolicyRow(BaseModel):
    """One function. Nothing has a default: a forgotten tier is an error, not a guess."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    function: Literal["braking", "steering", "emergency_avoidance", "cruise", "hint", "infotainment"]
    asil: Literal["QM", "A", "B", "C", "D"]
    mode: Literal["advisory", "authoritative"]
    detector: Grant
    distilled: Grant
    full: Grant
    why: str = Field(min_length=8, max_length=160)

    def permission(self, tier: Tier) -> Permission:
        """What this row gives a tier."""
        return Permission[getattr(self, tier.key).upper()]

    @property
    def ceiling(self) -> Permission:
        """The most that this row may give a VLM tier."""
        if self.asil in ("C", "D") or Function(self.function) in SAFETY:
            return Permission.REDUNDANT_INPUT
        return Permission.ADVICE if self.mode == "authoritative" else Permission.MAIN_SOURCE


@dataclass(frozen=True)
class Policy:
    """A whole and legal table: every function once, every tier in it.

    Args:
        rows: one per function.
        where: named in errors, e.g. the file.

    Raises:
        ConfigError: a function missing or named twice, a permission above its ceiling, or a mode, ASIL or main source
            that the function cannot have.
    """

    rows: tuple[PolicyRow, ...]
    where: object = field(default="policy", compare=False)

    def __post_init__(self) -> None:
        by_function: dict[Function, PolicyRow] = {}
        for row in self.rows:
            if Function(row.function) in by_function:
                remedy = "name every function once"
                raise ConfigError(
                    "is used twice", where=self.where, field="function", value=row.function, remedy=remedy
                )
            by_function[Function(row.function)] = row
        for function in Function:
            if function not in by_function:
                tiers = ", ".join(tier.key for tier in Tier)
                remedy = f"add a row that says how far each tier may go ({tiers})"
                raise ConfigError("function is missing", where=self.where, field=function.value, remedy=remedy)
            _check(by_function[function], f"{self.where}, {function.value}")
        granted = {(f, tier): row.permission(tier) for f, row in by_function.items() for tier in Tier}
        object.__setattr__(self, "_granted", granted)

    def permitted(self, function: Function, tier: Tier) -> Permission:
        """How far a result of ``tier`` may go in ``function``."""
        granted: dict[tuple[Function, Tier], Permission] = self._granted  # type: ignore[attr-defined]
        return granted[function, tier]


def _check(row: PolicyRow, place: str) -> None:
    function = Function(row.function)
    mode = "authoritative" if function in AUTHORITATIVE else "advisory"
    if row.mode != mode:
        raise ConfigError(f"must be {mode}", where=place, field="mode", value=row.mode, remedy=f"write mode: {mode}")
    if function in SAFETY and row.asil not in ("C", "D"):
        raise ConfigError("must be C or D", where=place, field="asil", value=row.asil, remedy="write asil: D")
    if function in COMMANDED and row.detector != "main_source":
        raise ConfigError(
            "the motion constraint rests on tier 1 here",
            where=place,
            field="detector",
            value=row.detector,
            remedy="write detector: main_source",
        )
    for tier in VLM:
        if row.permission(tier) > row.ceiling:
            raise ConfigError(
                f"a VLM may be at most {row.ceiling.name.lower()} here ({row.mode}, ASIL {row.asil})",
                where=place,
                field=tier.key,
                value=row.permission(tier).name.lower(),
                remedy=f"write {tier.key}: {row.ceiling.name.lower()} or less",
            )


def load_policy(path: Path) -> Policy:
    """Read and check a policy table.

    Raises:
        ConfigError: unreadable file, malformed YAML or row, or a table that is not whole and legal (:class:`Policy`).
    """
    try:
        document = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error}", where=path, remedy="give the path of a policy table") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"is not YAML: {problem}", where=path, remedy="correct the syntax") from None
    rows = document.get("policy") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ConfigError("has no rows", where=path, field="policy", remedy="list the functions under 'policy:'")
    return check_policy(rows, path)


def check_policy(rows: Sequence[Any], where: object) -> Policy:
    """Check the rows of a table (see :func:`load_policy`)."""
    return Policy(tuple(_row(number, row, where) for number, row in enumerate(rows)), where)


def _row(number: int, raw: Any, where: object) -> PolicyRow:
    name = raw.get("function", f"row {number + 1}") if isinstance(raw, dict) else f"row {number + 1}"
    place = f"{where}, {name}"
    if not isinstance(raw, dict):
        raise ConfigError("is not a mapping", where=place, value=raw, remedy="write 'field: value' lines")
    try:
        return PolicyRow(**{str(key): value for key, value in raw.items()})
    except ValidationError as error:
        first = error.errors()[0]
        named = str(first["loc"][0])
        missing = first["type"] == "missing"
        grants = named in {tier.key for tier in Tier}
        remedy = (
            "write never, redundant_input, advice or main_source" if grants else "see docs/policy.md for the fields"
        )
        raise ConfigError(
            "is missing" if missing else first["msg"],
            where=place,
            field=named,
            value=None if missing else first["input"],
            remedy=remedy,
        ) from None


_DEFAULT = {
    "braking": ("D", "authoritative", "main_source", "never", "never"),
    "steering": ("D", "authoritative", "never", "never", "never"),
    "emergency_avoidance": ("D", "authoritative", "never", "never", "never"),
    "cruise": ("B", "authoritative", "main_source", "advice", "advice"),
    "hint": ("QM", "advisory", "advice", "main_source", "main_source"),
    "infotainment": ("QM", "advisory", "never", "never", "main_source"),
}
_FIELDS = ("asil", "mode", "detector", "distilled", "full")

DEFAULT_POLICY = check_policy(
    [
        {"function": name, **dict(zip(_FIELDS, values)), "why": "As in the shipped table."}
        for name, values in _DEFAULT.items()
    ],
    "the default policy",
)
"""What the shipped ``config/policy.yaml`` says (a test compares), for a core that is given no table."""
