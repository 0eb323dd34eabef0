"""Deadlines, mailbox and fallbacks of a tier, on explicit times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import (
    BUDGETS,
    Budget,
    Detection,
    Detections,
    Frame,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    crc_ok,
)
from triptych.contract.result import COUNTED
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.tiers import JITTER_SHARE, PUBLISH_MARGIN_S, REPEAT_LIMIT, TierCore, TierCounters
from triptych.tiers.checks import unusable
from triptych.tiers.heartbeat import heartbeat

MS = 1_000_000
EPOCH = 1_700_000_000 * 10**9
RNG = np.random.default_rng(7)


def output(tier: Tier = Tier.DETECTOR, infer_ms: float = 5.0, **changes: object) -> EngineOutput:
    payload = Detections(64, 48) if tier is Tier.DETECTOR else SceneAdvice()
    values: dict[str, object] = {
        "payload": payload,
        "uncertainty": 0.1,
        "pre_ms": 1.0,
        "infer_ms": infer_ms,
        "post_ms": 0.5,
    }
    return EngineOutput(**{**values, **changes})  # type: ignore[arg-type]


def frame(stamp_ms: float, number: int = 1, received_ms: float | None = None, seed: int | None = None) -> Frame:
    rng = RNG if seed is None else np.random.default_rng(seed)
    image = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
    received = stamp_ms if received_ms is None else received_ms
    return Frame(image, EPOCH + round(stamp_ms * MS), number, received_ns=EPOCH + round(received * MS))


@dataclass
class Bench:
    """Runs a core against frames (stamp, transport) and an engine with given durations, event by event."""

    core: TierCore
    durations_ms: list[float]
    results: list[tuple[float, TierResult]] = field(default_factory=list)
    taken: list[tuple[float, float]] = field(default_factory=list)  # (when, newest stamp)
    polls: int = 0

    def run(self, frames: list[tuple[float, float]], until_ms: float) -> list[tuple[float, TierResult]]:
        arrivals = sorted((stamp + delay, stamp) for stamp, delay in frames)
        now, done, job = 0.0, math.inf, 0
        self.core.start(0, EPOCH)
        number = 0
        while True:
            event = self.core.next_event_ns()
            due = math.inf if event is None else event / MS
            now = max(now, min(arrivals[0][0] if arrivals else math.inf, done, due))
            if now > until_ms:
                return self.results
            mono, stamp_now = round(now * MS), EPOCH + round(now * MS)
            if done <= now:
                done = math.inf
                self._emit(now, self.core.finish(output(self.core.tier), mono, stamp_now))
            while arrivals and arrivals[0][0] <= now:
                number += 1
                at, stamp = arrivals.pop(0)
                self.core.offer(frame(stamp, number, at), mono, stamp_now)
            before = len(self.results)
            self._emit(now, self.core.poll(mono, stamp_now))
            self.polls += 1
            if len(self.results) == before and due <= now:
                assert self.core.next_event_ns() != event, "an event that never goes away would be a busy loop"
            jobs = self.core.take(mono)
            if jobs:
                self.taken.append((now, (jobs[-1].stamp_ns - EPOCH) / MS))
                done = now + self.durations_ms[job % len(self.durations_ms)]
                job += 1

    def _emit(self, now: float, result: TierResult | None) -> None:
        if result is not None:
            self.results.append((now, result))


def camera(rate_hz: float, seconds: float, delay_ms: float = 4.0) -> list[tuple[float, float]]:
    return [(k * 1000 / rate_hz, delay_ms) for k in range(int(seconds * rate_hz))]


def origins(results: list[tuple[float, TierResult]]) -> list[Origin]:
    return [r.origin for _, r in results]


def test_in_time_every_frame_is_fresh_and_complete() -> None:
    bench = Bench(
        TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR], engine_id="e", engine_version="1", device="cpu"), [10.0]
    )
    results = bench.run(camera(20, 2.0), 2000)
    assert origins(results) == [Origin.FRESH] * 40
    when, last = results[-1]
    assert (last.engine_id, last.engine_version, last.device, last.reason) == ("e", "1", "cpu", "")
    assert last.frame_number == 40
    assert last.age_ms == pytest.approx(14.0)
    assert last.latency.transport_ms == pytest.approx(4.0)
    assert last.published_ns - last.source_stamp_ns == pytest.approx(14 * MS)
    assert when == pytest.approx(1950 + 14)
    assert [r.sequence_counter for _, r in results] == [(k + 1) % 256 for k in range(40)]
    assert all(crc_ok(r) for _, r in results)


def test_a_result_names_the_adapter_that_gave_it_and_a_default_names_none() -> None:
    core = TierCore(Tier.DISTILLED, BUDGETS[Tier.DISTILLED], engine_id="e", engine_version="1")
    core.start(0, EPOCH)
    core.offer(frame(0.0), 0, EPOCH)
    assert core.take(0)
    now = round(10 * MS)
    result = core.finish(output(Tier.DISTILLED, adapter="night"), now, EPOCH + now)
    assert result is not None and result.origin is Origin.FRESH and result.engine_version == "1+night"
    assert crc_ok(result)
    silent = TierCore(Tier.DISTILLED, BUDGETS[Tier.DISTILLED], engine_id="e", engine_version="1")
    silent.start(0, EPOCH)
    later = round(2000 * MS)
    default = silent.poll(later, EPOCH + later)
    assert default is not None and default.origin is Origin.DEFAULT and default.engine_version == "1"


def test_late_inference_repeats_the_previous_result_at_the_deadline() -> None:
    bench = Bench(TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR]), [10.0, 40.0])
    results = bench.run(camera(20, 0.3), 300)
    assert origins(results) == [Origin.FRESH, Origin.LAST_FRAME] * 3
    when, late = results[1]
    assert when == pytest.approx(50 + 30 - PUBLISH_MARGIN_S * 1e3)
    assert late.reason == "timeout"
    assert late.source_stamp_ns == EPOCH
    assert late.age_ms == pytest.approx(when)
    # the late answer (frame of 50 ms, ready at 94 ms) is what the tier knows next
    assert results[2][1].source_stamp_ns == EPOCH + 100 * MS
    assert bench.core.counters().late == 3


def test_too_old_content_becomes_the_cautious_policy() -> None:
    bench = Bench(TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR]), [10.0])
    results = bench.run([(0, 4)], 400)
    assert origins(results)[:2] == [Origin.FRESH, Origin.LAST_FRAME]
    assert all(r.age_ms <= 100 for _, r in results if r.origin is Origin.LAST_FRAME)
    final = results[-1][1]
    assert (final.origin, final.reason, final.uncertainty) == (Origin.DEFAULT, "no_frame, too_old", 1.0)
    assert final.payload == Detections(0, 0)


def test_no_frame_at_all_is_never_silence() -> None:
    """A2 (the tier's side): a tier whose input never starts says so once per period."""
    bench = Bench(TierCore(Tier.DISTILLED, BUDGETS[Tier.DISTILLED]), [10.0])
    results = bench.run([], 2100)
    gaps = np.diff([0, *(t for t, _ in results)])
    assert set(origins(results)) == {Origin.DEFAULT}
    assert results[0][1].reason == "no_frame"
    assert gaps[1:] == pytest.approx(200)
    assert gaps[0] <= 200 * (1 + JITTER_SHARE) + 200


def test_hung_engine_keeps_results_coming_and_the_next_request_works() -> None:
    """A7: an engine that does not return is a typed timeout, and the tier serves again when it comes back."""
    bench = Bench(TierCore(Tier.DISTILLED, BUDGETS[Tier.DISTILLED]), [100.0, 5000.0, *[100.0] * 50])
    results = bench.run(camera(20, 8), 8000)
    during = [(t, r) for t, r in results if 400 < t < 5200]
    assert {r.reason.split(",")[0] for _, r in during} == {"timeout"}
    assert [r.origin for _, r in during[:3]] == [Origin.LAST_FRAME, Origin.LAST_FRAME, Origin.DEFAULT]
    assert during[-1][1].origin is Origin.DEFAULT
    assert np.diff([t for t, _ in during]).max() <= 400
    assert [r.origin for t, r in results if t > 5600] == [Origin.FRESH] * len([t for t, _ in results if t > 5600])


def test_hang_is_reported_but_a_slow_legal_engine_is_not() -> None:
    """A3: slow is late, not broken; only ten budgets without an answer are a fault of the engine."""
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL])
    core.start(0, EPOCH)
    core.offer(frame(0, received_ms=4), 4 * MS)
    assert core.take(4 * MS)
    assert core.fault(5_000 * MS) == ""
    assert core.fault(21_000 * MS) == "engine_hung"
    core.finish(output(Tier.FULL), 21_100 * MS, EPOCH + 21_100 * MS)
    assert core.fault(21_200 * MS) == ""


