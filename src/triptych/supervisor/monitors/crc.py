"""CRC: messages whose content does not fit their checksum. They are refused."""

from __future__ import annotations

from triptych.supervisor.monitors.window import EventWindow


class Crc:
    """Metric ``crc_n``: mismatches in the window; unknown before the first message."""

    __slots__ = ("_events", "_seen")

    def __init__(self, window_s: float) -> None:
        self._events = EventWindow(window_s)
        self._seen = False

    def observe(self, ok: bool, received_ns: int) -> bool:
        """Outcome of the check of one message, returned as it is."""
        self._seen = True
        if not ok:
            self._events.add(received_ns)
        return ok

    def crc_n(self, now_ns: int) -> float | None:
        return self._events.count(now_ns) if self._seen else None
