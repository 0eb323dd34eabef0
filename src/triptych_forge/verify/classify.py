"""Why two engines differ: kinds of errors, each with the numbers that show it.

A kind is only named when its own test says so. Tests that run the original again with a changed input (what if the
channels were swapped?) come first: if the distance shrinks to a small rest, nothing else needs explaining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from triptych.contract import TriptychError
from triptych_forge.verify.compression import picture_inputs
from triptych_forge.verify.conversion import Meter, layer_pairs
from triptych_forge.verify.engines import Subject
from triptych_forge.verify.result import Part
from triptych_forge.verify.samples import Array, Feeds, Floats, Head, Sample, need_samples

Kind = Literal["saturation", "softmax_range", "mask_or_padding_boundary", "pre_processing_mismatch", "unknown"]
Change = Callable[[Array], Array]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MASKED = -1e4
"""Scores below this are masks, no scores."""
MOST_LEVELS = 4096
"""A tensor with more different values than this is not quantised."""
SMALLEST_SIDE, SMALLEST_ROW = 5, 8
"""Pictures and sequences smaller than this are all border."""


class ClassifyLimits(Part):
    """When a test speaks."""

    error: float = Field(1e-3, gt=0, description="Relative L2 of the final output below which nothing is wrong.")
    samples: int = Field(4, ge=1, description="Samples looked at.")
    shrink: float = Field(0.2, gt=0, lt=1, description="An input change explains the error if at most this is left.")
    scale: float = Field(0.05, gt=0, description="Least difference of the fitted scale from 1.")
    scale_rest: float = Field(0.1, gt=0, lt=1, description="Share of the squared error that the scale leaves.")
    order_kept: float = Field(0.99, gt=0, le=1, description="Least share of positions with the same best class.")
    clipped_share: float = Field(0.001, gt=0, description="Least share of values at the ends of the range.")
    clipped_count: int = Field(8, ge=1, description="Least number of them.")
    clipped_error: float = Field(0.5, gt=0, le=1, description="Least share of the tensor's squared error from them.")
    clipped_l2: float = Field(0.01, gt=0, description="Least relative L2 of what was cut off.")
    border_error: float = Field(0.5, gt=0, le=1, description="Least share of the squared error at the border.")
    border_ratio: float = Field(3.0, gt=1, description="How many times the border's share of positions it must be.")


class Finding(Part):
    """One kind of error and its evidence."""

    kind: Kind = Field(description="Which.")
    sentence: str = Field(description="For a person.")
    evidence: dict[str, float | int | str] = Field(description="The numbers that show it.")


def classify(
    a: Subject,
    b: Subject,
    samples: Sequence[Sample],
    heads: Sequence[Head],
    limits: ClassifyLimits | None = None,
    mapping: Mapping[str, str] | None = None,
    pictures: Sequence[str] = (),
) -> list[Finding]:
    """Name the kinds of error of ``b`` against ``a``.

    Args:
        a, b: with the same inputs and outputs.
        samples: at least one.
        heads: parts of the final output.
        mapping: tensors of ``a`` to tensors of ``b``; default: same names.
        pictures: names of picture inputs; default: by name and shape.

    Returns:
        Empty if the final outputs agree; otherwise at least one finding, ``unknown`` if no test speaks.

    Raises:
        ConfigError: no sample.
    """
    limits = limits or ClassifyLimits()
    need_samples(samples)
    case = _Case(a, b, samples[: limits.samples], heads, limits)
    before = case.distance()
    if before <= limits.error:
        return []
    for explain in (_input_change, _mask_change, _reach):
        found = explain(case, before, pictures)
        if found is not None:
            return [found]
    case.look_inside(mapping)
    findings = [found for test in (_softmax_range, _saturation, _border) if (found := test(case)) is not None]
    return findings or [_unknown(case, before)]


@dataclass
class _Case:
    """One pair of engines, and what was seen of them."""

    a: Subject
    b: Subject
    samples: Sequence[Sample]
    heads: Sequence[Head]
    limits: ClassifyLimits

    def __post_init__(self) -> None:
        self.out_a: list[Feeds] = [self.a.run(s.feeds) for s in self.samples]
        self.out_b: list[Feeds] = [self.b.run(s.feeds) for s in self.samples]
        self.pairs: list[tuple[str, str]] = []
        self.in_a: list[Feeds] = []
        self.in_b: list[Feeds] = []

    def distance(self, outputs: Sequence[Feeds] | None = None) -> float:
        """Relative L2 of the worst part of the output of ``b`` against ``a`` (or against other outputs of ``a``)."""
        meters = [Meter(head.name, head.output) for head in self.heads]
        for one, other in zip(outputs or self.out_a, self.out_b):
            for meter, head in zip(meters, self.heads):
                meter.add(head.rows(one), head.rows(other))
        values = [meter.relative_l2 for meter in meters]
        return math.nan if any(math.isnan(v) for v in values) else max(values)

    def look_inside(self, mapping: Mapping[str, str] | None) -> None:
        """Fill in the intermediates, the inputs among them."""
        self.pairs = layer_pairs(self.a, self.b, mapping)
        self.in_a = [{**s.feeds, **self.a.probe(s.feeds)} for s in self.samples]
        self.in_b = [{**s.feeds, **self.b.probe(s.feeds)} for s in self.samples]

    def tensors(self, one: str, other: str) -> list[tuple[Floats, Floats]]:
        """Per sample the tensors of a pair; empty if they cannot be compared."""
        found = [(x[one], y[other]) for x, y in zip(self.in_a, self.in_b)]
        if any(x.dtype.kind != "f" or y.dtype.kind != "f" or x.shape != y.shape for x, y in found):
            return []
        return [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in found]

    def first_diverging(self) -> tuple[str, str] | None:
        """The first pair, in topological order, that differs by more than the limit."""
        for one, other in self.pairs:
            meter = Meter(one, other)
            for x, y in self.tensors(one, other):
                meter.add(x, y)
            if meter.elements and not meter.relative_l2 <= self.limits.error:
                return one, other
        return None


def channel_axis(array: Array) -> int | None:
    """Where a picture's three colours are: last or third from last; None: nowhere."""
    if array.ndim >= 3 and array.shape[-1] == 3:
        return -1
    return -3 if array.ndim >= 3 and array.shape[-3] == 3 else None


