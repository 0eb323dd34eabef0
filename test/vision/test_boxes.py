"""Overlap and suppression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.vision.boxes import area, iou_matrix, suppress


def boxes(*rows: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 4)


def test_iou_of_known_boxes() -> None:
    result = iou_matrix(boxes((0, 0, 2, 2)), boxes((0, 0, 2, 2), (1, 0, 3, 2), (5, 5, 6, 6)))
    assert result[0].tolist() == pytest.approx([1.0, 1 / 3, 0.0])


def test_empty_and_inverted_boxes_overlap_nothing() -> None:
    """A6: degenerate boxes give 0, not NaN."""
    odd = boxes((1, 1, 1, 1), (3, 3, 1, 1))
    assert area(odd).tolist() == [0, 0]
    assert np.isfinite(iou_matrix(odd, odd)).all()
    assert iou_matrix(odd, boxes((0, 0, 4, 4))).max() == 0


def test_suppression_keeps_the_best_of_each_group() -> None:
    b = boxes((0, 0, 10, 10), (1, 0, 11, 10), (0, 0, 10, 10), (50, 50, 60, 60))
    kept = suppress(b, np.array([0.5, 0.9, 0.7, 0.2], np.float32), np.array([0, 0, 1, 0]), 0.5, 10)
    assert kept.tolist() == [1, 2, 3]


def test_suppression_obeys_its_limits() -> None:
    b = boxes(*[(20.0 * i, 0, 20.0 * i + 10, 10) for i in range(30)])
    scores = np.linspace(0.9, 0.1, 30).astype(np.float32)
    groups = np.zeros(30, np.int64)
    assert suppress(b, scores, groups, 0.5, 7).tolist() == list(range(7))
    assert suppress(b, scores, groups, 0.5, 100, candidates=4).tolist() == [0, 1, 2, 3]
    assert suppress(b[:0], scores[:0], groups[:0], 0.5, 7).tolist() == []


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 0.9))
def test_no_two_kept_boxes_of_a_group_overlap_too_much(seed: int, limit: float) -> None:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 40, (25, 2))
    b = np.concatenate([low, low + rng.uniform(1, 30, (25, 2))], 1).astype(np.float32)
    scores, groups = rng.random(25).astype(np.float32), rng.integers(0, 3, 25)
    kept = suppress(b, scores, groups, limit, 25)
    overlap = iou_matrix(b[kept], b[kept])
    same = groups[kept][:, None] == groups[kept][None, :]
    np.fill_diagonal(same, False)
    assert (overlap[same] <= limit).all()
    assert scores[kept].tolist() == sorted(scores[kept].tolist(), reverse=True)
    gone = np.setdiff1d(np.arange(25), kept)
    for index in gone:  # every suppressed box has a better one of its group that covers it
        rivals = kept[(groups[kept] == groups[index]) & (scores[kept] >= scores[index])]
        assert (iou_matrix(b[index : index + 1], b[rivals]) > limit).any()
