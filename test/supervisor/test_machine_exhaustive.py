"""All states x all inputs of the degradation machine, against an independently written expectation."""

from __future__ import annotations

from itertools import product

import pytest

from triptych.contract import DegradationState
from triptych.supervisor.faults import Reaction
from triptych.supervisor.machine import RULES, Inputs, MachineState, transition

S = DegradationState
WAIT_NS = 10_000
AUTOMATED = {S.NOMINAL, S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST, S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC}
BOOLS = (False, True)
HEALTH = {Reaction.LOG: S.NOMINAL, Reaction.L3: S.L3_PERCEPTION_ONLY}


def everything():
    """Every state, lock, waiting time and input."""
    for state, locked, waited_ns in product(S, BOOLS, (0, WAIT_NS - 1, WAIT_NS)):
        before = MachineState(state, "before", waited_ns, locked)
        for demand, flags, elapsed_ns in product(Reaction, product(BOOLS, repeat=6), (0, 1)):
            yield before, Inputs(demand, "demand", *flags, elapsed_ns, WAIT_NS)


ALL = tuple(everything())


def expected(m: MachineState, i: Inputs) -> S:
    """Where the machine must go: the specification once more, in other words than the table's."""
    good = i.demand <= Reaction.L3
    if m.state is S.MANUAL:
        locked = m.locked and not (i.reset and i.standstill)
        return HEALTH[i.demand] if good and i.ready and i.handed_back and not locked else S.MANUAL
    if i.driver_drives:
        return S.MANUAL
    if m.state is S.INITIALISING:
        if i.ready and good:
            return HEALTH[i.demand]
        return S.L1_MINIMAL_RISK_MANOEUVRE if i.grace_over and not i.standstill else S.INITIALISING
    if m.state is S.MRC:
        return HEALTH[i.demand] if good and i.ready and i.reset and i.standstill else S.MRC
    if m.state is S.L1_MINIMAL_RISK_MANOEUVRE:
        return S.MRC if i.standstill else m.state
    if i.demand is Reaction.L1:
        return S.L1_MINIMAL_RISK_MANOEUVRE
    if good:
        return HEALTH[i.demand]
    waited_ns = m.waited_ns + (0 if i.standstill else i.elapsed_ns)
    if m.state is S.L2_TAKEOVER_REQUEST and waited_ns >= WAIT_NS:
        return S.L1_MINIMAL_RISK_MANOEUVRE
    return S.L2_TAKEOVER_REQUEST


def test_the_enumeration_is_complete() -> None:
    """7 states x 2 x 3 memories x 4 demands x 2^6 flags x 2 times."""
    assert len(ALL) == 7 * 2 * 3 * 4 * 64 * 2
    assert set(RULES) == set(S)


def test_every_state_and_input_leads_where_the_specification_says() -> None:
    """Every input in every state."""
    for m, i in ALL:
        assert transition(m, i).state is expected(m, i), (m, i)


def test_what_the_machine_remembers() -> None:
    """Waiting time counts in L2 while moving only and starts at zero; the lock comes with MRC and goes with a reset."""
    for m, i in ALL:
        after = transition(m, i)
        if after.state is m.state:
            counts = m.state is S.L2_TAKEOVER_REQUEST and not i.standstill
            assert after.waited_ns == m.waited_ns + (i.elapsed_ns if counts else 0)
            assert after.reason == "before"
            unlocked = m.state is S.MANUAL and i.reset and i.standstill
            assert after.locked is (m.locked and not unlocked)
        else:
            assert after.waited_ns == 0
            assert after.locked is (after.state is S.MRC or (after.state is S.MANUAL and m.locked))


def test_it_is_pure() -> None:
    """Same arguments, same answer."""
    for m, i in ALL[::7]:
        assert transition(m, i) == transition(m, i)


def test_automation_never_starts_by_itself_from_a_locked_condition() -> None:
    """From MRC, and from MANUAL after MRC, automation needs an explicit reset at standstill."""
    for m, i in ALL:
        if m.state is S.MRC or (m.state is S.MANUAL and m.locked):
            after = transition(m, i).state
            if after in AUTOMATED and after is not S.MRC:
                assert i.reset and i.standstill and i.ready and i.demand <= Reaction.L3


def test_nothing_but_a_driver_or_standstill_ends_the_manoeuvre() -> None:
    """L1 is latched."""
    for m, i in ALL:
        if m.state is S.L1_MINIMAL_RISK_MANOEUVRE:
            assert transition(m, i).state in {S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC, S.MANUAL}


def test_loss_of_tier_one_never_leaves_automation_driving_on() -> None:
    """With the strongest demand every automated state is, or becomes, the manoeuvre."""
    for m, i in ALL:
        if i.demand is Reaction.L1 and m.state in AUTOMATED and not i.driver_drives:
            assert transition(m, i).state in {S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC}


def test_no_manoeuvre_before_the_grace_is_over() -> None:
    """A9: INITIALISING never starts a manoeuvre within the grace."""
    for m, i in ALL:
        if m.state is S.INITIALISING and not i.grace_over:
            assert transition(m, i).state in {S.INITIALISING, S.NOMINAL, S.L3_PERCEPTION_ONLY, S.MANUAL}


def inputs(**changes: object) -> Inputs:
    """A quiet vehicle under way."""
    quiet = Inputs(Reaction.LOG, "", True, True, False, False, True, False, 0, WAIT_NS)
    return quiet._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "changes", "reason"),
    [
        (S.INITIALISING, {}, "every required input is valid"),
        (S.INITIALISING, {"demand": Reaction.L3, "demand_reason": "no VLM"}, "no VLM"),
        (S.INITIALISING, {"ready": False, "demand_reason": "waiting for full"}, "waiting for full"),
        (S.NOMINAL, {"driver_drives": True}, "the driver drives"),
        (S.NOMINAL, {"demand": Reaction.L1, "demand_reason": "gone"}, "gone"),
        (S.NOMINAL, {"demand": Reaction.L2, "demand_reason": "unsure"}, "unsure"),
        (S.L3_PERCEPTION_ONLY, {}, "all tiers are healthy"),
        (S.L2_TAKEOVER_REQUEST, {"demand": Reaction.L2, "wait_ns": 0}, "the driver did not take over"),
        (S.L1_MINIMAL_RISK_MANOEUVRE, {"standstill": True}, "the vehicle stands"),
        (S.MRC, {"standstill": True, "reset": True}, "reset"),
        (S.MANUAL, {}, "the driver handed over"),
    ],
)
def test_reasons(state: S, changes: dict[str, object], reason: str) -> None:
    """The reason of a change is the demanding fault's sentence, or says what happened."""
    after = transition(MachineState(state), inputs(**changes))
    assert after.state is not state
    assert after.reason == reason


def test_a_new_machine_is_initialising_and_remembers_nothing() -> None:
    """The start."""
    assert MachineState() == MachineState(S.INITIALISING, "", 0, False)
