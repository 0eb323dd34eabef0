"""Unchanging: a tier whose answers do not depend on what it is shown (scenario V10: a blind vision tower)."""

from __future__ import annotations

from triptych.contract.result import Detections, Payload


class Unchanging:
    """Metric ``unchanging_n``: consecutive fresh answers equal to the one before although the picture changed.

    Equal means to the last bit of every token's probability, or of every box and score. Equal words are normal on a
    straight road; equal bits are not, since every pixel moves them a little. The picture changed when the frame is a
    new one and the vehicle moves: a picture that stays the same then is the camera's fault and has its own monitors
    (``repeated_n``, and ``frozen_picture`` in a tier's self-report). At standstill, at unknown speed and for answers
    without tokens or without objects nothing can be said, and nothing is counted; unknown before the first pair that
    can be judged.
    """

    __slots__ = ("_last", "_run")

    def __init__(self) -> None:
        self._last: Payload | None = None
        self._run: int | None = None

    def observe(self, answer: Payload, moving: bool) -> None:
        """A fresh answer about a new frame."""
        last, self._last = self._last, answer
        telling = answer.detections if isinstance(answer, Detections) else answer.token_probabilities
        if last is not None and moving and telling:
            self._run = (self._run or 0) + 1 if answer == last else 0

    def restart(self) -> None:
        """The tier was restarted."""
        self._last = None

    def unchanging_n(self, now_ns: int) -> float | None:
        return self._run
