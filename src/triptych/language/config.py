"""The ``language`` section of a VLM engine's manifest, and the vocabulary file it names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from triptych.contract.result import MAX_TOKENS


class LanguageConfig(BaseModel):
    """What a VLM engine needs to know beside its files and its picture geometry.

    The decoder graph takes ``layers`` pairs of past keys and values of shape (1, ``heads``, past, ``head_size``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int = Field(ge=1, le=64, description="pairs of keys and values that the decoder keeps")
    heads: int = Field(ge=1, le=128, description="of attention in each layer")
    head_size: int = Field(ge=1, le=512, description="length of a head's keys and values")
    frame_spacing_s: float = Field(
        default=0.0, ge=0.0, le=10.0, description="time between the frames it was trained on; 0 for a single frame"
    )
    questions: bool = Field(default=False, description="answers free questions; otherwise only the standing one")
    max_tokens: int = Field(default=MAX_TOKENS, ge=16, le=MAX_TOKENS, description="bound of one answer")
    step_margin_ms: float = Field(
        default=2.0, ge=0.0, le=1000.0, description="kept free before a deadline, beside the slowest step seen"
    )
    advice_quantile: float = Field(
        default=0.5, ge=0.5, lt=1.0, description="chance with which the advice must be careful enough; 0.5: the median"
    )
    uncertainty_max: float = Field(
        default=0.9, gt=0.0, le=1.0, description="a golden frame answered less surely than this fails the self-test"
    )


class Sentence(BaseModel):
    """One sentence the text may be.

    ``words`` may hold the slots ``{road} {weather} {light} {advice} {hazard}``, filled with the phrase of what the
    answer's fields say; ``{hazard}`` gives one variant per hazard named. A vocabulary that counts has
    ``{vehicles} {two_wheelers} {pedestrians}`` as well. ``when`` lists tokens that must be among the answer's fields,
    or must not (leading ``!``; ``!hazard:*`` means no hazard at all).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: str = Field(min_length=1, max_length=512)
    when: tuple[str, ...] = ()


class VocabularyFile(BaseModel):
    """Content of the vocabulary file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str = Field(pattern="^triptych-vocabulary-1$")
    tokens: tuple[str, ...] = Field(min_length=8, max_length=4096)
    phrases: dict[str, str]
    sentences: tuple[Sentence, ...] = Field(min_length=1, max_length=512)
    max_question_tokens: int = Field(default=24, ge=1, le=64)
