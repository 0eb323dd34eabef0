"""The driving scenario as a vehicle: publishes camera, odometry and driver state, and obeys the motion constraint.

The world runs on its own time, one event after the other (odometry, driver, camera at their rates), paced by the
monotonic clock; a machine that cannot keep up makes the drive slower, never different. A frame is stamped when it is
complete, as a camera stamps the end of exposure. The vehicle starts from standstill and moves when it is allowed to.

As any consumer of the constraint it carries its own receive timeout; it is also the second watchdog: a supervisor
that falls silent is reported on ``/diagnostics`` at once.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from sensor_msgs.msg import Image

from triptych.contract import ConfigError, ConstraintGuard, Light, Road, TriptychError, Weather, crc_ok, protect
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, SENSOR_OUT_QOS, PolledReader, create_publisher, sleep_until
from triptych.nodes.params import ScenarioParams, load
from triptych.nodes.runtime import Notes, diagnostic, diagnostics, main
from triptych.scenario import DriverAction, DriverEvent, Scenario, ScenarioConfig, demo_config, random_config
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import MotionConstraint

CAMERA_FRAME = "camera_optical_frame"
LINGER_S = 0.3
"""After the last frame: its results are still on their way."""
SLIP_S = 0.2
"""Behind by more than this the world's time is moved, so that frames never come in bursts."""
DIAGNOSTICS_S = 1.0


def driver_events(text: str) -> tuple[DriverEvent, ...]:
    """``"20:silent, 45:take_over"`` as events.

    Raises:
        ConfigError: not of that form.
    """
    events = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        seconds, _, action = part.partition(":")
        try:
            events.append(DriverEvent(float(seconds), DriverAction(action.strip())))
        except ValueError:
            actions = ", ".join(a.value for a in DriverAction)
            raise ConfigError(
                "must be seconds:action", field="driver_events", value=part, remedy=f"actions are {actions}"
            ) from None
    return tuple(events)


def config_of(params: ScenarioParams) -> ScenarioConfig:
    """The drive that the parameters describe, starting from standstill.

    Raises:
        ConfigError: a value out of range.
    """
    values: dict[str, Any] = {
        "width_px": params.width_px,
        "height_px": params.height_px,
        "fps": params.camera_rate_hz,
        "start_speed_mps": 0.0,
    }
    if params.duration_s > 0:
        values["duration_s"] = params.duration_s
    if params.driver_events:
        values["driver_events"] = driver_events(params.driver_events)
    if params.takeover_reaction_s >= 0:
        values["takeover_reaction_s"] = params.takeover_reaction_s
    if params.preset == "demo":
        return demo_config(params.seed, **values)
    if params.preset == "random":
        return random_config(params.seed, **values)
    kind = {
        "road": Road[params.road.upper()],
        "weather": Weather[params.weather.upper()],
        "light": Light[params.light.upper()],
    }
    return ScenarioConfig(seed=params.seed, set_speed_mps=params.set_speed_mps, **kind, **values)


