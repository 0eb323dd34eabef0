"""The conversion gate: two engines that should compute the same numbers.

Layers are compared on the probed copies and only explain; the verdict is taken on the plain engines. Quantities, for
tensors a (before) and b (after), flattened and over all samples:

    relative L2 = ||b - a|| / ||a||        cosine = <a, b> / (||a|| ||b||)        max abs = max |b - a|
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
from pydantic import Field
from sacrebleu.metrics import BLEU

from triptych.contract import ConfigError
from triptych_forge.verify.engines import (
    OnnxSubject,
    Subject,
    TorchSubject,
    check_pair,
    convolutions_in_order,
    exported_names,
)
from triptych_forge.verify.result import Check, Part, check, sentence
from triptych_forge.verify.samples import Array, Feeds, Floats, Head, Sample, chances, need_samples
from triptych_forge.verify.statistics import lower_bound

Progress = Callable[[int, int], None]
BLOCK = 1 << 15
SHOWN = 3
"""Candidates shown of each side at the first divergent token."""


class ConversionLimits(Part):
    """What the gate asks for."""

    relative_l2: float = Field(1e-3, gt=0, description="Greatest relative L2 of each part of the final output.")
    k: int = Field(1, ge=1, description="The k most likely classes must be the same.")
    top_share: float = Field(0.9997, gt=0, lt=1, description="Least share of positions where they are.")
    positions_min: int = Field(
        9985, ge=1, description="Fewest positions; so many without a mismatch put the 95 % lower bound at 99.97 %."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Of the lower bounds printed.")
    bleu_drift: float = Field(0.002, gt=0, description="Greatest difference of BLEU-4 (0..1) of free answers.")
    layer: float = Field(1e-3, gt=0, description="Relative L2 above which a layer has diverged.")
    layer_samples: int = Field(2, ge=1, description="Samples that layers and other numerics are compared on.")
    answers: int = Field(200, ge=1, description="Most answers compared by BLEU.")


class Drift(Part):
    """Difference of one tensor."""

    name: str = Field(description="Tensor of the first engine.")
    other: str = Field(description="Tensor of the second engine.")
    elements: int = Field(description="Numbers compared.")
    relative_l2: float = Field(description="Over all samples.")
    cosine: float = Field(description="Over all samples.")
    max_abs: float = Field(description="Greatest difference of one number.")


class TopMatch(Part):
    """How often both name the same most likely classes under teacher forcing."""

    head: str = Field(description="Part of the output.")
    k: int = Field(description="The k most likely.")
    positions: int = Field(description="Positions compared.")
    matched: int = Field(description="Positions with the same k.")
    share: float = Field(description="matched / positions.")
    lower_bound: float = Field(description="Clopper-Pearson, one-sided.")
    wilson_bound: float = Field(description="Wilson, one-sided.")
    confidence: float = Field(description="Of both bounds.")


class Candidate(Part):
    """One class and how likely it was thought."""

    token: int = Field(description="Number of the class.")
    text: str = Field("", description="Its name, if known.")
    chance: float = Field(description="Probability, 0..1.")


class Divergence(Part):
    """The first position where the k most likely classes differ."""

    head: str = Field(description="Part of the output.")
    sample: int = Field(description="Number of the sample, from 0.")
    position: int = Field(description="Position in the output, from 0.")
    token_a: int = Field(description="Most likely for the first engine.")
    token_b: int = Field(description="Most likely for the second engine.")
    top_a: list[Candidate] = Field(description="The first engine's three most likely.")
    top_b: list[Candidate] = Field(description="The second engine's three most likely.")


class Numerics(Part):
    """Two ways to compute the same weights."""

    first: str = Field(description="Engine, and how it was run.")
    second: str = Field(description="Engine, and how it was run.")
    relative_l2: float = Field(description="Worst part of the final output, plain engines.")
    top_share: float = Field(description="Share of positions with the same most likely class; NaN without classes.")
    layers_compared: int = Field(description="Layers both have.")
    first_diverging_layer: str = Field(description="In topological order; empty: none.")


class ProbeEffect(Part):
    """What marking intermediates as outputs does to the final outputs."""

    engine: str = Field(description="Which engine.")
    changed: bool = Field(description="Whether a single bit differs from the plain engine.")
    relative_l2: float = Field(description="Worst output.")


class Answers(Part):
    """Free-running answers."""

    compared: int = Field(description="Answers.")
    differing: int = Field(description="How many differ between the engines.")
    reference: str = Field(description="What both are measured against: the data, or the first engine's answers.")
    bleu_a: float = Field(description="BLEU-4, 0..1.")
    bleu_b: float = Field(description="BLEU-4, 0..1.")
    drift: float = Field(description="Difference of both.")


class ConversionReport(Part):
    """Outcome of the conversion gate."""

    passed: bool = Field(description="Whether every check held.")
    checks: list[Check] = Field(description="All conditions.")
    reasons: list[str] = Field(description="One sentence per check that did not hold.")
    limits: ConversionLimits = Field(description="What was asked for.")
    samples: int = Field(description="Samples compared.")
    outputs: list[Drift] = Field(description="Parts of the final output, plain engines.")
    top: list[TopMatch] = Field(description="Agreement about classes, for k = 1 and the k asked for.")
    first_divergent_token: Divergence | None = Field(None, description="None: no position differs.")
    layers: list[Drift] = Field(description="In topological order, probed engines.")
    first_diverging_layer: str = Field(description="Empty: none.")
    incomparable_layers: list[str] = Field(description="Same name, another shape.")
    probes: list[ProbeEffect] = Field(description="Per engine.")
    numerics: list[Numerics] = Field(description="Every other way both can be computed.")
    answers: Answers | None = Field(None, description="None: the engines give no text.")
    notes: list[str] = Field(description="What a reader should know.")


@runtime_checkable
class Speaker(Protocol):
    """An engine that answers in words, such as :class:`triptych_forge.verify.engines.BundleSubject`."""

    def answer(self, feeds: Feeds, prompt: int) -> list[int]: ...

    def text(self, tokens: Sequence[int]) -> str: ...


@dataclass
class Meter:
    """Adds up the difference of one tensor over samples."""

    name: str
    other: str
    elements: int = 0
    _difference: float = 0.0
    _norm_a: float = 0.0
    _norm_b: float = 0.0
    _product: float = 0.0
    _worst: float = 0.0

    def add(self, a: Array, b: Array) -> None:
        """Take in one sample's tensors of the same shape."""
        first, second = np.asarray(a).ravel(), np.asarray(b).ravel()
        for start in range(0, first.size, BLOCK):  # blocks that fit the processor's cache: several times as fast
            part = slice(start, start + BLOCK)
            self._add(first[part].astype(np.float64), second[part].astype(np.float64))

    def _add(self, x: Floats, y: Floats) -> None:
        with np.errstate(invalid="ignore"):
            difference = y - x
            # Equal infinities, as masks have them, are no difference; a NaN is one and stays in every sum.
            if not np.isfinite(difference.sum()):
                difference = np.where(x == y, 0.0, difference)
                masked = np.isinf(x) & (x == y)
                x, y = x[~masked], y[~masked]
        self.elements += difference.size
        self._difference += _dot(difference, difference)
        self._norm_a += _dot(x, x)
        self._norm_b += _dot(y, y)
        self._product += _dot(x, y)
        self._worst = float(np.maximum(self._worst, np.abs(difference).max()))

    @property
    def relative_l2(self) -> float:
        """||b - a|| / ||a||; a difference from nothing is infinite; NaN if anything is."""
        if self._norm_a > 0 or math.isnan(self._norm_a):
            return math.sqrt(self._difference / self._norm_a) if self._norm_a < math.inf else math.nan
        return 0.0 if self._difference == 0 else math.nan if math.isnan(self._difference) else math.inf

    def drift(self) -> Drift:
        """As a result."""
        norms = math.sqrt(self._norm_a) * math.sqrt(self._norm_b)
        same = 1.0 if self._norm_a == self._norm_b == 0 else 0.0
        return Drift(
            name=self.name, other=self.other, elements=self.elements, relative_l2=self.relative_l2,
            cosine=self._product / norms if norms > 0 else same if norms == 0 else math.nan, max_abs=self._worst,
        )  # fmt: skip


