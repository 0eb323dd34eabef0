"""When to publish what of a recording: pure pacing, with the times handed in. The replay node does the publishing.

Restamping. A recording is played as if it happened now: an item is due ``(its time - first time) / rate`` after the
start, and what is published carries the stamp clock's reading at the moment of publication, as a camera driver would
set it. So neither the age of the recording nor a replay that lags behind makes the data stale. Two faults are kept
because they are in the recording: a frame that repeats the stamp of the one before repeats the new stamp too, and a
stamp behind its topic's order stays as far behind. When several items of a kind have become due only the newest is
published: after a pause of the machine there is no burst, and no two frames get the same stamp.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from triptych.contract import DriverState, Frame, InputError, Odometry
from triptych.replay.messages import NS, restamped_driver
from triptych.replay.recording import Item, Recording, check_range
from triptych.replay.synthesis import with_synthesised

MIN_RATE, MAX_RATE = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to play.

    Attributes:
        rate: speed of play, 1 is real time.
        start_s: seconds of the recording to leave out at the beginning.
        duration_s: seconds of the recording to play; None: to the end.
        loop: begin again at the end, for ever.

    Raises:
        InputError: a value out of range.
    """

    rate: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    loop: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and MIN_RATE <= self.rate <= MAX_RATE):
            raise InputError(
                f"must be {MIN_RATE:g}..{MAX_RATE:g}", field="rate", value=self.rate, remedy="1 plays in real time"
            )
        check_range(self.start_s, self.duration_s)


@dataclass(frozen=True, slots=True)
class Due:
    """An item and when it is due, in nanoseconds after the start of play."""

    after_ns: int
    item: Item


def schedule(recording: Recording, options: Options) -> Iterator[Due]:
    """The items of a recording, with what it lacks made up, in order of their due time. Endless with ``loop``.

    Raises:
        InputError: nothing lies between ``start_s`` and the end, or a message cannot be used.
    """
    offset_ns, number = 0, 0
    while True:
        first_ns: int | None = None
        last_ns, gap_ns, frames = 0, 0, 0
        items = with_synthesised(recording.items(options.start_s, options.duration_s), recording.missing)
        for item in items:
            first_ns = item.t_ns if first_ns is None else first_ns
            if isinstance(item.value, Frame):
                number, frames = number + 1, frames + 1
                gap_ns = item.t_ns - last_ns if frames > 1 and item.t_ns > last_ns else gap_ns
                last_ns = item.t_ns
                item = Item(item.t_ns, dataclasses.replace(item.value, number=number))
            yield Due(round((offset_ns + item.t_ns - first_ns) / options.rate), item)
        if first_ns is None or not frames:
            raise InputError(
                "leaves no camera frame to play",
                where=recording.path,
                field="start",
                value=options.start_s,
                remedy=f"the recording is {recording.info.duration_s:.1f} s long",
            )
        if not options.loop:
            return
        # The seam is one more frame distance, so that the last frame is not followed at once by the first.
        offset_ns += last_ns - first_ns + (gap_ns or NS // 10)


class Player:
    """Hands out what is to be published, with its new stamps.

    Call :meth:`next_due_ns` to know how long to sleep, :meth:`take` to get what is due and, at the moment of
    publication, :meth:`restamped`. Times are monotonic nanoseconds; the first call of either starts the play.

    Args:
        prefetch: items read ahead by a thread, so that decoding a picture delays no other; 0: none, for tests.

    Attributes:
        skipped: items left out because play lagged behind.
        position_ns: how far play has come.
    """

    def __init__(self, recording: Recording, options: Options, prefetch: int = 0) -> None:
        items = schedule(recording, options)
        self._prefetch = Prefetch(items, prefetch) if prefetch else None
        self._schedule: Iterator[Due] = self._prefetch or items
        self._next: Due | None = next(self._schedule)
        self._rate = options.rate
        self._start_ns: int | None = None
        self._stamps: dict[type, tuple[int, int]] = {}  # kind -> (recorded, published) stamp of the last item
        self.skipped = 0
        self.position_ns = 0

    @property
    def finished(self) -> bool:
        """Whether everything has been handed out."""
        return self._next is None

    def next_due_ns(self, now_ns: int) -> int | None:
        """Monotonic time at which the next item is due; None when finished."""
        start_ns = self._started(now_ns)
        return None if self._next is None else start_ns + self._next.after_ns

    def _started(self, now_ns: int) -> int:
        if self._start_ns is None:
            self._start_ns = now_ns
        return self._start_ns

    def take(self, now_ns: int) -> list[Item]:
        """Everything due by now, in order; of each kind only the newest.

        Raises:
            InputError: the next message of the recording cannot be used.
        """
        start_ns = self._started(now_ns)
        due: list[Due] = []
        while self._next is not None and start_ns + self._next.after_ns <= now_ns:
            due.append(self._next)
            self._next = next(self._schedule, None)
        newest = {type(d.item.value): d.after_ns for d in due}
        kept = [d for d in due if d.after_ns == newest[type(d.item.value)]]
        self.skipped += len(due) - len(kept)
        if due:
            self.position_ns = due[-1].after_ns
        return [d.item for d in kept]

    def restamped(self, item: Item, now_stamp_ns: int) -> Frame | Odometry | DriverState:
        """The item's value as published at ``now_stamp_ns``. Once per item, in the order of :meth:`take`."""
        value = item.value
        recorded_ns, published_ns = self._stamps.get(type(value), (None, 0))
        if value.stamp_ns == recorded_ns:
            stamp_ns = published_ns
        else:
            stamp_ns = now_stamp_ns - round((item.t_ns - value.stamp_ns) / self._rate)
        self._stamps[type(value)] = (value.stamp_ns, stamp_ns)
        if isinstance(value, DriverState):
            return restamped_driver(value, stamp_ns)
        return dataclasses.replace(value, stamp_ns=stamp_ns)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._prefetch is not None:
            self._prefetch.close()


class Prefetch(Iterator[Due]):
    """Runs an iterator in a thread, at most ``depth`` items ahead. What it raises comes out in its place."""

    def __init__(self, items: Iterator[Due], depth: int) -> None:
        self._items = items
        self._queue: queue.Queue[Due | BaseException | None] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except Exception as error:  # handed to the reader of the queue
            end = error
        self._put(end)

    def _put(self, item: Due | BaseException | None) -> bool:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return True
        return False

    def __next__(self) -> Due:
        item = self._queue.get()
        if isinstance(item, Due):
            return item
        self._queue.put(item)  # the end stays the end
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End the thread, within a decode."""
        self._stop.set()
        self._thread.join(1.0)
