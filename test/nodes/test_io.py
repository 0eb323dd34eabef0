"""Readers and publishers over real DDS, in one process and on a domain of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import String

from triptych import dds
from triptych.nodes import convert, io

RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)


@pytest.fixture
def node() -> Iterator[Node]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=dds.claim_domain())
    node = Node("io_test", context=context, start_parameter_services=False)
    yield node
    node.destroy_node()
    context.try_shutdown()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def matched(subscription: io.Subscription) -> bool:
    return eventually(lambda: subscription.publisher_count() > 0)


def test_blocking_reader_gets_the_newest_and_counts_what_it_skipped(node: Node) -> None:
    """A4: the transport keeps one frame; what it replaced is counted."""
    reader = io.BlockingReader(node, Image, "camera", io.SENSOR_QOS)
    publisher = io.create_publisher(node, Image, "camera", io.SENSOR_OUT_QOS)
    assert matched(reader.subscription)
    skipped, seen = io.Skipped(), []
    image = np.zeros((4, 6, 3), np.uint8)
    for burst in (1, 3, 2):
        for _ in range(burst):
            image += 1
            publisher.publish(convert.image_to_msg(image, time.time_ns(), "cam"))
            time.sleep(0.05)
        taken = reader.read(2.0)
        assert taken is not None
        seen.append((int(taken[0].data[0]), skipped.update(taken[1])))
    assert seen == [(1, 0), (4, 2), (6, 1)]
    assert reader.read(0.05) is None
    reader.close()


def test_blocking_reader_wakes_up_when_told_to(node: Node) -> None:
    reader = io.BlockingReader(node, String, "nothing", RELIABLE)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(reader.read(30.0)))
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    reader.wake()
    thread.join(5)
    assert not thread.is_alive() and results == [None] and time.monotonic() - began < 2
    reader.close()
    reader.close()


def test_polled_reader_hands_over_in_order_and_never_waits(node: Node) -> None:
    got: list[str] = []
    slow: list[str] = []
    reader = io.PolledReader(node)
    reader.add(String, "a", RELIABLE, lambda m: got.append(m.data))
    reader.add(String, "b", RELIABLE, lambda m: slow.append(m.data), every=3)
    a = io.create_publisher(node, String, "a", RELIABLE)
    b = io.create_publisher(node, String, "b", RELIABLE)
    assert reader.poll() == 0
    assert eventually(lambda: a.get_subscription_count() > 0 and b.get_subscription_count() > 0)
    for k in range(3):
        a.publish(String(data=f"a{k}"))
    b.publish(String(data="b0"))
    time.sleep(0.3)
    rounds = 0
    while not (len(got) == 3 and slow):
        rounds += 1
        assert rounds < 20
        reader.poll()
        time.sleep(0.05)
    assert got == ["a0", "a1", "a2"] and slow == ["b0"]
    reader.close()


@pytest.mark.parametrize(
    ("offered", "wanted", "policy"),
    [
        (BEST_EFFORT, RELIABLE, "RELIABILITY"),
        (RELIABLE, QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL), "DURABILITY"),
    ],
)
@pytest.mark.parametrize("count", [None, 1, 5])
def test_incompatible_qos_is_reported_by_name_on_both_ends(
    node: Node, offered: QoSProfile, wanted: QoSProfile, policy: str, count: int | None
) -> None:
    """A15: both ends that cannot talk are named: topic, policy, which end; also when ends are looked at in turn."""
    sentences: list[str] = []
    watch = io.QosWatch(sentences.append)
    subscription = io.Subscription(node, String, "talk", wanted, watch)
    publisher = io.create_publisher(node, String, "talk", offered, watch)

    def both() -> bool:
        watch.poll(count)
        return len(sentences) >= 2

    assert eventually(both)
    assert all(s.startswith("/talk: ") and policy in s for s in sentences)
    assert any("publisher" in s for s in sentences) and any("subscriber" in s for s in sentences)
    watch.poll()
    assert len(sentences) == 2, "said once"
    publisher.publish(String(data="x"))
    time.sleep(0.1)
    assert subscription.take() is None
    subscription.close()
    watch.poll()


def test_a_look_in_turn_leaves_nobody_out() -> None:
    looked: list[int] = []

    class Event:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def take_event(self) -> None:
            looked.append(self.number)

    watch = io.QosWatch(lambda _: None)
    watch.poll(3)
    watch._events = [("publisher", "/x", None, Event(n)) for n in range(5)]
    for _ in range(5):
        watch.poll(2)
    assert sorted(looked) == sorted([*range(5)] * 2)
    watch.poll(9)
    assert sorted(looked[10:]) == [0, 1, 2, 3, 4]


def test_best_effort_reader_hears_a_reliable_publisher_and_nothing_is_reported(node: Node) -> None:
    """A15, the reverse: reliable offered, best effort wanted works."""
    sentences: list[str] = []
    watch = io.QosWatch(sentences.append)
    subscription = io.Subscription(node, String, "talk", BEST_EFFORT, watch)
    publisher = io.create_publisher(node, String, "talk", RELIABLE, watch)
    assert matched(subscription)
    publisher.publish(String(data="x"))
    assert eventually(lambda: (taken := subscription.take()) is not None and taken[0].data == "x")
    watch.poll()
    assert sentences == []
    subscription.close()
    assert subscription.take() is None and subscription.publisher_count() == 0


def test_an_unread_message_does_not_keep_the_executor_awake(node: Node) -> None:
    """The reason why QoS events are asked for: as waitables they woke the executor until the message was read."""
    from rclpy.executors import SingleThreadedExecutor

    watch = io.QosWatch(lambda _: None)
    subscription = io.Subscription(node, String, "talk", RELIABLE, watch)
    publisher = io.create_publisher(node, String, "talk", RELIABLE, watch)
    assert matched(subscription)
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    for _ in range(20):  # what discovery still has to say
        executor.spin_once(0.05)
    publisher.publish(String(data="unread"))
    time.sleep(0.2)
    began, cpu = time.monotonic(), time.thread_time()
    executor.spin_once(0.5)
    assert time.monotonic() - began > 0.4 and time.thread_time() - cpu < 0.2
    executor.shutdown()
    subscription.close()
