"""Which module feeds which, found by running the network once.

Only what passes between modules is seen. Arithmetic inside a ``forward`` (a sum, a concatenation) makes tensors that no
leaf produced; a container that returns such a tensor counts as its producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TRANSPARENT = (nn.Identity, nn.Dropout)
"""Modules that in evaluation hand their input on unchanged."""


@dataclass(frozen=True)
class Call:
    """One run of a leaf module.

    Attributes:
        name: of the module.
        source: name of the module whose output it took; None: the network's own arithmetic or input.
    """

    name: str
    source: str | None


def trace(net: nn.Module, example: Sequence[Any]) -> list[Call]:
    """The leaf modules in the order in which they ran on ``example``, the arguments of one call of ``net``."""
    names = {module: name for name, module in net.named_modules()}
    producer: dict[int, str] = {}
    calls: list[Call] = []
    alive: list[Tensor] = []  # ids are unique among living tensors only
    handles = []

    def leaf_before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            alive.append(inputs[0])
            calls.append(Call(names[module], producer.get(id(inputs[0]))))

    def leaf_after(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            alive.append(output)
            producer[id(output)] = names[module]

    def container_after(module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and names[module]:
            alive.append(output)
            producer.setdefault(id(output), names[module])

    for module in net.modules():
        if isinstance(module, TRANSPARENT):
            continue
        if next(module.children(), None) is None:
            handles += [module.register_forward_pre_hook(leaf_before), module.register_forward_hook(leaf_after)]
        else:
            handles.append(module.register_forward_hook(container_after))
    was_training = net.training
    try:
        with torch.no_grad():
            net.eval()(*example)
    finally:
        net.train(was_training)
        for handle in handles:
            handle.remove()
    return calls


def consumers(calls: Sequence[Call]) -> dict[str, list[str]]:
    """Module to the modules that took its output, in order."""
    found: dict[str, list[str]] = {}
    for call in calls:
        if call.source is not None:
            found.setdefault(call.source, []).append(call.name)
    return found


def first_tensors(output: Any) -> list[Tensor]:
    """The tensors of an output: one, or those of nested tuples and lists, in order."""
    if isinstance(output, Tensor):
        return [output]
    return [tensor for part in output for tensor in first_tensors(part)] if isinstance(output, (tuple, list)) else []
