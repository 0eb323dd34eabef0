"""Very late: inferences that took a multiple of their budget."""

from __future__ import annotations

from math import inf

from triptych.contract.result import LatencySplit, TierResult
from triptych.contract.terms import Origin
from triptych.supervisor.monitors.late import Late


class VeryLate:
    """Metric ``very_late_n``: consecutive inferences later than ``limit_s``; unknown before the first.

    A tier answers at its deadline, so how late an inference was shows only afterwards: in the time its content had
    taken when that is repeated in place of a later answer, or in that there is none even when the last content is too
    old to keep. Of the detector ``content_s`` says as much.

    Args:
        limit_s: multiple of the tier's budget, plus what transport may take.
    """

    __slots__ = ("_content_ns", "_late")

    def __init__(self, limit_s: float) -> None:
        self._late = Late(limit_s)
        self._content_ns: int | None = None

    def observe(self, result: TierResult, age_s: float, timeout: bool) -> None:
        """A valid result, its content's age at receipt, and whether it stands for an inference that was too late."""
        if result.origin is Origin.DEFAULT:
            if timeout:
                self._late.observe(inf)
            return
        known, self._content_ns = self._content_ns == result.source_stamp_ns, result.source_stamp_ns
        if result.origin is Origin.FRESH:
            self._late.observe(age_s)
        elif not known:
            self._late.observe(_taken_s(result.latency))

    def very_late_n(self, now_ns: int) -> float | None:
        return self._late.late_n(now_ns)


def _taken_s(split: LatencySplit) -> float:
    return (split.transport_ms + split.pre_ms + split.infer_ms + split.post_ms) / 1e3
