"""Receiving data beside the general executor.

rclpy's executor rebuilds its wait set for every event and costs a good part of a millisecond each time. Data
topics are therefore read by whoever needs them, when they need them: :class:`BlockingReader` sleeps on a wait set of
its own, :class:`PolledReader` takes what has arrived and never waits. Lifecycle, services and parameters stay with the
executor. This module alone touches rclpy's binding layer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
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


class Subscription:
    """A subscription that no executor knows of.

    Args:
        node: whose it is; remapping and namespace apply.
        msg_type: message class.
        topic: name, usually relative.
        qos: what is asked for.
        on_qos: told, by the executor's thread, of a publisher whose QoS does not fit; default the node's error log.
    """

    def __init__(self, node: Node, msg_type: Any, topic: str, qos: QoSProfile, on_qos: QosReport | None = None) -> None:
        check_is_valid_msg_type(msg_type)
        self._node, self.msg_type = node, msg_type
        self._lock = threading.Lock()
        with node.handle:
            self._handle = _rclpy.Subscription(node.handle, msg_type, topic, qos.get_c_qos_profile())
        self.topic = self._handle.get_topic_name()
        report = on_qos or node.get_logger().error
        events = SubscriptionEventCallbacks(
            incompatible_qos=lambda event: report(qos_sentence("subscription", self.topic, event)),
            use_default_callbacks=False,
        )
        self._events = events.create_event_handlers(node.default_callback_group, self._handle, self.topic)
        for handler in self._events:
            node.add_waitable(handler)

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

    def drop(self) -> bool:
        """Take the next message without building it; whether there was one."""
        with self._lock:
            return self._handle is not None and self._handle.take_message(self.msg_type, True) is not None

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
        for handler in self._events:
            self._node.remove_waitable(handler)
            handler.destroy()
        handle.destroy_when_not_in_use()


class BlockingReader:
    """One subscription on a wait set of its own, for a thread that has nothing else to do.

    Args: see :class:`Subscription`.
    """

    def __init__(self, node: Node, msg_type: Any, topic: str, qos: QoSProfile, on_qos: QosReport | None = None) -> None:
        self.subscription = Subscription(node, msg_type, topic, qos, on_qos)
        context = node.context.handle
        self._guard = _rclpy.GuardCondition(context)
        self._wait_set = _rclpy.WaitSet(1, 1, 0, 0, 0, 0, context)
        self._closed = threading.Event()

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
        """Free everything; the reading thread must have ended."""
        self.wake()
        self.subscription.close()
        self._wait_set.destroy_when_not_in_use()
        self._guard.destroy_when_not_in_use()


class PolledReader:
    """Several subscriptions, emptied when asked to; no wait set, no thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sources: list[tuple[Subscription, Callable[[Any], None]]] = []

    def add(
        self, msg_type: Any, topic: str, qos: QoSProfile, use: Callable[[Any], None], on_qos: QosReport | None = None
    ) -> None:
        """Have ``use`` called in :meth:`poll` with each message of ``topic``."""
        self._sources.append((Subscription(self._node, msg_type, topic, qos, on_qos), use))

    def poll(self, limit: int = 32) -> int:
        """Hand over everything that has arrived, at most ``limit`` messages per topic. Returns how many."""
        count = 0
        for subscription, use in self._sources:
            for _ in range(limit):
                taken = subscription.take()
                if taken is None:
                    break
                count += 1
                use(taken[0])
        return count

    def close(self) -> None:
        """Free all subscriptions."""
        for subscription, _ in self._sources:
            subscription.close()
        self._sources.clear()


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


def create_publisher(node: Node, msg_type: Any, topic: str, qos: QoSProfile, on_qos: QosReport | None = None) -> Any:
    """A publisher whose incompatible subscribers are reported by name."""
    report = on_qos or node.get_logger().error
    name = node.resolve_topic_name(topic)
    events = PublisherEventCallbacks(
        incompatible_qos=lambda event: report(qos_sentence("publisher", name, event)), use_default_callbacks=False
    )
    return node.create_publisher(msg_type, topic, qos, event_callbacks=events)


def sleep_until(monotonic_ns: int, stop: threading.Event | None = None) -> bool:
    """Sleep until a monotonic time. With ``stop``: return True at once when it is set."""
    left_s = (monotonic_ns - time.monotonic_ns()) / 1e9
    if stop is not None:
        return stop.wait(left_s) if left_s > 0 else stop.is_set()
    if left_s > 0:
        time.sleep(left_s)
    return False
