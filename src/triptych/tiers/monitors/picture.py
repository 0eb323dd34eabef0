"""What the monitors look at: statistics of one picture, all from one cheap pass.

The pass works on a small copy of at most 160x90 picked pixels. Only the noise is taken at full resolution, at a quarter
as many places: it is what a pixel does not share with its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 160, 90
"""Greatest size of the small copy: a step of 8 pixels at 1280x720."""
BLOCK = 8
"""Side of a block of the small copy: 20x11 blocks, 64 pixels of a 1280x720 picture each."""
DARK_LEVEL = 16
"""Black of a video signal (ITU-R BT.601): at or below it a pixel shows nothing."""
BRIGHT_LEVEL = 250
"""At or above it a pixel is as good as saturated: the five levels below white are what compression moves."""
FLAT_LEVELS = 1.5
"""A block whose grey levels deviate less than this from their mean, noise taken off, has no texture."""
BLANK_ENERGY = 1.0
"""Mean squared difference in grey levels² below which a picture has no edges at all, sharp or not."""

_MAD = 0.6745
"""Median of the magnitude of a standard normal variable."""
_GAIN = 6.0
"""Norm of the noise operator: sqrt(36)."""

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Statistics of one picture; grey levels are 0..255, shares 0..1.

    Attributes:
        width_px, height_px: of the picture itself.
        brightness: mean grey level.
        contrast: standard deviation of the grey levels.
        channels: mean levels of blue, green, red.
        dark_share, bright_share: pixels at or below :data:`DARK_LEVEL`, at or above :data:`BRIGHT_LEVEL`.
        blur: see :func:`blur`.
        noise: standard deviation of the sensor's noise in grey levels, see :func:`noise`.
        dead_rows: share of rows that are constant or repeat the row above.
        blocks: (rows, columns) float32, mean green level of each block; empty for a picture smaller than a block.
        flat: (rows, columns) bool, the blocks without texture.
    """

    width_px: int
    height_px: int
    brightness: float
    contrast: float
    channels: tuple[float, float, float]
    dark_share: float
    bright_share: float
    blur: float
    noise: float
    dead_rows: float
    blocks: npt.NDArray[np.float32]
    flat: npt.NDArray[np.bool_]


def look(image: Image) -> Picture:
    """The statistics of ``image``: (height, width, 3) uint8, BGR, any size from 1x1 on."""
    height, width = image.shape[:2]
    small: Image = cv2.resize(image, (min(width, WIDTH), min(height, HEIGHT)), interpolation=cv2.INTER_NEAREST)  # type: ignore[assignment]
    grey = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY)
    green = small[:, :, 1].astype(np.float32)
    sigma = noise(image)
    blocks, flat = texture(green, sigma)
    mean, deviation = cv2.meanStdDev(grey)
    blue, middle, red, _ = cv2.mean(small)
    return Picture(
        width_px=width,
        height_px=height,
        brightness=float(mean[0, 0]),
        contrast=float(deviation[0, 0]),
        channels=(blue, middle, red),
        dark_share=float(np.count_nonzero(grey <= DARK_LEVEL)) / grey.size,
        bright_share=float(np.count_nonzero(grey >= BRIGHT_LEVEL)) / grey.size,
        blur=blur(green, sigma),
        noise=sigma,
        dead_rows=dead_rows(small),
        blocks=blocks,
        flat=flat,
    )


