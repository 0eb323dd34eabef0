"""The queue on disk: what was put in is there after kill -9, until it was delivered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.remote.journal import Journal
from triptych.remote.queue import Letter, Queue
from triptych.remote.reporter import Event, Report

DEAD_LINES = 256
"""The file is written anew when so many of its lines say nothing any more."""


class Outbox:
    """A :class:`Queue` whose changes are written to a :class:`Journal` before they count. Usable from any thread.

    Where the disk fails, the queue goes on in memory, says so in ``disk_error``, and writes itself down in whole with
    the next change.

    Args:
        path: of the journal.
        limit: letters that may wait.
        vehicle_id: of every message.

    Attributes:
        disk_error: why the file is behind; empty when it is not.
        dropped: letters that made room or were given up.

    Raises:
        ConfigError: the file cannot be used, or the limit is too small.
    """

    def __init__(self, path: Path, limit: int, vehicle_id: str) -> None:
        self._lock = threading.RLock()
        self._vehicle_id = vehicle_id
        self._queue = Queue(limit)
        self._journal = Journal(path)
        self._next, self._lines, self._closed = 1, 0, False
        self.last_event: Event | None = None
        self.disk_error, self.dropped = "", 0
        for entry in self._journal.read():
            try:
                self._replay(entry)
            except (KeyError, TypeError, ValueError, AttributeError):  # whole, but of another version
                self._journal.damaged += 1
        self._rewrite()

    def _replay(self, entry: dict[str, Any]) -> None:
        if "next" in entry:
            self._next = max(self._next, int(entry["next"]))
        if entry.get("event"):
            self.last_event = Event(**{**entry["event"], "faults": tuple(entry["event"]["faults"])})
        if "letter" in entry:
            letter = Letter(**entry["letter"])
            self._next = max(self._next, letter.number + 1)
            self._queue.offer(letter)
        for number in entry.get("gone", ()):
            self._queue.remove(number)

    def _snapshot(self) -> Iterator[dict[str, Any]]:
        yield {"next": self._next, "event": asdict(self.last_event) if self.last_event else None}
        for letter in sorted(self._queue.letters, key=lambda letter: letter.number):
            yield {"letter": asdict(letter)}

    def _rewrite(self) -> None:
        try:
            self._journal.replace(self._snapshot())
            self._lines, self.disk_error = 0, ""
        except OSError as error:
            self.disk_error = f"{self._journal.path}: {error.strerror}"

    def _write(self, entry: dict[str, Any]) -> None:
        if self._closed:  # a delivery ended late: the file may be another process's by now
            return
        self._lines += 1
        if self.disk_error or self._lines > DEAD_LINES + len(self._queue):
            self._rewrite()
            return
        try:
            self._journal.append([entry])
        except OSError as error:
            self.disk_error = f"{self._journal.path}: {error.strerror}"
            self._rewrite()

    @property
    def damaged(self) -> int:
        """Lines of the file that could not be read at the start."""
        return self._journal.damaged

    def __len__(self) -> int:
        with self._lock:
            return len(self._queue)

    @property
    def letters(self) -> tuple[Letter, ...]:
        """That wait, in the order of delivery."""
        with self._lock:
            return self._queue.letters

    def head(self) -> Letter | None:
        """The one to deliver next; it stays until :meth:`delivered`."""
        with self._lock:
            return self._queue.head()

    def put(self, report: Report) -> Letter:
        """Number a report and keep it: on disk when this returns, unless ``disk_error`` says otherwise."""
        with self._lock:
            number = self._next
            self._next += 1
            body = report.notification(self._vehicle_id, number).body()
            letter = Letter(number, report.event.event_id, report.event.state, report.urgent, body)
            gone = self._queue.offer(letter)
            self.dropped += len(gone)
            self.last_event = report.event
            # A letter that makes room comes back if the file says so only in a torn line: the queue is bounded anyway.
            self._write({"letter": asdict(letter), "event": asdict(report.event), "gone": [x.number for x in gone]})
            return letter

    def delivered(self, number: int) -> None:
        """The far end has it."""
        with self._lock:
            if self._queue.remove(number):
                self._write({"gone": [number]})

    def refused(self, number: int) -> None:
        """The far end does not want it: others go first, see :meth:`Queue.refuse`."""
        with self._lock:
            if self._queue.refuse(number):
                self.dropped += 1
                self._write({"gone": [number]})

    def close(self) -> None:
        """Give the file back; what happens later is not written down. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._journal.close()
