"""The machine: processor, memory, disk, clock and what the kernel permits in real time."""

from __future__ import annotations

import ctypes
import os
import platform
import resource as limits
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from triptych.doctor.report import Level, Row

GIB = 1024**3
RECOMMENDED_CORES = 2  # the budgets are measured on two (docs/performance.md)
MEMORY_WARN_BYTES, MEMORY_FAIL_BYTES = 2 * GIB, GIB  # free; the stack with its segments took about 1.5 GiB
DISK_WARN_BYTES, DISK_FAIL_BYTES = 2 * GIB, GIB // 5  # a recorded minute is about 100 MiB
TIMER_WARN_MS = 2.0  # a late wake-up eats into the 30 ms of the detector
RT_PRIORITY = 30  # the highest one the nodes ask for (nodes/realtime.py)
FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter")
INT8_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
SIMD_FLAGS = ("avx2", "fma", "avx512f", *INT8_FLAGS, "asimd")

_TIME_ERROR = 5  # adjtimex: clock not synchronised


def processor() -> Iterator[Row]:
    """Model, instruction sets, usable cores, frequency governor and load."""
    section = "Machine"
    model, flags = cpu_information()
    simd = [flag for flag in SIMD_FLAGS if flag in flags]
    int8 = [flag for flag in INT8_FLAGS if flag in flags]
    slow = platform.machine() == "x86_64" and "avx2" not in flags
    why = f"INT8 instructions: {', '.join(int8)}" if int8 else "no INT8 instructions: INT8 engines save space, not time"
    yield Row(
        section,
        "processor",
        Level.WARN if slow else Level.OK,
        f"{model} ({' '.join(simd) or 'no SIMD extension known'})",
        "no AVX2: inference takes several times longer" if slow else why,
        "expect the VLM tiers to miss their budgets, or use another machine" if slow else "",
    )
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cpu_quota()
    cores = min(float(usable), quota) if quota else float(usable)
    few = cores < RECOMMENDED_CORES
    yield Row(
        section,
        "cores",
        Level.WARN if few else Level.OK,
        f"{usable} of {present} usable" + (f", limited to {quota:g} by a control group" if quota else ""),
        "the tiers compete for one core" if few else "",
        "give the container or the process at least 2 cores" if few else "",
    )
    yield from governor()
    load = os.getloadavg()[0]
    busy = load > 0.5 * cores
    yield Row(
        section,
        "load",
        Level.WARN if busy else Level.OK,
        f"{load:.1f} over the last minute",
        "other programs use the cores; measurements will show it" if busy else "",
        "stop them before measuring" if busy else "",
    )


def governor(root: Path = Path("/")) -> Iterator[Row]:
    """Frequency governor, where the kernel shows one."""
    chosen = read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if chosen:
        lazy = chosen not in ("performance", "schedutil")
        yield Row(
            "Machine",
            "frequency governor",
            Level.WARN if lazy else Level.OK,
            chosen,
            "the clock rises only after the load has come" if lazy else "",
            "sudo cpupower frequency-set -g performance (Jetson: sudo jetson_clocks)" if lazy else "",
        )


def memory_and_disk(folder: Path | None = None) -> Iterator[Row]:
    """Free memory, and free space where results are written (the current folder by default)."""
    memory = psutil.virtual_memory()
    yield _amount(
        "memory", memory.available, memory.total, MEMORY_WARN_BYTES, MEMORY_FAIL_BYTES, "free", "close other programs"
    )
    folder = folder or Path.cwd()
    disk = shutil.disk_usage(folder)
    remedy = f"free some space or name another folder with --out (looked at {folder})"
    yield _amount("disk", disk.free, disk.total, DISK_WARN_BYTES, DISK_FAIL_BYTES, "free for results", remedy)


def _amount(name: str, free: int, total: int, warn: int, fail: int, what: str, remedy: str) -> Row:
    level = Level.FAIL if free < fail else Level.WARN if free < warn else Level.OK
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB {what}"
    reason = "" if level is Level.OK else f"at least {warn / GIB:g} GiB is advised"
    return Row("Machine", name, level, text, reason, "" if level is Level.OK else remedy)


def clock() -> Iterator[Row]:
    """Clock source, synchronisation, PTP hardware, and how late a sleeping thread wakes up."""
    section = "Clock"
    source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = bool(source) and source not in FAST_CLOCKS
    yield Row(
        section,
        "clock source",
        Level.WARN if slow or not source else Level.OK,
        source or "unknown",
        "reading it costs microseconds each time" if slow else "monotonic clock for deadlines, UNIX time for stamps",
        "boot with tsc (kernel parameter tsc=reliable) if the processor supports it" if slow else "",
    )
    synchronised, error_s = clock_synchronisation()
    yield Row(
        section,
        "synchronisation",
        Level.OK if synchronised else Level.WARN,
        f"yes, error at most {error_s * 1e3:.1f} ms" if synchronised else "no",
        ""
        if synchronised
        else "ages of frames stamped by another machine are wrong by the clocks' difference; "
        "without effect while camera and stack share this machine",
        "" if synchronised else "run chrony or ptp4l with phc2sys",
    )
    devices = sorted(path.name for path in Path("/dev").glob("ptp*"))
    yield Row(section, "PTP hardware clock", Level.OK, ", ".join(devices) or "none")
    late_ms = wake_up_delay_ms()
    late = late_ms > TIMER_WARN_MS
    yield Row(
        section,
        "wake-up delay",
        Level.WARN if late else Level.OK,
        f"{late_ms:.2f} ms (worst but one of 100 sleeps of 1 ms)",
        "deadlines will be served late without real-time priority" if late else "",
        "permit real-time priorities (below), stop other load" if late else "",
    )


