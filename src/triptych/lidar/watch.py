"""The health watch of a lidar: what each measure says of a scan, and when that becomes a code of the report."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triptych.debounce import Debounced
from triptych.lidar.config import LidarConfig
from triptych.lidar.ground import Plane, road_ahead
from triptych.lidar.scan import Scan

Measure = Callable[[Scan], float]
"""A level that grows with danger; called once per scan, in order."""

SECTOR_DEG = 10.0
"""About the width of the sectors that are watched one by one: a car's at 10 m."""


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """One monitor: its code in the report, at fault above which limit, scans in a row that make a fault, its measure.

    ``limit`` and ``run`` name parameters; an empty ``limit`` is 0, an empty ``run`` is one scan.
    """

    code: str
    limit: str
    run: str
    measure: Callable[[LidarConfig], Measure]


def few(config: LidarConfig) -> Measure:
    """Valid returns that are missing."""
    return lambda scan: float(config.least_points_n - len(scan.base))


class Blind:
    """Scans in a row in which the same sector ahead had too few valid returns: covered, broken or dirty.

    Seen from the sensor, wherever it is mounted; a forward sector of an empty road has returns from the ground.
    """

    def __init__(self, config: LidarConfig) -> None:
        self._config = config
        self._runs = np.zeros(max(1, round(2 * config.view_deg / SECTOR_DEG)), np.int64)

    def __call__(self, scan: Scan) -> float:
        x = scan.base[:, 0] - np.float32(self._config.x_m)
        y = scan.base[:, 1] - np.float32(self._config.y_m)
        view = np.radians(self._config.view_deg)
        sector = np.floor((np.arctan2(y, x) / view + 1.0) * (len(self._runs) / 2)).astype(np.int64)
        ahead = sector[(sector >= 0) & (sector < len(self._runs))]
        blind = np.bincount(ahead, minlength=len(self._runs)) < self._config.sector_points_n
        self._runs = np.where(blind, self._runs + 1, 0)
        return float(self._runs.max())


class Frozen:
    """1 if a scan has the bytes of the one before, a new stamp, and the vehicle moves.

    A real lidar never gives the same noise twice; a simulated one that stands may, so standing scans are not judged.
    """

    def __init__(self) -> None:
        self._digest, self._stamp_ns, self._repeats = -1, -1, False

    def __call__(self, scan: Scan) -> float:
        digest = zlib.crc32(np.ascontiguousarray(scan.cloud.points).view(np.uint8).data, len(scan.cloud.points))
        same, new_stamp = digest == self._digest, scan.cloud.stamp_ns > self._stamp_ns
        self._digest, self._stamp_ns = digest, scan.cloud.stamp_ns
        if not same:
            self._repeats = False
        elif scan.moving and new_stamp:
            self._repeats = True
        return float(self._repeats)


class Stamp:
    """1 if the stamp went as ``wrong`` says: -1 backward, 0 repeated."""

    def __init__(self, wrong: int) -> None:
        self._wrong = wrong
        self._last_ns: int | None = None

    def __call__(self, scan: Scan) -> float:
        stamp_ns = scan.cloud.stamp_ns
        last_ns, self._last_ns = self._last_ns, stamp_ns
        return float(last_ns is not None and (stamp_ns > last_ns) - (stamp_ns < last_ns) == self._wrong)


class Moved:
    """How far the road before the vehicle is off z = 0, in limits of height and tilt, whichever is more.

    The median over moving scans with enough ground in view; nothing is said until there were enough of them. A vehicle
    that waits at the foot of a ramp, or behind a lorry, is not judged.
    """

    def __init__(self, config: LidarConfig) -> None:
        self._config = config
        self._planes: deque[Plane] = deque(maxlen=config.moved_scans_n)

    def __call__(self, scan: Scan) -> float:
        plane = road_ahead(scan.base) if scan.moving else None
        if plane is not None:
            self._planes.append(plane)
        if len(self._planes) < self._config.moved_scans_n:
            return 0.0
        height_m, slope_x_deg, slope_y_deg = np.median(np.array(self._planes), axis=0)
        return float(
            max(
                abs(height_m) / self._config.moved_height_m,
                abs(slope_x_deg) / self._config.moved_tilt_deg,
                abs(slope_y_deg) / self._config.moved_tilt_deg,
            )
            - 1.0
        )


MONITORS: tuple[MonitorRow, ...] = (
    MonitorRow("few_points", "", "few_scans_n", few),
    MonitorRow("invalid_points", "invalid_share", "invalid_scans_n", lambda _: lambda scan: scan.invalid_share),
    MonitorRow("blind_sector", "blind_scans_n", "", Blind),
    MonitorRow("frozen_scan", "", "frozen_scans_n", lambda _: Frozen()),
    MonitorRow("backward_stamp", "", "stamp_scans_n", lambda _: Stamp(-1)),
    MonitorRow("repeated_stamp", "", "stamp_scans_n", lambda _: Stamp(0)),
    MonitorRow("moved", "", "", Moved),
)
"""All of them, in the order of the report."""


class ScanWatch:
    """All monitors of a lidar. Not thread-safe; feed it each scan once, in order."""

    def __init__(self, config: LidarConfig) -> None:
        self._monitors = tuple(
            Debounced(
                row.code,
                row.measure(config),
                float(getattr(config, row.limit)) if row.limit else 0.0,
                getattr(config, row.run) if row.run else 1,
            )
            for row in MONITORS
        )

    def look(self, scan: Scan) -> tuple[str, ...]:
        """The codes that hold at this scan."""
        return tuple(code for monitor in self._monitors if (code := monitor.observe(scan)))
