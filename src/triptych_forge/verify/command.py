"""``triptych forge verify A B``: does B still say what A says?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_args

import numpy as np
import typer
import yaml
from pydantic import Field, ValidationError
from rich.console import Console
from rich.table import Table

from triptych.contract import ConfigError, TriptychError
from triptych.engines.manifest import Manifest
from triptych.report.provenance import provenance
from triptych.report.schema import Provenance
from triptych_forge.common import progress_bar, write_atomically
from triptych_forge.verify.classify import Finding, classify
from triptych_forge.verify.compression import (
    SCORE_CUT,
    CompressionLimits,
    CompressionReport,
    Metric,
    compression_gate,
    picture_inputs,
)
from triptych_forge.verify.conversion import ConversionLimits, ConversionReport, conversion_gate
from triptych_forge.verify.engines import (
    QUANTISERS,
    BundleSubject,
    Subject,
    check_pair,
    heads_of,
    manifest_of,
    open_subject,
)
from triptych_forge.verify.result import Check, Part
from triptych_forge.verify.samples import Feeds, Floats, Head, Sample, load_samples
from triptych_forge.verify.scenes import FIRST_SEED, drive_views, folder_views, to_samples

SCHEMA_VERSION = "1.0"
FILE = "fidelity.json"
Gate = Literal["auto", "conversion", "compression", "both"]
Progress = Callable[[str, int, int], None]
LOW_PRECISION = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "float16", "bfloat16", "float8", "float4")
PRUNED_SHARE = 0.9
"""Fewer parameters than this share of the original's mean that something was taken out."""
WORDS_PER_ANSWER = 18
"""Positions that one answer gives, on average; used to guess how many pictures are needed."""
PICTURES_MIN, PICTURES_MAX = 300, 2000
"""So many prove a loss below 3 % with a chance of 80 % even when 3 % of the answers differ."""
MAX_LOSS = 0.03
EXIT_FAILED, EXIT_USER = 1, 2


class Side(Part):
    """One of the two engines."""

    name: str = Field(description="Name and version, or file.")
    sha256: str = Field(description="Of its content.")
    bytes: int = Field(description="Size.")
    parameters: int = Field(description="Numbers in its weights.")
    numerics: list[str] = Field(description="Types of its weights, and its quantisers.")


class Report(Part):
    """``fidelity.json``."""

    schema_version: str = Field(SCHEMA_VERSION, description="major.minor; readers refuse another major number.")
    passed: bool = Field(description="Whether every gate passed.")
    gates: list[str] = Field(description="Which gates were asked.")
    reasons: list[str] = Field(description="One sentence per check that did not hold.")
    a: Side = Field(description="The original.")
    b: Side = Field(description="What was made of it.")
    data: str = Field(description="What they were compared on.")
    samples: int = Field(description="How many.")
    conversion: ConversionReport | None = Field(None, description="The conversion gate.")
    compression: CompressionReport | None = Field(None, description="The compression gate.")
    findings: list[Finding] = Field(description="Kinds of error, if a gate failed.")
    provenance: Provenance = Field(description="Code, settings, data, host, date.")


def load_report(path: Path) -> Report:
    """Read ``fidelity.json``.

    Raises:
        ConfigError: unreadable, another kind of file, another major version.
    """
    try:
        report = Report.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path) from None
    except ValidationError as error:
        raise ConfigError("is no fidelity report", where=path, value=error.errors()[0]["msg"]) from None
    if report.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ConfigError("is of another version", where=path, value=report.schema_version)
    return report


