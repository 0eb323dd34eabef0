"""A made-up but plausible run record, so that reports are tested without ROS, models or a recording."""

from __future__ import annotations

import math
import random
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import cv2
import numpy as np

from triptych.contract import (
    BUDGETS,
    CAUTIOUS_ADVICE,
    CAUTIOUS_DETECTIONS,
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Hazard,
    LatencySplit,
    Light,
    MotionConstraint,
    Odometry,
    Origin,
    Payload,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VerdictLevel,
    Weather,
    protect,
)
from triptych.replay.record import (
    ConstraintRecord,
    CpuSample,
    DriverRecord,
    Event,
    OdometryRecord,
    Received,
    RunRecord,
    SampleFrame,
    StateRecord,
    StatusRecord,
    VerdictRecord,
)

S = 1_000_000_000
START_NS = 1_700_000_000 * S
TYPICAL_MS = {
    Tier.DETECTOR: (2.0, 2.0, 8.0, 1.0),
    Tier.DISTILLED: (3.0, 5.0, 95.0, 2.0),
    Tier.FULL: (4.0, 12.0, 1150.0, 3.0),
}
ENGINES = {Tier.DETECTOR: "triptych-detector", Tier.DISTILLED: "triptych-distilled", Tier.FULL: "triptych-full"}
STATES = DegradationState


@dataclass
class Plan:
    """What the run should look like.

    Attributes:
        seconds: length.
        tiers: those that run.
        start_s: first frame, once the processes are up.
        slow: factor on the inference time of a tier.
        detector_lost_s: from when on the detector is gone for good (the state machine then reacts).
        seed: of the noise.
    """

    seconds: float = 30.0
    tiers: tuple[Tier, ...] = tuple(Tier)
    start_s: float = 2.0
    slow: dict[Tier, float] = field(default_factory=dict)
    detector_lost_s: float | None = None
    images: int = 6
    seed: int = 1
    meta: dict[str, Any] = field(default_factory=dict)


def make(plan: Plan | None = None) -> RunRecord:
    """Build the record; entries are immutable and shared between calls, the lists are the caller's own."""
    plan = plan or Plan()
    key = repr(plan)
    if key not in _MADE:
        _MADE[key] = _make(plan)
    made = _MADE[key]
    return RunRecord(
        **{f.name: copy(getattr(made, f.name)) for f in fields(RunRecord)},
    )


_MADE: dict[str, RunRecord] = {}


def _make(plan: Plan) -> RunRecord:
    rng = random.Random(plan.seed)
    record = RunRecord(
        meta={
            "mode": "live",
            "input": "scenario",
            "started_ns": START_NS,
            "ended_ns": START_NS + int(plan.seconds * S),
            "camera": {"width": 1280, "height": 720, "rate_hz": 20.0},
            **plan.meta,
        }
    )
    for tier in plan.tiers:
        _tier(record, tier, plan, rng)
    _supervisor(record, plan)
    _vehicle(record, plan)
    _load(record, plan, rng)
    for index in range(plan.images):
        at = plan.start_s + (index + 0.5) * (plan.seconds - plan.start_s) / plan.images
        stamp = START_NS + round(at / 0.05) * S // 20
        ok, data = cv2.imencode(".jpg", _picture(index), [cv2.IMWRITE_JPEG_QUALITY, 80])
        assert ok
        record.add(SampleFrame(stamp + 5_000_000, stamp, 1280, 720, data.tobytes()))
    return record