def _swapped(x: Array) -> Array:
    axis = channel_axis(x)
    assert axis is not None
    return np.ascontiguousarray(np.flip(x, axis))


def _affine(factor: object, offset: object = 0.0) -> Change:
    """``x * factor + offset``, numbers or one per channel."""

    def change(x: Array) -> Array:
        values = []
        for part in (factor, offset):
            value = np.asarray(part, np.float64)
            axis = channel_axis(x)
            if value.ndim and axis is not None:
                value = value.reshape((3,) + (1,) * (-1 - axis))
            values.append(value)
        return np.asarray(x * values[0] + values[1], x.dtype)

    return change


_MEAN, _STD = np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
AFFINE: dict[str, Change] = {
    "divided by 255": _affine(1 / 255),
    "multiplied by 255": _affine(255.0),
    "from 0..255 to -1..1": _affine(1 / 127.5, -1.0),
    "from -1..1 to 0..255": _affine(127.5, 127.5),
    "from 0..1 to -1..1": _affine(2.0, -1.0),
    "from -1..1 to 0..1": _affine(0.5, 0.5),
    "normalised by ImageNet's mean and deviation": _affine(1 / _STD, -_MEAN / _STD),
    "freed of ImageNet's mean and deviation": _affine(_STD, _MEAN),
    "normalised by ImageNet's mean and deviation of 0..255": _affine(1 / (255 * _STD), -_MEAN / _STD),
    "freed of ImageNet's mean and deviation of 0..255": _affine(255 * _STD, 255 * _MEAN),
}
"""Input changes that go wrong in practice; each with its inverse."""


