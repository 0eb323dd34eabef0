"""The compression gate and the classes of errors: each fault is really made, and a healthy pair has none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
stats = pytest.importorskip("scipy.stats", reason="the forge extra is not installed")
pytest.importorskip("sacrebleu", reason="the forge extra is not installed")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static  # noqa: E402
from torch import nn  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.verify.classify import AFFINE, ClassifyLimits, classify, clipping, fitted_scale  # noqa: E402
from triptych_forge.verify.command import task_metrics, verify  # noqa: E402
from triptych_forge.verify.compression import (  # noqa: E402
    CompressionLimits,
    CompressionReport,
    Metric,
    ablation_control,
    compression_gate,
    kl_divergence,
    picture_inputs,
    usual_answer,
)
from triptych_forge.verify.engines import OnnxSubject, TorchSubject, heads_of  # noqa: E402
from triptych_forge.verify.samples import Head, Sample  # noqa: E402

torch.set_num_threads(1)
HEAD = [Head("logits", "logits", "logits")]
CLASSES = 4


class Net(nn.Module):
    """(1, 3, 16, 16) pictures to logits (1, 64, CLASSES); in float32."""

    def __init__(self, padding: str = "zeros") -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, 1, 1, padding_mode=padding)
        self.two = nn.Conv2d(8, 8, 3, 2, 1)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, image: Any) -> Any:
        x = torch.relu(self.two(torch.relu(self.one(image))))
        return self.head(x).flatten(2).transpose(1, 2)


class Before(nn.Module):
    """A net whose input is changed first."""

    def __init__(self, net: nn.Module, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, image: Any) -> Any:
        return self.net(self.change(image))


class After(Before):
    """A net whose logits are changed."""

    def forward(self, image: Any) -> Any:
        return self.change(self.net(image))


def net(seed: int = 0, padding: str = "zeros") -> Net:
    torch.manual_seed(seed)
    made = Net(padding).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():  # what it says shall depend on the picture, not on its biases
            parameter.mul_(2.0 if "weight" in name else 0.2)
    return made


def subject(module: nn.Module, name: str = "torch", inputs: Sequence[str] = ("image",)) -> TorchSubject:
    return TorchSubject(module, inputs, ["logits"], name)


def pictures(count: int, seed: int = 0, slices: Callable[[int], set[str]] = lambda _: set()) -> list[Sample]:
    """Smooth random pictures, as cameras make them, mean about 0."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        small = rng.normal(0, 1, (1, 3, 4, 4)).astype(np.float32)
        image = small.repeat(4, 2).repeat(4, 3) + rng.normal(0, 0.3, (1, 3, 16, 16)).astype(np.float32)
        image += np.array([0.6, 0.0, -0.6], np.float32)[None, :, None, None]  # colours differ
        made.append(Sample({"image": image.astype(np.float32)}, slices=frozenset(slices(number))))
    return made


def export(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.zeros(1, 3, 16, 16),), str(path), input_names=["image"], output_names=["logits"],
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


