"""The search over the supervisor: its abstraction is sound, it finds what is broken on purpose, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "supervisor"))
from supervisor_rig import FAULTS, table

from triptych.contract import ConfigError, DegradationState, InputError
from triptych.supervisor import FaultRow, SupervisorCore, arbitration, core, machine
from triptych.supervisor.faults import FaultLife
from triptych.supervisor.monitors.driver import DriverMonitor
from triptych.supervisor.monitors.loop_gap import LoopGap
from triptych.supervisor.monitors.odometry import OdometryMonitor
from triptych.verification import command
from triptych.verification.memento import NOW_NS, STAMP_OFFSET_NS, Recorder
from triptych.verification.search import Alone, Outcome, Pair, search
from triptych.verification.world import (
    BUDGETS,
    CONFIG,
    REPRESENTATIVES,
    Action,
    Detector,
    Driver,
    Request,
    Speed,
    Time,
    Vlm,
    World,
    actions,
    perform,
    selection,
)

S = DegradationState
GOES = (Speed.MOVING, Speed.STANDING)
ACTIONS = st.builds(Action, *(st.sampled_from(kind) for kind in (Detector, Vlm, Speed, Driver, Request, Time)))
LIKELY = st.one_of(st.just(Action()), st.just(Action(speed=Speed.STANDING)), ACTIONS)


# ---- the abstraction ----


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.lists(LIKELY, min_size=1, max_size=25))
def test_a_core_put_back_before_every_step_behaves_like_one_that_never_was(path: list[Action]) -> None:
    """What the memento leaves out or cuts off decides nothing: state, limit, faults and answers are the same."""
    world, steady = World(table()), SupervisorCore(CONFIG, selection(table()), BUDGETS)
    now_ns, stamp_ns, moment = NOW_NS, NOW_NS + STAMP_OFFSET_NS, world.new
    steady.step(now_ns, stamp_ns)
    for action in path:
        moment, jumped = world.take(moment, action)
        now_ns, stamp_ns, stayed = perform(steady, action, now_ns, stamp_ns)
        assert jumped.accepted is stayed.accepted
        assert world.core.machine.state is steady.machine.state
        assert world.core.active == steady.active
        assert world.core.latched is steady.latched
        assert jumped.commands.constraint is not None
        if stayed.commands.constraint is not None:
            assert jumped.commands.constraint.speed_limit_mps == stayed.commands.constraint.speed_limit_mps


def test_a_memento_is_the_same_after_it_was_put_back() -> None:
    """Saving what was just restored gives the same value: nothing is lost on the way."""
    world = World(table())
    moment = world.new
    for action in (Action(), Action(detector=Detector.DOUBTFUL), Action(speed=Speed.NAN), Action(time=Time.STALLS)):
        moment, _ = world.take(moment, action)
        world._recorder.load(moment)
        assert world._recorder.save(NOW_NS, NOW_NS + STAMP_OFFSET_NS) == moment


def test_a_memory_nobody_thought_of_stops_the_search() -> None:
    """A field without a rule is named."""

    class Remembers(SupervisorCore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._grudge_ns = 0

    with pytest.raises(ConfigError, match=r"core\._grudge_ns"):
        World(table(), Remembers)


def test_a_memento_is_refused_while_messages_wait() -> None:
    """Between two ticks only."""
    supervisor = SupervisorCore(CONFIG, selection(table()), BUDGETS)
    recorder = Recorder(supervisor)
    supervisor._inbox.append(("driver", print, ()))
    with pytest.raises(ConfigError, match="waiting"):
        recorder.save(NOW_NS, NOW_NS + STAMP_OFFSET_NS)


def test_a_refused_request_changes_nothing() -> None:
    """The search leaves refused requests out: they must have no effect of their own."""
    world = World(table())
    for moment in (world.new, world.restarted, world.take(world.new, Action())[0]):
        for request in (Request.RESET, Request.TAKEOVER):
            if not world.accepts(moment, request):
                assert world._recorder.save(NOW_NS, NOW_NS + STAMP_OFFSET_NS) == moment


def kind_of(row: FaultRow) -> tuple[str, str, bool, bool, bool]:
    """What the abstraction can tell of a row: source group, reaction, latch, debounced, grows by itself."""
    group = "vlm" if row.source in {"distilled", "full"} else row.source
    return group, row.reaction, row.latch, row.debounce_s > 0, row.metric.endswith("_s")


def test_every_kind_of_shipped_row_that_reacts_has_a_representative() -> None:
    """For the supervisor's own row and those of the last hop, lidar and machine stand others of the same class."""
    chosen = {kind_of(row) for row in table() if row.id in REPRESENTATIVES}
    counted = {
        kind
        for kind in map(kind_of, table())
        if kind[1] != "log" and kind[0] not in ("supervisor", "safety_core", "lidar", "machine")
    }
    by_message = {kind[:4] for kind in chosen} | {kind[1:4] for kind in chosen}
    for kind in counted:
        assert kind[:4] in by_message, kind
    for row in table():
        if row.reaction != "log":
            assert kind_of(row)[1:4] in by_message, row.id


