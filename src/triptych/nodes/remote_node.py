"""Tells a remote centre of a minimal risk manoeuvre. Nobody waits for it: it listens, keeps and delivers by itself.

One thread listens and writes to the queue on disk, another delivers; neither is known to the driving path.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import NavSatFix

from triptych.contract import ConstraintGuard, InputError, TriptychError, crc_ok
from triptych.contract.supervision import StateRecord
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, PolledReader, create_publisher
from triptych.nodes.params import RemoteParams, load
from triptych.nodes.runtime import Every, Notes, diagnostic, diagnostics, main
from triptych.remote import Backoff, Courier, Outbox, Position, Reporter, Settings, notifier
from triptych.remote.reporter import utc
from triptych_ros.msg import DegradationState
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg

POLL_PERIOD_S, DIAGNOSTICS_PERIOD_S = 0.05, 1.0
SILENT = "the supervisor is silent"
_SETTINGS = tuple(Settings.__dataclass_fields__)
# Every change of state counts, not only the newest.
_STATE_QOS = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class RemoteNode(Node):  # type: ignore[misc]
    """The notifier. Parameters: :class:`triptych.nodes.params.RemoteParams`."""

    def __init__(self, name: str = "remote", **options: Any) -> None:
        super().__init__(name, **options)
        self.failure: TriptychError | None = None
        self.malloc_tuned = False
        self.params = load(self, RemoteParams)
        self.notes = Notes(self)
        self._notifier = notifier(Settings(**{name: getattr(self.params, name) for name in _SETTINGS}))
        self.outbox = Outbox(Path(self.params.queue_file).expanduser(), self.params.queue_limit, self.params.vehicle_id)
        backoff = Backoff(self.params.retry_first_s, self.params.retry_max_s)
        self.courier = Courier(self.outbox, self._notifier, backoff, time.monotonic)
        self._reporter = Reporter(self.params.vehicle_id, self.outbox.last_event)
        self._guard = ConstraintGuard(self.params.constraint_timeout_s)
        self._state: StateRecord | None = None
        self._position: Position | None = None
        self._position_s = -math.inf
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._reader = PolledReader(self)
        # The state is read first, so that a constraint meets the state that explains it.
        self._reader.add(DegradationState, topics.STATE.name, _STATE_QOS, self._on_state, self.notes)
        self._reader.add(MotionConstraintMsg, topics.CONSTRAINT.name, DATA_QOS, self._on_constraint, self.notes)
        self._reader.add(NavSatFix, topics.POSITION.name, INPUT_QOS, self._on_position, self.notes)
        self._diagnose_s = 0.0
        self._error = ""
        self._work, self._stop = threading.Event(), threading.Event()
        self._loop = Every(POLL_PERIOD_S, self._listen, "remote")
        self._delivery = threading.Thread(target=self._deliver, name="delivery", daemon=True)

    def begin(self) -> None:
        """Apply scheduling and start."""
        params = self.params
        realtime.apply("remote", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        if self.outbox.damaged:
            self.notes(f"{self.params.queue_file}: {self.outbox.damaged} damaged lines were left out")
        self._delivery.start()
        self._loop.start()

    # -- listening -----------------------------------------------------------------------------------------------------

    def _on_state(self, msg: Any) -> None:
        try:
            record = convert.state_from_msg(msg)
        except InputError as error:
            self.notes(str(error))
            return
        if crc_ok(record):
            self._state = record
            self._report()
        else:
            self.notes(f"{topics.STATE.name}: wrong CRC")

    def _on_constraint(self, msg: Any) -> None:
        try:
            constraint = convert.constraint_from_msg(msg)
        except InputError as error:
            self.notes(str(error))
            return
        if self._guard.receive(constraint, time.monotonic_ns(), crc_ok=crc_ok(constraint)):
            self._report()
        else:
            self.notes(f"{topics.CONSTRAINT.name}: wrong CRC or an unusable number")

    def _on_position(self, msg: Any) -> None:
        values = (msg.latitude, msg.longitude)
        if msg.status.status < 0 or not all(math.isfinite(v) for v in values) or abs(values[0]) > 90:
            return
        if abs(values[1]) <= 180:
            altitude = float(msg.altitude) if math.isfinite(msg.altitude) else None
            at = utc(convert.from_time(msg.header.stamp))
            self._position = Position(
                latitude_deg=float(values[0]), longitude_deg=float(values[1]), altitude_m=altitude, at=at
            )
            self._position_s = time.monotonic()

    def _listen(self) -> None:
        self._reader.poll()
        self._report()
        now_s = time.monotonic()
        if now_s >= self._diagnose_s:
            self._diagnose_s = now_s + DIAGNOSTICS_PERIOD_S
            self._diagnose(now_s)

    def _report(self) -> None:
        now_ns = time.monotonic_ns()
        silence_s = self._guard.silence_s(now_ns)
        if silence_s is None:  # nothing is known yet, and nobody drives
            return
        constraint, record = self._guard.effective(now_ns, time.time_ns()), self._state
        if silence_s > self._guard.timeout_s:
            constraint, record = replace(constraint, reason=SILENT), None
        fresh = now_ns / 1e9 - self._position_s <= self.params.position_fresh_s
        report = self._reporter.look(
            constraint, record, now_ns / 1e9, time.time_ns(), self._position if fresh else None
        )
        if report is not None:
            letter = self.outbox.put(report)
            self.notes.log("info", f"message {letter.number}: {report.kind} {letter.state}, {report.event.reason}")
            self._work.set()

    # -- delivering ----------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        while not self._stop.is_set():
            self._work.clear()
            wait_s = self.courier.step()
            error = self.courier.last_error
            if error and error != self._error:
                self.notes.log("error", f"{self._notifier.name}: {error}; {len(self.outbox)} messages wait")
            self._error = error
            if wait_s > 0:
                self._work.wait(wait_s)

    def _diagnose(self, now_s: float) -> None:
        courier, waiting = self.courier, self.outbox.letters
        urgent = any(letter.urgent for letter in waiting)
        if self.outbox.disk_error:
            level = 2
            message = f"the queue is not on disk: {self.outbox.disk_error}; make room: until then a restart forgets it"
        elif courier.failures:
            level, message = (2 if urgent else 1), f"{self._notifier.name}: {courier.last_error}"
        else:
            level, message = 0, f"{self._notifier.name}: {'delivering' if waiting else 'nothing to tell'}"
        values = {
            "queue length": str(len(waiting)),
            "urgent waiting": str(sum(letter.urgent for letter in waiting)),
            "delivered": str(courier.delivered),
            "dropped": str(self.outbox.dropped),
            "failures in a row": str(courier.failures),
            "s since last success": _ago(courier.last_success_s, now_s),
            "s since last error": _ago(courier.last_failure_s, now_s),
            "last error": courier.last_error,
            **self.notes.values(),
        }
        self._diagnostics.publish(diagnostics([diagnostic(level, "triptych: remote", message, values)]))

    def close(self) -> None:
        """Stop; what waits stays on disk."""
        self._loop.stop()
        self._stop.set()
        self._work.set()
        self._notifier.close()
        if self._delivery.is_alive():
            self._delivery.join(0.5)
        self.outbox.close()
        self._reader.close()


def _ago(then_s: float | None, now_s: float) -> str:
    return "" if then_s is None else f"{now_s - then_s:.1f}"


if __name__ == "__main__":
    main(RemoteNode)
