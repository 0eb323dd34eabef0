"""The compression gate: a smaller engine against the one it was made from. Numbers may differ, the work must not.

loss of a metric = mean over samples of (original - compressed), in the direction in which more is better
KL = mean over positions of sum_c p_c ln(p_c / q_c), in nats, p the original's distribution, q the compressed one's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from triptych.contract import ConfigError
from triptych_forge.verify.conversion import Progress, check_shapes
from triptych_forge.verify.engines import Subject, check_pair
from triptych_forge.verify.result import Check, Part, check, sentence
from triptych_forge.verify.samples import Feeds, Floats, Head, Sample, chances, need_samples
from triptych_forge.verify.statistics import NonInferiority, lower_bound, non_inferiority

SCORE_CUT = 0.3
"""A class counts as found above this in :func:`usual_answer`."""
BLANK = 114
"""Grey that a blank picture is filled with."""
PICTURE_NAMES = ("frames", "frame", "image", "images", "pixel_values", "picture", "pictures")

Answer = Callable[[Subject, Sample, Feeds], Hashable]
"""What an engine says to a sample, given its outputs; anything that can be compared."""


@dataclass(frozen=True)
class Metric:
    """A task metric.

    Attributes:
        name: for reports.
        value: of one sample, from the engine, the sample and the engine's outputs; NaN where it does not apply.
        max_loss: greatest loss allowed; the margin of the non-inferiority test. In the value's unit, above 0.
        slice_max_loss: greatest loss allowed in any one slice, observed; default: ``max_loss``.
        higher_is_better: else less is better.
    """

    name: str
    value: Callable[[Subject, Sample, Feeds], float]
    max_loss: float
    slice_max_loss: float | None = None
    higher_is_better: bool = True


class CompressionLimits(Part):
    """What the gate asks for beside the metrics' own limits."""

    kl_max: float = Field(0.05, gt=0, description="Greatest mean KL, nats per position.")
    alpha: float = Field(0.05, gt=0, le=0.5, description="Chance to accept what is worse by the margin.")
    beta: float = Field(0.2, gt=0, le=0.5, description="Planned chance to refuse what is equally good.")
    refuse_underpowered: bool = Field(False, description="Too few samples for alpha, beta and margin fail the gate.")
    slices: tuple[str, ...] = Field((), description="Slices that the data must hold.")
    slice_samples_min: int = Field(1, ge=1, description="Fewest samples of each of them.")
    ablation_share: float = Field(0.5, gt=0, le=1, description="Least share of answers that a blank picture changes.")
    confidence: float = Field(0.95, gt=0, lt=1, description="Of bounds printed.")


class SliceResult(Part):
    """One metric on one slice."""

    slice: str = Field(description="Condition.")
    metric: str = Field(description="Which.")
    samples: int = Field(description="Samples of the slice that have a value.")
    original: float = Field(description="Mean.")
    compressed: float = Field(description="Mean.")
    loss: float = Field(description="Positive: the compressed engine is worse.")
    max_loss: float = Field(description="Allowed.")
    test: NonInferiority = Field(description="The same test as on all samples; small slices are often underpowered.")


class MetricResult(Part):
    """One metric on all samples."""

    metric: str = Field(description="Which.")
    original: float = Field(description="Mean.")
    compressed: float = Field(description="Mean.")
    higher_is_better: bool = Field(description="Direction.")
    test: NonInferiority = Field(description="Margin, alpha, beta, p-value, samples needed.")


class KlResult(Part):
    """Difference of the output distributions."""

    head: str = Field(description="Part of the output.")
    positions: int = Field(description="Positions that counted.")
    mean: float = Field(description="Nats per position.")
    worst: float = Field(description="Greatest of one position, nats.")
    slices: dict[str, float] = Field(description="Mean per slice.")


class Ablation(Part):
    """Blank pictures: an engine that looks must answer something else."""

    inputs: list[str] = Field(description="Inputs that were blanked.")
    samples: int = Field(description="Samples.")
    changed_original: int = Field(description="Answers of the original that changed.")
    changed_compressed: int = Field(description="Answers of the compressed engine that changed.")
    share: float = Field(description="Of the compressed engine.")
    lower_bound: float = Field(description="Clopper-Pearson, one-sided.")
    confidence: float = Field(description="Of the bound.")


