"""What a net is made of for a machine: every layer with weights, its shape, its arithmetic and the bytes it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from triptych.contract import ConfigError

Forward = Callable[..., Any]
"""``(model, *inputs)`` to the model's outputs, for a model that is not simply called."""


@dataclass(frozen=True)
class LayerShape:
    """One call of one layer with weights.

    Attributes:
        name: of the module in the model.
        kind: of the operator, see :data:`triptych_forge.prune.profile.KIND`.
        channels_in, channels_out: features per position.
        groups: of a convolution; ``channels_in`` for a depthwise one.
        kernel_area: weights per pair of channels.
        positions_in, positions_out: pixels (or tokens) times pictures in the batch.
        bias: whether one value per output channel is added.
    """

    name: str
    kind: str
    channels_in: int
    channels_out: int
    groups: int = 1
    kernel_area: int = 1
    positions_in: int = 1
    positions_out: int = 1
    bias: bool = False

    @property
    def depthwise(self) -> bool:
        """Whether every channel is filtered alone."""
        return self.groups > 1 and self.groups == self.channels_in

    @property
    def weights(self) -> int:
        """Number of weights and biases."""
        return self.channels_out * (self.channels_in // self.groups * self.kernel_area + int(self.bias))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the call; biases are not counted."""
        return self.positions_out * self.channels_out * (self.channels_in // self.groups) * self.kernel_area

    def bytes_read(self, bytes_per_value: float = 4.0) -> float:
        """Weights and input, each read once."""
        return (self.weights + self.channels_in * self.positions_in) * bytes_per_value

    def bytes_moved(self, bytes_per_value: float = 4.0) -> float:
        """Weights, input and output, each touched once."""
        return self.bytes_read(bytes_per_value) + self.channels_out * self.positions_out * bytes_per_value


def as_inputs(example_inputs: Any) -> tuple[Any, ...]:
    """A tensor, or several, as the positional arguments of a model."""
    return tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


def run(model: nn.Module, example_inputs: Any, forward: Forward | None = None) -> Any:
    """The model's outputs for positional inputs, by ``forward`` or by a plain call."""
    inputs = as_inputs(example_inputs)
    return forward(model, *inputs) if forward is not None else model(*inputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def layer_shapes(model: nn.Module, example_inputs: Any, forward: Forward | None = None) -> list[LayerShape]:
    """The convolutions and linear layers in the order in which one inference calls them.

    What has no weights (additions, upsampling, attention products) is not in the list; batch normalisation is folded
    into the convolution before it by every engine and is not either.

    Args:
        model: any module; its modes are left as they are.
        example_inputs: a tensor or a tuple of tensors, of one inference.
        forward: how to call the model, if not plainly.

    Raises:
        ConfigError: a layer with weights of a kind that cannot be counted.
    """
    found: list[LayerShape] = []
    hooks = []

    def watch(name: str, module: nn.Module) -> None:
        def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            found.append(_shape_of(name, module, inputs[0], output))

        hooks.append(module.register_forward_hook(note))

    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            watch(name, module)
        elif _has_uncounted_weights(module):
            raise ConfigError(
                f"{type(module).__name__} cannot be counted",
                where=name or "the model",
                remedy="use Conv2d and Linear layers",
            )
    try:
        with evaluating(model), torch.no_grad():
            run(model, example_inputs, forward)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _has_uncounted_weights(module: nn.Module) -> bool:
    known = (nn.Embedding, nn.LayerNorm, nn.modules.batchnorm._NormBase)
    return (
        not isinstance(module, known)
        and not any(True for _ in module.children())
        and any(p.dim() >= 2 for p in module.parameters(recurse=False))
    )


def _shape_of(name: str, module: nn.Module, value: Tensor, output: Tensor) -> LayerShape:
    if isinstance(module, nn.Linear):
        rows = value.numel() // module.in_features
        return LayerShape(
            name, "linear", module.in_features, module.out_features, 1, 1, rows, rows, module.bias is not None
        )
    assert isinstance(module, nn.Conv2d)
    return LayerShape(
        name,
        kind_of(module),
        module.in_channels,
        module.out_channels,
        module.groups,
        module.kernel_size[0] * module.kernel_size[1],
        value.numel() // module.in_channels,
        output.numel() // module.out_channels,
        module.bias is not None,
    )


def kind_of(conv: nn.Conv2d) -> str:
    """The name of a convolution's operator in a profile, e.g. ``depthwise5x5/2``."""
    depthwise = conv.groups > 1 and conv.groups == conv.in_channels == conv.out_channels
    operator = "depthwise" if depthwise else "conv" if conv.groups == 1 else f"grouped{conv.groups}conv"
    rows, columns = conv.kernel_size
    stride = "" if conv.stride == (1, 1) else f"/{conv.stride[0]}"
    return f"{operator}{rows}x{columns}{stride}"


def macs(layers: Sequence[LayerShape]) -> int:
    """Multiply-accumulates of one inference."""
    return sum(layer.macs for layer in layers)


def bytes_read(
    model: nn.Module | Sequence[LayerShape],
    example_inputs: Any = None,
    bytes_per_value: float = 4.0,
    forward: Forward | None = None,
) -> int:
    """Bytes that one inference reads: the weights of every layer and its input activations, each once per call.

    Layers without weights are not counted (see :func:`layer_shapes`). ``bytes_per_value``: 4 for float32, 1 for INT8.
    """
    layers = layer_shapes(model, example_inputs, forward) if isinstance(model, nn.Module) else model
    return round(sum(layer.bytes_read(bytes_per_value) for layer in layers))
