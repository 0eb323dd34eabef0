"""A tier's memory after a thousand misfortunes is what it was."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from dataclasses import replace

import pytest
from test_core import EPOCH, MS, frame, output
from test_tier import BUDGET, ScriptedEngine

from memory import ROOM_BYTES, TIMES, left_bytes
from triptych.contract import BUDGETS, EngineError, Frame, Origin, Tier
from triptych.tiers import Tier as LiveTier
from triptych.tiers import TierCore


@pytest.mark.parametrize("tier", list(Tier))
def test_a_thousand_missed_deadlines_leave_nothing(tier: Tier) -> None:
    """V13: each inference ends after its deadline; each period has its fallback."""
    budget = BUDGETS[tier]
    core = TierCore(tier, budget, frames_wanted=1 if tier is Tier.DETECTOR else 2)
    core.start(0, EPOCH)
    period_ms, budget_ms = budget.period_s * 1e3, budget.budget_s * 1e3
    origins: list[int] = [0, 0, 0]

    def late(k: int) -> None:
        at_ms = (k + 1) * (period_ms + budget_ms)
        now_ns = round(at_ms * MS)
        core.offer(frame(at_ms, k), now_ns, EPOCH + now_ns)
        assert core.take(now_ns)
        due_ns = now_ns + round(budget_ms * MS)
        result = core.poll(due_ns, EPOCH + due_ns)
        assert result is not None and result.reason.startswith("timeout")
        origins[result.origin] += 1
        assert core.finish(output(tier), due_ns + MS, EPOCH + due_ns + MS) is None

    assert left_bytes(late) < ROOM_BYTES
    assert origins[Origin.FRESH] == 0 and core.counters().late > TIMES


def test_a_thousand_unusable_frames_leave_nothing() -> None:
    """Stamps from the future, from the past, and the same again, in turn, and damaged answers on what is left."""
    core = TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR])
    core.start(0, EPOCH)
    last = frame(0.0, 1)
    core.offer(last, 0, EPOCH)

    def damaged(k: int) -> None:
        now_ns = (k + 1) * 50 * MS
        good = frame((k + 1) * 50.0, k)
        for bad in (replace(good, stamp_ns=good.stamp_ns + 10**10), good, good, replace(good, stamp_ns=1)):
            core.offer(bad, now_ns, EPOCH + now_ns)
        if core.take(now_ns):
            core.finish(output(Tier.DETECTOR, uncertainty=float("nan")), now_ns + MS, EPOCH + now_ns + MS)
        core.note_picture((f"code_{k % 3}",), now_ns)
        core.fault(now_ns)

    assert left_bytes(damaged) < ROOM_BYTES
    assert core.counters().refused >= 2 * TIMES and core.counters().errors > TIMES


def test_a_thousand_exceptions_of_an_engine_leave_nothing() -> None:
    """The real threads. Each exception holds its frames, and with them the picture, as long as it is not forgotten."""
    picture = 512 * 512 * 3

    def fail(call: int) -> None:
        if call > 0:
            raise EngineError(f"call {call} failed", where="x" * 200)

    engine, reasons, offered = ScriptedEngine(fail), set[str](), threading.Event()
    tier = LiveTier(
        Tier.DETECTOR, engine, replace(BUDGET, period_s=0.002), lambda r: reasons.add(r.reason.split(",")[0])
    )
    tier.start()
    number, marks = 0, list[int]()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        end_s = time.monotonic() + 120
        for calls in (200, 200 + TIMES):
            while engine.calls < calls and time.monotonic() < end_s:
                number += 1
                now = time.time_ns()
                image = frame(0.0).image.repeat(16, 0).repeat(8, 1)
                image[0, 0] = number % 251, number // 251 % 251, 7
                tier.offer(Frame(image, now, number, received_ns=now))
                offered.wait(0.001)
            engine.questions.clear()
            gc.collect()
            marks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
        tier.stop()
    assert engine.calls >= 200 + TIMES and "engine_error" in reasons
    assert marks[1] - marks[0] < ROOM_BYTES + 4 * picture, "a few pictures may be on their way"
