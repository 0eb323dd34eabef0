"""What every training command shares: seeds, atomic files, checkpoints without pickle, progress."""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import save_file

from triptych_forge.files import sha256_of, write_atomically

__all__ = [
    "flatten_optimiser",
    "follow",
    "keep_memory",
    "load_checkpoint",
    "progress_bar",
    "restore_optimiser",
    "save_checkpoint",
    "seed_everything",
    "sha256_of",
    "warm_up_cosine",
    "write_atomically",
]

META = "triptych"


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""


def keep_memory() -> None:
    """Make the C library keep what is freed.

    Every step allocates the same hundreds of megabytes; given back and fetched anew, page by page, they cost more than
    the computing does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def seed_everything(seed: int, threads: int) -> None:
    """Fix every random generator and the number of torch threads; with both fixed, a training run repeats exactly."""
    keep_memory()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - for libraries that use the global generator
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling every fresh tensor finds reads of memory nobody wrote; a backward pass takes five times as long with it.
    torch.utils.deterministic.fill_uninitialized_memory = False


def save_checkpoint(path: Path, groups: Mapping[str, Mapping[str, torch.Tensor]], meta: Mapping[str, Any]) -> None:
    """Save named groups of tensors and JSON-able facts as one safetensors file, atomically."""
    flat = {
        f"{group}/{name}": tensor.detach().contiguous().clone()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    save_file(flat, str(beside), metadata={META: json.dumps(dict(meta), sort_keys=True)})
    os.replace(beside, path)


def load_checkpoint(path: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """The inverse of :func:`save_checkpoint`."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    with safe_open(str(path), framework="pt") as file:
        meta = json.loads((file.metadata() or {}).get(META, "{}"))
        for key in file.keys():  # noqa: SIM118 - safe_open is no mapping
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = file.get_tensor(key)
    return groups, meta


def flatten_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Optimiser state as named tensors (``index.name``); numbers become 0-d tensors."""
    state = optimiser.state_dict()["state"]
    return {f"{i}.{k}": v if torch.is_tensor(v) else torch.tensor(v) for i, s in state.items() for k, v in s.items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, flat: Mapping[str, torch.Tensor]) -> None:
    """Put the state of :func:`flatten_optimiser` back; hyper-parameters stay as constructed."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in flat.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def warm_up_cosine(rate: float, step: int, steps: int, warm_up: int, final_share: float = 0.02) -> float:
    """Learning rate of ``step``, from 0: linear warm-up, then a cosine down to ``final_share`` of ``rate``."""
    if step < warm_up:
        return rate * (step + 1) / warm_up
    done = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return rate * (final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * done)))


def follow(average: Mapping[str, torch.Tensor], model: torch.nn.Module, decay: float) -> None:
    """Move averaged weights towards a model's, in place; a decay of 0 copies them exactly."""
    for name, value in model.state_dict().items():
        if decay > 0 and value.dtype.is_floating_point:
            average[name].lerp_(value, 1 - decay)
        else:
            average[name].copy_(value)


def progress_bar() -> Progress:
    """The bar of every training command: what, how far, how long still, and a free ``note`` column."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
