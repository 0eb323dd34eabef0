"""From the record of a run to ``result.json``: the figures, and whether the timing contract held."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from triptych.contract import (
    BUDGETS,
    Budget,
    DegradationState,
    Detections,
    Origin,
    SceneAdvice,
    SequenceChecker,
    Tier,
    TierResult,
    crc_ok,
)
from triptych.replay.record import RunRecord, VerdictRecord
from triptych.report.schema import (
    SCHEMA_VERSION,
    Camera,
    Check,
    ConstraintReport,
    Distribution,
    FaultEntry,
    InjectionEntry,
    Integrity,
    LatencySplits,
    Origins,
    ProcessReport,
    Provenance,
    ResultJson,
    RunInfo,
    StateEntry,
    StateName,
    SupervisorReport,
    TierReport,
    Tiers,
)
from triptych.viewing.words import detection_class

NS = 1e9
MAX_EVENTS = 200
FINITE_MODES = frozenset({"demo", "replay", "lockstep"})
"""Modes whose source of frames ends by itself."""
SHUT_DOWN_S = 3.0
"""Camera and odometry that both fell silent this shortly before such a run was stopped have come to their end."""
INITIALISING, NOMINAL, MANUAL = DegradationState.INITIALISING, DegradationState.NOMINAL, DegradationState.MANUAL
SEVERITY: dict[DegradationState, int] = {
    DegradationState.INITIALISING: 0,
    DegradationState.NOMINAL: 0,
    DegradationState.MANUAL: 0,
    DegradationState.L3_PERCEPTION_ONLY: 1,
    DegradationState.L2_TAKEOVER_REQUEST: 2,
    DegradationState.L1_MINIMAL_RISK_MANOEUVRE: 3,
    DegradationState.MRC: 4,
}
"""Order of the degradation: an injected fault demands a state or one with a greater number."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What :func:`summarise` compares with. The budgets themselves come from the record, else from the contract.

    Attributes:
        start_up_s: start of the run to the first FRESH result of a tier and to NOMINAL. 20 s is the longest start-up
            order the supervisor must bear without a false manoeuvre (its bounded grace).
        fresh_share: least share of FRESH results, by tier. Our choice: tier 1 may bridge one frame in twenty, advice
            one in ten.
        late_share: greatest share of frames answered too late: what "99th percentile within budget" means when a late
            result is not published.
        loss_share: greatest share of lost messages between camera and detector, and in the recorded streams.
        constraint_gap_s: longest silence of the command, the receive timeout of its consumers
            (:class:`triptych.contract.ConstraintGuard`).
        recovery_s: how long after the end of an injected fault its target is still excused.
        reaction_ms: time from an injected fault to the command, where the injection itself names none.
    """

    start_up_s: float = 20.0
    fresh_share: Mapping[Tier, float] = field(
        default_factory=lambda: {Tier.DETECTOR: 0.95, Tier.DISTILLED: 0.90, Tier.FULL: 0.90}
    )
    late_share: float = 0.01
    loss_share: float = 0.001
    constraint_gap_s: float = 0.15
    recovery_s: float = 5.0
    reaction_ms: float = 150.0


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault caused on purpose, from ``meta["injected"]``; times in ns on the clock of source stamps."""

    fault: str
    target: str
    from_ns: float
    to_ns: float
    expected: DegradationState | None
    within_ms: float


class _Protected(Protocol):
    @property
    def sequence_counter(self) -> int: ...


T = TypeVar("T")


