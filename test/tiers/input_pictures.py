"""Sound pictures of the built-in scenario, and what can be done to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Weather
from triptych.scenario import Scenario, random_config

Image = npt.NDArray[np.uint8]
WEATHERS = tuple(w for w in Weather if w)
LIGHTS = tuple(light for light in Light if light)
FRAMES = 10


@cache
def drive(weather: Weather, light: Light, seed: int = 40, frames: int = FRAMES) -> tuple[Image, ...]:
    """Consecutive pictures of a drive, 320x180 at 20 Hz."""
    scenario = Scenario(
        random_config(seed + 10 * weather + light, weather=weather, light=light, width_px=320, height_px=180)
    )
    scenario.step(0.5, None)
    pictures = []
    for _ in range(frames):
        pictures.append(scenario.render().copy())
        scenario.step(0.05, None)
    return tuple(pictures)


def gained(image: Image, gain: float) -> Image:
    """Exposed by a factor."""
    return np.clip(np.rint(image * gain), 0, 255).astype(np.uint8)


def blurred(image: Image, sigma_px: float) -> Image:
    """Out of focus; the sensor's noise is not."""
    return noisy(np.asarray(cv2.GaussianBlur(image, (0, 0), sigma_px), np.uint8), 1.0)


def noisy(image: Image, sigma: float) -> Image:
    """With Gaussian noise of that many grey levels on every channel, another at each call but the same on every run."""
    noise = np.random.default_rng(int(image[::7, ::7].sum())).normal(0.0, sigma, image.shape)
    return np.clip(np.rint(image + noise), 0, 255).astype(np.uint8)


def covered(image: Image, share: float) -> Image:
    """The left ``share`` of the picture behind something dark, close and out of focus."""
    width = round(image.shape[1] * share)
    cover = np.broadcast_to(np.linspace(40.0, 70.0, image.shape[0])[:, None, None], (image.shape[0], width, 3))
    out = image.copy()
    out[:, :width] = noisy(cover.astype(np.uint8), 1.0)
    return out


def without_rows(image: Image, share: float) -> Image:
    """The lowest rows were not transferred."""
    out = image.copy()
    out[round(len(out) * (1.0 - share)) :] = 0
    return out


def with_repeated_rows(image: Image, share: float) -> Image:
    """A band in the middle repeats one row."""
    out = image.copy()
    first = len(out) // 2
    out[first : first + round(len(out) * share)] = out[first]
    return out


def without_red(image: Image, share: float) -> Image:
    """The red channel has lost a share of its signal."""
    out = image.copy()
    out[:, :, 2] = np.rint(out[:, :, 2] * (1.0 - share)).astype(np.uint8)
    return out


def resized(image: Image, scale: float) -> Image:
    """Of another resolution."""
    return np.asarray(cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


Damage = Callable[[Image, float], Image]
ANOMALIES: dict[str, tuple[Damage, tuple[float, ...], str]] = {
    "underexposed": (gained, (0.9, 0.3, 0.1, 0.02), "dark_picture"),
    "overexposed": (gained, (1.2, 3.0, 8.0, 30.0), "bright_picture"),
    "out of focus": (blurred, (0.25, 1.0, 2.0, 4.0), "blurred_picture"),
    "covered": (covered, (0.05, 0.15, 0.3, 0.6), "covered_picture"),
    "rows lost": (without_rows, (0.01, 0.06, 0.2, 0.5), "missing_rows"),
    "rows repeated": (with_repeated_rows, (0.01, 0.06, 0.2, 0.4), "missing_rows"),
    "noise": (noisy, (2.0, 12.0, 25.0, 50.0), "noisy_picture"),
    "red lost": (without_red, (0.1, 0.5, 0.8, 1.0), "colour_cast"),
    "resized": (resized, (0.5,), "wrong_size"),
}
"""Name: what is done, with what rising strengths, and the code that must name it at the last."""
