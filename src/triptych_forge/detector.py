"""Train, export and judge the built-in detector: ``python -m triptych_forge.detector --data FOLDER``.

The run is reproducible: every picture's variation depends on the seed and its number only. It may be interrupted and
resumed with the same command; the checkpoint is a safetensors file without code.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Optional

import numpy as np
import torch
import typer

from triptych.contract import ConfigError, TriptychError
from triptych_forge import detector_data
from triptych_forge.common import (
    flatten_optimiser,
    follow,
    load_checkpoint,
    progress_bar,
    restore_optimiser,
    save_checkpoint,
    seed_everything,
    warm_up_cosine,
)
from triptych_forge.data import NAMES, Sample, Variation, vary
from triptych_forge.detector_data import Pool
from triptych_forge.detector_net import Batch, DetectorNet, losses

FULL = (448, 256)
CROP = (320, 192)


@dataclass(frozen=True)
class Recipe:
    """Numbers of one training run. ``crop_share``: part of the steps on smaller crops, which are cheaper and denser."""

    seed: int = 20
    steps: int = 2800
    batch: int = 16
    crop_share: float = 0.55
    rate: float = 3e-3
    warm_up: int = 150
    decay: float = 0.03
    average: float = 0.998
    box_weight: float = 2.0
    clip_norm: float = 10.0


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine to 2 %."""
    return warm_up_cosine(recipe.rate, step, recipe.steps, recipe.warm_up)


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


def batches(pool: Pool, recipe: Recipe, first: int, last: int) -> Iterator[tuple[int, Batch]]:
    """Batches of the steps ``first`` to ``last`` - 1, prepared one ahead in another thread."""
    if first >= last:
        return
    with ThreadPoolExecutor(1) as worker:
        waiting: list[Future[Batch]] = [worker.submit(make_batch, pool, recipe, first)]
        for step in range(first, last):
            if step + 1 < last:
                waiting.append(worker.submit(make_batch, pool, recipe, step + 1))
            yield step, waiting.pop(0).result()


def train(
    pool: Pool, recipe: Recipe, checkpoint: Path, save_every: int = 250, stop_after: int | None = None
) -> DetectorNet:
    """Train, or resume where ``checkpoint`` left off; returns the averaged network in evaluation mode.

    ``stop_after`` ends the run at that step of the same schedule, to be resumed or released as it is.

    Raises:
        ConfigError: the checkpoint belongs to another recipe; the loss is not finite.
    """
    net = DetectorNet(len(NAMES)).to(memory_format=torch.channels_last)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.rate)
    average = {name: value.clone() for name, value in net.state_dict().items()}
    first, spent = 0, 0.0
    if checkpoint.is_file():
        saved, meta = load_checkpoint(checkpoint)
        if meta["recipe"] != asdict(recipe):
            raise ConfigError("belongs to another recipe", where=checkpoint, remedy="delete it or give --restart")
        net.load_state_dict(saved["net"])
        restore_optimiser(optimiser, saved["optimiser"])
        average, first, spent = saved["average"], int(meta["step"]), float(meta["seconds"])
    last = recipe.steps if stop_after is None else min(stop_after, recipe.steps)
    started = time.monotonic()
    smooth = [0.0, 0.0, 0.0]
    with progress_bar() as bar:
        task = bar.add_task("training detector", total=last, completed=first, note="")
        for step, batch in batches(pool, recipe, first, last):
            net.train()
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, step)
            parts = losses(*net(batch.images), batch)
            loss = parts.classes + recipe.box_weight * parts.boxes
            if not torch.isfinite(loss):
                raise ConfigError(f"the loss is not finite at step {step}", remedy="lower the learning rate")
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip_norm)
            optimiser.step()
            follow(average, net, min(recipe.average, (1 + step) / (10 + step)))
            values = (float(parts.classes.detach()), float(parts.boxes.detach()), parts.iou)
            smooth = [0.98 * s + 0.02 * v if step > first else v for s, v in zip(smooth, values, strict=True)]
            note = f"class {smooth[0]:.3f} box {smooth[1]:.3f} iou {smooth[2]:.2f}"
            bar.update(task, completed=step + 1, note=note)
            if (step + 1) % save_every == 0 or step + 1 == last:
                state = {"net": net.state_dict(), "average": average, "optimiser": flatten_optimiser(optimiser)}
                seconds = spent + time.monotonic() - started
                if not bar.console.is_terminal:
                    typer.echo(f"step {step + 1} of {recipe.steps}, {seconds / 60:.1f} min, {note}")
                save_checkpoint(
                    checkpoint, state, {"recipe": asdict(recipe), "step": step + 1, "seconds": seconds, "note": note}
                )
    net.load_state_dict(average)
    return net.eval()


def main(
    data: Annotated[
        Path, typer.Option(help="folder with images/, video/ and detectors/ as the documentation lists them")
    ],
    out: Annotated[Path, typer.Option(help="folder of the model")] = Path("models/triptych-detector"),
    work: Annotated[Path, typer.Option(help="folder of the checkpoint")] = Path("runs/forge-detector"),
    steps: Annotated[int, typer.Option(min=10, help="training steps")] = Recipe.steps,
    seed: Annotated[int, typer.Option(help="seed of everything random")] = Recipe.seed,
    threads: Annotated[int, typer.Option(min=1, max=64, help="torch threads")] = 2,
    restart: Annotated[bool, typer.Option(help="ignore an earlier checkpoint")] = False,
    stop_after: Annotated[Optional[int], typer.Option(min=10, help="end at this step of the schedule")] = None,  # noqa: UP045
    train_only: Annotated[bool, typer.Option(help="stop after the checkpoint")] = False,
) -> None:
    """Train the built-in detector and write detector.onnx, manifest.yaml, MODEL_CARD.md and golden.png."""
    try:
        recipe = Recipe(seed=seed, steps=steps)
        seed_everything(seed, threads)
        checkpoint = work / "checkpoint.safetensors"
        if restart:
            checkpoint.unlink(missing_ok=True)
        pool = detector_data.training_pool(data, seed)
        typer.echo(f"training pictures: {json.dumps(pool.counts())}, cut-outs: {len(pool.cutouts)}")
        net = train(pool, recipe, checkpoint, stop_after=stop_after)
        if not train_only:
            from triptych_forge.detector_release import release

            meta = load_checkpoint(checkpoint)[1]
            facts = {**asdict(recipe), "steps_done": int(meta["step"]), "threads": threads}
            release(net, data, out, facts, pool.counts(), meta["seconds"])
    except TriptychError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    typer.run(main)
