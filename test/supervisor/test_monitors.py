"""Each monitor alone: unknown before the first message, 0.99 / 1.0 / 1.01 of each limit, NaN on the unsafe side."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from supervisor_rig import MS, SECOND, make_result

from triptych.contract import (
    Detection,
    Detections,
    DriverState,
    LatencySplit,
    Odometry,
    Origin,
    SceneAdvice,
    Tier,
    TierState,
    TierStatus,
)
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.clock_step import ClockStep
from triptych.supervisor.monitors.crc import Crc
from triptych.supervisor.monitors.driver import DriverMonitor
from triptych.supervisor.monitors.foreign import Foreign
from triptych.supervisor.monitors.future_frame import FutureFrame
from triptych.supervisor.monitors.heartbeat import Heartbeat
from triptych.supervisor.monitors.invalid import Invalid, result_is_valid
from triptych.supervisor.monitors.late import Late
from triptych.supervisor.monitors.loop_gap import LoopGap
from triptych.supervisor.monitors.never_received import NeverReceived
from triptych.supervisor.monitors.odometry import OdometryMonitor
from triptych.supervisor.monitors.origin import OriginRun
from triptych.supervisor.monitors.repeated_frame import RepeatedFrame
from triptych.supervisor.monitors.resource import MachineReading, Resources
from triptych.supervisor.monitors.self_report import CLOCK_CODES, NO_CODES, STANDING_CODES, SelfReport
from triptych.supervisor.monitors.sequence_gap import SequenceGap
from triptych.supervisor.monitors.stale import Silence
from triptych.supervisor.monitors.stamp_gate import StampGate
from triptych.supervisor.monitors.uncertainty import Uncertainty
from triptych.supervisor.monitors.window import EventWindow

CONFIG = SupervisorConfig()
NAN, INF = math.nan, math.inf


def test_never_received() -> None:
    """A2: our own clock finds what never came; before the grace is over it is unknown, not well."""
    monitor = NeverReceived()
    assert monitor.overdue_s(10**12) is None
    monitor.start(5 * SECOND, 30.0)
    assert monitor.overdue_s(5 * SECOND) is None
    assert monitor.overdue_s(round(34.7 * SECOND)) is None
    assert monitor.overdue_s(35 * SECOND) is None
    assert monitor.overdue_s(round(35.3 * SECOND)) == pytest.approx(0.3)
    assert monitor.overdue_s(36 * SECOND) == 1.0
    monitor.received = True
    assert monitor.overdue_s(36 * SECOND) == 0.0


def test_silence() -> None:
    """Time since the last message; an older one that was overtaken does not set it back."""
    monitor = Silence()
    assert monitor.gap_s(5) is None
    monitor.observe(1 * SECOND)
    assert monitor.gap_s(1 * SECOND) == 0.0
    assert monitor.gap_s(1 * SECOND + 120 * MS) == 0.12
    monitor.observe(3 * SECOND)
    monitor.observe(2 * SECOND)
    assert monitor.gap_s(4 * SECOND) == 1.0


def test_heartbeat() -> None:
    """Silence of the status; a falling counter shows a restart."""
    monitor = Heartbeat()
    status = TierStatus(0, Tier.FULL, TierState.ACTIVE, True)
    assert monitor.heartbeat_s(0) is None
    assert monitor.observe(status, 0) is False
    assert monitor.observe(replace(status, frames_received=100), 100 * MS) is False
    assert monitor.observe(replace(status, frames_received=100), 200 * MS) is False
    assert monitor.heartbeat_s(1200 * MS) == 1.0
    assert monitor.observe(replace(status, frames_received=99), 300 * MS) is True
    assert monitor.observe(replace(status, frames_received=99), 400 * MS) is False


def test_foreign() -> None:
    """Results of another engine or version than the heartbeats name; an adapter behind the version is the same one."""
    monitor, status = Foreign(), TierStatus(0, Tier.FULL, TierState.ACTIVE, True)
    monitor.observe_status(status)
    monitor.observe_result(make_result())
    assert monitor.foreign_n(0) is None, "nobody has said what runs"
    monitor.observe_status(replace(status, engine_id="e", engine_version="1"))
    said = [
        ("e", "1", 0),
        ("e", "2", 1),
        ("f", "1", 2),
        ("e", "1+night", 0),
        ("e", "11", 1),
        ("", "", 2),
        ("e", "1", 0),
    ]
    for engine, version, run in said:
        monitor.observe_result(make_result(engine_id=engine, engine_version=version))
        assert monitor.foreign_n(0) == run
    monitor.observe_status(status)
    monitor.observe_result(make_result(engine_id="f"))
    assert monitor.foreign_n(0) == 1, "a heartbeat without a name does not make everybody welcome"
    monitor.observe_status(replace(status, engine_id="f", engine_version="1"))
    monitor.observe_result(make_result(engine_id="f"))
    assert monitor.foreign_n(0) == 0


def test_late() -> None:
    """Consecutive results above the limit; NaN is late."""
    monitor = Late(0.05)
    assert monitor.late_n(0) is None
    for age_s, run in [(0.0495, 0), (0.05, 0), (0.0505, 1), (NAN, 2), (INF, 3), (0.0505, 4), (0.04, 0), (0.06, 1)]:
        monitor.observe(age_s)
        assert monitor.late_n(0) == run


def test_late_from_the_first_result() -> None:
    """The first result counts too."""
    monitor = Late(0.05)
    monitor.observe(1.0)
    assert monitor.late_n(0) == 1


def test_repeated_stamp() -> None:
    """A5: a stamp that does not advance, or runs backwards."""
    monitor = RepeatedFrame()
    assert monitor.repeated_n(0) is None
    steps = [(0, True, 0), (10, True, 0), (10, False, 1), (9, False, 2), (9, False, 3), (10, True, 0), (11, True, 0)]
    for stamp_ns, new, run in steps:
        assert monitor.observe(stamp_ns, None, True) is new
        assert monitor.repeated_n(0) == run


def test_repeated_picture_counts_while_moving_only() -> None:
    """A6: a standing vehicle's camera may see the same picture."""
    monitor = RepeatedFrame()
    assert monitor.observe(1, 7, True)
    assert not monitor.observe(2, 7, True)
    assert not monitor.observe(3, 7, True)
    assert monitor.repeated_n(0) == 2
    assert monitor.observe(4, 7, False)
    assert monitor.repeated_n(0) == 0
    assert monitor.observe(5, 8, True)
    assert monitor.observe(6, None, True)
    assert monitor.observe(7, None, True)


