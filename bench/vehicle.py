"""A vehicle for measuring: pre-rendered frames, a speed that obeys, a driver on command; reports what it is told.

Started by the benches as a process of its own with the camera's placement. Reads commands from standard input, one a
line: ``override 1``, ``override 0``, ``quit``. Writes JSON lines: each change of the effective constraint with the
middleware's time of receipt, and each change of the guard (followed, safe default) with the time it was noticed.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

import numpy as np
import rclpy
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image

from triptych.contract import ConstraintGuard, DriverState, Odometry, crc_ok, protect
from triptych.contract import MotionConstraint as MotionConstraintRecord
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, SENSOR_OUT_QOS, Subscription, create_publisher, sleep_until
from triptych.scenario import Scenario, ScenarioConfig
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import MotionConstraint

TICK_S = 0.01
RISE_MPS2, DRIVER_MPS2 = 1.5, 5.0
FRAMES = 20
"""Pre-rendered frames, each a little different; published in turn."""


def say(**values: Any) -> None:
    """One JSON line."""
    print(json.dumps(values), flush=True)


class Vehicle:
    """See the module."""

    def __init__(self, width_px: int, height_px: int, rate_hz: float, speed_mps: float) -> None:
        realtime.tune_malloc()
        self.rate_hz, self.wanted_mps, self.speed_mps = rate_hz, speed_mps, speed_mps
        self.override = False
        self.quit = threading.Event()
        scene = Scenario(ScenarioConfig(width_px=width_px, height_px=height_px, fps=rate_hz))
        self.frames: list[np.ndarray] = []
        for _ in range(FRAMES):
            scene.step(1 / rate_hz)
            self.frames.append(scene.render().copy())
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node("bench_vehicle", start_parameter_services=False)
        self.image = create_publisher(self.node, Image, topics.CAMERA_IMAGE.name, SENSOR_OUT_QOS)
        self.odometry = create_publisher(self.node, OdometryMsg, topics.ODOMETRY.name, DATA_QOS)
        self.driver = create_publisher(self.node, DriverStateMsg, topics.DRIVER_STATE.name, DATA_QOS)
        self.constraint = Subscription(self.node, MotionConstraint, topics.COMMAND.name, DATA_QOS)
        self.guard = ConstraintGuard()
        realtime.apply("camera")
        realtime.calm_collector()

    def run(self) -> None:
        """Drive until told to quit."""
        threading.Thread(target=self._commands, daemon=True).start()
        period_ns, tick_ns = round(1e9 / self.rate_hz), round(TICK_S * 1e9)
        now_ns = time.monotonic_ns()
        camera_ns, tick, count, sent = now_ns, now_ns, 0, 0
        last: tuple[Any, ...] = ()
        safe: bool | None = None
        while not self.quit.is_set():
            while (taken := self.constraint.take()) is not None:
                last = self._told(taken, last)
            now_ns, stamp_ns = time.monotonic_ns(), time.time_ns()
            effective = self.guard.effective(now_ns, stamp_ns)
            is_safe = effective.reason.startswith("no constraint")
            if is_safe is not safe:
                safe = is_safe
                say(event="guard", t_ns=stamp_ns, safe=safe, reason=effective.reason)
            self._move(effective)
            if count % 2 == 0:
                self.odometry.publish(convert.odometry_to_msg(Odometry(stamp_ns, self.speed_mps)))
            if count % 10 == 0:
                state = DriverState(stamp_ns, True, True, self.override, not self.override)
                self.driver.publish(convert.driver_to_msg(protect(state, count // 10)))
            if now_ns >= camera_ns:
                camera_ns += period_ns * (1 + (now_ns - camera_ns) // period_ns)
                msg = convert.image_to_msg(self.frames[sent % FRAMES], 0, "camera_optical_frame")
                msg.header.stamp = convert.to_time(time.time_ns())
                self.image.publish(msg)
                sent += 1
            count += 1
            tick = max(tick + tick_ns, time.monotonic_ns() - tick_ns)
            sleep_until(tick)
        say(event="end", frames=sent)

    def _move(self, constraint: MotionConstraintRecord) -> None:
        """Down to the limit as hard as asked, up to the wanted speed at leisure; a driver is in a hurry."""
        limit_mps = self.wanted_mps if self.override else min(self.wanted_mps, constraint.speed_limit_mps)
        if self.speed_mps > limit_mps:
            self.speed_mps = max(limit_mps, self.speed_mps - constraint.deceleration_mps2 * TICK_S)
        else:
            self.speed_mps = min(limit_mps, self.speed_mps + (DRIVER_MPS2 if self.override else RISE_MPS2) * TICK_S)

    def _told(self, taken: Any, last: tuple[Any, ...]) -> tuple[Any, ...]:
        msg, info = taken
        constraint = convert.constraint_from_msg(msg)
        self.guard.receive(constraint, time.monotonic_ns(), crc_ok=crc_ok(constraint))
        key = (constraint.state, constraint.speed_limit_mps, constraint.hazard_lights)
        if key != last:
            say(
                event="constraint",
                t_ns=info["received_timestamp"],
                stamp_ns=constraint.stamp_ns,
                state=constraint.state.name,
                limit_mps=constraint.speed_limit_mps,
                deceleration_mps2=constraint.deceleration_mps2,
                hazard_lights=constraint.hazard_lights,
                reason=constraint.reason,
            )
        return key

    def _commands(self) -> None:
        for line in sys.stdin:
            word, _, value = line.strip().partition(" ")
            if word == "override":
                self.override = value == "1"
            elif word == "quit":
                break
        self.quit.set()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--rate-hz", type=float, default=20.0)
    parser.add_argument("--speed-mps", type=float, default=20.0)
    arguments = parser.parse_args()
    Vehicle(arguments.width, arguments.height, arguments.rate_hz, arguments.speed_mps).run()


if __name__ == "__main__":
    main()