class CompressionReport(Part):
    """Outcome of the compression gate."""

    passed: bool = Field(description="Whether every check held.")
    checks: list[Check] = Field(description="All conditions.")
    reasons: list[str] = Field(description="One sentence per check that did not hold.")
    limits: CompressionLimits = Field(description="What was asked for.")
    samples: int = Field(description="Samples compared.")
    metrics: list[MetricResult] = Field(description="Per metric.")
    slices: list[SliceResult] = Field(description="Per slice and metric.")
    kl: list[KlResult] = Field(description="Per part of the output that holds classes.")
    ablation: Ablation | None = Field(None, description="None: not asked for.")
    notes: list[str] = Field(description="What a reader should know.")


def kl_divergence(head: Head, original: Floats, compressed: Floats) -> Floats:
    """KL(original || compressed) per position, nats.

    Args:
        original, compressed: (positions, channels) rows of ``head``: logits, or independent chances, whose
            divergences are added up.
    """
    p, q = chances(head, original), chances(head, compressed)
    if head.kind == "chances":
        return np.asarray((p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum(-1), np.float64)
    # ln p from the logits, since a softmax may round to 0.
    log_p, log_q = _log_softmax(original), _log_softmax(compressed)
    with np.errstate(invalid="ignore"):  # classes masked on both sides are -inf - -inf, and weigh nothing
        terms = np.where(p > 0, p * (log_p - log_q), 0.0)
    return np.asarray(terms.sum(-1), np.float64)


def _log_softmax(rows: Floats) -> Floats:
    shifted = rows - rows.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), np.float64)


def picture_inputs(sample: Sample) -> list[str]:
    """Inputs that are pictures: by name, or at least three axes with three channels first or last."""
    named = [name for name in sample.feeds if name in PICTURE_NAMES]
    if named:
        return named
    return [n for n, a in sample.feeds.items() if a.ndim >= 3 and 3 in (a.shape[-1], a.shape[-3])]


def blanked(sample: Sample, inputs: Sequence[str]) -> Sample:
    """The sample with grey pictures: 114 for bytes, the mean of all values otherwise."""
    feeds = dict(sample.feeds)
    for name in inputs:
        array = feeds[name]
        feeds[name] = np.full_like(array, BLANK if array.dtype == np.uint8 else array.mean())
    return Sample(feeds, sample.targets, sample.reference, sample.prompt, sample.slices)


def usual_answer(heads: Sequence[Head]) -> Answer:
    """The most likely class at every position that counts; for independent chances, which positions hold which class.

    Raises:
        ConfigError: no part of the output holds classes.
    """
    chosen = [head for head in heads if head.kind != "values"]
    if not chosen:
        raise ConfigError("no output holds classes", field="heads", remedy="say what the answer is")

    def answer(_subject: Subject, sample: Sample, outputs: Feeds) -> Hashable:
        parts: list[bytes] = []
        for head in chosen:
            rows = head.counted(outputs, sample)
            said = rows >= SCORE_CUT if head.kind == "chances" else rows.argmax(-1)
            parts.append(said.tobytes())
        return tuple(parts)

    return answer


def ablation_control(
    a: Subject,
    b: Subject,
    samples: Sequence[Sample],
    answer: Answer,
    inputs: Sequence[str] = (),
    confidence: float = 0.95,
) -> Ablation:
    """Blank the picture and count the answers that change.

    Args:
        inputs: which inputs are pictures; default: :func:`picture_inputs`.

    Raises:
        ConfigError: no input is a picture.
    """
    need_samples(samples)
    pictures = list(inputs) or picture_inputs(samples[0])
    strange = [name for name in pictures if name not in samples[0].feeds]
    if strange or not pictures:
        raise ConfigError("no input is a picture", field=strange[0] if strange else None, remedy="name the input")
    counts = [0, 0]
    for sample in samples:
        blank = blanked(sample, pictures)
        for side, subject in enumerate((a, b)):
            said = answer(subject, sample, subject.run(sample.feeds))
            counts[side] += said != answer(subject, blank, subject.run(blank.feeds))
    return Ablation(
        inputs=pictures, samples=len(samples), changed_original=counts[0], changed_compressed=counts[1],
        share=counts[1] / len(samples), lower_bound=lower_bound(counts[1], len(samples), confidence),
        confidence=confidence,
    )  # fmt: skip


