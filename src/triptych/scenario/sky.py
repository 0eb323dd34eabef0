"""Sky and horizon: a panorama per light and weather, of which each frame shows a part."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Road, Weather
from triptych.scenario.atmosphere import make_look


@lru_cache(maxsize=16)
def make_panorama(
    width_px: int,
    height_px: int,
    focal_px: float,
    weather: Weather,
    light: Light,
    base: Road,
    seed: int,
    exposure: float,
) -> npt.NDArray[np.uint8]:
    """(height, 3 * width, 3) BGR; its last row is the horizon. The middle third is straight ahead at heading 0; it
    continues seamlessly from its right to its left edge."""
    rng = np.random.Generator(np.random.PCG64([seed, 43]))
    look = make_look(weather, light, seed, exposure)
    h, w = max(height_px, 2), 3 * width_px
    top, bottom = {
        Light.DAY: ((226, 160, 96), (238, 222, 204)),
        Light.DUSK: ((120, 84, 66), (110, 150, 226)),
        Light.NIGHT: ((26, 15, 11), (48, 34, 28)),
    }[light]
    fog = np.array(look.fog, np.float32)
    overcast = {Weather.CLEAR: 0.0, Weather.RAIN: 0.92, Weather.FOG: 1.0}[weather]
    t = (np.linspace(0, 1, h, dtype=np.float32) ** 1.4)[:, None]
    sky = np.array(top, np.float32) * (1 - t) + np.array(bottom, np.float32) * t
    sky = sky * (1 - overcast) + fog * np.linspace(0.86, 1.0, h, dtype=np.float32)[:, None] * overcast
    image = np.repeat(sky[:, None, :], w, axis=1)
    # clouds, stretched towards the horizon
    amount = float(rng.uniform(0.15, 0.9)) if weather is Weather.CLEAR else 0.55 if weather is Weather.RAIN else 0.0
    if amount > 0:
        field = np.zeros((h, w), np.float32)
        for cells, weight in ((6, 0.5), (14, 0.3), (34, 0.2), (80, 0.1)):
            grid = rng.standard_normal((max(2, cells // 2), cells)).astype(np.float32)
            grid = np.concatenate([grid, grid[:, :1]], axis=1)
            field += weight * cv2.resize(grid, (w, h), interpolation=cv2.INTER_CUBIC)
        cover = np.clip((field - 0.35 + 0.6 * amount) * 1.6, 0, 1) * (0.85 if weather is Weather.CLEAR else 0.5)
        shades = {Light.DAY: (240, 238, 236), Light.DUSK: (120, 120, 190), Light.NIGHT: (40, 34, 32)}
        shade = fog * 0.78 if weather is Weather.RAIN else np.array(shades[light], np.float32)
        image += cover[:, :, None] * (shade - image)
    xs = np.arange(w, dtype=np.float32)
    if light is Light.DUSK and weather is not Weather.FOG:
        sun = float(rng.uniform(0.3, 0.7)) * w
        away = np.abs((xs - sun + w / 2) % w - w / 2) / (0.5 * width_px)
        glow = np.exp(-(away**2))[None, :] * (np.linspace(0, 1, h, dtype=np.float32) ** 3)[:, None]
        image += (glow * (0.5 if weather is Weather.CLEAR else 0.15))[:, :, None] * (
            np.array((90, 160, 255), np.float32) - image
        )
    if light is Light.NIGHT and weather is Weather.CLEAR:
        for _ in range(int(w * h / 9000)):
            x, y = int(rng.integers(0, w)), int(rng.integers(0, max(1, int(h * 0.8))))
            image[y, x] += float(rng.uniform(30, 120))
    # silhouettes: hills or a skyline, then a line of trees
    ambient = np.array(look.ambient, np.float32)
    fade = float(np.exp(-look.extinction_per_m * 450))
    turns = xs / w * 2 * np.pi

    def silhouette(height: npt.NDArray[np.float32], colour: tuple[float, float, float], clear: float) -> None:
        top_row = h - np.clip(height, 0, h).astype(int)
        rows = np.arange(h)[:, None]
        mask = rows >= top_row[None, :]
        tone = np.array(colour, np.float32) * ambient * clear + fog * (1 - clear)
        image[mask] = tone

    unit = focal_px / 1000.0
    if base is not Road.URBAN or rng.random() < 0.5:
        rise = float(rng.choice([0.6, 1.0, 1.0, 2.4]))
        for layer in range(2):
            wave = sum(
                float(rng.uniform(0.4, 1)) / k * np.sin(turns * k * 2 + float(rng.uniform(0, 6.28)))
                for k in range(1, 7)
            )
            height = (22 - 10 * layer + 13 * np.asarray(wave, np.float32)) * (rise * unit)
            silhouette(height.astype(np.float32), ((120, 112, 88), (78, 98, 72))[layer], fade * (0.45, 0.65)[layer])
    if base is Road.URBAN:
        n = 90
        levels = np.repeat(rng.uniform(8, 46, n), int(np.ceil(w / n)))[:w].astype(np.float32)
        silhouette(levels * unit, (128, 126, 124), fade * 0.7)
        if light is Light.NIGHT and weather is not Weather.FOG:
            for _ in range(500):
                x = int(rng.integers(0, w))
                y = h - 2 - int(rng.uniform(0, 1) * levels[x] * unit * 0.9)
                if 0 <= y < h:
                    image[y, x] = (90, 170, 210)
    rough = rng.standard_normal(w).astype(np.float32)
    kernel = max(3, int(5 * unit) | 1)
    rough = cv2.blur(rough[None, :], (kernel, 1))[0] * np.sqrt(kernel)
    slow = np.asarray(sum(np.sin(turns * k + float(rng.uniform(0, 6.28))) for k in (3, 7, 12)), np.float32)
    silhouette(((9 + 2.5 * rough + 3 * slow) * unit).astype(np.float32), (48, 82, 58), fade * 0.85)
    return np.asarray(np.clip(image, 0, 255), np.uint8)


def view(panorama: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], heading_rad: float, focal_px: float) -> None:
    """Copy the part seen at a heading (positive: to the right) into ``out`` (rows, width, 3)."""
    rows, width = out.shape[:2]
    total = panorama.shape[1]
    source = panorama[-rows:]
    left = round(width + heading_rad * focal_px) % total
    first = min(width, total - left)
    out[:, :first] = source[:, left : left + first]
    if first < width:
        out[:, first:] = source[:, : width - first]
