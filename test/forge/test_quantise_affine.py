"""The equations of quantisation against brute force and ONNX Runtime; calibration's ranges, statistics and refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
onnx = pytest.importorskip("onnx", reason="the forge extra is not installed")

import cv2  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych.engines.manifest import InputGeometry  # noqa: E402
from triptych_forge.quantise import calibrate, record  # noqa: E402
from triptych_forge.quantise.affine import (  # noqa: E402
    INT8,
    INT8_SYMMETRIC,
    UINT8,
    UINT8_SYMMETRIC,
    Affine,
    Grid,
    dequantise,
    fake_quantise,
    parameters,
    quantise,
    range_of,
    shorten,
    weight_parameters,
)
from triptych_forge.quantise.measure import mean_kl, open_session, relative_l2, worst_relative_l2  # noqa: E402

GRIDS = [INT8, UINT8, INT8_SYMMETRIC, UINT8_SYMMETRIC, Grid(4, False), Grid(4, False, True), Grid(8, True, True)]
NUMBERS = st.floats(-1e6, 1e6, width=32)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=NUMBERS)


@st.composite
def affines(draw: st.DrawFn) -> tuple[float, float, Affine]:
    low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
    return low, high, parameters(low, high, draw(st.sampled_from(GRIDS)))


def by_hand(x: float, affine: Affine) -> float:
    """One value in Python's arithmetic, as an independent reference: the nearest point of the grid."""
    scale, zero = float(affine.scale), int(affine.zero_point)
    points = [(q - zero) * scale for q in range(affine.grid.lowest, affine.grid.highest + 1)]
    return min(points, key=lambda p: abs(p - x))


@given(affines())
def test_zero_is_exact(drawn: tuple[float, float, Affine]) -> None:
    affine = drawn[2]
    assert fake_quantise(np.zeros(3, np.float32), affine).tolist() == [0.0] * 3
    assert affine.grid.lowest <= int(affine.zero_point) <= affine.grid.highest


@given(affines(), st.floats(0, 1))
def test_error_is_at_most_half_a_step_inside_the_range(drawn: tuple[float, float, Affine], share: float) -> None:
    low, high, affine = drawn
    low, high = min(low, 0.0), max(high, 0.0)
    x = np.float32(low + share * (high - low))
    # Half a step, and the float32 roundings of range, scale and product.
    slack = 4e-6 * max(abs(low), abs(high)) + 1e-30
    assert abs(float(fake_quantise(np.array(x), affine)) - float(x)) <= 0.5 * float(affine.scale) + slack


@given(affines(), NUMBERS)
def test_value_becomes_the_nearest_point_of_the_grid(drawn: tuple[float, float, Affine], x: float) -> None:
    affine = drawn[2]
    found, nearest = float(fake_quantise(np.array(x, np.float32), affine)), by_hand(x, affine)
    assert abs(found - x) <= abs(nearest - x) + 4e-6 * (abs(x) + 256 * float(affine.scale))


@given(affines())
def test_values_outside_saturate(drawn: tuple[float, float, Affine]) -> None:
    affine = drawn[2]
    huge = np.array([-3e38, 3e38], np.float32)
    assert quantise(huge, affine).tolist() == [affine.grid.lowest, affine.grid.highest]


@given(affines(), ARRAYS)
def test_monotone_and_idempotent(drawn: tuple[float, float, Affine], x: np.ndarray) -> None:
    affine = drawn[2]
    ordered = np.sort(x.ravel())
    assert (np.diff(quantise(ordered, affine).astype(int)) >= 0).all()
    once = fake_quantise(x, affine)
    assert np.array_equal(fake_quantise(once, affine), once)


def test_per_channel_is_per_tensor_of_each_channel() -> None:
    x = np.random.default_rng(3).normal(size=(4, 5, 6)).astype(np.float32) * np.array([1, 10, 0.1, 0])[:, None, None]
    x = x.astype(np.float32)
    for grid in GRIDS:
        whole = fake_quantise(x, parameters(*range_of(x, 0), grid, 0))
        for channel in range(4):
            alone = fake_quantise(x[channel], parameters(*range_of(x[channel]), grid))
            assert np.array_equal(whole[channel], alone)
    moved = fake_quantise(np.moveaxis(x, 0, 2), parameters(*range_of(x, 0), INT8, 2))
    assert np.array_equal(np.moveaxis(moved, 2, 0), fake_quantise(x, parameters(*range_of(x, 0), INT8, 0)))


