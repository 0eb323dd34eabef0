"""Distilling the built-in VLM token by token, along true answers and along the teacher's own.

Along the true answer the student learns what the teacher thinks after every true beginning (teacher forcing). Along the
teacher's own greedy answer it learns what the teacher would really say (Kim and Rush: Sequence-Level Knowledge
Distillation, 2016, section 3.2, with a beam of one), and is held to the beginnings that it will meet on the road.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triptych.contract import ConfigError
from triptych.language.decode import greedy
from triptych.language.grammar import Grammar
from triptych_forge.distil.losses import evaluating, kd_loss
from triptych_forge.vlm.model import Vlm


@dataclass(frozen=True)
class Rows:
    """Prompts and answers to learn from.

    Attributes:
        tokens: (R, T) int64: prompt and answer, padded behind.
        weights: (R, T - 1) float32 >= 0: how much predicting token t + 1 from those up to t counts; 0 within the prompt
            and in the padding.
        groups: consecutive rows that share a picture.
    """

    tokens: Tensor
    weights: Tensor
    groups: int = 1


@dataclass(frozen=True)
class Clips:
    """B pictures as one model wants them: frames (B, N, H, W, 3) uint8 BGR, ages_s (B, N) float32.

    Or the newest frame alone, and the earlier ones halved in ``before``, see
    :meth:`triptych_forge.vlm.model.Encoder.tokens`.
    """

    frames: Tensor
    ages_s: Tensor
    before: Tensor | None = None


@dataclass(frozen=True)
class SequenceBatch:
    """The same scenes as the student and as the teacher sees them, and B * groups rows of tokens."""

    student: Clips
    teacher: Clips
    rows: Rows


def pad_rows(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    pad: int,
    weights: Sequence[Sequence[float]] | None = None,
) -> Rows:
    """Prompts followed by answers as one padded tensor; every token of an answer counts, by ``weights`` if given.

    Args:
        prompts, answers: token numbers, one of each per row; a prompt holds at least one.
        pad: number of the padding token.
        weights: of the answers' tokens, same lengths as ``answers``.

    Raises:
        ConfigError: unequal counts, an empty prompt, no answer token at all, weights of another length.
    """
    if not len(prompts) == len(answers) == len(weights if weights is not None else answers):
        raise ConfigError("are not as many as answers", where="rows", field="prompts", value=len(prompts))
    if not all(len(prompt) for prompt in prompts) or not any(len(answer) for answer in answers):
        raise ConfigError("need a prompt each and an answer at least once", where="rows")
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    tokens = torch.full((len(prompts), longest), pad, dtype=torch.int64)
    counts = torch.zeros(len(prompts), longest - 1)
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        shares = [1.0] * len(answer) if weights is None else list(weights[number])
        if len(shares) != len(answer):
            raise ConfigError(
                f"must be {len(answer)}", where="rows", field=f"weights of row {number}", value=len(shares)
            )
        begin, end = len(prompt), len(prompt) + len(answer)
        tokens[number, :begin] = torch.tensor(list(prompt))
        tokens[number, begin:end] = torch.tensor(list(answer), dtype=torch.int64)
        counts[number, begin - 1 : end - 1] = torch.tensor(shares)
    return Rows(tokens, counts)


def interleaved(rows: Sequence[Rows], pad: int) -> Rows:
    """Several rows per picture: the first picture's row of each, then the second's, and so on; ``groups`` is set.

    Raises:
        ConfigError: none, rows of unequal number, or ones that already share pictures.
    """
    if len({len(some.tokens) for some in rows}) != 1 or any(some.groups != 1 for some in rows):
        raise ConfigError(
            "must be of equal number, one per picture", where="rows", value=[len(some.tokens) for some in rows]
        )
    longest = max(some.tokens.shape[1] for some in rows)
    grow = torch.nn.functional.pad
    tokens = torch.stack([grow(s.tokens, (0, longest - s.tokens.shape[1]), value=pad) for s in rows], 1)
    weights = torch.stack([grow(s.weights, (0, longest - 1 - s.weights.shape[1])) for s in rows], 1)
    return Rows(tokens.flatten(0, 1), weights.flatten(0, 1), len(rows))


def answer_logits(model: Vlm, clips: Clips, rows: Rows) -> Tensor:
    """What ``model`` thinks of each next token along ``rows``: (R, T - 1, vocabulary)."""
    logits: Tensor = model(clips.frames, clips.ages_s, rows.tokens[:, :-1], rows.groups, clips.before)[0]
    return logits


def run_student(model: Vlm, batch: SequenceBatch) -> Tensor:
    """:func:`answer_logits` on the student's pictures; for :func:`triptych_forge.distil.loop.distil`."""
    return answer_logits(model, batch.student, batch.rows)


