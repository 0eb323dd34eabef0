"""The minimal risk manoeuvre of the vehicle: where it may stop, from what it knew when the manoeuvre began.

The manoeuvre may have begun because perception failed, so nothing seen later decides where it ends: whether the
shoulder is free follows from :class:`Known`, a copy of that moment. Lane keeping goes on from the last known lane,
which stays at ``d = 0`` in road coordinates.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from triptych.contract import DegradationState, MotionConstraint
from triptych.scenario import observe
from triptych.scenario.actors import HARDEST_BRAKING_MPS2, Actor
from triptych.scenario.ego import EGO_REAR_M, EGO_WIDTH_M, Ego
from triptych.scenario.road import HALF_LANE_M, JUNCTION_M, Plan, Stretch
from triptych.scenario.traffic import Traffic

STATES = frozenset({DegradationState.L1_MINIMAL_RISK_MANOEUVRE, DegradationState.MRC})
"""States of a constraint within which the vehicle is in the manoeuvre."""
OUT_OF_LANE_M = 0.3
"""Further than this from the centre of its lane the vehicle no longer steers back to it during the manoeuvre."""
ON_SHOULDER_M = 0.25
"""A vehicle on the shoulder may overlap the edge line by this much."""
BESIDE_M, AHEAD_M = 0.5, 5.0
"""Room kept to the side of, and before, everything on the shoulder."""
CUT_IN_M, CUT_IN_S = 14.0, 2.0
"""Nobody nearer than this, and this time at his speed, behind the vehicle is cut in on."""
JUNCTION_BEFORE_M, JUNCTION_AFTER_M = 4.0, 6.0
AMBER_MPS2 = 2.6
"""A stop line that would need harder braking is passed."""
_STEP_S, _STEPS = 0.1, 600


@dataclass(frozen=True, slots=True)
class Known:
    """What was known at one moment.

    Attributes:
        time_s: scenario time of it.
        horizon_m: ``s`` up to which the vehicle saw.
        road: the stretches from a little behind the vehicle to the horizon.
        others: copies of everybody up to the horizon, also behind.
        stop_lines_m: ``s`` of signals' stop lines before which the vehicle could stop, whatever they showed.
    """

    time_s: float
    horizon_m: float
    road: tuple[Stretch, ...]
    others: tuple[Actor, ...]
    stop_lines_m: tuple[float, ...]

    def obstacles(self, ego: Ego) -> list[tuple[float, float]]:
        """(gap in m, 0) of what may stand in the path: a vehicle without perception.

        Everybody ahead is taken to brake as hard as he can from that moment on (the worst case of responsibility-
        sensitive safety, Shalev-Shwartz et al. 2017), everybody who crosses to stay, and every signal to be red.
        """
        out = [(line - ego.front + observe.LINE_MARGIN_M, 0.0) for line in self.stop_lines_m if line - ego.front > -0.3]
        for actor in self.others:
            along = observe.along_mps(actor)
            rest_m = actor.s + along * along / (2 * HARDEST_BRAKING_MPS2)
            if rest_m < ego.s - 1.0 or observe.comes_towards(actor) or not observe.in_path(ego, actor):
                continue
            out.append((rest_m - actor.length / 2 - ego.front, 0.0))
        return out


def look(time_s: float, ego: Ego, plan: Plan, traffic: Traffic, sight_m: float) -> Known:
    """Copy what is known now."""
    horizon = ego.s + sight_m
    lines = [traffic.furnished[index].stretch.stop_line_m for index in traffic.signals]
    gaps = [(line, line - ego.front) for line in lines if line is not None and line <= horizon]
    return Known(
        time_s,
        horizon,
        tuple(plan.between(ego.s - EGO_REAR_M, horizon)),
        tuple(copy.copy(actor) for actor in traffic.actors if actor.s <= horizon),
        tuple(line for line, gap in gaps if gap > 0 and ego.speed**2 / (2 * max(gap, 0.1)) <= AMBER_MPS2),
    )


class Manoeuvre:
    """One manoeuvre of the vehicle, from its first constraint to its release.

    Args:
        known: what was known when it began.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self._blind: Known | None = None
        self._berth_d: float | None = None

    @property
    def blind(self) -> Known | None:
        """What was known when the constraint did not allow, or no longer allowed, to pull over: all there is to act
        on from then on. None while perception lives."""
        return self._blind

    def lose_sight(self, known: Known) -> None:
        """From now on nothing is seen; ``known`` is the last of it."""
        self._blind = self._blind or known

    def target_d(self, ego: Ego, constraint: MotionConstraint, now_s: float) -> float:
        """Where to steer: onto the shoulder once a place on it is known to be free, else where the vehicle is.

        A vehicle that loses its sight on the way neither goes on nor turns back.
        """
        keep_d = ego.d if abs(ego.d) > OUT_OF_LANE_M else 0.0
        if self._blind is not None:
            return keep_d
        if self._berth_d is None:
            limit = (constraint.speed_limit_mps, constraint.deceleration_mps2)
            self._berth_d = berth_d(self._known, ego, limit, now_s)
        return keep_d if self._berth_d is None else self._berth_d


