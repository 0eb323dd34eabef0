"""Bounds, sample sizes and non-inferiority tests behind the verdicts.

scipy does the distributions and the bootstrap. By hand is only what it lacks: the score test for two paired
proportions with a margin, and the sample sizes.

Throughout, ``alpha`` is the chance to accept something that is worse by the margin, ``beta`` the chance to refuse
something that is equally good.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import stats

from triptych.contract import ConfigError
from triptych_forge.verify.result import Part

Floats = npt.NDArray[np.float64]
Method = Literal["exact", "wilson"]
EXACT_SAMPLES = 100_000
MOST_SAMPLES = 10**9
RESAMPLES = 2000


def lower_bound(hits: int, trials: int, confidence: float = 0.95, method: Method = "exact") -> float:
    """One-sided lower confidence bound of a share.

    Args:
        hits: successes, 0 to ``trials``.
        trials: 0 gives 0.0: nothing is known.
        confidence: 0..1, exclusive.
        method: ``exact`` is Clopper and Pearson (Biometrika 26, 1934), never too optimistic; ``wilson`` is the score
            interval (Wilson, JASA 22, 1927), right on average.
    """
    _open_unit("confidence", confidence)
    _counts(hits, trials)
    if trials == 0:
        return 0.0
    interval = stats.binomtest(hits, trials, alternative="greater").proportion_ci(confidence, method=method)
    return float(interval.low)


def upper_bound(hits: int, trials: int, confidence: float = 0.95, method: Method = "exact") -> float:
    """One-sided upper confidence bound of a share: what is left of the lower bound of its opposite."""
    _counts(hits, trials)
    return 1.0 - lower_bound(trials - hits, trials, confidence, method)


def spotless_trials(share: float, confidence: float = 0.95) -> int:
    """Least number of trials, all successes, that puts the exact lower bound at ``share`` or above.

    The bound after n successes in n is (1 - confidence)^(1/n), so n = ln(1 - confidence) / ln(share).
    """
    _open_unit("share", share)
    _open_unit("confidence", confidence)
    return math.ceil(math.log1p(-confidence) / math.log(share))


def trials_for_share(null: float, expected: float, alpha: float = 0.05, beta: float = 0.2) -> int:
    """Trials for a one-sided test of "the share is at most ``null``" when it really is ``expected``, above ``null``.

    Normal approximation: n = ((z_alpha sqrt(p0 q0) + z_beta sqrt(p1 q1)) / (p1 - p0))^2 (Fleiss, Levin and Paik,
    Statistical Methods for Rates and Proportions, section 2.5).
    """
    _risks(alpha, beta)
    if not 0.0 < null < expected <= 1.0:
        raise ConfigError("must lie above the share to be ruled out", field="expected", value=(null, expected))
    spread = _z(alpha) * math.sqrt(null * (1 - null)) + _z(beta) * math.sqrt(expected * (1 - expected))
    return math.ceil((spread / (expected - null)) ** 2)


def trials_for_paired_mean(deviation: float, margin: float, alpha: float = 0.05, beta: float = 0.2) -> int:
    """Pairs for the one-sided paired t test to prove a loss below ``margin`` when there is none.

    Args:
        deviation: standard deviation of the paired differences; 0 gives 2, the least a t test takes.
        margin: greatest loss allowed, in the same unit, above 0.

    Up to :data:`EXACT_SAMPLES` the power is exact: the statistic follows a non-central t with n - 1 degrees and
    non-centrality sqrt(n) margin / deviation. Beyond, the normal approximation is a few pairs short at most.
    """
    _risks(alpha, beta)
    _margin(margin)
    if not (math.isfinite(deviation) and deviation >= 0):
        raise ConfigError("must be finite and not negative", field="deviation", value=deviation)
    if deviation == 0:
        return 2
    effect = margin / deviation
    # The normal approximation is never above the exact number and at most a few pairs below it.
    number = max(2, math.ceil(((_z(alpha) + _z(beta)) / effect) ** 2))
    while number < MOST_SAMPLES:
        power = stats.nct.sf(stats.t.isf(alpha, number - 1), number - 1, math.sqrt(number) * effect)
        # Beyond so many, t and normal agree and the tail of the non-central t is not computed reliably.
        if power >= 1 - beta or number > EXACT_SAMPLES:
            break
        number += 1
    return min(number, MOST_SAMPLES)


def trials_for_paired_shares(discordance: float, margin: float, alpha: float = 0.05, beta: float = 0.2) -> int:
    """Pairs for :func:`score_test` to prove a loss below ``margin`` when both are equally often right.

    Args:
        discordance: share of pairs in which exactly one is right, 0..1, equally often the one and the other. What is
            below ``margin`` counts as ``margin``: so many must differ if the hypothesis to be ruled out holds.

    n = ((z_alpha s0 + z_beta s1) / margin)^2 with s0, s1 the deviations per pair under the hypothesis (Tango's
    restricted estimate) and under equality.
    """
    _risks(alpha, beta)
    _margin(margin)
    if not 0.0 <= discordance <= 1.0:
        raise ConfigError("must be 0 to 1", field="discordance", value=discordance)
    if margin >= 1.0:
        return 1
    share = max(discordance, min(margin, 1.0))
    s0 = math.sqrt(float(_null_variance(np.array(share / 2), np.array(share / 2), 1.0, margin)))
    return math.ceil(((_z(alpha) * s0 + _z(beta) * math.sqrt(share)) / margin) ** 2)


def _null_variance(better: Any, worse: Any, trials: float, margin: float) -> Any:
    """Variance of (better - worse) when the loss is exactly ``margin``, see :func:`score_test`."""
    loss = -margin
    a = 2.0 * trials
    b = -better - worse + (2.0 * trials - better + worse) * loss
    c = -worse * loss * (1.0 - loss)
    q = (np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
    return np.maximum(trials * (2.0 * q + loss * (1.0 - loss)), 0.0)


def score_statistic(better: Any, worse: Any, trials: int, margin: float) -> Any:
    """Tango's score statistic for two paired proportions (Statistics in Medicine 17, 1998, equations 4 to 6).

    Args:
        better: pairs in which only the new one is right; a number or an array.
        worse: pairs in which only the old one is right.
        trials: all pairs.
        margin: greatest loss allowed, 0..1; at 0 this is McNemar's statistic (better - worse) / sqrt(better + worse).

    Returns:
        Standard normal if the loss is exactly ``margin``; large when it is smaller.
    """
    better, worse = np.asarray(better, np.float64), np.asarray(worse, np.float64)
    over = better - worse + trials * margin
    spread = np.sqrt(_null_variance(better, worse, float(trials), margin))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, over / spread, np.where(over > 0, np.inf, 0.0))


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided McNemar p-value for "both are equally often right": a sign test on the discordant pairs."""
    if better + worse == 0:
        return 1.0
    return float(stats.binomtest(better, better + worse, 0.5).pvalue)


