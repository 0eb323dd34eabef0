"""Which message goes next, which has to go when there is no room, and how long to wait after a failure. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from triptych.contract import ConfigError
from triptych.contract.terms import DegradationState

MIN_LIMIT = 4
REFUSALS = 5
"""A routine message that the far end refused this often is given up."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that waits.

    Attributes:
        number: its sequence number; ascends.
        event_id: letters of one event are delivered in their order.
        state: name of the state it tells of.
        urgent: first word of a state of which the centre has to be told; the others are routine.
        body: what is sent.
    """

    number: int
    event_id: str
    state: str
    urgent: bool
    body: str

    @property
    def of_mrc(self) -> bool:
        """Whether it is the first word of a minimal risk condition."""
        return self.urgent and self.state == DegradationState.MRC.name


class Queue:
    """Letters in the order of delivery, at most ``limit``.

    The oldest routine letters make room first, then the oldest urgent ones; the newest of a minimal risk condition
    never.

    Args:
        limit: at least 4.
        letters: that wait already.

    Raises:
        ConfigError: a smaller limit.
    """

    def __init__(self, limit: int, letters: Iterable[Letter] = ()) -> None:
        if limit < MIN_LIMIT:
            raise ConfigError(f"must be at least {MIN_LIMIT}", field="queue_limit", value=limit)
        self._limit = limit
        self._letters: list[Letter] = []
        self._refusals: dict[int, int] = {}
        for letter in letters:
            self.offer(letter)

    def __len__(self) -> int:
        return len(self._letters)

    @property
    def letters(self) -> tuple[Letter, ...]:
        """In the order of delivery."""
        return tuple(self._letters)

    def head(self) -> Letter | None:
        """The one to deliver next."""
        return self._letters[0] if self._letters else None

    def offer(self, letter: Letter) -> list[Letter]:
        """Take a letter in; returns those that had to make room, perhaps the new one."""
        self._letters.append(letter)
        gone = []
        while len(self._letters) > self._limit:
            gone.append(self._victim())
            self.remove(gone[-1].number)
        return gone

    def _victim(self) -> Letter:
        by_age = sorted(self._letters, key=lambda letter: letter.number)
        spared = next((letter for letter in reversed(by_age) if letter.of_mrc), None)
        return min((x for x in by_age if x is not spared), key=lambda letter: (letter.urgent, letter.number))

    def remove(self, number: int) -> bool:
        """Take a letter out, delivered or given up; False if it is not there (any more)."""
        left = [letter for letter in self._letters if letter.number != number]
        found = len(left) < len(self._letters)
        self._letters = left
        self._refusals.pop(number, None)
        return found

    def refuse(self, number: int) -> bool:
        """The far end does not want this letter: let the others pass it, with the rest of its event behind it.

        Returns whether it is given up and removed: a routine letter that was refused too often.
        """
        letter = next((x for x in self._letters if x.number == number), None)
        if letter is None:
            return False
        self._refusals[number] = self._refusals.get(number, 0) + 1
        if not letter.urgent and self._refusals[number] >= REFUSALS:
            return self.remove(number)
        others = [x for x in self._letters if x.event_id != letter.event_id]
        self._letters = others + [x for x in self._letters if x.event_id == letter.event_id]
        return False


class Backoff:
    """Waits that grow twofold with each failure in a row, up to a greatest, each drawn from its upper half.

    Random ("equal jitter"), so that a fleet that lost its connection does not come back at one moment.

    Args:
        first_s, greatest_s: bounds of the wait before jitter.
        rng: of the jitter.

    Raises:
        ConfigError: bounds that are not 0 < first_s <= greatest_s.
    """

    def __init__(self, first_s: float, greatest_s: float, rng: random.Random | None = None) -> None:
        if not 0.0 < first_s <= greatest_s:
            raise ConfigError("must be above 0 and not above retry_max_s", field="retry_first_s", value=first_s)
        self._first_s, self._greatest_s, self._rng = first_s, greatest_s, rng or random.Random()
        self.failures = 0

    def failed(self) -> float:
        """One more failure: seconds to wait."""
        wait_s = min(self._greatest_s, self._first_s * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return wait_s * self._rng.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self.failures = 0
