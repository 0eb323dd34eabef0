"""Safety core: whether the last hop to the vehicle works, and whether it stops the vehicle on its own."""

from __future__ import annotations

from triptych.contract.driving import MotionConstraint
from triptych.contract.terms import DegradationState
from triptych.supervisor.monitors.crc import Crc
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.stale import Silence

_STOPPING = frozenset({DegradationState.L1_MINIMAL_RISK_MANOEUVRE, DegradationState.MRC})


class SafetyCoreMonitor:
    """Metrics ``overdue_s``, ``age_s`` (since its last valid command), ``crc_n`` and ``own_stop`` (0, 1: it stops the
    vehicle for a reason of its own; what it only passes on has none)."""

    def __init__(self, window_s: float) -> None:
        self.never = NeverReceived()
        self.crc = Crc(window_s)
        self._silence = Silence()
        self._own_stop: float | None = None

    def observe(self, command: MotionConstraint, received_ns: int, crc_ok: bool) -> None:
        """One command to the vehicle."""
        if not self.crc.observe(crc_ok, received_ns):
            return
        self.never.received = True
        self._silence.observe(received_ns)
        self._own_stop = float(command.state in _STOPPING and command.reason != "")

    def age_s(self, now_ns: int) -> float | None:
        return self._silence.gap_s(now_ns)

    def own_stop(self, now_ns: int) -> float | None:
        return self._own_stop
