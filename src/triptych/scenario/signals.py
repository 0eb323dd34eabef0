"""Traffic lights."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Aspect(IntEnum):
    """What a light shows."""

    GREEN = 0
    AMBER = 1
    RED = 2


GREEN_S, AMBER_S, RED_S = 16.0, 3.0, 12.0
CLEAR_S = 2.0
"""After this much red the crossing directions move."""


class Signal:
    """One junction's light for our road (both directions); crossing traffic has the opposite.

    It runs its cycle until the ego comes near, then plays the part its seed gave it: it turns red in front of the ego
    (two times in three) or lets it through, and goes on cycling from there.
    """

    def __init__(self, seed: int, index: int) -> None:
        rng = np.random.Generator(np.random.PCG64([seed, 19, index]))
        self._zero_s = -float(rng.uniform(0, GREEN_S + AMBER_S + RED_S))
        self._stops_ego = bool(rng.random() < 0.67)
        self._met = False

    def _in_cycle(self, now_s: float) -> float:
        return (now_s - self._zero_s) % (GREEN_S + AMBER_S + RED_S)

    def approach(self, now_s: float) -> None:
        """The ego has come near; only the first call counts."""
        if self._met:
            return
        self._met = True
        aspect = self.aspect(now_s)
        if self._stops_ego:
            if aspect is Aspect.GREEN:
                self._zero_s = now_s - GREEN_S
            elif aspect is Aspect.RED and self.remaining_s(now_s) < 8.0:
                self._zero_s = now_s - GREEN_S - AMBER_S - RED_S + 8.0
        elif aspect is not Aspect.GREEN or self.remaining_s(now_s) < 9.0:
            self._zero_s = now_s - 1.0

    def aspect(self, now_s: float) -> Aspect:
        """What it shows at scenario time ``now_s``."""
        t = self._in_cycle(now_s)
        return Aspect.GREEN if t < GREEN_S else Aspect.AMBER if t < GREEN_S + AMBER_S else Aspect.RED

    def remaining_s(self, now_s: float) -> float:
        """Time until it shows something else."""
        t = self._in_cycle(now_s)
        return next(end - t for end in (GREEN_S, GREEN_S + AMBER_S, GREEN_S + AMBER_S + RED_S) if t < end)

    def red_for_s(self, now_s: float) -> float:
        """How long it has been red; 0 when it is not."""
        return max(0.0, self._in_cycle(now_s) - GREEN_S - AMBER_S)
