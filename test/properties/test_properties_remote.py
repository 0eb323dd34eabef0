"""The safety properties of remote notification in PROPERTIES.md."""

from __future__ import annotations

import ast
import random
import tempfile
import threading
import time
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import triptych
from triptych.remote import Backoff, Courier, DeliveryError, Event, Letter, Outbox
from triptych.remote.journal import line
from triptych.remote.queue import REFUSALS
from triptych.remote.reporter import Report

LIMIT = 6
STAMP_NS = 1_700_000_000_000_000_000


def report(event: int, state: str, urgent: bool) -> Report:
    made = Event(str(uuid5(NAMESPACE_URL, f"{event}")), state, STAMP_NS, "reason", (), True)
    return Report(made, "entered" if urgent else "updated", None, STAMP_NS, STAMP_NS)


class Posting(RuleBasedStateMachine):
    """Messages come, are delivered, refused, and the process dies at any byte it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "queue")
        self.box = Outbox(self.path, LIMIT, "car")
        self.waiting: dict[int, Letter] = {}
        self.delivered: list[Letter] = []
        self.refusals: dict[int, int] = {}
        self.last = 0

    def teardown(self) -> None:
        self.box.close()
        self.folder.cleanup()

    @rule(event=st.integers(0, 4), state=st.sampled_from(["MRC", "L1_MINIMAL_RISK_MANOEUVRE"]), urgent=st.booleans())
    def put(self, event: int, state: str, urgent: bool) -> None:
        """No loss but the oldest of the least, and only when there is no room."""
        letter = self.box.put(report(event, state, urgent))
        assert letter.number == self.last + 1
        self.last = letter.number
        before = {**self.waiting, letter.number: letter}
        kept = {x.number: x for x in self.box.letters}
        gone = [x for number, x in before.items() if number not in kept]
        assert len(gone) == (len(before) > LIMIT)
        for lost in gone:
            rivals = [x for x in kept.values() if x.number < lost.number]
            assert all((x.urgent and not lost.urgent) or x.of_mrc for x in rivals)
            assert not lost.urgent or all(x.urgent for x in kept.values())
            newest = max((x.number for x in before.values() if x.of_mrc), default=0)
            assert lost.number != newest
        self.waiting = kept

    @rule()
    def deliver(self) -> None:
        head = self.box.head()
        if head is not None:
            self.box.delivered(head.number)
            self.delivered.append(self.waiting.pop(head.number))

    @rule()
    def refuse(self) -> None:
        head = self.box.head()
        if head is not None:
            self.box.refused(head.number)
            self.refusals[head.number] = self.refusals.get(head.number, 0) + 1
            if not head.urgent and self.refusals[head.number] >= REFUSALS:
                del self.waiting[head.number]

    @rule(cut=st.floats(0.0, 1.0, exclude_max=True), text=st.booleans())
    def die_while_writing(self, cut: float, text: bool) -> None:
        """The process is gone with a part of its next line on disk; what was accepted before counts."""
        self.box.close()
        entry = {"letter": {"number": self.last + 1}} if text else {"gone": sorted(self.waiting)}
        whole = line(entry)
        with self.path.open("ab") as file:
            file.write(whole[: int(cut * len(whole))])
        self.box = Outbox(self.path, LIMIT, "car")
        self.refusals.clear()
        assert self.box.damaged == 0

    @rule(kept=st.booleans())
    def die_while_replacing(self, kept: bool) -> None:
        """The process is gone with a new file half written beside the old one."""
        self.box.close()
        part = self.path.with_name(self.path.name + ".part")
        part.write_bytes(self.path.read_bytes()[: 40 if kept else 0])
        self.box = Outbox(self.path, LIMIT, "car")
        self.refusals.clear()

    @invariant()
    def nothing_is_lost_and_each_event_is_in_order(self) -> None:
        assert {x.number: x for x in self.box.letters} == self.waiting
        assert len(self.waiting) <= LIMIT
        for letters in (self.delivered, list(self.box.letters)):
            for event in {x.event_id for x in letters}:
                numbers = [x.number for x in letters if x.event_id == event]
                assert numbers == sorted(set(numbers))


def test_p42_what_was_accepted_is_delivered_in_order_or_still_there() -> None:
    """Whatever is put, delivered, refused, and however often the process dies meanwhile."""
    run_state_machine_as_test(Posting, settings=settings(max_examples=150, stateful_step_count=40))  # type: ignore[no-untyped-call]


def test_p43_nobody_waits_for_the_far_end(tmp_path: Path) -> None:
    """While a delivery hangs the queue takes messages; and no module of the driving path knows of any of this."""
    hanging, release = threading.Event(), threading.Event()

    class Hanging:
        name = "hanging"

        def send(self, letter: Letter) -> None:
            hanging.set()
            release.wait(60.0)
            raise DeliveryError("at last")

        def close(self) -> None:
            release.set()

    box, far = Outbox(tmp_path / "q", 1000, "car"), Hanging()
    box.put(report(0, "MRC", True))
    courier = Courier(box, far, Backoff(1.0, 2.0, random.Random(1)), time.monotonic)
    thread = threading.Thread(target=courier.step)
    thread.start()
    assert hanging.wait(30.0)
    for k in range(100):
        box.put(report(k, "MRC", True))
    assert not release.is_set() and thread.is_alive()
    far.close()
    thread.join(30.0)
    assert len(box) == 101
    box.close()

    source = Path(triptych.__file__).parent
    for path in source.rglob("*.py"):
        known = {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        if path.parent.name != "remote" and path.name != "remote_node.py":
            assert not any(name.startswith("triptych.remote") for name in known), path
