"""The supervisor's memory across restarts, on disks with and without room."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from node_peer import Peer

from full_disk import no_room, small_disk
from triptych.contract import DegradationState
from triptych.nodes import convert, latch, topics
from triptych.nodes.latch import READY, Latch
from triptych.nodes.supervisor_node import SupervisorNode
from triptych_ros.msg import MotionConstraint


def wait(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_manoeuvre_is_remembered_until_it_is_reset(tmp_path: Path) -> None:
    """Across any number of restarts, and the first start of all is none; the folder is made."""
    path = tmp_path / "deep" / "latch"
    said: list[str] = []
    for wanted, remembered in ((True, False), (True, True), (False, True), (False, False)):
        memory = Latch(str(path), said.append)
        assert memory.read() is remembered
        memory.write(wanted)
        memory.keep()
        assert path.exists() is wanted and memory.fault == ""
    assert said == [] and {p.name for p in path.parent.iterdir()} == {"latch" + READY}


def test_an_empty_path_remembers_nothing() -> None:
    memory = Latch("")
    assert memory.read() is False
    memory.start()
    memory.write(True)
    memory.keep()
    memory.close()
    assert memory.fault == "" and Latch("").read() is False


def test_the_thread_writes_what_was_wanted_last(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    memory = Latch(str(path))
    memory.read()
    memory.start()
    memory.write(True)
    wait(path.exists)
    for wanted in [False, True] * 50 + [False]:
        memory.write(wanted)
    wait(lambda: not path.exists())
    memory.write(True)
    memory.close()
    assert path.exists(), "what was asked for just before the end is done"


def test_a_full_disk_takes_the_latch_all_the_same(tmp_path: Path) -> None:
    """Remembering and forgetting are renames of a file that was made when there was room: tried on a real full disk."""
    with small_disk(tmp_path) as disk:
        path = disk.path / "latch"
        memory = Latch(str(path))
        assert memory.read() is False
        disk.fill()
        for wanted in (True, False, True):
            memory.write(wanted)
            memory.keep()
            assert memory.fault == "" and path.exists() is wanted
            assert Latch(str(path)).read() is wanted, "a restart meets the full disk, too"


def test_a_disk_that_was_full_from_the_start_is_reported_and_counts_as_latched(tmp_path: Path) -> None:
    """Also after a reset; with room again it is made up for, and the next run knows."""
    with small_disk(tmp_path) as disk:
        disk.fill()
        path, said = disk.path / "latch", list[str]()
        memory = Latch(str(path), said.append)
        assert memory.read() is True
        assert str(path) in memory.fault and "No space left" in memory.fault and "make room" in memory.fault
        memory.write(False)
        memory.keep()
        memory.keep()
        assert said == [memory.fault], "said once, not every second"
        assert Latch(str(path)).read() is True
        disk.free()
        memory.keep()
        assert memory.fault == "" and Latch(str(path)).read() is False


def test_a_start_on_a_full_disk_is_written_down_as_soon_as_there_is_room(tmp_path: Path) -> None:
    """It counts as a manoeuvre, and a restart before the reset must find it, though the state never changed."""
    with small_disk(tmp_path) as disk:
        disk.fill()
        memory = Latch(str(disk.path / "latch"))
        assert memory.read() is True
        disk.free()
        memory.keep()
        assert memory.fault == "" and Latch(str(disk.path / "latch")).read() is True


@pytest.mark.parametrize("latched", [False, True])
def test_a_disk_that_turned_read_only_is_reported_and_counts_as_latched(tmp_path: Path, latched: bool) -> None:
    """As a kernel turns one that has errors: what was remembered before may not be what holds now."""
    with small_disk(tmp_path) as disk:
        path = disk.path / "latch"
        memory = Latch(str(path))
        memory.read()
        memory.write(not latched)
        memory.keep()
        disk.read_only(True)
        memory.write(latched)
        memory.keep()
        assert "Read-only" in memory.fault
        assert Latch(str(path)).read() is True
        disk.read_only(False)
        memory.keep()
        assert memory.fault == "" and Latch(str(path)).read() is latched


def test_without_the_right_to_mount_the_same_errors_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC from every call that asks for room: no file can be made, renames go on."""
    path = tmp_path / "latch"
    real = os.open
    monkeypatch.setattr(latch.os, "open", no_room)
    memory = Latch(str(path))
    assert memory.read() is True and "No space left" in memory.fault
    monkeypatch.setattr(latch.os, "open", real)
    memory.write(False)
    memory.keep()
    monkeypatch.setattr(latch.os, "open", no_room)
    memory.write(True)
    memory.keep()
    assert memory.fault == "" and path.exists()


def test_a_fault_that_no_longer_matters_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be remembered was over before the disk was well again."""
    memory = Latch(str(tmp_path / "latch"))
    memory.read()

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(latch.os, "replace", broken)
    memory.write(True)
    memory.keep()
    assert "Input/output error" in memory.fault
    memory.write(False)
    memory.keep()
    assert memory.fault == ""


def test_files_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "latch"
    memory = Latch(str(path))
    memory.read()
    (path.parent / ("latch" + READY)).unlink()
    path.parent.rmdir()
    memory.write(True)
    memory.keep()
    assert path.exists() and memory.fault == ""


def test_a_supervisor_that_cannot_remember_holds_the_vehicle_and_says_why(peer: Peer, tmp_path: Path) -> None:
    """A real node: it lives, its first word is a stop, and its diagnostics name file and remedy."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "latch"
    constraints = peer.hear(topics.CONSTRAINT, MotionConstraint, convert.constraint_from_msg)
    reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
    peer.start(SupervisorNode, "supervisor", latch_file=str(path))

    def told() -> list[Any]:
        return [s for r in reports for s in r.status if s.name == "triptych: supervisor"]

    peer.until(lambda: told() and len(constraints) > 3)
    assert all(c.speed_limit_mps == 0.0 and c.hazard_lights for c in constraints)
    assert {c.state for c in constraints} == {DegradationState.L1_MINIMAL_RISK_MANOEUVRE}
    status = told()[-1]
    assert status.level == b"\x02" and str(path) in status.message and "make room" in status.message


def test_what_is_to_be_remembered_as_the_node_ends_is_kept(tmp_path: Path) -> None:
    """The thread was just done with the disk when the last word and the end came."""
    path = tmp_path / "latch"
    latch = Latch(str(path))
    assert latch.read() is False
    keep, ended = latch.keep, []

    def keep_and_end() -> None:
        keep()
        if not ended:
            ended.append(True)
            latch.write(True)
            latch.close()

    latch.keep = keep_and_end  # type: ignore[method-assign]
    latch._run(path)
    assert path.exists()
