"""Cores, priorities and memory of a node's process: asked for, applied as far as permitted, and reported.

On ``n`` cores (:data:`ROLES` says who is who):

* one core: everybody on it, told apart by priority alone;
* two cores: the time-critical chain (camera, detector, supervisor) in real time on core 0, the rest on core 1;
* more: the chain keeps core 0 for camera and supervisor and core 1 for the detector, the VLM tiers share the others.

The real-time policy is SCHED_RR. Between different priorities it is the same as SCHED_FIFO, but on Linux 6.18 beside
busy processes a FIFO thread was held off by up to 50 ms in most runs (it got half of its core), an RR thread by 0.4 ms
in all: wake-up p99 27 to 53 ms against 0.4 ms. Without the privilege, nice has to do.

The distilled tier gets ten times the weight of the full one, so that it keeps its budget beside it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from dataclasses import dataclass, field

from triptych.contract import ConfigError


@dataclass(frozen=True, slots=True)
class Role:
    """How a process is scheduled. ``chain``: time-critical. ``realtime``: priority 1..99, 0 for none; else ``nice``.

    ``heap_mib``: heap to touch before the first frame comes; what the role was seen to touch in its first seconds.
    """

    chain: bool
    realtime: int
    nice: int
    heap_mib: int


ROLES: dict[str, Role] = {
    "safety_core": Role(True, 40, -18, 0),
    "supervisor": Role(True, 30, -15, 0),
    "detector": Role(True, 20, -10, 24),
    "camera": Role(True, 10, -5, 24),
    "distilled": Role(False, 0, 4, 32),
    "full": Role(False, 0, 14, 48),
    "lidar": Role(False, 0, 0, 16),
    "view": Role(False, 0, 16, 24),
    "recorder": Role(False, 0, 0, 32),  # its times of receipt are evidence: starved, it would blame the senders
    "remote": Role(False, 0, 12, 0),
    "none": Role(False, 0, 0, 0),
}
"""By name of the role. The safety core may interrupt all others, the supervisor the detector, the detector a camera
that renders the next frame."""

_CPU_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")
_USABLE = tuple(sorted(os.sched_getaffinity(0)))  # before anybody narrows it
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD, _ARENA_MAX = -3, -1, -2, -8
_MIB = 1 << 20
_MALLOC = ((_MMAP_THRESHOLD, 32 * _MIB), (_TRIM_THRESHOLD, 1024 * _MIB), (_TOP_PAD, 64 * _MIB), (_ARENA_MAX, 1))
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


POLICIES = {"rr": os.SCHED_RR, "fifo": os.SCHED_FIFO}


@dataclass(frozen=True, slots=True)
class Scheduling:
    """``policy``: a key of :data:`POLICIES`, with ``priority``, or ``other``, with ``nice``."""

    policy: str
    priority: int
    nice: int


@dataclass(slots=True)
class Obtained:
    """What a process asked for and got, for /diagnostics and ``triptych doctor``."""

    cpus: tuple[int, ...] = ()
    policy: str = "other"
    priority: int = 0
    nice: int = 0
    memory_locked: bool = False
    malloc_tuned: bool = False
    refused: list[str] = field(default_factory=list)

    def values(self) -> dict[str, str]:
        """As texts for a diagnostic message."""
        return {
            "cpus": ",".join(map(str, self.cpus)),
            "policy": f"{self.policy}:{self.priority}" if self.priority else f"{self.policy}, nice {self.nice}",
            "memory_locked": str(self.memory_locked).lower(),
            "malloc_tuned": str(self.malloc_tuned).lower(),
            "refused": "; ".join(self.refused),
        }


def placement(role: str, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the machine's usable ``cpus`` a role gets.

    Raises:
        ConfigError: unknown role.
    """
    if role not in ROLES:
        raise ConfigError("unknown role", field="role", value=role, remedy=f"use one of {', '.join(ROLES)}")
    if role == "none" or len(cpus) < 2:
        return cpus
    if not ROLES[role].chain:
        return cpus[1:] if len(cpus) == 2 else cpus[2:]
    if len(cpus) > 2 and role == "detector":
        return cpus[1:2]
    return cpus[:1]


def parse_cpus(text: str, role: str) -> tuple[int, ...]:
    """Parameter ``cpus``: ``auto`` (by role), ``all``, or a list such as ``0,2-3``.

    Raises:
        ConfigError: not such a list, or a core this process may not use.
    """
    if text == "auto":
        return placement(role, _USABLE)
    if text == "all":
        return _USABLE
    chosen: set[int] = set()
    if not _CPU_LIST.fullmatch(text):
        raise ConfigError(
            "not a list of cores", field="cpus", value=text, remedy="write auto, all or a list such as 0,2-3"
        )
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    if not chosen or not chosen <= set(_USABLE):
        raise ConfigError(
            f"names a core outside those usable here ({','.join(map(str, _USABLE))})", field="cpus", value=text
        )
    return tuple(sorted(chosen))