def test_repeated_frame_after_restart() -> None:
    """A restarted tier's or clock's stamps may begin anew, its pictures too."""
    monitor = RepeatedFrame()
    monitor.observe(100, 7, True)
    monitor.restart()
    assert monitor.observe(50, 7, True)
    assert monitor.repeated_n(0) == 0
    monitor.restart()
    assert not monitor.observe(0, 8, True)
    assert monitor.observe(1, 9, True)
    monitor.restart()
    assert monitor.observe(1, 9, True)


def test_future_frame() -> None:
    """A12: refused beyond the tolerance; NaN is refused."""
    monitor = FutureFrame(0.005)
    assert monitor.future_n(0) is None
    for age_s, usable, run in [
        (0.02, True, 0), (0.0, True, 0), (-0.00495, True, 0), (-0.005, True, 0), (-0.00505, False, 1), (NAN, False, 2),
        (-1.0, False, 3), (0.0, True, 0),
    ]:  # fmt: skip
        assert monitor.observe(age_s) is usable
        assert monitor.future_n(0) == run
    first = FutureFrame(0.005)
    first.observe(-1.0)
    assert first.future_n(0) == 1


def test_event_window() -> None:
    """Events count until they are older than the window, and no more than 64."""
    window = EventWindow(1.0)
    assert window.count(0) == 0.0
    window.add(0)
    window.add(500 * MS)
    assert window.count(990 * MS) == 2.0
    assert window.count(1000 * MS) == 2.0
    assert window.count(1010 * MS) == 1.0
    assert window.count(1501 * MS) == 0.0
    for _ in range(100):
        window.add(2 * SECOND)
    assert window.count(2 * SECOND) == 64.0


