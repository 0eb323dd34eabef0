"""Folding, post-training quantisation, quantisation-aware training, mixed precision, targets, acceptance, orders."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
onnx = pytest.importorskip("onnx", reason="the forge extra is not installed")
pytest.importorskip("onnxscript", reason="the forge extra is not installed")

from torch import Tensor, nn  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych.resources import share  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet, Exported  # noqa: E402
from triptych_forge.quantise import affine, calibrate, mixed, ptq, qat, record, targets  # noqa: E402
from triptych_forge.quantise.accept import accept_if_faster, measure_alternately  # noqa: E402
from triptych_forge.quantise.fold import fold_batch_norms  # noqa: E402
from triptych_forge.quantise.measure import open_session, outputs_of, worst_relative_l2  # noqa: E402
from triptych_forge.quantise.orders import ORDERS, compare_orders  # noqa: E402
from triptych_forge.quantise.trace import trace  # noqa: E402
from triptych_forge.vlm.model import Separable  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    yield
    torch.set_num_threads(before)


class Sum(nn.Module):
    """A shortcut whose sum no module sees."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Small(nn.Module):
    """Convolutions, a shortcut, a bare sum, a linear layer: everything that placement has to tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.middle = Sum(8)
        self.depth = Separable(8, 8)
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.top = nn.Conv2d(8, 6, 3, 1, 1)
        self.head = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.depth(self.middle(self.stem((x - 100.0) / 50.0)))
        x = self.top(self.left(x) + self.right(x))
        out: Tensor = self.head(x.flatten(2).transpose(1, 2))
        return out


def lively(net: nn.Module) -> nn.Module:
    """Batch normalisations with statistics of their own, as after training."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return net.eval()


def picture(count: int = 1, size: int = 16) -> Tensor:
    """Smooth random colours, 0..255."""
    small = torch.rand(count, 3, 4, 4) * 255
    return nn.functional.interpolate(small, (size, size), mode="bilinear")


def pictures(count: int, size: int = 16) -> list[dict[str, np.ndarray]]:
    return [{"x": picture(1, size).numpy()} for _ in range(count)]


def onnx_of(net: nn.Module, x: Tensor, path: Path, *names: str) -> Path:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), str(path), input_names=names[:1], output_names=names[1:], opset_version=18, dynamo=False
        )
    return path


def exported(net: nn.Module, path: Path) -> Path:
    return onnx_of(net, picture(), path, "x", "y")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("graph")
    return ptq.prepare(exported(lively(Small()), folder / "float.onnx"), folder / "prepared.onnx")


# --- folding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [Small, lambda: DetectorNet(5, replace(STUDENT, width=16)), lambda: nn.Sequential(Separable(3, 4, 2))]
)
def test_folding_changes_no_output(make: Callable[[], nn.Module]) -> None:
    net = lively(make())
    x = picture(2, 32)
    folded, pairs = fold_batch_norms(net, (x,))
    assert len(pairs) == sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) > 0
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    with torch.no_grad():
        one, other = net(x), folded(x)
    for a, b in zip(*((o if isinstance(o, tuple) else (o,)) for o in (one, other)), strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(a.abs().max()))


def test_folding_is_equation_14_per_channel() -> None:
    net = lively(nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3)))
    conv, norm = net[0], net[1]
    folded, pairs = fold_batch_norms(net, (torch.rand(1, 2, 4, 4),))
    assert pairs == [("0", "1")]
    for channel in range(3):
        factor = norm.weight[channel] / torch.sqrt(norm.running_var[channel] + norm.eps)
        assert torch.allclose(folded[0].weight[channel], conv.weight[channel] * factor)
        assert torch.allclose(folded[0].bias[channel], norm.bias[channel] - norm.running_mean[channel] * factor)


def test_a_shared_output_is_not_folded() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.other = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            out: Tensor = self.norm(y) + self.other(y)
            return out

    class Hidden(Shared):
        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + y

    assert fold_batch_norms(lively(Shared()), (picture(),))[1] == []
    with pytest.raises(ConfigError, match=r"conv \+ norm: folding changes an output"):
        fold_batch_norms(lively(Hidden()), (picture(),))


# --- post-training --------------------------------------------------------------------------------------------------


def test_prepared_graph_is_the_same_function_without_normalisations(prepared: Path, tmp_path: Path) -> None:
    net = lively(Small())
    path = exported(net, tmp_path / "a.onnx")
    content = onnx.load(str(ptq.prepare(path, tmp_path / "b.onnx")))
    assert all(n.op_type != "BatchNormalization" for n in content.graph.node)
    assert len({n.name for n in content.graph.node}) == len(content.graph.node)
    feeds = pictures(3)
    with torch.no_grad():
        wanted = [{"y": net(torch.from_numpy(f["x"])).numpy()} for f in feeds]
    assert worst_relative_l2(outputs_of(open_session(tmp_path / "b.onnx"), feeds), wanted) < 1e-5


