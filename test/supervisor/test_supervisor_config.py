"""The supervisor's parameters: ranges, units, order; what is wrong is said in one sentence."""

from __future__ import annotations

import math

import pytest

from triptych.contract import Advice, ConfigError
from triptych.supervisor import SupervisorConfig, supervisor_config

UNITS = ("_s", "_mps", "_mps2", "_m", "_n", "_share", "_ratio", "_weight")
NUMBERS = [name for name, value in SupervisorConfig().model_dump().items() if not isinstance(value, bool)]


def refusal(**values: object) -> str:
    """The sentence with which parameters are refused."""
    with pytest.raises(ConfigError) as caught:
        supervisor_config(values, "params.yaml")
    return str(caught.value)


def test_defaults_follow_the_regulation() -> None:
    """UN R157: 10 s to answer, not above 4 m/s2; the seed papers: 2 m/s2."""
    config = supervisor_config({})
    assert config == SupervisorConfig()
    assert config.takeover_wait_s == 10.0
    assert config.startup_grace_s == 30.0
    assert config.manoeuvre_deceleration_mps2 == 2.0
    assert config.manoeuvre_deceleration_max_mps2 == 4.0


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_unit_range_and_description(name: str) -> None:
    """They become ROS parameters and documentation."""
    field = SupervisorConfig.model_fields[name]
    assert name.endswith(UNITS)
    assert field.description and field.description.endswith(".")
    bounds = {type(item).__name__ for item in field.metadata}
    assert bounds & {"Ge", "Gt"} and "Le" in bounds


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.001, 1e6, "1.0", None, True])
def test_every_number_refuses_nonsense(name: str, bad: object) -> None:
    """A6: nothing that is no number in its range gets in."""
    got = refusal(**{name: bad})
    assert got.startswith(f"params.yaml: {name}: ")
    assert got.endswith("; see docs/parameters.md for the names and ranges.")


def test_the_deceleration_cannot_be_set_above_the_regulation() -> None:
    """UN R157."""
    assert "less than or equal to 4" in refusal(manoeuvre_deceleration_max_mps2=4.01)


def test_an_unknown_parameter() -> None:
    """A typing error is found."""
    assert refusal(takeover_wait=1.0) == (
        "params.yaml: takeover_wait: Extra inputs are not permitted (got 1.0); "
        "see docs/parameters.md for the names and ranges."
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"l3_speed_limit_mps": 36.2}, "l3_speed_limit_mps must not be above speed_limit_max_mps"),
        ({"l2_speed_limit_mps": 16.8}, "l2_speed_limit_mps must not be above l3_speed_limit_mps"),
        ({"advice_caution_cap_mps": 36.2}, "advice_caution_cap_mps must not be above advice_proceed_cap_mps"),
        ({"advice_slow_down_cap_mps": 25.1}, "advice_slow_down_cap_mps must not be above advice_caution_cap_mps"),
        (
            {"advice_prepare_to_stop_cap_mps": 14.0},
            "advice_prepare_to_stop_cap_mps must not be above advice_slow_down_cap_mps",
        ),
        ({"advice_stop_cap_mps": 5.7}, "advice_stop_cap_mps must not be above advice_prepare_to_stop_cap_mps"),
        (
            {"manoeuvre_deceleration_max_mps2": 1.9},
            "manoeuvre_deceleration_mps2 must not be above manoeuvre_deceleration_max_mps2",
        ),
    ],
)
def test_limits_must_fall_with_care(values: dict[str, float], sentence: str) -> None:
    """Arbitration is monotone only if its tables are."""
    assert sentence in refusal(**values)
    assert refusal(**values).startswith("params.yaml: Value error, ")
    assert "(got" not in refusal(**values)


def test_equal_limits_are_allowed() -> None:
    """Not above is enough."""
    supervisor_config({"l3_speed_limit_mps": 36.1, "l2_speed_limit_mps": 36.1, "manoeuvre_deceleration_max_mps2": 2.0})


def test_advice_caps() -> None:
    """One cap for each advice, indexed by its value."""
    config = SupervisorConfig(advice_caution_cap_mps=24.0)
    caps = config.advice_caps_mps()
    assert len(caps) == len(Advice)
    assert caps[Advice.CAUTION] == 24.0
    assert caps[Advice.STOP] == 0.0
    assert list(caps) == sorted(caps, reverse=True)


def test_where_has_a_default() -> None:
    """Errors name something even without a file."""
    with pytest.raises(ConfigError, match=r"^supervisor parameters: takeover_wait_s: "):
        supervisor_config({"takeover_wait_s": 0.0})
