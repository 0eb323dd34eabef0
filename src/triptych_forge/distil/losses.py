"""What a student is measured by: soft labels, boxes and features of its teacher.

Teachers' tensors are never differentiated. Half precision is widened to float32 before anything is summed up.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triptych.contract import ConfigError
from triptych_forge.detector_net import giou

TINY = 1e-12
"""Keeps a mean over nothing at 0 instead of 0/0."""
FALSE_ALARM_WEIGHT = 0.75
"""Of the square of the student's score where the teacher sees nothing, as in :func:`detector_net.losses`."""


def softened_kl(student_logits: Tensor, teacher_logits: Tensor, temperature: float, axis: int = -1) -> Tensor:
    """T² · KL(σ(z_T / T) ‖ σ(z_S / T)) in nats, one number per position.

    Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network (2015), section 2. The gradient by the student's
    logits is T · (σ(z_S / T) - σ(z_T / T)); for large T it no longer depends on T, which is what the T² is for.

    Args:
        student_logits, teacher_logits: floating, equal shapes, classes along ``axis``. A class that the teacher rules
            out (logit -inf) counts nothing.
        temperature: T > 0.

    Returns:
        The shape of the logits without ``axis``.

    Raises:
        ConfigError: unequal shapes, a temperature that is not above 0.
    """
    _check_equal(student_logits, teacher_logits)
    _check_temperature(temperature)
    log_student = torch.log_softmax(_wide(student_logits) / temperature, axis)
    log_teacher = torch.log_softmax(_wide(teacher_logits.detach()) / temperature, axis)
    chances = log_teacher.exp()
    terms = torch.where(chances > 0, chances * (log_teacher - log_student), torch.zeros_like(chances))
    return temperature**2 * terms.sum(axis)


def kd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    alpha: float,
    temperature: float,
    axis: int = -1,
    weights: Tensor | None = None,
) -> Tensor:
    """α · CE(y, ŷ_S) + (1 - α) · T² · KL(σ(z_T / T) ‖ σ(z_S / T)), the weighted mean over positions.

    Hinton et al. (2015), section 2, with :func:`softened_kl`; the cross-entropy is taken at temperature 1.

    Args:
        student_logits, teacher_logits: floating, equal shapes, classes along ``axis``.
        targets: class numbers, an integer tensor of the logits' shape without ``axis``; or distributions, a floating
            tensor of the logits' shape.
        alpha: α, share of the truth, 0..1.
        temperature: T > 0.
        weights: of the positions, bool or >= 0, broadcast to the logits' shape without ``axis``. Positions of weight 0
            are left out before anything is computed: whatever is there, NaN too, touches neither value nor gradient.

    Returns:
        Scalar in nats; 0 if every weight is 0.

    Raises:
        ConfigError: shapes, weights, a class number, α or T do not fit.
    """
    _check_equal(student_logits, teacher_logits)
    _check_share(alpha)
    student, teacher = student_logits.movedim(axis, -1), teacher_logits.detach().movedim(axis, -1)
    places, classes = student.shape[:-1], student.shape[-1]
    if targets.dtype.is_floating_point:
        _check_shape(targets, student_logits.shape, "targets")
        targets = _wide(targets.movedim(axis, -1))
    else:
        _check_shape(targets, places, "targets")
    weights = _spread(weights, places, student)
    keep = weights > 0
    student, teacher, targets, weights = _wide(student[keep]), teacher[keep], targets[keep], weights[keep]
    if not targets.dtype.is_floating_point:
        targets = targets.long()
        if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            wrong = targets[(targets < 0) | (targets >= classes)][0]
            raise ConfigError(
                f"must be class numbers below {classes}",
                field="targets",
                value=int(wrong),
                remedy="give positions without a truth the weight 0",
            )
    hard = functional.cross_entropy(student, targets, reduction="none")
    soft = softened_kl(student, teacher, temperature)
    return _mean(alpha * hard + (1 - alpha) * soft, weights)


