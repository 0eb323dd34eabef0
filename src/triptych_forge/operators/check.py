"""The check itself: nodes against a table, work against a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.operators.coverage import why_not
from triptych_forge.operators.graph import Node, list_nodes
from triptych_forge.operators.probe import PROBES
from triptych_forge.operators.report import OperatorReport, OperatorRow
from triptych_forge.operators.tables import OperatorTable, load_table

LIMIT = 0.05
"""Share of the work that may fall back unless another limit is given."""


def check_operators(
    model_path: Path,
    target: str,
    work: Mapping[str, float] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    limit: float = LIMIT,
    probe: bool = True,
    folder: Path | None = None,
    log: DecisionLog | None = None,
) -> OperatorReport:
    """Survey a model and refuse it where more than ``limit`` of its work would fall back.

    Args:
        model_path: the ONNX file.
        target: a name of :func:`known_targets`.
        work: measured work per node name, in any unit (milliseconds, say); counted from shapes where None.
        dims: lengths of the model's free dimensions on the target.
        limit: greatest share of the work, 0..1.
        probe: ask the library too, where one is installed.
        folder: of the tables, instead of the shipped ones.
        log: takes the decision ``operators.check``.

    Returns:
        The survey, accepted.

    Raises:
        ConfigError: refused, naming the operators; what :func:`survey_operators` raises.
    """
    report = survey_operators(model_path, target, work, dims=dims, limit=limit, probe=probe, folder=folder)
    if log is not None:
        log.add(
            "operators.check",
            target,
            model=report.model,
            table=f"{report.library} {report.version}, {report.date}",
            share=report.share,
            macs_share=report.macs_share,
            bytes_share=report.bytes_share,
            limit=limit,
            accepted=report.accepted,
            not_covered={row.operator: row.count - row.covered for row in report.missing},
        )
    refuse_fallback(report)
    return report


def refuse_fallback(report: OperatorReport) -> None:
    """Stop an export whose check was not accepted.

    Raises:
        ConfigError: naming the operators that are not covered, the share and the limit.
    """
    if report.accepted:
        return
    names = ", ".join(f"{r.operator} ({r.count - r.covered} of {r.count}: {r.reasons[0]})" for r in report.missing)
    share = f"{report.share:.1%} of the work would fall back, more than {report.limit:.1%}"
    if report.uncounted:
        share = f"how much work would fall back is unknown, as are the shapes of {', '.join(report.uncounted[:3])}"
    hints = [f"{r.operator} by {r.replacement}" for r in report.missing if r.replacement]
    raise ConfigError(
        f"{report.target} does not cover {names}; {share}",
        where=report.model,
        remedy=f"replace {', '.join(hints)}" if hints else "export for another target or raise the limit",
    )


def survey_operators(
    model_path: Path,
    target: str,
    work: Mapping[str, float] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    limit: float = LIMIT,
    probe: bool = True,
    folder: Path | None = None,
) -> OperatorReport:
    """Count a model's operators and say which are covered, without judging; arguments as of :func:`check_operators`.

    Raises:
        ConfigError: no table; no model, or one without operators; a limit out of range; a free dimension the model does
            not have; measured work of a node it does not have, out of range, or none at all.
    """
    if not 0.0 <= limit <= 1.0:
        raise ConfigError("must be 0 to 1", field="limit", value=limit)
    table = load_table(target, folder)
    nodes, lengths = list_nodes(model_path, dims)
    if not nodes:
        raise ConfigError("holds no operator; nothing was checked", where=model_path)
    asked = PROBES[target](model_path, nodes) if probe and target in PROBES else None
    reasons = [why_not(node, table, asked) for node in nodes]
    macs = math.fsum(n.amount for n in nodes if n.unit == "products" and not math.isnan(n.amount))
    other = math.fsum(n.amount for n in nodes if n.unit == "bytes" and not math.isnan(n.amount))
    counted = [_share(n.amount, macs if n.unit == "products" else other) for n in nodes]
    amounts = counted if work is None else _measured_work(model_path, nodes, work)

    def lost(shares: Sequence[float], *units: str) -> float:
        return math.fsum(s for s, n, r in zip(shares, nodes, reasons, strict=True) if r and n.unit in units)

    macs_share, bytes_share = lost(counted, "products"), lost(counted, "bytes")
    return OperatorReport(
        model=str(model_path),
        target=target,
        library=table.library,
        version=table.version,
        date=table.date,
        rows=_rows(nodes, reasons, amounts, table, measured=work is not None),
        macs=macs,
        macs_share=macs_share,
        bytes_share=bytes_share,
        share=max(macs_share, bytes_share) if work is None else lost(amounts, "products", "bytes"),
        limit=limit,
        uncounted=tuple(
            n.name for n, r in zip(nodes, reasons, strict=True) if r and work is None and math.isnan(n.amount)
        ),
        dims=lengths,
        probe=asked,
    )


def _share(amount: float, total: float) -> float:
    return 0.0 if math.isnan(amount) or not total else amount / total


def _measured_work(where: Path, nodes: Sequence[Node], work: Mapping[str, float]) -> list[float]:
    names = {n.name for n in nodes}
    for name, amount in work.items():
        if name not in names:
            raise ConfigError("is no node of the model", where=where, field=f"work.{name}")
        if not 0.0 <= amount < math.inf:
            raise ConfigError("must be finite and not negative", where=where, field=f"work.{name}", value=amount)
    total = math.fsum(work.values())
    if not total > 0.0:
        raise ConfigError("nothing was measured", where=where, field="work")
    return [work.get(n.name, 0.0) / total for n in nodes]


def _rows(
    nodes: Sequence[Node], reasons: Sequence[str], shares: Sequence[float], table: OperatorTable, measured: bool
) -> tuple[OperatorRow, ...]:
    grouped: dict[str, list[tuple[Node, str, float]]] = {}
    for node, reason, share in zip(nodes, reasons, shares, strict=True):
        grouped.setdefault(node.operator, []).append((node, reason, share))
    rows = []
    for name, group in sorted(grouped.items()):
        entry = table.operators.get(name)
        lost = [(reason, share) for _, reason, share in group if reason]
        rows.append(
            OperatorRow(
                operator=name,
                count=len(group),
                covered=len(group) - len(lost),
                reasons=tuple(dict.fromkeys(reason for reason, _ in lost)),
                conditions=entry.conditions if entry else "",
                replacement=entry.replacement if entry else "",
                unit="measured" if measured else group[0][0].unit,
                work_share=math.fsum(share for _, _, share in group),
                fallback_share=math.fsum(share for _, share in lost),
            )
        )
    return tuple(rows)
