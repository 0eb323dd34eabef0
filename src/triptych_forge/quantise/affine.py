"""The affine map between real numbers and integers: r = S (q - Z).

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018: section 2.1, equation (1), and section 3.1 for the range that is moved until it holds zero exactly. All
arithmetic is float32 with a true division and rounding to even, as ONNX's QuantizeLinear defines it, so results agree
with ONNX Runtime bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError

Floats = npt.NDArray[np.float32]
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales below the normal numbers would lose digits, and some processors take them for zero."""


@dataclass(frozen=True)
class Grid:
    """The integers a value may become.

    Attributes:
        bits: 2 to 8.
        signed: two's complement; otherwise from 0.
        symmetric: the zero-point is the middle of the grid and positive and negative range are equal.
        narrow: leave the lowest integer out, so that a signed symmetric grid is -127..127.
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = False
    narrow: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ConfigError("must be 2 to 8", field="bits", value=self.bits)

    @property
    def lowest(self) -> int:
        """Least integer."""
        return (-(1 << (self.bits - 1)) if self.signed else 0) + int(self.narrow)

    @property
    def highest(self) -> int:
        """Greatest integer."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """Zero-point of a symmetric grid."""
        return 0 if self.signed else 1 << (self.bits - 1)

    @property
    def dtype(self) -> npt.DTypeLike:
        """Numpy's type for it."""
        return np.int8 if self.signed else np.uint8


INT8 = Grid(8, True)
UINT8 = Grid(8, False)
INT8_SYMMETRIC = Grid(8, True, True, True)
UINT8_SYMMETRIC = Grid(8, False, True)


@dataclass(frozen=True)
class Affine:
    """Scale and zero-point.

    Attributes:
        scale: float32, above 0; () for the whole tensor or (channels,).
        zero_point: integers of the grid, same shape.
        grid: which integers.
        axis: of the channels; None for the whole tensor.
    """

    scale: Floats
    zero_point: npt.NDArray[Any]
    grid: Grid
    axis: int | None = None

    def along(self, ndim: int) -> tuple[Floats, Floats]:
        """Scale and zero-point as float32, shaped to broadcast against a tensor of ``ndim`` axes."""
        zero = self.zero_point.astype(np.float32)
        if self.axis is None:
            return self.scale, zero
        shape = [1] * ndim
        shape[self.axis] = -1
        return self.scale.reshape(shape), zero.reshape(shape)


def range_of(x: npt.NDArray[Any], axis: int | None = None, where: object = None) -> tuple[Floats, Floats]:
    """Least and greatest value of a tensor, or of each channel along ``axis``; zeros for an empty tensor.

    Raises:
        ConfigError: NaN or infinity in it; ``where`` names the tensor.
    """
    x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ConfigError("holds NaN or infinity, which no range covers", where=where, remedy="correct the tensor")
    others = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    if x.size == 0:
        empty = np.zeros(() if axis is None else (x.shape[axis],), np.float32)
        return empty, empty
    return np.asarray(x.min(others), np.float32), np.asarray(x.max(others), np.float32)


def shorten(scale: npt.NDArray[Any], bits: int) -> Floats:
    """The next greater number with ``bits`` significant binary digits; 1 gives powers of two."""
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    return np.asarray(np.ldexp(np.ceil(mantissa * 2.0**bits) / 2.0**bits, exponent), np.float32)


def parameters(
    low: npt.ArrayLike, high: npt.ArrayLike, grid: Grid, axis: int | None = None, scale_bits: int | None = None
) -> Affine:
    """Scale and zero-point for the real range ``low``..``high``, scalars or (channels,).

    The range is widened to hold 0. Asymmetric: S = (high - low) / (qmax - qmin), Z = round(qmin - low / S). Symmetric:
    S = max(-low, high) / (qmax - middle), Z = middle. A range of width 0 gets S = 1. With ``scale_bits`` the scale is
    rounded up by :func:`shorten`.

    Raises:
        ConfigError: a bound is not finite, or low is above high.
    """
    a, b = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ConfigError("a range must be finite", field="low, high", value=(low, high))
    if (a > b).any():
        raise ConfigError("low is above high", field="low, high", value=(low, high))
    # float64 inside: high - low may overflow in float32.
    lo, hi = np.minimum(a, 0).astype(np.float64), np.maximum(b, 0).astype(np.float64)
    if grid.symmetric:
        width, steps = np.maximum(-lo, hi), grid.highest - grid.middle
    else:
        width, steps = hi - lo, grid.highest - grid.lowest
    scale = np.where(width > 0, np.maximum(width / steps, SMALLEST_SCALE), 1.0).astype(np.float32)
    if scale_bits is not None:
        scale = shorten(scale, scale_bits)
    if grid.symmetric:
        zero = np.full(scale.shape, grid.middle)
    else:
        zero = np.clip(np.rint(grid.lowest - lo / scale.astype(np.float64)), grid.lowest, grid.highest)
    return Affine(scale, np.asarray(zero).astype(grid.dtype), grid, axis)


def quantise(x: npt.NDArray[Any], affine: Affine) -> npt.NDArray[Any]:
    """q = clip(round(x / S) + Z, qmin, qmax); values outside the range saturate.

    Raises:
        ConfigError: NaN in ``x``.
    """
    x = np.asarray(x, np.float32)
    if np.isnan(x).any():
        raise ConfigError("NaN has no integer", field="x")
    scale, zero = affine.along(x.ndim)
    with np.errstate(over="ignore"):  # x / S may be infinite, which saturates as it should
        q = np.rint(x / scale) + zero
    return np.clip(q, affine.grid.lowest, affine.grid.highest).astype(affine.grid.dtype)


def dequantise(q: npt.NDArray[Any], affine: Affine) -> Floats:
    """r = S (q - Z), equation (1)."""
    scale, zero = affine.along(np.ndim(q))
    return ((np.asarray(q).astype(np.float32) - zero) * scale).astype(np.float32)


def fake_quantise(x: npt.NDArray[Any], affine: Affine) -> Floats:
    """To the grid and back: what a value becomes by being stored as an integer."""
    return dequantise(quantise(x, affine), affine)


def weight_parameters(weight: npt.NDArray[Any], axis: int | None, where: object = None) -> Affine:
    """Symmetric int8 (-127..127) from the weight's own range; per channel along ``axis``."""
    low, high = range_of(weight, axis, where)
    return parameters(low, high, INT8_SYMMETRIC, axis)