class ScenarioNode(Node):  # type: ignore[misc]
    """The vehicle. Parameters: :class:`triptych.nodes.params.ScenarioParams`."""

    def __init__(self, name: str = "scenario", **options: Any) -> None:
        super().__init__(name, **options)
        self.finished = threading.Event()
        self.failure: TriptychError | None = None
        self.malloc_tuned = False
        self.params = params = load(self, ScenarioParams)
        self.scenario = Scenario(config_of(params))
        self.guard = ConstraintGuard(params.constraint_timeout_s)
        self.notes = Notes(self)
        self._image = create_publisher(self, Image, topics.CAMERA_IMAGE.name, SENSOR_OUT_QOS, self.notes)
        self._odometry = create_publisher(self, OdometryMsg, topics.ODOMETRY.name, DATA_QOS, self.notes)
        self._driver = create_publisher(self, DriverStateMsg, topics.DRIVER_STATE.name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._reader = PolledReader(self)
        self._reader.add(MotionConstraint, topics.CONSTRAINT.name, DATA_QOS, self._on_constraint, self.notes)
        self._obtained = realtime.Obtained()
        self._counter = self._frames = 0
        self._defaulted = True  # no constraint yet
        self._reported_s = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="world", daemon=True)

    def begin(self) -> None:
        """Apply scheduling and start driving."""
        params = self.params
        self._obtained = realtime.apply("camera", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._thread.start()

    def _on_constraint(self, msg: Any) -> None:
        try:
            constraint = convert.constraint_from_msg(msg)
        except TriptychError as error:
            self.guard.rejected += 1
            self.notes(str(error))
            return
        self.guard.receive(constraint, time.monotonic_ns(), crc_ok=crc_ok(constraint))

    def _run(self) -> None:
        try:
            self._drive()
        except TriptychError as error:
            self.failure = error
        self._stop.wait(LINGER_S)
        self.finished.set()

    def _drive(self) -> None:
        params = self.params
        work = (
            (round(1e9 / params.odometry_rate_hz), self._publish_odometry),
            (round(1e9 / params.driver_rate_hz), self._publish_driver),
            (round(1e9 / params.camera_rate_hz), self._publish_frame),
        )
        delay_ns = round(params.start_delay_s * 1e9)
        due_ns = [0, 0, delay_ns]
        origin_ns, world_ns = time.monotonic_ns(), 0
        end_ns = delay_ns + round(params.duration_s * 1e9) if params.duration_s > 0 else None
        while end_ns is None or world_ns < end_ns:
            at_ns = min(due_ns)
            behind_ns = time.monotonic_ns() - origin_ns - at_ns
            if behind_ns > SLIP_S * 1e9:
                origin_ns += behind_ns
            if sleep_until(origin_ns + at_ns, self._stop):
                return
            self._reader.poll()
            if at_ns > world_ns:
                constraint = self.guard.effective(time.monotonic_ns(), time.time_ns())
                self._watch()
                self.scenario.step((at_ns - world_ns) / 1e9, constraint)
                world_ns = at_ns
            for index, (period_ns, publish) in enumerate(work):
                if due_ns[index] == at_ns:
                    due_ns[index] += period_ns
                    publish()

    def _publish_odometry(self) -> None:
        self._odometry.publish(convert.odometry_to_msg(self.scenario.odometry(time.time_ns())))

    def _publish_driver(self) -> None:
        self._counter += 1
        self._driver.publish(convert.driver_to_msg(protect(self.scenario.driver(time.time_ns()), self._counter)))

    def _publish_frame(self) -> None:
        image = self.scenario.render()
        # The picture is copied into the message before the stamp is taken: the copy is not the transport's time.
        msg = convert.image_to_msg(image, 0, CAMERA_FRAME)
        msg.header.stamp = convert.to_time(time.time_ns())
        self._image.publish(msg)
        self._frames += 1

    def _watch(self) -> None:
        """Report a change between the supervisor's word and the safe default at once, else once a second."""
        now_s = time.monotonic()
        silent_s = self.guard.silence_s(time.monotonic_ns())
        defaulted = silent_s is None or silent_s > self.guard.timeout_s
        if defaulted == self._defaulted and now_s - self._reported_s < DIAGNOSTICS_S:
            return
        if defaulted and not self._defaulted:
            self.notes(f"no valid motion constraint for {silent_s or 0.0:.2f} s: acting on the safe default", "silent")
        self._defaulted, self._reported_s = defaulted, now_s
        text = "safe default: no valid motion constraint" if defaulted else "obeys the supervisor"
        values = {
            "constraint silent s": "never received" if silent_s is None else f"{silent_s:.3f}",
            "constraints rejected": str(self.guard.rejected),
            "frames": str(self._frames),
            "speed m/s": f"{self.scenario.speed_mps:.2f}",
            **self._obtained.values(),
            **self.notes.values(),
        }
        self._diagnostics.publish(diagnostics([diagnostic(2 if defaulted else 0, "triptych: vehicle", text, values)]))

    def close(self) -> None:
        """Stop driving."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(0.7)
        self._reader.close()


if __name__ == "__main__":
    main(ScenarioNode)
