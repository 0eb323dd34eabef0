"""Lidar scans in, obstacles and the lidar's health out: :class:`triptych.lidar.LidarSensing` on the newest scan."""

from __future__ import annotations

import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from sensor_msgs.msg import PointCloud2

from triptych.contract import InputError, Obstacles, protect
from triptych.lidar import LidarSensing
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, SENSOR_QOS, BlockingReader, PolledReader, create_publisher
from triptych.nodes.params import LidarParams, load
from triptych.nodes.runtime import Notes, diagnostic, diagnostics, main
from triptych_ros.msg import Obstacles as ObstaclesMsg

WAIT_S = 0.5
REPORT_S = 1.0
STANDSTILL_MPS, SPEED_FRESH_S = 0.1, 0.5


class LidarNode(Node):  # type: ignore[misc]
    """The lidar. Parameters: :class:`triptych.nodes.params.LidarParams`."""

    def __init__(self, name: str = "lidar", **options: Any) -> None:
        super().__init__(name, **options)
        self.malloc_tuned = False
        self.params = load(self, LidarParams)
        self.notes = Notes(self)
        self._sensing = LidarSensing(self.params)
        self._obstacles = create_publisher(self, ObstaclesMsg, topics.OBSTACLES.name, DATA_QOS, self.notes)
        self._diagnostics = create_publisher(self, DiagnosticArray, topics.DIAGNOSTICS.name, DATA_QOS, self.notes)
        self._reader = BlockingReader(self, PointCloud2, topics.LIDAR_POINTS.name, SENSOR_QOS, self.notes)
        self._others = PolledReader(self)
        self._others.add(OdometryMsg, topics.ODOMETRY.name, INPUT_QOS, self._on_odometry, self.notes)
        self._speed_mps, self._speed_s = 0.0, -SPEED_FRESH_S
        self._obtained = realtime.Obtained()
        self._scans = 0
        self._last: Obstacles | None = None
        self._slowest_ms = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scans", daemon=True)

    def begin(self) -> None:
        """Apply scheduling and start."""
        params = self.params
        self._obtained = realtime.apply("lidar", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._thread.start()

    def _run(self) -> None:
        report_s = time.monotonic()
        while not self._stop.is_set():
            taken = self._reader.read(WAIT_S)
            if taken is not None:
                self._take(taken[0])
            if time.monotonic() >= report_s:
                report_s = time.monotonic() + REPORT_S
                self._report(taken is not None)

    def _take(self, msg: Any) -> None:
        begin_s = time.monotonic()
        try:
            cloud = convert.cloud_from_msg(msg)
        except InputError as error:  # as good as not received: the supervisor hears the silence
            self.notes(str(error), key=f"points {error.field}")
            return
        self._scans += 1
        self._others.poll()
        self._last = protect(self._sensing.take(cloud, self._moving()), self._scans)
        self._obstacles.publish(convert.obstacles_to_msg(self._last))
        self._slowest_ms = max(self._slowest_ms, (time.monotonic() - begin_s) * 1e3)

    def _on_odometry(self, msg: Any) -> None:
        self._speed_mps, self._speed_s = convert.odometry_from_msg(msg).speed_mps, time.monotonic()

    def _moving(self) -> bool:
        """Whether the vehicle moves, or may: only a fresh speed near zero says that it does not."""
        standing = abs(self._speed_mps) < STANDSTILL_MPS and time.monotonic() - self._speed_s <= SPEED_FRESH_S
        return not standing

    def _report(self, heard: bool) -> None:
        last = self._last
        if last is None or not heard:
            level, message = 2 if last is not None else 1, "no scans" if last is not None else "waiting for scans"
        else:
            level, message = (0, "ok") if last.healthy else (2, last.fault)
        values = {
            "scans": str(self._scans),
            "points": str(last.points_n) if last is not None else "",
            "obstacles": str(len(last.obstacles)) if last is not None else "",
            "slowest ms": f"{self._slowest_ms:.1f}",
            **self._obtained.values(),
            **self.notes.values(),
        }
        self._slowest_ms = 0.0
        self._diagnostics.publish(diagnostics([diagnostic(level, "triptych: lidar", message, values)]))

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._reader.wake()
        if self._thread.is_alive():
            self._thread.join(0.5)
        self._reader.close()
        self._others.close()


if __name__ == "__main__":
    main(LidarNode)
