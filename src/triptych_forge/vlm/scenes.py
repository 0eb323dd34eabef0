"""Rendered drives with ground truth, cached outside the repository so that a second training run starts at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

import triptych.scenario
from triptych.contract import Advice, DetectionClass, Hazard, Light, Road, Weather
from triptych.contract.result import MOST_COUNTED
from triptych.scenario import (
    Scenario,
    ScenarioConfig,
    SceneTruth,
    Situation,
    TruthBox,
    assess,
    random_config,
)
from triptych_forge.vlm.words import Truth

TICK_S = 0.25
"""Time between two stored frames of a drive."""
SPACING_TICKS = 2
"""Between two frames that an engine of several frames looks at."""
TICKS = 16
LOOK_AHEAD_S = 40.0
"""A drive is entered somewhere up to this; in every second one where the most that is rare happens."""
STEP_S = 0.125
RENDER_PX = (640, 360)
"""Rendered larger than stored and shrunk by area, as a camera picture is at run time."""
STORED_PX = (480, 288)
SHARD = 20
"""Drives per file."""


OBJECTS = ("vehicle", "lead", "lead_braking", "two_wheeler", "pedestrian", "pedestrian_near", "red_light", "light")
"""What the encoder is taught to find in the picture beside the answer, see :func:`objects_of`."""
OBJECT_VISIBLE, OBJECT_CONTRAST = 0.3, 0.12
COUNTED_AS = ("vehicle", "two_wheeler", "pedestrian")
"""Of :data:`OBJECTS`, in the order of :data:`triptych.language.tokeniser.COUNTED`."""
COUNTED_HEIGHT = 0.025
"""Objects lower than this share of the picture are not counted: 9 of 360 lines."""
RED_M, LEAD_M = 150.0, 120.0
"""How far a red light or a vehicle in front is worth pointing out."""
SAME_M = 4.0
"""A box this near to a distance of the situation is taken for what that distance is to: the camera is behind the
bumper by about half of it."""


@dataclass(frozen=True)
class Scenes:
    """Drives laid end to end.

    Attributes:
        shards: (drives, ticks, H, W, 3) uint8 BGR each, memory-mapped.
        truths: per drive and tick.
        objects: per drive and tick (K, 5) float32: index of :data:`OBJECTS`, x_min, y_min, x_max, y_max as shares of
            the picture.
        situations: per drive and tick, what hazards and advice follow from.
    """

    shards: tuple[npt.NDArray[np.uint8], ...]
    truths: tuple[tuple[Truth, ...], ...]
    objects: tuple[tuple[npt.NDArray[np.float32], ...], ...] = ()
    situations: tuple[tuple[Situation, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.truths)

    def frame(self, drive: int, tick: int) -> npt.NDArray[np.uint8]:
        """One stored picture (H, W, 3)."""
        return self.shards[drive // SHARD][drive % SHARD, tick]

    def clip(self, drive: int, ticks: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Several pictures (N, H, W, 3) of one drive."""
        return np.stack([self.frame(drive, tick) for tick in ticks])


def history(tick: int, count: int) -> list[int]:
    """Ticks of ``count`` frames as a tier has them at ``tick``: half a second apart, oldest first, none before 0."""
    return [max(0, tick - SPACING_TICKS * back) for back in reversed(range(count))]


