"""``triptych gate`` and the gates of ``triptych replay``: check the run, say how it went, write the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triptych.contract import ConfigError, InputError
from triptych.gates import golden as files
from triptych.gates.limits import Comparison, LimitsFile, Outcome, bounds, compare, load_limits
from triptych.gates.metrics import METRICS
from triptych.replay.record import RunRecord
from triptych.report.provenance import provenance
from triptych.report.schema import write_text
from triptych.report.summary import without_folders

REPORT_VERSION = 1
REPORT = "gate.json"
COLOURS = {
    Outcome.HELD: "green",
    Outcome.NOT_APPLICABLE: "yellow",
    Outcome.UNMEASURED: "red",
    Outcome.MISSED: "red",
}
SHOWN = 40
"""Differences shown on the terminal; the JSON has all."""


@dataclass(frozen=True, slots=True)
class Gates:
    """What a run is to be held against; read and checked before it is made.

    Attributes:
        limits: see :func:`triptych.gates.limits.load_limits`; None without.
        compare: golden file; None without.
        golden: golden file to be written; None without.
        tolerance_s: by how much a decision may move.
    """

    limits: tuple[Path, LimitsFile] | None
    compare: tuple[Path, files.Golden] | None
    golden: Path | None
    tolerance_s: float = files.TOLERANCE_S

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.limits or self.compare or self.golden)

    @property
    def judge(self) -> bool:
        """Whether there is anything that can be missed."""
        return bool(self.limits or self.compare)


def gates_of(
    limits: Path | None, compare_with: Path | None, golden: Path | None, tolerance_s: float = files.TOLERANCE_S
) -> Gates:
    """Read what a run is to be held against.

    Raises:
        ConfigError, InputError: a file cannot be used, or the options do not go together.
    """
    if not (math.isfinite(tolerance_s) and 0.0 <= tolerance_s <= 1.0):
        raise ConfigError(
            "must be 0..1 s", field="--tolerance", value=tolerance_s, remedy="0.05 is a period of camera and command"
        )
    if compare_with is not None and golden is not None and compare_with.resolve() == golden.resolve():
        raise ConfigError(
            "would be replaced by what it is compared with",
            field="--golden",
            value=str(golden),
            remedy="compare first, and write it anew when every difference is meant",
        )
    if golden is not None and not golden.parent.is_dir():
        raise ConfigError("has no folder", field="--golden", value=str(golden), remedy=f"make {golden.parent} first")
    return Gates(
        None if limits is None else (limits, load_limits(limits)),
        None if compare_with is None else (compare_with, files.read_golden(compare_with)),
        golden,
        tolerance_s,
    )


def check(record: RunRecord, gates: Gates, out: Path, console: Console, data: Path | None = None) -> bool:
    """Hold a run against its gates, print what came of it and write ``gate.json`` into ``out``.

    Args:
        data: what the run is of, for the hash in the report.

    Returns:
        Whether everything held.

    Raises:
        ConfigError: an occasion of the limits file lies outside the run.
        InputError: the golden file is of other data, engines or configuration, or a file cannot be written.
    """
    (out / REPORT).unlink(missing_ok=True)  # an earlier verdict must not outlive a refusal
    for warning in record.warnings:
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False)
    report: dict[str, Any] = {"schema_version": REPORT_VERSION}
    held = True
    if gates.limits is not None:
        compared = compare(gates.limits[1], record, gates.limits[0])
        held &= compared.held
        show_limits(compared, console)
        report["limits"] = limits_report(compared)
        report["occasions"] = [o.model_dump() for o in gates.limits[1].occasions]
    if gates.compare is not None:
        path, golden = gates.compare
        found = divergences(record, golden, path, gates.tolerance_s)
        held &= not found
        show_divergences(found, golden, path, gates.tolerance_s, console)
        report["golden"] = {
            "version": golden.head.get("version"),
            "tolerance_s": gates.tolerance_s,
            "compared": len(golden.decisions),
            "divergences": [{"kind": d.kind.value, "golden": d.golden, "now": d.now} for d in found],
        }
    if gates.golden is not None:
        made = files.write_golden(record, gates.golden)
        console.print(f"golden: {gates.golden}, {len(made.decisions)} decisions", highlight=False, soft_wrap=True)
    if gates.judge:
        _write(report, held, record, gates, out, data)
        console.print(f"gate: {out / REPORT}", highlight=False, soft_wrap=True)
    return held


def divergences(record: RunRecord, golden: files.Golden, path: Path, tolerance_s: float) -> list[files.Divergence]:
    """How the run differs from the golden file.

    Raises:
        InputError: the two are not comparable; the message says what differs and how to make the golden file anew.
    """
    now = files.golden_of(record)
    others = files.differences_of_heads(golden.head, now.head)
    if others:
        more = f", and {len(others) - 3} more" if len(others) > 3 else ""
        raise InputError(
            f"is not of this run: {'; '.join(others[:3])}{more}",
            where=path,
            remedy="undo that, or if it is meant make the golden file anew with --golden and look at what changed",
        )
    return files.compare(golden.decisions, now.decisions, tolerance_s)


def show_limits(compared: Comparison, console: Console) -> None:
    """The table of limits, and a sentence for each that was not compared or not held."""
    table = Table(box=None, pad_edge=False)
    table.add_column("limit")
    table.add_column("metric", no_wrap=True)
    for name in ("value", "asked"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in compared.rows:
        name, value = escape(row.limit.name), _value(row.measured.value)
        outcome = f"[{COLOURS[row.outcome]}]{row.outcome.value}[/]"
        table.add_row(name, row.limit.metric, value, bounds(row.limit), outcome)
    console.print(table)
    for row in compared.rows:
        if row.outcome is Outcome.NOT_APPLICABLE:
            text = escape(f"{row.limit.name}: not compared: {row.limit.may_be_unmeasured}.")
            console.print(f"[yellow]{text}[/]", highlight=False, soft_wrap=True)
    for reason in compared.reasons:
        console.print(f"[red]{escape(reason)}[/]", highlight=False, soft_wrap=True)


def _value(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}" if math.isfinite(value) else "never"


def show_divergences(
    found: list[files.Divergence], golden: files.Golden, path: Path, tolerance_s: float, console: Console
) -> None:
    """The differences, the first one first."""
    asked = escape(f"{len(golden.decisions)} decisions of {path}, made by version {golden.head.get('version')}")
    if not found:
        console.print(f"[green]As before:[/] {asked}, within {tolerance_s:g} s.", highlight=False, soft_wrap=True)
        return
    counts = {kind: sum(d.kind is kind for d in found) for kind in files.Difference}
    summary = ", ".join(f"{count} {kind.value}" for kind, count in counts.items() if count)
    console.print(f"[red]Not as before:[/] {summary}, against {asked}.", highlight=False, soft_wrap=True)
    console.print(f"first divergence at {found[0].t_s:.3f} s:", highlight=False)
    for divergence in found[:SHOWN]:
        console.print(divergence.text(), highlight=False, markup=False, soft_wrap=True)
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN} more", highlight=False)


def limits_report(compared: Comparison) -> list[dict[str, Any]]:
    """The limits as the JSON has them; numbers are finite, what never came or was not measured is null."""
    found = []
    for row in compared.rows:
        value = row.measured.value
        finite = value is not None and math.isfinite(value)
        found.append(
            {
                **row.limit.model_dump(),
                "value": value if finite else None,
                "outcome": row.outcome.value,
                "text": row.measured.text,
            }
        )
    return found


def _write(report: dict[str, Any], held: bool, record: RunRecord, gates: Gates, out: Path, data: Path | None) -> None:
    configs = [named[0] for named in (gates.limits, gates.compare) if named is not None]
    meta: Mapping[str, Any] = record.meta
    document = {
        **report,
        "held": held,
        "run": {
            "mode": meta.get("mode"),
            "input": without_folders(str(meta.get("input", ""))),
            "identity": meta.get("identity"),
            "warnings": [without_folders(str(w)) for w in (*(meta.get("warnings") or ()), *record.warnings)],
        },
        "provenance": provenance(configs, {"tolerance_s": gates.tolerance_s}, data).model_dump(mode="json"),
    }
    write_text(out / REPORT, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def metrics_table() -> Table:
    """Every metric and what it is."""
    table = Table(box=None)
    for name in ("metric", "meaning"):
        table.add_column(name)
    for name, metric in METRICS.items():
        table.add_row(name, metric.text)
    return table
