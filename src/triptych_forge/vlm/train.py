"""The training loop of both models: reproducible, resumable, on a few threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from triptych.contract import ConfigError
from triptych.language.tokeniser import Vocabulary
from triptych_forge.common import (
    flatten_optimiser,
    follow,
    load_checkpoint,
    progress_bar,
    restore_optimiser,
    save_checkpoint,
    warm_up_cosine,
)
from triptych_forge.vlm.batches import Batch, Sampler, Taught
from triptych_forge.vlm.model import SHAPES, Vlm
from triptych_forge.vlm.real import Real
from triptych_forge.vlm.scenes import Scenes


@dataclass(frozen=True)
class Recipe:
    """Numbers of one training run.

    Attributes:
        drives: training drives, of seeds 0 and following.
        groups: token rows per picture: the standing question and ``groups - 1`` others.
        teacher_share: weight of the teacher's distribution against the truth (distilled only).
        find_share: weight of finding objects in the picture, an exercise for the encoder alone.
        measure_share: weight of measuring the quantities that the advice follows from, another one.
        save_every: steps between two checkpoints.
    """

    model: str
    seed: int
    steps: int
    batch: int
    drives: int
    groups: int = 1
    rate: float = 1.5e-3
    warm_up: int = 200
    decay: float = 0.05
    average: float = 0.998
    teacher_share: float = 0.0
    find_share: float = 1.0
    measure_share: float = 1.0
    save_every: int = 100


RECIPES: dict[str, Recipe] = {
    "distilled": Recipe("distilled", seed=31, steps=6000, batch=32, drives=2400, teacher_share=0.5),
    "full": Recipe("full", seed=32, steps=6000, batch=24, drives=2400, groups=2),
}

FOUND_WEIGHT = 4.0
"""Objects fill about one cell in fifty."""


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine down to 2 %."""
    return warm_up_cosine(recipe.rate, step, recipe.steps, recipe.warm_up)


def prefetched(sampler: Sampler, first: int, steps: int) -> Iterator[tuple[int, Batch]]:
    """Batches ``first`` to ``steps - 1``, made two ahead in another thread; which ones does not depend on timing."""
    with ThreadPoolExecutor(1) as worker:
        source = sampler.batches(first)
        waiting: list[Future[Batch]] = []
        for step in range(first, steps):
            while len(waiting) < min(3, steps - step):
                waiting.append(worker.submit(next, source))
            yield step, waiting.pop(0).result()


def loss_of(logits: Tensor, batch: Batch, share: float) -> Tensor:
    """Weighted cross-entropy with the true next tokens; where a teacher spoke, ``share`` of it with its chances."""
    targets = torch.from_numpy(batch.tokens[:, 1:])
    weights = torch.from_numpy(batch.weights)
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    if batch.taught is not None and share > 0:
        taught = torch.from_numpy(batch.taught)
        soft = -(taught * torch.log_softmax(logits, -1)).sum(-1)
        shares = share * (taught.sum(-1) > 0)
        losses = (1 - shares) * losses + shares * soft
    return (losses * weights).sum() / weights.sum()


