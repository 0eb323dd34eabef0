"""When the supervisor's loop looks again: seldom while a result is fresh, just past each limit when the next is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triptych.nodes.supervisor_node import CALM_NS, WATCHED_NS, until_next_ns
from triptych.resources import resource
from triptych.supervisor import SupervisorConfig, load_faults

MS = 1_000_000
PERIOD_NS = round(SupervisorConfig().tick_period_s * 1e9)
LIMITS_NS = sorted(
    round(row.threshold * 1e9)
    for row in load_faults(resource("config", "faults.yaml"))
    if (row.source, row.metric) == ("detector", "gap_s")
)


def ticks(first_ns: int, late_ns: list[int], until_ns: int = 200 * MS) -> list[int]:
    """Silence at each tick, from one that came ``first_ns`` after the last result; each wakes up a little late."""
    times, k = [first_ns], 0
    while times[-1] < until_ns:
        times.append(times[-1] + until_next_ns(times[-1], PERIOD_NS) + late_ns[k % len(late_ns)])
        k += 1
    return times


def test_there_are_limits_to_be_seen() -> None:
    assert len(LIMITS_NS) >= 2 and max(LIMITS_NS) < 200 * MS


@given(
    first_ns=st.integers(0, 25 * MS),
    late_ns=st.lists(st.integers(0, 3 * MS), min_size=1, max_size=20),
)
def test_each_limit_on_silence_is_seen_at_once(first_ns: int, late_ns: list[int]) -> None:
    """A tick falls just past each limit, whenever the loop began to wait and however late it woke before."""
    times = ticks(first_ns, late_ns)
    for limit_ns in LIMITS_NS:
        assert any(limit_ns < t <= limit_ns + MS // 2 + max(late_ns) for t in times), (limit_ns, times)


@given(first_ns=st.integers(0, 25 * MS))
def test_a_fresh_result_is_given_time(first_ns: int) -> None:
    assert len([t for t in ticks(first_ns, [0]) if t < CALM_NS]) <= 3


def test_an_old_loss_is_looked_at_seldom() -> None:
    assert until_next_ns(WATCHED_NS - 1, PERIOD_NS) <= PERIOD_NS + MS
    assert until_next_ns(WATCHED_NS, PERIOD_NS) == until_next_ns(60 * WATCHED_NS, PERIOD_NS) > 2 * PERIOD_NS


@given(silence_ns=st.integers(0, 10**12), period_ns=st.integers(MS, 50 * MS))
def test_the_loop_always_sleeps_and_never_long(silence_ns: int, period_ns: int) -> None:
    assert 0 < until_next_ns(silence_ns, period_ns) <= max(CALM_NS, 2.5 * period_ns) + MS