def scenario_hash() -> str:
    """Hash of the scenario's source: another renderer means other pictures.

    The advice table is left out: stored are the quantities it looks at, so that its thresholds may change.
    """
    digest = hashlib.sha256(repr((TICK_S, TICKS, LOOK_AHEAD_S, STEP_S, RENDER_PX, STORED_PX, SHARD, RIG, 5)).encode())
    for path in sorted(Path(triptych.scenario.__file__).parent.glob("*.py")):
        if path.name not in ("advice.py", "__init__.py", "__main__.py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load_scenes(
    cache: Path, first_seed: int, drives: int, workers: int = 1, done: Callable[[int, int], None] | None = None
) -> Scenes:
    """Render the drives of seeds ``first_seed`` and following that are not in the cache yet, and map them all.

    Args:
        cache: folder; each renderer version gets its own in it.
        drives: how many; a multiple of :data:`SHARD`.
        workers: rendering processes.
        done: told how many shards of how many are there.
    """
    folder = cache / f"scenes-{scenario_hash()}"
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(first_seed, first_seed + drives, SHARD)
    missing = [start for start in starts if not (folder / f"{start}.json").exists()]
    total = len(starts)
    if done:
        done(total - len(missing), total)
    if workers <= 1:
        for number, start in enumerate(missing):
            _render_shard(folder, start)
            if done:
                done(total - len(missing) + number + 1, total)
    else:
        # Not forked: a copy of a process in which torch or OpenCV has computed may wait for threads it does not have.
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for number, _ in enumerate(pool.map(_render_shard, [folder] * len(missing), missing)):
                if done:
                    done(total - len(missing) + number + 1, total)
    shards = tuple(np.load(folder / f"{start}.npy", mmap_mode="r") for start in starts)
    truths: list[tuple[Truth, ...]] = []
    objects: list[tuple[npt.NDArray[np.float32], ...]] = []
    situations: list[tuple[Situation, ...]] = []
    for start in starts:
        for drive in json.loads((folder / f"{start}.json").read_text()):
            objects.append(tuple(np.array(row[4], np.float32).reshape(-1, 5) for row in drive))
            situations.append(tuple(Situation(**row[3]) for row in drive))
            truths.append(
                tuple(
                    truth_from(Road(row[0]), Weather(row[1]), Light(row[2]), situation, counted(found))
                    for row, situation, found in zip(drive, situations[-1], objects[-1], strict=True)
                )
            )
    return Scenes(shards, tuple(truths), tuple(objects), tuple(situations))


def truth_from(road: Road, weather: Weather, light: Light, situation: Situation, counts: tuple[int, int, int]) -> Truth:
    """The whole truth; hazards and advice follow from the situation."""
    hazards, advice = assess(situation)
    return Truth(road, weather, light, hazards, advice, counts)


def truth_of_scene(truth: SceneTruth, situation: Situation) -> Truth:
    """The whole truth of a frame of the scenario."""
    rows = np.array(objects_of(truth, situation), np.float32).reshape(-1, 5)
    return truth_from(truth.road, truth.weather, truth.light, situation, counted(rows))


def counted(
    objects: npt.NDArray[np.float32], matrix: npt.NDArray[np.float64] | None = None, size: tuple[int, int] = (1, 1)
) -> tuple[int, int, int]:
    """How many vehicles, two-wheelers and pedestrians can be counted, up to ``MOST_COUNTED``.

    Args:
        objects: (K, 5) as in :class:`Scenes`.
        matrix: (2, 3) px; if given, of the picture of ``size`` px moved by it; middles must then be inside.
    """
    corners = objects[:, 1:] * [*size, *size]
    middle, height = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 3] - corners[:, 1]
    if matrix is not None:
        middle = middle @ matrix[:, :2].T + matrix[:, 2]
        height = height * abs(matrix[1, 1])
    seen = (height >= COUNTED_HEIGHT * size[1]) & (middle >= 0).all(1) & (middle < size).all(1)
    kinds = objects[seen, 0]
    vehicles, wheelers, people = (min(MOST_COUNTED, int((kinds == OBJECTS.index(name)).sum())) for name in COUNTED_AS)
    return vehicles, wheelers, people


def objects_of(truth: SceneTruth, situation: Situation) -> list[list[float]]:
    """The boxes of a frame that matter for the answer; one box may be several things (a vehicle, the lead)."""
    rows: list[list[float]] = []

    def put(name: str, box: TruthBox) -> None:
        x, y = RENDER_PX
        corners = [box.x_min / x, box.y_min / y, box.x_max / x, box.y_max / y]
        rows.append([float(OBJECTS.index(name)), *(round(corner, 4) for corner in corners)])

    seen = [b for b in truth.boxes if b.visible > OBJECT_VISIBLE and b.contrast > OBJECT_CONTRAST]
    for box in seen:
        if box.class_id is DetectionClass.VEHICLE:
            put("vehicle", box)
        elif box.class_id is DetectionClass.TWO_WHEELER:
            put("two_wheeler", box)
        elif box.class_id is DetectionClass.PEDESTRIAN:
            put("pedestrian", box)
            near = min(situation.pedestrian_near_m, situation.pedestrian_in_lane_m)
            if abs(box.distance_m - near) < SAME_M:
                put("pedestrian_near", box)
        elif box.class_id is DetectionClass.TRAFFIC_LIGHT and box.kind == "signal":
            put("red_light" if situation.red_light_m < RED_M else "light", box)
    leads = [
        b
        for b in seen
        if b.class_id in (DetectionClass.VEHICLE, DetectionClass.TWO_WHEELER)
        and abs(b.distance_m - situation.lead_gap_m) < SAME_M
    ]
    if leads and situation.lead_gap_m < LEAD_M:
        middle = min(leads, key=lambda b: abs((b.x_min + b.x_max) / 2 / RENDER_PX[0] - 0.5))
        put("lead_braking" if situation.lead_braking else "lead", middle)
    return rows


