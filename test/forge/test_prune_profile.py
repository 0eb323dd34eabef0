"""Hardware profiles: work against an independent counter, interpolation against brute force, files that are refused."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("onnx", reason="the forge extra is not installed")

import onnxruntime as ort  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from triptych import cli  # noqa: E402
from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.command import app  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet  # noqa: E402
from triptych_forge.prune import measure, quiet  # noqa: E402
from triptych_forge.prune.measure import (  # noqa: E402
    DEFAULT_GRIDS,
    Grid,
    coarse,
    grid_shape,
    measure_bandwidth_gb_per_s,
    measure_operator_us,
    measure_profile,
    read_caches,
    single_operator,
)
from triptych_forge.prune.profile import (  # noqa: E402
    Caches,
    HardwareProfile,
    Measurement,
    Operator,
    load_profile,
    predict_ms,
    predict_us,
    roofline_us,
    save_profile,
)
from triptych_forge.prune.shapes import LayerShape, bytes_read, kind_of, layer_shapes, macs  # noqa: E402
from triptych_forge.vlm.model import SHAPES, Encoder  # noqa: E402

torch.set_num_threads(1)

SHIPPED = sorted((Path(__file__).parents[2] / "config" / "forge" / "hardware").glob("*.yaml"))
FULL_SIZE = torch.zeros(1, 3, 256, 448)


def profile(**changes: Any) -> HardwareProfile:
    grid = Operator(
        channels_in=(8, 32),
        channels_out=(8, 16, 64),
        positions=(16, 256),
        microseconds=tuple(float(v) for v in [1, 4, 2, 9, 5, 30, 3, 11, 4, 22, 12, 90]),
        source="made up",
    )
    alone = Operator(channels_in=(8, 32), positions=(16, 256), microseconds=(1.0, 6.0, 3.0, 20.0), source="made up")
    fields = {
        "schema_version": 1,
        "name": "test",
        "version": "1",
        "host": "none",
        "source": "made up",
        "estimate": True,
        "caches": Caches(l1_kib=32, l2_kib=256, l3_kib=1024),
        "memory_gb_per_s": 10.0,
        "cache_gb_per_s": 40.0,
        "peak_gmacs_per_s": 20.0,
        "operators": {"conv1x1": grid, "depthwise3x3": alone, "linear": Operator(efficiency=0.25, source="guess")},
    }
    return HardwareProfile(**{**fields, **changes})


def conv(channels_in: int, channels_out: int, positions: int) -> LayerShape:
    return LayerShape("c", "conv1x1", channels_in, channels_out, 1, 1, positions, positions, True)


# --- counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["detector", "encoder"])
def test_multiply_accumulates_agree_with_torchs_own_counter(net: str) -> None:
    if net == "detector":
        model: nn.Module = DetectorNet(6)
        inputs: tuple[Any, ...] = (torch.zeros(1, 3, 64, 96),)
    else:
        shape = SHAPES["full"]
        model = Encoder(shape)
        inputs = (torch.zeros(1, shape.frames, shape.height_px, shape.width_px, 3), torch.zeros(1, shape.frames))
    layers = layer_shapes(model, inputs)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(*inputs)
    # Attention multiplies activations with each other: no weights, so no layer.
    attention = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    assert macs(layers) * 2 == counter.get_total_flops() - attention
    names = {n for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and n != "finder"}
    assert {layer.name for layer in layers} == names
    weights = {n: sum(p.numel() for p in m.parameters()) for n, m in model.named_modules() if n in names}
    assert all(layer.weights == weights[layer.name] for layer in layers)


def test_bytes_read_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16, 5, bias=False))
    wanted = (8 * 3 * 9 + 8) + 3 * 8 * 8 + 128 * 5 + 128
    assert bytes_read(net, torch.zeros(1, 3, 8, 8)) == 4 * wanted
    assert bytes_read(layer_shapes(net, torch.zeros(1, 3, 8, 8)), bytes_per_value=1) == wanted
    assert net.training
    # A layer that is called twice is read twice.
    shared = nn.Linear(4, 4, bias=False)
    assert bytes_read(nn.Sequential(shared, shared), torch.zeros(1, 4)) == 2 * 4 * (16 + 4)


def test_kinds_of_layers() -> None:
    assert kind_of(nn.Conv2d(3, 8, 3, 2)) == "conv3x3/2"
    assert kind_of(nn.Conv2d(8, 8, 5, groups=8)) == "depthwise5x5"
    assert kind_of(nn.Conv2d(8, 16, 1)) == "conv1x1"
    assert kind_of(nn.Conv2d(8, 16, 3, groups=2)) == "grouped2conv3x3"


def test_what_cannot_be_counted_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^1: ConvTranspose2d cannot be counted"):
        layer_shapes(nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(3, 3, 2)), torch.zeros(1, 3, 4, 4))
    with pytest.raises(ConfigError, match="LSTM cannot be counted"):
        layer_shapes(nn.LSTM(3, 3), torch.zeros(1, 2, 3))


# --- prediction -------------------------------------------------------------------------------------------------------


def test_on_the_grids_points_the_measured_times_come_back() -> None:
    p = profile()
    grid = p.operators["conv1x1"]
    points = list(itertools.product(*grid.axes))
    for (a, b, n), wanted in zip(points, grid.microseconds, strict=True):
        assert predict_us(conv(a, b, n), p) == pytest.approx(wanted)
    for (a, n), wanted in zip(itertools.product((8, 32), (16, 256)), (1.0, 6.0, 3.0, 20.0), strict=True):
        assert predict_us(LayerShape("d", "depthwise3x3", a, a, a, 9, n, n), p) == pytest.approx(wanted)


def brute_force(
    values: dict[tuple[int, ...], float], axes: tuple[tuple[int, ...], ...], point: tuple[int, ...]
) -> float:
    """Multilinear in logs, as the weighted sum over the corners of the cell."""
    total = 0.0
    cell = []
    for axis, x in zip(axes, point):
        low = max([a for a in axis if a <= x][-1:] or axis[:1])
        high = min([a for a in axis if a > x][:1] or axis[-1:])
        share = 0.0 if high == low else np.log(x / low) / np.log(high / low)
        cell.append(((low, 1 - share), (high, share)) if high != low else ((low, 1.0),))
    for corner in itertools.product(*cell):
        weight = np.prod([w for _, w in corner])
        total += weight * np.log(values[tuple(c for c, _ in corner)])
    return float(np.exp(total))


@settings(max_examples=60, deadline=None)
@given(a=st.integers(8, 32), b=st.integers(8, 64), n=st.integers(16, 256))
def test_between_the_points_logs_are_interpolated(a: int, b: int, n: int) -> None:
    p = profile()
    grid = p.operators["conv1x1"]
    values = dict(zip(itertools.product(*grid.axes), grid.microseconds, strict=True))
    assert predict_us(conv(a, b, n), p) == pytest.approx(brute_force(values, grid.axes, (a, b, n)), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(a=st.integers(1, 300), b=st.integers(1, 300), n=st.integers(1, 9000))
def test_outside_the_grid_the_roofline_scales(a: int, b: int, n: int) -> None:
    p = profile()
    inside = conv(min(max(a, 8), 32), min(max(b, 8), 64), min(max(n, 16), 256))
    scale = roofline_us(conv(a, b, n), p) / roofline_us(inside, p)
    assert predict_us(conv(a, b, n), p) == pytest.approx(predict_us(inside, p) * scale)


@pytest.mark.parametrize(
    ("layer", "efficiency", "microseconds"),
    [
        # 2048 x 2048 weights do not fit the cache: 4 (4194304 + 2048 + 2048 + 2048) bytes at 10 GB/s.
        (LayerShape("l", "linear", 2048, 2048, 1, 1, 1, 1, True), 0.25, 4 * (4194304 + 3 * 2048) / 10e3),
        # 100 rows: 409600 MACs at a quarter of 20 G/s take longer than 4 (4096 + 64 + 12800) bytes at 40 GB/s.
        (LayerShape("l", "linear", 64, 64, 1, 1, 100, 100, True), 0.25, 409600 / 5e3),
        # One row is bound by the cache.
        (LayerShape("l", "linear", 64, 64, 1, 1, 1, 1, False), 1.0, 4 * (4096 + 128) / 40e3),
    ],
)
def test_an_estimate_is_the_roofline(layer: LayerShape, efficiency: float, microseconds: float) -> None:
    p = profile(operators={"linear": Operator(efficiency=efficiency, source="guess")})
    assert predict_us(layer, p) == pytest.approx(microseconds)


def test_a_model_is_the_sum_of_its_layers_and_a_missing_operator_is_named() -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16))
    x = torch.zeros(1, 8, 4, 4)
    p = profile()
    wanted = sum(predict_us(layer, p) for layer in layer_shapes(net, x)) / 1e3
    assert predict_ms(net, p, x) == pytest.approx(wanted) and wanted > 0
    assert predict_ms(layer_shapes(net, x), p) == pytest.approx(wanted)
    net[2] = nn.Conv2d(16, 16, 5, padding=2, groups=16)
    with pytest.raises(
        ConfigError, match=r"profile test: operators: has no operator 'depthwise5x5', which layer '2' needs"
    ):
        predict_ms(net, p, x)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_profile(tmp_path / "p.yaml", profile())
    assert load_profile(tmp_path / "p.yaml") == profile()


def edit(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for parent in parents:
        document = document[parent]
    if value is None:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("surprise", 1, "surprise"),
        ("memory_gb_per_s", None, "memory_gb_per_s"),
        ("memory_gb_per_s", -1, "memory_gb_per_s"),
        ("peak_gmacs_per_s", float("nan"), "peak_gmacs_per_s"),
        ("caches/l2_kib", -5, "caches.l2_kib"),
        ("operators", {}, "operators"),
        ("operators/pool", {"efficiency": 0.5, "source": "x"}, "'pool' is not the name of an operator"),
        ("operators/linear/efficiency", None, "give either microseconds over a grid or an efficiency"),
        ("operators/linear/efficiency", 2.0, "efficiency"),
        ("operators/conv1x1/channels_in", [8, 16, 32], "the grid has 18 cells but 12 microseconds"),
        ("operators/conv1x1/channels_in", [32, 8], "axes of the grid must rise"),
        ("operators/conv1x1/microseconds", [0.0] * 12, "microseconds"),
        ("operators/depthwise3x3/channels_out", [1], "channels_out is for all but depthwise"),
        ("operators/conv1x1/positions", [], "needs channels_in and positions"),
        ("name", "My Host", "name"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(tmp_path: Path, path: str, value: Any, words: str) -> None:
    document = yaml.safe_load(yaml.safe_dump(profile().model_dump(mode="json", exclude_defaults=True)))
    edit(document, path, value)
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError) as caught:
        load_profile(tmp_path / "p.yaml")
    assert words in str(caught.value) and "p.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [("a: [", "is not YAML"), ("- 1", "is a YAML mapping"), (None, "cannot be read")]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_profile(tmp_path / "p.yaml")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_profiles_know_the_projects_nets(path: Path) -> None:
    p = load_profile(path)
    assert p.name == path.stem
    wide, narrow = DetectorNet(6, replace(STUDENT, width=64)), DetectorNet(6, replace(STUDENT, width=32))
    assert 0.1 < predict_ms(narrow, p, FULL_SIZE) < predict_ms(wide, p, FULL_SIZE) < 100
    for shape in SHAPES.values():
        inputs = (torch.zeros(1, shape.frames, shape.height_px, shape.width_px, 3), torch.zeros(1, shape.frames))
        assert 0.01 < predict_ms(Encoder(shape), p, inputs) < 300


def test_profiles_are_shipped() -> None:
    assert len(SHIPPED) >= 1
    assert any(not load_profile(path).estimate for path in SHIPPED)


def test_what_the_estimate_takes_from_the_measured_machine_is_measured_there() -> None:
    """Each assumed share of the peak is the one that the other file's machine reached at the shape that is named."""
    estimate, measured = (load_profile(SHIPPED[0].with_name(f"{n}.yaml")) for n in ("jetson-orin-nano-cpu", "x86-64"))
    assert estimate.estimate and not measured.estimate
    for kind, operator in estimate.operators.items():
        named = re.search(r"for (\d+) to (\d+) channels, (\d+) positions", operator.source)
        assert named and operator.source.startswith("assumed: ")
        inside, outside, positions = map(int, named.groups())
        shape = grid_shape(kind, inside, outside, (1, positions))
        reached = shape.macs / predict_us(shape, measured) / 1e3 / measured.peak_gmacs_per_s
        assert operator.efficiency == pytest.approx(reached, abs=0.006), kind


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["conv1x1", "conv3x3", "conv3x3/2", "conv4x4/4", "depthwise5x5", "depthwise3x3/2"])
@pytest.mark.parametrize("branches", [1, 3])
def test_the_measured_graph_is_the_operator(kind: str, branches: int) -> None:
    """Its first position per branch is torch's convolution; the output has the size asked for."""
    from onnx import numpy_helper

    graph = single_operator(kind, 8, 16, (3, 5), branches)
    weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in graph.graph.initializer}
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.randn(*session.get_inputs()[0].shape)
    got = session.run(None, {"x": x.numpy()})[0]
    shape = grid_shape(kind, 8, 16, (3, 5))
    assert got.shape == (1, shape.channels_out * branches, 1, 1)
    for b in range(branches):
        kernel = weights[f"w{b}"].shape[-1]
        stride = x.shape[2] // 3
        padding = kernel // 2 if stride < kernel else 0
        wanted = torch.relu(
            nn.functional.conv2d(x, weights[f"w{b}"], weights[f"b{b}"], stride, padding, groups=shape.groups)
        )
        assert wanted.shape[2:] == (3, 5) and x[0, 0].numel() == shape.positions_in
        part = got[:, b * shape.channels_out : (b + 1) * shape.channels_out, 0, 0]
        assert np.allclose(part, wanted[:, :, 0, 0].numpy(), atol=1e-5)
    assert shape.weights * branches == sum(w.numel() for w in weights.values())


