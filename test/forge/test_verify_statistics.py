"""Bounds, sample sizes and tests of the fidelity gates, against brute force, identities and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="the forge extra is not installed")
stats = pytest.importorskip("scipy.stats", reason="the forge extra is not installed")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.verify.statistics import (  # noqa: E402
    EXACT_SAMPLES,
    bootstrap_lower,
    lower_bound,
    mcnemar,
    non_inferiority,
    score_statistic,
    spotless_trials,
    trials_for_paired_mean,
    trials_for_paired_shares,
    trials_for_share,
    upper_bound,
)

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def binomial_tail(hits: int, trials: int, share: float) -> float:
    """P(X >= hits), added up term by term."""
    return sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits, trials + 1))


@given(COUNTS, st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_the_exact_bound_is_where_the_tail_is_what_confidence_leaves(count: tuple[int, int], confidence: float) -> None:
    hits, trials = count
    bound = lower_bound(hits, trials, confidence)
    if hits == 0:
        assert bound == 0.0
    else:
        assert 0 < bound < hits / trials + 1e-12
        assert binomial_tail(hits, trials, bound) == pytest.approx(1 - confidence, rel=1e-6)
    assert upper_bound(trials - hits, trials, confidence) == pytest.approx(1 - bound)


@given(COUNTS, st.sampled_from([0.8, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_wilsons_bound_solves_the_score_equation(count: tuple[int, int], confidence: float) -> None:
    hits, trials = count
    bound = lower_bound(hits, trials, confidence, "wilson")
    if hits == 0:
        assert bound == pytest.approx(0.0, abs=1e-12)
        return
    z = (hits / trials - bound) / math.sqrt(bound * (1 - bound) / trials)
    assert z == pytest.approx(stats.norm.ppf(confidence), rel=1e-6)


def test_the_exact_bound_keeps_its_promise() -> None:
    """At every true share the bound lies above it in at most 5 % of experiments, weighed exactly."""
    trials = 40
    bounds = np.array([lower_bound(hits, trials) for hits in range(trials + 1)])
    for share in (0.5, 0.9, 0.97):
        chance = stats.binom.pmf(np.arange(trials + 1), trials, share)
        assert chance[bounds > share].sum() <= 0.05 + 1e-12


def test_so_many_spotless_trials_prove_a_share() -> None:
    assert spotless_trials(0.9997) == 9985
    for share in (0.5, 0.9, 0.999, 0.9997):
        count = spotless_trials(share)
        assert lower_bound(count, count) >= share > lower_bound(count - 1, count - 1)


def test_nothing_counted_means_nothing_known() -> None:
    assert lower_bound(0, 0) == 0.0 and upper_bound(0, 0) == 1.0


@given(st.floats(0.05, 2.0), st.floats(0.02, 1.0), st.sampled_from([0.01, 0.05]), st.sampled_from([0.1, 0.2]))
@example(sd=2.0, margin=0.021484375, alpha=0.01, beta=0.1)
@settings(max_examples=40, deadline=None)
def test_pairs_for_a_mean_are_the_fewest_with_the_power(sd: float, margin: float, alpha: float, beta: float) -> None:
    count = trials_for_paired_mean(sd, margin, alpha, beta)

    def power(n: int) -> float:
        return float(stats.nct.sf(stats.t.isf(alpha, n - 1), n - 1, math.sqrt(n) * margin / sd))

    beyond_exact = count > EXACT_SAMPLES
    assert power(count) >= 1 - beta - (1e-4 if beyond_exact else 1e-9)
    if 2 < count < 5000:
        assert power(count - 1) < 1 - beta


def test_pairs_for_a_mean_in_simulation() -> None:
    count = trials_for_paired_mean(1.0, 0.4, 0.05, 0.2)
    draws = np.random.default_rng(1).normal(0, 1.0, (4000, count))
    passed = stats.ttest_1samp(draws, -0.4, axis=1, alternative="greater").pvalue < 0.05
    assert 0.77 < passed.mean() < 0.84


def test_pairs_for_shares_in_simulation() -> None:
    discordance, margin = 0.1, 0.05
    count = trials_for_paired_shares(discordance, margin, 0.05, 0.2)
    draws = np.random.default_rng(2).multinomial(count, [discordance / 2, discordance / 2, 1 - discordance], 6000)
    passed = score_statistic(draws[:, 0], draws[:, 1], count, margin) > stats.norm.isf(0.05)
    assert 0.76 < passed.mean() < 0.85


def test_pairs_for_a_share_in_simulation() -> None:
    count = trials_for_share(0.9, 0.95, 0.05, 0.2)
    hits = np.random.default_rng(3).binomial(count, 0.95, 6000)
    z = (hits / count - 0.9) / math.sqrt(0.9 * 0.1 / count)
    assert 0.75 < (z > stats.norm.isf(0.05)).mean() < 0.86


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 300))
@settings(max_examples=80, deadline=None)
def test_without_a_margin_the_score_test_is_mcnemars(better: int, worse: int, same: int) -> None:
    trials = better + worse + same
    if trials == 0:
        return
    expected = (better - worse) / math.sqrt(better + worse) if better + worse else 0.0
    assert float(score_statistic(better, worse, trials, 0.0)) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 200), st.floats(0.01, 0.3))
@settings(max_examples=40, deadline=None)
def test_the_score_test_uses_the_likeliest_shares_under_its_hypothesis(
    better: int, worse: int, same: int, margin: float
) -> None:
    """Brute force over the one free parameter: P(worse) = q + margin, P(better) = q."""
    trials = better + worse + same
    q = np.linspace(1e-9, (1 - margin) / 2 - 1e-9, 200_001)
    likelihood = better * np.log(q) + worse * np.log(q + margin) + same * np.log(1 - 2 * q - margin)
    best = q[int(np.argmax(likelihood))]
    spread = math.sqrt(trials * (2 * best + margin - margin**2))
    wanted = (better - worse + trials * margin) / spread
    assert float(score_statistic(better, worse, trials, margin)) == pytest.approx(wanted, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize(("discordance", "margin", "trials"), [(0.08, 0.03, 400), (0.2, 0.05, 300), (0.05, 0.02, 1000)])
def test_the_score_test_gives_a_false_alarm_as_often_as_alpha_says(
    discordance: float, margin: float, trials: int
) -> None:
    shares = [(discordance - margin) / 2, (discordance + margin) / 2, 1 - discordance]
    draws = np.random.default_rng(4).multinomial(trials, shares, 20_000)
    passed = score_statistic(draws[:, 0], draws[:, 1], trials, margin) > stats.norm.isf(0.05)
    assert 0.035 < passed.mean() < 0.062


def test_a_gate_lets_the_worse_pass_as_often_as_alpha_says() -> None:
    """The whole function, on data that is worse by exactly the margin."""
    rng = np.random.default_rng(5)
    passed = [
        non_inferiority(old, old - 0.1 + rng.normal(0, 0.3, 30), 0.1).passed for old in rng.normal(0, 1, (300, 30))
    ]
    assert 0.02 < np.mean(passed) < 0.09
    rng = np.random.default_rng(6)
    flags = []
    for _ in range(300):
        kind = rng.choice(3, 200, p=[0.04, 0.09, 0.87])
        flags.append(non_inferiority((kind != 0).astype(float), (kind != 1).astype(float), 0.05).passed)
    assert 0.02 < np.mean(flags) < 0.09


def test_the_kind_of_values_chooses_the_test() -> None:
    rng = np.random.default_rng(7)
    old = (rng.random(400) < 0.9).astype(float)
    binary = non_inferiority(old, old, 0.03)
    assert binary.test == "paired score" and binary.passed and binary.loss == 0 and binary.differ_p_value == 1.0
    plain = non_inferiority(old + 0.5, old + 0.5 + rng.normal(0, 0.01, 400), 0.03)
    assert plain.test == "paired t" and plain.passed
    worse = old.copy()
    worse[np.flatnonzero(old)[:40]] = 0
    lost = non_inferiority(old, worse, 0.03)
    assert not lost.passed and lost.loss == pytest.approx(0.1) and lost.loss_bound > 0.1
    assert lost.differ_p_value == pytest.approx(2 * 0.5**40)


def test_direction_and_sign() -> None:
    rng = np.random.default_rng(8)
    old = rng.normal(5, 1, 200)
    new = old + 0.5 + rng.normal(0, 0.1, 200)
    assert non_inferiority(old, new, 0.2).passed  # more is better and there is more
    assert not non_inferiority(old, new, 0.2, higher_is_better=False).passed
    assert non_inferiority(old, new, 0.2, higher_is_better=False).loss == pytest.approx(0.5, abs=0.03)


def test_too_few_samples_are_marked() -> None:
    rng = np.random.default_rng(9)
    old = rng.normal(0, 1, 10)
    small = non_inferiority(old, old + rng.normal(0, 0.5, 10), 0.1)
    assert small.underpowered and small.samples_needed > 100
    assert non_inferiority([1.0], [1.0], 0.1).test == "none" and not non_inferiority([1.0], [1.0], 0.1).passed
    assert not non_inferiority([], [], 0.1).passed
    spotless = [1.0] * 87
    assert not non_inferiority(spotless, spotless, 0.03).passed  # 88 would do, see Tango's variance at no discordance
    assert non_inferiority([*spotless, 1.0], [*spotless, 1.0], 0.03).passed


def test_no_spread_needs_no_luck() -> None:
    assert non_inferiority([0.5] * 5, [0.45] * 5, 0.1).passed
    assert not non_inferiority([0.5] * 5, [0.25] * 5, 0.1).passed


def test_a_missing_value_must_be_missing_on_both_sides() -> None:
    good = non_inferiority([1, math.nan, 0.5, 0.7], [1, math.nan, 0.5, 0.7], 0.1)
    assert good.samples == 3
    with pytest.raises(ConfigError, match="one side only"):
        non_inferiority([1, math.nan, 0.5], [1, 0.5, 0.5], 0.1)
    with pytest.raises(ConfigError, match="finite"):
        non_inferiority([1, math.inf, 0.5], [1, 0.5, 0.5], 0.1)
    with pytest.raises(ConfigError, match="same number"):
        non_inferiority([1, 0.5], [1], 0.1)


def test_the_bootstrap_covers_and_repeats() -> None:
    values = np.random.default_rng(10).exponential(1.0, 80)
    bound = bootstrap_lower(values, 0.95, seed=3)
    assert bound == bootstrap_lower(values, 0.95, seed=3) != bootstrap_lower(values, 0.95, seed=4)
    normal = values.mean() - stats.norm.ppf(0.95) * values.std(ddof=1) / math.sqrt(80)
    assert bound == pytest.approx(normal, abs=0.05) and bound < values.mean()
    assert bootstrap_lower([2.0, 2.0]) == 2.0


def test_mcnemar_is_a_sign_test() -> None:
    assert mcnemar(0, 0) == 1.0 and mcnemar(5, 5) == 1.0
    assert mcnemar(1, 9) == pytest.approx(2 * (1 + 10) / 2**10)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: non_inferiority([1, 0], [1, 0], 0.0), "margin"),
        (lambda: non_inferiority([1, 0], [1, 0], math.nan), "margin"),
        (lambda: non_inferiority([1, 0], [1, 0], 0.1, alpha=0.0), "alpha"),
        (lambda: non_inferiority([1, 0], [1, 0], 0.1, beta=0.7), "beta"),
        (lambda: lower_bound(3, 2), "hits"),
        (lambda: lower_bound(1, 2, 1.0), "confidence"),
        (lambda: trials_for_share(0.9, 0.8), "expected"),
        (lambda: trials_for_paired_mean(math.inf, 0.1), "deviation"),
        (lambda: trials_for_paired_shares(1.5, 0.1), "discordance"),
        (lambda: bootstrap_lower([1.0]), "values"),
    ],
)
def test_numbers_out_of_range_are_refused(call: object, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        call()  # type: ignore[operator]
