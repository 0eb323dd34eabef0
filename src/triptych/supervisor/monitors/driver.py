"""Driver: whether we know who drives, and whether somebody could take over."""

from __future__ import annotations

from triptych.contract.driving import DriverState
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.crc import Crc
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.stale import Silence
from triptych.supervisor.monitors.stamp_gate import StampGate


class DriverMonitor:
    """Metrics ``overdue_s``, ``age_s`` (since the last valid state), ``crc_n``, ``absent``, ``inattentive`` (0, 1)."""

    def __init__(self, config: SupervisorConfig) -> None:
        self.never = NeverReceived()
        self.gate = StampGate(config.driver_fresh_s, config.future_tolerance_s)
        self.crc = Crc(config.event_window_s)
        self._silence = Silence()
        self._fresh_s = config.driver_fresh_s
        self._hold_ns = int(config.hand_back_hold_s * 1e9)
        self._state: DriverState | None = None
        self._handed_over_since_ns: int | None = None

    def observe(
        self, state: DriverState, received_ns: int, received_stamp_ns: int, judge_age: bool, crc_ok: bool
    ) -> None:
        """One message; times of receipt on the monotonic clock and on the clock of stamps."""
        if not self.crc.observe(crc_ok, received_ns):
            return
        if not self.gate.accept(state.stamp_ns, received_stamp_ns, judge_age):
            return
        fresh = self._fresh(received_ns)
        if state.override_active or not state.automation_engaged:
            self._handed_over_since_ns = None
        elif self._handed_over_since_ns is None or not fresh:
            self._handed_over_since_ns = received_ns
        self._state = state
        self.never.received = True
        self._silence.observe(received_ns)

    def _fresh(self, now_ns: int) -> bool:
        age_s = self._silence.gap_s(now_ns)
        return age_s is not None and age_s <= self._fresh_s

    def drives(self, now_ns: int) -> bool:
        """Whether the driver certainly drives now: overrides, or has not handed over."""
        state = self._state
        return state is not None and self._fresh(now_ns) and (state.override_active or not state.automation_engaged)

    def handed_back(self, now_ns: int) -> bool:
        """Whether the driver has handed over for the hold time."""
        since_ns = self._handed_over_since_ns
        return since_ns is not None and self._fresh(now_ns) and now_ns - since_ns >= self._hold_ns

    def present(self, now_ns: int) -> bool:
        """Whether somebody certainly sits there."""
        return self._state is not None and self._fresh(now_ns) and self._state.present

    def age_s(self, now_ns: int) -> float | None:
        return self._silence.gap_s(now_ns)

    def absent(self, now_ns: int) -> float | None:
        return None if self._state is None else float(not self._state.present)

    def inattentive(self, now_ns: int) -> float | None:
        return None if self._state is None else float(not self._state.attentive)
