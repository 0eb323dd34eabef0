"""What must hold on every step of every path, and the little memory that takes: what the surroundings did, never what
the supervisor made of it.

Nothing here looks at a monitor, a fault or the machine's inputs. Ids are those of ``test/properties/PROPERTIES.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from triptych.contract import DegradationState as S
from triptych.verification.world import (
    CONFIG,
    MOVING_MPS,
    Q_S,
    WAIT_QUANTA,
    Action,
    Detector,
    Driver,
    Request,
    Speed,
    Step,
    Time,
    Vlm,
)

L1, L2, L3 = S.L1_MINIMAL_RISK_MANOEUVRE, S.L2_TAKEOVER_REQUEST, S.L3_PERCEPTION_ONLY
DRIVING = frozenset({S.NOMINAL, L3, L2})
RELYING = frozenset({S.NOMINAL, L3})
"""States that rely on tier 1, vehicle and driver."""
LOST_QUANTA = 2
STILL_MESSAGES = HANDED_MESSAGES = 2
"""So many in a row, a quantum apart, say that the hold of one quantum is over."""


class Memory(NamedTuple):
    """What is remembered of a path, cut off where nothing asks further.

    Attributes:
        state: of the supervisor; ``limit_mps`` as last commanded.
        silent: quanta for which tier 1 gave nothing usable.
        doubtful: it was unsure; ``absent``: nobody sat there; ``well``, ``vlm_well``: nothing to react to (of the VLM
            tiers one is enough). Each of the last quantum that was judged.
        standing: messages in a row that said so; ``handed``: likewise that the driver has handed over.
        asked: quanta for which the driver has been asked while moving.
        stalled: the last step was a stall of the supervisor's own after which it may put off its judgement.
        pending: a reset was accepted that no tick has judged yet.
        locked: a minimal risk condition was reached and nobody has reset it.
        lost: tier 1 was lost while automation drove, and nobody has driven or reset since.
        vlm_heard: both VLM tiers have spoken.
    """

    state: S = S.INITIALISING
    limit_mps: float = 0.0
    silent: int = 0
    doubtful: bool = False
    absent: bool = False
    well: bool = False
    vlm_well: bool = False
    standing: int = 0
    handed: int = 0
    asked: int = 0
    stalled: bool = False
    pending: bool = False
    locked: bool = False
    lost: bool = False
    vlm_heard: bool = False


AFTER_RESTART = Memory(state=L1, lost=True)
"""Of a supervisor that was restarted within a manoeuvre."""


def _unsure(action: Action) -> bool:
    """Whether vehicle or driver give cause at once."""
    return action.speed in (Speed.SILENT, Speed.NAN) or action.driver is Driver.SILENT


def remember(m: Memory, action: Action, step: Step, state: S) -> Memory:
    """The memory after one more step."""
    stall = action.time is Time.STALLS
    judged = not stall or m.stalled  # the inputs get their time after a stall, but not after every one
    refused = action.detector in (Detector.SILENT, Detector.INVALID)
    silent = min(m.silent + action.quanta, LOST_QUANTA) if refused else 0
    standing = 0
    if action.speed is Speed.STANDING:
        standing = min(m.standing + 1, STILL_MESSAGES) if not stall else 1
    handed = 0
    if action.driver in (Driver.HANDED_OVER, Driver.ABSENT):
        handed = min(m.handed + 1, HANDED_MESSAGES) if not stall else 1
    pending = (action.request is Request.RESET and step.accepted) or m.pending
    effective = pending and judged and standing >= STILL_MESSAGES and not (m.state is S.MRC and state is S.MANUAL)
    doubtful, absent = action.detector is Detector.DOUBTFUL, action.driver is Driver.ABSENT
    well = not (refused or _unsure(action) or (doubtful and m.doubtful) or (absent and m.absent))
    asked = 0
    if state is L2 and m.state is L2:
        asked = m.asked if standing >= STILL_MESSAGES else min(m.asked + action.quanta, WAIT_QUANTA + 1)
    constraint = step.commands.constraint
    lost = m.lost or (silent >= LOST_QUANTA and state in (L1, S.MRC) and m.state in DRIVING)
    return Memory(
        state,
        m.limit_mps if constraint is None else constraint.speed_limit_mps,
        silent,
        doubtful and judged,
        absent and judged,
        well if judged else m.well,
        action.vlm is not Vlm.SILENT if judged else m.vlm_well,
        standing,
        handed,
        asked,
        stall and not m.stalled,
        pending and not judged,
        (m.locked or state is S.MRC) and not (effective and state is not S.MRC),
        lost and state is not S.MANUAL and not effective,
        m.vlm_heard or (judged and action.vlm in (Vlm.PROCEED, Vlm.STOP)),
    )


class Edge(NamedTuple):
    """One step as the properties see it: memory before and after, what was done, what came of it."""

    before: Memory
    after: Memory
    action: Action
    step: Step
    latched: bool


def _latched(e: Edge) -> bool:
    """P-01: the manoeuvre ends at standstill or by the driver alone."""
    return e.before.state is not L1 or e.after.state in (L1, S.MRC, S.MANUAL)


def _lost(e: Edge) -> bool:
    """P-01: after a detected loss of tier 1 the limit is 0 until a driver drives or somebody resets."""
    return not e.after.lost or (e.after.state in (L1, S.MRC) and e.after.limit_mps == 0.0)


def _detected(e: Edge) -> bool:
    """P-02, P-07: what goes wrong has its reaction within its debounce and one tick."""
    after, action = e.after, e.action
    if after.stalled or after.state not in DRIVING:
        return True
    if after.silent >= LOST_QUANTA:
        return False
    unsure = (
        after.silent > 0
        or (e.before.doubtful and after.doubtful)
        or (e.before.absent and after.absent)
        or _unsure(action)
    )
    if unsure and after.state in RELYING:
        return False
    return not (action.vlm is Vlm.SILENT and after.state is S.NOMINAL)


def _reset_only(e: Edge) -> bool:
    """P-04: a minimal risk condition is left for automation by a reset at known standstill only."""
    begins = e.after.state in DRIVING and e.before.state not in DRIVING
    if not begins or not (e.before.locked or e.before.state is S.MRC):
        return True
    asked = (e.action.request is Request.RESET and e.step.accepted) or e.before.pending
    return asked and e.after.standing >= STILL_MESSAGES


def _remembered(e: Edge) -> bool:
    """P-04: a restart begins in the manoeuvre if one is not finished."""
    return e.latched is (e.after.state is L1 or e.after.locked)


def _standstill(e: Edge) -> bool:
    """P-05: nothing but fresh small speeds, long enough, counts as standing."""
    if e.step.accepted and e.action.request is Request.RESET and e.before.standing < STILL_MESSAGES:
        return False
    return not (e.after.state is S.MRC and e.before.state is not S.MRC and e.after.standing < STILL_MESSAGES)


def _manual(e: Edge) -> bool:
    """P-08: the driver drives at the next tick, and nobody else ends in MANUAL."""
    drives = e.action.driver is Driver.DRIVES
    took = e.action.request is Request.TAKEOVER and e.step.accepted
    if (drives or took) and e.after.state is not S.MANUAL:
        return False
    return e.after.state is not S.MANUAL or e.before.state is S.MANUAL or drives or took


def _handed_back(e: Edge) -> bool:
    """P-08: automation goes on only after the driver has handed over for the hold time."""
    begins = e.before.state is S.MANUAL and e.after.state is not S.MANUAL
    return not begins or (e.after.state in RELYING and e.after.handed >= HANDED_MESSAGES)


def _flapping(e: Edge) -> bool:
    """P-10: a state gets better only after its causes have been gone for the clearing time."""
    before, after = e.before, e.after
    if before.state not in DRIVING or after.state not in DRIVING or after.state >= before.state:
        return True
    calm = before.well and after.well
    if before.state is L3:
        return after.vlm_well and (before.vlm_well or not before.vlm_heard)
    return calm


def _cause(e: Edge) -> bool:
    """P-11: no state gets worse without a cause."""
    before, after = e.before, e.after
    if before.state not in DRIVING or after.state not in (*DRIVING, L1) or after.state <= before.state:
        return True
    if before.stalled or after.stalled:
        return True
    if after.state is L1:
        return after.silent >= LOST_QUANTA or (before.state is L2 and before.asked + e.action.quanta >= WAIT_QUANTA)
    if after.state is L2:
        fine = e.action.detector is Detector.FINE and e.action.driver is not Driver.ABSENT
        return not fine or _unsure(e.action)
    return e.action.vlm is Vlm.SILENT


def _answer(e: Edge) -> bool:
    """P-07: who is asked in vain, moving, is stopped after the waiting time."""
    return e.after.asked <= WAIT_QUANTA


def _rise(e: Edge) -> bool:
    """P-13: the limit rises no faster than allowed above the vehicle's speed."""
    if e.after.state is S.MANUAL:
        return True
    speed_mps = MOVING_MPS if e.action.speed is Speed.MOVING else 0.0
    base_mps = speed_mps if e.before.state is S.MANUAL else max(e.before.limit_mps, speed_mps)
    return e.after.limit_mps <= base_mps + CONFIG.limit_rise_mps2 * Q_S * e.action.quanta + 1e-9


