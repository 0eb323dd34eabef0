"""Alarms in drives without a fault: ``python bench/false_alarms.py [--minutes 30] [--out FILE]``.

The first drive is that of the demonstration, with its changes of road, weather and light; the others are random ones
(road, weather, light, density, camera). All are in closed loop: the scenario renders what the vehicle sees, the
built-in engines answer, the supervisor decides and the vehicle obeys, in lockstep on a virtual clock. Nothing fails, so
every fault that becomes active is a false alarm and is listed with its moment and sentence; takeover requests count
against the limit. Figures are of what the stack decides, not of how fast the machine is.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from common import BUILT_IN, write

from triptych.contract import DegradationState, Frame, MotionConstraint, Tier, protect
from triptych.engines import load_engine
from triptych.engines.protocol import Engine
from triptych.replay.lockstep import run_lockstep
from triptych.replay.record import RunRecord
from triptych.replay.recording import VIDEO_EPOCH_NS, Item, Recording, RecordingInfo
from triptych.resources import resource, share
from triptych.scenario import Scenario, ScenarioConfig, demo_config, random_config
from triptych.supervisor import load_faults

REQUESTS_PER_30_MIN = 1.0
"""Takeover requests allowed in half an hour without a fault."""
_NS = 1_000_000_000
STEP_NS = 10_000_000
"""Step of the world: odometry every second one (50 Hz), the driver every tenth (10 Hz)."""
_ALARMED = {
    DegradationState.L3_PERCEPTION_ONLY,
    DegradationState.L2_TAKEOVER_REQUEST,
    DegradationState.L1_MINIMAL_RISK_MANOEUVRE,
}


class Drive(Recording):
    """A scenario as a recording that is made while it is played; ``constraint`` is what the vehicle obeys."""

    def __init__(self, config: ScenarioConfig) -> None:
        self.path = Path(f"scenario-{config.seed}")
        self.chosen = {"camera": "", "odometry": "", "driver": ""}
        self.warnings: list[str] = []
        self.config = config
        self.constraint: MotionConstraint | None = None

    @property
    def info(self) -> RecordingInfo:
        """Length and name."""
        return RecordingInfo(self.path, "scenario", "scenario", (), 0, VIDEO_EPOCH_NS, self.config.duration_s, 0)

    def files(self) -> list[Path]:
        """None: it follows from its configuration."""
        return []

    def data_hash(self) -> str:
        """Of the configuration."""
        return f"sha256:{hashlib.sha256(repr(self.config).encode()).hexdigest()}"

    def obey(self, constraint: MotionConstraint) -> None:
        """The vehicle's receiver."""
        self.constraint = constraint

    def _all(self, from_s: float) -> Iterator[Item]:
        world = Scenario(self.config)
        picture_steps = round(self.config.period_s * _NS) // STEP_NS
        for step in range(round(self.config.duration_s * _NS) // STEP_NS):
            t_ns = VIDEO_EPOCH_NS + step * STEP_NS
            if step:
                world.step(STEP_NS / _NS, self.constraint)
            if step % 2 == 0:
                yield Item(t_ns, world.odometry(t_ns))
            if step % 10 == 0:
                yield Item(t_ns, protect(world.driver(t_ns), step // 10))
            if step % picture_steps == 0:
                yield Item(t_ns, Frame(world.render().copy(), t_ns, 0))


def plan(minutes: float, seconds: float, first_seed: int, width_px: int) -> Iterator[ScenarioConfig]:
    """The drives, until they are as long as asked."""
    size = {"width_px": width_px, "height_px": round(width_px * 9 / 16)}
    left_s = minutes * 60
    config = demo_config(duration_s=min(50.0, left_s), **size)
    while left_s > 0:
        yield config
        left_s -= config.duration_s
        config = random_config(first_seed, duration_s=max(1.0, min(seconds, left_s)), **size)
        first_seed += 1


def drive(engines: dict[Tier, Engine], config: ScenarioConfig) -> RunRecord:
    """One drive through the stack."""
    way = Drive(config)
    faults = load_faults(resource("config", "faults.yaml"))
    return run_lockstep(way, engines, faults=faults, on_constraint=way.obey)


def alarms(record: RunRecord) -> list[dict[str, Any]]:
    """Every fault that became active, in order."""
    start_ns = record.meta["started_ns"]
    active: set[str] = set()
    found = []
    for verdict in record.verdicts:
        if verdict.active and verdict.fault_id not in active:
            found.append({"t_s": (verdict.t_ns - start_ns) / _NS, "fault": verdict.fault_id, "says": verdict.text})
        (active.add if verdict.active else active.discard)(verdict.fault_id)
    return found


def judge(record: RunRecord, config: ScenarioConfig) -> dict[str, Any]:
    """What one drive counts."""
    changes = record.state_changes()
    asked = sum(b.takeover_requested and not a.takeover_requested for a, b in zip(record.states, record.states[1:]))
    speeds = [entry.odometry.speed_mps for entry in record.odometry]
    return {
        "seed": config.seed,
        "scene": [term.name.lower() for term in (config.road, config.weather, config.light)],
        "seconds": (record.meta["ended_ns"] - record.meta["started_ns"]) / _NS,
        "mean_speed_mps": sum(speeds) / len(speeds),
        "takeover_requests": asked,
        "states": [change.state.name for change in changes],
        "degradations": sum(change.state in _ALARMED for change in changes),
        "alarms": alarms(record),
    }


def main() -> int:
    """Run, print and write; exit code 1 when the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="simulated, of all drives together")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one drive")
    parser.add_argument("--first-seed", type=int, default=900_000, help="away from the seeds models were trained on")
    parser.add_argument("--width", type=int, default=1280, help="of the picture, pixels")
    parser.add_argument("--out", type=Path, default=Path("bench_results/false_alarms.json"))
    parser.add_argument("--records", type=Path, help="folder for the drives' run records")
    arguments = parser.parse_args()
    engines = {tier: load_engine(share() / "models" / name) for tier, name in BUILT_IN.items()}
    drives = []
    for config in plan(arguments.minutes, arguments.seconds, arguments.first_seed, arguments.width):
        record = drive(engines, config)
        if arguments.records:
            record.save(arguments.records / f"{config.seed}.jsonl")
        drives.append(judge(record, config))
        print(f"{config.seed}: {len(drives[-1]['alarms'])} alarms, {drives[-1]['states']}", flush=True)
        for alarm in drives[-1]["alarms"]:
            print(f"  {alarm['t_s']:6.2f} s {alarm['fault']}: {alarm['says']}", flush=True)
    minutes = sum(row["seconds"] for row in drives) / 60
    requests = sum(row["takeover_requests"] for row in drives)
    value = requests * 30 / minutes
    limit = {"value": round(value, 3), "limit": REQUESTS_PER_30_MIN, "held": value <= REQUESTS_PER_30_MIN}
    result = {
        "minutes": minutes,
        "takeover_requests": requests,
        "degradations": sum(row["degradations"] for row in drives),
        "alarms_by_fault": dict(Counter(alarm["fault"] for row in drives for alarm in row["alarms"])),
        "limits": {"false takeover requests in 30 min": limit},
        "drives": drives,
    }
    engine_names = {tier.key: f"{engine.id} {engine.version}" for tier, engine in engines.items()}
    settings = {
        "minutes": arguments.minutes,
        "seconds": arguments.seconds,
        "first_seed": arguments.first_seed,
        "width_px": arguments.width,
        "engines": engine_names,
    }
    write(arguments.out, result, settings)
    print(f"{requests} takeover requests in {minutes:.1f} min; {result['alarms_by_fault'] or 'no alarm'}")
    return 0 if limit["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