def test_what_the_selection_keeps_of_a_row() -> None:
    """Reaction, latch, metric and comparison are the shipped ones; a missing row is named."""
    rows = {row.id: row for row in table()}
    for row in selection(table()):
        shipped = rows[row.id]
        for field in ("reaction", "latch", "metric", "source", "comparison"):
            assert getattr(row, field) == getattr(shipped, field)
        assert bool(row.debounce_s) is bool(shipped.debounce_s) and bool(row.clear_s) is bool(shipped.clear_s)
    with pytest.raises(InputError, match=r"driver\.absent"):
        selection([row for row in table() if row.id != "driver.absent"])


# ---- nothing is found where nothing is wrong ----

DRIVE = actions(detector=(Detector.FINE, Detector.SILENT), speed=GOES, request=(Request.NONE, Request.RESET))


def test_a_small_space_is_searched_to_its_end() -> None:
    """Tier 1, standstill and resets: every property holds in every state."""
    outcome = search(Alone(table(), DRIVE), 100_000)
    assert outcome.finding is None and outcome.exhausted
    assert outcome.states > 200 and outcome.transitions > 5 * outcome.states / 2


def test_a_bound_is_said_to_be_one() -> None:
    """Not exhausted, and not more than a frontier's successors beyond it."""
    outcome = search(Alone(table(), DRIVE), 50)
    assert not outcome.exhausted and outcome.finding is None
    assert 50 <= outcome.transitions <= 50 + len(DRIVE)


# ---- what is broken on purpose is found ----


def change_rows(**changes: dict[str, Any]) -> tuple[FaultRow, ...]:
    """The shipped table with some rows changed, named with ``__`` for the full stop."""
    edits = {name.replace("__", "."): fields for name, fields in changes.items()}
    return tuple(row.model_copy(update=edits.get(row.id, {})) for row in table())


def rules(state: S, *more: Any) -> dict[S, tuple[Any, ...]]:
    """The machine's table with further ways out of a state, after the driver's."""
    first, *rest = machine.RULES[state]
    return {**machine.RULES, state: (first, *more, *rest)}


def no_latch(patch: pytest.MonkeyPatch) -> None:
    """L1 ends when all is well."""
    patch.setattr(machine, "RULES", rules(S.L1_MINIMAL_RISK_MANOEUVRE, machine._WELL))


def resumes(patch: pytest.MonkeyPatch) -> None:
    """MRC ends when all is well."""
    real = machine._may_start
    patch.setattr(machine, "_may_start", lambda m, i: (i.ready and m.state is S.MRC) or real(m, i))


def forgets_lock(patch: pytest.MonkeyPatch) -> None:
    """By way of MANUAL the minimal risk condition is forgotten."""
    real = machine.transition
    patch.setattr(core, "transition", lambda m, i: real(machine.MachineState(m.state, m.reason, m.waited_ns), i))


def believes_silence(patch: pytest.MonkeyPatch) -> None:
    """Without news the vehicle counts as standing."""
    patch.setattr(OdometryMonitor, "standstill", lambda self, now_ns: not self.speed_mps(now_ns) >= 0.1)


def no_hold(patch: pytest.MonkeyPatch) -> None:
    """One small speed is standstill."""
    patch.setattr(OdometryMonitor, "standstill", lambda self, now_ns: abs(self.speed_mps(now_ns)) < 0.1)


