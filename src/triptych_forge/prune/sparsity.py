"""Sparse layers: the 2:4 pattern of tensor cores, and one sparse alignment for the features of several modalities."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from triptych.contract import ConfigError

GROUP = 4
KEPT = 2


# --- 2:4 --------------------------------------------------------------------------------------------------------------


class _Masked(nn.Module):
    """A weight times a fixed mask; gradients reach only what the mask keeps."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


def mask_2_4(weight: Tensor) -> Tensor:
    """1 for the two greatest magnitudes of each four along the input axis, else 0; shaped and typed like ``weight``.

    Two of four: Mishra et al., "Accelerating sparse deep neural networks", arXiv:2104.08378. Of equal
    magnitudes the later ones are dropped, so that every four keeps exactly two.

    Args:
        weight: (out, in) or (out, in, rows, columns); ``in`` a multiple of 4.

    Raises:
        ValueError: no such axis, or not a multiple of 4.
    """
    if weight.dim() < 2 or weight.shape[1] % GROUP:
        raise ValueError(f"the input axis of {tuple(weight.shape)} is no multiple of {GROUP}")
    last = weight.detach().abs().movedim(1, -1)
    fours = last.reshape(-1, GROUP)
    kept = torch.argsort(fours, dim=1, descending=True, stable=True)[:, :KEPT]
    mask = torch.zeros_like(fours).scatter_(1, kept, 1.0)
    return mask.reshape(last.shape).movedim(-1, 1).contiguous()


def eligible_2_4(model: nn.Module) -> tuple[str, ...]:
    """Layers whose input axis is a multiple of 4: linear layers and convolutions that are not grouped."""
    return tuple(name for name, module in model.named_modules() if _fits(module))


def _fits(module: nn.Module | None) -> bool:
    if not isinstance(module, (nn.Linear, nn.Conv2d)):
        return False
    return module.weight.shape[1] % GROUP == 0 and getattr(module, "groups", 1) == 1


def apply_2_4(model: nn.Module, layers: Sequence[str] | None = None) -> tuple[str, ...]:
    """Bring layers into the 2:4 pattern, in place, and hold them there while the model is trained on.

    The weight becomes a parametrisation (weight times mask): the optimiser may do what it likes with the weights behind
    it, what the model uses keeps its zeros. :func:`bake_2_4` makes plain weights of it again.

    Args:
        layers: names; ``None``: all of :func:`eligible_2_4`.

    Returns:
        The names.

    Raises:
        ConfigError: a layer that is not there, does not fit or is masked already. Nothing has been changed then.
    """
    names = tuple(eligible_2_4(model) if layers is None else layers)
    modules = dict(model.named_modules())
    for name in names:
        module = modules.get(name)
        if module is None or not _fits(module):
            problem = "there is no such layer" if module is None else f"the input axis is no multiple of {GROUP}"
            raise ConfigError(problem, where="2:4 sparsity", field=name, remedy="choose other layers")
        if parametrize.is_parametrized(module, "weight"):
            raise ConfigError("is masked already", where="2:4 sparsity", field=name)
    for name in names:
        module = modules[name]
        parametrize.register_parametrization(module, "weight", _Masked(mask_2_4(module.weight)))
    return names


def bake_2_4(model: nn.Module) -> tuple[str, ...]:
    """Make plain weights with zeros of all masked ones, in place; returns the layers. Do it before saving or export."""
    baked = []
    for name, module in list(model.named_modules()):
        if parametrize.is_parametrized(module, "weight") and isinstance(module.parametrizations.weight[0], _Masked):
            _make_plain(module)
            baked.append(name)
    return tuple(baked)


def plain_weights(model: nn.Module) -> nn.Module:
    """A copy whose parametrised weights (masks, fake quantisation) are plain ones with the values they have now.

    Pruning needs it: the library replaces weights, which a parametrisation does not allow.
    """
    work = copy.deepcopy(model)
    for module in list(work.modules()):
        if parametrize.is_parametrized(module):
            _make_plain(module)
    return work