def _dot(x: Floats, y: Floats) -> float:
    # Not BLAS: its threads cost more than these short products.
    return float(np.einsum("i,i->", x, y))


def relative_l2(a: Array, b: Array) -> float:
    """||b - a|| / ||a|| of two arrays of the same shape."""
    meter = Meter("", "")
    meter.add(a, b)
    return meter.relative_l2


def top_sets(rows: Floats, k: int) -> Array:
    """(positions, k) the k most likely classes, each row sorted by number; the first of equals is more likely."""
    best = np.argsort(-rows, axis=-1, kind="stable")[:, :k]
    return np.sort(best, axis=-1)


@dataclass
class _Tops:
    """Counts matches of the k most likely and remembers the first mismatch."""

    head: Head
    k: int
    positions: int = 0
    matched: int = 0
    first: Divergence | None = None

    def add(self, number: int, sample: Sample, one: Feeds, other: Feeds, names: Sequence[str] = ()) -> None:
        places = self.head.positions(sample, one, other)
        a, b = self.head.rows(one)[places], self.head.rows(other)[places]
        k = min(self.k, a.shape[1])
        differ = (top_sets(a, k) != top_sets(b, k)).any(-1) | np.isnan(b).any(-1) | np.isnan(a).any(-1)
        self.positions += len(a)
        self.matched += int((~differ).sum())
        if self.first is None and differ.any():
            row = int(np.flatnonzero(differ)[0])
            tops = [_candidates(self.head, side[row], names) for side in (a, b)]
            self.first = Divergence(
                head=self.head.name, sample=number, position=int(places[row]), token_a=tops[0][0].token,
                token_b=tops[1][0].token, top_a=tops[0], top_b=tops[1],
            )  # fmt: skip

    def result(self, confidence: float) -> TopMatch:
        return TopMatch(
            head=self.head.name, k=self.k, positions=self.positions, matched=self.matched,
            share=self.matched / self.positions if self.positions else math.nan,
            lower_bound=lower_bound(self.matched, self.positions, confidence),
            wilson_bound=lower_bound(self.matched, self.positions, confidence, "wilson"), confidence=confidence,
        )  # fmt: skip