def surges(patch: pytest.MonkeyPatch) -> None:
    """The limit rises to its cap at once."""
    patch.setattr(core, "next_limit_mps", lambda limit_mps, cap_mps, speed_mps, rise_mps: cap_mps)


def no_clearing(patch: pytest.MonkeyPatch) -> None:
    """A fault ends with the first good value."""
    real = FaultLife.update

    def update(self: FaultLife, value: float | None, elapsed_ns: int, hold: bool) -> bool:
        self._clear_ns = 0.0
        return real(self, value, elapsed_ns, hold)

    patch.setattr(FaultLife, "update", update)


def never_charged(patch: pytest.MonkeyPatch) -> None:
    """What needs a debounce never becomes active."""
    real = FaultLife.update

    def update(self: FaultLife, value: float | None, elapsed_ns: int, hold: bool) -> bool:
        self._charge_ns = 0.0
        return real(self, value, 0, hold)

    patch.setattr(FaultLife, "update", update)


def silent_driver_drives(patch: pytest.MonkeyPatch) -> None:
    """Nothing heard of the driver counts as driving."""
    real = DriverMonitor.drives
    patch.setattr(DriverMonitor, "drives", lambda self, now_ns: real(self, now_ns) or not self._fresh(now_ns))


def snatches(patch: pytest.MonkeyPatch) -> None:
    """Automation goes on as soon as the driver lets go."""
    patch.setattr(DriverMonitor, "handed_back", lambda self, now_ns: not self.drives(now_ns))


def waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The driver's time never runs out."""
    patch.setattr(machine, "_no_answer", lambda m, i: False)
    rule = machine.RULES[S.L2_TAKEOVER_REQUEST][:-1]
    patch.setattr(machine, "RULES", {**machine.RULES, S.L2_TAKEOVER_REQUEST: rule})


def always_postpones(patch: pytest.MonkeyPatch) -> None:
    """Every late tick puts the judgement off anew."""
    patch.setattr(LoopGap, "may_judge", lambda self, now_ns: self._gap_ns <= self._late_ns)


FEW = 12_000


@cache
def whole(free: tuple[Action, ...]) -> Outcome:
    """What a search of the shipped supervisor says."""
    return search(Alone(table(), free), FEW)


QUIET = actions(detector=(Detector.FINE, Detector.SILENT))
DOUBT = actions(detector=(Detector.FINE, Detector.DOUBTFUL))
HANDS = actions(driver=Driver)
STOPS = actions(detector=(Detector.FINE, Detector.SILENT), speed=GOES, driver=(Driver.HANDED_OVER, Driver.DRIVES))
STALLS = actions(detector=(Detector.FINE, Detector.SILENT), time=(Time.PASSES, Time.STALLS))

MUTANTS: list[tuple[str, Callable[[pytest.MonkeyPatch], None], tuple[Action, ...]]] = [
    ("P-01: L1 is latched", no_latch, QUIET),
    ("P-02", never_charged, DOUBT),
    ("P-02", always_postpones, STALLS),
    ("P-01: no way back from a lost tier 1", resumes, STOPS),
    ("P-04", forgets_lock, STOPS),
    ("P-05", believes_silence, actions(detector=(Detector.FINE, Detector.SILENT), speed=(Speed.MOVING, Speed.SILENT))),
    ("P-05", no_hold, STOPS),
    ("P-07", waits_for_ever, DOUBT),
    ("P-08: MANUAL is the driver's, at once", silent_driver_drives, HANDS),
    ("P-08: the driver hands back", snatches, HANDS),
    ("P-10", no_clearing, QUIET),
    ("P-13", surges, QUIET),
]


