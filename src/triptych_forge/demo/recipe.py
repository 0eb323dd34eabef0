"""The numbers of a run from teacher to bundle, and the folder layout that its steps share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from triptych_forge.vlm.train import RECIPES, Recipe

NAME = "forge-demo"
TEACHER, STUDENT = "demo-teacher", "demo-student"
STEPS = ("render", "teach", "distil", "prune", "quantise", "adapt", "verify", "bundle")
SCENES = ("night", "rain", "works")
"""Adapters are made for these."""


@dataclass(frozen=True)
class DemoRecipe:
    """Numbers of one run; all of them decide the outcome.

    Attributes:
        seed: of everything random.
        drives: rendered drives to learn from; a multiple of 20, as the others.
        test_drives: to judge on.
        teacher_steps, student_steps: of training.
        batch: pictures per step.
        mend_steps: of each way to mend the alignment.
        prune_ratio: share of the prunable channels that goes.
        tune_steps: of training after pruning.
        calibration: pictures that ranges are taken from; as many more are held out.
        qat_steps: of quantisation-aware training of the decoder.
        adapter_steps, adapter_batches, rank: of the adapters: training, how many batches of 16 pictures, size.
        verify_positions: tokens compared under teacher forcing.
        max_loss: greatest loss of the compressed engine that the compression gate takes.
        teacher_share: of the teacher's word against the truth's.
        timed_runs: of every engine whose time decides.
        engine: name of what comes out.
        teacher, student: their shapes, of :data:`triptych_forge.vlm.model.SHAPES`.
        real: learn from real and foreign pictures too, where the data folder has them.
        control: train and tune the student without its teacher too, and try to mend its alignment.
    """

    seed: int = 41
    drives: int = 160
    test_drives: int = 60
    teacher_steps: int = 600
    student_steps: int = 600
    batch: int = 24
    mend_steps: int = 40
    prune_ratio: float = 0.4
    tune_steps: int = 250
    calibration: int = 48
    qat_steps: int = 80
    adapter_steps: int = 80
    adapter_batches: int = 24
    rank: int = 4
    verify_positions: int = 9985
    max_loss: float = 0.05
    teacher_share: float = 0.5
    timed_runs: int = 100
    engine: str = NAME
    teacher: str = TEACHER
    student: str = STUDENT
    real: bool = False
    control: bool = True

    def training(self, model: str, steps: int, teacher_share: float = 0.0) -> Recipe:
        """The training recipe of one model."""
        if model in RECIPES:
            return replace(RECIPES[model], steps=steps, drives=self.drives, teacher_share=teacher_share)
        return Recipe(
            model,
            self.seed,
            steps,
            self.batch,
            self.drives,
            warm_up=max(1, steps // 10),
            teacher_share=teacher_share,
            average=0.99,
        )


BUILT_IN = DemoRecipe(
    seed=RECIPES["distilled"].seed,
    drives=RECIPES["distilled"].drives,
    test_drives=200,
    teacher_steps=RECIPES["full"].steps,
    student_steps=RECIPES["distilled"].steps,
    batch=RECIPES["distilled"].batch,
    tune_steps=1500,
    calibration=96,
    qat_steps=300,
    adapter_steps=400,
    adapter_batches=200,
    verify_positions=30000,
    max_loss=0.03,
    timed_runs=200,
    engine="triptych-distilled",
    teacher="full",
    student="distilled",
    real=True,
    control=False,
)
"""The built-in model of the distilled tier; its teacher is that of the full tier."""


def folder_of(work: Path, step: str) -> Path:
    """Where a step leaves its files; as :func:`triptych_forge.steps.run_steps` lays them out."""
    return work / f"{STEPS.index(step) + 1:02d}-{step}"
