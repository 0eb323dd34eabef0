"""The safety core as a ROS 2 node: the last hop between the supervisor and the vehicle.

The core itself (``src/safety_core``) runs in a thread that never runs Python. Two more threads carry records: one
writes what supervisor and vehicle say into the core's block, one sends the core's command whenever it changes and every
50 ms. If either of them hangs, the core or the vehicle hears nothing any more and stops: there is no third way.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from std_srvs.srv import Trigger

from triptych.contract import ConfigError, InputError, protect
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, BlockingReader, PolledReader, create_publisher
from triptych.nodes.params import SafetyCoreParams, load
from triptych.nodes.runtime import Notes, diagnostic, diagnostics, main
from triptych.safety import Cause, Loop, SafetyInputs, SafetyLimits, command_of, sentence
from triptych.safety.library import BLOCK_BYTES
from triptych_ros.msg import DriverState, MotionConstraint

LOOK_S = 0.01
"""Vehicle and driver are looked at this often; the supervisor wakes the thread."""
WAKE_S = 0.1
"""Longest sleep without a command, to notice the end of the core's loop."""
RESET_SEEN_S = 0.2
"""A reset is answered when the core had its cycles to obey it."""


def block_memory(path: str) -> Any:
    """Writable memory of the block's size: a file others can map too, or this process's own where ``path`` is empty.

    Raises:
        ConfigError: the file cannot be made.
    """
    if not path:
        return mmap.mmap(-1, BLOCK_BYTES)
    try:
        file = os.open(Path(path).expanduser(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, BLOCK_BYTES)
            return mmap.mmap(file, BLOCK_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(
            f"cannot be used as shared memory: {error}",
            where="parameters of node safety_core",
            field="block",
            value=path,
        ) from None


class SafetyCoreNode(Node):  # type: ignore[misc]
    """The last hop. Parameters: :class:`triptych.nodes.params.SafetyCoreParams`."""

    def __init__(self, name: str = "safety_core", **options: Any) -> None:
        super().__init__(name, **options)
        self.malloc_tuned = False
        self.params = load(self, SafetyCoreParams)
        self.notes = Notes(self)
        limits = SafetyLimits(**{n: getattr(self.params, n) for n in SafetyLimits.model_fields})
        self._memory = block_memory(self.params.block)
        self._loop = Loop(self._memory, limits, self.params.cycle_period_s, self.params.repeat_period_s)
        self._command = create_publisher(self, MotionConstraint, topics.COMMAND.name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._constraints = BlockingReader(self, MotionConstraint, topics.CONSTRAINT.name, DATA_QOS, self.notes)
        self._others = PolledReader(self)
        self._others.add(OdometryMsg, topics.ODOMETRY.name, INPUT_QOS, self._on_odometry, self.notes)
        self._others.add(DriverState, topics.DRIVER_STATE.name, INPUT_QOS, self._on_driver, self.notes)
        self.create_service(Trigger, topics.SAFETY_RESET.name, self._on_reset)
        self._inputs = SafetyInputs(self.params.driver_fresh_s)
        self._sent = 0
        self._obtained = realtime.Obtained()
        self._causes = Cause.WAITING
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="inputs", daemon=True),
            threading.Thread(target=self._tell, name="command", daemon=True),
        ]

    def begin(self) -> None:
        """Apply scheduling and start."""
        params = self.params
        self._obtained = realtime.apply(
            "safety_core", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned
        )
        self._loop.start()
        for thread in self._threads:
            thread.start()

    # ---- records in ----

    def _listen(self) -> None:
        while not self._stop.is_set():
            self._constraints.wait(LOOK_S)
            while (taken := self._constraints.take()) is not None:
                self._on_constraint(taken[0])
            self._others.poll()

    def _on_constraint(self, msg: Any) -> None:
        with self._noted():
            self._loop.write_constraint(self._inputs.constraint(convert.constraint_from_msg(msg)))

    def _on_odometry(self, msg: Any) -> None:
        with self._noted():
            self._loop.write_motion(self._inputs.motion(convert.odometry_from_msg(msg), time.monotonic_ns()))

    def _on_driver(self, msg: Any) -> None:
        with self._noted():
            self._inputs.driver(convert.driver_from_msg(msg), time.monotonic_ns())

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """What cannot be used is as good as not received, and said."""
        try:
            yield
        except InputError as error:
            self.notes(str(error))

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        before = self._causes
        self._inputs.resets += 1
        end_s = time.monotonic() + RESET_SEEN_S
        while self._causes and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        response.success = not self._causes
        if response.success:
            response.message = "Reset accepted." if before else "There was nothing to reset."
        else:
            response.message = f"Reset refused: {sentence(self._causes)}, or the vehicle does not stand."
        return response

    # ---- commands out ----

    def _tell(self) -> None:
        report_ns = 0
        while not self._stop.is_set():
            if self._loop.wait(WAKE_S):
                self._hand_on()
            if self._loop.ended and not self._stop.is_set():
                raise RuntimeError("the safety core's loop ended")  # the process ends, the vehicle hears nothing more
            if time.monotonic_ns() >= report_ns:
                report_ns = time.monotonic_ns() + 1_000_000_000
                self._report()

    def _hand_on(self) -> None:
        command = command_of(self._loop.command(), time.time_ns())
        if command is None:  # read while it was being written: the next one comes within a cycle
            return
        self._sent += 1
        self._command.publish(convert.constraint_to_msg(protect(command.constraint, self._sent)))
        if command.causes is not self._causes:
            own_stop = command.causes & ~Cause.WAITING
            self.notes.log("error" if own_stop else "info", command.constraint.reason or "the supervisor's word passes")
        self._causes = command.causes

    def _report(self) -> None:
        own_stop = self._causes & ~Cause.WAITING
        level = 2 if own_stop else 1 if self._causes else 0
        message = sentence(self._causes) if self._causes else "the supervisor's word passes"
        values = {
            **{f"{name.replace('_', ' ')} us": str(value) for name, value in self._loop.timing_us().items()},
            "library": str(self._loop.path),
            **self._obtained.values(),
            **self.notes.values(),
        }
        self._diagnostics.publish(diagnostics([diagnostic(level, "triptych: safety core", message, values)]))

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._constraints.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(0.5)
        self._loop.stop()
        self._constraints.close()
        self._others.close()


if __name__ == "__main__":
    main(SafetyCoreNode)
