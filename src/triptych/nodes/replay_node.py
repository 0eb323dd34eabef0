"""Plays a recording into the stack as if it happened now: camera, odometry and driver state.

A thin shell around :class:`triptych.replay.player.Player`, where pacing and restamping are described. The play begins
when the tiers are ready, so that a clip of a few seconds is not over before the first of them has warmed up; it
ends the process with code 0, or with 2 and one sentence when the recording breaks off.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from nav_msgs.msg import Odometry as OdometryMsg
from rclpy.node import Node
from sensor_msgs.msg import Image

from triptych.contract import DriverState, Frame, Odometry, TierState, TriptychError
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import DATA_QOS, INPUT_QOS, SENSOR_OUT_QOS, PolledReader, create_publisher, sleep_until
from triptych.nodes.params import ReplayParams, load
from triptych.nodes.runtime import Notes, main
from triptych.replay.player import Options, Player
from triptych.replay.recording import Item, open_recording
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import TierStatus

READ_AHEAD = 8
"""Items: 0.4 s of camera, more than any single picture takes to decode."""
SETTLE_S = 0.5
"""After the tiers are ready: discovery of our publishers."""
LINGER_S = 0.3
"""After the last item: its results are still on their way."""


class ReplayNode(Node):  # type: ignore[misc]
    """The player. Parameters: :class:`triptych.nodes.params.ReplayParams`."""

    def __init__(self, name: str = "replay", **options: Any) -> None:
        super().__init__(name, **options)
        self.failure: TriptychError | None = None
        self.malloc_tuned = False
        self.params = params = load(self, ReplayParams)
        self.notes = Notes(self)
        self._recording = open_recording(
            Path(params.input).expanduser(), params.topic_mapping(), fps=params.fps or None, salvage=params.salvage
        )
        for warning in self._recording.warnings:
            self.get_logger().warning(warning)
        play = Options(params.rate, params.start_s, params.duration_s or None, params.loop)
        self.player = Player(self._recording, play, prefetch=READ_AHEAD)
        self._image = create_publisher(self, Image, topics.CAMERA_IMAGE.name, SENSOR_OUT_QOS, self.notes)
        self._odometry = create_publisher(self, OdometryMsg, topics.ODOMETRY.name, DATA_QOS, self.notes)
        self._driver = create_publisher(self, DriverStateMsg, topics.DRIVER_STATE.name, DATA_QOS, self.notes)
        self._waiting = dict.fromkeys(params.awaited(), TierState.UNCONFIGURED)
        self._reader = PolledReader(self)
        for tier in self._waiting:
            self._reader.add(TierStatus, topics.STATUSES[tier].name, INPUT_QOS, self._on_status, self.notes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def begin(self) -> None:
        """Apply scheduling and start; the play waits for the tiers."""
        params = self.params
        realtime.apply("camera", params.cpus, params.scheduling, params.lock_memory, self.malloc_tuned)
        self._thread.start()

    def _on_status(self, msg: Any) -> None:
        status = convert.status_from_msg(msg)
        if status.tier in self._waiting:
            self._waiting[status.tier] = status.state

    def _run(self) -> None:
        try:
            self._wait_for_tiers()
            self._play()
        except TriptychError as error:
            self.failure = error
        self.notes.finish()

    def _wait_for_tiers(self) -> None:
        end_s = time.monotonic() + self.params.ready_timeout_s
        while self._waiting and not self._stop.is_set():
            self._reader.poll()
            late = [tier.key for tier, state in self._waiting.items() if state is not TierState.ACTIVE]
            if not late:
                break
            if time.monotonic() >= end_s:
                self.get_logger().warning(
                    f"{', '.join(late)} not ready after {self.params.ready_timeout_s:g} s; playing without waiting on"
                )
                break
            self._stop.wait(0.05)
        self._reader.close()
        self._stop.wait(SETTLE_S)

    def _play(self) -> None:
        while not self._stop.is_set():
            due_ns = self.player.next_due_ns(time.monotonic_ns())
            if due_ns is None:
                self._stop.wait(LINGER_S)
                return
            if sleep_until(due_ns, self._stop):
                return
            for item in self.player.take(time.monotonic_ns()):
                self._publish(item)

    def _publish(self, item: Item) -> None:
        if isinstance(item.value, Frame):
            # The picture is copied into the message before the stamp is taken: the copy is not the transport's time.
            msg = convert.image_to_msg(item.value.image, 0, item.value.frame_id)
            msg.header.stamp = convert.to_time(self.player.restamped(item, time.time_ns()).stamp_ns)
            self._image.publish(msg)
            return
        value = self.player.restamped(item, time.time_ns())
        if isinstance(value, Odometry):
            self._odometry.publish(convert.odometry_to_msg(value))
        elif isinstance(value, DriverState):
            self._driver.publish(convert.driver_to_msg(value))

    def close(self) -> None:
        """Stop playing and close the recording."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(0.7)
        if self.player.skipped:
            self.get_logger().warning(f"{self.player.skipped} items were skipped because the play lagged behind")
        self.player.close()
        self._recording.close()
        self._reader.close()


if __name__ == "__main__":
    main(ReplayNode)
