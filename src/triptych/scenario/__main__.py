"""``python -m triptych.scenario --seed 3 --out sheet.png``: a contact sheet of a drive."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

from triptych.contract import DetectionClass, InputError, TriptychError
from triptych.scenario import Scenario, ScenarioConfig, demo_config, random_config

_COLOURS = {
    DetectionClass.VEHICLE: (80, 220, 80),
    DetectionClass.TWO_WHEELER: (230, 160, 40),
    DetectionClass.PEDESTRIAN: (60, 80, 255),
    DetectionClass.TRAFFIC_LIGHT: (40, 220, 255),
    DetectionClass.SIGN: (255, 90, 220),
}


def contact_sheet(config: ScenarioConfig, columns: int, rows: int, boxes: bool) -> np.ndarray:
    """(H, W, 3) uint8 BGR: ``columns * rows`` frames spread evenly over the drive, with their truth."""
    scenario = Scenario(config)
    steps = max(1, round(config.duration_s / config.period_s / (columns * rows)))
    tiles = []
    for _ in range(columns * rows):
        image = scenario.render()
        truth = scenario.truth()
        if boxes:
            for b in truth.boxes:
                if b.visible < 0.2:
                    continue
                corner, other = (int(b.x_min), int(b.y_min)), (int(b.x_max), int(b.y_max))
                cv2.rectangle(image, corner, other, _COLOURS[b.class_id], 1)
        scene = f"{truth.road.name} {truth.weather.name} {truth.light.name}".lower()
        hazards = ", ".join(h.name.lower() for h in truth.hazards)
        lines = (
            f"{scenario.time_s:5.1f} s  {truth.ego_speed_mps:4.1f} m/s  {scene}",
            f"{truth.advice.name}: {hazards}" if hazards else truth.advice.name,
        )
        for k, text in enumerate(lines):
            for shift, colour in ((1, (0, 0, 0)), (0, (255, 255, 255))):
                place = (8 + shift, 20 + 20 * k + shift)
                cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, colour, 1, cv2.LINE_AA)
        tiles.append(image)
        for _ in range(steps):
            scenario.step(config.period_s, None)
    return np.vstack([np.hstack(tiles[k * columns : (k + 1) * columns]) for k in range(rows)])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m triptych.scenario", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the drive")
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write")
    parser.add_argument("--demo", action="store_true", help="the drive of `make demo` instead of a random one")
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--width", type=int, default=640, help="of one frame in pixels")
    parser.add_argument("--height", type=int, default=360, help="of one frame in pixels")
    parser.add_argument("--duration", type=float, default=None, help="of the drive in seconds")
    parser.add_argument("--no-boxes", action="store_true", help="leave out the truth boxes")
    return parser.parse_args()


def main() -> int:
    """Entry point; 0 on success, 2 for what the user can put right."""
    args = _arguments()
    try:
        for name in ("columns", "rows"):
            if not 1 <= getattr(args, name) <= 20:
                raise InputError("must be 1..20", field=f"--{name}", value=getattr(args, name))
        overrides = {"width_px": args.width, "height_px": args.height}
        if args.duration is not None:
            overrides["duration_s"] = args.duration
        config = (demo_config if args.demo else random_config)(args.seed, **overrides)
        sheet = contact_sheet(config, args.columns, args.rows, not args.no_boxes)
        _write(args.out, sheet)
    except TriptychError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write(path: Path, image: np.ndarray) -> None:
    ok, data = cv2.imencode(".png", image)
    if not ok:
        raise InputError("the picture could not be encoded", where=path)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(data.tobytes())
        os.replace(file.name, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=path, remedy="choose another place") from None


if __name__ == "__main__":
    sys.exit(main())