def bernoulli_kl(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """T² · KL(Bernoulli(σ(z_T / T)) ‖ Bernoulli(σ(z_S / T))) in nats, element by element.

    :func:`softened_kl` for outputs that each have a sigmoid of their own; equal to it with the logits (z, 0).

    Raises:
        ConfigError: unequal shapes, a temperature that is not above 0.
    """
    _check_equal(student_logits, teacher_logits)
    _check_temperature(temperature)
    student, teacher = _wide(student_logits) / temperature, _wide(teacher_logits.detach()) / temperature
    log = functional.logsigmoid
    yes = teacher.sigmoid() * (log(teacher) - log(student))
    no = (-teacher).sigmoid() * (log(-teacher) - log(-student))
    return temperature**2 * (yes + no)


def bernoulli_kd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    targets: Tensor,
    alpha: float,
    temperature: float,
    weights: Tensor | None = None,
) -> Tensor:
    """α · BCE(y, ŷ_S) + (1 - α) · :func:`bernoulli_kl`, the weighted mean over elements: :func:`kd_loss` for detectors.

    Args:
        targets: floating 0..1, the logits' shape.
        weights: bool or >= 0, broadcast to the logits' shape; elements of weight 0 are left out altogether.

    Raises:
        ConfigError: shapes, weights, α or T do not fit.
    """
    _check_equal(student_logits, teacher_logits)
    _check_share(alpha)
    _check_shape(targets, student_logits.shape, "targets")
    weights = _spread(weights, student_logits.shape, student_logits)
    keep = weights > 0
    student = _wide(student_logits[keep])
    hard = functional.binary_cross_entropy_with_logits(student, targets[keep].to(student.dtype), reduction="none")
    soft = bernoulli_kl(student, teacher_logits[keep], temperature)
    return _mean(alpha * hard + (1 - alpha) * soft, weights[keep])


def _giou_terms(student: Tensor, teacher: Tensor) -> Tensor:
    return 1 - giou(student, teacher)[1]


def _l1_terms(student: Tensor, teacher: Tensor) -> Tensor:
    # In half perimeters of the teacher's box, so that a near object does not count more than a far one.
    side = (teacher[:, 2:] - teacher[:, :2]).mean(-1).clamp(min=1.0)
    return (student - teacher).abs().mean(-1) / side


BOX_TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"giou": _giou_terms, "l1": _l1_terms}
"""Per pair of boxes (N, 4): 1 - GIoU (Rezatofighi et al. 2019), or mean L1 distance by mean side (at least 1 px)."""


def box_distil_loss(
    student_boxes: Tensor, teacher_boxes: Tensor, confidence: Tensor, threshold: float = 0.3, kind: str = "giou"
) -> Tensor:
    """Boxes of the anchors that the teacher is sure of, weighted by how sure it is.

    Args:
        student_boxes, teacher_boxes: (..., A, 4) x0, y0, x1, y1 in px.
        confidence: (..., A) of the teacher, 0..1; anchors below ``threshold`` are left out.
        kind: a key of :data:`BOX_TERMS`.

    Returns:
        Scalar; 0 where the teacher is sure of nothing.

    Raises:
        ConfigError: shapes do not fit, an unknown kind.
    """
    if kind not in BOX_TERMS:
        raise ConfigError("is no box loss", field="kind", value=kind, remedy=f"use one of {', '.join(BOX_TERMS)}")
    _check_equal(student_boxes, teacher_boxes, "boxes")
    _check_shape(confidence, student_boxes.shape[:-1], "confidence")
    keep = confidence.detach() >= threshold
    terms = BOX_TERMS[kind](_wide(student_boxes[keep]), _wide(teacher_boxes.detach()[keep]))
    return _mean(terms, _wide(confidence.detach()[keep]))


class DetectorTerms(NamedTuple):
    """Parts of a detector's distillation loss, each a scalar, and how many anchors the teacher was sure of."""

    classes: Tensor
    boxes: Tensor
    confident: int


def detector_kd_loss(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    temperature: float,
    threshold: float = 0.3,
    kind: str = "giou",
) -> DetectorTerms:
    """The soft part of a detector's distillation; the truth is :func:`triptych_forge.detector_net.losses`.

    Classes: Σ w · :func:`bernoulli_kl` / max(1, Σ over the sure anchors of the teacher's best score), where
    w = max(p_T, 0.75 p_S²) at temperature 1. Nearly all anchors are background that both know; without w they would
    drown the few that matter.

    Args:
        student, teacher: what :class:`DetectorNet` gives, logits (B, A, C) and boxes (B, A, 4) in px.
        temperature: T > 0.
        threshold: an anchor's best score from which on the teacher is sure.
        kind: of box loss, see :func:`box_distil_loss`.

    Raises:
        ConfigError: shapes, kind or T do not fit.
    """
    _check_equal(student[0], teacher[0], "classes")
    scores, mine = _wide(teacher[0].detach()).sigmoid(), _wide(student[0].detach()).sigmoid()
    confidence = scores.amax(-1)
    sure = confidence >= threshold
    weight = torch.maximum(scores, FALSE_ALARM_WEIGHT * mine.square())
    total = (confidence * sure).sum().clamp(min=1.0)
    classes = (weight * bernoulli_kl(student[0], teacher[0], temperature)).sum() / total
    return DetectorTerms(classes, box_distil_loss(student[1], teacher[1], confidence, threshold, kind), int(sure.sum()))