class NonInferiority(Part):
    """Outcome of a one-sided test of "the new one loses ``margin`` or more"."""

    test: Literal["paired score", "paired t", "none"] = Field(description="Which test; none: nothing to test.")
    samples: int = Field(description="Pairs that counted.")
    loss: float = Field(description="Mean of old minus new, in the direction in which more is better.")
    loss_bound: float = Field(description="Upper confidence bound of the loss at 1 - alpha, paired bootstrap.")
    margin: float = Field(description="Greatest loss allowed: the effect size that the test must tell from none.")
    alpha: float = Field(description="Chance to accept what is worse by the margin.")
    beta: float = Field(description="Planned chance to refuse what is equally good.")
    p_value: float = Field(description="Chance of such data if the loss were the margin.")
    differ_p_value: float = Field(description="Two-sided chance of such data if both were equal.")
    samples_needed: int = Field(description="Pairs that alpha, beta, margin and the spread found call for.")
    underpowered: bool = Field(description="Fewer pairs than needed: a refusal then proves little.")
    passed: bool = Field(description="p_value below alpha.")


def non_inferiority(
    old: npt.ArrayLike,
    new: npt.ArrayLike,
    margin: float,
    alpha: float = 0.05,
    beta: float = 0.2,
    higher_is_better: bool = True,
    seed: int = 0,
) -> NonInferiority:
    """Test that ``new`` loses less than ``margin`` against ``old`` on the same samples.

    Args:
        old, new: (n,) values of the same samples in the same order. Pairs of two NaN are left out.
            Only zeros and ones: the paired score test; anything else: the one-sided paired t test.
        margin: above 0, in the values' unit.
        seed: of the bootstrap.

    Raises:
        ConfigError: lengths differ, infinite values, or a margin, alpha or beta out of range.
    """
    _risks(alpha, beta)
    _margin(margin)
    first, second = np.asarray(old, np.float64).ravel(), np.asarray(new, np.float64).ravel()
    if first.shape != second.shape:
        raise ConfigError("old and new must have the same number of values", value=(first.size, second.size))
    # What one side could not do (NaN on one side only) is no missing value and must not flatter either.
    if (np.isnan(first) != np.isnan(second)).any():
        raise ConfigError("a sample has a value on one side only", field="samples", remedy="give both or neither")
    known = ~np.isnan(first)
    first, second = first[known], second[known]
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ConfigError("values must be finite", field="samples")
    gain = (second - first) if higher_is_better else (first - second)
    count = gain.size
    if count < 2:
        return NonInferiority(
            test="none", samples=count, loss=math.nan, loss_bound=math.inf, margin=margin, alpha=alpha, beta=beta,
            p_value=1.0, differ_p_value=1.0, samples_needed=2, underpowered=True, passed=False,
        )  # fmt: skip
    binary = bool(np.isin(first, (0.0, 1.0)).all() and np.isin(second, (0.0, 1.0)).all())
    if binary:
        better, worse = int((gain > 0).sum()), int((gain < 0).sum())
        p_value = float(stats.norm.sf(score_statistic(better, worse, count, margin)))
        differ = mcnemar(better, worse)
        needed = trials_for_paired_shares((better + worse) / count, margin, alpha, beta)
    else:
        p_value, differ = _t_tests(gain, margin)
        needed = trials_for_paired_mean(float(gain.std(ddof=1)), margin, alpha, beta)
    return NonInferiority(
        test="paired score" if binary else "paired t",
        samples=count,
        loss=float(-gain.mean()),
        loss_bound=-bootstrap_lower(gain, 1 - alpha, seed),
        margin=margin,
        alpha=alpha,
        beta=beta,
        p_value=p_value,
        differ_p_value=differ,
        samples_needed=needed,
        underpowered=count < needed,
        passed=p_value < alpha,
    )


