"""The language of answers, as a finite automaton over tokens.

    answer = road weather light [vehicles two_wheelers pedestrians] hazard* advice sentence <eos>

Only models whose vocabulary counts say numbers. Hazards come in the order of the enumeration, so none can be named
twice. A sentence is one of the vocabulary's, with its slots filled from the fields already said: the text cannot
contradict them. Every path ends, and the longest is checked against the contract's bounds when the grammar is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from triptych.contract import CAUTIOUS_ADVICE, Advice, EngineError, Hazard, Light, Road, SceneAdvice, Weather
from triptych.contract.result import COUNTED, MAX_HAZARDS, MAX_TEXT, MOST_COUNTED, NOT_COUNTED
from triptych.language.config import Sentence
from triptych.language.tokeniser import FIELDS, SLOT, Vocabulary, count_token, field_token, normalise, render

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Node:
    """A node of the tree of sentences still possible; ``mask`` is filled when first asked for."""

    children: dict[int, _Node] = field(default_factory=dict)
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Where in an answer we are: fields said so far (token numbers), the tree node once in the sentence."""

    fields: tuple[int, ...] = ()
    stage: int = 0
    node: _Node | None = None
    words: tuple[int, ...] = ()
    done: bool = False

    @property
    def fields_complete(self) -> bool:
        """Whether the advice has been said, i.e. only the text may be missing."""
        return self.node is not None or self.done


