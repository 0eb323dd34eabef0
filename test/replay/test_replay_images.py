"""Image messages: every supported encoding gives the right colours, everything else one sentence."""

from __future__ import annotations

import os
import struct
import zlib

import cv2
import numpy as np
import pytest

from triptych.contract import InputError
from triptych.contract.frame import MAX_SIDE_PX
from triptych.replay.images import ENCODINGS, decode_compressed, decode_image

HEIGHT, WIDTH = 16, 24
BGR = (20, 60, 200)


def picture() -> np.ndarray:
    """(16, 24, 3): left half reddish, right half black, so that mirrored or swapped channels show."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[:, : WIDTH // 2] = BGR
    return image


def mosaic(image: np.ndarray, pattern: str) -> np.ndarray:
    """What a sensor with the colour filter ``pattern`` (rows first) sees of a BGR image."""
    raw = np.zeros(image.shape[:2], np.uint8)
    for index, colour in enumerate(pattern):
        row, column = divmod(index, 2)
        raw[row::2, column::2] = image[row::2, column::2, "bgr".index(colour)]
    return raw


def yuv422(image: np.ndarray, order: str) -> np.ndarray:
    """Packed YUV 4:2:2 with studio range, after BT.601."""
    b, g, r = (image[..., i].astype(float) for i in range(3))
    y = 16 + (65.738 * r + 129.057 * g + 25.064 * b) / 256
    u = 128 + (-37.945 * r - 74.494 * g + 112.439 * b) / 256
    v = 128 + (112.439 * r - 94.154 * g - 18.285 * b) / 256
    packed = np.zeros((*image.shape[:2], 2))
    luma, chroma = order.index("y"), 1 - order.index("y")
    packed[..., luma] = y
    packed[:, 0::2, chroma] = u[:, 0::2]
    packed[:, 1::2, chroma] = v[:, 0::2]
    return np.rint(packed).astype(np.uint8)


def encode(encoding: str) -> np.ndarray:
    image = picture()
    alpha = np.full((HEIGHT, WIDTH, 1), 255, np.uint8)
    if encoding.startswith("bayer"):
        return mosaic(image, encoding[6:10])
    if encoding in ("yuv422", "uyvy"):
        return yuv422(image, "uy")
    if encoding in ("yuv422_yuy2", "yuyv"):
        return yuv422(image, "yu")
    return {
        "bgr8": image,
        "8UC3": image,
        "rgb8": image[..., ::-1],
        "bgra8": np.concatenate([image, alpha], 2),
        "8UC4": np.concatenate([image, alpha], 2),
        "rgba8": np.concatenate([image[..., ::-1], alpha], 2),
        "mono8": image[..., 2],
        "8UC1": image[..., 2],
    }[encoding]


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_colours_survive_each_encoding(encoding: str, padding: int) -> None:
    rows = np.ascontiguousarray(encode(encoding)).reshape(HEIGHT, -1)
    step = rows.shape[1] + padding
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    image = decode_image(rows.tobytes(), height=HEIGHT, width=WIDTH, encoding=encoding, step=step)
    assert image.shape == (HEIGHT, WIDTH, 3) and image.dtype == np.uint8 and image.flags["C_CONTIGUOUS"]
    expected = (200, 200, 200) if encoding in ("mono8", "8UC1") else BGR
    tolerance = 4 if "yuv" in encoding or "uyvy" in encoding or "yuyv" in encoding else 0
    inner = image[4:-4, 4 : WIDTH // 2 - 4].reshape(-1, 3).astype(int)
    assert np.abs(inner - expected).max() <= tolerance
    assert image[4:-4, WIDTH // 2 + 4 :].max() <= tolerance


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"height": 0}, "height: must be 1..8192 pixels"),
        ({"width": 0}, "width: must be 1..8192 pixels"),
        ({"width": 8193}, "width: must be 1..8192 pixels"),
        ({"height": 2**32 - 1}, "height: must be 1..8192 pixels"),
        ({"encoding": "16UC1"}, "encoding: is an image encoding that cannot be read (got '16UC1')"),
        ({"encoding": "32FC1"}, "encoding: is an image encoding that cannot be read"),
        ({"encoding": "bayer_rggb16"}, "encoding: is an image encoding that cannot be read"),
        ({"encoding": ""}, "encoding: is an image encoding that cannot be read"),
        ({"encoding": "yuv422", "width": 23}, "width: must be even for yuv422"),
        ({"step": WIDTH * 3 - 1}, f"step: must be at least {WIDTH * 3} bytes"),
        ({"step": 0}, "step: must be at least"),
        ({"step": WIDTH * 3 + 1}, "data: must hold height * step"),
        ({"data": b""}, "data: must hold height * step"),
        ({"data": bytes(HEIGHT * WIDTH * 3 + 1)}, "data: must hold height * step"),
    ],
)
def test_bad_images_end_in_one_sentence(change: dict[str, object], words: str) -> None:
    good = {"data": picture().tobytes(), "height": HEIGHT, "width": WIDTH, "encoding": "bgr8", "step": WIDTH * 3}
    decode_image(**good)
    with pytest.raises(InputError) as caught:
        decode_image(**{**good, **change}, where="bag /camera message 3")
    text = str(caught.value)
    assert text.startswith("bag /camera message 3: ") and words in text and "; " in text


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_compressed_pictures(suffix: str) -> None:
    data = cv2.imencode(suffix, picture())[1].tobytes()
    image = decode_compressed(data, encoding=suffix)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert np.abs(image[4, 4].astype(int) - BGR).max() <= 6


def test_grey_jpeg_becomes_bgr() -> None:
    data = cv2.imencode(".jpg", picture()[..., 2])[1].tobytes()
    assert decode_compressed(data).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"not a picture at all"])
def test_bad_compressed_pictures_end_in_one_sentence(data: bytes) -> None:
    with pytest.raises(InputError, match="; send it as jpeg or png"):
        decode_compressed(data, encoding="jpeg", where="bag /camera/compressed")


def png_of(width: int, height: int) -> bytes:
    """A black PNG of any size; a few bytes for what would be gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes(3 * width + 1)) for _ in range(height)) + rows.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(8193, 2), (2, 8193)])
def test_a_picture_with_too_long_a_side_is_refused_before_there_is_room_made_for_it(width: int, height: int) -> None:
    with pytest.raises(cv2.error, match=r"CV_IO_MAX_IMAGE_(WIDTH|HEIGHT)"):
        cv2.imdecode(np.frombuffer(png_of(width, height), np.uint8), cv2.IMREAD_COLOR)
    with pytest.raises(InputError, match="has a side above 8192"):
        decode_compressed(png_of(width, height))
    assert decode_compressed(png_of(min(width, 8192), min(height, 8192))).shape[2] == 3


def test_the_library_and_the_contract_have_one_greatest_side() -> None:
    assert {os.environ[f"OPENCV_IO_MAX_IMAGE_{side}"] for side in ("WIDTH", "HEIGHT")} == {str(MAX_SIDE_PX)}
