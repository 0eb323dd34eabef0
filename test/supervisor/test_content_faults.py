"""What a tier says, through the whole supervisor: the fault is named, and no more follows than should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from supervisor_rig import MS, Rig, driving, flickering, make_answer

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    Detections,
    Hazard,
    LatencySplit,
    Light,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    Weather,
)

S = DegradationState
VLM = (Tier.DISTILLED, Tier.FULL)
PERIOD_S = {Tier.DISTILLED: 0.2, Tier.FULL: 2.0}
SEEN = Detections(
    1280,
    720,
    (
        Detection("person", 2, 0.9, 600.0, 200.0, 700.0, 500.0),
        Detection("car", 0, 0.9, 100.0, 300.0, 130.0, 330.0),
        Detection("bicycle", 1, 0.9, 200.0, 300.0, 230.0, 330.0),
    ),
)
"""A person in front; a car and a bicycle far away."""


def sound(number: int, **changes: object) -> SceneAdvice:
    """An answer that is true of :data:`SEEN`."""
    return make_answer(number, **{"pedestrians": 1, **changes})


def made_up(number: int) -> SceneAdvice:
    """Every answer of another scene."""
    return sound(
        number, road=Road(1 + number % 5), weather=Weather(1 + number % 3), light=Light(1 + number // 2 % 3),
        hazards=(Hazard(1 + number % 8),), vehicles=number * 7 % 10, text=f"w{number} x{number} y{number} z{number}",
    )  # fmt: skip


SAID: dict[str, Callable[[int], SceneAdvice]] = {
    "entropy": lambda n: sound(n, token_probabilities=(*[0.1 + n * 1e-6] * 7, *[1.0] * 31)),
    "perplexity": lambda n: sound(n, token_probabilities=(*[0.5 + n * 1e-6] * 7, *[0.45] * 11)),
    "inconsistent": made_up,
    "repetitive": lambda n: sound(n, text="and so on " * 20),
    "unchanging": lambda n: sound(0),
    "disagrees": lambda n: sound(n, pedestrians=0),
}
"""What a VLM may say that is a fault, by the fault's name; the number is of the answer."""


def speaking(rig: Rig, tiers: tuple[Tier, ...], say: Callable[[int], SceneAdvice]) -> None:
    """From now on these tiers say this, with the rig's advice, the others what is true."""
    numbers = {tier: count() for tier in tiers}

    def edit(result: TierResult) -> TierResult:
        if result.tier is Tier.DETECTOR:
            return replace(result, payload=flickering(SEEN, result.source_stamp_ns))
        if result.tier not in tiers:
            return replace(result, payload=replace(result.payload, pedestrians=1))  # type: ignore[arg-type]
        answer = say(next(numbers[result.tier]))
        return replace(result, payload=replace(answer, advice=rig.advice[result.tier]))

    rig.edit_result = edit


@pytest.mark.parametrize("tier", VLM)
@pytest.mark.parametrize("fault", SAID)
def test_a_vlm_that_talks_nonsense_is_named(fault: str, tier: Tier) -> None:
    """V10, A7: no other fault is reported, the other tier stands in, and it ends when the VLM is sound again."""
    rig = driving(20.0)
    speaking(rig, (tier,), SAID[fault])
    rig.run({Tier.DISTILLED: 5.0, Tier.FULL: 40.0 if fault == "inconsistent" else 24.0}[tier])
    assert rig.faults() == [f"{tier.key}.{fault}"]
    assert rig.state is S.NOMINAL
    speaking(rig, (), made_up)
    rig.run({Tier.DISTILLED: 5.0, Tier.FULL: 18.0}[tier])
    assert [t.after for t in rig.transitions if t.kind == "fault"] == ["active", "inactive"]


@pytest.mark.parametrize("fault", SAID)
def test_two_vlms_that_talk_nonsense_are_not_relied_upon(fault: str) -> None:
    """The classical chain runs alone; the driver is not asked."""
    rig = driving(20.0)
    speaking(rig, VLM, SAID[fault])
    rig.run(40.0 if fault == "inconsistent" else 24.0)
    assert rig.visited() == ["L3_PERCEPTION_ONLY"]


@pytest.mark.parametrize("advice", Advice)
def test_doubtful_advice_still_slows_down(advice: Advice) -> None:
    """P-03: never above what it would allow, and never above no advice."""
    caps_mps = Rig().config.advice_caps_mps()
    rig = driving(30.0)
    rig.advice[Tier.DISTILLED] = advice
    speaking(rig, (Tier.DISTILLED,), SAID["unchanging"])
    rig.run(2.0)
    assert rig.faults() == ["distilled.unchanging"]
    assert rig.limits_mps[-1] == min(caps_mps[advice], caps_mps[Advice.CAUTION])


def test_a_silent_tier_that_was_doubted_has_no_advice() -> None:
    """Silence outweighs doubt: old advice is void."""
    rig = driving(20.0)
    rig.advice[Tier.DISTILLED] = Advice.STOP
    speaking(rig, (Tier.DISTILLED,), SAID["unchanging"])
    rig.run(3.0)
    assert rig.limits_mps[-1] == 0.0
    rig.alive -= {"distilled"}
    rig.run(5.0)
    assert rig.faults() == ["distilled.unchanging", "distilled.stale", "distilled.heartbeat"]
    assert rig.limits_mps[-1] > 0.0


