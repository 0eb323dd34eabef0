"""Clock step: the clock of stamps was moved against the monotonic clock."""

from __future__ import annotations

from triptych.supervisor.config import SupervisorConfig


class ClockStep:
    """Metric ``step_s``: size of a step at this tick, else 0. Deadlines are not touched by it: they are monotonic."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._tolerance_ns = int(config.clock_step_tolerance_s * 1e9)
        self._settle_ns = int(config.clock_settle_s * 1e9)
        self._spacing_ns = int(config.clock_settle_spacing_s * 1e9)
        self._settled_at_ns: int | None = None
        self._next_grant_ns: int | None = None
        self._step_ns = 0
        self.offset_ns: int | None = None

    def observe(self, now_ns: int, now_stamp_ns: int) -> bool:
        """Both clocks at this tick; true when the clock of stamps was stepped since the last."""
        previous_ns, self.offset_ns = self.offset_ns, now_stamp_ns - now_ns
        change_ns = 0 if previous_ns is None else abs(self.offset_ns - previous_ns)
        stepped = change_ns > self._tolerance_ns
        self._step_ns = change_ns if stepped else 0
        if stepped and (self._next_grant_ns is None or now_ns >= self._next_grant_ns):
            self._settled_at_ns = now_ns + self._settle_ns
            self._next_grant_ns = now_ns + self._spacing_ns
        return stepped

    def settled(self, now_ns: int) -> bool:
        """Whether ages computed from stamps mean something now."""
        return self._settled_at_ns is None or now_ns >= self._settled_at_ns

    def step_s(self, now_ns: int) -> float | None:
        return self._step_ns / 1e9
