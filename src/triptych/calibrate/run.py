"""A calibration from start to end: recordings in, limits and files out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych import resources
from triptych.calibrate.levels import SCENARIO_DRIVE_S, Drive, drives_of, recorded_drives, scenario_drives
from triptych.calibrate.limits import Found, check_length, input_limits, uncertainty_limits
from triptych.calibrate.output import write_limits
from triptych.contract import InputError, Tier
from triptych.engines.protocol import Engine
from triptych.replay.recording import open_recording
from triptych.report.provenance import provenance
from triptych.supervisor.faults import load_faults
from triptych.tiers.monitors import InputConfig


@dataclass(frozen=True)
class Plan:
    """What to calibrate with.

    Attributes:
        recordings: of sound drives.
        false_alarms_per_h: wanted at most, of each monitor.
        margin: see :func:`triptych.calibrate.limits.input_limits`.
        topics, fps, salvage: see :func:`triptych.replay.recording.open_recording`.
        scenario_min: minutes of the built-in scenario beside the recordings.
        seed: of its drives.
    """

    recordings: Sequence[Path]
    false_alarms_per_h: float
    margin: float = 1.0
    topics: Mapping[str, str] = field(default_factory=dict)
    fps: float | None = None
    salvage: bool = False
    scenario_min: float = 0.0
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    config: InputConfig
    found: tuple[Found, ...]
    files: tuple[Path, ...]
    warnings: tuple[str, ...]


def calibrate(
    plan: Plan,
    out: Path,
    *,
    limits: InputConfig | None = None,
    engines: Mapping[Tier, Engine] | None = None,
    progress: Callable[[float, float], None] = lambda done, total: None,
) -> Outcome:
    """Measure, choose the limits, write the files.

    Args:
        limits: frame counts to keep; default: the shipped ones.
        engines: by tier, loaded; their uncertainty gets a threshold.
        progress: called with (seconds driven, seconds in all).

    Raises:
        InputError: nothing to calibrate with, a recording that cannot be used, or too little for the wanted rate.
        TriptychError: ``out`` cannot be written.
    """
    if not plan.recordings and not plan.scenario_min:
        raise InputError("are missing", field="recordings", remedy="name recordings of sound drives, or use --scenario")
    config, asked = limits or InputConfig(), engines or {}
    drives, sources, warnings = _measure(plan, config, asked, progress)
    config, found = input_limits(drives, config, plan.false_alarms_per_h, plan.margin)
    table = load_faults(resources.resource("config", "faults.yaml"))
    found += uncertainty_limits(drives, table, plan.false_alarms_per_h, plan.margin)
    settings = {
        "false_alarms_per_h": plan.false_alarms_per_h,
        "margin": plan.margin,
        "engines": {tier.key: f"{e.id} {e.version}" for tier, e in sorted(asked.items())},
    }
    origin = provenance(settings=settings)
    record = {
        **settings,
        "recordings": sources,
        "version": origin.version,
        "git_commit": origin.git_commit,
        "date": origin.date,
    }
    files = write_limits(out, config, found, record, table)
    return Outcome(config, found, tuple(files), tuple(warnings))


def _measure(
    plan: Plan, config: InputConfig, engines: Mapping[Tier, Engine], progress: Callable[[float, float], None]
) -> tuple[list[Drive], list[dict[str, Any]], list[str]]:
    drives: list[Drive] = []
    sources: list[dict[str, Any]] = []
    warnings: list[str] = []
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(open_recording(p, plan.topics, fps=plan.fps, salvage=plan.salvage))
            for p in plan.recordings
        ]
        total_s = sum(r.info.duration_s for r in opened) + plan.scenario_min * 60.0
        check_length(total_s, config, plan.false_alarms_per_h)
        done_s = 0.0

        def advance(seconds: float) -> None:
            progress(min(total_s, done_s + seconds), total_s)

        for recording in opened:
            drives += recorded_drives(recording, config, engines, advance)
            sources.append({"name": recording.path.name, "data": recording.data_hash()})
            warnings += recording.warnings
            done_s += recording.info.duration_s
        for frames in scenario_drives(plan.scenario_min, plan.seed):
            drives += drives_of(frames, config, engines, advance)
            done_s += SCENARIO_DRIVE_S
    if plan.scenario_min:
        sources.append({"name": "built-in scenario", "minutes": plan.scenario_min, "seed": plan.seed})
    return drives, sources, warnings