@pytest.mark.parametrize("inference_ms", [95.0, 100.0])
def test_fast_camera_slow_engine(inference_ms: float) -> None:
    """A4: 30 Hz images, 10 Hz inference, 60 s: the newest frame is used, ages stay bounded, drops are counted."""
    core = TierCore(Tier.DISTILLED, Budget(budget_s=0.2, keep_s=1.0, period_s=0.1))
    bench = Bench(core, [inference_ms])
    results = bench.run(camera(30, 60), 60_000)
    assert set(origins(results)) == {Origin.FRESH}
    assert max(r.age_ms for _, r in results) < 1000 / 30 + 4 + inference_ms + 1
    count = core.counters()
    assert count.received == 1800
    assert count.dropped == pytest.approx(1800 - count.fresh, abs=2)
    assert 1100 < count.dropped < 1350


def test_mailbox_holds_only_the_newest() -> None:
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    for k in range(5):
        core.offer(frame(k, k + 1, 5 + k), (5 + k) * MS)
    jobs = core.take(10 * MS)
    assert jobs is not None and [f.number for f in jobs] == [5]
    assert core.counters().dropped == 4
    assert core.take(10 * MS) is None


def test_frames_skipped_by_the_transport_count_as_dropped() -> None:
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL])
    core.offer(frame(0), 0)
    core.offer(frame(2000), 2000 * MS, skipped=39)
    assert (core.counters().received, core.counters().dropped) == (41, 40)


