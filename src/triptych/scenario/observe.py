"""What a perfect observer sees: gaps, the situation for the advice table, boxes."""

from __future__ import annotations

import math

import cv2
import numpy as np

from triptych.contract import DetectionClass, Light, Road, Weather
from triptych.scenario import atmosphere
from triptych.scenario.actors import Actor
from triptych.scenario.advice import Situation
from triptych.scenario.atmosphere import Look
from triptych.scenario.ego import EGO_WIDTH_M, Ego
from triptych.scenario.render import Drawing
from triptych.scenario.road import HALF_LANE_M, LANE_M, Plan
from triptych.scenario.signals import Aspect
from triptych.scenario.traffic import Traffic
from triptych.scenario.truth import TruthBox

LABEL_AHEAD_M = 12.0
"""The road named in the truth is the one this far ahead."""
MIN_BOX_PX = 3.0
"""Smaller boxes (shorter side) are left out."""
MIN_CONTRAST = 0.05
SIGHT_M = 200.0
"""Nothing further away counts for hazards."""
NIGHT_SIGHT_M = 150.0
"""Visual range at night when it rains or is foggy, if not less anyway."""
LINE_MARGIN_M = 1.2
"""Added to the gap to a stop line, before which vehicles stand nearer than before an obstacle."""
_CORRIDOR_M = EGO_WIDTH_M / 2 + 0.3
_COUNTING_PX = 480.0
_SHINING_KINDS = frozenset(("car", "van", "truck", "bus", "motorbike", "signal"))


def in_path(ego: Ego, actor: Actor) -> bool:
    """Whether an actor is, or is about to be, where the ego drives."""
    low, high = ego.d - _CORRIDOR_M, ego.d + _CORRIDOR_M
    a_low, a_high = actor.d - actor.width / 2, actor.d + actor.width / 2
    if actor.heading == 0 and actor.state in ("cross", "crossing traffic"):
        if actor.state == "crossing traffic" and abs(actor.d) > 14:
            return False
        reach = actor.across * max(actor.speed, actor.wanted if actor.state == "cross" else 0.0) * 3.0
        a_low, a_high = min(a_low, a_low + reach) - 0.3, max(a_high, a_high + reach) + 0.3
    elif actor.heading > 0 and actor.state == "":
        a_low, a_high = min(a_low, actor.lane - actor.width / 2), max(a_high, actor.lane + actor.width / 2)
    return a_low < high and a_high > low


def comes_towards(actor: Actor) -> bool:
    """Whether an actor drives in the other direction."""
    return actor.heading < 0 and actor.state not in ("parked", "walk", "will cross")


def along_mps(actor: Actor) -> float:
    """Speed along the road of somebody in the path: 0 unless a vehicle in our direction."""
    return actor.speed if actor.heading > 0 and actor.state == "" else 0.0


def obstacles(ego: Ego, traffic: Traffic) -> list[tuple[float, float]]:
    """(gap in m, speed along the road in m/s) of everybody in the ego's path, nobody who comes towards it."""
    out: list[tuple[float, float]] = []
    for actor in traffic.actors:
        if actor.s < ego.s - 1.0 or comes_towards(actor):
            continue
        if in_path(ego, actor):
            out.append((actor.s - actor.length / 2 - ego.front, along_mps(actor)))
    return out


def min_gap_m(ego: Ego, traffic: Traffic) -> float:
    """From the front bumper to the nearest of them, infinite without any."""
    return max(0.0, min((gap for gap, _ in obstacles(ego, traffic)), default=math.inf))


def visual_m(look: Look, weather: Weather, light: Light) -> float:
    """Visual range."""
    visual = 3.0 / look.extinction_per_m
    if light is Light.NIGHT and weather is not Weather.CLEAR:
        visual = min(visual, NIGHT_SIGHT_M)
    return visual


def observe(ego: Ego, traffic: Traffic, plan: Plan, look: Look, weather: Weather, light: Light) -> Situation:
    """The quantities of the advice table."""
    visual = visual_m(look, weather, light)
    seen = min(visual, SIGHT_M)
    lead_gap, lead_speed, lead_braking = math.inf, 0.0, False
    in_lane = entering = near = wheeler = wheeler_close = red = works = math.inf
    vehicles = 0
    low, high = ego.d - HALF_LANE_M, ego.d + HALF_LANE_M
    for a in traffic.actors:
        gap = a.s - a.length / 2 - ego.front
        if gap > seen or a.s < ego.s:
            continue
        gap = max(gap, 0.0)
        side = max(low - (a.d + a.width / 2), (a.d - a.width / 2) - high)  # distance from our lane, < 0 inside
        if a.class_id is DetectionClass.PEDESTRIAN:
            toward = a.heading == 0 and a.state == "cross" and (ego.d - a.d) * a.across > 0
            if side < 0:
                in_lane = min(in_lane, gap)
            if side < 0 or (toward and side < max(a.speed, 0.5) * 2.0):
                entering = min(entering, gap)
            if (side < 2.0 and a.state != "worker") or toward or a.state == "wait":
                near = min(near, gap)
            continue
        if a.class_id is DetectionClass.TWO_WHEELER:
            beside = abs(a.d - ego.d) - EGO_WIDTH_M / 2 - a.width / 2
            if beside < 3.5 and a.heading >= 0:
                wheeler = min(wheeler, gap)
            if beside < 2.0 and a.heading >= 0:
                wheeler_close = min(wheeler_close, gap)
        if a.state == "parked":
            continue
        on_road = plan.at(a.s).layout
        if gap < 60 and on_road.left_edge - LANE_M - 1 < a.d < on_road.right_edge + 1 and a.kind != "bicycle":
            vehicles += 1
        if a.heading > 0 and in_path(ego, a) and gap < lead_gap:
            lead_gap, lead_speed, lead_braking = gap, a.speed, a.brakes
    for index, signal in traffic.signals.items():
        line = traffic.furnished[index].stretch.stop_line_m
        assert line is not None
        if signal.aspect(traffic.now_s) is not Aspect.GREEN and -1.0 < line - ego.front < seen:
            red = min(red, max(0.0, line - ego.front))
    if plan.at(ego.s + LABEL_AHEAD_M).layout.road is Road.WORKS:
        works = 0.0
    else:
        for x in plan.between(ego.s, ego.s + 60.0):
            if x.layout.road is Road.WORKS and x.start_m > ego.s:
                works = min(works, x.start_m - ego.s)
    return Situation(
        ego.speed,
        lead_gap,
        lead_speed,
        lead_braking,
        in_lane,
        entering,
        near,
        wheeler,
        wheeler_close,
        red,
        works,
        visual,
        vehicles,
    )