def compression_gate(
    a: Subject,
    b: Subject,
    samples: Sequence[Sample],
    heads: Sequence[Head],
    metrics: Sequence[Metric],
    limits: CompressionLimits | None = None,
    answer: Answer | None = None,
    pictures: Sequence[str] = (),
    look: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> CompressionReport:
    """Judge whether ``b`` may stand in for ``a``.

    All metrics must pass; so each may use the whole alpha (an intersection-union test).

    Args:
        a: the original.
        b: the compressed engine, with the same inputs and outputs.
        samples: at least two, with their slices as labels.
        heads: parts of the output; KL is taken of those that hold classes.
        metrics: at least one.
        answer: what an engine says, for the blank-picture control; default: :func:`usual_answer`.
        pictures: names of the picture inputs; default: found by name and shape.
        look: with the blank-picture control; off only for engines without pictures.
        seed: of the bootstrap.

    Raises:
        ConfigError: inputs or outputs that do not fit; no sample, no metric; a picture input that is not there.
    """
    limits = limits or CompressionLimits()
    need_samples(samples)
    if not metrics:
        raise ConfigError("no metric to compare", where=b.name, remedy="state at least one with its greatest loss")
    check_pair(a, b)
    values = {m.name: np.full((2, len(samples)), math.nan) for m in metrics}
    classes = [head for head in heads if head.kind != "values"]
    found: dict[str, list[Floats]] = {head.name: [] for head in classes}
    for number, sample in enumerate(samples):
        outputs = a.run(sample.feeds), b.run(sample.feeds)
        check_shapes(*outputs, b.name)
        for metric in metrics:
            for side, subject in enumerate((a, b)):
                values[metric.name][side, number] = metric.value(subject, sample, outputs[side])
        for head in classes:
            places = head.positions(sample, *outputs)
            found[head.name].append(kl_divergence(head, *(head.rows(o)[places] for o in outputs)))
        if progress:
            progress(number + 1, len(samples))
    labels = sorted({label for sample in samples for label in sample.slices})
    members = {label: np.array([label in sample.slices for sample in samples]) for label in labels}
    judged = [_metric(metric, values[metric.name], limits, seed) for metric in metrics]
    sliced = [
        _slice(label, metric, values[metric.name][:, members[label]], limits, seed)
        for label in labels
        for metric in metrics
    ]
    kls = [_kl(head.name, found[head.name], members) for head in classes]
    ablation = None
    if look:
        ablation = ablation_control(a, b, samples, answer or usual_answer(heads), pictures, limits.confidence)
    checks = _checks(judged, sliced, kls, ablation, members, limits)
    return CompressionReport(
        passed=all(c.passed for c in checks),
        checks=checks,
        reasons=[sentence(c) for c in checks if not c.passed],
        limits=limits,
        samples=len(samples),
        metrics=judged,
        slices=sliced,
        kl=kls,
        ablation=ablation,
        notes=_notes(judged, sliced, kls, ablation),
    )


def _metric(metric: Metric, values: Floats, limits: CompressionLimits, seed: int) -> MetricResult:
    test = non_inferiority(
        values[0], values[1], metric.max_loss, limits.alpha, limits.beta, metric.higher_is_better, seed
    )
    return MetricResult(
        metric=metric.name, original=_mean(values[0]), compressed=_mean(values[1]),
        higher_is_better=metric.higher_is_better, test=test,
    )  # fmt: skip


def _slice(label: str, metric: Metric, values: Floats, limits: CompressionLimits, seed: int) -> SliceResult:
    allowed = metric.max_loss if metric.slice_max_loss is None else metric.slice_max_loss
    test = non_inferiority(values[0], values[1], allowed, limits.alpha, limits.beta, metric.higher_is_better, seed)
    original, compressed = _mean(values[0]), _mean(values[1])
    loss = original - compressed if metric.higher_is_better else compressed - original
    return SliceResult(
        slice=label, metric=metric.name, samples=int(np.isfinite(values[0]).sum()), original=original,
        compressed=compressed, loss=loss, max_loss=allowed, test=test,
    )  # fmt: skip


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _kl(name: str, found: Sequence[Floats], members: dict[str, np.ndarray]) -> KlResult:
    def mean(parts: Sequence[Floats]) -> float:
        joined = np.concatenate([np.zeros(0), *parts])
        return float(joined.mean()) if joined.size else math.nan

    joined = np.concatenate([np.zeros(0), *found])
    return KlResult(
        head=name, positions=joined.size, mean=mean(found), worst=float(joined.max()) if joined.size else math.nan,
        slices={label: mean([part for part, inside in zip(found, mask) if inside]) for label, mask in members.items()},
    )  # fmt: skip


def _checks(
    metrics: Sequence[MetricResult],
    slices: Sequence[SliceResult],
    kls: Sequence[KlResult],
    ablation: Ablation | None,
    members: dict[str, np.ndarray],
    limits: CompressionLimits,
) -> list[Check]:
    checks: list[Check] = []
    for metric in metrics:
        t = metric.test
        note = (
            f"{t.test} test, n = {t.samples} of {t.samples_needed} needed for margin {t.margin:g}, alpha {t.alpha:g}, "
            f"beta {t.beta:g}{', underpowered' if t.underpowered else ''}; "
            f"{metric.original:.4f} -> {metric.compressed:.4f}, loss at most {t.loss_bound:.4f} (bootstrap)"
        )
        checks.append(check(f"samples with {metric.metric}", t.samples, ">=", 2))
        checks.append(check(f"loss of {metric.metric}", t.loss, "<=", t.margin))
        checks.append(check(f"p-value of {metric.metric} losing {t.margin:g}", t.p_value, "<=", t.alpha, note))
        if limits.refuse_underpowered:
            checks.append(check(f"samples for the power asked of {metric.metric}", t.samples, ">=", t.samples_needed))
    for label in limits.slices:
        count = int(members[label].sum()) if label in members else 0
        checks.append(check(f"samples of slice {label}", count, ">=", limits.slice_samples_min))
    for part in slices:
        if part.samples:
            note = f"n = {part.samples}, {part.original:.4f} -> {part.compressed:.4f}"
            checks.append(check(f"loss of {part.metric} in {part.slice}", part.loss, "<=", part.max_loss, note))
    for kl in kls:
        checks.append(check(f"positions of {kl.head}", kl.positions, ">=", 1))
        checks.append(check(f"mean KL of {kl.head}", kl.mean, "<=", limits.kl_max, f"{kl.positions} positions, nats"))
    if ablation is not None:
        bound = f"{ablation.confidence:.0%} lower bound {ablation.lower_bound:.3f}"
        blind = "" if ablation.share >= limits.ablation_share else "the model does not look; "
        note = (
            f"{blind}{ablation.changed_compressed} of {ablation.samples}, {bound}; original {ablation.changed_original}"
        )
        checks.append(check("answers a blank picture changes", ablation.share, ">=", limits.ablation_share, note))
    return checks


def _notes(
    metrics: Sequence[MetricResult], slices: Sequence[SliceResult], kls: Sequence[KlResult], ablation: Ablation | None
) -> list[str]:
    notes = [
        f"{m.metric}: {m.test.samples} samples, {m.test.samples_needed} are needed; underpowered"
        for m in metrics
        if m.test.underpowered
    ]
    weak = sorted({s.slice for s in slices if s.test.underpowered})
    if weak:
        notes.append(f"too few samples to prove the slices {', '.join(weak)}; their losses are only observed")
    if not kls:
        notes.append("no output holds classes, so no KL was taken")
    if ablation is None:
        notes.append("no blank-picture control was made")
    elif ablation.share < ablation.changed_original / ablation.samples / 2:
        notes.append("the model does not look: a blank picture changes far fewer answers than it did before")
    elif ablation.changed_original == 0:
        notes.append("a blank picture changes no answer of the original either: is the data blank?")
    return notes