def run_teacher(model: Vlm, batch: SequenceBatch) -> Tensor:
    """:func:`answer_logits` on the teacher's pictures."""
    return answer_logits(model, batch.teacher, batch.rows)


def sequence_kd_loss(
    student_logits: Tensor, teacher_logits: Tensor, rows: Rows, alpha: float, temperature: float
) -> Tensor:
    """:func:`kd_loss` over the rows' next tokens, the mean over tokens by ``rows.weights``.

    Along true answers the hard part is the truth; along the teacher's own answers it is the sequence-level loss.

    Args:
        student_logits, teacher_logits: (R, T - 1, vocabulary), of :func:`answer_logits`.
        alpha: share of the rows' tokens against the teacher's distributions, 0..1.
        temperature: T > 0.

    Returns:
        Scalar in nats; what is in the padding has no influence.

    Raises:
        ConfigError: shapes, α or T do not fit.
    """
    return kd_loss(student_logits, teacher_logits, rows.tokens[:, 1:], alpha, temperature, -1, rows.weights)


def sequence_loss(alpha: float, temperature: float) -> Callable[[Tensor, Tensor, SequenceBatch], Tensor]:
    """:func:`sequence_kd_loss` as :func:`triptych_forge.distil.loop.distil` wants it."""

    def loss(student_logits: Tensor, teacher_logits: Tensor, batch: SequenceBatch) -> Tensor:
        return sequence_kd_loss(student_logits, teacher_logits, batch.rows, alpha, temperature)

    return loss


def greedy_answers(
    model: Vlm, clips: Clips, grammar: Grammar, prompts: Sequence[Sequence[int]], advice_quantile: float = 0.5
) -> list[list[int]]:
    """What ``model`` says under the grammar, decoded as on the vehicle: one answer per picture, ``<eos>`` included.

    Args:
        clips: B pictures.
        prompts: B of them.
        advice_quantile: as :func:`triptych.language.decode.greedy` takes it.

    Raises:
        ConfigError: not as many prompts as pictures; the longest answer would not fit the decoder.
        EngineError: logits that are not finite.
    """
    if len(prompts) != len(clips.frames):
        raise ConfigError(f"must be {len(clips.frames)}, one per picture", field="prompts", value=len(prompts))
    longest = max(len(prompt) for prompt in prompts) + grammar.max_tokens
    if longest > model.decoder.LONGEST:
        raise ConfigError(
            f"and answer may take {longest} tokens of the decoder's {model.decoder.LONGEST}", field="prompts"
        )
    out = []
    with evaluating(model), torch.no_grad():
        memory = model.encoder(clips.frames, clips.ages_s)
        for number, prompt in enumerate(prompts):
            step = _Cached(model, [part[number : number + 1] for part in memory])
            out.append(list(greedy(step, grammar, list(prompt), advice_quantile=advice_quantile).tokens))
    return out


def own_rows(
    teacher: Vlm, clips: Clips, grammar: Grammar, prompts: Sequence[Sequence[int]], advice_quantile: float = 0.5
) -> Rows:
    """:func:`greedy_answers` of the teacher as rows to learn from; every token of an answer counts."""
    answers = greedy_answers(teacher, clips, grammar, prompts, advice_quantile)
    return pad_rows(prompts, answers, grammar.vocabulary.pad)


class _Cached:
    """The decoder of one picture, which keeps keys and values of what it was fed."""

    def __init__(self, model: Vlm, memory: list[Tensor]) -> None:
        s = model.shape
        self._decoder, self._memory, self._fed = model.decoder, memory, 0
        self._past = [memory[0].new_zeros(1, s.heads, 0, s.head_size) for _ in range(2 * s.layers)]

    def __call__(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        device = self._memory[0].device
        ids = torch.tensor([tokens], device=device)
        places = torch.arange(self._fed, self._fed + len(tokens), device=device)[None]
        logits, self._past = self._decoder(ids, places, self._memory, self._past)
        self._fed += len(tokens)
        return np.asarray(logits[0, -1].float().cpu().numpy(), np.float32)
