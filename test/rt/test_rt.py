"""``triptych rt``: what it reads, how it judges, what it writes, and that its figures are figures."""

from __future__ import annotations

import gc
import json
import os
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from triptych.contract import ConfigError
from triptych.doctor.report import Level, Row
from triptych.rt import collector, command, latency
from triptych.rt.figure import tails
from triptych.rt.latency import EDGES_US, Histogram, Measurement, measure
from triptych.rt.settings import CHECKS, SETTINGS, apply, examine

GOOD = {
    "proc/version": "Linux version 6.8.1-rt PREEMPT_RT",
    "sys/kernel/realtime": "1",
    "proc/sys/kernel/sched_rt_runtime_us": "950000",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/isolated": "0-1",
    "proc/sys/vm/swappiness": "60",
    "proc/swaps": "Filename Type Size Used Priority",
    "proc/sys/kernel/sched_autogroup_enabled": "0",
}
"""A machine as one would like it."""
SWAP = "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2"


def machine(root: Path, **changes: str | None) -> Path:
    """That machine below a folder, with files changed by the last part of their name, or left out."""
    left = dict(changes)
    for path, content in GOOD.items():
        name = path.rsplit("/", 1)[1]
        chosen = changes.get(name, content)
        left.pop(name, None)
        if chosen is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(chosen + "\n")
    assert not left
    return root


def found(rows: list[Row]) -> dict[str, Row]:
    """Rows by name; those that ask this process itself are left out."""
    return {row.name: row for row in rows if row.name not in {"priority", "locked memory"}}


def test_a_machine_as_one_would_like_it_has_nothing_to_do(tmp_path: Path) -> None:
    rows = found(examine(machine(tmp_path)))
    assert set(rows) == {
        "kernel", "real-time share", "frequency governor", "isolated cores", "swappiness", "autogroup"
    }  # fmt: skip
    assert {row.level for row in rows.values()} == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "name", "level", "word"),
    [
        ({"version": "Linux version 6.8.1", "realtime": "0"}, "kernel", Level.MISSING, "not PREEMPT_RT"),
        ({"version": "Linux 6.8 SMP PREEMPT_RT", "realtime": None}, "kernel", Level.OK, "PREEMPT_RT"),
        ({"sched_rt_runtime_us": "0"}, "real-time share", Level.WARN, "0 %"),
        ({"sched_rt_runtime_us": "-1"}, "real-time share", Level.OK, "unlimited"),
        ({"scaling_governor": "powersave"}, "frequency governor", Level.WARN, "powersave"),
        ({"scaling_governor": "schedutil"}, "frequency governor", Level.OK, "schedutil"),
        ({"isolated": ""}, "isolated cores", Level.MISSING, "none"),
        ({"swaps": SWAP}, "swappiness", Level.WARN, "60, swap in use"),
        ({"swaps": SWAP, "swappiness": "11"}, "swappiness", Level.WARN, "11"),
        ({"swaps": SWAP, "swappiness": "10"}, "swappiness", Level.OK, "10"),
        ({"swaps": None}, "swappiness", Level.OK, "no swap"),
        ({"swappiness": "lots"}, "swappiness", Level.MISSING, "unknown"),
        ({"swappiness": None}, "swappiness", Level.MISSING, "unknown"),
        ({"sched_autogroup_enabled": "1"}, "autogroup", Level.WARN, "on"),
        ({"sched_autogroup_enabled": None}, "autogroup", Level.OK, "not in this kernel"),
    ],
)
def test_how_a_setting_is_judged(
    changes: dict[str, str | None], name: str, level: Level, word: str, tmp_path: Path
) -> None:
    """What is not fine has one sentence of remedy; what is missing is never called fine."""
    row = found(examine(machine(tmp_path, **changes)))[name]
    assert row.level is level and word in row.value
    assert bool(row.remedy) is (level is not Level.OK)


def test_this_machine_can_be_examined() -> None:
    """Whatever it is: rows with unique names, each with a remedy unless it is fine."""
    rows = examine()
    assert len({row.name for row in rows}) == len(rows) >= len(CHECKS) - 1
    assert all(bool(row.remedy) is (row.level is not Level.OK) for row in rows)


