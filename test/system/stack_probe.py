"""Real nodes on a DDS domain of their own, and an ear on every topic. Deadlines are generous: machines are busy."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import Trigger

from triptych import dds
from triptych.contract import Tier
from triptych.nodes import convert, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, LATCHED_QOS, PolledReader
from triptych.nodes.process import NodeSpec, Stack
from triptych.resources import resource
from triptych_ros.msg import DegradationState, Detections, MotionConstraint, SceneAdvice, TierStatus, Verdicts

SLOW = 10.0
"""Time limits of the fault table are multiplied by this, so that a busy test machine is not a fault."""
_TIME_METRICS = ("gap_s", "content_s", "heartbeat_s", "age_s", "loop_gap_s", "late_n", "default_n")


def patient_faults(folder: Path) -> Path:
    """The shipped fault table with longer limits."""
    document = yaml.safe_load(resource("config", "faults.yaml").read_text())
    for row in document["faults"]:
        if row["metric"] in _TIME_METRICS:
            row["threshold"] = type(row["threshold"])(row["threshold"] * SLOW)
    path = folder / "faults.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


class Probe:
    """Keeps the last message of every topic, the time it came, and all of them in order."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = Node("probe", context=self.context)
        self.seen: dict[str, list[tuple[float, Any]]] = {}
        self._reader = PolledReader(self.node)
        for tier in Tier:
            kind = Detections if tier is Tier.DETECTOR else SceneAdvice
            self._add(kind, topics.RESULTS[tier].name, DATA_QOS, convert.result_from_msg)
            self._add(TierStatus, topics.STATUSES[tier].name, DATA_QOS, convert.status_from_msg)
        self._add(DegradationState, topics.STATE.name, LATCHED_QOS, convert.state_from_msg)
        self._add(MotionConstraint, topics.CONSTRAINT.name, DATA_QOS, convert.constraint_from_msg)
        self._add(MotionConstraint, topics.COMMAND.name, DATA_QOS, convert.constraint_from_msg)
        self._add(Verdicts, topics.VERDICTS.name, DATA_QOS, convert.verdicts_from_msg)
        self._add(Odometry, topics.ODOMETRY.name, INPUT_QOS, convert.odometry_from_msg)
        self._add(DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, _diagnostics)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, daemon=True),
            threading.Thread(target=self._executor.spin, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _add(self, kind: Any, topic: str, qos: Any, build: Callable[[Any], Any]) -> None:
        store = self.seen[topic] = []
        self._reader.add(kind, topic, qos, lambda msg: store.append((time.monotonic(), build(msg))))

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._reader.poll()
            time.sleep(0.005)

    def all(self, topic: topics.Topic, since: float = 0.0) -> list[Any]:
        """Every record of a topic received after a monotonic time."""
        return [record for when, record in list(self.seen[topic.name]) if when >= since]

    def last(self, topic: topics.Topic) -> Any:
        """The newest record, None before the first."""
        records = self.seen[topic.name]
        return records[-1][1] if records else None

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 60.0) -> float:
        """Wait until ``condition`` holds; returns how long it took.

        Raises:
            AssertionError: it did not happen; says what was expected and what the supervisor thought.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if condition():
                return time.monotonic() - began
            time.sleep(0.01)
        last = f"state {self.last(topics.STATE)}, constraint {self.last(topics.CONSTRAINT)}"
        raise AssertionError(f"not within {seconds:g} s: {what}; {last}")

    def diagnostic(self, name: str, since: float = 0.0) -> Any:
        """The newest diagnostic status of that name, None before the first."""
        found = None
        for array in self.all(topics.DIAGNOSTICS, since):
            found = array.get(name, found)
        return found

    def call(self, kind: Any, name: str, request: Any, seconds: float = 30.0) -> Any:
        """Call a service."""
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(seconds), f"no service {name}"
        time.sleep(0.5)  # the server has yet to find our end for its answer, which it drops otherwise
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        assert done.wait(seconds), f"no answer from {name}"
        result = future.result()
        self.node.destroy_client(client)
        return result

    def trigger(self, service: topics.Service) -> Any:
        """Call a trigger service of the supervisor."""
        return self.call(Trigger, service.name, Trigger.Request())

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._executor.shutdown(1.0)
        for thread in self._threads:
            thread.join(2)
        self._reader.close()
        self.node.destroy_node()
        self.context.try_shutdown()


def _diagnostics(msg: DiagnosticArray) -> dict[str, Any]:
    return {
        s.name: {"level": s.level[0], "message": s.message, "values": {v.key: v.value for v in s.values}}
        for s in msg.status
    }


def node(name: str, executable: str, **parameters: Any) -> NodeSpec:
    """A node with the shipped parameters and some of its own, scheduled like any other process."""
    own = {"scheduling": "normal", "cpus": "all", **parameters}
    return NodeSpec(name, f"triptych.nodes.{executable}", resource("config", "params.yaml"), own)


@contextmanager
def running(folder: Path, *specs: NodeSpec, environment: dict[str, str] | None = None) -> Iterator[tuple[Stack, Probe]]:
    """Start nodes, listen, and stop everything at the end."""
    domain = dds.claim_domain()
    own = {"ROS_DOMAIN_ID": str(domain), "PYTHONPATH": str(Path(topics.__file__).parents[2]), **(environment or {})}
    stack = Stack(specs, folder, {**os.environ, **dds.environment(), **own})
    stack.start()
    try:
        probe = Probe(domain)
        try:
            yield stack, probe
        finally:
            probe.close()
    finally:
        stack.stop()


def poll_for(stack: Stack, seconds: float, until: Callable[[], Any] = lambda: False) -> list[Any]:
    """Look after the nodes for some time, or until a condition holds; returns what happened to them."""
    events: list[Any] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        events += stack.poll()
        time.sleep(0.05)
    return events
