"""The training loop of a student: any models, any loss; interrupted or not, the result is the same."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych_forge.common import (
    flatten_optimiser,
    follow,
    load_checkpoint,
    restore_optimiser,
    save_checkpoint,
    warm_up_cosine,
)
from triptych_forge.decisions import DecisionLog, canonical
from triptych_forge.distil.losses import evaluating

Run = Callable[[nn.Module, Any], Any]
"""Feeds a batch to a model and gives what the loss needs of it."""
Loss = Callable[[Any, Any, Any], Tensor]
"""What the student gave, what the teacher gave (None without a teacher) and the batch, to a scalar."""
Batches = Callable[[int], Iterable[Any]]
"""The batches from a step on; the batch of a step must not depend on where it was begun."""

FORMAT = "triptych-distil-1"
STRIDE = 1_000_003
"""Between the seeds of two runs, so that runs of neighbouring seeds do not share steps' seeds."""
ENDS_STEPS = 20
"""Steps over which the log's first and last loss are means."""


@dataclass(frozen=True)
class Options:
    """Numbers of a run that rarely change.

    Attributes:
        warm_up_steps: over which the rate rises from near 0; then a cosine brings it down.
        final_share: of the rate, at the last step.
        weight_decay: of AdamW, on weights with more than one dimension.
        clip_norm: greatest norm of the gradient.
        average: decay per step of the averaged weights that the run ends with; 0: no averaging.
        save_every_steps: between two checkpoints.
    """

    warm_up_steps: int = 0
    final_share: float = 0.02
    weight_decay: float = 0.0
    clip_norm: float = 10.0
    average: float = 0.0
    save_every_steps: int = 100

    def __post_init__(self) -> None:
        for name, good in (
            ("warm_up_steps", self.warm_up_steps >= 0),
            ("final_share", 0 <= self.final_share <= 1),
            ("weight_decay", self.weight_decay >= 0),
            ("clip_norm", self.clip_norm > 0),
            ("average", 0 <= self.average < 1),
            ("save_every_steps", self.save_every_steps >= 1),
        ):
            if not good:
                raise ConfigError("is out of range", where="distillation", field=name, value=getattr(self, name))


DEFAULTS = Options()


@dataclass(frozen=True)
class Outcome:
    """How a run went.

    Attributes:
        losses: of every step from 0, also of those before an interruption.
        resumed_at_step: where this call began.
        seconds: of all calls together.
    """

    losses: tuple[float, ...]
    resumed_at_step: int
    seconds: float


