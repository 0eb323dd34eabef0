"""Safety properties of the independent channel; see test/properties/PROPERTIES.md."""

import struct
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import DegradationState, MotionConstraint
from triptych.safety import (
    Cause,
    Command,
    Library,
    SafetyCore,
    SafetyLimits,
    command_of,
    constraint_record,
    motion_record,
)

S = DegradationState
LIMITS = SafetyLimits(trend_window_s=0.0)
PERIOD_MS = 10


@dataclass
class Rig:
    """A core with both senders; each tick is one cycle."""

    library: Library
    limits: SafetyLimits = LIMITS
    now_ms: int = 4_294_960_000
    counters: list[int] = field(default_factory=lambda: [0, 0])
    constraint: bytes = bytes(28)
    motion: bytes = bytes(20)

    def __post_init__(self) -> None:
        self.core = SafetyCore(self.limits, self.library)

    def say(self, state: S, limit_mps: float, deceleration_mps2: float = 2.0, resets: int = 0) -> None:
        self.counters[0] += 1
        command = MotionConstraint(0, limit_mps, deceleration_mps2, False, False, False, state, "")
        self.constraint = constraint_record(self.counters[0], command, resets)

    def move(self, speed_mps: float, driver: bool = False) -> None:
        self.counters[1] += 1
        self.motion = motion_record(self.counters[1], speed_mps, 0.0, driver)

    def tick(self) -> Command:
        self.now_ms += PERIOD_MS
        command = command_of(self.core.step(self.constraint, self.motion, self.now_ms), 0)
        assert command is not None
        return command

    def drive(self, speed_mps: float) -> Command:
        for _ in range(10):
            self.say(S.NOMINAL, 30.0)
            self.move(speed_mps)
            command = self.tick()
        return command


WORDS = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 4000, 40000, 100000])
)


@settings(max_examples=300)
@given(data=st.data())
def test_sc01_whatever_is_written_the_command_is_possible(library: Library, data: st.DataObject) -> None:
    """SC-01"""
    rig = Rig(library, SafetyLimits())
    rig.drive(20.0)
    for _ in range(data.draw(st.integers(1, 12))):
        for name, words in (("constraint", 7), ("motion", 5)):
            kind = data.draw(st.sampled_from(["raw", "sealed", "kept"]))
            if kind == "kept":
                continue
            raw = struct.pack(f"<{words}I", *data.draw(st.lists(WORDS, min_size=words, max_size=words)))
            if kind == "sealed":
                from triptych.safety.words import sealed

                raw = sealed(*struct.unpack(f"<{words}I", raw)[:-1])
            setattr(rig, name, raw)
        rig.now_ms += data.draw(st.sampled_from([0, 10, 990, 2**31]))
        command = rig.tick().constraint
        assert 0.0 <= command.speed_limit_mps <= rig.limits.speed_max_mps
        assert 0.0 < command.deceleration_mps2 <= rig.limits.deceleration_max_mps2


@settings(max_examples=150)
@given(
    speed=st.floats(0.0, 39.0),
    silent=st.sampled_from(["supervisor", "vehicle"]),
    phase=st.integers(0, 9),
    broken=st.sampled_from(["kept", "crc", "counter"]),
)
def test_sc02_silence_of_either_side_stops_in_time(
    library: Library, speed: float, silent: str, phase: int, broken: str
) -> None:
    """SC-02"""
    rig = Rig(library)
    rig.drive(speed)
    limit_s = rig.limits.supervisor_timeout_s if silent == "supervisor" else rig.limits.vehicle_timeout_s
    rig.now_ms += phase
    waited_ms = phase
    for _ in range(100):
        if silent != "supervisor" or broken == "crc":
            rig.say(S.NOMINAL, 30.0)
        if silent != "vehicle" or broken == "crc":
            rig.move(speed)
        name = "constraint" if silent == "supervisor" else "motion"
        if broken == "crc":
            raw = bytearray(getattr(rig, name))
            raw[4] ^= 0x10
            setattr(rig, name, bytes(raw))
        waited_ms += PERIOD_MS
        command = rig.tick()
        if command.causes:
            break
    wanted = Cause.SUPERVISOR_SILENT if silent == "supervisor" else Cause.VEHICLE_SILENT
    assert command.causes == wanted and command.constraint.speed_limit_mps == 0.0
    assert limit_s * 1000 < waited_ms <= limit_s * 1000 + 2 * PERIOD_MS


