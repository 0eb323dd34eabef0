"""Odometry: a speed that is missing, NaN, impossible or frozen; and whether the vehicle stands still."""

from __future__ import annotations

from math import nan

from triptych.contract.driving import Odometry
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.stale import Silence
from triptych.supervisor.monitors.stamp_gate import StampGate
from triptych.supervisor.monitors.window import EventWindow


class OdometryMonitor:
    """Metrics ``overdue_s``, ``age_s`` (since the last valid speed), ``invalid_n`` (NaN, out of range) and ``jump_n``
    (changes no vehicle can make), the latter two counted over the event window.

    Unknown speed is never standstill: a first value of 0, a frozen stamp or a jump to 0 does not look like parking.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self.never = NeverReceived()
        self.gate = StampGate(config.odometry_fresh_s, config.future_tolerance_s)
        self._silence = Silence()
        self._invalid = EventWindow(config.event_window_s)
        self._jumps = EventWindow(config.event_window_s)
        self._max_mps = config.odometry_max_mps
        self._max_accel_mps2 = config.odometry_max_accel_mps2
        self._margin_mps = config.odometry_jump_margin_mps
        self._fresh_ns = int(config.odometry_fresh_s * 1e9)
        self._still_mps = config.standstill_speed_mps
        self._hold_ns = int(config.standstill_hold_s * 1e9)
        self._trusted_mps = nan
        self._trusted_ns = 0
        self._known = False
        self._still_since_ns: int | None = None

    def observe(self, odometry: Odometry, received_ns: int, received_stamp_ns: int, judge_age: bool) -> None:
        """One message; times of receipt on the monotonic clock and on the clock of stamps."""
        if not self.gate.accept(odometry.stamp_ns, received_stamp_ns, judge_age):
            return
        speed_mps = odometry.speed_mps
        if not abs(speed_mps) <= self._max_mps:
            self._invalid.add(received_ns)
            self._distrust()
            return
        since_s = (received_ns - self._trusted_ns) / 1e9
        change_mps = abs(speed_mps - self._trusted_mps)
        if self.never.received and not change_mps <= self._max_accel_mps2 * since_s + self._margin_mps:
            self._jumps.add(received_ns)
            self._distrust()
            return
        if not abs(speed_mps) < self._still_mps:
            self._still_since_ns = None
        elif self._still_since_ns is None or not self._fresh(received_ns):
            self._still_since_ns = received_ns
        self._trusted_mps, self._trusted_ns, self._known = speed_mps, received_ns, True
        self.never.received = True
        self._silence.observe(received_ns)

    def _distrust(self) -> None:
        self._known, self._still_since_ns = False, None

    def _fresh(self, now_ns: int) -> bool:
        return self._known and now_ns - self._trusted_ns <= self._fresh_ns

    def speed_mps(self, now_ns: int) -> float:
        """The vehicle's speed, NaN when it is not known now."""
        return self._trusted_mps if self._fresh(now_ns) else nan

    def standstill(self, now_ns: int) -> bool:
        """Whether fresh, plausible speeds have been near zero for the hold time."""
        since_ns = self._still_since_ns
        return since_ns is not None and self._fresh(now_ns) and now_ns - since_ns >= self._hold_ns

    def age_s(self, now_ns: int) -> float | None:
        return self._silence.gap_s(now_ns)

    def invalid_n(self, now_ns: int) -> float | None:
        return self._invalid.count(now_ns)

    def jump_n(self, now_ns: int) -> float | None:
        return self._jumps.count(now_ns)