def feed(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``: how a batch reaches a model unless told otherwise."""
    return model(batch)


def repeated(batches: Sequence[Any]) -> Batches:
    """A few fixed batches, round and round.

    Raises:
        ConfigError: there is none.
    """
    if not batches:
        raise ConfigError("there is no batch to learn from", where="distillation", field="batches")
    return lambda first: (batches[step % len(batches)] for step in itertools.count(first))


def learning_rate(rate: float, step: int, steps: int, options: Options = DEFAULTS) -> float:
    """Of ``step``, from 0: linear warm-up, then a cosine down to ``options.final_share`` of ``rate``."""
    return warm_up_cosine(rate, step, steps, options.warm_up_steps, options.final_share)


def digest(module: nn.Module | None) -> str:
    """SHA-256 over names, types, shapes and bytes of a module's weights and buffers; empty for None."""
    if module is None:
        return ""
    out = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        out.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        out.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return out.hexdigest()


def distil(
    student: nn.Module,
    teacher: nn.Module | None,
    batches: Batches,
    loss: Loss,
    steps: int,
    rate: float,
    checkpoint: Path | None = None,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    options: Options = DEFAULTS,
    seed: int = 0,
    subject: str = "student",
    facts: Mapping[str, Any] | None = None,
    companion: nn.Module | None = None,
    run_student: Run = feed,
    run_teacher: Run = feed,
    stop_after: int | None = None,
) -> Outcome:
    """Train ``student`` in place, or resume where ``checkpoint`` left off; it ends in evaluation mode.

    The teacher runs in evaluation mode, without gradients, and is not changed. Each step seeds torch with its own
    number, so dropout and the like do not depend on interruptions; torch's generator is put back at the end.

    Args:
        student: as it is before the first step, also when resuming.
        teacher: None for plain training with the same loop, e.g. as a control.
        batches: from a step on; see :func:`repeated`.
        loss: of what ``run_student`` and ``run_teacher`` gave, and the batch.
        steps: of the whole schedule.
        rate: greatest learning rate of AdamW.
        checkpoint: safetensors file, written every ``options.save_every_steps`` and at the end; None: not kept.
        log: gets ``distil.start`` and ``distil.end``.
        progress: called after each step with the number of steps done and their total.
        seed: >= 0.
        subject: name of the student in the log.
        facts: what else makes this run what it is (data, α, T): a checkpoint of other facts is refused.
        companion: learnt beside the student, e.g. :class:`FeatureAlignment`.
        run_student, run_teacher: feed a batch to the model, e.g. :func:`observed`.
        stop_after: end at this step of the same schedule, to be resumed.

    Raises:
        ConfigError: numbers out of range; a weight that is not finite; teacher and student share weights; nothing to
            learn; the checkpoint is damaged or belongs to another run; too few batches; a loss or gradient
            that is not finite, or a loss that does not depend on the student. The last checkpoint stays.
    """
    _check_numbers(steps, rate, seed)
    _check_models(student, teacher, companion)
    identity = json.loads(
        canonical(
            {
                "format": FORMAT,
                "steps": steps,
                "rate": rate,
                "seed": seed,
                "options": asdict(options),
                "facts": dict(facts or {}),
                "student": digest(student),
                "teacher": digest(teacher),
                "companion": digest(companion),
            }
        )
    )
    learners = nn.ModuleList([student] if companion is None else [student, companion])
    parameters = [p for p in learners.parameters() if p.requires_grad]
    if not any(p.requires_grad for p in student.parameters()):
        raise ConfigError("has no weight that may be learnt", where="distillation", field=subject)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)
    average = {name: value.detach().clone() for name, value in student.state_dict().items()}
    first, spent, losses = 0, 0.0, []
    if checkpoint is not None and checkpoint.is_file():
        saved, meta = _read(checkpoint, identity)
        # All is checked before anything is loaded: a bad file leaves the student as it was.
        net, kept = (_fitting(average, saved, group, checkpoint) for group in ("net", "average"))
        beside = {} if companion is None else companion.state_dict()
        beside = _fitting(beside, saved, "companion", checkpoint)
        student.load_state_dict(net)
        if companion is not None:
            companion.load_state_dict(beside)
        restore_optimiser(optimiser, saved["optimiser"])
        average = {name: kept[name].to(value.device) for name, value in average.items()}
        first, spent, losses = int(meta["step"]), float(meta["seconds"]), saved["history"]["loss"].tolist()
    last = steps if stop_after is None else min(stop_after, steps)
    started = time.monotonic()
    if log is not None and first < last:
        log.add(
            "distil.start",
            subject,
            first_step=first,
            last_step=last,
            student_parameters=_count(student),
            teacher_parameters=None if teacher is None else _count(teacher),
            run=identity,
        )
    source = iter(batches(first))
    with torch.random.fork_rng(devices=[]), evaluating(*([] if teacher is None else [teacher])):
        learners.train()
        try:
            for step in range(first, last):
                batch = _next(source, step, last)
                torch.manual_seed(seed * STRIDE + step)
                for group in optimiser.param_groups:
                    group["lr"] = learning_rate(rate, step, steps, options)
                with torch.no_grad():
                    said = None if teacher is None else run_teacher(teacher, batch)
                value = loss(run_student(student, batch), said, batch)
                _check_loss(value, step)
                optimiser.zero_grad(set_to_none=True)
                value.backward()
                norm = torch.nn.utils.clip_grad_norm_(parameters, options.clip_norm)
                _check_finite(norm, "gradient", step)
                optimiser.step()
                follow(average, student, min(options.average, (1 + step) / (10 + step)))
                losses.append(float(value.detach()))
                done = step + 1
                if checkpoint is not None and (done % options.save_every_steps == 0 or done == last):
                    save_checkpoint(
                        checkpoint,
                        {
                            "net": student.state_dict(),
                            "average": average,
                            "optimiser": flatten_optimiser(optimiser),
                            "companion": {} if companion is None else companion.state_dict(),
                            "history": {"loss": torch.tensor(losses, dtype=torch.float64)},
                        },
                        {"run": identity, "step": done, "seconds": spent + time.monotonic() - started},
                    )
                if progress is not None:
                    progress(done, last)
        finally:
            # A generator that prepares batches in a thread ends it when closed.
            close = getattr(source, "close", None)
            if close is not None:
                close()
    student.load_state_dict(average)
    learners.eval()
    optimiser.zero_grad(set_to_none=True)
    seconds = spent + time.monotonic() - started
    if log is not None and first < last:
        log.add(
            "distil.end",
            subject,
            steps_done=len(losses),
            loss_first=_level(losses[:ENDS_STEPS]),
            loss_last=_level(losses[-ENDS_STEPS:]),
            seconds=round(seconds, 3),
            student=digest(student),
        )
    return Outcome(tuple(losses), first, seconds)


