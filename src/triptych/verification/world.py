"""The abstract surroundings of a supervisor: each input in one of few classes, chosen anew in every quantum of time.

The supervisor, its monitors, the lives of its faults and its state machine are the real ones. Scaled down are numbers:
the quantum is 0.5 s, every debounce, clearing and waiting time is one to three quanta, and thresholds on silence lie
half a quantum off the grid, so that no comparison hangs on rounding. A speed limit has four values, 1 m/s apart.

The fault table is a selection of the shipped one: from every class of rows (reaction, latch, what its metric grows
with, whether it has a debounce) that reacts at all, one for each group of sources (tier 1, VLM tiers, vehicle, driver).
The selection loses nothing that the properties look at: rows share no memory, each life sees its own metric alone, and
of all active rows the machine hears one thing, the greatest demand. What a left-out row can do, its representative
does in the same steps. That every shipped class has one is a test. The last hop to the vehicle and the machine are
left out: they are watched by rows of classes that are there without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from itertools import product
from math import nan
from typing import NamedTuple

from triptych.contract import (
    Advice,
    Budget,
    Detections,
    DriverState,
    InputError,
    LatencySplit,
    Odometry,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
)
from triptych.supervisor import Commands, FaultRow, SupervisorConfig, SupervisorCore
from triptych.verification.memento import NOW_NS, QUANTUM_NS, STAMP_OFFSET_NS, Memento, Recorder

Q_S = QUANTUM_NS / 1e9
DEBOUNCE_QUANTA, CLEAR_QUANTA, WAIT_QUANTA, STALL_QUANTA = 1, 1, 2, 3
HOLD_QUANTA = 1
"""Of standstill and of handing back: so many quanta after the first message that says so."""
MOVING_MPS = 1.0
LAG_NS = 1_000_000
CLOCK_STEP_NS = 3_600 * 1_000_000_000

CONFIG = SupervisorConfig(
    safety_core_expected=False,
    startup_grace_s=2 * Q_S,
    speed_limit_max_mps=3.0,
    l3_speed_limit_mps=2.0,
    l2_speed_limit_mps=1.0,
    advice_proceed_cap_mps=3.0,
    advice_caution_cap_mps=2.0,
    advice_slow_down_cap_mps=1.0,
    advice_prepare_to_stop_cap_mps=1.0,
    limit_rise_mps2=1.0 / Q_S,
    takeover_wait_s=WAIT_QUANTA * Q_S,
    hand_back_hold_s=HOLD_QUANTA * Q_S,
    driver_fresh_s=0.75 * Q_S,
    standstill_hold_s=HOLD_QUANTA * Q_S,
    odometry_fresh_s=0.75 * Q_S,
    event_window_s=1.5 * Q_S,
    clock_settle_s=0.5 * Q_S,
    clock_settle_spacing_s=1.5 * Q_S,
    loop_late_s=2 * Q_S,
    loop_postpone_spacing_s=2 * Q_S,
)
BUDGETS = {tier: Budget(0.4 * Q_S, 0.4 * Q_S, Q_S) for tier in Tier}

REPRESENTATIVES: dict[str, float] = {
    "detector.lost": 1.5 * Q_S,
    "detector.never_received": 0.0,
    "detector.stalled": 0.5 * Q_S,
    "detector.uncertain": 0.8,
    "detector.invalid": 2.0,
    "distilled.stale": 0.5 * Q_S,
    "distilled.never_received": 0.0,
    "distilled.perplexity": 2.0,
    "full.stale": 0.5 * Q_S,
    "full.never_received": 0.0,
    "odometry.lost": 0.75 * Q_S,
    "odometry.never_received": 0.0,
    "odometry.invalid": 2.0,
    "driver.lost": 0.75 * Q_S,
    "driver.never_received": 0.0,
    "driver.absent": 1.0,
    "clock.step": 0.05,
}
"""Rows of the shipped table that stand for all, with their threshold in the scaled world."""


class Detector(Enum):
    """What tier 1 does in one quantum."""

    FINE = "fine"
    SILENT = "silent"
    DOUBTFUL = "doubtful"
    INVALID = "invalid"


class Vlm(Enum):
    """What both VLM tiers do."""

    PROCEED = "proceed"
    STOP = "stop"
    SILENT = "silent"
    HALF = "one silent"
    DOUBTED = "one doubted"


class Speed(Enum):
    """What the odometry says."""

    MOVING = "moving"
    STANDING = "standing"
    SILENT = "silent"
    NAN = "NaN"


SPEEDS_MPS = {Speed.MOVING: MOVING_MPS, Speed.STANDING: 0.0, Speed.NAN: nan}


class Driver(Enum):
    """What is heard of the driver."""

    HANDED_OVER = "handed over"
    DRIVES = "drives"
    ABSENT = "absent"
    SILENT = "silent"


class Request(Enum):
    """What somebody asked for since the last tick."""

    NONE = ""
    RESET = "reset"
    TAKEOVER = "takeover"


class Time(Enum):
    """How time passes: one quantum; with a step of the clock of stamps; or a stall of the supervisor itself."""

    PASSES = ""
    STEPS = "clock step"
    STALLS = "own stall"


class Action(NamedTuple):
    """One step of the surroundings."""

    detector: Detector = Detector.FINE
    vlm: Vlm = Vlm.PROCEED
    speed: Speed = Speed.MOVING
    driver: Driver = Driver.HANDED_OVER
    request: Request = Request.NONE
    time: Time = Time.PASSES

    @property
    def quanta(self) -> int:
        """How long it takes."""
        return STALL_QUANTA if self.time is Time.STALLS else 1


def actions(**free: Iterable[Enum]) -> tuple[Action, ...]:
    """All combinations of the given classes, everything else as it is when all is well."""
    usual = Action()._asdict()
    return tuple(Action._make({**usual, **dict(zip(free, values))}.values()) for values in product(*free.values()))


def selection(shipped: Iterable[FaultRow]) -> tuple[FaultRow, ...]:
    """The scaled representatives of a fault table.

    Raises:
        InputError: the table lacks one of :data:`REPRESENTATIVES`.
    """
    rows = {row.id: row for row in shipped}
    chosen = []
    for name, threshold in REPRESENTATIVES.items():
        if name not in rows:
            raise InputError("is not in the fault table", where="verification", value=name, remedy="name another")
        row = rows[name]
        scaled: dict[str, object] = {
            "threshold": threshold,
            "debounce_s": DEBOUNCE_QUANTA * Q_S if row.debounce_s else 0.0,
            "clear_s": CLEAR_QUANTA * Q_S if row.clear_s else 0.0,
            "hysteresis": min(row.hysteresis, threshold / 2),
            "sentence": f"{name} is active.",  # no number: it would tell states apart that behave alike
        }
        chosen.append(row.model_copy(update=scaled))
    return tuple(chosen)


class Step(NamedTuple):
    """What one action did: ``accepted`` is the answer to the request, false without one."""

    commands: Commands
    accepted: bool


class World:
    """One supervisor in its surroundings, at any remembered moment.

    Args:
        shipped: the fault table.
        core_type: the supervisor; the tests hand in broken ones.
    """

    def __init__(self, shipped: Iterable[FaultRow], core_type: type[SupervisorCore] = SupervisorCore) -> None:
        rows = selection(shipped)
        self.core = core_type(CONFIG, rows, BUDGETS)
        self._recorder = Recorder(self.core)
        self.new = self._first(core_type(CONFIG, rows, BUDGETS))
        self.restarted = self._first(core_type(CONFIG, rows, BUDGETS, latched=True))

    @staticmethod
    def _first(core: SupervisorCore) -> Memento:
        core.step(NOW_NS, NOW_NS + STAMP_OFFSET_NS)
        return Recorder(core).save(NOW_NS, NOW_NS + STAMP_OFFSET_NS)

    def accepts(self, before: Memento, request: Request) -> bool:
        """Whether a request would be granted at a remembered moment."""
        self._recorder.load(before)
        return _ask(self.core, request, NOW_NS)

    def take(self, before: Memento, action: Action) -> tuple[Memento, Step]:
        """From a remembered moment one action on; the supervisor is left there for a look."""
        self._recorder.load(before)
        now_ns, stamp_ns, step = perform(self.core, action, NOW_NS, NOW_NS + STAMP_OFFSET_NS)
        return self._recorder.save(now_ns, stamp_ns), step


def perform(core: SupervisorCore, action: Action, now_ns: int, stamp_ns: int) -> tuple[int, int, Step]:
    """Do an action to a supervisor whose last tick was at these readings; returns the readings after it."""
    accepted = _ask(core, action.request, now_ns)
    passed_ns = action.quanta * QUANTUM_NS
    now_ns += passed_ns
    stamp_ns += passed_ns + (CLOCK_STEP_NS if action.time is Time.STEPS else 0)
    for tier, silent in _silent(action):
        if not silent:
            result, status = _messages(tier, action, stamp_ns - LAG_NS)
            core.on_result(result, now_ns, True)
            core.on_status(status, now_ns, True)
    for ago_ns in (QUANTUM_NS // 2, 0):  # twice: freshness is asked for from one message to the next
        sent_ns, received_ns = stamp_ns - ago_ns - LAG_NS, now_ns - ago_ns
        if action.speed is not Speed.SILENT:
            core.on_odometry(Odometry(sent_ns, SPEEDS_MPS[action.speed]), received_ns)
        if action.driver is not Driver.SILENT:
            present, drives = action.driver is not Driver.ABSENT, action.driver is Driver.DRIVES
            core.on_driver(DriverState(sent_ns, present, present, drives, not drives), received_ns, True)
    return now_ns, stamp_ns, Step(core.step(now_ns, stamp_ns), accepted)


def _ask(core: SupervisorCore, request: Request, now_ns: int) -> bool:
    if request is Request.NONE:
        return False
    ask = core.request_reset if request is Request.RESET else core.request_takeover
    return ask(now_ns)[0]


def _silent(action: Action) -> tuple[tuple[Tier, bool], ...]:
    return (
        (Tier.DETECTOR, action.detector is Detector.SILENT),
        (Tier.DISTILLED, action.vlm in (Vlm.SILENT, Vlm.HALF)),
        (Tier.FULL, action.vlm is Vlm.SILENT),
    )


def _messages(tier: Tier, action: Action, stamp_ns: int) -> tuple[TierResult, TierStatus]:
    if tier is Tier.DETECTOR:
        return _built(tier, action.detector, stamp_ns)
    return _built(tier, action.vlm, stamp_ns)


@lru_cache(maxsize=128)
def _built(tier: Tier, kind: Detector | Vlm, stamp_ns: int) -> tuple[TierResult, TierStatus]:
    doubted = kind is Vlm.DOUBTED and tier is Tier.DISTILLED
    advice = Advice.STOP if kind is Vlm.STOP else Advice.PROCEED
    answer = SceneAdvice(advice=advice, token_probabilities=(0.1,) if doubted else (0.9,))
    result = TierResult(
        tier=tier,
        origin=Origin.FRESH,
        reason="",
        source_stamp_ns=stamp_ns,
        frame_id="camera",
        frame_number=1,
        published_ns=stamp_ns,
        age_ms=nan if kind is Detector.INVALID else 1.0,
        latency=LatencySplit(),
        engine_id="e",
        engine_version="1",
        device="cpu",
        uncertainty=0.9 if kind is Detector.DOUBTFUL else 0.1,
        payload=Detections(1280, 720) if tier is Tier.DETECTOR else answer,
    )
    return result, TierStatus(stamp_ns, tier, TierState.ACTIVE, True)
