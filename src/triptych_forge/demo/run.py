"""All steps of the demonstration in order, and the report of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from triptych.report.provenance import provenance
from triptych_forge.common import seed_everything
from triptych_forge.demo import learn, prove, shrink
from triptych_forge.demo.context import Context
from triptych_forge.demo.recipe import DemoRecipe
from triptych_forge.report import ForgeReport, Section, write_report
from triptych_forge.steps import Step, run_steps

Titled = tuple[str, Callable[[Context, Path], Section]]
"""Title of a step for people, and what it does."""
TITLES: dict[str, Titled] = {
    "render": ("Render drives", learn.render),
    "teach": ("Train a teacher", learn.teach),
    "distil": ("Distil a student", learn.distil),
    "prune": ("Prune", shrink.prune_step),
    "quantise": ("Quantise", shrink.quantise_step),
    "adapt": ("Adapt to scenes", prove.adapt_step),
    "verify": ("Verify", prove.verify_step),
    "bundle": ("Bundle", prove.bundle_step),
}


def run_demo(
    out: Path,
    recipe: DemoRecipe = DemoRecipe(),  # noqa: B008 - frozen
    threads: int = 2,
    begun: Callable[[int, Step], None] | None = None,
    data: Path | None = None,
    trained: Path | None = None,
    more: Mapping[str, Titled] | None = None,
) -> ForgeReport:
    """Run what is not done yet, and write ``report.json`` and ``report.html`` into ``out``.

    Args:
        out: folder; each step has its own in it. An interrupted run goes on where it stopped.
        recipe: the numbers.
        threads: of torch.
        begun: told number and step before each that runs.
        data: folder of real and foreign pictures, if the recipe wants them.
        trained: see :class:`Context`.
        more: steps after the usual ones, by name.

    Raises:
        TriptychError: whatever a step finds wrong.
    """
    seed_everything(recipe.seed, threads)
    context = Context(recipe, out, data, trained)
    titles = {**TITLES, **(more or {})}

    def step(name: str) -> Step:
        title, run = titles[name]
        return Step(name, title, lambda folder: run(context, folder))

    sections = run_steps([step(name) for name in titles], out, asdict(recipe), begun)
    report = ForgeReport(
        title=f"{recipe.engine}: from a teacher to a bundle",
        summary="A vision-language model, distilled, pruned, quantised, adapted to scenes, verified and packed.",
        sections=sections,
        provenance=provenance(settings=asdict(recipe)),
    )
    write_report(report, out)
    return report
