"""One drive with one fault, and the judgement on it. Reproducible from its line: entry, seed, campaign's drive."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from triptych.contract import DegradationState, Tier
from triptych.engines.protocol import Engine
from triptych.injection.campaign import Campaign, Entry
from triptych.injection.faults import KINDS, Expected, Injected, Nothing, Parameters
from triptych.injection.loop import NS, ClosedLoop, Log
from triptych.replay.record import RunRecord
from triptych.scenario.outcome import Outcome
from triptych.supervisor.config import supervisor_config
from triptych.supervisor.faults import FaultRow
from triptych.virtual import modelled_ms

S = DegradationState
SEVERITY = {
    S.NOMINAL: 0,
    S.L3_PERCEPTION_ONLY: 1,
    S.L2_TAKEOVER_REQUEST: 2,
    S.INITIALISING: 3,
    S.L1_MINIMAL_RISK_MANOEUVRE: 3,
    S.MRC: 3,
    S.MANUAL: 4,
}
"""How careful a state is; waiting at standstill is as safe as the manoeuvre, and what a driver drives is not ours."""


class Verdict(str, Enum):
    """What a trial showed."""

    DETECTED = "detected"
    TOLERATED = "tolerated"
    LATE = "late"
    MISSED = "missed"
    WRONG_STATE = "wrong_state"
    FALSE_ALARM = "false_alarm"
    COLLISION = "collision"
    INVALID = "invalid"


HELD = frozenset({Verdict.DETECTED, Verdict.TOLERATED})
"""Nothing to complain of."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One line of the result.

    Attributes:
        id, kind, parameters, seed: what was done; with the campaign's drive, everything needed to do it again.
        at_s: when the fault began.
        verdict, why: the judgement, and a sentence where it is not good.
        detected_by, detection_s: first detection that counts, after the injection.
        reaction_s: first stricter command to the vehicle, or its own safe default.
        faults: ids of the faults that became active after the injection, in order.
        final: state of the supervisor and of the command at the end.
        speed_at_fault_mps: of the vehicle.
        outcome: of the scenario.
    """

    id: str
    kind: str
    parameters: dict[str, Any]
    seed: int
    at_s: float
    verdict: Verdict
    why: str
    detected_by: str
    detection_s: float | None
    reaction_s: float | None
    faults: tuple[str, ...]
    final: tuple[str, str]
    speed_at_fault_mps: float
    outcome: dict[str, Any]


def run_trial(
    campaign: Campaign,
    entry: Entry,
    seed: int,
    engines: Mapping[Tier, Engine],
    table: Sequence[FaultRow],
    record: RunRecord | None = None,
) -> Trial:
    """Drive, break, judge.

    Args:
        record: filled on the way; the fault is in it as one that was caused on purpose.
    """
    return break_and_judge(healthy_drive(campaign, entry.lidar, seed, engines, table, record), campaign, entry, seed)


def healthy_drive(
    campaign: Campaign,
    lidar: bool,
    seed: int,
    engines: Mapping[Tier, Engine],
    table: Sequence[FaultRow],
    record: RunRecord | None = None,
) -> ClosedLoop:
    """A drive of this seed up to where the first fault may begin; nothing is broken in it."""
    drive = campaign.drive.config(seed)
    focal_share = 0.5 / math.tan(math.radians(drive.camera_fov_deg) / 2)
    loop = ClosedLoop(
        drive,
        engines,
        table,
        supervisor_config({"lidar_expected": lidar, "camera_focal_share": focal_share}),
        Nothing(Parameters(), 0, np.random.default_rng(0)),
        {tier: modelled_ms(tier, engine, {}) for tier, engine in engines.items()},
        record,
    )
    loop.run(campaign.drive.warm_s)
    return loop


def break_and_judge(loop: ClosedLoop, campaign: Campaign, entry: Entry, seed: int) -> Trial:
    """The rest of a healthy drive with one fault, and the judgement on it; the loop is used up."""
    rng = np.random.default_rng((seed, *entry.id.encode()))
    at_s = round(campaign.drive.warm_s + 0.5 * float(rng.random()), 3)
    kind = KINDS[entry.kind][0]
    fault = kind(campaign.parameters(entry), round(at_s * NS), rng)
    if loop.record is not None and entry.kind != "none":
        least, within_ms = entry.expect.table().least.name, entry.expect.within_s * 1e3
        injected = {"fault": entry.kind, "target": entry.id, "from_s": at_s, "expect": least, "within_ms": within_ms}
        loop.record.meta.update(injected=[injected], input=f"{entry.id}, seed {seed}")
    loop.inject(fault)
    loop.run(at_s)
    before, speed_mps = loop.state, loop.scenario.speed_mps
    loop.run(at_s + campaign.drive.after_s)
    return judge(entry, seed, fault, loop, before, speed_mps)


def detections(log: Log, begin_ns: int) -> list[tuple[int, str]]:
    """Whatever noticed anything after a time: (monotonic ns, fault id, ``safety_core`` or ``vehicle``), in order."""
    found = [
        (t, change.name)
        for t, change in log.transitions
        if t >= begin_ns and change.kind == "fault" and change.after == "active"
    ]
    own_stop = [h.t_ns for h in log.heard if h.t_ns >= begin_ns and h.command.reason.startswith("safety core")]
    safe = [t for t, is_safe in log.effective if t >= begin_ns and is_safe]
    found += [(t, "safety_core") for t in own_stop[:1]] + [(t, "vehicle") for t in safe[:1]]
    return sorted(found)


def reaction_ns(log: Log, begin_ns: int) -> int | None:
    """When the vehicle first heard a stricter command than the one in force, or took its safe default."""
    before = [h.command for h in log.heard if h.t_ns < begin_ns]
    limit_mps = before[-1].speed_limit_mps if before else 0.0
    times = [
        h.t_ns
        for h in log.heard
        if h.t_ns >= begin_ns
        and SEVERITY[h.command.state] >= 2
        and h.command.state is not S.MANUAL
        and (h.command.speed_limit_mps < limit_mps or h.command.hazard_lights)
    ]
    times += [t for t, safe in log.effective if safe and t >= begin_ns]
    return min(times, default=None)


def judge(entry: Entry, seed: int, fault: Injected, loop: ClosedLoop, before: S, speed_mps: float) -> Trial:
    """The verdict, from what happened."""
    expected, log, begin_ns = entry.expect.table(), loop.log, fault.begin_ns
    seen = detections(log, begin_ns)
    mine = [(t, name) for t, name in seen if any(name.startswith(start) for start in expected.by)]
    first = mine[0] if mine else None
    detection_s = None if first is None else round((first[0] - begin_ns) / NS, 4)
    stricter_ns = reaction_ns(log, begin_ns)
    told = log.heard[-1].command.state if log.heard else S.INITIALISING
    stopped = bool(log.effective and log.effective[-1][1])
    careful = max(SEVERITY[loop.state], SEVERITY[told], 3 if stopped else 0)
    outcome = loop.scenario.outcome
    verdict, why = _verdict(entry, fault, expected, before, detection_s, careful, outcome, loop, seen)
    return Trial(
        entry.id,
        entry.kind,
        entry.parameters,
        seed,
        begin_ns / NS,
        verdict,
        why,
        first[1] if first else "",
        detection_s,
        None if stricter_ns is None else round((stricter_ns - begin_ns) / NS, 4),
        tuple(dict.fromkeys(name for _, name in seen)),
        (loop.state.name, told.name),
        round(speed_mps, 2),
        _plain(outcome),
    )


def _verdict(
    entry: Entry,
    fault: Injected,
    expected: Expected,
    before: S,
    detection_s: float | None,
    careful: int,
    outcome: Outcome,
    loop: ClosedLoop,
    seen: list[tuple[int, str]],
) -> tuple[Verdict, str]:
    if before not in (S.NOMINAL, S.L3_PERCEPTION_ONLY):
        return Verdict.INVALID, f"the drive was in {before.name} when the fault was to begin"
    if not fault.effects:
        return Verdict.INVALID, "the fault never took effect"
    late = [c for c in outcome.collisions if c.time_s >= fault.begin_ns / NS]
    if late:
        return Verdict.COLLISION, f"with a {late[0].kind} at {late[0].ego_speed_mps:.1f} m/s"
    if entry.kind == "none":
        alarms = [name for t, name in seen if _demands(loop, name)]
        return (Verdict.FALSE_ALARM, ", ".join(alarms)) if alarms else (Verdict.TOLERATED, "")
    if careful < SEVERITY[expected.least]:
        return Verdict.WRONG_STATE, f"{loop.state.name} at the end, {expected.least.name} or safer was demanded"
    if not expected.by:
        return Verdict.TOLERATED, ""
    if detection_s is None:
        return Verdict.MISSED, f"nothing of {', '.join(expected.by)} within {loop.now_ns / NS:.0f} s"
    if detection_s > expected.within_s:
        return Verdict.LATE, f"after {detection_s:.3f} s, {expected.within_s:g} s were allowed"
    return Verdict.DETECTED, ""


def _demands(loop: ClosedLoop, name: str) -> bool:
    """Whether a fault asks for more than perception alone; a stop by anybody else always does."""
    reactions = {row.id: row.reaction for row in loop.table}
    return reactions.get(name, "l1") in ("l1", "l2")


def _plain(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON takes it; no other road user at all is no distance."""
    plain = dataclasses.asdict(outcome)
    if outcome.min_distance_m == float("inf"):
        plain["min_distance_m"] = None
    found: dict[str, Any] = json.loads(json.dumps(plain))  # lists for tuples, numbers for enumerations
    return found
