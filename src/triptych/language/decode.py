"""Greedy decoding under the grammar, careful in its advice, with a hard deadline.

Probabilities are the model's own: the softmax over the *whole* vocabulary, before the grammar masks anything. A
model that wants to say something the grammar forbids therefore shows a low probability, not a flattering
renormalised one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triptych.contract import EngineError
from triptych.language.grammar import Grammar, State

Step = Callable[[list[int]], npt.NDArray[np.float32]]
"""Feeds tokens after those fed before; returns the logits (vocabulary,) float32 that follow the last of them."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded answer.

    Attributes:
        state: the grammar's last state.
        tokens: generated tokens, ``<eos>`` included when reached.
        probabilities: of each token, 0..1, under the full softmax.
        field_count: how many of them are fields (road to advice); the rest is text.
        cut: stopped by the deadline or the bound rather than by ``<eos>``.
    """

    state: State
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    field_count: int
    cut: bool

    @property
    def uncertainty(self) -> float:
        """1 - geometric mean of the probabilities of the field tokens; 1.0 when the advice was not reached.

        The text's tokens are left out: they mostly follow from the fields and would hide doubt about them.
        """
        if not self.state.fields_complete:
            return 1.0
        logs = [math.log(max(p, 1e-12)) for p in self.probabilities[: self.field_count]]
        return min(1.0, max(0.0, 1.0 - math.exp(sum(logs) / len(logs))))


def greedy(
    step: Step,
    grammar: Grammar,
    prompt: list[int],
    deadline_monotonic_ns: int | None = None,
    margin_ns: int = 0,
    advice_quantile: float = 0.5,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> Decoded:
    """Decode the most probable allowed token at each step (the first of equals, so that runs are repeatable).

    Args:
        step: the model.
        grammar: what may be said; its ``max_tokens`` bounds the answer.
        prompt: fed before the first token.
        deadline_monotonic_ns: no step is begun that the slowest step so far would carry past this time; None: no limit.
        margin_ns: kept free before the deadline.
        advice_quantile: advice is ordered, so instead of the most probable one the least careful one is said that is
            careful enough with this chance: 0.5 is the median, more is more careful.
        now_ns: clock, for tests.

    Raises:
        EngineError: logits of a wrong shape, or NaN or infinite ones.
    """
    state = grammar.start()
    tokens: list[int] = []
    probabilities: list[float] = []
    fed = prompt
    slowest_ns = 0
    while not state.done and len(tokens) < grammar.max_tokens:
        began = now_ns()
        if deadline_monotonic_ns is not None and began + slowest_ns + margin_ns >= deadline_monotonic_ns:
            break
        logits = np.asarray(step(fed), dtype=np.float64)
        if logits.shape != (len(grammar.vocabulary),):
            raise EngineError(
                f"gave logits of shape {logits.shape} for {len(grammar.vocabulary)} tokens",
                where="decoder",
                remedy="export model and vocabulary together",
            )
        if not np.isfinite(logits).all():
            raise EngineError("gave logits that are not finite", where="decoder")
        token = int(np.argmax(np.where(grammar.allowed(state), logits, -np.inf)))
        if token in grammar.advice:
            token = _careful(logits, grammar.advice, advice_quantile)
        shifted = np.exp(logits - logits.max())
        probabilities.append(float(shifted[token] / shifted.sum()))
        tokens.append(token)
        state = grammar.advance(state, token)
        fed = [token]
        # The prompt's step is the longest by nature and comes once; it says nothing about those that follow.
        if len(tokens) > 1:
            slowest_ns = max(slowest_ns, now_ns() - began)
    return Decoded(state, tuple(tokens), tuple(probabilities), len(state.fields), not state.done)


def _careful(logits: npt.NDArray[np.float64], advice: tuple[int, ...], quantile: float) -> int:
    """The first advice, from least to most careful, up to which the chances among advice add up to ``quantile``."""
    chances = np.exp(logits[list(advice)] - logits[list(advice)].max())
    summed = np.cumsum(chances / chances.sum())
    # Rounding may keep the sum just below a quantile of 1.
    return advice[min(int(np.searchsorted(summed, quantile)), len(advice) - 1)]
