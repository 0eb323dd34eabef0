"""Repetition: a VLM that says the same words over and over, or does not come to an end (scenario A7)."""

from __future__ import annotations

from triptych.contract.result import MAX_TOKENS, SceneAdvice
from triptych.supervisor.config import SupervisorConfig


def repetition(answer: SceneAdvice, ngram: int) -> float | None:
    """Share of the text's n-grams of words that are repetitions, 0..1; ``None`` for an answer without a word or token.

    1 - distinct n-grams / all n-grams (seq-rep-n of Welleck et al., 2020). An answer of :data:`MAX_TOKENS` tokens was
    cut by the contract's bound, not ended: it counts as 1, whatever it says.
    """
    if len(answer.token_probabilities) >= MAX_TOKENS:
        return 1.0
    words = answer.text.split()
    if not words and not answer.token_probabilities:
        return None
    count = len(words) - ngram + 1
    return 1.0 - len({tuple(words[i : i + ngram]) for i in range(count)}) / count if count > 1 else 0.0


class Repetition:
    """Metric ``repetition`` of the last fresh answer, 0..1; unknown before the first."""

    __slots__ = ("_ngram", "_value")

    def __init__(self, config: SupervisorConfig) -> None:
        self._ngram = config.repetition_ngram_n
        self._value: float | None = None

    def observe(self, answer: SceneAdvice) -> None:
        """A fresh answer."""
        self._value = repetition(answer, self._ngram)

    def repetition(self, now_ns: int) -> float | None:
        return self._value