class Pictures(CalibrationDataReader):
    """Calibration pictures, made darker or brighter."""

    def __init__(self, samples: Sequence[Sample], factor: float) -> None:
        self._feeds = iter([{"image": (s.feeds["image"] * factor).astype(np.float32)} for s in samples])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def int8(source: Path, target: Path, samples: Sequence[Sample], factor: float = 1.0) -> Path:
    quantize_static(
        str(source), str(target), Pictures(samples, factor), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return target


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The net, its healthy INT8 form, and one calibrated on pictures with a sixth of the contrast."""
    folder = tmp_path_factory.mktemp("int8")
    source = export(net(), folder / "net.onnx")
    return {
        "net": source,
        "healthy": int8(source, folder / "healthy.onnx", pictures(16, 9)),
        "clipped": int8(source, folder / "clipped.onnx", pictures(16, 9), 1 / 6),
    }


# --- the gate ---------------------------------------------------------------------------------------------------------


def right(original: TorchSubject) -> Metric:
    """Share of positions with the original's class."""
    return task_metrics(original, HEAD, 0.03)[0]


FINE = Metric("fine", lambda engine, sample, outputs: 1.0, 0.2)


def judge(
    changed: nn.Module, samples: Sequence[Sample], metrics: Sequence[Metric] | None = None, **limits: Any
) -> CompressionReport:
    one = subject(net(), "original")
    return compression_gate(
        one, subject(changed, "small"), samples, HEAD, metrics or [right(one)], CompressionLimits(**limits)
    )


def test_an_equal_engine_passes() -> None:
    report = judge(net(), pictures(100))
    assert report.passed and report.reasons == []
    (metric,) = report.metrics
    assert metric.original == metric.compressed == 1.0 and metric.test.margin == 0.03 and metric.test.p_value < 0.05
    assert report.kl[0].mean == 0.0 and report.kl[0].positions == 100 * 64
    assert report.ablation is not None and report.ablation.changed_compressed > 90
    text = " ".join(c.note for c in report.checks)
    assert "alpha 0.05" in text and "beta 0.2" in text and "margin 0.03" in text


def test_a_worse_engine_fails_by_metric_and_kl() -> None:
    torch.manual_seed(1)
    noise = torch.randn(64, CLASSES) * 1.5
    report = judge(After(net(), lambda x: x + noise), pictures(40))
    assert not report.passed
    assert any(r.startswith("loss of right classes") for r in report.reasons)
    assert any(r.startswith("mean KL of logits") for r in report.reasons)


def test_a_loss_in_one_slice_alone_fails() -> None:
    """Overall the loss stays within the margin, at night it does not."""
    samples = pictures(400, 3, lambda i: {"night"} if i < 4 else {"rain"} if i < 200 else set())
    dark = {s.feeds["image"].tobytes() for s in samples[:4]}
    worse = Metric("hits", lambda e, s, o: float(not (e.name == "small" and s.feeds["image"].tobytes() in dark)), 0.03)
    report = judge(net(), samples, [worse], kl_max=1.0)
    assert report.metrics[0].test.passed and report.metrics[0].test.loss == pytest.approx(0.01)
    by_slice = {s.slice: s for s in report.slices}
    assert by_slice["night"].loss == 1.0 and by_slice["rain"].loss == 0.0
    assert not report.passed and report.reasons == [r for r in report.reasons if "in night" in r] != []
    lenient = Metric(worse.name, worse.value, 0.03, slice_max_loss=1.0)
    assert judge(net(), samples, [lenient], kl_max=1.0).passed


def test_slices_that_were_asked_for_must_be_there() -> None:
    samples = pictures(40, 0, lambda i: {"night"})
    assert judge(net(), samples, [FINE], slices=("night",)).passed
    report = judge(net(), samples, [FINE], slices=("night", "small objects"))
    assert not report.passed and "samples of slice small objects is 0" in report.reasons[0]
    assert not judge(net(), samples, [FINE], slices=("night",), slice_samples_min=41).passed


def test_an_engine_that_does_not_look_fails_although_it_is_never_wrong() -> None:
    """The truth is nearly always the same here, so an engine that always says it loses nothing."""
    truth = np.ones(64, np.int64)
    samples = [Sample(s.feeds, truth) for s in pictures(50)]
    blind = After(net(), lambda x: torch.zeros_like(x) + torch.tensor([0.0, 4.0, 0.0, 0.0]))
    one = subject(net(), "original")
    report = compression_gate(one, subject(blind), samples, HEAD, [right(one)], CompressionLimits(kl_max=100.0))
    assert report.metrics[0].test.passed and report.ablation is not None
    assert report.ablation.changed_original > 45 and report.ablation.changed_compressed == 0
    assert not report.passed and "the model does not look" in report.reasons[0] and len(report.reasons) == 1


def test_the_control_counts_what_a_blank_picture_changes() -> None:
    """One half of the answers depends on the picture; where the limit lies decides."""
    samples = pictures(40)
    sighted = {s.feeds["image"].tobytes() for s in samples[::2]}

    def answer(engine: Any, sample: Sample, outputs: Any) -> Any:
        return sample.feeds["image"].tobytes() in sighted

    one, other = subject(net()), subject(net())
    found = ablation_control(one, other, samples, answer)
    assert found.inputs == ["image"] and found.changed_compressed == 20 and found.share == 0.5
    assert found.lower_bound == pytest.approx(stats.beta.ppf(0.05, 20, 21))
    with pytest.raises(ConfigError, match="nothing: no input is a picture"):
        ablation_control(one, other, samples, answer, ["nothing"])


def test_pictures_are_found_by_name_or_shape() -> None:
    bgr = np.zeros((1, 8, 8, 3), np.uint8)
    assert picture_inputs(Sample({"frames": np.zeros(2), "other": bgr})) == ["frames"]
    assert picture_inputs(Sample({"x": bgr, "ids": np.zeros((1, 3))})) == ["x"]
    assert picture_inputs(Sample({"ids": np.zeros((1, 3))})) == []


def test_too_few_samples_are_marked_or_refused() -> None:
    rng = np.random.default_rng(0)
    samples = pictures(12)
    noise = {id(s): rng.normal(0, 0.2) for s in samples}
    metric = Metric("quality", lambda e, s, o: 1.0 + (noise[id(s)] if e.name == "small" else 0.0), 0.2)
    report = judge(net(), samples, [metric])
    test = report.metrics[0].test
    assert test.samples == 12 and test.underpowered is (test.samples_needed > 12)
    tight = Metric("quality", metric.value, 0.01)
    report = judge(net(), samples, [tight])
    assert report.metrics[0].test.underpowered and not report.passed
    assert any("underpowered" in note for note in report.notes)
    strict = judge(net(), samples, [tight], refuse_underpowered=True)
    assert any(r.startswith("samples for the power asked of quality is 12") for r in strict.reasons)


def test_less_can_be_better() -> None:
    samples = pictures(30)
    value = lambda e, s, o: 12.0 if e.name == "small" else 10.0  # noqa: E731
    assert judge(net(), samples, [Metric("score", value, 0.5)]).metrics[0].test.passed
    error = judge(net(), samples, [Metric("error px", value, 0.5, higher_is_better=False)])
    assert not error.metrics[0].test.passed and error.metrics[0].test.loss == 2.0


def test_nothing_compared_is_no_pass() -> None:
    with pytest.raises(ConfigError, match="no sample"):
        judge(net(), [])
    one = subject(net())
    with pytest.raises(ConfigError, match="no metric"):
        compression_gate(one, one, pictures(2), HEAD, [])
    absent = Metric("never", lambda e, s, o: math.nan, 0.1)
    report = judge(net(), pictures(20), [absent])
    assert not report.passed and any(r.startswith("samples with never is 0") for r in report.reasons)
    silent = [Sample(s.feeds, np.full(64, -1)) for s in pictures(20)]
    report = judge(net(), silent, [Metric("one", lambda e, s, o: 1.0, 0.1)])
    assert not report.passed and any(r.startswith("positions of logits is 0") for r in report.reasons)
    with pytest.raises(ConfigError, match="no output holds classes"):
        usual_answer([Head("boxes", "boxes")])


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_kl_is_scipys_entropy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 3, (2, 7, 5))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (a, b))
    assert kl_divergence(HEAD[0], a, b) == pytest.approx(stats.entropy(p, q, axis=1))
    # A class that both rule out weighs nothing.
    a[:, 2] = b[:, 2] = -np.inf
    keep = [0, 1, 3, 4]
    assert kl_divergence(HEAD[0], a, b) == pytest.approx(kl_divergence(HEAD[0], a[:, keep], b[:, keep]))


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_kl_of_chances_is_that_of_independent_coins(seed: int) -> None:
    p, q = np.random.default_rng(seed).uniform(0.06, 0.94, (2, 6, 3))
    found = kl_divergence(Head("scores", "out", "chances"), p, q)
    for row, (x, y) in zip(found, zip(p, q)):
        assert row == pytest.approx(sum(stats.entropy([u, 1 - u], [v, 1 - v]) for u, v in zip(x, y)))


