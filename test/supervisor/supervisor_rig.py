"""A vehicle around the supervisor's core: message sources that can be switched, a speed that obeys, a tick of 10 ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    LatencySplit,
    Light,
    MotionConstraint,
    Obstacles,
    Odometry,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    Weather,
)
from triptych.contract.supervision import StateRecord
from triptych.supervisor import FaultRow, Policy, SupervisorConfig, SupervisorCore, Transition, load_faults
from triptych.supervisor.monitors.resource import MachineReading
from triptych.supervisor.policy import DEFAULT_POLICY, check_policy
from triptych.supervisor.records import Commands

S = DegradationState
MS = 1_000_000
SECOND = 1_000_000_000
START_STAMP_NS = 1_700_000_000 * SECOND
FAULTS = Path(__file__).resolve().parents[2] / "config" / "faults.yaml"
POLICY = FAULTS.with_name("policy.yaml")
ADVICE_PERIOD_MS = {Tier.DISTILLED: 200, Tier.FULL: 2000}
LATENCY_MS = {Tier.DETECTOR: 20, Tier.DISTILLED: 150, Tier.FULL: 1500}


@cache
def table() -> tuple[FaultRow, ...]:
    """The shipped fault table."""
    return load_faults(FAULTS)


def policy(**changes: str) -> Policy:
    """The default policy with fields changed: ``policy(cruise_full="never")``."""
    rows = {row.function: row.model_dump() for row in DEFAULT_POLICY.rows}
    for name, value in changes.items():
        function, _, tier = name.rpartition("_")
        rows[function][tier] = value
    return check_policy([*rows.values()], "p.yaml")


def row(**changes: object) -> FaultRow:
    """A row of a fault table for unit tests."""
    values: dict[str, object] = {
        "id": "detector.test",
        "source": "detector",
        "metric": "gap_s",
        "comparison": ">",
        "threshold": 1.0,
        "debounce_s": 0.0,
        "hysteresis": 0.0,
        "clear_s": 0.0,
        "latch": False,
        "reaction": "l2",
        "asil": "B",
        "sentence": "value {value:.2f} limit {threshold:.2f}",
    }
    return FaultRow(**{**values, **changes})  # type: ignore[arg-type]


def flickering(seen: Detections, stamp_ns: int) -> Detections:
    """The same objects in another picture: scores move a little with the stamp."""
    less = stamp_ns // MS % 1000 * 1e-5
    return replace(seen, detections=tuple(replace(d, score=d.score - less) for d in seen.detections))


def make_result(tier: Tier = Tier.DETECTOR, stamp_ns: int = 0, **changes: object) -> TierResult:
    """A fresh, valid result."""
    payload = flickering(Detections(1280, 720, (Detection("car", 0, 0.9, 1.0, 2.0, 3.0, 4.0),)), stamp_ns)
    values: dict[str, object] = {
        "tier": tier,
        "origin": Origin.FRESH,
        "reason": "",
        "source_stamp_ns": stamp_ns,
        "frame_id": "camera",
        "frame_number": 1,
        "published_ns": stamp_ns + 20 * MS,
        "age_ms": 20.0,
        "latency": LatencySplit(1.0, 1.0, 7.0, 1.0),
        "engine_id": "e",
        "engine_version": "1",
        "device": "cpu",
        "uncertainty": 0.1,
        "payload": payload if tier is Tier.DETECTOR else make_answer(),
    }
    return TierResult(**{**values, **changes})  # type: ignore[arg-type]


def make_answer(number: int = 0, **changes: object) -> SceneAdvice:
    """A sound answer; ``number`` moves the probabilities a little, as another picture does."""
    values: dict[str, object] = {
        "road": Road.HIGHWAY,
        "weather": Weather.CLEAR,
        "light": Light.DAY,
        "advice": Advice.PROCEED,
        "vehicles": 1,
        "two_wheelers": 0,
        "pedestrians": 0,
        "text": "highway in clear weather and daylight, no hazard seen, go on",
        "token_probabilities": (0.9 - number % 100 * 1e-4, *[0.95] * 17),
    }
    return SceneAdvice(**{**values, **changes})  # type: ignore[arg-type]


class Rig:
    """Drives a core tick by tick. Sources are names: detector, distilled, full, odometry, driver, safety_core,
    machine, lidar (where the configuration expects one).

    Attributes one may change between runs: ``alive`` (sources that send), ``heartbeats`` (tiers whose status is sent),
    ``advice``, ``origin``, ``uncertainty`` by tier, ``driver`` and ``scan`` (templates), ``speed_mps``,
    ``obeys`` (the vehicle follows the constraint), ``clock_step_ns``, and ``edit_result``, called with every result
    before it is sent.
    """

    def __init__(
        self,
        latched: bool = False,
        faults: tuple[FaultRow, ...] | None = None,
        policy: Policy = DEFAULT_POLICY,
        **config: object,
    ) -> None:
        self.config = SupervisorConfig(**{"safety_core_expected": False, "machine_settle_s": 0.0, **config})  # type: ignore[arg-type]
        self.core = SupervisorCore(self.config, table() if faults is None else faults, latched=latched, policy=policy)
        self.now_ns = 1000 * SECOND
        self.clock_step_ns = 0
        self.alive = {"detector", "distilled", "full", "odometry", "driver", "safety_core", "machine", "lidar"}
        self.heartbeats = set(Tier)
        self.status = {tier: TierStatus(0, tier, TierState.ACTIVE, True, "", "e", "1") for tier in Tier}
        self.advice = dict.fromkeys(ADVICE_PERIOD_MS, Advice.PROCEED)
        self.origin = dict.fromkeys(Tier, Origin.FRESH)
        self.uncertainty = dict.fromkeys(Tier, 0.1)
        self.driver = DriverState(0)
        self.scan = Obstacles(0, "base_link", 5000, 60.0, True, "")
        self.speed_mps = 0.0
        self.obeys = True
        self.edit_command: Callable[[MotionConstraint], MotionConstraint] = lambda command: command
        self.edit_result: Callable[[TierResult], TierResult | None] = lambda result: result
        self.counters = dict.fromkeys(Tier, 0)
        self.ticks = 0
        self.constraints: list[tuple[int, MotionConstraint]] = []
        self.states: list[tuple[int, StateRecord]] = []
        self.transitions: list[Transition] = []
        self.commands: list[Commands] = []
        self.limits_mps: list[float] = []

    @property
    def stamp_ns(self) -> int:
        return self.now_ns + START_STAMP_NS + self.clock_step_ns

    @property
    def state(self) -> S:
        return self.core.machine.state

    @property
    def constraint(self) -> MotionConstraint:
        return self.constraints[-1][1]

    @property
    def record(self) -> StateRecord:
        return self.states[-1][1]

    def visited(self) -> list[str]:
        """Names of the states entered, in order."""
        return [t.after for t in self.transitions if t.kind == "state"]

    def faults(self) -> list[str]:
        """Names of the faults that became active, in order."""
        return [t.name for t in self.transitions if t.kind == "fault" and t.after == "active"]

    def send_result(self, tier: Tier, **changes: object) -> None:
        """One result of this tier now, edited."""
        self.counters[tier] += 1
        latency_ns = LATENCY_MS[tier] * MS
        values: dict[str, object] = {
            "origin": self.origin[tier],
            "uncertainty": self.uncertainty[tier],
            "sequence_counter": self.counters[tier] % 256,
        }
        if tier is not Tier.DETECTOR:
            values["payload"] = make_answer(self.counters[tier], advice=self.advice[tier])
        result = self.edit_result(make_result(tier, self.stamp_ns - latency_ns, **{**values, **changes}))
        if result is not None:
            self.core.on_result(result, self.now_ns, True)

    def _send(self) -> None:
        ms = self.ticks * 10
        if "detector" in self.alive and ms % 50 == 0:
            self.send_result(Tier.DETECTOR)
        for tier, period_ms in ADVICE_PERIOD_MS.items():
            if tier.key in self.alive and ms % period_ms == 0:
                self.send_result(tier)
        if ms % 100 == 0:
            for tier in self.heartbeats:
                if tier.key in self.alive:
                    self.core.on_status(replace(self.status[tier], stamp_ns=self.stamp_ns), self.now_ns, True)
            if "driver" in self.alive:
                self.core.on_driver(replace(self.driver, stamp_ns=self.stamp_ns), self.now_ns, True)
        if "machine" in self.alive and ms % 1000 == 0:
            self.core.on_machine(MachineReading(0.5, 0.1, 60.0, 0.5), self.now_ns)
        if "safety_core" in self.alive and ms % 50 == 0 and self.constraints:
            self.core.on_command(self.edit_command(replace(self.constraint, reason="")), self.now_ns, True)
        if self.config.lidar_expected and "lidar" in self.alive and ms % 100 == 0:
            scan = replace(self.scan, stamp_ns=self.stamp_ns - 20 * MS)
            self.core.on_obstacles(scan, self.now_ns, True)
        if "odometry" in self.alive and ms % 20 == 0:
            self.core.on_odometry(Odometry(self.stamp_ns, self.speed_mps), self.now_ns)

    def tick(self, sleep_ms: int = 10) -> Commands:
        """One tick; the clock then moves on by ``sleep_ms``."""
        self._send()
        commands = self.core.step(self.now_ns, self.stamp_ns)
        self.commands.append(commands)
        if commands.constraint is not None:
            self.constraints.append((self.now_ns, commands.constraint))
        if commands.state is not None:
            self.states.append((self.now_ns, commands.state))
        self.transitions += commands.transitions
        limit = self.constraint
        self.limits_mps.append(limit.speed_limit_mps)
        if self.obeys:
            if self.speed_mps <= limit.speed_limit_mps:
                self.speed_mps = min(limit.speed_limit_mps, self.speed_mps + 0.03)
            else:
                self.speed_mps = max(limit.speed_limit_mps, self.speed_mps - limit.deceleration_mps2 * 0.01)
        self.ticks += 1
        self.now_ns += sleep_ms * MS
        return commands

    def run(self, seconds: float) -> Rig:
        """As many ticks as fit."""
        for _ in range(round(seconds * 100)):
            self.tick()
        return self

    def until(self, state: S, seconds: float = 40.0) -> float:
        """Run until the state is reached; returns the seconds it took."""
        start_ns = self.now_ns
        while self.state is not state:
            assert self.now_ns - start_ns < seconds * SECOND, f"{state.name} not reached, still {self.state.name}"
            self.tick()
        return (self.now_ns - start_ns) / SECOND

    def forget(self) -> None:
        """Drop what was recorded so far."""
        del self.constraints[:-1], self.states[:-1], self.transitions[:], self.commands[:], self.limits_mps[:]


def driving(speed_mps: float = 20.0, **config: object) -> Rig:
    """A rig in NOMINAL at this speed, with its limit risen to it, its records empty."""
    rig = Rig(**config)  # type: ignore[arg-type]
    rig.speed_mps = speed_mps
    rig.obeys = False
    rig.run(0.4)
    rig.obeys = True
    assert rig.state is S.NOMINAL
    rig.forget()
    return rig