def _t_tests(gain: Floats, margin: float) -> tuple[float, float]:
    """p-values: of a loss of ``margin`` (one-sided), and of no difference (two-sided)."""
    if np.ptp(gain) == 0:  # no spread: t is not defined, and nothing is left to chance
        return float(gain[0] <= -margin), float(gain[0] == 0)
    return (
        float(stats.ttest_1samp(gain, -margin, alternative="greater").pvalue),
        float(stats.ttest_1samp(gain, 0.0).pvalue),
    )


def bootstrap_lower(values: npt.ArrayLike, confidence: float = 0.95, seed: int = 0) -> float:
    """One-sided lower bound of the mean, percentile bootstrap (Efron 1979), repeatable by ``seed``.

    Args:
        values: (n,), at least 2.
    """
    _open_unit("confidence", confidence)
    data = np.asarray(values, np.float64).ravel()
    if data.size < 2:
        raise ConfigError("needs at least two values", field="values", value=data.size)
    if np.ptp(data) == 0:
        return float(data[0])
    found = stats.bootstrap(
        (data,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, min(RESAMPLES, 2_000_000 // data.size)),
        confidence_level=confidence,
        alternative="greater",
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low)


def _z(risk: float) -> float:
    return float(stats.norm.isf(risk))


def _open_unit(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ConfigError("must lie between 0 and 1", field=name, value=value)


def _risks(alpha: float, beta: float) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0.0 < value <= 0.5:
            raise ConfigError("must be above 0 and at most 0.5", field=name, value=value)


def _margin(margin: float) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ConfigError("must be above 0", field="margin", value=margin, remedy="state the loss that is acceptable")


def _counts(hits: int, trials: int) -> None:
    if not 0 <= hits <= trials:
        raise ConfigError("must be 0 to the number of trials", field="hits", value=(hits, trials))
