"""Minutes of the real nodes over DDS: ``soak.py real``. Nothing is lightened; the scenario node is the vehicle."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import Listener, running, spec, stack_specs, stand_ins, until
from trend import SequenceCount, Slope, drift, limit, slope, thirds

from triptych import dds
from triptych.contract import Origin, Tier, crc_ok
from triptych.nodes import convert, topics
from triptych.nodes.io import DATA_QOS
from triptych.nodes.process import Stack
from triptych_ros.msg import DriverState, MotionConstraint

DRIFT = 0.05
PRIVATE_KIB_PER_MIN = 8.0
"""Greatest slope of one process's own memory: 11 MiB a day. RSS is shown and not judged: a page of the middleware's
shared segments counts in it once the process has touched it, so that it grows until all of them were."""
FIRST_S, SETTLE_S = 60.0, 5.0
COUNTED = (
    *topics.RESULTS.values(),
    *topics.STATUSES.values(),
    topics.CONSTRAINT,
    topics.COMMAND,
    topics.DRIVER_STATE,
    topics.STATE,
)
"""Topics with a sequence counter."""
HEALTHY = "NOMINAL"


class Samples:
    """RSS, private memory, open files, threads and processor time of every process, at intervals."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._cpu = {name: self._spent(p) for name, p in self._processes.items()}
        self._at = time.monotonic()
        self.rows: list[dict[str, Any]] = []

    @staticmethod
    def _spent(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    def take(self, t_s: float) -> None:
        """One row; a process that is gone has none."""
        now = time.monotonic()
        elapsed, self._at = now - self._at, now
        row: dict[str, Any] = {"t_s": round(t_s, 1)}
        for name, process in self._processes.items():
            try:
                memory, spent = process.memory_full_info(), self._spent(process)
                row[name] = {
                    "rss_kib": memory.rss / 1024,
                    "private_kib": memory.uss / 1024,
                    "fds": process.num_fds(),
                    "threads": process.num_threads(),
                    "cpu_percent": round(100 * (spent - self._cpu[name]) / elapsed, 2),
                }
            except psutil.NoSuchProcess:
                continue
            self._cpu[name] = spent
        self.rows.append(row)

    def series(self, name: str, what: str) -> list[tuple[float, float]]:
        """(seconds, value) of a process."""
        return [(row["t_s"], float(row[name][what])) for row in self.rows if name in row]


class Heard:
    """What the listener received, condensed as it comes: a long run keeps no messages."""

    def __init__(self, listener: Listener, began_ns: int) -> None:
        self._listener, self._began_ns = listener, began_ns
        self.counts = {topic.name: SequenceCount() for topic in COUNTED}
        self.crc_errors: Counter[str] = Counter()
        self.origins: dict[str, Counter[str]] = {tier.key: Counter() for tier in Tier}
        self.latency: dict[str, list[tuple[float, float]]] = {tier.key: [] for tier in Tier}
        self.states: list[tuple[float, str, str]] = []
        self._tier_of = {topic.name: tier for tier, topic in topics.RESULTS.items()}
        for topic in (*COUNTED, topics.DIAGNOSTICS):
            listener.drain(topic)

    def take(self) -> None:
        """Take in what came since the last call."""
        self._listener.drain(topics.DIAGNOSTICS)
        for topic in COUNTED:
            for t_ns, record in self._listener.drain(topic):
                self.counts[topic.name].take(record.sequence_counter)
                self.crc_errors[topic.name] += not crc_ok(record)
                if topic is topics.STATE:
                    self.states.append(((t_ns - self._began_ns) / 1e9, record.state.name, record.reason))
                elif (tier := self._tier_of.get(topic.name)) is not None:
                    self._result(tier, t_ns, record)

    def _result(self, tier: Tier, t_ns: int, record: Any) -> None:
        self.origins[tier.key][record.origin.name] += 1
        if record.origin is Origin.FRESH:
            took_ms = (record.published_ns - record.source_stamp_ns) / 1e6
            self.latency[tier.key].append(((t_ns - self._began_ns) / 1e9, took_ms))


def soak(
    minutes: float,
    warm_up_s: float,
    sample_s: float,
    engines: Mapping[str, str],
    size: tuple[int, int],
    show: Callable[[str, float], None],
) -> dict[str, Any]:
    """Run; returns samples, windows, counts and limits.

    Args:
        minutes: from the first FRESH result on.
        warm_up_s: of them left out in slopes and drifts.
        sample_s: between two samples of the processes.
        engines: by tier's name, instead of the built-in ones.
        size: of the picture.
        show: told what is being done and its share.
    """
    domain = dds.claim_domain()
    specs, missing = stack_specs(dict(engines))
    camera = {"width_px": size[0], "height_px": size[1], "camera_rate_hz": 20.0, "start_speed_mps": 20.0}
    specs.append(spec("scenario", "scenario_node", preset="fixed", **camera))
    show("starting", 0.0)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(specs, Path(scratch), domain) as (stack, listener),
        stand_ins(missing, domain),
    ):
        listener.listen(MotionConstraint, topics.COMMAND.name, DATA_QOS, convert.constraint_from_msg)
        listener.listen(DriverState, topics.DRIVER_STATE.name, DATA_QOS, convert.driver_from_msg)
        result = topics.RESULTS[Tier.DETECTOR]
        until(
            lambda: any(r.origin is Origin.FRESH for _, r in listener.since(result)), FIRST_S, "a FRESH result", stack
        )
        time.sleep(SETTLE_S)
        started_in = listener.last(topics.STATE)
        heard, samples = Heard(listener, time.time_ns()), Samples(stack.pids())
        _watch(stack, heard, samples, minutes * 60, sample_s, show)
        restarts = dict(stack.restarts)
    tiers = [tier.key for tier in Tier if tier.key not in missing]
    begin_s, end_s = min(warm_up_s, minutes * 60), minutes * 60
    if started_in is not None:
        heard.states.insert(0, (0.0, started_in.state.name, started_in.reason))
    return {
        "mode": "real",
        "minutes": minutes,
        "warm_up_s": begin_s,
        "stand_ins": missing,
        "restarts": restarts,
        "sequences": {name: count.figures() for name, count in heard.counts.items()},
        "crc_errors": sum(heard.crc_errors.values()),
        "origins": {name: dict(count) for name, count in heard.origins.items()},
        "states": _changes(heard.states),
        "processes": processes(samples, begin_s, end_s),
        "latency": {name: latency(heard.latency[name], begin_s, end_s) for name in tiers},
        "samples": samples.rows,
        "windows": {name: windows(heard.latency[name], end_s) for name in tiers},
        "limits": {},
    }


