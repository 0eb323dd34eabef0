"""The safety properties of PROPERTIES.md about what cannot be written."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st
from supervisor_rig import Rig, driving
from test_properties_supervisor import happen, well_again

from triptych.contract import DegradationState
from triptych.nodes import latch
from triptych.nodes.latch import Latch

S = DegradationState
ROOM, FULL, READ_ONLY = "room", "full", "read-only"
ERRORS = {FULL: errno.ENOSPC, READ_ONLY: errno.EROFS}


class Disk:
    """Takes what the real one of its kind takes (``test/nodes/test_latch.py`` has those): a full one no new name, a
    read-only one nothing."""

    def __init__(self) -> None:
        self.kind = ROOM

    def refuse(self, *kinds: str) -> None:
        if self.kind in kinds:
            raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]))

    def open(self, path: Path, *rest: Any) -> int:
        if not path.exists():
            self.refuse(FULL, READ_ONLY)
        return os.open(path, *rest)

    def replace(self, here: Path, there: Path) -> None:
        here.lstat()
        self.refuse(READ_ONLY)
        os.replace(here, there)


@contextmanager
def mounted(disk: Disk) -> Iterator[Path]:
    """A folder on it for the latch."""
    real = {name: getattr(os, name) for name in ("O_WRONLY", "O_CREAT", "O_CLOEXEC", "close")}
    fake = mock.Mock(spec_set=["open", "replace", *real], open=disk.open, replace=disk.replace, **real)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(latch, "os", fake):
        yield Path(folder)


events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *(f"disk {kind}" for kind in (ROOM, FULL, READ_ONLY)), "die", "die", "stop detector", "well again",
                "unsure", "sure", "override", "release", "takeover", "reset", "stand",
            ]
        ),
        st.integers(1, 120),
    ),
    max_size=16,
)  # fmt: skip
LOSS = [("stop detector", 60), ("well again", 60)]


@given(events, st.sampled_from([ROOM, FULL, READ_ONLY]))
@example([*LOSS, ("disk read-only", 1), ("die", 99)], ROOM)
@example([("disk read-only", 1), *LOSS, ("die", 99)], ROOM)
@example([("disk full", 1), *LOSS, ("die", 99)], ROOM)
@example([("stand", 99), ("stand", 99), ("reset", 99), *LOSS, ("die", 99)], FULL)
@example([*LOSS, ("disk room", 1), ("die", 99)], FULL)
def test_p44_a_full_disk_never_makes_the_command_less_safe(sequence: list[tuple[str, int]], begins: str) -> None:
    """P-44 (A8): whatever the disk takes, and whenever the supervisor dies: what was latched is latched again."""
    disk = Disk()
    with mounted(disk) as folder:
        path = str(folder / "latch")
        disk.kind, always_room = begins, begins == ROOM
        memory = Latch(path)
        rig = driving(5.0)
        if memory.read():
            rig = Rig(latched=True)
            assert begins != ROOM, "a first start is no restart"
        for event, ticks in sequence:
            if event == "die":
                before, memory = rig.core.latched, Latch(path)
                remembered = memory.read()
                assert remembered or not before
                assert remembered is before or not always_room, "no false alarm on a good disk"
                rig = Rig(latched=remembered)
                if remembered:
                    rig.run(0.1)
                    assert rig.state in {S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC}
                    assert set(rig.limits_mps) == {0.0} and rig.constraint.hazard_lights
            elif event.startswith("disk"):
                disk.kind = event.removeprefix("disk ")
                always_room &= disk.kind == ROOM
            elif event == "well again":
                well_again(rig)
            elif event == "stand":
                rig.speed_mps = 0.0
            else:
                happen(rig, event)
            for _ in range(ticks):
                rig.tick()
                memory.write(rig.core.latched)
                memory.keep()
                holds = (folder / "latch").exists() is rig.core.latched
                assert holds or memory.fault, "what the disk does not hold is said"
