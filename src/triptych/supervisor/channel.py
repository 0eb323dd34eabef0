"""All monitors of one tier, and the order in which a message passes them."""

from __future__ import annotations

from math import inf

from triptych.contract.budgets import Budget
from triptych.contract.result import SceneAdvice, TierResult, TierStatus
from triptych.contract.terms import Advice, Origin, Tier, TierState
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.content import Answers, Metric, Sightings
from triptych.supervisor.monitors.crc import Crc
from triptych.supervisor.monitors.cross_modal import Seen
from triptych.supervisor.monitors.foreign import Foreign
from triptych.supervisor.monitors.future_frame import FutureFrame
from triptych.supervisor.monitors.heartbeat import Heartbeat
from triptych.supervisor.monitors.invalid import Invalid, result_is_valid
from triptych.supervisor.monitors.late import Late
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.origin import OriginRun
from triptych.supervisor.monitors.repeated_frame import RepeatedFrame
from triptych.supervisor.monitors.self_report import CLOCK_CODES, NO_CODES, STANDING_CODES, SelfReport
from triptych.supervisor.monitors.sequence_gap import SequenceGap
from triptych.supervisor.monitors.stale import Silence
from triptych.supervisor.monitors.uncertainty import Uncertainty
from triptych.supervisor.monitors.very_late import VeryLate

TIMEOUT = "timeout"
"""How the reason of a result begins whose inference missed its deadline."""


class TierChannel:
    """What is known of one tier.

    A result counts as a sign of life only if its CRC is right, its numbers are valid, and its content is neither from
    the future nor older than the tier may keep it. A tier is *seen* after one fresh result and one healthy status.

    Args:
        tier: which.
        budget: its timing contract.
        config: the parameters.
        seen: what the detector sees, shared by the channels of all tiers.

    Attributes:
        advice: of the last usable result, ``None`` for the detector and before the first.
    """

    def __init__(self, tier: Tier, budget: Budget, config: SupervisorConfig, seen: Seen) -> None:
        self.tier = tier
        self.advice: Advice | None = None
        self.never = NeverReceived()
        self._keep_s = budget.keep_s + config.transport_allowance_s
        self._silence = Silence()
        self._content = Silence()
        self._late = Late(budget.budget_s + config.transport_allowance_s)
        self._heartbeat = Heartbeat()
        self._repeated = RepeatedFrame()
        self._future = FutureFrame(config.future_tolerance_s)
        self._foreign = Foreign()
        self._sequence = SequenceGap(config.event_window_s)
        self._crc = Crc(config.event_window_s)
        self._invalid = Invalid(config.event_window_s)
        self._report = SelfReport()
        self._origin = OriginRun()
        self._uncertainty = Uncertainty()
        self._very_late = VeryLate(budget.budget_s * config.very_late_ratio + config.transport_allowance_s)
        self._said = Sightings(config, seen) if tier is Tier.DETECTOR else Answers(config, seen)
        self._fresh_once = self._well_once = False

    def take_result(
        self,
        result: TierResult,
        received_ns: int,
        age_s: float,
        judge_age: bool,
        crc_ok: bool,
        fingerprint: int | None,
        moving: bool,
    ) -> bool:
        """One result; returns whether its content may be used.

        Args:
            result: as received.
            received_ns: monotonic time of receipt.
            age_s: of its source stamp at receipt.
            judge_age: false right after a clock step, when stamps mean little.
            crc_ok: outcome of the receiver's check.
            fingerprint: of the picture it is about, if known.
            moving: whether the vehicle certainly moves.
        """
        if not self._crc.observe(crc_ok, received_ns):
            return False
        self._sequence.observe(result.sequence_counter, received_ns)
        if not self._invalid.observe(result.tier is self.tier and result_is_valid(result), received_ns):
            return False
        self._foreign.observe_result(result)
        if result.origin is not Origin.DEFAULT:
            if judge_age and not (self._future.observe(age_s) and age_s <= self._keep_s):
                return False
            if judge_age:
                self._content.observe(received_ns - round(age_s * 1e9))
            elif result.origin is Origin.FRESH:
                self._content.observe(received_ns)  # stamps mean little now, but fresh is at most a budget old
            self._uncertainty.observe(result.uncertainty)
        fresh, timeout = result.origin is Origin.FRESH, result.reason.startswith(TIMEOUT)
        if timeout:
            self._late.observe(inf)
        elif fresh and judge_age:
            self._late.observe(age_s)
        if fresh:
            new_frame = self._repeated.observe(result.source_stamp_ns, fingerprint, moving)
            if new_frame:
                self._fresh_once = True
                self._see()
            self._said.observe(result, new_frame, moving)
        if judge_age and self._fresh_once:
            self._very_late.observe(result, age_s, timeout)
        self._origin.observe(result.origin)
        self._silence.observe(received_ns)
        if isinstance(result.payload, SceneAdvice):
            self.advice = result.payload.advice
        return True

    def take_status(
        self, status: TierStatus, received_ns: int, crc_ok: bool, judge_age: bool, standstill: bool
    ) -> None:
        """One heartbeat; ``judge_age`` is false right after a clock step, ``standstill`` true if the vehicle stands."""
        if not self._crc.observe(crc_ok, received_ns):
            return
        self._foreign.observe_status(status)
        if self._heartbeat.observe(status, received_ns) or status.state is not TierState.ACTIVE:
            self._sequence.restart()
            self._repeated.restart()
            self._said.restart()
        excused = (NO_CODES if judge_age else CLOCK_CODES) | (STANDING_CODES if standstill else NO_CODES)
        if self._report.observe(status, excused):
            self._well_once = True
            self._see()

    # A tier that has not been well yet is starting, not failing: that is what ``overdue_s`` judges.

    def _unhealthy(self, now_ns: int) -> float | None:
        return self._report.unhealthy(now_ns) if self._well_once else None

    def _default_n(self, now_ns: int) -> float | None:
        return self._origin.default_n(now_ns) if self._fresh_once else None

    def _see(self) -> None:
        self.never.received = self._fresh_once and self._well_once

    def clock_stepped(self) -> None:
        """Stamps begin anew."""
        self._repeated.restart()
        self._said.clock_stepped()

    @property
    def fault(self) -> str:
        """What the tier last said of its own health."""
        return self._report.fault

    def metrics(self) -> dict[str, Metric]:
        """The metrics of this tier by name."""
        detector = self.tier is Tier.DETECTOR
        lateness = {"content_s": self._content.gap_s} if detector else {"very_late_n": self._very_late.very_late_n}
        return {
            **lateness,
            **self._said.metrics(),
            "overdue_s": self.never.overdue_s,
            "gap_s": self._silence.gap_s,
            "late_n": self._late.late_n,
            "heartbeat_s": self._heartbeat.heartbeat_s,
            "repeated_n": self._repeated.repeated_n,
            "future_n": self._future.future_n,
            "foreign_n": self._foreign.foreign_n,
            "lost_n": self._sequence.lost_n,
            "crc_n": self._crc.crc_n,
            "invalid_n": self._invalid.invalid_n,
            "unhealthy": self._unhealthy,
            "default_n": self._default_n,
            "uncertainty": self._uncertainty.uncertainty,
        }
