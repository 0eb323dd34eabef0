"""What a drive looks like: validated, frozen, and everything that follows from it is deterministic."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import numpy as np

from triptych.contract import ConfigError, Light, Road, Weather


class DriverAction(Enum):
    """What the driver does from a moment on."""

    ATTENTIVE = "attentive"
    """Present and watching the road; answers no request by taking over unless scripted."""
    SILENT = "silent"
    """Present, not attentive: answers nothing."""
    ABSENT = "absent"
    """Not in the seat."""
    TAKE_OVER = "take_over"
    """Steers and brakes: ``override_active``; the motion constraint no longer binds the vehicle."""
    HAND_BACK = "hand_back"
    """Engages the automation again, attentive."""


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """From ``t_s`` on (seconds of scenario time) the driver does ``action``."""

    t_s: float
    action: DriverAction

    def __post_init__(self) -> None:
        if not (math.isfinite(self.t_s) and self.t_s >= 0):
            raise ConfigError("must be finite and at least 0", field="driver_events.t_s", value=self.t_s)
        object.__setattr__(self, "action", _enum(DriverAction, self.action, "driver_events.action"))


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the drive; ``None`` keeps the weather or light of the configuration."""

    road: Road
    length_m: float
    weather: Weather | None = None
    light: Light | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.length_m) and 60.0 <= self.length_m <= 1e6):
            raise ConfigError("must be 60..1000000 m", field="segments.length_m", value=self.length_m)
        object.__setattr__(self, "road", _known(Road, self.road, "segments.road"))
        if self.weather is not None:
            object.__setattr__(self, "weather", _known(Weather, self.weather, "segments.weather"))
        if self.light is not None:
            object.__setattr__(self, "light", _known(Light, self.light, "segments.light"))


# field -> (least, greatest), checked for finite numbers
_RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "duration_s": (0.1, 86400.0),
    "width_px": (64, 8192),
    "height_px": (48, 8192),
    "fps": (0.1, 240.0),
    "set_speed_mps": (0.0, 45.0),
    "traffic": (0.0, 3.0),
    "pedestrians": (0.0, 3.0),
    "two_wheelers": (0.0, 3.0),
    "curvature": (0.0, 2.0),
    "lanes_right": (0, 1),
    "lead_braking": (0.0, 2.0),
    "camera_height_m": (0.8, 3.5),
    "camera_fov_deg": (35.0, 110.0),
    "camera_pitch_deg": (-8.0, 15.0),
    "exposure": (0.4, 1.6),
    "sensor_noise": (0.0, 20.0),
}


_WHOLE = frozenset(("seed", "width_px", "height_px", "lanes_right"))


@dataclass(frozen=True, slots=True)
class ScenarioConfig:
    """Everything a drive depends on.

    Attributes:
        seed: of everything random.
        road, weather, light: of the whole drive, unless ``segments`` says otherwise.
        duration_s: when the drive is over; the scenario itself can be stepped further.
        width_px, height_px, fps: of the camera. The picture scales with the size: the field of view stays.
        set_speed_mps: what the ego vehicle drives when nothing is in its way; roads have their own limits as well.
        start_speed_mps: at time 0; None for the greatest speed allowed there.
        segments: the stretches of the drive, in order, repeated when it goes on longer; empty for one kind of road.
        traffic, pedestrians, two_wheelers: density, 1 is ordinary, 0 none.
        lanes_right: lanes to the right of ours on a highway, 0 or 1; with one there is no shoulder to pull over to.
        lead_braking: how often vehicles in front brake for no visible reason; 1 is about twice a minute.
        curvature: how much the road bends; 1 is ordinary for its kind.
        camera_height_m, camera_fov_deg (horizontal), camera_pitch_deg (downwards): see :mod:`.camera`.
        exposure: brightness factor of the camera.
        sensor_noise: greatest noise in grey levels by day (three times as much at night); it also keeps frames of
            a standstill apart from a frozen camera.
        hood: whether the vehicle's own bonnet is in the picture.
        driver_events: script of the driver, ascending in time; before the first one the driver is attentive.
        takeover_reaction_s: an attentive driver takes over this long after a takeover request; None: only as scripted.

    Raises:
        ConfigError: a value out of its range, of the wrong kind, or UNKNOWN.
    """

    seed: int = 1
    road: Road = Road.HIGHWAY
    weather: Weather = Weather.CLEAR
    light: Light = Light.DAY
    duration_s: float = 60.0
    width_px: int = 1280
    height_px: int = 720
    fps: float = 20.0
    set_speed_mps: float = 20.0
    start_speed_mps: float | None = None
    segments: tuple[Segment, ...] = ()
    traffic: float = 1.0
    pedestrians: float = 1.0
    two_wheelers: float = 1.0
    lanes_right: int = 0
    lead_braking: float = 1.0
    curvature: float = 1.0
    camera_height_m: float = 1.4
    camera_fov_deg: float = 65.0
    camera_pitch_deg: float = 2.0
    exposure: float = 1.0
    sensor_noise: float = 3.0
    hood: bool = False
    driver_events: tuple[DriverEvent, ...] = ()
    takeover_reaction_s: float | None = None

    def __post_init__(self) -> None:
        for name, (least, greatest) in _RANGES.items():
            _number(name, getattr(self, name), least, greatest, whole=name in _WHOLE)
        if self.start_speed_mps is not None:
            _number("start_speed_mps", self.start_speed_mps, 0.0, 45.0)
        if self.takeover_reaction_s is not None:
            _number("takeover_reaction_s", self.takeover_reaction_s, 0.0, 3600.0)
        object.__setattr__(self, "road", _known(Road, self.road, "road"))
        object.__setattr__(self, "weather", _known(Weather, self.weather, "weather"))
        object.__setattr__(self, "light", _known(Light, self.light, "light"))
        for name, kind in (("segments", Segment), ("driver_events", DriverEvent)):
            items = tuple(getattr(self, name))
            if not all(isinstance(item, kind) for item in items):
                raise ConfigError(f"must hold {kind.__name__} values", field=name, value=items)
            object.__setattr__(self, name, items)
        times = [event.t_s for event in self.driver_events]
        if times != sorted(times):
            raise ConfigError("must be in ascending order of t_s", field="driver_events", value=times)

    @property
    def period_s(self) -> float:
        """Time between two frames."""
        return 1.0 / self.fps


