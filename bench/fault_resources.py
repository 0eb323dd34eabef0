"""Faults of processes and of what they live on: processor, memory, disk, a leak, a pause. One trial each.

A trial ends with a ``verdict``: ``held``, ``failed`` with the sentences of what was not as expected, or ``invalid``:
the fault did not take effect, or something was wrong before; never counted as passed.

``blind_ms``: the longest time that the vehicle was let drive after the newest usable result of the detector.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import random
import resource as limits
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import yaml
from common import HERE, Listener, Script, environment, spec, until
from fault_signals import DRIVING, at_once, drives, ready, recover, release

from triptych.contract import Origin, Tier, crc_ok
from triptych.nodes import topics
from triptych.nodes.process import NodeSpec, Stack
from triptych.remote.journal import parse
from triptych.resources import resource

BLIND_LIMIT_MS = 200.0
"""Silence of tier 1 is answered at the vehicle within 150 ms of its loss, which comes within a period of a result."""
HOLD_S = 8.0
"""How long a processor or memory is taken; the fault table debounces memory by 3 s."""
HOGS_PER_CORE = 2
LEAST_TAKEN = 0.25
"""Share of a core that the hogs together must have got. Nodes with priorities get theirs before."""
MEMORY_SHARE, MEMORY_CAP_BYTES = 0.25, 2 << 30
"""The supervisor is told to call memory short when so much of what is free now, and no more than that, is taken."""
MEMORY_OVER_BYTES = 256 << 20
"""So much more is taken than makes it short."""
LEAK_ROOM_BYTES = 128 << 20
"""What a leaking tier may still take before its limit: eight leaks of 16 MiB."""
DISK_BYTES = 64 << 20
PAUSE_S = (0.4, 1.2)
"""A detector stopped for longer than its loss takes to be seen, and continued before anybody restarts it."""
STALE_MS = 130.0
"""A result of a detector is fresh within its budget of 30 ms; 100 ms for the way on a loaded machine."""
MEMORY_FAULT = "machine.memory"
RECORDER, REMOTE, SUPERVISOR = "triptych: recorder", "triptych: remote", "triptych: supervisor"


@dataclass
class Drive:
    """What a trial has at hand."""

    stack: Stack
    listener: Listener
    vehicle: Script
    folder: Path
    wrong: list[str] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)

    def expect(self, good: Any, otherwise: str) -> None:
        """What must hold."""
        if not good:
            self.wrong.append(otherwise)

    def settle(self, seconds: float) -> list[str]:
        """Let time pass, looking after the stack; returns what happened to its processes."""
        events, end_s = [], time.monotonic() + seconds
        while time.monotonic() < end_s:
            events += [e.text for e in self.stack.poll()]
            time.sleep(0.02)
        return events

    def active(self, since_ns: int) -> set[str]:
        """Faults that were active at any time since."""
        return {fault for _, s in self.listener.since(topics.STATE, since_ns) for fault in s.active_faults}

    def states(self, since_ns: int) -> list[str]:
        """States the vehicle heard of since, each once, in order."""
        return list(dict.fromkeys(e["state"] for e in self.vehicle.since(since_ns, "constraint")))

    def said(self, name: str, since_ns: int) -> Any:
        """The newest diagnostic status of a node since, None if there is none."""
        found = [d[name] for _, d in self.listener.since(topics.DIAGNOSTICS, since_ns) if name in d]
        return found[-1] if found else None

    def end(self, took_effect: bool) -> dict[str, Any]:
        """The row of the trial."""
        verdict = "invalid" if not took_effect else "failed" if self.wrong else "held"
        return {"verdict": verdict, "wrong": self.wrong, **self.row}


def blind_ms(drive: Drive, began_ns: int, until_ns: int) -> float:
    """See the module; 0 where the vehicle was never let drive."""
    seen = drive.listener.since(topics.RESULTS[Tier.DETECTOR], began_ns - 1_000_000_000)
    results = [t for t, r in seen if r.origin is not Origin.DEFAULT]
    changes = sorted(
        (e["t_ns"], e)
        for e in list(drive.vehicle.events)
        if e.get("event") in ("constraint", "guard") and e["t_ns"] < until_ns
    )
    worst, allowed, safe = 0.0, False, True
    marks = [t for t, _ in changes] + [until_ns]
    for (begin_ns, event), end_ns in zip(changes, marks[1:], strict=True):
        if event["event"] == "guard":
            safe = event["safe"]
        else:
            allowed = event["state"] in DRIVING and event["limit_mps"] > 0
        if safe or not allowed:
            continue
        ends = [t for t in results if max(begin_ns, began_ns) < t < end_ns] + [end_ns]
        for now_ns in ends:
            if now_ns < began_ns:
                continue
            at = bisect.bisect_left(results, now_ns) - 1
            if at >= 0:
                worst = max(worst, (now_ns - results[at]) / 1e6)
    return round(worst, 2)


def damaged(drive: Drive, since_ns: int) -> int:
    """Results and commands with a wrong CRC since."""
    names = [*topics.RESULTS.values(), topics.CONSTRAINT]
    return sum(not crc_ok(record) for name in names for _, record in drive.listener.since(name, since_ns))


@contextlib.contextmanager
def hogs(commands: Sequence[Sequence[str]]) -> Iterator[list[Script]]:
    """Processes that take something, and are gone at the end."""
    started: list[Script] = []
    try:
        for command in commands:
            started.append(Script("hog.py", *command, env=os.environ))
        yield started
    finally:
        for script in started:
            script.stop()


# -- processor ---------------------------------------------------------------------------------------------------------


def hog_processor(drive: Drive) -> dict[str, Any]:
    """Busy processes at normal priority: the vehicle drives on, or is told in time that it must not."""
    ready(drive.stack, drive.listener, drive.vehicle)
    before = drive.stack.pids()
    began_ns, cores = time.time_ns(), len(os.sched_getaffinity(0))
    with hogs([["cpu"]] * (HOGS_PER_CORE * cores)) as started:
        drive.settle(HOLD_S)
        taken_s = sum(sum(psutil.Process(s.process.pid).cpu_times()[:2]) for s in started)
        until_ns = time.time_ns()
    drive.row = {
        "hogs": len(started),
        "cores_taken": round(taken_s / HOLD_S, 2),
        "blind_ms": blind_ms(drive, began_ns, until_ns),
        "states": drive.states(began_ns),
        "faults": sorted(drive.active(began_ns)),
        "drove_on": drives(drive.vehicle),
    }
    drive.expect(drive.stack.pids() == before, "a node died of want of processor time")
    drive.expect(damaged(drive, began_ns) == 0, "a damaged result or command")
    drive.expect(drive.row["drove_on"] or drive.row["faults"], "the vehicle was slowed down and no fault named")
    recover(drive.stack, drive.listener, drive.vehicle)
    return drive.end(taken_s / HOLD_S >= LEAST_TAKEN)


# -- memory ------------------------------------------------------------------------------------------------------------


def with_memory_limit(specs: Sequence[NodeSpec], folder: Path) -> list[NodeSpec]:
    """The shipped fault table with a limit on memory that can be exceeded here without harm."""
    memory = psutil.virtual_memory()
    room = min(MEMORY_SHARE * memory.available, MEMORY_CAP_BYTES)
    table = yaml.safe_load(resource("config", "faults.yaml").read_text())
    for row in table["faults"]:
        if row["id"] == MEMORY_FAULT:
            row["threshold"], row["hysteresis"] = 1.0 - (memory.available - room) / memory.total, 0.002
    path = folder / "faults.yaml"
    path.write_text(yaml.safe_dump(table))
    return [
        replace(s, parameters={**s.parameters, "fault_table": str(path)}) if s.name == "supervisor" else s
        for s in specs
    ]


def memory_to_take(table: Path) -> int:
    """Bytes to the limit of this fault table and a little more; 0 where that is too much, or it is exceeded already."""
    rows = yaml.safe_load(table.read_text())["faults"]
    limit = next(row["threshold"] for row in rows if row["id"] == MEMORY_FAULT)
    memory = psutil.virtual_memory()
    size = int(memory.available - (1.0 - limit) * memory.total) + MEMORY_OVER_BYTES
    return size if MEMORY_OVER_BYTES < size <= MEMORY_CAP_BYTES + MEMORY_OVER_BYTES else 0


def hog_memory(drive: Drive) -> dict[str, Any]:
    """A process that takes and touches memory: named by the supervisor, which lets the vehicle drive on."""
    ready(drive.stack, drive.listener, drive.vehicle)
    before, began_ns = drive.stack.pids(), time.time_ns()
    size = memory_to_take(drive.folder / "faults.yaml")
    if not size or MEMORY_FAULT in drive.active(began_ns - 2_000_000_000):
        drive.expect(False, "memory is short here already, or much of it was given back")
        return drive.end(False)
    with hogs([["memory", str(size)]]) as started:
        until(lambda: started[0].since(began_ns, "taken"), 30, "taking the memory", drive.stack)
        drive.settle(HOLD_S)
        held = psutil.Process(started[0].process.pid).memory_info().rss
        until_ns = time.time_ns()
    drive.row = {
        "taken_mib": held >> 20,
        "blind_ms": blind_ms(drive, began_ns, until_ns),
        "states": drive.states(began_ns),
        "faults": sorted(drive.active(began_ns)),
        "drove_on": drives(drive.vehicle),
    }
    drive.expect(drive.stack.pids() == before, "a node died of want of memory")
    drive.expect(MEMORY_FAULT in drive.row["faults"], "nobody named the want of memory")
    drive.expect(drive.row["drove_on"], "the vehicle did not drive on")
    drive.expect(damaged(drive, began_ns) == 0, "a damaged result or command")
    until(
        lambda: (state := drive.listener.last(topics.STATE)) and MEMORY_FAULT not in state.active_faults,
        30,
        "the end of the want of memory",
        drive.stack,
    )
    return drive.end(held >= 0.95 * size)


# -- a leak ------------------------------------------------------------------------------------------------------------


def with_leak(tier: str) -> Any:
    """The specs with a leaky tier in place of the real one (``bench/nodes/leaky_tier.py``)."""

    def prepare(specs: Sequence[NodeSpec], folder: Path) -> list[NodeSpec]:
        return [replace(s, module="leaky_tier") if s.name == tier else s for s in specs]

    return prepare


def leak(tier: str) -> Any:
    """A tier that leaks until its limit: a marked fallback or a restart, and never a wrong command."""

    def trial(drive: Drive) -> dict[str, Any]:
        ready(drive.stack, drive.listener, drive.vehicle)
        pid, began_ns = drive.stack.pids()[tier], time.time_ns()
        process = psutil.Process(pid)
        most = process.memory_info().vms + LEAK_ROOM_BYTES
        process.rlimit(psutil.RLIMIT_AS, (most, most))
        os.kill(pid, signal.SIGUSR1)
        events = drive.settle(HOLD_S)
        until_ns = time.time_ns()
        reports = [s.fault for _, s in drive.listener.since(topics.STATUSES[Tier[tier.upper()]], began_ns)]
        refused = sorted({fault for fault in reports if "MemoryError" in fault})
        ended = [text for text in events if text.startswith(tier)]
        drive.row = {
            "reported": refused,
            "ended": ended,
            "blind_ms": blind_ms(drive, began_ns, until_ns),
            "states": drive.states(began_ns),
            "faults": sorted(drive.active(began_ns)),
            "drove_on": drives(drive.vehicle),
        }
        drive.expect(any(f.startswith(f"{tier}.") for f in drive.row["faults"]), f"no fault of {tier} was named")
        drive.expect(damaged(drive, began_ns) == 0, "a damaged result or command")
        if tier == "detector":
            drive.expect(set(drive.row["states"]) - set(DRIVING), "the vehicle drove on without a detector")
        else:
            drive.expect(drive.row["drove_on"], "the vehicle did not drive on without one of its advisers")
        if drive.stack.pids().get(tier) == pid:  # it answers with fallbacks and would do so for ever
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: release(drive.stack, drive.listener, drive.vehicle), 120, "driving again")
        back_ns = time.time_ns()
        results = topics.RESULTS[Tier[tier.upper()]]
        until(
            lambda: any(r.origin is Origin.FRESH for _, r in drive.listener.since(results, back_ns)),
            60,
            f"the return of {tier}",
            drive.stack,
        )
        return drive.end(bool(refused or ended))

    return trial


# -- disk --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own where we may mount one, else a folder; also of the middleware's log files."""
    place, before = folder / "disk", os.environ.get("ROS_LOG_DIR")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and not subprocess.run(command, capture_output=True, check=False).returncode
    os.environ["ROS_LOG_DIR"] = str(place / "log")
    try:
        yield place
    finally:
        os.environ.pop("ROS_LOG_DIR")
        if before is not None:
            os.environ["ROS_LOG_DIR"] = before
        if mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def with_writers(specs: Sequence[NodeSpec], folder: Path) -> list[NodeSpec]:
    """Everybody who writes: recorder, notifier, and the supervisor's latch."""
    own = {"latch_file": str(folder / "latch"), "record_folder": str(folder)}
    notifier = {
        "target": "http://127.0.0.1:9/",  # nobody listens there: messages stay in the queue
        "allow_plain": True,
        "vehicle_id": "bench",
        "queue_file": str(folder / "queue"),
    }
    return [
        *(replace(s, parameters={**s.parameters, **own}) if s.name == "supervisor" else s for s in specs),
        spec("recorder", "recorder_node", folder=str(folder / "run")),
        spec("remote", "remote_node", **notifier),
    ]


