"""Quantise first and prune then, or the other way round: both, measured alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog

M = TypeVar("M")

ORDERS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "prune": ("prune",),
    "quantise": ("quantise",),
    "prune, then quantise": ("prune", "quantise"),
    "quantise, then prune": ("quantise", "prune"),
}
"""Name to steps; the single steps are there to tell whose loss it is."""


@dataclass(frozen=True)
class OrderRow:
    """One line of the table. ``loss``: metric of the untouched model less this one's; ``size``: None if not asked."""

    order: str
    metric: float
    loss: float
    size: float | None


@dataclass(frozen=True)
class Orders(Generic[M]):
    """The table, and the models by order for whoever wants to keep one."""

    rows: tuple[OrderRow, ...]
    models: Mapping[str, M]

    @property
    def best(self) -> str:
        """Which of the two complete orders has the higher metric; the first named in :data:`ORDERS` if equal."""
        complete = [row for row in self.rows if len(ORDERS[row.order]) == 2]
        return max(complete, key=lambda row: row.metric).order


def compare_orders(
    model: M,
    prune: Callable[[M], M],
    quantise: Callable[[M], M],
    metric: Callable[[M], float],
    size: Callable[[M], float] | None = None,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Orders[M]:
    """Apply both steps in both orders, and each alone, to copies of ``model``.

    Args:
        model: never changed.
        prune, quantise: take a model and give one; may change what they are given. Each must accept the other's
            result: after ``quantise`` a pruner sees fake-quantised layers.
        metric: higher is better.
        size: of a model, in whatever unit.
        log: gets one ``quantise.order`` per line.
        progress: called with (done, all).

    Raises:
        ConfigError: a metric that is NaN; names the order.
    """
    steps = {"prune": prune, "quantise": quantise}
    rows: list[OrderRow] = []
    models: dict[str, M] = {}
    for number, (order, names) in enumerate(ORDERS.items()):
        current = copy.deepcopy(model)
        for name in names:
            current = steps[name](current)
        value = float(metric(current))
        if value != value:
            raise ConfigError("the metric is NaN", where=order)
        row = OrderRow(order, value, rows[0].metric - value if rows else 0.0, float(size(current)) if size else None)
        rows.append(row)
        models[order] = current
        if log is not None:
            log.add("quantise.order", order, **{k: v for k, v in asdict(row).items() if k != "order"})
        if progress:
            progress(number + 1, len(ORDERS))
    return Orders(tuple(rows), models)
