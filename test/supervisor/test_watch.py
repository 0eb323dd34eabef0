"""Rows are looked at when they can have changed, and no more often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from supervisor_rig import MS, row

from triptych.contract import VerdictLevel
from triptych.supervisor.faults import FaultLife
from triptych.supervisor.watch import Watched

TICK_NS = 10 * MS


class Rows:
    """A count and a duration of one source, whose values can be set and whose looks are counted."""

    def __init__(self, **changes: object) -> None:
        self.count: float | None = 0.0
        self.looks = {"lost_n": 0, "gap_s": 0}
        self.resting = FaultLife(row(metric="lost_n", comparison=">=", **changes))
        self.growing = FaultLife(row(metric="gap_s"))
        self.watched = Watched([(self.resting, self._metric("lost_n")), (self.growing, self._metric("gap_s"))])
        self.now_ns = 0

    def _metric(self, name: str) -> Callable[[int], float | None]:
        def metric(now_ns: int) -> float | None:
            assert now_ns == self.now_ns
            self.looks[name] += 1
            return self.count if name == "lost_n" else 0.0

        return metric

    def tick(self, hold: bool = False) -> list[FaultLife]:
        """One look, and the time until the next."""
        changes = self.watched.look(self.now_ns, TICK_NS, hold)
        self.now_ns += TICK_NS
        return changes


@pytest.mark.parametrize("count", [0.0, None])
def test_a_steady_row_rests_until_there_is_news(count: float | None) -> None:
    """Durations are looked at every time. An unknown metric stays unknown until somebody speaks."""
    rows = Rows()
    rows.count = count
    for _ in range(5):
        assert rows.tick() == []
    assert rows.looks == {"lost_n": 1, "gap_s": 5}
    rows.watched.news = True
    rows.tick()
    rows.tick()
    assert rows.looks == {"lost_n": 2, "gap_s": 7}


def test_a_row_that_is_not_steady_is_followed_to_its_end() -> None:
    """Debounce, activity and clearing need time, with or without messages."""
    rows = Rows(debounce_s=0.03, clear_s=0.02)
    rows.count = 1.0
    assert [bool(rows.tick()) for _ in range(4)] == [False, False, False, True]
    assert rows.resting.active
    rows.count = 0.0
    assert [bool(rows.tick()) for _ in range(3)] == [False, False, True]
    assert not rows.resting.active
    looks = rows.looks["lost_n"]
    rows.tick()
    assert rows.looks["lost_n"] == looks


def test_what_is_left_of_a_debounce_is_followed() -> None:
    """A fault that flaps keeps part of its charge; it leaks away in time, not in messages."""
    rows = Rows(debounce_s=1.0)
    rows.count = 1.0
    rows.tick()
    rows.count = 0.0
    rows.tick()
    assert rows.resting.level is VerdictLevel.OK and not rows.resting.steady
    looks = rows.looks["lost_n"]
    rows.tick()
    rows.tick()
    assert rows.resting.steady and rows.looks["lost_n"] == looks + 2


def test_a_latch_holds_until_reset() -> None:
    """The hold is handed to every row."""
    rows = Rows(latch=True)
    rows.count = 1.0
    assert rows.tick() == [rows.resting]
    rows.count = 0.0
    assert not any(rows.tick(hold=True) for _ in range(3))
    assert rows.tick() == [rows.resting]


def test_a_report_knows_values_that_have_fallen_since() -> None:
    """Windows empty themselves; a row with news is left to the next look."""
    rows = Rows(threshold=3.0)
    rows.count = 2.0
    rows.tick()
    rows.count = 1.0
    rows.watched.refresh(rows.now_ns)
    assert rows.resting.value == 1.0
    rows.watched.news = True
    rows.count = 9.0
    rows.watched.refresh(rows.now_ns)
    assert rows.resting.value == 1.0
