"""The supervisor: messages in, one tick after the other, commands out. No ROS, no clock, no threads.

Messages may come from any thread; they wait in an inbox until the next tick. A tick takes them in, lets the monitors
speak, applies the fault table, moves the state machine, arbitrates and says what is to be published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from triptych.contract.budgets import BUDGETS, Budget
from triptych.contract.driving import DriverState, MotionConstraint, Odometry
from triptych.contract.e2e import protect
from triptych.contract.lidar import Obstacles
from triptych.contract.result import Detections, SceneAdvice, TierResult, TierStatus
from triptych.contract.supervision import MAX_ACTIVE_FAULTS, MAX_STATE_REASON, StateRecord, Verdict
from triptych.contract.terms import DegradationState, Origin, Tier, VerdictLevel
from triptych.supervisor.arbitration import lowest_mps, state_limits_mps, tier_cap_mps
from triptych.supervisor.channel import TierChannel
from triptych.supervisor.comparison import Comparison, Scenes, scene_of
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.content import Metric
from triptych.supervisor.faults import FaultLife, FaultRow, Reaction
from triptych.supervisor.machine import Inputs, MachineState, transition
from triptych.supervisor.manoeuvre import Manoeuvre, next_limit_mps
from triptych.supervisor.monitors import ADVISERS_SAY
from triptych.supervisor.monitors.clock_step import ClockStep
from triptych.supervisor.monitors.cross_modal import Seen
from triptych.supervisor.monitors.driver import DriverMonitor
from triptych.supervisor.monitors.lidar import LidarMonitor
from triptych.supervisor.monitors.loop_gap import LoopGap
from triptych.supervisor.monitors.odometry import OdometryMonitor
from triptych.supervisor.monitors.resource import MachineReading, Resources
from triptych.supervisor.monitors.safety_core import SafetyCoreMonitor
from triptych.supervisor.policy import DEFAULT_POLICY, VLM, Function, Permission, Policy
from triptych.supervisor.records import (
    NOTHING,
    Commands,
    Diagnostic,
    Transition,
)
from triptych.supervisor.watch import Watched

S = DegradationState
_AUTOMATED = frozenset({S.NOMINAL, S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST, S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC})
_MANOEUVRE = frozenset({S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC})
_COMFORT = frozenset({S.NOMINAL, S.L3_PERCEPTION_ONLY, S.MANUAL})
_OWN = frozenset({"supervisor", "clock"})
_INBOX = 4096


class SupervisorCore:
    """The whole supervisor as a deterministic object: same calls, same commands.

    Args:
        config: the parameters.
        faults: the fault table, from :func:`triptych.supervisor.faults.load_faults`.
        budgets: the timing contract of the tiers.
        latched: the last run ended within a minimal risk manoeuvre or condition that nobody has reset; this one
            begins there. Whoever restarts a supervisor has to remember it (:attr:`latched`).
        policy: how far a tier's results may go, from :func:`triptych.supervisor.policy.load_policy`; default: as the
            shipped table has it.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        faults: Iterable[FaultRow],
        budgets: Mapping[Tier, Budget] = BUDGETS,
        latched: bool = False,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        self.config, self.policy = config, policy
        self._clock, self._loop = ClockStep(config), LoopGap(config)
        self._odometry, self._driver = OdometryMonitor(config), DriverMonitor(config)
        self._safety_core = SafetyCoreMonitor(config.event_window_s) if config.safety_core_expected else None
        self._lidar = LidarMonitor(config) if config.lidar_expected else None
        self._resources = Resources(config)
        expected = {Tier.DETECTOR: True, Tier.DISTILLED: config.distilled_expected, Tier.FULL: config.full_expected}
        seen = Seen(config)
        self._channels = {tier: TierChannel(tier, budgets[tier], config, seen) for tier in Tier if expected[tier]}
        self._vlm = tuple(self._channels[tier] for tier in VLM if expected[tier])
        self._vlm_keys = frozenset(channel.tier.key for channel in self._vlm)
        permissions = {channel.tier: policy.permitted(Function.CRUISE, channel.tier) for channel in self._vlm}
        self._comparing = frozenset(t for t, may in permissions.items() if may is Permission.REDUNDANT_INPUT)
        self._seen = Scenes()
        self._compared: dict[Tier, Comparison] = {}
        self._awaited = (
            *((tier.key, channel.never) for tier, channel in self._channels.items()),
            ("odometry", self._odometry.never),
            ("driver", self._driver.never),
            *([("safety_core", self._safety_core.never)] if self._safety_core else ()),
            *([("lidar", self._lidar.never)] if self._lidar else ()),
        )
        self._dispensable = self._vlm_keys | {"lidar"}
        self._missing = tuple(name for name, _ in self._awaited)

        metrics = self._metrics()
        lives = [(FaultLife(row), metrics[row.source][row.metric]) for row in faults if row.source in metrics]
        self._own = tuple(pair for pair in lives if pair[0].row.source in _OWN)
        sources = dict.fromkeys(life.row.source for life, _ in lives if life.row.source not in _OWN)
        self._inputs = {name: Watched([pair for pair in lives if pair[0].row.source == name]) for name in sources}
        self._lives = tuple(life for life, _ in lives)
        self._reactions = {life.row.id: Reaction[life.row.reaction.upper()] for life in self._lives}

        self._machine = MachineState()
        self._previous = S.INITIALISING
        if latched:
            self._machine = MachineState(
                S.L1_MINIMAL_RISK_MANOEUVRE, "restarted during a manoeuvre that is not known to be finished"
            )
        self._demand, self._demand_reason = Reaction.LOG, ""
        self._active: tuple[str, ...] = ()
        self._lost: frozenset[str] = frozenset()
        self._void: frozenset[str] = frozenset()
        self._blind = False
        self._confirmed = self._reset = False
        self._notes: deque[tuple[str, str]] = deque(maxlen=_INBOX)
        self._inbox: deque[tuple[str, Callable[..., None], tuple[Any, ...]]] = deque(maxlen=_INBOX)

        self._limits_mps, self._caps_mps = state_limits_mps(config), config.advice_caps_mps()
        self._wait_ns = int(config.takeover_wait_s * 1e9)
        self._grace_ns = int(config.startup_grace_s * 1e9)
        self._late_ns = int(config.loop_late_s * 1e9)
        self._started_ns: int | None = None
        self._last_ns = self._judged_ns = self._since_ns = 0
        self._manoeuvre = Manoeuvre()
        self._limit_mps = 0.0
        self._sent: tuple[object, ...] = ()
        self._sent_limit_mps = 0.0
        self._sent_asking = False
        half_tick_ns = int(config.tick_period_s * 0.5e9)
        periods_s = (
            config.constraint_period_s, config.state_period_s, config.verdict_period_s, config.diagnostics_period_s
        )  # fmt: skip
        self._periods_ns = tuple(int(period_s * 1e9) - half_tick_ns for period_s in periods_s)
        self._due_ns = [0, 0, 0, 0]
        self._told = [0] * len(self._lives)
        self._counters = [0, 0]

    def _metrics(self) -> dict[str, dict[str, Metric]]:
        odometry, driver, loop = self._odometry, self._driver, self._loop
        core, lidar = self._safety_core, self._lidar
        expected: dict[str, dict[str, Metric]] = {}
        if lidar is not None:
            expected["lidar"] = {
                "overdue_s": lidar.never.overdue_s,
                "age_s": lidar.age_s,
                "crc_n": lidar.crc.crc_n,
                "invalid_n": lidar.invalid_n,
                "unhealthy": lidar.unhealthy,
                "unseen_n": lidar.unseen_n,
                "unreturned_n": lidar.unreturned_n,
            }
        if core is not None:
            expected["safety_core"] = {
                "overdue_s": core.never.overdue_s,
                "age_s": core.age_s,
                "crc_n": core.crc.crc_n,
                "own_stop": core.own_stop,
            }
        return {
            **expected,
            **{tier.key: channel.metrics() for tier, channel in self._channels.items()},
            "odometry": {
                "overdue_s": odometry.never.overdue_s,
                "age_s": odometry.age_s,
                "invalid_n": odometry.invalid_n,
                "jump_n": odometry.jump_n,
            },
            "driver": {
                "overdue_s": driver.never.overdue_s,
                "age_s": driver.age_s,
                "crc_n": driver.crc.crc_n,
                "absent": driver.absent,
                "inattentive": driver.inattentive,
            },
            "supervisor": {"loop_gap_s": loop.loop_gap_s, "late_n": loop.late_n},
            "clock": {"step_s": self._clock.step_s},
            "machine": {
                "memory_used": self._resources.memory_used,
                "memory_growth": self._resources.memory_growth,
                "temperature_c": self._resources.temperature_c,
                "disk_used": self._resources.disk_used,
            },
        }

    # ---- what comes in ----

    def on_result(
        self, result: TierResult, received_mono_ns: int, crc_ok: bool, fingerprint: int | None = None
    ) -> None:
        """A tier's result; ``fingerprint`` of its picture if the receiver knows it."""
        self._inbox.append((result.tier.key, self._take_result, (result, received_mono_ns, crc_ok, fingerprint)))

    def on_status(self, status: TierStatus, received_mono_ns: int, crc_ok: bool) -> None:
        """A tier's heartbeat."""
        self._inbox.append((status.tier.key, self._take_status, (status, received_mono_ns, crc_ok)))

    def on_odometry(self, odometry: Odometry, received_mono_ns: int) -> None:
        """The vehicle's speed."""
        self._inbox.append(("odometry", self._take_odometry, (odometry, received_mono_ns)))

    def on_driver(self, driver: DriverState, received_mono_ns: int, crc_ok: bool) -> None:
        """What is known of the driver."""
        self._inbox.append(("driver", self._take_driver, (driver, received_mono_ns, crc_ok)))

    def on_command(self, command: MotionConstraint, received_mono_ns: int, crc_ok: bool) -> None:
        """What the safety core tells the vehicle."""
        self._inbox.append(("safety_core", self._take_command, (command, received_mono_ns, crc_ok)))

    def on_obstacles(self, scan: Obstacles, received_mono_ns: int, crc_ok: bool) -> None:
        """What the lidar sees."""
        self._inbox.append(("lidar", self._take_obstacles, (scan, received_mono_ns, crc_ok)))

    def on_machine(self, reading: MachineReading, received_mono_ns: int) -> None:
        """What the machine has left."""
        self._inbox.append(("machine", self._resources.observe, (reading, received_mono_ns)))

    def request_takeover(self, now_mono_ns: int) -> tuple[bool, str]:
        """The driver confirms: from the next tick on the driver drives. Returns acceptance and a sentence."""
        if self._machine.state is S.MANUAL or self._confirmed:
            return False, "Takeover refused: the driver drives already."
        if not self._driver.present(now_mono_ns):
            return False, "Takeover refused: nobody is known to sit in the driver's seat."
        self._confirmed = True
        self._notes.append(("takeover", "the driver confirmed the takeover"))
        return True, "Takeover accepted: the driver drives."

    def request_reset(self, now_mono_ns: int) -> tuple[bool, str]:
        """Leave a minimal risk condition, or withdraw a confirmed takeover; at standstill only."""
        machine = self._machine
        manual = machine.state is S.MANUAL and (machine.locked or self._confirmed)
        if machine.state is not S.MRC and not manual:
            return False, f"Reset refused: there is nothing to reset in {machine.state.name}."
        if not self._odometry.standstill(now_mono_ns):
            return False, "Reset refused: the vehicle is not known to stand still."
        if not manual:
            if self._missing:
                return False, f"Reset refused: {self._waiting()}."
            for life in self._lives:
                if life.active and self._reactions[life.row.id] >= Reaction.L2 and not life.settled():
                    return False, f"Reset refused: {life.row.id} is still there: {life.text}"
        self._reset = True
        self._notes.append(("reset", "an operator asked for it"))
        return True, "Reset accepted."

    def _take_result(self, result: TierResult, received_ns: int, crc_ok: bool, fingerprint: int | None) -> None:
        channel = self._channels.get(result.tier)
        if channel is None:
            return
        age_s = (self._to_stamp(received_ns) - result.source_stamp_ns) / 1e9
        moving = abs(self._odometry.speed_mps(received_ns)) >= self.config.standstill_speed_mps
        settled = self._clock.settled(received_ns)
        if not channel.take_result(result, received_ns, age_s, settled, crc_ok, fingerprint, moving):
            return
        if self._comparing:
            self._compare(result)
        if self._lidar is not None and isinstance(result.payload, Detections) and result.origin is Origin.FRESH:
            self._lidar.see(result.payload, result.source_stamp_ns)

    def _compare(self, result: TierResult) -> None:
        """Keep what the detector saw, and hold what a VLM tier says against it if the policy has it so."""
        scene, payload = scene_of(result.payload), result.payload
        if result.tier is Tier.DETECTOR:
            if result.origin is not Origin.DEFAULT:
                self._seen.add(result.source_stamp_ns, scene)
        elif result.tier in self._comparing and isinstance(payload, SceneAdvice):
            detector = self._seen.at(result.source_stamp_ns)
            self._compared[result.tier] = Comparison(payload.advice, scene, detector)

    def _take_status(self, status: TierStatus, received_ns: int, crc_ok: bool) -> None:
        channel = self._channels.get(status.tier)
        if channel is not None:
            settled, standstill = self._clock.settled(received_ns), self._odometry.standstill(received_ns)
            channel.take_status(status, received_ns, crc_ok, settled, standstill)

    def _take_odometry(self, odometry: Odometry, received_ns: int) -> None:
        self._odometry.observe(odometry, received_ns, self._to_stamp(received_ns), self._clock.settled(received_ns))

    def _take_driver(self, driver: DriverState, received_ns: int, crc_ok: bool) -> None:
        settled = self._clock.settled(received_ns)
        self._driver.observe(driver, received_ns, self._to_stamp(received_ns), settled, crc_ok)

    def _take_obstacles(self, scan: Obstacles, received_ns: int, crc_ok: bool) -> None:
        if self._lidar is not None:
            settled = self._clock.settled(received_ns)
            self._lidar.observe(scan, received_ns, self._to_stamp(received_ns), settled, crc_ok)

    def _take_command(self, command: MotionConstraint, received_ns: int, crc_ok: bool) -> None:
        if self._safety_core is not None:
            self._safety_core.observe(command, received_ns, crc_ok)

    def _to_stamp(self, mono_ns: int) -> int:
        return mono_ns + (self._clock.offset_ns or 0)

    # ---- one tick ----

    @property
    def machine(self) -> MachineState:
        """The state machine's state."""
        return self._machine

    @property
    def active(self) -> tuple[str, ...]:
        """Ids of the active faults, in the table's order, as many as a message holds."""
        return self._active

    @property
    def latched(self) -> bool:
        """Whether a restart has to begin in the minimal risk manoeuvre (see the constructor)."""
        return self._machine.locked or self._machine.state is S.L1_MINIMAL_RISK_MANOEUVRE

    def step(self, now_mono_ns: int, now_stamp_ns: int) -> Commands:
        """One tick at these readings of the two clocks; what it returns is to be published now."""
        now_ns = now_mono_ns
        if self._started_ns is None:
            self._start(now_ns)
        elapsed_ns, self._last_ns = max(0, now_ns - self._last_ns), now_ns
        self._loop.observe(now_ns)
        if self._clock.observe(now_ns, now_stamp_ns):
            self._clock_stepped()
        while self._inbox:
            source, take, message = self._inbox.popleft()
            take(*message)
            if source in self._inputs:
                self._inputs[source].news = True

        changes = self._judge(now_ns, elapsed_ns)
        standstill = self._odometry.standstill(now_ns)
        speed_mps = self._odometry.speed_mps(now_ns)
        machine = transition(self._machine, self._machine_inputs(now_ns, elapsed_ns, standstill))
        moved = machine.state is not self._machine.state
        if moved:
            self._enter(machine, now_ns, speed_mps)
        self._machine = machine
        if self._blind and self._manoeuvre.pull_over:
            self._manoeuvre = replace(self._manoeuvre, pull_over=False)
        cap_mps = self._cap_mps(standstill)
        rise_mps = self.config.limit_rise_mps2 * elapsed_ns / 1e9
        self._limit_mps = next_limit_mps(self._limit_mps, cap_mps, speed_mps, rise_mps)
        if machine.state is S.MANUAL:
            self._limit_mps = cap_mps
        return self._publish(now_ns, now_stamp_ns, speed_mps, standstill, moved, changes)

    def _start(self, now_ns: int) -> None:
        self._started_ns = self._last_ns = self._judged_ns = now_ns
        self._since_ns = now_ns
        self._manoeuvre = Manoeuvre(now_ns)
        for _, never in self._awaited:
            never.start(now_ns, self.config.startup_grace_s)

    def _clock_stepped(self) -> None:
        self._odometry.gate.restart()
        self._driver.gate.restart()
        for channel in self._channels.values():
            channel.clock_stepped()
        self._seen.clear()
        if self._lidar is not None:
            self._lidar.restart()

    def _judge(self, now_ns: int, elapsed_ns: int) -> list[FaultLife]:
        """Let every row look at its metric; returns those that became active or ended."""
        hold = self._machine.state in _AUTOMATED and not self._reset
        changes = [life for life, metric in self._own if life.update(metric(now_ns), elapsed_ns, hold)]
        if self._loop.may_judge(now_ns):
            since_ns, self._judged_ns = min(now_ns - self._judged_ns, self._late_ns), now_ns
            for watched in self._inputs.values():
                changes += watched.look(now_ns, since_ns, hold)
        if changes:
            self._weigh()
        return changes

    def _weigh(self) -> None:
        """Find the strongest demand of the active faults. One lost VLM tier demands nothing while another is left."""
        active = [life for life in self._lives if life.active]
        self._active = tuple(life.row.id for life in active[:MAX_ACTIVE_FAULTS])
        vlm = self._vlm_keys
        lost = [life.row for life in active if life.row.source in vlm and self._demands(life)]
        self._lost = frozenset(row.source for row in lost)
        self._void = frozenset(row.source for row in lost if row.metric not in ADVISERS_SAY)
        self._blind = any(life.row.source == "detector" and self._demands(life) is Reaction.L1 for life in active)
        self._demand, self._demand_reason = Reaction.LOG, ""
        for life in active:
            demand = self._demands(life)
            if demand is Reaction.L3 and life.row.source in vlm and self._lost != vlm:
                continue
            if demand > self._demand:
                self._demand, self._demand_reason = demand, life.text[:MAX_STATE_REASON]

    def _demands(self, life: FaultLife) -> Reaction:
        return self._reactions[life.row.id]

    def _machine_inputs(self, now_ns: int, elapsed_ns: int, standstill: bool) -> Inputs:
        assert self._started_ns is not None
        grace_over = now_ns - self._started_ns > self._grace_ns
        drives = self._driver.drives(now_ns)
        reset = self._reset and self._judged_ns == now_ns
        if reset:
            self._reset = False
        if reset or drives:
            self._confirmed = False
        if self._missing:
            self._missing = tuple(
                name
                for name, never in self._awaited
                if not never.received and not (grace_over and name in self._dispensable)
            )
        demand, reason = self._demand, self._demand_reason or self._waiting()
        if not self._vlm and demand < Reaction.L3:
            demand, reason = Reaction.L3, reason or "this vehicle has no VLM tier"
        return Inputs(
            demand,
            reason,
            not self._missing,
            grace_over,
            standstill,
            drives or self._confirmed,
            self._driver.handed_back(now_ns) and not self._confirmed,
            reset,
            elapsed_ns,
            self._wait_ns,
        )

    def _waiting(self) -> str:
        return f"waiting for {', '.join(self._missing)}" if self._missing else ""

    def _enter(self, machine: MachineState, now_ns: int, speed_mps: float) -> None:
        self._previous, self._since_ns = self._machine.state, now_ns
        if machine.state is S.L1_MINIMAL_RISK_MANOEUVRE:
            self._manoeuvre = Manoeuvre(now_ns, speed_mps, pull_over=not self._blind)
        if self._previous is S.MANUAL:
            self._limit_mps = 0.0  # from here it rises again, from the present speed

    def _cap_mps(self, standstill: bool) -> float:
        state = self._machine.state
        limit_mps = self._limits_mps[state]
        if state is S.MANUAL:
            return limit_mps
        if state is S.L2_TAKEOVER_REQUEST and standstill:
            return 0.0
        return lowest_mps(limit_mps, [self._tier_cap_mps(channel) for channel in self._vlm])

    def _tier_cap_mps(self, channel: TierChannel) -> float:
        """The cap of a VLM tier, as far as the policy lets it speak: the cautious one while it is lost, the more
        careful of this and its own while its answers are doubted."""
        tier, caps_mps = channel.tier, self._caps_mps
        permission = self.policy.permitted(Function.CRUISE, tier)
        nothing_mps = tier_cap_mps(permission, None, None, caps_mps)
        if tier.key in self._void:
            return nothing_mps
        comparison = self._compared.get(tier)
        own_mps = tier_cap_mps(permission, channel.advice, comparison.care if comparison else None, caps_mps)
        return min(own_mps, nothing_mps) if tier.key in self._lost else own_mps

    # ---- what goes out ----

    def _publish(
        self, now_ns: int, stamp_ns: int, speed_mps: float, standstill: bool, moved: bool, changes: list[FaultLife]
    ) -> Commands:  # fmt: skip
        asking = self._machine.state is S.L2_TAKEOVER_REQUEST and not standstill
        state_changed = moved or bool(changes) or asking is not self._sent_asking
        constraint = self._constraint(now_ns, stamp_ns, speed_mps)
        state = self._state(now_ns, stamp_ns, asking) if self._due(1, now_ns, state_changed) else None
        say_verdicts, say_diagnostics = self._due(2, now_ns, bool(changes)), self._due(3, now_ns, False)
        if say_verdicts or say_diagnostics:
            for watched in self._inputs.values():
                watched.refresh(now_ns)
        verdicts = self._verdicts() if say_verdicts else None
        diagnostics = self._diagnostics() if say_diagnostics else None
        transitions: tuple[Transition, ...] = ()
        if moved or changes or self._notes:
            transitions = self._transitions(stamp_ns, moved, changes)
        elif constraint is None and state is None and verdicts is None and diagnostics is None:
            return NOTHING
        if say_diagnostics:
            transitions += self._suppressed(stamp_ns)
        return Commands(constraint, state, verdicts, diagnostics, transitions)

    def _due(self, which: int, now_ns: int, changed: bool) -> bool:
        if not changed and now_ns < self._due_ns[which]:
            return False
        self._due_ns[which] = now_ns + self._periods_ns[which]
        return True

    def _count(self, which: int) -> int:
        counter = self._counters[which]
        self._counters[which] = (counter + 1) % 256
        return counter

    def _constraint(self, now_ns: int, stamp_ns: int, speed_mps: float) -> MotionConstraint | None:
        machine, config = self._machine, self.config
        in_manoeuvre = machine.state in _MANOEUVRE
        pull_over = machine.state is S.L1_MINIMAL_RISK_MANOEUVRE and self._manoeuvre.pull_over
        key = (machine.state, pull_over)
        if not self._due(0, now_ns, key != self._sent or self._limit_mps < self._sent_limit_mps):
            return None
        self._sent, self._sent_limit_mps = key, self._limit_mps
        if in_manoeuvre:
            deceleration_mps2 = self._manoeuvre.deceleration_mps2(now_ns, speed_mps, config)
        elif machine.state in _COMFORT:
            deceleration_mps2 = config.comfort_deceleration_mps2
        else:
            deceleration_mps2 = config.takeover_deceleration_mps2
        constraint = MotionConstraint(
            stamp_ns=stamp_ns,
            speed_limit_mps=self._limit_mps,
            deceleration_mps2=deceleration_mps2,
            hazard_lights=in_manoeuvre,
            pull_over=pull_over,
            remote_notification=in_manoeuvre,
            state=machine.state,
            reason=self._reason(),
        )
        return protect(constraint, self._count(0))

    def _reason(self) -> str:
        if self._machine.state is S.INITIALISING:
            return self._waiting() or self._demand_reason or "starting"
        return self._machine.reason

    def _state(self, now_ns: int, stamp_ns: int, asking: bool) -> StateRecord:
        self._sent_asking = asking
        machine = self._machine
        remaining_s = max(0, self._wait_ns - machine.waited_ns) / 1e9 if asking else 0.0
        since_ns = stamp_ns - (now_ns - self._since_ns)  # kept on the monotonic clock: it survives a clock step
        record = StateRecord(
            stamp_ns, machine.state, self._previous, since_ns, self._reason(), self._active, asking, remaining_s
        )
        return protect(record, self._count(1))

    def _verdicts(self) -> tuple[Verdict, ...]:
        return tuple(life.verdict() for life in self._lives)

    def _transitions(self, stamp_ns: int, moved: bool, changes: list[FaultLife]) -> tuple[Transition, ...]:
        notes: list[Transition] = []
        while self._notes:
            name, reason = self._notes.popleft()
            notes.append(Transition(stamp_ns, "request", name, "", "accepted", reason))
        for life in changes:
            before, after = ("inactive", "active") if life.active else ("active", "inactive")
            notes.append(Transition(stamp_ns, "fault", life.row.id, before, after, life.text if life.active else ""))
        if moved:
            now = self._machine
            notes.append(Transition(stamp_ns, "state", "state", self._previous.name, now.state.name, now.reason))
        return tuple(notes)

    def _suppressed(self, stamp_ns: int) -> tuple[Transition, ...]:
        """What debounce and clearing times have kept back since the last diagnostics: at their pace, not a flood."""
        notes = []
        for number, life in enumerate(self._lives):
            more, self._told[number] = life.suppressed - self._told[number], life.suppressed
            if more:
                stays = "active" if life.active else "inactive"
                reason = f"{more} times too short to count, {life.suppressed} since the start"
                notes.append(Transition(stamp_ns, "suppressed", life.row.id, stays, stays, reason))
        return tuple(notes)

    def _diagnostics(self) -> tuple[Diagnostic, ...]:
        sources: dict[str, list[FaultLife]] = {}
        for life in self._lives:
            sources.setdefault(life.row.source, []).append(life)
        said = tuple(_diagnostic(source, lives, self._reactions) for source, lives in sources.items())
        return (*said, _comparison(self._compared)) if self._comparing else said