def _level(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _next(source: Any, step: int, last: int) -> Any:
    try:
        return next(source)
    except StopIteration:
        raise ConfigError(
            f"ended before step {step} of {last}",
            where="distillation",
            field="batches",
            remedy="give more, or fewer steps",
        ) from None


def _read(checkpoint: Path, identity: Mapping[str, Any]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """A checkpoint of this very run, whole."""
    try:
        saved, meta = load_checkpoint(checkpoint)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", where=checkpoint, remedy="delete it and begin anew") from None
    other = meta.get("run")
    if not isinstance(other, dict) or other.get("format") != FORMAT:
        raise ConfigError("is no checkpoint of a distillation", where=checkpoint, remedy="name another file")
    for key, value in identity.items():
        if canonical(other.get(key)) != canonical(value):
            raise ConfigError(
                "belongs to another run",
                where=checkpoint,
                field=key,
                value=other.get(key),
                remedy="delete it, or start as that run did",
            )
    missing = [key for key in ("step", "seconds") if key not in meta]
    missing += [group for group in ("history", "optimiser") if not saved.get(group)]
    if missing:
        raise ConfigError(f"lacks {', '.join(missing[:4])}", where=checkpoint, remedy="delete it and begin anew")
    return saved, meta


def _fitting(
    wanted: Mapping[str, Tensor], saved: Mapping[str, Mapping[str, Tensor]], group: str, where: Path
) -> dict[str, Tensor]:
    """The tensors of ``group``: all that are wanted and no others, of the right shapes."""
    tensors = saved.get(group, {})
    problems = {
        "lacks": [name for name in wanted if name not in tensors],
        "holds the unknown": [name for name in tensors if name not in wanted],
        "holds with another shape": [n for n, t in tensors.items() if n in wanted and t.shape != wanted[n].shape],
    }
    found = [f"{problem} {', '.join(names[:4])}" for problem, names in problems.items() if names]
    if found:
        raise ConfigError("; ".join(found), where=where, field=group, remedy="delete it and begin anew")
    return dict(tensors)


def _check_numbers(steps: int, rate: float, seed: int) -> None:
    for name, value, good in (
        ("steps", steps, steps >= 1),
        ("rate", rate, math.isfinite(rate) and rate > 0),
        ("seed", seed, seed >= 0),
    ):
        if not good:
            raise ConfigError("is out of range", where="distillation", field=name, value=value)


def _check_models(student: nn.Module, teacher: nn.Module | None, companion: nn.Module | None) -> None:
    for role, module in (("student", student), ("teacher", teacher), ("companion", companion)):
        for name, tensor in module.state_dict().items() if module is not None else ():
            if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
                raise ConfigError("holds a number that is not finite", where=role, field=name)
    if teacher is not None:
        mine = {id(p) for p in student.parameters()}
        shared = [name for name, p in teacher.named_parameters() if id(p) in mine]
        if shared:
            raise ConfigError(
                "shares weights with its student", where="teacher", field=shared[0], remedy="copy the model first"
            )


def _check_loss(value: Tensor, step: int) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ConfigError("must be one number", where="distillation", field="loss", value=type(value).__name__)
    _check_finite(value.detach(), "loss", step)
    if not value.requires_grad:
        raise ConfigError("does not depend on the student", where="distillation", field="loss")


def _check_finite(value: Tensor, what: str, step: int) -> None:
    if not bool(torch.isfinite(value).all()):
        raise ConfigError(
            f"is not finite at step {step}",
            where="distillation",
            field=what,
            value=float(value.reshape(-1)[0]),
            remedy="lower the learning rate or look at the batch",
        )
