"""The supervisor as a ROS 2 node: messages in, :class:`triptych.supervisor.SupervisorCore` step by step, commands out.

The loop has a thread of its own. It sleeps until a detector result arrives or the next tick is due, then empties all
subscriptions and makes one step; nothing in it waits for the executor (takeover, reset, parameters), log or disk.

Ticks come every ``tick_period_s`` (100 Hz) while the detector's next result is awaited, and at a quarter of that rate
right after one, when there is nothing to judge yet: half the processor time for the same reaction time. While nobody
at all is heard, a tick for each constraint to be sent is enough.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from std_srvs.srv import Trigger

from triptych.contract import InputError, Tier, crc_ok
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import (
    DATA_QOS,
    INPUT_QOS,
    LATCHED_QOS,
    BlockingReader,
    PolledReader,
    create_publisher,
    received_monotonic_ns,
)
from triptych.nodes.latch import Latch
from triptych.nodes.machine import MachineReader
from triptych.nodes.params import NodeParams, SupervisorParams, load
from triptych.nodes.runtime import Every, Notes, diagnostic, diagnostics, main
from triptych.resources import resource
from triptych.supervisor import Commands, SupervisorConfig, SupervisorCore, load_faults, load_policy
from triptych.supervisor.monitors.resource import MachineReading
from triptych_ros.msg import (
    DegradationState,
    Detections,
    DriverState,
    MotionConstraint,
    Obstacles,
    SceneAdvice,
    TierStatus,
    Verdicts,
)

T = TypeVar("T")
_JITTER_TICKS = 200
"""The diagnostics say how late the last ticks were: of some 4 s while driving."""
SLOW_EVERY = 2
"""Steps between two looks at heartbeats, driver and VLM results, whose limits are 0.5 s and more."""
SLOW_FACTOR = 2.5
"""A slow tick in fast ones: 25 ms, so that two of them are the period of the constraint."""
CALM_NS = 60_000_000
"""Until this long after a detector result ticks may be slow: a period, and 30 ms before its silence becomes a fault."""
JUST_AFTER_NS = 200_000
"""A limit on silence is exceeded from here on."""
WATCHED_NS = 1_000_000_000
"""After this long without a result its loss is an old story, and ticks are slow again."""


class SupervisorNode(Node):  # type: ignore[misc]
    """The supervisor. Parameters: :class:`triptych.nodes.params.SupervisorParams`."""

    def __init__(self, name: str = "supervisor", **options: Any) -> None:
        super().__init__(name, **options)
        self.malloc_tuned = False
        self.params = load(self, SupervisorParams)
        names = set(SupervisorConfig.model_fields)
        config = SupervisorConfig(**{n: v for n, v in self.params.model_dump().items() if n in names})
        table = Path(self.params.fault_table) if self.params.fault_table else resource("config", "faults.yaml")
        rules = Path(self.params.policy_table) if self.params.policy_table else resource("config", "policy.yaml")
        self.notes = Notes(self)
        self._latch = Latch(self.params.latch_file, self.notes)
        self.core = SupervisorCore(config, load_faults(table), latched=self._latch.read(), policy=load_policy(rules))
        self._period_ns = round(config.tick_period_s * 1e9)
        self._idle_ns = round((config.constraint_period_s - config.tick_period_s / 2) * 1e9)
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
        self._machine_reader = MachineReader(Path(self.params.record_folder).expanduser())
        self._machine = Every(self.params.machine_period_s, self._read_machine, "machine")

    def _subscribe(self) -> PolledReader:
        reader, core = PolledReader(self), self.core

        def into(use: Callable[..., None], build: Callable[[Any], Any], checked: bool) -> Callable[..., None]:
            def take(msg: Any, received_ns: int | None = None) -> None:
                try:
                    record = build(msg)
                except InputError as error:  # a number no enumeration knows: as good as not received
                    self.notes(str(error))
                    return
                if received_ns is None:
                    received_ns = time.monotonic_ns()
                if checked:
                    use(record, received_ns, crc_ok(record))
                else:
                    use(record, received_ns)

            return take

        for tier in Tier:
            message = Detections if tier is Tier.DETECTOR else SceneAdvice
            result = into(core.on_result, convert.result_from_msg, True)
            if tier is Tier.DETECTOR:
                self._prompt = BlockingReader(self, message, topics.RESULTS[tier].name, DATA_QOS, self.notes)
                self._on_prompt = result
            else:
                reader.add(message, topics.RESULTS[tier].name, DATA_QOS, result, self.notes, SLOW_EVERY)
            status = into(core.on_status, convert.status_from_msg, True)
            reader.add(TierStatus, topics.STATUSES[tier].name, DATA_QOS, status, self.notes, SLOW_EVERY)
        odometry = into(core.on_odometry, convert.odometry_from_msg, False)
        reader.add(OdometryMsg, topics.ODOMETRY.name, INPUT_QOS, odometry, self.notes)
        command = into(core.on_command, convert.constraint_from_msg, True)
        reader.add(MotionConstraint, topics.COMMAND.name, DATA_QOS, command, self.notes, SLOW_EVERY)
        if core.config.lidar_expected:
            obstacles = into(core.on_obstacles, convert.obstacles_from_msg, True)
            reader.add(Obstacles, topics.OBSTACLES.name, DATA_QOS, obstacles, self.notes, SLOW_EVERY)
        driver = into(core.on_driver, convert.driver_from_msg, True)
        reader.add(DriverState, topics.DRIVER_STATE.name, INPUT_QOS, driver, self.notes, SLOW_EVERY)
        return reader

    def begin(self) -> None:
        """Apply scheduling and start the loop."""
        params: NodeParams = self.params
        self._obtained = realtime.apply(
            "supervisor", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned
        )
        self._latch.start()
        self._loop.start()
        self._machine.start()

    def _read_machine(self) -> None:
        try:
            reading = self._machine_reader.read()
        except (OSError, psutil.Error) as error:
            self.notes(f"the machine cannot be read: {error}", key="machine")
            reading = MachineReading()
        self.core.on_machine(reading, time.monotonic_ns())

    def _run(self) -> None:
        result_ns = heard_ns = -WATCHED_NS
        while not self._stop.is_set():
            while (taken := self._prompt.take()) is not None:
                result_ns = heard_ns = received_monotonic_ns(taken[1])
                self._on_prompt(taken[0], result_ns)
            heard = self._reader.poll() > 0
            now_ns = time.monotonic_ns()
            if heard:
                heard_ns = now_ns
            with self._lock:
                commands = self.core.step(now_ns, time.time_ns())
            self._send(commands)
            # A tick that was missed is not made up for: the core sees the gap and says so.
            idle = now_ns - heard_ns >= WATCHED_NS
            due_ns = now_ns + (self._idle_ns if idle else until_next_ns(now_ns - result_ns, self._period_ns))
            left_ns = due_ns - time.monotonic_ns()
            if left_ns > 0:
                if idle:
                    time.sleep(left_ns / 1e9)  # a tenth of what it costs to watch a subscription meanwhile
                elif self._prompt.wait(left_ns / 1e9):
                    continue
            self._late_ms.append((time.monotonic_ns() - due_ns) / 1e6)

    def _send(self, commands: Commands) -> None:
        if commands.constraint is not None:
            self._constraint.publish(convert.constraint_to_msg(commands.constraint))
        if commands.state is not None:
            self._state.publish(convert.state_to_msg(commands.state))
        if commands.verdicts is not None:
            self._verdicts.publish(convert.verdicts_to_msg(commands.verdicts, time.time_ns()))
        for change in commands.transitions:
            text = f"{change.kind} {change.name}: {change.before} -> {change.after} {change.reason}"
            self.notes.log("info", text.rstrip())
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
        level, message = (1, "loop late") if late[-1] > 10.0 else (0, "ok")
        if self._latch.fault:
            level, message = 2, self._latch.fault
        return diagnostic(level, "triptych: supervisor", message, values)

    def _on_takeover(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            response.success, response.message = self.core.request_takeover(time.monotonic_ns())
        return response

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            response.success, response.message = self.core.request_reset(time.monotonic_ns())
        return response

    def close(self) -> None:
        """Stop the threads."""
        self._machine.stop()
        self._stop.set()
        self._prompt.wake()
        if self._loop.is_alive():
            self._loop.join(0.5)
        self._latch.close()
        self._prompt.close()
        self._reader.close()


def until_next_ns(silence_ns: int, period_ns: int) -> int:
    """Time to the next tick.

    Args:
        silence_ns: since the detector's last result.
        period_ns: of fast ticks.
    """
    slow_ns = round(period_ns * SLOW_FACTOR)
    if silence_ns < CALM_NS - slow_ns or silence_ns >= WATCHED_NS:
        return slow_ns
    # Whole periods after the result, and a little: limits are whole periods, and lateness must not add up.
    return max(CALM_NS - silence_ns, period_ns - silence_ns % period_ns) + JUST_AFTER_NS


if __name__ == "__main__":
    main(SupervisorNode)
