"""Perplexity: between how many equally probable tokens a VLM's answer was a choice, on average."""

from __future__ import annotations

from math import exp, inf, log, nan

from triptych.contract.result import SceneAdvice

_MOST = 700.0
"""exp() of more overflows."""


def perplexity(probabilities: tuple[float, ...]) -> float | None:
    """PPL = exp(-1/N sum(log p)) over the generated tokens, 1 for certainty (Jelinek et al., 1977).

    Infinite when a token was impossible, NaN when one has no probability, ``None`` without tokens.
    """
    if not probabilities:
        return None
    surprise = 0.0
    for p in probabilities:
        if not 0.0 <= p <= 1.0:
            return nan
        surprise += -log(p) if p > 0.0 else inf
    mean = surprise / len(probabilities)
    return exp(mean) if mean < _MOST else inf


class Perplexity:
    """Metric ``perplexity`` of the last fresh answer, 1 or more; unknown without tokens."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float | None = None

    def observe(self, answer: SceneAdvice) -> None:
        """A fresh answer."""
        self._value = perplexity(answer.token_probabilities)

    def perplexity(self, now_ns: int) -> float | None:
        return self._value
