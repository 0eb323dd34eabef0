"""The queue: its order, its bound, its file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from remote_rig import letter, report

from triptych.contract import ConfigError
from triptych.remote import Backoff, Outbox, Queue
from triptych.remote.journal import line, parse
from triptych.remote.outbox import DEAD_LINES
from triptych.remote.queue import REFUSALS

SRC = Path(__file__).parents[2] / "src"


def numbers(box: Outbox | Queue) -> list[int]:
    return [x.number for x in box.letters]


# -- order and bound ---------------------------------------------------------------------------------------------------


def test_routine_messages_make_room_first_and_the_newest_mrc_never_does() -> None:
    """Oldest routine, then oldest urgent; a queue full of what matters more does not take a routine one."""
    queue = Queue(4, [letter(1, state="MRC"), letter(2, urgent=False), letter(3, urgent=False), letter(4, state="L1")])
    assert [x.number for x in queue.offer(letter(5, state="L1"))] == [2]
    assert [x.number for x in queue.offer(letter(6, state="L1"))] == [3]
    assert [x.number for x in queue.offer(letter(7, urgent=False))] == [7]
    assert [x.number for x in queue.offer(letter(8, state="L1"))] == [4]
    assert numbers(queue) == [1, 5, 6, 8]
    assert [x.number for x in queue.offer(letter(9, state="MRC"))] == [1]


@pytest.mark.parametrize("limit", [3, 0, -1])
def test_a_queue_too_small_for_its_promise_is_refused(limit: int) -> None:
    """4 is the least."""
    with pytest.raises(ConfigError, match="queue_limit"):
        Queue(limit)
    Queue(4)


def test_a_refused_message_lets_the_others_pass_with_its_event_behind_it() -> None:
    """Order within the event stays; a routine one is given up after five refusals, an urgent one never."""
    queue = Queue(9, [letter(1, event="a"), letter(2, event="b", urgent=False), letter(3, event="a", urgent=False)])
    assert not queue.refuse(1)
    assert numbers(queue) == [2, 1, 3]
    for _ in range(REFUSALS - 1):
        assert not queue.refuse(2)
    assert queue.refuse(2)
    for _ in range(3 * REFUSALS):
        assert not queue.refuse(1)
    assert numbers(queue) == [1, 3]
    assert not queue.refuse(99)


def test_the_wait_doubles_up_to_a_greatest_with_jitter_and_starts_again_after_a_success() -> None:
    """Between half and the whole of 1, 2, 4, 8, 10, 10 s; also after a thousand failures."""
    backoff = Backoff(1.0, 10.0, random.Random(1))
    for whole in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert whole / 2 <= backoff.failed() <= whole
    for _ in range(1000):
        assert backoff.failed() <= 10.0
    backoff.succeeded()
    assert backoff.failed() <= 1.0
    assert len({Backoff(1.0, 10.0, random.Random(k)).failed() for k in range(20)}) > 10
    for first, greatest in ((0.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match="retry_first_s"):
            Backoff(first, greatest)


# -- file --------------------------------------------------------------------------------------------------------------


def test_what_was_put_in_is_there_again_after_a_restart(tmp_path: Path) -> None:
    """Letters, the next number and the last event; what was delivered is not."""
    path = tmp_path / "deep" / "queue.jsonl"
    box = Outbox(path, 10, "car")
    for k in range(4):
        box.put(report(f"event {k}"))
    box.delivered(2)
    waiting, event = box.letters, box.last_event
    box.close()
    again = Outbox(path, 10, "car")
    assert (again.letters, again.last_event, again.damaged) == (waiting, event, 0)
    assert again.put(report("next")).number == 5
    for number in (1, 3, 4, 5):
        again.delivered(number)
    again.close()
    empty = Outbox(path, 10, "car")
    assert len(empty) == 0 and empty.put(report("later")).number == 6
    empty.close()
    assert path.stat().st_mode & 0o077 == 0


def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_counted(tmp_path: Path) -> None:
    """Every length of the last line; then a flipped bit in the middle."""
    path = tmp_path / "queue.jsonl"
    box = Outbox(path, 10, "car")
    box.put(report("one"))
    box.put(report("two"))
    box.close()
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        assert len(parse(whole[:cut])[0]) == 2 and parse(whole[:cut])[1] == 0
    path.write_bytes(whole[:-3])
    box = Outbox(path, 10, "car")
    assert numbers(box) == [1] and box.put(report("three")).number == 2
    box.close()
    box = Outbox(path, 10, "car")
    assert numbers(box) == [1, 2]
    box.close()
    data = bytearray(path.read_bytes())
    data[data.index(b'"letter"') + 3] ^= 1
    path.write_bytes(bytes(data))
    box = Outbox(path, 10, "car")
    assert box.damaged == 1 and numbers(box) == [2]
    box.close()


def test_any_rubbish_is_no_file_of_ours_and_no_crash() -> None:
    """Lines without a CRC, with another one, or without JSON."""
    good = line({"next": 3})
    for rubbish in (b"\n", b"hello\n", b"zz {}\n", b"00000000 {}\n", b"\xff\xfe\n", good[:-2] + b"\n"):
        assert parse(rubbish + good) == ([{"next": 3}], 1)


def test_the_file_stays_small(tmp_path: Path) -> None:
    """Ten times the dead lines: it was written anew in between, and nothing is left beside it."""
    path = tmp_path / "queue.jsonl"
    box = Outbox(path, 8, "car")
    most = 0
    for k in range(5 * DEAD_LINES):
        box.delivered(box.put(report(f"{k}")).number)
        most = max(most, path.read_bytes().count(b"\n"))
    assert most <= DEAD_LINES + 16
    assert {p.name for p in tmp_path.iterdir()} == {"queue.jsonl", "queue.jsonl.lock"}
    box.close()


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    """Two couriers would deliver everything twice and lose each other's letters."""
    box = Outbox(tmp_path / "q", 8, "car")
    with pytest.raises(ConfigError, match="in use by another process"):
        Outbox(tmp_path / "q", 8, "car")
    sent = box.put(report("late"))
    box.close()
    again = Outbox(tmp_path / "q", 8, "car")
    before = (tmp_path / "q").read_bytes()
    box.delivered(sent.number)
    assert (tmp_path / "q").read_bytes() == before and numbers(again) == [sent.number]
    again.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="queue_file"):
        Outbox(tmp_path / "file" / "q", 8, "car")


def test_a_failing_disk_is_said_and_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space: the queue goes on in memory; with space again the next change writes everything."""
    path = tmp_path / "q"
    box = Outbox(path, 8, "car")
    real = os.fsync

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    box.put(report("one"))
    assert "No space left" in box.disk_error and numbers(box) == [1]
    box.put(report("two"))
    monkeypatch.setattr(os, "fsync", real)
    box.put(report("three"))
    assert box.disk_error == ""
    box.close()
    again = Outbox(path, 8, "car")
    assert numbers(again) == [1, 2, 3]
    again.close()


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from remote_rig import report
from triptych.remote import Outbox
box = Outbox(Path(sys.argv[1]), 10000, "car")
for k in range(100000):
    print(box.put(report(f"event {k}")).number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 300])
def test_what_was_accepted_survives_kill_9(tmp_path: Path, lines: int) -> None:
    """A process that says each number once it is accepted, killed in the midst of it."""
    path = tmp_path / "q"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    accepted = [int(process.stdout.readline()) for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    accepted += [int(text) for text in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    box = Outbox(path, 10000, "car")
    assert numbers(box)[: len(accepted)] == accepted
    assert len(box) <= len(accepted) + 1 and box.damaged == 0
    box.close()
