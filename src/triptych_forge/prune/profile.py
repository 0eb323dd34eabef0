"""What a target machine is good at: its caches, bandwidth and peak, and the time per operator and shape measured on it.

A profile is data (YAML). Times between measured shapes are interpolated; shapes outside the measured grid are scaled
from the nearest one by the roofline (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009), which also serves
operators of which only an estimate is at hand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from triptych.contract import ConfigError
from triptych_forge.common import write_atomically
from triptych_forge.prune.shapes import Forward, LayerShape, layer_shapes

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Load = Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None
Axis = tuple[Annotated[int, Field(ge=1)], ...]

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
KIND = re.compile(r"(?P<operator>conv|depthwise)(?P<kernel>\d+)x(?P=kernel)(?:/(?P<stride>\d+))?|linear")
"""Names of operators: ``conv1x1``, ``conv3x3/2`` (stride 2), ``depthwise5x5``, ``linear``."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Caches(_Strict):
    """Sizes in KiB as one core sees them; 0: there is none."""

    l1_kib: int = Field(ge=0, description="data cache of one core")
    l2_kib: int = Field(ge=0, description="of one core or its cluster")
    l3_kib: int = Field(default=0, ge=0, description="shared by all cores")

    @property
    def last_level_bytes(self) -> int:
        """Size of the greatest one."""
        return max(self.l1_kib, self.l2_kib, self.l3_kib) * 1024


class Operator(_Strict):
    """Times of one operator: either a grid of medians, or the share of the machine's peak that it is thought to reach.

    ``microseconds`` holds the grid in row-major order, axes in the order channels_in, channels_out, positions; a
    depthwise operator has no channels_out. ``positions`` are those of the output.
    """

    channels_in: Axis = Field(default=(), description="grid, rising")
    channels_out: Axis = Field(default=(), description="grid, rising; not for depthwise operators")
    positions: Axis = Field(default=(), description="grid, rising: output pixels or tokens")
    microseconds: tuple[Positive, ...] = Field(default=(), description="medians, row-major")
    efficiency: Share | None = Field(
        default=None, description="share of the peak reached, for an estimate without a grid"
    )
    source: str = Field(min_length=1, max_length=300, description="where the figures come from")

    @model_validator(mode="after")
    def _whole(self) -> Operator:
        if (self.efficiency is None) == (not self.microseconds):
            raise ValueError("give either microseconds over a grid or an efficiency")
        if self.microseconds:
            if not self.channels_in or not self.positions:
                raise ValueError("a grid needs channels_in and positions")
            for axis in self.axes:
                if any(b <= a for a, b in itertools.pairwise(axis)):
                    raise ValueError("the axes of the grid must rise")
            cells = math.prod(len(axis) for axis in self.axes)
            if cells != len(self.microseconds):
                raise ValueError(f"the grid has {cells} cells but {len(self.microseconds)} microseconds")
        return self

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The grid's axes that are there, in order."""
        return tuple(axis for axis in (self.channels_in, self.channels_out, self.positions) if axis)


class Measurement(_Strict):
    """How a profile was measured, and whether the machine was quiet; see :mod:`triptych_forge.prune.quiet`."""

    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="year-month-day")
    versions: dict[str, str] = Field(min_length=1, description="of what was measured with")
    repeats: int = Field(ge=1, description="samples per shape and pass")
    passes: int = Field(ge=1, description="over all shapes")
    load_before: Load = Field(description="other runnable programs per logical core; null: unknown")
    load_after: Load = Field(description="the same at the end, without this program")
    spread: Load = Field(description="greatest by least median of a shape, less 1; median of all; null: one pass only")
    quiet: bool = Field(description="false: measured beside other programs, by request")


class HardwareProfile(_Strict):
    """One target, one thread.

    Attributes are described by their fields. :func:`load_profile` reads one; :mod:`triptych_forge.prune.measure` makes
    one.
    """

    schema_version: Literal[1] = Field(description="of this format")
    name: str = Field(pattern=NAME.pattern, description="lower-case letters, digits, `._-`")
    version: str = Field(min_length=1, max_length=32, description="of the figures, in quotes")
    host: str = Field(min_length=1, max_length=200, description="kind of machine, never its name")
    source: str = Field(min_length=1, max_length=800, description="measured how and when, or estimated from what")
    estimate: bool = Field(description="true: nothing here was measured on that machine")
    measured: Measurement | None = Field(default=None, description="how; null where only the source says it")
    threads: int = Field(default=1, ge=1, le=64, description="that the figures are for")
    caches: Caches = Field(description="sizes")
    memory_gb_per_s: Positive = Field(description="bandwidth of the main memory, 1e9 bytes per second")
    cache_gb_per_s: Positive = Field(description="bandwidth of the last-level cache, 1e9 bytes per second")
    peak_gmacs_per_s: Positive = Field(description="greatest rate of float32 multiply-accumulates, 1e9 per second")
    bytes_per_value: Positive = Field(default=4.0, description="4 for float32")
    operators: dict[str, Operator] = Field(min_length=1, description="by kind, e.g. conv1x1, depthwise3x3/2, linear")

    @model_validator(mode="after")
    def _known_operators(self) -> HardwareProfile:
        if self.estimate and self.measured is not None:
            raise ValueError("estimate: a profile that was measured is no estimate")
        for kind, operator in self.operators.items():
            if not KIND.fullmatch(kind):
                raise ValueError(f"operators: '{kind}' is not the name of an operator")
            if operator.microseconds and kind.startswith("depthwise") != (not operator.channels_out):
                raise ValueError(f"operators: {kind}: channels_out is for all but depthwise operators")
        return self