def test_quantised_graph_is_close_small_and_logged(prepared: Path, tmp_path: Path) -> None:
    feeds, log = pictures(12), DecisionLog(tmp_path / "log.jsonl", {})
    result = ptq.quantise_model(prepared, tmp_path / "q.onnx", feeds, ptq.PtqOptions(method="minmax"), log=log)
    assert len(result.quantised) == 9 and result.kept == ()
    content = onnx.load(str(result.path))
    stored = {i.name: i for i in content.graph.initializer}
    scales = {n.input[0]: n.input[1] for n in content.graph.node if n.op_type == "DequantizeLinear"}
    for conv in [n for n in content.graph.node if n.op_type == "Conv"]:
        made = next(n for n in content.graph.node if conv.input[1] in n.output)
        assert made.op_type == "DequantizeLinear" and stored[made.input[0]].data_type == onnx.TensorProto.INT8
        assert list(stored[scales[made.input[0]]].dims) == [stored[made.input[0]].dims[0]], "one scale per channel"
    held_out = pictures(6)
    wanted = outputs_of(open_session(prepared), held_out)
    for optimise in (False, True):
        error = worst_relative_l2(outputs_of(open_session(result.path, optimise), held_out), wanted)
        assert 1e-4 < error < 0.12
    (line,) = read_decisions(log.path)
    assert line.kind == "quantise.ptq" and line.facts["calibration_sha256"] == calibrate.hash_of(feeds)


def test_excluded_nodes_keep_their_weights(prepared: Path, tmp_path: Path) -> None:
    names = ptq.layers(prepared)
    options = ptq.PtqOptions(method="minmax", exclude=names[1:])
    result = ptq.quantise_model(prepared, tmp_path / "q.onnx", pictures(4), options)
    assert result.quantised == names[:1] and result.kept == names[1:]
    content = onnx.load(str(result.path))
    quantised = [i for i in content.graph.initializer if i.data_type == onnx.TensorProto.INT8 and len(i.dims) > 1]
    assert len(quantised) == 1
    for exclude, sentence in [(("nonsense",), "exclude: the graph has no such node"), (names, "no node with weights")]:
        with pytest.raises(ConfigError, match=sentence):
            ptq.quantise_model(prepared, tmp_path / "q.onnx", pictures(1), ptq.PtqOptions(exclude=exclude))


def test_boxes_are_decoded_in_float(tmp_path: Path) -> None:
    """Sums and clips behind the last convolution work on pixels: they must not be rounded to 1/255 of the picture."""
    net = Exported(lively(DetectorNet(5, replace(STUDENT, width=16))))
    image = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    ready = ptq.prepare(onnx_of(net, image, tmp_path / "d.onnx", "image", "o"), tmp_path / "p.onnx")
    feeds = [{"image": torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8).numpy()} for _ in range(4)]
    result = ptq.quantise_model(ready, tmp_path / "q.onnx", feeds, ptq.PtqOptions(method="minmax"))
    graph = onnx.load(str(result.path)).graph
    downstream, tails = {o.name for o in graph.output}, []
    for node in reversed(graph.node):
        if set(node.output) & downstream and node.op_type != "Conv":
            downstream |= set(node.input)
            tails.append(node.op_type)
    # One pair per detection convolution's output, nothing behind it.
    assert tails.count("QuantizeLinear") == 3
    assert sum(n.op_type == "Add" for n in graph.node) > 0


def test_sums_behind_the_last_convolution_stay_in_float(tmp_path: Path) -> None:
    """Offsets plus a grid of pixels, as detectors decode boxes: 1/255 of the picture's width would be 4 pixels."""

    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(x / 255.0) + torch.linspace(0.0, 1000.0, 16)
            return out

    ready = ptq.prepare(exported(Offsets(), tmp_path / "float.onnx"), tmp_path / "ready.onnx")
    feeds = pictures(4)
    path = ptq.quantise_model(ready, tmp_path / "q.onnx", feeds).path
    found, wanted = (outputs_of(open_session(p), feeds)[0]["y"] for p in (path, ready))
    assert 0.0 < np.abs(found - wanted).max() < 0.1


