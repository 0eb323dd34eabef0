"""Counts events of the recent past. Not a monitor itself."""

from __future__ import annotations

from collections import deque

_KEPT = 64
"""Thresholds above this many events in one window make no sense."""


class EventWindow:
    """How many events happened within the last ``window_s`` seconds (at most 64 are counted)."""

    __slots__ = ("_events_ns", "_window_ns")

    def __init__(self, window_s: float) -> None:
        self._window_ns = int(window_s * 1e9)
        self._events_ns: deque[int] = deque(maxlen=_KEPT)

    def add(self, now_ns: int) -> None:
        """One event, now."""
        self._events_ns.append(now_ns)

    def count(self, now_ns: int) -> float:
        """Events not older than the window."""
        events = self._events_ns
        while events and now_ns - events[0] > self._window_ns:
            events.popleft()
        return float(len(events))
