"""Point cloud messages: what is in them comes out, everything malformed ends in one sentence that names the field."""

from __future__ import annotations

from array import array
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triptych.contract import InputError
from triptych.contract.lidar import MAX_POINTS
from triptych.lidar.cloud import decode_cloud, encode_cloud

XYZ = (("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1))
POINTS = np.arange(36, dtype=np.float32).reshape(12, 3)
ANY_POINTS = hnp.arrays(np.float32, st.tuples(st.integers(0, 50), st.just(3)), elements=st.floats(width=32))


@given(points=ANY_POINTS)
@settings(deadline=None, derandomize=True, database=None)
def test_decoding_reverses_encoding_bit_by_bit(points: np.ndarray) -> None:
    decoded = decode_cloud(**asdict(encode_cloud(points)))
    assert decoded.dtype == np.float32 and decoded.shape == points.shape
    assert decoded.tobytes() == points.tobytes()


def message(kind: str, order: str, height: int, padding: int) -> dict[str, object]:
    """POINTS as z, an intensity byte, x, y: unaligned, in rows with padding."""
    layout = np.dtype({"names": ["z", "i", "x", "y"], "formats": [order + kind, "u1", order + kind, order + kind]})
    cells = np.zeros(len(POINTS), layout)
    for k, name in enumerate("xyz"):
        cells[name] = POINTS[:, k]
    width = len(POINTS) // height
    rows = np.frombuffer(cells.tobytes(), np.uint8).reshape(height, -1)
    datatype = {"f4": 7, "f8": 8}[kind]
    fields = layout.fields
    assert fields is not None
    return {
        "data": np.pad(rows, ((0, 0), (0, padding)), constant_values=255).tobytes(),
        "height": height,
        "width": width,
        "fields": [(n, fields[n][1], 2 if n == "i" else datatype, 1) for n in layout.names or ()],
        "point_step": layout.itemsize,
        "row_step": rows.shape[1] + padding,
        "is_bigendian": order == ">",
    }


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("height", [1, 3])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_every_layout_gives_the_same_points(kind: str, order: str, height: int, padding: int) -> None:
    assert np.array_equal(decode_cloud(**message(kind, order, height, padding)), POINTS)  # type: ignore[arg-type]


def test_the_usual_layout_is_a_view() -> None:
    parts = asdict(encode_cloud(POINTS))
    for data in (parts["data"], bytearray(parts["data"]), memoryview(parts["data"]), array("B", parts["data"])):
        decoded = decode_cloud(**{**parts, "data": data})
        assert np.array_equal(decoded, POINTS) and not decoded.flags["OWNDATA"]
        assert np.shares_memory(decoded, np.frombuffer(data, np.uint8))
    big = asdict(encode_cloud(POINTS.byteswap()))
    assert np.array_equal(decode_cloud(**{**big, "is_bigendian": True}), POINTS)


def test_a_number_beyond_float32_becomes_infinite() -> None:
    data = np.array([1e300, -1e300, 2.0]).tobytes()
    fields = [("x", 0, 8, 1), ("y", 8, 8, 1), ("z", 16, 8, 0)]
    decoded = decode_cloud(data, height=1, width=1, fields=fields, point_step=24, row_step=24, is_bigendian=False)
    assert decoded.tolist() == [[np.inf, -np.inf, 2.0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"height": -1}, "height: must be 0.."),
        ({"height": 2**32 - 1}, "height: must be 0.."),
        ({"width": 2**32 - 1}, "width: must be 0.."),
        ({"height": 1001, "width": 1000, "row_step": 12000}, "width: must be at most"),
        ({"point_step": 11}, "point_step: must be 12..1024 bytes"),
        ({"point_step": 0}, "point_step: must be 12..1024 bytes"),
        ({"point_step": 1025}, "point_step: must be 12..1024 bytes"),
        ({"row_step": 143}, "row_step: must be 144.."),
        ({"row_step": 2**32 - 1}, "row_step: must be 144.."),
        ({"fields": XYZ[:2]}, "fields.z: is missing"),
        ({"fields": ()}, "fields.x: is missing"),
        ({"fields": (*XYZ, XYZ[1])}, "fields.y: is given more than once"),
        ({"fields": (("x", 0, 5, 1), *XYZ[1:])}, "fields.x: must be FLOAT32 (7) or FLOAT64 (8) (got 5)"),
        ({"fields": (("x", 0, 0, 1), *XYZ[1:])}, "fields.x: must be FLOAT32"),
        ({"fields": (("x", 0, 7, 2), *XYZ[1:])}, "fields.x: must be one number (got 2)"),
        ({"fields": (*XYZ[:2], ("z", 9, 7, 1))}, "fields.z: must begin at byte 0..8 of a point of 12 bytes (got 9)"),
        ({"fields": (*XYZ[:2], ("z", 2**32 - 1, 7, 1))}, "fields.z: must begin at byte 0..8"),
        ({"fields": (*XYZ[:2], ("z", -1, 7, 1))}, "fields.z: must begin at byte 0..8"),
        ({"fields": (*XYZ[:2], ("z", 5, 8, 1))}, "fields.z: must begin at byte 0..4"),
        ({"fields": (*XYZ[:2], ("z", 4, 7, 1))}, "fields: x, y and z must not overlap"),
        ({"fields": (("x", 0, 8, 1), *XYZ[1:])}, "fields: x, y and z must not overlap"),
        ({"data": b""}, "data: must hold height * row_step = 144 bytes (got 0)"),
        ({"data": bytes(143)}, "data: must hold"),
        ({"data": bytes(145)}, "data: must hold"),
    ],
)
def test_malformed_messages_end_in_one_sentence(change: dict[str, object], words: str) -> None:
    good = asdict(encode_cloud(POINTS))
    decode_cloud(**good)
    with pytest.raises(InputError) as caught:
        decode_cloud(**{**good, **change}, where="/lidar/points")
    text = str(caught.value)
    assert text.startswith("/lidar/points: ") and words in text and "; check the lidar driver" in text


