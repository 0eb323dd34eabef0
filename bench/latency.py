"""Latency of all tiers under full load, beside that of a bare engine and a bare transport: ``python bench/latency.py``.

Three phases on the same machine, minutes apart at most: the bare chain (camera, receiver and engine, nothing else), the
supervisor alone (its idle cost), then everything at once. Result: ``latency.json``.

The idle cost is measured twice, each time beside that of a bare node which does nothing but publish as often: with all
cores idle, and with cores kept awake by loops that yield to everything. On a virtual machine a core that wakes from
idleness runs several times slower for a while, whatever it executes.

``ratio_same_frame``: published - stamp of a frame, over transport + engine time *of that frame*: what the runtime adds.
``ratio_bare``: p99 under full load over the sum of the p99 of bare transport and bare engine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import (
    Listener,
    Load,
    Script,
    environment,
    running,
    spec,
    stack_specs,
    stand_ins,
    stats,
    until,
    write,
)

from triptych import dds
from triptych.contract import BUDGETS, Origin, Tier, crc_ok
from triptych.nodes import topics

LIMITS = {"detector_p99_ms": 30.0, "ratio": 1.3, "distilled_p99_ms": 200.0, "full_p99_ms": 2000.0}
SETTLE_S = 5.0


def bare(seconds: float, engine: str, size: tuple[int, int], rate_hz: float) -> dict[str, Any]:
    """Camera, receiver and engine alone."""
    domain = dds.claim_domain()
    env = environment(domain)
    width, height = size
    vehicle = Script("vehicle.py", "--width", str(width), "--height", str(height), "--rate-hz", str(rate_hz), env=env)
    receiver = Script("bare.py", "--engine", engine, "--seconds", str(seconds), env=env)
    try:
        until(lambda: receiver.process.poll() is not None, seconds + 60, "the end of the bare chain")
        receiver.stop()
        rows = receiver.events[-1]
    finally:
        receiver.stop()
        vehicle.stop()
    return {name: stats(values) for name, values in rows.items()}


@contextmanager
def awake() -> Iterator[None]:
    """Keep every core from going idle, at the cost of nobody: SCHED_IDLE runs only when nothing else wants to."""
    loop = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", loop]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def idle_supervisor(seconds: float, folder: Path) -> dict[str, Any]:
    """Processor time of the supervisor alone, and of a bare node that publishes as often at the same time.

    At the same time, because what a wake-up costs on a shared host changes from one minute to the next.
    """
    domain = dds.claim_domain()
    with running([spec("supervisor", "supervisor_node")], folder, domain) as (stack, listener):
        until(lambda: listener.last(topics.CONSTRAINT), 30, "the first constraint", stack)
        time.sleep(SETTLE_S)
        floor = Script("publisher.py", "--seconds", str(seconds), env=environment(domain))  # heard by the listener too
        try:
            until(lambda: floor.events, 30, "the start of the bare publisher")
            load, since_ns = Load(stack.pids()), time.time_ns()
            until(lambda: floor.process.poll() is not None, seconds + 60, "the end of the bare publisher")
        finally:
            floor.stop()
        used = load.read()["supervisor"]
        late = loop_late(listener, since_ns)
    floor_percent = floor.events[-1]["cpu_percent"]
    ratio = round(used["cpu_percent"] / floor_percent, 2) if floor_percent else None
    return {**used, "bare_publisher_percent": floor_percent, "ratio": ratio, "loop_late_ms": late}


def loop_late(listener: Listener, since_ns: int) -> dict[str, float]:
    """Lateness of the supervisor's loop from its diagnostics, each over its last 200 ticks: worst p99 and maximum."""
    own = "triptych: supervisor"
    rows = [d[own] for _, d in listener.since(topics.DIAGNOSTICS, since_ns) if own in d]
    return {
        name: max((float(r[f"loop late {name} ms"]) for r in rows), default=float("inf")) for name in ("p99", "max")
    }


def tier_figures(listener: Listener, tier: Tier, since_ns: int) -> dict[str, Any]:
    """Latency, origins and gaps of one tier's results."""
    rows = listener.since(topics.RESULTS[tier], since_ns)
    fresh = [(t, r) for t, r in rows if r.origin is Origin.FRESH]
    total = [(r.published_ns - r.source_stamp_ns) / 1e6 for _, r in fresh]
    parts = [r.latency for _, r in fresh]
    engine = [p.pre_ms + p.infer_ms + p.post_ms for p in parts]
    gaps = [(b[0] - a[0]) / 1e6 for a, b in itertools.pairwise(rows)]
    status = listener.last(topics.STATUSES[tier])
    return {
        "budget_ms": BUDGETS[tier].budget_s * 1e3,
        "latency_ms": stats(total),
        "received_ms": stats([(t - r.source_stamp_ns) / 1e6 for t, r in fresh]),
        "pre_ms": stats([p.pre_ms for p in parts]),
        "infer_ms": stats([p.infer_ms for p in parts]),
        "transport_ms": stats([p.transport_ms for p in parts]),
        "engine_ms": stats(engine),
        "ratio_same_frame": stats([t / (p.transport_ms + e) for t, p, e in zip(total, parts, engine)]),
        "gap_ms": stats(gaps),
        "origin": dict(Counter(r.origin.name for _, r in rows)),
        "reasons": dict(Counter(r.reason for _, r in rows if r.reason)),
        "crc_errors": sum(not crc_ok(r) for _, r in rows),
        "engine": f"{status.engine_id} {status.engine_version}" if status else "",
        "device": status.device if status else "",
        "frames_received": status.frames_received if status else 0,
        "frames_dropped": status.frames_dropped if status else 0,
    }


