"""What the doctor says: rows of a level, a finding, a reason and a remedy; as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum

from rich.table import Table

SCHEMA_VERSION = 1


class Level(str, Enum):
    """OK: nothing to do. WARN: works, with the loss the row names. FAIL: the stack will not do its job here.

    MISSING: this machine does not have it; nothing relies on it, and with it the tail would be shorter.
    """

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class Row:
    """One finding.

    Attributes:
        section: group it is shown under.
        name: what was looked at; unique within its section.
        level: how good it is.
        value: what was found, short.
        reason: why that is so or what it means; for a choice, why it was made.
        remedy: what to do about it; empty when OK.
    """

    section: str
    name: str
    level: Level
    value: str
    reason: str = ""
    remedy: str = ""


Check = Callable[[], Iterable[Row]]


def run_checks(checks: Iterable[tuple[str, Check]]) -> tuple[Row, ...]:
    """Run checks in order; one that breaks becomes a WARN row of its section, so that the rest is still seen."""
    rows: list[Row] = []
    for section, check in checks:
        try:
            for row in check():
                rows.append(row)  # one by one: what came before a break is kept
        except Exception as error:
            name = check.__name__.replace("_", " ")
            text = f"{type(error).__name__}: {error}"
            rows.append(Row(section, name, Level.WARN, "not determined", text, "report this as a defect"))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All rows, with the version of Triptych and the time (UTC, ISO 8601) they were collected."""

    version: str
    created: str
    rows: tuple[Row, ...]

    @property
    def level(self) -> Level:
        """The worst level of all rows."""
        levels = {row.level for row in self.rows}
        return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)

    def to_json(self) -> str:
        """The report as JSON: ``schema_version``, ``version``, ``created``, ``level``, ``rows`` (see :class:`Row`)."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "version": self.version,
            "created": self.created,
            "level": self.level.value,
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)


STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red", Level.MISSING: "dim"}


def render(report: DoctorReport) -> Table:
    """The report as a table, grouped by section; remedies stand below their finding."""
    table = Table(title=f"Triptych {report.version}: {report.level.value}", title_justify="left", expand=False)
    table.add_column("", no_wrap=True)
    table.add_column("What", no_wrap=True)
    table.add_column("Found and why", overflow="fold")
    section = ""
    for row in report.rows:
        if row.section != section:
            if section:
                table.add_section()
            table.add_row("", f"[bold]{_plain(row.section)}[/bold]", "")
            section = row.section
        lines = [_plain(row.value)]
        if row.reason:
            lines.append(f"[dim]{_plain(row.reason)}[/dim]")
        if row.remedy:
            lines.append(f"[cyan]→ {_plain(row.remedy)}[/cyan]")
        style = STYLES[row.level]
        table.add_row(f"[{style}]{row.level.value}[/{style}]", _plain(row.name), "\n".join(lines))
    return table


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
