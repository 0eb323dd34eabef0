"""What every run on a virtual clock is made of: a queue of events, the times that are modelled, a tier at an engine."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from triptych.contract import Budget, Frame, Tier
from triptych.engines.protocol import Engine, EngineOutput
from triptych.tiers.core import TierCore

CAMERA_TRANSPORT_NS = 5_000_000
"""Stamp to tier: the median measured for 1280x720 frames between two processes with the shipped DDS profile."""
MESSAGE_TRANSPORT_NS = 1_000_000
"""Small messages between two processes."""
STATUS_PERIOD_NS = 100_000_000
NOMINAL_MS: Mapping[Tier, float] = {Tier.DETECTOR: 10.0, Tier.DISTILLED: 80.0, Tier.FULL: 800.0}
"""Modelled inference time of an engine that does not say: well within the budgets, as a sound engine is."""


@dataclass(order=True, slots=True)
class _Event:
    at_ns: int
    rank: int
    sequence: int
    action: Callable[[], None] = field(compare=False)


class Events:
    """What is to happen, in order of time, then rank, then of being asked for."""

    def __init__(self) -> None:
        self._heap: list[_Event] = []
        self._sequence = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_ns(self) -> int:
        """Time of the next one; there must be one."""
        return self._heap[0].at_ns

    def at(self, at_ns: int, rank: int, action: Callable[[], None]) -> None:
        """Have something happen."""
        self._sequence += 1
        heapq.heappush(self._heap, _Event(at_ns, rank, self._sequence, action))

    def run_due(self, now_ns: int) -> None:
        """Let happen what is due, and what becomes due by it."""
        while self._heap and self._heap[0].at_ns <= now_ns:
            heapq.heappop(self._heap).action()


def modelled_ms(tier: Tier, engine: Engine, override: Mapping[Tier, float]) -> float:
    """The time one inference takes on the virtual clock, milliseconds."""
    if tier in override:
        return float(override[tier])
    latency = getattr(getattr(engine, "manifest", None), "latency", None)
    return float(getattr(latency, "nominal_ms", NOMINAL_MS[tier]))


def tier_core(tier: Tier, engine: Engine, budget: Budget, self_test_period_s: float = 0.0) -> TierCore:
    """A tier as its node makes it."""
    return TierCore(
        tier,
        budget,
        engine_id=engine.id,
        engine_version=engine.version,
        device=engine.device.actual,
        frames_wanted=engine.frames_wanted,
        self_test_period_s=self_test_period_s,
    )


def infer(engine: Engine, frames: list[Frame], question: str, infer_ns: int) -> EngineOutput | BaseException:
    """Run an engine for real; its times are the modelled ones."""
    try:
        # Without a deadline: a decoder that stops early when this machine is slow would not be deterministic.
        output = engine.infer(frames, question, None)
    except Exception as error:  # as in the running tier: an engine's bug becomes a fallback, not a crash
        return error
    return dataclasses.replace(output, pre_ms=0.0, infer_ms=infer_ns / 1e6, post_ms=0.0)
