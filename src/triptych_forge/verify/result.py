"""The parts every verdict is made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Relation = Literal["<=", ">="]
RELATIONS: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


class Part(BaseModel):
    """Base of all results: unknown fields are ignored on reading; NaN and infinity are written as texts."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")


class Check(Part):
    """One condition of a gate. It holds only if the relation is true, so NaN never holds."""

    name: str = Field(description="What was checked.")
    value: float = Field(description="What was found.")
    relation: Relation = Field(description="How the value must stand to the limit.")
    limit: float = Field(description="What was allowed.")
    passed: bool = Field(description="Whether it held.")
    note: str = Field("", description="What the value alone does not say: counts, bounds, reasons.")


def check(name: str, value: float, relation: Relation, limit: float, note: str = "") -> Check:
    """Compare ``value`` with ``limit``."""
    held = RELATIONS[relation](float(value), float(limit))
    return Check(name=name, value=float(value), relation=relation, limit=float(limit), passed=bool(held), note=note)


def sentence(failed: Check) -> str:
    """A check that did not hold, for a person."""
    words = {"<=": "at most", ">=": "at least"}[failed.relation]
    note = f" ({failed.note})" if failed.note else ""
    return f"{failed.name} is {failed.value:.6g}, {words} {failed.limit:.6g} is needed{note}"