def _watch(
    stack: Stack, heard: Heard, samples: Samples, seconds: float, sample_s: float, show: Callable[[str, float], None]
) -> None:
    began = time.monotonic()
    due = 0.0
    while (t_s := time.monotonic() - began) < seconds:
        stack.poll()
        heard.take()
        if t_s >= due:
            samples.take(t_s)
            due = (t_s // sample_s + 1) * sample_s
        show("soaking", t_s / seconds)
        time.sleep(0.1)
    heard.take()


def _changes(states: list[tuple[float, str, str]]) -> list[dict[str, Any]]:
    return [
        {"t_s": round(t_s, 2), "state": name, "reason": reason}
        for k, (t_s, name, reason) in enumerate(states)
        if k == 0 or name != states[k - 1][1]
    ]


def processes(samples: Samples, begin_s: float, end_s: float) -> dict[str, dict[str, Any]]:
    """By process: slopes in KiB/min after warm-up, growth of open files and threads, processor time."""
    found: dict[str, dict[str, Any]] = {}
    for name in sorted({key for row in samples.rows for key in row if key != "t_s"}):
        found[name] = {}
        for what in ("rss_kib", "private_kib"):
            rows = [(t, value) for t, value in samples.series(name, what) if t >= begin_s]
            found[name][f"{what}_per_min"] = as_json(slope([t / 60 for t, _ in rows], [value for _, value in rows]))
            found[name][f"{what}_last"] = rows[-1][1] if rows else None
        for what in ("fds", "threads"):
            first, last = thirds(samples.series(name, what), begin_s, end_s)
            found[name][f"{what}_grown"] = round(np.median(last) - np.median(first)) if first and last else None
        cpu = [value for t, value in samples.series(name, "cpu_percent") if t >= begin_s]
        found[name]["cpu_percent"] = round(float(np.mean(cpu)), 2) if cpu else None
    return found


def as_json(found: Slope) -> dict[str, float | None]:
    """A slope; None for what is not known."""
    values = {name: getattr(found, name) for name in ("value", "low", "high")}
    return {name: round(value, 3) if math.isfinite(value) else None for name, value in values.items()}


def latency(rows: list[tuple[float, float]], begin_s: float, end_s: float) -> dict[str, Any]:
    """p50 and p99 in ms of source stamp to result published, after warm-up, in the first and the last third."""
    kept = [value for t, value in rows if t >= begin_s]
    first, last = thirds(rows, begin_s, end_s)
    change = drift(first, last)
    return {
        "n": len(kept),
        **{name: _percentile(values, q) for name, values, q in (("p50", kept, 50), ("p99", kept, 99))},
        "p99_first_third": _percentile(first, 99),
        "p99_last_third": _percentile(last, 99),
        "drift": round(change, 4) if math.isfinite(change) else None,
    }


def windows(rows: list[tuple[float, float]], end_s: float) -> list[dict[str, float]]:
    """p50 and p99 by minute, by a twentieth of the run where that is less than 20 minutes."""
    width_s = min(60.0, end_s / 20)
    found = []
    for index in range(math.ceil(end_s / width_s)):
        values = [value for t, value in rows if index * width_s <= t < (index + 1) * width_s]
        if values:
            row = {"minute": round((index + 0.5) * width_s / 60, 3), "n": len(values)}
            found.append({**row, "p50": _percentile(values, 50), "p99": _percentile(values, 99)})
    return found


def _percentile(values: list[float], q: float) -> float | None:
    return round(float(np.percentile(values, q, method="higher")), 3) if values else None


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """The limits."""
    counts = result["sequences"]
    of = {name: row for name, row in counts.items() if name != topics.STATE.name}  # depth 1: the newest only
    bad = [row for row in result["states"] if row["state"] != HEALTHY]
    limits = {
        "sequence numbers lost": limit(sum(row["lost"] for row in of.values()), 0),
        "sequence numbers doubled": limit(sum(row["doubled"] for row in counts.values()), 0),
        "topics not heard": limit(sum(row["received"] == 0 for row in of.values()), 0),
        "CRC errors": limit(result["crc_errors"], 0),
        "restarts": limit(sum(result["restarts"].values()), 0),
        f"states other than {HEALTHY}": limit(len(bad), 0),
    }
    for name, row in result["processes"].items():
        steepest = row["private_kib_per_min"]["high"]
        limits[f"{name}: private memory, KiB/min (upper end of the interval)"] = limit(steepest, PRIVATE_KIB_PER_MIN)
        limits[f"{name}: open files grown by"] = limit(row["fds_grown"], 0)
        limits[f"{name}: threads grown by"] = limit(row["threads_grown"], 0)
    for name, row in result["latency"].items():
        limits[f"{name}: p99, last third over first"] = limit(row["drift"], DRIFT)
    return limits


def panels(result: dict[str, Any]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Panel -> line -> (minutes, values)."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for title, what in (("RSS", "rss_kib"), ("Private memory", "private_kib")):
        lines = found[f"{title} against its first sample (MiB)"] = {}
        for name in result["processes"]:
            rows = [(row["t_s"] / 60, row[name][what] / 1024) for row in result["samples"] if name in row]
            lines[name] = ([t for t, _ in rows], [v - rows[0][1] for _, v in rows])
    for name, rows in result["windows"].items():
        lines = {q: ([row["minute"] for row in rows], [row[q] for row in rows]) for q in ("p50", "p99")}
        found[f"{name}, source stamp to result (ms)"] = lines
    return found
