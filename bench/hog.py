"""A process that takes what others need: ``python bench/hog.py cpu`` or ``python bench/hog.py memory BYTES``.

At normal priority whatever its parent has. Memory is bounded by the process's own ``RLIMIT_AS`` and touched page by
page; ``{"event": "taken"}`` is said then. It dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PAGE_BYTES = 4096
ROOM_BYTES = 256 << 20
"""Of the limit, beside what is to be taken: the interpreter itself."""


def main() -> None:
    """Entry point; runs until killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if sys.argv[1] == "cpu":
        while True:
            pass
    size = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM_BYTES, size + ROOM_BYTES))
    memory = mmap.mmap(-1, size)
    for offset in range(0, size, PAGE_BYTES):
        memory[offset] = 1
    print(json.dumps({"event": "taken", "t_ns": time.time_ns()}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