def test_sequence_gap() -> None:
    """Each discontinuity is one event, whatever it spans; the counter wraps at 255; a restart is forgiven."""
    monitor = SequenceGap(1.0)
    assert monitor.lost_n(0) is None
    for counter, events in [(254, 0), (255, 0), (0, 0), (1, 0), (3, 1), (3, 2), (200, 3), (201, 3)]:
        monitor.observe(counter, 5)
        assert monitor.lost_n(5) == events
    monitor.restart()
    monitor.observe(0, 5)
    assert monitor.lost_n(5) == 3
    assert monitor.lost_n(2 * SECOND) == 0


def test_crc_and_invalid() -> None:
    """Events of the last second; the outcome is passed on."""
    crc = Crc(1.0)
    assert crc.crc_n(0) is None
    assert crc.observe(True, 0) is True
    assert crc.crc_n(0) == 0
    assert crc.observe(False, 0) is False
    assert crc.observe(False, 100 * MS) is False
    assert crc.crc_n(1000 * MS) == 2
    assert crc.crc_n(1010 * MS) == 1
    invalid = Invalid(1.0)
    assert invalid.invalid_n(0) is None
    assert invalid.observe(True, 0) is True
    assert invalid.invalid_n(0) == 0
    assert invalid.observe(False, 0) is False
    assert invalid.invalid_n(1000 * MS) == 1
    assert invalid.invalid_n(1010 * MS) == 0
    for monitor_value in (bad_crc_first(), bad_invalid_first()):
        assert monitor_value == 1


def bad_crc_first() -> float | None:
    """The very first message may be the bad one."""
    crc = Crc(1.0)
    crc.observe(False, 0)
    return crc.crc_n(0)


def bad_invalid_first() -> float | None:
    """The very first message may be the bad one."""
    invalid = Invalid(1.0)
    invalid.observe(False, 0)
    return invalid.invalid_n(0)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("field", ["transport_ms", "pre_ms", "infer_ms", "post_ms"])
def test_invalid_latency(field: str, bad: float) -> None:
    """A6: no number of the latency split may be NaN or infinite."""
    assert not result_is_valid(make_result(latency=replace(LatencySplit(), **{field: bad})))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("field", ["score", "x_min", "y_min", "x_max", "y_max"])
def test_invalid_detection(field: str, bad: float) -> None:
    """A6: no number of any detection may be NaN or infinite."""
    good = Detection("car", 0, 0.9, 1.0, 2.0, 3.0, 4.0)
    assert result_is_valid(make_result(payload=Detections(10, 10, (good, good))))
    assert not result_is_valid(make_result(payload=Detections(10, 10, (good, replace(good, **{field: bad})))))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_invalid_age_and_tokens(bad: float) -> None:
    """A6: age and token probabilities."""
    assert not result_is_valid(make_result(age_ms=bad))
    assert not result_is_valid(make_result(Tier.FULL, payload=SceneAdvice(token_probabilities=(0.5, bad))))
    assert result_is_valid(make_result(Tier.FULL, payload=SceneAdvice(token_probabilities=(0.5, 0.6))))


def test_payload_must_be_the_tiers_own() -> None:
    """A detector does not advise, a VLM does not detect. Empty payloads are legal."""
    assert result_is_valid(make_result(payload=Detections(0, 0)))
    assert result_is_valid(make_result(Tier.DISTILLED))
    assert not result_is_valid(make_result(payload=SceneAdvice()))
    assert not result_is_valid(make_result(Tier.FULL, payload=Detections(0, 0)))


def test_self_report() -> None:
    """Only ACTIVE and healthy is well."""
    monitor = SelfReport()
    assert monitor.unhealthy(0) is None
    assert monitor.fault == ""
    for state in TierState:
        for healthy in (False, True):
            well = state is TierState.ACTIVE and healthy
            assert monitor.observe(TierStatus(0, Tier.FULL, state, healthy, fault="why")) is well
            assert monitor.unhealthy(0) == (0.0 if well else 1.0)
    assert monitor.fault == "why"


