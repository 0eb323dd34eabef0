"""What every step of the demonstration knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triptych.language.tokeniser import Vocabulary
from triptych_forge.common import progress_bar
from triptych_forge.decisions import DecisionLog
from triptych_forge.demo.engines import graph_bytes
from triptych_forge.demo.recipe import STUDENT, TEACHER, DemoRecipe, folder_of
from triptych_forge.prune.structured import load_pruned
from triptych_forge.report import Cell
from triptych_forge.vlm.judge import Figures
from triptych_forge.vlm.model import SHAPES, Vlm
from triptych_forge.vlm.scenes import SHARD, Scenes, load_scenes
from triptych_forge.vlm.train import averaged
from triptych_forge.vlm.words import make_vocabulary

TEST_SEED = 3_000_000
"""First seed of the drives that engines are judged on; those for training begin at 0."""
FIGURE_COLUMNS = ["engine", "bytes", "road %", "weather %", "light %", "advice %", "all fields %", "hazard F1"]


@dataclass(frozen=True)
class Context:
    """Recipe, folders and what is loaded anew by each step; a step may run long after the one before it."""

    recipe: DemoRecipe
    work: Path

    def folder(self, step: str) -> Path:
        """Of an earlier step."""
        return folder_of(self.work, step)

    def log(self, folder: Path) -> DecisionLog:
        """A fresh decision log in a step's folder: what an interrupted try wrote is not continued."""
        path = folder / "decisions.jsonl"
        path.unlink(missing_ok=True)
        return DecisionLog(path, asdict(self.recipe))

    @property
    def vocabulary(self) -> Vocabulary:
        """Of all models."""
        return make_vocabulary()

    def scenes(self, test: bool = False) -> Scenes:
        """Rendered drives to learn from, or to judge on."""
        first, count = (TEST_SEED, self.recipe.test_drives) if test else (0, self.recipe.drives)
        with progress_bar() as bar:
            task = bar.add_task("drives to judge on" if test else "drives to learn from", total=None, note="")

            def told(done: int, total: int) -> None:
                bar.update(task, completed=done * SHARD, total=total * SHARD)

            return load_scenes(self.work / "scenes", first, count, 2, told)

    def teacher(self) -> Vlm:
        """As trained."""
        return averaged(self.folder("teach") / "teacher.safetensors", self.vocabulary)

    def student(self) -> Vlm:
        """As distilled."""
        return averaged(self.folder("distil") / "distilled.safetensors", self.vocabulary)

    def pruned(self) -> Vlm:
        """As pruned and tuned with its teacher."""
        fresh = Vlm(SHAPES[STUDENT], len(self.vocabulary))
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
    return [name, graph_bytes(folder), *shares, float(found["hazard_f1"])]  # type: ignore[arg-type]


__all__ = ["FIGURE_COLUMNS", "SHAPES", "STUDENT", "TEACHER", "Context", "figure_row", "progress_of"]
