"""Each family of exports, on raw outputs made by inverting its published formula."""

from __future__ import annotations

import numpy as np
import pytest

from triptych.vision.decoders import DECODERS, STRIDES, Setting

WIDTH, HEIGHT = 64, 32
SETTING = Setting(WIDTH, HEIGHT, 3, 0.3)
BOX = (20.0, 10.0, 44.0, 22.0)
CENTRE, SIZE = (32.0, 16.0), (24.0, 12.0)
LABEL, SCORE = 2, 0.8


def empty(name: str) -> list[np.ndarray]:
    return [np.zeros(shape, np.float32) for shape in DECODERS[name].shapes(WIDTH, HEIGHT, 3)]


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def made_triptych() -> list[np.ndarray]:
    (out,) = empty("triptych")
    out[0, 11, :4] = BOX
    out[0, 11, 4 + LABEL] = SCORE
    return [out]


def made_yolox() -> list[np.ndarray]:
    (out,) = empty("yolox")
    column, row, stride = 2, 1, 16  # level 16 starts after 8 * 4 cells of level 8
    cell = (WIDTH // 8) * (HEIGHT // 8) + row * (WIDTH // 16) + column
    out[0, cell, :2] = CENTRE[0] / stride - column, CENTRE[1] / stride - row
    out[0, cell, 2:4] = np.log(SIZE[0] / stride), np.log(SIZE[1] / stride)
    out[0, cell, 4], out[0, cell, 5 + LABEL] = 0.9, SCORE / 0.9
    return [out]


def made_nanodet() -> list[np.ndarray]:
    outs = empty("nanodet")
    column, row, stride = 3, 1, 8
    cell = row * (WIDTH // stride) + column
    outs[0][0, cell, LABEL] = SCORE
    centre = ((column + 0.5) * stride, (row + 0.5) * stride)
    sides = (centre[0] - BOX[0], centre[1] - BOX[1], BOX[2] - centre[0], BOX[3] - centre[1])
    bins = outs[len(STRIDES)][0, cell].reshape(4, 8)
    for side, distance in enumerate(sides):
        low = int(distance / stride)
        share = distance / stride - low
        bins[side] = -40
        bins[side, low] = np.log(max(1 - share, 1e-9))
        bins[side, low + 1] = np.log(max(share, 1e-9))
    return outs


def made_fastestdet() -> list[np.ndarray]:
    (out,) = empty("fastestdet")
    column, row = 1, 0
    out[0, 0, row, column] = SCORE
    out[0, 5 + LABEL, row, column] = SCORE
    out[0, 1, row, column] = np.arctanh(CENTRE[0] / 16 - column - 1e-6)
    out[0, 2, row, column] = np.arctanh(CENTRE[1] / 16 - row - 1e-6)
    out[0, 3, row, column], out[0, 4, row, column] = logit(SIZE[0] / WIDTH), logit(SIZE[1] / HEIGHT)
    return [out]


MADE = {"triptych": made_triptych, "yolox": made_yolox, "nanodet": made_nanodet, "fastestdet": made_fastestdet}


def test_every_decoder_is_tested() -> None:
    assert set(MADE) == set(DECODERS)


@pytest.mark.parametrize("name", MADE)
def test_one_object_is_decoded_where_it_is(name: str) -> None:
    found = DECODERS[name].run(MADE[name](), SETTING)
    assert found.boxes.shape == (1, 4)
    assert found.boxes[0].tolist() == pytest.approx(BOX, abs=0.1)
    assert found.labels.tolist() == [LABEL]
    assert found.scores[0] == pytest.approx(SCORE, abs=1e-4)


@pytest.mark.parametrize("name", MADE)
def test_nothing_above_the_cut_is_nothing(name: str) -> None:
    found = DECODERS[name].run(MADE[name](), SETTING._replace(score=0.95))
    assert (len(found.boxes), len(found.scores), len(found.labels)) == (0, 0, 0)
    assert found.boxes.shape == (0, 4)
