"""What a careful observer who knows the truth would say: hazards and advice as one table.

The advice is the most careful one of all rules that apply (PROCEED if none does), so it never gets less careful when
anything gets closer, faster or more: every rule's condition is monotone in its quantities.

| hazard | condition | advice |
|---|---|---|
| lead vehicle | gap < 50 m or time headway < 2.5 s | CAUTION |
| | time headway < 1.0 s (above 3 m/s) or time to collision < 5 s | SLOW_DOWN |
| | time to collision < 3 s | PREPARE_TO_STOP |
| | time to collision < 1.5 s, or gap < 3.5 m behind anything slower than 1 m/s | STOP |
| lead vehicle braking | brake lights, gap < 60 m | SLOW_DOWN |
| | brake lights, gap < 15 m | PREPARE_TO_STOP |
| pedestrian near lane | within 2 m of our lane, walking into it or waiting at a crossing, < 50 m | SLOW_DOWN |
| | in our lane or stepping into it within 2 s, < 60 m | PREPARE_TO_STOP |
| | in our lane, < 25 m or < 3 s away | STOP |
| two-wheeler | within 3.5 m of our path, < 50 m | CAUTION |
| | within 2 m of our path, < 15 m | SLOW_DOWN |
| red light | red or amber, < 80 m | PREPARE_TO_STOP |
| | red or amber, < 25 m | STOP |
| works | begins in < 60 m, or we are in it | SLOW_DOWN |
| low visibility | visual range < 200 m | SLOW_DOWN |
| dense traffic | at least 4 vehicles on the carriageway within 60 m | CAUTION |

Sources: 2 s and more is the recommended headway of most European road authorities and below 1 s is fined in several, so
a warning starts at 1 s; times to collision of 5, 3 and 1.5 s follow the usual stages of forward collision warnings
(information, warning, emergency braking); 50 m and 200 m visual range are the limits of rear fog lamp rules and of fog
warnings. Distances for people, lights and works are stopping distances at town speed (13.9 m/s, 2.5 m/s², 1 s: 53 m)
with a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from triptych.contract import Advice, Hazard


@dataclass(frozen=True, slots=True)
class Situation:
    """The quantities the rules look at. Distances from the front bumper in metres; infinite means: there is none.

    Attributes:
        speed_mps: of the ego.
        lead_gap_m, lead_speed_mps, lead_braking: the vehicle in front in our path.
        pedestrian_in_lane_m: nearest pedestrian in our lane.
        pedestrian_entering_m: nearest one that steps into it within 2 s (or is in it).
        pedestrian_near_m: nearest one within 2 m of it, walking towards it or waiting to cross it.
        two_wheeler_m, two_wheeler_close_m: nearest within 3.5 m, within 2 m of our path.
        red_light_m: nearest red or amber light for us, distance to the stop line.
        works_m: distance to works; 0 inside.
        visual_range_m: how far one can see.
        vehicles_near: moving vehicles on the carriageway within 60 m.
    """

    speed_mps: float = 0.0
    lead_gap_m: float = math.inf
    lead_speed_mps: float = 0.0
    lead_braking: bool = False
    pedestrian_in_lane_m: float = math.inf
    pedestrian_entering_m: float = math.inf
    pedestrian_near_m: float = math.inf
    two_wheeler_m: float = math.inf
    two_wheeler_close_m: float = math.inf
    red_light_m: float = math.inf
    works_m: float = math.inf
    visual_range_m: float = math.inf
    vehicles_near: int = 0

    @property
    def headway_s(self) -> float:
        """Time until our bumper is where the lead's is now."""
        return self.lead_gap_m / self.speed_mps if self.speed_mps > 0.1 else math.inf

    @property
    def collision_s(self) -> float:
        """Time to collision with the lead at the present speeds."""
        closing = self.speed_mps - self.lead_speed_mps
        return self.lead_gap_m / closing if closing > 0.1 else math.inf


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    hazard: Hazard
    advice: Advice
    applies: Callable[[Situation], bool]


RULES: tuple[Rule, ...] = (
    Rule(Hazard.LEAD_VEHICLE, Advice.CAUTION, lambda x: x.lead_gap_m < 50 or x.headway_s < 2.5),
    Rule(
        Hazard.LEAD_VEHICLE,
        Advice.SLOW_DOWN,
        lambda x: (x.speed_mps > 3 and x.headway_s < 1.0) or x.collision_s < 5,
    ),
    Rule(Hazard.LEAD_VEHICLE, Advice.PREPARE_TO_STOP, lambda x: x.collision_s < 3),
    Rule(
        Hazard.LEAD_VEHICLE,
        Advice.STOP,
        lambda x: x.collision_s < 1.5 or (x.lead_gap_m < 3.5 and x.lead_speed_mps < 1.0),
    ),
    Rule(Hazard.LEAD_VEHICLE_BRAKING, Advice.SLOW_DOWN, lambda x: x.lead_braking and x.lead_gap_m < 60),
    Rule(Hazard.LEAD_VEHICLE_BRAKING, Advice.PREPARE_TO_STOP, lambda x: x.lead_braking and x.lead_gap_m < 15),
    Rule(Hazard.PEDESTRIAN_NEAR_LANE, Advice.SLOW_DOWN, lambda x: x.pedestrian_near_m < 50),
    Rule(Hazard.PEDESTRIAN_NEAR_LANE, Advice.PREPARE_TO_STOP, lambda x: x.pedestrian_entering_m < 60),
    Rule(
        Hazard.PEDESTRIAN_NEAR_LANE,
        Advice.STOP,
        lambda x: x.pedestrian_in_lane_m < max(25.0, 3.0 * x.speed_mps),
    ),
    Rule(Hazard.TWO_WHEELER, Advice.CAUTION, lambda x: x.two_wheeler_m < 50),
    Rule(Hazard.TWO_WHEELER, Advice.SLOW_DOWN, lambda x: x.two_wheeler_close_m < 15),
    Rule(Hazard.RED_LIGHT, Advice.PREPARE_TO_STOP, lambda x: x.red_light_m < 80),
    Rule(Hazard.RED_LIGHT, Advice.STOP, lambda x: x.red_light_m < 25),
    Rule(Hazard.WORKS, Advice.SLOW_DOWN, lambda x: x.works_m < 60),
    Rule(Hazard.LOW_VISIBILITY, Advice.SLOW_DOWN, lambda x: x.visual_range_m < 200),
    Rule(Hazard.DENSE_TRAFFIC, Advice.CAUTION, lambda x: x.vehicles_near >= 4),
)


def assess(situation: Situation) -> tuple[tuple[Hazard, ...], Advice]:
    """Hazards (each once, in the order of their numbers) and advice of a situation."""
    applying = [rule for rule in RULES if rule.applies(situation)]
    hazards = tuple(sorted({rule.hazard for rule in applying}))
    return hazards, max((rule.advice for rule in applying), default=Advice.PROCEED)
