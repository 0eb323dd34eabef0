"""Which channels hang together: torch-pruning's dependency groups, as plain data, each tried before it is trusted.

The library follows the graph and says what must go with a channel: the other arms of an addition, depthwise filters,
normalisation, the columns of every consumer, the right part of a concatenation. It guesses at some operations
(reshapes, what it does not know), so every group is tried once on a copy with random weights: removing some channels
must give the same output as setting them to zero. A group that fails this is left alone, with the reason.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

from triptych_forge.prune.shapes import Forward, as_inputs, evaluating, run

ROOTS = (nn.Conv2d, nn.Linear)
TOLERANCE = 1e-4
"""Greatest difference of removed and zeroed channels relative to the greatest output: float32 adds in other orders."""
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Member:
    """One layer's part in a group: removing channel ``root[i]`` of the group takes the layer's index ``index[i]``.

    Attributes:
        layer: name of the module.
        side: ``out``, ``in``, or ``both`` for layers that keep every channel to itself (normalisation, depthwise).
    """

    layer: str
    side: str
    index: tuple[int, ...]
    root: tuple[int, ...]

    def taken(self, chosen: Collection[int]) -> list[int]:
        """The layer's indices that go with the group's channels ``chosen``."""
        return [index for index, root in zip(self.index, self.root, strict=True) if root in chosen]


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that can only be removed together.

    Attributes:
        root: name of the layer whose output channels number the group's channels.
        channels: how many.
        members: all layers concerned, the root among them.
        problem: why it must be left alone; empty if it may be pruned.
    """

    root: str
    channels: int
    members: tuple[Member, ...]
    problem: str = ""

    @property
    def producers(self) -> tuple[Member, ...]:
        """Members whose outputs are the group's channels."""
        return tuple(m for m in self.members if m.side in ("out", "both"))


@dataclass
class Net:
    """A working copy of a model, its dependency graph and its names."""

    model: nn.Module
    inputs: tuple[Any, ...]
    forward: Forward | None
    names: dict[nn.Module, str] = field(default_factory=dict)
    graph: Any = None

    def output(self) -> list[Tensor]:
        """All output tensors of one inference in eval mode."""
        with evaluating(self.model), torch.no_grad():
            return flat_tensors(run(self.model, self.inputs, self.forward))


def traced(model: nn.Module, example_inputs: Any, forward: Forward | None = None) -> Net:
    """A copy of the model, in eval mode and with every gradient on, traced by the library."""
    work = copy.deepcopy(model).eval()
    for parameter in work.parameters():
        parameter.requires_grad_(True)
    net = Net(work, as_inputs(example_inputs), forward, {m: n for n, m in work.named_modules()})
    with warnings.catch_warnings(), torch.enable_grad():
        # What the library warns of (parameters outside layers, unknown operations) is what the trial is for.
        warnings.simplefilter("ignore")
        net.graph = tp.DependencyGraph().build_dependency(
            work,
            net.inputs,
            forward_fn=lambda m, x: flat_tensors(run(m, x, forward)),
            verbose=False,
        )
    return net


def flat_tensors(value: Any) -> list[Tensor]:
    """The tensors of nested tuples, lists and mappings, in order."""
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [t for part in value for t in flat_tensors(part)] if isinstance(value, (tuple, list)) else []


def output_layers(net: Net) -> set[str]:
    """Layers with weights whose output reaches the model's output and no other layer with weights."""
    found = set()
    for module, node in net.graph.module2node.items():
        if not isinstance(module, ROOTS):
            continue
        queue, seen = list(node.outputs), set()
        while queue:
            here = queue.pop()
            if here in seen:
                continue
            seen.add(here)
            if isinstance(here.module, ROOTS):
                break
            queue += here.outputs
        else:
            found.add(net.names[module])
    return found


def channel_groups(net: Net, protected: Iterable[str] = ()) -> list[ChannelGroup]:
    """The groups of the layers that are not protected; a group that holds a protected layer is left out whole.

    Args:
        net: traced and not pruned.
        protected: names of layers whose output channels stay.
    """
    modules = dict(net.model.named_modules())
    ignored = [modules[name] for name in protected]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = list(net.graph.get_all_groups(ignored_layers=ignored, root_module_types=ROOTS))
    return [_as_data(net, group) for group in groups]


def _as_data(net: Net, group: Any) -> ChannelGroup:
    root = group[0].dep.target.module
    channels = net.graph.get_out_channels(root)
    members, problem = [], ""
    for item in group:
        module = item.dep.target.module
        if isinstance(module, nn.Parameter):
            problem = problem or "reaches a parameter outside a layer"
        if not isinstance(module, nn.Module) or module not in net.names:
            continue
        name, handler = net.names[module], item.dep.handler
        out, into = net.graph.is_out_channel_pruning_fn(handler), net.graph.is_in_channel_pruning_fn(handler)
        # The library uses one function for both sides of whatever keeps channels apart.
        side = "both" if isinstance(module, NORMS) or _depthwise(module) or (out and into) else "out" if out else "in"
        if isinstance(module, nn.Conv2d) and module.groups > 1 and not _depthwise(module):
            problem = problem or f"reaches {name}, a convolution in {module.groups} groups"
        roots = item.root_idxs
        if any(r is None for r in roots) or len(item.idxs) % channels:
            problem = problem or f"reaches {name} in a way that cannot be followed"
            continue
        members.append(Member(name, side, tuple(map(int, item.idxs)), tuple(map(int, roots))))
    return ChannelGroup(net.names[root], channels, tuple(members), problem)


def _depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and 1 < module.groups == module.in_channels == module.out_channels


