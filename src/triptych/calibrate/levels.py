"""Plays drives through the input monitors and engines and keeps what they measured, frame by frame."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from triptych.calibrate.tail import Levels
from triptych.contract import BUDGETS, Frame, InputError, Light, Tier, Weather
from triptych.engines.protocol import Engine
from triptych.replay.recording import Recording
from triptych.scenario import Scenario, random_config
from triptych.tiers.monitors import MONITORS, InputConfig, Picture, look
from triptych.tiers.monitors.drift import FEATURES

RATE_HZ = 1.0 / BUDGETS[Tier.DETECTOR].period_s
"""What the frame counts of the limits are made for."""
LEAST_DISTANCE_NS = round(0.5e9 / RATE_HZ)
"""Frames that follow sooner are passed over, as the detector does."""
GAP_NS = 1_000_000_000
"""After a longer silence of the camera another drive begins."""
SCENARIO_RATE_HZ, SCENARIO_DRIVE_S = 2.0, 120.0
SCENARIO_SIZE_PX = (640, 360)
JUDGED = tuple(row for row in MONITORS if row.limit)
"""The monitors whose limits are found; the size is a parameter of the camera."""

Progress = Callable[[float], None]
"""Called with seconds of driving that are done."""


@dataclass(slots=True)
class Drive:
    """What was measured in one uninterrupted drive.

    Attributes:
        rate_hz: frames per second.
        levels: code of the monitor -> level at each frame.
        features: (frames, features) what drift is judged by.
        uncertainty: tier -> uncertainty at each of its results.
    """

    rate_hz: float
    levels: dict[str, Levels]
    features: Levels
    uncertainty: dict[Tier, Levels]


def at_rate(config: InputConfig, rate_hz: float) -> InputConfig:
    """The limits with their frame counts for a camera slower than the detector; rounded down, which alarms sooner."""
    share = min(1.0, rate_hz / RATE_HZ)
    names = ("input_frames", "input_covered_frames", "input_drift_frames")
    counts = {name: max(1, math.floor(getattr(config, name) * share + 1e-9)) for name in names}
    return config.model_copy(update=counts)


def rate_of(stamps_ns: list[int]) -> float:
    """Median frame rate, 1/s; 0 for fewer than two frames."""
    return 1e9 / float(np.median(np.diff(stamps_ns))) if len(stamps_ns) > 1 else 0.0


@dataclass(slots=True)
class _Collector:
    """One drive under way. Levels need the frame rate, which is known after a while: pictures wait until then."""

    config: InputConfig
    engines: Mapping[Tier, Engine]
    stamps_ns: list[int] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    uncertainty: dict[Tier, list[float]] = field(default_factory=dict)
    recent: dict[Tier, deque[Frame]] = field(default_factory=dict)
    due_ns: dict[Tier, int] = field(default_factory=dict)

    def add(self, frame: Frame) -> None:
        self.stamps_ns.append(frame.stamp_ns)
        self.pictures.append(look(frame.image))
        for tier, engine in self.engines.items():
            self._ask(tier, engine, frame)

    def _ask(self, tier: Tier, engine: Engine, frame: Frame) -> None:
        period_ns = round(BUDGETS[tier].period_s * 1e9)
        held = self.recent.setdefault(tier, deque(maxlen=engine.frames_wanted))
        if not held or frame.stamp_ns - held[-1].stamp_ns >= period_ns // engine.frames_wanted - LEAST_DISTANCE_NS // 2:
            held.append(frame)
        if frame.stamp_ns < self.due_ns.get(tier, frame.stamp_ns) - LEAST_DISTANCE_NS // 2:
            return
        self.due_ns[tier] = frame.stamp_ns + period_ns
        frames = [held[0]] * (engine.frames_wanted - len(held)) + list(held)
        self.uncertainty.setdefault(tier, []).append(engine.infer(frames).uncertainty)

    def drive(self) -> Drive:
        rate_hz = rate_of(self.stamps_ns)
        config = at_rate(self.config, rate_hz)
        levels = {}
        for row in JUDGED:
            measure = row.measure(config)
            levels[row.code] = np.array([measure(picture) for picture in self.pictures])
        features = np.array([[getattr(p, name) for name in FEATURES] for p in self.pictures])
        return Drive(rate_hz, levels, features, {t: np.array(u) for t, u in self.uncertainty.items()})


def drives_of(
    frames: Iterator[Frame], config: InputConfig, engines: Mapping[Tier, Engine], progress: Progress = lambda _: None
) -> list[Drive]:
    """Measure the frames, in order of their stamps; a gap above one second ends a drive."""
    drives: list[Drive] = []
    collector = _Collector(config, engines)
    first_ns = last_ns = 0
    for frame in frames:
        first_ns = first_ns or frame.stamp_ns
        if collector.stamps_ns and not 0 < frame.stamp_ns - last_ns <= GAP_NS:
            drives.append(collector.drive())
            collector = _Collector(config, engines)
        if collector.stamps_ns and frame.stamp_ns - last_ns < LEAST_DISTANCE_NS:
            continue
        last_ns = frame.stamp_ns
        collector.add(frame)
        progress((last_ns - first_ns) / 1e9)
    return [d for d in [*drives, collector.drive()] if len(d.features) > 1]


def recorded_drives(
    recording: Recording, config: InputConfig, engines: Mapping[Tier, Engine], progress: Progress = lambda _: None
) -> list[Drive]:
    """The drives of a recording.

    Raises:
        InputError: fewer than two frames, or a frame that cannot be read.
    """
    frames = (item.value for item in recording.items() if isinstance(item.value, Frame))
    drives = drives_of(frames, config, engines, progress)
    if not drives:
        raise InputError("has fewer than two frames in a row", where=recording.path, remedy="record a drive")
    return drives


def scenario_drives(minutes: float, seed: int) -> Iterator[Iterator[Frame]]:
    """Drives of the built-in scenario, :data:`SCENARIO_DRIVE_S` each, all weathers by all lights in turn.

    Frames at :data:`SCENARIO_RATE_HZ` and :data:`SCENARIO_SIZE_PX`: a slower camera takes longer to pass a debounce, so
    the limits only get wider.
    """
    width_px, height_px = SCENARIO_SIZE_PX
    weathers, lights = [w for w in Weather if w], [light for light in Light if light]
    for number in range(math.ceil(minutes * 60.0 / SCENARIO_DRIVE_S)):
        config = random_config(
            seed + number,
            weather=weathers[number % len(weathers)],
            light=lights[number // len(weathers) % len(lights)],
            width_px=width_px,
            height_px=height_px,
            fps=SCENARIO_RATE_HZ,
            duration_s=SCENARIO_DRIVE_S,
        )
        yield _frames(Scenario(config))


def _frames(scenario: Scenario) -> Iterator[Frame]:
    config, number = scenario.config, 0
    while not scenario.finished:
        number += 1
        yield Frame(scenario.render(), 1_000_000_000 + round(scenario.time_s * 1e9), number)
        scenario.step(config.period_s / 2, None)
        scenario.step(config.period_s / 2, None)