def summarise(record: RunRecord, provenance: Provenance, limits: Limits | None = None) -> ResultJson:
    """Reduce a run to its result.

    ``contract_held`` is true exactly when every one of these checks held. *Start* of a tier is its first FRESH
    result; *end* is ``meta["ended_ns"]`` (the moment the stack was told to stop; without it the last entry). In modes
    demo, replay and lockstep it is the last that came from the source, frame or vehicle speed, if that was at most 3 s
    before: the recording was over. What came after the end belongs to the shut-down and is left out everywhere, but for
    fresh answers to frames from before it.

    For each tier in ``meta["tiers"]`` (default: all three):

    - ``<tier>.start_up``: it published a FRESH result within ``limits.start_up_s``.
    - ``<tier>.cadence_p99``: 99 % of its results came within period + budget of the one before. A gap that the sequence
      counter explains by lost messages is divided among them: that is loss, not silence.
    - ``<tier>.cadence_max``: no silence was longer than what a result may be kept (100 ms, 1 s, 5 s), plus a period
      at the very end, where the record may stop just before a result.
    - ``<tier>.latency``: the 99th percentile of source stamp to published result, over FRESH results, is within
      budget.
    - ``<tier>.on_time``: at most ``limits.late_share`` of the frames taken for inference (one in any case) were
      answered too late. Late answers are never published as FRESH, so that the percentile alone would not show them.
    - ``<tier>.fresh``: the share of FRESH results since its start is at least ``limits.fresh_share``. LAST_FRAME
      results with reason ``no_frame`` are left out: they bridge a camera slower than the period, as they are meant to.
    - ``<tier>.crc``: no result and no heartbeat failed its CRC.
    - ``<tier>.loss``: at most ``limits.loss_share`` of the results (at least one) were lost by the counter.

    For the supervisor:

    - ``supervisor.start_up``: it reached NOMINAL (or MANUAL by the driver's will) within ``limits.start_up_s``. In a
      run without both VLM tiers L3_PERCEPTION_ONLY takes the place of NOMINAL, here and below.
    - ``supervisor.nominal``: from then on (to the first injected fault, if any) it stayed NOMINAL; MANUAL is allowed
      once the record shows that the driver overrode.
    - ``supervisor.cadence``: no silence of the command, the one up to the end included, was longer than
      ``limits.constraint_gap_s``.
    - ``supervisor.crc``: no command failed its CRC.
    - ``supervisor.reaction.<n>``: for each injected fault the demanded state, or one more careful, stood in a state
      or command within the time allowed.

    And ``processes.restarts``: no process was restarted, those with an injected fault aside.

    During an injected fault and ``limits.recovery_s`` after it its target (``camera``: all tiers) is excused from
    cadence, latency, on_time, fresh and loss; never from CRC.

    Args:
        record: the run. Understood keys of ``meta``: those of :class:`RunRecord`, and ``tiers`` (list of tier
            keys) and ``injected`` (list of {fault, target, from_s, to_s, expect, within_ms}).
        provenance: see :func:`triptych.report.provenance.provenance`.
        limits: see :class:`Limits`.
    """
    return _Summary(record, provenance, limits or Limits()).result()