def _tier(record: RunRecord, tier: Tier, plan: Plan, rng: random.Random) -> None:
    budget = BUDGETS[tier]
    stamp = START_NS + int(plan.start_s * S)
    end = START_NS + int(plan.seconds * S)
    lost = plan.detector_lost_s if tier is Tier.DETECTOR else None
    last: tuple[int, Payload, int] | None = None
    counts = dict.fromkeys(Origin, 0)
    sequence, number = 0, 0
    while stamp < end and (lost is None or stamp < START_NS + lost * S):
        number += 1
        transport, pre, infer, post = (
            value * rng.lognormvariate(0.0, 0.12) * (plan.slow.get(tier, 1.0) if i == 2 else 1.0)
            for i, value in enumerate(TYPICAL_MS[tier])
        )
        total = transport + pre + infer + post + 0.6
        payload = _payload(tier, stamp, rng)
        split = LatencySplit(transport, pre, infer, post)
        if total <= budget.budget_s * 1e3:
            origin, reason, source, content, published = Origin.FRESH, "", stamp, payload, stamp + int(total * 1e6)
        else:
            published = stamp + int(budget.budget_s * S)
            reason, split = "timeout", LatencySplit()
            source, content = (last[0], last[1]) if last else (START_NS, _cautious(tier))
            origin = Origin.LAST_FRAME if last and published - source <= budget.keep_s * S else Origin.DEFAULT
            if origin is Origin.DEFAULT:
                content = _cautious(tier)
        last = (stamp, payload, number)
        counts[origin] += 1
        result = TierResult(
            tier, origin, reason, source, "camera_optical_frame", number, published, (published - source) / 1e6, split,
            ENGINES[tier], "0.1.0", "cpu", 0.1 + 0.2 * rng.random(), content,
        )  # fmt: skip
        if published < end:
            record.add(Received(published + 400_000, protect(result, sequence)))
            sequence += 1
        stamp += int(budget.period_s * S)
    for index in range(int(plan.seconds * 10)):
        t_ns = START_NS + index * S // 10
        if lost is not None and t_ns >= START_NS + lost * S:
            break
        active = t_ns >= START_NS + plan.start_s * S
        up_s = max(0.0, index / 10 - plan.start_s)
        state = TierState.ACTIVE if active else TierState.SELF_TEST
        status = TierStatus(
            t_ns, tier, state, True, "", ENGINES[tier], "0.1.0", "auto", "cpu",
            int(up_s * 20), int(up_s * (20 - 1 / budget.period_s)),
        )  # fmt: skip
        record.add(StatusRecord(t_ns + 300_000, protect(status, index)))


def _cautious(tier: Tier) -> Payload:
    return CAUTIOUS_DETECTIONS if tier is Tier.DETECTOR else CAUTIOUS_ADVICE


def _payload(tier: Tier, stamp: int, rng: random.Random) -> Payload:
    t = (stamp - START_NS) / S
    if tier is Tier.DETECTOR:
        grow = 60 + 40 * math.sin(t / 4)
        boxes = [
            Detection("vehicle", 0, 0.9, 600 - grow, 420 - grow / 2, 600 + grow, 420 + grow),
            Detection("vehicle", 0, 0.7, 900, 400, 1010, 470),
            Detection("pedestrian", 2, 0.6, 200 + 6 * t, 390, 235 + 6 * t, 500),
            Detection("traffic light", 3, 0.5, 1100, 120, 1130, 190),
        ]
        return Detections(1280, 720, tuple(boxes[: 1 + rng.randrange(4)]))
    near = math.sin(t / 4) > 0.3
    return SceneAdvice(
        Road.URBAN,
        Weather.CLEAR,
        Light.DAY,
        (Hazard.LEAD_VEHICLE, Hazard.PEDESTRIAN_NEAR_LANE) if near else (),
        Advice.SLOW_DOWN if near else Advice.PROCEED,
        2 if near else 0,
        0,
        1 if near else 0,
        "",
        "urban road in clear daylight, a vehicle is close ahead and slowing"
        if near
        else "urban road, the lane is free",
        tuple(0.8 + 0.2 * rng.random() for _ in range(12)),
    )


def timeline(plan: Plan) -> list[tuple[float, DegradationState, str]]:
    """States of the run: seconds, state, reason."""
    states = [(0.3, STATES.INITIALISING, "waiting for every required input")]
    states.append((plan.start_s + 0.3, STATES.NOMINAL, "all tiers healthy"))
    lost = plan.detector_lost_s
    if lost is not None:
        states += [
            (lost + 0.09, STATES.L2_TAKEOVER_REQUEST, "detector: no result for 92 ms"),
            (lost + 0.12, STATES.L1_MINIMAL_RISK_MANOEUVRE, "detector: lost, no result for 121 ms"),
            (lost + 8.0, STATES.MRC, "standing still"),
        ]
    return [entry for entry in states if entry[0] < plan.seconds]


