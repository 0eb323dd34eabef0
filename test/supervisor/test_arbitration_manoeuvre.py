"""The minimum of all caps, the rise of the limit, and the braking of the manoeuvre."""

from __future__ import annotations

import math

import pytest
from supervisor_rig import SECOND

from triptych.contract import Advice, DegradationState
from triptych.supervisor import SupervisorConfig
from triptych.supervisor.arbitration import advice_cap_mps, lowest_mps, state_limits_mps
from triptych.supervisor.manoeuvre import Manoeuvre, next_limit_mps

CONFIG = SupervisorConfig()
CAPS = CONFIG.advice_caps_mps()
NAN = math.nan
S = DegradationState


def test_every_state_has_its_limit() -> None:
    """Nothing moves before the start and in the manoeuvre."""
    assert state_limits_mps(CONFIG) == {
        S.INITIALISING: 0.0,
        S.NOMINAL: 36.1,
        S.L3_PERCEPTION_ONLY: 12.5,
        S.L2_TAKEOVER_REQUEST: 8.3,
        S.L1_MINIMAL_RISK_MANOEUVRE: 0.0,
        S.MRC: 0.0,
        S.MANUAL: 36.1,
    }


@pytest.mark.parametrize("advice", list(Advice))
def test_advice_cap(advice: Advice) -> None:
    """From the table."""
    assert advice_cap_mps(advice, CAPS) == CAPS[advice]


@pytest.mark.parametrize("unknown", [5, 7, -1, 255])
def test_unknown_advice_is_the_most_careful(unknown: int) -> None:
    """A number we do not know cannot mean "faster"."""
    assert advice_cap_mps(unknown, CAPS) == CAPS[Advice.STOP]  # type: ignore[arg-type]


def test_no_advice_is_caution() -> None:
    """The cautious policy."""
    assert advice_cap_mps(None, CAPS) == CAPS[Advice.CAUTION]


@pytest.mark.parametrize(
    ("limit", "caps", "lowest"),
    [
        (10.0, [], 10.0), (10.0, [20.0], 10.0), (10.0, [5.0, 7.0], 5.0), (10.0, [7.0, 5.0], 5.0), (10.0, [10.0], 10.0),
        (10.0, [NAN], 0.0), (10.0, [NAN, 5.0], 0.0), (10.0, [5.0, NAN], 0.0), (10.0, [-1.0], 0.0),
        (10.0, [math.inf], 10.0),
        (0.0, [5.0], 0.0), (10.0, [0.0], 0.0), (10.0, [0.5], 0.5),
    ],
)  # fmt: skip
def test_lowest(limit: float, caps: list[float], lowest: float) -> None:
    """The minimum; what is no speed is 0."""
    assert lowest_mps(limit, caps) == lowest


@pytest.mark.parametrize(
    ("limit", "cap", "speed", "rise", "after"),
    [
        (20.0, 10.0, 20.0, 0.1, 10.0),
        (10.0, 20.0, 5.0, 0.1, 10.1),
        (10.0, 20.0, 15.0, 0.1, 15.1),
        (0.0, 20.0, 25.0, 0.1, 20.0),
        (10.0, 20.0, NAN, 0.1, 10.1),
        (19.95, 20.0, 0.0, 0.1, 20.0),
        (5.0, 0.0, 5.0, 0.1, 0.0),
        (3.0, 20.0, -4.0, 0.5, 3.5),
    ],
)
def test_next_limit(limit: float, cap: float, speed: float, rise: float, after: float) -> None:
    """Down at once, up slowly, from the speed the vehicle has."""
    assert next_limit_mps(limit, cap, speed, rise) == pytest.approx(after)


def braking(speed_mps: float, after_s: float, start_mps: float = 20.0) -> float:
    """Deceleration some time into a manoeuvre begun at 1 s."""
    return Manoeuvre(SECOND, start_mps, True).deceleration_mps2(SECOND + round(after_s * SECOND), speed_mps, CONFIG)


def test_the_profile_is_kept_with_the_target() -> None:
    """2 m/s2 as long as the vehicle follows, with 2 m/s to spare."""
    for after_s in (0.0, 1.0, 5.0, 9.9):
        planned = 20.0 - 2.0 * after_s
        assert braking(planned, after_s) == 2.0
        assert braking(planned + 1.98, after_s) == 2.0
        assert braking(planned + 2.0, after_s) == pytest.approx(2.0)
        assert braking(planned + 2.02, after_s) == pytest.approx(2.02)
        assert braking(0.0, after_s) == 2.0


def test_it_brakes_harder_above_the_profile() -> None:
    """Linearly up to 4 m/s2 at twice the excess, never more."""
    assert braking(10.0 + 3.0, 5.0) == 3.0
    assert braking(10.0 + 4.0, 5.0) == pytest.approx(4.0)
    assert braking(10.0 + 20.0, 5.0) == 4.0


def test_the_planned_speed_ends_at_zero() -> None:
    """After the planned stop a vehicle that still rolls is braked by how fast it rolls."""
    assert braking(1.0, 20.0) == 2.0
    assert braking(3.0, 10.2) == pytest.approx(3.0)
    assert braking(3.0, 100.0) == pytest.approx(3.0)


def test_unknown_speed_keeps_the_target() -> None:
    """Neither now nor at the start may NaN reach the command."""
    assert braking(NAN, 5.0) == 2.0
    assert braking(30.0, 5.0, start_mps=NAN) == 2.0


def test_a_manoeuvre_nobody_described_knows_nothing() -> None:
    """The start of a restarted supervisor: no speed, no leaving of the lane."""
    fresh = Manoeuvre()
    assert math.isnan(fresh.start_mps) and not fresh.pull_over and fresh.start_ns == 0
