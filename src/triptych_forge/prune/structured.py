"""Structured pruning: whole channels are taken out, and a smaller net of the same class remains.

Which channels hang together comes from :mod:`triptych_forge.prune.groups`, how many each group gives from
:mod:`triptych_forge.prune.allocate`; here it is done, checked and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.prune import groups as dependency
from triptych_forge.prune.allocate import Damage, Ledger, Target, greedy, levels_of, uniform
from triptych_forge.prune.groups import ChannelGroup
from triptych_forge.prune.profile import HardwareProfile, predict_us
from triptych_forge.prune.sensitivity import LayerSensitivity
from triptych_forge.prune.shapes import Forward, bytes_read, layer_shapes, macs
from triptych_forge.prune.widths import architecture, check_finite, load_pruned, rebuild, save_pruned

__all__ = [
    "Cost",
    "LayerDecision",
    "PruneResult",
    "Target",
    "architecture",
    "cost",
    "load_pruned",
    "prune",
    "rebuild",
    "save_pruned",
]

Importance = Literal["l1", "sensitivity"]


@dataclass(frozen=True)
class Cost:
    """Of one model; ``bytes_read`` and ``macs`` are of one inference in float32, ``milliseconds`` are predicted."""

    parameters: int
    macs: int
    bytes_read: int
    milliseconds: float | None


@dataclass(frozen=True)
class LayerDecision:
    """What became of one convolution or linear layer.

    Attributes:
        layer: name.
        group: root layer of its output channels' group, empty if there is none.
        channels_before, channels_after: outputs.
        inputs_before, inputs_after: inputs.
        ratio: share of the output channels that went.
        sensitivity: :attr:`LayerSensitivity.total`, if measured.
        reason: why so many, or why none.
    """

    layer: str
    group: str
    channels_before: int
    channels_after: int
    inputs_before: int
    inputs_after: int
    ratio: float
    sensitivity: float | None
    reason: str


@dataclass(frozen=True)
class PruneResult:
    """The smaller net and how it came about.

    Attributes:
        model: new; the one given is untouched.
        before, after: costs.
        layers: one decision per layer, in the model's order.
        left_alone: root layer of each group that could not be pruned, and why.
        untraced: layers that the example inference never reached; check that they still fit.
        removed_share: of the channels of all prunable groups.
        exactness: greatest relative difference between the pruned net and the original with the same channels set to 0.
        accuracy_before, accuracy_after: of the ``evaluate`` callback.
    """

    model: nn.Module
    before: Cost
    after: Cost
    layers: tuple[LayerDecision, ...]
    left_alone: Mapping[str, str]
    untraced: tuple[str, ...]
    removed_share: float
    exactness: float
    accuracy_before: float | None
    accuracy_after: float | None


def cost(
    model: nn.Module, example_inputs: Any, profile: HardwareProfile | None = None, forward: Forward | None = None
) -> Cost:
    """Parameters, MACs, bytes read and, with a profile, predicted milliseconds of one inference.

    Raises:
        ConfigError: a layer that cannot be counted, or an operator that the profile lacks.
    """
    layers = layer_shapes(model, example_inputs, forward)
    ms = sum(predict_us(layer, profile) for layer in layers) / 1e3 if profile is not None else None
    return Cost(sum(p.numel() for p in model.parameters()), macs(layers), bytes_read(layers), ms)


def prune(
    model: nn.Module,
    example_inputs: Any,
    target: Target,
    importance: Importance = "l1",
    sensitivities: Mapping[str, LayerSensitivity] | None = None,
    profile: HardwareProfile | None = None,
    protect: Collection[str] = (),
    log: DecisionLog | None = None,
    *,
    forward: Forward | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    floor: float = 0.25,
    round_to: int = 8,
    subject: str = "model",
) -> PruneResult:
    """Take the least important channels out of every layer that may lose some.

    Output layers are protected always. A group of channels that torch-pruning cannot follow safely is left alone.
    Without sensitivities and profile every group gives the same share. With sensitivities the channels whose loss
    costs least go first; with a profile the steps are weighed by the predicted time they save, so that a layer that
    would not get faster keeps its channels.

    Args:
        model: left as it is.
        example_inputs: a tensor or a tuple of tensors, of one inference.
        target: how small.
        importance: ``l1`` or ``sensitivity``: which channels of a group go first.
        sensitivities: from :func:`triptych_forge.prune.sensitivity.sensitivity`.
        profile: of the machine that the net will run on.
        protect: names of layers or of modules around them whose output channels stay.
        log: gets one ``prune.layer`` per layer and one ``prune.model``.
        forward: ``(model, *inputs)`` to outputs, if the model is not simply called; everything that must stay
            consistent must be in the outputs.
        evaluate: accuracy of a model, called before and after.
        floor: least share of its channels that a group keeps.
        round_to: channels left are a multiple of this; a group with no smaller multiple keeps all.
        subject: name of the model in the log.

    Raises:
        ConfigError: a weight that is not finite or is parametrised, an unknown name in ``protect``, no channel that may
            go, a sensitivity or operator that is missing, or a target that the floor does not allow; says what can
            be reached.
        RuntimeError: the pruned net does not compute what the original with zeroed channels does.
    """
    _check_numbers(target, importance, sensitivities, profile, floor, round_to)
    check_finite(model.state_dict(), subject)
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise ConfigError(
                "carries a parametrisation (a mask or fake quantisation)",
                where=subject,
                field=name,
                remedy="prune a copy with plain weights (sparsity.plain_weights) and prepare it again",
            )
    before = cost(model, example_inputs, profile, forward)
    found, reasons = _groups(model, example_inputs, forward, protect)
    usable = [group for group in found if not group.problem]
    damage = _damage(model, example_inputs, forward, usable, importance, sensitivities)
    shapes = layer_shapes(model, example_inputs, forward)
    ledger = Ledger(model, shapes, usable, profile)
    levels = [levels_of(group.channels, floor, round_to) for group in usable]
    if not any(len(steps) > 1 for steps in levels):
        raise ConfigError(
            "no channel may go", where=subject, remedy=f"protect less, or round to less than {round_to} channels"
        )
    if sensitivities is None and profile is None:
        counts, rule = uniform(ledger, levels, target), "same share everywhere"
    else:
        counts, rule = greedy(ledger, levels, target, damage), "least damage for the saving"
    order = [torch.argsort(scores.ranking, stable=True).tolist() for scores in damage]
    chosen = {g.root: set(o[: g.channels - c]) for g, o, c in zip(usable, order, counts, strict=True)}

    net = dependency.traced(model, example_inputs, forward)
    dependency.remove(net, chosen)
    masked = dependency.Net(dependency.zeroed(model, usable, chosen), net.inputs, forward)
    exactness = dependency.difference(net.output(), masked.output())
    if not exactness <= dependency.TOLERANCE:
        raise RuntimeError(
            f"{subject}: the pruned net differs from the original with zeroed channels by {exactness:g} of its range"
        )
    _restore_modes(net.model, model)
    traced = {shape.name for shape in shapes}
    result = PruneResult(
        model=net.model,
        before=before,
        after=cost(net.model, example_inputs, profile, forward),
        layers=_decisions(model, net.model, usable, reasons, sensitivities, rule, traced),
        left_alone={group.root: group.problem for group in found if group.problem},
        untraced=tuple(n for n, m in model.named_modules() if isinstance(m, dependency.ROOTS) and n not in traced),
        removed_share=1 - sum(counts) / sum(group.channels for group in usable),
        exactness=exactness,
        accuracy_before=evaluate(model) if evaluate is not None else None,
        accuracy_after=evaluate(net.model) if evaluate is not None else None,
    )
    if log is not None:
        _write(log, result, subject, target, importance, profile, rule, floor, round_to)
    return result


def _check_numbers(
    target: Target,
    importance: str,
    sensitivities: Mapping[str, LayerSensitivity] | None,
    profile: HardwareProfile | None,
    floor: float,
    round_to: int,
) -> None:
    if not 0 <= floor < 1:
        raise ConfigError("must be 0 or more and less than 1", where="pruning", field="floor", value=floor)
    if round_to < 1:
        raise ConfigError("must be 1 or more", where="pruning", field="round_to", value=round_to)
    if importance not in ("l1", "sensitivity"):
        raise ConfigError("must be l1 or sensitivity", where="pruning", field="importance", value=importance)
    if importance == "sensitivity" and sensitivities is None:
        raise ConfigError(
            "needs sensitivities", where="pruning", field="importance", value=importance, remedy="measure them first"
        )
    if target.unit == "milliseconds" and profile is None:
        raise ConfigError(
            "needs a hardware profile", where="pruning target", field="milliseconds", remedy="give the target's profile"
        )


def _groups(
    model: nn.Module,
    example_inputs: Any,
    forward: Forward | None,
    protect: Collection[str],
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """All groups, tried, and why layers outside them keep their channels."""
    layers = [name for name, module in model.named_modules() if isinstance(module, dependency.ROOTS)]
    wanted: set[str] = set()
    for name in protect:
        inside = {layer for layer in layers if layer == name or layer.startswith(f"{name}.")}
        if not inside:
            raise ConfigError("there is no such layer", where="pruning", field="protect", value=name)
        wanted |= inside
    net = dependency.traced(model, example_inputs, forward)
    outputs = dependency.output_layers(net)
    traced = {net.names[module] for module in net.graph.module2node if module in net.names}
    groups = dependency.channel_groups(net, [name for name in {*wanted, *outputs} if name in traced])
    tested = dependency.tried(model, groups, example_inputs, forward)
    reasons = dict.fromkeys(outputs, "output layer") | dict.fromkeys(wanted, "protected")
    reasons |= {m.layer: f"left alone: {g.problem}" for g in tested if g.problem for m in g.producers}
    return tested, reasons


def _damage(
    model: nn.Module,
    example_inputs: Any,
    forward: Forward | None,
    groups: Sequence[ChannelGroup],
    importance: str,
    sensitivities: Mapping[str, LayerSensitivity] | None,
) -> list[Damage]:
    l1 = dependency.l1_importance(model, groups, example_inputs, forward)
    found = []
    for group in groups:
        norm = l1[group.root].double()
        # Without sensitivities an average channel costs the same in every group.
        loss = norm / norm.mean().clamp(min=1e-30) if sensitivities is None else _loss_of(model, group, sensitivities)
        found.append(Damage(loss if importance == "sensitivity" else norm, loss))
    return found


def _loss_of(model: nn.Module, group: ChannelGroup, sensitivities: Mapping[str, LayerSensitivity]) -> Tensor:
    """Estimated rise of the loss per channel: the sum over the layers that make the channel."""
    total = torch.zeros(group.channels, dtype=torch.float64)
    modules = dict(model.named_modules())
    for member in group.producers:
        if not isinstance(modules[member.layer], dependency.ROOTS):
            continue
        known = sensitivities.get(member.layer)
        channels = modules[member.layer].weight.shape[0]
        if known is None or len(known.per_channel) != channels:
            raise ConfigError(
                "is missing or of another width",
                where="sensitivities",
                field=member.layer,
                remedy="measure the sensitivity of this very model",
            )
        total.index_add_(0, torch.tensor(member.root), known.per_channel[list(member.index)].double())
    return total


def _restore_modes(pruned: nn.Module, original: nn.Module) -> None:
    """Training modes and frozen parameters as they were."""
    modes = {name: module.training for name, module in original.named_modules()}
    for name, module in pruned.named_modules():
        module.training = modes[name]
    frozen = {name: parameter.requires_grad for name, parameter in original.named_parameters()}
    for name, parameter in pruned.named_parameters():
        parameter.requires_grad_(frozen[name])
        parameter.grad = None


def _decisions(
    model: nn.Module,
    pruned: nn.Module,
    groups: Sequence[ChannelGroup],
    reasons: Mapping[str, str],
    sensitivities: Mapping[str, LayerSensitivity] | None,
    rule: str,
    traced: Collection[str],
) -> tuple[LayerDecision, ...]:
    owner = {member.layer: group.root for group in groups for member in group.producers}
    after = dict(pruned.named_modules())
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, dependency.ROOTS):
            continue
        (inputs, outputs), (inputs_after, outputs_after) = _sides(module), _sides(after[name])
        known = (sensitivities or {}).get(name)
        other = "tied to a layer that is protected" if name in traced else "not reached by the example inference"
        reason = reasons.get(name) or (rule if name in owner else other)
        found.append(
            LayerDecision(
                name,
                owner.get(name, ""),
                outputs,
                outputs_after,
                inputs,
                inputs_after,
                1 - outputs_after / outputs,
                known.total if known is not None else None,
                reason,
            )
        )
    return tuple(found)


def _sides(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Conv2d):
        return module.in_channels, module.out_channels
    assert isinstance(module, nn.Linear)
    return module.in_features, module.out_features


def _write(
    log: DecisionLog,
    result: PruneResult,
    subject: str,
    target: Target,
    importance: str,
    profile: HardwareProfile | None,
    rule: str,
    floor: float,
    round_to: int,
) -> None:
    for decision in result.layers:
        facts = asdict(decision)
        log.add("prune.layer", facts.pop("layer"), model=subject, **facts)
    log.add(
        "prune.model",
        subject,
        target={target.unit: target.value},
        importance=importance,
        rule=rule,
        profile=None if profile is None else {"name": profile.name, "version": profile.version},
        floor=floor,
        round_to=round_to,
        before=asdict(result.before),
        after=asdict(result.after),
        removed_share=result.removed_share,
        left_alone=dict(result.left_alone),
        untraced=list(result.untraced),
        exactness=result.exactness,
        accuracy_before=result.accuracy_before,
        accuracy_after=result.accuracy_after,
    )
