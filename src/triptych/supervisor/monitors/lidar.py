"""Camera against lidar: an obstacle in the lane that no detection explains, a vehicle where nothing returns a beam.

The lidar's obstacles are found by geometry alone, so that they fail in other ways than what a network sees. Who is
wrong is not decided: either way the detector, on which everything relies, is in doubt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import isfinite

from triptych.contract.lidar import Obstacle, Obstacles
from triptych.contract.result import Detections
from triptych.contract.terms import DetectionClass
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.crc import Crc
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.stale import Silence
from triptych.supervisor.monitors.stamp_gate import StampGate
from triptych.supervisor.monitors.window import EventWindow

_KEPT = 32
"""Detector results remembered: more than half a second at 50 Hz."""
_FEWEST = 2
"""Detector results about the time of a scan without which the two are not compared."""
_FRESH_S = 1.0
"""An older scan is no news."""

Span = tuple[float, float]
"""From left to right in the picture, 0..1."""


class _Picture:
    """What of a detector result can be compared: where anything is, and where large, sure vehicles are, how far away
    these can be at most."""

    __slots__ = ("anything", "stamp_ns", "vehicles")

    def __init__(self, payload: Detections, stamp_ns: int, config: SupervisorConfig) -> None:
        width, height = payload.image_width, payload.image_height
        focal_px = config.camera_focal_share * width
        tall_px = config.lidar_box_height_share * height
        self.stamp_ns = stamp_ns
        self.anything: list[Span] = [(b.x_min / width, b.x_max / width) for b in payload.detections]
        self.vehicles: list[tuple[Span, float]] = [
            (span, config.vehicle_height_m * focal_px / (b.y_max - b.y_min))
            for span, b in zip(self.anything, payload.detections, strict=True)
            if b.class_id == DetectionClass.VEHICLE
            and b.score >= config.sure_score_share
            and b.y_max - b.y_min >= tall_px
        ]


class LidarMonitor:
    """Metrics ``overdue_s``, ``age_s`` (since the last valid scan), ``crc_n``, ``invalid_n``, ``unhealthy`` (0, 1: what
    the lidar says of itself), and of consecutive scans ``unseen_n`` and ``unreturned_n``.

    ``unseen_n``: something as high as ``lidar_least_height_m`` stands in the lane, nearer than ``lidar_near_m``, and
    no detection of any kind in any detector result about that time covers its bearing. ``unreturned_n``: each detector
    result about that time has a large, sure vehicle at whose bearing nothing returns a beam, up to the distance at
    which a vehicle of ``vehicle_height_m`` looks that high. Scans that the lidar itself does not trust, and those
    without detector results about their time, do not count either way; unknown before the first that can be compared.
    """

    def __init__(self, config: SupervisorConfig) -> None:
        self.never = NeverReceived()
        self.gate = StampGate(_FRESH_S, config.future_tolerance_s)
        self.crc = Crc(config.event_window_s)
        self._config = config
        self._tolerance_ns = int(config.lidar_tolerance_s * 1e9)
        self._silence = Silence()
        self._invalid = EventWindow(config.event_window_s)
        self._pictures: deque[_Picture] = deque(maxlen=_KEPT)
        self._unhealthy: float | None = None
        self._unseen: int | None = None
        self._unreturned: int | None = None

    def see(self, payload: Detections, stamp_ns: int) -> None:
        """A fresh, valid detector result, whose stamp this is."""
        if payload.image_width > 0 and payload.image_height > 0:
            self._pictures.append(_Picture(payload, stamp_ns, self._config))

    def observe(self, scan: Obstacles, received_ns: int, received_stamp_ns: int, judge_age: bool, crc_ok: bool) -> None:
        """One message; times of receipt on the monotonic clock and on the clock of stamps."""
        if not self.crc.observe(crc_ok, received_ns):
            return
        if not self.gate.accept(scan.stamp_ns, received_stamp_ns, judge_age):
            return
        if not _usable(scan):
            self._invalid.add(received_ns)
            return
        self._silence.observe(received_ns)
        self._unhealthy = 0.0 if scan.healthy else 1.0
        if scan.healthy:
            self.never.received = True
            self._compare(scan)

    def _compare(self, scan: Obstacles) -> None:
        near = [p for p in self._pictures if abs(p.stamp_ns - scan.stamp_ns) <= self._tolerance_ns]
        if len(near) < _FEWEST:
            return
        spans = [(found, self._span(found)) for found in scan.obstacles]
        seen = [span for picture in near for span in picture.anything]
        unseen = any(self._in_lane(found) and not self._meets(span, seen) for found, span in spans)
        unreturned = all(
            any(not self._returned(vehicle, most_m, scan.reach_m, spans) for vehicle, most_m in picture.vehicles)
            for picture in near
        )
        self._unseen = (self._unseen or 0) + 1 if unseen else 0
        self._unreturned = (self._unreturned or 0) + 1 if unreturned else 0

    def _in_lane(self, found: Obstacle) -> bool:
        """Whether it stands, high enough, in the corridor straight ahead that the vehicle is about to drive through."""
        config = self._config
        beside = max(-found.y_max_m, found.y_min_m)
        return (
            0.0 < found.x_min_m - config.camera_forward_m <= config.lidar_near_m
            and beside < config.lidar_half_width_m
            and found.z_max_m >= config.lidar_least_height_m
        )

    def _span(self, found: Obstacle) -> Span:
        """Where it is in a picture that looks straight ahead, a margin on both sides."""
        config = self._config
        near_m = max(found.x_min_m - config.camera_forward_m, 0.1)
        far_m = max(found.x_max_m - config.camera_forward_m, near_m)
        columns = [
            0.5 - config.camera_focal_share * y / x for y in (found.y_min_m, found.y_max_m) for x in (near_m, far_m)
        ]
        return min(columns) - config.lidar_margin_share, max(columns) + config.lidar_margin_share

    @staticmethod
    def _meets(span: Span, others: Iterable[Span]) -> bool:
        return any(span[0] <= right and left <= span[1] for left, right in others)

    def _returned(self, vehicle: Span, most_m: float, reach_m: float, spans: Iterable[tuple[Obstacle, Span]]) -> bool:
        """Whether something is at this bearing and not too far away, or could be beyond the lidar's reach."""
        if most_m > reach_m:
            return True
        forward_m = self._config.camera_forward_m
        near = (span for found, span in spans if found.x_min_m - forward_m <= most_m)
        return self._meets(vehicle, near)

    def restart(self) -> None:
        """The clock of stamps was stepped."""
        self.gate.restart()
        self._pictures.clear()

    def age_s(self, now_ns: int) -> float | None:
        return self._silence.gap_s(now_ns)

    def invalid_n(self, now_ns: int) -> float | None:
        return self._invalid.count(now_ns)

    def unhealthy(self, now_ns: int) -> float | None:
        return self._unhealthy if self.never.received else None

    def unseen_n(self, now_ns: int) -> float | None:
        return self._unseen

    def unreturned_n(self, now_ns: int) -> float | None:
        return self._unreturned


def _usable(scan: Obstacles) -> bool:
    """Whether all numbers are finite and in order; NaN is not."""
    return isfinite(scan.reach_m) and all(
        isfinite(o.x_min_m)
        and isfinite(o.x_max_m)
        and isfinite(o.y_min_m)
        and isfinite(o.y_max_m)
        and isfinite(o.z_max_m)
        and o.x_min_m <= o.x_max_m
        and o.y_min_m <= o.y_max_m
        for o in scan.obstacles
    )
