"""The live table: what it must say in each situation, on a terminal and in a log."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console
from synthetic_run import START_NS, Plan, S, make

from triptych.contract import Origin, Tier, TierState, TierStatus
from triptych.live import MAX_NOTES, LiveModel, LiveView, line, table
from triptych.replay.record import RunRecord, StatusRecord


def model_of(plan: Plan, until_s: float = math.inf, title: str = "scenario") -> LiveModel:
    model = LiveModel(title)
    for entry in make(plan).entries():
        if entry.t_ns <= START_NS + until_s * S:
            model.update(entry)
    return model


def shown(model: LiveModel, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(table(model, width))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def row(model: LiveModel, tier: str, width: int = 160) -> str:
    return next(text for text in shown(model, width).splitlines() if text.strip("│ ").startswith(tier))


def test_each_tier_has_its_figures() -> None:
    model = model_of(Plan(seconds=10.0))
    view = model.tiers[Tier.DETECTOR]
    assert view.rate_hz() == pytest.approx(20.0, abs=0.2)
    record = make(Plan(seconds=10.0))
    recent = sorted(
        (r.result.published_ns - r.result.source_stamp_ns) / 1e6
        for r in record.results
        if r.result.tier is Tier.DETECTOR and r.t_ns >= model.now_ns - 5 * S
    )
    assert view.latency_ms(99) == pytest.approx(recent[math.ceil(0.99 * len(recent)) - 1])
    assert view.latency_ms(50) == pytest.approx(recent[math.ceil(0.50 * len(recent)) - 1])
    text = row(model, "detector")
    for part in (
        "active",
        "triptych-detector @ cpu",
        "20.0 Hz",
        f"{view.latency_ms(99):.1f} ms",
        "30 ms",
        "160/0/0",
        "vehicle",
    ):
        assert part in text
    assert "lead vehicle" in row(model, "full") and "2 vehicles, 1 pedestrian" in shown(model, 400)


def test_only_the_last_five_seconds_count() -> None:
    """A slow start is forgotten; the counts are not."""
    model = LiveModel()
    slow = make(Plan(seconds=8.0, slow={Tier.DETECTOR: 2.2}))
    fast = make(Plan(seconds=20.0, start_s=9.0))
    for record in (slow, fast):
        for entry in record.entries():
            if record is slow or entry.t_ns >= START_NS + 9 * S:
                model.update(entry)
    assert model.tiers[Tier.DETECTOR].latency_ms(99) < 20.0
    assert model.tiers[Tier.DETECTOR].counts[Origin.FRESH] > 300


def test_a_p99_over_budget_is_marked_in_words_too() -> None:
    model = model_of(Plan(seconds=10.0))
    view = model.tiers[Tier.DISTILLED]
    view.recent.append((model.now_ns, 230.0))
    assert "! 230 ms" in row(model, "distilled")


def test_narrow_terminal_still_shows_everything() -> None:
    """80 columns: the engines go, the answers move below; no column is cut."""
    text = shown(model_of(Plan(seconds=10.0)), 80)
    assert all(len(part) <= 80 for part in text.splitlines())
    for part in ("detector", "distilled", "active", "20.0 Hz", "200 ms", "160/0/0", "detector: 1 vehicle", "NOMINAL"):
        assert part in text
    assert "…" not in "".join(text.splitlines()[1:5])


def test_before_anything_happens() -> None:
    model = LiveModel("scenario")
    text = shown(model)
    assert text.count("not seen") == 4 and "SUPERVISOR" in text
    assert "detector not seen" in line(model)


def test_tier_that_warms_up_and_tier_that_reports_a_fault() -> None:
    model = LiveModel()
    model.update(StatusRecord(START_NS, TierStatus(START_NS, Tier.FULL, TierState.SELF_TEST, True)))
    assert "self test" in row(model, "full") and "full self test" in line(model)
    status = TierStatus(START_NS, Tier.FULL, TierState.ERROR, False, "engine_hung")
    model.update(StatusRecord(START_NS, status))
    assert "engine_hung" in row(model, "full")


def test_lost_detector_is_unknown_and_silent_and_the_countdown_runs() -> None:
    """Takeover asked at 11.09 s with 10 s to go: a little later less is left."""
    plan = Plan(seconds=30.0, detector_lost_s=11.0)
    early = model_of(plan, 11.1)
    assert early.takeover_remaining_s == pytest.approx(10.0, abs=0.1)
    early.tick(early.now_ns + 3 * S)
    assert early.takeover_remaining_s == pytest.approx(7.0, abs=0.1)
    assert "TAKE OVER within 7 s" in shown(early) and "take over within 7 s" in line(early)
    late = model_of(plan, 14.0)
    assert late.takeover_remaining_s is None
    text = row(late, "detector")
    assert "silent" in text and "unknown (silent for" in text
    assert "L1 MINIMAL-RISK MANOEUVRE" in shown(late) and "tier1_lost" in shown(late)
    assert "stop at 2.0 m/s2, hazard lights, pull over, remote centre told" in shown(late)


def test_silent_supervisor_is_said() -> None:
    model = model_of(Plan(seconds=10.0))
    assert "SUPERVISOR" not in shown(model)
    model.tick(model.now_ns + 3 * S)
    assert "SUPERVISOR silent for 3 s" in shown(model) and "SUPERVISOR silent for 3 s" in line(model)


def test_faults_come_and_go() -> None:
    record = make(Plan(seconds=20.0, detector_lost_s=15.0))
    verdict = record.verdicts[0]
    model = LiveModel()
    model.update(verdict)
    assert list(model.faults) == ["tier1_lost"]
    model.update(type(verdict)(verdict.t_ns + 1, "tier1_lost", "detector", verdict.level, False, 0.0, 0.12, ""))
    assert not model.faults


def test_late_tier_repeats_and_says_how_old_it_is() -> None:
    model = model_of(Plan(seconds=10.0, slow={Tier.DISTILLED: 3.0}))
    assert model.tiers[Tier.DISTILLED].counts[Origin.FRESH] == 0
    assert "–" in row(model, "distilled") and (
        "old " in row(model, "distilled") or "unknown" in row(model, "distilled")
    )


def test_notes_are_kept_short() -> None:
    model = LiveModel()
    for index in range(20):
        model.event(f"note\n{index}")
    assert list(model.notes) == [f"note {index}" for index in range(20 - MAX_NOTES, 20)]


def test_time_never_runs_backwards() -> None:
    model = LiveModel()
    model.tick(100)
    model.tick(50)
    assert model.now_ns == 100


def test_markup_in_messages_is_shown_as_it_is() -> None:
    model = model_of(Plan(seconds=10.0), title="[red]x[/]")
    model.event("[bold]not bold[/] [/unbalanced]")
    assert "[bold]not bold[/] [/unbalanced]" in shown(model) and "[red]x[/]" in shown(model)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run_view(console: Console, clock: Clock, enabled: bool = True) -> None:
    model = model_of(Plan(seconds=10.0))
    with LiveView(model, console, enabled=enabled, clock=clock) as view:
        for _ in range(40):  # four seconds of calls every 100 ms
            view.refresh()
            clock.now_s += 0.1


def test_no_terminal_gets_one_plain_line_per_second() -> None:
    file = io.StringIO()
    run_view(Console(file=file, width=80, force_terminal=False), Clock())
    lines = file.getvalue().splitlines()
    assert len(lines) == 4
    assert all(text.startswith("10 s, state NOMINAL, detector fresh p99") for text in lines)
    assert "\x1b" not in file.getvalue()


def test_terminal_gets_the_table() -> None:
    file = io.StringIO()
    run_view(Console(file=file, width=140, height=30, force_terminal=True), Clock())
    assert "\x1b" in file.getvalue() and "detector" in file.getvalue()
    assert "state NOMINAL, detector fresh" not in file.getvalue()


def test_disabled_shows_nothing() -> None:
    file = io.StringIO()
    run_view(Console(file=file, width=80, force_terminal=False), Clock(), enabled=False)
    assert file.getvalue() == ""


def test_every_kind_of_entry_is_accepted() -> None:
    record: RunRecord = make()
    model = LiveModel()
    for entry in record.entries():
        model.update(entry)
    assert model.elapsed_s == pytest.approx(30.0, abs=0.2)
