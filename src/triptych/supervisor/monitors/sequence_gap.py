"""Sequence gap: messages that were lost or doubled on the way."""

from __future__ import annotations

from triptych.contract.e2e import SequenceChecker
from triptych.supervisor.monitors.window import EventWindow


class SequenceGap:
    """Metric ``lost_n``: discontinuities of the sequence counter in the window; unknown before the first message.

    A jump counts once however many messages it spans, so that a restarted sender is one event, not a storm.
    """

    __slots__ = ("_checker", "_events", "_seen")

    def __init__(self, window_s: float) -> None:
        self._checker = SequenceChecker()
        self._events = EventWindow(window_s)
        self._seen = False

    def observe(self, counter: int, received_ns: int) -> None:
        """The counter of a message whose CRC was right."""
        self._seen = True
        if self._checker.update(counter):
            self._events.add(received_ns)

    def restart(self) -> None:
        """The sender was restarted: its counter begins anew."""
        self._checker.reset()

    def lost_n(self, now_ns: int) -> float | None:
        return self._events.count(now_ns) if self._seen else None