def hypotheses(picture: Array) -> dict[str, Change]:
    """What may have happened to a picture on its way: channels swapped, another scale, both."""
    swap = channel_axis(picture) is not None
    affine = {n: f for n, f in AFFINE.items() if swap or "ImageNet" not in n} if picture.dtype.kind == "f" else {}
    found: dict[str, Change] = dict(affine)
    if swap:
        found["with red and blue swapped"] = _swapped
        for name, change in affine.items():
            found[f"with red and blue swapped, then {name}"] = lambda x, change=change: change(_swapped(x))
    return found


def _explained(
    case: _Case, before: float, changes: Mapping[str, Callable[[Sample], Feeds]]
) -> tuple[str, float] | None:
    """The change of the original's input that brings its output nearest to the other's, if that is near enough."""
    best: tuple[str, float] | None = None
    for name, change in changes.items():
        try:
            after = case.distance([case.a.run(change(sample)) for sample in case.samples])
        except (TriptychError, RuntimeError, IndexError, ValueError):
            continue  # an input that the original refuses explains nothing
        if math.isfinite(after) and (best is None or after < best[1]):
            best = name, after
    if best is None or not best[1] <= case.limits.shrink * (before if math.isfinite(before) else 1.0):
        return None
    return best


def _input_change(case: _Case, before: float, pictures: Sequence[str]) -> Finding | None:
    names = list(pictures) or picture_inputs(case.samples[0])
    if not names:
        return None

    def of(change: Change) -> Callable[[Sample], Feeds]:
        return lambda sample: {n: change(x) if n in names else x for n, x in sample.feeds.items()}

    changes = {name: of(change) for name, change in hypotheses(case.samples[0].feeds[names[0]]).items()}
    best = _explained(case, before, changes)
    if best is None:
        return None
    return Finding(
        kind="pre_processing_mismatch",
        sentence=f"the second engine answers as the first does to the picture {best[0]}",
        evidence={
            "hypothesis": best[0], "input": names[0], "distance_before": before, "distance_after": best[1],
            "hypotheses_tried": len(changes),
        },
    )  # fmt: skip


def _longer(mask: Array) -> Array:
    out = mask.copy()
    out[..., 1:] = np.maximum(mask[..., 1:], mask[..., :-1])
    return out


def _shorter(mask: Array) -> Array:
    out = mask.copy()
    out[..., :-1] = np.minimum(mask[..., :-1], mask[..., 1:])
    out[..., -1] = 0
    return out


def _later_start(mask: Array) -> Array:
    out = mask.copy()
    out[..., 1:] = np.minimum(mask[..., 1:], mask[..., :-1])
    out[..., 0] = 0
    return out


def _earlier_start(mask: Array) -> Array:
    out = mask.copy()
    out[..., :-1] = np.maximum(mask[..., :-1], mask[..., 1:])
    return out


MASK_CHANGES: dict[str, Change] = {
    "one position longer": _longer,
    "one position shorter": _shorter,
    "beginning one position later": _later_start,
    "beginning one position earlier": _earlier_start,
    "inverted": lambda mask: np.asarray(1 - mask.astype(np.int64), mask.dtype),
    "all ones": np.ones_like,
}
LENGTH_CHANGES: dict[str, Change] = {
    "one longer": lambda n: np.asarray(n + 1, n.dtype),
    "one shorter": lambda n: np.asarray(n - 1, n.dtype),
}


def _mask_change(case: _Case, before: float, _pictures: Sequence[str]) -> Finding | None:
    changes: dict[str, Callable[[Sample], Feeds]] = {}
    for name, array in case.samples[0].feeds.items():
        table = MASK_CHANGES if "mask" in name else LENGTH_CHANGES if "length" in name else {}
        if name not in case.a.inputs or (table is MASK_CHANGES and not array.ndim):
            continue
        for words, change in table.items():
            changes[f"{name} {words}"] = lambda s, name=name, change=change: {**s.feeds, name: change(s.feeds[name])}
    best = _explained(case, before, changes)
    if best is None:
        return None
    return Finding(
        kind="mask_or_padding_boundary",
        sentence=f"the second engine answers as the first does with {best[0]}",
        evidence={
            "hypothesis": best[0], "distance_before": before, "distance_after": best[1],
            "hypotheses_tried": len(changes),
        },
    )  # fmt: skip


