"""Loop gap: the supervisor's own tick came late. Then silence of others proves nothing yet."""

from __future__ import annotations

from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.window import EventWindow


class LoopGap:
    """Metrics ``loop_gap_s`` (since the previous tick) and ``late_n`` (late ticks in the window); 0 at first."""

    def __init__(self, config: SupervisorConfig) -> None:
        self._late_ns = int(config.loop_late_s * 1e9)
        self._postpone_ns = int(config.loop_postpone_s * 1e9)
        self._spacing_ns = int(config.loop_postpone_spacing_s * 1e9)
        self._late = EventWindow(config.event_window_s)
        self._last_ns: int | None = None
        self._gap_ns = 0
        self._judge_from_ns: int | None = None
        self._next_grant_ns: int | None = None

    def observe(self, now_ns: int) -> None:
        """A tick begins."""
        postponed = self._last_ns is not None and not self.may_judge(self._last_ns)
        if self._last_ns is not None:
            self._gap_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if self._gap_ns > self._late_ns:
            self._late.add(now_ns)
            # Never twice in succession: a loop that comes late every time would judge nothing, for ever.
            if not postponed and (self._next_grant_ns is None or now_ns >= self._next_grant_ns):
                self._judge_from_ns = now_ns + self._postpone_ns
                self._next_grant_ns = now_ns + self._spacing_ns

    def may_judge(self, now_ns: int) -> bool:
        """False while the inputs get their time to arrive after a stall of ours."""
        return self._judge_from_ns is None or now_ns >= self._judge_from_ns

    def loop_gap_s(self, now_ns: int) -> float | None:
        return self._gap_ns / 1e9

    def late_n(self, now_ns: int) -> float | None:
        return self._late.count(now_ns)
