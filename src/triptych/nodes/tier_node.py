"""A tier as a ROS 2 lifecycle node: configure loads and checks the engine, activate tests and warms it up.

The heartbeat runs from construction to the end, whatever the state, so that a refused engine is heard of and not just
missing. Results go out only while active. Frames are read on a wait set of their own by one thread, inference
runs in another (:class:`triptych.tiers.Tier`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from triptych.contract import (
    ConfigError,
    InputError,
    TierResult,
    TierState,
    TierStatus,
    TriptychError,
    protect,
)
from triptych.contract import Tier as TierName
from triptych.contract.result import MAX_QUESTION
from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.engines.manifest import load_manifest
from triptych.engines.protocol import Engine
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, SENSOR_QOS, BlockingReader, Skipped, create_publisher
from triptych.nodes.params import TierParams, load
from triptych.nodes.runtime import Every, Notes, diagnostic, diagnostics, main
from triptych.tiers import Tier
from triptych.tiers.monitors import InputWatch
from triptych.tiers.redundancy import CLOSE, EXACT, RedundantEngine, check_time, redundant
from triptych_ros.msg import Detections, SceneAdvice
from triptych_ros.msg import TierStatus as TierStatusMsg

FAULT_BYTES = 160


class TierNode(LifecycleNode):  # type: ignore[misc]
    """One tier. Parameters: :class:`triptych.nodes.params.TierParams`."""

    def __init__(self, name: str = "detector", **options: Any) -> None:
        super().__init__(name, **options)
        self.malloc_tuned = False
        self._change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state
        self.params = load(self, TierParams)
        self.tier = self._which()
        self.budget = self.params.budget(self.tier)
        self.notes = Notes(self)
        message = Detections if self.tier is TierName.DETECTOR else SceneAdvice
        self._results = create_publisher(self, message, topics.RESULTS[self.tier].name, DATA_QOS, self.notes)
        self._statuses = create_publisher(self, TierStatusMsg, topics.STATUSES[self.tier].name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._obtained = realtime.Obtained()
        self._engine: Engine | None = None
        self._tier: Tier | None = None
        self._fault = ""
        self._reader: BlockingReader | None = None
        self._reading: threading.Thread | None = None
        self._questions: Any = None
        self._sequence = 0
        self._last_diagnostics_s = 0.0
        self._frames = 0
        self._input_error = ""
        self._heartbeat = Every(self.params.heartbeat_period_s, self._beat, "heartbeat")

    def _which(self) -> TierName:
        key = self.params.tier or self.get_name()
        try:
            return TierName[key.upper()]
        except KeyError:
            raise ConfigError(
                "cannot tell the tier from the node's name",
                where=f"parameters of node {self.get_name()}",
                field="tier",
                value=key,
                remedy="set it to detector, distilled or full",
            ) from None

    def begin(self) -> None:
        """Apply scheduling, start the heartbeat and, with ``autostart``, configure and activate."""
        self._obtained = realtime.apply(
            self.tier.key, self.params.cpus, self.params.scheduling, self.params.lock_memory, self.malloc_tuned
        )
        self._heartbeat.start()
        if self.params.autostart and self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def _on_change_state(self, request: Any, response: Any) -> Any:
        """As rclpy does it, but a transition that the present state does not have is answered instead of raised."""
        try:
            return self._change_state(request, response)
        except Exception as error:
            self.get_logger().error(f"transition {request.transition.id} {request.transition.label} refused: {error}")
            response.success = False
            return response

    def _guarded(self, what: str, work: Callable[[], None]) -> TransitionCallbackReturn:
        """Run a transition; nothing it raises is lost: it is logged, in the heartbeat, and the node lives on."""
        try:
            work()
        except TriptychError as error:
            self._fault = str(error)
            self.get_logger().error(f"{what} refused: {error}")
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self._fault = f"{what} failed: {type(error).__name__}: {error}"
            self.get_logger().error(self._fault)
            return TransitionCallbackReturn.ERROR
        self._fault = ""
        return TransitionCallbackReturn.SUCCESS

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load and check the engine."""
        return self._guarded("configure", self._load)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Self-test, warm-up, then frames."""
        result = self._guarded("activate", self._start)
        if result != TransitionCallbackReturn.SUCCESS:
            fault = self._fault
            self._halt()
            self._fault = fault
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop frames and inference; the engine stays loaded."""
        return self._guarded("deactivate", self._halt)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the engine."""
        return self._guarded("cleanup", self._free)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything."""
        return self._guarded("shutdown", self._free)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an exception in a transition: free what can be freed and be configurable again; the fault stays."""
        fault = self._fault
        with contextlib.suppress(Exception):
            self._free()
        self._fault = fault
        return TransitionCallbackReturn.SUCCESS

    def _load(self) -> None:
        self._engine = self._new_engine()

    def _new_engine(self) -> Engine:
        params = self.params
        manifest = locate(params.engine or f"triptych-{self.tier.key}")

        def one() -> Engine:
            return load_engine(manifest, params.device, params.threads, params.engine_dir or None)

        if params.redundancy != "none":
            nominal_ms = load_manifest(manifest).latency.nominal_ms
            where = f"parameters of node {self.get_name()}"
            check_time(params.redundancy, params.instances, nominal_ms, self.budget, where)
        repeatable = params.device == "cpu" and params.threads == 1
        return redundant(one, params.redundancy, params.instances, EXACT if repeatable else CLOSE)

    def _start(self) -> None:
        if self._engine is None:
            self._engine = self._new_engine()
        tier = Tier(
            self.tier,
            self._engine,
            self.budget,
            self._publish,
            replace=self._new_engine if self.params.replace_hung_engine else None,
            self_test_timeout_s=self.params.self_test_timeout_s,
            self_test_period_s=self.params.self_test_s(self.tier),
            watch=InputWatch(self.params) if self.params.watches(self.tier) else None,
        )
        self._tier = tier
        tier.set_question(self.params.question)
        tier.start()
        self.get_logger().info(f"active: {self._engine.id} {self._engine.version} on {self._engine.device.actual}")
        compressed = self.params.image_transport == "compressed"
        topic = topics.CAMERA_IMAGE.name + ("/compressed" if compressed else "")
        self._reader = BlockingReader(self, CompressedImage if compressed else Image, topic, SENSOR_QOS, self.notes)
        if self.tier is TierName.FULL:
            self._questions = self.create_subscription(
                String, topics.FULL_QUESTION.name, self._ask, QoSProfile(depth=1, reliability=INPUT_QOS.reliability)
            )
        self._reading = threading.Thread(
            target=self._read, args=(self._reader, tier, compressed), name="camera", daemon=True
        )
        self._reading.start()

    def _halt(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.wake()
            if self._reading is not None:
                self._reading.join(0.5)
            reader.close()
        if self._questions is not None:
            self.destroy_subscription(self._questions)
            self._questions = None
        tier, self._tier = self._tier, None
        if tier is not None:
            ended = tier.stop(0.7)
            # An engine whose thread never came back cannot be used again: the next start loads a new one.
            self._engine = tier.engine if ended else None

    def _free(self) -> None:
        self._halt()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """End of the process."""
        self._heartbeat.stop()
        self._free()

    # -- data --------------------------------------------------------------------------------------------------------

    def _read(self, reader: BlockingReader, tier: Tier, compressed: bool) -> None:
        build = convert.frame_from_compressed if compressed else convert.frame_from_image
        skipped, passed_over = Skipped(), 0
        while self._reader is reader:
            # Until a frame is of use the transport keeps the newest one: receiving it would cost a copy for nothing.
            if not tier.wait_wanted(0.2):
                continue
            taken = reader.read(0.2)
            if taken is None:
                continue
            now_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
            missed = skipped.update(taken[1]) + passed_over
            passed_over = 0
            self._frames += 1 + missed
            try:
                frame = build(taken[0], self._frames, now_ns, monotonic_ns)
            except InputError as error:
                self._input_fault(error, monotonic_ns)
                passed_over = missed
                continue
            del taken
            self._input_error = ""
            tier.offer(frame, skipped=missed)
            del frame

    def _input_fault(self, error: InputError, monotonic_ns: int) -> None:
        self._input_error = str(error)
        self.notes(str(error), key=f"camera {error.field}")

    def _ask(self, msg: String) -> None:
        tier = self._tier
        if tier is not None:
            tier.set_question(convert.fit(msg.data.replace("\x00", ""), MAX_QUESTION))

    def _publish(self, result: TierResult) -> None:
        self._results.publish(convert.result_to_msg(result))

    # -- heartbeat ---------------------------------------------------------------------------------------------------

    def _status(self) -> TierStatus:
        tier, engine, fault = self._tier, self._engine, self._fault
        if tier is not None:
            status = tier.status()
            problem = fault or (f"input_error: {self._input_error}" if self._input_error else "")
            if not problem or (status.fault and not status.healthy):
                return status
            return replace(status, fault=convert.fit(problem, FAULT_BYTES), healthy=False)
        state = TierState.ERROR if fault else TierState.LOADED if engine is not None else TierState.UNCONFIGURED
        return TierStatus(
            stamp_ns=time.time_ns(),
            tier=self.tier,
            state=state,
            healthy=False,
            fault=convert.fit(fault, FAULT_BYTES),
            engine_id=engine.id if engine else "",
            engine_version=engine.version if engine else "",
            device_requested=engine.device.requested if engine else self.params.device,
            device=engine.device.actual if engine else "",
        )

    def _beat(self) -> None:
        self._sequence += 1
        status = protect(self._status(), self._sequence)
        self._statuses.publish(convert.status_to_msg(status))
        now_s = time.monotonic()
        if now_s - self._last_diagnostics_s >= 1.0:
            self._last_diagnostics_s = now_s
            self._diagnostics.publish(diagnostics([self._diagnostic(status)]))

    def _diagnostic(self, status: TierStatus) -> Any:
        level = int(bool(status.fault)) if status.healthy else 2 if status.fault else 1
        values = {
            "state": status.state.name,
            "engine": f"{status.engine_id} {status.engine_version}".strip(),
            "device": f"{status.device} (asked for {status.device_requested})",
            "frames received": str(status.frames_received),
            "frames dropped": str(status.frames_dropped),
            "fresh / last frame / default": f"{status.results_fresh} / {status.results_last_frame} / "
            f"{status.results_default}",
            **self._obtained.values(),
            **self.notes.values(),
        }
        message = status.fault or status.state.name
        tier = self._tier
        engine = tier.engine if tier is not None else self._engine
        if isinstance(engine, RedundantEngine):
            record = engine.record
            values.update(record.values())
            if record.last and not level:
                level, message = 1, f"instances differ: {record.last}"
        return diagnostic(level, f"triptych: {self.get_name()}", message, values)


if __name__ == "__main__":
    main(TierNode)
