"""``triptych forge``: the tool chain's commands.

Exit codes as everywhere: 0 fine, 1 a gate or check failed, 2 a mistake of the user's, in one sentence on stderr.
"""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triptych.contract import ConfigError
from triptych_forge.bundle import check_bundle
from triptych_forge.decisions import read_decisions
from triptych_forge.demo.recipe import STEPS, DemoRecipe, folder_of
from triptych_forge.files import replace_folder
from triptych_forge.operators import LIMIT, print_report, survey_operators
from triptych_forge.prune.quiet import ANYWAY, busy_load, others_load, refuse_busy
from triptych_forge.steps import Step
from triptych_forge.verify.command import verify_command

if TYPE_CHECKING:
    from triptych_forge.report import ForgeReport

EXIT_FAILED = 1

app = typer.Typer(
    name="forge",
    help="Make models small and prove that they still agree: distil, prune, quantise, adapt, verify, bundle.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every file of a bundle, and the chain of its decision log."""
    bundle = check_bundle(folder)
    if as_json:
        print(json.dumps(bundle.model_dump(mode="json"), indent=1))
        return
    table = Table(title=f"{bundle.name} {bundle.version}")
    for column in ("file", "kind", "SHA-256"):
        table.add_column(column)
    for kind, files in (("content", bundle.content), ("evidence", bundle.evidence)):
        for name, digest in files.items():
            table.add_row(name, kind, digest[:16])
    console.print(table)
    console.print(f"content {bundle.content_sha256[:16]}, {bundle.decisions} decisions: all files are as listed.")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the steps, the bundle and the report.")] = Path(
        "forge_report"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = DemoRecipe.seed,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Of torch.")] = 2,
) -> None:
    """Distil, prune, quantise, adapt, verify and bundle a small model; exit 0 only if every check held."""
    from triptych_forge.demo.run import run_demo

    def begun(number: int, step: Step) -> None:
        console.rule(f"{number + 1} of {len(STEPS)}: {step.title}", align="left")

    report = run_demo(out, DemoRecipe(seed=seed), threads, begun)
    _show(report, out, folder_of(out, "bundle") / "bundle")


def _show(report: ForgeReport, work: Path, *bundles: Path) -> None:
    """Every check of a run; exit 1 if one did not hold."""
    table = Table()
    for column in ("step", "check", "held"):
        table.add_column(column, overflow="fold")
    for section in report.sections:
        for row in section.checks:
            table.add_row(section.title, row.text, "[green]yes[/]" if row.held else "[red]no[/]")
    console.print(table)
    console.print(f"report: {work / 'report.html'}", highlight=False)
    for bundle in bundles:
        console.print(f"model: {bundle}", highlight=False)
    if not report.held:
        raise typer.Exit(EXIT_FAILED)


class BuiltIn(str, enum.Enum):
    """What the built-in models are made as."""

    DETECTOR = "detector"
    VLM = "vlm"


@app.command()
def build(
    which: Annotated[BuiltIn, typer.Argument(help="The detector, or the VLMs of both tiers.")],
    data: Annotated[Path, typer.Option(help="Folder with images/, video/ and detectors/ as the documentation lists.")],
    work: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder of checkpoints, steps and report; default: runs/forge-detector or runs/forge-vlm."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", "-o", help="Put each model's folder there, e.g. models; default: they stay in the work folder."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Of torch.")] = 2,
) -> None:
    """Make built-in models from data to bundle: hours on two cores; interrupted, it goes on where it stopped.

    Exit 0 only if every check held; the bundles are written all the same, and the report says which did not.
    """
    from triptych_forge.builtin.run import build_models

    def begun(number: int, step: Step) -> None:
        console.rule(f"{number + 1}: {step.title}", align="left")

    report, place, bundles = build_models(which.value, data, work, threads, begun)
    if out is not None:
        for name, bundle in bundles.items():
            replace_folder(bundle, out / name)
        bundles = {name: out / name for name in bundles}
    _show(report, place, *bundles.values())


app.command("verify")(verify_command)


