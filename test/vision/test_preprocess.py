"""Pictures to tensors and boxes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from triptych.engines.manifest import InputGeometry
from triptych.vision.preprocess import Preprocessor


def geometry(**changes: Any) -> InputGeometry:
    values: dict[str, Any] = {"width": 64, "height": 32, "fit": "letterbox", "colour": "bgr"}
    return InputGeometry(**{**values, **changes})


def flat(height: int, width: int, colour: tuple[int, int, int] = (10, 20, 30)) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def test_letterbox_keeps_the_aspect_ratio_and_pads_right_and_below() -> None:
    tensor, placement = Preprocessor(geometry())(flat(100, 100))
    assert tensor.shape == (1, 3, 32, 64)
    assert tensor.dtype == np.float32
    assert tensor[0, :, :, :32].reshape(3, -1).std(1).max() == 0
    assert tensor[0, :, 5, 5].tolist() == [10, 20, 30]
    assert np.unique(tensor[0, :, :, 32:]).tolist() == [114]
    assert (placement.scale_x, placement.scale_y) == pytest.approx((0.32, 0.32))


def test_stretch_fills_the_input() -> None:
    tensor, placement = Preprocessor(geometry(fit="stretch"))(flat(100, 100))
    assert (tensor[0, 0] == 10).all()
    assert (placement.scale_x, placement.scale_y) == pytest.approx((0.64, 0.32))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("colour", ["bgr", "rgb"])
def test_normalisation_is_per_channel_in_the_stated_order(layout: str, colour: str) -> None:
    g = geometry(fit="stretch", layout=layout, colour=colour, scale=2.0, mean=(1, 2, 3), std=(2, 4, 8))
    tensor, _ = Preprocessor(g)(flat(32, 64))
    pixel = np.array([10, 20, 30] if colour == "bgr" else [30, 20, 10], float)
    got = tensor[0, :, 3, 3] if layout == "nchw" else tensor[0, 3, 3]
    assert got.tolist() == pytest.approx(((pixel * 2 - [1, 2, 3]) / [2, 4, 8]).tolist(), abs=1e-4)


def test_uint8_passes_pixels_through_unchanged() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (32, 64, 3), np.uint8)
    tensor, _ = Preprocessor(geometry(layout="nhwc", dtype="uint8"))(image)
    assert np.array_equal(tensor[0], image)


def test_a_smaller_picture_after_a_larger_one_leaves_no_trace() -> None:
    pre = Preprocessor(geometry())
    pre(flat(32, 64, (200, 200, 200)))
    tensor, _ = pre(flat(100, 100))
    assert np.array_equal(tensor, Preprocessor(geometry())(flat(100, 100))[0])


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (720, 1280)])
def test_boxes_come_back_to_the_source(size: tuple[int, int]) -> None:
    height, width = size
    _, placement = Preprocessor(geometry())(flat(height, width))
    box = np.array([[0, 0, width * placement.scale_x, height * placement.scale_y]], np.float32)
    assert placement.to_source(box)[0].tolist() == pytest.approx([0, 0, width, height], rel=1e-5)


def test_boxes_beyond_the_picture_are_cut() -> None:
    _, placement = Preprocessor(geometry())(flat(100, 100))
    assert placement.to_source(np.array([[-50, -50, 500, 500]], np.float32))[0].tolist() == [0, 0, 100, 100]
