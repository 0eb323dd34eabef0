"""One run of the stack at the desk: start the nodes, show what they do, stop them, write the report.

The route of ``triptych demo``, ``run`` and ``replay``; under a ROS 2 installation the launch files do the starting.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console

from triptych import dds, resources
from triptych.contract import ConfigError, DegradationState, Tier, TriptychError
from triptych.documents import parse_json, parse_yaml
from triptych.live import LiveModel, LiveView
from triptych.nodes.params import TierParams
from triptych.nodes.process import NodeSpec, ProcessEvent, Stack
from triptych.replay.record import FORMAT_VERSION, Event, RunRecord, StateRecord, canonical_json, entry_of, to_plain
from triptych.report.html import ReportFiles, write_report
from triptych.report.provenance import provenance
from triptych.stack import input_remaps, node, params_file, recorded, remote_target, stack_specs
from triptych.supervisor.config import SupervisorConfig, config_error
from triptych.tiers.monitors import InputConfig

__all__ = [
    "Plan",
    "input_remaps",
    "input_settings",
    "node",
    "params_file",
    "prepare",
    "remote_target",
    "run",
    "stack_specs",
    "states_line",
    "supervisor_settings",
    "supervisor_tables",
]

POLL_S = 0.1
SETTLE_S = 0.3
"""After the last frame: time for its results to reach the recorder."""
RECORD = "record.jsonl"
LATCH = "supervisor.latch"


@dataclass(frozen=True, slots=True)
class Kill:
    """A node that is killed on purpose, once.

    Attributes:
        target: name of the node.
        after_s: since the supervisor let the vehicle drive.
        expect: state demanded, or one more careful.
    """

    target: str
    after_s: float
    expect: DegradationState


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        mode: "demo", "run" or "replay", for the record.
        title: one line for people.
        specs: every node, in start order; the recorder is added.
        out: folder for results and report.
        data: recording file or folder, for its hash; None for a generated input.
        settings: what else decides the outcome, for the configuration hash.
        meta: more for the record, e.g. warnings.
        duration_s: end the run after this long; None: when its source ends.
        kill: a fault to be caused on the way.
    """

    mode: str
    title: str
    specs: Sequence[NodeSpec]
    out: Path
    data: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    duration_s: float | None = None
    kill: Kill | None = None


def supervisor_settings(params: Path) -> dict[str, Any]:
    """The supervisor's own parameters in a ROS parameter file; those of its node around it are left out.

    Raises:
        ConfigError: not a ROS parameter file.
    """
    return {k: v for k, v in _parameters(params, "supervisor").items() if k in SupervisorConfig.model_fields}


def supervisor_tables(params: Path) -> tuple[Path, Path]:
    """The fault table and the policy table that a ROS parameter file names, else the shipped ones.

    Raises:
        ConfigError: not a ROS parameter file.
    """
    given = _parameters(params, "supervisor")
    named = (("fault_table", "faults.yaml"), ("policy_table", "policy.yaml"))
    faults, policy = (
        Path(given[key]) if given.get(key) else resources.resource("config", shipped) for key, shipped in named
    )
    return faults, policy


def input_settings(params: Path) -> dict[Tier, InputConfig]:
    """The limits of the input monitors of each tier that looks at its pictures, from a ROS parameter file.

    Raises:
        ConfigError: not a ROS parameter file, or a limit out of its range.
    """
    names = {*InputConfig.model_fields, "watch_input"}
    found: dict[Tier, InputConfig] = {}
    for tier in Tier:
        try:
            values = TierParams(**{k: v for k, v in _parameters(params, tier.key).items() if k in names})
        except ValidationError as error:
            raise config_error(error, f"{params}, {tier.key}") from None
        if values.watches(tier):
            found[tier] = InputConfig(**{name: getattr(values, name) for name in InputConfig.model_fields})
    return found


def _parameters(params: Path, node: str) -> dict[str, Any]:
    try:
        content = parse_yaml(params.read_bytes()) or {}
        sections = [s["ros__parameters"] for name, s in content.items() if name.split("/")[-1] in (node, "**")]
        return {k: v for section in sections for k, v in section.items()}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"is not a ROS parameter file ({type(error).__name__})", where=params, remedy="see config/params.yaml"
        ) from None


