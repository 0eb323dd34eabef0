"""Configurations: what is refused, what the factories give."""

from __future__ import annotations

import dataclasses
import math

import pytest

from triptych.contract import ConfigError, Light, Road, TriptychError, Weather
from triptych.scenario import (
    DriverAction,
    DriverEvent,
    Scenario,
    ScenarioConfig,
    Segment,
    demo_config,
    random_config,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("seed", 1.5),
        ("seed", True),
        ("duration_s", 0.0),
        ("duration_s", math.nan),
        ("fps", math.inf),
        ("fps", 0),
        ("width_px", 0),
        ("width_px", 8193),
        ("height_px", 12.0),
        ("set_speed_mps", -1.0),
        ("set_speed_mps", math.nan),
        ("start_speed_mps", math.inf),
        ("traffic", "many"),
        ("road", Road.UNKNOWN),
        ("road", 99),
        ("weather", Weather.UNKNOWN),
        ("light", 0),
        ("camera_fov_deg", 180.0),
        ("segments", ("highway",)),
        ("driver_events", (DriverEvent(5.0, DriverAction.SILENT), DriverEvent(4.0, DriverAction.ATTENTIVE))),
        ("takeover_reaction_s", -0.1),
    ],
)
def test_unusable_values_are_refused_by_name(field: str, value: object) -> None:
    """Each refusal names the field; nothing but a TriptychError comes out."""
    with pytest.raises(ConfigError) as caught:
        ScenarioConfig(**{field: value})
    assert caught.value.field is not None
    assert caught.value.field.split(".")[0] == field


def test_segments_and_events_are_checked_too() -> None:
    """Their own fields are validated where they are made."""
    with pytest.raises(ConfigError, match="length_m"):
        Segment(Road.RURAL, 10.0)
    with pytest.raises(ConfigError, match="must be known"):
        Segment(Road.UNKNOWN, 100.0)
    with pytest.raises(ConfigError, match="t_s"):
        DriverEvent(math.nan, DriverAction.SILENT)
    assert DriverEvent(1.0, "silent").action is DriverAction.SILENT  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of"):
        DriverEvent(1.0, "sleepy")  # type: ignore[arg-type]


def test_random_configs_vary_repeat_and_take_overrides() -> None:
    """Every road, weather and light turns up; a seed always gives the same; overrides win and are validated."""
    configs = [random_config(seed) for seed in range(120)]
    assert {c.road for c in configs} == set(Road) - {Road.UNKNOWN}
    assert {c.weather for c in configs} == set(Weather) - {Weather.UNKNOWN}
    assert {c.light for c in configs} == set(Light) - {Light.UNKNOWN}
    assert {c.hood for c in configs} == {True, False}
    assert random_config(7) == random_config(7) != random_config(8)
    assert random_config(7, width_px=448, height_px=256, road=Road.WORKS).road is Road.WORKS
    with pytest.raises(ConfigError, match="no such field"):
        random_config(7, widht_px=448)
    with pytest.raises(ConfigError, match="fps"):
        random_config(7, fps=math.nan)
    with pytest.raises(ConfigError):
        random_config(-3)


def test_a_configuration_cannot_be_changed_and_nothing_else_is_accepted() -> None:
    """Frozen; a scenario wants a configuration."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        demo_config().seed = 3  # type: ignore[misc]
    with pytest.raises(TriptychError, match="ScenarioConfig"):
        Scenario({"seed": 1})  # type: ignore[arg-type]


def test_the_demo_drive_changes_scene_and_stays_short() -> None:
    """30 to 60 s, several roads and lights, an attentive driver, no script."""
    config = demo_config()
    assert 30 <= config.duration_s <= 60
    assert len({s.road for s in config.segments}) >= 3
    assert not config.driver_events