@app.command()
def operators(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Annotated[str, typer.Argument(help="A table of config/forge/operators, e.g. tensorrt-gpu.")],
    dim: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--dim", help="NAME=NUMBER: size of a free dimension, e.g. past=16."),
    ] = None,
    limit: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Greatest share of the work that may fall back.")
    ] = LIMIT,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Ask the library too, where it is installed.")
    ] = True,
) -> None:
    """Say which operators of a model a target covers; exit 0 only if little enough of the work would fall back."""
    report = survey_operators(model, target, dims=sizes_of(dim), limit=limit, probe=probe)
    print_report(report, console)
    if not report.accepted:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def profile(
    out: Annotated[Path, typer.Option("--out", "-o", help="YAML file, as those in config/forge/hardware.")],
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of the profile: lower-case letters, digits, `._-`; default: the file's."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the shapes, two passes instead of three.")
    ] = False,
    even_if_busy: Annotated[
        bool, typer.Option(ANYWAY, help="Write it although other programs were running; it says so itself.")
    ] = False,
) -> None:
    """Measure this machine's hardware profile with ONNX Runtime on one thread; leave the machine alone meanwhile."""
    from triptych.report.provenance import host
    from triptych_forge.common import progress_bar
    from triptych_forge.prune import measure
    from triptych_forge.prune.profile import save_profile

    name = out.stem if name is None else name
    checked_output(out)
    if not even_if_busy:
        refuse_busy(busy_load(others_load()))
    machine = host()
    kind = f"{machine.cpu}, {machine.cores} logical cores, {machine.memory_mb} MiB, {machine.architecture}, one thread"
    grids = measure.coarse(measure.DEFAULT_GRIDS) if quick else measure.DEFAULT_GRIDS
    with progress_bar() as bar:
        task = bar.add_task("operators", total=None, note="")
        found = measure.measure_profile(
            name, kind, grids, repeats=5 if quick else 9, passes=2 if quick else 3,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    if not even_if_busy:
        measure.refuse_busy(found)
    save_profile(out, found)
    assert found.measured is not None
    console.print(
        f"{out}: {found.peak_gmacs_per_s:g} G multiply-accumulates/s at most, memory {found.memory_gb_per_s:g} GB/s, "
        f"last cache {found.cache_gb_per_s:g} GB/s; repetitions differ by {found.measured.spread or 0.0:.1%}",
        highlight=False,
    )
    if not found.measured.quiet:
        console.print("[yellow]Measured on a busy machine: the file says so, and its figures are not to be trusted.[/]")


@app.command()
def sparsity(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    at_least: Annotated[int, typer.Option("--at-least", min=0, help="So many weights must follow the pattern.")] = 0,
) -> None:
    """Say which weights of a model are 2:4 sparse; exit 1 if fewer are than must be."""
    from triptych_forge.prune.sparsity import survey_2_4_onnx

    weights = survey_2_4_onnx(model)
    table = Table(title=str(model))
    for column in ("weight", "operator", "shape", "zeros", "2:4"):
        table.add_column(column, overflow="fold", justify="right" if column == "zeros" else "left")
    for weight in weights:
        shape = "x".join(map(str, weight.shape))
        table.add_row(
            escape(weight.name), weight.operator, shape, f"{weight.zeros:.1%}", "yes" if weight.follows else "no"
        )
    console.print(table)
    found = sum(weight.follows for weight in weights)
    enough = found >= at_least
    wanted = f", {at_least} must be" if at_least else ""
    console.print(f"{found} of {len(weights)} weights are 2:4 sparse{wanted}.", highlight=False)
    if not enough:
        raise typer.Exit(EXIT_FAILED)


def checked_output(path: Path) -> None:
    """Stop before long work whose result could not be written.

    Raises:
        ConfigError: a folder, or in one that cannot be written to.
    """
    if path.is_dir():
        raise ConfigError("is a folder", field="--out", value=str(path), remedy="name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}", field="--out", value=str(path), remedy="name another file"
        ) from None
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(
            "is in a folder that cannot be written to", field="--out", value=str(path), remedy="name another file"
        )


def sizes_of(texts: list[str] | None) -> dict[str, int]:
    """``["past=16"]`` as a mapping.

    Raises:
        ConfigError: not of that form.
    """
    sizes: dict[str, int] = {}
    for text in texts or []:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ConfigError("must be NAME=NUMBER", field="--dim", value=text)
        sizes[name] = int(number)
    return sizes


@app.command()
def log(
    path: Annotated[Path, typer.Argument(help="A decision log, decisions.jsonl.")],
    kind: Annotated[str, typer.Option(help="Only decisions whose kind begins so, e.g. prune.")] = "",
) -> None:
    """Show a decision log, after checking that no line was changed, removed or moved."""
    table = Table()
    for column in ("no.", "decision", "subject", "facts"):
        table.add_column(column, overflow="fold")
    for decision in read_decisions(path):
        if decision.kind.startswith(kind):
            facts = ", ".join(f"{name}={_short(value)}" for name, value in decision.facts.items())
            table.add_row(str(decision.number), decision.kind, decision.subject, facts)
    console.print(table)


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
