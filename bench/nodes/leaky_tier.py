"""A tier that leaks, as a process: the real node, whose engine keeps 16 MiB more with each inference after SIGUSR1."""

from __future__ import annotations

import signal
import threading
from typing import Any

from triptych.nodes import tier_node
from triptych.nodes.runtime import main

LEAK_BYTES = 16 << 20
leaking = threading.Event()
kept: list[bytes] = []


class Leaky:
    """An engine and what it never gives back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def infer(self, *arguments: Any) -> Any:
        """As the engine, after the leak."""
        if leaking.is_set():
            kept.append(b"\1" * LEAK_BYTES)  # written to, so that it is really taken
        return self._engine.infer(*arguments)


def leaky(load: Any) -> Any:
    """A loader whose engines leak."""
    return lambda *arguments: Leaky(load(*arguments))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: leaking.set())
    tier_node.load_engine = leaky(tier_node.load_engine)
    main(tier_node.TierNode)