@pytest.mark.parametrize(
    ("fault", "excused", "well"),
    [
        ("clock_step", CLOCK_CODES, True), ("future_stamp; backward_stamp", CLOCK_CODES, True),
        ("clock_step", NO_CODES, False), ("clock_step; engine_hung", CLOCK_CODES, False), ("", CLOCK_CODES, False),
        ("frozen_picture", STANDING_CODES, True), ("frozen_picture", CLOCK_CODES, False),
        ("clock_step", STANDING_CODES, False),
    ],
)  # fmt: skip
def test_excused_self_reports(fault: str, excused: frozenset[str], well: bool) -> None:
    """A6, A12: all that is reported must be excused, and the tier must be active."""
    status = TierStatus(0, Tier.FULL, TierState.ACTIVE, False, fault=fault)
    monitor = SelfReport()
    assert monitor.observe(status, excused) is well
    assert monitor.unhealthy(0) == (0.0 if well else 1.0)
    assert not monitor.observe(replace(status, state=TierState.SELF_TEST), excused)


@pytest.mark.parametrize(
    ("fault", "well"),
    [("input_drift; frozen_picture", True), ("frozen_picture", True), ("input_drift", False), ("", False),
     ("input_drift; colour_cast", False), ("input_drift; dark_picture", False)],
)  # fmt: skip
def test_warnings_neither_ail_nor_excuse(fault: str, well: bool) -> None:
    """A tier that says it is unhealthy is so unless what ails it is excused; a warning is no ailment."""
    status = TierStatus(0, Tier.DETECTOR, TierState.ACTIVE, False, fault=fault)
    assert SelfReport().observe(status, STANDING_CODES) is well
    assert SelfReport().observe(replace(status, healthy=True), NO_CODES)


def test_resources() -> None:
    """Unknown before the first reading and where nothing can be read; what is no number stays none."""
    monitor = Resources(SupervisorConfig(machine_settle_s=10.0))
    metrics = (monitor.memory_used, monitor.memory_growth, monitor.temperature_c, monitor.disk_used)
    assert [metric(0) for metric in metrics] == [None] * 4
    monitor.observe(MachineReading(0.5, 0.1, 60.0, 0.2), 0)
    assert [metric(0) for metric in metrics] == [0.5, None, 60.0, 0.2]
    monitor.observe(MachineReading(memory_used=NAN, disk_used=INF), SECOND)
    assert math.isnan(monitor.memory_used(0) or 0.0)
    assert (monitor.temperature_c(0), monitor.disk_used(0)) == (None, INF)


def test_memory_grows_from_where_it_had_settled() -> None:
    """V12: a leak shows as growth long before memory is short; loading engines is no leak."""
    monitor = Resources(SupervisorConfig(machine_settle_s=10.0))

    def growth(share: float | None, seconds: float) -> float | None:
        monitor.observe(MachineReading(stack_memory=share), round(seconds * SECOND))
        return monitor.memory_growth(0)

    assert [growth(0.02, 0.0), growth(0.1, 9.9), growth(NAN, 10.0)] == [None, None, None]
    assert growth(0.12, 11.0) == 0.0
    assert growth(0.20, 12.0) == pytest.approx(0.08)
    assert growth(0.05, 13.0) == 0.0
    assert growth(None, 14.0) is None
    assert math.isnan(growth(NAN, 15.0) or 0.0)


def test_origin() -> None:
    """Consecutive results without content; a repeated one is content."""
    monitor = OriginRun()
    assert monitor.default_n(0) is None
    d, last, fresh = Origin.DEFAULT, Origin.LAST_FRAME, Origin.FRESH
    for origin, run in [(d, 1), (d, 2), (d, 3), (last, 0), (d, 1), (fresh, 0)]:
        monitor.observe(origin)
        assert monitor.default_n(0) == run


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_uncertainty(value: float) -> None:
    """What the tier says, if it can be."""
    monitor = Uncertainty()
    assert monitor.uncertainty(0) is None
    monitor.observe(value)
    assert monitor.uncertainty(0) == value


