"""Plausibility: detections that no camera can give, or that cannot follow from the ones before."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

from triptych.contract.result import Detection, Detections
from triptych.contract.terms import DetectionClass
from triptych.supervisor.config import SupervisorConfig

_JUDGED = 32
"""Boxes looked at, best scores first: bounds the work at 20 Hz whatever a detector says."""
_TRACKED = 8
"""Large, sure boxes that are looked for in the result before."""
_EDGE_SHARE = 0.02
"""A box this near to the picture's edge may show a part of an object: its shape says nothing, its centre wanders."""

Track = tuple[int, float, float, float]
"""Class, centre to the right and down, height; lengths in picture widths."""


def plausible(payload: Detections, config: SupervisorConfig) -> bool:
    """Whether a camera can have seen these boxes; NaN cannot be seen.

    A box must lie in the picture but for a margin and, if it is no vehicle, have a size that things on roads have. If
    the edge does not cut it, it must have an area and a shape, and no object may be there twice; where boxes are
    clipped at the edge, what is left of them may be anything.
    """
    boxes, width, height = payload.detections[:_JUDGED], payload.image_width, payload.image_height
    if not (width > 0 and height > 0):
        return not boxes
    beyond_x, beyond_y = config.box_margin_share * width, config.box_margin_share * height
    most_x, most_y = width + beyond_x, height + beyond_y
    most_px2, aspect = config.box_area_share * width * height, config.box_aspect_ratio
    whole: list[Detection] = []
    for box in boxes:
        left, top, right, bottom = box.x_min, box.y_min, box.x_max, box.y_max
        if not (-beyond_x <= left <= right <= most_x and -beyond_y <= top <= bottom <= most_y):
            return False
        w, h = right - left, bottom - top
        if not w * h <= most_px2 and box.class_id != DetectionClass.VEHICLE:
            return False
        if _whole(box, width, height):
            if not (0.0 < w <= aspect * h and 0.0 < h <= aspect * w):
                return False
            whole.append(box)
    return not _twice(whole, config.duplicate_iou_share)


def _whole(box: Detection, width: int, height: int) -> bool:
    """Whether the picture's edge does not cut the box."""
    x, y = _EDGE_SHARE * width, _EDGE_SHARE * height
    return box.x_min > x and box.y_min > y and box.x_max < width - x and box.y_max < height - y


def _twice(boxes: list[Detection], share: float) -> bool:
    """Whether two boxes of one label have an intersection over union above ``share``.

    They are looked at from left to right, and of those behind only as many as can overlap so much.
    """
    ordered = sorted(boxes, key=attrgetter("x_min"))
    for place, a in enumerate(ordered, 1):
        reach = a.x_min + (1.0 - share) * (a.x_max - a.x_min)
        for b in islice(ordered, place, None):
            if b.x_min > reach:
                break
            if a.class_id == b.class_id and a.label == b.label and _overlap(a, b) > share * _union(a, b):
                return True
    return False


def _overlap(a: Detection, b: Detection) -> float:
    width = min(a.x_max, b.x_max) - max(a.x_min, b.x_min)
    height = min(a.y_max, b.y_max) - max(a.y_min, b.y_min)
    return width * height if width > 0.0 and height > 0.0 else 0.0


def _union(a: Detection, b: Detection) -> float:
    return (a.x_max - a.x_min) * (a.y_max - a.y_min) + (b.x_max - b.x_min) * (b.y_max - b.y_min) - _overlap(a, b)


def tracks(payload: Detections, config: SupervisorConfig) -> tuple[int, list[Track]]:
    """How many boxes are sure, and the best of them that are large and whole."""
    width, height = payload.image_width, payload.image_height
    if not (width > 0 and height > 0):
        return 0, []
    sure = [box for box in payload.detections[:_JUDGED] if box.score >= config.sure_score_share]
    tall = config.track_height_share * height
    large = (box for box in sure if box.y_max - box.y_min >= tall and _whole(box, width, height))
    scale = 0.5 / width
    return len(sure), [
        (b.class_id, (b.x_min + b.x_max) * scale, (b.y_min + b.y_max) * scale, (b.y_max - b.y_min) / width)
        for b in islice(large, _TRACKED)
    ]


def follows(now: list[Track], last: list[Track], most: float) -> bool:
    """Whether each object has one of its class within ``most`` before it, in place and size.

    Classes of which one came or went are left out: which of them did cannot be told.
    """
    for kind in {track[0] for track in now}:
        here, there = [t for t in now if t[0] == kind], [t for t in last if t[0] == kind]
        if len(here) == len(there) and not all(any(_near(a, b, most) for b in there) for a in here):
            return False
    return True


def _near(a: Track, b: Track, most: float) -> bool:
    return abs(a[1] - b[1]) <= most and abs(a[2] - b[2]) <= most and abs(a[3] - b[3]) <= most


class Plausibility:
    """Metrics of consecutive fresh detector results; unknown before the first, or the first pair.

    ``implausible_n``: with a box that :func:`plausible` refuses. ``unsteady_n``: in which the number of sure boxes
    swings, or a large object moves across the picture, or grows, faster than the bound (:func:`follows`). An object
    that is missed just when another of its class appears looks like a jump: in a busy street up to four times in a row.

    The bound: an object 3 m to the side and 5 m ahead that comes closer at 40 m/s crosses a picture of 65 degrees
    (focal length 0.78 widths) at 0.78 * 3 * 40 / 5**2 = 3.7 widths per second, and is then about to leave it.
    """

    __slots__ = ("_config", "_implausible", "_last", "_last_ns", "_unsteady")

    def __init__(self, config: SupervisorConfig) -> None:
        self._config = config
        self._implausible: int | None = None
        self._unsteady: int | None = None
        self._last: tuple[int, list[Track]] | None = None
        self._last_ns = 0

    def observe(self, payload: Detections, stamp_ns: int) -> None:
        """A fresh result about a new frame, whose stamp this is."""
        config = self._config
        self._implausible = 0 if plausible(payload, config) else (self._implausible or 0) + 1
        last, elapsed_s = self._last, (stamp_ns - self._last_ns) / 1e9
        count, found = self._last = tracks(payload, config)
        self._last_ns = stamp_ns
        if last is None or not 0.0 < elapsed_s <= config.track_gap_s:
            return
        most = config.object_speed_widths_per_s * elapsed_s
        steady = abs(count - last[0]) <= config.count_swing_n and follows(found, last[1], most)
        self._unsteady = 0 if steady else (self._unsteady or 0) + 1

    def restart(self) -> None:
        """The tier or the clock of stamps was restarted."""
        self._last = None

    def implausible_n(self, now_ns: int) -> float | None:
        return self._implausible

    def unsteady_n(self, now_ns: int) -> float | None:
        return self._unsteady