def first_reached(subject: Subject, sample: Sample, head: Head, position: int) -> int | None:
    """The first output position that changes when the token at ``position`` does; None: none does.

    A causal model gives ``position`` itself; less than that looks into the future.
    """
    ids = np.asarray(sample.feeds["input_ids"])
    others = ids[ids != ids[..., position]]
    if not others.size:
        return None
    changed = ids.copy()
    changed[..., position] = others[0]
    one = head.rows(subject.run(sample.feeds))
    other = head.rows(subject.run({**sample.feeds, "input_ids": changed}))
    if len(one) != ids.shape[-1]:
        return None
    moved = np.abs(one - other).max(-1) > 1e-5 * (1.0 + np.abs(one).max())
    return int(np.flatnonzero(moved)[0]) if moved.any() else None


def _reach(case: _Case, _before: float, _pictures: Sequence[str]) -> Finding | None:
    sample = case.samples[0]
    ids = sample.feeds.get("input_ids")
    head = next((h for h in case.heads if h.kind == "logits"), None)
    if ids is None or head is None or ids.shape[-1] < 3:
        return None
    position = ids.shape[-1] // 2
    reach = [first_reached(subject, sample, head, position) for subject in (case.a, case.b)]
    if reach[0] is None or reach[1] is None or reach[0] == reach[1]:
        return None
    return Finding(
        kind="mask_or_padding_boundary",
        sentence=f"a change of token {position} is first felt at position {reach[0]} by the first engine and at "
        f"{reach[1]} by the second: the attention mask is off by {abs(reach[1] - reach[0])}",
        evidence={"token_changed": position, "first_felt_before": reach[0], "first_felt_after": reach[1]},
    )


def fitted_scale(a: Floats, b: Floats) -> tuple[float, float]:
    """The factor that turns ``a`` (positions, classes) into ``b`` best, and the share of squared error it leaves.

    Means of each position are taken out first: a softmax does not see them.
    """
    x, y = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    norm, error = float((x * x).sum()), float(((y - x) ** 2).sum())
    if not norm > 0 or not error > 0:
        return 1.0, 1.0
    factor = float((x * y).sum()) / norm
    return factor, float(((y - factor * x) ** 2).sum()) / error


def _softmax_range(case: _Case) -> Finding | None:
    for head in case.heads:
        if head.kind != "logits":
            continue
        a = np.concatenate([head.counted(o, s) for o, s in zip(case.out_a, case.samples)])
        b = np.concatenate([head.counted(o, s) for o, s in zip(case.out_b, case.samples)])
        order = float((a.argmax(-1) == b.argmax(-1)).mean()) if len(a) else 0.0
        found = _scaled(case.limits, head.name, a, b, order)
        if found is not None:
            return found
    takes = set(case.a.before_softmax())
    takes_b = set(case.b.before_softmax())
    for one, other in case.pairs:
        if one not in takes and other not in takes_b:
            continue
        tensors = case.tensors(one, other)
        if not tensors:
            continue
        rows_a, rows_b, same = [], [], []
        for x, y in tensors:
            x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
            whole = (x > MASKED).all(-1) & (y > MASKED).all(-1)
            x, y = x[whole], y[whole]
            same.append(x.argmax(-1) == y.argmax(-1))
            # Rows of samples may differ in length, so they are centred here and laid end to end.
            rows_a.append((x - x.mean(-1, keepdims=True)).ravel())
            rows_b.append((y - y.mean(-1, keepdims=True)).ravel())
        a, b = np.concatenate(rows_a)[None], np.concatenate(rows_b)[None]
        meter = Meter(one, other)
        meter.add(a, b)
        if meter.elements and not meter.relative_l2 <= case.limits.error:
            # Only the first that differs: what comes behind it may differ for its sake.
            return _scaled(case.limits, one, a, b, float(np.concatenate(same).mean()))
    return None


