"""How many channels each group gives up, so that a target is reached.

The same share everywhere, or step by step where the target is served best for the least damage (the knapsack of Shen et
al., "Structural pruning via latency-saliency knapsack", NeurIPS 2022, solved greedily).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych_forge.prune.groups import NORMS, ChannelGroup
from triptych_forge.prune.profile import HardwareProfile, predict_us
from triptych_forge.prune.shapes import LayerShape


@dataclass(frozen=True)
class Target:
    """How small the net shall become; exactly one of:

    Attributes:
        ratio: share of the prunable channels that goes, up to rounding; 0 < ratio < 1.
        parameters: greatest number of parameters.
        macs: greatest number of multiply-accumulates of one inference.
        milliseconds: greatest predicted time of one inference; needs a hardware profile.

    Raises:
        ConfigError: none or several given, or one out of range.
    """

    ratio: float | None = None
    parameters: float | None = None
    macs: float | None = None
    milliseconds: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                "give exactly one of ratio, parameters, macs and milliseconds", where="pruning target", value=given
            )
        value = self.value
        if not (math.isfinite(value) and value > 0 and (self.unit != "ratio" or value < 1)):
            limit = "between 0 and 1" if self.unit == "ratio" else "a number above 0"
            raise ConfigError(f"must be {limit}", where="pruning target", field=self.unit, value=value)

    @property
    def unit(self) -> str:
        """Which one is given."""
        return next(name for name, value in asdict(self).items() if value is not None)

    @property
    def value(self) -> float:
        """Its value."""
        return float(getattr(self, self.unit))


@dataclass(frozen=True)
class Damage:
    """Per channel of one group: ``ranking`` says which go first, ``loss`` what it costs when one goes."""

    ranking: Tensor
    loss: Tensor


def levels_of(channels: int, floor: float, round_to: int) -> list[int]:
    """Counts a group may have, falling, all its channels first."""
    least = max(math.ceil(floor * channels), 1)
    return [channels, *(n for n in range(channels - 1, least - 1, -1) if n % round_to == 0)]


class Ledger:
    """What the net costs for given counts of channels, without building it."""

    def __init__(
        self,
        model: nn.Module,
        shapes: Sequence[LayerShape],
        groups: Sequence[ChannelGroup],
        profile: HardwareProfile | None,
    ) -> None:
        self.groups = groups
        self._profile = profile
        modules = dict(model.named_modules())
        norms = [
            _norm_shape(name, module)
            for name, module in modules.items()
            if isinstance(module, NORMS) and any(True for _ in module.parameters(recurse=False))
        ]
        self._shapes = [*shapes, *norms]
        self._once = {shape.name: shape for shape in self._shapes}
        self._rest = sum(p.numel() for p in model.parameters()) - sum(s.weights for s in self._once.values())
        self._takes: dict[str, list[tuple[int, str, int]]] = {}
        for number, group in enumerate(groups):
            for member in group.members:
                if member.layer in self._once:
                    part = (number, member.side, len(member.index) // group.channels)
                    self._takes.setdefault(member.layer, []).append(part)
        self._us: dict[LayerShape, float] = {}

    def touched(self, group: int) -> list[LayerShape]:
        """Shapes, as they were, of all calls of layers that a group reaches."""
        reached = {member.layer for member in self.groups[group].members}
        return [shape for shape in self._shapes if shape.name in reached]

    def resized(self, shape: LayerShape, counts: Sequence[int]) -> LayerShape:
        """A layer's shape once the groups have ``counts`` channels."""
        into, out = shape.channels_in, shape.channels_out
        for number, side, each in self._takes.get(shape.name, ()):
            gone = (self.groups[number].channels - counts[number]) * each
            into -= gone if side in ("in", "both") else 0
            out -= gone if side in ("out", "both") else 0
        return replace(
            shape,
            channels_in=into,
            channels_out=out,
            groups=into if shape.depthwise or shape.kind == NORM else shape.groups,
        )

    def price(self, shape: LayerShape, unit: str) -> float:
        """What one call of a layer costs: MACs, parameters, or milliseconds."""
        if unit == "parameters":
            return shape.weights
        if unit == "macs":
            return shape.macs
        if shape.kind == NORM:
            return 0.0
        if shape not in self._us:
            assert self._profile is not None
            self._us[shape] = predict_us(shape, self._profile)
        return self._us[shape] / 1e3

    def total(self, counts: Sequence[int], unit: str) -> float:
        """What one inference costs; for ``ratio`` minus the share of channels that went (less is smaller there too)."""
        if unit == "ratio":
            return sum(counts) / sum(group.channels for group in self.groups) - 1.0
        if unit == "parameters":
            return self._rest + sum(self.price(self.resized(s, counts), unit) for s in self._once.values())
        return sum(self.price(self.resized(s, counts), unit) for s in self._shapes)

    def met(self, counts: Sequence[int], target: Target) -> bool:
        """Whether the target is reached."""
        limit = -target.value if target.unit == "ratio" else target.value
        return self.total(counts, target.unit) <= limit + 1e-12

    def saving(self, group: int, count: int, counts: Sequence[int], unit: str) -> float:
        """What is saved if one group goes down to ``count``."""
        if unit == "ratio":
            return counts[group] - count
        after = [*counts[:group], count, *counts[group + 1 :]]
        touched = self.touched(group)
        if unit == "parameters":
            touched = list({shape.name: shape for shape in touched}.values())
        return sum(
            self.price(self.resized(s, counts), unit) - self.price(self.resized(s, after), unit) for s in touched
        )

    @property
    def steering_unit(self) -> str | None:
        """Milliseconds if there is a profile."""
        return "milliseconds" if self._profile is not None else None


