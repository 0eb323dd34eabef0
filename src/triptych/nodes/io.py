"""Receiving data beside the general executor.

rclpy's executor rebuilds its wait set for every event and costs a good part of a millisecond each time. Data
topics are therefore read by whoever needs them, when they need them: :class:`BlockingReader` sleeps on a wait set of
its own, :class:`PolledReader` takes what has arrived and never waits. Lifecycle, services and parameters stay with the
executor. This module alone touches rclpy's binding layer.

Nothing here may hang on the executor as a waitable: the middleware wakes an event's waiter for the subscription's data
as well, so the executor would spin for as long as a message lies unread. :class:`QosWatch` asks for events instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_policy_name_from_kind,
)
from rclpy.type_support import check_is_valid_msg_type

SENSOR_QOS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Camera: the newest frame only, never a queue."""
SENSOR_OUT_QOS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)
"""What our camera offers: reliable serves both kinds of subscriber."""
DATA_QOS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)
"""Results, heartbeats, constraint."""
INPUT_QOS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)
"""What we ask of publishers we do not own (odometry, driver): accepts both kinds."""
LATCHED_QOS = QoSProfile(
    depth=1,
    history=HistoryPolicy.KEEP_LAST,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""State: a late joiner gets the last one."""

QosReport = Callable[[str], None]


def qos_sentence(kind: str, topic: str, event: Any) -> str:
    """The sentence for an incompatible-QoS event: topic and policy by name."""
    policy = qos_policy_name_from_kind(event.last_policy_kind)
    other = "publisher" if kind == "subscription" else "subscriber"
    return (
        f"{topic}: a {other} offers or asks for an incompatible {policy} policy, so no data flows between it and this "
        f"{kind} ({event.total_count} so far); make both ends agree on {policy}."
    )


class QosWatch:
    """Finds ends of our topics that cannot talk to us.

    Args:
        report: gets one sentence per topic and policy, naming both, and again when more such ends appear.
    """

    def __init__(self, report: QosReport) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._events: list[tuple[str, str, Any, Any]] = []  # kind, topic, end, event
        self._seen: dict[int, int] = {}
        self._next = 0

    def add(self, kind: str, topic: str, end: Any) -> None:
        """Watch ``end``, the binding's publisher or subscription."""
        event_type = (
            _rclpy.rcl_subscription_event_type_t.RCL_SUBSCRIPTION_REQUESTED_INCOMPATIBLE_QOS
            if kind == "subscription"
            else _rclpy.rcl_publisher_event_type_t.RCL_PUBLISHER_OFFERED_INCOMPATIBLE_QOS
        )
        with end:
            event = _rclpy.EventHandle(end, event_type)
        with self._lock:
            self._events.append((kind, topic, end, event))

    def remove(self, end: Any) -> None:
        """Stop watching ``end``."""
        with self._lock:
            gone = [entry for entry in self._events if entry[2] is end]
            self._events = [entry for entry in self._events if entry[2] is not end]
        for entry in gone:
            entry[3].destroy_when_not_in_use()

    def poll(self, count: int | None = None) -> None:
        """Look at all ends, or at the next ``count`` of them in turn.

        A look at one end may take a millisecond, during which no other thread of the process runs Python.
        """
        with self._lock:
            found = []
            first, self._next = self._next, self._next + (count or 0)
            ends = self._events
            if count is not None and ends:
                ends = [ends[(first + offset) % len(ends)] for offset in range(min(count, len(ends)))]
            for kind, topic, _, event in ends:
                with event:
                    status = event.take_event()
                if status is not None and status.total_count > self._seen.get(id(event), 0):
                    self._seen[id(event)] = status.total_count
                    found.append(qos_sentence(kind, topic, status))
        for sentence in found:
            self._report(sentence)


class Subscription:
    """A subscription that no executor knows of.

    Args:
        node: whose it is; remapping and namespace apply.
        msg_type: message class.
        topic: name, usually relative.
        qos: what is asked for.
        watch: reports publishers whose QoS does not fit.
    """

    def __init__(self, node: Node, msg_type: Any, topic: str, qos: QoSProfile, watch: QosWatch | None = None) -> None:
        check_is_valid_msg_type(msg_type)
        self.msg_type, self._watch = msg_type, watch
        self._lock = threading.Lock()
        with node.handle:
            self._handle = _rclpy.Subscription(node.handle, msg_type, topic, qos.get_c_qos_profile())
        self.topic = self._handle.get_topic_name()
        if watch is not None:
            watch.add("subscription", self.topic, self._handle)

    @property
    def handle(self) -> Any:
        """The binding's subscription."""
        return self._handle

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        """The next message that has arrived and its info (``source_timestamp``, ``publication_sequence_number``...)."""
        with self._lock:
            if self._handle is None:
                return None
            taken: tuple[Any, dict[str, Any]] | None = self._handle.take_message(self.msg_type, False)
            return taken

    def take_raw(self) -> tuple[bytes, dict[str, Any]] | None:
        """As :meth:`take`, with the serialised message."""
        with self._lock:
            if self._handle is None:
                return None
            taken: tuple[bytes, dict[str, Any]] | None = self._handle.take_message(self.msg_type, True)
            return taken

    def publisher_count(self) -> int:
        """How many publishers are matched now."""
        with self._lock:
            return 0 if self._handle is None else int(self._handle.get_publisher_count())

    def close(self) -> None:
        """Give the subscription back to the middleware."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._watch is not None:
            self._watch.remove(handle)
        handle.destroy_when_not_in_use()


class BlockingReader:
    """One subscription on a wait set of its own, for a thread that has nothing else to do.

    Args: see :class:`Subscription`.
    """

    def __init__(self, node: Node, msg_type: Any, topic: str, qos: QoSProfile, watch: QosWatch | None = None) -> None:
        self.subscription = Subscription(node, msg_type, topic, qos, watch)
        context = node.context.handle
        self._guard = _rclpy.GuardCondition(context)
        self._wait_set = _rclpy.WaitSet(1, 1, 0, 0, 0, 0, context)
        self._closed = threading.Event()
        self._freed = False

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a message is there; False after ``timeout_s`` or when the reader is closed."""
        if self._closed.is_set():
            return False
        wait_set = self._wait_set
        wait_set.clear_entities()
        wait_set.add_subscription(self.subscription.handle)
        wait_set.add_guard_condition(self._guard)
        wait_set.wait(max(0, int(timeout_s * 1e9)))
        return bool(wait_set.get_ready_entities("subscription")) and not self._closed.is_set()

    def take(self) -> tuple[Any, dict[str, Any]] | None:
        """The message that is there, with its info; None when there is none."""
        return self.subscription.take()

    def read(self, timeout_s: float) -> tuple[Any, dict[str, Any]] | None:
        """:meth:`wait`, then :meth:`take`."""
        return self.take() if self.wait(timeout_s) else None

    def wake(self) -> None:
        """Make a thread that sleeps in :meth:`wait` return."""
        self._closed.set()
        self._guard.trigger_guard_condition()

    def close(self) -> None:
        """Free everything; the reading thread must have ended. Safe to call twice."""
        if self._freed:
            return
        self._freed = True
        self.wake()
        self.subscription.close()
        self._wait_set.destroy_when_not_in_use()
        self._guard.destroy_when_not_in_use()


class PolledReader:
    """Several subscriptions, emptied when asked to; no wait set, no thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sources: list[tuple[Subscription, Callable[[Any], None], int]] = []
        self._round = 0

    def add(
        self,
        msg_type: Any,
        topic: str,
        qos: QoSProfile,
        use: Callable[[Any], None],
        watch: QosWatch | None = None,
        every: int = 1,
    ) -> None:
        """Have ``use`` called with each message of ``topic``, looked at in each ``every``-th :meth:`poll`.

        Looking costs 2 to 10 µs even when nothing is there; what may wait should.
        """
        self._sources.append((Subscription(self._node, msg_type, topic, qos, watch), use, every))

    def poll(self, limit: int = 32) -> int:
        """Hand over everything that has arrived, at most ``limit`` messages per topic. Returns how many."""
        count = 0
        self._round += 1
        for index, (subscription, use, every) in enumerate(self._sources):
            if (self._round + index) % every:
                continue
            for _ in range(limit):
                taken = subscription.take()
                if taken is None:
                    break
                count += 1
                use(taken[0])
        return count

    def close(self) -> None:
        """Free all subscriptions."""
        for subscription, *_ in self._sources:
            subscription.close()
        self._sources.clear()


def received_monotonic_ns(info: dict[str, Any]) -> int:
    """When the middleware received a message, on the monotonic clock; now, where it does not say or cannot be right."""
    now_ns = time.monotonic_ns()
    waited_ns = time.time_ns() - int(info.get("received_timestamp") or 0)
    return now_ns - waited_ns if 0 <= waited_ns <= 1_000_000_000 else now_ns


class Skipped:
    """How many messages of one publisher the transport replaced by newer ones, from its sequence numbers."""

    def __init__(self) -> None:
        self._last: int | None = None

    def update(self, info: dict[str, Any]) -> int:
        """Messages skipped before this one; 0 when the middleware does not number them or the publisher is new."""
        number = info.get("publication_sequence_number")
        last, self._last = self._last, number
        if number is None or last is None or number <= last:
            return 0
        return int(number - last - 1)


def create_publisher(node: Node, msg_type: Any, topic: str, qos: QoSProfile, watch: QosWatch | None = None) -> Any:
    """A publisher whose incompatible subscribers are reported by name."""
    publisher = node.create_publisher(
        msg_type, topic, qos, event_callbacks=PublisherEventCallbacks(use_default_callbacks=False)
    )
    if watch is not None:
        watch.add("publisher", publisher.topic_name, publisher.handle)
    return publisher


def sleep_until(monotonic_ns: int, stop: threading.Event | None = None) -> bool:
    """Sleep until a monotonic time. With ``stop``: return True at once when it is set."""
    left_s = (monotonic_ns - time.monotonic_ns()) / 1e9
    if stop is not None:
        return stop.wait(left_s) if left_s > 0 else stop.is_set()
    if left_s > 0:
        time.sleep(left_s)
    return False