def verify(
    a: Path,
    b: Path,
    data: Path | None = None,
    out: Path | None = None,
    gate: Gate = "auto",
    positions: int | None = None,
    max_loss: float = MAX_LOSS,
    k: int = 1,
    logits: str | None = None,
    mapping: Mapping[str, str] | None = None,
    seed: int = FIRST_SEED,
    as_written: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare two engines and write ``fidelity.json``.

    Args:
        a: the original: an ONNX file or a bundle folder.
        b: what was made of it.
        data: ``.npz`` (see :func:`triptych_forge.verify.samples.load_samples`) or a folder of pictures; default: frames
            of the built-in drive.
        out: folder of ``fidelity.json``; default: none is written.
        gate: ``auto``: compression if ``b`` has a lower precision or fewer parameters than ``a``, else conversion.
        positions: fewest positions of the top-k match, and how many to draw; default: 9985, the fewest that can prove
            99.97 % at 95 %.
        max_loss: greatest loss of every task metric, shares 0..1.
        k: of the top-k match.
        logits: output whose last axis is classes, of a plain ONNX file; default: one called ``logits``.
        mapping: tensors of ``a`` to tensors of ``b``.
        seed: of the first drive, and of the bootstrap.
        as_written: judge both without graph optimisations, which for quantised graphs compute in other numerics; the
            optimised ones are then reported beside them.
        progress: told what is done, how far and of how much.

    Raises:
        TriptychError: engines that cannot be loaded or do not fit each other, data that cannot be used.
    """
    if gate not in get_args(Gate):
        raise ConfigError(f"unknown gate, known are {', '.join(get_args(Gate))}", field="--gate", value=gate)
    if positions is not None and positions < 1:
        raise ConfigError("must be 1 or more", field="--positions", value=positions)
    if not 0 < max_loss < 1:
        raise ConfigError("must lie between 0 and 1", field="--max-loss", value=max_loss)
    first, second = (open_subject(path, optimised=not as_written) for path in (a, b))
    manifest = manifest_of(a)
    check_pair(first, second)
    if first.name == second.name:
        first.name, second.name = f"{first.name} (A)", f"{second.name} (B)"
    facts = first.facts(), second.facts()
    limits = ConversionLimits(k=k, **({} if positions is None else {"positions_min": positions}))
    heads = heads_of(first, manifest, logits)
    samples, source = _samples(first, manifest, data, limits.positions_min, seed, _named(progress, "samples"))
    names = [gate] if gate != "auto" else ["compression" if compressed(*facts) else "conversion"]
    names = ["conversion", "compression"] if gate == "both" else names
    conversion = compression = None
    if "conversion" in names:
        conversion = conversion_gate(first, second, samples, heads, limits, mapping, _named(progress, "conversion"))
    if "compression" in names:
        metrics = task_metrics(first, heads, max_loss)
        look = any(head.kind != "values" for head in heads) and bool(picture_inputs(samples[0]))
        compression = compression_gate(
            first, second, samples, heads, metrics, CompressionLimits(), look=look, seed=seed,
            progress=_named(progress, "compression"),
        )  # fmt: skip
    verdicts = [v for v in (conversion, compression) if v is not None]
    passed = bool(verdicts) and all(v.passed for v in verdicts)
    report = Report(
        passed=passed,
        gates=names,
        reasons=[reason for v in verdicts for reason in v.reasons],
        a=Side(name=first.name, **facts[0]),
        b=Side(name=second.name, **facts[1]),
        data=source,
        samples=len(samples),
        conversion=conversion,
        compression=compression,
        findings=[] if passed else classify(first, second, samples, heads, mapping=mapping),
        provenance=provenance(
            settings={
                "gate": gate,
                "positions": positions,
                "max_loss": max_loss,
                "k": k,
                "logits": logits,
                "seed": seed,
                "as_written": as_written,
                "mapping": dict(mapping or {}),
                "a": facts[0]["sha256"],
                "b": facts[1]["sha256"],
            },
            data=data,
        ),
    )
    if out is not None:
        write_atomically(Path(out) / FILE, (report.model_dump_json(indent=1) + "\n").encode())
    return report


def compressed(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether ``b`` has weights of a lower precision, other quantisers or clearly fewer parameters than ``a``."""
    new = set(b["numerics"]) - set(a["numerics"])
    low = any(name.startswith(LOW_PRECISION) or name in QUANTISERS for name in new)
    return low or b["parameters"] < PRUNED_SHARE * a["parameters"]


def _samples(
    subject: Subject, manifest: Manifest | None, data: Path | None, positions: int, seed: int, progress: Any
) -> tuple[list[Sample], str]:
    frames = manifest.frames if manifest is not None else 1
    if data is None:
        wanted = -(-positions // WORDS_PER_ANSWER) if isinstance(subject, BundleSubject) else PICTURES_MIN
        count = min(max(wanted, PICTURES_MIN), PICTURES_MAX)
        views = drive_views(count, frames, seed)
        return to_samples(subject, manifest, views, count, progress), f"built-in drives from seed {seed}"
    if not data.exists():
        raise ConfigError("no such file or folder", where=data, field="--data")
    if data.is_dir():
        return to_samples(subject, manifest, folder_views(data, frames), None, progress), data.name
    return load_samples(data), data.name


def task_metrics(original: Subject, heads: Sequence[Head], max_loss: float) -> list[Metric]:
    """What the compressed engine must keep, per part of the output that holds classes.

    Logits: the share of positions with the right class (of the original's class where nobody knows it), and for a VLM
    whether all fields of an answer are right. Chances: F1 of the classes found against those that the original finds.

    Raises:
        ConfigError: no part holds classes.
    """
    metrics: list[Metric] = []
    for head in heads:
        if head.kind == "logits":
            metrics.append(Metric(f"right classes of {head.name}", _right_share(original, head), max_loss))
            if isinstance(original, BundleSubject):
                metrics.append(Metric("all fields right", _fields_right(original, head), max_loss))
        elif head.kind == "chances":
            metrics.append(Metric(f"agreement of {head.name}", _agreement(original, head), max_loss))
    if not metrics:
        raise ConfigError(
            "no output holds classes, so no task metric is known", where=original.name, remedy="name it by --logits"
        )
    return metrics


Value = Callable[[Subject, Sample, Feeds], float]


def _wanted(original: Subject, head: Head, sample: Sample) -> Any:
    if sample.targets is not None:
        return sample.targets[sample.targets >= 0]
    return head.counted(original.run(sample.feeds), sample).argmax(-1)


def _right_share(original: Subject, head: Head) -> Value:
    def value(_subject: Subject, sample: Sample, outputs: Feeds) -> float:
        said = head.counted(outputs, sample).argmax(-1)
        return float((said == _wanted(original, head, sample)).mean()) if said.size else float("nan")

    return value


def _fields_right(original: BundleSubject, head: Head) -> Value:
    fields = np.array([":" in token for token in original.vocabulary.tokens])

    def value(_subject: Subject, sample: Sample, outputs: Feeds) -> float:
        wanted = _wanted(original, head, sample)
        said = head.counted(outputs, sample).argmax(-1)
        asked = fields[wanted]
        return float((said == wanted)[asked].all()) if asked.any() else float("nan")

    return value


def _agreement(original: Subject, head: Head) -> Value:
    def value(subject: Subject, sample: Sample, outputs: Feeds) -> float:
        if subject is original:
            return 1.0
        mine: Floats = head.rows(outputs)
        theirs = head.rows(original.run(sample.feeds))
        found, wanted = mine >= SCORE_CUT, theirs >= SCORE_CUT
        total = int(found.sum() + wanted.sum())
        return 2.0 * int((found & wanted).sum()) / total if total else 1.0

    return value


def _named(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


def show(report: Report, console: Console) -> None:
    """The verdict as a table, then what explains it."""
    for name, verdict in (("conversion", report.conversion), ("compression", report.compression)):
        if verdict is None:
            continue
        table = Table(title=f"{name} gate: {report.a.name} → {report.b.name}, {verdict.samples} samples")
        for column in ("check", "found", "needed", "held", "note"):
            table.add_column(column, justify="right" if column in ("found", "needed") else "left", overflow="fold")
        for row in verdict.checks:
            table.add_row(*_cells(row))
        console.print(table)
        for note in verdict.notes:
            console.print(f"  note: {note}", highlight=False)
    if report.conversion is not None:
        _show_conversion(report.conversion, console)
    for finding in report.findings:
        numbers = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in finding.evidence.items())
        console.print(f"[bold]{finding.kind}[/]: {finding.sentence} ({numbers})", highlight=False)
    if report.passed:
        console.print("[bold green]They agree.[/]")
        return
    console.print("[bold red]They do not agree:[/]")
    for reason in report.reasons:
        console.print(f"  • {reason}", highlight=False)


def _cells(row: Check) -> tuple[str, ...]:
    sign = {"<=": "≤", ">=": "≥"}[row.relation]
    held = "[green]yes[/]" if row.passed else "[red]no[/]"
    return row.name, f"{row.value:.6g}", f"{sign} {row.limit:.6g}", held, row.note


def _show_conversion(verdict: ConversionReport, console: Console) -> None:
    table = Table(title="numerics")
    for column in ("one", "other", "relative L2", "top-1 match", "layers", "first diverging layer"):
        table.add_column(column, overflow="fold")
    for row in verdict.numerics:
        cells = (
            f"{row.relative_l2:.3g}",
            "–" if np.isnan(row.top_share) else f"{row.top_share:.4%}",
            str(row.layers_compared),
        )
        table.add_row(row.first, row.second, *cells, row.first_diverging_layer or "none")
    console.print(table)
    if verdict.first_divergent_token is not None:
        d = verdict.first_divergent_token
        sides = [", ".join(f"{c.text or c.token} {c.chance:.3f}" for c in side) for side in (d.top_a, d.top_b)]
        console.print(
            f"first divergent token: sample {d.sample}, position {d.position}: {sides[0]} → {sides[1]}",
            highlight=False,
        )


def read_mapping(path: Path) -> dict[str, str]:
    """A YAML or JSON file of tensor names, ``a: b``.

    Raises:
        ConfigError: unreadable, or no mapping of texts.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {str(error).splitlines()[0]}", where=path) from None
    if not isinstance(content, dict) or not all(isinstance(t, str) for pair in content.items() for t in pair):
        raise ConfigError("must map tensor names to tensor names", where=path, remedy="write one `a: b` per line")
    return content


# typer reads these annotations at run time, on Python 3.10 too: hence Optional instead of "| None".
def verify_command(
    a: Annotated[Path, typer.Argument(help="The original: an ONNX file or a bundle folder.")],
    b: Annotated[Path, typer.Argument(help="What was made of it.")],
    data: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--data", "-d", help="An .npz with one array per input, or a folder of pictures."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help=f"Folder of {FILE}.")] = Path("runs/verify"),
    gate: Annotated[str, typer.Option(help="auto, conversion, compression or both.")] = "auto",
    positions: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Fewest positions of the top-k match (default 9985: what proves 99.97 % at 95 %)."),
    ] = None,
    max_loss: Annotated[float, typer.Option(help="Greatest loss of every task metric, a share.")] = MAX_LOSS,
    k: Annotated[int, typer.Option(min=1, help="Of the top-k match.")] = 1,
    logits: Annotated[Optional[str], typer.Option(help="Output that holds classes.")] = None,  # noqa: UP045
    mapping: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="YAML or JSON: tensors of A to tensors of B."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the built-in drives.")] = FIRST_SEED,
    as_written: Annotated[bool, typer.Option("--as-written", help="Judge without graph optimisations.")] = False,
) -> None:
    """Compare two engines; exit 0 only if they agree, 1 if not, 2 if they cannot be compared."""
    console = Console()
    try:
        with progress_bar() as bar:
            tasks: dict[str, Any] = {}

            def told(what: str, done: int, total: int) -> None:
                if what not in tasks:
                    tasks[what] = bar.add_task(what, total=total, note="")
                bar.update(tasks[what], completed=done, total=total)

            report = verify(
                a, b, data, out, gate, positions, max_loss, k, logits,  # type: ignore[arg-type]
                read_mapping(mapping) if mapping is not None else None, seed, as_written, told,
            )  # fmt: skip
    except TriptychError as error:
        print(f"triptych: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USER) from None
    show(report, console)
    console.print(f"report: {out / FILE}", highlight=False)
    if not report.passed:
        raise typer.Exit(EXIT_FAILED)
