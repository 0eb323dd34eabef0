"""Vehicles found by each detector on the simulated frames: ``python bench/detectors.py --data FOLDER [--out FILE]``.

Protocol: all frames of both splits with a labelled vehicle; a detection is right when it overlaps a vehicle not yet
taken by IoU 0.5 or more, best scores choosing first. Vehicles below 32x32 pixels of area (COCO's "small") are neither
demanded nor, when found, counted. ``all_sizes`` gives the same figures with small ones and empty frames counted.
The published figures of the foreign engines are in :data:`PUBLISHED`; exit status 1 if one is missed by more than 0.02.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from triptych.contract import TriptychError
from triptych.engines import load_engine, load_manifest
from triptych.resources import share
from triptych_forge.data import VEHICLE, Boxes, carla
from triptych_forge.detector_eval import SMALL_PX2, Found, detect, vehicles_at

PUBLISHED = {"yolox-nano": (0.74, 0.73), "nanodet-m": (0.77, 0.63), "fastestdet": (0.59, 0.71)}
"""Precision and recall stated for the three exports on these frames."""
TOLERANCE = 0.02


def judge(found: list[Found], truth: list[Boxes], small_px2: float, empty_frames: bool) -> dict[str, float]:
    """Precision and recall of the vehicle class under the module's protocol."""
    kept = [(f, boxes) for f, boxes in zip(found, truth) if len(boxes) or empty_frames]
    precision, recall = vehicles_at([f for f, _ in kept], [boxes for _, boxes in kept], 0.0, small_px2)
    return {"precision": precision, "recall": recall}


def main() -> int:
    """Run, print and write; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with images/carla_boxes and detectors")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    folder = arguments.data / "images" / "carla_boxes"
    engines = {name: share() / "config" / "engines" / f"{name}.yaml" for name in PUBLISHED}
    engines["triptych-detector"] = share() / "models" / "triptych-detector" / "manifest.yaml"
    missed = []
    try:
        samples = {split: carla(folder, split) for split in ("train", "val")}
        rows = {}
        for name, path in engines.items():
            foreign = name in PUBLISHED
            # The built-in detector learnt from the training split, so only the other one judges it.
            chosen = [*samples["train"], *samples["val"]] if foreign else samples["val"]
            engine = load_engine(path, engine_dir=arguments.data / "detectors" if foreign else None)
            start = time.perf_counter()
            found = [detect(engine, s.image) for s in chosen]
            seconds = time.perf_counter() - start
            truth = [s.boxes[s.labels == VEHICLE] for s in chosen]
            row = {
                "frames": len(chosen),
                **judge(found, truth, SMALL_PX2, empty_frames=False),
                "all_sizes": judge(found, truth, 0.0, empty_frames=True),
                "mean_ms": round(seconds / len(chosen) * 1e3, 2),
                "sha256": load_manifest(path).files["model"].sha256,
            }
            if foreign:
                row["published"] = dict(zip(("precision", "recall"), PUBLISHED[name]))
                for key, value in row["published"].items():
                    if abs(row[key] - value) > TOLERANCE:
                        missed.append(f"{name}: {key} {row[key]:.3f}, published {value:.2f}")
            rows[name] = row
            print(f"{name:18} precision {row['precision']:.3f} recall {row['recall']:.3f} on {row['frames']} frames")
    except TriptychError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = {
        "engines": rows,
        "provenance": {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "onnxruntime": onnxruntime.__version__,
        },
    }
    if arguments.out:
        beside = arguments.out.with_suffix(".tmp")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        beside.replace(arguments.out)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
