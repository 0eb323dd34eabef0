"""What libraries cover, as data: one YAML file per target under ``config/forge/operators/``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import onnx
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triptych.contract import ConfigError
from triptych.resources import resource

Bounds = tuple[int, int | None]
"""Least and greatest; None for no greatest."""
DTYPE_NAMES = {
    code: {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
    for name, code in onnx.TensorProto.DataType.items()
}
"""What the tables call ONNX's element types, by their code."""


class Operator(BaseModel):
    """What a library does with one operator. Conditions are all to be met; those only in words are shown.

    Attributes:
        support: ``full``, ``limited`` (under conditions), ``none`` or ``unknown``.
        opset: first and last operator set of the model; null for no last one.
        dtypes: of the first input; a list, or the name of one of the table's sets.
        rank: least and greatest rank of the first input.
        constant_inputs: numbers of the inputs that must be constants, if given.
        absent_inputs: numbers of the inputs that must not be given.
        zero_inputs: numbers of the inputs that must be constant zeros, if given.
        outputs: how many of the outputs may be used.
        attributes: allowed values of attributes that are given; of lists, each element's.
        ranges: least and greatest value of attributes that are given; of lists, each element's.
        conditions: what else must hold, in words.
        replacement: what to use where it is not covered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    support: Literal["full", "limited", "none", "unknown"]
    opset: Bounds | None = None
    dtypes: str | tuple[str, ...] | None = None
    rank: tuple[int, int] | None = None
    constant_inputs: tuple[int, ...] = ()
    absent_inputs: tuple[int, ...] = ()
    zero_inputs: tuple[int, ...] = ()
    outputs: int | None = None
    attributes: dict[str, tuple[int | float | str, ...]] = {}
    ranges: dict[str, tuple[float, float]] = {}
    conditions: str = ""
    replacement: str = ""


class Source(BaseModel):
    """Where a table comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern="^https://")
    what: str


class OperatorTable(BaseModel):
    """One file: a target, its library and its operators.

    Attributes:
        target: name; also the file's.
        library, version: whose statement this is.
        date: on which it was looked up.
        sources: public documentation.
        opset: least and greatest operator set that models may have.
        dynamic_shapes: whether dimensions may be free; where not, a node with one is not covered.
        float32_runs_as: type that float32 becomes when the target builds the model.
        dtype_sets: named lists of types.
        operators: by name; other domains as ``domain.Name``.
        notes: for people.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    target: str
    library: str
    version: str
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    sources: tuple[Source, ...] = Field(min_length=1)
    opset: Bounds
    dynamic_shapes: bool
    float32_runs_as: str | None = None
    dtype_sets: dict[str, tuple[str, ...]] = {}
    operators: dict[str, Operator] = Field(min_length=1)
    notes: str = ""

    @model_validator(mode="after")
    def _types_exist(self) -> OperatorTable:
        for name, operator in self.operators.items():
            if isinstance(operator.dtypes, str) and operator.dtypes not in self.dtype_sets:
                raise ValueError(f"operator {name} names a set of types that is not there: {operator.dtypes}")
            unknown = {*(self.dtypes_of(operator) or ())} - {*DTYPE_NAMES.values()}
            if unknown:
                raise ValueError(f"operator {name} names types that ONNX does not have: {', '.join(sorted(unknown))}")
        return self

    def dtypes_of(self, operator: Operator) -> tuple[str, ...] | None:
        """Types the first input may have; None for any."""
        named = operator.dtypes
        return self.dtype_sets[named] if isinstance(named, str) else named


def known_targets(folder: Path | None = None) -> list[str]:
    """Names of the targets that have a table."""
    return sorted(path.stem for path in (folder or resource("config", "forge", "operators")).glob("*.yaml"))


def load_table(target: str, folder: Path | None = None) -> OperatorTable:
    """Read a target's table.

    Raises:
        ConfigError: no such target, with those known; unreadable; an unknown key or a wrong value, with file and key.
    """
    folder = folder or resource("config", "forge", "operators")
    path = folder / f"{target}.yaml"
    if target not in known_targets(folder):
        known = ", ".join(known_targets(folder))
        raise ConfigError(f"has no operator table, known targets are {known}", field="target", value=target)
    try:
        table = OperatorTable.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {' '.join(str(error).split())}", where=path) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(first["msg"][0].lower() + first["msg"][1:], where=path, field=key) from None
    if table.target != target:
        raise ConfigError("is not the file's name", where=path, field="target", value=table.target)
    return table
