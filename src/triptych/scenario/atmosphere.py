"""Light and weather as numbers, and how one turns into another along the drive."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Weather
from triptych.scenario.road import Plan

BLEND_M = 70.0
"""Length of road over which light or weather change."""
_STEPS = 12


@dataclass(frozen=True, slots=True)
class Look:
    """One atmosphere.

    Attributes:
        ambient: BGR factors of daylight colours.
        extinction_per_m: contrast falls with exp(-extinction * distance); the visual range
            (5 % contrast) is 3 / extinction.
        fog: BGR colour that distance fades into.
        beam: strength of the own head lights, 0..1.
        lights: how much lamps and windows shine, 0..1.
        rain: 0..1.
        sun: contrast of sunlit against shaded faces.
        noise: factor of the sensor noise.
    """

    ambient: tuple[float, float, float]
    extinction_per_m: float
    fog: tuple[float, float, float]
    beam: float
    lights: float
    rain: float
    sun: float
    noise: float


def make_look(weather: Weather, light: Light, seed: int, exposure: float) -> Look:
    """The look of a weather and a light; the seed varies haze and tint a little."""
    rng = np.random.Generator(np.random.PCG64([seed, 37, int(weather), int(light)]))
    ambient = {Light.DAY: (1.0, 1.0, 1.0), Light.DUSK: (0.60, 0.50, 0.50), Light.NIGHT: (0.20, 0.155, 0.14)}[light]
    fog = {Light.DAY: (222, 212, 202), Light.DUSK: (138, 132, 158), Light.NIGHT: (30, 24, 22)}[light]
    extinction, dim, sun, rain = 0.0015, 1.0, 0.34, 0.0
    if weather is Weather.RAIN:
        extinction, dim, sun, rain = float(rng.uniform(0.005, 0.008)), 0.78, 0.12, 1.0
        fog = {Light.DAY: (172, 168, 164), Light.DUSK: (104, 96, 96), Light.NIGHT: (26, 23, 22)}[light]
    elif weather is Weather.FOG:
        extinction, dim, sun = float(rng.uniform(0.018, 0.036)), 0.9, 0.06
        fog = {Light.DAY: (202, 200, 198), Light.DUSK: (126, 122, 126), Light.NIGHT: (44, 42, 42)}[light]
    if light is not Light.DAY:
        sun *= 0.5
    tint = rng.uniform(0.95, 1.05, 3) * dim * exposure
    beam = {Light.DAY: 0.0, Light.DUSK: 0.3, Light.NIGHT: 0.85}[light] * min(exposure, 1.1)
    lights = {Light.DAY: 0.0, Light.DUSK: 0.8, Light.NIGHT: 1.0}[light]
    if light is Light.DAY and weather is not Weather.CLEAR:
        lights = 0.55
    b, g, r = (float(a * t) for a, t in zip(ambient, tint, strict=True))
    scale = min(exposure, 1.1)
    return Look(
        (b, g, r),
        extinction,
        (fog[0] * scale, fog[1] * scale, fog[2] * scale),
        beam,
        lights,
        rain,
        sun,
        {Light.DAY: 1.0, Light.DUSK: 1.7, Light.NIGHT: 3.0}[light],
    )


def blend(a: Look, b: Look, t: float) -> Look:
    """Between two looks, 0..1."""

    def mix(x: float, y: float) -> float:
        return x + (y - x) * t

    def mix3(x: tuple[float, float, float], y: tuple[float, float, float]) -> tuple[float, float, float]:
        return (mix(x[0], y[0]), mix(x[1], y[1]), mix(x[2], y[2]))

    return Look(
        mix3(a.ambient, b.ambient),
        mix(a.extinction_per_m, b.extinction_per_m),
        mix3(a.fog, b.fog),
        mix(a.beam, b.beam),
        mix(a.lights, b.lights),
        mix(a.rain, b.rain),
        mix(a.sun, b.sun),
        mix(a.noise, b.noise),
    )


@dataclass(frozen=True, slots=True)
class Air:
    """The atmosphere at a place: two conditions and how far from the first to the second (0..1, in 12 steps, so that
    what depends on it can be kept)."""

    weather: Weather
    light: Light
    next_weather: Weather
    next_light: Light
    step: int

    @property
    def progress(self) -> float:
        return self.step / _STEPS

    @property
    def now(self) -> tuple[Weather, Light]:
        """What one would call it here."""
        return (self.next_weather, self.next_light) if 2 * self.step >= _STEPS else (self.weather, self.light)


def air_at(plan: Plan, s_m: float) -> Air:
    """The atmosphere at ``s_m``; it changes around the ends of stretches."""
    half = BLEND_M / 2
    around = plan.between(s_m - half, s_m + half)
    first = around[0]
    for a, b in itertools.pairwise(around):
        if (a.weather, a.light) != (b.weather, b.light):
            t = (s_m - b.start_m + half) / BLEND_M
            return Air(a.weather, a.light, b.weather, b.light, round(min(max(t, 0.0), 1.0) * _STEPS))
    return Air(first.weather, first.light, first.weather, first.light, 0)


def transmittance(look: Look, z_m: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Share of the contrast left at distance z."""
    return np.asarray(np.exp(np.maximum(z_m, 0.0) * np.float32(-look.extinction_per_m)), np.float32)


def beam(look: Look, x_m: npt.NDArray[np.float32], z_m: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Light of the own head lights at a place relative to the camera (x right, z forward)."""
    z = np.maximum(z_m, 1.0)
    spread = 1.6 + 0.27 * z
    side = np.exp(-(((x_m - 0.02 * z) / spread) ** 2))
    return np.asarray(np.float32(look.beam * 0.95) * side / (1.0 + (z / 34.0) ** 2), np.float32)
