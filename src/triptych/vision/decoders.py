"""Network outputs to candidate boxes: one row in :data:`DECODERS` per family of exports.

A decoder gets the raw outputs in the order of the graph, and returns every candidate above the score cut,
before suppression, in input pixels. Adding a family adds a function and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
STRIDES = (8, 16, 32)
NANODET_BINS = 8
FASTESTDET_STRIDE = 16
"""22 cells of a 352 pixel side."""


class Candidates(NamedTuple):
    """(N, 4) boxes in input pixels, (N,) scores 0..1, (N,) label indices."""

    boxes: Floats
    scores: Floats
    labels: npt.NDArray[np.int64]


class Setting(NamedTuple):
    """What a decoder may know: input size in pixels, number of labels, least score."""

    width: int
    height: int
    labels: int
    score: float


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Decoder:
    """``shapes`` names the exact output shapes for an input size and a number of labels, ``run`` decodes."""

    shapes: Callable[[int, int, int], list[Shape]]
    run: Callable[[Sequence[Floats], Setting], Candidates]


@lru_cache(maxsize=32)
def _grid(width: int, height: int, strides: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Cell corners (N, 2) in cells and stride (N, 1) in pixels, level after level, row by row."""
    corners, sizes = [], []
    for stride in strides:
        rows, columns = height // stride, width // stride
        y, x = np.mgrid[:rows, :columns]
        corners.append(np.stack([x.ravel(), y.ravel()], 1))
        sizes.append(np.full((rows * columns, 1), stride))
    return np.concatenate(corners).astype(np.float32), np.concatenate(sizes).astype(np.float32)


def _cells(width: int, height: int, stride: int) -> int:
    return (width // stride) * (height // stride)


def _anchors(width: int, height: int) -> int:
    return sum(_cells(width, height, s) for s in STRIDES)


def _best(scores: Floats, cut: float) -> tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]:
    """Best label of each row of (N, labels): rows above the cut, their scores, their labels."""
    labels = scores.argmax(1)
    best = np.take_along_axis(scores, labels[:, None], 1)[:, 0]
    rows = np.flatnonzero(best >= cut)
    return rows, best[rows], labels[rows]


def _centred(centre: Floats, size: Floats) -> Floats:
    return np.concatenate([centre - size / 2, centre + size / 2], 1)


def triptych(outputs: Sequence[Floats], setting: Setting) -> Candidates:
    """The built-in detector: boxes (corners, input pixels) and class scores are decoded inside the graph."""
    raw = outputs[0][0]
    rows, scores, labels = _best(raw[:, 4:], setting.score)
    return Candidates(raw[rows, :4], scores, labels)


def yolox(outputs: Sequence[Floats], setting: Setting) -> Candidates:
    """YOLOX without grid decoding: offsets in cells, log sizes in strides, objectness and classes as probabilities."""
    raw = outputs[0][0]
    corners, stride = _grid(setting.width, setting.height, STRIDES)
    # Objectness bounds the product, so most rows never need their classes looked at.
    promising = np.flatnonzero(raw[:, 4] >= setting.score)
    raw, corners, stride = raw[promising], corners[promising], stride[promising]
    rows, scores, labels = _best(raw[:, 4:5] * raw[:, 5:], setting.score)
    raw, corners, stride = raw[rows], corners[rows], stride[rows]
    return Candidates(_centred((raw[:, :2] + corners) * stride, np.exp(raw[:, 2:4]) * stride), scores, labels)


def nanodet(outputs: Sequence[Floats], setting: Setting) -> Candidates:
    """NanoDet-m: per stride class probabilities, and a distribution over 8 distances for each side of the box."""
    levels = len(STRIDES)
    raw = np.concatenate([o[0] for o in outputs[:levels]])
    distances = np.concatenate([o[0] for o in outputs[levels:]])
    corners, stride = _grid(setting.width, setting.height, STRIDES)
    rows, scores, labels = _best(raw, setting.score)
    bins = distances[rows].reshape(-1, 4, NANODET_BINS)
    weight = np.exp(bins - bins.max(2, keepdims=True))
    sides = (weight @ np.arange(NANODET_BINS, dtype=np.float32)) / weight.sum(2) * stride[rows]
    centre = (corners[rows] + 0.5) * stride[rows]
    return Candidates(np.concatenate([centre - sides[:, :2], centre + sides[:, 2:]], 1), scores, labels)


def fastestdet(outputs: Sequence[Floats], setting: Setting) -> Candidates:
    """FastestDet: one level; objectness, box and class probabilities as planes."""
    raw = outputs[0][0].reshape(5 + setting.labels, -1).T
    rows, scores, labels = _best(raw[:, :1] ** 0.6 * raw[:, 5:] ** 0.4, setting.score)
    corners, _ = _grid(setting.width, setting.height, (FASTESTDET_STRIDE,))
    box = raw[rows, 1:5]
    size = np.array([setting.width, setting.height], np.float32)
    centre = (np.tanh(box[:, :2]) + corners[rows]) * FASTESTDET_STRIDE
    return Candidates(_centred(centre, size / (1 + np.exp(-box[:, 2:]))), scores, labels)


DECODERS: dict[str, Decoder] = {
    "triptych": Decoder(lambda w, h, n: [(1, _anchors(w, h), 4 + n)], triptych),
    "yolox": Decoder(lambda w, h, n: [(1, _anchors(w, h), 5 + n)], yolox),
    "nanodet": Decoder(
        lambda w, h, n: (
            [(1, _cells(w, h, s), n) for s in STRIDES] + [(1, _cells(w, h, s), 4 * NANODET_BINS) for s in STRIDES]
        ),
        nanodet,
    ),
    "fastestdet": Decoder(lambda w, h, n: [(1, 5 + n, h // FASTESTDET_STRIDE, w // FASTESTDET_STRIDE)], fastestdet),
}
