"""Measures image transport between two processes: ``python -m triptych.nodes.transport_probe [options]``.

The process started sends, a child receives; each is a DDS participant of its own, as the camera and a tier are. Set
the middleware's environment (``triptych.dds.environment``) before the start, or leave it to see the defaults. The last
line printed is JSON: ``width``, ``height``, ``rate_hz``, ``sent``, ``received``, and ``median_ms``, ``p99_ms``,
``max_ms`` from source stamp to callback (null when nothing came).
"""

from __future__ import annotations

import argparse
import array
import json
import os
import subprocess
import sys
import time

DISCOVERY_TIMEOUT_S = 10.0
SETTLE_S = 0.7  # both sides must know each other; data sent before is lost by design, not by transport
DRAIN_S = 1.0
QUEUE = 5  # a receiver that is scheduled late has not lost anything in transport


def main() -> int:
    """Entry point of both sides."""
    parser = argparse.ArgumentParser(description="Measure image transport between two processes.")
    parser.add_argument("--width", type=int, default=1920)
    parser.add_argument("--height", type=int, default=1080)
    parser.add_argument("--rate-hz", type=float, default=20.0)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--receive", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        return _receive(arguments.receive, arguments.parent)
    return _send(arguments)


def _quality() -> object:
    from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

    return QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=QUEUE, reliability=ReliabilityPolicy.BEST_EFFORT)


def _receive(topic: str, parent: int) -> int:
    """Print the transport time in ms of every image as it comes, until ``parent`` is no longer our parent process."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions
    from sensor_msgs.msg import Image

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)  # a signal shall end us, at once and silently
    node = rclpy.create_node("transport_probe_receiver")

    def received(message: Image) -> None:
        stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        print((time.time_ns() - stamp_ns) / 1e6, flush=True)

    node.create_subscription(Image, topic, received, _quality())
    while os.getppid() == parent:
        rclpy.spin_once(node, timeout_sec=0.2)
    return 0


def _send(arguments: argparse.Namespace) -> int:
    import rclpy
    from sensor_msgs.msg import Image

    topic = f"transport_probe_{os.getpid()}"
    command = [sys.executable, "-m", "triptych.nodes.transport_probe", "--receive", topic, "--parent", str(os.getpid())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        rclpy.init()
        node = rclpy.create_node("transport_probe_sender")
        publisher = node.create_publisher(Image, topic, _quality())
        limit = time.monotonic() + DISCOVERY_TIMEOUT_S
        while publisher.get_subscription_count() == 0 and time.monotonic() < limit:
            time.sleep(0.02)
        time.sleep(SETTLE_S)
        message = Image(
            width=arguments.width, height=arguments.height, step=3 * arguments.width, encoding="bgr8", is_bigendian=0
        )
        message.data = array.array("B", bytes(3 * arguments.width * arguments.height))
        due = time.monotonic()
        for _ in range(arguments.count):
            stamp_ns = time.time_ns()
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
            publisher.publish(message)
            due += 1 / arguments.rate_hz
            time.sleep(max(0.0, due - time.monotonic()))
        time.sleep(DRAIN_S)
    finally:
        child.terminate()
    times_ms = sorted(float(line) for line in child.communicate(timeout=5)[0].splitlines())
    last = len(times_ms) - 1
    result = {
        "width": arguments.width,
        "height": arguments.height,
        "rate_hz": arguments.rate_hz,
        "sent": arguments.count,
        "received": len(times_ms),
        "median_ms": times_ms[last // 2] if times_ms else None,
        "p99_ms": times_ms[round(0.99 * last)] if times_ms else None,
        "max_ms": times_ms[-1] if times_ms else None,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
