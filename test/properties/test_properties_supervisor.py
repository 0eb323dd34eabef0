"""The safety properties of PROPERTIES.md, on generated situations."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from supervisor_rig import ADVICE_PERIOD_MS, MS, SECOND, Rig, driving, make_result, row, table

from triptych.contract import Advice, DegradationState, Detection, Odometry, Origin, Tier, TierResult, crc_ok
from triptych.supervisor.faults import FaultLife

S = DegradationState
L1, L2, L3 = S.L1_MINIMAL_RISK_MANOEUVRE, S.L2_TAKEOVER_REQUEST, S.L3_PERCEPTION_ONLY
AUTOMATED = {S.NOMINAL, L3, L2, L1, S.MRC}
SOURCES = ("detector", "distilled", "full", "odometry", "driver")

bits = st.booleans()
advice = st.sampled_from(Advice)
rubbish = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0])
# What may happen to a vehicle: an action and how long it then goes on, in ticks.
events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *(f"stop {s}" for s in SOURCES), *(f"start {s}" for s in SOURCES), "override", "release", "disengage",
                "engage", "absent", "present", "sure", "unsure", "nothing", "content", "sick", "well", "reset",
                "takeover", "careful", "careless", "nan speed",
            ]
        ),
        st.integers(1, 120),
    ),
    max_size=12,
)  # fmt: skip


def happen(rig: Rig, event: str) -> None:
    """One event of :data:`events`."""
    verb, _, name = event.partition(" ")
    if verb == "stop":
        rig.alive -= {name}
    elif verb == "start":
        rig.alive |= {name}
    elif verb in {"override", "release"}:
        rig.driver = replace(rig.driver, override_active=verb == "override")
    elif verb in {"engage", "disengage"}:
        rig.driver = replace(rig.driver, automation_engaged=verb == "engage")
    elif verb in {"absent", "present"}:
        rig.driver = replace(rig.driver, present=verb == "present")
    elif verb in {"sure", "unsure"}:
        rig.uncertainty[Tier.DETECTOR] = 0.1 if verb == "sure" else 0.95
    elif verb in {"nothing", "content"}:
        rig.origin[Tier.DETECTOR] = Origin.DEFAULT if verb == "nothing" else Origin.FRESH
    elif verb in {"sick", "well"}:
        rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=verb == "well")
    elif verb == "reset":
        rig.core.request_reset(rig.now_ns)
    elif verb == "takeover":
        rig.core.request_takeover(rig.now_ns)
    elif verb in {"careful", "careless"}:
        rig.advice = dict.fromkeys(rig.advice, Advice.STOP if verb == "careful" else Advice.PROCEED)
    else:
        rig.core.on_odometry(Odometry(rig.stamp_ns, math.nan), rig.now_ns)


def well_again(rig: Rig) -> None:
    """Everything that can be well is."""
    rig.alive = set(SOURCES)
    for event in ("sure", "content", "well", "careless", "present", "engage", "release"):
        happen(rig, event)


@given(events)
@example([("start detector", 120)] * 8)
def test_p01_no_way_back_from_a_lost_tier_one(sequence: list[tuple[str, int]]) -> None:
    """P-01 (A1)."""
    rig = driving(20.0)
    rig.alive -= {"detector"}
    rig.until(L1)
    for event, ticks in sequence:
        if event in {"override", "disengage", "takeover", "reset"}:
            continue
        happen(rig, event)
        for _ in range(ticks):
            rig.tick()
            assert rig.state in {L1, S.MRC}
            assert rig.limits_mps[-1] == 0.0
    well_again(rig)
    rig.run(1.0)
    assert rig.state in {L1, S.MRC} and rig.limits_mps[-1] == 0.0


@given(st.integers(0, 49), st.floats(3.0, 36.0), st.integers(0, 9), bits)
def test_p02_the_answer_to_a_silent_tier_one_comes_in_time(
    ticks: int, speed_mps: float, phase_ms: int, vlm: bool
) -> None:
    """P-02 (A1)."""
    rig = driving(speed_mps)
    if not vlm:
        rig.alive -= {"distilled", "full"}
    rig.now_ns += phase_ms * MS
    for _ in range(ticks):
        rig.tick()
    last_ns: list[int] = []
    rig.edit_result = lambda r: (last_ns.append(rig.now_ns), r)[1] if r.tier is Tier.DETECTOR else r
    while not last_ns:
        rig.tick()
    rig.alive -= {"detector"}
    lower_ns = zero_ns = 0
    while not zero_ns:
        limit = rig.tick().constraint
        assert rig.now_ns - last_ns[0] < SECOND
        if limit is not None and limit.state in {L2, L1} and limit.speed_limit_mps <= 8.3:
            lower_ns = lower_ns or rig.now_ns - 10 * MS
            zero_ns = rig.now_ns - 10 * MS if limit.speed_limit_mps == 0.0 else 0
    assert lower_ns - last_ns[0] <= 100 * MS
    assert zero_ns - last_ns[0] <= 130 * MS


@given(
    events,
    st.lists(st.tuples(advice, advice, st.sampled_from(list(ADVICE_PERIOD_MS))), min_size=1, max_size=12),
)
def test_p03_advice_is_monotone(sequence: list[tuple[str, int]], advices: list[tuple[Advice, Advice, Tier]]) -> None:
    """P-03: two vehicles with the same inputs; the advice to one is nowhere less careful."""
    careless, careful = driving(25.0), driving(25.0)
    for number, (event, ticks) in enumerate([*sequence, ("start full", 60), ("start distilled", 60)]):
        one, other, tier = advices[number % len(advices)]
        for rig, word in ((careless, min(one, other)), (careful, max(one, other))):
            if event not in {"careful", "careless"}:
                happen(rig, event)
            rig.advice[tier] = word
            rig.obeys = False
        for _ in range(ticks):
            careless.tick()
            careful.tick()
            assert careful.core._limit_mps <= careless.core._limit_mps
            assert careful.state is careless.state
            assert careful.core._active == careless.core._active


@given(events, st.sampled_from(["detector", "driver", "odometry"]))
@example([("override", 50), ("release", 120), ("engage", 120)], "detector")
@example([("takeover", 50), ("release", 120), ("engage", 120)], "detector")
def test_p04_automation_does_not_start_again_without_a_reset(sequence: list[tuple[str, int]], cause: str) -> None:
    """P-04 (A8): also after MANUAL, and after a restart that remembers."""
    rig = driving(5.0)
    rig.alive -= {"detector"}
    rig.until(S.MRC)
    well_again(rig)
    for event, ticks in sequence:
        if event != "reset":
            happen(rig, event)
        for _ in range(ticks):
            rig.tick()
            assert rig.state in {S.MRC, S.MANUAL}
            assert rig.core.latched
    again = Rig(latched=rig.core.latched)
    again.run(3.0)
    assert again.state is S.MRC and again.limits_mps[-1] == 0.0
    assert again.core.request_reset(again.now_ns)[0]
    again.run(0.1)
    assert again.state is S.NOMINAL


speeds = st.one_of(st.floats(-0.05, 0.05), st.floats(-60.0, 60.0), rubbish, st.just(0.0))


@given(st.lists(st.tuples(speeds, st.integers(0, 1500), bits), min_size=1, max_size=60))
@example([(0.0, 20, True)] * 60)
@example([(20.0, 20, True)] + [(0.0, 20, True)] * 60)
def test_p05_unknown_is_never_stopped(samples: list[tuple[float, int, bool]]) -> None:
    """P-05 (A10): whenever it says stopped, a second of fresh, small, connected speeds lies behind it."""
    rig = Rig()
    rig.alive -= {"odometry"}
    good: list[int] = []
    stamp_ns = 0
    for speed_mps, gap_ms, new_stamp in samples:
        rig.now_ns += gap_ms * MS
        if new_stamp:
            stamp_ns = rig.stamp_ns
        fresh_stamp = new_stamp and gap_ms > 0
        rig.core.on_odometry(Odometry(stamp_ns, speed_mps), rig.now_ns)
        rig.core.step(rig.now_ns, rig.stamp_ns)
        if good and rig.now_ns - good[-1] > 300 * MS:
            good.clear()
        if fresh_stamp or not stamp_ns:
            good = [*good, rig.now_ns] if abs(speed_mps) < 0.1 else []
        if rig.core._odometry.standstill(rig.now_ns):
            assert good and good[-1] - good[0] >= SECOND - 300 * MS
            assert rig.now_ns - good[0] >= SECOND
        for silence_ms in (301, 10_000):
            assert not rig.core._odometry.standstill(rig.now_ns + silence_ms * MS) or not new_stamp


RESULT_NUMBERS = ["age_ms", "uncertainty", "source_stamp_ns", "published_ns", "frame_number", "sequence_counter"]
BOX_NUMBERS = [field.name for field in fields(Detection) if field.type == "float"]


def spoil(result: TierResult, field: str, value: float) -> TierResult:
    """One number of a result replaced."""
    if field in {"age_ms", "uncertainty"}:
        return replace(result, **{field: value})
    if field in RESULT_NUMBERS:
        whole = {math.inf: 2**62, -math.inf: -(2**62)}.get(
            value, 0 if math.isnan(value) else int(max(-1e18, min(value, 1e18)))
        )
        return replace(result, **{field: whole})
    if field in {"transport_ms", "infer_ms"}:
        return replace(result, latency=replace(result.latency, **{field: value}))
    if result.tier is Tier.DETECTOR:
        name = BOX_NUMBERS[len(field) % len(BOX_NUMBERS)]
        box = replace(result.payload.detections[0], **{name: value})  # type: ignore[union-attr]
        return replace(result, payload=replace(result.payload, detections=(box,)))  # type: ignore[arg-type]
    if field == "advice":
        return replace(result, payload=replace(result.payload, advice=99))  # type: ignore[arg-type]
    return replace(result, payload=replace(result.payload, token_probabilities=(value,)))  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*RESULT_NUMBERS, "transport_ms", "infer_ms", "payload", "advice"]),
            rubbish,
            st.sampled_from(Tier),
            rubbish,
            st.integers(1, 30),
        ),
        max_size=10,
    )
)
def test_p06_rubbish_in_safety_out(attacks: list[tuple[str, float, Tier, float, int]]) -> None:
    """P-06 (A6)."""
    rig = driving(20.0)
    for field, value, tier, speed_mps, ticks in attacks:
        rig.edit_result = lambda r, f=field, v=value, t=tier: spoil(r, f, v) if r.tier is t else r  # type: ignore[misc]
        rig.core.on_odometry(Odometry(rig.stamp_ns, speed_mps), rig.now_ns)
        for _ in range(ticks):
            rig.tick()
            command = rig.constraint
            assert 0.0 <= command.speed_limit_mps <= 36.1
            assert 0.0 < command.deceleration_mps2 <= 4.0
            assert 0.0 <= rig.record.takeover_remaining_s <= 10.0
            assert command.reason and len(command.reason) <= 160


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("also", [None, "odometry", "driver"])
def test_p07_silence_is_answered(source: str, also: str | None) -> None:
    """P-07 (A2): each source alone, and together with a second one."""
    limits_s = {"detector": 0.09, "odometry": 0.3, "driver": 1.0}
    rig = driving(20.0)
    rig.alive -= {source, also}
    limit_s = min(limits_s.get(name, 5.0) for name in (source, also) if name)
    rig.run(limit_s + 0.11)
    if source in limits_s or also:
        assert rig.state in {L2, L1}
    else:
        assert rig.state is S.NOMINAL and f"{source}.stale" in rig.faults()
    if rig.state is not S.NOMINAL:
        rig.run(25.0)
        known = "odometry" not in {source, also}
        assert rig.state is (S.MRC if known else L1)
        assert rig.limits_mps[-1] == 0.0
        assert rig.speed_mps == 0.0


@given(events, bits)
def test_p08_the_driver_drives_at_the_next_tick(sequence: list[tuple[str, int]], override: bool) -> None:
    """P-08."""
    rig = driving(10.0)
    for event, ticks in sequence:
        happen(rig, event)
        rig.run(ticks / 100)
    rig.driver = replace(rig.driver, override_active=override, automation_engaged=override)
    rig.core.on_driver(replace(rig.driver, stamp_ns=rig.stamp_ns), rig.now_ns, True)
    rig.alive -= {"driver"}
    command = rig.tick().constraint
    assert rig.state is S.MANUAL
    assert command is None or (command.speed_limit_mps == 36.1 and not command.hazard_lights)


values = st.one_of(st.none(), st.floats(0.0, 3.0), st.just(math.nan))


@given(st.lists(values, max_size=200), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.0, 1.0))
def test_p09_a_latched_fault_stays(
    seen: list[float | None], debounce_s: float, clear_s: float, hysteresis: float
) -> None:
    """P-09."""
    life = FaultLife(row(latch=True, debounce_s=debounce_s, clear_s=clear_s, hysteresis=hysteresis))
    while not life.active:
        life.update(2.0, 10 * MS, True)
    for value in seen:
        assert not life.update(value, 10 * MS, True)
        assert life.active
    for _ in range(200):
        life.update(0.0, 10 * MS, True)
    assert life.active and life.settled()
    life.update(0.0, 10 * MS, False)
    assert not life.active


@given(
    st.sampled_from(["status", "content", "uncertainty"]), st.integers(20, 100), st.integers(20, 80), st.integers(0, 99)
)
@settings(max_examples=12)
def test_p10_flapping_does_not_oscillate(what: str, period_ticks: int, duty_percent: int, phase_ticks: int) -> None:
    """P-10 (A8): 1 to 5 Hz."""
    rig = driving(20.0)
    for tick in range(900):
        bad = (tick + phase_ticks) % period_ticks < period_ticks * duty_percent / 100
        if what == "status":
            happen(rig, "sick" if bad else "well")
        elif what == "content":
            rig.origin[Tier.FULL] = rig.origin[Tier.DISTILLED] = Origin.DEFAULT if bad else Origin.FRESH
        else:
            happen(rig, "unsure" if bad else "sure")
        rig.tick()
    assert len(rig.visited()) <= 2
    names = rig.faults()
    assert all(names.count(name) <= 2 for name in names)


@pytest.mark.parametrize("seed", range(20))
def test_p11_any_start_order(seed: int) -> None:
    """P-11 (A9): twenty orders with delays of 0 to 20 s."""
    delays_ticks = {name: (seed * 37 + number * 53) % 101 * 20 for number, name in enumerate(SOURCES)}
    rig = Rig()
    rig.alive.clear()
    for tick in range(max(delays_ticks.values()) + 1):
        rig.alive = {name for name, delay_ticks in delays_ticks.items() if tick >= delay_ticks}
        rig.tick()
        if len(rig.alive) < len(SOURCES):
            assert rig.state is S.INITIALISING
            assert rig.constraint.speed_limit_mps == 0.0
            assert not rig.constraint.hazard_lights and not rig.record.takeover_requested
            missing = [name for name in SOURCES if name not in rig.alive]
            assert all(name in rig.record.reason for name in missing)
    rig.run(2.5)
    assert rig.visited() == ["NOMINAL"]
    assert rig.limits_mps[-1] > 0.0
    assert rig.faults() == []


@given(events)
def test_p12_no_alert_at_standstill_and_no_time_by_hand(sequence: list[tuple[str, int]]) -> None:
    """P-12 (A13, A18)."""
    rig = driving(4.0)
    waited_ns = 0
    for event, ticks in [*sequence, ("unsure", 100), ("careful", 100)]:
        happen(rig, event)
        for _ in range(ticks):
            rig.tick()
            still = rig.core._odometry.standstill(rig.now_ns - 10 * MS)
            asking = rig.core._sent_asking
            assert asking is (rig.state is L2 and not still)
            now_waited_ns = rig.core.machine.waited_ns
            if now_waited_ns > waited_ns:
                assert rig.state is L2 and not still
            waited_ns = now_waited_ns
    if any(record.takeover_requested for _, record in rig.states):
        assert L2.name in rig.visited()


@given(events, st.floats(0.0, 30.0))
def test_p13_the_limit_does_not_surge(sequence: list[tuple[str, int]], speed_mps: float) -> None:
    """P-13."""
    rig = driving(speed_mps)
    previous_mps, state = rig.core._limit_mps, rig.state
    for event, ticks in [*sequence, ("start detector", 50)]:
        happen(rig, event)
        for _ in range(ticks):
            known = rig.core._odometry.speed_mps(rig.now_ns)
            speed = max(rig.speed_mps, 0.0 if math.isnan(known) else known)
            rig.tick()
            limit_mps = rig.core._limit_mps
            if rig.state is not S.MANUAL and state is not S.MANUAL:
                assert limit_mps <= max(previous_mps, speed) + 0.0201
            elif rig.state is not S.MANUAL:
                assert limit_mps <= speed + 0.0201
            previous_mps, state = limit_mps, rig.state


@given(st.lists(st.tuples(st.integers(-3_600_000, 3_600_000), st.integers(500, 700)), max_size=3))
@example([(1000, 500), (-1000, 500), (60, 500), (-60, 500)])
@settings(max_examples=12)
def test_p14_clock_steps_change_nothing(steps: list[tuple[int, int]]) -> None:
    """P-14 (A12): steps at least five seconds apart; a clock that jumps more often is judged like any other."""
    rig = driving(20.0)
    for step_ms, ticks in steps:
        if abs(step_ms) > 50:
            rig.clock_step_ns += step_ms * MS
        for _ in range(ticks):
            rig.tick()
    assert rig.visited() == []
    assert set(rig.faults()) <= {"clock.step"}


@given(events)
def test_p15_the_constraint_is_repeated_counted_and_protected(sequence: list[tuple[str, int]]) -> None:
    """P-15 (A11): what the consumer's receive timeout relies on."""
    rig = driving(15.0)
    for event, ticks in [*sequence, ("stop detector", 30)]:
        happen(rig, event)
        rig.run(ticks / 100)
    for (t0, one), (t1, other) in zip(rig.constraints[1:], rig.constraints[2:]):
        assert t1 - t0 <= 60 * MS
        assert (other.sequence_counter - one.sequence_counter) % 256 == 1
    assert all(crc_ok(command) for _, command in rig.constraints)
    assert all(crc_ok(record) for _, record in rig.states)


