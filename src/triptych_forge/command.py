"""``triptych forge``: the tool chain's commands.

Exit codes as everywhere: 0 fine, 1 a gate or check failed, 2 a mistake of the user's, in one sentence on stderr.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.table import Table

from triptych.contract import ConfigError
from triptych_forge.bundle import check_bundle
from triptych_forge.decisions import read_decisions
from triptych_forge.demo.recipe import STEPS, DemoRecipe, folder_of
from triptych_forge.operators import LIMIT, print_report, survey_operators
from triptych_forge.steps import Step
from triptych_forge.verify.command import verify_command

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
    table = Table()
    for column in ("step", "check", "held"):
        table.add_column(column, overflow="fold")
    for section in report.sections:
        for row in section.checks:
            table.add_row(section.title, row.text, "[green]yes[/]" if row.held else "[red]no[/]")
    console.print(table)
    console.print(f"report: {out / 'report.html'}\nbundle: {folder_of(out, 'bundle') / 'bundle'}", highlight=False)
    if not report.held:
        raise typer.Exit(EXIT_FAILED)


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
