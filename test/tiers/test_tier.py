"""The live tier with engines that behave badly on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from triptych.contract import (
    Budget,
    Detections,
    EngineError,
    Frame,
    Origin,
    Payload,
    SceneAdvice,
    TierResult,
    TierState,
    crc_ok,
)
from triptych.contract import Tier as TierName
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.tiers import Tier
from triptych.tiers.monitors import InputConfig, InputWatch
from triptych.tiers.monitors.picture import Image

BUDGET = Budget(budget_s=0.1, keep_s=0.4, period_s=0.1)


class ScriptedEngine:
    """An engine whose duration and outcome follow a function of the call's number (golden runs are numbers < 0)."""

    id, version, frames_wanted = "scripted", "1.0", 1

    def __init__(self, behaviour: Callable[[int], Payload | None], golden_problem: str = "") -> None:
        self.device = DeviceReport("cpu", "cpu", "none")
        self._behaviour, self._golden_problem = behaviour, golden_problem
        self.calls = 0
        self.golden_runs = 0
        self.questions: list[str] = []

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        if frames[-1].number == -1:
            self.golden_runs += 1
            payload = self._behaviour(-self.golden_runs)
        else:
            self.questions.append(question)
            self.calls += 1
            payload = self._behaviour(self.calls)
        return EngineOutput(payload or Detections(8, 8), 0.1, 0.1, 0.1, 0.1)

    def golden(self) -> Frame:
        return Frame(np.zeros((8, 8, 3), np.uint8), 0, -1)

    def golden_ok(self, output: EngineOutput) -> str:
        return self._golden_problem

    def close(self) -> None:
        pass


def collect(results: list[TierResult], seen: threading.Event | None = None) -> Callable[[TierResult], None]:
    def emit(result: TierResult) -> None:
        results.append(result)
        if seen:
            seen.set()

    return emit


def feed(tier: Tier, seconds: float, rate_hz: float = 20.0) -> None:
    end = time.monotonic() + seconds
    number = 0
    rng = np.random.default_rng(3)
    while time.monotonic() < end:
        number += 1
        now = time.time_ns()
        tier.offer(Frame(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8), now, number, received_ns=now))
        time.sleep(1 / rate_hz)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_warm_up_before_active_and_fresh_results_after() -> None:
    """V11: ACTIVE only after warm-up runs through the whole engine."""
    engine = ScriptedEngine(lambda _: None)
    results: list[TierResult] = []
    tier = Tier(TierName.DETECTOR, engine, BUDGET, collect(results), warm_up_runs=4)
    assert tier.state is TierState.LOADED and not tier.status().healthy
    tier.start()
    assert tier.state is TierState.ACTIVE and engine.golden_runs == 4
    feed(tier, 0.6)
    status = tier.status()
    assert tier.stop() and tier.state is TierState.LOADED
    assert {r.origin for r in results} == {Origin.FRESH} and len(results) >= 4
    assert all(crc_ok(r) and r.engine_id == "scripted" and r.device == "cpu" for r in results)
    assert status.healthy and status.results_fresh >= 4 and crc_ok(status)


@pytest.mark.parametrize(
    "engine",
    [
        ScriptedEngine(lambda _: None, golden_problem="no object found"),
        ScriptedEngine(lambda _: 1 / 0),  # type: ignore[arg-type,return-value]
        ScriptedEngine(lambda _: SceneAdvice()),
    ],
    ids=["wrong-answer", "raises", "wrong-payload"],
)
def test_activation_is_refused_when_the_golden_frame_fails(engine: ScriptedEngine) -> None:
    """A5, A14: nothing on the golden frame, or an exception, means that the tier does not become ACTIVE."""
    results: list[TierResult] = []
    tier = Tier(TierName.DETECTOR, engine, BUDGET, collect(results))
    with pytest.raises(EngineError, match=r"scripted.*self-test failed"):
        tier.start()
    status = tier.status()
    assert (status.state, status.healthy) == (TierState.ERROR, False) and "self-test failed" in status.fault
    assert results == [] and tier.stop()


def test_self_test_that_never_ends() -> None:
    """A7: an engine that hangs on its first frame."""
    release = threading.Event()
    engine = ScriptedEngine(lambda _: release.wait(30) and None)  # type: ignore[arg-type,return-value]
    tier = Tier(TierName.DETECTOR, engine, BUDGET, collect([]), self_test_timeout_s=0.2)
    with pytest.raises(EngineError, match="did not end"):
        tier.start()
    began = time.monotonic()
    assert not tier.stop(0.2)
    assert time.monotonic() - began < 1.0
    assert tier.state is TierState.ERROR
    release.set()


