"""Uncertainty: what a tier says of its own doubt. How long it must last is the fault table's debounce."""

from __future__ import annotations


class Uncertainty:
    """Metric ``uncertainty``: 0 sure .. 1 knows nothing, of the last valid result; NaN stays NaN and is a fault."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float | None = None

    def observe(self, uncertainty: float) -> None:
        """Uncertainty of a valid result; outside 0..1 it is not to be trusted."""
        self._value = uncertainty if 0.0 <= uncertainty <= 1.0 else float("nan")

    def uncertainty(self, now_ns: int) -> float | None:
        return self._value