def _number(name: str, value: object, least: float, greatest: float, *, whole: bool = False) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    wanted = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f"must be {wanted}", field=name, value=value)
    if not (math.isfinite(value) and least <= value <= greatest):
        raise ConfigError(f"must be {least:g}..{greatest:g}", field=name, value=value)


def _enum(kind: Any, value: Any, name: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(member.name) for member in kind)
        raise ConfigError(f"must be one of {names}", field=name, value=value) from None


def _known(kind: Any, value: Any, name: str) -> Any:
    member = _enum(kind, value, name)
    if member == 0:
        raise ConfigError("must be known", field=name, value=member.name, remedy="choose a kind")
    return member


def random_config(seed: int, **overrides: Any) -> ScenarioConfig:
    """A varied drive for training: road, weather, light, density, camera and noise drawn from ``seed``.

    Args:
        seed: of the draw and of the scenario.
        overrides: fields of :class:`ScenarioConfig` that replace the drawn ones.

    Raises:
        ConfigError: an unknown field or a value out of range.
    """
    _number("seed", seed, *_RANGES["seed"], whole=True)
    rng = np.random.Generator(np.random.PCG64([int(seed), 7]))
    road = Road(int(rng.choice([1, 2, 3, 4, 5], p=[0.2, 0.18, 0.23, 0.23, 0.16])))
    weather = Weather(int(rng.choice([1, 2, 3], p=[0.6, 0.22, 0.18])))
    light = Light(int(rng.choice([1, 2, 3], p=[0.6, 0.18, 0.22])))
    speed = {Road.HIGHWAY: (18.0, 33.0), Road.RURAL: (14.0, 25.0)}.get(road, (8.0, 15.0))
    values: dict[str, Any] = {
        "seed": int(seed),
        "road": road,
        "weather": weather,
        "light": light,
        "set_speed_mps": round(float(rng.uniform(*speed)), 2),
        "traffic": round(float(rng.uniform(0.0, 1.5) if rng.random() < 0.75 else rng.uniform(2.0, 3.0)), 2),
        "pedestrians": round(float(rng.uniform(0.4, 2.4)), 2),
        "two_wheelers": round(float(rng.uniform(0.4, 2.8)), 2),
        "lead_braking": round(float(rng.uniform(0.5, 2.0)), 2),
        "curvature": round(float(rng.uniform(0.3, 1.5)), 2),
        "camera_height_m": round(float(rng.uniform(1.2, 1.7)), 2),
        "camera_fov_deg": round(float(rng.uniform(50.0, 78.0)), 1),
        "camera_pitch_deg": round(float(rng.uniform(-1.0, 5.0)), 2),
        "exposure": round(float(rng.uniform(0.75, 1.2)), 2),
        "sensor_noise": round(float(rng.uniform(1.0, 8.0)), 1),
        "hood": bool(rng.random() < 0.25),
        "lanes_right": int(rng.random() < 0.3),
    }
    return _replaced(ScenarioConfig(**values), overrides)


def demo_config(seed: int = 1, **overrides: Any) -> ScenarioConfig:
    """The drive of ``make demo``: 50 s from a highway by day through a works zone into a town at dusk, with a
    signalled crossing and pedestrians. The driver is attentive and nothing fails."""
    segments = (
        Segment(Road.HIGHWAY, 180.0),
        Segment(Road.WORKS, 110.0),
        Segment(Road.RURAL, 100.0, weather=Weather.RAIN),
        Segment(Road.URBAN, 70.0, light=Light.DUSK),
        Segment(Road.CROSSING, 80.0, light=Light.DUSK),
        Segment(Road.URBAN, 90.0, light=Light.NIGHT),
        Segment(Road.CROSSING, 90.0, light=Light.NIGHT),
        Segment(Road.RURAL, 400.0, light=Light.NIGHT),
    )
    config = ScenarioConfig(seed=seed, duration_s=50.0, set_speed_mps=22.0, segments=segments, pedestrians=1.5)
    return _replaced(config, overrides)


def _replaced(config: ScenarioConfig, overrides: dict[str, Any]) -> ScenarioConfig:
    known = {field.name for field in fields(config)}
    for name in overrides:
        if name not in known:
            raise ConfigError(
                "no such field of a scenario", field=name, remedy=f"use one of {', '.join(sorted(known))}"
            )
    return dataclasses.replace(config, **overrides)
