"""Where a student looks elsewhere than its teacher, layer by layer, and two ways to mend it, side by side.

A layer is described by maps: rows of chances over the places of a picture. For a decoder these are its attention to the
picture; for a net without attention, how much each place is like each other place. Teacher and student may have
grids of different size: both are brought to a common one first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.distil.loop import DEFAULTS, Options, Run, distil, feed, repeated
from triptych_forge.distil.losses import LayerPair, captured, evaluating
from triptych_forge.vlm.model import Vlm

SMOOTHING = 1e-6
"""Share of an even distribution mixed into both maps, so that a place one of them rules out gives no infinite KL."""
RELATION_TEMPERATURE = 0.1
"""Of the row softmax over cosines, which lie within -1..1 and would otherwise give nearly even rows."""
MOST_SIDE = 16
"""Cells per side of the grid on which relations are compared, which has one row and one column per cell."""
FEW_LAYERS = 3
"""Below this many layers none can be an outlier among them."""
FEW_LAYERS_LIMIT_NATS = 0.1
"""Limit of the mean KL where there are too few layers for the outlier rule."""
LEAST_LIMIT_NATS = 0.01
"""The outlier rule's limit is never below this: among layers that all agree, none is weak."""

MapPairs = dict[str, tuple[Tensor, Tensor]]
"""Student's layer -> its maps and its teacher's, (rows, places) each, the same rows and places, rows sum to 1."""


@dataclass(frozen=True)
class TokenMap:
    """Attention to the tokens of a picture.

    Attributes:
        chances: (B, heads, T, rows * columns + others), the last axis sums to 1; the grid's cells come first, row
            by row, behind them tokens without a place.
        grid: rows and columns.
    """

    chances: Tensor
    grid: tuple[int, int]


class Attended(NamedTuple):
    """Logits (R, T, vocabulary) and layer -> attention to the picture."""

    logits: Tensor
    maps: dict[str, TokenMap]


