"""Hours of the closed loop on a virtual clock: ``soak.py virtual``.

Real: scenario (traffic and vehicle physics), tier cores with input monitors, supervisor core with the shipped fault
table, the safety core's C code, messages with counters and CRCs, the vehicle's guard. Lightened: pictures and answers.
A first drive of some seconds is rendered and the built-in engines infer; what they saw (at :data:`KEPT_WIDTH_PX`) and
said is kept and played forwards and backwards in turn from then on, so that there is never a cut. What the vehicle sees
is thus not where it drives; what is said of it still binds the vehicle. There are no processes and no middleware:
``soak.py real`` has them.

Counters of 32 bits (records and commands of the safety core, its milliseconds) start :data:`BEFORE_WRAP_S` before their
wrap, frame numbers as long before 2³²; counters of 8 bits wrap thousands of times.

The scenario keeps the shapes of what it has met in caches of bounded size, which a drive takes hours to fill: growth
that ends, but looks like a leak until then. :func:`fill_caches` fills them before the first minute, so that nothing
needs to be subtracted from what is counted.
"""

from __future__ import annotations

import gc
import importlib
import math
import pkgutil
import sys
import time
import tracemalloc
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import psutil
from common import BUILT_IN
from trend import SequenceCount, Slope, drift, limit, slope, thirds

from triptych import scenario
from triptych.contract import DegradationState, Frame, InputError, Tier
from triptych.engines import load_engine
from triptych.engines.protocol import Engine, EngineOutput
from triptych.injection.faults import Nothing, Parameters
from triptych.injection.hops import CAMERA, ODOMETRY
from triptych.injection.loop import CYCLE_NS, NS, ODOMETRY_NS, REPEAT_NS, ClosedLoop
from triptych.resources import resource, share
from triptych.scenario import ScenarioConfig
from triptych.scenario.actors import make_motorbike, make_vehicle
from triptych.scenario.props import furnish
from triptych.scenario.road import Plan
from triptych.supervisor import load_faults
from triptych.supervisor.config import supervisor_config
from triptych.virtual import modelled_ms

KEPT_WIDTH_PX = 320
BEFORE_WRAP_S = 240.0
WORD = 1 << 32
WINDOW_S = 60.0
SAMPLES = 12
"""Of Python's blocks in a minute; their mean, because who happens to be near is some hundred blocks more or less."""
CARS, OTHERS, ROAD_M = 5000, 400, 20_000.0
"""Met in a round of filling the caches: the rarest of 252 cars is one in 420."""
SETTLED_S = 10.0
"""From then on anything but NOMINAL is a finding."""
LEAST_WARM_UP, KEPT_EVERY = 4, 10
RSS_KIB_PER_HOUR, BLOCKS_PER_HOUR = 512.0, 100.0
"""Greatest slopes: a quarter of a GiB in a month; a hundred Python objects an hour."""
DRIFT = 0.05
COLUMNS = ("minute", "rss_kib", "blocks", "objects", "tick_p50_us", "tick_p99_us", "wall_s", "cpu_s")
STOPPING = (DegradationState.L1_MINIMAL_RISK_MANOEUVRE, DegradationState.MRC)


class Recorded:
    """An engine, and by frame number what it said; of the detector, also what it was shown."""

    def __init__(self, tier: Tier, engine: Engine) -> None:
        self._tier, self._engine = tier, engine
        self.id, self.version, self.device = engine.id, engine.version, engine.device
        self.frames_wanted, self.manifest = engine.frames_wanted, getattr(engine, "manifest", None)
        self.golden_ok, self._golden = engine.golden_ok, engine.golden()
        question = getattr(engine, "golden_question", "")
        self.golden_answer = engine.infer([self._golden] * engine.frames_wanted, question)
        self.answers: dict[int, EngineOutput] = {}
        self.pictures: dict[int, np.ndarray] = {}

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        last = frames[-1]
        if last is self._golden:
            return self.golden_answer
        output = self._engine.infer(frames, question, deadline_monotonic_ns)
        self.answers[last.number] = output
        if self._tier is Tier.DETECTOR:
            size = (KEPT_WIDTH_PX, round(KEPT_WIDTH_PX * last.height / last.width))
            self.pictures[last.number] = cv2.resize(last.image, size, interpolation=cv2.INTER_AREA)
        return output

    def golden(self) -> Frame:
        """The engine's, always the same object."""
        return self._golden

    def close(self) -> None:
        """Free the engine; the answers stay."""
        self._engine.close()


