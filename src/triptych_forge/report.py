"""The report of a forge run: plain data (``report.json``) and a page made from it (``report.html``).

Steps describe what they found as sections of tables and charts; nothing here knows what a step does.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field

from triptych.contract import InputError
from triptych.report.html import page_environment
from triptych.report.schema import Provenance, write_text
from triptych.report.svg import INK, LINE, STYLE, to_svg
from triptych.viewing import words

SCHEMA_VERSION = 1
COLOURS = (words.BLUE, words.ORANGE, words.SKY, words.YELLOW, words.GREY)
Cell = float | int | str | bool | None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Table(_Model):
    """Rows under named columns. A number is shown with four significant digits; units stand in the column's name."""

    title: str = ""
    columns: list[str] = Field(min_length=1)
    rows: list[list[Cell]]
    note: str = ""

    def is_numeric(self, column: int) -> bool:
        """Whether a column is aligned as numbers: it holds some, and beside them nothing but gaps."""
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in cells)


class Series(_Model):
    """One named line, row of bars or cloud of points."""

    name: str
    x: list[float | str]
    y: list[float]


class Chart(_Model):
    """Series over one pair of axes. ``bars`` takes texts as x, ``line`` and ``scatter`` numbers.

    ``limit`` draws a dashed line at that y.
    """

    kind: Literal["bars", "line", "scatter"]
    title: str
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False
    limit: float | None = None
    series: list[Series] = Field(min_length=1)


class Check(_Model):
    """Something demanded: what, what was found, and whether it holds."""

    text: str
    held: bool


class Section(_Model):
    """What one step found."""

    key: str
    title: str
    text: str = ""
    checks: list[Check] = []
    tables: list[Table] = []
    charts: list[Chart] = []
    seconds: float = 0.0


class ForgeReport(_Model):
    """A whole run."""

    schema_version: int = SCHEMA_VERSION
    title: str
    summary: str = ""
    sections: list[Section]
    provenance: Provenance

    @property
    def checks(self) -> list[Check]:
        """Of all sections."""
        return [check for section in self.sections for check in section.checks]

    @property
    def held(self) -> bool:
        """Whether something was demanded and all of it holds."""
        return bool(self.checks) and all(check.held for check in self.checks)


def write_report(report: ForgeReport, folder: Path) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.html`` into ``folder``.

    Raises:
        InputError: a file cannot be written.
    """
    data, page = folder / "report.json", folder / "report.html"
    write_text(data, json.dumps(report.model_dump(mode="json"), indent=1) + "\n")
    write_text(page, render(report))
    return data, page


def read_report(path: Path) -> ForgeReport:
    """The inverse of :func:`write_report`.

    Raises:
        InputError: unreadable or not such a report.
    """
    try:
        return ForgeReport.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"is no forge report: {str(error).splitlines()[0]}", where=path) from None


def render(report: ForgeReport) -> str:
    """The page as HTML text; it loads nothing from anywhere."""
    environment = page_environment("triptych_forge.templates")
    environment.filters.update(cell=cell, chart=lambda chart: Markup(draw(chart)))
    return environment.get_template("forge.html.j2").render(report=report)


def cell(value: Cell) -> str:
    """A cell as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.2e}"


def draw(chart: Chart) -> str:
    """A chart as SVG."""
    with matplotlib.rc_context(STYLE):
        rows = max(len(s.x) for s in chart.series) if chart.kind == "bars" else 0
        height = 0.9 + 0.3 * rows * max(1, 0.7 * len(chart.series)) if chart.kind == "bars" else 3.0
        figure = Figure(figsize=(10.4, min(max(height, 1.8), 14.0)), layout="constrained")
        axes = figure.add_subplot()
        _DRAW[chart.kind](axes, chart)
        axes.grid(axis="x" if chart.kind == "bars" else "y", color=LINE)
        axes.set_axisbelow(True)
        if len(chart.series) > 1:
            figure.legend(loc="outside upper center", ncols=min(4, len(chart.series)), handlelength=1.2)
        return to_svg(figure, chart.title)


def _bars(axes: Axes, chart: Chart) -> None:
    labels = list(dict.fromkeys(str(x) for s in chart.series for x in s.x))
    thick = 0.8 / len(chart.series)
    for index, series in enumerate(chart.series):
        places = [labels.index(str(x)) + (index - (len(chart.series) - 1) / 2) * thick for x in series.x]
        axes.barh(places, series.y, height=thick * 0.9, color=COLOURS[index % len(COLOURS)], label=series.name)
        for place, value in zip(places, series.y):
            axes.annotate(cell(value), (value, place), (4, 0), textcoords="offset points", va="center", size=9)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(chart.y_label)
    if chart.log_y:
        axes.set_xscale("log")
    if chart.limit is not None:
        axes.axvline(chart.limit, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)


def _line(axes: Axes, chart: Chart) -> None:
    for index, series in enumerate(chart.series):
        axes.plot(series.x, series.y, marker="o", markersize=4, color=COLOURS[index % len(COLOURS)], label=series.name)
    _finish(axes, chart)


def _scatter(axes: Axes, chart: Chart) -> None:
    for index, series in enumerate(chart.series):
        axes.scatter(series.x, series.y, s=36, color=COLOURS[index % len(COLOURS)], label=series.name)
        for x, y in zip(series.x, series.y):
            axes.annotate(series.name, (x, y), (6, 4), textcoords="offset points", size=9)
    axes.margins(x=0.15, y=0.2)
    _finish(axes, chart)


def _finish(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log_y:
        axes.set_yscale("log")
    if chart.limit is not None:
        axes.axhline(chart.limit, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)


_DRAW = {"bars": _bars, "line": _line, "scatter": _scatter}