def _scaled(limits: ClassifyLimits, name: str, a: Floats, b: Floats, order: float) -> Finding | None:
    factor, rest = fitted_scale(a, b)
    if not (abs(factor - 1) >= limits.scale and rest <= limits.scale_rest and order >= limits.order_kept):
        return None
    return Finding(
        kind="softmax_range",
        sentence=f"{name} is {factor:.3g} times what it was while its order is kept: a temperature or scale differs",
        evidence={
            "tensor": name, "scale": factor, "temperature": 1 / factor if factor else math.inf,
            "error_left_by_scale": rest, "order_kept": order, "range_before": float(np.ptp(a)),
            "range_after": float(np.ptp(b)),
        },
    )  # fmt: skip


@dataclass(frozen=True)
class Clipping:
    """What the ends of a tensor's range cut off.

    Attributes:
        count, share: values beyond an end of the range that were put onto it.
        of_error: their share of the tensor's squared error.
        relative_l2: norm of what was cut off, relative to the tensor's.
        low, high: the ends.
        beyond: the farthest value cut off.
    """

    count: int
    share: float
    of_error: float
    relative_l2: float
    low: float
    high: float
    beyond: float


def clipping(x: Array, y: Array) -> Clipping:
    """Compare values before (``x``) with the same after (``y``) being squeezed into a range."""
    x, y = np.asarray(x, np.float64).ravel(), np.asarray(y, np.float64).ravel()
    low, high = float(y.min()), float(y.max())
    slack = 0.01 * (high - low)
    cut = ((y == high) & (x > high + slack)) | ((y == low) & (x < low - slack))
    if cut.any():
        levels = np.unique(y)
        # Rounding to a level may move a value by half a step without any clipping.
        step = float(np.diff(levels).min()) if 2 <= levels.size <= MOST_LEVELS else 0.0
        cut &= np.abs(x - y) > max(slack, 0.51 * step)
    lost = (x - y) ** 2
    total, norm = float(lost.sum()), float((x * x).sum())
    gone = float(lost[cut].sum())
    beyond = float(x[cut][np.abs(x[cut]).argmax()]) if cut.any() else 0.0
    return Clipping(
        int(cut.sum()), float(cut.mean()), gone / total if total > 0 else 0.0,
        math.sqrt(gone / norm) if norm > 0 else 0.0, low, high, beyond,
    )  # fmt: skip


def _like_relu(x: Array, y: Array) -> Array:
    """``x`` without what a range that begins or ends at 0 cuts off, since that may be meant."""
    x = np.maximum(x, 0) if float(y.min()) == 0.0 else x
    return np.minimum(x, 0) if float(y.max()) == 0.0 else x


def _saturation(case: _Case) -> Finding | None:
    limits = case.limits
    original = {other: one for one, other in case.pairs}
    candidates: list[tuple[str, Array, Array]] = []
    for before, after in case.b.quantised():
        # The original's values if it has the tensor: a quantiser may stand in for a ReLU, which cuts off on purpose.
        name, sides = original.get(before, before), case.in_a
        if any(name not in seen for seen in sides):
            name, sides = before, case.in_b
        if all(name in x and after in y for x, y in zip(sides, case.in_b)):
            x = np.concatenate([seen[name].ravel() for seen in sides])
            y = np.concatenate([seen[after].ravel() for seen in case.in_b])
            if x.shape == y.shape:
                candidates.append((before, _like_relu(x, y) if sides is case.in_b else x, y))
    for one, other in case.pairs:
        tensors = case.tensors(one, other)
        if tensors:
            x, y = (np.concatenate([pair[side].ravel() for pair in tensors]) for side in (0, 1))
            candidates.append((one, x, y))
    for name, x, y in candidates:
        if not x.size or not (np.isfinite(x).all() and np.isfinite(y).all()):
            continue
        found = clipping(x, y)
        speaks = (
            found.count >= limits.clipped_count
            and found.share >= limits.clipped_share
            and found.of_error >= limits.clipped_error
            and found.relative_l2 >= limits.clipped_l2
        )
        if speaks:  # the first in topological order: what lies behind it suffers from it
            return _saturated(name, found)
    return None