@pytest.mark.parametrize(("points_n", "refused"), [(990_000, False), (MAX_POINTS, False), (1_010_000, True)])
def test_a_cloud_has_at_most_a_million_points(points_n: int, refused: bool) -> None:
    fields, data = XYZ, np.zeros(points_n * 12, np.uint8)
    sizes = {"height": 2, "width": points_n // 2, "point_step": 12, "row_step": points_n * 6, "is_bigendian": False}
    if refused:
        with pytest.raises(InputError, match="width: must be at most"):
            decode_cloud(data, fields=fields, **sizes)  # type: ignore[arg-type]
    else:
        assert decode_cloud(data, fields=fields, **sizes).shape == (points_n, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("height", "width"), [(1, 0), (0, 0), (0, 5)])
def test_an_empty_cloud_is_one(height: int, width: int) -> None:
    decoded = decode_cloud(
        b"", height=height, width=width, fields=XYZ, point_step=12, row_step=12 * width, is_bigendian=False
    )
    assert decoded.shape == (0, 3) and decoded.dtype == np.float32


INTEGERS = st.integers(-2, 40) | st.sampled_from([2**16, 2**31 - 1, 2**32 - 1])


@given(
    data=st.binary(max_size=400),
    height=st.integers(0, 4),
    width=st.integers(0, 9),
    fields=st.lists(
        st.tuples(st.sampled_from(["x", "y", "z", "i"]), INTEGERS, st.sampled_from([0, 5, 7, 8]), st.integers(0, 2)),
        max_size=5,
    )
    | st.just(list(XYZ)),
    point_step=INTEGERS | st.just(12),
    row_step=INTEGERS | st.sampled_from([12, 24, 48]),
    is_bigendian=st.booleans(),
)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_whatever_comes_it_is_points_or_one_sentence(**message: object) -> None:
    try:
        points = decode_cloud(**message)  # type: ignore[arg-type]
    except InputError as error:
        assert error.field and "\n" not in str(error)
    else:
        assert points.shape == (int(message["height"]) * int(message["width"]), 3)  # type: ignore[call-overload]
