"""The middleware settings that camera images need, and the shared memory they live in.

With its defaults Fast DDS loses most raw images between processes, because they do not fit its shared-memory segment,
and half of the transport time goes into page faults of malloc. :func:`environment` returns what has to be set before a
process starts to avoid both; launch files and command line hand it to every node they start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from triptych.contract import ConfigError
from triptych.resources import resource

SHM_FOLDER = Path("/dev/shm")
MIB = 1024 * 1024
SEGMENT_BYTES = 64 * MIB
"""Segment size in config/dds/fastdds.xml. Each process that joins DDS allocates one, in full, at its start."""
SEGMENT_COST_BYTES = 68 * MIB
"""What one process really takes: segment and bookkeeping of its blocks were 67.0 MiB, its ports 0.1 MiB (measured)."""

PROFILE_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
"""Fast DDS 2 (ROS 2 Jazzy) reads the first, Fast DDS 3 the second."""

MALLOC_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),  # the highest value glibc accepts: images stay in the heap
    "MALLOC_TRIM_THRESHOLD_": str(1024 * MIB),  # freed images are not handed back to the kernel
    "MALLOC_TOP_PAD_": str(64 * MIB),  # the heap grows by several images at a time
    "MALLOC_ARENA_MAX": "1",  # one heap for all threads: what one has touched is ready for the others
}
"""Median transport of a 1920x1080 image fell from 26 to 10 ms with these (docs/performance.md)."""

RESTART_NUMBERS = range(31, 9, -1)
"""Participants number themselves from 0 up, and on one host 32 of them find each other without multicast."""

_ABANDONED_AGE_S = 2.0
_claimed: deque[IO[str]] = deque(maxlen=10)
_LOCK_NAME = re.compile(r"^(?:fastrtps|fastdds)_[0-9a-f]{16}_(?:el|sl)$")


def profile_path() -> Path:
    """The shipped Fast DDS profile.

    Raises:
        ConfigError: it is missing from the installation.
    """
    return resource("config", "dds", "fastdds.xml")


def environment(user: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to set for a process that joins DDS; what the user set stays.

    Args:
        user: the user's environment, by default ``os.environ``.

    Returns:
        Only the variables to add. A user's own profile in either variable keeps both, another RMW implementation
        keeps the profile out, and a user's ``GLIBC_TUNABLES`` or any malloc variable keeps all of malloc's.

    Raises:
        ConfigError: the profile is missing from the installation.
    """
    user = os.environ if user is None else user
    chosen: dict[str, str] = {}
    if not user.get("RMW_IMPLEMENTATION"):
        chosen["RMW_IMPLEMENTATION"] = "rmw_fastrtps_cpp"
    fast_dds = (user.get("RMW_IMPLEMENTATION") or "rmw_fastrtps_cpp").startswith("rmw_fastrtps")
    if fast_dds and not any(user.get(name) for name in PROFILE_VARIABLES):
        chosen.update(dict.fromkeys(PROFILE_VARIABLES, str(profile_path())))
    tuned_by_user = "glibc.malloc" in user.get("GLIBC_TUNABLES", "") or any(name in user for name in MALLOC_VARIABLES)
    if not tuned_by_user:
        chosen.update(MALLOC_VARIABLES)
    return chosen


def claim_domain() -> int:
    """A DDS domain from 1 to 100 that no other caller on this machine has, for benches and tests.

    A process keeps its last ten.

    Raises:
        ConfigError: all are taken.
    """
    for domain in random.sample(range(1, 101), 100):
        with contextlib.suppress(OSError):
            lock = Path(tempfile.gettempdir(), f"triptych-domain-{domain}.lock").open("a")  # noqa: SIM115
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _claimed.append(lock)
            return domain
    raise ConfigError("all DDS domains from 1 to 100 are in use on this machine", remedy="end other runs first")


