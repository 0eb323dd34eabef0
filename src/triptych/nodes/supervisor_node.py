"""The supervisor as a ROS 2 node: messages in, :class:`triptych.supervisor.SupervisorCore` at 100 Hz, commands out.

The loop has a thread of its own. It empties its subscriptions by polling and never waits for the executor, which only
serves takeover, reset and parameters.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from std_srvs.srv import Trigger

from triptych.contract import InputError, Tier, crc_ok
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, LATCHED_QOS, PolledReader, create_publisher, sleep_until
from triptych.nodes.params import NodeParams, SupervisorParams, load
from triptych.nodes.runtime import Notes, diagnostic, diagnostics, main
from triptych.resources import resource
from triptych.supervisor import Commands, SupervisorConfig, SupervisorCore, load_faults
from triptych_ros.msg import (
    DegradationState,
    Detections,
    DriverState,
    MotionConstraint,
    SceneAdvice,
    TierStatus,
    Verdicts,
)

T = TypeVar("T")
_JITTER_TICKS = 1000
ODOMETRY_EVERY, SLOW_EVERY = 2, 5
"""Ticks between two looks at odometry, and at heartbeats, driver and VLM results (their limits are 0.3 s and more)."""


class SupervisorNode(Node):  # type: ignore[misc]
    """The supervisor. Parameters: :class:`triptych.nodes.params.SupervisorParams`."""

    def __init__(self, name: str = "supervisor", **options: Any) -> None:
        super().__init__(name, **options)
        self.finished = threading.Event()
        self.malloc_tuned = False
        self.params = load(self, SupervisorParams)
        names = set(SupervisorConfig.model_fields)
        config = SupervisorConfig(**{n: v for n, v in self.params.model_dump().items() if n in names})
        table = Path(self.params.fault_table) if self.params.fault_table else resource("config", "faults.yaml")
        self._latch = Latch(self.params.latch_file)
        self.core = SupervisorCore(config, load_faults(table), latched=self._latch.read())
        self.notes = Notes(self)
        self._period_ns = round(config.tick_period_s * 1e9)
        self._lock = threading.Lock()
        self._late_ms: deque[float] = deque(maxlen=_JITTER_TICKS)
        self._obtained = realtime.Obtained()
        self._constraint = create_publisher(self, MotionConstraint, topics.CONSTRAINT.name, DATA_QOS, self.notes)
        self._state = create_publisher(self, DegradationState, topics.STATE.name, LATCHED_QOS, self.notes)
        self._verdicts = create_publisher(self, Verdicts, topics.VERDICTS.name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._reader = self._subscribe()
        self.create_service(Trigger, topics.TAKEOVER.name, self._on_takeover)
        self.create_service(Trigger, topics.RESET.name, self._on_reset)
        self._stop = threading.Event()
        self._loop = threading.Thread(target=self._run, name="supervisor-loop", daemon=True)

    def _subscribe(self) -> PolledReader:
        reader, core = PolledReader(self), self.core

        def into(use: Callable[..., None], build: Callable[[Any], Any], checked: bool) -> Callable[[Any], None]:
            def take(msg: Any) -> None:
                try:
                    record = build(msg)
                except InputError as error:  # a number no enumeration knows: as good as not received
                    self.notes(str(error))
                    return
                now_ns = time.monotonic_ns()
                if checked:
                    use(record, now_ns, crc_ok(record))
                else:
                    use(record, now_ns)

            return take

        for tier in Tier:
            message = Detections if tier is Tier.DETECTOR else SceneAdvice
            result = into(core.on_result, convert.result_from_msg, True)
            every = 1 if tier is Tier.DETECTOR else SLOW_EVERY
            reader.add(message, topics.RESULTS[tier].name, DATA_QOS, result, self.notes, every)
            status = into(core.on_status, convert.status_from_msg, True)
            reader.add(TierStatus, topics.STATUSES[tier].name, DATA_QOS, status, self.notes, SLOW_EVERY)
        odometry = into(core.on_odometry, convert.odometry_from_msg, False)
        reader.add(OdometryMsg, topics.ODOMETRY.name, INPUT_QOS, odometry, self.notes, ODOMETRY_EVERY)
        driver = into(core.on_driver, convert.driver_from_msg, True)
        reader.add(DriverState, topics.DRIVER_STATE.name, INPUT_QOS, driver, self.notes, SLOW_EVERY)
        return reader

    def begin(self) -> None:
        """Apply scheduling and start the loop."""
        params: NodeParams = self.params
        self._obtained = realtime.apply(
            "supervisor", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned
        )
        self._loop.start()

    def _run(self) -> None:
        due_ns = time.monotonic_ns()
        while not self._stop.is_set():
            now_ns = time.monotonic_ns()
            self._late_ms.append((now_ns - due_ns) / 1e6)
            self._reader.poll()
            with self._lock:
                commands = self.core.step(time.monotonic_ns(), time.time_ns())
            self._send(commands)
            due_ns += self._period_ns
            # Ticks that were missed are not made up for: the core sees the gap and says so.
            due_ns = max(due_ns, time.monotonic_ns() - self._period_ns)
            sleep_until(due_ns)

    def _send(self, commands: Commands) -> None:
        if commands.constraint is not None:
            self._constraint.publish(convert.constraint_to_msg(commands.constraint))
        if commands.state is not None:
            self._state.publish(convert.state_to_msg(commands.state))
        if commands.verdicts is not None:
            self._verdicts.publish(convert.verdicts_to_msg(commands.verdicts, time.time_ns()))
        for change in commands.transitions:
            self.get_logger().info(f"{change.kind} {change.name}: {change.before} -> {change.after} {change.reason}")
        if commands.transitions:
            self._latch.write(self.core.latched)
        if commands.diagnostics is not None:
            statuses = [diagnostic(d.level, d.name, d.message, dict(d.values)) for d in commands.diagnostics]
            self._diagnostics.publish(diagnostics([*statuses, self._own_diagnostic()]))

    def _own_diagnostic(self) -> Any:
        late = sorted(self._late_ms) or [0.0]
        values = {
            "loop late p50 ms": f"{late[len(late) // 2]:.3f}",
            "loop late p99 ms": f"{late[int(len(late) * 0.99)]:.3f}",
            "loop late max ms": f"{late[-1]:.3f}",
            **self._obtained.values(),
            **self.notes.values(),
        }
        late_loop = late[-1] > 10.0
        return diagnostic(int(late_loop), "triptych: supervisor", "loop late" if late_loop else "ok", values)

    def _on_takeover(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            response.success, response.message = self.core.request_takeover(time.monotonic_ns())
        return response

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            response.success, response.message = self.core.request_reset(time.monotonic_ns())
        return response

    def close(self) -> None:
        """Stop the loop."""
        self._stop.set()
        if self._loop.is_alive():
            self._loop.join(0.5)
        self._reader.close()


class Latch:
    """Remembers across restarts of the process that a manoeuvre is not finished. An empty path remembers nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser() if path else None
        self._last: bool | None = None

    def read(self) -> bool:
        """Whether the last run ended within a manoeuvre."""
        return self._path is not None and self._path.exists()

    def write(self, latched: bool) -> None:
        """Note the state if it changed. A disk that refuses must not stop the loop."""
        if self._path is None or latched is self._last:
            return
        self._last = latched
        with contextlib.suppress(OSError):
            if latched:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                fresh = self._path.with_suffix(".tmp")
                fresh.write_text(f"{os.getpid()}\n")
                fresh.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(SupervisorNode)