def test_calibration_methods_are_compared_on_held_out_inputs(prepared: Path, tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log.jsonl", {})
    rows = ptq.compare_methods(prepared, pictures(8), pictures(4), tmp_path, log=log)
    assert sorted(r.method for r in rows) == sorted(calibrate.METHODS)
    assert [r.error for r in rows] == sorted(r.error for r in rows) and all(0 < r.error < 0.5 for r in rows)
    assert [d.subject for d in read_decisions(log.path)] == list(calibrate.METHODS)
    by_metric = ptq.compare_methods(
        prepared, pictures(2), pictures(1), tmp_path, methods=("minmax", "entropy"), metric=lambda p: len(p.stem)
    )
    assert by_metric[0].method == "entropy"


def test_each_slice_has_its_own_error(prepared: Path, tmp_path: Path) -> None:
    """Ranges of dim pictures cut off what bright ones need: only the slice shows it."""
    dim = [{"x": feed["x"] * np.float32(0.25)} for feed in pictures(8)]
    bright = [{"x": feed["x"] * np.float32(2.0)} for feed in pictures(2)]
    log = DecisionLog(tmp_path / "log.jsonl", {})
    slices = {"bright": bright, "dim": dim[6:]}
    rows = ptq.compare_methods(prepared, dim[:4], dim[4:6], tmp_path, slices=slices, log=log)
    wanted = outputs_of(open_session(prepared), bright)
    for row in rows:
        assert list(row.slices) == ["bright", "dim"]
        found = outputs_of(open_session(tmp_path / f"{row.method}.onnx"), bright)
        assert row.slices["bright"] == worst_relative_l2(found, wanted) > 3 * row.slices["dim"] > 0
        assert row.slices["dim"] == pytest.approx(row.error, rel=0.5)
    logged = {d.subject: d.facts["slices"] for d in read_decisions(log.path)}
    assert logged == {row.method: pytest.approx(dict(row.slices)) for row in rows}
    with pytest.raises(ConfigError, match=r"slices\.night: holds no inputs"):
        ptq.compare_methods(prepared, dim, dim, tmp_path, slices={"night": []})
    assert ptq.compare_methods(prepared, dim[:1], dim[1:2], tmp_path, methods=["minmax"])[0].slices == {}


def test_calibration_data_unlike_the_recorded_are_refused_before_anything_is_quantised(
    prepared: Path, tmp_path: Path
) -> None:
    feeds, log = pictures(6), DecisionLog(tmp_path / "log.jsonl", {})
    record.record_of(feeds[:3], {"x": 1}).save(tmp_path / record.FILE)
    good, spoilt = feeds[3:], [{"x": feed["x"] / np.float32(255)} for feed in feeds[3:]]
    for recorded in (tmp_path / record.FILE, calibrate.statistics(feeds[:3], "x", 1)):
        with pytest.raises(ConfigError, match="another scale"):
            ptq.quantise_model(prepared, tmp_path / "q.onnx", spoilt, recorded=recorded, log=log)
        with pytest.raises(ConfigError, match="another scale"):
            ptq.compare_methods(prepared, spoilt, good, tmp_path, recorded=recorded, log=log)
    assert not list(tmp_path.glob("*.onnx")) and not log.decisions
    ptq.quantise_model(prepared, tmp_path / "q.onnx", good, recorded=tmp_path / record.FILE, log=log)
    ptq.compare_methods(
        prepared, good, feeds[:3], tmp_path, methods=["minmax"], recorded=tmp_path / record.FILE, log=log
    )
    ptq.quantise_model(prepared, tmp_path / "q.onnx", spoilt, log=log)
    assert [d.facts["held_against_record"] for d in read_decisions(log.path)] == [True, True, False]
    with pytest.raises(ConfigError, match="recorded: has nothing to be held against"):
        ptq.quantise_model(prepared, tmp_path / "q.onnx", (), ranges={}, recorded=tmp_path / record.FILE)


class Pictures(nn.Module):
    """A convolution behind the usual way from pixels to numbers."""

    def __init__(self, offset: float, divisor: float) -> None:
        super().__init__()
        self.offset, self.divisor = offset, divisor
        self.layer = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.layer((image.permute(0, 3, 1, 2).float() - self.offset) / self.divisor))


