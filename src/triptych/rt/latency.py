"""How late a sleeping thread wakes up, after the idea of cyclictest (rt-tests): sleep until an absolute time, look at
the clock, again and again.

Unlike cyclictest the thread runs Python: what is measured is what a node of the stack can have, the interpreter's
lock included.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triptych.contract import ConfigError
from triptych.doctor.machine import RT_PRIORITY

EDGES_US = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
"""Upper ends of the histogram's bins; the last bin has none."""
MOST_SAMPLES = 1_000_000
_ABSOLUTE = 1
_POLICIES = {"other": os.SCHED_OTHER, "fifo": os.SCHED_FIFO, "rr": os.SCHED_RR}


@dataclass(frozen=True, slots=True)
class Histogram:
    """Lateness of wake-ups in microseconds, sorted.

    Raises:
        ConfigError: nothing was measured.
    """

    sorted_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sorted_us:
            raise ConfigError("nothing was measured", where="wake-up latency", remedy="measure for longer")

    @classmethod
    def of(cls, late_us: Sequence[float]) -> Histogram:
        """Of measured values in any order."""
        return cls(tuple(sorted(late_us)))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many in each bin: up to each of :data:`EDGES_US`, and above."""
        counts = [0] * (len(EDGES_US) + 1)
        for late_us in self.sorted_us:
            counts[bisect_right(EDGES_US, late_us)] += 1
        return tuple(counts)

    def quantile_us(self, share: float) -> float:
        """The least measured value that at least this share (0..1) does not exceed (nearest rank)."""
        rank = math.ceil(share * len(self.sorted_us))
        return self.sorted_us[min(max(rank, 1), len(self.sorted_us)) - 1]

    def summary(self) -> dict[str, float]:
        """min, median, p99, p99.9 and max in microseconds."""
        shares = {"min": 0.0, "median": 0.5, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
        return {f"{name}_us": round(self.quantile_us(share), 1) for name, share in shares.items()}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run.

    Attributes:
        policy: asked for: other, fifo or rr.
        loaded: beside a busy process per core.
        refused: why the policy could not be had; nothing was measured then.
        histogram: of the wake-ups; ``None`` when refused.
        missed: wake-ups left out because the one before came later than they were due.
    """

    policy: str
    loaded: bool
    refused: str = ""
    histogram: Histogram | None = None
    missed: int = 0


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def sleep_until(due_ns: int) -> None:
    """Sleep until a time of the monotonic clock (``clock_nanosleep``, absolute); again if a signal ends it early."""
    libc = ctypes.CDLL(None)
    until = _Timespec(*divmod(due_ns, 1_000_000_000))
    while libc.clock_nanosleep(time.CLOCK_MONOTONIC, _ABSOLUTE, ctypes.byref(until), None) != 0:
        if time.monotonic_ns() >= due_ns:
            return


def measure(policy: str, seconds: float, interval_us: int, loaded: bool = False) -> Measurement:
    """Wake up every ``interval_us`` in a thread of its own; real-time policies at the supervisor's priority.

    Raises:
        ConfigError: unknown policy, or a time or interval out of range.
    """
    if policy not in _POLICIES:
        raise ConfigError("unknown policy", field="policy", value=policy, remedy=f"use one of {', '.join(_POLICIES)}")
    if not 50 <= interval_us <= 1_000_000:
        raise ConfigError("must be 50..1000000 microseconds", field="interval", value=interval_us)
    wanted = int(seconds * 1e6 / interval_us) if math.isfinite(seconds) else 0
    if not 10 <= wanted <= MOST_SAMPLES:
        raise ConfigError("must allow 10 to a million wake-ups", field="seconds", value=seconds)
    late_ns: list[int] = []
    missed: list[int] = []
    refused: list[str] = []

    def run() -> None:
        try:
            priority = 0 if policy == "other" else RT_PRIORITY
            os.sched_setscheduler(0, _POLICIES[policy], os.sched_param(priority))  # of this thread alone
        except OSError as error:
            refused.append(error.strerror or str(error))
            return
        late, left_out = _cycle(wanted, interval_us * 1000)
        late_ns.extend(late)
        missed.append(left_out)

    thread = threading.Thread(target=run, name="wake-up")
    with _no_collector():
        thread.start()
        thread.join()
    if refused:
        return Measurement(policy, loaded, refused[0])
    return Measurement(policy, loaded, "", Histogram.of([late / 1e3 for late in late_ns]), missed[0])


def _cycle(wanted: int, interval_ns: int) -> tuple[list[int], int]:
    late_ns, left_out = [0] * wanted, 0
    due_ns = time.monotonic_ns() + interval_ns
    for number in range(wanted):
        sleep_until(due_ns)
        now_ns = time.monotonic_ns()
        late_ns[number] = now_ns - due_ns
        skipped = (now_ns - due_ns) // interval_ns
        left_out += skipped
        due_ns += (1 + skipped) * interval_ns
    return late_ns, left_out


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A busy process for each core this one may use, at normal priority."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
