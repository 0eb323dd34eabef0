"""Invalid: results with numbers that are no numbers, or with the payload of another tier. They are refused."""

from __future__ import annotations

from math import isfinite

from triptych.contract.result import Detections, TierResult
from triptych.contract.terms import Tier
from triptych.supervisor.monitors.window import EventWindow


def result_is_valid(result: TierResult) -> bool:
    """Whether every number in a result is finite (but its uncertainty: that has its own monitor) and the payload fits.

    A sum is finite only if all its terms are: one test instead of hundreds.
    """
    split, payload = result.latency, result.payload
    total = result.age_ms + split.transport_ms + split.pre_ms + split.infer_ms + split.post_ms
    if (result.tier is Tier.DETECTOR) is not isinstance(payload, Detections):
        return False
    if isinstance(payload, Detections):
        for box in payload.detections:
            total += box.score + box.x_min + box.y_min + box.x_max + box.y_max
    else:
        total += sum(payload.token_probabilities)
    return isfinite(total)


class Invalid:
    """Metric ``invalid_n``: invalid messages in the window; unknown before the first message."""

    __slots__ = ("_events", "_seen")

    def __init__(self, window_s: float) -> None:
        self._events = EventWindow(window_s)
        self._seen = False

    def observe(self, valid: bool, received_ns: int) -> bool:
        """Outcome of the check of one message, returned as it is."""
        self._seen = True
        if not valid:
            self._events.add(received_ns)
        return valid

    def invalid_n(self, now_ns: int) -> float | None:
        return self._events.count(now_ns) if self._seen else None
