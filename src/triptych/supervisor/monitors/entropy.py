"""Entropy: how open the choice of each field of a VLM's answer was, from the probabilities of the tokens it chose."""

from __future__ import annotations

from math import log, nan

from triptych.contract.result import NOT_COUNTED, SceneAdvice
from triptych.supervisor.config import SupervisorConfig


def token_entropy(probability: float, outcomes: int) -> float:
    """Greatest entropy that a choice between ``outcomes`` can have had, 0..1 of its maximum log(``outcomes``).

    An answer carries the probability p of the chosen token, not the distribution. Of all distributions with that one
    probability the widest spreads the rest evenly: H = -p log p - (1 - p) log((1 - p) / (outcomes - 1)), the bound of
    Fano's inequality (Cover and Thomas, Elements of Information Theory, 2.10). It falls as p grows from 1/``outcomes``
    on; a token less probable than that counts as 1, and what is no probability gives NaN.
    """
    if not 0.0 <= probability <= 1.0:
        return nan
    if probability * outcomes <= 1.0:
        return 1.0
    rest = 1.0 - probability
    if rest <= 0.0:
        return 0.0
    return (rest * log((outcomes - 1) / rest) - probability * log(probability)) / log(outcomes)


def field_tokens(answer: SceneAdvice) -> int:
    """How many of an answer's tokens are fields: road, weather, light, counts if it counts, hazards, advice."""
    counted = 0 if answer.vehicles == NOT_COUNTED else 3
    return 4 + counted + len(answer.hazards)


def answer_entropy(answer: SceneAdvice, outcomes: int) -> float | None:
    """Mean of :func:`token_entropy` over the fields, which are said first; ``None`` for an answer without tokens.

    The text behind them is left out: it mostly follows from the fields and would hide doubt about them.
    """
    tokens = answer.token_probabilities[: field_tokens(answer)]
    return sum(token_entropy(p, outcomes) for p in tokens) / len(tokens) if tokens else None


class Entropy:
    """Metric ``entropy_n``: consecutive fresh answers above the limit; unknown before the first with tokens.

    Not the tier's own ``uncertainty``, which is 1 - the geometric mean of the fields' probabilities and has a row of
    its own: this one is computed here, from the tokens. Answers without tokens do not count either way.
    """

    __slots__ = ("_limit", "_outcomes", "_run")

    def __init__(self, config: SupervisorConfig) -> None:
        self._limit, self._outcomes = config.entropy_limit_share, config.entropy_outcomes_n
        self._run: int | None = None

    def observe(self, answer: SceneAdvice) -> None:
        """A fresh answer; NaN counts as above."""
        entropy = answer_entropy(answer, self._outcomes)
        if entropy is not None:
            self._run = 0 if entropy <= self._limit else (self._run or 0) + 1

    def entropy_n(self, now_ns: int) -> float | None:
        return self._run