def real_time(root: Path = Path("/")) -> Iterator[Row]:
    """Kernel preemption, real-time priority, negative nice values and locked memory."""
    section = "Real time"
    version = read(root / "proc/version") or platform.version()
    preempt = read(root / "sys/kernel/realtime") == "1" or "PREEMPT_RT" in version
    yield Row(
        section,
        "kernel",
        Level.OK if preempt else Level.MISSING,
        f"{platform.release()}, {'PREEMPT_RT' if preempt else 'not PREEMPT_RT'}",
        "" if preempt else "the kernel itself may delay a wake-up by milliseconds; the budgets were measured like this",
        ""
        if preempt
        else "install a kernel with PREEMPT_RT (Ubuntu: pro enable realtime-kernel; Jetson: its RT kernel)",
    )
    obtained, why = priority_obtainable()
    limit = limits.getrlimit(limits.RLIMIT_RTPRIO)[0]
    yield Row(
        section,
        "priority",
        Level.OK if obtained else Level.WARN,
        f"SCHED_RR {RT_PRIORITY} obtainable" if obtained else f"not permitted ({why})",
        f"RLIMIT_RTPRIO is {_limit(limit)}"
        + ("" if obtained else "; beside other load the detector's p99 doubled without it"),
        ""
        if obtained
        else f"add '@realtime - rtprio {RT_PRIORITY}' to /etc/security/limits.conf and join that group; "
        f"docker run --cap-add=SYS_NICE --ulimit rtprio={RT_PRIORITY}",
    )
    runtime = read(root / "proc/sys/kernel/sched_rt_runtime_us")
    if runtime:
        none = runtime == "0"
        yield Row(
            section,
            "real-time share",
            Level.WARN if none else Level.OK,
            "unlimited" if runtime == "-1" else f"{int(runtime) / 1e4:.0f} % of each second",
            "real-time threads never run" if none else "",
            "sudo sysctl kernel.sched_rt_runtime_us=950000" if none else "",
        )
    locked = limits.getrlimit(limits.RLIMIT_MEMLOCK)[0]
    enough = os.geteuid() == 0 or locked == limits.RLIM_INFINITY or locked >= GIB
    yield Row(
        section,
        "locked memory",
        Level.OK if enough else Level.WARN,
        f"RLIMIT_MEMLOCK is {_limit(locked)}" + (" (root: no limit)" if os.geteuid() == 0 else ""),
        "" if enough else "only matters with lock_memory: true",
        "" if enough else "add '@realtime - memlock unlimited' to /etc/security/limits.conf",
    )


def cpu_information(path: Path = Path("/proc/cpuinfo")) -> tuple[str, frozenset[str]]:
    """Processor model and its feature flags, from /proc/cpuinfo of x86 or ARM."""
    fields: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip().lower(), value.strip())
    model = fields.get("model name") or fields.get("hardware") or platform.machine()
    return model, frozenset((fields.get("flags") or fields.get("features") or "").split())


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores a control group (version 2) allows, None for no limit."""
    quota, _, period = read(path).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def clock_synchronisation() -> tuple[bool, float]:
    """Whether the kernel says that its clock is disciplined, and its bound of the error in seconds."""
    fields = [
        *(("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long)),
        *(("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int)),
        ("rest", ctypes.c_byte * 256),
    ]
    timex = type("Timex", (ctypes.Structure,), {"_fields_": fields})()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    return 0 <= state < _TIME_ERROR, timex.maxerror / 1e6


def wake_up_delay_ms(sleeps: int = 100) -> float:
    """Worst but one delay beyond a sleep of 1 ms, in milliseconds."""
    delays = []
    for _ in range(sleeps):
        start = time.monotonic_ns()
        time.sleep(0.001)
        delays.append((time.monotonic_ns() - start) / 1e6 - 1.0)
    return sorted(delays)[-2]


def priority_obtainable(priority: int = RT_PRIORITY) -> tuple[bool, str]:
    """Try SCHED_RR on a thread that ends at once; (whether it worked, why not)."""
    outcome: list[str] = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
        except OSError as error:
            outcome.append(error.strerror or str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return not outcome, "".join(outcome)


def read(path: Path | str) -> str:
    """Content of a small file without surrounding white space, empty when it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _limit(value: int) -> str:
    return "unlimited" if value == limits.RLIM_INFINITY else str(value)
