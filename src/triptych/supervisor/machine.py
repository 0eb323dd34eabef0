"""The degradation state machine: one table and a pure function. No clock, no I/O, no memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from triptych.contract.terms import DegradationState as S
from triptych.supervisor.faults import Reaction


@dataclass(frozen=True, slots=True)
class MachineState:
    """Everything the machine remembers.

    Attributes:
        state: the degradation state.
        reason: why it was entered; empty at the start.
        waited_ns: how long the driver has been asked in vain; counts only in L2 and while the vehicle moves.
        locked: a minimal risk condition was reached and has not been reset: automation must not drive.
    """

    state: S = S.INITIALISING
    reason: str = ""
    waited_ns: int = 0
    locked: bool = False


class Inputs(NamedTuple):
    """Everything the machine looks at.

    Attributes:
        demand: the strongest reaction any active fault asks for.
        demand_reason: the sentence of that fault; while not ready, what is waited for.
        ready: every expected input was valid once (or, for VLM tiers, had its start-up grace).
        grace_over: the start-up grace is over.
        standstill: the vehicle certainly stands.
        driver_drives: the driver certainly drives.
        handed_back: the driver has handed over, for long enough.
        reset: an explicit reset was accepted.
        elapsed_ns: since the last look.
        wait_ns: how long the driver may take to answer.
    """

    demand: Reaction
    demand_reason: str
    ready: bool
    grace_over: bool
    standstill: bool
    driver_drives: bool
    handed_back: bool
    reset: bool
    elapsed_ns: int
    wait_ns: int


class _Rule(NamedTuple):
    when: Callable[[MachineState, Inputs], bool]
    to: S
    reason: str = ""  # empty: the demanding fault's sentence


def _driver(_: MachineState, i: Inputs) -> bool:
    return i.driver_drives


def _lost(_: MachineState, i: Inputs) -> bool:
    return i.demand is Reaction.L1


def _unsure(_: MachineState, i: Inputs) -> bool:
    return i.demand is Reaction.L2


def _alone(_: MachineState, i: Inputs) -> bool:
    return i.demand is Reaction.L3


def _well(_: MachineState, i: Inputs) -> bool:
    return i.demand is Reaction.LOG


def _may_start(m: MachineState, i: Inputs) -> bool:
    """Whether automation may drive now, faults apart, seen from a state in which it does not."""
    if m.state is S.MANUAL:
        return i.ready and i.handed_back and not m.locked
    return i.ready and (m.state is S.INITIALISING or (i.reset and i.standstill))


def _start_well(m: MachineState, i: Inputs) -> bool:
    return _may_start(m, i) and _well(m, i)


def _start_alone(m: MachineState, i: Inputs) -> bool:
    return _may_start(m, i) and _alone(m, i)


def _overdue(_: MachineState, i: Inputs) -> bool:
    return i.grace_over and not i.standstill


def _no_answer(m: MachineState, i: Inputs) -> bool:
    return m.waited_ns >= i.wait_ns


def _stopped(_: MachineState, i: Inputs) -> bool:
    return i.standstill


_DRIVER = _Rule(_driver, S.MANUAL, "the driver drives")
_LOST = _Rule(_lost, S.L1_MINIMAL_RISK_MANOEUVRE)
_UNSURE = _Rule(_unsure, S.L2_TAKEOVER_REQUEST)
_ALONE = _Rule(_alone, S.L3_PERCEPTION_ONLY)
_WELL = _Rule(_well, S.NOMINAL, "all tiers are healthy")
_START_ALONE = _Rule(_start_alone, S.L3_PERCEPTION_ONLY)

RULES: dict[S, tuple[_Rule, ...]] = {
    S.INITIALISING: (
        _DRIVER,
        _Rule(_start_well, S.NOMINAL, "every required input is valid"),
        _START_ALONE,
        _Rule(_overdue, S.L1_MINIMAL_RISK_MANOEUVRE),
    ),
    S.NOMINAL: (_DRIVER, _LOST, _UNSURE, _ALONE),
    S.L3_PERCEPTION_ONLY: (_DRIVER, _LOST, _UNSURE, _WELL),
    S.L2_TAKEOVER_REQUEST: (
        _DRIVER,
        _LOST,
        _ALONE,
        _WELL,
        _Rule(_no_answer, S.L1_MINIMAL_RISK_MANOEUVRE, "the driver did not take over"),
    ),
    S.L1_MINIMAL_RISK_MANOEUVRE: (_DRIVER, _Rule(_stopped, S.MRC, "the vehicle stands")),
    S.MRC: (_DRIVER, _Rule(_start_well, S.NOMINAL, "reset"), _START_ALONE),
    S.MANUAL: (_Rule(_start_well, S.NOMINAL, "the driver handed over"), _START_ALONE),
}
"""For each state its ways out, the first that applies wins. A state without one stays."""


def transition(m: MachineState, i: Inputs) -> MachineState:
    """One look at the inputs."""
    if m.state is S.L2_TAKEOVER_REQUEST and not i.standstill:
        m = replace(m, waited_ns=m.waited_ns + i.elapsed_ns)
    if m.locked and m.state is S.MANUAL and i.reset and i.standstill:
        m = replace(m, locked=False)
    for rule in RULES[m.state]:
        if rule.when(m, i):
            locked = rule.to is S.MRC or (m.locked and rule.to is S.MANUAL)
            return MachineState(rule.to, rule.reason or i.demand_reason, 0, locked)
    return m
