"""Writes a run to disk: all messages of the stack as an MCAP bag, and the record that reports are made of.

Low priority: it polls at 20 Hz and takes the time of receipt from the middleware. Messages go into the bag as they
arrived, byte for byte.

A disk that takes no more ends the recording, not the node: the vehicle drives on without it, and the diagnostics say
so. The record keeps every whole line it has; the bag, which has no end and no metadata, gives back the room it took.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import psutil
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import String

from triptych.contract import BUDGETS, DriverState, InputError, Tier, TriptychError, VerdictLevel
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, LATCHED_QOS, SENSOR_QOS, Subscription, create_publisher
from triptych.nodes.machine import stack_processes
from triptych.nodes.params import RecorderParams, load
from triptych.nodes.runtime import Every, Notes, diagnostic, diagnostics, main
from triptych.replay import record
from triptych.replay.writer import BagWriter
from triptych_ros.msg import DegradationState, Detections, MotionConstraint, SceneAdvice, TierStatus, Verdicts
from triptych_ros.msg import DriverState as DriverStateMsg

POLL_PERIOD_S, DIAGNOSTICS_PERIOD_S = 0.05, 1.0
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
_ANY_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)
_JPEG_QUALITY = 85


def free_path(path: Path) -> Path:
    """``path`` if nothing is there, else the same with ``_2``, ``_3``, ... before its suffix (a restarted recorder)."""
    number, candidate = 1, path
    while candidate.exists() or candidate.with_name(candidate.name + ".part").exists():
        number += 1
        candidate = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return candidate


class RecorderNode(Node):  # type: ignore[misc]
    """The recorder. Parameters: :class:`triptych.nodes.params.RecorderParams`.

    Attributes:
        failure: why nothing is recorded any more.

    Raises:
        TriptychError: the folder cannot be written, for another reason than want of room.
    """

    def __init__(self, name: str = "recorder", **options: Any) -> None:
        super().__init__(name, **options)
        self.failure: TriptychError | None = None
        self.malloc_tuned = False
        self.params = load(self, RecorderParams)
        self.notes = Notes(self)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._next_diagnostics_s = 0.0
        folder = Path(self.params.folder).expanduser()
        meta = {
            "mode": self.params.mode,
            "input": self.params.input,
            "tiers": [name for name in self.params.tiers.split(",") if name],
            "started_ns": time.time_ns(),
            "budgets": {
                tier.key: {"budget_s": b.budget_s, "keep_s": b.keep_s, "period_s": b.period_s}
                for tier, b in BUDGETS.items()
            },
        }
        # A record that is there already is from before a crash of this run; an older bag alone is from an older run.
        again = (folder / "record.jsonl").exists() or (folder / "record.jsonl.part").exists()
        bag = free_path(folder / "results") if again else folder / "results"
        self._record: record.RecordWriter | None = None
        self._bag: BagWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._record = record.RecordWriter(free_path(folder / "record.jsonl"), meta)
            if self.params.write_mcap:
                self._bag = BagWriter(bag, latched=[topics.STATE.name], overwrite=True)
        except (OSError, TriptychError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            failure = TriptychError(
                f"cannot be written: {cause.strerror}", where=folder, remedy="check permissions and free space"
            )
            if cause.errno not in NO_ROOM:
                raise failure from None
            self._fail(failure)
        self._camera = Subscription(self, Image, topics.CAMERA_IMAGE.name, SENSOR_QOS, self.notes)
        self._sources: list[tuple[Subscription, topics.Topic, Callable[[int, Any], None]]] = []
        self._last_verdicts: dict[str, tuple[VerdictLevel, bool]] = {}
        self._last_driver: DriverState | None = None
        self._last_state: Any = None
        self._frames = self._size = 0
        self._samples, self._next_sample_s = 0, 0.0
        self._processes: dict[int, tuple[str, psutil.Process]] = {}
        self._next_cpu_s = 0.0
        self._closed = False
        self._subscribe()
        self._loop = Every(POLL_PERIOD_S, self._poll, "recorder")

    def _subscribe(self) -> None:
        def add(topic: topics.Topic, kind: Any, qos: QoSProfile, note: Callable[[int, Any], None]) -> None:
            self._sources.append((Subscription(self, kind, topic.name, qos, self.notes), topic, note))

        for tier in Tier:
            result = Detections if tier is Tier.DETECTOR else SceneAdvice
            add(topics.RESULTS[tier], result, _QOS, self._on_result)
            add(topics.STATUSES[tier], TierStatus, _QOS, self._on_status)
        add(topics.STATE, DegradationState, LATCHED_QOS, self._on_state)
        add(topics.CONSTRAINT, MotionConstraint, _QOS, self._on_constraint)
        add(topics.COMMAND, MotionConstraint, _QOS, lambda t_ns, msg: None)
        add(topics.VERDICTS, Verdicts, _QOS, self._on_verdicts)
        add(topics.ODOMETRY, OdometryMsg, _ANY_QOS, self._on_odometry)
        add(topics.DRIVER_STATE, DriverStateMsg, _ANY_QOS, self._on_driver)
        add(topics.FULL_QUESTION, String, _ANY_QOS, lambda t_ns, msg: None)

    def begin(self) -> None:
        """Apply scheduling and start polling."""
        params = self.params
        realtime.apply("recorder", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._loop.start()

    # -- intake ------------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        now_s = time.monotonic()
        if self.failure is None:
            self._take_in(now_s)
        if now_s >= self._next_diagnostics_s:
            self._next_diagnostics_s = now_s + DIAGNOSTICS_PERIOD_S
            self._report()

    def _take_in(self, now_s: float) -> None:
        try:
            for subscription, topic, note in self._sources:
                self._drain(subscription, topic, note)
            if self._samples < self.params.sample_frames and now_s >= self._next_sample_s:
                self._sample(now_s)
            if now_s >= self._next_cpu_s:
                self._next_cpu_s = now_s + self.params.cpu_period_s
                self._measure()
        except TriptychError as error:
            self._fail(error)
        except OSError as error:
            folder = Path(self.params.folder).expanduser()
            self._fail(TriptychError(f"cannot be written: {error.strerror}", where=folder, remedy="check free space"))

    def _fail(self, error: TriptychError) -> None:
        """End the recording; the node lives on to say so."""
        self.failure = error
        self.notes(f"recording has ended: {error}", key="failure")
        bag, self._bag = self._bag, None
        if bag is not None:
            bag.abort()
        self._end_record()

    def _end_record(self) -> None:
        writer, self._record = self._record, None
        if writer is not None:
            with suppress(OSError):  # a full disk: the record ends without its end, and is read all the same
                writer.add_meta({"ended_ns": time.time_ns()})
            with suppress(OSError):
                writer.close()

    def _report(self) -> None:
        level, message = (0, "recording") if self.failure is None else (2, f"nothing is recorded: {self.failure}")
        self._diagnostics.publish(diagnostics([diagnostic(level, "triptych: recorder", message, self.notes.values())]))

    def _add(self, entry: record.Entry) -> None:
        if self._record is not None:
            self._record.add(entry)

    def _drain(self, subscription: Subscription, topic: topics.Topic, note: Callable[[int, Any], None]) -> None:
        while True:
            taken = subscription.take_raw()
            if taken is None:
                return
            data, info = taken
            t_ns = int(info.get("received_timestamp") or time.time_ns())
            if self._bag is not None:
                self._bag.write(topic.name, topic.type, data, t_ns)
            try:
                note(t_ns, deserialize_message(data, subscription.msg_type))
            except InputError as error:
                self.notes(str(error))
                self._add(record.Event(t_ns, topic.name, str(error)))

    def _on_result(self, t_ns: int, msg: Any) -> None:
        self._add(record.Received(t_ns, convert.result_from_msg(msg)))

    def _on_status(self, t_ns: int, msg: Any) -> None:
        self._add(record.StatusRecord(t_ns, convert.status_from_msg(msg)))

    def _on_state(self, t_ns: int, msg: Any) -> None:
        state = convert.state_from_msg(msg)
        entry = record.StateRecord(
            t_ns=t_ns,
            state=state.state,
            previous=state.previous,
            reason=state.reason,
            active_faults=state.active_faults,
            takeover_requested=state.takeover_requested,
            takeover_remaining_s=state.takeover_remaining_s,
        )
        same = replace(entry, t_ns=0, takeover_remaining_s=0.0)
        if same != self._last_state:
            self._last_state = same
            self._add(entry)

    def _on_constraint(self, t_ns: int, msg: Any) -> None:
        self._add(record.ConstraintRecord(t_ns, convert.constraint_from_msg(msg)))

    def _on_verdicts(self, t_ns: int, msg: Any) -> None:
        for v in convert.verdicts_from_msg(msg):
            if self._last_verdicts.get(v.fault_id) == (v.level, v.active):
                continue
            self._last_verdicts[v.fault_id] = (v.level, v.active)
            self._add(record.VerdictRecord(t_ns, v.fault_id, v.source, v.level, v.active, v.value, v.threshold, v.text))

    def _on_odometry(self, t_ns: int, msg: Any) -> None:
        self._add(record.OdometryRecord(t_ns, convert.odometry_from_msg(msg)))

    def _on_driver(self, t_ns: int, msg: Any) -> None:
        driver = convert.driver_from_msg(msg)
        same = replace(driver, stamp_ns=0, sequence_counter=0, crc=0)
        if same != self._last_driver:
            self._last_driver = same
            self._add(record.DriverRecord(t_ns, driver))

    def _sample(self, now_s: float) -> None:
        taken = self._camera.take()
        if taken is None:
            return
        self._next_sample_s = now_s + self.params.sample_period_s
        t_ns = int(taken[1].get("received_timestamp") or time.time_ns())
        try:
            frame = convert.frame_from_image(taken[0], 1, t_ns)
        except InputError as error:
            self._add(record.Event(t_ns, topics.CAMERA_IMAGE.name, str(error)))
            return
        good, jpeg = cv2.imencode(".jpg", frame.image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        if good:
            self._samples += 1
            self._add(record.SampleFrame(t_ns, frame.stamp_ns, frame.width, frame.height, jpeg.tobytes()))

    # -- load of the stack's processes ---------------------------------------------------------------------------------

    def _measure(self) -> None:
        self._find_processes()
        now_ns = time.time_ns()
        for pid, (name, process) in list(self._processes.items()):
            try:
                percent, rss = process.cpu_percent(), process.memory_info().rss
            except psutil.Error:
                del self._processes[pid]
                continue
            self._add(record.CpuSample(now_ns, name, percent, rss))

    def _find_processes(self) -> None:
        for name, process in stack_processes():
            if process.pid not in self._processes:
                process.cpu_percent()  # the first reading is the reference
                self._processes[process.pid] = (name, process)

    def close(self) -> None:
        """Take in what is left and finish the files. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        # The run is over and there is little time: no more reason to give way to anybody.
        realtime.apply("none", "all", "normal")
        self._loop.stop()
        if self.failure is None:
            self._take_in(time.monotonic())
        self._end_record()
        bag, self._bag = self._bag, None
        if bag is not None:
            bag.close()
        for subscription, *_ in self._sources:
            subscription.close()
        self._camera.close()


if __name__ == "__main__":
    main(RecorderNode)