def _diagnostic(source: str, lives: list[FaultLife], reactions: Mapping[str, Reaction]) -> Diagnostic:
    """The state of one source in words; unknown metrics alone are reported as stale."""
    worst = max(lives, key=lambda life: (life.active, reactions[life.row.id]))
    unknown = [life.row.id for life in lives if life.level is VerdictLevel.UNKNOWN]
    if worst.active:
        level, message = (2 if reactions[worst.row.id] >= Reaction.L2 else 1), worst.text
    elif unknown:
        level, message = 3, f"unknown: {', '.join(unknown)}"
    else:
        level, message = 0, "ok"
    values = [
        (
            life.row.id,
            f"{life.level.name} {'active' if life.active else 'inactive'} "
            f"value={'?' if life.value is None else format(life.value, '.4g')} limit={life.row.threshold:g} "
            f"suppressed={life.suppressed}",
        )
        for life in lives
    ]
    return Diagnostic(level, f"triptych/{source}", message, tuple(values))


def _comparison(comparisons: Mapping[Tier, Comparison]) -> Diagnostic:
    """Where detector and VLM tiers disagree, in words."""
    values, differ = [], []
    for tier, found in comparisons.items():
        differ += [f"{tier.key} and detector on {subject}" for subject in found.disagreements]
        values.append((tier.key, f"care={found.care:d} vlm: {found.vlm} detector: {found.detector}"))
    message = f"disagree: {', '.join(differ)}" if differ else "no disagreement"
    return Diagnostic(1 if differ else 0, "triptych/comparison", message, tuple(values))