def remove(net: Net, chosen: Mapping[str, Collection[int]]) -> None:
    """Take channels out of the net, in place. ``chosen``: root layer to channels; numbers of the net as it is now."""
    for root, channels in chosen.items():
        if not channels:
            continue
        group = _library_group(net, root, sorted(channels))
        if not net.graph.check_pruning_group(group):
            raise RuntimeError(f"{root}: nothing would be left of a layer")
        group.prune()


def _library_group(net: Net, root: str, channels: Iterable[int]) -> Any:
    module = net.model.get_submodule(root)
    function = net.graph.get_pruner_of_module(module).prune_out_channels
    return net.graph.get_pruning_group(module, function, list(channels))


@torch.no_grad()
def zeroed(model: nn.Module, groups: Sequence[ChannelGroup], chosen: Mapping[str, Collection[int]]) -> nn.Module:
    """A copy of the unpruned model whose chosen channels are 0 where they are made and unused where they are read."""
    work = copy.deepcopy(model)
    modules = dict(work.named_modules())
    for group in groups:
        channels = set(chosen.get(group.root, ()))
        for member in group.members:
            taken = member.taken(channels)
            module = modules[member.layer]
            weight = getattr(module, "weight", None)
            if not taken or weight is None or not isinstance(module, (*ROOTS, *NORMS)):
                continue
            if member.side == "in":
                weight[:, taken] = 0.0
                continue
            weight[taken] = 0.0
            if module.bias is not None:
                module.bias[taken] = 0.0
    return work


def difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Greatest difference of two lists of outputs relative to the greatest value; infinite if the shapes differ."""
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if not x.numel():
            continue
        scale = max(float(x.abs().max()), float(y.abs().max()), 1e-12)
        gap = float((x.double() - y.double()).abs().max()) / scale
        worst = max(worst, gap if gap == gap else float("inf"))
    return worst


def tried(
    model: nn.Module, groups: Sequence[ChannelGroup], example_inputs: Any, forward: Forward | None = None
) -> list[ChannelGroup]:
    """The groups again; those that do not stand the trial carry the problem."""
    noisy = _with_random_weights(model)
    problems: dict[str, str] = {group.root: "has one channel only" for group in groups if group.channels < 2}
    queue = [[group for group in groups if not group.problem and group.root not in problems]]
    while queue:
        # All at once, as most nets hold nothing unusual; where something is wrong, halves of halves until it is found.
        part = queue.pop()
        problem = _problem(noisy, part, example_inputs, forward) if part else ""
        if problem and len(part) == 1:
            problems[part[0].root] = problem
        elif problem:
            queue += [part[: len(part) // 2], part[len(part) // 2 :]]
    return [replace(group, problem=group.problem or problems.get(group.root, "")) for group in groups]


def _problem(noisy: nn.Module, groups: Sequence[ChannelGroup], example_inputs: Any, forward: Forward | None) -> str:
    """What goes wrong when these groups lose two channels each; empty if nothing does."""
    # Channels that do not lie in the middle: a wrong mapping would pair up the rest wrongly.
    chosen = {group.root: {0, group.channels - 2} if group.channels > 2 else {0} for group in groups}
    try:
        net = traced(noisy, example_inputs, forward)
        remove(net, chosen)
        smaller = net.output()
    except Exception as error:  # the library and the net raise whatever a wrong shape leads to
        return f"breaks the net when pruned ({type(error).__name__})"
    masked = Net(zeroed(noisy, groups, chosen), as_inputs(example_inputs), forward).output()
    gap = difference(smaller, masked)
    if gap == float("inf"):
        return "changes the shape of an output when pruned"
    if gap > TOLERANCE:
        return "changes the other channels when pruned (a normalisation or a reshape across channels)"
    return ""


@torch.no_grad()
def _with_random_weights(model: nn.Module, seed: int = 11) -> nn.Module:
    """A copy in which no channel is dead or equal to another, whatever the training did; sums keep their size."""
    work = copy.deepcopy(model).eval()
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor)

    for module in work.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2:
                parameter.copy_(noise(parameter) * parameter[0].numel() ** -0.5)
            elif name == "weight" and isinstance(module, NORMS):
                parameter.copy_(1.0 + 0.2 * noise(parameter))
            else:
                parameter.copy_(0.2 * noise(parameter))
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.copy_(0.1 * noise(module.running_mean))
            assert module.running_var is not None
            module.running_var.fill_(1.0)
    return work


@torch.no_grad()
def l1_importance(
    model: nn.Module, groups: Sequence[ChannelGroup], example_inputs: Any, forward: Forward | None = None
) -> dict[str, Tensor]:
    """By root layer the channels' mean L1 norm over the weights that go with them, (channels,) float.

    Filters are taken as an engine runs them, with the batch normalisation behind them folded in: a filter's own norm
    means nothing when a normalisation rescales it (Li et al., "Pruning filters for efficient convnets",
    arXiv:1608.08710, sec. 3.1, for the L1 norm; torch-pruning's GroupMagnitudeImportance for the group).
    """
    net = traced(model, example_inputs, forward)
    for module, node in net.graph.module2node.items():
        if not isinstance(module, nn.Conv2d):
            continue
        for after in node.outputs:
            norm = after.module
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_var is not None:
                scale = (norm.running_var + norm.eps).rsqrt()
                scale = scale * norm.weight if norm.weight is not None else scale
                module.weight.mul_(scale.reshape(-1, 1, 1, 1))
    measure = tp.importance.GroupMagnitudeImportance(
        p=1, group_reduction="mean", normalizer=None, target_types=[nn.modules.conv._ConvNd, nn.Linear]
    )
    return {group.root: measure(_library_group(net, group.root, range(group.channels))) for group in groups}
