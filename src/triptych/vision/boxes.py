"""Boxes: overlap and suppression. Boxes are (N, 4) float32 x_min, y_min, x_max, y_max in pixels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def area(boxes: Floats) -> Floats:
    """Area of each box, (N,) px², 0 for an inverted one."""
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    result: Floats = sides[:, 0] * sides[:, 1]
    return result


def iou_matrix(a: Floats, b: Floats) -> Floats:
    """Intersection over union of every pair, (len(a), len(b)); 0 where both boxes are empty."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.maximum(high - low, 0)
    intersection = sides[..., 0] * sides[..., 1]
    union = area(a)[:, None] + area(b)[None, :] - intersection
    result: Floats = np.where(union > 0, intersection / np.maximum(union, 1e-9), 0).astype(np.float32)
    return result


def suppress(
    boxes: Floats, scores: Floats, groups: npt.NDArray[np.int64], max_iou: float, limit: int, candidates: int = 400
) -> npt.NDArray[np.int64]:
    """Greedy non-maximum suppression within each group.

    Args:
        groups: (N,) boxes of different groups never suppress each other.
        max_iou: a box overlapping a better one of its group by more than this goes.
        limit: most boxes returned.
        candidates: only this many best boxes are looked at, which bounds the time.

    Returns:
        Indices kept, best score first; equal scores in order of index, so the result is reproducible.
    """
    order = np.argsort(-scores, kind="stable")[:candidates]
    if not len(order):
        return order
    chosen, group = boxes[order], groups[order]
    rivals = (iou_matrix(chosen, chosen) > max_iou) & (group[:, None] == group[None, :])
    alive = np.ones(len(order), bool)
    kept: list[int] = []
    for index in range(len(order)):
        if not alive[index]:
            continue
        kept.append(index)
        if len(kept) == limit:
            break
        alive &= ~rivals[index]
    return order[kept]