def test_figures_worked_out_on_paper() -> None:
    """S = (3 - -1) / 255, Z = round(-128 + 1 / S) for int8; symmetric S = 3 / 127, Z = 0."""
    asymmetric = parameters(-1.0, 3.0, INT8)
    assert float(asymmetric.scale) == pytest.approx(4 / 255, rel=1e-7)
    assert int(asymmetric.zero_point) == round(-128 + 255 / 4) == -64
    symmetric = parameters(-1.0, 3.0, INT8_SYMMETRIC)
    assert (float(symmetric.scale), int(symmetric.zero_point)) == (pytest.approx(3 / 127, rel=1e-7), 0)
    assert int(parameters(-1.0, 3.0, UINT8_SYMMETRIC).zero_point) == 128
    # A range without 0 is widened, so ReLU outputs and padding stay exact.
    assert float(parameters(2.0, 4.0, UINT8).scale) == pytest.approx(4 / 255)
    assert (dequantise(np.array([0, 255], np.uint8), parameters(2.0, 4.0, UINT8)) == [0, 4]).all()


def pair_in_onnx_runtime(x: np.ndarray, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
    """QuantizeLinear's and DequantizeLinear's results."""
    attributes = {} if affine.axis is None else {"axis": affine.axis}
    kind = TensorProto.INT8 if affine.grid.signed else TensorProto.UINT8
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
        ],
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info("q", kind, x.shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape),
        ],
        [onnx.numpy_helper.from_array(affine.scale, "s"), onnx.numpy_helper.from_array(affine.zero_point, "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    q, y = open_session(model).run(None, {"x": x})
    return q, y


RUNTIME_GRIDS = [INT8, UINT8, Grid(8, True, True), UINT8_SYMMETRIC]
"""Without the narrow grid: it is for weights, which never reach its end; QuantizeLinear itself saturates at -128."""


@settings(max_examples=25, deadline=None)
@given(
    x=hnp.arrays(np.float32, (2, 3, 4), elements=st.floats(-50, 50, width=32)),
    grid=st.sampled_from(RUNTIME_GRIDS),
    channels=st.booleans(),
)
def test_agrees_with_onnx_runtime_bit_for_bit(x: np.ndarray, grid: Grid, channels: bool) -> None:
    axis = 1 if channels else None
    affine = parameters(*range_of(x * np.float32(0.7), axis), grid, axis)
    q, y = pair_in_onnx_runtime(x, affine)
    assert np.array_equal(q, quantise(x, affine))
    assert np.array_equal(y, fake_quantise(x, affine))


def test_agrees_with_onnx_runtime_half_way_between_steps() -> None:
    """Where a multiplication with 1 / S instead of the division would round the other way."""
    for high in (0.1, 1.0, 3.0, 7.7, 123.0):
        affine = parameters(-0.4 * high, high, INT8)
        x = (np.arange(-200, 200, dtype=np.float32) + np.float32(0.5)) * affine.scale
        assert np.array_equal(pair_in_onnx_runtime(x, affine)[0], quantise(x, affine))


@given(st.floats(1e-30, 1e30), st.integers(1, 12))
def test_a_short_scale_is_the_next_greater_number_of_so_many_digits(scale: float, bits: int) -> None:
    found = float(shorten(np.array(scale), bits))
    assert scale <= found < scale * (1 + 2.0 ** (1 - bits)) * (1 + 1e-9)
    assert float(np.frexp(found)[0] * 2**bits).is_integer()


def test_what_has_no_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer\.weight: holds NaN"):
        weight_parameters(np.array([[1.0, np.nan]]), 0, "layer.weight")
    with pytest.raises(ConfigError, match="low is above high"):
        parameters(1.0, -1.0, INT8)
    with pytest.raises(ConfigError, match="must be finite"):
        parameters(-np.inf, 1.0, INT8)
    with pytest.raises(ConfigError, match="NaN has no integer"):
        quantise(np.array([np.nan]), parameters(-1, 1, INT8))
    with pytest.raises(ConfigError, match="bits"):
        Grid(9)


def test_distances() -> None:
    assert relative_l2(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0.0
    assert relative_l2(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == pytest.approx(0.2)
    assert relative_l2(np.array([np.nan]), np.array([1.0])) == float("inf")
    assert relative_l2(np.array([1.0]), np.array([0.0])) == float("inf")
    p = np.array([[0.5, 0.5], [0.9, 0.1]])
    q = np.array([[0.4, 0.6], [0.9, 0.1]])
    assert mean_kl(np.log(q), np.log(p) + 7) == pytest.approx((p * np.log(p / q)).sum() / 2)
    with pytest.raises(ConfigError, match="nothing was compared"):
        worst_relative_l2([], [])


# --- ranges ---------------------------------------------------------------------------------------------------------


def filled(*parts: np.ndarray) -> calibrate.Histogram:
    histogram = calibrate.Histogram()
    for part in parts:
        histogram.add(part)
    return histogram


@settings(max_examples=30, deadline=None)
@given(st.lists(hnp.arrays(np.float32, 20, elements=st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=5))
def test_histogram_keeps_count_and_ends_while_it_grows(parts: list[np.ndarray]) -> None:
    histogram, everything = filled(*parts), np.concatenate(parts)
    assert histogram.counts.sum() == everything.size == histogram.magnitudes.sum()
    assert calibrate.range_from(histogram, "minmax") == (everything.min(), everything.max())
    for method in calibrate.METHODS:
        low, high = calibrate.range_from(histogram, method)
        assert everything.min() <= low <= high <= everything.max()


def test_percentile_is_numpys_within_a_bin() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200_000).astype(np.float32)
    histogram = filled(*np.split(x, 10))
    low, high = calibrate.range_from(histogram, "percentile", 99.0)
    assert [low, high] == pytest.approx(
        np.percentile(x, [0.5, 99.5]), abs=2 * histogram.reach / calibrate.BINS_PER_SIDE
    )


def test_entropy_cuts_a_lone_outlier_and_keeps_a_full_range() -> None:
    """The outlier costs every other value resolution; a uniform distribution has nothing to cut."""
    rng = np.random.default_rng(1)
    bulk = rng.normal(size=100_000).astype(np.float32)
    low, high = calibrate.range_from(filled(bulk, np.array([80.0])), "entropy")
    assert high < 20.0 and low == pytest.approx(bulk.min(), abs=0.5)
    flat = rng.uniform(-1, 1, 200_000).astype(np.float32)
    assert calibrate.range_from(filled(flat), "entropy")[1] > 0.95


def brute_divergences(counts: np.ndarray, levels: int) -> dict[int, float]:
    """The same rule, bin by bin: KL by number of bins kept."""
    counts = counts.astype(float)
    counts[0] = counts[1]
    found = {}
    for kept in range(levels, len(counts) + 1):
        p, q = counts[:kept].copy(), np.zeros(kept)
        edges = [level * kept // levels for level in range(levels)] + [kept]
        for first, last in itertools.pairwise(edges):
            held = [i for i in range(first, last) if counts[i] > 0]
            for i in held:
                q[i] = counts[first:last].sum() / len(held)
        p[-1] += counts[kept:].sum()
        if p.sum() == 0 or q.sum() == 0:
            continue
        p, q = p / p.sum(), q / q.sum()
        divergence = sum(a * np.log(a / max(b, 1e-9)) for a, b in zip(p, q) if a > 0)
        found[kept] = divergence
    return found


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.int64, 40, elements=st.integers(0, 50)))
def test_entropy_threshold_is_the_brute_force_one(counts: np.ndarray) -> None:
    if counts.sum() == 0 or counts[1:].sum() == 0:
        return
    divergences = brute_divergences(counts, 8)
    found = calibrate.entropy_threshold(counts, levels=8, stride=1)
    assert divergences[found] <= min(divergences.values()) + 1e-9


def test_ranges_come_by_tensor_name(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["r"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    feeds = [{"x": np.array([[-4, 1, 2, 3]], np.float32)}, {"x": np.array([[5, 0, 0, 0]], np.float32)}]
    found = calibrate.ranges(calibrate.collect(path, calibrate.check_feeds(path, feeds)), "minmax")
    assert found == {"r": (0.0, 5.0), "y": (-5.0, 0.0), "x": (-4.0, 5.0)}
    for feed, sentence in [
        ({}, "x: is missing"),
        ({"x": np.zeros((1, 4))}, "must be float32"),
        ({"x": np.zeros((1, 5), np.float32)}, "x: has another geometry than the engine's 1x4 .*1x5"),
        ({"x": np.full((1, 4), np.nan, np.float32)}, "NaN"),
        ({"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)}, "z: is no input"),
    ]:
        with pytest.raises(ConfigError, match=f"calibration input 1: .*{sentence}|input 1: {sentence}"):
            calibrate.check_feeds(path, [feeds[0], feed])
    with pytest.raises(ConfigError, match="no calibration inputs"):
        calibrate.check_feeds(path, [])


# --- calibration data -----------------------------------------------------------------------------------------------

GEOMETRY = InputGeometry(width=64, height=32, fit="letterbox", colour="bgr", layout="nhwc", dtype="uint8")


def pictures(folder: Path, count: int = 4, size: tuple[int, int] = (128, 64)) -> Path:
    """Bluish noise pictures, in BGR as OpenCV writes them."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    for number in range(count):
        noise = rng.integers(0, 200, (size[1], size[0], 3)) + np.array([55, 20, 0])
        cv2.imwrite(str(folder / f"{number}.png"), noise.astype(np.uint8))
    return folder


def test_a_folder_becomes_feeds_as_the_runtime_prepares_them(tmp_path: Path) -> None:
    feeds = calibrate.feeds_from_folder(pictures(tmp_path), GEOMETRY, "image")
    assert len(feeds) == 4 and feeds[0]["image"].shape == (1, 32, 64, 3) and feeds[0]["image"].dtype == np.uint8
    assert not np.array_equal(feeds[0]["image"], feeds[1]["image"])  # no buffer is shared
    assert len(calibrate.feeds_from_folder(tmp_path, GEOMETRY, "image", limit=2)) == 2
    again = calibrate.feeds_from_folder(tmp_path, GEOMETRY, "image")
    assert calibrate.hash_of(feeds) == calibrate.hash_of(again)
    again[3]["image"][0, 0, 0, 0] ^= 1
    assert calibrate.hash_of(feeds) != calibrate.hash_of(again)


def test_a_folder_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    """V16: no images, unreadable ones, or another geometry: stopped, with the file's name."""
    with pytest.raises(ConfigError, match=r"nowhere: no such calibration folder"):
        calibrate.feeds_from_folder(tmp_path / "nowhere", GEOMETRY, "image")
    (tmp_path / "readme.txt").write_text("no picture")
    with pytest.raises(ConfigError, match=r"holds no images"):
        calibrate.feeds_from_folder(tmp_path, GEOMETRY, "image")
    for size, sentence in [((32, 128), "leave 88% of the input of 64x32 empty"), ((40, 20), "fewer than")]:
        folder = pictures(tmp_path / f"{size[0]}", 2, size)
        with pytest.raises(ConfigError, match=rf"0\.png: has .*{sentence}"):
            calibrate.feeds_from_folder(folder, GEOMETRY, "image")
    folder = pictures(tmp_path / "camera", 2)
    with pytest.raises(ConfigError, match=r"0\.png: has 128x64 pixels, not 1280x720"):
        calibrate.feeds_from_folder(folder, GEOMETRY, "image", source_px=(1280, 720))
    (folder / "1.png").write_bytes(b"not a picture")
    with pytest.raises(ConfigError, match=r"1\.png: is no readable picture"):
        calibrate.feeds_from_folder(folder, GEOMETRY, "image")


def test_statistics_are_numpys_and_survive_a_file(tmp_path: Path) -> None:
    feeds = calibrate.feeds_from_folder(pictures(tmp_path), GEOMETRY, "image")
    found = calibrate.statistics(feeds, "image", 3)
    everything = np.concatenate([f["image"] for f in feeds]).astype(float)
    assert found.mean == pytest.approx(everything.mean((0, 1, 2))) and found.std == pytest.approx(
        everything.std((0, 1, 2))
    )
    assert (found.low, found.high, found.inputs) == (everything.min(), everything.max(), 4)
    others = [{"input_ids": np.arange(3)}]
    kept = record.record_of(feeds, {"image": 3}, others)
    assert kept.statistics == (found,) and kept.count == 5 and kept.sha256 == calibrate.hash_of([*feeds, *others])
    kept.save(tmp_path / record.FILE)
    assert record.CalibrationRecord.load(tmp_path / record.FILE) == kept
    with pytest.raises(ConfigError, match="name the inputs"):
        record.record_of(feeds, {})
    with pytest.raises(ConfigError, match="colour: is missing"):
        record.record_of(feeds, {"colour": None})


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (["schema_version"], 2, "schema_version"),
        (["sha256"], "no hash", "sha256"),
        (["count"], 3, "an input was seen more often"),
        (["statistics"], [], "statistics"),
        (["colour"], 1, "colour"),
        (["statistics", 0, "mean"], [1.0, 2.0], r"statistics\.0: .*there are 3 channels"),
        (["statistics", 0, "std", 1], -1.0, r"statistics\.0\.std\.1"),
        (["statistics", 0, "mean", 0], None, r"statistics\.0\.mean\.0"),
        (["statistics", 0, "low"], 300.0, r"statistics\.0: .*low is above high"),
        (["statistics", 0, "channel_axis"], 4, r"statistics\.0: .*has no such axis"),
        (["statistics", 0, "inputs"], 0, r"statistics\.0\.inputs"),
    ],
)
def test_a_damaged_record_is_refused_by_field(path: list[str | int], value: object, field: str, tmp_path: Path) -> None:
    feeds = calibrate.feeds_from_folder(pictures(tmp_path), GEOMETRY, "image")
    content = json.loads(record.record_of(feeds, {"image": 3}).model_dump_json())
    inner = content
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    (tmp_path / record.FILE).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"calibration\.json: .*{field}"):
        record.CalibrationRecord.load(tmp_path / record.FILE)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read"):
        record.CalibrationRecord.load(tmp_path / "none.json")
    (tmp_path / record.FILE).write_text("{")
    with pytest.raises(ConfigError, match=r"calibration\.json: is no record"):
        record.CalibrationRecord.load(tmp_path / record.FILE)
    feeds = calibrate.feeds_from_folder(pictures(tmp_path), GEOMETRY, "image")
    twice = calibrate.statistics(feeds, "image", 3)
    with pytest.raises(ValueError, match="recorded twice"):
        record.CalibrationRecord(schema_version=1, sha256="0" * 64, count=4, statistics=(twice, twice))


def brighter(x: np.ndarray) -> np.ndarray:
    """Another exposure, with one dark pixel so that the span alone does not tell."""
    y = np.clip(x + 120.0, 0, 250)
    y[0, 0, 0] = x.min()
    return y


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda x: x / 255.0, "another scale"),
        (lambda x: x[..., ::-1], "channels seem to be in reverse"),
        (lambda x: np.full_like(x, 114.0), "blank"),
        (brighter, "channel 0 has mean"),
        (lambda x: x.transpose(0, 3, 1, 2), "has shape"),
    ],
)
def test_data_prepared_in_another_way_are_refused(tmp_path: Path, spoil: object, sentence: str) -> None:
    """V16: a wrong preprocessing is caught by the recorded statistics before anything is quantised."""
    feeds = calibrate.feeds_from_folder(pictures(tmp_path, 6), GEOMETRY, "image")
    recorded = calibrate.statistics(feeds[:3], "image", 3)
    calibrate.check_statistics(calibrate.statistics(feeds[3:], "image", 3), recorded)
    spoilt = [{"image": spoil(feed["image"].astype(np.float32))} for feed in feeds[3:]]  # type: ignore[operator]
    with pytest.raises(ConfigError, match=sentence):
        calibrate.check_statistics(calibrate.statistics(spoilt, "image", 3), recorded, tmp_path)
    kept = record.record_of(feeds[:3], {"image": 3})
    kept.save(tmp_path / record.FILE)
    for form in (recorded, kept, tmp_path / record.FILE):
        record.check_recorded(feeds[3:], form)
        with pytest.raises(ConfigError, match=sentence):
            record.check_recorded(spoilt, form)
        with pytest.raises(ConfigError, match="image: is missing"):
            record.check_recorded([{"colour": np.zeros(3)}], form)
    with pytest.raises(ConfigError, match=r"calibration input 1: image: has shape \(3,\)"):
        record.check_recorded([feeds[3], {"image": np.zeros(3)}], kept)