@pytest.mark.parametrize(
    ("offset", "divisor", "darkest", "taken"),
    [(114.0, 64.0, 0, True), (114.0, 60.0, 0, False), (114.0, 64.0, 9, False)],
)
def test_pixels_are_taken_as_they_are_where_that_changes_nothing(
    offset: float, divisor: float, darkest: int, taken: bool, tmp_path: Path
) -> None:
    """Padding too: the zero-point is what the normalisation makes 0."""
    rng, names = np.random.default_rng(0), ("Cast", "Sub", "Div")
    feeds = [{"image": rng.integers(darkest, 256, (1, 16, 16, 3), np.uint8)} for _ in range(4)]
    for feed in feeds:
        feed["image"].flat[:2] = darkest, 255
    path = tmp_path / "net.onnx"
    torch.manual_seed(0)
    torch.onnx.export(
        Pictures(offset, divisor).eval(), (torch.from_numpy(feeds[0]["image"]),), str(path), input_names=["image"],
        output_names=["out"], dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    prepared = ptq.prepare(path, tmp_path / "prepared.onnx")
    ptq.quantise_model(prepared, tmp_path / "taken.onnx", feeds, ptq.PtqOptions(op_types=ptq.CONVOLUTIONAL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptq, "take_pixels", lambda model: 0)
        ptq.quantise_model(prepared, tmp_path / "as-written.onnx", feeds, ptq.PtqOptions(op_types=ptq.CONVOLUTIONAL))
    kinds = [node.op_type for node in onnx.load(str(tmp_path / "taken.onnx")).graph.node]
    assert taken is (not set(names) & set(kinds))
    found, wanted = (outputs_of(open_session(tmp_path / f"{n}.onnx"), feeds) for n in ("taken", "as-written"))
    assert all(np.array_equal(f["out"], w["out"]) for f, w in zip(found, wanted, strict=True))


def test_half_precision_runs(prepared: Path, tmp_path: Path) -> None:
    out = ptq.to_fp16(prepared, tmp_path / "half.onnx")
    feeds = pictures(2)
    wanted = outputs_of(open_session(prepared), feeds)
    assert worst_relative_l2(outputs_of(open_session(out), feeds), wanted) < 1e-2


# --- quantisation-aware ---------------------------------------------------------------------------------------------

OPTIONS = [
    qat.QatOptions(),
    qat.QatOptions(ranges="learned"),
    qat.QatOptions(signed=True, symmetric=True),
    qat.QatOptions(exclude=("head.*", "stem.0")),
    qat.QatOptions(scale_bits=None),
]


def observed(options: qat.QatOptions = OPTIONS[0], net: nn.Module | None = None) -> nn.Module:
    ready = qat.prepare(net or lively(Small()), (picture(),), options)
    qat.observe(ready, [(picture(2),) for _ in range(4)])
    return ready


@pytest.mark.parametrize("grid", [affine.UINT8, affine.INT8, affine.INT8_SYMMETRIC, affine.UINT8_SYMMETRIC])
def test_torch_and_numpy_quantise_alike(grid: affine.Grid) -> None:
    x = torch.randn(3, 4, 5)
    found = qat.fake_quantise(x, torch.tensor(-1.3), torch.tensor(2.1), grid)
    wanted = affine.fake_quantise(x.numpy(), affine.parameters(-1.3, 2.1, grid))
    assert np.allclose(found.numpy(), wanted, atol=1e-6)
    low, high = affine.range_of(x.numpy(), 0)
    channels = qat.fake_quantise(x, torch.from_numpy(low), torch.from_numpy(high), grid, 0)
    assert np.allclose(
        channels.numpy(), affine.fake_quantise(x.numpy(), affine.parameters(low, high, grid, 0)), atol=1e-6
    )


def test_gradients_are_straight_through_and_esser_s() -> None:
    """dy/dx is 1 inside the range, 0 outside; dy/dS is round(x/S) - x/S inside, qmax outside (LSQ, equation 3)."""
    x = torch.tensor([-9.0, -0.4, 0.0, 0.6, 1.0, 9.0], requires_grad=True)
    high = torch.tensor(2.0, requires_grad=True)
    qat.fake_quantise(x, -high, high, affine.INT8_SYMMETRIC).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 1, 1, 1, 1, 0]
    scale = 2.0 / 127
    inside = np.array([-0.4, 0.0, 0.6, 1.0]) / scale
    wanted = (np.rint(inside) - inside).sum() + 127 - 127
    assert high.grad is not None and float(high.grad) == pytest.approx(wanted / 127, abs=1e-6)


def test_quantisers_stand_where_integer_kernels_need_them() -> None:
    ready = qat.prepare(lively(Small()), (picture(),))
    places = [key.replace("/", ".") for key in getattr(ready, qat.QUANTISERS)]
    assert sorted(places) == sorted(
        [
            "in:stem.0",  # the normalised picture
            "out:stem.2",  # behind the ReLU
            "out:middle.body.2",
            "out:middle",  # the shortcut's sum
            "out:depth.depthwise",
            "out:depth.pointwise",  # no ReLU alone takes it: the sum does
            "out:depth.act",
            "out:left",
            "out:right",
            "in:top",  # a sum that no module sees
            "out:top",
            "in:head.0",
            "out:head.1",  # GELU
        ]
    )


def test_a_copy_has_quantisers_of_its_own() -> None:
    ready = observed()
    twin = copy.deepcopy(ready)
    for quantiser in twin.modules():
        if isinstance(quantiser, qat.ActivationQuantiser):
            quantiser.high.mul_(3.0)
    x = picture()
    with torch.no_grad():
        assert not torch.equal(ready(x), twin(x))


@pytest.mark.parametrize("options", OPTIONS, ids=["ema", "learned", "symmetric", "partly", "long scales"])
def test_export_is_the_network_rounding_for_rounding(options: qat.QatOptions, tmp_path: Path) -> None:
    """V6: fake-quantised torch against ONNX Runtime, plain (the gate) and optimised (reported)."""
    net = qat.freeze(observed(options))
    path = qat.export_qdq(net, (picture(),), tmp_path / "q.onnx", ["x"], ["y"])
    log = DecisionLog(tmp_path / "log.jsonl", {})
    result = qat.check_conversion(net, path, pictures(6), log)
    assert result.passed and result.plain <= qat.CONVERSION_LIMIT and result.optimised < 0.05
    assert read_decisions(log.path)[0].facts["relative_l2"] == result.plain
    content = onnx.load(str(path))
    quantised = 6 + 3 if options.exclude == () else 5 + 1
    integers = [i for i in content.graph.initializer if i.data_type == onnx.TensorProto.INT8 and len(i.dims) > 1]
    assert len(integers) == quantised
    floats = [i for i in content.graph.initializer if i.data_type == onnx.TensorProto.FLOAT and len(i.dims) > 1]
    assert len(floats) == 9 - quantised


def test_short_scales_make_every_engine_round_alike(tmp_path: Path) -> None:
    """V6: sums are exact in float32, so torch, the plain graph and the integer kernels agree in every digit."""
    torch.manual_seed(8)
    net = lively(nn.Sequential(Separable(3, 16), *(Separable(16, 16) for _ in range(5)), nn.Conv2d(16, 4, 1)))
    ready = qat.prepare(net, (picture(),))
    noise = [torch.rand(1, 3, 32, 32) * 4 - 2 for _ in range(10)]
    qat.observe(ready, [(x,) for x in noise[:4]])
    path = qat.export_qdq(qat.freeze(ready), (noise[0],), tmp_path / "q.onnx", ["x"], ["y"])
    result = qat.check_conversion(ready, path, [{"x": x.numpy()} for x in noise[4:]])
    assert (result.plain, result.optimised) == (0.0, 0.0)


def test_scales_are_as_short_in_training_as_when_frozen() -> None:
    x, low, high = torch.randn(50), torch.tensor(-1.3), torch.tensor(2.1)
    found = qat.fake_quantise(x, low, high, affine.UINT8, None, 2)
    wanted = affine.parameters(-1.3, 2.1, affine.UINT8, None, 2)
    assert float(wanted.scale) == 2.0**-6  # 3.4 / 255 is 0.0133: between 1.5 x 2**-7 and 2**-6
    assert np.array_equal(found.numpy(), affine.fake_quantise(x.numpy(), wanted))


def test_a_moved_scale_fails_the_gate(tmp_path: Path) -> None:
    net = qat.freeze(observed())
    path = qat.export_qdq(net, (picture(),), tmp_path / "q.onnx", ["x"], ["y"])
    content = onnx.load(str(path))
    node = next(n for n in content.graph.node if n.op_type == "Constant" and n.attribute[0].t.data_type == 1)
    value = onnx.numpy_helper.to_array(node.attribute[0].t)
    node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(value * np.float32(1.02)))
    onnx.save(content, str(path))
    assert not qat.check_conversion(net, path, pictures(3)).passed
    with pytest.raises(ConfigError, match="nothing was compared"):
        qat.check_conversion(net, path, [])