def boxes(drawing: Drawing, ego: Ego, width: int, height: int) -> tuple[TruthBox, ...]:
    """The labelled objects of a composed frame of ``width`` x ``height`` pixels, nearest first."""
    labelled = [k for k, i in enumerate(drawing.instances) if i.class_id is not None]
    candidates: dict[int, tuple[float, float, float, float, float, float, float]] = {}
    look = drawing.look
    for k in labelled:
        instance = drawing.instances[k]
        a = int(drawing.first_vertex[k]) + drawing.meshes[k].unboxed
        b = int(drawing.first_vertex[k + 1])
        z = drawing.z_m[a:b]
        nearest = float(z.min())
        if float(z.max()) < 1.0:
            continue
        p = drawing.points[a:b]
        x0, y0 = (float(v) for v in p.min(axis=0))
        x1, y1 = (float(v) for v in p.max(axis=0))
        cx0, cy0, cx1, cy1 = max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)
        if cx1 - cx0 < MIN_BOX_PX or cy1 - cy0 < MIN_BOX_PX:
            continue
        inside = (cx1 - cx0) * (cy1 - cy0) / max((x1 - x0) * (y1 - y0), 1e-6)
        if nearest < 0.5:  # partly beside the camera: how much is inside cannot be told from the projection
            inside = min(inside, 0.5)
        contrast = float(np.exp(-look.extinction_per_m * max(nearest, 0.0)))
        if look.beam > 0.5:
            lit = float(
                atmosphere.beam(look, np.array([instance.d - ego.d], np.float32), np.array([nearest], np.float32))[0]
            )
            contrast *= 1.0 if instance.kind in _SHINING_KINDS else min(1.0, 4.0 * (lit + max(look.ambient) * 0.5))
        if contrast < MIN_CONTRAST:
            continue
        candidates[k] = (cx0, cy0, cx1, cy1, inside, max(nearest, 0.0), contrast)
    shares = _visible_shares(drawing, set(candidates), width, height)
    found = []
    for k, (x0, y0, x1, y1, inside, nearest, contrast) in candidates.items():
        instance = drawing.instances[k]
        assert instance.class_id is not None
        found.append(
            TruthBox(
                instance.class_id,
                x0,
                y0,
                x1,
                y1,
                round(inside * shares.get(k, 0.0), 3),
                nearest,
                instance.brakes,
                instance.kind,
                round(contrast, 3),
            )
        )
    found.sort(key=lambda box: (box.distance_m, box.x_min))
    return tuple(found)


def _visible_shares(drawing: Drawing, wanted: set[int], width: int, height: int) -> dict[int, float]:
    """Share of each wanted instance's pixels that nothing painted later covers.

    Counted on a small picture (at most 480 px wide) of instance numbers.
    """
    scale = min(1.0, _COUNTING_PX / width)
    w, h = max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale))
    ids = np.zeros((h, w), np.uint16)
    points = np.rint(drawing.points * (scale * 8.0) - 4.0).astype(np.int32)
    alone: dict[int, int] = {}
    where: dict[int, tuple[int, int, int, int]] = {}
    owner = drawing.polygon_instance.tolist()
    n = len(owner)
    k = 0
    while k < n:
        instance = owner[k]
        unboxed_end = int(drawing.first_vertex[instance]) + drawing.meshes[instance].unboxed
        first = k
        while k < n and owner[k] == instance:
            start, end = drawing.polygon_starts[k], drawing.polygon_ends[k]
            if start >= unboxed_end:
                cv2.fillConvexPoly(ids, points[start:end], instance + 1, cv2.LINE_8, 3)
            k += 1
        if instance in wanted:
            a, b = drawing.polygon_starts[first], drawing.polygon_ends[k - 1]
            p = points[a:b]
            x0, y0 = (int(v) for v in np.maximum(p.min(axis=0) // 8 - 1, 0))
            x1, y1 = (int(v) for v in p.max(axis=0) // 8 + 2)
            part = ids[y0:y1, x0:x1]
            alone[instance] = int(np.count_nonzero(part == instance + 1))
            where[instance] = (x0, y0, x1, y1)
    out: dict[int, float] = {}
    for instance, total in alone.items():
        x0, y0, x1, y1 = where[instance]
        left = int(np.count_nonzero(ids[y0:y1, x0:x1] == instance + 1))
        out[instance] = left / total if total else 0.0
    return out