@pytest.mark.parametrize("value", [NAN, INF, -INF, -0.01, 1.01])
def test_uncertainty_outside_its_range_is_nan(value: float) -> None:
    """A6: NaN, which is a fault."""
    monitor = Uncertainty()
    monitor.observe(value)
    result = monitor.uncertainty(0)
    assert result is not None and math.isnan(result)


def test_stamp_gate() -> None:
    """Old, future, repeated and backward stamps are no news; after a clock step all are taken."""
    gate = StampGate(0.3, 0.005)
    base = 10 * SECOND
    assert gate.accept(base, base, True)
    assert not gate.accept(base, base, True)
    assert not gate.accept(base - 1, base, True)
    assert gate.accept(base + 1, base, True)
    assert gate.accept(base + 5 * MS, base, True)
    assert not gate.accept(base + 5 * MS + 1, base, True)
    assert gate.accept(base + 6 * MS, base + 306 * MS, True)
    assert not gate.accept(base + 7 * MS, base + 307 * MS + 1, True)
    assert gate.accept(base - SECOND, base, False)
    assert not gate.accept(base - SECOND, base - SECOND, True)
    gate.restart()
    assert gate.accept(base - 2 * SECOND, base - 2 * SECOND, True)


class Speeds:
    """Feeds an odometry monitor every 20 ms."""

    def __init__(self, first_mps: float | None = None) -> None:
        self.monitor = OdometryMonitor(CONFIG)
        self.now_ns = 100 * SECOND
        if first_mps is not None:
            self.feed(first_mps)

    def feed(self, speed_mps: float, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += 20 * MS
            self.monitor.observe(Odometry(self.now_ns, speed_mps), self.now_ns, self.now_ns, True)

    @property
    def speed_mps(self) -> float:
        return self.monitor.speed_mps(self.now_ns)

    @property
    def standstill(self) -> bool:
        return self.monitor.standstill(self.now_ns)


def test_odometry_before_the_first_message() -> None:
    """A10: nothing known is not parked."""
    speeds = Speeds()
    assert math.isnan(speeds.speed_mps)
    assert not speeds.standstill
    assert speeds.monitor.age_s(0) is None
    assert speeds.monitor.invalid_n(0) == 0
    assert speeds.monitor.jump_n(0) == 0
    assert not speeds.monitor.never.received


def test_odometry_freshness() -> None:
    """A speed is known for 0.3 s, then it is not."""
    speeds = Speeds(5.0)
    assert speeds.monitor.never.received
    assert speeds.monitor.speed_mps(speeds.now_ns + 300 * MS) == 5.0
    assert math.isnan(speeds.monitor.speed_mps(speeds.now_ns + 301 * MS))
    assert speeds.monitor.age_s(speeds.now_ns + 300 * MS) == 0.3


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 100.01, -100.01])
def test_odometry_that_is_no_speed(bad: float) -> None:
    """A6: counted, and the speed is unknown until the next good one."""
    speeds = Speeds(20.0)
    speeds.feed(bad)
    assert math.isnan(speeds.speed_mps)
    assert speeds.monitor.invalid_n(speeds.now_ns) == 1
    assert speeds.monitor.jump_n(speeds.now_ns) == 0
    assert speeds.monitor.age_s(speeds.now_ns) == 0.02
    speeds.feed(20.0)
    assert speeds.speed_mps == 20.0
    assert speeds.monitor.invalid_n(speeds.now_ns + SECOND) == 0


def test_odometry_at_the_greatest_speed() -> None:
    """The limit itself is a speed."""
    assert Speeds(100.0).speed_mps == 100.0
    assert Speeds(-100.0).speed_mps == -100.0


def test_an_invalid_first_speed_is_not_received() -> None:
    """Never valid means never received."""
    speeds = Speeds(NAN)
    assert not speeds.monitor.never.received
    assert speeds.monitor.age_s(0) is None


