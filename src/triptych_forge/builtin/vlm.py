"""The built-in VLMs: the full tier's model, and the distilled tier's, which learns from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.contract import Frame
from triptych.engines.load import load_engine
from triptych_forge.demo.context import Context, progress_of
from triptych_forge.demo.recipe import BUILT_IN, STEPS, folder_of
from triptych_forge.demo.run import run_demo
from triptych_forge.detector_data import load_teacher
from triptych_forge.quantise.accept import measure_alternately
from triptych_forge.report import Cell, Check, ForgeReport, Section, Table
from triptych_forge.steps import Step
from triptych_forge.vlm import judge
from triptych_forge.vlm.release import CLIP, CLIP_SCORE, release
from triptych_forge.vlm.scenes import SHARD, load_scenes

VALIDATION_SEED, VALIDATION_DRIVES = 1_000_000, 2 * SHARD
"""Drives that golden pictures are picked from."""
FULL, DISTILLED = "triptych-full", "triptych-distilled"


def build_vlm(data: Path, work: Path, threads: int, begun: Callable[[int, Step], None] | None) -> ForgeReport:
    """Train the full tier's model, make the distilled tier's of it, and release both.

    Raises:
        TriptychError: whatever a step finds wrong.
    """
    return run_demo(work, BUILT_IN, threads, begun, data, work, {"release": ("Release", release_step)})


def bundles_of(work: Path) -> dict[str, Path]:
    """Name to folder of what :func:`build_vlm` leaves."""
    return {FULL: release_folder(work) / FULL, DISTILLED: folder_of(work, "bundle") / "bundle"}


def release_folder(work: Path) -> Path:
    """Of the last step."""
    return work / f"{len(STEPS) + 1:02d}-release"


def release_step(context: Context, folder: Path) -> Section:
    """Export and judge the teacher for the full tier, and hold the student against it and against what was asked."""
    recipe, assets = context.recipe, context.trained or context.work
    training = recipe.training(recipe.teacher, recipe.teacher_steps)
    facts = {**asdict(training), "threads": torch.get_num_threads(), "torch": torch.__version__}
    unseen = context.scenes(test=True)
    validation = load_scenes(assets, VALIDATION_SEED, VALIDATION_DRIVES, 2)
    with progress_of("judging the teacher") as progress:
        large = release(context.teacher(), training, context.data, folder / FULL, validation, unseen, facts, progress)
    small_folder = bundles_of(context.work)[DISTILLED]
    small = _judged(context, small_folder)
    ratio = _time_ratio(folder / FULL, small_folder)
    context.log(folder).add("release.judged", DISTILLED, figures=small, teacher=large["test"], time_ratio=ratio)
    return Section(
        key="",
        title="",
        text=f"The student takes {ratio:.0%} of its teacher's time for a whole answer.",
        checks=demanded(small, large["test"], ratio),
        tables=[
            Table(
                title="Unseen drives",
                columns=["figure", "teacher", "student"],
                rows=[_pair(name, large["test"], small) for name in small if not isinstance(small[name], dict)],
            ),
        ],
    )


def demanded(small: Mapping[str, Any], large: Mapping[str, Any], ratio: float) -> list[Check]:
    """What was asked of the distilled model; shares 0..1."""
    behind = max(float(large[name]) - float(small[name]) for name in ("advice", "hazards_found", "counts_within_one"))
    rows = [
        ("Advice right", small["advice"], 0.95, ">="),
        ("Hazards found", small["hazards_found"], 0.95, ">="),
        ("Hazards named falsely", small["hazards_false"], 0.05, "<="),
        ("Counts within one", small["counts_within_one"], 0.90, ">="),
        ("At most this far behind its teacher", behind, 0.03, "<="),
        ("Share of its teacher's time", ratio, 0.25, "<="),
    ]
    if "clip_vehicles" in small:
        rows.append(
            ("Agrees with the reference detector about a vehicle on the clip", small["clip_vehicles"], 0.9, ">=")
        )
    return [
        Check(
            text=f"{name}: {float(value):.1%} ({'at least' if sign == '>=' else 'at most'} {limit:.0%}).",
            held=float(value) >= limit if sign == ">=" else float(value) <= limit,
        )
        for name, value, limit, sign in rows
    ]


def _judged(context: Context, folder: Path) -> dict[str, Any]:
    engine = load_engine(folder)
    with progress_of("judging the student") as progress:
        figures: dict[str, Any] = judge.judge(engine, context.scenes(test=True), done=progress).as_dict()
    clip = context.data / "video" / CLIP if context.data is not None else None
    if context.data is not None and clip is not None and clip.is_file():
        figures["clip_vehicles"] = judge.vehicles_on_clip(engine, load_teacher(context.data, CLIP_SCORE), clip)
    engine.close()
    return figures


def _time_ratio(large: Path, small: Path, runs: int = 60) -> float:
    """Median time of the small engine's whole answer over the large one's, in turns, one thread each."""
    engines = [load_engine(large), load_engine(small)]
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (720, 1280, 3), np.uint8) for _ in range(4)]
    frames = [Frame(picture, i * 10**8, i + 1) for i, picture in enumerate(pictures)]
    runners = [lambda _feed, e=e: e.infer(frames[-e.frames_wanted :]) for e in engines]
    ratio = measure_alternately(runners[0], runners[1], [{}], runs).ratio
    for engine in engines:
        engine.close()
    return ratio


def _pair(name: str, large: Mapping[str, Any], small: Mapping[str, Any]) -> list[Cell]:
    return [name.replace("_", " "), large.get(name), small[name]]