@pytest.mark.parametrize(("ahead_ms", "refused"), [(4.9, ""), (5.0, ""), (5.1, "future_stamp"), (1000, "future_stamp")])
def test_future_stamps_are_refused(ahead_ms: float, refused: str) -> None:
    """A12: a stamp from the future is a fault, not data."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    assert core.offer(frame(100 + ahead_ms, received_ms=100), 100 * MS) == refused
    assert (core.fault(150 * MS) == refused) and (core.take(100 * MS) is None) == bool(refused)
    core.finish(output(), 110 * MS, EPOCH + 110 * MS)
    assert core.fault(700 * MS) == ""


def test_repeated_stamps_become_a_fault_within_n_frames() -> None:
    """A5: the same frame again and again is an input anomaly, reported within N frames."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    for k in range(REPEAT_LIMIT):
        core.offer(frame(0, k + 1, 10 * k), 10 * k * MS)
        assert bool(core.fault(10 * k * MS)) == (k == REPEAT_LIMIT - 1)
    assert core.fault(10 * k * MS) == "repeated_frame"
    core.offer(frame(60, 9, 60), 60 * MS)
    assert core.fault(1000 * MS) == ""


def test_frozen_picture_with_living_stamps_is_a_fault() -> None:
    """A5: new stamps on an old picture do not hide it."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    for k in range(REPEAT_LIMIT):
        assert core.offer(frame(50 * k, k + 1, 50 * k, seed=1), 50 * k * MS) == ""
        assert core.fault(50 * k * MS) == ("frozen_picture" if k == REPEAT_LIMIT - 1 else "")


def test_what_the_input_monitors_say_holds_until_the_next_look_and_half_a_second() -> None:
    """A slow tier looks every two seconds: a code is not forgotten in between, and no heartbeat misses a short one."""
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL])
    core.start(0, EPOCH)
    core.note_picture(("dark_picture", "input_drift"), 100 * MS)
    assert core.fault(2000 * MS) == "dark_picture; input_drift"
    core.note_picture(("input_drift",), 2100 * MS)
    assert core.fault(2100 * MS) == "input_drift"
    core.note_picture(("input_drift", "dark_picture"), 2200 * MS)
    core.note_picture((), 2300 * MS)
    assert set(core.fault(2700 * MS).split("; ")) == {"dark_picture", "input_drift"}
    assert core.fault(2701 * MS) == ""


def test_a_bad_picture_is_no_reason_for_silence() -> None:
    """The result of a period without a frame says that there was none, not what the last one looked like."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.start(0, EPOCH)
    core.note_picture(("dark_picture",), 10 * MS)
    result = core.poll(200 * MS, EPOCH + 200 * MS)
    assert result is not None and result.reason == "no_frame"


