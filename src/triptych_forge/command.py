"""``triptych forge``: the tool chain's commands.

Exit codes as everywhere: 0 fine, 1 a gate or check failed, 2 a mistake of the user's, in one sentence on stderr.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from triptych_forge.bundle import check_bundle
from triptych_forge.decisions import read_decisions

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
