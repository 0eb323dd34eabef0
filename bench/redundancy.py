"""What redundancy costs on the built-in detector: ``python bench/redundancy.py``.

One engine alone, temporal redundancy, and two and three instances that vote answer the golden frame in turns, so that
whatever else the machine does disturbs all alike; ``cpu_ms`` is the thread's own processor time, which a busy machine
hardly touches. Memory is what each instance adds to this process once it is warm. Result: ``redundancy.json``; exit
status 1 when a p99 is above the tier's budget.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import psutil
from common import BUILT_IN, stats, write

from triptych.contract import BUDGETS, Tier
from triptych.engines.check import self_test
from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.engines.protocol import Engine
from triptych.tiers.redundancy import RedundantEngine

INSTANCES = 3


def own_mib() -> float:
    """Memory of this process that nobody shares, MiB."""
    return float(psutil.Process().memory_full_info().uss) / 2**20


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000, help="answers of each kind")
    parser.add_argument("--threads", type=int, default=1, help="threads per operator")
    parser.add_argument("--out", type=Path, default=Path("bench_results/redundancy.json"))
    arguments = parser.parse_args()
    engines: list[Engine] = []
    added_mib = []
    for _ in range(INSTANCES):
        before = own_mib()
        engines.append(load_engine(locate(BUILT_IN[Tier.DETECTOR]), threads=arguments.threads))
        self_test(engines[-1])
        added_mib.append(round(own_mib() - before, 1))
    kinds: dict[str, Engine] = {
        "none": engines[0],
        "temporal": RedundantEngine(engines[:1], "temporal"),
        "homogeneous_2": RedundantEngine(engines[:2], "homogeneous"),
        "homogeneous_3": RedundantEngine(engines, "homogeneous"),
    }
    for engine in kinds.values():
        self_test(engine)
    times_ms: dict[str, list[float]] = {name: [] for name in kinds}
    cpu_ms: dict[str, list[float]] = {name: [] for name in kinds}
    order = list(kinds)
    load_before = os.getloadavg()
    for _ in range(arguments.rounds):
        for name in order:
            engine = kinds[name]
            frames = [engine.golden()]
            start, start_cpu = time.perf_counter(), time.thread_time()
            engine.infer(frames)
            cpu_ms[name].append((time.thread_time() - start_cpu) * 1e3)
            times_ms[name].append((time.perf_counter() - start) * 1e3)
        order = order[1:] + order[:1]
    found = {name: stats(values) for name, values in times_ms.items()}
    busy = {name: stats(values) for name, values in cpu_ms.items()}
    disputed = {n: e.record.disputed for n, e in kinds.items() if isinstance(e, RedundantEngine)}
    budget_ms = BUDGETS[Tier.DETECTOR].budget_s * 1e3
    limits = {
        f"redundancy {name} p99 ms": {"value": row["p99"], "limit": budget_ms, "held": row["p99"] <= budget_ms}
        for name, row in found.items()
    }
    result = {
        "engine_ms": found,
        "cpu_ms": busy,
        "cpu_times_none": {name: round(row["p50"] / busy["none"]["p50"], 2) for name, row in busy.items()},
        "memory_added_mib": {f"instance {number}": mib for number, mib in enumerate(added_mib, 1)},
        "disputed": disputed,
        "load_average_1_min": [round(load_before[0], 2), round(os.getloadavg()[0], 2)],
        "limits": limits,
    }
    write(arguments.out, result, {"rounds": arguments.rounds, "threads": arguments.threads})
    for name, row in found.items():
        cpu = f"processor time p50 {busy[name]['p50']:.2f} ms, {result['cpu_times_none'][name]:.2f} × none"
        print(f"{name:14} p50 {row['p50']:.2f} ms, p99 {row['p99']:.2f} ms, {cpu}")
    print(f"memory added: {', '.join(f'{mib:.1f} MiB' for mib in added_mib)}")
    for engine in engines:
        engine.close()
    return 0 if all(row["held"] for row in limits.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
