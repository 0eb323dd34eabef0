"""Train, export and judge a built-in VLM: ``python -m triptych_forge.vlm distilled|full --data FOLDER``.

Interrupted runs resume with the same command. Train ``full`` first: ``distilled`` then learns from it as well.
"""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from triptych.contract import TriptychError
from triptych_forge.common import load_checkpoint, progress_bar, seed_everything
from triptych_forge.vlm.model import SHAPES
from triptych_forge.vlm.real import Real, load_carla, load_stills
from triptych_forge.vlm.release import release
from triptych_forge.vlm.scenes import SHARD, Scenes, load_scenes, scenario_hash
from triptych_forge.vlm.teach import taught_by
from triptych_forge.vlm.train import RECIPES, averaged, train, with_numbers
from triptych_forge.vlm.words import make_vocabulary

VALIDATION_SEED, TEST_SEED = 1_000_000, 2_000_000
"""First seeds of the drives for picking and for the figures; training uses seeds from 0."""
JUDGED_DRIVES = 200


class Model(str, enum.Enum):
    """Which of the two."""

    DISTILLED = "distilled"
    FULL = "full"


def scenes_with_bar(cache: Path, first: int, drives: int, workers: int, what: str) -> Scenes:
    """Load or render drives under a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(f"rendering {what}", total=None, note="")
        return load_scenes(
            cache, first, drives, workers, lambda at, of: bar.update(task, completed=at * SHARD, total=of * SHARD)
        )


def main(
    model: Annotated[Model, typer.Argument(help="which model")],
    data: Annotated[Path | None, typer.Option(help="folder with images/ and video/; else no real pictures")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the model")] = None,
    work: Annotated[Path, typer.Option(help="folder of rendered drives and checkpoints")] = Path("runs/forge-vlm"),
    steps: Annotated[int | None, typer.Option(min=10, help="training steps")] = None,
    drives: Annotated[int | None, typer.Option(min=SHARD, help="training drives, a multiple of 20")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of everything random")] = None,
    threads: Annotated[int, typer.Option(min=1, max=64, help="torch threads")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=64, help="rendering processes")] = 2,
    judged: Annotated[int, typer.Option(min=SHARD, help="test drives, a multiple of 20")] = JUDGED_DRIVES,
    restart: Annotated[bool, typer.Option(help="ignore an earlier checkpoint")] = False,
    train_only: Annotated[bool, typer.Option(help="stop after the checkpoint")] = False,
    release_only: Annotated[bool, typer.Option(help="export and judge the checkpoint as it is")] = False,
) -> None:
    """Train a built-in VLM and write its graphs, vocabulary, golden picture, manifest and model card."""
    try:
        recipe = with_numbers(RECIPES[model.value], steps=steps, drives=drives, seed=seed)
        seed_everything(recipe.seed, threads)
        vocabulary = make_vocabulary()
        checkpoint = work / f"{recipe.model}.safetensors"
        if restart:
            checkpoint.unlink(missing_ok=True)
        if not release_only:
            scenes = scenes_with_bar(work, 0, recipe.drives, workers, "training drives")
            size = (SHAPES[recipe.model].width_px, SHAPES[recipe.model].height_px)
            none = Real((), ())
            stills, carla = (load_stills(data, size), load_carla(data, size)) if data else (none, none)
            typer.echo(f"{len(scenes)} drives, {len(stills.pictures)} stills, {len(carla.pictures)} CARLA frames")
            teacher = None
            full = work / "full.safetensors"
            if recipe.teacher_share > 0 and full.is_file():
                teacher = taught_by(averaged(full, vocabulary), vocabulary, scenes, work)
            elif recipe.teacher_share > 0:
                typer.echo(f"no teacher: {full} is not there; learning from the truth alone")
            train(recipe, vocabulary, scenes, stills, carla, checkpoint, teacher)
        if not train_only:
            validation = scenes_with_bar(work, VALIDATION_SEED, 2 * SHARD, workers, "validation drives")
            test = scenes_with_bar(work, TEST_SEED, judged, workers, "test drives")
            meta = load_checkpoint(checkpoint)[1]
            facts = {
                **meta["recipe"],
                "steps_done": meta["step"],
                "threads": threads,
                "minutes": round(meta["seconds"] / 60, 1),
                "torch": torch.__version__,
                "scenario": scenario_hash(),
                "loss": round(meta["loss"], 4),
            }
            target = out or Path("models") / f"triptych-{recipe.model}"
            with progress_bar() as bar:
                task = bar.add_task("judging", total=None, note="")
                figures = release(
                    averaged(checkpoint, vocabulary),
                    with_numbers(recipe, **_whole(meta["recipe"])),
                    data,
                    target,
                    validation,
                    test,
                    facts,
                    lambda at, of: bar.update(task, completed=at, total=of),
                )
            typer.echo(json.dumps(figures["test"], indent=1))
            typer.echo(f"written to {target}, recipe {asdict(recipe)}")
    except TriptychError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _whole(recipe: dict[str, object]) -> dict[str, int]:
    return {name: value for name in ("steps", "drives", "seed") if isinstance(value := recipe[name], int)}


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    typer.run(main)
