"""Soft labels of the full model for the distilled one, computed once per place and kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from triptych.language.tokeniser import Vocabulary
from triptych_forge.common import progress_bar
from triptych_forge.vlm.batches import Taught
from triptych_forge.vlm.model import Vlm
from triptych_forge.vlm.scenes import TICK_S, Scenes, history, scenario_hash, shrink
from triptych_forge.vlm.words import STANDING, answer_tokens

POSITIONS = 15
"""Road, weather, light, three counts, at most eight hazards, advice."""
TEMPERATURE = 1.5
"""Softens the teacher; the usual range is 1 to 4, and at 4 rare tokens would drown the likely ones here."""


def taught_by(teacher: Vlm, vocabulary: Vocabulary, scenes: Scenes, cache: Path, batch: int = 16) -> Taught:
    """What ``teacher`` says along every true standing answer of ``scenes``, on clean pictures; cached."""
    digest = hashlib.sha256(scenario_hash().encode())
    for name, tensor in sorted(teacher.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    digest.update(str(len(scenes)).encode())
    path = cache / f"taught-{digest.hexdigest()[:12]}.npy"
    if path.is_file():
        return Taught(np.load(path, mmap_mode="r"))
    places = [(d, t) for d, rows in enumerate(scenes.truths) for t in range(len(rows))]
    ticks = len(scenes.truths[0])
    out = np.zeros((len(scenes), ticks, POSITIONS, len(vocabulary)), np.float16)
    count = teacher.shape.frames
    size = (teacher.shape.width_px, teacher.shape.height_px)
    with progress_bar() as bar, torch.no_grad():
        task = bar.add_task("asking the teacher", total=len(places), note="")
        for start in range(0, len(places), batch):
            some = places[start : start + batch]
            frames, ages, rows, lengths = [], [], [], []
            for drive, tick in some:
                chosen = history(tick, count)
                frames.append(np.stack([shrink(picture, size) for picture in scenes.clip(drive, chosen)]))
                ages.append([(tick - at) * TICK_S for at in chosen])
                answer, _ = answer_tokens(vocabulary, scenes.truths[drive][tick], STANDING)
                fields = [token for token in answer if ":" in vocabulary.tokens[token]]
                lengths.append(len(fields))
                prompt = vocabulary.question("")
                rows.append(prompt + fields[:-1] + [vocabulary.pad] * (POSITIONS - len(fields)))
            with torch.autocast("cpu", torch.bfloat16):
                logits, _ = teacher(
                    torch.from_numpy(np.stack(frames)), torch.tensor(ages, dtype=torch.float32), torch.tensor(rows)
                )
            chances = torch.softmax(logits.float() / TEMPERATURE, -1).numpy()
            for number, ((drive, tick), length) in enumerate(zip(some, lengths)):
                out[drive, tick, :length] = chances[number, 1 : 1 + length]
            bar.update(task, completed=start + len(some))
    beside = path.with_suffix(".tmp.npy")
    np.save(beside, out)
    os.replace(beside, path)
    return Taught(out)
