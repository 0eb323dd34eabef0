"""Reaction of real processes to faults on purpose: ``python bench/faults.py``.

Each trial drives at 20 m/s under full load, waits for a random phase, injects, and looks at what the vehicle
receives. Then the driver takes over, what broke comes back, the driver hands over again. Result: ``faults.json``.
``--kinds all`` adds what takes longer: faults of the processor, of memory and disk, a leaking tier, a paused detector.

``seen_ms``: injection to the supervisor's tick that noticed (the stamp inside its constraint). ``wire_ms``: injection
to the first stricter command received by the vehicle. ``safe_ms``: supervisor killed to the safety core's stop, or
safety core killed to the vehicle's own safe default. ``blind_ms``: the longest time that the vehicle was let drive
after the newest usable result of the detector.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fault_resources as resources
from common import Listener, Script, environment, running, stack_specs, stand_ins, stats, write
from fault_resources import BLIND_LIMIT_MS, Drive
from fault_signals import kill_channel, trial

from triptych import dds
from triptych.nodes import topics
from triptych.nodes.process import NodeSpec, Stack

REACTION = {"seen_ms": 100.0, "wire_ms": 150.0}
SAFE = {"safe_ms": 200.0}
BLIND = {"blind_ms": BLIND_LIMIT_MS}


def _as_it_is(specs: Sequence[NodeSpec], folder: Path) -> list[NodeSpec]:
    return list(specs)


@contextlib.contextmanager
def _plain(folder: Path) -> Iterator[Path]:
    yield folder


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        run: one trial and the recovery from it; returns its figures and, where more than a time is judged, a
            ``verdict``.
        limits: of the 99th percentile of figures, in ms.
        prepare: what is different in the stack, given its nodes and the run's folder.
        place: the run's folder, given a scratch folder.
    """

    run: Callable[[Drive], dict[str, Any]]
    limits: Mapping[str, float]
    prepare: Callable[[Sequence[NodeSpec], Path], list[NodeSpec]] = _as_it_is
    place: Callable[[Path], AbstractContextManager[Path]] = _plain


def _detector(how: str) -> Fault:
    return Fault(lambda d: trial(how, d.stack, d.listener, d.vehicle), REACTION)


def _channel(name: str) -> Fault:
    return Fault(lambda d: kill_channel(name, d.stack, d.listener, d.vehicle), SAFE)


FAULTS = {
    "kill": _detector("kill"),
    "stop": _detector("stop"),
    "slow": _detector("slow"),
    "supervisor": _channel("supervisor"),
    "safety_core": _channel("safety_core"),
    "pause": Fault(resources.pause, {"wire_ms": REACTION["wire_ms"], **BLIND}),
    "processor": Fault(resources.hog_processor, BLIND),
    "memory": Fault(resources.hog_memory, BLIND, resources.with_memory_limit),
    "leak_detector": Fault(resources.leak("detector"), BLIND, resources.with_leak("detector")),
    "leak_distilled": Fault(resources.leak("distilled"), BLIND, resources.with_leak("distilled")),
    "disk": Fault(resources.full_disk, BLIND, resources.with_writers, resources.small_disk),
}
SHORT = ("kill", "stop", "slow", "supervisor", "safety_core")


def situation(stack: Stack, listener: Listener) -> dict[str, Any]:
    """What can be said of a stack that does not go on: who is silent since when, and everybody's last words."""
    now_ns = time.time_ns()
    return {
        "silent_s": {t: round((now_ns - rows[-1][0]) / 1e9, 1) if rows else None for t, rows in listener.seen.items()},
        "state": [(r.state.name, r.reason) for _, r in listener.since(topics.STATE)][-1:],
        "restarts": stack.restarts,
        "last_words": {name: stack.last_words(name) for name in stack.pids()},
    }


def kinds(text: str) -> list[str]:
    """Names of faults, separated by commas; ``all`` for every one.

    Raises:
        argparse.ArgumentTypeError: an unknown one.
    """
    names = list(FAULTS) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose of {', '.join(FAULTS)}")
    return names


def trials(kind: str, number: int, engines: Mapping[str, str]) -> tuple[list[dict[str, Any]], Any, list[str]]:
    """A stack of its own for this kind of fault, and ``number`` trials with it.

    Returns:
        A row for each trial that ended, what kept the others from it (None if nothing), and the tiers with stand-ins.
    """
    fault, domain, rows = FAULTS[kind], dds.claim_domain(), list[dict[str, Any]]()
    specs, missing = stack_specs(engines)
    with (
        tempfile.TemporaryDirectory() as scratch,
        fault.place(Path(scratch)) as folder,
        running(fault.prepare(specs, folder), folder, domain, resources.nodes_path()) as (stack, listener),
        stand_ins(missing, domain),
    ):
        vehicle = Script("vehicle.py", env=environment(domain))
        try:
            for count in range(number):
                rows.append(fault.run(Drive(stack, listener, vehicle, folder)))
                print(f"{kind} {count + 1}/{number}: {rows[-1]}", flush=True)
        except SystemExit as error:  # what was measured so far is kept
            failure = {"what": str(error), **situation(stack, listener)}
            print(f"{kind}: {failure}", flush=True)
            return rows, failure, missing
        finally:
            vehicle.stop()
    return rows, None, missing


def main() -> int:
    """Entry point; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench_results/faults.json"))
    parser.add_argument("--trials", type=int, default=30, help="per kind of fault")
    parser.add_argument("--kinds", type=kinds, default=list(SHORT), help=f"all, or of {', '.join(FAULTS)}")
    parser.add_argument("--engine", action="append", default=[], metavar="TIER=ENGINE")
    arguments = parser.parse_args()
    engines = dict(e.split("=", 1) for e in arguments.engine)
    rows: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, Any] = {}
    missing: list[str] = []
    for kind in arguments.kinds:
        rows[kind], failure, missing = trials(kind, arguments.trials, engines)
        if failure is not None:
            failures[kind] = failure
    result = {**judge(rows, arguments.trials), "failures": failures, "stand_ins": missing}
    settings = {k: str(v) for k, v in vars(arguments).items() if k != "out"}
    write(arguments.out, result, {**settings, "kinds": ",".join(arguments.kinds)})
    for name, row in result["limits"].items():
        print(f"{'ok  ' if row['held'] else 'MISS'} {name}: {row['value']} (limit {row['limit']})")
    return 0 if all(row["held"] for row in result["limits"].values()) else 1


def judge(rows: Mapping[str, Sequence[Mapping[str, Any]]], wanted: int) -> dict[str, Any]:
    """Figures and limits. A trial whose fault did not take effect counts for nothing; one that did not end, against."""
    figures: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for kind, found in rows.items():
        tried = [t for t in found if t.get("verdict") != "invalid"]
        figures[kind] = {
            name: stats([t[name] for t in tried if t.get(name) is not None]) for name in FAULTS[kind].limits
        }
        for name, limit in FAULTS[kind].limits.items():
            value = figures[kind][name].get("p99")
            limits[f"{kind} {name} p99"] = _limit(value, limit, value is not None and value <= limit)
        limits[f"{kind} trials that ended"] = _limit(len(found), wanted, len(found) == wanted)
        if any("verdict" in t for t in found):
            held = sum(t["verdict"] == "held" for t in found)
            limits[f"{kind} trials as expected"] = _limit(held, wanted, held == wanted)
    return {"figures": figures, "limits": limits, "trials": rows}


def _limit(value: Any, limit: float, held: bool) -> dict[str, Any]:
    return {"value": value, "limit": limit, "held": held}


if __name__ == "__main__":
    raise SystemExit(main())