def test_the_measured_linear_layer_is_one() -> None:
    from onnx import numpy_helper

    graph = single_operator("linear", 8, 4, (1, 3), 2)
    weights = {t.name: numpy_helper.to_array(t) for t in graph.graph.initializer}
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    wanted = np.concatenate([x[:1] @ weights[f"w{b}"] + weights[f"b{b}"] for b in range(2)], 1)
    assert np.allclose(session.run(None, {"x": x})[0], wanted, atol=1e-5)
    with pytest.raises(ConfigError, match="not the name of an operator"):
        single_operator("softmax", 8, 8, (1, 1), 1)


def test_a_measured_profile_knows_more_work_from_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "measure_bandwidth_gb_per_s", lambda size_bytes: 12.0)
    seen: list[tuple[int, int]] = []
    grids = {"conv1x1": Grid((8, 128), (128,), ((4, 4), (48, 48))), "depthwise3x3": Grid((64,), (), ((32, 32),))}
    p = measure_profile("here", "test machine", grids, repeats=5, passes=2, progress=lambda i, n: seen.append((i, n)))
    assert seen[-1] == (10, 10) and not p.estimate
    light, heavy = p.operators["conv1x1"].microseconds[0], p.operators["conv1x1"].microseconds[3]
    assert heavy > 20 * light  # 2304 times the work
    assert predict_us(grid_shape("conv1x1", 128, 128, (48, 48)), p) == pytest.approx(heavy)
    # A time below what memory and arithmetic allow is an error of the clock.
    for kind, operator in p.operators.items():
        cells = itertools.product(operator.channels_in, operator.channels_out or (0,), operator.positions)
        for (a, b, n), us in zip(cells, operator.microseconds, strict=True):
            assert us >= 0.99 * roofline_us(grid_shape(kind, a, b, (1, n)), p) - 1e-3
    # The peak is a rate that was seen: no measured point is faster, and it is no fantasy.
    assert p.peak_gmacs_per_s >= 0.99 * 128 * 128 * 48 * 48 / heavy / 1e3
    assert 0.5 < p.peak_gmacs_per_s < 2000