def _saturated(name: str, found: Clipping) -> Finding:
    return Finding(
        kind="saturation",
        sentence=f"{found.share:.2%} of {name} lie beyond {found.low:.4g} to {found.high:.4g} and were cut off",
        evidence={
            "tensor": name, "values_at_ends": found.count, "share_at_ends": found.share, "range_low": found.low,
            "range_high": found.high, "farthest_value": found.beyond, "share_of_error": found.of_error,
            "relative_l2_cut_off": found.relative_l2,
        },
    )  # fmt: skip


def border_mask(shape: tuple[int, ...], sample: Sample) -> tuple[Array, str] | None:
    """Which positions of a tensor lie at a border; broadcastable to ``shape``.

    A sequence (an axis as long as ``input_ids``, or the middle one of three): the first and last position, and the two
    beside the beginning of padding (from an input with ``mask`` in its name). A picture (N, C, H, W): the outermost
    ring. None: neither, or too small to have an inside.
    """
    ids = sample.feeds.get("input_ids")
    length = ids.shape[-1] if ids is not None and ids.ndim else 0
    axis = next((i for i, size in enumerate(shape) if size == length), None) if length >= SMALLEST_ROW else None
    if axis is None and len(shape) == 3 and shape[1] >= SMALLEST_ROW:
        axis, length = 1, shape[1]
    if axis is not None:
        row = np.zeros(length, bool)
        row[[0, -1]] = True
        for name, mask in sample.feeds.items():
            if "mask" in name and mask.ndim and mask.shape[-1] == length:
                line = mask.reshape(-1, length)[0].astype(bool)
                turns = np.flatnonzero(line[1:] != line[:-1])
                row[turns], row[turns + 1] = True, True
        return row.reshape([length if i == axis else 1 for i in range(len(shape))]), "sequence"
    if len(shape) == 4 and min(shape[2:]) >= SMALLEST_SIDE:
        ring = np.ones(shape[2:], bool)
        ring[1:-1, 1:-1] = False
        return ring[None, None], "picture"
    return None


def _border(case: _Case) -> Finding | None:
    places: list[tuple[str, list[tuple[Floats, Floats]]]] = []
    for head in case.heads:
        finals = [(np.asarray(x[head.output], np.float64), np.asarray(y[head.output], np.float64))
                  for x, y in zip(case.out_a, case.out_b)]  # fmt: skip
        places.append((head.output, finals))
    first = case.first_diverging()
    if first is not None:
        places.append((first[0], case.tensors(*first)))
    for name, tensors in places:
        at_border = total = positions = border = 0.0
        kind = ""
        for sample, (x, y) in zip(case.samples, tensors):
            found = border_mask(x.shape, sample)
            if found is None:
                continue
            mask, kind = np.broadcast_to(found[0], x.shape), found[1]
            error = (y - x) ** 2
            at_border += float(error[mask].sum())
            total += float(error.sum())
            positions += mask.size
            border += float(mask.sum())
        if not total > 0 or not positions:
            continue
        share, expected = at_border / total, border / positions
        if share >= case.limits.border_error and share >= case.limits.border_ratio * expected:
            return Finding(
                kind="mask_or_padding_boundary",
                sentence=f"{share:.0%} of the squared error of {name} lies at the border of the {kind}, which is "
                f"{expected:.0%} of its positions",
                evidence={
                    "tensor": name, "of": kind, "share_of_error": share, "share_of_positions": expected,
                    "ratio": share / expected,
                },
            )  # fmt: skip
    return None


def _unknown(case: _Case, before: float) -> Finding:
    first = case.first_diverging()
    name = first[0] if first else ""
    where = f"; the first layer that differs is {name}" if name else ""
    return Finding(
        kind="unknown",
        sentence=f"the outputs differ by {before:.3g} (relative L2) and no test explains it{where}",
        evidence={"relative_l2": before, "first_diverging_layer": name, "layers_compared": len(case.pairs)},
    )