@settings(max_examples=150)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(list(S)), st.floats(0, 40), st.floats(0, 30), st.booleans(), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_sc03_a_stop_ends_by_a_reset_at_standstill_only(
    library: Library, steps: list[tuple[S, float, float, bool, int]]
) -> None:
    """SC-03"""
    rig = Rig(library)
    rig.drive(20.0)
    rig.say(S.L1_MINIMAL_RISK_MANOEUVRE, 5.0)
    rig.move(20.0)
    assert rig.tick().causes & Cause.FORBIDDEN
    resets, speed = 0, 20.0
    for state, limit, wanted, driver, reset in steps:
        before = resets
        resets += reset == 1
        speed = max(min(wanted, speed + 0.1), speed - 0.1)
        rig.say(state, limit, resets=resets)
        rig.move(speed, driver)
        command = rig.tick()
        if not command.causes:
            assert resets > before and speed <= rig.limits.standstill_mps and not driver
            return
        assert driver or command.constraint.speed_limit_mps == 0.0


@settings(max_examples=150)
@given(state=st.sampled_from(list(S)), limit=st.floats(0.0, 40.0), speed=st.floats(0.0, 12.0))
def test_sc04_it_never_allows_more_than_the_supervisor(library: Library, state: S, limit: float, speed: float) -> None:
    """SC-04"""
    rig = Rig(library)
    rig.drive(speed)
    for _ in range(3):
        rig.say(state, limit)
        rig.move(speed)
        command = rig.tick().constraint
        assert command.speed_limit_mps <= limit
        if state in (S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST, S.L1_MINIMAL_RISK_MANOEUVRE):
            assert command.speed_limit_mps <= rig.limits.degraded_speed_mps


@settings(max_examples=60)
@given(speed=st.floats(13.6, 29.0), state=st.sampled_from([S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST]))
def test_sc05_a_vehicle_that_keeps_its_speed_in_a_degraded_state_is_stopped(
    library: Library, speed: float, state: S
) -> None:
    """SC-05: within the slack at the demanded braking and the confirmations."""
    rig = Rig(library)
    rig.drive(speed)
    causes, waited_ms = Cause.NONE, 0
    while not causes and waited_ms < 5000:
        rig.say(state, 30.0)
        rig.move(speed)
        causes = rig.tick().causes
        waited_ms += PERIOD_MS
    assert causes == Cause.TOO_FAST
    assert waited_ms <= 1000 * rig.limits.slack_mps / rig.limits.slowing_mps2 + 200


@settings(max_examples=60)
@given(speed=st.floats(0.0, 29.0), braking=st.floats(1.2, 4.0), limit=st.floats(0.0, 20.0), noise=st.floats(0, 0.2))
def test_sc06_a_vehicle_that_obeys_is_left_alone(
    library: Library, speed: float, braking: float, limit: float, noise: float
) -> None:
    """SC-06: brakes come in after 0.5 s, the speed signal is noisy, the limit falls at once."""
    rig = Rig(library)
    rig.drive(speed)
    for number in range(1500):
        rig.say(S.NOMINAL, limit)
        if number > 50 and speed > limit:
            speed = max(limit, speed - braking * PERIOD_MS / 1000)
        rig.move(max(0.0, speed + (noise if number % 2 else -noise)))
        assert rig.tick().causes == Cause.NONE
    assert speed <= limit + 1e-6 or braking * 14.5 < 29.0


@given(driver_at=st.integers(0, 20))
def test_sc07_a_driver_drives_at_the_next_cycle(library: Library, driver_at: int) -> None:
    """SC-07: whatever the supervisor says or the core had stopped for."""
    rig = Rig(library)
    rig.drive(20.0)
    for number in range(driver_at + 1):
        rig.say(S.L1_MINIMAL_RISK_MANOEUVRE, 5.0 if number % 2 else 0.0)
        rig.move(20.0, driver=number == driver_at)
        command = rig.tick()
    assert command.constraint.state is S.MANUAL and command.constraint.speed_limit_mps == rig.limits.speed_max_mps