def fill(drive: Drive) -> str:
    """Take all room. Returns how, empty if it did not take effect."""
    if os.path.ismount(drive.folder):
        with contextlib.suppress(OSError), (drive.folder / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            (drive.folder / "probe").write_bytes(b"x")
        except OSError as error:
            return "a full file system" if error.errno == errno.ENOSPC else ""
        return ""
    for pid in drive.stack.pids().values():
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (0, limits.RLIM_INFINITY))
    return "a limit of 0 on the size of files"


def free(drive: Drive) -> None:
    """Give it back."""
    (drive.folder / "filler").unlink(missing_ok=True)
    (drive.folder / "probe").unlink(missing_ok=True)
    for pid in drive.stack.pids().values():
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limits.RLIM_INFINITY, limits.RLIM_INFINITY))


def full_disk(drive: Drive) -> dict[str, Any]:
    """No room: it is said, the drive goes on, and a manoeuvre survives the restart of the supervisor."""
    ready(drive.stack, drive.listener, drive.vehicle)
    drive.settle(1.0)
    before, began_ns = drive.stack.pids(), time.time_ns()
    try:
        drive.row["how"] = fill(drive)
        with contextlib.suppress(SystemExit):
            until(lambda: _level(drive.said(RECORDER, began_ns)) == 2, 15, "the recorder's report", drive.stack)
        drive.settle(3.0)
        drive.row["blind_ms"] = blind_ms(drive, began_ns, time.time_ns())
        drive.row["drove_on"] = drives(drive.vehicle)
        drive.row["recorder"] = getattr(drive.said(RECORDER, began_ns), "message", "")
        drive.expect(str(drive.folder) in drive.row["recorder"], "the recorder did not name the folder")
        drive.expect(drive.stack.pids() == before, "a node died of a full disk")
        drive.expect(drive.row["drove_on"] or drive.active(began_ns), "the drive ended and no fault named")

        lost_ns = time.time_ns()
        os.kill(drive.stack.pids()["detector"], signal.SIGKILL)
        until((drive.folder / "latch").exists, 20, "the latch on a full disk")
        drive.settle(1.0)
        with at_once():
            killed_ns = time.time_ns()
            os.kill(drive.stack.pids()["supervisor"], signal.SIGKILL)
        until(lambda: _since(drive, killed_ns + 200_000_000), 60, "the supervisor's return", drive.stack)
        drive.settle(2.0)
        after = _since(drive, killed_ns + 200_000_000)
        drive.row["restarted_in"] = sorted({c.state.name for c in after})
        drive.row["supervisor"] = getattr(drive.said(SUPERVISOR, killed_ns), "message", "")
        drive.expect(all(c.speed_limit_mps == 0.0 for c in after), "the restarted supervisor let the vehicle drive")
        drive.expect(not set(drive.row["restarted_in"]) & set(DRIVING), "the restarted supervisor forgot the manoeuvre")
        drive.row["remote"] = getattr(drive.said(REMOTE, lost_ns), "message", "")
        queue = drive.folder / "queue"  # the rest of its last block may have been enough for a line
        drive.row["queued"] = sum("letter" in entry for entry in parse(queue.read_bytes())[0])
        drive.expect(drive.row["queued"] or str(queue) in drive.row["remote"], "a message was lost without a word")
    finally:
        free(drive)
    until(lambda: release(drive.stack, drive.listener, drive.vehicle), 90, "driving again")
    os.kill(drive.stack.pids()["recorder"], signal.SIGKILL)  # records again once it is started again
    drive.settle(3.0)
    return drive.end(bool(drive.row["how"]))


