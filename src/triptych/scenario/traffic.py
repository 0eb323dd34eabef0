"""The other road users: who there is, who comes and goes, how they behave."""

from __future__ import annotations

import itertools
import math

import numpy as np

from triptych.contract import DetectionClass, Road
from triptych.scenario.actors import (
    HARDEST_BRAKING_MPS2,
    Actor,
    halt,
    idm,
    make_bicycle,
    make_motorbike,
    make_pedestrian,
    make_vehicle,
)
from triptych.scenario.config import ScenarioConfig
from triptych.scenario.ego import EGO_FRONT_M, EGO_LENGTH_M, EGO_WIDTH_M, Ego
from triptych.scenario.props import Furnished, furnish
from triptych.scenario.road import BLEND_ROAD_M, JUNCTION_M, LANE_M, ZEBRA_M, Layout, Plan, Stretch
from triptych.scenario.signals import CLEAR_S, Aspect, Signal

AHEAD_M = 250.0
BEHIND_M = 70.0
DENSE_FROM = 1.8
"""From this traffic density on everybody drives at much the same, lower speed."""


class Traffic:
    """All actors, the signals, and the furnished stretches around the ego."""

    def __init__(self, config: ScenarioConfig, plan: Plan) -> None:
        self._config, self._plan = config, plan
        self._rng = np.random.Generator(np.random.PCG64([int(config.seed), 61]))
        self.actors: list[Actor] = []
        self.furnished: dict[int, Furnished] = {}
        self.signals: dict[int, Signal] = {}
        self.now_s = 0.0
        self._next_ambient = 0.0

    # ---- places

    def look_around(self, ego: Ego) -> list[Stretch]:
        """Furnish what has come near, forget what is behind; the stretches within reach."""
        stretches = self._plan.between(ego.s - BEHIND_M, ego.s + AHEAD_M + 60.0)
        for x in stretches:
            if x.index in self.furnished:
                continue
            furnished = furnish(self._config, x)
            self.furnished[x.index] = furnished
            self.actors += furnished.actors
            if x.junction_m is not None:
                if x.signal:
                    self.signals[x.index] = Signal(int(self._config.seed), x.index)
                self._waiting_pedestrians(x)
        oldest = stretches[0].index
        for index in [k for k in self.furnished if k < oldest]:
            del self.furnished[index]
            self.signals.pop(index, None)
        return stretches

    def oncoming_d(self, s_m: float, lane: int) -> float:
        """Where lane ``lane`` of the other direction is; it moves over smoothly when the road changes."""
        around = self._plan.between(s_m - BLEND_ROAD_M, s_m + BLEND_ROAD_M)

        def of(x: Stretch) -> float:
            return x.layout.oncoming[min(lane, len(x.layout.oncoming) - 1)]

        for a, b in itertools.pairwise(around):
            t = (s_m - b.start_m) / BLEND_ROAD_M
            if -1.0 < t < 1.0:
                t = (t + 1.0) / 2.0
                t = t * t * (3.0 - 2.0 * t)
                return of(a) + (of(b) - of(a)) * t
        return of(self._plan.at(s_m))

    # ---- who comes

    def populate(self, ego: Ego) -> None:
        """The traffic at time 0."""
        self.look_around(ego)
        rng = self._rng
        for lane, wanted in self._wanted(ego).items():
            places = np.sort(
                rng.uniform(-40.0 if lane not in ("ego", "oncoming0", "oncoming1") else 28.0, AHEAD_M - 30, int(wanted))
            )
            for place in places.tolist():
                if lane == "ego" and place < 10.0 + 2.1 * ego.speed:
                    continue
                self._spawn(ego, lane, ego.s + place)
        for _ in range(self._wanted_pedestrians(ego.s)):
            self._spawn_pedestrian(ego, ego.s + float(rng.uniform(8, 150)))
        for _ in range(self._wanted_bicycles(ego.s)):
            self._spawn_bicycle(ego, ego.s + float(rng.uniform(15, 170)))

    def _wanted(self, ego: Ego) -> dict[str, float]:
        layout = self._plan.at(ego.s).layout
        amount = self._config.traffic
        base = {Road.HIGHWAY: 1.0, Road.RURAL: 0.6, Road.URBAN: 1.0}[layout.base]
        out = {"ego": round(2.0 * amount * base)}
        for k in range(len(layout.oncoming)):
            out[f"oncoming{k}"] = round((3.6 if layout.base is not Road.HIGHWAY else 3.0) * amount * base)
        for k in range(len(layout.same)):
            out[f"same{k}"] = round(2.6 * amount)
        return {k: float(v) for k, v in out.items()}

    def _wanted_pedestrians(self, s: float) -> int:
        base = self._plan.at(s).layout.base
        return round({Road.HIGHWAY: 0.0, Road.RURAL: 0.6, Road.URBAN: 9.0}[base] * self._config.pedestrians)

    def _wanted_bicycles(self, s: float) -> int:
        layout = self._plan.at(s).layout
        if layout.road is Road.WORKS:
            return 0
        return round({Road.HIGHWAY: 0.0, Road.RURAL: 0.8, Road.URBAN: 2.0}[layout.base] * self._config.two_wheelers)

    def _vehicle(self, heading: int, layout: Layout) -> Actor:
        rng = self._rng
        if rng.random() < min(0.5, 0.09 * self._config.two_wheelers):
            return make_motorbike(rng, heading)
        return make_vehicle(rng, heading, 0.22 if layout.base is Road.HIGHWAY else 0.14, layout.base is Road.URBAN)

    def _spawn(self, ego: Ego, lane: str, s: float) -> None:
        rng = self._rng
        stretch = self._plan.at(s)
        layout = stretch.layout
        cruise = min(self._config.set_speed_mps, layout.limit_mps)
        dense = self._config.traffic > DENSE_FROM
        if lane == "ego":
            actor = self._vehicle(1, layout)
            actor.lane = 0.0
            actor.wanted = max(4.0, cruise * float(rng.uniform(*((0.55, 0.85) if dense else (0.72, 1.0)))))
            actor.next_slow = self.now_s + self._until_brake()
        elif lane.startswith("oncoming"):
            k = int(lane[-1])
            if k >= len(layout.oncoming):
                return
            actor = self._vehicle(-1, layout)
            actor.state = str(k)
            actor.lane = self.oncoming_d(s, k)
            actor.wanted = max(5.0, layout.limit_mps * float(rng.uniform(0.75, 1.0)))
        else:
            k = int(lane[-1])
            if k >= len(layout.same):
                return
            actor = self._vehicle(1, layout)
            actor.lane = layout.same[k]
            actor.wanted = max(
                8.0, min(layout.limit_mps, cruise * float(rng.uniform(*((0.6, 0.95) if dense else (1.02, 1.35)))))
            )
        actor.s, actor.d, actor.speed = s, actor.lane, actor.wanted * 0.95
        if stretch.junction_m is not None and stretch.junction_m - 8 < s < stretch.junction_m + JUNCTION_M + 8:
            return
        for other in self.actors:
            if abs(other.d - actor.d) < 2.0 and abs(other.s - s) < 16.0 + (other.length + actor.length) / 2:
                return
        if abs(actor.d - ego.d) < 2.2 and abs(s - ego.s) < 24.0 + actor.length:
            return
        leader = self._leader_gap(actor, ego)
        actor.speed = min(actor.speed, max(0.0, leader[1] + 0.25 * max(0.0, leader[0] - 8.0)))
        self.actors.append(actor)

    def _until_brake(self) -> float:
        rate = self._config.lead_braking
        return float(self._rng.exponential(28.0 / rate)) + 4.0 if rate > 0 else math.inf

    def _spawn_bicycle(self, ego: Ego, s: float) -> None:
        rng, layout = self._rng, self._plan.at(s).layout
        if layout.base is Road.HIGHWAY or layout.road is Road.WORKS or layout.parking:
            return
        oncoming = rng.random() < 0.4
        actor = make_bicycle(rng, -1 if oncoming else 1)
        d = 2.95 if layout.base is Road.URBAN else 2.75
        actor.lane = -LANE_M - d if oncoming else d
        actor.s, actor.d, actor.wanted = s, actor.lane, float(rng.uniform(3.5, 6.0))
        actor.speed = actor.wanted
        if any(abs(o.s - s) < 8 and abs(o.d - actor.d) < 1.5 for o in self.actors):
            return
        if abs(s - ego.s) > 8 or abs(actor.d - ego.d) > 2:
            self.actors.append(actor)

    def _spawn_pedestrian(self, ego: Ego, s: float) -> None:
        rng, stretch = self._rng, self._plan.at(s)
        layout = stretch.layout
        if layout.base is Road.HIGHWAY or layout.road is Road.WORKS:
            return
        actor = make_pedestrian(rng)
        right = rng.random() < 0.6
        near, far = (4.7, 7.2) if right else (layout.far_edge - 3.2, layout.far_edge - 0.5)
        if layout.base is Road.RURAL:
            near, far = (4.4, 5.2) if right else (layout.far_edge - 1.6, layout.far_edge - 0.9)
        actor.s, actor.d = s, float(rng.uniform(near, far))
        actor.lane = actor.d
        actor.heading = 1 if rng.random() < 0.5 else -1
        actor.wanted = float(rng.uniform(0.9, 1.7)) if rng.random() < 0.8 else 0.0
        actor.speed = actor.wanted
        actor.state = "walk"
        if layout.base is Road.URBAN and stretch.junction_m is None and not layout.parking and rng.random() < 0.35:
            actor.state = "will cross"
        if (
            stretch.junction_m is not None
            and stretch.junction_m + ZEBRA_M < s < stretch.junction_m + JUNCTION_M - ZEBRA_M
        ):
            return
        self.actors.append(actor)

    def _waiting_pedestrians(self, x: Stretch) -> None:
        rng = np.random.Generator(np.random.PCG64([int(self._config.seed), 67, x.index]))
        assert x.junction_m is not None
        for _ in range(round(float(rng.uniform(0.6, 3.2)) * self._config.pedestrians)):
            actor = make_pedestrian(rng)
            right = rng.random() < 0.6
            actor.s = x.junction_m + float(rng.uniform(0.6, ZEBRA_M - 0.6))
            actor.d = float(rng.uniform(4.5, 5.0)) if right else x.layout.far_edge - float(rng.uniform(0.3, 0.9))
            actor.lane, actor.heading, actor.across = actor.d, 0, -1 if right else 1
            actor.state, actor.wanted, actor.junction = "wait", float(rng.uniform(1.35, 1.7)), float(x.index)
            self.actors.append(actor)

    def _cross_traffic(self, x: Stretch, signal: Signal, ego: Ego) -> None:
        red = signal.red_for_s(self.now_s)
        rng = self._rng
        if not (0.0 < red < 3.0 and abs(x.start_m - ego.s) < 250) or rng.random() > 0.12 * self._config.traffic:
            return
        assert x.junction_m is not None
        side = 1 if rng.random() < 0.5 else -1
        middle = x.junction_m + JUNCTION_M / 2
        actor = make_vehicle(rng, 0, 0.1, True)
        actor.heading, actor.across = 0, side
        actor.length, actor.width = actor.width, actor.length
        actor.s = middle + side * 1.8
        actor.d = -side * 46.0
        actor.wanted = actor.speed = float(rng.uniform(8.0, 10.0))
        actor.state, actor.junction = "crossing traffic", float(x.index)
        if any(o.state == "crossing traffic" and o.across == side and abs(o.d - actor.d) < 14 for o in self.actors):
            return
        self.actors.append(actor)

    # ---- how they move

    def step(self, dt_s: float, now_s: float, ego: Ego) -> None:
        """Advance everybody by ``dt_s``; ``now_s`` is the time at its end."""
        self.now_s = now_s
        stretches = self.look_around(ego)
        for x in stretches:
            signal = self.signals.get(x.index)
            if signal is None:
                continue
            if x.stop_line_m is not None and 0 < x.stop_line_m - ego.s < 88.0:
                signal.approach(now_s)
            self._cross_traffic(x, signal, ego)
        vehicles = [
            a for a in self.actors if a.heading != 0 and a.state not in ("parked", "worker", "walk", "will cross")
        ]
        for actor in self.actors:
            if actor.state in ("parked", "worker"):
                continue
            if actor.class_id is DetectionClass.PEDESTRIAN:
                self._walk(actor, dt_s, ego, vehicles)
            elif actor.state == "crossing traffic":
                self._cross(actor, dt_s, ego)
            else:
                self._drive(actor, dt_s, ego)
        self._come_and_go(ego)

    def _leader_gap(self, actor: Actor, ego: Ego) -> tuple[float, float]:
        """(gap, speed) of the nearest thing in the path of a vehicle that drives along the road."""
        h = actor.heading
        best, speed = math.inf, 0.0
        at, half_l, half_w = actor.s, actor.length / 2, actor.width / 2
        ego_half = EGO_WIDTH_M / 2 + 0.2
        ego_s = ego.s + EGO_FRONT_M - EGO_LENGTH_M / 2
        ahead = h * (ego_s - at)
        gap = ahead - half_l - EGO_LENGTH_M / 2
        aside = abs(actor.d - ego.d)
        if -EGO_LENGTH_M / 2 - half_l < gap and ahead > 0 and aside < ego_half + half_w:
            best, speed = gap, ego.speed if h > 0 else 0.0
        for o in self.actors:
            ahead = h * (o.s - at)
            if not 0 < ahead <= 120 or o.state in ("parked", "worker") or o is actor:
                continue
            if o.heading == 0:
                if not (o.state == "cross" or (o.state == "crossing traffic" and abs(o.d) < 12)):
                    continue
                half, margin, towards, v = o.length / 2 + 1.0, o.width / 2 + 0.4, o.d + o.across * o.speed * 2.5, 0.0
            elif o.heading == h and o.class_id is not DetectionClass.PEDESTRIAN:
                half, margin, towards, v = o.length / 2, o.width / 2 + 0.1, o.lane, o.speed
            else:
                continue
            gap = ahead - half_l - half
            if not -half - half_l < gap < best:
                continue
            low, high = (o.d, towards) if o.d < towards else (towards, o.d)
            if low - margin - half_w < actor.d < high + margin + half_w:
                best, speed = gap, v
        return best, speed

    def _stop_line_gap(self, actor: Actor) -> float:
        """Distance to a red or amber light's stop line, infinite without one."""
        best = math.inf
        for index, signal in self.signals.items():
            x = self.furnished[index].stretch
            assert x.junction_m is not None
            aspect = signal.aspect(self.now_s)
            if aspect is Aspect.GREEN:
                continue
            line = x.junction_m - 1.0 if actor.heading > 0 else x.junction_m + JUNCTION_M + 1.0
            gap = actor.heading * (line - actor.s) - actor.length / 2
            needed = actor.speed**2 / (2 * max(gap, 0.1))
            if gap > -0.5 and (needed < 3.0 or (aspect is Aspect.RED and needed < 5.0)):
                best = min(best, gap + 1.5)
        return best

    def _lane_end(self, actor: Actor) -> float:
        """Distance until the actor's lane (not the ego's) ends."""
        for x in self._plan.between(actor.s, actor.s + 220.0):
            if actor.lane not in x.layout.same:
                return x.start_m - 30.0 - actor.s
        return math.inf

    def _drive(self, actor: Actor, dt_s: float, ego: Ego) -> None:
        wanted = min(actor.wanted, max(3.0, self._plan.at(actor.s).layout.limit_mps * 1.05))
        if self.now_s >= actor.next_slow:
            actor.slow_until = self.now_s + float(self._rng.uniform(2.0, 5.0))
            actor.next_slow = actor.slow_until + self._until_brake()
        if self.now_s < actor.slow_until:
            wanted *= 0.4
        gap, speed = self._leader_gap(actor, ego)
        acceleration = idm(actor.speed, wanted, gap, speed)
        line = self._stop_line_gap(actor)
        if not math.isinf(line):
            acceleration = min(acceleration, halt(actor.speed, line))
        if self.now_s < actor.slow_until and actor.speed > wanted:
            acceleration = min(acceleration, -2.2)
        bicycle = actor.kind == "bicycle"
        if actor.heading > 0 and not bicycle and actor.lane != 0.0:
            left = self._lane_end(actor)
            if left < 200.0:
                if self._can_merge(actor, ego):
                    actor.lane, actor.next_slow = 0.0, self.now_s + self._until_brake()
                else:
                    acceleration = min(acceleration, idm(actor.speed, wanted, max(left, 0.1), 0.0))
        acceleration = min(max(acceleration, -HARDEST_BRAKING_MPS2), 2.0)
        actor.acceleration += min(max(acceleration - actor.acceleration, -14.0 * dt_s), 8.0 * dt_s)
        before = actor.speed
        actor.speed = max(0.0, before + actor.acceleration * dt_s)
        if actor.speed == 0.0:
            actor.acceleration = max(actor.acceleration, 0.0)
        moved = (before + actor.speed) / 2 * dt_s
        actor.s += actor.heading * moved
        actor.walked += moved
        actor.brakes = actor.acceleration < -0.55 or actor.speed < 0.2
        if actor.heading < 0 and not bicycle:
            actor.lane = self.oncoming_d(actor.s, int(actor.state or 0))
            actor.d = actor.lane
        else:
            actor.d += min(max(actor.lane - actor.d, -1.0 * dt_s), 1.0 * dt_s)

    def _can_merge(self, actor: Actor, ego: Ego) -> bool:
        for s, length, speed, d in [(ego.s - 0.4, EGO_LENGTH_M, ego.speed, ego.d)] + [
            (o.s, o.length, o.speed, o.lane) for o in self.actors if o.heading > 0 and o is not actor and o.state == ""
        ]:
            if abs(d) > 1.5:
                continue
            gap = abs(s - actor.s) - (length + actor.length) / 2
            behind, ahead = (speed, actor.speed) if s < actor.s else (actor.speed, speed)
            if gap < 8.0 + 1.1 * behind + max(0.0, behind**2 - ahead**2) / 4.0:
                return False
        return True

    def _safe_to_cross(self, s: float, ego: Ego, vehicles: list[Actor]) -> bool:
        def passes(distance: float, speed: float) -> bool:
            if distance < -6.0:
                return True
            if distance < 0.0:
                return False
            if speed < 0.3:
                return distance > 1.2
            return distance > 6.0 + speed * 1.0 + speed**2 / (2 * 1.8)

        if not passes(s - ego.front, ego.speed):
            return False
        return all(passes(v.heading * (s - v.s) - v.length / 2, v.speed) for v in vehicles if abs(v.s - s) < 130)

    def _walk(self, actor: Actor, dt_s: float, ego: Ego, vehicles: list[Actor]) -> None:
        if actor.state == "wait":
            actor.speed = 0.0
            index = int(actor.junction)
            signal = self.signals.get(index)
            distance = actor.s - ego.front
            if signal is not None:
                red = signal.red_for_s(self.now_s)
                go = CLEAR_S < red < 4.5 and distance < 140
            else:
                go = 0 < distance < 62
            if go and self._safe_to_cross(actor.s, ego, vehicles):
                actor.state = "cross"
        elif actor.state == "will cross":
            distance = actor.s - ego.front
            if 16 < distance < 58 and self._safe_to_cross(actor.s, ego, vehicles):
                actor.state, actor.heading = "cross", 0
                actor.across = -1 if actor.d > 0 else 1
                actor.wanted = max(actor.wanted, 1.4)
        if actor.state == "cross":
            wanted = actor.wanted
            # never walk into a vehicle that stands or comes in the way
            for s, d, half_l, half_w in [(ego.s - 0.4, ego.d, EGO_LENGTH_M / 2, EGO_WIDTH_M / 2)] + [
                (v.s, v.d, v.length / 2, v.width / 2) for v in vehicles if abs(v.s - actor.s) < 12
            ]:
                toward = (d - actor.d) * actor.across - half_w
                if abs(s - actor.s) < half_l + 0.9 and 0.0 < toward < 1.4:
                    wanted = 0.0
            actor.speed = wanted
            actor.d += actor.across * actor.speed * dt_s
            far = self._plan.at(actor.s).layout.far_edge - 0.8
            if (actor.across < 0 and actor.d <= far) or (actor.across > 0 and actor.d >= 4.8):
                actor.state, actor.lane = "walk", actor.d
                actor.heading = 1 if actor.walked % 2.0 > 1.0 else -1
        elif actor.heading != 0:
            actor.s += actor.heading * actor.speed * dt_s
            x = self._plan.at(actor.s)
            if x.junction_m is not None and x.junction_m + ZEBRA_M < actor.s < x.junction_m + JUNCTION_M - ZEBRA_M:
                actor.s -= 2 * actor.heading * actor.speed * dt_s
                actor.heading = -actor.heading
        actor.walked += actor.speed * dt_s

    def _cross(self, actor: Actor, dt_s: float, ego: Ego) -> None:
        x = self.furnished.get(int(actor.junction))
        wanted = actor.wanted
        if x is not None and x.stretch.junction_m is not None:
            a, b = x.stretch.junction_m + ZEBRA_M, x.stretch.junction_m + JUNCTION_M - ZEBRA_M
            busy = a - 1.0 < ego.front and ego.s - 3.0 < b + 1.0
            busy = busy or any(
                o.heading != 0
                and o.class_id is not DetectionClass.PEDESTRIAN
                and o.state != "parked"
                and a - 2 < o.s < b + 2
                for o in self.actors
            )
            signal = self.signals.get(x.stretch.index)
            busy = busy or (signal is not None and signal.aspect(self.now_s) is not Aspect.RED)
            to_edge = -actor.d * actor.across - 9.0 - actor.width / 2
            if busy and to_edge > 0:
                wanted = min(wanted, math.sqrt(2 * 3.0 * to_edge)) if to_edge > 0.5 else 0.0
        change = min(max(wanted - actor.speed, -4.0 * dt_s), 2.0 * dt_s)
        actor.brakes = change < -0.01
        actor.speed = max(0.0, actor.speed + change)
        actor.d += actor.across * actor.speed * dt_s

    def _come_and_go(self, ego: Ego) -> None:
        low, high = ego.s - BEHIND_M, ego.s + AHEAD_M + 40.0

        def stays(a: Actor) -> bool:
            if a.state in ("parked", "worker", "wait"):
                return a.s > low
            if a.state == "crossing traffic":
                return a.s > low and abs(a.d) < 60
            return low < a.s < high

        self.actors = [a for a in self.actors if stays(a)]
        self._next_ambient -= 1
        if self._next_ambient > 0:
            return
        self._next_ambient = 5  # look every few steps only
        rng = self._rng
        count: dict[str, int] = {}
        pedestrians = bicycles = 0
        layout = self._plan.at(ego.s).layout
        for a in self.actors:
            if a.class_id is DetectionClass.PEDESTRIAN:
                pedestrians += a.state in ("walk", "will cross", "cross")
            elif a.kind == "bicycle":
                bicycles += 1
            elif a.heading < 0 and a.state not in ("parked",):
                count[f"oncoming{a.state or 0}"] = count.get(f"oncoming{a.state or 0}", 0) + 1
            elif a.heading > 0 and a.state == "":
                key = (
                    "ego" if a.lane == 0.0 else f"same{layout.same.index(a.lane)}" if a.lane in layout.same else "other"
                )
                count[key] = count.get(key, 0) + 1
        for lane, wanted in self._wanted(ego).items():
            if count.get(lane, 0) >= wanted or rng.random() > 0.35:
                continue
            if lane.startswith("same") and rng.random() < 0.6 and ego.speed > 5.0:
                s = ego.s - float(rng.uniform(50, 65))
            else:
                s = ego.s + AHEAD_M - float(rng.uniform(0, 25))
            self._spawn(ego, lane, s)
        if pedestrians < self._wanted_pedestrians(ego.s + 60):
            self._spawn_pedestrian(ego, ego.s + float(rng.uniform(100, 170)))
        if bicycles < self._wanted_bicycles(ego.s + 60) and rng.random() < 0.2:
            self._spawn_bicycle(ego, ego.s + float(rng.uniform(110, 180)))
