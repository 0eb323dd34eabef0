"""The lidar node, with a peer that plays the lidar's driver and the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry as OdometryMsg
from node_peer import Peer
from sensor_msgs.msg import PointCloud2

from triptych.contract import ConfigError, Obstacles, Odometry, PointCloud, crc_ok
from triptych.nodes import convert, io, topics
from triptych.nodes.lidar_node import LidarNode
from triptych_ros.msg import Obstacles as ObstaclesMsg

HEIGHT_M = 1.8


def street(gap_m: float | None = 12.0) -> npt.NDArray[np.float32]:
    """A road as a sensor above it sees it, and the rear of a car in the lane."""
    rng = np.random.default_rng(1)
    x, y = np.meshgrid(np.arange(2.0, 30.0, 0.25), np.arange(-15.0, 15.0, 0.25))
    parts = [np.stack([x.ravel(), y.ravel(), np.full(x.size, -HEIGHT_M)], axis=1)]
    if gap_m is not None:
        y, z = np.meshgrid(np.arange(-0.9, 0.9, 0.1), np.arange(-1.6, -0.3, 0.1))
        parts.append(np.stack([np.full(y.size, gap_m), y.ravel(), z.ravel()], axis=1))
    points = np.concatenate(parts)
    return np.asarray(points + rng.normal(0, 0.01, points.shape), np.float32)


class Lidar:
    """The driver, and what is heard of the node."""

    def __init__(self, peer: Peer, **parameters: Any) -> None:
        self.peer = peer
        self.heard: list[Obstacles] = peer.hear(topics.OBSTACLES, ObstaclesMsg, convert.obstacles_from_msg)
        self.reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
        self.points = io.create_publisher(peer.node, PointCloud2, topics.LIDAR_POINTS.name, io.SENSOR_OUT_QOS)
        self.cloud = street()
        self.edit: Any = lambda msg: msg
        self.number = 0
        self.node = peer.start(LidarNode, "lidar", **parameters)

    def send(self) -> None:
        self.number += 1
        shaken = self.cloud + np.float32(self.number % 7 * 1e-4)
        self.points.publish(self.edit(convert.cloud_to_msg(PointCloud(shaken, time.time_ns()))))

    def until(self, condition: Any, seconds: float = 30.0) -> Obstacles:
        self.peer.until(lambda: self.heard and condition(self.heard[-1]), self.send, seconds)
        return self.heard[-1]


@pytest.fixture
def lidar(peer: Peer) -> Lidar:
    return Lidar(peer)


def test_a_scan_becomes_protected_obstacles(lidar: Lidar) -> None:
    """In base_link: the mount's place is added."""
    found = lidar.until(lambda scan: scan.healthy and scan.obstacles)
    (car,) = found.obstacles
    forward_m = lidar.node.params.x_m
    assert car.x_min_m == pytest.approx(12.0 + forward_m, abs=0.2)
    assert car.y_min_m == pytest.approx(-0.9, abs=0.2) and car.y_max_m == pytest.approx(0.9, abs=0.2)
    assert found.frame_id == "base_link" and found.points_n > 5000
    lidar.until(lambda scan: len(lidar.heard) > 5)
    assert all(map(crc_ok, lidar.heard))
    assert all((b.sequence_counter - a.sequence_counter) % 256 == 1 for a, b in pairwise(lidar.heard))


def test_a_scan_that_repeats_is_a_fault_unless_the_vehicle_stands(lidar: Lidar) -> None:
    """Only a fresh speed near zero says that it does."""
    speeds = io.create_publisher(lidar.peer.node, OdometryMsg, topics.ODOMETRY.name, io.DATA_QOS)
    lidar.until(lambda scan: scan.healthy)

    def same(speed_mps: float) -> Callable[[], None]:
        def send() -> None:
            speeds.publish(convert.odometry_to_msg(Odometry(time.time_ns(), speed_mps)))
            lidar.points.publish(convert.cloud_to_msg(PointCloud(lidar.cloud, time.time_ns())))

        return send

    lidar.peer.until(lambda: "frozen_scan" in lidar.heard[-1].fault, same(10.0))
    lidar.until(lambda scan: scan.healthy)
    lidar.peer.until(lambda: not lidar.node._moving(), same(0.0))
    count = len(lidar.heard)
    lidar.peer.until(lambda: len(lidar.heard) > count + 8, same(0.0))
    assert all(scan.healthy for scan in lidar.heard[count + 1 :])


def test_an_empty_scan_is_no_free_road(lidar: Lidar) -> None:
    """It is said at once that such a scan cannot be relied upon."""
    lidar.until(lambda scan: scan.healthy)
    lidar.cloud = street()[:0]
    assert "few_points" in lidar.until(lambda scan: not scan.healthy).fault


def test_a_cloud_that_cannot_be_read_is_as_good_as_none(lidar: Lidar) -> None:
    """A6: named in the diagnostics; the next sound one is taken."""
    lidar.until(lambda scan: scan.healthy)

    def without_x(msg: PointCloud2) -> PointCloud2:
        msg.fields = [f for f in msg.fields if f.name != "x"]
        return msg

    lidar.edit = without_x

    def said() -> str:
        return " ".join(v.key for r in lidar.reports for s in r.status for v in s.values)

    lidar.peer.until(lambda: "points fields.x" in said(), lidar.send, 30.0)
    count = len(lidar.heard)
    lidar.edit = lambda msg: msg
    lidar.until(lambda scan: len(lidar.heard) > count and scan.healthy)


def test_the_diagnostics_say_how_it_is(lidar: Lidar) -> None:
    """Waiting, ok, and what is wrong."""

    def levels() -> list[tuple[int, str]]:
        return [(ord(s.level), s.message) for r in lidar.reports for s in r.status if s.name == "triptych: lidar"]

    lidar.peer.until(lambda: (1, "waiting for scans") in levels(), lambda: None, 30.0)
    lidar.peer.until(lambda: (0, "ok") in levels(), lidar.send, 30.0)
    lidar.peer.until(lambda: (2, "no scans") in levels(), lambda: None, 30.0)


def test_a_mount_that_cannot_be(peer: Peer) -> None:
    """Refused by name."""
    with pytest.raises(ConfigError, match="z_m"):
        Lidar(peer, z_m=-1.0)
