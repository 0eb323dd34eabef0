"""Starts, watches and stops the nodes of a run as operating-system processes (the route without ``ros2 launch``).

Promises: a crashed node comes back after a back-off; :meth:`Stack.stop` ends everything within ``STOP_S``; if this
process dies in any way, the kernel kills the nodes (``PR_SET_PDEATHSIG``), so that no orphan goes on publishing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from triptych import dds
from triptych.contract import ConfigError
from triptych.lifetime import PR_SET_PDEATHSIG, end_with

STOP_S = 1.9
"""SIGINT at once, SIGTERM after 0.6 of it, SIGKILL after 0.8: a run ends within 2 s of Ctrl-C."""
BACKOFF_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Wait before the n-th restart in a row; the last value repeats."""
HEALTHY_S = 10.0
"""A node that lived this long starts its back-off from the beginning."""
REFUSED_CODE = 2
"""Exit code of a node that a user's mistake keeps from working: starting it again would not help."""
STARTER_VARIABLE = "TRIPTYCH_STARTER_PID"
"""Set for a node by a starter that cannot do it for the node (``ros2 launch``): see :func:`end_with_starter`."""
_EXCUSES = re.compile(r"^\s*(File |Traceback|\^|~|\[(INFO|DEBUG)\])|^\s*$")


@dataclass(frozen=True)
class NodeSpec:
    """One node of a run.

    Attributes:
        name: node name, also the name of its log file.
        module: Python module run with ``-m``, e.g. ``triptych.nodes.tier_node``.
        params_file: ROS parameter file, usually ``config/params.yaml``.
        parameters: overrides on top of it, any YAML value.
        remaps: topic or service name -> name.
        respawn: restart it when it ends with an error.
        ends_run: when it ends without an error the run is over (the source of frames).
    """

    name: str
    module: str
    params_file: Path | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    remaps: Mapping[str, str] = field(default_factory=dict)
    respawn: bool = True
    ends_run: bool = False


@dataclass(frozen=True)
class ProcessEvent:
    """What happened to a node, in one sentence.

    ``kind`` is ``started``, ``crashed``, ``restarted``, ``finished``, or ``refused``: see :data:`REFUSED_CODE`; a node
    that refuses to start *again* counts as crashed.
    """

    node: str
    kind: str
    text: str


@dataclass
class _Running:
    spec: NodeSpec
    log: IO[bytes]
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    crashes: int = 0
    restart_at_s: float | None = None
    finished: bool = False


