"""How much the loss would rise without a channel: diagonal estimates of curvature, per layer and per channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych_forge.prune.shapes import evaluating

Loss = Callable[[nn.Module, Any], Tensor]
"""``(model, batch)`` to a scalar: the mean loss of the batch."""
Method = Literal["fisher", "hessian"]


@dataclass(frozen=True)
class LayerSensitivity:
    """Of one convolution or linear layer.

    Attributes:
        layer: name in the model.
        total: estimated rise of the loss if all its weights became 0; the sum of ``per_channel``.
        per_channel: (channels_out,) float64, the rise if one output channel's weights became 0.
        diagonal: mean of the curvature's diagonal over the layer's weights, signed.
        method: which estimate.
    """

    layer: str
    total: float
    per_channel: Tensor
    diagonal: float
    method: str


def fisher_diagonal(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Diagonal of the empirical Fisher information, per layer, shaped like its weight, float64.

    F_ii = mean over batches of (dL/dw_i)^2 (Theis et al., "Faster gaze prediction with dense networks and Fisher
    pruning", arXiv:1801.05787, eq. 9). A batch counts as one sample: give batches of one example for the textbook's
    value.

    Raises:
        ConfigError: no batch, a loss that is no scalar or not finite, a layer that the loss does not depend on.
    """
    weights = prunable_weights(model)
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}

    def add(gradients: Mapping[str, Tensor]) -> None:
        for name, gradient in gradients.items():
            sums[name] += gradient.double().square()

    count = _each_gradient(model, weights, batches, loss, add, progress)
    return {name: total / count for name, total in sums.items()}


def hessian_diagonal(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    probes: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Diagonal of the loss's Hessian, per layer, shaped like its weight, float64.

    Hutchinson's estimate: diag(H) = E[z * (H z)] with z of independent +1 and -1 (Bekas, Kokiopoulou, Saad, "An
    estimator for the diagonal of a matrix", Applied Numerical Mathematics 57, 2007); the variance of an entry is
    sum over j != i of H_ij^2 / probes. The Hessian is that of the mean loss over the batches.

    Args:
        probes: vectors z per batch.
        seed: of the vectors.

    Raises:
        ConfigError: as :func:`fisher_diagonal`, or fewer than one probe.
    """
    if probes < 1:
        raise ConfigError("must be 1 or more", field="probes", value=probes)
    weights = prunable_weights(model)
    generator = torch.Generator().manual_seed(seed)
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}

    def add(gradients: Mapping[str, Tensor]) -> None:
        for _ in range(probes):
            signs = {
                name: (torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1).to(weight)
                for name, weight in weights.items()
            }
            # A gradient that does not depend on the weights (a linear loss) has no graph: its second derivative is 0.
            curved = [name for name, gradient in gradients.items() if gradient.requires_grad]
            if not curved:
                return
            products = torch.autograd.grad(
                [gradients[name] for name in curved],
                list(weights.values()),
                [signs[name] for name in curved],
                retain_graph=True,
                allow_unused=True,
            )
            for (name, sign), product in zip(signs.items(), products, strict=True):
                if product is not None:
                    sums[name] += (sign * product).double()

    count = _each_gradient(model, weights, batches, loss, add, progress, create_graph=True)
    return {name: total / (count * probes) for name, total in sums.items()}


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    method: Method = "fisher",
    *,
    probes: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, LayerSensitivity]:
    """Sensitivity of every convolution and linear layer that the loss depends on, by name.

    The rise of the loss without weight w is estimated as c * w^2 / 2 with c the curvature's diagonal entry (LeCun,
    Denker, Solla, "Optimal brain damage", NIPS 1989): the Fisher information, or the absolute value of the
    Hessian's entry (the downward curve at a saddle is no licence to prune). A channel's value is the sum over its
    weights.

    Args:
        model: evaluated in eval mode, so that statistics stay fixed; left as it was.
        batches: whatever ``loss`` takes; used once.
        loss: ``(model, batch)`` to a scalar.
        method: ``fisher`` or ``hessian``.
        probes, seed: for ``hessian``.
        progress: called with batches done and in all (0 if the iterable has no length).

    Raises:
        ConfigError: unknown method, no batch, a loss that is no scalar or not finite.
    """
    if method == "fisher":
        diagonals = fisher_diagonal(model, batches, loss, progress)
    elif method == "hessian":
        diagonals = hessian_diagonal(model, batches, loss, probes, seed, progress)
    else:
        raise ConfigError("unknown method", field="method", value=method, remedy="use fisher or hessian")
    weights = prunable_weights(model)
    found = {}
    for name, diagonal in diagonals.items():
        rise = 0.5 * diagonal.abs() * weights[name].detach().double().square()
        channels = rise.flatten(1).sum(1)
        found[name] = LayerSensitivity(name, float(channels.sum()), channels, float(diagonal.mean()), method)
    return found


def prunable_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights of the convolutions and linear layers, by the layer's name; output channels are the first axis."""
    return {name: module.weight for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}


def _each_gradient(
    model: nn.Module,
    weights: dict[str, nn.Parameter],
    batches: Iterable[Any],
    loss: Loss,
    use: Callable[[Mapping[str, Tensor]], None],
    progress: Callable[[int, int], None] | None,
    create_graph: bool = False,
) -> int:
    """Call ``use`` with the gradients of every batch; returns the number of batches."""
    total = len(batches) if hasattr(batches, "__len__") else 0  # type: ignore[arg-type]
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    count = 0
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        with evaluating(model), torch.enable_grad():
            for count, batch in enumerate(batches, 1):
                value = loss(model, batch)
                if value.numel() != 1:
                    raise ConfigError("is no scalar", where=f"loss of batch {count}", value=tuple(value.shape))
                if not torch.isfinite(value).item():
                    raise ConfigError(
                        "is not finite",
                        where=f"loss of batch {count}",
                        value=float(value.detach()),
                        remedy="look at that batch and at the weights",
                    )
                gradients = torch.autograd.grad(
                    value.reshape(()), list(weights.values()), create_graph=create_graph, allow_unused=True
                )
                # A layer that this loss does not touch (a head for training only) has sensitivity 0.
                use({n: g for n, g in zip(weights, gradients, strict=True) if g is not None})
                if progress is not None:
                    progress(count, total)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    if count == 0:
        raise ConfigError("there is no batch to measure the sensitivity on", field="batches", remedy="give some")
    return count