def _candidates(head: Head, row: Floats, names: Sequence[str]) -> list[Candidate]:
    likely = chances(head, row[None])[0]
    best = np.argsort(-likely, kind="stable")[:SHOWN]
    return [Candidate(token=int(t), text=names[t] if t < len(names) else "", chance=float(likely[t])) for t in best]


def layer_pairs(a: Subject, b: Subject, mapping: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Tensors to compare, in the topological order of ``a``: of the same name, or as ``mapping`` (a to b) says.

    Between a torch module and its export the mapping is found by :func:`exported_names` or, if the exporter gave
    tensors names of their own, by the order of the convolutions.

    Raises:
        ConfigError: the mapping names a tensor that is not there.
    """
    known_a, known_b = a.intermediates, set(b.intermediates)
    if mapping is None and isinstance(a, TorchSubject) and isinstance(b, OnnxSubject):
        mapping = _between(a, b)
    if mapping is None and isinstance(b, TorchSubject) and isinstance(a, OnnxSubject):
        mapping = {tensor: module for module, tensor in _between(b, a).items()}
    if mapping is None:
        return [(name, name) for name in known_a if name in known_b]
    for side, names, there in ((a, mapping.keys(), set(known_a)), (b, mapping.values(), known_b)):
        strange = [n for n in names if n not in there]
        if strange:
            raise ConfigError("the mapping names a tensor that is not there", where=side.name, field=strange[0])
    return [(name, mapping[name]) for name in known_a if name in mapping]


def _between(module: TorchSubject, graph: OnnxSubject) -> dict[str, str]:
    return exported_names(module, graph.intermediates) or convolutions_in_order(module, graph)


@dataclass
class _Pair:
    """One comparison of two ways to compute."""

    first: Subject
    second: Subject
    heads: Sequence[Head]
    layers: list[tuple[str, str]]
    meters: dict[str, Meter] = field(default_factory=dict)
    finals: list[Meter] = field(default_factory=list)
    tops: list[_Tops] = field(default_factory=list)
    incomparable: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.finals = [Meter(h.name, h.name) for h in self.heads]
        self.tops = [_Tops(h, 1) for h in self.heads if h.kind != "values"]

    def add(self, number: int, sample: Sample, plain: Sequence[Feeds], probed: Sequence[Feeds]) -> None:
        for meter, head in zip(self.finals, self.heads):
            meter.add(head.rows(plain[0]), head.rows(plain[1]))
        for top in self.tops:
            top.add(number, sample, *plain)
        for one, other in self.layers:
            x, y = probed[0][one], probed[1][other]
            if x.dtype.kind != "f" or y.dtype.kind != "f":
                continue  # sizes and indices; numbers in a quantised range have no common unit
            if x.shape != y.shape:
                if one not in self.incomparable:
                    self.incomparable.append(one)
                continue
            self.meters.setdefault(one, Meter(one, other)).add(x, y)

    def drifts(self) -> list[Drift]:
        return [self.meters[one].drift() for one, _ in self.layers if one in self.meters]

    def first_diverging(self, limit: float) -> str:
        return next((d.name for d in self.drifts() if not d.relative_l2 <= limit), "")

    def numerics(self, limit: float) -> Numerics:
        shares = [t.matched / t.positions for t in self.tops if t.positions]
        return Numerics(
            first=self.first.name, second=self.second.name, relative_l2=_worst(m.relative_l2 for m in self.finals),
            top_share=min(shares, default=math.nan), layers_compared=len(self.meters),
            first_diverging_layer=self.first_diverging(limit),
        )  # fmt: skip


def compare_layers(
    a: Subject,
    b: Subject,
    samples: Sequence[Sample],
    heads: Sequence[Head],
    limits: ConversionLimits | None = None,
    mapping: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[list[Drift], list[str], list[ProbeEffect], list[Numerics]]:
    """Layers of a against b, and every other way to compute either, on the first ``limits.layer_samples`` samples.

    A fake-quantised torch module as ``a`` and its QDQ export as ``b`` give three numerics: torch against the
    optimised graph, torch against the graph as written, and these two against each other.

    Returns:
        Layers in topological order, names that had different shapes, effect of the probes, numerics.
    """
    limits = limits or ConversionLimits()
    chosen = samples[: limits.layer_samples]
    need_samples(chosen)
    for subject in (a, b):
        subject.run(chosen[0].feeds)  # a torch module knows its parts only after a run
    ways_a, ways_b = a.variants(), b.variants()
    pairs = [_Pair(a, b, heads, layer_pairs(a, b, mapping))]
    pairs += [_Pair(a, way, heads, layer_pairs(a, way, mapping)) for way in ways_b]
    pairs += [
        _Pair(base, way, heads, layer_pairs(base, way)) for base, ways in ((a, ways_a), (b, ways_b)) for way in ways
    ]
    subjects = [a, b, *ways_a, *ways_b]
    changed, meters = dict.fromkeys(map(id, (a, b)), False), {id(s): [Meter(o, o) for o in s.outputs] for s in (a, b)}
    for number, sample in enumerate(chosen):
        plain = {id(s): s.run(sample.feeds) for s in subjects}
        probed = {id(s): s.probe(sample.feeds) for s in subjects}
        for subject in (a, b):
            for meter in meters[id(subject)]:
                before, after = plain[id(subject)][meter.name], probed[id(subject)][meter.name]
                changed[id(subject)] |= before.tobytes() != after.tobytes()
                meter.add(before, after)
        for pair in pairs:
            keys = (id(pair.first), id(pair.second))
            pair.add(number, sample, [plain[k] for k in keys], [probed[k] for k in keys])
        if progress:
            progress(number + 1, len(chosen))
    probes = [
        ProbeEffect(engine=s.name, changed=changed[id(s)], relative_l2=_worst(m.relative_l2 for m in meters[id(s)]))
        for s in (a, b)
    ]
    return pairs[0].drifts(), pairs[0].incomparable, probes, [pair.numerics(limits.layer) for pair in pairs]


def bleu4(answers: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU-4 (Papineni et al., 2002), 0..1, on words apart by blanks, as sacrebleu computes it."""
    if not answers:
        return math.nan
    metric = BLEU(tokenize="none", force=True)
    return min(1.0, float(metric.corpus_score(list(answers), [list(references)]).score) / 100.0)


def compare_answers(a: Speaker, b: Speaker, samples: Sequence[Sample], progress: Progress | None = None) -> Answers:
    """Free-running answers of both, against the references of the data, or against those of ``a`` if one is missing."""
    said: list[tuple[str, str]] = []
    for number, sample in enumerate(samples):
        said.append((a.text(a.answer(sample.feeds, sample.prompt)), b.text(b.answer(sample.feeds, sample.prompt))))
        if progress:
            progress(number + 1, len(samples))
    first, second = [x for x, _ in said], [y for _, y in said]
    given = bool(samples) and all(sample.reference for sample in samples)
    references = [sample.reference for sample in samples] if given else first
    bleus = bleu4(first, references), bleu4(second, references)
    return Answers(
        compared=len(said), differing=sum(x != y for x, y in said),
        reference="the data" if given else f"answers of the first engine ({len(said)})",
        bleu_a=bleus[0], bleu_b=bleus[1], drift=abs(bleus[0] - bleus[1]),
    )  # fmt: skip


def conversion_gate(
    a: Subject,
    b: Subject,
    samples: Sequence[Sample],
    heads: Sequence[Head],
    limits: ConversionLimits | None = None,
    mapping: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ConversionReport:
    """Judge whether ``b`` computes what ``a`` computes.

    Args:
        a: the original; its layers' order is the one that counts.
        b: what was made of it, with the same inputs and outputs.
        samples: at least one; all are run once on each plain engine.
        heads: parts of the final output to judge, see :func:`triptych_forge.verify.engines.heads_of`.
        limits: default: :class:`ConversionLimits`.
        mapping: tensor of ``a`` to tensor of ``b``; default: same names.
        progress: told how many samples of how many are done.

    Raises:
        ConfigError: inputs or outputs that are renamed, missing, extra or of another shape; no sample.
    """
    limits = limits or ConversionLimits()
    need_samples(samples)
    if not heads:
        raise ConfigError("no output to judge", where=a.name)
    check_pair(a, b)
    names: Sequence[str] = getattr(getattr(a, "vocabulary", None), "tokens", ())
    meters = [Meter(head.name, head.output) for head in heads]
    tops = [_Tops(h, k) for h in heads if h.kind != "values" for k in sorted({1, limits.k})]
    for number, sample in enumerate(samples):
        one, other = a.run(sample.feeds), b.run(sample.feeds)
        check_shapes(one, other, b.name)
        for meter, head in zip(meters, heads):
            meter.add(head.rows(one), head.rows(other))
        for top in tops:
            top.add(number, sample, one, other, names)
        if progress:
            progress(number + 1, len(samples))
    layers, incomparable, probes, numerics = compare_layers(a, b, samples, heads, limits, mapping)
    outputs, matches = [m.drift() for m in meters], [t.result(limits.confidence) for t in tops]
    answers = None
    if isinstance(a, Speaker) and isinstance(b, Speaker):
        answers = compare_answers(a, b, samples[: limits.answers])
    checks = _checks(outputs, matches, layers, answers, limits)
    return ConversionReport(
        passed=all(c.passed for c in checks),
        checks=checks,
        reasons=[sentence(c) for c in checks if not c.passed],
        limits=limits,
        samples=len(samples),
        outputs=outputs,
        top=matches,
        first_divergent_token=next((t.first for t in tops if t.k == limits.k and t.first), None),
        layers=layers,
        first_diverging_layer=next((d.name for d in layers if not d.relative_l2 <= limits.layer), ""),
        incomparable_layers=incomparable,
        probes=probes,
        numerics=numerics,
        answers=answers,
        notes=_notes(probes, numerics, matches, incomparable, answers, limits),
    )


def _checks(
    outputs: Sequence[Drift],
    matches: Sequence[TopMatch],
    layers: Sequence[Drift],
    answers: Answers | None,
    limits: ConversionLimits,
) -> list[Check]:
    checks = [check("layers compared", len(layers), ">=", 1, "" if layers else "no common tensor; give a mapping")]
    for drift in outputs:
        checks.append(check(f"numbers compared of {drift.name}", drift.elements, ">=", 1))
        checks.append(check(f"relative L2 of {drift.name}", drift.relative_l2, "<=", limits.relative_l2))
    for match in matches:
        if match.k != limits.k:
            continue
        bound = f"{match.confidence:.0%} lower bound {match.lower_bound:.4%}"
        note = f"{match.matched} of N = {match.positions}, {bound}"
        checks.append(check(f"positions of {match.head}", match.positions, ">=", limits.positions_min))
        checks.append(check(f"top-{match.k} match of {match.head}", match.share, ">=", limits.top_share, note))
    if answers is not None:
        checks.append(check("answers compared", answers.compared, ">=", 1))
        note = f"{answers.differing} of {answers.compared} answers differ, against {answers.reference}"
        checks.append(check("BLEU-4 drift", answers.drift, "<=", limits.bleu_drift, note))
    return checks


def _notes(
    probes: Sequence[ProbeEffect],
    numerics: Sequence[Numerics],
    matches: Sequence[TopMatch],
    incomparable: Sequence[str],
    answers: Answers | None,
    limits: ConversionLimits,
) -> list[str]:
    notes = [
        f"marking intermediates changes the final outputs of {p.engine} by {p.relative_l2:.3g} (relative L2); "
        "the verdict is taken on the plain engine"
        for p in probes
        if p.changed
    ]
    notes += [
        f"{row.first} and {row.second} differ by {row.relative_l2:.3g} (relative L2) although no probed layer does: "
        "the difference lies in fused operators, which a probe takes apart"
        for row in numerics
        if row.layers_compared and not row.first_diverging_layer and not row.relative_l2 <= limits.relative_l2
    ]
    if not matches:
        notes.append("no output holds classes, so no most likely class was compared")
    notes += [
        f"the {m.confidence:.0%} lower bound of the top-{m.k} match of {m.head} is {m.lower_bound:.4%}, below the "
        f"limit: N = {m.positions} does not prove it"
        for m in matches
        if m.k == limits.k and m.share >= limits.top_share > m.lower_bound
    ]
    if incomparable:
        shown = ", ".join(islice(incomparable, 5))
        notes.append(f"{len(incomparable)} layers have the same name and another shape: {shown}")
    if answers is None:
        notes.append("the engines give no text, so no answers were compared")
    return notes


def check_shapes(one: Feeds, other: Feeds, where: str) -> None:
    """Outputs must have the same shapes.

    Raises:
        ConfigError: naming the first that has not.
    """
    for name, array in one.items():
        if other[name].shape != array.shape:
            raise ConfigError(
                f"has shape {'x'.join(map(str, other[name].shape))}, {'x'.join(map(str, array.shape))} is needed",
                where=where,
                field=name,
            )


def _worst(values: object) -> float:
    """The greatest; NaN if one is NaN."""
    found = list(values)  # type: ignore[call-overload]
    return math.nan if any(math.isnan(v) for v in found) else max(found, default=math.nan)