def finding_loss(found: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of what is where, over pictures with boxes; a cell with something counts ``FOUND_WEIGHT`` times."""
    known = torch.from_numpy(batch.objects_known)
    if not known.any():
        return found.sum() * 0.0
    weight = torch.full((1, 1, 1), FOUND_WEIGHT)
    return 20.0 * functional.binary_cross_entropy_with_logits(
        found[known], torch.from_numpy(batch.objects)[known], pos_weight=weight
    )


def measuring_loss(gauged: Tensor, batch: Batch) -> Tensor:
    """Whether each quantity is there (cross-entropy) and how much (smooth L1 of logarithms), where anybody knows."""
    wanted = torch.from_numpy(batch.measures)
    known, there = ~wanted[..., 0].isnan(), ~wanted[..., 1].isnan()
    if not known.any():
        return gauged.sum() * 0.0
    presence = functional.binary_cross_entropy_with_logits(gauged[..., 0][known], wanted[..., 0][known])
    if not there.any():
        return presence
    return presence + 2.0 * functional.smooth_l1_loss(gauged[..., 1][there], wanted[..., 1][there], beta=0.1)


def train(
    recipe: Recipe,
    vocabulary: Vocabulary,
    scenes: Scenes,
    stills: Real,
    carla: Real,
    checkpoint: Path,
    teacher: Taught | None = None,
) -> Vlm:
    """Train, or resume where ``checkpoint`` left off; returns the averaged network in evaluation mode.

    Raises:
        ConfigError: the checkpoint belongs to another recipe; the loss is not finite.
    """
    shape = SHAPES[recipe.model]
    model = Vlm(shape, len(vocabulary))
    model.encoder.to(memory_format=torch.channels_last)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.decay}, {"params": plain, "weight_decay": 0.0}], lr=recipe.rate
    )
    average = {name: value.clone() for name, value in model.state_dict().items()}
    first, spent = 0, 0.0
    if checkpoint.is_file():
        saved, meta = load_checkpoint(checkpoint)
        if meta["recipe"] != asdict(recipe):
            raise ConfigError("belongs to another recipe", where=checkpoint, remedy="delete it or give --restart")
        model.load_state_dict(saved["net"])
        restore_optimiser(optimiser, saved["optimiser"])
        average, first, spent = saved["average"], int(meta["step"]), float(meta["seconds"])
    sampler = Sampler(shape, scenes, stills, carla, vocabulary, recipe.batch, recipe.groups, recipe.seed, teacher)
    started = time.monotonic()
    smooth: float | None = None
    with progress_bar() as bar:
        task = bar.add_task(f"training {recipe.model}", total=recipe.steps, completed=first, note="")
        for step, batch in prefetched(sampler, first, recipe.steps):
            model.train()
            torch.manual_seed(recipe.seed * 1_000_003 + step)  # dropout of a resumed run is that of an unbroken one
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, step)
            with torch.autocast("cpu", torch.bfloat16):
                logits, seen = model(
                    torch.from_numpy(batch.frames),
                    torch.from_numpy(batch.ages_s),
                    torch.from_numpy(batch.tokens[:, :-1]),
                    recipe.groups,
                    None if batch.before is None else torch.from_numpy(batch.before),
                )
                found, gauged = model.encoder.found(seen), model.encoder.gauged(seen)
            loss = loss_of(logits.float(), batch, recipe.teacher_share)
            loss = loss + recipe.find_share * finding_loss(found.float(), batch)
            loss = loss + recipe.measure_share * measuring_loss(gauged.float(), batch)
            if not torch.isfinite(loss):
                raise ConfigError(f"the loss is not finite at step {step}", remedy="lower the learning rate")
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            follow(average, model, min(recipe.average, (1 + step) / (10 + step)))
            smooth = float(loss.detach()) if smooth is None else 0.98 * smooth + 0.02 * float(loss.detach())
            bar.update(task, completed=step + 1, note=f"loss {smooth:.3f}")
            if (step + 1) % recipe.save_every == 0 or step + 1 == recipe.steps:
                seconds = spent + time.monotonic() - started
                save_checkpoint(
                    checkpoint,
                    {"net": model.state_dict(), "average": average, "optimiser": flatten_optimiser(optimiser)},
                    {"recipe": asdict(recipe), "step": step + 1, "seconds": seconds, "loss": smooth},
                )
    model.load_state_dict(average)
    return model.eval()


def averaged(checkpoint: Path, vocabulary: Vocabulary) -> Vlm:
    """The averaged network of a checkpoint, in evaluation mode."""
    saved, meta = load_checkpoint(checkpoint)
    model = Vlm(SHAPES[meta["recipe"]["model"]], len(vocabulary))
    model.load_state_dict(saved["average"])
    return model.eval()


def with_numbers(recipe: Recipe, **changes: int | None) -> Recipe:
    """The recipe with those numbers replaced that are not None."""
    return replace(recipe, **{name: value for name, value in changes.items() if value is not None})


def parameters(model: Vlm) -> int:
    """How many numbers were learnt."""
    return int(np.sum([p.numel() for p in model.parameters()]))