class Replayed:
    """Says what an engine said of the same picture before, or of the newest one before that it was asked about."""

    def __init__(self, recorded: Recorded, number_of: Callable[[int], int]) -> None:
        self.id, self.version, self.device = recorded.id, recorded.version, recorded.device
        self.frames_wanted, self.manifest = recorded.frames_wanted, recorded.manifest
        self._answers, self._number_of = recorded.answers, number_of
        self.golden, self.golden_ok, self._golden_answer = recorded.golden, recorded.golden_ok, recorded.golden_answer
        self._numbers = sorted(recorded.answers)

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        if frames[-1] is self.golden():
            return self._golden_answer
        place = bisect_right(self._numbers, self._number_of(frames[-1].number)) - 1
        return self._answers[self._numbers[max(place, 0)]]


def to_and_fro(index: int, count: int) -> int:
    """0, 1, … count - 1, count - 2, … 1, 0, 1, …: neighbours are neighbours, nothing is shown twice in a row."""
    if count < 2:
        return 0
    place = index % (2 * count - 2)
    return min(place, 2 * count - 2 - place)


class SoakLoop(ClosedLoop):
    """The closed loop with its counters watched and, once there is a recording, its pictures played back."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.counts: dict[str, SequenceCount] = {}
        self.refused: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.tick_ns = array("q")  # as in the columns of soak()
        self.pictures: list[np.ndarray] = []
        super().__init__(*arguments, **named)
        self.first_frame = self._frames

    def near_the_wrap(self, before_s: float) -> dict[str, int]:
        """Start every long counter that far from 2³²; returns what they start from."""
        frames = WORD - round(before_s * self.scenario.config.fps)
        constraints, odometry, cycles = (
            WORD - round(before_s * NS / period) for period in (REPEAT_NS, ODOMETRY_NS, CYCLE_NS)
        )
        self._frames = self.first_frame = frames
        self._inputs._constraints, self._inputs._motions = constraints, odometry
        self.safety_core._core.counter = cycles
        records = {"records of constraints": constraints, "records of motion": odometry}
        return {"frame number": frames, **records, "commands": cycles}

    def not_wrapped(self) -> list[str]:
        """Long counters that have yet to pass 2³²."""
        core = self.safety_core._core
        counters = {
            "records of constraints": core.constraint[0],
            "records of motion": core.motion[0],
            "commands": core.counter,
            "milliseconds of the safety core": core.cycle_ms,
        }
        late = [name for name, value in counters.items() if value >= WORD // 2]
        return late if self._frames >= WORD else [*late, "frame number"]

    def core_is_in_step(self) -> bool:
        """Whether the safety core took the last records made, and counts on."""
        core, inputs = self.safety_core._core, self._inputs
        behind = ((inputs._constraints - core.constraint[0]) % WORD, (inputs._motions - core.motion[0]) % WORD)
        return max(behind) <= 1  # one may just have come in, its cycle is next

    def _take_picture(self) -> None:
        if not self.pictures:
            super()._take_picture()
            return
        self._frames += 1
        picture = self.pictures[self.index_of(self._frames)]
        self._send(CAMERA, Frame(picture, self.stamp_ns, self._frames))

    def index_of(self, number: int) -> int:
        """Of the picture shown as that frame."""
        return to_and_fro(number - self.first_frame - 1, len(self.pictures))

    def _receive(self, hop: str, message: Any) -> None:
        self.received[hop] += 1
        if hop not in (CAMERA, ODOMETRY):
            self.counts.setdefault(hop, SequenceCount()).take(message.sequence_counter)
        super()._receive(hop, message)

    def _hand_over(self, hop: str, message: Any) -> None:
        try:
            super()._hand_over(hop, message)
        except InputError as error:
            self.refused[f"{hop}: {error}"] += 1
            raise

    def _tick(self) -> None:
        began = time.thread_time_ns()
        super()._tick()
        self.tick_ns.append(time.thread_time_ns() - began)


def loop_of(engines: dict[Tier, Any], config: ScenarioConfig, begin_ns: int = 0) -> SoakLoop:
    """A drive without a fault."""
    nothing = Nothing(Parameters(), begin_ns, np.random.default_rng(config.seed))
    modelled = {tier: modelled_ms(tier, engine, {}) for tier, engine in engines.items()}
    table = load_faults(resource("config", "faults.yaml"))
    return SoakLoop(config, engines, table, supervisor_config({}), nothing, modelled, begin_ns=begin_ns)


def record(config: ScenarioConfig, drive_s: float, show: Callable[[str, float], None]) -> dict[Tier, Recorded]:
    """Drive with everything real, and keep what was seen and said."""
    engines = {tier: Recorded(tier, load_engine(share() / "models" / name)) for tier, name in BUILT_IN.items()}
    try:
        loop = loop_of(engines, config)
        for second in range(1, round(drive_s) + 1):
            loop.run(float(second))
            show("recording pictures and answers", second / drive_s)
    finally:
        for engine in engines.values():
            engine.close()
    return engines


def drive(
    config: ScenarioConfig, recorded: dict[Tier, Recorded], before_wrap_s: float = BEFORE_WRAP_S
) -> tuple[SoakLoop, dict[str, int]]:
    """The loop at its beginning, and where its long counters start."""
    shown = sorted(recorded[Tier.DETECTOR].pictures)
    pictures = [recorded[Tier.DETECTOR].pictures[number] for number in shown]
    loop: SoakLoop | None = None

    def number_of(frame: int) -> int:
        assert loop is not None
        return shown[loop.index_of(frame)]

    engines = {tier: Replayed(engine, number_of) for tier, engine in recorded.items()}
    begin_ns = WORD * 1_000_000 - round(before_wrap_s * NS)
    loop = loop_of(engines, config, begin_ns)
    loop.pictures = pictures
    return loop, {**loop.near_the_wrap(before_wrap_s), "milliseconds of the safety core": begin_ns // 1_000_000}


def caches() -> dict[str, Any]:
    """The bounded caches of the scenario by ``module.function``; what grows of it is in one of them, or is a leak."""
    modules = [
        importlib.import_module(f"{scenario.__name__}.{m.name}") for m in pkgutil.iter_modules(scenario.__path__)
    ]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": function
        for module in modules
        for name, function in vars(module).items()
        if hasattr(function, "cache_info") and function.__module__ == module.__name__
    }


def entries() -> dict[str, int]:
    """How many each of :func:`caches` holds."""
    return {name: function.cache_info().currsize for name, function in caches().items()}


def fill_caches(config: ScenarioConfig) -> None:
    """Meet road users and pieces of road as the scenario makes them, until no cache has grown for a round.

    On a highway: who else is on other roads is never met in this soak.
    """
    rng, plan, end_m = np.random.default_rng(config.seed), Plan(config), 0.0
    before: dict[str, int] = {}
    while before != entries():
        before = entries()
        for number in range(CARS):
            make_vehicle(rng, 1 - 2 * (number % 2), heavy=0.0)
        for number in range(OTHERS):
            make_vehicle(rng, 1 - 2 * (number % 2), heavy=1.0)
            make_motorbike(rng, 1 - 2 * (number % 2))
        for stretch in plan.between(end_m, end_m + ROAD_M):
            furnish(config, stretch)
        end_m += ROAD_M
        plan.forget_before(end_m)


def blocks() -> int:
    """Python's allocated blocks that anybody still refers to."""
    gc.collect()
    return sys.getallocatedblocks()