@pytest.mark.parametrize(("answers", "active"), [(4, False), (5, True)])
def test_the_fifth_open_answer_is_a_fault(answers: int, active: bool) -> None:
    """Not the fourth."""
    rig = driving(20.0)
    speaking(rig, (Tier.DISTILLED,), lambda n: SAID["entropy" if n < answers else "disagrees"](n))
    rig.run(1.9)
    assert ("distilled.entropy" in rig.faults()) is active


def test_the_same_answers_at_standstill_are_no_fault() -> None:
    """A6: the picture may well be the same."""
    rig = Rig()
    rig.obeys = False
    speaking(rig, VLM, SAID["unchanging"])
    told = rig.edit_result
    rig.edit_result = lambda r: replace(r, payload=SEEN) if r.tier is Tier.DETECTOR else told(r)
    rig.run(12.0)
    assert not any("unchanging" in fault for fault in rig.faults())


def test_a_restarted_vlm_is_not_compared_with_what_it_said_before() -> None:
    """Consistency is unknown until there are enough answers again."""
    rig = driving(20.0).run(2.0)
    inconsistency = rig.core._metrics()["distilled"]["inconsistency"]
    assert inconsistency(0) == 0.0
    rig.status[Tier.DISTILLED] = replace(rig.status[Tier.DISTILLED], state=TierState.SELF_TEST)
    rig.run(0.15)
    assert inconsistency(0) is None


@pytest.mark.parametrize(("step_ms", "jumps"), [(0, 1.0), (60, 0.0)])
def test_a_clock_step_forgets_where_objects_were(step_ms: int, jumps: float) -> None:
    """A12: stamps begin anew, so that speeds across the step mean nothing."""
    rig = driving(20.0)
    rig.edit_result = lambda r: replace(r, payload=jumping(0)) if r.tier is Tier.DETECTOR else r
    rig.run(0.6)
    rig.clock_step_ns += step_ms * MS
    rig.edit_result = lambda r: replace(r, payload=jumping(1)) if r.tier is Tier.DETECTOR else r
    rig.tick()
    assert rig.core._metrics()["detector"]["unsteady_n"](0) == jumps


IMPOSSIBLE = Detections(1280, 720, (Detection("car", 0, 0.9, 600.0, 200.0, 9000.0, 500.0),))


def jumping(number: int) -> Detections:
    """A car now on this side, now on that."""
    x = 100.0 + 900.0 * (number % 2)
    return Detections(1280, 720, (Detection("car", 0, 0.9, x, 200.0, x + 100.0, 300.0),))


@pytest.mark.parametrize(
    ("fault", "see", "after_s"),
    [("implausible", lambda n: IMPOSSIBLE, 0.2), ("unsteady", jumping, 0.5), ("unchanging", lambda n: SEEN, 0.5)],
)
def test_a_detector_that_cannot_be_looking(fault: str, see: Callable[[int], Detections], after_s: float) -> None:
    """The driver is asked after a quarter or half a second, not before."""
    rig = driving(20.0)
    numbers = count()
    rig.edit_result = lambda r: replace(r, payload=see(next(numbers))) if r.tier is Tier.DETECTOR else r
    rig.run(after_s)
    assert rig.faults() == []
    rig.run(0.15)
    assert rig.faults() == [f"detector.{fault}"] and rig.state is S.L2_TAKEOVER_REQUEST
    rig.edit_result = lambda r: r
    rig.run(4.5)
    assert rig.state is S.L2_TAKEOVER_REQUEST, "what was wrong may look right for a while"
    rig.run(1.5)
    assert rig.state is S.NOMINAL


@pytest.mark.parametrize("tier", VLM)
@pytest.mark.parametrize(("factor", "active"), [(0.99, False), (1.0, False), (1.01, True)])
def test_a_vlm_that_takes_a_multiple_of_its_budget(tier: Tier, factor: float, active: bool) -> None:
    """Twice its budget and 20 ms; what is published in between are repetitions of answers that came too late."""
    rig = driving(20.0)
    limit_ms = 2 * PERIOD_S[tier] * 1e3 + 20
    split = LatencySplit(0.0, 0.0, limit_ms * factor, 0.0)
    rig.edit_result = lambda r: (
        replace(r, origin=Origin.LAST_FRAME, reason="timeout", latency=split) if r.tier is tier else r
    )
    rig.run(4 * PERIOD_S[tier])
    assert (f"{tier.key}.very_late" in rig.faults()) is active
    assert rig.state is S.NOMINAL


def test_a_tier_that_starts_slowly_is_not_very_late() -> None:
    """Before its first answer it is starting, not failing."""
    rig = Rig()
    rig.edit_result = lambda r: (
        replace(r, origin=Origin.DEFAULT, reason="timeout") if r.tier is Tier.DISTILLED and rig.ticks < 300 else r
    )
    rig.run(4.0)
    assert "distilled.very_late" not in rig.faults()
    rig.edit_result = lambda r: (
        replace(r, origin=Origin.DEFAULT, reason="timeout, too_old") if r.tier is Tier.DISTILLED else r
    )
    rig.run(1.0)
    assert "distilled.very_late" in rig.faults()