@pytest.mark.parametrize(
    ("fault", "healthy"),
    [("", True), ("input_drift", True), ("colour_cast; input_drift", True), ("input_drift; dark_picture", False),
     ("dark_picture", False), ("engine_error: x; input_drift", False)],
)  # fmt: skip
def test_warnings_leave_a_tier_healthy(fault: str, healthy: bool) -> None:
    status = heartbeat(Tier.DETECTOR, TierState.ACTIVE, fault, Stub(), TierCounters(), EPOCH, 1)  # type: ignore[arg-type]
    assert (status.healthy, status.fault) == (healthy, fault)
    assert crc_ok(status)
    failed = heartbeat(Tier.DETECTOR, TierState.ERROR, fault, Stub(), TierCounters(), EPOCH, 1)  # type: ignore[arg-type]
    assert not failed.healthy


class Stub:
    """As much of an engine as a heartbeat mentions."""

    id, version, device = "e", "1", DeviceReport("cpu", "cpu", "none")


def test_straggler_is_refused_but_a_clock_set_back_is_followed() -> None:
    """A12: one stamp from the past is out of order; two in order are a new time base."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    assert core.offer(frame(5000, received_ms=5000), 5000 * MS) == ""
    assert core.offer(frame(4000, received_ms=5050), 5050 * MS) == "backward_stamp"
    assert core.offer(frame(5100, received_ms=5100), 5100 * MS) == ""
    assert core.offer(frame(4100, received_ms=5150), 5150 * MS) == "backward_stamp"
    assert core.offer(frame(4150, received_ms=5200), 5200 * MS) == ""


@pytest.mark.parametrize("step_ms", [1000, -1000])
def test_clock_step_moves_no_deadline_and_makes_nothing_younger(step_ms: int) -> None:
    """A12: the stamp clock jumps by 1 s while a frame is in flight."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.start(0, EPOCH)
    core.offer(frame(0, 1, 4), 4 * MS)
    assert core.take(4 * MS)
    assert core.deadline_ns() == 29 * MS
    shifted = EPOCH + (12 + step_ms) * MS
    result = core.finish(output(), 12 * MS, shifted)
    assert result is not None and result.origin is Origin.FRESH and result.age_ms >= 12
    assert core.poll(13 * MS, EPOCH + (13 + step_ms) * MS) is None
    assert core.fault(14 * MS) == "clock_step"
    later = core.poll(100 * MS, EPOCH + (100 + step_ms) * MS)
    assert later is not None and later.age_ms >= 100
    assert later.origin is (Origin.DEFAULT if step_ms > 0 else Origin.LAST_FRAME)