class Stack:
    """The processes of one run. Call it from the main thread: ``PR_SET_PDEATHSIG`` follows the starting thread.

    Attributes:
        restarts: by node name.
        refusal: the sentence of a node that refused to start; empty while none did.

    Args:
        specs: nodes in start order.
        run_folder: where parameter overrides and logs go.
        environment: complete environment of the nodes.

    Raises:
        ConfigError: two nodes with one name.
    """

    def __init__(self, specs: Sequence[NodeSpec], run_folder: Path, environment: Mapping[str, str]) -> None:
        names = [s.name for s in specs]
        if len(set(names)) != len(names):
            raise ConfigError("two nodes have the same name", field="name", value=names, remedy="rename one")
        self._environment = dict(environment)
        self._folder = run_folder / "logs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._nodes = [_Running(s, (self._folder / f"{s.name}.log").open("ab"), self._command(s)) for s in specs]
        self.restarts: dict[str, int] = dict.fromkeys(names, 0)
        self.refusal = ""

    def _command(self, spec: NodeSpec) -> list[str]:
        command = [sys.executable, "-m", spec.module, "--ros-args", "-r", f"__node:={spec.name}"]
        for name, other in spec.remaps.items():
            command += ["-r", f"{name}:={other}"]
        if spec.params_file is not None:
            command += ["--params-file", str(spec.params_file)]
        if spec.parameters:
            path = self._folder / f"{spec.name}.params.yaml"
            path.write_text(yaml.safe_dump({f"/**/{spec.name}": {"ros__parameters": dict(spec.parameters)}}))
            command += ["--params-file", str(path)]
        return command

    def start(self) -> list[ProcessEvent]:
        """Start every node."""
        return [self._launch(node, "started") for node in self._nodes]

    def _launch(self, node: _Running, kind: str) -> ProcessEvent:
        environment = self._environment
        if kind == "restarted":
            environment = {**environment, **dds.restart_environment(environment)}
        node.process = subprocess.Popen(
            node.command,
            stdin=subprocess.DEVNULL,
            stdout=node.log,
            stderr=node.log,
            env=environment,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        node.started_s, node.restart_at_s = time.monotonic(), None
        return ProcessEvent(node.spec.name, kind, f"{node.spec.name} {kind} (pid {node.process.pid})")

    def poll(self) -> list[ProcessEvent]:
        """Look after the nodes: report what ended, restart what is due. Call it several times a second."""
        events, now_s = [], time.monotonic()
        for node in self._nodes:
            if node.process is not None and (code := node.process.poll()) is not None:
                events.append(self._ended(node, code, now_s))
            if node.restart_at_s is not None and now_s >= node.restart_at_s:
                self.restarts[node.spec.name] += 1
                events.append(self._launch(node, "restarted"))
        return events

    def _ended(self, node: _Running, code: int, now_s: float) -> ProcessEvent:
        node.process, name = None, node.spec.name
        if code == 0:
            node.finished = True
            return ProcessEvent(name, "finished", f"{name} finished")
        if code == REFUSED_CODE and not self.restarts[name]:  # later, while driving, a refusal ends nobody else's work
            node.finished = True
            self.refusal = self.last_words(name) or f"{name} refused to start; see {self.log_path(name)}."
            return ProcessEvent(name, "refused", self.refusal)
        if now_s - node.started_s > HEALTHY_S:
            node.crashes = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = self.last_words(name)
        text = f"{name} {how}" + (f": {reason}" if reason else "")
        if not node.spec.respawn:
            node.finished = True
            return ProcessEvent(name, "crashed", text)
        wait_s = BACKOFF_S[min(node.crashes, len(BACKOFF_S) - 1)]
        node.crashes += 1
        node.restart_at_s = now_s + wait_s
        return ProcessEvent(name, "crashed", f"{text}; restart in {wait_s:g} s")

    @property
    def over(self) -> bool:
        """Whether a node that ends the run has ended, one refused to start, or none is left that could run again."""
        return (
            bool(self.refusal)
            or any(n.finished and n.spec.ends_run for n in self._nodes)
            or all(n.finished for n in self._nodes)
        )

    def pids(self) -> dict[str, int]:
        """Process ids of the nodes that run now."""
        return {n.spec.name: n.process.pid for n in self._nodes if n.process is not None}

    def log_path(self, name: str) -> Path:
        """Where the output of a node goes."""
        return self._folder / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last line of a node's output that says something, without stack-trace lines; at most 300 characters."""
        with contextlib.suppress(OSError):
            lines = self.log_path(name).read_bytes()[-20_000:].decode(errors="replace").splitlines()
            for line in reversed(lines):
                if not _EXCUSES.search(line):
                    return line.strip()[:300]
        return ""

    def stop(self, stop_s: float = STOP_S) -> list[str]:
        """End all nodes within ``stop_s`` seconds, politely first. Returns the names of those that had to be killed."""
        begin_s = time.monotonic()
        running = {n.spec.name: n.process for n in self._nodes if n.process is not None}
        for node in self._nodes:
            node.restart_at_s = None
        killed: list[str] = []
        for number, share in ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.8), (signal.SIGKILL, 1.0)):
            alive = {name: p for name, p in running.items() if p.poll() is None}
            if number == signal.SIGKILL:
                killed = sorted(alive)
            for process in alive.values():
                _signal_group(process, number)
            while any(p.poll() is None for p in alive.values()) and time.monotonic() - begin_s < share * stop_s:
                time.sleep(0.01)
        for node in self._nodes:
            node.log.close()
        return killed

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
        os.killpg(process.pid, signal.SIGCONT)  # a stopped process must wake up to end


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_starter() -> None:
    """Called by a node at its start: be told (SIGTERM) when the process that :data:`STARTER_VARIABLE` names dies.

    ``ros2 launch`` leaves its nodes behind when it is killed or terminated; a second supervisor beside a forgotten
    first one would be two masters of one vehicle. Without the variable, a node outlives whoever started it.
    """
    starter = os.environ.get(STARTER_VARIABLE, "")
    if not starter:
        return
    end_with(int(starter))