def full_load(
    seconds: float, engines: dict[str, str], source: str, size: tuple[int, int], rate_hz: float, folder: Path
) -> Any:
    """Everything at once."""
    domain = dds.claim_domain()
    specs, missing = stack_specs(engines)
    width, height = size
    if source == "scenario":
        camera = {"width_px": width, "height_px": height, "camera_rate_hz": rate_hz, "start_speed_mps": 20.0}
        specs.append(spec("scenario", "scenario_node", preset="fixed", **camera))
    began = time.monotonic()
    with running(specs, folder, domain) as (stack, listener), stand_ins(missing, domain):
        vehicle = floor = None
        if source == "camera":
            options = ("--width", str(width), "--height", str(height), "--rate-hz", str(rate_hz))
            vehicle = Script("vehicle.py", *options, env=environment(domain))
        try:
            result = topics.RESULTS[Tier.DETECTOR]
            until(lambda: any(r.origin is Origin.FRESH for _, r in listener.since(result)), 60, "a FRESH result", stack)
            start_s = time.monotonic() - began
            time.sleep(SETTLE_S)
            floor = Script("cyclic.py", "--seconds", str(seconds), env=environment(domain))
            load, since_ns = Load(stack.pids()), time.time_ns()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                stack.poll()
                time.sleep(0.1)
            used = load.read()
            until(lambda: floor.process.poll() is not None, 30, "the end of the bare loop")
            states = [(t, r.state.name, r.reason) for t, r in listener.since(topics.STATE)]
        finally:
            for script in (vehicle, floor):
                if script is not None:
                    script.stop()
        changes = [s for k, s in enumerate(states) if k == 0 or s[1] != states[k - 1][1]]
        return {
            "start_to_first_fresh_s": round(start_s, 2),
            "tiers": {t.key: tier_figures(listener, t, since_ns) for t in Tier if t.key not in missing},
            "stand_ins": missing,
            "supervisor": {
                "loop_late_ms": loop_late(listener, since_ns),
                "bare_loop_late_ms": stats(floor.events[-1]["late_ms"]),
                "states": [{"state": name, "reason": reason} for _, name, reason in changes],
            },
            "processes": used,
            "memory_pss_mib": round(sum(p["pss_mib"] for p in used.values()), 1),
            "restarts": stack.restarts,
        }


def main() -> int:
    """Entry point; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench_results/latency.json"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bare-seconds", type=float, default=20.0)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--rate-hz", type=float, default=20.0)
    parser.add_argument(
        "--source", choices=["scenario", "camera"], default="scenario", help="camera: pre-rendered frames"
    )
    parser.add_argument("--engine", action="append", default=[], metavar="TIER=ENGINE")
    arguments = parser.parse_args()
    engines = dict(e.split("=", 1) for e in arguments.engine)
    size = (arguments.width, arguments.height)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        detector = engines.get("detector", "triptych-detector")
        alone = bare(arguments.bare_seconds, detector, size, arguments.rate_hz)
        asleep = idle_supervisor(arguments.bare_seconds, folder / "asleep")
        with awake():
            idle = {"cores_asleep": asleep, "cores_awake": idle_supervisor(arguments.bare_seconds, folder / "awake")}
        loaded = full_load(arguments.seconds, engines, arguments.source, size, arguments.rate_hz, folder / "full")
    result = judge({"bare": alone, "supervisor_idle": idle, "loaded": loaded})
    write(arguments.out, result, {k: str(v) for k, v in vars(arguments).items() if k != "out"})
    for name, row in result["limits"].items():
        print(f"{'ok  ' if row['held'] else 'MISS'} {name}: {row['value']} (limit {row['limit']})")
    return 0 if all(row["held"] for row in result["limits"].values()) else 1


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """Add the limits and whether each was held."""
    tiers = result["loaded"]["tiers"]
    alone = result["bare"]
    detector = tiers["detector"]
    budget = alone["transport"].get("p99", 0.0) + alone["engine"].get("p99", 0.0)
    ratio = round(detector["latency_ms"].get("p99", float("inf")) / budget, 3) if budget else float("inf")
    result["ratio_bare"] = ratio
    rows = {
        "detector p99 ms": (detector["latency_ms"].get("p99"), LIMITS["detector_p99_ms"]),
        "detector p99 over same-frame transport + engine": (
            detector["ratio_same_frame"].get("p99"),
            LIMITS["ratio"],
        ),
        "detector p99 over bare p99s": (ratio, LIMITS["ratio"]),
        "supervisor idle % of a core, cores awake": (result["supervisor_idle"]["cores_awake"]["cpu_percent"], 2.0),
        "supervisor idle % of a core, cores asleep": (result["supervisor_idle"]["cores_asleep"]["cpu_percent"], 2.0),
        "supervisor loop late max ms": (result["loaded"]["supervisor"]["loop_late_ms"].get("max"), 10.0),
        "start to first FRESH s": (result["loaded"]["start_to_first_fresh_s"], 5.0),
    }
    for tier in (Tier.DISTILLED, Tier.FULL):
        if tier.key in tiers:
            rows[f"{tier.key} p99 ms"] = (tiers[tier.key]["latency_ms"].get("p99"), LIMITS[f"{tier.key}_p99_ms"])
    result["limits"] = {
        name: {"value": value, "limit": limit, "held": value is not None and value <= limit}
        for name, (value, limit) in rows.items()
    }
    return result


if __name__ == "__main__":
    raise SystemExit(main())
