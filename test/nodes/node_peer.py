"""One node alone in this process, with a peer that plays the rest of the stack."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter

from triptych import dds
from triptych.nodes import io, topics

QUIET = {"scheduling": "normal", "cpus": "all"}


class Peer:
    """A context, a node beside the one under test, and what it heard."""

    def __init__(self) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=dds.claim_domain())
        self.node = Node("peer", context=self.context)
        self.reader = io.PolledReader(self.node)
        self.heard: dict[str, list[Any]] = {}
        self.under_test: Any = None

    def start(self, kind: Any, name: str, **values: Any) -> Any:
        overrides = [Parameter(key, value=value) for key, value in {**QUIET, **values}.items()]
        self.under_test = kind(name, context=self.context, parameter_overrides=overrides)
        self.under_test.begin()
        return self.under_test

    def hear(self, topic: topics.Topic, kind: Any, build: Callable[[Any], Any] = lambda m: m) -> list[Any]:
        store = self.heard[topic.name] = []
        self.reader.add(kind, topic.name, io.INPUT_QOS, lambda m: store.append(build(m)))
        return store

    def until(self, condition: Callable[[], Any], act: Callable[[], Any] = lambda: None, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act()
            self.reader.poll()
            if condition():
                return
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s; heard { {k: len(v) for k, v in self.heard.items()} }")

    def close(self) -> None:
        if self.under_test is not None:
            self.under_test.close()
            self.under_test.destroy_node()
        self.reader.close()
        self.node.destroy_node()
        self.context.try_shutdown()