def test_only_what_warns_is_written(tmp_path: Path) -> None:
    """Every core's governor, and nothing that was fine; the next look finds nothing to warn of."""
    root = machine(tmp_path, scaling_governor="powersave", swaps=SWAP, sched_autogroup_enabled="1")
    changes = apply(examine(root), root)
    written = {Path(change.path).relative_to(root).as_posix(): (change.before, change.after) for change in changes}
    assert written == {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": ("powersave", "performance"),
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": ("powersave", "performance"),
        "proc/sys/vm/swappiness": ("60", "10"),
        "proc/sys/kernel/sched_autogroup_enabled": ("1", "0"),
    }
    again = examine(root)
    assert not [row for row in found(again).values() if row.level is Level.WARN]
    assert [change for change in apply(again, root) if str(root) in change.path] == []
    assert (root / "proc/sys/kernel/sched_rt_runtime_us").read_text().strip() == "950000"


def test_what_may_not_be_written_is_reported_and_left(tmp_path: Path) -> None:
    """A directory in the file's place refuses everybody, root as well."""
    root = machine(tmp_path, sched_autogroup_enabled="1")
    rows = examine(root)
    path = root / "proc/sys/kernel/sched_autogroup_enabled"
    path.unlink()
    path.mkdir()
    (change,) = [c for c in apply(rows, root) if "autogroup" in c.path]
    assert change.problem and change.before == change.after


def test_every_setting_belongs_to_a_row(tmp_path: Path) -> None:
    """A setting whose row was renamed would never be written."""
    assert {setting.row for setting in SETTINGS} <= set(found(examine(machine(tmp_path))))