def noise(image: Image) -> float:
    """Standard deviation of the noise of the green channel, grey levels; 0 for a picture smaller than 3x3.

    The difference of two Laplacians (J. Immerkær, "Fast Noise Variance Estimation", Computer Vision and Image
    Understanding 64, 1996), which edges hardly pass; of its values the median magnitude counts instead of the mean
    (D. Donoho, I. Johnstone, 1994), so that texture in less than half of the places does not count as noise.
    """
    height, width = image.shape[:2]
    if height < 3 or width < 3:
        return 0.0
    step_y, step_x = -(-2 * height // HEIGHT), -(-2 * width // WIDTH)
    top, left = min(step_y // 2, height - 3), min(step_x // 2, width - 3)
    total: npt.NDArray[np.int16] | None = None
    for dy, weight_y in ((0, 1), (1, -2), (2, 1)):
        rows = image[top + dy : height - 2 + dy : step_y, :, 1]
        line: npt.NDArray[np.int16] = rows[:, left + 1 : width - 1 : step_x].astype(np.int16)
        line *= -2
        line += rows[:, left : width - 2 : step_x]
        line += rows[:, left + 2 : width : step_x]
        line *= weight_y
        total = line if total is None else total + line
    assert total is not None
    magnitudes = np.abs(total).ravel()
    middle = magnitudes.size // 2
    return float(np.partition(magnitudes, middle)[middle]) / (_MAD * _GAIN)


def blur(green: npt.NDArray[np.float32], sigma: float) -> float:
    """How smooth the edges are: 0 for pixels that know nothing of each other, 1 for a smooth or blank picture.

    The variance of the Laplacian, the usual measure of focus (J. L. Pech-Pacheco et al., "Diatom autofocusing in
    brightfield microscopy", ICPR 2000), falls with contrast as much as with focus: night and fog would be blur.
    Related to the squared difference over the same distance the contrast cancels. For samples a, b, c in a row
    ``(a - 2b + c)² + (a - c)² = 2(a - b)² + 2(b - c)²``, so the share of ``(a - c)²`` in that sum is well bounded.
    What noise of ``sigma`` grey levels adds is taken off both.
    """
    smooth = rough = 0.0
    for axis in (0, 1):
        if green.shape[axis] < 3:
            continue
        step = green[1:] - green[:-1] if axis == 0 else green[:, 1:] - green[:, :-1]
        ahead, behind = (step[1:], step[:-1]) if axis == 0 else (step[:, 1:], step[:, :-1])
        smooth += max(0.0, _mean_square(ahead + behind) - 2.0 * sigma * sigma)
        rough += max(0.0, _mean_square(ahead - behind) - 6.0 * sigma * sigma)
    return smooth / (smooth + rough) if smooth + rough > BLANK_ENERGY else 1.0


def _mean_square(values: npt.NDArray[np.float32]) -> float:
    flat = values.ravel()
    return float(np.dot(flat, flat)) / flat.size


def dead_rows(small: Image) -> float:
    """Share of rows of the small copy that are one colour throughout or equal the row above, saturated ones apart.

    Exactly so: the noise of a sensor never leaves two rows alike.
    """
    rows = small.reshape(len(small), -1)
    constant = (rows[:, 3:] == rows[:, :-3]).all(axis=1)
    repeated = np.zeros_like(constant)
    repeated[1:] = (rows[1:] == rows[:-1]).all(axis=1)
    lit = rows.min(axis=1) < BRIGHT_LEVEL
    return float(np.count_nonzero((constant | repeated) & lit)) / len(constant)


def texture(green: npt.NDArray[np.float32], sigma: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Mean level of each block, and which have no texture: both (rows, columns), empty below the size of a block."""
    rows, columns = green.shape[0] // BLOCK, green.shape[1] // BLOCK
    if not rows or not columns:
        return np.zeros((0, 0), np.float32), np.zeros((0, 0), np.bool_)
    whole = green[: rows * BLOCK, : columns * BLOCK]
    mean: npt.NDArray[np.float32] = _block_means(whole, columns, rows)
    flat: npt.NDArray[np.bool_] = _block_means(whole * whole, columns, rows) - mean * mean < FLAT_LEVELS**2 + sigma**2
    return mean, flat


def _block_means(values: npt.NDArray[np.float32], columns: int, rows: int) -> npt.NDArray[np.float32]:
    return cv2.resize(values, (columns, rows), interpolation=cv2.INTER_AREA)  # type: ignore[return-value]