class Grammar:
    """The automaton for one vocabulary.

    Args:
        vocabulary: tokens, phrases, sentences.
        max_tokens: bound of one answer, ``<eos>`` included.

    Raises:
        EngineError: a sentence with an unknown condition, no sentence that fits every answer, or one that can break
            a bound of the contract.
    """

    def __init__(self, vocabulary: Vocabulary, max_tokens: int) -> None:
        self.vocabulary = vocabulary
        self.max_tokens = max_tokens
        self._value: dict[int, tuple[str, int]] = {}
        for name, kind in FIELDS.items():
            for value in kind:
                self._value[vocabulary.index[field_token(name, value)]] = (name, int(value))
        counted = COUNTED if vocabulary.counts else ()
        for name in counted:
            for number in range(MOST_COUNTED + 1):
                self._value[vocabulary.index[count_token(name, number)]] = (name, number)
        self.order = ("road", "weather", "light", *counted, "hazard", "advice")
        """Fields as they are said."""
        self._of: dict[str, list[int]] = {
            name: [t for t, (n, _) in self._value.items() if n == name] for name in self.order
        }
        self.advice = tuple(sorted(self._of["advice"], key=lambda token: self._value[token][1]))
        """Advice tokens from least to most careful."""
        self._stage_masks = [self._mask(self._of[name]) for name in self.order]
        self._hazard_masks = {
            last: self._mask([t for t in self._of["hazard"] if self._value[t][1] > last] + self._of["advice"])
            for last in range(max(Hazard) + 1)
        }
        self._check()

    def _mask(self, tokens: list[int]) -> Mask:
        mask = np.zeros(len(self.vocabulary), np.bool_)
        mask[tokens] = True
        return mask

    def _check(self) -> None:
        vocabulary = self.vocabulary
        if not any(not s.when and "{hazard}" not in s.words for s in vocabulary.sentences):
            raise EngineError(
                "needs one sentence without conditions and without {hazard}", where=vocabulary.where, field="sentences"
            )
        phrases = {name: [vocabulary.phrases[vocabulary.tokens[t]] for t in self._of[name]] for name in self.order}
        longest = {name: max(some, key=len) for name, some in phrases.items()}
        widest = {name: max(some, key=lambda phrase: len(render([*phrase]))) for name, some in phrases.items()}
        for number, sentence in enumerate(vocabulary.sentences):
            where = f"sentences.{number}"
            for condition in sentence.when:
                token = condition.removeprefix("!")
                if token != "hazard:*" and vocabulary.index.get(token) not in self._value:
                    raise EngineError(
                        "is no field value", where=vocabulary.where, field=f"{where}.when", value=condition
                    )
            count = len(self.order) - 1 + MAX_HAZARDS + len(fill(sentence, longest)) + 1
            if count > self.max_tokens:
                problem = f"can make an answer of {count} tokens, above {self.max_tokens}"
                raise EngineError(problem, where=vocabulary.where, field=where)
            if len(render(fill(sentence, widest))) > MAX_TEXT:
                raise EngineError(f"can exceed {MAX_TEXT} characters", where=vocabulary.where, field=where)

    def start(self) -> State:
        """The state before the first token."""
        return State()

    def allowed(self, state: State) -> Mask:
        """Which tokens may come next: (vocabulary,) bool; all False once the answer has ended. Do not modify."""
        if state.done:
            return self._mask([])
        if state.node is not None:
            if state.node.mask is None:
                state.node.mask = self._mask(list(state.node.children))
            return state.node.mask
        if self.order[state.stage] == "hazard":
            last = self._value[state.fields[-1]] if state.fields else ("", 0)
            return self._hazard_masks[last[1] if last[0] == "hazard" else 0]
        return self._stage_masks[state.stage]

    def advance(self, state: State, token: int) -> State:
        """The state after ``token``.

        Raises:
            ValueError: the token is not allowed here.
        """
        if not (0 <= token < len(self.vocabulary)) or not self.allowed(state)[token]:
            raise ValueError(f"token {token} does not continue the answer")
        if state.node is not None:
            if token == self.vocabulary.eos:
                return State(state.fields, state.stage, None, state.words, True)
            return State(state.fields, state.stage, state.node.children[token], (*state.words, token))
        name = self._value[token][0]
        fields = (*state.fields, token)
        if name == "hazard":
            return State(fields, state.stage)
        stage = self.order.index(name) + 1
        return State(fields, stage, self._sentences(fields) if stage == len(self.order) else None)

    def _sentences(self, fields: tuple[int, ...]) -> _Node:
        """The tree of sentences that fit ``fields``."""
        vocabulary = self.vocabulary
        names = {vocabulary.tokens[t] for t in fields}
        said = {self._value[t][0]: vocabulary.phrases[vocabulary.tokens[t]] for t in fields}
        hazards = [vocabulary.phrases[vocabulary.tokens[t]] for t in fields if self._value[t][0] == "hazard"]
        root = _Node()
        for sentence in vocabulary.sentences:
            if not holds(sentence.when, names, bool(hazards)):
                continue
            for hazard in hazards if "{hazard}" in sentence.words else [()]:
                node = root
                for word in fill(sentence, {**said, "hazard": hazard}):
                    node = node.children.setdefault(vocabulary.index[word], _Node())
                node.children.setdefault(vocabulary.eos, _Node())
        return root

    def parse(self, tokens: list[int] | tuple[int, ...]) -> State:
        """Run the automaton over ``tokens``.

        Raises:
            ValueError: they are not the beginning of an answer.
        """
        state = self.start()
        for token in tokens:
            state = self.advance(state, token)
        return state

    def payload(self, state: State, question: str, probabilities: tuple[float, ...]) -> SceneAdvice:
        """The answer as the contract states it.

        An answer that was cut short stays valid: fields not said are UNKNOWN or NOT_COUNTED, advice not said is the
        cautious default, and a text not finished ends in "...".
        """
        values: dict[str, int] = {}
        hazards: list[Hazard] = []
        for token in state.fields:
            name, value = self._value[token]
            if name == "hazard":
                hazards.append(Hazard(value))
            else:
                values[name] = value
        words = [self.vocabulary.tokens[token] for token in state.words]
        return SceneAdvice(
            road=Road(values.get("road", Road.UNKNOWN)),
            weather=Weather(values.get("weather", Weather.UNKNOWN)),
            light=Light(values.get("light", Light.UNKNOWN)),
            hazards=tuple(hazards),
            advice=Advice(values.get("advice", CAUTIOUS_ADVICE.advice)),
            vehicles=values.get("vehicles", NOT_COUNTED),
            two_wheelers=values.get("two_wheelers", NOT_COUNTED),
            pedestrians=values.get("pedestrians", NOT_COUNTED),
            question=question,
            text=render(words) if state.done else (render(words) + " ...").lstrip(),
            token_probabilities=probabilities,
        )


def fill(sentence: Sentence, said: dict[str, tuple[str, ...]]) -> list[str]:
    """The words of ``sentence`` with its slots replaced by the phrases in ``said``."""
    words: list[str] = []
    for part in SLOT.split(sentence.words):
        words += said[part[1:-1]] if SLOT.fullmatch(part) else normalise(part)
    return words


def holds(conditions: tuple[str, ...], names: set[str], any_hazard: bool) -> bool:
    for condition in conditions:
        wanted = not condition.startswith("!")
        token = condition.removeprefix("!")
        if (any_hazard if token == "hazard:*" else token in names) is not wanted:
            return False
    return True
