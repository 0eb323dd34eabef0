"""What each target wants of a quantised model: recipes as YAML data, read and checked here.

A recipe that was never run on its hardware says ``verified: false`` and where its numbers come from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triptych.contract import ConfigError
from triptych.resources import share
from triptych_forge.quantise import ptq

FOLDER = Path("config") / "forge" / "targets"
"""Of the shipped recipes, in the package's share folder."""

DType = Literal["int4", "int8", "uint8", "fp8_e4m3", "nvfp4", "fp16", "fp32"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Weights(_Strict):
    """How weights are stored."""

    dtype: DType = Field(description="stored type")
    granularity: Literal["tensor", "channel", "group"] = Field(description="what shares a scale")
    symmetric: bool = Field(default=True, description="zero-point in the middle of the grid")
    group: int | None = Field(default=None, ge=16, le=128, description="inputs per scale; for granularity group")

    @model_validator(mode="after")
    def _group_if_grouped(self) -> Weights:
        if (self.granularity == "group") != (self.group is not None):
            raise ValueError("group goes with granularity group, and only with it")
        return self


class Activations(_Strict):
    """How activations are computed with. A block of values may share a scale that is found at run time."""

    dtype: DType = Field(description="type in the kernels")
    granularity: Literal["tensor", "group"] = Field(default="tensor", description="what shares a scale")
    symmetric: bool = Field(description="zero-point in the middle of the grid")
    dynamic: bool = Field(default=False, description="scales found at run time; nothing to calibrate")
    group: int | None = Field(default=None, ge=16, le=128, description="values per scale; for granularity group")
    method: Literal["minmax", "entropy", "percentile"] = Field(default="entropy", description="calibration")
    percentile: float = Field(default=99.99, ge=50.0, le=100.0, description="for that method, in %")

    @model_validator(mode="after")
    def _group_if_grouped(self) -> Activations:
        if (self.granularity == "group") != (self.group is not None):
            raise ValueError("group goes with granularity group, and only with it")
        return self


class Target(_Strict):
    """One recipe."""

    schema_version: Literal[1] = Field(description="of this format")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$", description="of the file too")
    runtime: Literal["onnxruntime-cpu", "tensorrt", "openvino-npu"] = Field(description="what runs the engine")
    hardware: tuple[str, ...] = Field(min_length=1, description="that it is meant for")
    verified: bool = Field(description="has run on that hardware within this project")
    source: str = Field(min_length=1, description="where the numbers come from")
    weights: Weights = Field(description="how weights are stored")
    activations: Activations | None = Field(description="null: activations stay as the weights' arithmetic has them")
    quantise_bias: bool = Field(default=False, description="to int32 in steps of input scale x weight scale")
    operators: Literal["convolutional", "transformer", "weighted"] = Field(description="what is quantised")
    keep_high: tuple[str, ...] = Field(default=(), description="patterns of layers that stay in higher precision")
    notes: str = Field(default="", description="what to look out for")

    @model_validator(mode="after")
    def _bias_needs_integers(self) -> Target:
        integer = self.activations is not None and self.activations.dtype in ("int8", "uint8")
        if self.quantise_bias and not integer:
            raise ValueError("quantise_bias needs integer activations")
        return self

    def ptq_options(self, exclude: tuple[str, ...] = ()) -> ptq.PtqOptions:
        """The recipe for :func:`.ptq.quantise_model`.

        Raises:
            ConfigError: not an 8-bit integer recipe: its engine is made by the target's own tools.
        """
        a = self.activations
        if self.weights.dtype != "int8" or a is None or a.dtype not in ptq.TYPES or a.dynamic:
            raise ConfigError(
                "is no static 8-bit integer recipe",
                where=self.name,
                field="weights.dtype, activations.dtype",
                remedy=f"make its engine with {self.runtime}'s own tools",
            )
        operators = {"convolutional": ptq.CONVOLUTIONAL, "transformer": ptq.TRANSFORMER, "weighted": ptq.WEIGHTED}
        return ptq.PtqOptions(
            op_types=operators[self.operators],
            method=a.method,
            percentile=a.percentile,
            per_channel=self.weights.granularity == "channel",
            activation=a.dtype,
            symmetric_activations=a.symmetric,
            quantise_bias=self.quantise_bias,
            exclude=exclude,
        )


def load_target(name: str | Path, folder: Path | None = None) -> Target:
    """A recipe by file or by the name of a shipped one.

    Args:
        folder: of shipped recipes; default: :data:`FOLDER` in the package's share folder.

    Raises:
        ConfigError: no such recipe; not YAML; an unknown key, a missing one or a value that does not fit, with file and
            key; a name that is not the file's.
    """
    folder = folder or share() / FOLDER
    path = Path(name)
    if path.suffix != ".yaml":
        path = folder / f"{name}.yaml"
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(target_names(folder)) or "(none)"
        raise ConfigError("no such target", where=path, value=str(name), remedy=f"choose one of {known}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=path) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"not valid YAML{f' at line {mark.line + 1}' if mark else ''}", where=path) from None
    if not isinstance(data, dict):
        raise ConfigError("a recipe is a YAML mapping", where=path, value=type(data).__name__)
    try:
        target = Target.model_validate(data)
    except ValidationError as error:
        raise _first(error, path) from None
    if target.name != path.stem:
        raise ConfigError("is not the file's name", where=path, field="name", value=target.name)
    return target


def _first(error: ValidationError, path: Path) -> ConfigError:
    problem = error.errors(include_url=False)[0]
    sentences = {"missing": "is missing", "extra_forbidden": "is not a known key"}
    message = sentences.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    value = None if problem["type"] in ("missing", "value_error") else problem["input"]
    return ConfigError(
        message[0].lower() + message[1:],
        where=path,
        field=".".join(str(part) for part in problem["loc"]) or None,
        value=value,
        remedy="correct the recipe",
    )


def target_names(folder: Path | None = None) -> list[str]:
    """Names of the shipped recipes."""
    return sorted(path.stem for path in (folder or share() / FOLDER).glob("*.yaml"))