def attention_maps(
    model: Vlm, frames: Tensor, ages_s: Tensor, input_ids: Tensor, groups: int = 1, before: Tensor | None = None
) -> Attended:
    """Run ``model`` and recompute how each decoder layer attends to the picture, from its queries and keys.

    softmax(Q Kᵀ / √d) as in :class:`triptych_forge.vlm.model.Layer`; differentiable. Layers are named
    ``decoder.layers.0`` and following.

    Args:
        frames, ages_s, input_ids, groups, before: as :meth:`Vlm.forward` takes them.
    """
    s = model.shape
    places = [(f"decoder.layers.{i}", f"decoder.layers.{i}.query", f"encoder.keys_values.{i}") for i in range(s.layers)]
    with captured(model, [name for _, *names in places for name in names]) as seen:
        logits, _ = model(frames, ages_s, input_ids, groups, before)
    maps = {}
    for layer, query_name, key_name in places:
        query = seen[query_name].unflatten(-1, (s.heads, s.head_size)).transpose(1, 2)
        key = seen[key_name].chunk(2, -1)[0].unflatten(-1, (s.heads, s.head_size)).transpose(1, 2)
        if groups > 1:
            key = key.repeat_interleave(groups, 0)
        chances = torch.softmax(query @ key.transpose(-1, -2) * s.head_size**-0.5, -1)
        maps[layer] = TokenMap(chances, (s.height_px // 16, s.width_px // 16))
    return Attended(logits, maps)


def overlap(source: int, target: int) -> Tensor:
    """(target, source) float32: which share of each source cell lies in each target cell, both dividing one length.

    Columns sum to 1: what is spread over the cells is moved, none is lost.
    """
    edges = torch.arange(source + 1, dtype=torch.float64) / source
    others = torch.arange(target + 1, dtype=torch.float64) / target
    low = torch.maximum(edges[None, :-1], others[:-1, None])
    high = torch.minimum(edges[None, 1:], others[1:, None])
    return ((high - low).clamp(min=0) * source).float()


def on_grid(token_map: TokenMap, grid: tuple[int, int]) -> Tensor:
    """Mean over heads of ``token_map`` on another grid: (B, T, rows * columns + others), rows sum to 1.

    The chance of each cell is spread evenly over its area; tokens without a place keep theirs. Heads are averaged
    because those of two models do not correspond.
    """
    rows, columns = token_map.grid
    mean = token_map.chances.mean(1)
    cells, others = mean[..., : rows * columns], mean[..., rows * columns :]
    if grid != token_map.grid:
        down, across = (overlap(a, b).to(mean) for a, b in zip(token_map.grid, grid, strict=True))
        cells = (down @ cells.unflatten(-1, (rows, columns)) @ across.T).flatten(-2)
    both = torch.cat([cells, others], -1)
    return both / both.sum(-1, keepdim=True).clamp(min=SMOOTHING)


def attention_pairs(
    student: Mapping[str, TokenMap],
    teacher: Mapping[str, TokenMap],
    pairs: Sequence[LayerPair],
    queries: Tensor | None = None,
) -> MapPairs:
    """Attention maps of both on the coarser of the two grids.

    Args:
        pairs: which layer of the student goes with which of the teacher, see :func:`by_depth`.
        queries: (B, T) bool or weights: tokens whose attention counts (> 0); None: all. Padding should not.

    Raises:
        ConfigError: a layer that is missing, or maps of other pictures or tokens; naming the layer.
    """
    out: MapPairs = {}
    for pair in pairs:
        mine, theirs = _pick(student, pair.student), _pick(teacher, pair.teacher)
        grid = _coarser(mine.grid, theirs.grid)
        p, q = on_grid(theirs, grid).detach(), on_grid(mine, grid)
        if p.shape != q.shape or (queries is not None and queries.shape != q.shape[:2]):
            raise ConfigError(
                f"attends to {tuple(q.shape)}, its teacher to {tuple(p.shape)}",
                where="alignment",
                field=pair.student,
                remedy="give both the same scenes and tokens",
            )
        keep = torch.ones(q.shape[:2], dtype=torch.bool, device=q.device) if queries is None else queries > 0
        out[pair.student] = (q[keep], p[keep])
    return out


def relation_map(features: Tensor, grid: tuple[int, int], temperature: float = RELATION_TEMPERATURE) -> Tensor:
    """How much each place is like each other one: row softmax of cosine similarities / ``temperature``.

    A place is always like itself, which says nothing and would drown the rest: the diagonal is 0.

    Args:
        features: (B, C, H, W); averaged onto ``grid`` first, by area.
        grid: rows and columns, at least two cells.

    Returns:
        (B, cells, cells), rows sum to 1.
    """
    down, across = (overlap(a, b).to(features) for a, b in zip(features.shape[2:], grid, strict=True))
    down, across = down / down.sum(1, keepdim=True), across / across.sum(1, keepdim=True)
    places = (down @ features @ across.T).flatten(2).transpose(1, 2)
    places = functional.normalize(places, dim=-1, eps=1e-6)
    alike = places @ places.transpose(1, 2) / temperature
    itself = torch.eye(alike.shape[-1], dtype=torch.bool, device=alike.device)
    return torch.softmax(alike.masked_fill(itself, -torch.inf), -1)


def relation_pairs(
    student: Mapping[str, Tensor],
    teacher: Mapping[str, Tensor],
    pairs: Sequence[LayerPair],
    temperature: float = RELATION_TEMPERATURE,
    most_side: int = MOST_SIDE,
) -> MapPairs:
    """Relation maps of features (B, C, H, W) on the coarser of the two grids, at most ``most_side`` cells per side.

    Raises:
        ConfigError: a layer that is missing, no maps, other pictures, or a grid of one cell; naming the layer.
    """
    out: MapPairs = {}
    for pair in pairs:
        mine, theirs = _pick(student, pair.student), _pick(teacher, pair.teacher).detach()
        both = f"shapes {tuple(mine.shape)} and {tuple(theirs.shape)}"
        if mine.ndim != 4 or theirs.ndim != 4 or mine.shape[0] != theirs.shape[0]:
            raise ConfigError(f"needs maps of the same pictures, {both}", where="alignment", field=pair.student)
        rows, columns = _coarser(mine.shape[2:], theirs.shape[2:])
        grid = (min(rows, most_side), min(columns, most_side))
        if grid[0] * grid[1] < 2:
            raise ConfigError(f"has one place only, {both}", where="alignment", field=pair.student)
        q, p = (relation_map(f.float(), grid, temperature).flatten(0, 1) for f in (mine, theirs))
        out[pair.student] = (q, p)
    return out


def by_depth(student: Sequence[str], teacher: Sequence[str]) -> tuple[LayerPair, ...]:
    """Each of the student's layers with the teacher's at the same relative depth; the last with the last.

    Raises:
        ConfigError: a side without layers.
    """
    if not student or not teacher:
        raise ConfigError("both sides need layers", where="alignment", field="pairs")
    n, m = len(student), len(teacher)
    return tuple(LayerPair(name, teacher[-(-(i + 1) * m // n) - 1]) for i, name in enumerate(student))


def row_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ student) of each row in nats, both mixed with :data:`SMOOTHING` of an even distribution.

    Args:
        student, teacher: (rows, places), rows sum to 1.
    """
    even = SMOOTHING / student.shape[-1]
    p, q = ((1 - SMOOTHING) * x + even for x in (teacher.detach(), student))
    return (p * (p.log() - q.log())).sum(-1)


@dataclass(frozen=True)
class LayerRow:
    """How far a student's layer is from its teacher's: mean and 95th percentile of the rows' KL in nats, of how many
    rows, and whether the mean is above the limit."""

    layer: str
    mean_kl_nats: float
    p95_kl_nats: float
    rows: int
    weak: bool


@dataclass(frozen=True)
class Diagnosis:
    """All layers, in the order given; the limit that divides them and the rule it comes from."""

    layers: tuple[LayerRow, ...]
    limit_nats: float
    rule: str

    @property
    def weak(self) -> tuple[str, ...]:
        """Names of the weak layers."""
        return tuple(row.layer for row in self.layers if row.weak)

    @property
    def worst(self) -> str:
        """The layer with the greatest mean."""
        return max(self.layers, key=lambda row: row.mean_kl_nats).layer


def diagnose(samples: Iterable[MapPairs], limit_nats: float | None = None) -> Diagnosis:
    """Which layers are weakly aligned, over all rows of all ``samples``.

    A layer is weak if its mean KL is above the limit. That is ``limit_nats`` if given; otherwise the median over layers
    plus 1.5 times their interquartile range (Tukey's outlier rule, from the median), at least
    :data:`LEAST_LIMIT_NATS`; with fewer than three layers, :data:`FEW_LAYERS_LIMIT_NATS`.

    Raises:
        ConfigError: nothing to compare, a layer without rows, or a KL that is not finite; naming the layer.
    """
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    with torch.no_grad():
        for sample in samples:
            for layer, (mine, theirs) in sample.items():
                found.setdefault(layer, []).append(row_kl(mine, theirs).double().cpu().numpy())
    if not found:
        raise ConfigError("nothing was compared", where="alignment", remedy="give at least one batch and one layer")
    rows = {layer: np.concatenate(parts) for layer, parts in found.items()}
    for layer, values in rows.items():
        if not len(values) or not np.isfinite(values).all():
            problem = "has a KL that is not finite" if len(values) else "was compared in no row"
            raise ConfigError(problem, where="alignment", field=layer)
    means = {layer: float(values.mean()) for layer, values in rows.items()}
    limit, rule = _limit(list(means.values()), limit_nats)
    return Diagnosis(
        tuple(
            LayerRow(layer, means[layer], float(np.percentile(values, 95)), len(values), means[layer] > limit)
            for layer, values in rows.items()
        ),
        limit,
        rule,
    )


def _limit(means: list[float], given: float | None) -> tuple[float, str]:
    if given is not None:
        return given, "given"
    if len(means) < FEW_LAYERS:
        return FEW_LAYERS_LIMIT_NATS, f"fixed, fewer than {FEW_LAYERS} layers"
    low, middle, high = np.percentile(means, [25, 50, 75])
    limit = max(float(middle + 1.5 * (high - low)), LEAST_LIMIT_NATS)
    return limit, f"median + 1.5 IQR over layers, at least {LEAST_LIMIT_NATS}"


def layer_wise_kl_loss(maps: MapPairs, layers: Collection[str]) -> Tensor:
    """Mean over ``layers`` of the mean :func:`row_kl`: train on what the diagnosis found. A scalar in nats.

    Raises:
        ConfigError: no layer, or one without maps.
    """
    if not layers:
        raise ConfigError("name at least one", where="layer-wise KL", field="layers")
    return torch.stack([row_kl(*_pick(maps, layer)).mean() for layer in layers]).mean()


class PrototypeBank:
    """Mean teacher feature per label, gathered over batches.

    Args:
        labels: number of labels.
        channels: of the features.
    """

    def __init__(self, labels: int, channels: int) -> None:
        self._sums = torch.zeros(labels, channels, dtype=torch.float64)
        self._counts = torch.zeros(labels, dtype=torch.int64)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count features (N, C) with labels (N,) int64; a label of -1 is left out.

        Raises:
            ConfigError: shapes or labels do not fit, a feature that is not finite.
        """
        known = _known(features, labels, len(self._counts), self._sums.shape[1], "prototypes")
        some = features.detach()[known].double().cpu()
        if not bool(torch.isfinite(some).all()):
            raise ConfigError("are not finite", where="prototypes", field="features")
        self._sums.index_add_(0, labels[known].cpu(), some)
        self._counts += torch.bincount(labels[known].cpu(), minlength=len(self._counts))

    @property
    def counts(self) -> Tensor:
        """(K,) int64: how many features each mean is of; 0: the label never came."""
        return self._counts.clone()

    def means(self) -> Tensor:
        """(K, C) float32; zeros where the label never came.

        Raises:
            ConfigError: no label came at all.
        """
        if not bool(self._counts.any()):
            raise ConfigError("no labelled feature was seen", where="prototypes")
        return (self._sums / self._counts.clamp(min=1)[:, None]).float()


def _info_nce(projected: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor, temperature: float) -> Tensor:
    normal = partial(functional.normalize, dim=-1, eps=1e-6)
    scores = normal(projected) @ normal(prototypes).T / temperature
    return functional.cross_entropy(scores.masked_fill(~present, -torch.inf), labels, reduction="sum")


def _l2(projected: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor, temperature: float) -> Tensor:
    return (projected - prototypes[labels]).square().mean(-1).sum()


MATCHINGS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {"infonce": _info_nce, "l2": _l2}
"""Kinds of :func:`prototype_matching_loss`."""


def prototype_matching_loss(
    projected: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    counts: Tensor,
    kind: str = "infonce",
    temperature: float = 0.1,
) -> Tensor:
    """Pull the student's projected features to the prototype of their label; a scalar.

    ``infonce``: -log softmax over the labels' prototypes of cosine / ``temperature`` (van den Oord et al. 2018,
    equation 4, with prototypes as candidates). ``l2``: mean squared difference.

    Args:
        projected: (N, C) of the student, in the teacher's channels.
        labels: (N,) int64; -1, and labels whose prototype was never seen, are left out.
        prototypes, counts: (K, C) and (K,) of :class:`PrototypeBank`.

    Returns:
        The mean over the features that count; 0 if none does.

    Raises:
        ConfigError: shapes, labels or ``kind`` do not fit.
    """
    if kind not in MATCHINGS:
        raise ConfigError("is no matching", field="kind", value=kind, remedy=f"use one of {', '.join(MATCHINGS)}")
    known = _known(projected, labels, len(counts), prototypes.shape[1], "prototype matching")
    present = (counts > 0).to(projected.device)
    known = known & present[labels.clamp(min=0)]
    total = MATCHINGS[kind](
        projected[known].float(), labels[known], prototypes.detach().to(projected.device), present, temperature
    )
    return total / known.sum().clamp(min=1)


def box_features(features: Tensor, boxes: Tensor, labels: Tensor, size_px: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Mean feature inside each box: what a detector's prototypes are made of.

    Args:
        features: (B, C, H, W).
        boxes: (B, G, 4) x0, y0, x1, y1 in px of the picture.
        labels: (B, G) int64, -1 for padding.
        size_px: width and height of the picture.

    Returns:
        (N, C) and (N,), the boxes that are no padding. Cells whose centre lies in the box count; if none does, the one
        nearest to its middle.
    """
    height, width = features.shape[2:]
    x = (torch.arange(width, device=features.device) + 0.5) * size_px[0] / width
    y = (torch.arange(height, device=features.device) + 0.5) * size_px[1] / height
    low, high = boxes[..., :2, None], boxes[..., 2:, None]
    columns = (x >= low[..., 0, :]) & (x <= high[..., 0, :])
    rows = (y >= low[..., 1, :]) & (y <= high[..., 1, :])
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    nearest_column = (x - middle[..., :1]).abs().argmin(-1, keepdim=True)
    nearest_row = (y - middle[..., 1:]).abs().argmin(-1, keepdim=True)
    columns = columns | (~columns.any(-1, keepdim=True) & torch.zeros_like(columns).scatter(-1, nearest_column, True))
    rows = rows | (~rows.any(-1, keepdim=True) & torch.zeros_like(rows).scatter(-1, nearest_row, True))
    inside = (rows[..., :, None] & columns[..., None, :]).to(features.dtype)
    means = torch.einsum("bghw,bchw->bgc", inside, features) / inside.sum((-2, -1))[..., None]
    real = labels >= 0
    return means[real], labels[real]


@dataclass(frozen=True)
class View:
    """What a batch shows of student and teacher.

    Attributes:
        maps: of the layers to compare.
        student_features: (N, C_S), e.g. one vector per picture or per object.
        teacher_features: (N, C_T) of the same things.
        labels: (N,) int64, -1 where not known.
        task: the loss that training is about, if it shall go along; a scalar.
    """

    maps: MapPairs
    student_features: Tensor
    teacher_features: Tensor
    labels: Tensor
    task: Tensor | None = None


@dataclass(frozen=True)
class _Aid:
    """What the mends work with."""

    layers: tuple[str, ...]
    projection: nn.Module
    prototypes: Tensor
    counts: Tensor
    matching: str


def _mend_layers(view: View, aid: _Aid) -> Tensor:
    return layer_wise_kl_loss(view.maps, aid.layers)


def _mend_prototypes(view: View, aid: _Aid) -> Tensor:
    projected = aid.projection(view.student_features)
    return prototype_matching_loss(projected, view.labels, aid.prototypes, aid.counts, aid.matching)


MENDS: dict[str, Callable[[View, _Aid], Tensor]] = {
    "layer_wise_kl": _mend_layers,
    "prototype_matching": _mend_prototypes,
}
CONTROL = "none"
"""Row of the same training without a mend, if there is a task to train on: what a mend must be better than."""


@dataclass(frozen=True)
class Survey:
    """State of a student: alignment, and the mean task loss over the batches (None without a task)."""

    diagnosis: Diagnosis
    task_loss: float | None


@dataclass(frozen=True)
class MendTable:
    """Both mends from the same start.

    Attributes:
        layers: that were mended.
        before: of the student as given.
        after: by mend.
        students: by mend, trained, in evaluation mode.
    """

    layers: tuple[str, ...]
    before: Survey
    after: dict[str, Survey]
    students: dict[str, nn.Module]

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer and one for the task loss, JSON-able: name, whether mended, before, after by mend."""
        number = len(self.before.diagnosis.layers)
        out: list[dict[str, Any]] = []
        for at in range(number):
            was = self.before.diagnosis.layers[at]
            now = {mend: survey.diagnosis.layers[at] for mend, survey in self.after.items()}
            out.append(
                {
                    "layer": was.layer,
                    "weak": was.weak,
                    "mended": was.layer in self.layers,
                    "before": {"mean_kl_nats": was.mean_kl_nats, "p95_kl_nats": was.p95_kl_nats},
                    "after": {
                        mend: {"mean_kl_nats": row.mean_kl_nats, "p95_kl_nats": row.p95_kl_nats}
                        for mend, row in now.items()
                    },
                }
            )
        if self.before.task_loss is not None:
            after = {mend: {"loss": survey.task_loss} for mend, survey in self.after.items()}
            out.append({"layer": "task", "before": {"loss": self.before.task_loss}, "after": after})
        return out


def compare_mends(
    student: nn.Module,
    teacher: nn.Module,
    batches: Sequence[Any],
    view: Callable[[Any, Any, Any], View],
    *,
    labels: int,
    steps: int,
    rate: float,
    run_student: Run = feed,
    run_teacher: Run = feed,
    layers: Sequence[str] | None = None,
    limit_nats: float | None = None,
    weight: float = 1.0,
    matching: str = "infonce",
    options: Options = DEFAULTS,
    seed: int = 0,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MendTable:
    """Run every mend of :data:`MENDS` on a copy of ``student`` for the same steps on the same batches.

    The loss is the view's task loss, if any, plus ``weight`` times the mend's; with a task there is a third run
    without a mend, :data:`CONTROL`. Neither model given is changed.

    Args:
        batches: used for the prototypes, for training, round and round, and for the diagnosis before and after.
        view: of what ``run_student`` and ``run_teacher`` gave, and the batch.
        labels: number of labels K; labels are 0..K - 1.
        layers: to mend; None: the weak ones, or the worst if none is weak.
        limit_nats: as :func:`diagnose` takes it.
        matching: kind of :func:`prototype_matching_loss`.
        log: gets ``distil.diagnose`` and a ``distil.mend`` per mend.
        progress: called with the steps done of all runs and their total.

    Raises:
        ConfigError: no batch, a layer without maps, or anything :func:`distil` and the losses raise.
    """
    repeated(batches)  # raises where there is none

    def looks(model: nn.Module) -> list[View]:
        with evaluating(model, teacher), torch.no_grad():
            return [view(run_student(model, batch), run_teacher(teacher, batch), batch) for batch in batches]

    def survey(views: Sequence[View]) -> Survey:
        tasks = [float(v.task) for v in views if v.task is not None]
        diagnosis = diagnose((v.maps for v in views), limit_nats)
        return Survey(diagnosis, sum(tasks) / len(tasks) if tasks else None)

    views = looks(student)
    before, first = survey(views), views[0]
    bank = PrototypeBank(labels, first.teacher_features.shape[-1])
    for seen in views:
        bank.add(seen.teacher_features, seen.labels)
    chosen = tuple(layers if layers is not None else before.diagnosis.weak or (before.diagnosis.worst,))
    for layer in chosen:
        _pick(first.maps, layer)
    if log is not None:
        log.add("distil.diagnose", "student", **_facts(before), mended=chosen)
    runs = [*MENDS, *([CONTROL] if before.task_loss is not None else [])]
    after: dict[str, Survey] = {}
    students: dict[str, nn.Module] = {}
    for number, name in enumerate(runs):
        mended = copy.deepcopy(student)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            projection = nn.Linear(first.student_features.shape[-1], first.teacher_features.shape[-1], bias=False)
        projection.to(first.student_features.device)
        aid = _Aid(chosen, projection, bank.means(), bank.counts, matching)

        def loss(mine: Any, theirs: Any, batch: Any, name: str = name, aid: _Aid = aid) -> Tensor:
            seen = view(mine, theirs, batch)
            parts = [] if seen.task is None else [seen.task]
            parts += [weight * MENDS[name](seen, aid)] if name in MENDS else []
            return torch.stack(parts).sum()

        def report(done: int, _total: int, number: int = number) -> None:
            if progress is not None:
                progress(number * steps + done, len(runs) * steps)

        distil(
            mended,
            teacher,
            repeated(batches),
            loss,
            steps,
            rate,
            progress=report,
            options=options,
            seed=seed,
            companion=projection,
            run_student=run_student,
            run_teacher=run_teacher,
        )
        students[name], after[name] = mended, survey(looks(mended))
        if log is not None:
            log.add("distil.mend", name, **_facts(after[name]), steps=steps, rate=rate, weight=weight)
    return MendTable(chosen, before, after, students)


def _facts(survey: Survey) -> dict[str, Any]:
    return {
        "mean_kl_nats": {row.layer: row.mean_kl_nats for row in survey.diagnosis.layers},
        "weak": survey.diagnosis.weak,
        "limit_nats": survey.diagnosis.limit_nats,
        "rule": survey.diagnosis.rule,
        "task_loss": survey.task_loss,
    }


def _coarser(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    return min(int(a[0]), int(b[0])), min(int(a[1]), int(b[1]))


def _pick(things: Mapping[str, Any], name: str) -> Any:
    if name not in things:
        raise ConfigError("gave nothing to compare", where="alignment", field=name)
    return things[name]


def _known(features: Tensor, labels: Tensor, count: int, channels: int, where: str) -> Tensor:
    """(N,) bool: which features have a label."""
    if features.ndim != 2 or features.shape[1] != channels or labels.shape != features.shape[:1]:
        raise ConfigError(
            f"of shape {tuple(features.shape)} with labels {tuple(labels.shape)} do not fit {channels} channels",
            where=where,
            field="features",
        )
    if labels.numel() and not -1 <= int(labels.min()) <= int(labels.max()) < count:
        raise ConfigError(f"must be -1 to {count - 1}", where=where, field="labels")
    return labels >= 0
