"""Reads what the machine has left. Any of it may block for a while: call it from a thread without a deadline.

That thread shares the interpreter with those that have one, so readings are kept short: the stack's processes are
looked for, which takes a look at every process there is, once in :data:`SEARCH_EVERY` readings only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import psutil

from triptych.supervisor.monitors.resource import MachineReading

SEARCH_EVERY = 10


class MachineReader:
    """Reads the machine; what cannot be read here is None.

    Args:
        folder: where runs are recorded; if it does not exist yet, the nearest folder above it counts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[psutil.Process] = []
        self._readings = 0

    def read(self) -> MachineReading:
        """One reading now."""
        if self._readings % SEARCH_EVERY == 0:
            self._processes = [process for _, process in stack_processes()]
        self._readings += 1
        memory = psutil.virtual_memory()
        return MachineReading(
            memory_used=1.0 - memory.available / memory.total,
            stack_memory=sum(_resident(p) for p in self._processes) / memory.total,
            temperature_c=temperature_c(),
            disk_used=disk_used(self._folder),
        )


def temperature_c() -> float | None:
    """Of the hottest sensor that Linux shows (hwmon, thermal zones), None if there is none."""
    sensors = getattr(psutil, "sensors_temperatures", dict)()
    values = [float(s.current) for group in sensors.values() for s in group if s.current is not None]
    known = [v for v in values if math.isfinite(v)]
    return max(known, default=None)


def disk_used(folder: Path) -> float | None:
    """Share 0..1 of what may be used of the disk under ``folder``, None if it cannot be read."""
    for place in (folder.absolute(), *folder.absolute().parents):
        try:
            return float(psutil.disk_usage(str(place)).percent) / 100.0
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def stack_processes() -> Iterator[tuple[str, psutil.Process]]:
    """Node name and process of every node with the same parent as we: whoever started the stack started them all."""
    me = psutil.Process()
    try:
        parent = me.parent()
        siblings = parent.children() if parent is not None else []
    except psutil.Error:
        siblings = []
    for process in dict.fromkeys([*siblings, me]):
        name = _node_name(process)
        if name:
            yield name, process


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _node_name(process: psutil.Process) -> str:
    """The node name in a process's command line, empty if it is none of ours."""
    try:
        line = process.cmdline()
    except psutil.Error:
        return ""
    module = next((part for part in line if "triptych.nodes." in part or part.endswith("_node")), "")
    if not module:
        return ""
    names = [part.partition(":=")[2] for part in line if part.startswith("__node:=")]
    return names[-1] if names else module.rpartition(".")[2].removesuffix("_node")