class _Summary:
    def __init__(self, record: RunRecord, provenance: Provenance, limits: Limits) -> None:
        self.record, self.provenance, self.limits = record, provenance, limits
        self.meta: Mapping[str, Any] = record.meta
        self.start_ns, self.end_ns = span_ns(record)
        self.expected = expected_tiers(record)
        # Without a VLM tier the classical chain runs alone by design.
        self.healthy = NOMINAL if self.expected & {Tier.DISTILLED, Tier.FULL} else DegradationState.L3_PERCEPTION_ONLY
        self.budgets = budgets_of(record)
        self.injections = injections_of(record, limits)
        self.checks: list[Check] = []

    def result(self) -> ResultJson:
        tiers = {tier.key: self._tier(tier) for tier in Tier}
        supervisor = self._supervisor()
        injections = [self._injection(index, item) for index, item in enumerate(self.injections)]
        processes = self._processes(tiers)
        reasons = [check.text for check in self.checks if not check.held]
        return ResultJson(
            schema_version=SCHEMA_VERSION,
            contract_held=not reasons,
            reasons=reasons,
            checks=self.checks,
            run=self._run(),
            tiers=Tiers(**tiers),
            supervisor=supervisor,
            injections=injections,
            processes=processes,
            memory_peak_mb=self._memory_peak_mb(),
            provenance=self.provenance,
        )

    def since_start_s(self, t_ns: float) -> float:
        return round((t_ns - self.start_ns) / NS, 6)

    def _check(self, id: str, held: bool, value: float | None, limit: float, unit: str, text: str) -> None:
        usable = value is not None and math.isfinite(value)
        rounded = round(float(value), 6) if usable and value is not None else None
        self.checks.append(Check(id=id, held=bool(held), value=rounded, limit=limit, unit=unit, text=text))

    def _within(self, entries: Iterable[T]) -> list[T]:
        return [entry for entry in entries if entry.t_ns <= self.end_ns]  # type: ignore[attr-defined]

    def _results(self, tier: Tier) -> list[TierResult]:
        """Results up to the end, and the answers to frames from before it that came later."""
        return [
            result
            for result in self.record.results_of(tier)
            if result.published_ns <= self.end_ns
            or (result.origin is Origin.FRESH and result.source_stamp_ns <= self.end_ns)
        ]

    def _excused(self, subject: str, t_ns: float) -> bool:
        recovery = self.limits.recovery_s * NS
        return any(
            item.from_ns <= t_ns <= item.to_ns + recovery
            for item in self.injections
            if item.target == subject or (item.target == "camera" and subject in {tier.key for tier in Tier})
        )

    # -- run ----------------------------------------------------------------------------------------------------------

    def _run(self) -> RunInfo:
        camera = self.meta.get("camera")
        events = [f"{self.since_start_s(e.t_ns):.2f} s {e.source}: {e.text}" for e in self.record.events]
        warnings = [without_folders(str(w)) for w in (*(self.meta.get("warnings") or ()), *self.record.warnings)]
        return RunInfo(
            mode=str(self.meta.get("mode", "live")),
            input=without_folders(str(self.meta.get("input", ""))),
            duration_s=self.since_start_s(self.end_ns),
            latency_modelled=self.meta.get("mode") == "lockstep",
            camera=Camera.model_validate(camera) if isinstance(camera, Mapping) and "width" in camera else None,
            synthesised=[str(name) for name in self.meta.get("synthesised") or ()],
            warnings=warnings,
            events=events[:MAX_EVENTS],
            events_omitted=max(0, len(events) - MAX_EVENTS),
        )

    # -- tiers --------------------------------------------------------------------------------------------------------

    def _tier(self, tier: Tier) -> TierReport:
        budget = self.budgets[tier]
        results = self._results(tier)
        statuses = [e.status for e in self._within(self.record.statuses) if e.status.tier is tier]
        fresh = [result for result in results if result.origin is Origin.FRESH]
        first = next((i for i, result in enumerate(results) if result.origin is Origin.FRESH), None)
        running = results[first:] if first is not None else []
        judged = [result for result in running if not self._excused(tier.key, result.published_ns)]
        judged_fresh = [result for result in judged if result.origin is Origin.FRESH]
        answered = {result.source_stamp_ns: result for result in fresh}
        integrity, heartbeat = integrity_of(results), integrity_of(statuses)
        gaps = gaps_ms(running)
        judged_gaps = [gap for gap, at in gaps if not self._excused(tier.key, at)]
        latency = distribution(latency_ms(result) for result in fresh)
        judged_latency = distribution(latency_ms(result) for result in judged_fresh)
        first_fresh_s = self.since_start_s(fresh[0].published_ns) if fresh else None
        share = fresh_share(judged)
        taken, late = len(judged_fresh), late_count(judged, budget)
        taken += sum(is_timeout(result) for result in judged)
        tail_ms = (self.end_ns - results[-1].published_ns) / 1e6 if results else math.nan
        if tier in self.expected:
            self._judge_tier(
                tier, budget, first_fresh_s, judged_gaps, tail_ms, judged_latency, share, integrity, heartbeat
            )
            if first_fresh_s is not None:
                self._judge_late(tier, late, taken)
        span_s = (running[-1].published_ns - running[0].published_ns) / NS if len(running) > 1 else 0.0
        is_detector = tier is Tier.DETECTOR
        last_status = statuses[-1] if statuses else None
        last = results[-1] if results else last_status
        return TierReport(
            expected=tier in self.expected,
            started=bool(results),
            budget_ms=round(budget.budget_s * 1e3, 6),
            keep_ms=round(budget.keep_s * 1e3, 6),
            period_ms=round(budget.period_s * 1e3, 6),
            latency_ms=latency,
            split_ms=splits(fresh),
            gap_ms=distribution(gap for gap, _ in gaps),
            origin=Origins(**Counter(result.origin.name for result in results)),
            fallback_reasons=dict(
                sorted(Counter(r.reason or "unstated" for r in results if r.origin is not Origin.FRESH).items())
            ),
            fresh_share=None if share is None else round(share, 6),
            on_time_share=round(1 - late / taken, 6) if taken else None,
            late=late_count(results, budget),
            frames=len(answered),
            frames_received=_grown(status.frames_received for status in statuses),
            frames_dropped=_grown(status.frames_dropped for status in statuses),
            frames_with_objects=sum(bool(_objects(r)) for r in answered.values()) if is_detector else None,
            frames_with_class=_frames_with_class(answered.values()) if is_detector else None,
            answers=None
            if is_detector
            else dict(Counter(r.payload.advice.name for r in fresh if isinstance(r.payload, SceneAdvice))),
            uncertainty_mean=_mean(result.uncertainty for result in fresh),
            rate_hz=round((len(running) - 1) / span_s, 3) if span_s > 0 else None,
            first_fresh_s=first_fresh_s,
            integrity=integrity,
            heartbeat=heartbeat,
            restarts=_restarts([status.frames_received for status in statuses]),
            faults=list(dict.fromkeys(status.fault for status in statuses if status.fault)),
            engine=last.engine_id if last else "",
            engine_version=last.engine_version if last else "",
            device_requested=last_status.device_requested if last_status else "",
            device=last.device if last else "",
        )

    def _judge_tier(
        self,
        tier: Tier,
        budget: Budget,
        first_fresh_s: float | None,
        gaps: Sequence[float],
        tail_ms: float,
        latency: Distribution | None,
        share: float | None,
        integrity: Integrity,
        heartbeat: Integrity,
    ) -> None:
        key, limits = tier.key, self.limits
        if first_fresh_s is None:
            text = f"The {key} tier never published a fresh result."
            self._check(f"{key}.start_up", False, None, limits.start_up_s, "s", text)
            return
        self._check(
            f"{key}.start_up",
            first_fresh_s <= limits.start_up_s,
            first_fresh_s,
            limits.start_up_s,
            "s",
            f"The {key} tier gave its first fresh result after {first_fresh_s:.2f} s (limit {limits.start_up_s:g} s).",
        )
        usual_limit = (budget.period_s + budget.budget_s) * 1e3
        usual = percentile(gaps, 99) if gaps else 0.0
        self._check(
            f"{key}.cadence_p99",
            usual <= usual_limit,
            usual,
            usual_limit,
            "ms",
            f"99 % of the {key} tier's results came within {usual:.1f} ms of the one before "
            f"(limit period + budget = {usual_limit:g} ms).",
        )
        keep = budget.keep_s * 1e3
        excused_tail = self._excused(key, self.end_ns)
        silence = max([*gaps, 0.0 if excused_tail else tail_ms - budget.period_s * 1e3])
        self._check(
            f"{key}.cadence_max",
            silence <= keep,
            silence,
            keep,
            "ms",
            f"The longest silence of the {key} tier was {silence:.1f} ms (kept at most {keep:g} ms).",
        )
        limit = budget.budget_s * 1e3
        if latency is not None:
            self._check(
                f"{key}.latency",
                latency.p99 <= limit,
                latency.p99,
                limit,
                "ms",
                f"The 99th percentile of the {key} tier's latency was {latency.p99:.1f} ms (budget {limit:g} ms).",
            )
        least = limits.fresh_share[tier]
        if share is not None:
            self._check(
                f"{key}.fresh",
                share >= least,
                share * 100,
                least * 100,
                "%",
                f"{share * 100:.1f} % of the {key} tier's results were fresh (at least {least * 100:g} % demanded).",
            )
        errors = integrity.crc_errors + heartbeat.crc_errors
        text = f"{_messages(errors)} of the {key} tier failed the CRC."
        self._check(f"{key}.crc", errors == 0, errors, 0, "messages", text)
        lost, allowed = self._lost(tier), max(1, math.floor(limits.loss_share * integrity.messages))
        self._check(
            f"{key}.loss",
            lost <= allowed,
            lost,
            allowed,
            "messages",
            f"{_messages(lost)} of the {key} tier went missing by the sequence counter (limit {allowed}).",
        )

    def _judge_late(self, tier: Tier, late: int, taken: int) -> None:
        allowed = max(1, math.floor(self.limits.late_share * taken))
        self._check(
            f"{tier.key}.on_time",
            late <= allowed,
            late,
            allowed,
            "frames",
            f"The {tier.key} tier answered {late or 'none'} of {taken} frames too late (limit {allowed}).",
        )

    def _lost(self, tier: Tier) -> int:
        """Messages lost outside excused times; a restart, which begins the counter anew, is not a loss."""
        results = self._results(tier)
        return sum(
            skip
            for skip, result in zip(_skips(results), results)
            if skip > 0 and not self._excused(tier.key, result.published_ns)
        )

    # -- supervisor ---------------------------------------------------------------------------------------------------

    def _supervisor(self) -> SupervisorReport:
        changes = [change for change in self.record.state_changes() if change.t_ns <= self.end_ns]
        states = [
            StateEntry(
                state=cast(StateName, change.state.name),
                from_s=self.since_start_s(change.t_ns),
                reason=change.reason,
                active_faults=list(change.active_faults),
            )
            for change in changes
        ]
        commands = self._within(self.record.constraints)
        integrity = integrity_of([entry.constraint for entry in commands])
        gaps = [((b.t_ns - a.t_ns) / 1e6, b.t_ns) for a, b in pairwise(commands)]
        finite = [e.constraint.speed_limit_mps for e in commands if math.isfinite(e.constraint.speed_limit_mps)]
        ready_ns = next((change.t_ns for change in changes if change.state in (self.healthy, MANUAL)), None)
        self._judge_states(ready_ns)
        tail = [((self.end_ns - commands[-1].t_ns) / 1e6, self.end_ns)] if commands else []
        judged = [gap for gap, at in [*gaps, *tail] if not self._excused("supervisor", at)]
        self._judge_cadence(judged, bool(commands))
        self._check(
            "supervisor.crc",
            integrity.crc_errors == 0,
            integrity.crc_errors,
            0,
            "messages",
            f"{_messages(integrity.crc_errors)} of the supervisor failed the CRC.",
        )
        nominal_ns = next((change.t_ns for change in changes if change.state is NOMINAL), None)
        loads = [
            sample.percent
            for sample in self._within(self.record.cpu)
            if "supervisor" in sample.process and (ready_ns is None or sample.t_ns >= ready_ns)
        ]
        return SupervisorReport(
            states=states,
            nominal_after_s=None if nominal_ns is None else self.since_start_s(nominal_ns),
            faults=self._faults(),
            constraint=ConstraintReport(
                integrity=integrity,
                gap_ms=distribution(gap for gap, _ in gaps),
                speed_limit_min_mps=min(finite) if finite else None,
                stop_commanded=any(value <= 0 for value in finite),
            ),
            cpu_percent=_mean(loads),
        )

    def _judge_states(self, ready_ns: int | None) -> None:
        limit, healthy = self.limits.start_up_s, self.healthy.name
        if not self.record.states:
            self._check("supervisor.start_up", False, None, limit, "s", "The supervisor never published a state.")
            return
        if ready_ns is None:
            self._check("supervisor.start_up", False, None, limit, "s", f"The supervisor never reached {healthy}.")
            return
        took = self.since_start_s(ready_ns)
        self._check(
            "supervisor.start_up",
            took <= limit,
            took,
            limit,
            "s",
            f"The supervisor reached {healthy} after {took:.2f} s (limit {limit:g} s).",
        )
        until_ns = min([item.from_ns for item in self.injections], default=math.inf)
        overrides = [entry.t_ns for entry in self.record.drivers if entry.driver.override_active]
        wrong = [
            change
            for change in self.record.state_changes()
            if ready_ns <= change.t_ns < until_ns
            and change.t_ns <= self.end_ns
            and change.state is not self.healthy
            and not (change.state is MANUAL and any(t_ns <= change.t_ns for t_ns in overrides))
        ]
        if wrong:
            first = wrong[0]
            text = (
                f"The state left {healthy} for {first.state.name} after {self.since_start_s(first.t_ns):.2f} s"
                f"{f' ({first.reason})' if first.reason else ''}{_again(len(wrong))}."
            )
        else:
            scope = " until the first injected fault" if self.injections else ""
            text = f"The state stayed {healthy} after start-up{scope}."
        self._check("supervisor.nominal", not wrong, len(wrong), 0, "changes", text)

    def _judge_cadence(self, gaps: Sequence[float], commanded: bool) -> None:
        limit = self.limits.constraint_gap_s * 1e3
        if not commanded:
            self._check("supervisor.cadence", False, None, limit, "ms", "The supervisor never published a command.")
            return
        longest = max(gaps, default=0.0)
        self._check(
            "supervisor.cadence",
            longest <= limit,
            longest,
            limit,
            "ms",
            f"The longest silence of the supervisor's command was {longest:.1f} ms (limit {limit:g} ms).",
        )

    def _faults(self) -> list[FaultEntry]:
        entries: list[FaultEntry] = []
        open_at: dict[tuple[str, str], int] = {}
        for verdict in self._within(self.record.verdicts):
            key = (verdict.fault_id, verdict.source)
            if verdict.active and key not in open_at:
                open_at[key] = len(entries)
                entries.append(self._fault(verdict))
            elif not verdict.active and key in open_at:
                entry = entries[open_at.pop(key)]
                entry.to_s = self.since_start_s(verdict.t_ns)
        return entries

    def _fault(self, verdict: VerdictRecord) -> FaultEntry:
        return FaultEntry(
            fault=verdict.fault_id,
            source=verdict.source,
            from_s=self.since_start_s(verdict.t_ns),
            to_s=None,
            value=_finite(verdict.value),
            threshold=_finite(verdict.threshold),
            text=verdict.text,
        )

    def _injection(self, index: int, item: Injection) -> InjectionEntry:
        expected = item.expected or DegradationState.L3_PERCEPTION_ONLY
        # What already stood when the fault was caused is no reaction to it, unless it is as careful as demanded.
        moments = [(e.t_ns, e.state) for e in self.record.states]
        moments += [(e.t_ns, e.constraint.state) for e in self.record.constraints]
        enough = [t_ns for t_ns, state in moments if SEVERITY[state] >= SEVERITY[expected]]
        before = [(t_ns, state) for t_ns, state in moments if t_ns <= item.from_ns]
        stood = bool(before) and SEVERITY[max(before, key=lambda entry: entry[0])[1]] >= SEVERITY[expected]
        after = min((t_ns for t_ns in enough if t_ns >= item.from_ns), default=None)
        reaction = 0.0 if stood else None if after is None else (after - item.from_ns) / 1e6
        held = reaction is not None and reaction <= item.within_ms
        at = self.since_start_s(item.from_ns)
        outcome = "never followed" if reaction is None else f"stood {reaction:.0f} ms later"
        self._check(
            f"supervisor.reaction.{index + 1}",
            held,
            reaction,
            item.within_ms,
            "ms",
            f"After '{item.fault}' of {item.target} at {at:.2f} s, {expected.name} {outcome} "
            f"(limit {item.within_ms:g} ms).",
        )
        return InjectionEntry(
            fault=item.fault,
            target=item.target,
            from_s=at,
            to_s=self.since_start_s(item.to_ns) if math.isfinite(item.to_ns) else None,
            expected_state=cast(StateName, expected.name),
            within_ms=item.within_ms,
            reaction_ms=None if reaction is None else round(reaction, 3),
            held=held,
        )

    # -- processes ----------------------------------------------------------------------------------------------------

    def _processes(self, tiers: Mapping[str, TierReport]) -> list[ProcessReport]:
        restarts = Counter(
            event.source for event in self._within(self.record.events) if "restarted" in event.text.lower()
        )
        names = list(dict.fromkeys([*(s.process for s in self.record.cpu), *restarts]))
        reports = []
        for name in names:
            samples = [s for s in self._within(self.record.cpu) if s.process == name]
            loads = [s.percent for s in samples if math.isfinite(s.percent)]
            seen = tiers[name].restarts if name in tiers else 0
            reports.append(
                ProcessReport(
                    name=name,
                    cpu_percent=round(float(np.mean(loads)), 3) if loads else 0.0,
                    cpu_percent_max=max(loads, default=0.0),
                    memory_peak_mb=round(max((s.rss_bytes for s in samples), default=0) / 2**20, 2),
                    restarts=max(restarts[name], seen),
                )
            )
        unlisted = {key: tier.restarts for key, tier in tiers.items() if key not in names}
        excused = {item.target for item in self.injections}
        count = sum(r.restarts for r in reports if r.name not in excused)
        count += sum(number for key, number in unlisted.items() if key not in excused)
        what = "No process was" if count == 0 else f"{count} process{'es were' if count > 1 else ' was'}"
        self._check("processes.restarts", count == 0, count, 0, "restarts", f"{what} restarted unasked.")
        return reports

    def _memory_peak_mb(self) -> float | None:
        latest: dict[str, int] = {}
        peak = 0
        for sample in self._within(self.record.cpu):
            latest[sample.process] = sample.rss_bytes
            peak = max(peak, sum(latest.values()))
        return round(peak / 2**20, 2) if latest else None


