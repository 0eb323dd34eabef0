"""Words to numbers and back: a word-level vocabulary read from a JSON file beside the model.

Tokens are of three kinds: five controls, one token per value of the contract's fields (``road:highway``,
``vehicles:2``) and plain lower-case words. A word-level table needs no trained merges, so the file is the whole
tokeniser.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from triptych.contract import Advice, EngineError, Hazard, InputError, Light, Road, Weather
from triptych.contract.result import COUNTED, MAX_QUESTION, MOST_COUNTED
from triptych.documents import parse_json
from triptych.language.config import Sentence, VocabularyFile

PAD, BOS, ANSWER, EOS, UNKNOWN = "<pad>", "<bos>", "<answer>", "<eos>", "<unk>"
CONTROLS = (PAD, BOS, ANSWER, EOS, UNKNOWN)
FIELDS: dict[str, type[Road] | type[Weather] | type[Light] | type[Hazard] | type[Advice]] = {
    "road": Road,
    "weather": Weather,
    "light": Light,
    "hazard": Hazard,
    "advice": Advice,
}
"""Field name in a token, and the enumeration its values come from."""
SLOT = re.compile(r"(\{[^{}]*\})")
"""Where a sentence names a field, e.g. ``{two_wheelers}``."""

_WORD = re.compile(r"[a-z0-9]+|,")


def normalise(text: str) -> list[str]:
    """Lower-case words and commas of ``text``; every other sign is a separator."""
    return _WORD.findall(text.lower())


def render(words: list[str]) -> str:
    """Join words into a line: single blanks, none before a comma."""
    return " ".join(words).replace(" ,", ",")


def field_token(field: str, value: Road | Weather | Light | Hazard | Advice) -> str:
    """Name of the token of one value, e.g. ``hazard:red_light``."""
    return f"{field}:{value.name.lower()}"


def count_token(field: str, value: int) -> str:
    """Name of the token of a number from 0, e.g. ``vehicles:2``; what is beyond ``MOST_COUNTED`` is said as that."""
    return f"{field}:{min(value, MOST_COUNTED)}"


COUNT_TOKENS = tuple(count_token(field, value) for field in COUNTED for value in range(MOST_COUNTED + 1))
"""A vocabulary holds all of them or, of a model that does not count, none."""


class Vocabulary:
    """The tokens, phrases and sentences of one model.

    Args:
        content: the parsed file.
        where: file name for messages.

    Raises:
        EngineError: tokens that repeat; a control or a field value without a token, a value without a phrase; only
            some of the tokens that count; a sentence with a slot for no field; a word used in a phrase or sentence that
            is no token.
    """

    def __init__(self, content: VocabularyFile, where: object = "vocabulary") -> None:
        self.tokens = content.tokens
        self.phrases = {key: tuple(normalise(value)) for key, value in content.phrases.items()}
        self.sentences: tuple[Sentence, ...] = content.sentences
        self.max_question_tokens = content.max_question_tokens
        self.where = where
        self.index = {token: number for number, token in enumerate(content.tokens)}
        if len(self.index) != len(content.tokens):
            raise EngineError("holds a token twice", where=where, field="tokens")
        self.counts = any(token in self.index for token in COUNT_TOKENS)
        """Whether the model counts objects."""
        needed = [*CONTROLS, *(field_token(f, v) for f, kind in FIELDS.items() for v in kind)]
        needed += COUNT_TOKENS if self.counts else ()
        missing = [token for token in needed if token not in self.index]
        if missing:
            raise EngineError(f"lacks {len(missing)} needed tokens", where=where, field="tokens", value=missing[:4])
        self.pad, self.bos, self.answer, self.eos, self.unknown = (self.index[t] for t in CONTROLS)
        without = [t for t in needed[len(CONTROLS) :] if t not in self.phrases]
        if without:
            raise EngineError("lacks phrases", where=where, field="phrases", value=without[:4])
        for token, words in self.phrases.items():
            self._known(words, f"phrases.{token}")
        slots = {f"{{{field}}}" for field in (*FIELDS, *(COUNTED if self.counts else ()))}
        for number, sentence in enumerate(self.sentences):
            strange = [slot for slot in SLOT.findall(sentence.words) if slot not in slots]
            if strange:
                problem = "has a slot for what is no field of this vocabulary"
                raise EngineError(problem, where=where, field=f"sentences.{number}.words", value=strange[0])
            self._known(tuple(normalise(SLOT.sub(" ", sentence.words))), f"sentences.{number}.words")

    def _known(self, words: tuple[str, ...], field: str) -> None:
        strange = [word for word in words if word not in self.index]
        if strange:
            raise EngineError("uses words that are no tokens", where=self.where, field=field, value=strange[:4])

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read the JSON file at ``path``.

        Raises:
            EngineError: unreadable, not JSON, or not a vocabulary.
        """
        try:
            content = VocabularyFile.model_validate(parse_json(path.read_bytes()))
        except OSError as error:
            raise EngineError(
                f"cannot be read ({error.strerror})", where=path, remedy="restore the file beside the manifest"
            ) from error
        except (ValueError, ValidationError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            raise EngineError(
                "is not a vocabulary" + (f": {first['msg']}" if first else ""),
                where=path,
                field=".".join(str(part) for part in first["loc"]) if first else None,
                remedy="export the model again",
            ) from error
        return cls(content, path)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Token numbers of the words of ``text``; an unknown word becomes ``<unk>``."""
        return [self.index.get(word, self.unknown) for word in normalise(text)]

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        """The text of ``tokens``; controls are left out, field values are shown by their token's name."""
        words = (self.tokens[token] for token in tokens)
        return render([word for word in words if word not in CONTROLS])

    def question(self, text: str) -> list[int]:
        """The prompt for a question: ``<bos>`` its words ``<answer>``; an empty text is the standing question.

        Raises:
            InputError: more than 128 characters or more words than the model takes.
        """
        if len(text) > MAX_QUESTION:
            raise InputError(f"must not exceed {MAX_QUESTION} characters", field="question", value=text)
        words = self.encode(text)
        if len(words) > self.max_question_tokens:
            raise InputError(
                f"must not exceed {self.max_question_tokens} words", field="question", value=text, remedy="ask shorter"
            )
        return [self.bos, *words, self.answer]