def _make_plain(module: nn.Module) -> None:
    # Not remove_parametrizations: copies share the class that it takes the weight away from.
    lists = dict(module.parametrizations.items())  # type: ignore[union-attr, operator]
    values = {name: getattr(module, name).detach().clone() for name in lists}
    trained = {name: any(p.requires_grad for p in part.parameters(recurse=False)) for name, part in lists.items()}
    plain = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    module.__class__ = plain
    for name, value in values.items():
        setattr(module, name, nn.Parameter(value, trained[name]))


def follows_2_4(weight: Tensor | np.ndarray, axis: int = 1) -> bool:
    """Whether each four along the input axis hold at least two zeros."""
    values = np.asarray(weight.detach() if torch.is_tensor(weight) else weight)
    if values.ndim < 2 or values.shape[axis] % GROUP:
        return False
    fours = np.moveaxis(values, axis, -1).reshape(-1, GROUP)
    return bool(((fours == 0).sum(1) >= GROUP - KEPT).all())


def check_2_4(model: nn.Module, layers: Sequence[str]) -> None:
    """Stop unless all the layers follow the pattern.

    Raises:
        ConfigError: names those that do not.
    """
    modules = dict(model.named_modules())
    bad = [name for name in layers if name not in modules or not follows_2_4(modules[name].weight)]
    if bad:
        raise ConfigError(
            f"not 2:4 sparse: {', '.join(bad)}", where="2:4 sparsity", remedy="apply the masks after the last change"
        )


WEIGHT_INPUT_AXIS = {"Conv": 1, "Gemm": 0, "MatMul": -2}
"""Axis that runs over the inputs, of the second operand of each operator; of a Gemm's with ``transB`` it is 1."""


