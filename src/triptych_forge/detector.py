"""Training of the built-in detector's teacher and student; ``triptych forge build detector`` runs it.

The teacher is large and never leaves the desk; the student learns from the labels and from it. The runs are
reproducible: every picture's variation depends on the seed and its number only. They may be interrupted and
resumed; a checkpoint is a safetensors file without code.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from triptych.contract import ConfigError
from triptych_forge.common import load_checkpoint, progress_bar
from triptych_forge.data import NAMES, Sample, Variation, vary
from triptych_forge.detector_data import Pool
from triptych_forge.detector_net import STUDENT, TEACHER, Batch, DetectorNet, losses
from triptych_forge.distil.loop import Options, distil
from triptych_forge.distil.losses import detector_kd_loss

FULL = (448, 256)
CROP = (320, 192)

Said = tuple[torch.Tensor, torch.Tensor]
"""Class logits (B, A, C) and boxes (B, A, 4) px."""


NETS = {"teacher": TEACHER, "student": STUDENT}


@dataclass(frozen=True)
class Recipe:
    """Numbers of one training run.

    Attributes:
        crop_share: part of the steps on smaller crops, which are cheaper and denser.
        alpha: weight of the labels; the teacher has the rest.
        temperature: of the teacher's word, see :func:`detector_kd_loss`.
        mixed: matrices in bfloat16: several times as fast where they are multiplied in hardware.
    """

    model: str
    seed: int
    steps: int
    batch: int = 16
    crop_share: float = 0.55
    rate: float = 3e-3
    warm_up: int = 150
    decay: float = 0.03
    average: float = 0.998
    box_weight: float = 2.0
    clip_norm: float = 10.0
    alpha: float = 1.0
    temperature: float = 1.0
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.model not in NETS:
            raise ConfigError("is no detector", field="model", value=self.model, remedy=f"use one of {', '.join(NETS)}")


RECIPES = {
    "teacher": Recipe("teacher", seed=21, steps=5000, rate=2e-3, mixed=True),
    "student": Recipe("student", seed=22, steps=6000, rate=2e-3, alpha=0.5, temperature=2.0, mixed=True),
}


def network(model: str) -> DetectorNet:
    """An untrained network."""
    return DetectorNet(len(NAMES), NETS[model])


def make_batch(pool: Pool, recipe: Recipe, step: int) -> Batch:
    """The pictures of one step; depends on the seed and the step only."""
    size = CROP if step < recipe.steps * recipe.crop_share else FULL
    samples = []
    for index in range(recipe.batch):
        rng = np.random.default_rng((recipe.seed, step, index))
        samples.append(vary(pool.draw(rng), size, FULL, rng, Variation(), pool.cutouts))
    return collate(samples)


def collate(samples: list[Sample]) -> Batch:
    """Samples of equal size to padded tensors."""
    count = len(samples)
    most = max(1, *(len(s.boxes) for s in samples))
    most_ignored = max(1, *(len(s.ignored) for s in samples))
    boxes, labels = torch.zeros(count, most, 4), torch.full((count, most), -1, dtype=torch.long)
    ignored, known = torch.zeros(count, most_ignored, 4), torch.zeros(count, len(NAMES))
    for row, sample in enumerate(samples):
        boxes[row, : len(sample.boxes)] = torch.from_numpy(sample.boxes)
        labels[row, : len(sample.labels)] = torch.from_numpy(sample.labels)
        ignored[row, : len(sample.ignored)] = torch.from_numpy(sample.ignored)
        known[row, list(sample.known)] = 1.0
    images = torch.from_numpy(np.stack([s.image for s in samples])).permute(0, 3, 1, 2)
    return Batch(images.float().contiguous(memory_format=torch.channels_last), boxes, labels, known, ignored)


def batches(pool: Pool, recipe: Recipe, first: int) -> Iterator[Batch]:
    """Batches of the steps from ``first`` on, prepared one ahead in another thread."""
    with ThreadPoolExecutor(1) as worker:
        waiting: list[Future[Batch]] = [worker.submit(make_batch, pool, recipe, first)]
        for step in range(first, recipe.steps):
            if step + 1 < recipe.steps:
                waiting.append(worker.submit(make_batch, pool, recipe, step + 1))
            yield waiting.pop(0).result()


def loss_of(recipe: Recipe, said: Said, teacher: Said | None, batch: Batch) -> torch.Tensor:
    """The labels' loss and, with a teacher, its own beside it: α and 1 - α."""
    parts = losses(*said, batch)
    loss = parts.classes + recipe.box_weight * parts.boxes
    if teacher is None:
        return loss
    soft = detector_kd_loss(said, teacher, recipe.temperature)
    return recipe.alpha * loss + (1 - recipe.alpha) * (soft.classes + recipe.box_weight * soft.boxes)


def run(net: torch.nn.Module, batch: Batch, mixed: bool) -> Said:
    """Feed a batch."""
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        said: Said = net(batch.images)
    return said


def train(
    net: DetectorNet,
    pool: Pool,
    recipe: Recipe,
    checkpoint: Path,
    teacher: DetectorNet | None = None,
    save_every: int = 250,
    stop_after: int | None = None,
) -> DetectorNet:
    """Train, or resume where ``checkpoint`` left off; returns the averaged network in evaluation mode.

    Args:
        net: untrained, or a pruned one to be trained on.
        teacher: whom to learn from beside the labels.
        stop_after: end at that step of the same schedule, to be resumed or released as it is.

    Raises:
        ConfigError: the checkpoint belongs to another run; the loss is not finite.
    """
    net.to(memory_format=torch.channels_last)
    if teacher is not None:
        teacher.to(memory_format=torch.channels_last)
    recent = [0.0]
    with progress_bar() as bar:
        task = bar.add_task(f"training {recipe.model}", total=recipe.steps, note="")

        def loss(said: Said, taught: Said | None, batch: Batch) -> torch.Tensor:
            value = loss_of(recipe, said, taught, batch)
            recent[0] = 0.98 * recent[0] + 0.02 * float(value.detach()) if recent[0] else float(value.detach())
            return value

        def progress(done: int, last: int) -> None:
            bar.update(task, completed=done, total=last, note=f"loss {recent[0]:.3f}")
            if not bar.console.is_terminal and (done % save_every == 0 or done == last):
                typer.echo(f"step {done} of {recipe.steps}, loss {recent[0]:.3f}")

        distil(
            net, teacher, lambda first: batches(pool, recipe, first), loss, recipe.steps, recipe.rate, checkpoint,
            progress=progress,
            options=Options(recipe.warm_up, 0.02, recipe.decay, recipe.clip_norm, recipe.average, save_every),
            seed=recipe.seed,
            facts={"recipe": asdict(recipe), "pictures": pool.counts()},
            run_student=lambda model, batch: run(model, batch, recipe.mixed),
            run_teacher=lambda model, batch: run(model, batch, True),
            stop_after=stop_after,
        )  # fmt: skip
        bar.update(task, completed=stop_after or recipe.steps)
    return net


def trained(checkpoint: Path, model: str) -> tuple[DetectorNet, dict[str, Any]]:
    """The averaged network of a checkpoint in evaluation mode, and the facts saved with it.

    Raises:
        ConfigError: no such checkpoint.
    """
    if not checkpoint.is_file():
        raise ConfigError("no such checkpoint", where=checkpoint, remedy="run the step before, which trains it")
    saved, meta = load_checkpoint(checkpoint)
    net = network(model)
    net.load_state_dict(saved["average"])
    return net.eval(), meta
