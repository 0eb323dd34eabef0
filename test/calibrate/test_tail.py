"""Limits from tails that are known: the wanted rate is kept, and no more caution is paid for it than it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triptych.calibrate.tail import binomial_at_most, block_peaks, find_limit, upper_bound
from triptych.contract import InputError


def true_rate_per_h(limit: float) -> float:
    """Of blocks of 10 s of an exponential level at 1 Hz, without debounce."""
    return (1.0 - (1.0 - math.exp(-limit)) ** 10) * 360.0


def test_the_wanted_rate_is_kept_with_its_confidence() -> None:
    """Of 200 calibrations on 20 h each at most about 5 % may miss 2 per hour; the typical one is not far below it."""
    rng = np.random.default_rng(7)
    rates = [
        true_rate_per_h(find_limit([rng.exponential(size=1200) for _ in range(60)], 1.0, 1, 2.0).limit)
        for _ in range(200)
    ]
    assert np.mean(np.array(rates) > 2.0) <= 0.05 + 0.03  # two standard deviations of 200 draws
    assert 1.0 < float(np.median(rates)) < 2.0


@pytest.mark.parametrize("debounce", [1, 3, 5])
def test_the_rate_is_that_of_alarms_after_the_debounce(debounce: int) -> None:
    """A level that exceeds its limit in single frames only alarms nobody; the limit may be as much lower."""
    rng = np.random.default_rng(8)
    drives = [rng.exponential(size=2000) for _ in range(40)]
    tail = find_limit(drives, 1.0, debounce, 6.0)
    fresh = np.random.default_rng(9).exponential(size=400_000)
    alarms = np.count_nonzero(block_peaks(fresh, 1.0, debounce) > tail.limit)
    assert alarms / (len(fresh) / 3600.0) <= 6.0
    longer = find_limit(drives, 1.0, debounce + 2, 6.0)
    assert longer.limit < tail.limit


@pytest.mark.parametrize(("minutes", "enough"), [(44, False), (46, True)])
def test_four_per_hour_need_three_quarters_of_an_hour(minutes: int, enough: bool) -> None:
    """The rule of three: without an alarm in T hours, about 3 / T per hour cannot be ruled out."""
    drives = [np.linspace(0.0, 1.0, minutes * 60)]
    if enough:
        tail = find_limit(drives, 1.0, 1, 4.0)
        assert (tail.limit, tail.exceeded) == (1.0, 0)
        assert tail.bound_per_h <= 4.0
    else:
        with pytest.raises(InputError, match=r"cannot support 4 false alarms per hour .*record at least 45 min"):
            find_limit(drives, 1.0, 1, 4.0)


def test_what_is_asked_for_is_enough() -> None:
    """The minutes that a refusal names are not refused."""
    with pytest.raises(InputError) as refusal:
        find_limit([np.zeros(600)], 1.0, 1, 0.5)
    minutes = int(str(refusal.value).partition("at least ")[2].partition("record at least ")[2].split(" ")[0])
    assert find_limit([np.zeros(minutes * 60)], 1.0, 1, 0.5).bound_per_h <= 0.5
    with pytest.raises(InputError):
        find_limit([np.zeros(minutes * 60 - 60)], 1.0, 1, 0.5)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, 360.0, math.inf])
def test_rates_that_mean_nothing_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="false_alarms_per_hour"):
        find_limit([np.zeros(100_000)], 1.0, 1, rate)


def test_peaks_are_what_was_kept_for_the_debounce() -> None:
    levels = np.array([0.0, 9.0, 0.0, 3.0, 4.0, 5.0, 0.0, 0.0, 7.0, 7.0, 7.0, 7.0])
    assert block_peaks(levels, 1.0, 1, 4.0).tolist() == [9.0, 5.0, 7.0]
    assert block_peaks(levels, 1.0, 3, 4.0).tolist() == [0.0, 3.0, 7.0]
    assert block_peaks(levels[:3], 1.0, 1, 4.0).tolist() == []
    assert block_peaks(np.array([1.0, math.nan, math.nan, 1.0]), 1.0, 2, 4.0).tolist() == [math.inf]


def test_a_level_that_is_no_number_is_above_every_limit() -> None:
    """A6: NaN in a sound recording counts as an alarm that no limit prevents."""
    levels = np.zeros(3600 * 5)
    levels[::900] = math.nan
    tail = find_limit([levels], 1.0, 1, 1.0)
    assert tail.limit == math.inf and tail.exceeded == 0


@pytest.mark.parametrize(("k", "n", "p", "expected"), [(0, 10, 0.1, 0.9**10), (10, 10, 0.3, 1.0), (1, 2, 0.5, 0.75)])
def test_the_binomial_distribution(k: int, n: int, p: float, expected: float) -> None:
    assert binomial_at_most(k, n, p) == pytest.approx(expected)


def test_the_bound_of_a_share_covers_it() -> None:
    """Of many draws of a known share, at most about 5 % have a bound below it."""
    draws = np.random.default_rng(4).binomial(200, 0.03, size=2000)
    bounds = {k: upper_bound(k, 200) for k in set(draws.tolist())}
    assert np.mean([bounds[k] < 0.03 for k in draws.tolist()]) <= 0.06
    assert upper_bound(5, 5) == 1.0
