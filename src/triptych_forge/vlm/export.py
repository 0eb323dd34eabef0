"""From trained weights to the two ONNX graphs, and the proof that they say the same."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from triptych.engines.session import OnnxSession
from triptych.language.engine import cache_names, memory_names
from triptych_forge.vlm.model import Vlm

OPSET = 18
TOLERANCE = 2e-3
"""Greatest difference of a logit between torch and ONNX Runtime; logits span about 20."""


class _EncoderGraph(nn.Module):
    def __init__(self, model: Vlm) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, frames: Tensor, ages_s: Tensor) -> tuple[Tensor, ...]:
        # To float first: accelerators take bytes into a Cast and into nothing else.
        return tuple(self.encoder(frames.float()[None], ages_s[None]))


class DecoderGraph(nn.Module):
    """A decoder with the flat inputs and outputs of the engine interface, see :class:`triptych.language.engine`."""

    def __init__(self, decoder: nn.Module, layers: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.layers = layers

    def forward(self, input_ids: Tensor, position_ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """``rest``: picture's and past keys and values, 2 x layers each."""
        memory, past = list(rest[: 2 * self.layers]), list(rest[2 * self.layers :])
        logits, present = self.decoder(input_ids, position_ids, memory, past)
        return (logits, *present)


def export(model: Vlm, folder: Path) -> tuple[Path, Path]:
    """Write ``encoder.onnx`` and ``decoder.onnx`` into ``folder`` and compare both with torch.

    Raises:
        RuntimeError: a logit differs by more than :data:`TOLERANCE`.
    """
    model = model.eval().cpu()
    s = model.shape
    frames = torch.randint(0, 256, (s.frames, s.height_px, s.width_px, 3), dtype=torch.uint8)
    ages = torch.linspace(1.5, 0, s.frames)
    encoder_path, decoder_path = folder / "encoder.onnx", folder / "decoder.onnx"
    memory = model.encoder(frames[None], ages[None])
    write_graph(_EncoderGraph(model), (frames, ages), encoder_path, ["frames", "ages_s"], memory_names(s.layers), {})
    past = [torch.randn(1, s.heads, 5, s.head_size) for _ in range(2 * s.layers)]
    ids, places = torch.randint(0, 9, (1, 3)), torch.arange(5, 8)[None]
    names = ["input_ids", "position_ids", *memory_names(s.layers), *cache_names(s.layers, "past")]
    dynamic = {name: {2: "past"} for name in cache_names(s.layers, "past")}
    dynamic |= {"input_ids": {1: "tokens"}, "position_ids": {1: "tokens"}}
    outputs = ["logits", *cache_names(s.layers, "present")]
    write_graph(
        DecoderGraph(model.decoder, s.layers), (ids, places, *memory, *past), decoder_path, names, outputs, dynamic
    )
    verify(model, encoder_path, decoder_path)
    return encoder_path, decoder_path


def write_graph(
    graph: nn.Module,
    arguments: tuple[Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic: dict[str, dict[int, str]],
) -> None:
    """Trace a module into an ONNX file, checked and renamed into place; ``dynamic``: free sizes by axis."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".onnx.tmp")
    with torch.no_grad(), warnings.catch_warnings():
        # The exporter that traces is old but gives plain graphs with the names and free sizes asked for.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.eval(),
            arguments,
            str(beside),
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
            dynamic_axes=dynamic,
            dynamo=False,
        )
    content = onnx.load(str(beside))
    content.doc_string, content.producer_version = "", ""
    onnx.checker.check_model(content)
    onnx.save(content, str(beside))
    os.replace(beside, path)


def verify(model: Vlm, encoder_path: Path, decoder_path: Path) -> float:
    """Run both graphs against torch, once in one go and once token by token; returns the greatest logit difference.

    Raises:
        RuntimeError: above :data:`TOLERANCE`.
    """
    s = model.shape
    generator = np.random.default_rng(5)
    frames = generator.integers(0, 256, (s.frames, s.height_px, s.width_px, 3), dtype=np.uint8)
    ages = np.linspace(1.5, 0, s.frames, dtype=np.float32)
    ids = generator.integers(0, model.decoder.embed.num_embeddings, (1, 12))
    with torch.no_grad():
        logits = model(torch.from_numpy(frames[None]), torch.from_numpy(ages[None]), torch.from_numpy(ids))[0]
    wanted = logits[0].numpy()
    encoder, decoder = OnnxSession(encoder_path), OnnxSession(decoder_path)
    feeds = dict(zip(memory_names(s.layers), encoder.run({"frames": frames, "ages_s": ages}), strict=True))
    past = cache_names(s.layers, "past")
    worst = 0.0
    for parts in ([12], [4] + [1] * 8):
        cache = {name: np.zeros((1, s.heads, 0, s.head_size), np.float32) for name in past}
        at = 0
        for length in parts:
            logits, *present = decoder.run(
                {
                    "input_ids": ids[:, at : at + length],
                    "position_ids": np.arange(at, at + length)[None],
                    **feeds,
                    **cache,
                }
            )
            cache = dict(zip(past, present, strict=True))
            worst = max(worst, float(np.abs(logits[0] - wanted[at : at + length]).max()))
            at += length
    if not worst <= TOLERANCE:
        raise RuntimeError(f"ONNX Runtime and torch differ by {worst:g}, more than {TOLERANCE:g}")
    return worst
