"""Pictures and rows of tokens for the demonstration's steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from triptych.contract import Light, Road, Weather
from triptych.language.tokeniser import Vocabulary
from triptych_forge.distil.sequence import Clips, Rows, SequenceBatch, pad_rows
from triptych_forge.quantise.weights import DecoderInput
from triptych_forge.vlm.batches import Batch, Sampler, token_row
from triptych_forge.vlm.model import Shape, Vlm
from triptych_forge.vlm.real import Real
from triptych_forge.vlm.scenes import TICK_S, Scenes, history, shrink
from triptych_forge.vlm.words import STANDING, Truth

IN_SCENE = {
    "night": lambda t: t.light is Light.NIGHT,
    "rain": lambda t: t.weather is Weather.RAIN,
    "works": lambda t: t.road is Road.WORKS,
}
Place = tuple[int, int]


def sequence_batches(
    scenes: Scenes,
    real: tuple[Real, Real],
    vocabulary: Vocabulary,
    student: Shape,
    teacher: Shape,
    batch: int,
    seed: int,
    first: int,
) -> Iterator[SequenceBatch]:
    """Varied training pictures as both models see them, with the true answers, from step ``first`` on."""
    sampler = Sampler(teacher, scenes, *real, vocabulary, batch, 1, seed)
    for drawn in sampler.batches(first):
        yield as_sequence(drawn, student)


def as_sequence(batch: Batch, student: Shape) -> SequenceBatch:
    """A batch of the teacher's size for both; the student looks at the newest frame alone."""
    ages = torch.from_numpy(batch.ages_s)
    before = None if batch.before is None else torch.from_numpy(batch.before)
    small = np.stack(
        [np.stack([shrink(f, (student.width_px, student.height_px)) for f in clip]) for clip in batch.frames]
    )
    rows = Rows(torch.from_numpy(batch.tokens), torch.from_numpy(batch.weights))
    teacher = Clips(torch.from_numpy(batch.frames), ages, before)
    return SequenceBatch(Clips(torch.from_numpy(small), ages[:, -1:]), teacher, rows)


def places(scenes: Scenes, scene: str | None = None, every: int = 1) -> list[Place]:
    """Drive and tick of every ``every``-th stored picture, of one driving scene if named."""
    found = [
        (drive, tick)
        for drive, truths in enumerate(scenes.truths)
        for tick, truth in enumerate(truths)
        if scene is None or IN_SCENE[scene](truth)
    ]
    return found[::every]


def spread(found: list[Place], count: int, offset: int = 0) -> list[Place]:
    """``count`` of them, evenly spread; another ``offset`` gives others."""
    step = max(1, len(found) // max(1, count))
    return found[offset % step :: step][:count]


def picture(scenes: Scenes, place: Place, shape: Shape) -> npt.NDArray[np.uint8]:
    """(N, H, W, 3) uint8 BGR, as the exported encoder takes it: the newest last, the earlier as a tier has them."""
    size = (shape.width_px, shape.height_px)
    return np.stack([shrink(scenes.frame(place[0], tick), size) for tick in history(place[1], shape.frames)])


def _ages_s(place: Place, shape: Shape) -> npt.NDArray[np.float32]:
    return np.array([(place[1] - tick) * TICK_S for tick in history(place[1], shape.frames)], np.float32)


def encoder_feed(scenes: Scenes, place: Place, shape: Shape) -> dict[str, npt.NDArray[Any]]:
    """What the exported encoder is fed."""
    return {"frames": picture(scenes, place, shape), "ages_s": _ages_s(place, shape)}


def true_row(vocabulary: Vocabulary, truth: Truth) -> tuple[list[int], list[int]]:
    """Prompt and true answer to the standing question."""
    prompt = vocabulary.question("")
    row, _ = token_row(vocabulary, "", truth, STANDING)
    return prompt, row[len(prompt) :]


@torch.no_grad()
def decoder_inputs(model: Vlm, vocabulary: Vocabulary, scenes: Scenes, chosen: list[Place]) -> list[DecoderInput]:
    """Memory of each picture and its true row without the last token."""
    inputs = []
    for place in chosen:
        frames = torch.from_numpy(picture(scenes, place, model.shape))[None]
        memory = model.encoder(frames, torch.from_numpy(_ages_s(place, model.shape))[None])
        prompt, answer = true_row(vocabulary, scenes.truths[place[0]][place[1]])
        ids = np.array([*prompt, *answer[:-1]], np.int64)
        inputs.append(DecoderInput(ids, tuple(m.numpy() for m in memory)))
    return inputs


def scene_batch(vocabulary: Vocabulary, scenes: Scenes, chosen: list[Place], shape: Shape) -> tuple[Clips, Rows]:
    """Plain pictures and true rows of some places."""
    frames = torch.from_numpy(np.stack([picture(scenes, place, shape) for place in chosen]))
    pairs = [true_row(vocabulary, scenes.truths[d][t]) for d, t in chosen]
    rows = pad_rows([p for p, _ in pairs], [a for _, a in pairs], vocabulary.pad)
    return Clips(frames, torch.from_numpy(np.stack([_ages_s(place, shape) for place in chosen]))), rows


def quiet_opencv() -> None:
    """One thread: the training loop has the others."""
    cv2.setNumThreads(1)