# -- what the record says of itself ------------------------------------------------------------------------------------


def span_ns(record: RunRecord) -> tuple[int, int]:
    """Start and end of the run on the clock of source stamps; (0, 0) for an empty record. See :func:`summarise`."""
    times = [entry.t_ns for entry in record.entries()]
    start = record.meta.get("started_ns")
    end = record.meta.get("ended_ns")
    start_ns = int(start) if start is not None else min(times, default=0)
    end_ns = int(end) if end is not None else max(times, default=start_ns)
    if record.meta.get("mode") in FINITE_MODES:
        last_ns = last_source_ns(record)
        if last_ns is not None and end_ns - last_ns <= SHUT_DOWN_S * NS:
            end_ns = min(end_ns, last_ns)
    return start_ns, max(start_ns, end_ns)


def last_source_ns(record: RunRecord) -> int | None:
    """When the source of frames and vehicle speed last gave anything; ``None`` if it never did."""
    stamps = [frame.stamp_ns for frame in record.sample_frames]
    stamps += [entry.t_ns for entry in record.odometry]
    stamps += [entry.result.source_stamp_ns for entry in record.results if entry.result.origin is Origin.FRESH]
    return max(stamps, default=None)


def expected_tiers(record: RunRecord) -> set[Tier]:
    """Tiers that ``meta["tiers"]`` names; all three without it. Unknown names are ignored."""
    names = record.meta.get("tiers")
    return {tier for tier in Tier if tier.key in names} if isinstance(names, (list, tuple, set)) else set(Tier)


