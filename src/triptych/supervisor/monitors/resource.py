"""Machine: memory, temperature and disk run out slowly, and then everything fails at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from triptych.supervisor.config import SupervisorConfig


@dataclass(frozen=True, slots=True)
class MachineReading:
    """One reading of the machine; what could not be read is None.

    Attributes:
        memory_used: share 0..1 of the memory that is not available any more.
        stack_memory: share 0..1 of the memory that the stack's processes hold (resident).
        temperature_c: of the hottest sensor, degrees Celsius.
        disk_used: share 0..1 of the disk that runs are recorded on.
    """

    memory_used: float | None = None
    stack_memory: float | None = None
    temperature_c: float | None = None
    disk_used: float | None = None


class Resources:
    """Metrics ``memory_used``, ``memory_growth``, ``temperature_c`` and ``disk_used`` of the last reading.

    ``memory_growth`` is the share of all memory by which the stack has grown since it had settled: a leak shows there
    long before memory runs out. All are unknown before the first reading, and each while it cannot be read; a number
    that is none stays NaN and is a fault.
    """

    __slots__ = ("_base", "_first_ns", "_reading", "_settle_ns")

    def __init__(self, config: SupervisorConfig) -> None:
        self._settle_ns = int(config.machine_settle_s * 1e9)
        self._reading = MachineReading()
        self._first_ns: int | None = None
        self._base: float | None = None

    def observe(self, reading: MachineReading, received_ns: int) -> None:
        """A reading taken at this monotonic time."""
        self._reading = reading
        if self._first_ns is None:
            self._first_ns = received_ns
        settled = received_ns - self._first_ns >= self._settle_ns
        stack = reading.stack_memory
        if settled and self._base is None and stack is not None and isfinite(stack):
            self._base = stack

    def memory_used(self, now_ns: int) -> float | None:
        return self._reading.memory_used

    def memory_growth(self, now_ns: int) -> float | None:
        stack = self._reading.stack_memory
        if self._base is None or stack is None:
            return None
        growth = stack - self._base
        return 0.0 if growth < 0.0 else growth

    def temperature_c(self, now_ns: int) -> float | None:
        return self._reading.temperature_c

    def disk_used(self, now_ns: int) -> float | None:
        return self._reading.disk_used
