"""The safety property of PROPERTIES.md that concerns the self-test while driving."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triptych.contract import BUDGETS, Detections, Frame, Origin, Tier
from triptych.engines.protocol import EngineOutput
from triptych.tiers import TierCore
from triptych.tiers.core import TRUST_AGAIN

MS = 1_000_000
EPOCH_NS = 1_700_000_000 * 10**9
DETECTOR = Tier.DETECTOR
TOOK_MS = 9
PERIOD_MS = 300


@given(st.lists(st.integers(26, 50), min_size=40, max_size=80), st.lists(st.booleans(), min_size=20, max_size=20))
def test_p47_a_self_test_costs_no_frame_its_deadline_and_hides_nothing(gaps_ms: list[int], wrong: list[bool]) -> None:
    """Frames at any times, a millisecond at a time; the engine takes 9 ms for each thing it does."""
    core = TierCore(DETECTOR, BUDGETS[DETECTOR], self_test_period_s=PERIOD_MS / 1e3)
    core.start(0, EPOCH_NS)
    rng = np.random.default_rng(1)
    arrivals = list(np.cumsum(gaps_ms) + 20)
    doing, until_ms, tests, tested_ms = "", 0, 0, 0
    expected, right = "", 0
    for now_ms in range(int(arrivals[-1]) + 40):
        now_ns, stamp_ns = now_ms * MS, EPOCH_NS + now_ms * MS
        results = [core.poll(now_ns, stamp_ns)]
        if doing and now_ms >= until_ms:
            if doing == "job":
                results.append(core.finish(EngineOutput(Detections(8, 8), 0.1, 0, 0, 0), now_ns, stamp_ns))
                doing = ""
                if core.take_self_test(now_ns):
                    assert tests == 0 or now_ms - tested_ms >= PERIOD_MS
                    doing, until_ms, tests, tested_ms = "test", now_ms + TOOK_MS, tests + 1, now_ms
            else:
                right = 0 if wrong[tests % len(wrong)] else right + 1
                core.finish_self_test("" if right else "blind")
                expected = "" if right >= TRUST_AGAIN else expected if right else "self_test: blind"
                doing = ""
        if arrivals and now_ms >= arrivals[0]:
            arrivals.pop(0)
            picture = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            assert core.offer(Frame(picture, stamp_ns, now_ms, received_ns=stamp_ns), now_ns, stamp_ns) == ""
        if not doing and core.take(now_ns) is not None:
            doing, until_ms = "job", now_ms + TOOK_MS
        assert all(result is None or result.origin is Origin.FRESH for result in results if arrivals)
        assert core.fault(now_ns) == expected
        assert now_ms - tested_ms <= PERIOD_MS + 50 + 2 * TOOK_MS, "a self-test comes with the next frame"
    assert tests >= 3
