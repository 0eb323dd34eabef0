"""What a frame costs without the stack: received on a thread that then runs the engine, nothing else in the process.

Run beside ``bench/vehicle.py`` with the detector's placement. Prints one JSON line with arrays in milliseconds:
``transport`` (source stamp to frame in hand), ``engine`` (whole inference), ``total``.
"""

from __future__ import annotations

import argparse
import json
import time

import cv2
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image

from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.nodes import convert, realtime, topics
from triptych.nodes.io import SENSOR_QOS, BlockingReader

WARM_UP = 10


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="triptych-detector")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    realtime.tune_malloc()
    cv2.setNumThreads(1)
    engine = load_engine(locate(arguments.engine))
    golden = engine.golden()
    for _ in range(WARM_UP):
        engine.infer([golden])
    rclpy.init(args=[])
    node = Node("bench_bare", start_parameter_services=False)
    reader = BlockingReader(node, Image, topics.CAMERA_IMAGE.name, SENSOR_QOS)
    realtime.apply("detector")
    realtime.calm_collector()
    rows: dict[str, list[float]] = {"transport": [], "engine": [], "total": []}
    end = time.monotonic() + arguments.seconds
    number = 0
    while time.monotonic() < end:
        taken = reader.read(0.5)
        if taken is None:
            continue
        number += 1
        received_ns = time.time_ns()
        frame = convert.frame_from_image(taken[0], number, received_ns)
        engine.infer([frame])
        done_ns = time.time_ns()
        if number > WARM_UP:
            rows["transport"].append((received_ns - frame.stamp_ns) / 1e6)
            rows["engine"].append((done_ns - received_ns) / 1e6)
            rows["total"].append((done_ns - frame.stamp_ns) / 1e6)
    reader.close()
    node.destroy_node()
    rclpy.shutdown()
    print(json.dumps({k: [round(x, 3) for x in v] for k, v in rows.items()}), flush=True)


if __name__ == "__main__":
    main()