@pytest.mark.parametrize(("factor", "known"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_odometry_jump(factor: float, known: bool, sign: float) -> None:
    """12 m/s2 over 20 ms and 0.5 m/s of noise are possible, more is not."""
    speeds = Speeds(20.0)
    speeds.feed(20.0 + sign * (12.0 * 0.02 + 0.5) * factor)
    assert math.isnan(speeds.speed_mps) is not known
    assert speeds.monitor.jump_n(speeds.now_ns) == (0 if known else 1)
    assert speeds.monitor.jump_n(speeds.now_ns + 1001 * MS) == 0


def test_odometry_frozen_at_zero_while_driving() -> None:
    """A10: a jump from 20 m/s to 0 is no stop; it is believed once it could be true, and then held for a second."""
    speeds = Speeds(20.0)
    stopped_ns = speeds.now_ns
    while not speeds.standstill:
        speeds.feed(0.0)
    assert (speeds.now_ns - stopped_ns) / SECOND == pytest.approx(19.5 / 12.0 + 1.0, abs=0.03)


def test_odometry_with_a_frozen_stamp_goes_stale() -> None:
    """A10: the same message over and over is no speed."""
    speeds = Speeds(0.0)
    message = Odometry(speeds.now_ns, 0.0)
    for _ in range(200):
        speeds.now_ns += 20 * MS
        speeds.monitor.observe(message, speeds.now_ns, speeds.now_ns, True)
        assert not speeds.standstill
    assert math.isnan(speeds.speed_mps)
    assert speeds.monitor.age_s(speeds.now_ns) == 4.0


def test_standstill_needs_time_and_bears_noise() -> None:
    """A10: noise of 0.05 m/s does not block it."""
    speeds = Speeds(0.05)
    start_ns = speeds.now_ns
    while not speeds.standstill:
        speeds.feed(0.05 if speeds.now_ns % (40 * MS) else -0.05)
    assert speeds.now_ns - start_ns == SECOND


@pytest.mark.parametrize(
    ("speed_mps", "still"), [(0.099, True), (0.1, False), (0.101, False), (-0.099, True), (-0.1, False)]
)
def test_standstill_limit(speed_mps: float, still: bool) -> None:
    """Below 0.1 m/s either way."""
    speeds = Speeds(speed_mps)
    speeds.feed(speed_mps, 60)
    assert speeds.standstill is still


def test_standstill_ends_with_motion_bad_data_or_silence() -> None:
    """Each starts the second anew."""
    for end in (0.2, NAN, 3.0):
        speeds = Speeds(0.0)
        speeds.feed(0.0, 60)
        assert speeds.standstill
        speeds.feed(end)
        assert not speeds.standstill
        speeds.feed(0.0, 50)
        assert not speeds.standstill
        speeds.feed(0.0, 1)
        assert speeds.standstill
    speeds = Speeds(0.0)
    speeds.feed(0.0, 60)
    assert not speeds.monitor.standstill(speeds.now_ns + 301 * MS)
    speeds.now_ns += 301 * MS
    speeds.feed(0.0)
    assert not speeds.standstill
    speeds.feed(0.0, 49)
    assert not speeds.standstill
    speeds.feed(0.0)
    assert speeds.standstill


def test_odometry_from_the_past_or_future_is_refused() -> None:
    """A12: also right at the start."""
    monitor = OdometryMonitor(CONFIG)
    monitor.observe(Odometry(0, 1.0), SECOND, SECOND, True)
    monitor.observe(Odometry(2 * SECOND, 1.0), SECOND, SECOND, True)
    assert not monitor.never.received
    monitor.observe(Odometry(0, 1.0), SECOND, SECOND, False)
    assert monitor.never.received


class Driver:
    """Feeds a driver monitor every 100 ms."""

    def __init__(self) -> None:
        self.monitor = DriverMonitor(CONFIG)
        self.now_ns = 100 * SECOND

    def feed(self, times: int = 1, crc_ok: bool = True, **fields: bool) -> DriverMonitor:
        for _ in range(times):
            self.now_ns += 100 * MS
            self.monitor.observe(DriverState(self.now_ns, **fields), self.now_ns, self.now_ns, True, crc_ok)
        return self.monitor


def test_driver_before_the_first_message() -> None:
    """Unknown is neither driving nor handed over nor present."""
    monitor = DriverMonitor(CONFIG)
    assert not monitor.drives(0) and not monitor.handed_back(0) and not monitor.present(0)
    assert monitor.age_s(0) is monitor.absent(0) is monitor.inattentive(0) is monitor.crc.crc_n(0) is None


@pytest.mark.parametrize(
    ("override", "engaged", "drives"),
    [(False, True, False), (True, True, True), (False, False, True), (True, False, True)],
)
def test_who_drives(override: bool, engaged: bool, drives: bool) -> None:
    """The driver drives who overrides or has not handed over, as long as the news is fresh."""
    driver = Driver()
    monitor = driver.feed(override_active=override, automation_engaged=engaged)
    assert monitor.never.received
    assert monitor.drives(driver.now_ns + 1000 * MS) is drives
    assert not monitor.drives(driver.now_ns + 1001 * MS)
    driver.feed(20, override_active=override, automation_engaged=engaged)
    assert monitor.handed_back(driver.now_ns) is not drives


def test_hand_back_takes_a_second_and_fresh_news() -> None:
    """The hold time starts anew with an override or a gap."""
    driver = Driver()
    monitor = driver.feed(10)
    assert not monitor.handed_back(driver.now_ns)
    driver.feed(1)
    assert monitor.handed_back(driver.now_ns)
    assert monitor.handed_back(driver.now_ns + 1000 * MS)
    assert not monitor.handed_back(driver.now_ns + 1001 * MS)
    driver.feed(1, override_active=True)
    driver.feed(10)
    assert not monitor.handed_back(driver.now_ns)
    driver.feed(1)
    assert monitor.handed_back(driver.now_ns)
    driver.now_ns += 901 * MS
    driver.feed(1)
    assert not monitor.handed_back(driver.now_ns)


def test_driver_presence_and_attention() -> None:
    """Shares 0 or 1; presence needs fresh news."""
    driver = Driver()
    monitor = driver.feed(present=True, attentive=True)
    assert monitor.present(driver.now_ns + 1000 * MS) and not monitor.present(driver.now_ns + 1001 * MS)
    assert monitor.absent(0) == 0.0 and monitor.inattentive(0) == 0.0
    driver.feed(present=False, attentive=False)
    assert not monitor.present(driver.now_ns)
    assert monitor.absent(0) == 1.0 and monitor.inattentive(0) == 1.0


def test_a_corrupt_or_stale_driver_message_changes_nothing() -> None:
    """CRC and stamp are checked before the content is looked at."""
    driver = Driver()
    monitor = driver.feed(crc_ok=False, override_active=True)
    assert not monitor.never.received and monitor.crc.crc_n(driver.now_ns) == 1
    monitor.observe(
        DriverState(driver.now_ns - 2 * SECOND, override_active=True), driver.now_ns, driver.now_ns, True, True
    )
    assert not monitor.never.received
    driver.feed()
    assert monitor.age_s(driver.now_ns + 500 * MS) == 0.5
    driver.feed(crc_ok=False, override_active=True)
    assert not monitor.drives(driver.now_ns)
    assert monitor.age_s(driver.now_ns) == 0.1


def test_loop_gap() -> None:
    """A late tick postpones judgement for 60 ms, at most once a second."""
    monitor = LoopGap(CONFIG)
    now_ns = 7 * SECOND
    monitor.observe(now_ns)
    assert monitor.loop_gap_s(now_ns) == 0.0
    assert monitor.may_judge(now_ns)
    now_ns += 50 * MS
    monitor.observe(now_ns)
    assert monitor.loop_gap_s(now_ns) == 0.05
    assert monitor.late_n(now_ns) == 0
    assert monitor.may_judge(now_ns)
    now_ns += 51 * MS
    monitor.observe(now_ns)
    assert monitor.loop_gap_s(now_ns) == 0.051
    assert monitor.late_n(now_ns) == 1
    assert not monitor.may_judge(now_ns)
    assert not monitor.may_judge(now_ns + 59 * MS)
    assert monitor.may_judge(now_ns + 60 * MS)
    late_ns = now_ns
    for _ in range(19):
        now_ns += 52 * MS
        monitor.observe(now_ns)
        assert monitor.may_judge(now_ns) is (now_ns - late_ns >= 60 * MS)
    assert now_ns - late_ns == 988 * MS
    assert monitor.late_n(now_ns) == 20
    now_ns = late_ns + 1000 * MS
    monitor.observe(now_ns)
    now_ns += 51 * MS
    monitor.observe(now_ns)
    assert not monitor.may_judge(now_ns)
    assert monitor.late_n(now_ns + 2 * SECOND) == 0


def test_loop_gap_grants_again_exactly_after_the_spacing() -> None:
    """At the spacing itself the grant is given."""
    monitor = LoopGap(CONFIG)
    for now_ms in (0, 100):
        monitor.observe(now_ms * MS)
    assert not monitor.may_judge(100 * MS)
    monitor.observe(160 * MS)
    monitor.observe(1099 * MS)
    assert monitor.may_judge(1099 * MS)
    other = LoopGap(CONFIG)
    for now_ms in (0, 100, 160, 1100):
        other.observe(now_ms * MS)
    assert not other.may_judge(1100 * MS)


@pytest.mark.parametrize("gap_ms", [1000, 1500, 60_000])
def test_a_loop_that_is_always_late_judges_at_every_second_tick_at_the_latest(gap_ms: int) -> None:
    """A3: the grant after a stall is never given twice without a judgement between."""
    monitor = LoopGap(CONFIG)
    judged = []
    for number in range(10):
        monitor.observe(number * gap_ms * MS)
        judged.append(monitor.may_judge(number * gap_ms * MS))
    assert not any(one is False and other is False for one, other in pairwise(judged))
    assert judged.count(True) >= 5


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("size_ms", "step"), [(49.5, False), (50, False), (50.5, True), (1000, True)])
def test_clock_step(sign: int, size_ms: float, step: bool) -> None:
    """A12: steps beyond the tolerance are found, either way; ages settle a second later."""
    monitor = ClockStep(CONFIG)
    assert monitor.offset_ns is None
    assert monitor.observe(SECOND, 500 * SECOND) is False
    assert monitor.offset_ns == 499 * SECOND
    assert monitor.settled(SECOND)
    assert monitor.step_s(SECOND) == 0.0
    change_ns = round(sign * size_ms * MS)
    now_ns = 2 * SECOND
    assert monitor.observe(now_ns, 501 * SECOND + change_ns) is step
    assert monitor.step_s(now_ns) == (size_ms / 1e3 if step else 0.0)
    assert monitor.settled(now_ns) is not step
    assert monitor.settled(now_ns + 999 * MS) is not step
    assert monitor.settled(now_ns + 1000 * MS)
    assert monitor.observe(3 * SECOND, 502 * SECOND + change_ns) is False
    assert monitor.step_s(now_ns) == 0.0


def test_a_clock_that_keeps_jumping_is_judged() -> None:
    """The settling time is granted once in five seconds, and again exactly then."""
    monitor = ClockStep(CONFIG)
    monitor.observe(0, 0)
    assert monitor.observe(SECOND, 9 * SECOND) and not monitor.settled(SECOND)
    assert monitor.observe(6 * SECOND - 1, 0) and monitor.settled(6 * SECOND - 1)
    monitor = ClockStep(CONFIG)
    monitor.observe(0, 0)
    for now_ns in range(SECOND, 6 * SECOND, SECOND):
        assert monitor.observe(now_ns, now_ns * 2)
        assert monitor.settled(now_ns) is (now_ns > SECOND)
    assert monitor.observe(6 * SECOND, 0) and not monitor.settled(6 * SECOND)