def test_the_gate_judges_the_outputs_asked_for(tmp_path: Path) -> None:
    """A drift of another output is reported and does not decide."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.offset = nn.Conv2d(3, 4, 1), 0.0

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.net(x)
            return y, y + self.offset

    ready = qat.prepare(Two(), (picture(),))
    qat.observe(ready, [(picture(),)])
    path = qat.export_qdq(qat.freeze(ready), (picture(),), tmp_path / "q.onnx", ["x"], ["main", "side"])
    ready.offset = 100.0
    feeds = pictures(2)
    assert not qat.check_conversion(ready, path, feeds).passed
    result = qat.check_conversion(ready, path, feeds, judged=["main"])
    assert result.passed and result.plain == result.by_output["main"][0] < result.by_output["side"][0]
    with pytest.raises(ConfigError, match=r"judged: the graph has no such output \(got 'tail'\)"):
        qat.check_conversion(ready, path, feeds, judged=["tail"])


def test_integer_kernels_run(tmp_path: Path) -> None:
    """The optimiser finds every convolution: nothing of the chain stays in float."""
    path = qat.export_qdq(qat.freeze(observed()), (picture(),), tmp_path / "q.onnx", ["x"], ["y"])
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = [n.op_type for n in onnx.load(str(tmp_path / "o.onnx")).graph.node]
    assert kinds.count("QLinearConv") == 7 and "Conv" not in kinds and "FusedConv" not in kinds
    assert kinds.count("QGemm") == 2 and "MatMul" not in kinds and "Gemm" not in kinds


def test_fine_tuning_learns_with_the_rounding() -> None:
    torch.manual_seed(2)
    net = lively(Small())
    teacher = copy.deepcopy(net)
    batches = [picture(4) for _ in range(30)]

    def loss(student: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = 2.0 * teacher(x)
        return (student(x) - wanted).square().mean()

    for options in OPTIONS[:2]:
        ready = observed(options, net)
        before = float(loss(ready.eval(), batches[0]).detach())
        seen: list[int] = []
        losses = qat.fine_tune(
            ready, batches, loss, rate=2e-3, steps=30, progress=lambda *at, seen=seen: seen.extend(at)
        )
        assert len(losses) == 30 and seen[-2:] == [30, 30]
        assert float(loss(ready, batches[0]).detach()) < 0.3 * before
    with pytest.raises(ConfigError, match="not finite at step 0"):
        qat.fine_tune(observed(), batches, lambda n, x: loss(n, x) * float("nan"))


def test_dropout_is_off_while_fine_tuning() -> None:
    """Its noise is a thousand times that of the rounding and would be all that is learned."""
    net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4)).eval()
    x = torch.randn(16, 8)
    ready = qat.prepare(net, (x,))
    qat.observe(ready, [(x,)])
    wanted = net(x).detach()
    losses = qat.fine_tune(ready, [x] * 3, lambda n, b: (n(b) - wanted).square().mean(), rate=0.0)
    assert max(losses) < 1e-3


def test_quantisers_refuse_what_cannot_work(tmp_path: Path) -> None:
    for options, sentence in [
        (qat.QatOptions(exclude=("nose.*",)), "exclude: fits no"),
        (qat.QatOptions(exclude=("*",)), "no layer is left"),
        (qat.QatOptions(ranges="guess"), "must be ema or learned"),
        (qat.QatOptions(scale_bits=0), "scale_bits: must be 1 to 24"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            qat.prepare(lively(Small()), (picture(),), options)
    ready = qat.prepare(lively(Small()), (picture(),))
    with pytest.raises(ConfigError, match="no inputs"):
        qat.observe(ready, [])
    with pytest.raises(ConfigError, match="has no range"):
        qat.freeze(ready)
    with pytest.raises(ConfigError, match="not frozen"):
        qat.export_qdq(observed(), (picture(),), tmp_path / "q.onnx", ["x"], ["y"])


def test_trace_sees_what_feeds_what() -> None:
    calls = {c.name: c.source for c in trace(lively(Small()), (picture(),))}
    assert calls["stem.1"] == "stem.0" and calls["stem.2"] == "stem.1"
    assert calls["depth.depthwise"] == "middle" and calls["left"] == calls["right"] == "depth.act"
    assert calls["top"] is None and calls["stem.0"] is None


# --- mixed precision ------------------------------------------------------------------------------------------------

COSTS = {"vision.a": 0.1, "vision.b": 4.0, "vision.c": 0.2, "text.a": 3.0, "text.b": 0.05, "text.c": 1.0}


def additive(layers: frozenset[str]) -> float:
    return sum(COSTS[name] for name in layers)


def test_greedy_takes_back_the_most_sensitive_first(tmp_path: Path) -> None:
    found = mixed.sensitivities(list(COSTS), additive)
    assert found == COSTS
    log = DecisionLog(tmp_path / "log.jsonl", {})
    choice = mixed.choose(found, additive, 1.5, log=log)
    assert choice.kept == ("vision.b", "text.a") and choice.loss == pytest.approx(1.35) and choice.within
    assert [s[0] for s in choice.steps] == ["", "vision.b", "text.a"]
    lines = {d.subject: d.facts for d in read_decisions(log.path)}
    assert (
        set(lines) == set(COSTS) and lines["text.a"]["precision"] == "float" and lines["text.b"]["precision"] == "int8"
    )
    assert lines["vision.b"]["sensitivity"] == 4.0 and "above 1.5" in lines["vision.b"]["why"]


def test_vision_stays_high_even_within_the_loss() -> None:
    choice = mixed.choose(COSTS, additive, 100.0, vision=("vision.*",), vision_share=0.5)
    assert choice.kept == ("vision.b", "vision.c") and choice.within
    none = mixed.choose(COSTS, lambda layers: float("nan") if layers else 0.0, 0.0)
    assert none.quantised == () and none.loss == 0.0 and none.within
    with pytest.raises(ConfigError, match=r"vision: fits no layer \(got 'tower\.\*'\)"):
        mixed.choose(COSTS, additive, 1.0, vision=("tower.*",))


def test_a_layer_that_breaks_the_graph_is_found(prepared: Path, tmp_path: Path) -> None:
    """One range made far too wide ruins one layer: sensitivity points at it, and taking it back mends the whole."""
    feeds, held_out = pictures(8), pictures(3)
    found = calibrate.ranges(calibrate.collect(prepared, feeds), "minmax")
    names = ptq.layers(prepared)
    victim = next(n for n in onnx.load(str(prepared)).graph.node if n.name == names[5])
    found[victim.output[0]] = (found[victim.output[0]][0] * 200, found[victim.output[0]][1] * 200)
    loss = mixed.onnx_loss(prepared, found, held_out, tmp_path)
    sensitivity = mixed.sensitivities(names, loss)
    assert max(sensitivity, key=sensitivity.__getitem__) == names[5]
    choice = mixed.choose(sensitivity, loss, 0.12)
    assert names[5] in choice.kept and choice.within and len(choice.kept) <= 3


# --- targets --------------------------------------------------------------------------------------------------------


def test_every_shipped_target_loads() -> None:
    names = targets.target_names()
    assert names == ["cpu-int8", "fp16", "npu-int8", "tensorrt-fp8", "tensorrt-int8", "tensorrt-nvfp4"]
    loaded = {name: targets.load_target(name) for name in names}
    assert {n for n, t in loaded.items() if t.verified} == {"cpu-int8", "fp16"}
    options = loaded["tensorrt-int8"].ptq_options()
    assert options.symmetric_activations and options.activation == "int8" and not options.quantise_bias
    with pytest.raises(ConfigError, match=r"tensorrt-nvfp4: weights\.dtype"):
        loaded["tensorrt-nvfp4"].ptq_options()


@pytest.mark.parametrize("name", ["cpu-int8", "npu-int8", "tensorrt-int8"])
def test_integer_targets_give_graphs_that_run(name: str, prepared: Path, tmp_path: Path) -> None:
    options = targets.load_target(name).ptq_options()
    result = ptq.quantise_model(prepared, tmp_path / "q.onnx", pictures(8), options)
    held_out = pictures(3)
    wanted = outputs_of(open_session(prepared), held_out)
    assert worst_relative_l2(outputs_of(open_session(result.path), held_out), wanted) < 0.25
    if name == "tensorrt-int8":
        graph = onnx.load(str(result.path)).graph
        zeros = {n.input[2] for n in graph.node if n.op_type == "QuantizeLinear"}
        held = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
        assert all(not held[z].any() for z in zeros), "TensorRT takes no zero-point but 0"
        assert all(i.data_type != onnx.TensorProto.INT32 for i in graph.initializer), "nor integer biases"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("operators: convolutional", "operators: convolutional\nsparsity: 0.5"), "sparsity: is not a known key"),
        (("dtype: uint8", "dtype: uint9"), "activations.dtype: "),
        (("granularity: channel", "granularity: group"), "weights: group goes with"),
        (("runtime: onnxruntime-cpu\n", ""), "runtime: is missing"),
        (("name: cpu-int8", "name: other"), "name: is not the file's name"),
        (("schema_version: 1", "schema_version: ["), "not valid YAML"),
    ],
)
def test_a_wrong_recipe_is_named_by_file_and_key(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    text = (share() / targets.FOLDER / "cpu-int8.yaml").read_text()
    path = tmp_path / "cpu-int8.yaml"
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=rf"cpu-int8\.yaml: {sentence}"):
        targets.load_target(path)
    with pytest.raises(ConfigError, match=r"abacus\.yaml: no such target .* choose one of cpu-int8, fp16"):
        targets.load_target("abacus")


# --- acceptance -----------------------------------------------------------------------------------------------------


class Bench:
    """A clock that only the engines move, each by its own time."""

    def __init__(self, **seconds: float | list[float]) -> None:
        self.now, self.order = 0.0, []
        self.seconds = {name: list(s) if isinstance(s, list) else s for name, s in seconds.items()}

    def clock(self) -> float:
        return self.now

    def load(self, path: Path) -> Callable[[Any], None]:
        def run(_: Any) -> None:
            spent = self.seconds[path.stem]
            self.order.append(path.stem)
            self.now += spent.pop(0) if isinstance(spent, list) else spent

        return run


@pytest.mark.parametrize(("child_s", "accepted"), [(0.009, True), (0.010, True), (0.0101, False)])
def test_a_slower_child_is_rejected_with_both_timings(child_s: float, accepted: bool, tmp_path: Path) -> None:
    """V8: an "optimised" engine slower than its parent is rejected, both timings kept."""
    bench, log = Bench(parent=0.010, child=child_s), DecisionLog(tmp_path / "log.jsonl", {})
    result = accept_if_faster(
        Path("parent.onnx"), Path("child.onnx"), [{}], log, runs=20, load=bench.load, clock=bench.clock, target="here"
    )
    assert result.accepted is accepted
    assert result.ratio == pytest.approx(child_s / 0.010)
    (line,) = read_decisions(log.path)
    assert line.kind == ("quantise.accept" if accepted else "quantise.reject") and line.subject == "child.onnx"
    assert line.facts["parent_timing"]["median_ms"] == pytest.approx(10.0)
    assert line.facts["child_timing"]["p99_ms"] == pytest.approx(child_s * 1e3)
    assert line.facts["target"] == "here" and "parent's 10.000 ms" in line.facts["reason"]


def test_engines_run_in_turns_and_warm_up_does_not_count() -> None:
    bench = Bench(a=[9.0, 9.0, 1.0, 2.0, 3.0, 4.0], b=[9.0, 9.0, 5.0, 5.0, 5.0, 45.0])
    a, b, ratio = measure_alternately(
        bench.load(Path("a")), bench.load(Path("b")), [{}], runs=4, warm_up=2, clock=bench.clock
    )
    assert bench.order[4:] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert (a.median_ms, b.median_ms) == (2500.0, 5000.0)
    assert ratio == pytest.approx(np.median([5 / 1, 5 / 2, 5 / 3, 45 / 4]))
    assert b.p99_ms == pytest.approx(np.percentile([5000, 5000, 5000, 45000], 99))
    with pytest.raises(ConfigError, match="no inputs"):
        measure_alternately(bench.load(Path("a")), bench.load(Path("b")), [])


def test_a_machine_that_slows_down_half_way_changes_no_verdict() -> None:
    """The child is always 10 % faster; it is timed at another speed of the machine than most of the parent's runs."""
    speeds = [1.0] * 5 + [3.0] * 6 + [1.0] * 4
    bench = Bench(parent=[0.010 * s for s in speeds], child=[0.009 * s for s in speeds])
    found = accept_if_faster(
        Path("parent.onnx"), Path("child.onnx"), [{}], None, runs=15, warm_up=0, load=bench.load, clock=bench.clock
    )
    assert found.accepted and found.ratio == pytest.approx(0.9)


