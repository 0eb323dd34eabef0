"""Scans of real lidars: labelled traffic is found and road is not; what three other sensors gave is read whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lidar_world import above, boxed

from triptych.contract import PointCloud
from triptych.contract.lidar import MAX_OBSTACLES
from triptych.lidar import LidarConfig, LidarSensing
from triptych.lidar.obstacles import find_obstacles
from triptych.lidar.scan import to_base

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "lidar"
ROAD, NONE = 0, 10
TRAFFIC = (5, 6, 7, 8, 9)
"""Person, two-wheeler, car, truck, bus."""
LABELLED = sorted(DATA.glob("ika_labelled/*/*.npy"))
PCD = sorted(DATA.glob("nebula/*/*.pcd"))


def labelled(path: Path) -> tuple[np.ndarray, np.ndarray, LidarConfig]:
    """Returns of one scan in ``base_link``, their labels, and the mount: its height is that of the road within 15 m."""
    rows = np.load(path, allow_pickle=False).reshape(-1, 6)
    rows = rows[rows[:, 4] > 0]
    near = rows[(rows[:, 5] == ROAD) & (np.hypot(rows[:, 0], rows[:, 1]) < 15)]
    config = above(z_m=float(-np.median(near[:, 2])), view_deg=25.0)
    return to_base(rows[:, :3].astype(np.float32), config), rows[:, 5], config


@pytest.mark.skipif(not LABELLED, reason="the labelled scans are not there")
def test_labelled_traffic_is_found_and_road_is_not() -> None:
    """At least 90 % of traffic within reach and clearance in boxes, at least 97 % of road in none."""
    traffic, road = [], []
    for path in LABELLED:
        base, label, config = labelled(path)
        inside = boxed(base, find_obstacles(base, config))
        judged = (base[:, 0] <= config.reach_m) & (np.abs(base[:, 1]) <= config.reach_side_m)
        judged &= base[:, 2] <= config.clearance_m
        traffic.append(inside[judged & np.isin(label, TRAFFIC)])
        road.append(inside[judged & (label == ROAD)])
        assert traffic[-1].mean() >= 0.85, path.name
    assert np.concatenate(traffic).mean() >= 0.90
    assert np.concatenate(road).mean() <= 0.03


def pcd(path: Path) -> np.ndarray:
    """(N, 3) float32 of a binary PCD 0.7 file."""
    head, data = path.read_bytes().split(b"DATA binary\n", 1)
    lines = dict(line.split(" ", 1) for line in head.decode().splitlines() if line and line[0] != "#")
    kinds = {"F": "f", "U": "u", "I": "i"}
    layout = [
        (n, f"<{kinds[t]}{s}") for n, t, s in zip(*(lines[k].split() for k in ("FIELDS", "TYPE", "SIZE")), strict=True)
    ]
    cells = np.frombuffer(data, np.dtype(layout), int(lines["POINTS"]))
    return np.column_stack([cells[k] for k in "xyz"]).astype(np.float32)


@pytest.mark.skipif(not PCD, reason="the scans are not there")
@pytest.mark.parametrize("path", PCD, ids=lambda p: p.parent.name)
def test_scans_of_other_sensors_give_a_bounded_report(path: Path) -> None:
    """They stand indoors, 0.3 m above the floor: walls all around."""
    config = above(z_m=0.3, body_front_m=0.5, body_rear_m=0.5, body_half_width_m=0.5)
    points = pcd(path)
    report = LidarSensing(config).take(PointCloud(points, 1))
    assert (report.healthy, report.fault) == (True, "")
    assert 0 < len(report.obstacles) <= MAX_OBSTACLES and report.points_n > 0.5 * len(points)
    base = to_base(points, config)
    high = base[(base[:, 2] > 1.2) & (base[:, 2] < 2.0) & (np.abs(base[:, 0]) < 10) & (np.abs(base[:, 1]) < 20)]
    high = high[(np.hypot(high[:, 0], high[:, 1]) > 2) & (np.hypot(high[:, 0], high[:, 1]) < report.reach_m)]
    assert boxed(high, report.obstacles).mean() >= 0.9
