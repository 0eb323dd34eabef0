"""Pictures for the start-up self-test: drawn ones for engines whose own pictures we may not ship, or a PNG."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import EngineError, Frame
from triptych.engines.manifest import Manifest, find_file, verify_file

Image = npt.NDArray[np.uint8]


def _backdrop(width: int, height: int) -> Image:
    """Sky, hills and a road to the horizon, softly shaded."""
    image = np.zeros((height, width, 3), np.uint8)
    horizon = int(height * 0.55)
    ramp = np.linspace(0, 1, horizon)[:, None, None]
    image[:horizon] = np.array([225, 180, 130]) * (1 - ramp) + np.array([235, 222, 205]) * ramp
    image[horizon:] = (70, 110, 95)
    road = [(width * 0.46, horizon), (width * 0.54, horizon), (width * 1.05, height), (width * -0.05, height)]
    cv2.fillPoly(image, [np.array(road, np.int32)], (92, 90, 88))
    noise = np.random.default_rng(7).normal(0, 4, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def stop_sign(width: int, height: int) -> Image:
    """A road with a large stop sign in front: the object every COCO detector knows and anybody may draw."""
    image = _backdrop(width, height)
    centre, radius = np.array([width * 0.5, height * 0.42]), height * 0.30
    cv2.rectangle(
        image,
        (int(centre[0] - radius * 0.07), int(centre[1])),
        (int(centre[0] + radius * 0.07), height),
        (150, 150, 150),
        -1,
    )
    for size, colour in ((1.0, (245, 245, 245)), (0.93, (38, 24, 178))):
        angles = np.pi / 8 + np.arange(8) * np.pi / 4
        corners = centre + radius * size * np.stack([np.cos(angles), np.sin(angles)], 1)
        cv2.fillPoly(image, [corners.astype(np.int32)], colour, cv2.LINE_AA)
    font, scale, thickness = cv2.FONT_HERSHEY_DUPLEX, radius / 38, max(2, int(radius / 9))
    (text_width, text_height), _ = cv2.getTextSize("STOP", font, scale, thickness)
    scale *= 1.5 * radius / text_width
    (text_width, text_height), _ = cv2.getTextSize("STOP", font, scale, thickness)
    origin = (int(centre[0] - text_width / 2), int(centre[1] + text_height / 2))
    cv2.putText(image, "STOP", origin, font, scale, (245, 245, 245), thickness, cv2.LINE_AA)
    return cv2.GaussianBlur(image, (3, 3), 0).astype(np.uint8)


PATTERNS = {"stop-sign": stop_sign}


def golden_frame(manifest: Manifest, manifest_path: Path, engine_dir: Path | None = None) -> Frame:
    """The manifest's golden picture as a frame.

    Raises:
        EngineError: unknown pattern; file missing, changed or not a picture.
    """
    golden = manifest.golden
    if golden.pattern is not None:
        if golden.pattern not in PATTERNS:
            raise EngineError(
                f"unknown pattern, known are {', '.join(PATTERNS)}",
                where=manifest_path,
                field="golden.pattern",
                value=golden.pattern,
                remedy="correct the manifest",
            )
        return Frame(PATTERNS[golden.pattern](golden.width, golden.height), 0, 1)
    assert golden.file is not None
    try:
        path = find_file(golden.file, manifest_path)  # a golden picture comes with the manifest
    except EngineError:
        path = find_file(golden.file, manifest_path, engine_dir)
    verify_file(golden.file, path)
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise EngineError("is not a picture", where=path, remedy="give a PNG as golden.file")
    return Frame(np.ascontiguousarray(image, np.uint8), 0, 1)