def test_empty_cells_of_a_detector_do_not_count() -> None:
    head = Head("scores", "out", "chances", 1)
    busy, empty = np.full((4, 3), 0.9), np.full((996, 3), 0.001)
    a, b = {"out": np.concatenate([empty, busy])}, {"out": np.concatenate([empty, busy - 0.4])}
    sample = Sample({})
    assert head.positions(sample, a, b).tolist() == [996, 997, 998, 999]
    lost = {"out": np.full((1000, 3), 0.001)}
    assert head.positions(sample, lost, a).tolist() == [996, 997, 998, 999]  # what only one side sees counts too
    only_box = {"out": np.concatenate([np.full((1000, 1), 0.9), np.full((1000, 2), 0.001)], 1)}
    assert head.positions(sample, only_box).size == 0


# --- a really quantised net -------------------------------------------------------------------------------------------


def test_healthy_int8_passes_and_clipped_int8_does_not(quantised: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    labels = np.array(["night", "", "rain,small objects", ""] * 15)
    np.savez(data, image=np.stack([s.feeds["image"] for s in pictures(60, 4)]), **{"@slices": labels})
    good = verify(quantised["net"], quantised["healthy"], data, max_loss=0.05)
    assert good.gates == ["compression"] and good.passed, good.reasons
    assert good.compression is not None and {s.slice for s in good.compression.slices} == {
        "night", "rain", "small objects"
    }  # fmt: skip
    bad = verify(quantised["net"], quantised["clipped"], data, tmp_path, max_loss=0.05)
    assert not bad.passed and [f.kind for f in bad.findings] == ["saturation"]
    # A quantised engine is not what the conversion gate is for.
    assert not verify(quantised["net"], quantised["healthy"], data, gate="conversion", positions=1000).passed


# --- kinds of errors --------------------------------------------------------------------------------------------------


def kinds(a: Any, b: Any, samples: Sequence[Sample], **limits: Any) -> list[str]:
    return [f.kind for f in classify(a, b, samples, HEAD, ClassifyLimits(**limits))]


def test_a_healthy_pair_has_no_finding(quantised: dict[str, Path]) -> None:
    original = OnnxSubject(quantised["net"])
    samples = pictures(4, 5)
    assert kinds(subject(net()), original, samples) == []
    assert kinds(original, OnnxSubject(quantised["net"], optimised=False), samples) == []
    # Rounding is no fault: below the error that quantisation may cost there is none, above it none of the kinds.
    healthy = OnnxSubject(quantised["healthy"])
    assert kinds(original, healthy, samples, error=0.1) == []
    assert kinds(original, healthy, samples) == ["unknown"]


def test_the_two_numerics_are_with_and_without_optimisations(quantised: dict[str, Path]) -> None:
    fast = OnnxSubject(quantised["healthy"])
    (slow,) = fast.variants()
    (again,) = slow.variants()
    levels = [engine._session.get_session_options().graph_optimization_level for engine in (fast, slow, again)]
    level = onnxruntime.GraphOptimizationLevel
    assert levels == [level.ORT_ENABLE_ALL, level.ORT_DISABLE_ALL, level.ORT_ENABLE_ALL]


def test_a_clipped_range_is_saturation(quantised: dict[str, Path]) -> None:
    (found,) = classify(OnnxSubject(quantised["net"]), OnnxSubject(quantised["clipped"]), pictures(4, 5), HEAD)
    assert found.kind == "saturation"
    e = found.evidence
    assert float(e["share_at_ends"]) > 0.05 and float(e["share_of_error"]) > 0.9
    assert abs(float(e["farthest_value"])) > max(abs(float(e["range_low"])), abs(float(e["range_high"])))


def test_saturation_of_a_torch_module_without_quantisers() -> None:
    """An activation that cuts off, as a range of 16 bits or a ReLU6 does."""

    class Named(nn.Module):
        def __init__(self, inner: Net, limit: float) -> None:
            super().__init__()
            self.inner, self.cut = inner, nn.Hardtanh(-limit, limit)

        def forward(self, image: Any) -> Any:
            x = torch.relu(self.inner.two(torch.relu(self.cut(self.inner.one(image)))))
            return self.inner.head(x).flatten(2).transpose(1, 2)

    (found,) = classify(subject(Named(net(), 1e9)), subject(Named(net(), 0.8)), pictures(4, 5), HEAD)
    assert found.kind == "saturation" and found.evidence["tensor"] == "cut"
    assert found.evidence["range_high"] == pytest.approx(0.8)


def test_clipping_counts_what_lies_beyond_the_range_and_not_what_is_rounded() -> None:
    x = np.random.default_rng(0).normal(0, 1, 20_000)
    for limit in (1.0, 2.0):
        step = 2 * limit / 254
        y = np.clip(np.round(x / step), -127, 127) * step
        found = clipping(x, y)
        assert found.share == pytest.approx(2 * stats.norm.sf(1.02 * limit), rel=0.05)  # 1 % of the range is forgiven
        assert found.of_error > 0.99 and found.high == pytest.approx(limit)
    step = np.abs(x).max() / 127
    assert clipping(x, np.round(x / step) * step).count == 0
    coarse = np.abs(x).max() / 7.4  # four bits: the largest values are rounded down to the last level, not cut off
    assert clipping(x, np.clip(np.round(x / coarse), -7, 7) * coarse).count == 0
    relu = np.maximum(x, 0)
    assert clipping(relu, relu + 1e-4).count == 0


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_wrong_temperature_is_a_softmax_range(temperature: float) -> None:
    (found,) = classify(subject(net()), subject(After(net(), lambda x: x / temperature)), pictures(3), HEAD)
    assert found.kind == "softmax_range"
    assert found.evidence["temperature"] == pytest.approx(temperature, rel=1e-4)
    assert found.evidence["order_kept"] == 1.0 and float(found.evidence["error_left_by_scale"]) < 1e-6


def test_the_same_best_class_alone_is_no_softmax_range() -> None:
    """The best class stays and gains, the others change places: no temperature does that."""

    def shuffled(x: Any) -> Any:
        best = x.argmax(-1, keepdim=True)
        return x.flip(-1).scatter(-1, best, 3.0 * x.abs().amax(-1, keepdim=True))

    found = classify(subject(net()), subject(After(net(), shuffled)), pictures(3), HEAD)
    assert [f.kind for f in found] == ["unknown"]


def attention(path: Path, scale: float) -> Path:
    """softmax(x x' * scale) x as a graph; x is (1, 12, 8), logits (1, 12, 8)."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "xt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["logits"]),
    ]
    shape = [1, 12, 8]
    graph = helper.make_graph(
        nodes, "attention", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array(scale, np.float32), "scale")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def test_a_wrong_scale_inside_attention_is_a_softmax_range(tmp_path: Path) -> None:
    one, other = (OnnxSubject(attention(tmp_path / f"{s}.onnx", s)) for s in (0.35, 0.5))
    rng = np.random.default_rng(1)
    samples = [Sample({"x": rng.normal(0, 1, (1, 12, 8)).astype(np.float32)}) for _ in range(3)]
    (found,) = classify(one, other, samples, HEAD)
    assert found.kind == "softmax_range" and found.evidence["tensor"] == "scores"
    assert found.evidence["scale"] == pytest.approx(0.5 / 0.35, rel=1e-4)


@given(st.integers(0, 2**31), st.floats(0.2, 5.0))
@settings(max_examples=30, deadline=None)
def test_the_fitted_scale_is_least_squares(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    a = rng.normal(0, 1, (9, 4))
    b = scale * a + rng.normal(0, 0.3, (9, 4)) + rng.normal(0, 5, (9, 1))  # a shift per position means nothing
    factor, rest = fitted_scale(a, b)
    x, y = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    wanted = np.linalg.lstsq(x.reshape(-1, 1), y.ravel(), rcond=None)[0][0]
    assert factor == pytest.approx(wanted)
    assert rest == pytest.approx(((y - wanted * x) ** 2).sum() / ((y - x) ** 2).sum())


def channels(x: Any) -> Any:
    return x.flip(1)


def test_swapped_channels_are_a_pre_processing_mismatch() -> None:
    (found,) = classify(subject(net()), subject(Before(net(), channels)), pictures(3), HEAD)
    assert found.kind == "pre_processing_mismatch"
    assert found.evidence["hypothesis"] == "with red and blue swapped" and found.evidence["input"] == "image"
    assert float(found.evidence["distance_after"]) < 1e-5 < 0.1 < float(found.evidence["distance_before"])


@pytest.mark.parametrize("name", list(AFFINE))
@pytest.mark.parametrize("swap", [False, True])
def test_a_wrong_scale_of_the_input_is_named(name: str, swap: bool) -> None:
    change = AFFINE[name]

    def wrong(x: Any) -> Any:
        return torch.from_numpy(change((channels(x) if swap else x).numpy()))

    (found,) = classify(subject(net()), subject(Before(net(), wrong)), pictures(2), HEAD)
    assert found.kind == "pre_processing_mismatch"
    assert found.evidence["hypothesis"] == (f"with red and blue swapped, then {name}" if swap else name)


def test_affine_changes_come_with_their_inverses() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 4, 5))
    names = list(AFFINE)
    for one, other in zip(names[::2], names[1::2]):
        assert AFFINE[other](AFFINE[one](x)) == pytest.approx(x), (one, other)


def test_a_picture_of_bytes_in_the_other_layout_is_tried_too() -> None:
    class Bytes(nn.Module):
        def __init__(self, swap: bool) -> None:
            super().__init__()
            self.net, self.swap = net(), swap

        def forward(self, frames: Any) -> Any:
            x = (frames.flip(3) if self.swap else frames).permute(0, 3, 1, 2).float()
            return self.net((x - 114.0) / 64.0)

    rng = np.random.default_rng(0)
    levels = np.array([40, 110, 200])
    samples = [
        Sample({"frames": np.clip(rng.normal(levels, 30, (1, 16, 16, 3)), 0, 255).astype(np.uint8)}) for _ in range(3)
    ]
    one, other = (subject(Bytes(swap), "x", ["frames"]) for swap in (False, True))
    (found,) = classify(one, other, samples, HEAD)
    assert found.kind == "pre_processing_mismatch" and found.evidence["hypotheses_tried"] == 1


class Words(nn.Module):
    """A one-layer language model: embedding, masked attention, logits.

    ``late``: positions that the causal mask is wrong by; ``longer``: that the padding mask is.
    """

    def __init__(self, late: int = 0, longer: int = 0, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed, self.place = nn.Embedding(20, 16), nn.Embedding(16, 16)
        self.key, self.value, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 20)
        self.late, self.longer, self.causal = late, longer, causal

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        count = input_ids.shape[1]
        x = self.embed(input_ids) + self.place(torch.arange(count))[None]
        scores = x @ self.key(x).transpose(1, 2) / 4.0
        rows, columns = torch.arange(count)[:, None], torch.arange(count)[None]
        length = int(attention_mask.sum()) + self.longer
        seen = (columns < length) & ((columns <= rows + self.late) if self.causal else (columns >= 0))
        weights = scores.masked_fill(~seen[None], -1e9).softmax(-1)
        return self.head(x + weights @ self.value(x))


def rows(count: int = 4, length: int = 14, padded: int = 4) -> list[Sample]:
    rng = np.random.default_rng(3)
    mask = np.array([[1] * (length - padded) + [0] * padded])
    return [Sample({"input_ids": rng.integers(0, 20, (1, length)), "attention_mask": mask}) for _ in range(count)]


def words(**faults: Any) -> TorchSubject:
    return subject(Words(**faults), "words", ["input_ids", "attention_mask"])


def test_a_padding_mask_off_by_one_is_found_by_asking_the_original() -> None:
    for longer, text in ((1, "attention_mask one position longer"), (-1, "attention_mask one position shorter")):
        (found,) = classify(words(causal=False), words(causal=False, longer=longer), rows(), HEAD)
        assert found.kind == "mask_or_padding_boundary" and found.evidence["hypothesis"] == text
        assert float(found.evidence["distance_after"]) < 1e-5 < float(found.evidence["distance_before"])


def test_a_causal_mask_off_by_one_is_found_by_what_reaches_whom() -> None:
    (found,) = classify(words(), words(late=1), rows(padded=0), HEAD)
    assert found.kind == "mask_or_padding_boundary"
    e = found.evidence
    assert e["first_felt_before"] == e["token_changed"] and e["first_felt_after"] == int(e["token_changed"]) - 1


def test_wrong_padding_of_a_convolution_lies_at_the_border_of_the_picture() -> None:
    (found,) = classify(subject(net()), subject(net(padding="reflect")), pictures(4), HEAD)
    assert found.kind == "mask_or_padding_boundary" and found.evidence["of"] == "picture"
    assert found.evidence["tensor"] == "one" and found.evidence["share_of_error"] == pytest.approx(1.0)
    assert found.evidence["share_of_positions"] == pytest.approx(60 / 256)


def test_an_error_at_the_end_of_a_sequence_lies_at_its_border() -> None:
    def last(x: Any) -> Any:
        x = x.clone()
        x[:, -1] += 1.5 * torch.randn(CLASSES, generator=torch.Generator().manual_seed(0))
        return x

    (found,) = classify(subject(net()), subject(After(net(), last)), pictures(4), HEAD)
    assert found.kind == "mask_or_padding_boundary" and found.evidence["of"] == "sequence"


def test_what_no_test_explains_stays_unknown_with_its_first_layer() -> None:
    other = net()
    with torch.no_grad():
        other.two.weight += torch.randn(other.two.weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    (found,) = classify(subject(net()), subject(other), pictures(4), HEAD)
    assert found.kind == "unknown" and found.evidence["first_diverging_layer"] == "two"
    assert float(found.evidence["relative_l2"]) > 1e-3
    with pytest.raises(ConfigError, match="no sample"):
        classify(subject(net()), subject(other), [], HEAD)


def test_heads_of_a_plain_graph(quantised: dict[str, Path]) -> None:
    engine = OnnxSubject(quantised["net"])
    assert [(h.name, h.kind) for h in heads_of(engine)] == [("logits", "logits")]
    with pytest.raises(ConfigError, match="no such output, there are logits"):
        heads_of(engine, logits="scores")
