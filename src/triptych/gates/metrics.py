"""What can be asked of a run: one table of metrics, the unit of each in its name. Pure functions of a run record.

Names and meaning follow the neighbours' gates: time to stop, hold, time to resume and false stops are those of nav2's
collision monitor (``nav2_collision_monitor/test/collision_monitor_node_bag.cpp``). A metric of several occasions is its
worst one; if one of them cannot be measured, neither can the metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from triptych.contract import DegradationState, Origin, Tier
from triptych.gates.run import Demand, Motion, Occasion, Run
from triptych.report.summary import budgets_of, fresh_share, integrity_of, latency_ms, percentile

STANDSTILL_MPS = 0.1
"""Below this a vehicle stands: ``standstill_speed_mps`` of the supervisor's parameters, by default."""
_STOP, _DRIVE = frozenset({Motion.STOP}), frozenset({Motion.DRIVE})
_NOT_STOP = frozenset({Motion.DRIVE, Motion.MANUAL})


@dataclass(frozen=True, slots=True)
class Measured:
    """What a metric came to.

    Attributes:
        value: infinite when what was waited for never came; None when it could not be measured.
        text: where the value is from, or why there is none.
    """

    value: float | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table: how it is measured, and what it is in a sentence."""

    measure: Callable[[Run], Measured]
    text: str


def worst(found: Iterable[tuple[str, Measured]], nothing: str) -> Measured:
    """The greatest of several values, with the name it belongs to; unmeasured if one of them is, or if there are none.

    Args:
        nothing: what to say of none.
    """
    rows = list(found)
    for name, measured in rows:
        if measured.value is None or math.isnan(measured.value):
            return Measured(None, f"{name}: {measured.text}")
    if not rows:
        return Measured(None, nothing)
    name, measured = max(rows, key=lambda row: row[1].value or 0.0)
    return Measured(measured.value, f"{name}{': ' if measured.text else ''}{measured.text}")


# -- occasions ---------------------------------------------------------------------------------------------------------


def _of_stops(measure: Callable[[Run, Occasion], Measured], run: Run) -> Measured:
    """``measure`` over all occasions to stop at which automation was driving."""
    return worst(
        ((o.name, measure(run, o) if _driven(run, o) else _not_driven(run, o)) for o in run.demanded(Demand.STOP)),
        "there was nothing to stop for",
    )


def _driven(run: Run, occasion: Occasion) -> bool:
    """Whether automation drives when the occasion begins; a command of that very moment belongs to the occasion."""
    return run.motion_at(math.nextafter(occasion.from_s, -math.inf)) is Motion.DRIVE


def _not_driven(run: Run, occasion: Occasion) -> Measured:
    return Measured(None, f"automation did not drive when it began, at {occasion.from_s:.2f} s")


def _stopped_s(run: Run, occasion: Occasion) -> float:
    return run.first(_STOP, occasion.from_s, occasion.to_s)


def _time_to_stop_command(run: Run, occasion: Occasion) -> Measured:
    stop_s = _stopped_s(run, occasion)
    driver_s = run.first(frozenset({Motion.MANUAL}), occasion.from_s, occasion.to_s)
    if driver_s < stop_s:
        return Measured(None, f"the driver took over at {driver_s:.2f} s, before a stop was commanded")
    if math.isinf(stop_s):
        return Measured(math.inf, "no stop was commanded")
    return Measured(stop_s - occasion.from_s, f"commanded at {stop_s:.2f} s")


def _hold_broken(run: Run, occasion: Occasion) -> Measured:
    stop_s = _stopped_s(run, occasion)
    if math.isinf(stop_s):
        return Measured(math.inf, "no stop was commanded")
    broken_s = run.spent_s(Motion.DRIVE, stop_s, occasion.to_s)
    again_s = run.first(_DRIVE, stop_s, occasion.to_s)
    return Measured(broken_s, f"let go at {again_s:.2f} s" if broken_s > 0 else "held")


def _time_to_resume(run: Run) -> Measured:
    ending = [o for o in run.demanded(Demand.STOP) if math.isfinite(o.to_s)]
    return worst(((o.name, _resumed(run, o)) for o in ending), "no stop was to end")


def _resumed(run: Run, occasion: Occasion) -> Measured:
    if not _driven(run, occasion):
        return _not_driven(run, occasion)
    if run.motion_at(math.nextafter(occasion.to_s, -math.inf)) is not Motion.STOP:
        return Measured(None, f"no stop stood when it ended, at {occasion.to_s:.2f} s")
    again_s = run.first(_NOT_STOP, occasion.to_s)
    if math.isinf(again_s):
        return Measured(math.inf, f"not within the {run.end_s - occasion.to_s:.2f} s to the end of the run")
    return Measured(again_s - occasion.to_s, f"at {again_s:.2f} s")


def _false_stops(run: Run) -> Measured:
    if not run.starts_of(Motion.DRIVE):
        return Measured(None, "automation never drove")
    false = [t for t in run.starts_of(Motion.STOP) if not run.excused(t)]
    return _count(false, "stop")


def _time_to_takeover_request(run: Run) -> Measured:
    asked = run.takeover_requests()

    def one(occasion: Occasion) -> Measured:
        if not _driven(run, occasion):
            return _not_driven(run, occasion)
        first_s = min((t for t in asked if occasion.from_s <= t <= occasion.to_s), default=math.inf)
        if math.isinf(first_s):
            return Measured(math.inf, "the driver was never asked")
        return Measured(first_s - occasion.from_s, f"asked at {first_s:.2f} s")

    return worst(((o.name, one(o)) for o in run.demanded(Demand.TAKEOVER)), "there was no reason to ask the driver")


def _time_to_standstill(run: Run) -> Measured:
    if run.open_loop:
        return _obeys_nobody()
    return _of_stops(_standstill, run)


def _standstill(run: Run, occasion: Occasion) -> Measured:
    standing_s = _standing_s(run, occasion)
    if math.isinf(standing_s):
        return Measured(math.inf, "the vehicle never stood")
    return Measured(standing_s - occasion.from_s, f"stood at {standing_s:.2f} s")


def _standing_s(run: Run, occasion: Occasion) -> float:
    spans = [(t, abs(v)) for t, v in run.speeds if occasion.from_s <= t <= occasion.to_s]
    return min((t for t, v in spans if v < STANDSTILL_MPS), default=math.inf)


def _hold_speed_max(run: Run) -> Measured:
    if run.open_loop:
        return _obeys_nobody()
    return _of_stops(_crept, run)


def _crept(run: Run, occasion: Occasion) -> Measured:
    standing_s = _standing_s(run, occasion)
    if math.isinf(standing_s):
        return Measured(None, "the vehicle never stood")
    after = [(math.inf if math.isnan(v) else abs(v), t) for t, v in run.speeds if standing_s <= t <= occasion.to_s]
    speed_mps, at_s = max(after)
    return Measured(speed_mps, f"at {at_s:.2f} s")


def _obeys_nobody() -> Measured:
    return Measured(None, "the vehicle of a recording obeys nobody")


# -- the whole run -----------------------------------------------------------------------------------------------------


def _count(times_s: list[float], what: str) -> Measured:
    where = f"first {what} at {times_s[0]:.2f} s" if times_s else ""
    return Measured(float(len(times_s)), where)


def _start_up(run: Run) -> Measured:
    if not run.commands:
        return _no_command()
    first_s = min([*run.starts_of(Motion.DRIVE), *run.starts_of(Motion.MANUAL)], default=math.inf)
    return Measured(first_s, "" if math.isfinite(first_s) else "the vehicle was never let go")


def _no_command() -> Measured:
    return Measured(None, "no command was recorded")


def _takeover_requests(run: Run) -> Measured:
    return _count(run.takeover_requests(), "request") if run.states else _no_state()


def _false_takeover_requests(run: Run) -> Measured:
    if not run.starts_of(Motion.DRIVE):
        return Measured(None, "automation never drove")
    return _count([t for t in run.takeover_requests() if not run.excused(t)], "request") if run.states else _no_state()


def _requests_at_standstill(run: Run) -> Measured:
    if not run.states or not run.speeds:
        return Measured(None, "no state or no vehicle speed was recorded")
    times, still = [t for t, _ in run.speeds], []
    for asked_s in run.takeover_requests():
        before = [i for i, t in enumerate(times) if t <= asked_s]
        if before and abs(run.speeds[before[-1]][1]) < STANDSTILL_MPS:
            still.append(asked_s)
    return _count(still, "request")


def _no_state() -> Measured:
    return Measured(None, "no state was recorded")


def _state_changes(run: Run) -> Measured:
    changes = [s for a, s in pairwise(run.states) if s.state is not a.state]
    return _count([run.since_s(s.t_ns) for s in changes], "change") if run.states else _no_state()


def _nominal_share(run: Run) -> Measured:
    begin_s = _start_up(run).value
    if begin_s is None or not begin_s < run.end_s or not run.states:
        return Measured(None, "the vehicle was never let go")
    times = [run.since_s(s.t_ns) for s in run.states]
    spent: dict[DegradationState, float] = {}
    for state, from_s, to_s in zip(run.states, times, [*times[1:], run.end_s]):
        spent[state.state] = spent.get(state.state, 0.0) + max(0.0, to_s - max(from_s, begin_s))
    automated_s = sum(s for state, s in spent.items() if state is not DegradationState.MANUAL)
    if automated_s <= 0:
        return Measured(None, "automation never drove")
    return Measured(spent.get(DegradationState.NOMINAL, 0.0) / automated_s, f"of {automated_s:.2f} s")


def _false_faults(run: Run) -> Measured:
    if not run.record.verdicts:
        return Measured(None, "no verdict was recorded")
    active: set[str] = set()
    begun: list[tuple[float, str]] = []
    for verdict in run.record.verdicts:
        if verdict.t_ns > run.end_ns:
            continue
        if verdict.active and verdict.fault_id not in active:
            begun.append((run.since_s(verdict.t_ns), verdict.fault_id))
        (active.add if verdict.active else active.discard)(verdict.fault_id)
    false = [
        (t, name) for t, name in begun if not any(occasion.from_s <= t <= occasion.to_s for occasion in run.occasions)
    ]
    return Measured(float(len(false)), f"first {false[0][1]} at {false[0][0]:.2f} s" if false else "")


def _constraint_gap_max(run: Run) -> Measured:
    if not run.commands:
        return _no_command()
    times = [*(t for t, _ in run.commands), run.end_s]
    gap_s, at_s = max((b - a, a) for a, b in pairwise(times))
    return Measured(gap_s, f"from {at_s:.2f} s on")


def _deceleration_max(run: Run) -> Measured:
    values = [
        (e.constraint.deceleration_mps2, run.since_s(e.t_ns)) for e in run.record.constraints if e.t_ns <= run.end_ns
    ]
    if not values:
        return _no_command()
    hardest, at_s = max((math.inf if math.isnan(v) else v, t) for v, t in values)
    return Measured(hardest, f"at {at_s:.2f} s")


def _refused_messages(run: Run) -> Measured:
    if not run.record.constraints and not run.record.results:
        return Measured(None, "no message was recorded")
    by_tier = {tier: integrity_of(run.record.results_of(tier)).crc_errors for tier in Tier}
    return Measured(float(run.refused + sum(by_tier.values())), f"{run.refused} commands")


def _lost_messages(run: Run) -> Measured:
    if not run.record.constraints and not run.record.results:
        return Measured(None, "no message was recorded")
    commands = integrity_of([e.constraint for e in run.record.constraints]).messages_lost
    results = sum(integrity_of(run.record.results_of(tier)).messages_lost for tier in Tier)
    return Measured(float(commands + results), f"{commands} commands")


# -- tiers -------------------------------------------------------------------------------------------------------------


def _fresh_share(tier: Tier, run: Run) -> Measured:
    results = [r.result for r in run.record.results if r.t_ns <= run.end_ns and r.result.tier is tier]
    first = next((i for i, r in enumerate(results) if r.origin is Origin.FRESH), None)
    share = None if first is None else fresh_share(results[first:])
    return Measured(share, "" if share is not None else f"the {tier.key} tier gave no fresh result")


def _age_max(tier: Tier, run: Run) -> Measured:
    """Peak age of information: how old the newest content was just before newer came, or the run ended.

    Costa, Codreanu, Ephremides, "On the Age of Information in Status Update Systems with Packet Management", 2016.
    """
    content = [
        (r.t_ns, r.result.source_stamp_ns)
        for r in run.record.results
        if r.result.tier is tier and r.result.origin is not Origin.DEFAULT and r.t_ns <= run.end_ns
    ]
    if not content:
        return Measured(None, f"the {tier.key} tier gave no content")
    newest_ns, peak = content[0][1], (0.0, 0.0)
    for t_ns, stamp_ns in [*content[1:], (run.end_ns, run.end_ns)]:
        peak = max(peak, ((t_ns - newest_ns) / 1e9, run.since_s(t_ns)))
        newest_ns = max(newest_ns, stamp_ns)
    return Measured(peak[0], f"at {peak[1]:.2f} s")


def _latency_p99(tier: Tier, run: Run) -> Measured:
    values = [
        latency_ms(r.result)
        for r in run.record.results
        if r.result.tier is tier and r.result.origin is Origin.FRESH and r.t_ns <= run.end_ns
    ]
    if not values:
        return Measured(None, f"the {tier.key} tier gave no fresh result")
    return Measured(percentile(values, 99), f"budget {budgets_of(run.record)[tier].budget_s * 1e3:g} ms")


METRICS: dict[str, Metric] = {
    "time_to_stop_command_s": Metric(
        partial(_of_stops, _time_to_stop_command),
        "From an occasion to stop to the first command of a speed limit of 0, or to the silence that stops a consumer.",
    ),
    "time_to_standstill_s": Metric(
        _time_to_standstill, "From an occasion to stop until the vehicle stands; only where it obeys."
    ),
    "hold_broken_s": Metric(
        partial(_of_stops, _hold_broken),
        "Time in which the vehicle was let go again although the occasion to stop lasted.",
    ),
    "hold_speed_max_mps": Metric(
        _hold_speed_max, "Greatest speed once the vehicle stood, while the occasion lasted; only where it obeys."
    ),
    "time_to_resume_s": Metric(
        _time_to_resume, "From the end of an occasion to stop until somebody drives, automation or driver."
    ),
    "false_stops_n": Metric(_false_stops, "Stops commanded while no occasion demanded anything."),
    "time_to_takeover_request_s": Metric(
        _time_to_takeover_request, "From an occasion for it until the driver is asked to take over."
    ),
    "takeover_requests_n": Metric(_takeover_requests, "How often the driver was asked to take over."),
    "false_takeover_requests_n": Metric(
        _false_takeover_requests, "How often the driver was asked while no occasion demanded anything."
    ),
    "takeover_requests_at_standstill_n": Metric(
        _requests_at_standstill, f"How often the driver was asked below {STANDSTILL_MPS:g} m/s."
    ),
    "start_up_s": Metric(_start_up, "From the start of the run until the vehicle was let go."),
    "nominal_share": Metric(
        _nominal_share, "Share of the automated time after start-up in NOMINAL; what the driver drove does not count."
    ),
    "state_changes_n": Metric(_state_changes, "Changes of the degradation state, that out of the start-up included."),
    "false_faults_n": Metric(_false_faults, "Faults that became active outside every occasion."),
    "constraint_gap_max_s": Metric(
        _constraint_gap_max, "Longest time between two valid commands, or to the end of the run."
    ),
    "deceleration_max_mps2": Metric(_deceleration_max, "Greatest deceleration commanded."),
    "refused_messages_n": Metric(
        _refused_messages, "Results that failed their CRC, and commands a consumer would refuse."
    ),
    "lost_messages_n": Metric(_lost_messages, "Results and commands missing by their sequence counter."),
    **{
        f"{tier.key}_{name}": Metric(partial(measure, tier), f"{text} Of the {tier.key} tier.")
        for tier in Tier
        for name, measure, text in (
            ("fresh_share", _fresh_share, "Share of FRESH results from the first on, bridged camera gaps left out."),
            ("age_max_s", _age_max, "Worst age: how old the newest content was just before newer came, or at the end."),
            ("latency_p99_ms", _latency_p99, "99th percentile from source stamp to published FRESH result."),
        )
    },
}
"""Every metric by name."""