def test_hung_engine_is_reported_answered_and_survived() -> None:
    """A7: results keep coming as LAST_FRAME then DEFAULT with reason timeout; the next request works."""
    release = threading.Event()
    engine = ScriptedEngine(lambda n: release.wait(30) and None if n == 3 else None)  # type: ignore[arg-type,return-value]
    results: list[TierResult] = []
    tier = Tier(TierName.DETECTOR, engine, BUDGET, collect(results))
    tier.start()
    feed(tier, 1.6)
    hung = [r for r in results if r.origin is not Origin.FRESH]
    assert [r.reason for r in hung[:2]] == ["timeout", "timeout"]
    assert hung[0].origin is Origin.LAST_FRAME and hung[-1].origin is Origin.DEFAULT and len(hung) >= 8
    assert tier.status().fault == "engine_hung"
    release.set()
    feed(tier, 0.5)
    assert results[-1].origin is Origin.FRESH and tier.status().healthy
    assert tier.stop()


def test_hung_engine_is_replaced() -> None:
    """A7: with a way to load the engine again, a hang for ever ends in service, not in a dead tier."""
    release = threading.Event()
    first = ScriptedEngine(lambda n: release.wait(60) and None if n == 2 else None)  # type: ignore[arg-type,return-value]
    second = ScriptedEngine(lambda _: None)
    results: list[TierResult] = []
    tier = Tier(TierName.DETECTOR, first, BUDGET, collect(results), replace=lambda: second)
    tier.start()
    feed(tier, 2.0)
    assert second.calls > 0 and results[-1].origin is Origin.FRESH
    before = len(results)
    release.set()  # the old engine's late answer belongs to nobody
    feed(tier, 0.3)
    assert tier.status().healthy and first.calls == 2 and len(results) > before
    assert tier.stop()


def test_engine_error_is_typed_and_the_tier_goes_on() -> None:
    def behaviour(number: int) -> None:
        if number in (2, 3):
            raise EngineError("output holds NaN", where="engine scripted")

    results: list[TierResult] = []
    tier = Tier(TierName.DETECTOR, ScriptedEngine(behaviour), BUDGET, collect(results))
    tier.start()
    feed(tier, 0.7)
    assert tier.stop()
    reasons = [r.reason for r in results]
    assert reasons.count("engine_error") == 2 and results[-1].origin is Origin.FRESH


def test_no_frames_still_gives_results_and_a_failing_publisher_is_reported() -> None:
    calls: list[int] = []

    def emit(result: TierResult) -> None:
        calls.append(result.sequence_counter)
        if len(calls) < 3:
            raise RuntimeError("context is shut down")

    tier = Tier(TierName.DETECTOR, ScriptedEngine(lambda _: None), BUDGET, emit)
    tier.start()
    assert wait_until(lambda: "publish_error" in tier.status().fault, 5)
    assert wait_until(lambda: len(calls) >= 4)
    assert tier.status().fault == ""
    assert tier.stop()
    seen = len(calls)
    time.sleep(0.3)
    assert len(calls) == seen, "a stopped tier is quiet"


def test_pictures_are_looked_at_after_their_result_is_out() -> None:
    """V10: a blank camera is reported, by name, while results go on; looking never delays one."""
    order: list[str] = []

    class Watch(InputWatch):
        def look(self, image: Image) -> tuple[str, ...]:
            order.append("look")
            return super().look(image)

    engine = ScriptedEngine(lambda call: None)
    watch = Watch(InputConfig(input_frames=2))
    tier = Tier(TierName.DETECTOR, engine, BUDGET, lambda r: order.append(r.origin.name), watch=watch)
    tier.start()
    try:
        for number in range(1, 200):
            now = time.time_ns()
            image = np.full((48, 64, 3), number % 7, np.uint8)  # black, but not frozen
            tier.offer(Frame(image, now, number, received_ns=now))
            time.sleep(0.02)
            if "dark_picture" in tier.status().fault:
                break
        status = tier.status()
        assert "dark_picture" in status.fault and not status.healthy
        assert order.index("FRESH") < order.index("look")
    finally:
        tier.stop()


def test_question_reaches_the_engine_and_restart_works() -> None:
    engine = ScriptedEngine(lambda _: SceneAdvice())
    results: list[TierResult] = []
    tier = Tier(TierName.FULL, engine, BUDGET, collect(results))
    assert tier.offer(Frame(np.zeros((8, 8, 3), np.uint8), 1, 1)) == "not_active"
    for _ in range(2):
        tier.start()
        with pytest.raises(EngineError, match="already"):
            tier.start()
        tier.set_question("is the road wet?")
        feed(tier, 0.4)
        assert tier.stop()
    assert set(engine.questions) == {"is the road wet?"}


def test_threads_are_set_up_and_end() -> None:
    names: list[str] = []
    tier = Tier(TierName.DETECTOR, ScriptedEngine(lambda _: None), BUDGET, collect([]), thread_setup=names.append)
    tier.start()
    assert wait_until(lambda: sorted(names) == ["deadline", "infer"])
    assert tier.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("detector-")]