@dataclass(frozen=True)
class OnnxWeight:
    """A constant weight of a graph.

    Attributes:
        name: of the tensor.
        operator: that takes it, e.g. ``Conv``.
        shape: as stored.
        zeros: share of its values that stand for 0, 0..1.
        follows: whether it is 2:4 sparse.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    zeros: float
    follows: bool


def survey_2_4_onnx(path: Path) -> tuple[OnnxWeight, ...]:
    """Every constant weight of a graph's convolutions and matrix products, in the order of the nodes.

    Weights behind a DequantizeLinear count by their integers: what equals the zero point is 0.

    Raises:
        ConfigError: unreadable, or without such a weight.
    """
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # protobuf and the file system have no common error
        text = " ".join(str(error).split())[:160]
        raise ConfigError(f"cannot be read: {text}", where=path, remedy="give an ONNX file") from None
    constants = {tensor.name: tensor for tensor in graph.initializer}
    dequantised = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants}
    found: dict[tuple[str, int], OnnxWeight] = {}
    for node in graph.node:
        if node.op_type not in WEIGHT_INPUT_AXIS or len(node.input) < 2:
            continue
        name = node.input[1]
        zero = 0
        if name in dequantised:
            name, zero = dequantised[name].input[0], _zero_point(dequantised[name], constants)
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        axis = 1 if transposed else WEIGHT_INPUT_AXIS[node.op_type]
        if name not in constants:
            continue
        is_zero = numpy_helper.to_array(constants[name]) == zero
        found[name, axis] = OnnxWeight(
            name,
            node.op_type,
            is_zero.shape,
            float(is_zero.mean()) if is_zero.size else 0.0,
            follows_2_4(~is_zero, axis),
        )
    if not found:
        raise ConfigError("holds no weights of convolutions or matrix products", where=path)
    return tuple(found.values())


def _zero_point(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Any:
    """What a DequantizeLinear takes for 0, shaped for its input; NaN, which nothing equals, where it is no constant."""
    if len(node.input) < 3 or not node.input[2]:
        return 0
    if node.input[2] not in constants:
        return math.nan
    zero = numpy_helper.to_array(constants[node.input[2]])
    if zero.ndim != 1:  # one for all; or one per block, which is looked at only where it is 0 throughout
        return zero if zero.ndim == 0 else math.nan if zero.any() else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [1] * len(constants[node.input[0]].dims)
    shape[axis] = -1
    return zero.reshape(shape)


def check_2_4_onnx(path: Path, at_least: int) -> tuple[str, ...]:
    """Names of the exported weights that follow the pattern.

    Engines fold normalisation into the weights, which scales whole outputs and leaves zeros where they were; names may
    change, so layers are counted.

    Args:
        at_least: number of layers that :func:`apply_2_4` masked.

    Raises:
        ConfigError: unreadable, no weights, or fewer than that follow the pattern.
    """
    found = tuple(weight.name for weight in survey_2_4_onnx(path) if weight.follows)
    if len(found) < at_least:
        raise ConfigError(
            f"only {len(found)} of {at_least} weights are 2:4 sparse",
            where=path,
            remedy="call bake_2_4 before the export and fold nothing across inputs",
        )
    return found


# --- alignment --------------------------------------------------------------------------------------------------------


class SharedSparseAlignment(nn.Module):
    """Features of several modalities into one space, by one sparse projection that all of them share.

    Each modality is normalised by itself (their scales differ), then goes through the same weights: what the projection
    keeps must serve all of them. While training, :meth:`penalty` pulls weights and whole outputs to zero;
    :meth:`harden` then keeps the ``keep`` greatest weights of each output for good, and the mask is part of the
    exported graph.

    Args:
        modalities: names, e.g. ``("image", "text")``.
        width: features of every modality.
        shared: width of the common space.
        keep: inputs that each output keeps, 1 to ``width``.

    Raises:
        ConfigError: no modality, a name used twice, or a number out of range.
    """

    mask: Tensor

    def __init__(self, modalities: Sequence[str], width: int, shared: int, keep: int) -> None:
        super().__init__()
        if not modalities or len(set(modalities)) != len(modalities):
            raise ConfigError("name every modality once", field="modalities", value=list(modalities))
        if min(width, shared) < 1 or not 1 <= keep <= width:
            raise ConfigError("must be 1 to width", field="keep", value=keep)
        self.keep = keep
        self.norms = nn.ModuleDict({name: nn.LayerNorm(width) for name in modalities})
        self.weight = nn.Parameter(torch.empty(shared, width))
        self.bias = nn.Parameter(torch.zeros(shared))
        nn.init.xavier_uniform_(self.weight)
        self.register_buffer("mask", torch.ones(shared, width))

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``features``: modality to (..., width) float; gives modality to (..., shared).

        Raises:
            ConfigError: an unknown modality.
        """
        return {name: self.align(name, value) for name, value in features.items()}

    def align(self, modality: str, value: Tensor) -> Tensor:
        """One modality: (..., width) to (..., shared).

        Raises:
            ConfigError: an unknown modality.
        """
        if modality not in self.norms:
            raise ConfigError("unknown modality", field="modality", value=modality, remedy=", ".join(self.norms))
        return functional.linear(self.norms[modality](value), self.weight * self.mask, self.bias)

    def penalty(self, l1: float, group: float) -> Tensor:
        """Scalar: ``l1`` * sum |w| + ``group`` * sqrt(width) * sum over outputs of ||w_row||_2.

        The lasso, and the group lasso of Yuan and Lin (J. R. Statist. Soc. B 68, 2006) with an output's
        weights as one group; together the sparse group lasso.
        """
        kept = self.weight * self.mask
        # The norm has no gradient at 0, where a pruned output is: a tiny constant keeps it finite.
        rows = (kept.square().sum(1) + 1e-12).sqrt().sum()
        return l1 * kept.abs().sum() + group * self.weight.shape[1] ** 0.5 * rows

    @torch.no_grad()
    def harden(self) -> float:
        """Fix the mask: the ``keep`` greatest magnitudes of every output stay. Returns the share of zeros."""
        best = (self.weight * self.mask).abs().topk(self.keep, 1).indices
        self.mask = torch.zeros_like(self.mask).scatter_(1, best, 1.0)
        return self.sparsity

    @property
    def sparsity(self) -> float:
        """Share of the projection's weights that are 0."""
        return float((self.weight * self.mask == 0).float().mean())