def test_tolerance_and_broken_clocks() -> None:
    bench = Bench(parent=0.010, child=0.0102)
    paths = Path("parent.onnx"), Path("child.onnx")
    assert accept_if_faster(*paths, [{}], None, tolerance=0.05, load=bench.load, clock=bench.clock).accepted
    stopped = Bench(parent=0.0, child=float("nan"))
    assert not accept_if_faster(*paths, [{}], None, load=stopped.load, clock=stopped.clock).accepted


def test_real_engines_are_timed(prepared: Path) -> None:
    result = accept_if_faster(prepared, prepared, pictures(2), None, runs=5, warm_up=1, tolerance=0.99)
    assert result.parent.median_ms > 0 and result.child.runs == 5


# --- orders ---------------------------------------------------------------------------------------------------------


def test_both_orders_are_measured_on_untouched_copies(tmp_path: Path) -> None:
    """Two steps that do not commute: halving and rounding."""
    start = [7.0, 3.0]

    def prune(values: list[float]) -> list[float]:
        values[0] /= 2
        return values

    def quantise(values: list[float]) -> list[float]:
        return [round(v) for v in values]

    log = DecisionLog(tmp_path / "log.jsonl", {})
    result = compare_orders(start, prune, quantise, metric=sum, size=len, log=log)
    assert start == [7.0, 3.0]
    assert {r.order: r.metric for r in result.rows} == {
        "as it is": 10.0,
        "prune": 6.5,
        "quantise": 10.0,
        "prune, then quantise": 7.0,
        "quantise, then prune": 6.5,
    }
    assert result.best == "prune, then quantise" and result.rows[1].loss == 3.5 and result.rows[0].size == 2
    assert [d.subject for d in read_decisions(log.path)] == list(ORDERS)
    with pytest.raises(ConfigError, match="prune: the metric is NaN"):
        compare_orders([1.0], lambda m: [float("nan")], lambda m: m, metric=sum)
