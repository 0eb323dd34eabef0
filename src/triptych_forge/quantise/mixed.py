"""Which layers stay in higher precision: each layer's sensitivity, then a greedy choice under a greatest loss.

Sensitivity is measured, not estimated: one layer at a time is quantised and the output compared. The errors of layers
add up only roughly, so the choice looks at the whole again after each layer it takes back.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.quantise import calibrate, ptq
from triptych_forge.quantise.calibrate import Range
from triptych_forge.quantise.measure import Feeds, mean_kl, open_session, outputs_of, worst_relative_l2

DEFAULTS = ptq.PtqOptions()
Loss = Callable[[frozenset[str]], float]
"""Loss of the network with exactly these layers quantised; 0 or more, lower is better."""
VISION_SHARE = 0.1
"""Of the vision tower's layers, so many of the most sensitive stay in higher precision whatever the loss."""


@dataclass(frozen=True)
class Choice:
    """The outcome.

    Attributes:
        quantised, kept: names of layers, in the network's order.
        loss: of the choice.
        sensitivity: by layer, of that layer alone.
        steps: (layer taken back, loss after it) in order; the first, with an empty name, is all but the fixed layers
            quantised.
        within: ``loss`` is at most what was allowed.
    """

    quantised: tuple[str, ...]
    kept: tuple[str, ...]
    loss: float
    sensitivity: Mapping[str, float]
    steps: tuple[tuple[str, float], ...]
    within: bool


def sensitivities(
    layers: Sequence[str], loss: Loss, progress: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """The loss of quantising each layer alone; not finite counts as infinite.

    Raises:
        ConfigError: no layers.
    """
    if not layers:
        raise ConfigError("the network has no layer to quantise", field="layers")
    found: dict[str, float] = {}
    for number, name in enumerate(layers):
        value = float(loss(frozenset([name])))
        found[name] = value if math.isfinite(value) else float("inf")
        if progress:
            progress(number + 1, len(layers))
    return found


def choose(
    sensitivity: Mapping[str, float],
    loss: Loss,
    greatest_loss: float,
    *,
    vision: Sequence[str] = (),
    vision_share: float = VISION_SHARE,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Choice:
    """Quantise everything, then take back the most sensitive layers one by one until the loss is allowed.

    Args:
        sensitivity: from :func:`sensitivities`, in the network's order.
        loss: as there.
        greatest_loss: allowed.
        vision: patterns (``*encoder*``) of the vision tower's layers.
        vision_share: of these, so many (rounded up) of the most sensitive are never quantised.
        log: gets one ``quantise.layer`` per layer: precision, sensitivity, why, and the loss after it was taken back.
        progress: called with (taken back, all).

    Raises:
        ConfigError: a limit out of range; a pattern that fits no layer.
    """
    if not greatest_loss >= 0.0:
        raise ConfigError("must be 0 or more", field="greatest_loss", value=greatest_loss)
    if not 0.0 <= vision_share <= 1.0:
        raise ConfigError("must be 0 to 1", field="vision_share", value=vision_share)
    for pattern in vision:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in sensitivity):
            raise ConfigError("fits no layer", field="vision", value=pattern)
    order = sorted(sensitivity, key=lambda name: -sensitivity[name])
    tower = [name for name in order if any(fnmatch.fnmatchcase(name, p) for p in vision)]
    fixed = set(tower[: math.ceil(vision_share * len(tower))])
    kept, why = set(fixed), dict.fromkeys(fixed, "among the vision tower's most sensitive")
    current = float(loss(frozenset(sensitivity) - kept))
    steps = [("", current)]
    after: dict[str, float] = {}
    for name in order:
        if current <= greatest_loss:  # NaN is not
            break
        if name in kept:
            continue
        kept.add(name)
        why[name] = f"loss {current:.4g} was above {greatest_loss:.4g}"
        quantised = frozenset(sensitivity) - kept
        current = float(loss(quantised)) if quantised else 0.0
        after[name] = current
        steps.append((name, current))
        if progress:
            progress(len(kept), len(sensitivity))
    if log is not None:
        for name, value in sensitivity.items():
            log.add(
                "quantise.layer",
                name,
                precision="float" if name in kept else "int8",
                sensitivity=value,
                why=why.get(name, f"loss {current:.4g} is at most {greatest_loss:.4g}"),
                **({"loss_after": after[name]} if name in after else {}),
            )
    return Choice(
        tuple(n for n in sensitivity if n not in kept),
        tuple(n for n in sensitivity if n in kept),
        current,
        dict(sensitivity),
        tuple(steps),
        current <= greatest_loss,
    )


def onnx_loss(
    prepared: Path,
    ranges: Mapping[str, Range],
    held_out: Sequence[Feeds],
    folder: Path,
    options: ptq.PtqOptions = DEFAULTS,
    *,
    logits: str | None = None,
    metric: Callable[[Path], float] | None = None,
) -> Loss:
    """A loss for an ONNX graph: quantises the asked layers and compares outputs on held-out inputs.

    Args:
        prepared: from :func:`.ptq.prepare`.
        ranges: from one calibration, used for every candidate.
        held_out: inputs that were not calibrated with.
        folder: for the candidates; one file, overwritten.
        options: how; ``exclude`` is set here.
        logits: name of an output whose mean KL is the loss; otherwise the worst relative L2 of all outputs.
        metric: of a file, higher is better: then the loss is how far it falls, at least 0.

    Raises:
        ConfigError: feeds that do not fit; no output of that name.
    """
    held_out = calibrate.check_feeds(prepared, held_out)
    everything = ptq.layers(prepared, options.op_types)
    wanted = outputs_of(open_session(prepared), held_out)
    if logits is not None and logits not in wanted[0]:
        raise ConfigError("the graph has no such output", where=prepared, field="logits", value=logits)
    reference = float(metric(prepared)) if metric else 0.0
    candidate = folder / "candidate.onnx"

    def loss(layers: frozenset[str]) -> float:
        how = replace(options, exclude=tuple(n for n in everything if n not in layers))
        ptq.quantise_model(prepared, candidate, (), how, ranges=ranges)
        if metric is not None:
            return max(0.0, reference - float(metric(candidate)))
        found = outputs_of(open_session(candidate), held_out)
        if logits is None:
            return worst_relative_l2(found, wanted)
        return sum(mean_kl(f[logits], w[logits]) for f, w in zip(found, wanted, strict=True)) / len(wanted)

    return loss
