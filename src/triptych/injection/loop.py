"""The closed loop on a virtual clock: scenario, tiers, supervisor, safety core and vehicle, with a hook at every hop.

The very objects that drive (:class:`TierCore`, :class:`SupervisorCore`, the safety core's C code) are stepped by a
discrete event simulation; engines infer for real and take their modelled time. Equal configuration and equal faults
give equal decisions. What is modelled, and how:

* a camera frame reaches the tiers :data:`CAMERA_TRANSPORT_NS` after its stamp, any other message its receivers
  :data:`MESSAGE_TRANSPORT_NS` after it was sent;
* who is stopped (SIGSTOP) hears nothing meanwhile and goes on as if no time had passed; who is killed forgets
  everything and comes back after the fault's restart time, the supervisor with its latch;
* the safety core runs every 10 ms and speaks when its command changes, and every 50 ms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from triptych.contract import (
    BUDGETS,
    ConstraintGuard,
    DegradationState,
    EngineError,
    Frame,
    InputError,
    MotionConstraint,
    PointCloud,
    Tier,
    TierResult,
    TierState,
    VirtualClock,
    crc_ok,
    protect,
)
from triptych.engines.protocol import Engine, EngineOutput
from triptych.injection.hops import CAMERA, COMMAND, CONSTRAINT, DRIVER, LIDAR, OBSTACLES, ODOMETRY, RESULT, STATUS
from triptych.lidar import LidarConfig, LidarSensing
from triptych.replay import record as rec
from triptych.safety import SafetyCore, SafetyInputs, SafetyLimits, command_of
from triptych.scenario import Scenario, ScenarioConfig
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.core import SupervisorCore
from triptych.supervisor.faults import FaultRow
from triptych.supervisor.records import Transition
from triptych.tiers.core import DETECTOR_SELF_TEST_S, TierCore
from triptych.tiers.heartbeat import heartbeat
from triptych.tiers.monitors import InputConfig, InputWatch
from triptych.tiers.tier import SelfTest
from triptych.virtual import CAMERA_TRANSPORT_NS, MESSAGE_TRANSPORT_NS, STATUS_PERIOD_NS, Events, infer, tier_core

NS = 1_000_000_000
CYCLE_NS, REPEAT_NS = 10_000_000, 50_000_000
STEP_CYCLES = 2
"""The world moves once per odometry message; whether the vehicle hears anybody is looked at in each cycle."""
ODOMETRY_NS, DRIVER_NS, LIDAR_NS = 20_000_000, 100_000_000, 100_000_000
LIDAR_WORK_NS = 15_000_000
"""Receiving a scan and finding what is in it, as slow as on one core of a small machine."""
START_STAMP_NS = 1_700_000_000 * NS
MODE = "closed_loop"
PROCESSES = ("detector", "distilled", "full", "lidar", "supervisor", "safety_core")
LIMITS = SafetyLimits(trend_window_s=0.0)

RECORDED: Mapping[str, Callable[[int, Any], rec.Entry]] = {
    COMMAND: rec.ConstraintRecord,
    ODOMETRY: rec.OdometryRecord,
    DRIVER: rec.DriverRecord,
    **dict.fromkeys(RESULT, rec.Received),
    **dict.fromkeys(STATUS, rec.StatusRecord),
}
"""What of each hop goes into a record; times are those of the true clock."""

Delivery = tuple[int, Any]
"""Delay in ns beyond the usual one, and the message."""


class Fault(Protocol):
    """What may be broken. All times are monotonic ns of the loop; see :class:`triptych.injection.faults.Injected`."""

    def deliver(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        """What becomes of a message that is being sent; None leaves it alone."""

    def answer(self, tier: Tier, output: EngineOutput, now_ns: int) -> EngineOutput | BaseException | None:
        """What an engine says instead; None leaves it alone."""

    def infer_ns(self, tier: Tier, usual_ns: int, now_ns: int) -> int | None:
        """How long an inference takes; None: for ever."""

    def offset_ns(self, now_ns: int) -> int:
        """By how much the clock of stamps is off."""

    def changes(self) -> Iterable[tuple[int, str, str]]:
        """(time, process, ``kill`` | ``stop`` | ``continue`` | ``start``) in order."""


ARRIVAL, PERIODIC = range(2)


@dataclass(slots=True)
class _Lane:
    """A tier: its engine, and the core of its present life."""

    tier: Tier
    engine: Engine
    infer_ns: int
    core: TierCore
    watch: InputWatch | None
    self_test: SelfTest
    life: int = 0
    statuses: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """A command as the vehicle received it, at a monotonic time."""

    t_ns: int
    command: MotionConstraint


@dataclass
class Log:
    """What happened.

    Attributes:
        transitions: of the supervisor, each with its monotonic time.
        heard: commands to the vehicle that differ from the one before in limit, state, lights or reason.
        effective: (time, the vehicle's own safe default applies), at each change.
    """

    transitions: list[tuple[int, Transition]] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    effective: list[tuple[int, bool]] = field(default_factory=list)


class ClosedLoop:
    """One drive.

    Args:
        drive: the scenario.
        engines: of the tiers; they are not closed.
        table: the fault table.
        config: parameters of the supervisor; the vehicle has a lidar if they expect one.
        fault: what is broken on the way.
        modelled_ms: time of one inference, by tier.
        record: filled with what supervisor and vehicle hear; its constraints are the commands as the vehicle has them.
        begin_ns: monotonic time at the beginning, e.g. shortly before a counter of milliseconds wraps; stamps begin
            where they always do.
    """

    def __init__(
        self,
        drive: ScenarioConfig,
        engines: Mapping[Tier, Engine],
        table: Sequence[FaultRow],
        config: SupervisorConfig,
        fault: Fault,
        modelled_ms: Mapping[Tier, float],
        record: rec.RunRecord | None = None,
        begin_ns: int = 0,
    ) -> None:
        self.record = record
        self._said = None if record is None else rec.Said(record)
        self.begin_ns = begin_ns
        self.scenario = Scenario(drive)
        self.config, self.table, self.fault = config, tuple(table), fault
        self.log = Log()
        self.clock = VirtualClock(START_STAMP_NS - begin_ns)
        self.clock.advance_to(begin_ns)
        self.supervisor = SupervisorCore(config, self.table)
        self.lanes = {
            tier: _Lane(
                tier, engine, round(modelled_ms[tier] * 1e6), _core(tier, engine), _watch(tier), _sound(tier, engine)
            )
            for tier, engine in sorted(engines.items())
        }
        self.safety_core, self._inputs = SafetyCore(LIMITS), SafetyInputs()
        self._constraint_record, self._motion_record = bytes(28), bytes(20)
        self.guard = ConstraintGuard()
        if record is not None:
            record.meta.update(mode=MODE, started_ns=START_STAMP_NS, tiers=[tier.key for tier in self.lanes])
        self._running = dict.fromkeys(PROCESSES, True)
        self._waiting: dict[str, list[Callable[[], None]]] = {name: [] for name in PROCESSES}
        self._events = Events()
        self._sensing = LidarSensing(LidarConfig())
        self._frames = self._drivers = self._commands = self._seen = self._cycles = 0
        self._told: tuple[object, ...] = ()
        self._told_ns = begin_ns - REPEAT_NS
        self._heard: tuple[object, ...] = ()
        self._safe: bool | None = None
        self._schedule(round(NS / drive.fps))
        self.inject(fault)

    def inject(self, fault: Fault) -> None:
        """From now on, this is broken instead."""
        self.fault = fault
        for at_ns, process, what in fault.changes():
            self._at(at_ns, partial(self._change, process, what))

    # ---- events ----

    def _at(self, at_ns: int, action: Callable[[], None], rank: int = ARRIVAL) -> None:
        self._events.at(at_ns, rank, action)

    def _every(self, period_ns: int, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self._at(self.now_ns + period_ns, run, PERIODIC)

        self._at(self.begin_ns, run, PERIODIC)

    def _schedule(self, frame_ns: int) -> None:
        for lane in self.lanes.values():
            lane.core.start(self.begin_ns, self.stamp_ns)
            self._every(STATUS_PERIOD_NS, partial(self._status, lane))
        self._every(CYCLE_NS, self._drive)
        self._every(frame_ns, self._take_picture)
        if self.config.lidar_expected:
            self._every(LIDAR_NS, self._scan)
        self._every(ODOMETRY_NS, lambda: self._send(ODOMETRY, self.scenario.odometry(self.stamp_ns)))
        self._every(DRIVER_NS, self._tell_driver)
        self._every(CYCLE_NS, self._cycle)
        self._every(round(self.config.tick_period_s * NS), self._tick)

    @property
    def now_ns(self) -> int:
        """Monotonic time."""
        return self.clock.monotonic_ns()

    @property
    def stamp_ns(self) -> int:
        """What the clock of stamps shows."""
        return self.clock.stamp_ns() + self.fault.offset_ns(self.now_ns)

    def run(self, until_s: float) -> None:
        """Go on until a time after the beginning."""
        end_ns = self.begin_ns + round(until_s * NS)
        while True:
            due_ns = min([self._events.next_ns, *self._deadlines()])
            if due_ns > end_ns:
                if self.record is not None:
                    self.record.meta["ended_ns"] = START_STAMP_NS + end_ns - self.begin_ns
                return
            self.clock.advance_to(due_ns)
            for lane in self._alive():
                self._publish(lane, lane.core.poll(self.now_ns, self.stamp_ns))
            self._events.run_due(due_ns)
            for lane in self._alive():
                self._take_job(lane)

    def _alive(self) -> list[_Lane]:
        return [lane for lane in self.lanes.values() if self._running[lane.tier.key]]

    def _deadlines(self) -> Iterable[int]:
        for lane in self._alive():
            due_ns = lane.core.next_event_ns()
            if due_ns is not None:
                yield max(due_ns, self.now_ns)

    # ---- processes ----

    def _change(self, process: str, what: str) -> None:
        self._running[process] = what in ("continue", "start")
        if what in ("kill", "start"):
            self._waiting[process].clear()
        if what == "start":
            self._begin_anew(process)
        waiting, self._waiting[process] = self._waiting[process], []
        if self._running[process]:
            for action in waiting:
                action()
        else:
            self._waiting[process] = waiting

    def _begin_anew(self, process: str) -> None:
        if process == "supervisor":
            self.supervisor = SupervisorCore(self.config, self.table, latched=self.supervisor.latched)
        elif process == "lidar":
            self._sensing, self._seen = LidarSensing(LidarConfig()), 0
        elif process == "safety_core":
            self.safety_core, self._inputs = SafetyCore(LIMITS), SafetyInputs()
            self._constraint_record, self._motion_record = bytes(28), bytes(20)
        else:
            lane = self.lanes[Tier[process.upper()]]
            lane.core, lane.life, lane.statuses = (
                _core(lane.tier, lane.engine),
                lane.life + 1,
                0,
            )
            lane.watch = _watch(lane.tier)
            lane.core.start(self.now_ns, self.stamp_ns)

    # ---- messages ----

    def _send(self, hop: str, message: Any) -> None:
        """Hand a message to whoever listens, unless something becomes of it on the way."""
        usual_ns = CAMERA_TRANSPORT_NS if hop == CAMERA else MESSAGE_TRANSPORT_NS
        deliveries = self.fault.deliver(hop, message, self.now_ns)
        for delay_ns, value in [(0, message)] if deliveries is None else deliveries:
            self._at(self.now_ns + usual_ns + delay_ns, partial(self._receive, hop, value))

    def _receive(self, hop: str, message: Any) -> None:
        try:
            self._hand_over(hop, message)
        except InputError:
            return  # as in the nodes: as good as not received

    def _hand_over(self, hop: str, message: Any) -> None:
        now_ns, supervisor = self.now_ns, self._running["supervisor"]
        if self.record is not None and (entry := RECORDED.get(hop)) is not None:
            self.record.add(entry(self.clock.stamp_ns(), message))
        core = self._running["safety_core"]
        if hop == CAMERA:
            frame = dataclasses.replace(message, received_ns=self.stamp_ns, received_monotonic_ns=now_ns)
            for lane in self._alive():
                lane.core.offer(frame, now_ns, self.stamp_ns)
        elif hop == LIDAR:
            if self._running["lidar"]:
                self._look(message)
        elif hop == OBSTACLES:
            if supervisor:
                self.supervisor.on_obstacles(message, now_ns, crc_ok(message))
        elif hop == CONSTRAINT:
            if core:
                self._constraint_record = self._inputs.constraint(message)
        elif hop == COMMAND:
            self._obey(message)
            if supervisor:
                self.supervisor.on_command(message, now_ns, crc_ok(message))
        elif hop == ODOMETRY:
            if supervisor:
                self.supervisor.on_odometry(message, now_ns)
            if core:
                self._motion_record = self._inputs.motion(message, now_ns)
        elif hop == DRIVER:
            if supervisor:
                self.supervisor.on_driver(message, now_ns, crc_ok(message))
            if core:
                self._inputs.driver(message, now_ns)
        elif supervisor and hop in RESULT:
            self.supervisor.on_result(message, now_ns, crc_ok(message))
        elif supervisor and hop in STATUS:
            self.supervisor.on_status(message, now_ns, crc_ok(message))

    # ---- the vehicle ----

    def _obey(self, command: MotionConstraint) -> None:
        self.guard.receive(command, self.now_ns, crc_ok=crc_ok(command))
        key = (command.speed_limit_mps, command.state, command.hazard_lights, command.reason)
        if key != self._heard:
            self._heard = key
            self.log.heard.append(Heard(self.now_ns, command))

    def _drive(self) -> None:
        effective = self.guard.effective(self.now_ns, self.stamp_ns)
        safe = effective.reason.startswith("no constraint")
        if safe is not self._safe:
            self._safe = safe
            self.log.effective.append((self.now_ns, safe))
        self._cycles += 1
        if self._cycles % STEP_CYCLES == 0:
            self.scenario.step(STEP_CYCLES * CYCLE_NS / NS, effective)

    def _take_picture(self) -> None:
        self._frames += 1
        self._send(CAMERA, Frame(self.scenario.render(), self.stamp_ns, self._frames))

    def _scan(self) -> None:
        self._send(LIDAR, PointCloud(self.scenario.scan(), self.stamp_ns))

    def _look(self, cloud: PointCloud) -> None:
        self._seen += 1
        moving = self.scenario.speed_mps >= self.config.standstill_speed_mps
        found = protect(self._sensing.take(cloud, moving), self._seen)
        self._at(self.now_ns + LIDAR_WORK_NS, partial(self._send, OBSTACLES, found))

    def _tell_driver(self) -> None:
        self._drivers += 1
        self._send(DRIVER, protect(self.scenario.driver(self.stamp_ns), self._drivers))

    # ---- the tiers ----

    def _take_job(self, lane: _Lane) -> None:
        frames = lane.core.take(self.now_ns)
        if frames is None:
            return
        took_ns = self.fault.infer_ns(lane.tier, lane.infer_ns, self.now_ns)
        outcome = infer(lane.engine, frames, "", took_ns or lane.infer_ns)
        if isinstance(outcome, EngineOutput):
            changed = self.fault.answer(lane.tier, outcome, self.now_ns)
            outcome = outcome if changed is None else changed
        if took_ns is not None:
            self._at(self.now_ns + took_ns, partial(self._complete, lane, lane.life, outcome, frames[-1]))

    def _complete(self, lane: _Lane, life: int, outcome: EngineOutput | BaseException, frame: Frame) -> None:
        if life != lane.life:
            return
        if not self._running[lane.tier.key]:
            self._waiting[lane.tier.key].append(partial(self._complete, lane, life, outcome, frame))
            return
        self._publish(lane, lane.core.finish(outcome, self.now_ns, self.stamp_ns))
        if lane.watch is not None:
            lane.core.note_picture(lane.watch.look(frame.image), self.now_ns)
        if lane.core.take_self_test(self.now_ns):
            self._test(lane)

    def _test(self, lane: _Lane) -> None:
        """The golden frame, answered by an engine to which the same may befall as with any other picture."""
        engine = lane.engine
        took_ns = self.fault.infer_ns(lane.tier, lane.infer_ns, self.now_ns)
        if took_ns is None:
            return
        output = infer(
            engine, [engine.golden()] * engine.frames_wanted, getattr(engine, "golden_question", ""), took_ns
        )
        if isinstance(output, EngineOutput):
            changed = self.fault.answer(lane.tier, output, self.now_ns)
            output = output if changed is None else changed
        problem = lane.self_test.judge(output) if isinstance(output, EngineOutput) else str(output)
        self._at(self.now_ns + took_ns, partial(self._tested, lane, lane.life, problem))

    def _tested(self, lane: _Lane, life: int, problem: str) -> None:
        if life != lane.life:
            return
        if not self._running[lane.tier.key]:
            self._waiting[lane.tier.key].append(partial(self._tested, lane, life, problem))
            return
        lane.core.finish_self_test(problem)

    def _publish(self, lane: _Lane, result: TierResult | None) -> None:
        if result is not None:
            self._send(f"{lane.tier.key}.result", result)

    def _status(self, lane: _Lane) -> None:
        if self._running[lane.tier.key]:
            lane.statuses += 1
            fault, count = lane.core.fault(self.now_ns), lane.core.counters()
            status = heartbeat(lane.tier, TierState.ACTIVE, fault, lane.engine, count, self.stamp_ns, lane.statuses)
            self._send(f"{lane.tier.key}.status", status)

    # ---- the two channels ----

    def _tick(self) -> None:
        if not self._running["supervisor"]:
            return
        commands = self.supervisor.step(self.now_ns, self.stamp_ns)
        self.log.transitions += [(self.now_ns, change) for change in commands.transitions]
        if self._said is not None:
            self._said.add(self.clock.stamp_ns(), commands.state, commands.verdicts or ())
        if commands.constraint is not None:
            self._send(CONSTRAINT, commands.constraint)

    def _cycle(self) -> None:
        if not self._running["safety_core"]:
            return
        record = self.safety_core.step(self._constraint_record, self._motion_record, self.now_ns // 1_000_000)
        command = command_of(record, self.stamp_ns)
        assert command is not None
        told = (command.causes, dataclasses.replace(command.constraint, stamp_ns=0))
        if told != self._told or self.now_ns - self._told_ns >= REPEAT_NS:
            self._told, self._told_ns = told, self.now_ns
            self._commands += 1
            self._send(COMMAND, protect(command.constraint, self._commands))

    @property
    def state(self) -> DegradationState:
        """Of the supervisor's machine."""
        return self.supervisor.machine.state


def _core(tier: Tier, engine: Engine) -> TierCore:
    """A tier as its node makes it by default."""
    return tier_core(tier, engine, BUDGETS[tier], DETECTOR_SELF_TEST_S if tier is Tier.DETECTOR else 0.0)


def _sound(tier: Tier, engine: Engine) -> SelfTest:
    """Of an engine that has passed it once, if it is to pass it again."""
    test = SelfTest(tier, engine)
    if tier is Tier.DETECTOR and (problem := test.run()):
        raise EngineError(f"self-test failed: {problem}", where=f"engine {engine.id}")
    return test


def _watch(tier: Tier) -> InputWatch | None:
    """The detector looks at its pictures, as it does by default."""
    return InputWatch(InputConfig()) if tier is Tier.DETECTOR else None
