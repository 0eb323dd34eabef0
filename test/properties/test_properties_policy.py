"""The properties of the policy in PROPERTIES.md, on generated tables and answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from supervisor_rig import ADVICE_PERIOD_MS, Rig, driving
from test_properties_supervisor import advice, events, happen

from triptych.contract import Advice, ConfigError, Detection, Detections, Hazard, SceneAdvice, Tier, TierResult
from triptych.contract.result import NOT_COUNTED
from triptych.supervisor.comparison import Comparison, Presence, Scene, care_of
from triptych.supervisor.policy import DEFAULT_POLICY, Function, Permission, Policy, check_policy

GRANTS = ("never", "redundant_input", "advice", "main_source")
ASILS = ("QM", "A", "B", "C", "D")
SAFETY = {"braking", "steering", "emergency_avoidance"}
VLM = (Tier.DISTILLED, Tier.FULL)

anything = st.fixed_dictionaries(
    {
        "asil": st.sampled_from([*ASILS, "E"]),
        "mode": st.sampled_from(["advisory", "authoritative"]),
        "detector": st.sampled_from(GRANTS),
        "distilled": st.sampled_from([*GRANTS, None]),
        "full": st.sampled_from([*GRANTS, True]),
    }
)


@st.composite
def legal(draw: st.DrawFn) -> Policy:
    """Any table that may be given; the rules are written down anew here."""
    rows = []
    for row in DEFAULT_POLICY.rows:
        safety, commanded = row.function in SAFETY, row.function in {"braking", "cruise"}
        asil = draw(st.sampled_from(ASILS[3:] if safety else ASILS))
        most = 2 if safety or asil in {"C", "D"} else 3 if row.mode == "authoritative" else 4
        vlm = st.sampled_from(GRANTS[:most])
        detector = "main_source" if commanded else draw(st.sampled_from(GRANTS))
        change = {"asil": asil, "detector": detector, "distilled": draw(vlm), "full": draw(vlm)}
        rows.append({**row.model_dump(), **change})
    return check_policy(draw(st.permutations(rows)), "generated")


def muted(policy: Policy) -> Policy:
    """The same table, but the VLM tiers get nothing."""
    return Policy(tuple(r.model_copy(update={"distilled": "never", "full": "never"}) for r in policy.rows))


counts = st.sampled_from([0, 1, 9, NOT_COUNTED])
answers = st.builds(
    SceneAdvice,
    hazards=st.lists(st.sampled_from(Hazard), max_size=3, unique=True).map(tuple),
    advice=advice,
    vehicles=counts,
    pedestrians=counts,
)
boxes = st.builds(
    Detection, st.just("x"), st.sampled_from([0, 1, 2]), st.just(0.9), st.sampled_from([0.0, 600.0]), st.just(300.0),
    st.just(700.0), st.sampled_from([310.0, 400.0]),
)  # fmt: skip
sights = st.builds(Detections, st.just(1280), st.just(720), st.lists(boxes, max_size=2).map(tuple))


def vehicle(policy: Policy, plan: dict[Tier, Any]) -> Rig:
    """Drives, and hears what is planned."""
    rig = driving(25.0, policy=policy)
    rig.obeys = False

    def edit(result: TierResult) -> TierResult:
        return replace(result, payload=plan[result.tier]) if plan.get(result.tier) is not None else result

    rig.edit_result = edit
    return rig


@given(
    legal(),
    events,
    st.lists(st.tuples(answers, answers, sights), min_size=1, max_size=6),
)
@example(DEFAULT_POLICY, [("sure", 120)] * 3, [(SceneAdvice(advice=Advice.PROCEED), SceneAdvice(), Detections(9, 9))])
def test_p32_no_table_lets_a_vlm_raise_the_limit(
    policy: Policy, sequence: list[tuple[str, int]], said: list[tuple[SceneAdvice, SceneAdvice, Detections]]
) -> None:
    """P-32: two vehicles with the same inputs; the VLM tiers of one may not speak."""
    plan: dict[Tier, Any] = {}
    heard, deaf = vehicle(policy, plan), vehicle(muted(policy), plan)
    for number, (event, ticks) in enumerate([*sequence, ("start full", 100), ("start distilled", 100)]):
        plan[Tier.DISTILLED], plan[Tier.FULL], plan[Tier.DETECTOR] = said[number % len(said)]
        for rig in (heard, deaf):
            happen(rig, event)
        for _ in range(ticks):
            heard.tick()
            deaf.tick()
            assert heard.core._limit_mps <= deaf.core._limit_mps
            assert heard.state is deaf.state
            assert heard.core._active == deaf.core._active


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from([f.value for f in Function]), anything), st.sampled_from([None, *Function]))
def test_p33_a_careless_table_is_refused(changes: dict[str, dict[str, Any]], dropped: Function | None) -> None:
    """P-33: any change of the shipped table."""
    rows = [
        {k: v for k, v in {**row.model_dump(), **changes.get(row.function, {})}.items() if v is not None}
        for row in DEFAULT_POLICY.rows
        if dropped is None or row.function != dropped.value
    ]
    try:
        policy = check_policy(rows, "p.yaml")
    except ConfigError as refused:
        assert str(refused).startswith("p.yaml") and refused.remedy
        return
    asil = {row["function"]: row["asil"] for row in rows}
    assert set(asil) == {f.value for f in Function}
    for function, tier in product(Function, VLM):
        given_ = policy.permitted(function, tier)
        if function.value in SAFETY:
            assert asil[function.value] in {"C", "D"}
        if asil[function.value] in {"C", "D"}:
            assert given_ <= Permission.REDUNDANT_INPUT
        if function.value in SAFETY | {"cruise"}:
            assert given_ <= Permission.ADVICE


presences = st.sampled_from(Presence)
scenes = st.builds(Scene, presences, presences)


@settings(max_examples=300)
@given(advice, advice, scenes, scenes, scenes)
def test_p34_compared_is_never_less_careful_than_either(
    one: Advice, other: Advice, vlm: Scene, detector: Scene, more: Scene
) -> None:
    """P-34."""
    found = Comparison(one, vlm, detector).care
    assert found >= care_of(vlm)
    assert found >= care_of(detector)
    grown = Scene(max(vlm.vehicle_ahead, more.vehicle_ahead), max(vlm.pedestrian, more.pedestrian))
    seen = Scene(max(detector.vehicle_ahead, more.vehicle_ahead), max(detector.pedestrian, more.pedestrian))
    for advised, by_vlm, by_detector in product((one, max(one, other)), (vlm, grown), (detector, seen)):
        assert Comparison(advised, by_vlm, by_detector).care >= found


def test_the_generated_vehicles_differ_at_all() -> None:
    """P-32 compares something: STOP advice makes the one that hears it slower."""
    plan: dict[Tier, Any] = {tier: SceneAdvice(advice=Advice.STOP) for tier in ADVICE_PERIOD_MS}
    heard, deaf = vehicle(DEFAULT_POLICY, plan), vehicle(muted(DEFAULT_POLICY), plan)
    heard.run(1.0)
    deaf.run(1.0)
    assert heard.core._limit_mps == 0.0 < deaf.core._limit_mps