def budgets_of(record: RunRecord) -> dict[Tier, Budget]:
    """The budgets the run used: those of ``meta["budgets"]``, else the contract's."""
    given = record.meta.get("budgets") or {}
    return {
        tier: Budget(**{name: float(given[tier.key][name]) for name in ("budget_s", "keep_s", "period_s")})
        if tier.key in given
        else BUDGETS[tier]
        for tier in Tier
    }


def injections_of(record: RunRecord, limits: Limits) -> list[Injection]:
    """Faults that ``meta["injected"]`` lists, with absolute times."""
    start_ns, _ = span_ns(record)
    found = []
    for item in record.meta.get("injected") or ():
        expected, to_s = item.get("expect"), item.get("to_s")
        found.append(
            Injection(
                fault=str(item["fault"]),
                target=str(item["target"]),
                from_ns=start_ns + float(item["from_s"]) * NS,
                to_ns=math.inf if to_s is None else start_ns + float(to_s) * NS,
                expected=DegradationState[expected] if expected else None,
                within_ms=float(item.get("within_ms", limits.reaction_ms)),
            )
        )
    return found


def without_folders(text: str) -> str:
    """``text`` with the folders of absolute and dotted paths cut off: a report tells nobody where things lie."""
    if text.startswith(("/", "~")):
        return PurePath(text).name
    return re.sub(r"(?<!\S)(?:/|~|\.\.?/)\S*/", "", text)


