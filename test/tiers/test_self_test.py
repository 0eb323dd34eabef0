"""The self-test while driving: an engine that answers in time, surely and wrongly is found out."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from test_core import EPOCH, MS, frame, output
from test_tier import BUDGET, ScriptedEngine, collect, feed, wait_until

from triptych.contract import BUDGETS, Detection, Detections, EngineError, Origin, TierResult
from triptych.contract import Tier as TierName
from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.tiers import Tier, TierCore
from triptych.tiers.core import HANG_BUDGETS, TRUST_AGAIN
from triptych.tiers.tier import SelfTest

DETECTOR = TierName.DETECTOR


def core(period_s: float = 1.0) -> TierCore:
    made = TierCore(DETECTOR, BUDGETS[DETECTOR], self_test_period_s=period_s)
    made.start(0, EPOCH)
    return made


def answered(made: TierCore, at_ms: int) -> TierResult | None:
    """A frame, taken and answered 10 ms later."""
    assert made.offer(frame(at_ms), at_ms * MS, EPOCH + at_ms * MS) == ""
    assert made.take(at_ms * MS) is not None
    return made.finish(output(), (at_ms + 10) * MS, EPOCH + (at_ms + 10) * MS)


@pytest.mark.parametrize(("after_ms", "due"), [(990, False), (1000, True), (1010, True)])
def test_it_is_due_a_period_after_the_last(after_ms: int, due: bool) -> None:
    """0.99, 1.0 and 1.01 of it; the first one a period after the start."""
    for begin_ms in (0, 1500):
        made = core()
        if begin_ms:
            assert made.take_self_test(begin_ms * MS)
            made.finish_self_test("")
        assert made.take_self_test((begin_ms + after_ms) * MS) is due


def test_none_is_due_without_a_period() -> None:
    assert not core(0.0).take_self_test(3600_000 * MS)


def test_a_frame_that_waits_goes_first() -> None:
    """Nothing is put off by it that could be answered now."""
    made = core()
    made.offer(frame(2000), 2000 * MS, EPOCH + 2000 * MS)
    assert not made.take_self_test(2000 * MS)
    assert made.take(2000 * MS) is not None
    assert not made.take_self_test(2001 * MS), "nor beside a job"
    made.finish(output(), 2010 * MS, EPOCH + 2010 * MS)
    assert made.take_self_test(2010 * MS)


def test_a_frame_that_comes_meanwhile_is_answered_afterwards_and_in_time() -> None:
    """The engine does one thing at a time; ten milliseconds are within the budget of thirty."""
    made = core()
    answered(made, 1000)
    assert made.take_self_test(1010 * MS) and made.busy
    made.offer(frame(1015), 1015 * MS, EPOCH + 1015 * MS)
    made.offer(frame(1045), 1045 * MS, EPOCH + 1045 * MS)
    assert made.take(1046 * MS) is None
    made.finish_self_test("")
    assert made.take(1050 * MS) is not None
    result = made.finish(output(), 1060 * MS, EPOCH + 1060 * MS)
    assert result is not None and result.origin is Origin.FRESH


def test_what_is_wrong_is_reported_until_answers_are_right_again() -> None:
    """Five in a row: an engine that is wrong every other time is wrong."""
    made = core()
    assert made.take_self_test(1000 * MS)
    made.finish_self_test("found 0 vehicle on the golden frame, at least 3 expected")
    said = made.fault(1100 * MS)
    assert said == "self_test: found 0 vehicle on the golden frame, at least 3 expected"
    answered(made, 1500)
    assert made.fault(1600 * MS) == said, "frames that are answered prove nothing"
    for turn, problem in enumerate(["", "found 0 vehicle", *[""] * TRUST_AGAIN], 2):
        assert made.fault(turn * 1000 * MS).startswith("self_test: found 0 vehicle")
        assert made.take_self_test(turn * 1000 * MS)
        made.finish_self_test(problem)
    assert made.fault(turn * 1000 * MS) == ""


def test_what_is_wrong_may_be_any_text() -> None:
    """It goes into a message: what cannot be encoded is replaced."""
    made = core()
    made.finish_self_test("\ud800")
    assert made.fault(0).encode()


def test_a_camera_that_falls_silent_during_one_is_not_called_a_slow_engine() -> None:
    """The reason says who is to blame."""
    made = core()
    answered(made, 1000)
    assert made.take_self_test(1010 * MS)
    event_ns = made.next_event_ns()
    assert event_ns is not None
    late = made.poll(event_ns, EPOCH + event_ns)
    assert late is not None and (late.origin, late.reason) == (Origin.LAST_FRAME, "no_frame")


@pytest.mark.parametrize(("share", "hung"), [(0.99, False), (1.0, False), (1.01, True)])
def test_one_that_does_not_end_is_a_hung_engine(share: float, hung: bool) -> None:
    """A7: frames are answered by the fallback meanwhile, and whoever replaces the engine frees the tier."""
    made = core()
    answered(made, 1000)
    assert made.take_self_test(1010 * MS)
    made.offer(frame(1050), 1050 * MS, EPOCH + 1050 * MS)
    at_ns = 1010 * MS + round(share * HANG_BUDGETS * BUDGETS[DETECTOR].budget_s * 1e9)
    assert (made.hung_s(at_ns) > 0) is hung
    assert ("engine_hung" in made.fault(at_ns)) is hung
    event_ns = made.next_event_ns()
    assert event_ns is not None
    late = made.poll(event_ns, EPOCH + event_ns)
    assert late is not None and (late.origin, late.reason) == (Origin.LAST_FRAME, "timeout")
    made.abandon()
    assert not made.busy and made.hung_s(at_ns) == 0.0


def test_a_detector_that_goes_blind_while_driving_says_so() -> None:
    """Every answer comes in time, and is sound as far as anybody can see."""
    blind = threading.Event()
    engine = ScriptedEngine(lambda _: Detections(8, 8))
    engine.golden_ok = lambda output: "found 0 vehicle" if blind.is_set() else ""  # type: ignore[method-assign]
    results: list[TierResult] = []
    tier = Tier(DETECTOR, engine, BUDGET, collect(results), warm_up_runs=1, self_test_period_s=0.2)
    tier.start()
    try:
        feed(tier, 0.6)
        assert engine.golden_runs >= 2 and tier.status().healthy
        blind.set()
        feed(tier, 0.5)
        status = tier.status()
        assert not status.healthy and status.fault == "self_test: found 0 vehicle"
        blind.clear()
        feed(tier, 0.3)
        assert not tier.status().healthy
        feed(tier, 1.5)
        assert tier.status().healthy
        assert {r.origin for r in results} == {Origin.FRESH}
    finally:
        assert tier.stop()


def test_an_engine_that_raises_or_hangs_in_it_is_survived() -> None:
    """A7: the one is reported, the other replaced before anybody has to ask."""
    release = threading.Event()

    def behave(call: int) -> Detections | None:
        if call == -2:
            raise EngineError("NaN in the output")
        if call == -3:
            release.wait(30)
        return None

    second = ScriptedEngine(lambda _: None)
    results: list[TierResult] = []
    tier = Tier(
        DETECTOR, ScriptedEngine(behave), BUDGET, collect(results), warm_up_runs=1, self_test_period_s=0.2,
        replace=lambda: second,
    )  # fmt: skip
    tier.start()
    said: list[str] = []
    watching = threading.Thread(
        target=lambda: [(said.append(tier.status().fault), time.sleep(0.02)) for _ in range(200)]
    )
    watching.start()
    try:
        feed(tier, 3.0)
        assert wait_until(lambda: tier.engine is second)
        watching.join()
        assert any("self_test: NaN in the output" in text for text in said)
        results.clear()
        feed(tier, 0.5)
        assert Origin.FRESH in {r.origin for r in results}
    finally:
        release.set()
        assert tier.stop()


def test_the_shipped_detector_passes_and_a_changed_one_does_not() -> None:
    """With the engine itself: objects that are gone, of another class or place, and doubts that were not there."""
    engine = load_engine(locate("triptych-detector"))
    test = SelfTest(DETECTOR, engine)
    assert test.run(3) == ""
    said = engine.infer([engine.golden()])
    payload = said.payload
    assert isinstance(payload, Detections) and payload.detections

    def of(*detections: Detection) -> str:
        return test.judge(replace(said, payload=replace(payload, detections=detections)))

    assert of(*payload.detections) == ""
    assert "golden" in of()
    assert "golden" in of(*(replace(d, class_id=3, label="traffic_light") for d in payload.detections))
    moved = [replace(d, x_min=d.x_min + 300, x_max=d.x_max + 300) for d in payload.detections]
    assert "another answer to the golden frame than at first: missed" in of(*moved)
    for share, fine in ((0.0099, True), (0.0101, False)):
        first, *others = payload.detections
        assert (of(replace(first, score=first.score - share), *others) == "") is fine


def test_an_engine_is_held_against_its_own_first_answer() -> None:
    """Another one, also another build of it, has another; what is wrong is never the first answer."""
    sizes = iter([8, 8, 9, 8])
    test = SelfTest(DETECTOR, ScriptedEngine(lambda _: Detections(next(sizes), 8)))
    assert [test.run() for _ in range(4)] == [
        "",
        "",
        "another answer to the golden frame than at first: size of the picture",
        "",
    ]
    wrong = ScriptedEngine(lambda _: Detections(8, 8), golden_problem="no object found")
    test = SelfTest(DETECTOR, wrong)
    assert test.run() == "no object found"
    wrong.golden_ok = lambda output: ""  # type: ignore[method-assign]
    assert test.run() == ""
