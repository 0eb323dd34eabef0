"""The result of a check, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

from triptych_forge.operators.probe import Probe


@dataclass(frozen=True)
class OperatorRow:
    """One operator of the model.

    Attributes:
        operator: name, with the domain unless it is ONNX's own.
        count, covered: nodes in all and covered; those computed once, when the model is loaded, count as covered.
        reasons: why nodes are not covered, each once.
        conditions: what the table asks for beyond what was checked.
        replacement: what to use instead.
        unit: what the shares are of: all ``products``, the other operators' ``bytes``, or the ``measured`` work.
        work_share, fallback_share: 0..1: all nodes' and the uncovered ones'.
    """

    operator: str
    count: int
    covered: int
    reasons: tuple[str, ...]
    conditions: str
    replacement: str
    unit: Literal["products", "bytes", "measured"]
    work_share: float
    fallback_share: float


@dataclass(frozen=True)
class OperatorReport:
    """Result of a check.

    Attributes:
        macs: multiply-accumulates of one run.
        macs_share: share of them that would fall back.
        bytes_share: share of the bytes that the other operators read and write, which would.
        share: what the limit is held against: the greater of both, or the share of the measured work.
        uncounted: uncovered nodes whose work is unknown; any of them makes the check fail.
        dims: lengths that free dimensions were given.
    """

    model: str
    target: str
    library: str
    version: str
    date: str
    rows: tuple[OperatorRow, ...]
    macs: float
    macs_share: float
    bytes_share: float
    share: float
    limit: float
    uncounted: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    probe: Probe | None = None

    @property
    def missing(self) -> tuple[OperatorRow, ...]:
        """Operators with uncovered nodes, the most work first."""
        return tuple(sorted((r for r in self.rows if r.covered < r.count), key=lambda r: -r.fallback_share))

    @property
    def accepted(self) -> bool:
        """Whether the export may go on."""
        return not self.uncounted and self.share <= self.limit


def print_report(report: OperatorReport, console: Console | None = None) -> None:
    """Print a survey as a table, the verdict below."""
    console = console or Console()
    console.print(table_of(report))
    verdict = "accepted" if report.accepted else "refused"
    console.print(
        f"{verdict}: {report.share:.1%} of the work falls back, at most {report.limit:.1%} may "
        f"({report.macs_share:.1%} of {report.macs / 1e6:.1f} million multiply-accumulates, "
        f"{report.bytes_share:.1%} of the other operators' bytes)"
    )
    if report.dims:
        console.print("free dimensions taken as " + ", ".join(f"{k}={v}" for k, v in sorted(report.dims.items())))
    if report.probe is not None:
        answer = "takes the model whole" if report.probe.takes_all else f"refuses a part: {report.probe.message}"
        console.print(f"{report.probe.library} {report.probe.version}, installed here, {answer}", markup=False)


def table_of(report: OperatorReport) -> Table:
    """The rows of a survey, uncovered operators first."""
    title = f"{report.model} on {report.target} ({report.library} {report.version}, looked up {report.date})"
    table = Table(title=title)
    for heading in ("operator", "nodes", "covered", "work", "falls back"):
        table.add_column(heading, justify="left" if heading == "operator" else "right")
    table.add_column("why; conditions", overflow="fold")
    table.add_column("replacement", overflow="fold")
    for row in sorted(report.rows, key=lambda r: (-r.fallback_share, r.covered == r.count, r.operator)):
        table.add_row(
            row.operator,
            str(row.count),
            str(row.covered),
            f"{row.work_share:.1%} of {row.unit}",
            f"{row.fallback_share:.1%}",
            "; ".join([*row.reasons, *([row.conditions] if row.conditions else [])]),
            row.replacement if row.covered < row.count else "",
            style="red" if row.covered < row.count else None,
        )
    return table
