"""Carries letters from the outbox to the far end, one after the other, for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from triptych.remote.outbox import Outbox
from triptych.remote.queue import Backoff, Letter

IDLE_S = 3600.0


class DeliveryError(Exception):
    """The far end did not confirm the letter. The text holds no secret."""


class Refused(DeliveryError):
    """The far end answered that it does not want this letter; another one may do."""


class Notifier(Protocol):
    """A way to the far end."""

    name: str
    """For people: kind and host, no secret."""

    def send(self, letter: Letter) -> None:
        """Return when the far end has confirmed the letter, within a bounded time.

        Raises:
            DeliveryError: it has not.
        """

    def close(self) -> None:
        """Give up what is in progress and free everything. Any thread, safe to call twice."""


class Courier:
    """One delivery at a time, with back-off after a failure.

    Args:
        outbox: where letters come from.
        notifier: takes them there.
        backoff: how long to wait after a failure.
        clock_s: monotonic seconds.

    Attributes:
        delivered: how many.
        last_success_s, last_failure_s: monotonic; None before the first.
        last_error: why the last failed delivery failed; stays until the next success.
    """

    def __init__(self, outbox: Outbox, notifier: Notifier, backoff: Backoff, clock_s: Callable[[], float]) -> None:
        self._outbox, self._notifier, self._backoff, self._clock_s = outbox, notifier, backoff, clock_s
        self._not_before_s = float("-inf")
        self.delivered = 0
        self.last_success_s: float | None = None
        self.last_failure_s: float | None = None
        self.last_error = ""

    @property
    def failures(self) -> int:
        """In a row."""
        return self._backoff.failures

    def step(self) -> float:
        """Deliver the next letter if there is one and it is time; returns after how many seconds to come again.

        A letter put into the outbox meanwhile is a reason to come earlier.
        """
        left_s = self._not_before_s - self._clock_s()
        if left_s > 0.0:
            return left_s
        letter = self._outbox.head()
        if letter is None:
            return IDLE_S
        try:
            self._notifier.send(letter)
        except DeliveryError as error:
            if isinstance(error, Refused):
                self._outbox.refused(letter.number)
            self.last_error, self.last_failure_s = str(error), self._clock_s()
            wait_s = self._backoff.failed()
            self._not_before_s = self.last_failure_s + wait_s
            return wait_s
        self._outbox.delivered(letter.number)
        self._backoff.succeeded()
        self.delivered += 1
        self.last_error, self.last_success_s = "", self._clock_s()
        return 0.0