def restart_environment(environment: Mapping[str, str], folder: Path = SHM_FOLDER) -> dict[str, str]:
    """Variables to set for a process that takes the place of one that was killed.

    It would get the dead one's number in its domain, and with it the dead one's shared-memory ports, into which others
    may go on writing without anybody hearing it: one of twenty detectors never saw a frame again. It gets a number
    instead whose ports are not in use, and left behind by nobody or longest ago.

    Args:
        environment: complete environment of the process.
        folder: where shared-memory ports lie.

    Returns:
        Only the variables to change; none where the profile is not ours or no number is left.
    """
    if environment.get(PROFILE_VARIABLES[0]) != str(profile_path()):
        return {}
    domain = environment.get("ROS_DOMAIN_ID") or "0"
    base = 7400 + 250 * int(domain) if domain.isdecimal() else 7400
    # the RTPS standard's default ports (DDSI-RTPS 2.5, 9.6.2.3)
    ports = {number: (base + 10 + 2 * number, base + 11 + 2 * number) for number in RESTART_NUMBERS}
    free = [number for number in RESTART_NUMBERS if all(map(_port_is_free, ports[number]))]
    if not free:
        return {}
    number = min(free, key=lambda n: max(_left_behind_s(folder / f"fastrtps_port{port}") for port in ports[n]))
    restart = str(resource("config", "dds", "fastdds_restart.xml"))
    return {**dict.fromkeys(PROFILE_VARIABLES, restart), "TRIPTYCH_PARTICIPANT_ID": str(number)}


def _left_behind_s(port: Path) -> float:
    """When a shared-memory port was made, 0 if it is not there: the older, the less likely somebody still uses it."""
    try:
        return port.stat().st_mtime
    except OSError:
        return 0.0


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except (OSError, OverflowError):
            return False
    return True


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """State of the shared-memory file system, in bytes; ``problem`` and ``remedy`` are empty when it suffices."""

    total: int
    free: int
    needed: int
    problem: str = ""
    remedy: str = ""


def shared_memory(processes: int, folder: Path = SHM_FOLDER) -> SharedMemory:
    """Whether the segments of ``processes`` more processes fit.

    A segment that does not fit is no error to Fast DDS: the process falls back to UDP and nearly all images are lost,
    so this is worth asking before the start.
    """
    needed = processes * SEGMENT_COST_BYTES
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return SharedMemory(0, 0, needed, f"no shared memory at {folder} ({error.strerror})", "mount a tmpfs there")
    if usage.free >= needed:
        return SharedMemory(usage.total, usage.free, needed)
    return SharedMemory(
        usage.total,
        usage.free,
        needed,
        f"{folder} has {usage.free // MIB} MiB free, {processes} processes need {needed // MIB} MiB; "
        "without it images go over UDP and most are lost",
        f"enlarge it (sudo mount -o remount,size={max(1, -(-needed * 2 // (1024 * MIB)))}G {folder}; "
        "docker run --shm-size or --ipc=host)",
    )


def abandoned(folder: Path = SHM_FOLDER) -> list[tuple[Path, int]]:
    """Files of segments whose process was killed, with their sizes in bytes.

    Fast DDS leaves the segment of a killed process behind for ever. It marks segments in use by an flock on a file
    beside them, which the kernel drops with the process. Files younger than two seconds are left alone: their owner may
    be about to take the lock. So are files of other users.
    """
    found: list[tuple[Path, int]] = []
    for lock in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not _LOCK_NAME.match(lock.name) or not _unused(lock):
            continue
        for file in (lock.with_name(lock.name[:-3]), lock):
            try:
                found.append((file, file.stat().st_size))
            except OSError:  # gone meanwhile
                continue
    return found


def release_abandoned(folder: Path = SHM_FOLDER) -> int:
    """Delete what :func:`abandoned` finds; returns how many bytes that freed. To be called before the stack starts."""
    freed = 0
    for file, size in abandoned(folder):
        try:
            file.unlink()
        except OSError:  # gone meanwhile, or not ours
            continue
        freed += size
    return freed


def _unused(lock: Path) -> bool:
    try:
        if time.time() - lock.stat().st_mtime < _ABANDONED_AGE_S:
            return False
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
