"""The advice table: every row at its threshold, and monotone in danger."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import Advice, Hazard
from triptych.scenario import RULES, Situation, assess

H, A = Hazard, Advice


@pytest.mark.parametrize(
    ("situation", "hazard", "advice"),
    [
        (Situation(10, lead_gap_m=49.9, lead_speed_mps=10), H.LEAD_VEHICLE, A.CAUTION),
        (Situation(10, lead_gap_m=50.1, lead_speed_mps=10), None, A.PROCEED),
        (Situation(30, lead_gap_m=74.0, lead_speed_mps=30), H.LEAD_VEHICLE, A.CAUTION),
        (Situation(30, lead_gap_m=76.0, lead_speed_mps=30), None, A.PROCEED),
        (Situation(20, lead_gap_m=19.8, lead_speed_mps=20), H.LEAD_VEHICLE, A.SLOW_DOWN),
        (Situation(20, lead_gap_m=20.2, lead_speed_mps=20), H.LEAD_VEHICLE, A.CAUTION),
        (Situation(20, lead_gap_m=49.0, lead_speed_mps=10), H.LEAD_VEHICLE, A.SLOW_DOWN),
        (Situation(20, lead_gap_m=29.0, lead_speed_mps=10), H.LEAD_VEHICLE, A.PREPARE_TO_STOP),
        (Situation(20, lead_gap_m=14.0, lead_speed_mps=10), H.LEAD_VEHICLE, A.STOP),
        (Situation(0, lead_gap_m=3.4), H.LEAD_VEHICLE, A.STOP),
        (Situation(10, lead_gap_m=45, lead_speed_mps=10, lead_braking=True), H.LEAD_VEHICLE_BRAKING, A.SLOW_DOWN),
        (Situation(5, lead_gap_m=14.9, lead_speed_mps=5, lead_braking=True), H.LEAD_VEHICLE_BRAKING, A.PREPARE_TO_STOP),
        (Situation(5, lead_gap_m=60.1, lead_speed_mps=5, lead_braking=True), None, A.PROCEED),
        (Situation(10, pedestrian_near_m=49.9), H.PEDESTRIAN_NEAR_LANE, A.SLOW_DOWN),
        (Situation(10, pedestrian_near_m=50.1), None, A.PROCEED),
        (Situation(10, pedestrian_entering_m=59.9), H.PEDESTRIAN_NEAR_LANE, A.PREPARE_TO_STOP),
        (Situation(5, pedestrian_in_lane_m=24.9), H.PEDESTRIAN_NEAR_LANE, A.STOP),
        (Situation(15, pedestrian_in_lane_m=44.9), H.PEDESTRIAN_NEAR_LANE, A.STOP),
        (Situation(15, pedestrian_in_lane_m=45.1), None, A.PROCEED),
        (Situation(10, two_wheeler_m=49.9), H.TWO_WHEELER, A.CAUTION),
        (Situation(10, two_wheeler_m=14.0, two_wheeler_close_m=14.0), H.TWO_WHEELER, A.SLOW_DOWN),
        (Situation(10, red_light_m=79.0), H.RED_LIGHT, A.PREPARE_TO_STOP),
        (Situation(10, red_light_m=81.0), None, A.PROCEED),
        (Situation(10, red_light_m=24.0), H.RED_LIGHT, A.STOP),
        (Situation(10, works_m=59.0), H.WORKS, A.SLOW_DOWN),
        (Situation(10, works_m=61.0), None, A.PROCEED),
        (Situation(10, visual_range_m=199.0), H.LOW_VISIBILITY, A.SLOW_DOWN),
        (Situation(10, visual_range_m=201.0), None, A.PROCEED),
        (Situation(10, vehicles_near=4), H.DENSE_TRAFFIC, A.CAUTION),
        (Situation(10, vehicles_near=3), None, A.PROCEED),
        (Situation(20), None, A.PROCEED),
    ],
)
def test_every_row_at_its_threshold(situation: Situation, hazard: Hazard | None, advice: Advice) -> None:
    """Just inside gives the row's hazard and advice, just outside does not."""
    hazards, said = assess(situation)
    assert said is advice
    assert (hazard in hazards) if hazard is not None else not hazards


def test_every_hazard_has_a_row() -> None:
    """No hazard of the contract is out of the table's reach."""
    assert {rule.hazard for rule in RULES} == set(Hazard)


_DISTANCE = st.one_of(st.just(math.inf), st.floats(0, 300))
_SITUATIONS = st.builds(
    Situation,
    speed_mps=st.floats(0, 45),
    lead_gap_m=_DISTANCE,
    lead_speed_mps=st.floats(0, 45),
    lead_braking=st.booleans(),
    pedestrian_in_lane_m=_DISTANCE,
    pedestrian_entering_m=_DISTANCE,
    pedestrian_near_m=_DISTANCE,
    two_wheeler_m=_DISTANCE,
    two_wheeler_close_m=_DISTANCE,
    red_light_m=_DISTANCE,
    works_m=_DISTANCE,
    visual_range_m=_DISTANCE,
    vehicles_near=st.integers(0, 20),
)


@settings(max_examples=300, deadline=None)
@given(_SITUATIONS, st.data())
def test_more_danger_never_means_less_careful_advice(situation: Situation, data: st.DataObject) -> None:
    """Anything nearer, more numerous or braking, or a faster ego: the advice stays or gets more careful."""
    values = {name: getattr(situation, name) for name in Situation.__slots__}
    name = data.draw(st.sampled_from(sorted(values)))
    value = values[name]
    if name == "lead_braking":
        worse: object = True
    elif name == "vehicles_near":
        worse = value + data.draw(st.integers(0, 10))
    elif name == "speed_mps":
        worse = value + data.draw(st.floats(0, 20))
    else:
        worse = data.draw(st.floats(0, 300)) if math.isinf(value) else value * data.draw(st.floats(0, 1))
    before, after = assess(situation), assess(Situation(**(values | {name: worse})))
    assert after[1] >= before[1]
    assert set(before[0]) <= set(after[0])
