"""What is left of something that happened a thousand times: counted by the allocator, not by the machine."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

TIMES = 1000
ROOM_BYTES = 16 * TIMES
"""Less than the smallest object for each time; dictionaries and buffers may have grown once."""
GARBAGE_BYTES = 64
"""What an object counts that only the collector found."""


def left_bytes(happen: Callable[[int], object], times: int = TIMES, before: int = TIMES // 4) -> int:
    """Bytes more after ``happen(k)`` for so many k, once it had happened ``before`` times.

    Nodes let the garbage collector run rarely, so that what only it would free counts as left. It runs at the two
    measurements all the same, because it empties the interpreter's lists of free objects, which count as allocated.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for k in range(before):
            happen(k)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        for k in range(before, before + times):
            happen(k)
        garbage = gc.collect()
        return tracemalloc.get_traced_memory()[0] - held + GARBAGE_BYTES * garbage
    finally:
        tracemalloc.stop()
        gc.enable()
