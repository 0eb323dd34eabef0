"""Which built-in model is made how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from triptych.contract import ConfigError
from triptych_forge.builtin import detector
from triptych_forge.demo.recipe import BUILT_IN, folder_of
from triptych_forge.demo.recipe import STEPS as VLM_STEPS
from triptych_forge.demo.run import run_demo
from triptych_forge.report import ForgeReport
from triptych_forge.steps import Step

WORK = {"detector": Path("runs/forge-detector"), "distilled": Path("runs/forge-vlm")}
"""Usual work folders; ``python -m triptych_forge.vlm`` keeps its drives and checkpoints in the second, too."""
Begun = Callable[[int, Step], None] | None


def steps_of(model: str) -> tuple[str, ...]:
    """Names of a model's steps, in order."""
    return detector.STEPS if model == "detector" else VLM_STEPS


def build_model(model: str, data: Path, work: Path, threads: int, begun: Begun = None) -> tuple[ForgeReport, Path]:
    """Make a model; returns the report and the folder of the bundle.

    Args:
        model: ``detector`` or ``distilled``.
        data: folder with images/, video/ and detectors/.
        work: folder of checkpoints, steps and report.
        threads: of torch.
        begun: told number and step before each that runs.

    Raises:
        ConfigError: no such model or data folder.
        TriptychError: whatever a step finds wrong.
    """
    if not data.is_dir():
        raise ConfigError("no such folder", field="--data", value=data, remedy="name the folder of pictures")
    torch.set_num_threads(threads)
    if model == "detector":
        report = detector.build_detector(data, work, begun=begun)
        return report, work / f"{len(detector.STEPS):02d}-bundle" / "bundle"
    if model == "distilled":
        report = run_demo(work, BUILT_IN, threads, begun, data, work)
        return report, folder_of(work, "bundle") / "bundle"
    raise ConfigError("is no built-in model made here", field="model", value=model)