def run(
    plan: Plan, console: Console, *, live: bool = True, environment: Mapping[str, str] | None = None
) -> ReportFiles:
    """Run the stack to its end or Ctrl-C, then write ``result.json`` and ``report.html`` into ``plan.out``.

    Raises:
        TriptychError: a node refused to start, nothing was recorded, or a file cannot be written.
    """
    prepare(plan.out)
    user = dict(os.environ if environment is None else environment)
    dds.release_abandoned()  # segments of nodes killed in earlier runs, 67 MiB each
    memory = dds.shared_memory(len(plan.specs) + 1)
    if memory.problem:
        console.print(f"[yellow]{memory.problem}; {memory.remedy}.[/]", highlight=False)
    params = next(s.params_file for s in plan.specs if s.params_file)
    # A supervisor that is restarted during a manoeuvre goes on with it.
    own = {"latch_file": str(plan.out / LATCH)}
    specs = [replace(s, parameters={**s.parameters, **own}) if s.name == "supervisor" else s for s in plan.specs]
    specs = recorded(specs, params, str(plan.out), mode="live", input=plan.title)
    stack = Stack(specs, plan.out, {**user, **dds.environment(user)})
    model = LiveModel(plan.title)
    events: list[tuple[int, ProcessEvent]] = []
    started_ns = time.time_ns()
    tail = Tail(plan.out / RECORD)
    saboteur = Saboteur(plan.kill)
    with stop_requested() as stop:
        try:
            stack.start()
            with LiveView(model, console, enabled=live) as view:
                end_s = time.monotonic() + (plan.duration_s if plan.duration_s is not None else float("inf"))
                while not (stop.is_set() or stack.over or time.monotonic() >= end_s):
                    for event in stack.poll():
                        events.append((time.time_ns(), event))
                        model.event(event.text)
                    for entry in tail.read():
                        model.update(entry)
                        saboteur.hear(entry)
                    if text := saboteur.strike(stack, started_ns):
                        model.event(text)
                    view.refresh()
                    stop.wait(POLL_S)
                if stack.over and not stack.refusal:
                    stop.wait(SETTLE_S)
        finally:
            ended_ns = time.time_ns()
            killed = stack.stop()
    if stack.refusal:
        raise TriptychError(stack.refusal.rstrip("."))
    extra = {
        **plan.meta,
        "mode": plan.mode,
        "started_ns": started_ns,
        "ended_ns": ended_ns,
        "killed_at_stop": killed,
        "injected": saboteur.done,
        "tiers": [s.name for s in plan.specs if s.module.endswith("tier_node")],
    }
    record = complete_record(plan.out, extra, events)
    config = [params, *supervisor_tables(params), resources.resource("models")]
    return write_report(record, plan.out, provenance(config, plan.settings, plan.data))


class Saboteur:
    """Kills a node when its time has come. ``done``: as :func:`triptych.report.summary.injections_of` reads it."""

    def __init__(self, kill: Kill | None) -> None:
        self._kill = kill
        self._due_s = math.inf
        self.done: list[dict[str, Any]] = []

    def hear(self, entry: Any) -> None:
        """The clock starts when the vehicle is let go."""
        driving = isinstance(entry, StateRecord) and entry.state is DegradationState.NOMINAL
        if driving and self._kill is not None and math.isinf(self._due_s):
            self._due_s = time.monotonic() + self._kill.after_s

    def strike(self, stack: Stack, started_ns: int) -> str:
        """Kill, if it is time and the node runs; returns what to tell the spectators."""
        kill = self._kill
        if kill is None or self.done or time.monotonic() < self._due_s or kill.target not in stack.pids():
            return ""
        at_ns = time.time_ns()
        os.kill(stack.pids()[kill.target], signal.SIGKILL)
        at_s = (at_ns - started_ns) / 1e9
        self.done.append({"fault": "kill", "target": kill.target, "from_s": at_s, "expect": kill.expect.name})
        return f"{kill.target} is killed on purpose"


def complete_record(out: Path, extra: Mapping[str, Any], events: Sequence[tuple[int, ProcessEvent]]) -> RunRecord:
    """Add what only the starter knows to the recorder's file, and load the whole.

    Raises:
        TriptychError: the recorder wrote nothing.
    """
    path, part = out / RECORD, out / (RECORD + ".part")
    if not path.exists() and part.exists():
        os.replace(part, path)  # the recorder was killed; what it had written is complete but for its last line
    if not path.exists():
        raise TriptychError(
            "the recorder wrote nothing", where=path, remedy=f"see {out / 'logs' / 'recorder.log'} for the reason"
        )
    keep = [(t, e) for t, e in events if e.kind not in ("started", "finished")]
    lines = [{"kind": "event", **to_plain(Event(t, e.node, e.text))} for t, e in keep]
    lines.append({"kind": "meta", "format_version": FORMAT_VERSION, "meta": dict(extra)})
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    partial = path.with_name(path.name + ".tmp")
    partial.write_bytes(whole + b"".join(canonical_json(line) + b"\n" for line in lines))
    os.replace(partial, path)
    return RunRecord.load(path)


def prepare(out: Path) -> None:
    """Make the output folder; results of an earlier run in it are replaced, foreign files are left alone.

    Raises:
        TriptychError: it cannot be made or written, or the disk is nearly full.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
        for name in (RECORD, RECORD + ".part", LATCH, "result.json", "report.html", "gate.json"):
            (out / name).unlink(missing_ok=True)
        free = os.statvfs(out)
    except OSError as error:
        raise TriptychError(
            f"cannot be written ({error.strerror})", where=out, field="out", remedy="choose another folder"
        ) from None
    free_mib = free.f_bavail * free.f_frsize // 2**20
    if free_mib < 200:
        raise TriptychError(
            "the disk is nearly full; a run needs 200 MiB", where=out, value=f"{free_mib} MiB free", remedy="make room"
        )


class Tail:
    """Reads the entries that were appended to a record since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._offset, self._rest = 0, b""

    def read(self) -> Iterator[Any]:
        """New entries, in order; an unfinished last line waits for its rest."""
        try:
            with (self._part if self._part.exists() else self._path).open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                try:
                    entry = entry_of(parse_json(line))
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # for people, now; who reads the whole record says what is wrong with it
                if entry is not None:
                    yield entry


@contextlib.contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set while the block runs."""
    stop = threading.Event()
    before = {n: signal.signal(n, lambda *_: stop.set()) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def states_line(record: RunRecord) -> str:
    """The states a run went through, for one line on the terminal."""
    changes: list[StateRecord] = record.state_changes()
    return " → ".join(c.state.name for c in changes) or "none"