class Observed(NamedTuple):
    """What a model gave, and the outputs of the layers that were watched."""

    out: Any
    features: dict[str, Tensor]


@contextmanager
def captured(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the context every run of ``model`` fills the yielded dict: layer name -> its output.

    Of a layer that gives a tuple, the first element is kept; of a layer that runs several times, the last run.
    Gradients flow through what was captured.

    Args:
        names: as in ``model.named_modules()``.

    Raises:
        ConfigError: a name that is not there; when the model runs, a layer whose output is no tensor.
    """
    seen: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            if not isinstance(first, Tensor):
                raise ConfigError("gives no tensor", where=type(model).__name__, field=name)
            # A copy: the layer behind may work in place (ReLU) and would change what was captured.
            seen[name] = first.clone()

        return keep

    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, 3) or list(modules)[:3]
            raise ConfigError(
                "is no layer of this model",
                where=type(model).__name__,
                field=name,
                remedy=f"name one like {', '.join(near)}" if near else None,
            )
    handles = [modules[name].register_forward_hook(keeper(name)) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def observed(names: Sequence[str], run: Callable[[nn.Module, Any], Any]) -> Callable[[nn.Module, Any], Observed]:
    """``run(model, batch)`` that also hands out the layers ``names``; for :func:`triptych_forge.distil.loop.distil`."""

    def watched(model: nn.Module, batch: Any) -> Observed:
        with captured(model, names) as seen:
            out = run(model, batch)
        return Observed(out, seen)

    return watched


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Within the context the models are in evaluation mode; afterwards every module is in the mode it was in."""
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@dataclass(frozen=True)
class LayerPair:
    """Which layer of the student learns from which of the teacher, and how much it counts."""

    student: str
    teacher: str
    weight: float = 1.0


class FeatureAlignment(nn.Module):
    """Σ_l w_l · mean (f_T,l - W_l · f_S,l)² with learned projections W_l.

    Romero et al.: FitNets (2015), equation 3, as a mean over elements instead of a sum, so that layers of different
    size count alike. W_l is a 1x1 convolution for maps (B, C, H, W) and a linear map for tokens (B, T, C) or
    vectors (B, C); it has no offset. A projected map whose height or width differs from the teacher's is resized
    to it, bilinearly.

    Args:
        pairs: the layers; a student's layer at most once.
        student_features, teacher_features: layer name -> an example of its output; only shapes matter.
        seed: of the projections' first values.

    Raises:
        ConfigError: no pair, an example that is missing, shapes that no projection joins: naming the layer.
    """

    def __init__(
        self,
        pairs: Sequence[LayerPair],
        student_features: Mapping[str, Tensor],
        teacher_features: Mapping[str, Tensor],
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        names = [pair.student for pair in self.pairs]
        if not names or len(set(names)) < len(names):
            problem = "names a student's layer twice" if names else "must name at least one layer"
            raise ConfigError(problem, where="feature alignment", field="pairs", value=names)
        projections: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for pair in self.pairs:
                student, teacher = _pick(student_features, pair.student), _pick(teacher_features, pair.teacher)
                _check_kinds(pair, student, teacher)
                kind = _PROJECTIONS[student.ndim]
                projections.append(kind(_channels(student), _channels(teacher)))
        self.projections = nn.ModuleList(projections)

    @classmethod
    def between(
        cls,
        student: nn.Module,
        teacher: nn.Module,
        pairs: Sequence[LayerPair],
        run_student: Callable[[nn.Module], Any],
        run_teacher: Callable[[nn.Module], Any],
        seed: int = 0,
    ) -> FeatureAlignment:
        """The alignment of two models, whose shapes are found by running each once on an example, in evaluation mode.

        Raises:
            ConfigError: as the constructor; a name that is no layer; a layer that the example does not reach.
        """
        with evaluating(student, teacher), torch.no_grad():
            with captured(student, [pair.student for pair in pairs]) as mine:
                run_student(student)
            with captured(teacher, [pair.teacher for pair in pairs]) as theirs:
                run_teacher(teacher)
        return cls(pairs, mine, theirs, seed)

    def project(self, layer: str, feature: Tensor) -> Tensor:
        """W_l · f_S of the student's layer ``layer``, at the student's resolution.

        Raises:
            ConfigError: a layer without a projection, a feature that does not fit it.
        """
        for pair, projection in zip(self.pairs, self.projections, strict=True):
            if pair.student == layer:
                assert isinstance(projection, (nn.Conv2d, nn.Linear))
                wanted = projection.weight.shape[1]
                if feature.ndim not in _PROJECTIONS or _channels(feature) != wanted:
                    raise ConfigError(
                        f"does not fit its projection, which takes {wanted} channels",
                        where="feature alignment",
                        field=layer,
                        value=tuple(feature.shape),
                    )
                projected: Tensor = projection(feature.to(projection.weight.dtype))
                return projected
        raise ConfigError("has no projection", where="feature alignment", field=layer)

    def terms(
        self, student_features: Mapping[str, Tensor], teacher_features: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Mean squared difference of each student's layer, not weighted.

        Raises:
            ConfigError: a feature that is missing or does not fit, naming the layer.
        """
        out = {}
        for pair in self.pairs:
            wanted = _pick(teacher_features, pair.teacher).detach()
            mine = self.project(pair.student, _pick(student_features, pair.student))
            _check_kinds(pair, mine, wanted)
            if mine.ndim == 4 and mine.shape[2:] != wanted.shape[2:]:
                mine = functional.interpolate(mine, wanted.shape[2:], mode="bilinear", align_corners=False)
            if mine.shape != wanted.shape:
                raise ConfigError(
                    f"gives {tuple(mine.shape)} for the teacher's {tuple(wanted.shape)}",
                    where="feature alignment",
                    field=pair.student,
                )
            out[pair.student] = (wanted.to(mine.dtype) - mine).square().mean()
        return out

    def forward(self, student_features: Mapping[str, Tensor], teacher_features: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of :meth:`terms`; a scalar."""
        terms = self.terms(student_features, teacher_features)
        return torch.stack([pair.weight * terms[pair.student] for pair in self.pairs]).sum()


def _linear(inside: int, outside: int) -> nn.Module:
    return nn.Linear(inside, outside, bias=False)


def _pointwise(inside: int, outside: int) -> nn.Module:
    return nn.Conv2d(inside, outside, 1, bias=False)


_PROJECTIONS: dict[int, Callable[[int, int], nn.Module]] = {2: _linear, 3: _linear, 4: _pointwise}
"""By the number of a feature's dimensions."""


def _channels(feature: Tensor) -> int:
    return int(feature.shape[1] if feature.ndim == 4 else feature.shape[-1])


def _pick(features: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in features:
        raise ConfigError(
            "gave nothing", where="feature alignment", field=name, remedy="name a layer that the model runs"
        )
    return features[name]


def _check_kinds(pair: LayerPair, student: Tensor, teacher: Tensor) -> None:
    """Maps go with maps, tokens with as many tokens."""
    both = f"{tuple(student.shape)} and {tuple(teacher.shape)}"
    field = f"{pair.student} -> {pair.teacher}"
    if student.ndim != teacher.ndim or student.ndim not in _PROJECTIONS:
        raise ConfigError(f"no projection joins shapes {both}", where="feature alignment", field=field)
    if student.ndim == 3 and student.shape[1] != teacher.shape[1]:
        raise ConfigError(
            f"has unequal numbers of tokens, shapes {both}",
            where="feature alignment",
            field=field,
            remedy="align layers with the same tokens, or their attention maps",
        )


def _wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _mean(terms: Tensor, weights: Tensor) -> Tensor:
    return (terms * weights).sum() / weights.sum().clamp(min=TINY)


def _spread(weights: Tensor | None, shape: torch.Size, like: Tensor) -> Tensor:
    """``weights`` as floats of ``shape``; ones where None."""
    kind = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
    if weights is None:
        return torch.ones(shape, dtype=kind, device=like.device)
    try:
        out = weights.detach().to(kind).broadcast_to(shape)
    except RuntimeError:
        raise ConfigError(
            f"do not fit positions of shape {tuple(shape)}", field="weights", value=tuple(weights.shape)
        ) from None
    if not bool((torch.isfinite(out) & (out >= 0)).all()):
        raise ConfigError("must be finite and not negative", field="weights")
    return out


def _check_equal(student: Tensor, teacher: Tensor, what: str = "logits") -> None:
    if student.shape != teacher.shape:
        raise ConfigError(
            f"of student and teacher have the shapes {tuple(student.shape)} and {tuple(teacher.shape)}", field=what
        )


def _check_shape(tensor: Tensor, shape: torch.Size, what: str) -> None:
    if tensor.shape != shape:
        raise ConfigError(f"must have the shape {tuple(shape)}", field=what, value=tuple(tensor.shape))


def _check_share(alpha: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError("must be 0 to 1", field="alpha", value=alpha)


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError("must be above 0", field="temperature", value=temperature)