def test_an_operators_time_is_that_of_one_and_not_of_all_branches() -> None:
    us = measure_operator_us("conv3x3", 32, 64, (48, 48), repeats=7)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    graph = single_operator("conv3x3", 32, 64, (48, 48), 1).SerializeToString()
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    x = np.ones((1, 32, 48, 48), np.float32)
    times = []
    for _ in range(7):
        start = time.thread_time()
        session.run(None, {"x": x})
        times.append((time.thread_time() - start) * 1e6)
    assert 0.4 < us / np.median(times) < 2.0


def test_bandwidth_is_measured() -> None:
    assert 0.2 < measure_bandwidth_gb_per_s(1 << 20, repeats=3) < 2000


def test_caches_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "4096K")]
    ):
        entry = tmp_path / f"index{number}"
        entry.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (entry / name).write_text(f"{text}\n")
    assert read_caches(tmp_path) == Caches(l1_kib=48, l2_kib=2048, l3_kib=4096)
    assert read_caches(tmp_path).last_level_bytes == 4096 * 1024
    assert read_caches(tmp_path / "nothing") == Caches(l1_kib=0, l2_kib=0, l3_kib=0)


# --- a quiet machine --------------------------------------------------------------------------------------------------


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The load averages that a machine of two cores tells, one after the other; the last for ever. Empty: none."""
    told: list[float] = [0.0]

    def average() -> tuple[float, float, float]:
        if not told:
            raise OSError
        return (told.pop(0) if len(told) > 1 else told[0], 9.0, 9.0)

    monkeypatch.setattr(quiet.os, "getloadavg", average, raising=False)
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    return told


def test_only_the_load_of_others_counts(load: list[float]) -> None:
    load[:] = [1.5]
    assert quiet.others_load() == pytest.approx(0.75)
    # After a long time at work this program has added its whole thread, after one time constant 1 - 1/e of it.
    assert quiet.others_load(1, 1e6) == pytest.approx(0.25)
    assert quiet.others_load(1, 60.0) == pytest.approx((1.5 - (1 - math.exp(-1))) / 2, abs=1e-4)
    assert quiet.others_load(4, 1e6) == 0.0
    load.clear()
    assert quiet.others_load() is None


def test_the_spread_is_that_of_the_shape_in_the_middle() -> None:
    assert quiet.spread_of([[10.0, 20.0, 5.0], [11.0, 20.0, 50.0], [10.5, 30.0, 5.0]]) == pytest.approx(0.5)
    assert quiet.spread_of([[10.0, 20.0, 5.0], [10.0, 21.0, 50.0]]) == pytest.approx(0.05)
    assert quiet.spread_of([[10.0, 20.0]]) is None and quiet.spread_of([]) is None and quiet.spread_of([[], []]) is None


@pytest.mark.parametrize(("share", "busy"), [(0.99, False), (1.0, False), (1.01, True)])
def test_the_limits_of_a_quiet_machine(share: float, busy: bool) -> None:
    assert bool(quiet.busy_load(share * quiet.MOST_LOAD)) is busy
    assert bool(quiet.busy_spread(share * quiet.MOST_SPREAD)) is busy


def test_what_nobody_knows_is_not_quiet() -> None:
    assert quiet.busy_load(None) and quiet.busy_spread(None)
    assert quiet.busy_load(math.nan) and quiet.busy_spread(math.nan)
    quiet.refuse_busy("", "")
    with pytest.raises(ConfigError, match=r"this machine: is busy: one; two; .*--even-if-busy"):
        quiet.refuse_busy("one", "", "two")


def test_an_estimate_was_not_measured() -> None:
    measured = Measurement(
        date="2026-01-02",
        versions={"x": "1"},
        repeats=1,
        passes=1,
        load_before=0,
        load_after=0,
        spread=None,
        quiet=True,
    )
    assert profile(estimate=False, measured=measured).measured == measured
    with pytest.raises(ValueError, match="no estimate"):
        profile(measured=measured)
    with pytest.raises(ConfigError, match="was not measured here"):
        measure.refuse_busy(profile())


def test_a_quick_look_is_a_quarter_of_the_shapes_with_the_same_ends() -> None:
    def cells(grids: Any) -> int:
        return sum(len(g.channels_in) * max(1, len(g.channels_out)) * len(g.sizes) for g in grids.values())

    quick = coarse(DEFAULT_GRIDS)
    assert 0.2 < cells(quick) / cells(DEFAULT_GRIDS) < 0.5
    for kind, grid in DEFAULT_GRIDS.items():
        for few, all_of_them in zip(vars(quick[kind]).values(), vars(grid).values(), strict=True):
            assert set(few) <= set(all_of_them) and list(few) == sorted(few)
            assert few[:1] == all_of_them[:1] and few[-1:] == all_of_them[-1:]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of each shape in turn, the last for ever; two shapes in all."""
    times = [1e-3]

    def seconds(*_: object) -> tuple[float, float]:
        many = times.pop(0) if len(times) > 1 else times[0]
        return many / 5, many

    monkeypatch.setattr(measure, "_branch_seconds", seconds)
    monkeypatch.setattr(measure, "measure_bandwidth_gb_per_s", lambda size_bytes: 100.0)
    monkeypatch.setattr(measure, "DEFAULT_GRIDS", {"conv1x1": Grid((64,), (64, 128), ((16, 28),))})
    return times