LATE = st.lists(st.floats(-5.0, 2e6) | st.sampled_from(EDGES_US).map(float), min_size=1, max_size=300)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(LATE, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
def test_a_histogram_loses_nothing_and_its_quantiles_rise(late_us: list[float], shares: list[float]) -> None:
    """Counts sum to what was measured, each value in the bin of its size; a quantile is a measured value."""
    histogram = Histogram.of(late_us)
    assert sum(histogram.counts) == len(late_us) and len(histogram.counts) == len(EDGES_US) + 1
    for number, count in enumerate(histogram.counts):
        lower = EDGES_US[number - 1] if number else float("-inf")
        upper = EDGES_US[number] if number < len(EDGES_US) else float("inf")
        assert count == sum(lower <= late < upper for late in late_us)
    quantiles = [histogram.quantile_us(share) for share in sorted(shares)]
    assert quantiles == sorted(quantiles) and set(quantiles) <= set(late_us)
    for share in shares:
        assert sum(late <= histogram.quantile_us(share) for late in late_us) >= share * len(late_us) - 1e-9
    assert histogram.quantile_us(0.0) == min(late_us) and histogram.quantile_us(1.0) == max(late_us)


def test_the_usual_quantiles() -> None:
    """Nearest rank, of 1 to 1000 µs in any order."""
    summary = Histogram.of([float(n) for n in range(1000, 0, -1)]).summary()
    assert summary == {"min_us": 1.0, "median_us": 500.0, "p99_us": 990.0, "p99_9_us": 999.0, "max_us": 1000.0}


def test_no_measurement_is_no_histogram() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        Histogram.of([])


def test_a_measurement_waits_for_every_interval() -> None:
    """No wake-up before its time, as many as asked for, and the collector is back on."""
    result = measure("other", 0.05, 1000)
    assert result.histogram is not None and len(result.histogram.sorted_us) == 50
    assert result.histogram.sorted_us[0] >= 0.0 and result.missed >= 0
    assert gc.isenabled()
    assert os.sched_getscheduler(0) & 0xFF == os.SCHED_OTHER


def test_missed_wake_ups_are_counted_and_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wake-up 3.5 intervals late: three are left out, the next is in its time."""
    clock = {"now": 0}
    extra = iter([0, 3_500_000, 0, 0])

    def sleep_until(due_ns: int) -> None:
        clock["now"] = max(clock["now"], due_ns) + next(extra)

    monkeypatch.setattr(latency, "sleep_until", sleep_until)
    monkeypatch.setattr(latency, "time", SimpleNamespace(monotonic_ns=lambda: clock["now"]))
    late_ns, missed = latency._cycle(4, 1_000_000)
    assert late_ns == [0, 3_500_000, 0, 0] and missed == 3


def test_a_refused_policy_is_said_and_nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(latency.os, "sched_setscheduler", refuse)
    result = measure("fifo", 0.05, 1000)
    assert result.refused == "Operation not permitted" and result.histogram is None


@pytest.mark.parametrize(
    ("policy", "seconds", "interval_us", "field"),
    [
        ("deadline", 1.0, 1000, "policy"),
        ("other", 1.0, 49, "interval"),
        ("other", 1.0, 1_000_001, "interval"),
        ("other", 0.009, 1000, "seconds"),
        ("other", float("nan"), 1000, "seconds"),
        ("other", float("inf"), 1000, "seconds"),
        ("other", 60.1, 60, "seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(policy: str, seconds: float, interval_us: int, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        measure(policy, seconds, interval_us)
    assert caught.value.field == field


def test_the_load_ends_with_the_measurement() -> None:
    """Also when that fails."""
    with pytest.raises(KeyError), latency.load():
        raise KeyError
    assert not [child for child in children() if "while True" in child]


def children() -> list[str]:
    """Command lines of this process's children."""
    import psutil

    return [" ".join(child.cmdline()) for child in psutil.Process().children()]


def report() -> command.Report:
    """A small one: one measurement, one refusal."""
    measurements = [
        Measurement("other", False, "", Histogram.of([10.0, 30.0, 4000.0]), 3),
        Measurement("fifo", True, "Operation not permitted"),
    ]
    rows = [Row("Real time", "kernel", Level.MISSING, "not PREEMPT_RT", "why", "do this")]
    seen = {"full_before_ms": 20.0, "full_after_ms": 0.01, "steps": 10, "runs": 1, "longest_ms": 0.1}
    return command.Report(rows, [], measurements, seen, 1000, 1.5, {"host": {"cpu": "A chip"}})


def test_the_screen_shows_findings_figures_and_bars() -> None:
    console = Console(file=StringIO(), width=140)
    command.show(report(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("MISSING", "do this", "4000", "Operation not permitted", "█", "garbage"):
        assert word in text


def test_bars_leave_out_empty_ends_only() -> None:
    """From the first bin with something in it to the last, those between included."""
    lines = command.bars(report().measurements[0]).splitlines()
    assert len(lines) == EDGES_US.index(5000) - EDGES_US.index(20) + 1
    assert lines[0].split()[:3] == ["<", "20", "µs"] and lines[-1].split()[1] == "5000"
    assert command.bars(report().measurements[1]) == ""


def test_the_json_has_its_provenance_and_nothing_half_written_stays(tmp_path: Path) -> None:
    out = tmp_path / "a" / "rt.json"
    command.write(report(), out)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["provenance"]["host"]["cpu"] == "A chip"
    first, second = document["measurements"]
    assert sum(first["counts"]) == 3 and first["max_us"] == 4000.0 and first["missed"] == 3
    assert second["counts"] is None and second["refused"]
    assert [path.name for path in out.parent.iterdir()] == ["rt.json"]


def test_the_figure_names_machine_and_load(tmp_path: Path) -> None:
    """As text in an SVG; a refused measurement has no line."""
    out = tmp_path / "rt.svg"
    command.draw(report(), out)
    text = out.read_text(encoding="utf-8")
    assert "A chip, load 1.5" in text and "other" in text and "fifo" not in text
    assert text == tails(report().measurements, "A chip, load 1.5")


def test_pauses_of_the_collector_are_heard() -> None:
    """As many as there were, each with a length."""
    pauses = collector.Pauses()
    gc.callbacks.append(pauses)
    try:
        gc.collect()
        gc.collect()
    finally:
        gc.callbacks.remove(pauses)
    assert pauses.runs >= 2 and pauses.longest_ms > 0.0


def test_a_calmed_node_has_next_to_nothing_to_collect() -> None:
    """In an interpreter of its own: what was loaded is out of the collector's sight."""
    pytest.importorskip("rclpy")
    seen = collector.in_a_process()
    assert seen is not None
    assert seen["frozen_objects"] > 10_000 and seen["threshold"][0] >= 20_000
    assert seen["full_after_ms"] < seen["full_before_ms"]
    assert seen["runs"] <= 2  # what a step takes it gives back: nothing is left for the collector to look for
