"""Time as a dependency: the system's clocks on the vehicle, a virtual clock in lockstep and tests.

Deadlines run on the monotonic clock; ages on the clock of source stamps. A jump of the difference of
the two is a clock step.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings, both int nanoseconds."""

    def monotonic_ns(self) -> int:
        """Never steps; origin unspecified."""

    def stamp_ns(self) -> int:
        """Clock of source stamps (UNIX epoch on a vehicle); may be stepped from outside."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def stamp_ns(self) -> int:
        return time.time_ns()


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_stamp_ns: int = 0) -> None:
        self._monotonic_ns = 0
        self._offset_ns = start_stamp_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def stamp_ns(self) -> int:
        return self._monotonic_ns + self._offset_ns

    def advance_to(self, monotonic_ns: int) -> None:
        """Move forward; a time in the past leaves the clock where it is."""
        self._monotonic_ns = max(self._monotonic_ns, monotonic_ns)

    def step(self, step_ns: int) -> None:
        """Shift the stamp clock alone, as an NTP step would."""
        self._offset_ns += step_ns


class StepDetector:
    """Detects steps of the stamp clock against the monotonic clock.

    Args:
        tolerance_s: largest change of (stamp - monotonic) between two readings that counts as drift.
    """

    def __init__(self, tolerance_s: float = 0.05) -> None:
        self._tolerance_ns = int(tolerance_s * 1e9)
        self._offset_ns: int | None = None

    def update(self, clock: Clock) -> float:
        """Return the size of a step since the last call in seconds, 0.0 if there was none."""
        offset = clock.stamp_ns() - clock.monotonic_ns()
        previous, self._offset_ns = self._offset_ns, offset
        if previous is None or abs(offset - previous) <= self._tolerance_ns:
            return 0.0
        return (offset - previous) / 1e9
