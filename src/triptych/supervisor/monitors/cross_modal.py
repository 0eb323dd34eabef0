"""Detector against VLM: two tiers that look at the same street and tell of different ones.

Camera against odometry is ``repeated_n`` (a picture that stands while the vehicle moves); camera against lidar is
:mod:`.lidar`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from triptych.contract.result import NOT_COUNTED, Detections, SceneAdvice
from triptych.contract.terms import DetectionClass, Hazard
from triptych.supervisor.config import SupervisorConfig

_KEPT = 256
"""Detector results remembered: more than 5 s at 50 Hz, the greatest age of an answer."""
_FEWEST = 3
"""Detector results about the time of an answer without which the two are not compared."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What both can see: the detector's class, an answer's count, and the hazards that tell of it.

    ``certain``: the detector misses none of them at the distances of these hazards. People and two-wheelers it does
    miss: 50 m away they are a few pixels wide, and a VLM that warns of them is not to be blamed.
    """

    detected: int
    count: str
    hazards: frozenset[int]
    certain: bool


KINDS = (
    Kind(
        DetectionClass.VEHICLE,
        "vehicles",
        frozenset({Hazard.LEAD_VEHICLE, Hazard.LEAD_VEHICLE_BRAKING, Hazard.DENSE_TRAFFIC}),
        certain=True,
    ),
    Kind(DetectionClass.TWO_WHEELER, "two_wheelers", frozenset({Hazard.TWO_WHEELER}), certain=False),
    Kind(DetectionClass.PEDESTRIAN, "pedestrians", frozenset({Hazard.PEDESTRIAN_NEAR_LANE}), certain=False),
)


class Seen:
    """What the detector saw lately: which kinds at all, and which of them large and sure."""

    __slots__ = ("_height", "_results", "_score")

    def __init__(self, config: SupervisorConfig) -> None:
        self._score, self._height = config.sure_score_share, config.large_height_share
        self._results: deque[tuple[int, frozenset[int], frozenset[int]]] = deque(maxlen=_KEPT)

    def observe(self, payload: Detections, stamp_ns: int) -> None:
        """A fresh result about a new frame, whose stamp this is."""
        if not payload.image_height > 0:
            return
        tall = self._height * payload.image_height
        any_size = frozenset(box.class_id for box in payload.detections)
        large = frozenset(
            box.class_id for box in payload.detections if box.score >= self._score and box.y_max - box.y_min >= tall
        )
        self._results.append((stamp_ns, any_size, large))

    def around(self, stamp_ns: int, tolerance_ns: int) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        """Kinds of any size and large ones, of each result within the tolerance of a stamp."""
        for at_ns, any_size, large in reversed(self._results):
            if at_ns < stamp_ns - tolerance_ns:
                return
            if at_ns <= stamp_ns + tolerance_ns:
                yield any_size, large

    def restart(self) -> None:
        """The detector or the clock of stamps was restarted."""
        self._results.clear()


class Disagreement:
    """Metric ``disagreement_n``: consecutive fresh answers that contradict what the detector saw at the same time.

    An answer contradicts when it counts none of a kind and names no hazard of it, while the detector saw a large, sure
    one in each of its results about that time; or when it names a hazard of vehicles and the detector saw not one,
    however small. Who is wrong is not decided: the detector is authoritative, so that the VLM is not relied upon.
    Answers that say nothing of any kind (no hazard, nothing counted) and those without detector results about their
    time do not count either way; unknown before the first that can be compared.
    """

    __slots__ = ("_run", "_seen", "_tolerance_ns")

    def __init__(self, config: SupervisorConfig, seen: Seen) -> None:
        self._tolerance_ns = int(config.agree_tolerance_s * 1e9)
        self._seen = seen
        self._run: int | None = None

    def observe(self, answer: SceneAdvice, stamp_ns: int) -> None:
        """A fresh answer about a new frame, whose stamp this is."""
        near = list(self._seen.around(stamp_ns, self._tolerance_ns))
        if len(near) < _FEWEST:
            return
        always = frozenset.intersection(*(large for _, large in near))
        ever = frozenset.union(*(any_size for any_size, _ in near))
        judged = contradicts = False
        for kind in KINDS:
            named = not kind.hazards.isdisjoint(answer.hazards)
            count = getattr(answer, kind.count)
            judged |= named or count != NOT_COUNTED
            if named:
                contradicts |= kind.certain and kind.detected not in ever
            else:
                contradicts |= count == 0 and kind.detected in always
        if judged:
            self._run = (self._run or 0) + 1 if contradicts else 0

    def disagreement_n(self, now_ns: int) -> float | None:
        return self._run
