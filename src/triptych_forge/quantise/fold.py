"""Batch normalisation folded into the convolution before it.

Source: Jacob et al. 2018, section 3.2, equation (14): w_fold = gamma w / sqrt(var + eps), per output channel. The
arithmetic is torch's own (``torch.nn.utils.fusion``); what is added here is finding the pairs and proving the result.
ONNX graphs need none of this: ONNX Runtime folds them while it prepares a graph, see :func:`.ptq.prepare`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from triptych.contract import ConfigError
from triptych_forge.quantise.trace import consumers, first_tensors, trace

TOLERANCE = 1e-5
"""Greatest difference of an output, relative to the greatest output."""


def fold_batch_norms(net: nn.Module, example: Sequence[Any]) -> tuple[nn.Module, list[tuple[str, str]]]:
    """A copy of ``net`` in evaluation mode with every batch normalisation that follows a convolution folded into it.

    Only a convolution that runs once and feeds nothing but its normalisation is folded. The outputs on ``example``
    (the arguments of one call) are compared.

    Returns:
        The copy, and the names (convolution, normalisation) of the folded pairs in order.

    Raises:
        ConfigError: the outputs differ by more than :data:`TOLERANCE`: a convolution's output is also used where no
            module sees it. Names the pairs.
    """
    folded = copy.deepcopy(net).eval()
    calls = trace(folded, example)
    modules = dict(folded.named_modules())
    runs = [call.name for call in calls]
    takers = consumers(calls)
    pairs: list[tuple[str, str]] = []
    for call in calls:
        conv, norm = modules.get(call.source or ""), modules[call.name]
        if not (isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)):
            continue
        assert call.source is not None
        if takers[call.source] != [call.name] or runs.count(call.source) != 1 or runs.count(call.name) != 1:
            continue
        if norm.running_mean is None:  # uses the batch's own statistics even in evaluation
            continue
        replace_module(folded, call.source, fuse_conv_bn_eval(conv, norm))
        replace_module(folded, call.name, nn.Identity())
        pairs.append((call.source, call.name))
    with torch.no_grad():
        wanted = first_tensors(copy.deepcopy(net).eval()(*example))
        found = first_tensors(folded(*example))
    for a, b in zip(found, wanted, strict=True):
        difference = float((a - b).abs().max()) if a.numel() else 0.0
        limit = TOLERANCE * max(1.0, float(b.abs().max()) if b.numel() else 1.0)
        if not difference <= limit:
            raise ConfigError(
                f"folding changes an output by {difference:.3g}, more than {limit:.3g}",
                field=", ".join(f"{c} + {n}" for c, n in pairs),
                remedy="a convolution's output is used beside its normalisation; take the use into a module",
            )
    return folded, pairs


def replace_module(net: nn.Module, name: str, module: nn.Module) -> None:
    """Put ``module`` where ``name`` (dotted) is."""
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, module)
