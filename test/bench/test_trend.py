"""What a soak is judged by: slopes, drifts and sequence numbers whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trend import POINTS_MAX, SequenceCount, drift, limit, reduced, slope, thirds

FINITE = st.floats(-1e6, 1e6)


@given(FINITE, st.floats(-1e3, 1e3), st.integers(4, 60))
def test_a_straight_line_has_its_slope_and_no_width(start: float, rise: float, count: int) -> None:
    times = [float(t) for t in range(count)]
    found = slope(times, [start + rise * t for t in times])
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(rise, abs=1e-6 + 1e-9 * abs(start))
    assert found.high - found.low < 1e-6 + 1e-9 * abs(start)


@pytest.mark.parametrize("rise", [0.0, 0.05, -0.05])
def test_the_interval_holds_the_true_slope_about_as_often_as_it_says(rise: float) -> None:
    rng = np.random.default_rng(7)
    times = np.arange(60.0)
    runs = [slope(times, rise * times + rng.normal(0, 1, 60)) for _ in range(300)]
    assert 0.92 <= np.mean([r.low <= rise <= r.high for r in runs]) <= 0.99


def test_a_leak_is_told_from_noise_and_a_single_step_from_a_leak() -> None:
    rng = np.random.default_rng(3)
    times, noise = np.arange(120.0), np.random.default_rng(3).normal(0, 4, 120)
    assert slope(times, noise + 1.0 * times).low > 0.5
    assert slope(times, noise).low < 0 < slope(times, noise).high
    step = np.where(times < 12, 0.0, 5000.0) + rng.normal(0, 1, 120)
    assert abs(slope(times, step).value) < 1.0


def test_memory_that_grows_in_rare_steps_is_a_leak() -> None:
    times = np.arange(120.0)
    found = slope(times, 1024.0 * (times // 15))
    assert found.low > 0
    assert found.value == pytest.approx(1024 / 15, rel=0.2)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [1.0, math.nan, 2.0, 3.0, 4.0], [math.inf] * 9])
def test_what_is_too_short_or_no_number_has_no_slope(values: list[float]) -> None:
    found = slope([float(n) for n in range(len(values))], values)
    assert all(math.isnan(x) for x in (found.value, found.low, found.high))


@given(st.integers(0, 2000))
def test_a_long_series_is_reduced_evenly(count: int) -> None:
    found = reduced([float(n) for n in range(count)])
    assert len(found) <= POINTS_MAX
    gaps = np.diff(found)
    assert not len(gaps) or np.allclose(gaps, gaps[0])


def test_thirds_are_the_ends_of_the_time_and_not_of_the_rows() -> None:
    rows = [(1.0, 1.0), (2.0, 2.0), (2.5, 2.5), (2.9, 2.9), (3.0, 3.0), (5.9, 4.0), (6.0, 5.0), (9.0, 6.0), (9.1, 7.0)]
    first, last = thirds(rows, 0.0, 9.0)
    assert first == [1.0, 2.0, 2.5, 2.9] and last == [5.0, 6.0]


def test_drift_is_the_change_of_the_tail() -> None:
    first = [float(n) for n in range(1, 1001)]
    assert drift(first, [1.05 * x for x in first]) == pytest.approx(0.05)
    assert drift(first, [0.9 * x for x in first]) == pytest.approx(-0.1)
    assert drift(first, [*first[:-20], *([1e6] * 20)]) > 100
    assert math.isnan(drift([], first)) and math.isnan(drift(first, [])) and math.isnan(drift([0.0], [1.0]))
    assert math.isnan(drift([1.0], [math.nan]))


@settings(max_examples=200)
@given(
    st.sampled_from([4, 256, 2**16, 2**32]),
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from(["once", "once", "once", "lost", "twice"]), max_size=400),
)
def test_lost_and_doubled_numbers_are_counted_across_the_wrap(modulus: int, start: int, fates: list[str]) -> None:
    """Truth by construction; a run of losses stays below half the modulus, the reach of a counter that wraps."""
    count, lost, doubled, run, pending = SequenceCount(modulus), 0, 0, 0, 0
    for offset, fate in enumerate(["once", *fates]):
        number = (start + offset) % modulus
        if fate == "lost" and run < modulus // 2 - 1:
            run, pending = run + 1, pending + 1
            continue
        run, lost, pending = 0, lost + pending, 0
        for _ in range(2 if fate == "twice" else 1):
            count.take(number)
        doubled += fate == "twice"
    assert (count.lost, count.doubled) == (lost, doubled)


def test_an_old_number_is_no_gap() -> None:
    count = SequenceCount(256)
    count.take_all([254, 255, 0, 255, 1])
    assert count.figures() == {"received": 5, "lost": 0, "doubled": 1}


@pytest.mark.parametrize(
    ("value", "held"), [(0.99, True), (1.0, True), (1.01, False), (math.nan, False), (None, False)]
)
def test_a_limit_is_held_up_to_its_value_and_never_by_what_is_unknown(value: float | None, held: bool) -> None:
    assert limit(value, 1.0)["held"] is held


def test_what_is_judged_may_be_another_number_than_what_is_shown() -> None:
    assert limit(0.5, 1.0, judged=1.01) == {"value": 0.5, "limit": 1.0, "held": False}
    assert limit(0.5, 1.0, judged=math.nan) == {"value": None, "limit": 1.0, "held": False}
