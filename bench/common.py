"""What the benches share: the stack on a DDS domain of its own, a listener, percentiles, results with provenance."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import psutil
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import Trigger

from triptych import dds
from triptych.contract import Tier
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, LATCHED_QOS, Subscription
from triptych.nodes.process import NodeSpec, Stack
from triptych.report.provenance import provenance
from triptych.resources import resource, share
from triptych_ros.msg import DegradationState, Detections, MotionConstraint, SceneAdvice, TierStatus

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
BUILT_IN = {tier: f"triptych-{tier.key}" for tier in Tier}


def built(tier: Tier) -> bool:
    """Whether the built-in engine of ``tier`` is there."""
    return (share() / "models" / BUILT_IN[tier] / "manifest.yaml").is_file()


def stats(values: Sequence[float]) -> dict[str, float | int]:
    """Count, median, 95th and 99th percentile (the next measured value above) and maximum; empty when there is none."""
    if not values:
        return {"n": 0}
    array = np.asarray(values, float)
    found: dict[str, float | int] = {"n": len(values)}
    for name, q in (("p50", 50), ("p95", 95), ("p99", 99)):
        found[name] = round(float(np.percentile(array, q, method="higher")), 3)
    found["max"] = round(float(array.max()), 3)
    return found


def write(path: Path, result: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write a result with its provenance, beside and then renamed."""
    tables = [resource("config", name) for name in ("params.yaml", "faults.yaml", "policy.yaml")]
    config = [*tables, resource("models")]
    document = {
        **result,
        "settings": dict(settings),
        "provenance": provenance(config, settings).model_dump(mode="json"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(fresh, path)


def source_path() -> dict[str, str]:
    """Beside the sources they are what is measured; an installed bench measures the installation."""
    return {"PYTHONPATH": str(SOURCE)} if SOURCE.is_dir() else {}


def environment(domain: int) -> dict[str, str]:
    """Of a process that joins the bench's domain."""
    user = {**os.environ, "ROS_DOMAIN_ID": str(domain), **source_path()}
    return {**user, **dds.environment(user)}


def spec(name: str, executable: str, **parameters: Any) -> NodeSpec:
    """A node with the shipped parameters, its own on top."""
    return NodeSpec(name, f"triptych.nodes.{executable}", resource("config", "params.yaml"), parameters)


def stack_specs(engines: Mapping[str, str], **supervisor: Any) -> tuple[list[NodeSpec], list[str]]:
    """Supervisor, safety core and tiers.

    Returns:
        The nodes, and the VLM tiers that are not built yet and need a stand-in.
    """
    missing = [t.key for t in (Tier.DISTILLED, Tier.FULL) if not built(t) and t.key not in engines]
    expected = {f"{key}_expected": key not in missing for key in ("distilled", "full")}
    specs = [
        spec("supervisor", "supervisor_node", **{**expected, **supervisor}),
        spec("safety_core", "safety_core_node"),
    ]
    for tier in Tier:
        if tier.key not in missing:
            own = {"engine": engines[tier.key]} if tier.key in engines else {}
            specs.append(spec(tier.key, "tier_node", **own))
    return specs, missing


class Script:
    """A Python script of the bench as a process: JSON lines out, commands in."""

    def __init__(self, name: str, *arguments: str, env: Mapping[str, str]) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / name), *arguments],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                print(line, end="", file=sys.stderr)

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def since(self, t_ns: int, event: str) -> list[dict[str, Any]]:
        """Events of a kind from a time on."""
        return [e for e in list(self.events) if e.get("event") == event and e["t_ns"] >= t_ns]

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(2)