@given(events)
@settings(max_examples=8)
def test_p16_same_inputs_same_commands(sequence: list[tuple[str, int]]) -> None:
    """P-16 (A12): NaN included, hence compared as text."""
    runs = []
    for _ in range(2):
        rig = driving(15.0)
        for event, ticks in sequence:
            happen(rig, event)
            rig.run(ticks / 100)
        runs.append(repr(rig.commands))
    assert runs[0] == runs[1]


spoils = st.tuples(
    st.sampled_from(SOURCES[:3]), st.sampled_from(["crc", "nan", "skip", "late", "future"]), st.integers(1, 3)
)


@given(events, st.lists(spoils, max_size=6))
@example([], [("full", "crc", 1)])
def test_p17_what_is_not_looked_at_has_nothing_new(
    sequence: list[tuple[str, int]], spoilt: list[tuple[str, str, int]]
) -> None:
    """P-17: a supervisor whose every row judges in every tick says the same, verdicts and diagnostics included."""
    sparing, thorough = driving(15.0), driving(15.0)
    for rig in (sparing, thorough):
        for number, (event, ticks) in enumerate([*sequence, ("nothing", 30), ("content", 150)]):
            happen(rig, event)
            if number < len(spoilt):
                disturb(rig, *spoilt[number])
            for _ in range(ticks):
                if rig is thorough:
                    for watched in rig.core._inputs.values():
                        watched.news = True
                rig.tick()
    assert repr(sparing.commands) == repr(thorough.commands)


def disturb(rig: Rig, source: str, how: str, count: int) -> None:
    """The last results of a tier are wrong in one way."""
    tier = next(t for t in Tier if t.key == source)
    for _ in range(count):
        if how == "crc":
            rig.core.on_result(make_result(tier, rig.stamp_ns - 20 * MS), rig.now_ns, False)
        elif how == "nan":
            rig.send_result(tier, uncertainty=math.nan)
        elif how == "skip":
            rig.counters[tier] += 3
            rig.send_result(tier)
        elif how == "late":
            rig.send_result(tier, reason="timeout", origin=Origin.LAST_FRAME)
        else:
            rig.send_result(tier, source_stamp_ns=rig.stamp_ns + SECOND)
    rig.alive -= {source}


def test_the_shipped_table_is_used() -> None:
    """The properties are about what ships."""
    assert len(table()) >= 40