def berth_d(known: Known, ego: Ego, limit: tuple[float, float], now_s: float) -> float | None:
    """``d`` of a place on the shoulder in which the vehicle comes to rest when it begins to pull over now.

    Args:
        limit: (speed limit in m/s, deceleration in m/s²) of the constraint.
        now_s: scenario time.

    Returns:
        None when the vehicle is not told to stop, too slow to get there, or the way there is not known to be free:
        works, the end of the shoulder, a junction, somebody on it, or beyond the horizon.
    """
    here = [x for x in known.road if x.start_m <= ego.s < x.end_m]
    if limit[0] > 0.0 or not here or here[0].layout.pull_over_d is None:
        return None
    rest, in_s = _rest(ego, limit, here[0].layout.pull_over_d)
    low, high = ego.s - EGO_REAR_M, rest.front + AHEAD_M
    way = [x for x in known.road if x.end_m > low and x.start_m <= high]
    centres = [x.layout.pull_over_d for x in way if x.layout.pull_over_d is not None]
    if high > known.horizon_m or len(centres) < len(way):
        return None
    target = max(centres)
    if rest.d - EGO_WIDTH_M / 2 < max(x.layout.right_edge for x in way) - ON_SHOULDER_M:
        return None
    for x in way:
        start = x.junction_m
        if start is not None and start - JUNCTION_BEFORE_M < high and low < start + JUNCTION_M + JUNCTION_AFTER_M:
            return None
    since_s = now_s - known.time_s
    if any(_blocks(actor, target, ego.s, low, high, since_s, in_s) for actor in known.others):
        return None
    return target


def _rest(ego: Ego, limit: tuple[float, float], target_d: float) -> tuple[Ego, float]:
    """The vehicle at rest, if it begins to steer to ``target_d`` now and nobody is in its way, and in how many s."""
    ahead = copy.copy(ego)
    for step in range(_STEPS):
        if ahead.speed <= 0.0:
            return ahead, step * _STEP_S
        ahead.drive(_STEP_S, max(ego.speed, 0.1), [], limit, target_d)
    return ahead, _STEPS * _STEP_S


def _blocks(actor: Actor, target: float, ego_s: float, low: float, high: float, since_s: float, in_s: float) -> bool:
    """Whether somebody may be on the shoulder where the vehicle goes: he may have stopped at once, or gone on."""
    sweep = actor.across * actor.speed * (since_s + in_s) if actor.heading == 0 else actor.lane - actor.d
    if actor.state in ("parked", "worker", "walk", "wait", "will cross"):
        sweep = 0.0
    half = (EGO_WIDTH_M + actor.width) / 2 + BESIDE_M
    if not min(actor.d, actor.d + sweep) - half < target < max(actor.d, actor.d + sweep) + half:
        return False
    along = actor.heading * actor.speed if actor.state != "parked" else 0.0
    now = actor.s + along * since_s
    if max(actor.s, now) < ego_s:
        return ego_s - now < CUT_IN_M + CUT_IN_S * max(along, 0.0) + actor.length / 2
    places = (actor.s, now, now + along * in_s)
    return min(places) - actor.length / 2 < high and max(places) + actor.length / 2 > low


def place(d: float, right_edge: float) -> str:
    """``shoulder``, ``lane``, or ``edge`` for a vehicle at ``d`` that is wholly in neither."""
    if d - EGO_WIDTH_M / 2 >= right_edge - ON_SHOULDER_M:
        return "shoulder"
    return "lane" if abs(d) + EGO_WIDTH_M / 2 <= HALF_LANE_M else "edge"
