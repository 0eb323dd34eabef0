"""What a thousand messages that cannot be used leave in a node: nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from node_peer import Peer

from memory import ROOM_BYTES, TIMES, left_bytes
from triptych.nodes import convert
from triptych.nodes.runtime import Notes
from triptych.nodes.supervisor_node import SupervisorNode
from triptych.nodes.tier_node import TierNode
from triptych_ros.msg import Detections

PICTURE = np.random.default_rng(1).integers(0, 255, (48, 64, 3), dtype=np.uint8)


def short(msg: Any, k: int) -> None:
    msg.data = msg.data[: k % 1000]


def strange(msg: Any, k: int) -> None:
    msg.encoding = f"encoding-{k}"


def empty(msg: Any, k: int) -> None:
    msg.width = k % 2 * 100_000


class Camera:
    """In place of the reader: damaged pictures, one a call."""

    def __init__(self, node: TierNode, damage: Any) -> None:
        self.node, self.damage, self.k = node, damage, 0

    def read(self, timeout_s: float) -> Any:
        self.node._reader = None  # ends the thread's loop after this one
        msg = convert.image_to_msg(PICTURE, time.time_ns(), "cam")
        self.damage(msg, self.k)
        return msg, {}


class Idle:
    """A tier that always wants a frame and must get none."""

    def wait_wanted(self, timeout_s: float) -> bool:
        return True

    def offer(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a damaged picture reached the tier")


@pytest.mark.parametrize("damage", [short, strange, empty])
def test_a_thousand_damaged_pictures_leave_nothing_in_a_tier_node(peer: Peer, damage: Any) -> None:
    node = TierNode("detector", context=peer.context)
    try:
        camera = Camera(node, damage)

        def happen(k: int) -> None:
            camera.k, node._reader = k, camera
            node._read(camera, Idle(), False)
            node.notes.write(0.0)

        assert left_bytes(happen) < ROOM_BYTES
        assert node._frames > TIMES and node._input_error
        assert sum(int(count) for count in node.notes.values().values()) >= TIMES
    finally:
        node._reader = None
        node.destroy_node()


def test_a_thousand_unreadable_results_leave_nothing_in_the_supervisor_node(peer: Peer) -> None:
    """Numbers no enumeration knows, another one each time, are refused before the core."""
    node = SupervisorNode("supervisor", context=peer.context)
    try:
        ns = 0

        def happen(k: int) -> None:
            nonlocal ns
            ns += 10_000_000
            message = Detections()
            message.result.origin = 100 + k % 100
            node._on_prompt(message, ns)
            node.core.step(ns, ns)
            node.notes.write(0.0)

        assert left_bytes(happen) < ROOM_BYTES
        assert sum(int(count) for count in node.notes.values().values()) > TIMES
        assert not node.core._inbox
    finally:
        node.destroy_node()


def test_a_thousand_different_sentences_leave_only_the_last_few(peer: Peer) -> None:
    """Whatever a sender puts into them: what a node has said is counted for a few sentences only."""
    notes = Notes(peer.node)

    def happen(k: int) -> None:
        notes(f"something about {k} that was never said before")
        notes.write(0.0)

    assert left_bytes(happen) < ROOM_BYTES
    assert len(notes.values()) <= 9
