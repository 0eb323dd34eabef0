"""What of this machine decides over punctuality, and the few kernel settings that ``triptych rt --apply`` writes.

Rows the doctor has as well come from :mod:`triptych.doctor.machine`. All paths are below a root, for the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from triptych.doctor.machine import governor, read, real_time
from triptych.doctor.report import Level, Row

SWAPPINESS_MOST = 10
"""The kernel's default of 60 swaps out a model that has not been asked for a while."""
SECTION = "Real time"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value to write.

    Attributes:
        row: name of the row that asks for it.
        path: pattern of files below the root.
        value: what to write.
    """

    row: str
    path: str
    value: str


SETTINGS: tuple[Setting, ...] = (
    Setting("frequency governor", "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor", "performance"),
    Setting("real-time share", "proc/sys/kernel/sched_rt_runtime_us", "950000"),
    Setting("swappiness", "proc/sys/vm/swappiness", str(SWAPPINESS_MOST)),
    Setting("autogroup", "proc/sys/kernel/sched_autogroup_enabled", "0"),
)
"""Until the next start of the machine; what stays belongs into /etc/sysctl.d."""


def examine(root: Path = Path("/")) -> list[Row]:
    """Every row; nothing is changed."""
    return [row for check in CHECKS for row in check(root)]


def isolated(root: Path = Path("/")) -> Iterator[Row]:
    """Cores the scheduler keeps free of other work."""
    path = root / "sys/devices/system/cpu/isolated"
    cpus = read(path)
    yield Row(
        SECTION,
        "isolated cores",
        Level.OK if cpus else Level.MISSING,
        cpus or "none",
        ""
        if cpus
        else "any process may run on the cores of camera, detector and supervisor; their priority wins there",
        "" if cpus else "boot with isolcpus=0 (nohz_full=0 rcu_nocbs=0) and name the core in the parameter cpus",
    )


def swapping(root: Path = Path("/")) -> Iterator[Row]:
    """Whether pages of a waiting process may leave the memory."""
    text = read(root / "proc/sys/vm/swappiness")
    swap = len(read(root / "proc/swaps").splitlines()) > 1
    if not text.isdigit():
        yield _unknown("swappiness", "proc/sys/vm/swappiness")
        return
    eager = swap and int(text) > SWAPPINESS_MOST
    yield Row(
        SECTION,
        "swappiness",
        Level.WARN if eager else Level.OK,
        f"{text}, {'swap in use' if swap else 'no swap'}",
        "a model that waits may be swapped out, and its next answer is late by the time the disk takes"
        if eager
        else "",
        f"sudo sysctl vm.swappiness={SWAPPINESS_MOST}, or lock_memory: true" if eager else "",
    )


def autogroup(root: Path = Path("/")) -> Iterator[Row]:
    """Whether nice values count between sessions."""
    on = read(root / "proc/sys/kernel/sched_autogroup_enabled")
    if on not in ("0", "1"):
        yield Row(SECTION, "autogroup", Level.OK, "not in this kernel")
        return
    yield Row(
        SECTION,
        "autogroup",
        Level.WARN if on == "1" else Level.OK,
        "on" if on == "1" else "off",
        "nice counts within a session only: a shell's load weighs as much as the whole stack" if on == "1" else "",
        "sudo sysctl kernel.sched_autogroup_enabled=0" if on == "1" else "",
    )


def _unknown(name: str, path: str) -> Row:
    return Row(SECTION, name, Level.MISSING, "unknown", f"/{path} cannot be read", "look at it outside the container")


CHECKS: tuple[Callable[[Path], Iterator[Row]], ...] = (real_time, governor, isolated, swapping, autogroup)
"""In the order of the report."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file written, or not: ``problem`` says why."""

    path: str
    before: str
    after: str
    problem: str = ""


def apply(rows: list[Row], root: Path = Path("/")) -> list[Change]:
    """Write the settings of all rows that are WARN; what is not permitted is reported and left as it was."""
    wanting = {row.name for row in rows if row.level is Level.WARN}
    changes = []
    for setting in SETTINGS:
        if setting.row not in wanting:
            continue
        for path in sorted(root.glob(setting.path)):
            before = read(path)
            try:
                path.write_text(setting.value)
            except OSError as error:
                changes.append(Change(str(path), before, before, error.strerror or str(error)))
            else:
                changes.append(Change(str(path), before, read(path)))
    return changes