NORM = "norm"


def _norm_shape(name: str, module: nn.Module) -> LayerShape:
    """A normalisation as a shape without positions, so that its parameters are counted and nothing else."""
    parameters = list(module.parameters(recurse=False))
    channels = parameters[0].numel()
    return LayerShape(name, NORM, channels, channels, channels, len(parameters), 0, 0)


def _unreachable(ledger: Ledger, least: Sequence[int], target: Target) -> ConfigError:
    value = ledger.total(least, target.unit)
    if target.unit == "ratio":
        problem = f"cannot be reached: at most {-value:.3f} of the prunable channels may go"
    else:
        problem = f"cannot be reached: at least {value:.6g} {target.unit} remain"
    return ConfigError(
        problem,
        where="pruning target",
        field=target.unit,
        value=target.value,
        remedy="ask for less, lower the floor or protect less",
    )


def uniform(ledger: Ledger, levels: Sequence[Sequence[int]], target: Target) -> list[int]:
    """The least share that reaches the target, the same for every group, each rounded to its nearest level."""

    def at(share: float) -> list[int]:
        return [min(steps, key=lambda n: (abs(n - steps[0] * (1 - share)), -n)) for steps in levels]

    least = [steps[-1] for steps in levels]
    if target.unit == "ratio":
        if not ledger.met(least, target):
            raise _unreachable(ledger, least, target)
        return at(target.value)
    if not ledger.met(at(1.0), target):
        raise _unreachable(ledger, least, target)
    low, high = 0.0, 1.0
    if ledger.met(at(low), target):
        return at(low)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if ledger.met(at(middle), target) else (middle, high)
    return at(high)


def greedy(ledger: Ledger, levels: Sequence[Sequence[int]], target: Target, damage: Sequence[Damage]) -> list[int]:
    """Take the step with the most saving per damage until the target is met, then give back what was not needed."""
    unit = ledger.steering_unit or target.unit
    losses = []
    for scores in damage:
        sums = torch.cumsum(scores.loss[torch.argsort(scores.ranking, stable=True)], 0)
        losses.append([0.0, *sums.tolist()])
    tiny = 1e-12 * max(sum(loss[-1] for loss in losses), 1e-300)
    counts = [steps[0] for steps in levels]

    def lost(group: int, count: int) -> float:
        return losses[group][levels[group][0] - count]

    while not ledger.met(counts, target):
        best: tuple[float, int, int] | None = None
        for number, steps in enumerate(levels):
            for count in steps:
                if count >= counts[number]:
                    continue
                saved = ledger.saving(number, count, counts, unit)
                rate = saved / (lost(number, count) - lost(number, counts[number]) + tiny)
                if saved > 0 and (best is None or rate > best[0]):
                    best = (rate, number, count)
        if best is None:
            least = [steps[-1] for steps in levels]
            if ledger.met(least, target):
                # The profile sees no gain in what is left, but the target asks for it.
                return _given_back(ledger, levels, target, least, lost)
            raise _unreachable(ledger, least, target)
        counts[best[1]] = best[2]
    return _given_back(ledger, levels, target, counts, lost)


def _given_back(
    ledger: Ledger,
    levels: Sequence[Sequence[int]],
    target: Target,
    counts: list[int],
    lost: Callable[[int, int], float],
) -> list[int]:
    """Raise groups again, the most valuable first, as long as the target stays met."""
    while True:
        best: tuple[float, list[int]] | None = None
        for number, steps in enumerate(levels):
            higher = [n for n in steps if n > counts[number]]
            if not higher:
                continue
            after = [*counts[:number], min(higher), *counts[number + 1 :]]
            gain = lost(number, counts[number]) - lost(number, min(higher))
            if ledger.met(after, target) and (best is None or gain > best[0]):
                best = (gain, after)
        if best is None:
            return counts
        counts = best[1]