# -- small measures ----------------------------------------------------------------------------------------------------


def latency_ms(result: TierResult) -> float:
    """Source stamp to published result, ms."""
    return (result.published_ns - result.source_stamp_ns) / 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value that at least ``share`` % of the values do not exceed.

    Unlike interpolation it never reports a time that did not occur. ``values`` must not be empty.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def distribution(values: Iterable[float]) -> Distribution | None:
    """Summary of finite values; ``None`` when there are none."""
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return None
    p50, p90, p99 = (round(percentile(finite, share), 4) for share in (50, 90, 99))
    mean = round(sum(finite) / len(finite), 4)
    return Distribution(count=len(finite), mean=mean, p50=p50, p90=p90, p99=p99, max=round(max(finite), 4))


def is_timeout(result: TierResult) -> bool:
    """Whether the result stands for a frame whose inference did not end in time."""
    return result.origin is not Origin.FRESH and result.reason.split(",")[0] == "timeout"


def late_count(results: Iterable[TierResult], budget: Budget) -> int:
    """Results not in time: fallbacks after a timeout, and FRESH ones published over the budget."""
    limit = budget.budget_s * 1e3
    return sum(is_timeout(r) or (r.origin is Origin.FRESH and latency_ms(r) > limit) for r in results)


def splits(fresh: Sequence[TierResult]) -> LatencySplits | None:
    """Where the latency of FRESH results went."""
    parts = {
        "transport": distribution(r.latency.transport_ms for r in fresh),
        "pre": distribution(r.latency.pre_ms for r in fresh),
        "infer": distribution(r.latency.infer_ms for r in fresh),
        "post": distribution(r.latency.post_ms for r in fresh),
        "other": distribution(other_ms(r) for r in fresh),
    }
    if any(part is None for part in parts.values()):
        return None
    return LatencySplits.model_validate(parts, from_attributes=True)


