"""Plausibility: detections that no camera can see, or that cannot follow from the ones before."""

from __future__ import annotations

from itertools import islice

from triptych.contract.result import Detection, Detections
from triptych.contract.terms import DetectionClass
from triptych.supervisor.config import SupervisorConfig

_JUDGED = 32
"""Boxes looked at, best scores first: bounds the work at 20 Hz whatever a detector says."""
_TRACKED = 8
"""Large, sure boxes that are looked for in the result before."""
_EDGE_SHARE = 0.02
"""A box this near to the picture's edge may be a part of an object: its shape says nothing, its centre wanders."""


class Plausibility:
    """Metrics of consecutive fresh detector results, unknown before the first (before the second for ``unsteady_n``).

    ``implausible_n``: with a box outside the picture, without area, of a shape or size no road user or sign has, or
    twice the same object although suppression of non-maxima leaves no such pair. ``unsteady_n``: in which a large object
    moves or grows faster across the picture than the bound, or the number of sure ones swings.

    The bound on speed: an object 3 m to the side and 5 m ahead, closing at 40 m/s, crosses a 65 degree picture
    (focal length 0.78 widths) at 0.78 * 3 * 40 / 5**2 = 3.7 widths per second, and is then about to leave it.
    """

    __slots__ = ("_config", "_implausible", "_last", "_last_ns", "_unsteady")

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._implausible: int | None = None
        self._unsteady: int | None = None
        self._last: tuple[int, list[_Object]] | None = None
        self._last_ns = 0

    def observe(self, payload: Detections, stamp_ns: int) -> None:
        """A fresh result about a new frame, whose stamp this is."""
        boxes = payload.detections[:_JUDGED]
        plausible = self._plausible(boxes, payload.image_width, payload.image_height)
        self._implausible = 0 if plausible else (self._implausible or 0) + 1
        now = self._sure(payload)
        last, elapsed_s = self._last, (stamp_ns - self._last_ns) / 1e9
        self._last, self._last_ns = now, stamp_ns
        if last is not None and 0.0 < elapsed_s <= self._config.track_gap_s:
            steady = abs(now[0] - last[0]) <= self._config.count_swing_n and self._follows(now[1], last[1], elapsed_s)
            self._unsteady = 0 if steady else (self._unsteady or 0) + 1

    def restart(self) -> None:
        """The tier or the clock of stamps was restarted."""
        self._last = None

    def implausible_n(self, now_ns: int) -> float | None:
        return self._implausible

    def unsteady_n(self, now_ns: int) -> float | None:
        return self._unsteady

    def _plausible(self, boxes: tuple[Detection, ...], width: float, height: float) -> bool:
        if not (width > 0 and height > 0):
            return not boxes
        config = self._config
        margin_x, margin_y = config.box_margin_share * width, config.box_margin_share * height
        edge_x, edge_y = _EDGE_SHARE * width, _EDGE_SHARE * height
        most_px2, aspect = config.box_area_share * width * height, config.box_aspect_ratio
        for box in boxes:
            left, top, right, bottom = box.x_min, box.y_min, box.x_max, box.y_max
            if not (left >= -margin_x and top >= -margin_y and right <= width + margin_x and bottom <= height + margin_y):
                return False
            w, h = right - left, bottom - top
            if not (w > 0.0 and h > 0.0):
                return False
            whole = left > edge_x and top > edge_y and right < width - edge_x and bottom < height - edge_y
            if whole and not (w <= aspect * h and h <= aspect * w):
                return False
            if box.class_id != DetectionClass.VEHICLE and not w * h <= most_px2:
                return False
        return not self._twice(boxes)

    def _twice(self, boxes: tuple[Detection, ...]) -> bool:
        """Whether two boxes of one label overlap more than suppression leaves. Sorted by left side: near ones only."""
        most, rest = self._config.duplicate_iou_share, 1.0 - self._config.duplicate_iou_share
        ordered = sorted(boxes, key=_left)
        for place, a in enumerate(ordered):
            reach = a.x_min + rest * (a.x_max - a.x_min)
            for b in islice(ordered, place + 1, None):
                if b.x_min > reach:
                    break
                if a.class_id == b.class_id and a.label == b.label and _overlap(a, b, most):
                    return True
        return False

    def _sure(self, payload: Detections) -> tuple[int, list[_Object]]:
        """How many boxes are sure, and of the best of them that are large and whole: class, centre and size, in widths."""
        config, width, height = self._config, payload.image_width, payload.image_height
        if not (width > 0 and height > 0):
            return 0, []
        sure = [box for box in payload.detections[:_JUDGED] if box.score >= config.sure_score_share]
        found: list[_Object] = []
        edge_x, edge_y = _EDGE_SHARE * width, _EDGE_SHARE * height
        for box in sure:
            inside = box.x_min > edge_x and box.x_max < width - edge_x
            inside = inside and box.y_min > edge_y and box.y_max < height - edge_y
            if inside and box.y_max - box.y_min >= config.track_height_share * height:
                x, y = (box.x_min + box.x_max) / (2 * width), (box.y_min + box.y_max) / (2 * width)
                found.append((box.class_id, x, y, (box.y_max - box.y_min) / width))
                if len(found) == _TRACKED:
                    break
        return len(sure), found

    def _follows(self, now: list[_Object], last: list[_Object], elapsed_s: float) -> bool:
        """Whether every object has one of its class before it within reach, of classes of which none came or went."""
        most = self._config.object_speed_widths_per_s * elapsed_s
        for kind in {item[0] for item in now}:
            here, there = [i for i in now if i[0] == kind], [i for i in last if i[0] == kind]
            if len(here) == len(there) and not all(any(_near(a, b, most) for b in there) for a in here):
                return False
        return True


_Object = tuple[int, float, float, float]
"""Class, centre right and down, height; lengths in image widths."""


def _left(box: Detection) -> float:
    return box.x_min


def _near(a: _Object, b: _Object, most: float) -> bool:
    return abs(a[1] - b[1]) <= most and abs(a[2] - b[2]) <= most and abs(a[3] - b[3]) <= most


def _overlap(a: Detection, b: Detection, share: float) -> bool:
    """Whether intersection over union is above ``share``; without a division, which tiny boxes would make one by 0."""
    width = min(a.x_max, b.x_max) - max(a.x_min, b.x_min)
    height = min(a.y_max, b.y_max) - max(a.y_min, b.y_min)
    if not (width > 0.0 and height > 0.0):
        return False
    both = width * height
    return both > share * ((a.x_max - a.x_min) * (a.y_max - a.y_min) + (b.x_max - b.x_min) * (b.y_max - b.y_min) - both)