@pytest.mark.parametrize(("broken", "mutate", "free"), MUTANTS, ids=[mutant[1].__name__ for mutant in MUTANTS])
def test_a_broken_supervisor_is_found(
    broken: str, mutate: Callable[[pytest.MonkeyPatch], None], free: tuple[Action, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these is a plausible mistake in another part; the whole one has no finding in the same space."""
    assert whole(free).finding is None
    mutate(monkeypatch)
    finding = search(Alone(table(), free), FEW).finding
    assert finding is not None and finding.broken.startswith(broken)
    assert finding.way


@pytest.mark.parametrize(
    ("broken", "changes", "free"),
    [
        ("P-02", {"detector__lost": {"reaction": "l2"}}, QUIET),
        ("P-02", {"detector__uncertain": {"reaction": "log"}}, DOUBT),
        ("P-02", {"driver__absent": {"reaction": "log"}}, HANDS),
        ("P-02", {"distilled__stale": {"reaction": "log"}}, actions(vlm=Vlm)),
        ("P-11", {"distilled__stale": {"reaction": "l2"}}, actions(vlm=Vlm)),
    ],
)
def test_a_broken_table_is_found(broken: str, changes: dict[str, Any], free: tuple[Action, ...]) -> None:
    """A reaction of the shipped table that is too weak or too strong."""
    finding = search(Alone(change_rows(**changes), free), FEW).finding
    assert finding is not None and finding.broken.startswith(broken)


def test_advice_that_hurries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """P-03: two vehicles; the one with the more careful advice is allowed more."""
    free = actions(vlm=(Vlm.PROCEED,), speed=(Speed.MOVING,))
    whole = search(Pair(table(), free), FEW)
    assert whole.finding is None and whole.exhausted
    cap_mps = arbitration.tier_cap_mps
    monkeypatch.setattr(core, "tier_cap_mps", lambda may, said, held, caps: cap_mps(may, said, held, caps[::-1]))
    finding = search(Pair(table(), free), FEW).finding
    assert finding is not None and finding.broken.startswith("P-03")


# ---- the report ----


def scene(name: str, free: tuple[Action, ...]) -> command.Scene:
    """A search small enough for a test."""
    return command.Scene(name, free, 2000)


def test_the_way_to_a_finding_is_the_shortest_and_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row per quantum, in words."""
    never_charged(monkeypatch)
    (result,) = command.verify(table(), [scene("doubt", DOUBT)])
    finding = result.outcome.finding
    assert finding is not None
    console = Console(file=StringIO(), width=160)
    console.print(command.way(finding))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "P-02: every cause has its reaction in time" in text
    assert text.count("doubtful") == len(finding.way) == 2  # one quantum of debounce, one too many
    assert finding.way[-1].state is S.NOMINAL


def test_a_search_ends_with_the_first_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later scenes are not run."""
    surges(monkeypatch)
    results = command.verify(table(), [scene("one", QUIET), scene("other", DOUBT)])
    assert [r.scene for r in results] == ["one"]


@pytest.mark.parametrize("sound", [True, False])
def test_the_report_is_written_and_says_whether_all_held(
    sound: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """JSON beside the table on the screen; nothing half written stays."""
    monkeypatch.setattr(command, "SCENES", (scene("quiet", QUIET),))
    if not sound:
        no_latch(monkeypatch)
    out = tmp_path / "deep" / "verification.json"
    assert command.run(FAULTS, out, Console(file=StringIO()), {"version": "x"}) is sound
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["provenance"] == {"version": "x"}
    (only,) = report["searches"]
    assert only["scene"] == "quiet" and only["states"] > 1 and (only["finding"] is None) is sound
    if not sound:
        assert only["finding"]["way"][0]["action"]["detector"] in {"fine", "silent"}
    assert [path.name for path in out.parent.iterdir()] == ["verification.json"]


def test_every_pair_of_inputs_is_free_somewhere() -> None:
    """What docs/verification.md claims of the scenes, the bounded one left out."""
    names = ("detector", "speed", "driver", "vlm", "request", "time")
    free = [{n for n in names if len({getattr(a, n) for a in s.free}) > 1} for s in command.SCENES[:-1]]
    for pair in (("detector", "driver"), ("detector", "speed"), ("driver", "speed"), ("vlm", "detector"),
                 ("vlm", "driver"), ("time", "detector"), ("time", "speed"), ("time", "vlm"), ("speed", "request"),
                 ("detector", "request"), ("driver", "request"), ("time", "request")):  # fmt: skip
        assert any(set(pair) <= scene for scene in free), pair


def test_an_outcome_is_plain_data() -> None:
    """No finding, no way."""
    result = command.Result("x", 2, Outcome(1, 2, 3, True, None), 0.5)
    (one,) = command.document([result], {})["searches"]
    assert one["finding"] is None and one["exhausted"] is True