def _bounds(e: Edge) -> bool:
    """P-06: the command is a possible one, and nothing but driving states allow speed."""
    c = e.step.commands.constraint
    if c is None or not 0.0 <= c.speed_limit_mps <= CONFIG.speed_limit_max_mps:
        return False
    if not 0.0 < c.deceleration_mps2 <= CONFIG.manoeuvre_deceleration_max_mps2 or c.state is not e.after.state:
        return False
    return c.speed_limit_mps == 0.0 or e.after.state in (*DRIVING, S.MANUAL)


PROPERTIES: tuple[tuple[str, str, Callable[[Edge], bool]], ...] = (
    ("P-01", "L1 is latched", _latched),
    ("P-01", "no way back from a lost tier 1", _lost),
    ("P-02", "every cause has its reaction in time", _detected),
    ("P-04", "a minimal risk condition ends by a reset only", _reset_only),
    ("P-04", "a restart remembers", _remembered),
    ("P-05", "unknown speed is never standstill", _standstill),
    ("P-06", "the command is a possible one", _bounds),
    ("P-07", "who does not answer is stopped", _answer),
    ("P-08", "MANUAL is the driver's, at once", _manual),
    ("P-08", "the driver hands back", _handed_back),
    ("P-10", "flapping does not oscillate", _flapping),
    ("P-11", "no reaction without a cause", _cause),
    ("P-13", "the limit does not surge", _rise),
)
"""Id, name and test of each."""


def violated(edge: Edge) -> str:
    """The first property that a step breaks, empty when all hold."""
    for identity, name, holds in PROPERTIES:
        if not holds(edge):
            return f"{identity}: {name}"
    return ""
