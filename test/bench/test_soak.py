"""The soak on a virtual clock finds what it is there to find, and nothing in a sound stack."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("triptych_ros")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "injection"))

import soak_real
import soak_virtual
from injection_rig import ENGINES

from triptych.contract import Frame, Tier
from triptych.injection.hops import COMMAND
from triptych.scenario import Scenario, vehicles
from triptych.supervisor.config import supervisor_config

WRAP_S = 6.0
CONFIG = soak_virtual.scene(160, 1)


@pytest.fixture(scope="module")
def recorded() -> dict[Tier, soak_virtual.Recorded]:
    """What engines that look at the brightness say of 30 pictures, each a little brighter."""
    engines = {tier: soak_virtual.Recorded(tier, engine) for tier, engine in ENGINES.items()}
    noise = np.random.default_rng(1).integers(0, 60, (90, 160, 3), np.uint8)
    for number in range(1, 31):
        for engine in engines.values():
            engine.infer([Frame(noise + np.uint8(60 + number), 5, number)])
    return engines


def run(recorded: Any, seconds: float, **changes: Any) -> soak_virtual.SoakLoop:
    loop, _ = soak_virtual.drive(CONFIG, recorded, WRAP_S)
    for name, value in changes.items():
        setattr(loop.fault, name, value)
    loop.run(seconds)
    return loop


def counts(loop: soak_virtual.SoakLoop) -> tuple[int, int]:
    figures = [count.figures() for count in loop.counts.values()]
    return sum(f["lost"] for f in figures), sum(f["doubled"] for f in figures)


def stops(loop: soak_virtual.SoakLoop) -> list[str]:
    return [h.command.reason for h in loop.log.heard if h.command.reason.startswith("safety core")][1:]


def test_every_long_counter_wraps_and_nobody_notices(recorded: Any) -> None:
    """Milliseconds, cycles and records of the safety core pass 2**32, frame numbers pass it without wrapping."""
    loop, starts = soak_virtual.drive(CONFIG, recorded, WRAP_S)
    assert all(2**32 - 1000 <= start < 2**32 for name, start in starts.items() if "milli" not in name)
    loop.run(0.5 * WRAP_S)
    assert len(loop.not_wrapped()) == 5
    loop.run(2 * WRAP_S)
    core = loop.safety_core._core
    assert core.counter < 1000 and core.constraint[0] < 1000 and core.motion[0] < 1000 and core.cycle_ms < 10_000
    assert loop.not_wrapped() == [] and loop._frames > 2**32 and loop.now_ns // 1_000_000 > 2**32
    assert loop.core_is_in_step() and not loop.refused and counts(loop) == (0, 0)
    assert not soak_virtual._alarms(loop) and stops(loop) == []
    assert loop.scenario.speed_mps > 3.0


def test_a_lost_and_a_doubled_message_are_counted(recorded: Any) -> None:
    sent = {"n": 0}

    def deliver(hop: str, message: Any, now_ns: int) -> Any:
        if hop != COMMAND:
            return None
        sent["n"] += 1
        return [] if sent["n"] == 20 else [(0, message), (0, message)] if sent["n"] == 40 else None

    assert counts(run(recorded, 4.0, deliver=deliver)) == (1, 1)


def test_a_counter_that_does_not_wrap_is_found(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records whose counter stops at 2**32 - 1: the safety core no longer hears anybody."""
    from triptych.safety import inputs, words

    def held(make: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda counter, *rest: make(min(counter, 2**32 - 1), *rest)

    monkeypatch.setattr(inputs, "constraint_record", held(words.constraint_record))
    monkeypatch.setattr(inputs, "motion_record", held(words.motion_record))
    loop = run(recorded, 2 * WRAP_S)
    assert not loop.core_is_in_step() and stops(loop)


def test_damaged_messages_are_counted_as_refused(recorded: Any) -> None:
    def deliver(hop: str, message: Any, now_ns: int) -> Any:
        return [(0, dataclasses.replace(message, crc=message.crc ^ 1))] if hop == "constraint" else None

    assert sum(run(recorded, 1.0, deliver=deliver).refused.values()) > 10


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_pictures_go_to_and_fro_without_a_cut(count: int) -> None:
    shown = [soak_virtual.to_and_fro(index, count) for index in range(5 * count)]
    assert set(shown) == set(range(count)) and shown[0] == 0
    assert all(abs(a - b) == (1 if count > 1 else 0) for a, b in itertools.pairwise(shown))


def test_filled_caches_of_the_scenario_grow_no_more() -> None:
    """Bounded caches look like a leak until they are full: every kind of car is met, the rest is at its bound."""
    soak_virtual.fill_caches(CONFIG)
    filled = soak_virtual.entries()
    assert filled["vehicles.car"] == len(vehicles.CAR_SHAPES) * len(vehicles.CAR_COLOURS) * 3
    for name in ("vehicles.truck", "people.motorbike", "scenery.tree", "scenery.thicket"):
        assert filled[name] == soak_virtual.caches()[name].cache_info().maxsize
    drive = Scenario(CONFIG)
    while drive.time_s < 90.0:
        drive.step(0.1, None)
    assert soak_virtual.entries() == filled


def test_a_leak_is_counted_whole(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small object a tick is one block a tick: nothing is subtracted from what is counted."""
    monkeypatch.setattr(soak_virtual, "record", lambda *_: recorded)
    monkeypatch.setattr(soak_virtual, "WINDOW_S", 1.0)
    monkeypatch.setattr(soak_virtual, "SAMPLES", 2)

    sound: Any = soak_virtual.SoakLoop
    ticks = soak_virtual.WINDOW_S / supervisor_config({}).tick_period_s

    def blocks(leak: int) -> list[float]:
        held: list[object] = []

        class Leaking(sound):
            def _tick(self) -> None:
                super()._tick()
                held.extend(object() for _ in range(leak))

        monkeypatch.setattr(soak_virtual, "SoakLoop", Leaking)
        result = soak_virtual.soak(8, CONFIG, 1.0, False, lambda *_: None, lambda _: None)
        assert result["scenario_caches"]["vehicles.car"] == [252, 252]
        return [row["blocks"] for row in result["windows"]]

    # Windows are seconds here, so that the loop still warms up: the same way with and without the leak.
    more = np.diff(blocks(1)) - np.diff(blocks(0))
    assert np.median(more) == pytest.approx(ticks, rel=0.1)


ROW = {"minute": 0.0, "rss_kib": 1e5, "blocks": 1e5, "objects": 1e4, "tick_p50_us": 50.0, "tick_p99_us": 100.0}
RESULT = {"alarms": [], "own_stops": [], "sequences": {}, "refused": {}, "not_wrapped": []}


@pytest.mark.parametrize(
    ("name", "growth", "missed"),
    [
        ("rss_kib", 0.99 * 512 / 60, ""),
        ("rss_kib", 1.01 * 512 / 60, "RSS"),
        ("blocks", 0.99 * 100 / 60, ""),
        ("blocks", 1.01 * 100 / 60, "Python blocks"),
        ("tick_p99_us", 0.05, ""),
        ("tick_p99_us", 0.2, "p99"),
        ("rss_kib", float("nan"), "RSS"),
    ],
)
def test_growth_misses_its_limit_and_no_other(name: str, growth: float, missed: str) -> None:
    rows = [{**ROW, "minute": float(n), name: ROW[name] + growth * n} for n in range(1, 61)]
    limits = soak_virtual.judge(rows, RESULT, 0)["limits"]
    found = [title for title, row in limits.items() if not row["held"]]
    assert [title.startswith(missed) for title in found] == ([True] if missed else [])


def test_a_run_too_short_to_know_a_slope_has_missed_it() -> None:
    limits = soak_virtual.judge([{**ROW, "minute": 1.0}], RESULT, 0)["limits"]
    assert not limits["RSS, KiB/h (upper end of the interval)"]["held"]
    assert not limits["p99 of a supervisor's tick, processor time, last third over first"]["held"]


def real(**changes: Any) -> dict[str, Any]:
    count = {"received": 9, "lost": 0, "doubled": 0}
    slope = {"value": 0.0, "low": -1.0, "high": 1.0}
    return {
        "sequences": {"a": dict(count), soak_real.topics.STATE.name: dict(count)},
        "states": [{"state": "NOMINAL"}], "crc_errors": 0, "restarts": {"full": 0},
        "processes": {"full": {"private_kib_per_min": slope, "fds_grown": 0, "threads_grown": 0}},
        "latency": {"full": {"drift": 0.0}}, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, ""),
        ({"sequences": {"a": {"received": 9, "lost": 1, "doubled": 0}}}, "sequence numbers lost"),
        ({"sequences": {"a": {"received": 9, "lost": 0, "doubled": 1}}}, "sequence numbers doubled"),
        ({"sequences": {"a": {"received": 0, "lost": 0, "doubled": 0}}}, "topics not heard"),
        ({"states": [{"state": "NOMINAL"}, {"state": "MRC"}]}, "states other than NOMINAL"),
        ({"restarts": {"full": 1}}, "restarts"),
        ({"crc_errors": 1}, "CRC errors"),
        ({"latency": {"full": {"drift": 0.051}}}, "full: p99, last third over first"),
        ({"latency": {"full": {"drift": None}}}, "full: p99, last third over first"),
    ],
)
def test_what_went_wrong_with_the_real_nodes_misses_its_limit(changes: dict[str, Any], missed: str) -> None:
    limits = soak_real.judge(real(**changes))
    assert [name for name, row in limits.items() if not row["held"]] == ([missed] if missed else [])


def test_memory_of_one_process_that_grows_misses_its_limit() -> None:
    samples = soak_real.Samples({})
    for number in range(100):
        row = {"rss_kib": 1e5, "private_kib": 1e5, "fds": 10, "threads": 4, "cpu_percent": 3.0}
        leak = {**row, "private_kib": 1e5 + number, "fds": 10 + number // 50}  # 12 KiB and a file in a while
        samples.rows.append({"t_s": 5.0 * number, "sound": row, "leaking": leak})
    found = soak_real.processes(samples, 50.0, 495.0)
    assert found["leaking"]["private_kib_per_min"]["value"] == pytest.approx(12.0)
    missed = [n for n, row in soak_real.judge(real(processes=found)).items() if not row["held"]]
    assert missed == ["leaking: private memory, KiB/min (upper end of the interval)", "leaking: open files grown by"]
