"""The safety properties of the manoeuvre in PROPERTIES.md: the supervisor commands, the scenario's vehicle obeys."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from supervisor_rig import Rig, driving

from triptych.contract import DegradationState, Tier
from triptych.scenario import Scenario, random_config
from triptych.scenario.ego import JERK_DOWN_MPS3, MAX_DECELERATION_MPS2

S = DegradationState
FAULTS = ("detector lost", "detector in doubt", "driver silent")

drives = st.builds(lambda seed: Scenario(random_config(seed, width_px=128, height_px=72)), st.integers(0, 10_000))


def together(drive: Scenario, rig: Rig, seconds: float) -> None:
    """Supervisor and vehicle in one loop of 10 ms."""
    for _ in range(round(seconds * 100)):
        rig.speed_mps = drive.speed_mps
        rig.tick()
        drive.step(0.01, rig.constraint)


def commanded(drive: Scenario) -> Rig:
    rig = driving(drive.speed_mps)
    rig.obeys = False
    return rig


def fail(rig: Rig, fault: str) -> None:
    if fault == "detector lost":
        rig.alive -= {"detector"}
    else:
        rig.uncertainty[Tier.DETECTOR] = 0.95
        rig.driver = replace(rig.driver, attentive=fault != "driver silent")


@settings(max_examples=8)
@given(drives, st.sampled_from(FAULTS), st.floats(0.5, 5.0))
def test_p40_the_manoeuvre_ends_at_rest_and_without_contact(drive: Scenario, fault: str, after_s: float) -> None:
    """Whatever the road, the traffic and the fault: gently, in the lane or on the shoulder, and held. A driver who is
    asked at standstill, before a red light say, has no time to run out: that vehicle is held in L2."""
    rig = commanded(drive)
    together(drive, rig, after_s)
    fail(rig, fault)
    for _ in range(60):
        together(drive, rig, 1.0)
        if rig.state is S.MRC:
            break
    assert rig.state is S.MRC or (rig.state is S.L2_TAKEOVER_REQUEST and drive.speed_mps == 0.0)
    place = (drive.position_m, drive.lateral_m)
    together(drive, rig, 10.0)
    assert (drive.position_m, drive.lateral_m, drive.speed_mps) == (*place, 0.0)
    assert drive.hazard_lights is rig.constraint.remote_notification is (rig.state is S.MRC)
    outcome = drive.outcome
    assert outcome.collisions == ()
    assert outcome.max_deceleration_mps2 <= MAX_DECELERATION_MPS2 + 1e-9
    assert outcome.max_jerk_mps3 <= JERK_DOWN_MPS3 + 1e-6
    assert outcome.stop is not None and outcome.stop.place in ("lane", "shoulder")


@settings(max_examples=4)
@given(st.integers(0, 10_000), st.floats(0.5, 5.0))
def test_p41_a_blind_vehicle_acts_on_nothing_newer_than_the_fault(seed: int, after_s: float) -> None:
    """Tier 1 lost: the same path to rest, bit for bit, whether or not the others are still there."""
    paths = []
    for vanish in (False, True):
        drive = Scenario(random_config(seed, width_px=128, height_px=72))
        rig = commanded(drive)
        together(drive, rig, after_s)
        fail(rig, "detector lost")
        path = []
        for _ in range(3000):
            together(drive, rig, 0.01)
            if rig.state in (S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC):
                if vanish:
                    drive._traffic.actors.clear()
                path.append((drive.position_m, drive.lateral_m, drive.speed_mps))
                if drive.speed_mps == 0.0:
                    break
        paths.append(path)
    assert paths[0] == paths[1]
    assert paths[0][-1][2] == 0.0