def speed_at(plan: Plan, t_s: float) -> float:
    """Vehicle speed in m/s: brakes at 2 m/s2 from the loss of the detector on."""
    cruise = 14.0 + 0.5 * math.sin(t_s)
    if plan.detector_lost_s is None or t_s < plan.detector_lost_s + 0.1:
        return cruise
    return max(0.0, 14.0 - 2.0 * (t_s - plan.detector_lost_s - 0.1))


def _supervisor(record: RunRecord, plan: Plan) -> None:
    states = timeline(plan)
    previous = STATES.INITIALISING
    for t_s, state, reason in states:
        faults = ("tier1_lost",) if state in (STATES.L1_MINIMAL_RISK_MANOEUVRE, STATES.MRC) else ()
        asked = state is STATES.L2_TAKEOVER_REQUEST
        t_ns = START_NS + int(t_s * S)
        record.add(StateRecord(t_ns, state, previous, reason, faults, asked, 10.0 if asked else 0.0))
        previous = state
    for index in range(int((plan.seconds - 0.3) * 20)):
        t_s = 0.3 + index / 20
        state = [s for at, s, _ in states if at <= t_s][-1]
        stopping = state in (STATES.L1_MINIMAL_RISK_MANOEUVRE, STATES.MRC)
        slowing = plan.tiers and Tier.FULL in plan.tiers and math.sin(t_s / 4) > 0.3
        limit = 0.0 if stopping else 8.0 if state is STATES.L2_TAKEOVER_REQUEST else 11.0 if slowing else 22.0
        command = MotionConstraint(
            START_NS + int(t_s * S), limit, 2.0, stopping, stopping and state is not STATES.MRC, stopping, state, "",
        )  # fmt: skip
        record.add(ConstraintRecord(START_NS + int(t_s * S) + 200_000, protect(command, index)))
    if plan.detector_lost_s is not None:
        t_ns = START_NS + int((plan.detector_lost_s + 0.12) * S)
        record.add(
            VerdictRecord(
                t_ns, "tier1_lost", "detector", VerdictLevel.FAULT, True, 0.121, 0.12, "The detector fell silent."
            )
        )


def _vehicle(record: RunRecord, plan: Plan) -> None:
    for index in range(int(plan.seconds * 20)):
        t_ns = START_NS + index * S // 20
        record.add(OdometryRecord(t_ns, Odometry(t_ns, speed_at(plan, index / 20))))
    record.add(DriverRecord(START_NS, DriverState(START_NS)))


def _load(record: RunRecord, plan: Plan, rng: random.Random) -> None:
    names = {"supervisor": (1.4, 90), "scenario": (35.0, 160)} | {
        tier.key: {Tier.DETECTOR: (28.0, 210), Tier.DISTILLED: (42.0, 320), Tier.FULL: (55.0, 540)}[tier]
        for tier in plan.tiers
    }
    for second in range(1, int(plan.seconds)):
        for name, (percent, mib) in names.items():
            record.add(
                CpuSample(
                    START_NS + second * S, name, percent * rng.uniform(0.8, 1.2), (mib << 20) + rng.randrange(1 << 20)
                )
            )
    record.add(Event(START_NS + S, "triptych", "all processes started"))


def _picture(index: int) -> np.ndarray:
    image = np.full((720, 1280, 3), (200, 170, 140), np.uint8)
    image[400:] = (90, 90, 90)
    cv2.fillPoly(image, [np.array([[560, 400], [720, 400], [1280, 720], [0, 720]])], (70, 70, 72))
    for row in range(4):
        y = 430 + row * 75
        cv2.line(image, (640, y), (640, y + 20 + 8 * row), (240, 240, 240), 2 + row)
    cv2.rectangle(image, (560 - 5 * index, 390), (650, 470), (40, 40, 160), cv2.FILLED)
    cv2.rectangle(image, (900, 400), (1010, 470), (160, 120, 60), cv2.FILLED)
    return image