@contextmanager
def _listening() -> Iterator[None]:
    """Threads started within stay off the time-critical core and go before the load, where that is permitted.

    Only those threads: what a process narrows for itself, the nodes that it starts would inherit.
    """
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, realtime.placement("view", tuple(sorted(everywhere))))
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Listener:
    """Keeps (time of receipt in ns on the clock of stamps, record) of each topic; takes no part in the stack."""

    def __init__(self, domain: int) -> None:
        os.environ.update({k: v for k, v in dds.environment().items() if k not in os.environ})
        self._context = rclpy.Context()
        with _listening():  # the middleware's threads take the time of receipt, ours must not make them wait at a lock
            rclpy.init(context=self._context, domain_id=domain)
            self._node = Node("bench_listener", context=self._context, start_parameter_services=False)
        self.seen: dict[str, list[tuple[int, Any]]] = {}
        self._sources: list[tuple[Subscription, list[tuple[int, Any]], Callable[[Any], Any]]] = []
        for tier in Tier:
            kind = Detections if tier is Tier.DETECTOR else SceneAdvice
            self.listen(kind, topics.RESULTS[tier].name, DATA_QOS, convert.result_from_msg)
            self.listen(TierStatus, topics.STATUSES[tier].name, DATA_QOS, convert.status_from_msg)
        self.listen(DegradationState, topics.STATE.name, LATCHED_QOS, convert.state_from_msg)
        self.listen(MotionConstraint, topics.CONSTRAINT.name, DATA_QOS, convert.constraint_from_msg)
        self.listen(DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, _diagnostics)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        with _listening():
            self._thread.start()

    def listen(self, kind: Any, topic: str, qos: Any, build: Callable[[Any], Any]) -> None:
        """Keep what comes on one more topic; ``build`` makes the record of a message."""
        store = self.seen[topic] = []
        self._sources.append((Subscription(self._node, kind, topic, qos), store, build))

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for subscription, store, build in self._sources:
                while (taken := subscription.take()) is not None:
                    store.append((int(taken[1]["received_timestamp"]), build(taken[0])))

    def since(self, topic: topics.Topic, t_ns: int = 0) -> list[tuple[int, Any]]:
        """What came on a topic from a time on."""
        return [(t, r) for t, r in list(self.seen[topic.name]) if t >= t_ns]

    def drain(self, topic: topics.Topic) -> list[tuple[int, Any]]:
        """What came on a topic since the last call; it is forgotten here."""
        store = self.seen[topic.name]
        count = len(store)  # what is appended meanwhile stays for the next call
        taken = store[:count]
        del store[:count]
        return taken

    def last(self, topic: topics.Topic) -> Any:
        """The newest record, None before the first."""
        store = self.seen[topic.name]
        return store[-1][1] if store else None

    def trigger(self, service: topics.Service, timeout_s: float = 10.0) -> bool:
        """Call a service without arguments; false where it refuses or does not answer."""
        client = self._node.create_client(Trigger, service.name)
        executor = SingleThreadedExecutor(context=self._context)
        try:
            if not client.wait_for_service(timeout_s):
                return False
            executor.add_node(self._node)
            future = client.call_async(Trigger.Request())
            executor.spin_until_future_complete(future, timeout_s)
            return bool(future.done() and future.result().success)
        finally:
            executor.remove_node(self._node)
            executor.shutdown(0.2)
            self._node.destroy_client(client)

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join(2)
        for subscription, *_ in self._sources:
            subscription.close()
        self._node.destroy_node()
        self._context.try_shutdown()


class Status(dict[str, str]):
    """The values of a diagnostic status, by name; beside them its level (0 OK, 1 warning, 2 error) and message."""

    def __init__(self, level: int, message: str, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.level, self.message = level, message


def _diagnostics(msg: DiagnosticArray) -> dict[str, Status]:
    return {s.name: Status(s.level[0], s.message, {v.key: v.value for v in s.values}) for s in msg.status}


@contextmanager
def running(
    specs: Sequence[NodeSpec], folder: Path, domain: int, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[Stack, Listener]]:
    """The stack, with these variables of the environment on top, and a listener."""
    stack = Stack(specs, folder, {**environment(domain), **(variables or {})})
    stack.start()
    try:
        listener = Listener(domain)
        try:
            yield stack, listener
        finally:
            listener.close()
    finally:
        stack.stop()


@contextmanager
def stand_ins(tiers: Iterable[str], domain: int) -> Iterator[None]:
    """Busy processes in place of tiers that are not built yet."""
    scripts = [Script("load.py", tier, env=environment(domain)) for tier in tiers]
    try:
        yield
    finally:
        for script in scripts:
            script.stop()


def until(condition: Callable[[], Any], seconds: float, what: str, stack: Stack | None = None) -> None:
    """Wait, looking after the stack.

    Raises:
        SystemExit: it did not happen; one sentence.
    """
    end = time.monotonic() + seconds
    while not condition():
        if stack is not None:
            stack.poll()
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not happen within {seconds:g} s.")
        time.sleep(0.02)


class Load:
    """CPU and memory of processes between two moments."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = {name: self._cpu(p) for name, p in self._processes.items()}
        self._began = time.monotonic()

    @staticmethod
    def _cpu(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    def read(self) -> dict[str, dict[str, float]]:
        """Percent of one core since the start, and proportional set size in MiB (shared memory counted once)."""
        elapsed = time.monotonic() - self._began
        found = {}
        for name, process in self._processes.items():
            percent = 100 * (self._cpu(process) - self._before[name]) / elapsed
            memory = process.memory_full_info()
            found[name] = {"cpu_percent": round(percent, 2), "pss_mib": round(memory.pss / 2**20, 1)}
        return found
