"""What can become of a picture: (H, W, 3) uint8 BGR in, a new one out. Strength 0 leaves it, 1 ruins it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Rng = np.random.Generator


def _bytes(values: npt.NDArray[np.floating[Any]]) -> Image:
    return np.ascontiguousarray(np.clip(values, 0, 255).astype(np.uint8))


def black(image: Image, strength: float, rng: Rng) -> Image:
    """The exposure falls; at 1 to nothing."""
    return _bytes(image * (1.0 - strength))


def over_exposed(image: Image, strength: float, rng: Rng) -> Image:
    """The gain rises to 20, and everything clips."""
    return _bytes(image * (1.0 + 19.0 * strength) + 120.0 * strength)


def noise(image: Image, strength: float, rng: Rng) -> Image:
    """Gaussian, up to a deviation of 100 grey levels."""
    return _bytes(rng.normal(0.0, 100.0 * strength, image.shape).astype(np.float32) + image)


def blur(image: Image, strength: float, rng: Rng) -> Image:
    """Out of focus, up to a deviation of 3 % of the width."""
    sigma = max(1e-3, 0.03 * strength * image.shape[1])
    return np.ascontiguousarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def occlusion(image: Image, strength: float, rng: Rng) -> Image:
    """Something dark lies on that share of the lens, from one side."""
    out: Image = image.copy()
    out[:, : round(strength * image.shape[1])] = 18
    return out


def colour_cast(image: Image, strength: float, rng: Rng) -> Image:
    """Blue and green fade: a broken channel or a filter."""
    out = image.astype(np.float32)
    out[..., :2] *= 1.0 - strength
    return _bytes(out)


def missing_rows(image: Image, strength: float, rng: Rng) -> Image:
    """Bands of rows were not transmitted; in their place is what was there last: nothing."""
    out: Image = image.copy()
    height, band = image.shape[0], max(1, image.shape[0] // 24)
    for start in rng.choice(range(0, height, band), max(1, round(strength * height / band)), replace=False):
        out[start : start + band] = 0
    return out


def half_size(image: Image, strength: float, rng: Rng) -> Image:
    """The camera changed its mode: half the sides."""
    return np.ascontiguousarray(image[::2, ::2])


PICTURES: dict[str, Callable[[Image, float, Rng], Image]] = {
    "black": black,
    "over_exposed": over_exposed,
    "noise": noise,
    "blur": blur,
    "occlusion": occlusion,
    "colour_cast": colour_cast,
    "missing_rows": missing_rows,
    "half_size": half_size,
}
"""By name."""