def test_a_frame_that_waited_for_us_does_not_get_more_time() -> None:
    """Both clock readings of the reception count, not the moment at which the mailbox was reached."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.start(0, EPOCH)
    image = RNG.integers(0, 255, (48, 64, 3), dtype=np.uint8)
    waited = Frame(image, EPOCH, 1, received_ns=EPOCH + 4 * MS, received_monotonic_ns=4 * MS)
    core.offer(waited, 14 * MS, EPOCH + 4 * MS)
    assert core.take(14 * MS) and core.deadline_ns() == 29 * MS


def test_engine_error_is_answered_at_once_and_reported() -> None:
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.offer(frame(0, 1, 4), 4 * MS)
    assert core.take(4 * MS)
    result = core.finish(RuntimeError("no memory"), 8 * MS, EPOCH + 8 * MS)
    assert result is not None and (result.origin, result.reason) == (Origin.DEFAULT, "engine_error")
    assert core.fault(8 * MS) == "engine_error: RuntimeError: no memory"
    core.offer(frame(50, 2, 54), 54 * MS)
    assert core.take(54 * MS)
    core.finish(output(), 60 * MS, EPOCH + 60 * MS)
    assert core.fault(60 * MS) == ""


BAD = [
    output(uncertainty=math.nan),
    output(uncertainty=1.5),
    output(infer_ms=math.inf),
    output(infer_ms=-1.0),
    output(payload=SceneAdvice()),
    output(payload=Detections(64, 48, (Detection("a", 0, math.nan, 0, 0, 1, 1),))),
    output(payload=Detections(64, 48, (Detection("a", 0, 0.5, 0, 0, math.inf, 1),))),
    output(payload=Detections(64, 48, (Detection("a", 0, 0.5, 9, 0, 1, 1),))),
    output(payload=Detections(64, 48, (Detection("a", 0, 0.5, 0, 0, 1, 1),) * 129)),
    output(payload=Detections(64, 48, (Detection("a", 256, 0.5, 0, 0, 1, 1),))),
    output(payload=Detections(64, 48, (Detection("a", np.int64(1), 0.5, 0, 0, 1, 1),))),  # type: ignore[arg-type]
    output(payload=Detections(64, 48, (Detection(None, 1, 0.5, 0, 0, 1, 1),))),  # type: ignore[arg-type]
    output(payload=Detections(-1, 48)),
    output(payload=Detections(64.0, 48)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("bad", BAD)
def test_unusable_output_is_an_engine_error(bad: EngineOutput) -> None:
    """A6: NaN, infinity or too much of anything never leaves the tier as data."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.offer(frame(0, 1, 4), 4 * MS)
    core.take(4 * MS)
    result = core.finish(bad, 8 * MS, EPOCH + 8 * MS)
    assert result is not None and result.origin is Origin.DEFAULT and core.fault(8 * MS).startswith("engine_error: ")


@pytest.mark.parametrize(
    "advice",
    [
        SceneAdvice(token_probabilities=(math.nan,)),
        SceneAdvice(token_probabilities=(0.5,) * 65),
        SceneAdvice(text="ä" * 129),
        SceneAdvice(road=3),  # type: ignore[arg-type]
        SceneAdvice(hazards=(3,)),  # type: ignore[arg-type]
        SceneAdvice(question=None),  # type: ignore[arg-type]
        SceneAdvice(vehicles=10),
        SceneAdvice(vehicles=254),
        SceneAdvice(vehicles=256),
        SceneAdvice(vehicles=-1),
        SceneAdvice(vehicles=True),
        SceneAdvice(vehicles=3.0),  # type: ignore[arg-type]
        SceneAdvice(vehicles=None),  # type: ignore[arg-type]
        SceneAdvice(vehicles=np.uint8(3)),  # type: ignore[arg-type]
        SceneAdvice(vehicles=np.int64(255)),  # type: ignore[arg-type]
        SceneAdvice(two_wheelers=10),
        SceneAdvice(pedestrians=10),
    ],
)
def test_unusable_advice_is_an_engine_error(advice: SceneAdvice) -> None:
    """A6, for tiers 2 and 3."""
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL])
    core.offer(frame(0, 1, 4), 4 * MS)
    core.take(4 * MS)
    core.finish(output(Tier.FULL, payload=advice), 8 * MS, EPOCH + 8 * MS)
    assert core.fault(8 * MS).startswith("engine_error: ")


@settings(deadline=None)
@given(st.sampled_from(COUNTED), st.integers(-1000, 1000))
def test_a_count_passes_within_its_range_only(field: str, count: int) -> None:
    why = unusable(Tier.FULL, output(Tier.FULL, payload=SceneAdvice(**{field: count})))
    assert why == ("" if 0 <= count <= 9 or count == 255 else f"{field} is no count (got {count})")


def test_counts_are_published_as_the_engine_gave_them() -> None:
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL])
    core.offer(frame(0, 1, 4), 4 * MS)
    core.take(4 * MS)
    advice = SceneAdvice(vehicles=9, two_wheelers=0, pedestrians=255)
    result = core.finish(output(Tier.FULL, payload=advice), 8 * MS, EPOCH + 8 * MS)
    assert result is not None and result.origin is Origin.FRESH and result.payload == advice
    assert core.fault(8 * MS) == ""


def test_frames_later_than_the_budget_feed_last_frame() -> None:
    """Every frame arrives 40 ms late: one LAST_FRAME per period, no second result for the same period."""
    bench = Bench(TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR]), [10.0])
    results = [(t, r) for t, r in bench.run(camera(20, 5, delay_ms=40), 5000) if t > 300]
    assert set(origins(results)) == {Origin.LAST_FRAME}
    assert {r.reason for _, r in results} == {"late_frame"}
    assert np.diff([t for t, _ in results]) == pytest.approx(50)
    assert max(r.age_ms for _, r in results) <= 100


