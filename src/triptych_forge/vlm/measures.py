"""What the encoder is asked about the scene while it learns: the quantities that the advice follows from.

The answer's tokens alone say little about *why*: a picture one metre this side of a limit and one the other side get
unlike answers. The quantities themselves tell the encoder what to look for and how near it came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triptych.language.tokeniser import COUNTED
from triptych.scenario import Situation

MIDDLE = 20.0
"""Distances and times are learnt as logarithms of their ratio to this, in metres and seconds: a tenth matters as much
near as far."""
NEAREST = 1.0
Measured = npt.NDArray[np.float32]
"""(quantities, 2): whether it is there, 0 or 1, and its value; NaN where nobody knows."""


@dataclass(frozen=True)
class Measure:
    """One quantity: a field or property of :class:`Situation`, there if below ``limit``, in metres or seconds."""

    name: str
    limit: float


MEASURES = (
    Measure("lead_gap_m", 120.0),
    Measure("headway_s", 5.0),
    Measure("collision_s", 10.0),
    Measure("pedestrian_in_lane_m", 100.0),
    Measure("pedestrian_entering_m", 100.0),
    Measure("pedestrian_near_m", 90.0),
    Measure("two_wheeler_m", 90.0),
    Measure("two_wheeler_close_m", 40.0),
    Measure("red_light_m", 130.0),
    Measure("works_m", 100.0),
    Measure("visual_range_m", 500.0),
)
QUANTITIES = (*(m.name for m in MEASURES), "lead_braking", "vehicles_near", *COUNTED)
"""What each row of :data:`Measured` is about; numbers of things are learnt as log(1 + n)."""
DISTANCES = tuple(m.name for m in MEASURES if m.name.endswith("_m") and m.name != "visual_range_m")


def enlarged(situation: Situation, zoom: float) -> Situation:
    """The situation that a picture enlarged by ``zoom`` shows: all is that much nearer. Haze stays what it is."""
    return replace(situation, **{name: getattr(situation, name) / zoom for name in DISTANCES})


def measured(situation: Situation, counts: tuple[int, int, int]) -> Measured:
    """The quantities of a scene."""
    rows = []
    for measure in MEASURES:
        value = getattr(situation, measure.name)
        there = value < measure.limit
        rows.append((float(there), math.log(max(value, NEAREST) / MIDDLE) if there else math.nan))
    rows.append((float(situation.lead_braking), math.nan))
    rows += [(float(number > 0), math.log1p(number)) for number in (situation.vehicles_near, *counts)]
    return np.array(rows, np.float32)


def unknown() -> Measured:
    """Of a picture about which nobody said anything."""
    return np.full((len(QUANTITIES), 2), math.nan, np.float32)
