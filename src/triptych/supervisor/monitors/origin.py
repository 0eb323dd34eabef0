"""Origin: a tier that answers with its cautious policy has nothing to say about the scene."""

from __future__ import annotations

from triptych.contract.terms import Origin


class OriginRun:
    """Metric ``default_n``: consecutive results of origin DEFAULT; unknown before the first result."""

    __slots__ = ("_run",)

    def __init__(self) -> None:
        self._run: int | None = None

    def observe(self, origin: Origin) -> None:
        """Origin of a valid result."""
        self._run = (self._run or 0) + 1 if origin is Origin.DEFAULT else 0

    def default_n(self, now_ns: int) -> float | None:
        return self._run
