"""Heartbeat: a tier's status messages stop. Also notices that the tier was started anew."""

from __future__ import annotations

from triptych.contract.result import TierStatus
from triptych.supervisor.monitors.stale import Silence


class Heartbeat:
    """Metric ``heartbeat_s``: seconds since the last valid status; unknown before the first."""

    __slots__ = ("_frames", "_silence")

    def __init__(self) -> None:
        self._silence = Silence()
        self._frames = 0

    def observe(self, status: TierStatus, received_ns: int) -> bool:
        """Take a valid status; true when its counters show that the tier was restarted."""
        self._silence.observe(received_ns)
        restarted = status.frames_received < self._frames
        self._frames = status.frames_received
        return restarted

    def heartbeat_s(self, now_ns: int) -> float | None:
        return self._silence.gap_s(now_ns)