def asked(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def test_a_profile_is_measured_and_says_how(tmp_path: Path, load: list[float], steps: list[float]) -> None:
    done = asked("--out", tmp_path / "new" / "my-board.yaml")
    assert done.exit_code == 0, done.output
    found = load_profile(tmp_path / "new" / "my-board.yaml")
    assert found.name == "my-board" and not found.estimate and found.host.endswith("one thread")
    assert found.operators["conv1x1"].microseconds == pytest.approx((200.0, 200.0), rel=1e-4)  # (1 - 0.2) ms by 4
    assert found.measured is not None and found.measured.quiet and found.measured.passes == 3
    assert (found.measured.load_before, found.measured.load_after, found.measured.spread) == (0.0, 0.0, 0.0)
    assert found.measured.versions["onnxruntime"] == ort.__version__
    named = asked("--out", tmp_path / "x.yaml", "--name", "other", "--quick")
    assert named.exit_code == 0 and load_profile(tmp_path / "x.yaml").name == "other"
    assert load_profile(tmp_path / "x.yaml").measured.passes == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("loads", "times", "words"),
    [
        ([1.0], [1e-3], r"load it with 0\.50 per core, more than 0\.1"),
        ([], [1e-3], "nobody tells"),
        ([0.0, 0.0, 1.0], [1e-3], r"load it with 0\.50 per core after"),
        ([0.0], [1e-3, 1e-3, 1e-3, 1.2e-3, 1.2e-3, 1.2e-3], "differ by more than 20%"),
    ],
)
def test_a_profile_of_a_busy_machine_is_not_written(
    loads: Sequence[float],
    times: Sequence[float],
    words: str,
    tmp_path: Path,
    load: list[float],
    steps: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "board.yaml"
    load[:], steps[:] = loads, times
    refused = asked("--out", out)
    assert isinstance(refused.exception, ConfigError) and re.search(words, str(refused.exception))
    assert not out.exists()
    load[:], steps[:] = loads, times
    monkeypatch.setattr(sys, "argv", ["triptych", "forge", "profile", "--out", str(out)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2 and re.search(words, capsys.readouterr().err) and not out.exists()
    load[:], steps[:] = loads[-2:], times  # nothing looks before it starts
    anyway = asked("--out", out, "--even-if-busy")
    found = load_profile(out)
    assert anyway.exit_code == 0 and "not to be trusted" in " ".join(anyway.output.split())
    assert found.measured is not None and not found.measured.quiet and "not to be trusted" in found.source


def test_what_could_not_be_written_is_not_measured(
    tmp_path: Path, load: list[float], steps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for out, words in ((tmp_path, "is a folder"), (tmp_path / "file" / "x.yaml", "cannot be written")):
        refused = asked("--out", out)
        assert isinstance(refused.exception, ConfigError) and words in str(refused.exception)
    refused = asked("--out", tmp_path / "No Name.yaml")
    assert isinstance(refused.exception, ConfigError) and "is no name for a profile" in str(refused.exception)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