def load_profile(path: Path | str) -> HardwareProfile:
    """Read and check a profile.

    Raises:
        ConfigError: missing, unreadable, not YAML, or a field that does not fit.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path, remedy="name a hardware profile") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}", where=path) from None
    if not isinstance(document, dict):
        raise ConfigError("a hardware profile is a YAML mapping", where=path, value=type(document).__name__)
    try:
        return HardwareProfile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(message, where=path, field=field, remedy="correct the profile") from None


def save_profile(path: Path, profile: HardwareProfile) -> None:
    """Write a profile as YAML, grids as rows of numbers."""
    document = profile.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
    write_atomically(Path(path), text.encode())


def roofline_us(layer: LayerShape, profile: HardwareProfile, efficiency: float = 1.0) -> float:
    """Least microseconds of a layer: arithmetic at ``efficiency`` of the peak or moving its bytes, whichever is longer.

    Time = max(MACs / (efficiency · peak), bytes / bandwidth); the bandwidth is that of the last-level cache as long as
    weights, input and output fit into it, else that of the main memory.
    """
    moved = layer.bytes_moved(profile.bytes_per_value)
    fits = moved <= profile.caches.last_level_bytes
    bandwidth = profile.cache_gb_per_s if fits else profile.memory_gb_per_s
    return max(layer.macs / (efficiency * profile.peak_gmacs_per_s), moved / bandwidth) / 1e3


def predict_us(layer: LayerShape, profile: HardwareProfile) -> float:
    """Microseconds of one call of a layer.

    On the grid: multilinear interpolation of log time over log channels and log positions. Outside: the nearest point
    of the grid, times the ratio of the two rooflines. Without a grid: :func:`roofline_us` at the stated efficiency.

    Raises:
        ConfigError: the profile does not have the operator.
    """
    operator = profile.operators.get(layer.kind)
    if operator is None:
        raise ConfigError(
            f"has no operator '{layer.kind}', which layer '{layer.name}' needs",
            where=f"hardware profile {profile.name}",
            field="operators",
            remedy="measure it on the target and add it",
        )
    if operator.efficiency is not None:
        return roofline_us(layer, profile, operator.efficiency)
    nearest = _onto_grid(layer, operator)
    point = [nearest.channels_in, nearest.channels_out, nearest.positions_out]
    if not operator.channels_out:
        del point[1]
    on_grid = math.exp(_interpolate(operator, point))
    return on_grid * roofline_us(layer, profile) / roofline_us(nearest, profile)


def predict_ms(
    model: nn.Module | Sequence[LayerShape],
    profile: HardwareProfile,
    example_inputs: Any = None,
    forward: Forward | None = None,
) -> float:
    """Milliseconds of one inference: the sum over the layers with weights (see :func:`layer_shapes`).

    Additions, upsampling and the engine's own overhead are not in it: compare predictions with each other, and measure
    the engine.

    Raises:
        ConfigError: an operator that the profile lacks.
    """
    layers = layer_shapes(model, example_inputs, forward) if isinstance(model, nn.Module) else model
    return sum(predict_us(layer, profile) for layer in layers) / 1e3


def _onto_grid(layer: LayerShape, operator: Operator) -> LayerShape:
    """The layer itself if it lies on the grid, else the nearest shape that does."""

    def clamp(value: int, axis: Axis) -> int:
        return min(max(value, axis[0]), axis[-1])

    channels_in = clamp(layer.channels_in, operator.channels_in)
    channels_out = clamp(layer.channels_out, operator.channels_out) if operator.channels_out else channels_in
    positions_out = clamp(layer.positions_out, operator.positions)
    per_output = layer.positions_in / layer.positions_out
    return replace(
        layer,
        channels_in=channels_in,
        channels_out=channels_out,
        groups=channels_in if layer.depthwise else layer.groups,
        positions_in=round(per_output * positions_out),
        positions_out=positions_out,
    )


def _interpolate(operator: Operator, point: Sequence[float]) -> float:
    """Log microseconds at a point inside the grid."""
    values = np.log(np.array(operator.microseconds)).reshape([len(axis) for axis in operator.axes])
    for axis, coordinate in zip(operator.axes, point, strict=True):
        if len(axis) == 1:
            values = values[0]
            continue
        grid = np.log(axis)
        low = int(np.clip(np.searchsorted(grid, math.log(coordinate), "right") - 1, 0, len(axis) - 2))
        share = (math.log(coordinate) - grid[low]) / (grid[low + 1] - grid[low])
        values = values[low] * (1 - share) + values[low + 1] * share
    return float(values)
