"""``triptych rt``: look, set if asked to, measure, and say it on the screen and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from triptych.doctor.report import STYLES, Row
from triptych.report.schema import write_text
from triptych.rt import collector, latency
from triptych.rt.figure import tails
from triptych.rt.latency import EDGES_US, Measurement
from triptych.rt.settings import Change, apply, examine

BAR = 40
POLICIES = ("other", "rr", "fifo")


@dataclass(frozen=True)
class Report:
    """Everything that was seen and done."""

    rows: list[Row]
    changes: list[Change]
    measurements: list[Measurement]
    collector: dict[str, Any] | None
    interval_us: int
    load_average: float
    provenance: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """As plain data, figures with the configuration and the host they are of."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "changes": [asdict(change) for change in self.changes],
            "interval_us": self.interval_us,
            "load_average": self.load_average,
            "bin_edges_us": list(EDGES_US),
            "measurements": [
                {
                    "policy": m.policy,
                    "loaded": m.loaded,
                    "refused": m.refused,
                    "missed": m.missed,
                    "counts": list(m.histogram.counts) if m.histogram else None,
                    **(m.histogram.summary() if m.histogram else {}),
                }
                for m in self.measurements
            ],
            "collector": self.collector,
            "provenance": self.provenance,
        }


def collect(seconds: float, interval_us: int, loaded: bool, change: bool, provenance: dict[str, Any]) -> Report:
    """Look, set and measure.

    Args:
        seconds: of each measurement.
        interval_us: between two wake-ups.
        loaded: measure beside a busy process per core as well.
        change: write the settings of rows that warn.
        provenance: for the report.

    Raises:
        ConfigError: seconds or interval out of range.
    """
    rows = examine()
    changes = apply(rows) if change else []
    if changes:
        rows = examine()
    busy = os.getloadavg()[0]
    measurements = [latency.measure(policy, seconds, interval_us) for policy in POLICIES]
    if loaded:
        with latency.load():
            measurements += [latency.measure(policy, seconds, interval_us, loaded=True) for policy in POLICIES]
    return Report(rows, changes, measurements, collector.in_a_process(), interval_us, busy, provenance)


def settings_table(rows: Iterable[Row]) -> Table:
    """What the machine offers."""
    table = Table("", "what", "found and why", title="Real time", title_justify="left")
    for row in rows:
        style = STYLES[row.level]
        lines = [text for text in (row.value, row.reason and f"[dim]{row.reason}[/]", row.remedy) if text]
        table.add_row(f"[{style}]{row.level.value}[/]", row.name, "\n".join(lines))
    return table


def latency_table(measurements: Iterable[Measurement]) -> Table:
    """One row per run."""
    names = ("min", "median", "p99", "p99_9", "max")
    table = Table("policy", "beside", *(f"{n.replace('_', '.')} µs" for n in names), "missed", title="Wake-up latency")
    for m in measurements:
        figures = m.histogram.summary() if m.histogram else {}
        cells = [f"{figures[f'{n}_us']:.0f}" for n in names] if figures else [m.refused, "", "", "", ""]
        table.add_row(m.policy, "a busy process per core" if m.loaded else "what ran", *cells, str(m.missed))
    return table


def bars(measurement: Measurement) -> str:
    """A histogram in characters: a line per bin from the first to the last that is not empty, bars logarithmic."""
    if measurement.histogram is None:
        return ""
    counts = measurement.histogram.counts
    filled = [number for number, count in enumerate(counts) if count]
    lines = []
    for number in range(filled[0], filled[-1] + 1):
        upper = f"< {EDGES_US[number]:>6}" if number < len(EDGES_US) else f"≥ {EDGES_US[-1]:>6}"
        width = round(BAR * counts[number].bit_length() / max(counts).bit_length())
        lines.append(f"{upper} µs {counts[number]:>8} {'█' * width}")
    return "\n".join(lines)


def show(report: Report, console: Console) -> None:
    """Print everything."""
    console.print(settings_table(report.rows))
    for change in report.changes:
        outcome = f"not written: {change.problem}" if change.problem else f"{change.before} → {change.after}"
        console.print(f"{change.path}: {outcome}", highlight=False)
    console.print(latency_table(report.measurements))
    for measurement in report.measurements:
        if measurement.histogram:
            beside = " beside load" if measurement.loaded else ""
            console.print(f"\n{measurement.policy}{beside}\n{bars(measurement)}", highlight=False)
    if report.collector is not None:
        seen = report.collector
        console.print(
            f"\nprocessor time of the garbage collector: a full run {seen['full_before_ms']:.1f} ms, "
            f"{seen['full_after_ms']:.3f} ms once a node has calmed it; in {seen['steps']} supervisor steps it ran "
            f"{seen['runs']} times, {seen['longest_ms']:.2f} ms at the longest",
            highlight=False,
        )


def write(report: Report, out: Path) -> None:
    """The report as JSON."""
    write_text(out, json.dumps(report.document(), indent=1, ensure_ascii=False) + "\n")


def draw(report: Report, out: Path) -> None:
    """The measurements as a figure (SVG)."""
    host = report.provenance.get("host", {})
    write_text(out, tails(report.measurements, f"{host.get('cpu', 'this machine')}, load {report.load_average:.1f}"))
