"""Distribution drift: over minutes the pictures are unlike those the limits and the engine were made for.

Slow and for people: a warning that the calibration, the camera or the season has changed; it never alters health.
"""

from __future__ import annotations

from collections.abc import Sequence

from triptych.tiers.monitors.picture import Picture

FEATURES = ("brightness", "contrast", "blur", "noise")
"""What is compared, attributes of :class:`Picture`."""
BOUND = 4.0
"""Standard scores are cut off here before they are averaged, so that single pictures, however odd, are no drift (the
clipping of P. Huber's M-estimators)."""


class Drift:
    """Greatest standard score, 0..4, among the running means of the features; 0 until ``frames`` pictures were seen.

    Args:
        mean, deviation: reference of each feature, in its unit.
        frames: time constant of the exponential running mean.
    """

    __slots__ = ("_deviation", "_frames", "_mean", "_score", "_seen")

    def __init__(self, mean: Sequence[float], deviation: Sequence[float], frames: int) -> None:
        self._mean, self._deviation, self._frames = tuple(mean), tuple(deviation), frames
        self._score = [0.0] * len(FEATURES)
        self._seen = 0

    def __call__(self, picture: Picture) -> float:
        return self.update([getattr(picture, name) for name in FEATURES])

    def update(self, features: Sequence[float]) -> float:
        """The same for :data:`FEATURES` alone."""
        self._seen += 1
        gain = 1.0 / min(self._seen, self._frames)
        for index, value in enumerate(features):
            score = (value - self._mean[index]) / self._deviation[index]
            self._score[index] += gain * (min(BOUND, max(-BOUND, score)) - self._score[index])
        return max(abs(score) for score in self._score) if self._seen >= self._frames else 0.0
