"""Which built-in models are made how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from triptych.contract import ConfigError
from triptych_forge.builtin import detector, vlm
from triptych_forge.report import ForgeReport
from triptych_forge.steps import Step

Begun = Callable[[int, Step], None] | None


@dataclass(frozen=True)
class Made:
    """How models are made.

    Attributes:
        work: usual folder of checkpoints, steps and report.
        run: given data, work folder, threads and whom to tell of each step.
        bundles: name of engine to folder, given the work folder.
    """

    work: Path
    run: Callable[[Path, Path, int, Begun], ForgeReport]
    bundles: Callable[[Path], dict[str, Path]]


MADE = {
    "detector": Made(
        Path("runs/forge-detector"),
        lambda data, work, _threads, begun: detector.build_detector(data, work, begun=begun),
        lambda work: {"triptych-detector": work / f"{len(detector.STEPS):02d}-bundle" / "bundle"},
    ),
    "vlm": Made(Path("runs/forge-vlm"), vlm.build_vlm, vlm.bundles_of),
}


def build_models(
    which: str, data: Path, work: Path | None, threads: int, begun: Begun = None
) -> tuple[ForgeReport, Path, dict[str, Path]]:
    """Make the detector or both VLMs; returns the report, the work folder, and name to folder of each bundle.

    Args:
        which: a key of :data:`MADE`.
        data: folder with images/, video/ and detectors/.
        work: folder of checkpoints, steps and report; None: the usual one.
        threads: of torch.
        begun: told number and step before each that runs.

    Raises:
        ConfigError: no such model or data folder.
        TriptychError: whatever a step finds wrong.
    """
    if which not in MADE:
        raise ConfigError("is not made here", field="which", value=which, remedy=f"use one of {', '.join(MADE)}")
    if not data.is_dir():
        raise ConfigError("no such folder", field="--data", value=str(data), remedy="name the folder of pictures")
    torch.set_num_threads(threads)
    made = MADE[which]
    place = work or made.work
    return made.run(data, place, threads, begun), place, made.bundles(place)