def soak(
    minutes: float,
    config: ScenarioConfig,
    drive_s: float,
    trace: bool,
    show: Callable[[str, float], None],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Run, at least a minute; returns rows by minute, counts and limits.

    Args:
        minutes: of the virtual clock.
        config: the drive.
        drive_s: length of the recording.
        trace: also name the lines of code that hold more memory at the end than after warm-up; three times slower.
        show: told what is being done and its share.
        keep: told the result so far, every :data:`KEPT_EVERY` minutes.
    """
    loop, counters = drive(config, record(config, drive_s, show))
    fill_caches(config)
    filled = entries()
    columns = {name: array("d") for name in COLUMNS}  # without an object a value: they would look like a leak
    alarms: list[dict[str, Any]] = []
    states: Counter[str] = Counter()
    own_stops: list[str] = []
    out_of_step = 0
    process, windows, began = psutil.Process(), max(1, round(minutes)), time.monotonic()
    before: tracemalloc.Snapshot | None = None
    grown: list[str] = []

    def report() -> dict[str, Any]:
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        result = {
            "mode": "virtual",
            "virtual_minutes": float(len(rows)),
            "wall_minutes": round((time.monotonic() - began) / 60, 2),
            "counters_started_at": counters,
            "not_wrapped": loop.not_wrapped(),
            "sequences": {hop: count.figures() for hop, count in sorted(loop.counts.items())},
            "received": dict(sorted(loop.received.items())),
            "refused": dict(loop.refused),
            "states_at_the_end_of_minutes": dict(states),
            "alarms": alarms[:200],
            "own_stops": own_stops[:50],
            "collisions": len(loop.scenario.outcome.collisions),
            "distance_km": round(loop.scenario.position_m / 1000, 1),
            "scenario_caches": {name: [filled[name], size] for name, size in entries().items() if size},
            "grown": grown,
            "windows": rows,
        }
        return {**result, **judge(rows, result, out_of_step)}

    for window in range(1, windows + 1):
        wall, cpu = time.monotonic(), time.process_time()
        sampled = []
        for sample in range(1, SAMPLES + 1):
            loop.run((window - 1 + sample / SAMPLES) * WINDOW_S)
            alarms += _alarms(loop)
            own_stops += [h.command.reason for h in loop.log.heard if h.command.state in STOPPING]
            for own in (loop.log.transitions, loop.log.heard, loop.log.effective):
                own.clear()  # the harness's own memory, not the stack's
            sampled.append(blocks())
        states[loop.state.name] += 1
        out_of_step += not loop.core_is_in_step()
        ticks = np.asarray(loop.tick_ns) / 1e3
        del loop.tick_ns[:]
        row = (
            window,
            process.memory_info().rss / 1024,
            float(np.mean(sampled)),
            len(gc.get_objects()),
            np.percentile(ticks, 50),
            np.percentile(ticks, 99),
            time.monotonic() - wall,
            time.process_time() - cpu,
        )
        for column, value in zip(columns.values(), row):
            column.append(value)
        if trace and window == warm_up(windows):
            tracemalloc.start(8)
            before = tracemalloc.take_snapshot()
        show("soaking", window / windows)
        if window % KEPT_EVERY == 0 and window < windows:
            keep(report())
    if before is not None:
        changes = tracemalloc.take_snapshot().compare_to(before, "lineno")
        grown += [f"{c.traceback[0].filename}:{c.traceback[0].lineno} {c.size_diff:+d} B" for c in changes[:15]]
    return report()


def warm_up(windows: int) -> int:
    """Windows left out at the beginning: a tenth, at least four, but never more than half."""
    return min(max(LEAST_WARM_UP, windows // 10), windows // 2)


def _alarms(loop: SoakLoop) -> list[dict[str, Any]]:
    return [
        {
            "t_s": round((t_ns - loop.begin_ns) / NS, 3),
            "what": change.name,
            "after": change.after,
            "says": change.reason,
        }
        for t_ns, change in loop.log.transitions
        if (change.kind == "fault" and change.after == "active")
        or (
            change.kind == "state"
            and change.after != DegradationState.NOMINAL.name
            and t_ns - loop.begin_ns > SETTLED_S * NS
        )
    ]


def judge(rows: list[dict[str, float]], result: dict[str, Any], out_of_step: int) -> dict[str, Any]:
    """Slopes after warm-up, drift, and the limits."""
    kept = rows[warm_up(len(rows)) :]
    hours = [row["minute"] / 60 for row in kept]
    slopes = {
        name: slope(hours, [row[name] for row in kept]) for name in ("rss_kib", "blocks", "objects", "tick_p99_us")
    }
    begin, end = (kept[0]["minute"], kept[-1]["minute"]) if kept else (0.0, 0.0)
    change = drift(*thirds([(row["minute"], row["tick_p99_us"]) for row in kept], begin, end), percentile=50.0)
    counts = result["sequences"].values()
    return {
        "warm_up_minutes": warm_up(len(rows)),
        "slopes_per_hour": {name: as_json(found) for name, found in slopes.items()},
        "limits": {
            "alarms and states below NOMINAL": limit(len(result["alarms"]), 0),
            "stops of the safety core or the supervisor": limit(len(result["own_stops"]), 0),
            "sequence numbers lost": limit(sum(c["lost"] for c in counts), 0),
            "sequence numbers doubled": limit(sum(c["doubled"] for c in counts), 0),
            "messages refused": limit(sum(result["refused"].values()), 0),
            "minutes after which the safety core was behind its records": limit(out_of_step, 0),
            "long counters that did not pass 2³²": limit(len(result["not_wrapped"]), 0),
            "RSS, KiB/h (upper end of the interval)": limit(slopes["rss_kib"].high, RSS_KIB_PER_HOUR),
            "Python blocks per hour (upper end of the interval)": limit(slopes["blocks"].high, BLOCKS_PER_HOUR),
            "p99 of a supervisor's tick, processor time, last third over first": limit(change, DRIFT),
        },
    }


def as_json(found: Slope) -> dict[str, float | None]:
    """A slope as JSON takes it."""
    return {name: number(getattr(found, name)) for name in ("value", "low", "high")}


def number(value: float) -> float | None:
    """Rounded; None for what is none."""
    return round(value, 3) if math.isfinite(value) else None


SERIES = {
    "RSS (MiB)": ("rss_kib", 1 / 1024),
    "Python blocks (thousands)": ("blocks", 1 / 1000),
    "p99 of a tick, processor time (µs)": ("tick_p99_us", 1.0),
}
"""Panels of the figure."""


def panels(result: dict[str, Any]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Panel -> line -> (minutes, values)."""
    rows = result["windows"]
    minutes = [row["minute"] for row in rows]
    return {title: {"": (minutes, [row[key] * by for row in rows])} for title, (key, by) in SERIES.items()}


def scene(width_px: int, seed: int) -> ScenarioConfig:
    """The drive: an endless highway by day, long enough for any soak."""
    return ScenarioConfig(seed=seed, duration_s=86_400.0, width_px=width_px, height_px=round(width_px * 9 / 16))
