"""Vocabularies for tests beside that of the tables."""

from triptych.language.config import VocabularyFile
from triptych.language.tokeniser import COUNT_TOKENS, COUNTED
from triptych_forge.vlm.words import vocabulary_file


def uncounted_file() -> VocabularyFile:
    """The tables' vocabulary of a model that does not count."""
    whole = vocabulary_file()
    return whole.model_copy(
        update={
            "tokens": tuple(token for token in whole.tokens if token not in COUNT_TOKENS),
            "phrases": {token: phrase for token, phrase in whole.phrases.items() if token not in COUNT_TOKENS},
            "sentences": tuple(s for s in whole.sentences if not any(f"{{{field}}}" in s.words for field in COUNTED)),
        }
    )
