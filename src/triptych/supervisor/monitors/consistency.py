"""Consistency: whether the last answers of a VLM tell of one scene, or each of another."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import sqrt

from triptych.contract.result import COUNTED, NOT_COUNTED, SceneAdvice
from triptych.contract.terms import Advice
from triptych.supervisor.config import SupervisorConfig

_SAME_COUNT = 1
"""Counts that differ by no more are the same: an object at the edge of sight comes and goes."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as it is compared: its hazards as a set, its text as a bag of words with the bag's squared length.

    Words, not meanings: an embedding model has no place in the supervisor.
    """

    answer: SceneAdvice
    hazards: frozenset[int]
    words: Counter[str]
    length2: int

    @classmethod
    def of(cls, answer: SceneAdvice) -> Said:
        """Take an answer apart."""
        words = Counter(answer.text.lower().replace(",", " ").replace(".", " ").split())
        return cls(answer, frozenset(answer.hazards), words, sum(n * n for n in words.values()))


def similarity(one: Said, other: Said, config: SupervisorConfig) -> float:
    """How alike two answers are, 0..1: the weighted mean of its parts, symmetric, 1 for equal answers.

    Scene: share of road, weather and light that are equal. Hazards: Jaccard index. Counts: share within one of each
    other, left out where one of the two does not count. Advice: 1 - distance / greatest distance. Text: cosine of the
    bags of words.
    """
    a, b = one.answer, other.answer
    scene = ((a.road == b.road) + (a.weather == b.weather) + (a.light == b.light)) / 3
    union = one.hazards | other.hazards
    hazards = len(one.hazards & other.hazards) / len(union) if union else 1.0
    advice = max(0.0, 1.0 - abs(a.advice - b.advice) / max(Advice))
    parts = [
        (config.consistency_scene_weight, scene),
        (config.consistency_hazards_weight, hazards),
        (config.consistency_advice_weight, advice),
        (config.consistency_text_weight, _cosine(one, other)),
    ]
    pairs = [(getattr(a, name), getattr(b, name)) for name in COUNTED]
    known = [abs(x - y) <= _SAME_COUNT for x, y in pairs if NOT_COUNTED not in (x, y)]
    if known:
        parts.append((config.consistency_counts_weight, sum(known) / len(known)))
    return sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts)


def _cosine(one: Said, other: Said) -> float:
    if not (one.words and other.words):
        return float(not one.words and not other.words)
    product = sum(n * other.words[word] for word, n in one.words.items())
    return min(1.0, product / sqrt(one.length2 * other.length2))


class Consistency:
    """Metric ``inconsistency``: 1 - C_K, where C_K is the mean similarity of all pairs of the last K fresh answers
    about new frames (self-consistency: Wang et al., 2023); unknown before there are K.

    A scene that changes once makes the answers before and after it differ for K - 1 answers, at worst by 60 % of their
    difference (K = 5), and a road that changes every few seconds keeps a slow VLM there; a fault is what lasts longer,
    which is the debounce of the fault table. The weight of advice is small enough that advice alone, whatever it does,
    stays below the shipped threshold.
    """

    __slots__ = ("_config", "_pairs", "_said", "_value")

    def __init__(self, config: SupervisorConfig) -> None:
        window = config.consistency_window_n
        self._config = config
        self._said: deque[tuple[Said, list[float]]] = deque(maxlen=window)
        self._pairs = window * (window - 1) // 2
        self._value: float | None = None

    def observe(self, answer: SceneAdvice) -> None:
        """A fresh answer about a new frame."""
        said = Said.of(answer)
        before = reversed(self._said)
        self._said.append((said, [similarity(said, other, self._config) for other, _ in before]))
        if len(self._said) == self._said.maxlen:
            # Each answer's similarities to those before it, nearest first; the farthest may have left the window.
            total = sum(sum(likes[:place]) for place, (_, likes) in enumerate(self._said))
            self._value = max(0.0, 1.0 - total / self._pairs)

    def restart(self) -> None:
        """The tier was restarted."""
        self._said.clear()
        self._value = None

    def inconsistency(self, now_ns: int) -> float | None:
        return self._value