def test_several_frames_are_spaced_and_ordered() -> None:
    core = TierCore(Tier.FULL, BUDGETS[Tier.FULL], frames_wanted=4)
    bench = Bench(core, [300.0])
    jobs: list[list[float]] = []
    original = core.take

    def spy(now: int) -> list[Frame] | None:
        job = original(now)
        if job:
            jobs.append([(f.stamp_ns - EPOCH) / MS for f in job])
        return job

    core.take = spy  # type: ignore[method-assign]
    bench.run(camera(20, 9), 9000)
    assert len(jobs[-1]) == 4
    assert jobs[-1] == sorted(jobs[-1])
    assert np.diff(jobs[-1])[:-1].min() >= 499


def test_a_slow_tier_wants_few_frames() -> None:
    core = TierCore(Tier.DISTILLED, BUDGETS[Tier.DISTILLED])
    assert core.wants_frame(0)
    core.offer(frame(0, 1, 4), 4 * MS)
    core.take(4 * MS)
    assert not core.wants_frame(300 * MS)
    core.finish(output(Tier.DISTILLED), 100 * MS, EPOCH + 100 * MS)
    assert not core.wants_frame(150 * MS)
    assert core.wants_frame(181 * MS)


@settings(max_examples=250, deadline=None)
@given(
    tier=st.sampled_from(list(Tier)),
    gaps=st.lists(st.floats(0.05, 4.0), min_size=1, max_size=40),
    delays=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=5),
    durations=st.lists(st.one_of(st.floats(0.05, 1.5), st.floats(1.5, 30.0)), min_size=1, max_size=6),
)
def test_exactly_one_result_per_deadline_period(
    tier: Tier, gaps: list[float], delays: list[float], durations: list[float]
) -> None:
    """For any camera, transport and engine (all in units of the tier's period or budget):

    each job taken in time gets one result, silence gets one per period, and no gap exceeds the promise.
    """
    budget = BUDGETS[tier]
    period, limit = budget.period_s * 1e3, (budget.budget_s - PUBLISH_MARGIN_S) * 1e3
    stamps = np.cumsum([g * period for g in gaps])
    frames = [(float(s), delays[k % len(delays)] * limit) for k, s in enumerate(stamps)]
    until = float(stamps[-1]) + 6 * period
    core = TierCore(tier, budget)
    bench = Bench(core, [d * limit for d in durations])
    results = bench.run(frames, until)
    times = [t for t, _ in results]
    promise = period * (1 + JITTER_SHARE) + limit
    assert np.diff([0.0, *times, until]).max() <= promise + 1e-3
    owed = sum(1 for when, stamp in bench.taken if stamp + limit > when + 1e-6 and stamp + limit <= until)
    timeouts_and_fresh = [r for _, r in results if r.origin is Origin.FRESH or r.reason.startswith("timeout")]
    assert len(results) <= len(bench.taken) + until / period + 1
    assert len(timeouts_and_fresh) >= owed
    fresh = [r for _, r in results if r.origin is Origin.FRESH]
    assert len({r.source_stamp_ns for r in fresh}) == len(fresh)
    for _, result in results:
        assert crc_ok(result)
        if result.origin is Origin.FRESH:
            assert result.age_ms <= limit + 1e-3
        if result.origin is Origin.LAST_FRAME:
            assert result.age_ms <= budget.keep_s * 1e3
        assert (result.reason == "") == (result.origin is Origin.FRESH)
    assert [r.sequence_counter for _, r in results] == [(k + 1) % 256 for k in range(len(results))]
    count = core.counters()
    assert count.fresh + count.last_frame + count.default == len(results)


def test_a_pause_of_the_process_is_answered_once() -> None:
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.start(0, EPOCH)
    assert core.poll(10_000 * MS, EPOCH + 10_000 * MS) is not None
    assert core.poll(10_001 * MS, EPOCH + 10_001 * MS) is None
    due = core.next_event_ns()
    assert due is not None and 10_001 * MS < due <= 10_060 * MS
