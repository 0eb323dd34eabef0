"""The driving scenario as a vehicle: camera, odometry and driver state out, motion constraint in.

The ego vehicle acts on the safety core's command through a :class:`triptych.contract.ConstraintGuard`: when the core
falls silent too, the vehicle stops by itself, and says so in /diagnostics and in its log at that moment (the second
watchdog).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from sensor_msgs.msg import Image, PointCloud2

from triptych.contract import (
    ConfigError,
    ConstraintGuard,
    DegradationState,
    InputError,
    Light,
    MotionConstraint,
    PointCloud,
    Road,
    TriptychError,
    Weather,
    crc_ok,
    protect,
)
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, SENSOR_OUT_QOS, PolledReader, create_publisher, sleep_until
from triptych.nodes.params import ScenarioParams, load
from triptych.nodes.runtime import Notes, diagnostic, diagnostics, main
from triptych.scenario import DriverAction, DriverEvent, Scenario, ScenarioConfig, demo_config, random_config
from triptych_ros.msg import DriverState
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg

PATIENCE_S = 20.0
"""``duration_s`` begins at the latest this long after the start, even if the supervisor lets nobody drive."""
_NS = 1_000_000_000


def driver_events(text: str) -> tuple[DriverEvent, ...]:
    """Parameter ``driver_events``: ``12.5:silent,30:take_over``.

    Raises:
        ConfigError: not of that form.
    """
    events = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        seconds, _, action = part.partition(":")
        try:
            events.append(DriverEvent(float(seconds), DriverAction(action.strip())))
        except ValueError:
            names = ", ".join(a.value for a in DriverAction)
            raise ConfigError(
                "must be seconds:action, separated by commas",
                where="parameters of node scenario",
                field="driver_events",
                value=part,
                remedy=f"actions are {names}",
            ) from None
    return tuple(events)


def scenario_config(params: ScenarioParams) -> ScenarioConfig:
    """The drive that the parameters describe.

    Raises:
        ConfigError: a value out of range.
    """
    values: dict[str, Any] = {
        "width_px": params.width_px,
        "height_px": params.height_px,
        "fps": params.camera_rate_hz,
        "duration_s": params.duration_s or 86400.0,
        "start_speed_mps": params.start_speed_mps if params.start_speed_mps >= 0 else None,
        "takeover_reaction_s": params.takeover_reaction_s if params.takeover_reaction_s >= 0 else None,
    }
    if params.driver_events:
        values["driver_events"] = driver_events(params.driver_events)
    if params.preset == "demo":
        return demo_config(params.seed, **values)
    if params.preset == "random":
        return random_config(params.seed, **values)
    return ScenarioConfig(
        seed=params.seed,
        road=Road[params.road.upper()],
        weather=Weather[params.weather.upper()],
        light=Light[params.light.upper()],
        set_speed_mps=params.set_speed_mps,
        **values,
    )


class _Due:
    """A periodic thing to do, on absolute times; periods that were missed are left out."""

    def __init__(self, rate_hz: float, first_ns: int) -> None:
        self.period_ns, self.at_ns = round(_NS / rate_hz), first_ns

    def now(self, now_ns: int) -> bool:
        if now_ns < self.at_ns:
            return False
        self.at_ns += (1 + (now_ns - self.at_ns) // self.period_ns) * self.period_ns
        return True


class ScenarioNode(Node):  # type: ignore[misc]
    """The vehicle. Parameters: :class:`triptych.nodes.params.ScenarioParams`."""

    def __init__(self, name: str = "scenario", **options: Any) -> None:
        super().__init__(name, **options)
        self.failure: TriptychError | None = None
        self.malloc_tuned = False
        self.params = load(self, ScenarioParams)
        self.notes = Notes(self)
        self._scenario = Scenario(scenario_config(self.params))
        self._guard = ConstraintGuard(self.params.constraint_timeout_s)
        self._image = create_publisher(self, Image, topics.CAMERA_IMAGE.name, SENSOR_OUT_QOS, self.notes)
        self._points: Any = None
        if self.params.lidar_rate_hz > 0:
            self._points = create_publisher(self, PointCloud2, topics.LIDAR_POINTS.name, SENSOR_OUT_QOS, self.notes)
            self._scenario.scan()  # cuts the shapes of all that is in reach: no picture shall wait for that
        self._odometry = create_publisher(self, OdometryMsg, topics.ODOMETRY.name, DATA_QOS, self.notes)
        self._driver = create_publisher(self, DriverState, topics.DRIVER_STATE.name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._reader = PolledReader(self)
        self._reader.add(MotionConstraintMsg, topics.COMMAND.name, DATA_QOS, self._on_constraint, self.notes)
        self._heard = False
        self._released_ns: int | None = None
        self._safe: bool | None = None
        self._sequence = 0
        self._render_ms = 0.0
        self._frames = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vehicle", daemon=True)

    def begin(self) -> None:
        """Apply scheduling and start to drive."""
        params = self.params
        realtime.apply("camera", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._thread.start()

    def _on_constraint(self, msg: Any) -> None:
        try:
            constraint = convert.constraint_from_msg(msg)
        except InputError as error:
            self._guard.rejected += 1
            self.notes(str(error))
            return
        now_ns = time.monotonic_ns()
        if self._guard.receive(constraint, now_ns, crc_ok=crc_ok(constraint)):
            self._heard = True
            if self._released_ns is None and constraint.state is not DegradationState.INITIALISING:
                self._released_ns = now_ns

    def _run(self) -> None:
        try:
            self._drive()
        except TriptychError as error:
            self.failure = error
        self.notes.finish()

    def _drive(self) -> None:
        params = self.params
        start_ns = last_ns = time.monotonic_ns()
        camera = _Due(params.camera_rate_hz, start_ns + round(params.start_delay_s * _NS))
        odometry = _Due(params.odometry_rate_hz, start_ns)
        driver = _Due(params.driver_rate_hz, start_ns)
        lidar = _Due(params.lidar_rate_hz or 1.0, camera.at_ns + camera.period_ns // 2)  # between two pictures
        report = _Due(1.0, start_ns + _NS)
        while not self._stop.is_set() and not self._over(start_ns):
            now_ns = time.monotonic_ns()
            self._reader.poll()
            constraint = self._guard.effective(now_ns, time.time_ns())
            self._watch(constraint, report.now(now_ns))
            elapsed_s = (now_ns - last_ns) / _NS
            if elapsed_s > 0.001:
                last_ns = now_ns
                self._scenario.step(min(elapsed_s, 0.5), constraint)
            if odometry.now(now_ns):
                self._odometry.publish(convert.odometry_to_msg(self._scenario.odometry(time.time_ns())))
            if driver.now(now_ns):
                self._sequence += 1
                self._driver.publish(
                    convert.driver_to_msg(protect(self._scenario.driver(time.time_ns()), self._sequence))
                )
            if camera.now(now_ns):
                self._take_picture()
            if self._points is not None and lidar.now(now_ns):
                self._scan()
            sleep_until(min(camera.at_ns, odometry.at_ns, driver.at_ns), self._stop)

    def _take_picture(self) -> None:
        begin_ns = time.monotonic_ns()
        msg = convert.image_to_msg(self._scenario.render(), 0, "camera_optical_frame")
        # A camera driver stamps a frame when it is complete; rendering and copying are not part of its age.
        msg.header.stamp = convert.to_time(time.time_ns())
        self._image.publish(msg)
        self._frames += 1
        self._render_ms += (time.monotonic_ns() - begin_ns) / 1e6

    def _scan(self) -> None:
        self._points.publish(convert.cloud_to_msg(PointCloud(self._scenario.scan(), time.time_ns())))

    def _over(self, start_ns: int) -> bool:
        if self.params.duration_s <= 0:
            return False
        now_ns = time.monotonic_ns()
        begin_ns = self._released_ns
        if begin_ns is None:
            begin_ns = start_ns + round(PATIENCE_S * _NS)
        return now_ns - begin_ns >= self.params.duration_s * _NS

    def _watch(self, constraint: MotionConstraint, due: bool) -> None:
        """Report the safe default at the moment it is taken and left, and once a second."""
        safe = not self._heard or constraint.reason.startswith("no constraint for")
        if safe is self._safe and not due:
            return
        if safe is not self._safe and self._heard:
            if safe:
                self.notes.log("error", f"safe default: {constraint.reason}; stopping with hazard lights")
            else:
                self.notes.log("info", "following the motion constraint")
        self._safe = safe
        level = 0 if not safe else 2 if self._heard else 1
        message = f"safe default: {constraint.reason}" if safe else "following the motion constraint"
        frames, self._frames, spent_ms, self._render_ms = self._frames, 0, self._render_ms, 0.0
        values = {
            "speed m/s": f"{self._scenario.speed_mps:.2f}",
            "speed limit m/s": f"{constraint.speed_limit_mps:.2f}",
            "deceleration m/s2": f"{constraint.deceleration_mps2:.2f}",
            "hazard lights": str(constraint.hazard_lights).lower(),
            "constraints rejected": str(self._guard.rejected),
            "ms per frame": f"{spent_ms / frames:.1f}" if frames else "",
            **self.notes.values(),
        }
        self._diagnostics.publish(diagnostics([diagnostic(level, "triptych: vehicle", message, values)]))

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(0.5)
        self._reader.close()


if __name__ == "__main__":
    main(ScenarioNode)
