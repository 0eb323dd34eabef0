"""The floor of a supervisor's idle cost: a bare node that does nothing but publish a motion constraint at its rate.

Started by ``latency.py``, placed like the supervisor. Writes a JSON line after two seconds of warm-up, and after
``--seconds`` more one with the percentage of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import rclpy

from triptych.nodes import realtime
from triptych.nodes.io import DATA_QOS
from triptych_ros.msg import MotionConstraint

PERIOD_S = 0.05
WARM_UP_S = 2.0


def publish(publisher: object, seconds: float) -> float:
    """Publish for so long; returns processor seconds of the process."""
    before, end = os.times(), time.monotonic() + seconds
    while time.monotonic() < end:
        publisher.publish(MotionConstraint(reason="waiting for detector"))  # type: ignore[attr-defined]
        time.sleep(PERIOD_S)
    after = os.times()
    return after.user + after.system - before.user - before.system


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    rclpy.init()
    node = rclpy.create_node("bare_publisher")
    publisher = node.create_publisher(MotionConstraint, "supervisor/constraint", DATA_QOS)
    realtime.apply("supervisor")
    publish(publisher, WARM_UP_S)
    print(json.dumps({"event": "begin"}), flush=True)
    percent = round(100 * publish(publisher, seconds) / seconds, 2)
    print(json.dumps({"event": "done", "cpu_percent": percent}), flush=True)
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
