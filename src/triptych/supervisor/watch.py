"""Which rows of the fault table a tick has to look at."""

from __future__ import annotations

from triptych.supervisor.content import Metric
from triptych.supervisor.faults import FaultLife


class Watched:
    """The rows of one input, and which of them a tick has to look at.

    Durations grow by themselves and are looked at in every tick. All other metrics only fall between two messages of
    their source, so that a row which is steady stays so until there is news: looking earlier would find the same.

    Attributes:
        rows: of this source, in the table's order.
        news: a message has come since the last look, or a row is not steady.
    """

    __slots__ = ("_growing", "_resting", "news", "rows")

    def __init__(self, rows: list[tuple[FaultLife, Metric]]) -> None:
        self.rows = tuple(rows)
        self.news = True
        self._growing = tuple(pair for pair in rows if pair[0].row.metric.endswith("_s"))
        self._resting = tuple(pair for pair in rows if pair not in self._growing)

    def look(self, now_ns: int, since_ns: int, hold: bool) -> list[FaultLife]:
        """Have the rows judge; returns those that became active or ended. Arguments as :meth:`FaultLife.update`."""
        rows = self.rows if self.news else self._growing
        changes = [life for life, metric in rows if life.update(metric(now_ns), since_ns, hold)]
        if self.news:
            self.news = not all(life.steady for life, _ in self._resting)
        return changes

    def refresh(self, now_ns: int) -> None:
        """Bring the values of rows that were not looked at up to date, for a report."""
        if not self.news:
            for life, metric in self._resting:
                life.value = metric(now_ns)