def other_ms(result: TierResult) -> float:
    """Latency that the split does not name: waiting for the engine, hand-over, conversion; never below 0."""
    split = result.latency
    return max(0.0, latency_ms(result) - split.transport_ms - split.pre_ms - split.infer_ms - split.post_ms)


def fresh_share(results: Sequence[TierResult]) -> float | None:
    """FRESH over all, LAST_FRAME for want of a frame left out; ``None`` for no results."""
    counted = [r for r in results if not (r.origin is Origin.LAST_FRAME and r.reason.startswith("no_frame"))]
    return sum(r.origin is Origin.FRESH for r in counted) / len(counted) if counted else None


def gaps_ms(results: Sequence[TierResult]) -> list[tuple[float, int]]:
    """Time between consecutive publications in ms and when each gap ended, lost messages accounted for."""
    skips = _skips(results)
    return [
        ((b.published_ns - a.published_ns) / 1e6 / (1 + max(0, skip)), b.published_ns)
        for a, b, skip in zip(results, results[1:], skips[1:])
    ]


def integrity_of(messages: Sequence[_Protected]) -> Integrity:
    """Check CRC and counter of a stream again."""
    skips = _skips(messages)
    return Integrity(
        messages=len(messages),
        crc_errors=sum(not crc_ok(message) for message in messages),
        sequence_gaps=sum(skip > 0 for skip in skips),
        messages_lost=sum(max(0, skip) for skip in skips),
        repeated=sum(skip < 0 for skip in skips),
    )


