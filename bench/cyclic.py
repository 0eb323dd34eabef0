"""The floor of a loop's lateness: a process that only sleeps and wakes, above the supervisor's priority on its core.

Started by ``latency.py``. After ``--seconds`` it writes one JSON line with the lateness of its wake-ups in ms.
What it shows no program on this machine could have avoided.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import time

from triptych.nodes import realtime

PERIOD_NS = 10_000_000
ABOVE_ALL = 60


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    count = int(parser.parse_args().seconds * 1e9 / PERIOD_NS)
    realtime.apply("supervisor")
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(ABOVE_ALL))
    late_ns = [0] * count
    gc.disable()
    due_ns = time.monotonic_ns()
    for index in range(count):
        due_ns = max(due_ns + PERIOD_NS, time.monotonic_ns())
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        late_ns[index] = time.monotonic_ns() - due_ns
    print(json.dumps({"event": "done", "late_ms": [late / 1e6 for late in late_ns]}), flush=True)


if __name__ == "__main__":
    main()