def shrink(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize by area to (width, height), as the engine's pre-processing does."""
    if (image.shape[1], image.shape[0]) == size:
        return image
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


RARE: dict[Hazard, float] = {
    Hazard.PEDESTRIAN_NEAR_LANE: 5.0,
    Hazard.RED_LIGHT: 2.0,
    Hazard.LEAD_VEHICLE_BRAKING: 1.0,
    Hazard.DENSE_TRAFFIC: 3.0,
}
"""What makes a moment worth entering at, by how rarely it comes up in an undirected drive."""


RIG: dict[str, tuple[float, float]] = {
    "camera_fov_deg": (62.0, 68.0),
    "camera_height_m": (1.3, 1.5),
    "camera_pitch_deg": (1.0, 3.0),
}
"""The camera the models are made for, with the tolerance of its mounting. From one picture nobody can tell a narrow
view from a near object: with the scenario's full range of views, distances would be unknown by a factor of 1.7."""


def config_of(seed: int) -> ScenarioConfig:
    """The drive of a seed: the scenario's own variety seen by the :data:`RIG`, every fourth one busier than usual."""
    rng = np.random.default_rng([seed, 12])
    changes: dict[str, Any] = {name: round(float(rng.uniform(*ends)), 2) for name, ends in RIG.items()}
    if seed % 4 == 1:
        changes |= {"traffic": 1.9, "pedestrians": 2.0}
    return random_config(seed, width_px=RENDER_PX[0], height_px=RENDER_PX[1], **changes)


def entry_tick(config: ScenarioConfig, generator: np.random.Generator) -> int:
    """Tick to start storing at. Every second drive: where the :data:`RARE` add up to most, with room before them."""
    ticks = round(LOOK_AHEAD_S / TICK_S)
    if config.seed % 2 == 0:
        return int(generator.integers(ticks - TICKS))
    scenario = Scenario(replace(config, width_px=64, height_px=48))  # the drive is the same, its camera is cheap
    worth = np.zeros(ticks)
    for tick in range(ticks):
        hazards, advice = assess(scenario.situation())
        worth[tick] = sum(RARE.get(hazard, 0.0) for hazard in hazards) + 3.0 * (advice >= Advice.PREPARE_TO_STOP)
        for _ in range(round(TICK_S / STEP_S)):
            scenario.step(STEP_S, None)
    # A standstill at a light is worth its first seconds only: the weight of a moment falls as the same goes on.
    same = np.concatenate([[0], np.cumsum(np.diff(worth) == 0)])
    starts = np.maximum.accumulate(np.where(np.concatenate([[True], np.diff(worth) != 0]), same, 0))
    worth = worth / (1 + (same - starts) / 4) + generator.uniform(0, 0.01, ticks)
    sums = np.convolve(worth, np.ones(TICKS), "valid")
    return int(np.argmax(sums))


def _render_shard(folder: Path, start: int) -> None:
    cv2.setNumThreads(1)
    frames = np.zeros((SHARD, TICKS, STORED_PX[1], STORED_PX[0], 3), np.uint8)
    truths: list[list[list[object]]] = []
    for number in range(SHARD):
        seed = start + number
        generator = np.random.default_rng([seed, 11])
        config = config_of(seed)
        entry = entry_tick(config, generator)
        scenario = Scenario(config)
        for _ in range(entry * round(TICK_S / STEP_S)):
            scenario.step(STEP_S, None)
        rows: list[list[object]] = []
        for tick in range(TICKS):
            frames[number, tick] = shrink(np.asarray(scenario.render()), STORED_PX)
            t = scenario.truth()
            situation = scenario.situation()
            rows.append([int(t.road), int(t.weather), int(t.light), asdict(situation), objects_of(t, situation)])
            for _ in range(round(TICK_S / STEP_S)):
                scenario.step(STEP_S, None)
        truths.append(rows)
    beside = folder / f".{start}.tmp.npy"
    np.save(beside, frames)
    os.replace(beside, folder / f"{start}.npy")
    text = folder / f".{start}.json.tmp"
    text.write_text(json.dumps(truths))
    # Written last: its presence says that the shard is whole.
    os.replace(text, folder / f"{start}.json")