def _skips(messages: Sequence[_Protected]) -> list[int]:
    """Per message, how many counter values were skipped before it (-1: repeated).

    A counter that begins at 0 again after anything but 255 is a restart and skips nothing.
    """
    checker, skips = SequenceChecker(), []
    for message in messages:
        skip = checker.update(message.sequence_counter)
        skips.append(0 if message.sequence_counter == 0 and skip > 0 else skip)
    return skips


def _objects(result: TierResult) -> int:
    return len(result.payload.detections) if isinstance(result.payload, Detections) else 0


def _frames_with_class(results: Iterable[TierResult]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for result in results:
        if isinstance(result.payload, Detections):
            counts.update({detection_class(d.class_id).name.lower() for d in result.payload.detections})
    return dict(sorted(counts.items()))


def _grown(values: Iterable[int]) -> int:
    """Total growth of a counter that starts again at 0 when its process does."""
    total, last = 0, 0
    for value in values:
        total += value - last if value >= last else value
        last = value
    return total


def _restarts(values: Sequence[int]) -> int:
    return sum(b < a for a, b in pairwise(values))


def _mean(values: Iterable[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return round(sum(finite) / len(finite), 4) if finite else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _messages(count: int) -> str:
    return "No message" if count == 0 else f"{count} message{'s' if count > 1 else ''}"


def _again(count: int) -> str:
    return "" if count == 1 else f", and {count - 1} more change{'s' if count > 2 else ''} followed"
