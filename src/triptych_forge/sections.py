"""Parts of a report that several runs have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triptych.engines.check import CheckRow
from triptych_forge.prune.structured import Cost, PruneResult
from triptych_forge.report import Check, Table
from triptych_forge.verify.result import Check as GateRow

EXACT = 1e-3
"""Greatest :attr:`PruneResult.exactness`, of the range of the net's outputs."""


def gate_table(title: str, rows: Sequence[GateRow]) -> Table:
    """What a gate asked for and found."""
    return Table(
        title=title,
        columns=["check", "found", "", "needed", "held"],
        rows=[[r.name, float(r.value), {"<=": "≤", ">=": "≥"}[r.relation], float(r.limit), r.passed] for r in rows],
    )


def cost_table(costs: Mapping[str, Cost], note: str = "") -> Table:
    """What one inference of each model costs in float."""
    return Table(
        title="Cost of one inference, float",
        columns=["model", "parameters", "MACs", "bytes read"],
        rows=[[name, c.parameters, c.macs, c.bytes_read] for name, c in costs.items()],
        note=note,
    )


def pruning(result: PruneResult) -> tuple[Check, list[Table]]:
    """That pruning did what it should, what it saved, and which layer gave how much."""
    given = sorted((d for d in result.layers if d.group), key=lambda d: -(d.sensitivity or 0.0))
    check = Check(
        text="The pruned net computes what the whole one does with the same channels set to 0 "
        f"(difference {result.exactness:.1e} of its range).",
        held=result.exactness < EXACT,
    )
    layers = Table(
        title="Layers",
        columns=["layer", "channels before", "channels after", "sensitivity"],
        rows=[[d.layer, d.channels_before, d.channels_after, d.sensitivity] for d in given],
        note="Sensitivity: rise of the loss if the layer's weights became 0, from diagonal Fisher information.",
    )
    return check, [cost_table({"whole": result.before, "pruned": result.after}), layers]


def vehicle_checks(rows: Sequence[CheckRow]) -> Table:
    """What ``triptych engines check`` says."""
    return Table(
        title="The vehicle's checks",
        columns=["check", "held", "detail"],
        rows=[[row.check, row.ok, row.detail] for row in rows],
    )