def _level(said: Any) -> int:
    return said.level if said is not None else -1


def _since(drive: Drive, t_ns: int) -> list[Any]:
    return [c for _, c in drive.listener.since(topics.CONSTRAINT, t_ns) if c.stamp_ns >= t_ns]


# -- a pause -----------------------------------------------------------------------------------------------------------


def pause(drive: Drive) -> dict[str, Any]:
    """The detector stopped and continued: what it had in hand is old by then, and must not pass for fresh."""
    ready(drive.stack, drive.listener, drive.vehicle)
    time.sleep(random.uniform(0.0, 0.1))
    pid, results = drive.stack.pids()["detector"], topics.RESULTS[Tier.DETECTOR]
    with at_once():
        began_ns = time.time_ns()
        os.kill(pid, signal.SIGSTOP)
    time.sleep(random.uniform(*PAUSE_S))
    stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
    with at_once():
        on_ns = time.time_ns()
        os.kill(pid, signal.SIGCONT)
    drive.settle(2.0)
    silent = not [t for t, _ in drive.listener.since(results, began_ns + 100_000_000) if t < on_ns]
    later = drive.listener.since(results, on_ns)
    ages_ms = [(t - r.source_stamp_ns) / 1e6 for t, r in later if r.origin is Origin.FRESH]
    stricter = [e for e in drive.vehicle.since(began_ns, "constraint") if e["state"] not in DRIVING]
    drive.row = {
        "paused_ms": round((on_ns - began_ns) / 1e6, 1),
        "wire_ms": round((stricter[0]["t_ns"] - began_ns) / 1e6, 2) if stricter else None,
        "blind_ms": blind_ms(drive, began_ns, time.time_ns()),
        "oldest_fresh_ms": round(max(ages_ms, default=0.0), 1),
        "first_after": [(r.origin.name, r.reason, round((t - r.source_stamp_ns) / 1e6, 1)) for t, r in later[:3]],
        "states": drive.states(began_ns),
    }
    drive.expect(stricter, "nobody noticed the pause")
    drive.expect(max(ages_ms, default=0.0) <= STALE_MS, "a result from before the pause passed for fresh")
    drive.expect(damaged(drive, began_ns) == 0, "a damaged result or command")
    driven = [s for s in drive.states(on_ns) if s in DRIVING]
    drive.expect(not driven, "the vehicle drove on by itself after the pause")
    recover(drive.stack, drive.listener, drive.vehicle)
    return drive.end(stopped and silent)


def nodes_path() -> Mapping[str, str]:
    """For processes that are to find ``bench/nodes``."""
    path = environment(0).get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [path, str(HERE / "nodes")]))}