def parse_scheduling(text: str, role: str) -> Scheduling:
    """Parameter ``scheduling``: ``auto``, ``normal``, ``rr:1..99``, ``fifo:1..99`` or ``nice:-20..19``.

    Raises:
        ConfigError: anything else.
    """
    if text == "auto":
        chosen = ROLES[role]
        return Scheduling("rr" if chosen.realtime else "other", chosen.realtime, chosen.nice)
    kind, _, number = text.partition(":")
    try:
        if text == "normal":
            return Scheduling("other", 0, 0)
        if kind in POLICIES and 1 <= int(number) <= 99:
            return Scheduling(kind, int(number), 0)
        if kind == "nice" and -20 <= int(number) <= 19:
            return Scheduling("other", 0, int(number))
    except ValueError:
        pass
    raise ConfigError(
        "unknown scheduling",
        field="scheduling",
        value=text,
        remedy="write auto, normal, rr:1..99, fifo:1..99 or nice:-20..19",
    )


def tune_malloc() -> bool:
    """Keep large blocks in the heap: image-sized allocations otherwise fault in fresh pages for every message.

    The same settings as ``triptych.dds.MALLOC_VARIABLES``, for a process that was started without them; what the
    environment says wins. Call before the middleware starts. Returns False where the C library has no ``mallopt``.
    """
    if any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return True
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    accepted = [mallopt(option, value) == 1 for option, value in _MALLOC]
    return all(accepted)


def touch_heap(size_bytes: int) -> bool:
    """Take that much heap, write to it and give it back to the allocator, which keeps it (:func:`tune_malloc`).

    The first write to a page is dear where memory is virtual: 40 us were seen, and then the first image stalled four
    processes for 0.3 s. Returns False where the C library does not offer it.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return False
    # Blocks of the threshold's size and more would be mapped apart and unmapped again.
    blocks = [libc.malloc(8 * _MIB) for _ in range(size_bytes // (8 * _MIB))]
    for block in blocks:
        if block:
            ctypes.memset(block, 0, 8 * _MIB)
    for block in blocks:
        libc.free(block)
    return all(blocks)


def lock_memory() -> bool:
    """Keep pages once touched in memory (``mlockall`` on fault); False where that is not permitted."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0)
    except (OSError, AttributeError):
        return False


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def apply(
    role: str, cpus: str = "auto", scheduling: str = "auto", lock: bool = False, malloc_tuned: bool = False
) -> Obtained:
    """Put all threads of this process, those of the middleware too, where the role belongs.

    Later threads inherit from the one that starts them. What is not permitted is left as it was and listed in
    ``Obtained.refused``; a refused real-time policy falls back to the role's nice value.

    Args:
        role: key of :data:`ROLES`.
        cpus: see :func:`parse_cpus`.
        scheduling: see :func:`parse_scheduling`.
        lock: whether to lock memory.
        malloc_tuned: what :func:`tune_malloc` said earlier, for the report.

    Raises:
        ConfigError: a text that cannot be parsed, or an unknown role.
    """
    obtained = Obtained(malloc_tuned=malloc_tuned)
    chosen = parse_cpus(cpus, role)
    wanted = parse_scheduling(scheduling, role)
    if malloc_tuned and not touch_heap(ROLES[role].heap_mib * _MIB):
        _note(obtained, "heap: not touched in advance")
    for thread in _threads():
        try:
            os.sched_setaffinity(thread, chosen)
        except ProcessLookupError:
            continue
        except OSError as error:
            _note(obtained, f"affinity: {error.strerror}")
            break
    if wanted.policy not in POLICIES or not _set_realtime(wanted, obtained):
        _set_nice(wanted.nice, obtained)
    if lock:
        obtained.memory_locked = lock_memory()
        if not obtained.memory_locked:
            _note(obtained, "mlockall: not permitted")
    obtained.cpus = tuple(sorted(os.sched_getaffinity(0)))
    for name, policy in POLICIES.items():
        if os.sched_getscheduler(0) & 0xFF == policy:
            obtained.policy, obtained.priority = name, os.sched_getparam(0).sched_priority
    obtained.nice = os.getpriority(os.PRIO_PROCESS, 0)
    return obtained


def calm_collector() -> None:
    """Take what is alive now out of the garbage collector's sight and let it run rarely: its pauses hit deadlines."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _note(obtained: Obtained, text: str) -> None:
    if text not in obtained.refused:
        obtained.refused.append(text)


def _set_realtime(wanted: Scheduling, obtained: Obtained) -> bool:
    for thread in _threads():
        try:
            os.sched_setscheduler(thread, POLICIES[wanted.policy], os.sched_param(wanted.priority))
        except ProcessLookupError:
            continue
        except OSError as error:
            _note(obtained, f"SCHED_{wanted.policy.upper()} {wanted.priority}: {error.strerror}")
            return False
    return True


def _set_nice(nice: int, obtained: Obtained) -> None:
    for thread in _threads():
        try:
            if os.sched_getscheduler(thread) & 0xFF != os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        except ProcessLookupError:
            continue
        except OSError as error:
            _note(obtained, f"nice {nice}: {error.strerror}")
            return
    _set_autogroup(nice, obtained)


def _set_autogroup(nice: int, obtained: Obtained) -> None:
    """Where the kernel groups processes by session (``sched_autogroup_enabled``), nice counts within a session only.

    A node that leads a session of its own, as the command line starts it, gives its group the same weight. In a
    session of many nodes (``ros2 launch``) nice alone does it, and the group is not ours to change.
    """
    if os.getsid(0) != os.getpid():
        return
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(nice))
    except FileNotFoundError:
        return  # a kernel without autogroups
    except OSError as error:
        _note(obtained, f"autogroup nice {nice}: {error.strerror}")
