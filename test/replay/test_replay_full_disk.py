"""Whatever writes files here, on a disk without room: one sentence, the older file untouched, nothing half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from test_replay_record import full_record

from full_disk import small_disk
from triptych.calibrate import output
from triptych.contract import Odometry, TriptychError
from triptych.remote import Event, Outbox
from triptych.remote.reporter import Report
from triptych.replay import lockstep
from triptych.replay import record as rec
from triptych.replay.writer import BagWriter
from triptych.report.schema import write_text

LONG = 20_000


def save_record(folder: Path, entries: int) -> None:
    record = full_record()
    record.odometry += [rec.OdometryRecord(n, Odometry(n, 1.0)) for n in range(entries)]
    record.save(folder / "file")


def write_report(folder: Path, entries: int) -> None:
    write_text(folder / "file", "x" * 100 * entries)


def write_calibration(folder: Path, entries: int) -> None:
    output._write(folder / "file", "x" * 100 * entries)


def write_bag(folder: Path, entries: int) -> None:
    with BagWriter(folder / "file", storage="mcap", overwrite=True) as bag:
        for number in range(entries + 1):
            bag.write_record("odometry", Odometry(number, float(number)), number)


def write_bag_sqlite(folder: Path, entries: int) -> None:
    with BagWriter(folder / "file", storage="sqlite3", overwrite=True) as bag:
        for number in range(entries + 1):
            bag.write_record("odometry", Odometry(number, float(number)), number)


def write_decisions(folder: Path, entries: int) -> None:
    with lockstep._Outputs(folder / "file", False) as outputs:
        for number in range(entries):
            outputs.decide({"kind": "end", "number": number, "more": "x" * 50})
        outputs.finish(full_record())


def content(path: Path) -> Any:
    if path.is_dir():
        return {p.name: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return path.read_bytes()


@pytest.mark.parametrize(
    "write", [save_record, write_report, write_calibration, write_bag, write_bag_sqlite, write_decisions]
)
def test_a_writer_without_room_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, write: Callable[[Path, int], None]
) -> None:
    """Some room, but not enough; then all of it again."""
    with small_disk(tmp_path) as disk:
        write(disk.path, 3)
        before = content(disk.path / "file")
        with pytest.raises((TriptychError, OSError), match=r"No space left|full"):
            write(disk.path, LONG)
        assert content(disk.path / "file") == before
        assert [p.name for p in disk.path.iterdir()] == ["file"]
        write(disk.path, 4)
        assert content(disk.path / "file") != before


def test_a_line_that_did_not_fit_is_cut_away_and_later_ones_follow(tmp_path: Path) -> None:
    """The record stays whole: no torn line in the midst of it, no hole."""
    with small_disk(tmp_path, 64) as disk:
        (disk.path / "filler").write_bytes(bytes(8192))
        writer = rec.RecordWriter(disk.path / "r.jsonl", {"mode": "live"})
        with pytest.raises(OSError, match="No space left"):
            for number in range(LONG):
                writer.add(rec.Event(number, "somebody", "x" * 97))
        kept = number
        lines = writer.part.read_bytes().split(b"\n")
        assert lines[-1] == b"" and all(json.loads(line) for line in lines[:-1]) and len(lines) == kept + 2
        with pytest.raises(OSError, match="No space left"):
            writer.add(rec.Event(number, "somebody", "x" * 5000))
        disk.free()
        writer.add(rec.Event(LONG, "s", "y"))
        writer.close()
        back = rec.RunRecord.load(disk.path / "r.jsonl")
        assert [e.t_ns for e in back.events] == [*range(kept), LONG] and back.warnings == []


def test_a_record_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path, 64) as disk:
        with pytest.raises(OSError, match="No space left"):
            rec.RecordWriter(disk.path / "r.jsonl", {"mode": "x" * 100_000})
        assert list(disk.path.iterdir()) == []


def test_the_queue_of_messages_goes_on_in_memory_and_is_whole_again(tmp_path: Path) -> None:
    """A real disk: what was accepted before is there after a crash, what came later once there is room."""
    event = Event(str(uuid4()), "MRC", 1, "x" * 160, (), True)
    with small_disk(tmp_path, 128) as disk:
        (disk.path / "filler").write_bytes(bytes(80 * 1024))
        path = disk.path / "queue"
        box = Outbox(path, 5000, "car")
        while not box.disk_error:
            box.put(Report(event, "entered", None, 1, 1))
        assert "No space left" in box.disk_error and str(path) in box.disk_error
        accepted = len(box) - 1
        disk.fill()
        box.put(Report(event, "entered", None, 1, 1))
        box.delivered(1)
        assert box.head() is not None and len(box) == accepted + 1 and box.disk_error
        box.close()  # the process is gone; the next one starts on the same full disk
        again = Outbox(path, 5000, "car")
        assert [x.number for x in again.letters][:accepted] == list(range(1, accepted + 1))
        assert again.disk_error and again.damaged == 0
        disk.free()
        for number in range(1, accepted):
            again.delivered(number)
        assert again.disk_error == ""
        waiting = again.letters
        again.close()
        last = Outbox(path, 5000, "car")
        assert last.letters == waiting and last.disk_error == ""
        last.close()


def test_the_kind_of_disk_used_here_is_real(tmp_path: Path) -> None:
    """Full means full; free again means free."""
    with small_disk(tmp_path, 64) as disk:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.path / "x").write_bytes(np.zeros(10, np.uint8).tobytes())
        disk.free()
        (disk.path / "x").write_bytes(b"y")
