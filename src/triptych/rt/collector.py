"""How long Python's garbage collector stops a real-time node, before and after the node has calmed it.

Run as a module it measures its own process and prints JSON: what a node has loaded is loaded, and the supervisor
takes in results and ticks as fast as it can.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from typing import Any

from triptych import resources

STEPS = 4000
"""Ticks with all messages of one each; about 40 s of driving."""


class Pauses:
    """Listens to the collector: how often it ran, and its longest run in milliseconds of processor time."""

    def __init__(self) -> None:
        self.runs = 0
        self.longest_ms = 0.0
        self._since_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """For ``gc.callbacks``."""
        if phase == "start":
            self._since_ns = time.thread_time_ns()
        else:
            self.runs += 1
            self.longest_ms = max(self.longest_ms, (time.thread_time_ns() - self._since_ns) / 1e6)


def full_collection_ms() -> float:
    """Processor time of one full collection: what other load adds is no fault of the collector's."""
    start_ns = time.thread_time_ns()
    gc.collect()
    return (time.thread_time_ns() - start_ns) / 1e6


def measure(steps: int = STEPS) -> dict[str, Any]:
    """Pauses of this process, which is changed by it: see :func:`triptych.nodes.realtime.calm_collector`."""
    from triptych.nodes import convert, realtime
    from triptych.supervisor import SupervisorCore, load_faults
    from triptych.verification.memento import NOW_NS, STAMP_OFFSET_NS
    from triptych.verification.world import BUDGETS, CONFIG, Action, perform, selection

    rows = load_faults(resources.resource("config", "faults.yaml"))
    before_ms = full_collection_ms()
    realtime.calm_collector()
    after_ms = full_collection_ms()
    pauses, core = Pauses(), SupervisorCore(CONFIG, selection(rows), BUDGETS)
    now_ns, stamp_ns = NOW_NS, NOW_NS + STAMP_OFFSET_NS
    gc.callbacks.append(pauses)
    for _ in range(steps):
        now_ns, stamp_ns, step = perform(core, Action(), now_ns, stamp_ns)
        if step.commands.constraint is not None:
            convert.constraint_to_msg(step.commands.constraint)
    gc.callbacks.remove(pauses)
    return {
        "full_before_ms": before_ms,
        "full_after_ms": after_ms,
        "frozen_objects": gc.get_freeze_count(),
        "threshold": list(gc.get_threshold()),
        "steps": steps,
        "runs": pauses.runs,
        "longest_ms": pauses.longest_ms,
    }


def in_a_process() -> dict[str, Any] | None:
    """:func:`measure` in a fresh interpreter; ``None`` where a node's modules cannot be loaded."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "triptych.rt.collector"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(measure()))
