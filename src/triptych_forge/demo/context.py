"""What every step knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.language.tokeniser import Vocabulary
from triptych_forge.common import progress_bar
from triptych_forge.decisions import DecisionLog, fresh_log
from triptych_forge.demo.engines import graph_bytes
from triptych_forge.demo.recipe import DemoRecipe, folder_of
from triptych_forge.prune.structured import load_pruned
from triptych_forge.report import Cell
from triptych_forge.vlm.judge import Figures
from triptych_forge.vlm.model import SHAPES, Vlm
from triptych_forge.vlm.real import Real, load_carla, load_stills
from triptych_forge.vlm.scenes import SHARD, Scenes, load_scenes
from triptych_forge.vlm.train import averaged
from triptych_forge.vlm.words import make_vocabulary

TEST_SEED = 3_000_000
"""First seed of the drives that engines are judged on; those for training begin at 0."""
NOTHING = Real((), ())
FIGURE_COLUMNS = [
    "engine", "bytes", "road %", "weather %", "light %", "advice %", "all fields %", "hazard F1", "found %",
    "false %", "counts ±1 %",
]  # fmt: skip


@dataclass(frozen=True)
class Context:
    """Recipe, folders and what is loaded anew by each step; a step may run long after the one before it."""

    recipe: DemoRecipe
    work: Path
    data: Path | None = None
    """Folder of real and foreign pictures."""
    trained: Path | None = None
    """Folder of rendered drives and checkpoints that are kept apart from the steps; default: in ``work``."""

    def folder(self, step: str) -> Path:
        """Of an earlier step."""
        return folder_of(self.work, step)

    def log(self, folder: Path) -> DecisionLog:
        """A fresh decision log in a step's folder."""
        return fresh_log(folder / "decisions.jsonl", asdict(self.recipe))

    @property
    def vocabulary(self) -> Vocabulary:
        """Of all models."""
        return make_vocabulary()

    def real(self) -> tuple[Real, Real]:
        """Stills and simulated frames of the teacher's size, if the recipe wants them and they are there."""
        shape = SHAPES[self.recipe.teacher]
        size = (shape.width_px, shape.height_px)
        if not self.recipe.real or self.data is None:
            return NOTHING, NOTHING
        return load_stills(self.data, size), load_carla(self.data, size)

    def checkpoint(self, model: str, step: str, name: str) -> Path:
        """Of a training: in the step's folder, or by the model's name where checkpoints are kept apart."""
        if self.trained is None:
            return self.folder(step) / f"{name}.safetensors"
        return self.trained / f"{model}.safetensors"

    def scenes(self, test: bool = False) -> Scenes:
        """Rendered drives to learn from, or to judge on."""
        first, count = (TEST_SEED, self.recipe.test_drives) if test else (0, self.recipe.drives)
        with progress_bar() as bar:
            task = bar.add_task("drives to judge on" if test else "drives to learn from", total=None, note="")

            def told(done: int, total: int) -> None:
                bar.update(task, completed=done * SHARD, total=total * SHARD)

            return load_scenes(self.trained or self.work / "scenes", first, count, 2, told)

    def teacher(self) -> Vlm:
        """As trained."""
        return averaged(self.checkpoint(self.recipe.teacher, "teach", "teacher"), self.vocabulary)

    def student(self) -> Vlm:
        """As distilled."""
        return averaged(self.checkpoint(self.recipe.student, "distil", "distilled"), self.vocabulary)

    def pruned(self) -> Vlm:
        """As pruned and tuned with its teacher."""
        fresh = Vlm(SHAPES[self.recipe.student], len(self.vocabulary))
        return load_pruned(self.folder("prune") / "pruned.safetensors", fresh)[0].eval()  # type: ignore[return-value]


def progress_of(what: str) -> Any:
    """A bar as a context manager that gives the ``progress`` callback of the library's functions."""
    return _Bar(what)


class _Bar:
    def __init__(self, what: str) -> None:
        self._bar, self._what = progress_bar(), what

    def __enter__(self) -> Callable[[int, int], None]:
        self._bar.__enter__()
        task = self._bar.add_task(self._what, total=None, note="")
        return lambda done, total: self._bar.update(task, completed=done, total=total or None)

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)


def figure_row(name: str, folder: Path, figures: Figures) -> list[Cell]:
    """A row under :data:`FIGURE_COLUMNS`."""
    found = figures.as_dict()
    shares = [round(100 * float(found[key]), 1) for key in ("road", "weather", "light", "advice", "fields")]  # type: ignore[arg-type]
    more = [
        round(100 * float(found[key]), 1) if key in found else None  # type: ignore[arg-type]
        for key in ("hazards_found", "hazards_false", "counts_within_one")
    ]
    return [name, graph_bytes(folder), *shares, float(found["hazard_f1"]), *more]  # type: ignore[arg-type]


__all__ = ["FIGURE_COLUMNS", "SHAPES", "Context", "figure_row", "progress_of"]
