"""Sensitivities against exact curvature, channels that go together, checkpoints that fit, sparse patterns that hold."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("torch_pruning", reason="the forge extra is not installed")

import onnx  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.command import app  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet  # noqa: E402
from triptych_forge.prune import groups as dependency  # noqa: E402
from triptych_forge.prune.profile import Caches, HardwareProfile, Operator, predict_ms  # noqa: E402
from triptych_forge.prune.sensitivity import (  # noqa: E402
    LayerSensitivity,
    fisher_diagonal,
    hessian_diagonal,
    sensitivity,
)
from triptych_forge.prune.shapes import layer_shapes  # noqa: E402
from triptych_forge.prune.sparsity import (  # noqa: E402
    SharedSparseAlignment,
    apply_2_4,
    bake_2_4,
    check_2_4,
    check_2_4_onnx,
    eligible_2_4,
    follows_2_4,
    mask_2_4,
    plain_weights,
    survey_2_4_onnx,
)
from triptych_forge.prune.structured import (  # noqa: E402
    PruneResult,
    Target,
    architecture,
    cost,
    load_pruned,
    prune,
    rebuild,
    save_pruned,
)
from triptych_forge.vlm.model import Encoder, Shape, Vlm  # noqa: E402

torch.set_num_threads(1)

IMAGE = (1, 3, 64, 64)


def detector(seed: int = 1) -> DetectorNet:
    """With weights as after training: activations that neither die nor grow."""
    torch.manual_seed(seed)
    net = DetectorNet(3, replace(STUDENT, width=32))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.4, 0.9)
            nn.init.normal_(module.bias, std=0.2)
    return net.eval()


def picture(seed: int = 2) -> Tensor:
    return torch.rand(IMAGE, generator=torch.Generator().manual_seed(seed)) * 255


# --- sensitivity ------------------------------------------------------------------------------------------------------


def regression(seed: int, orthogonal: bool = False) -> tuple[nn.Sequential, np.ndarray, np.ndarray]:
    """A linear model without bias, 4 inputs and 3 outputs, and data; its loss is half the mean squared error's sum."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(12, 4))
    if orthogonal:
        x = np.linalg.qr(x)[0] * np.array([1.0, 2.0, 0.5, 3.0])
    y = generator.normal(size=(12, 3))
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3, bias=False)).double(), x, y


def half_square(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return 0.5 * (model(x) - y).square().sum(-1).mean()


def pair(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("seed", range(3))
def test_fisher_is_the_mean_squared_gradient(seed: int) -> None:
    model, x, y = regression(seed)
    weight = model[0].weight.detach().numpy()
    wanted = np.mean([np.outer(weight @ a - b, a) ** 2 for a, b in zip(x, y)], 0)
    batches = [pair(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    assert np.allclose(fisher_diagonal(model, batches, half_square)["0"].numpy(), wanted, rtol=1e-12)
    layer = sensitivity(model, batches, half_square, "fisher")["0"]
    assert np.allclose(layer.per_channel.numpy(), (0.5 * wanted * weight**2).sum(1))
    assert layer.total == pytest.approx(float(layer.per_channel.sum()))


def test_one_probe_is_exact_for_a_diagonal_hessian() -> None:
    model, x, y = regression(1, orthogonal=True)
    exact = np.tile((x**2).mean(0), (3, 1))
    assert np.allclose(hessian_diagonal(model, [pair(x, y)], half_square, probes=1)["0"].numpy(), exact)


@pytest.mark.parametrize("seed", range(3))
def test_hutchinson_comes_as_close_as_its_variance_says(seed: int) -> None:
    model, x, y = regression(seed)
    hessian = x.T @ x / len(x)  # of every output alone; outputs do not mix
    probes = 400
    spread = np.sqrt(((hessian**2).sum(1) - np.diag(hessian) ** 2) / probes)
    found = hessian_diagonal(model, [pair(x, y)], half_square, probes=probes, seed=seed)["0"].numpy()
    error = (found - np.diag(hessian)) / spread
    assert np.abs(error).max() < 4.5
    assert 0.4 < np.sqrt((error**2).mean()) < 1.8  # neither wrong nor suspiciously exact


def test_the_hessian_is_of_the_mean_over_batches_and_repeats_with_its_seed() -> None:
    model, x, y = regression(4, orthogonal=False)
    batches = [pair(x[:6], y[:6]), pair(x[6:], y[6:])]
    found = hessian_diagonal(model, batches, half_square, probes=300, seed=5)["0"]
    assert np.allclose(found.numpy(), np.tile((x**2).mean(0), (3, 1)), rtol=0.2)
    again = hessian_diagonal(model, batches, half_square, probes=300, seed=5)["0"]
    assert torch.equal(found, again)
    assert not torch.equal(found, hessian_diagonal(model, batches, half_square, probes=300, seed=6)["0"])


def test_at_the_optimum_the_hessian_tells_the_true_rise_of_the_loss() -> None:
    model, x, y = regression(2, orthogonal=True)
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(np.linalg.lstsq(x, y, rcond=None)[0].T))
    before = half_square(model, pair(x, y)).item()
    per_channel = sensitivity(model, [pair(x, y)], half_square, "hessian", probes=1)["0"].per_channel
    for channel in range(3):
        smaller, _, _ = regression(2, orthogonal=True)
        with torch.no_grad():
            smaller[0].weight.copy_(model[0].weight)
            smaller[0].weight[channel] = 0
        rise = half_square(smaller, pair(x, y)).item() - before
        assert float(per_channel[channel]) == pytest.approx(rise, rel=1e-9)


def test_sensitivity_leaves_the_model_as_it_was_and_reports_progress() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1))
    model.train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    seen: list[tuple[int, int]] = []
    batches = [torch.randn(2, 3, 6, 6) for _ in range(3)]
    found = sensitivity(
        model,
        batches,
        lambda m, b: m(b).square().mean(),
        "hessian",
        probes=1,
        progress=lambda i, n: seen.append((i, n)),
    )
    assert set(found) == {"0", "3"} and found["0"].total > 0
    assert model.training and not model[1].training and not model[0].weight.requires_grad
    assert all(p.grad is None for p in model.parameters()) and int(model[1].num_batches_tracked) == 0
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_linear_loss_has_no_curvature() -> None:
    model, x, y = regression(1)
    found = hessian_diagonal(model, [pair(x, y)], lambda m, b: m(b[0]).sum(), probes=2)
    assert float(found["0"].abs().max()) == 0.0


@pytest.mark.parametrize(
    ("batches", "loss", "method", "words"),
    [
        ([], half_square, "fisher", "no batch"),
        ([pair(np.full((1, 4), np.nan), np.zeros((1, 3)))], half_square, "fisher", "loss of batch 1: is not finite"),
        ([pair(np.ones((1, 4)), np.zeros((1, 3)))], lambda m, b: m(b[0]), "hessian", "is no scalar"),
        ([pair(np.ones((1, 4)), np.zeros((1, 3)))], half_square, "magic", "unknown method"),
    ],
)
def test_bad_requests_for_sensitivity_are_refused(batches: Any, loss: Any, method: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sensitivity(regression(1)[0], batches, loss, method)


# --- structured pruning -----------------------------------------------------------------------------------------------


class Tangle(nn.Module):
    """Residual, depthwise, concatenation, an untied branch, two output heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.side = nn.Sequential(nn.Conv2d(3, 24, 1), nn.BatchNorm2d(24), nn.Sigmoid())
        self.merge = nn.Sequential(nn.Conv2d(40, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.heads = nn.ModuleList([nn.Conv2d(32, 5, 1), nn.Conv2d(40, 7, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.stem(x)
        a = torch.relu(a + self.body(a))
        both = torch.cat([a, self.side(x)], 1)
        return self.heads[0](self.merge(both)), self.heads[1](both)


def tangle(seed: int = 3) -> Tangle:
    torch.manual_seed(seed)
    net = Tangle()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def outputs(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return dependency.flat_tensors(model.eval()(*inputs))


def close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-4) -> bool:
    return all(torch.allclose(x, y, rtol=tolerance, atol=tolerance) for x, y in zip(a, b, strict=True))


def test_dead_channels_go_first_and_nothing_changes() -> None:
    """Channels made 0 by hand in every layer that makes them: pruning takes just these, and the output stays."""
    net = tangle()
    dead = {"stem": [1, 4, 5, 8, 9, 10, 13, 15], "merge": list(range(3, 27))}
    with torch.no_grad():
        net.stem[0].weight[dead["stem"]] = 0
        net.body[0].weight[dead["stem"]] = 0
        net.body[3].weight[dead["stem"]] = 0
        net.body[3].weight[:, dead["stem"]] = 0
        net.heads[1].weight[:, dead["stem"]] = 0
        net.merge[0].weight[:, dead["stem"]] = 0
        net.merge[0].weight[dead["merge"]] = 0
        net.heads[0].weight[:, dead["merge"]] = 0
        for norm, key in ((net.stem[1], "stem"), (net.body[1], "stem"), (net.body[4], "stem"), (net.merge[1], "merge")):
            norm.weight[dead[key]] = 0
            norm.bias[dead[key]] = 0
    x = torch.randn(2, 3, 8, 8)
    result = prune(net, x[:1], Target(ratio=0.5), protect=["side"], floor=0.0)
    counts = {d.layer: d.channels_after for d in result.layers}
    assert counts == {
        "stem.0": 8, "body.0": 8, "body.3": 8, "side.0": 24, "merge.0": 16, "heads.0": 5, "heads.1": 7
    }  # fmt: skip
    assert torch.equal(result.model.stem[0].weight, net.stem[0].weight[[0, 2, 3, 6, 7, 11, 12, 14]])
    assert close(outputs(result.model, x), outputs(net, x))


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_a_pruned_tangle_is_the_original_with_zeroed_channels(ratio: float) -> None:
    """Independent of the module's own check: the kept filters are looked up in the original by value."""
    net = tangle()
    before = [p.clone() for p in net.state_dict().values()]
    x = torch.randn(1, 3, 8, 8)
    result = prune(net, x, Target(ratio=ratio), round_to=4)
    assert all(torch.equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))

    def kept(layer: str) -> list[int]:
        new = dict(result.model.named_modules())[layer].bias
        old = dict(net.named_modules())[layer].bias
        return [int((old == value).nonzero()[0]) for value in new]

    stem, side, merge = kept("stem.1"), kept("side.1"), kept("merge.1")
    assert kept("body.1") == stem and kept("body.4") == stem
    masked = tangle()
    with torch.no_grad():
        gone = [c for c in range(16) if c not in stem]
        for part in (masked.stem[1], masked.body[1], masked.body[4]):
            part.weight[gone] = 0
            part.bias[gone] = 0
        columns = [*gone, *(16 + c for c in range(24) if c not in side)]
        masked.merge[0].weight[:, columns] = 0
        masked.heads[1].weight[:, columns] = 0
        masked.heads[0].weight[:, [c for c in range(32) if c not in merge]] = 0
    assert close(outputs(result.model, x), outputs(masked, x))
    assert len(stem) < 16 and len(side) < 24 and len(merge) < 32
    assert result.exactness < 1e-5


def test_the_detector_keeps_its_heads_and_shrinks() -> None:
    net = detector()
    result = prune(net, picture(), Target(ratio=0.5))
    logits, boxes = outputs(result.model, picture())
    assert logits.shape == (1, 84, 3) and boxes.shape == (1, 84, 4)
    for name in ("out.0", "out.1", "out.2"):
        layer = next(d for d in result.layers if d.layer == name)
        assert (layer.channels_after, layer.reason) == (7, "output layer")
        assert layer.inputs_after == 16
    assert result.left_alone == {} and result.untraced == ()
    for layer in result.layers:
        if layer.reason != "output layer":
            assert layer.channels_after % 8 == 0 and 0.4 <= layer.ratio <= 0.6
    laterals = {d.channels_after for d in result.layers if d.layer.startswith("lateral")}
    assert laterals == {16}  # added to each other
    assert result.after.parameters < 0.35 * result.before.parameters
    assert result.after.parameters == sum(p.numel() for p in result.model.parameters())
    assert result.exactness < 1e-4
    # It trains on: gradients reach every weight of the smaller net.
    result.model.train()
    sum(t.square().mean() for t in result.model(picture())).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in result.model.parameters())


@pytest.mark.parametrize("frames", [1, 3])
def test_the_encoder_prunes_its_backbone_and_leaves_what_is_tied_to_tokens(frames: int) -> None:
    torch.manual_seed(1)
    shape = Shape(64, 32, frames, (16, 24, 32), (1, 2, 2), 32, 2, 4, 1, 64)
    model = Encoder(shape).eval()
    inputs = (torch.randint(0, 256, (1, frames, 32, 64, 3), dtype=torch.uint8), torch.rand(1, frames))

    def everything(encoder: Encoder, pixels: Tensor, ages: Tensor) -> Any:
        tokens = encoder.tokens(pixels, ages)
        return encoder.memory(tokens), encoder.found(tokens)

    result = prune(model, inputs, Target(ratio=0.4), forward=everything)
    assert result.untraced == ()
    shapes = [t.shape for t in outputs(result.model, *inputs)]
    assert shapes == [t.shape for t in outputs(model, *inputs)]
    assert result.model.found(result.model.tokens(*inputs)).shape == (1, 8, 2, 4)
    assert result.model.norm.normalized_shape == (32,)
    by_name = {d.layer: d for d in result.layers}
    assert by_name["keys_values.0"].reason == "output layer" and by_name["finder"].reason == "output layer"
    assert by_name["now.0"].channels_after < 16 and by_name["age.0"].channels_after < 32
    assert result.after.macs < 0.8 * result.before.macs
    # Without the head for training in the outputs, it is named as unseen.
    assert prune(model, inputs, Target(ratio=0.4)).untraced == ("finder",)


def test_the_decoders_hidden_layer_can_go_too() -> None:
    torch.manual_seed(1)
    model = Vlm(Shape(64, 32, 1, (8, 8, 16), (1, 1, 1), 16, 1, 2, 1, 64), 20, dropout=0.0).eval()
    inputs = (torch.zeros(1, 1, 32, 64, 3), torch.zeros(1, 1), torch.randint(0, 20, (1, 5)))
    result = prune(model, inputs, Target(ratio=0.4), protect=["encoder"])
    hidden = next(d for d in result.layers if d.layer == "decoder.layers.0.feed.0")
    assert hidden.channels_after == 40
    assert outputs(result.model, *inputs)[0].shape == (1, 5, 20)


class Shuffled(nn.Module):
    """Channels become pictures: no channel of ``a`` can go without another one of the same picture."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 1)
        self.b = nn.Conv2d(8, 16, 1)
        self.c = nn.Conv2d(16, 16, 1)
        self.d = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x)).reshape(-1, 8, *x.shape[2:])
        return self.d(torch.relu(self.c(torch.relu(self.b(y)))))


def test_channels_that_cannot_be_followed_are_left_alone_with_the_reason() -> None:
    torch.manual_seed(1)
    result = prune(Shuffled().eval(), torch.randn(1, 3, 4, 4), Target(ratio=0.5))
    assert list(result.left_alone) == ["a"] and "when pruned" in result.left_alone["a"]
    assert [d.channels_after for d in result.layers] == [16, 8, 8, 4]
    assert result.layers[0].reason.startswith("left alone")


@pytest.mark.parametrize("unit", ["parameters", "macs"])
@pytest.mark.parametrize("steered", [False, True])
def test_a_target_is_met_and_not_missed_by_much(unit: str, steered: bool) -> None:
    net, x = tangle(), torch.randn(1, 3, 8, 8)
    whole = cost(net, x)
    known = flat_sensitivities(net) if steered else None
    for share in (0.9, 0.7, 0.45):
        result = prune(net, x, Target(**{unit: share * getattr(whole, unit)}), sensitivities=known, round_to=2)
        reached = getattr(result.after, unit) / getattr(whole, unit)
        assert share - 0.12 < reached <= share
        assert cost(result.model, x) == result.after


@pytest.mark.parametrize("steered", [False, True])
def test_the_arithmetic_of_costs_is_that_of_the_real_net(steered: bool) -> None:
    """Asked for exactly the size that the net then had, the same net comes out again, weight for weight."""
    net = detector()
    known = flat_sensitivities(net) if steered else None
    first = prune(net, picture(), Target(parameters=200_000), sensitivities=known)
    assert 180_000 < first.after.parameters <= 200_000
    again = prune(net, picture(), Target(parameters=first.after.parameters), sensitivities=known)
    assert architecture(again.model) == architecture(first.model)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), first.model.parameters(), strict=True))


def flat_sensitivities(net: nn.Module, **factors: float) -> dict[str, LayerSensitivity]:
    """Every channel alike, but for layers whose names begin with a key of ``factors``."""
    found = {}
    for name, module in net.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            factor = math.prod(f for key, f in factors.items() if name.startswith(key))
            channels = torch.full((module.weight.shape[0],), factor, dtype=torch.float64)
            found[name] = LayerSensitivity(name, float(channels.sum()), channels, 1.0, "fisher")
    return found


def twins() -> nn.Sequential:
    torch.manual_seed(5)
    layers = [nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 4, 1)).eval()


def test_less_sensitive_layers_give_more_down_to_their_floor() -> None:
    x = torch.randn(1, 3, 8, 8)
    known = flat_sensitivities(twins(), **{"2": 100.0})
    result = prune(twins(), x, Target(ratio=0.5), sensitivities=known)
    assert [d.channels_after for d in result.layers] == [8, 32, 8, 4]
    assert [d.sensitivity for d in result.layers] == [32.0, 3200.0, 32.0, 4.0]
    higher_floor = prune(twins(), x, Target(ratio=0.4), sensitivities=known, floor=0.5)
    assert min(d.channels_after for d in higher_floor.layers[:3]) == 16


def test_sensitivity_chooses_the_channels_if_asked() -> None:
    net, x = twins(), torch.randn(1, 3, 8, 8)
    known = flat_sensitivities(net)
    for layer in ("0", "2", "4"):
        known[layer].per_channel[:] = torch.arange(32, 0, -1)  # the last ones matter least
    result = prune(net, x, Target(ratio=0.5), importance="sensitivity", sensitivities=known)
    assert torch.equal(result.model[0].weight, net[0].weight[:16])
    by_norm = prune(net, x, Target(ratio=0.5))
    assert not torch.equal(by_norm.model[0].weight, net[0].weight[:16])


def test_l1_means_the_filters_as_an_engine_runs_them() -> None:
    """A tiny filter behind a great normalisation is a great filter."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 2, 1)).eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[3].weight.fill_(0.01)
        net[0].weight[:8] = 0.01
        net[1].weight[:8] = 500.0
    result = prune(net, torch.randn(1, 3, 4, 4), Target(ratio=0.5))
    assert bool((result.model[1].weight == 500.0).all())


def profile(**operators: Operator) -> HardwareProfile:
    return HardwareProfile(
        schema_version=1,
        name="test",
        version="1",
        host="x",
        source="x",
        estimate=True,
        caches=Caches(l1_kib=32, l2_kib=256),
        memory_gb_per_s=10,
        cache_gb_per_s=50,
        peak_gmacs_per_s=10,
        operators=operators,
    )


FAST = Operator(efficiency=0.5, source="x")


def test_a_profile_takes_channels_where_time_is_saved() -> None:
    """A layer that takes the same time whatever its width keeps it; the other one gives."""
    flat = Operator(
        channels_in=(1, 512), channels_out=(1, 512), positions=(1, 4096), microseconds=(50.0,) * 8, source="x"
    )
    # The 1x1 layers have the most work, and the flattest time.
    widths = ((3, 512, 1), (512, 512, 1), (512, 16, 1), (16, 32, 3), (32, 32, 3), (32, 4, 1))
    parts = [part for a, b, k in widths for part in (nn.Conv2d(a, b, k, padding=k // 2), nn.ReLU())]
    net = nn.Sequential(*parts[:-1]).eval()
    target = profile(conv1x1=flat, conv3x3=FAST)
    x = torch.randn(1, 3, 16, 16)
    whole = predict_ms(net, target, x)
    result = prune(net, x, Target(milliseconds=0.6 * whole), profile=target)
    counts = [d.channels_after for d in result.layers]
    assert counts[:2] == [512, 512] and sum(counts[2:5]) < 80
    assert result.before.milliseconds == pytest.approx(whole)
    assert result.after.milliseconds <= 0.6 * whole
    assert result.after.milliseconds == pytest.approx(predict_ms(result.model, target, x))
    # The profile steers whatever the target is counted in.
    counted = prune(net, x, Target(ratio=0.03), profile=target)
    assert [d.channels_after for d in counted.layers][:2] == [512, 512] and counted.removed_share >= 0.03
    with pytest.raises(ConfigError, match=r"has no operator 'conv3x3', which layer '6'"):
        prune(net, x, Target(milliseconds=0.6 * whole), profile=profile(conv1x1=flat))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": Target(parameters=10)}, "cannot be reached: at least"),
        ({"target": Target(ratio=0.9)}, "cannot be reached: at most 0.75"),
        ({"target": Target(ratio=0.9), "sensitivities": "flat"}, "cannot be reached: at most 0.75"),
        ({"target": Target(milliseconds=1)}, "needs a hardware profile"),
        ({"protect": ["4", "nothing"]}, "protect: there is no such layer .got 'nothing'"),
        ({"protect": ["0", "2", "4"]}, "no channel may go"),
        ({"importance": "sensitivity"}, "needs sensitivities"),
        ({"importance": "random"}, "must be l1 or sensitivity"),
        ({"sensitivities": {}}, "sensitivities: 4: is missing"),
        ({"floor": 1.0}, "floor"),
        ({"round_to": 0}, "round_to"),
    ],
)
def test_bad_requests_for_pruning_are_refused(arguments: dict[str, Any], words: str) -> None:
    net = twins()
    if arguments.get("sensitivities") == "flat":
        arguments = {**arguments, "sensitivities": flat_sensitivities(net)}
    with pytest.raises(ConfigError, match=words):
        prune(net, torch.randn(1, 3, 8, 8), **{"target": Target(ratio=0.5), **arguments})


@given(
    values=st.dictionaries(
        st.sampled_from(["ratio", "parameters", "macs", "milliseconds"]),
        st.sampled_from([0.0, -1.0, 0.5, 1.0, 2.0, math.inf, math.nan]),
    )
)
def test_a_target_is_one_number_in_range(values: dict[str, float]) -> None:
    (unit, value), *more = [*values.items(), ("", 0.0)]
    good = len(more) == 1 and 0 < value < (1 if unit == "ratio" else math.inf)
    if good:
        assert (Target(**values).unit, Target(**values).value) == (unit, value)
    else:
        with pytest.raises(ConfigError):
            Target(**values)


def test_every_layer_and_the_model_are_logged(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log.jsonl", {"seed": 1})
    net = tangle()
    accuracy = {id(net): 0.9}
    result = prune(
        net,
        torch.randn(1, 3, 8, 8),
        Target(ratio=0.5),
        sensitivities=flat_sensitivities(net),
        log=log,
        evaluate=lambda m: accuracy.get(id(m), 0.7),
        subject="tangle",
    )
    lines = read_decisions(log.path)
    layers = [line for line in lines if line.kind == "prune.layer"]
    assert [line.subject for line in layers] == [d.layer for d in result.layers] and len(layers) == 7
    facts = layers[0].facts
    assert (facts["channels_before"], facts["channels_after"]) == (16, result.layers[0].channels_after)
    assert facts["ratio"] == 1 - facts["channels_after"] / 16 and facts["sensitivity"] == 16.0
    whole = lines[-1]
    assert (whole.kind, whole.subject) == ("prune.model", "tangle")
    assert whole.facts["before"]["parameters"] == sum(p.numel() for p in net.parameters())
    assert whole.facts["after"]["macs"] == result.after.macs < whole.facts["before"]["macs"]
    assert (whole.facts["accuracy_before"], whole.facts["accuracy_after"]) == (0.9, 0.7)
    assert whole.facts["target"] == {"ratio": 0.5}


def test_modes_and_frozen_weights_are_those_of_the_original() -> None:
    net = twins()
    net.train()
    net[2].eval()
    net[0].weight.requires_grad_(False)
    result = prune(net, torch.randn(1, 3, 8, 8), Target(ratio=0.5))
    assert result.model.training and not result.model[2].training and net.training
    assert not result.model[0].weight.requires_grad and result.model[0].bias.requires_grad


def test_weights_that_are_not_finite_are_named() -> None:
    """V3."""
    net = twins()
    with torch.no_grad():
        net[2].weight[0, 0] = math.nan
    with pytest.raises(ConfigError, match=r"not finite: 2\.weight"):
        prune(net, torch.randn(1, 3, 8, 8), Target(ratio=0.5))


def test_masked_weights_are_made_plain_before_pruning() -> None:
    net = twins()
    apply_2_4(net, ["2"])
    with pytest.raises(ConfigError, match=r"model: 2: carries a parametrisation"):
        prune(net, torch.randn(1, 3, 8, 8), Target(ratio=0.5))
    plain = plain_weights(net)
    assert torch.equal(plain[2].weight, net[2].weight) and set(plain.state_dict()) == set(twins().state_dict())
    assert follows_2_4(plain[2].weight)
    assert prune(plain, torch.randn(1, 3, 8, 8), Target(ratio=0.5)).model[2].weight.shape == (16, 16, 1, 1)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pruned() -> PruneResult:
    return prune(detector(), picture(), Target(ratio=0.5))


def test_a_pruned_net_comes_back_bit_for_bit(pruned: PruneResult, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save_pruned(path, pruned.model, {"classes": 3})
    loaded, meta = load_pruned(path, DetectorNet(3, replace(STUDENT, width=32)))
    assert meta == {"classes": 3}
    for a, b in zip(outputs(loaded, picture()), outputs(pruned.model, picture()), strict=True):
        assert torch.equal(a, b)
    assert architecture(loaded) == architecture(pruned.model)
    assert layer_shapes(loaded, picture()) == layer_shapes(pruned.model, picture())
    loaded.train()
    loaded(picture())[0].sum().backward()


def test_all_kinds_of_layers_are_rebuilt() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 2, bias=False))
    wide = nn.Sequential(nn.Linear(5, 9), nn.LayerNorm(9), nn.BatchNorm1d(9), nn.Linear(9, 3, bias=False))
    rebuild(wide, architecture(net))
    wide.load_state_dict(net.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(wide.eval()(x), net.eval()(x))


def change(state: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    first = "stem.0.weight"
    if how == "renamed":
        state["stem.weight"] = state.pop(first)
    elif how == "missing":
        del state[first]
    elif how == "extra":
        state["stem.9.weight"] = torch.zeros(1)
    elif how == "shape":
        state[first] = state[first][:-1]
    elif how == "type":
        state[first] = state[first].double()
    elif how == "nan":
        state[first] = state[first] * math.nan
    return state


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("renamed", r"missing tensor: stem\.0\.weight; unknown tensor: stem\.weight"),
        ("missing", r"missing tensor: stem\.0\.weight"),
        ("extra", r"unknown tensor: stem\.9\.weight"),
        ("shape", r"wrong tensor: stem\.0\.weight \(7, 3, 3, 3\)"),
        ("type", r"wrong tensor: stem\.0\.weight .*float64"),
        ("nan", r"not finite: stem\.0\.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    pruned: PruneResult, tmp_path: Path, how: str, words: str
) -> None:
    """V3: renamed, missing, extra, of another shape or type, not finite."""
    from triptych_forge.common import save_checkpoint

    path = tmp_path / "small.safetensors"
    state = change(dict(pruned.model.state_dict()), how)
    save_checkpoint(path, {"model": state}, {"architecture": architecture(pruned.model)})
    with pytest.raises(ConfigError, match=words) as caught:
        load_pruned(path, DetectorNet(3, replace(STUDENT, width=32)))
    assert str(path) in str(caught.value)


def test_a_net_that_is_not_finite_is_not_saved(pruned: PruneResult, tmp_path: Path) -> None:
    """V3."""
    loaded = rebuild(DetectorNet(3, replace(STUDENT, width=32)), architecture(pruned.model))
    with torch.no_grad():
        loaded.stem[0].weight[0] = math.inf
    with pytest.raises(ConfigError, match=r"not finite: stem\.0\.weight"):
        save_pruned(tmp_path / "x.safetensors", loaded)
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda a: a["layers"].pop("stem.0"), r"missing layer: stem\.0"),
        (lambda a: a["layers"].update(new={"in_features": 1, "out_features": 1}), "unknown layer: new"),
        (lambda a: a["layers"]["stem.0"].update(out_channels=0), r"stem\.0: must be positive whole numbers"),
        (lambda a: a["layers"]["stem.0"].update(out_channels=2.5), r"stem\.0: must be positive whole numbers"),
        (lambda a: a["layers"]["stem.0"].pop("groups"), r"stem\.0: must give in_channels"),
        (lambda a: a["layers"]["stem.0"].update(groups=2), "multiples of groups"),
        (lambda a: a.update(format=2), "no description of widths"),
    ],
)
def test_widths_that_do_not_fit_are_refused_and_change_nothing(pruned: PruneResult, edit: Any, words: str) -> None:
    """V3, for the widths."""
    widths = copy.deepcopy(architecture(pruned.model))
    edit(widths)
    fresh = DetectorNet(3, replace(STUDENT, width=32))
    before = architecture(fresh)
    with pytest.raises(ConfigError, match=words):
        rebuild(fresh, widths)
    assert architecture(fresh) == before


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", None])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pruned(path, DetectorNet(3, replace(STUDENT, width=32)))


# --- 2:4 --------------------------------------------------------------------------------------------------------------


def brute_force_mask(four: np.ndarray) -> float:
    """The greatest magnitude that two of four can keep."""
    return max(sum(abs(four[i]) for i in two) for two in itertools.combinations(range(4), 2))


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-9, 9, width=32), min_size=8, max_size=8), conv=st.booleans())
def test_the_two_greatest_of_each_four_inputs_stay(values: list[float], conv: bool) -> None:
    weight = torch.tensor(values, dtype=torch.float32).reshape(1, 8)
    if conv:
        # The fours run along the input channels, at each place of the kernel alone.
        weight = torch.stack([weight, weight.flip(1)], -1)[:, :, None, :]
    kept = weight * mask_2_4(weight)
    assert follows_2_4(kept)
    for place in itertools.product(*(range(n) for n in weight.shape[2:])):
        for group in range(2):
            four = weight[(0, slice(4 * group, 4 * group + 4), *place)].numpy()
            left = kept[(0, slice(4 * group, 4 * group + 4), *place)].numpy()
            assert np.abs(left).sum() == pytest.approx(brute_force_mask(four), rel=1e-6)
    assert float(mask_2_4(weight).sum()) == weight.numel() / 2


def small_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def test_masks_hold_while_training_goes_on() -> None:
    net = small_net()
    assert apply_2_4(net) == ("2", "7") == eligible_2_4(small_net())
    zeros = [net[i].weight == 0 for i in (2, 7)]
    start = net[2].weight.detach().clone()
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        net(torch.randn(4, 3, 5, 5)).square().mean().backward()
        optimiser.step()
    check_2_4(net, ["2", "7"])
    for index, were in zip((2, 7), zeros, strict=True):
        assert torch.equal(net[index].weight == 0, were)
    assert not torch.equal(net[2].weight, start)
    x = torch.randn(1, 3, 5, 5)
    before = net.eval()(x)
    copied = copy.deepcopy(net)
    assert bake_2_4(copied) == ("2", "7")
    assert torch.equal(net(x), before)  # a copy's weights are its own business
    assert bake_2_4(net) == ("2", "7")
    assert torch.equal(net(x), before) and set(net.state_dict()) == set(small_net().state_dict())
    check_2_4(net, ["2", "7"])
    with torch.no_grad():
        net[7].weight[0, :3] = 1.0
    with pytest.raises(ConfigError, match="not 2:4 sparse: 7"):
        check_2_4(net, ["2", "7"])


def export(model: nn.Module, inputs: tuple[Any, ...], path: Path) -> None:
    import warnings

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), inputs, str(path), opset_version=18, dynamo=False, input_names=["a", "b"][: len(inputs)]
        )


def test_the_pattern_is_checked_in_the_exported_graph(tmp_path: Path) -> None:
    net = small_net().eval()
    names = apply_2_4(net)
    bake_2_4(net)
    export(net, (torch.randn(1, 3, 5, 5),), tmp_path / "sparse.onnx")
    assert len(check_2_4_onnx(tmp_path / "sparse.onnx", len(names))) == 2
    export(small_net(), (torch.randn(1, 3, 5, 5),), tmp_path / "dense.onnx")
    with pytest.raises(ConfigError, match="only 0 of 2 weights are 2:4 sparse"):
        check_2_4_onnx(tmp_path / "dense.onnx", len(names))
    (tmp_path / "no.onnx").write_bytes(b"no")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_2_4_onnx(tmp_path / "no.onnx", 1)


def saved(path: Path, nodes: list[Any], constants: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "free")],
        [helper.make_empty_tensor_value_info(nodes[-1].output[0])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path))
    return path


def test_every_kind_of_weight_is_looked_at_along_its_inputs(tmp_path: Path) -> None:
    rows = np.tile(np.array([[1.0, 0.0, 0.0, 2.0]], np.float32), (4, 1))  # 2:4 along the rows, not along the columns
    constants = {"r": rows, "c": rows.T.copy(), "conv": rows.reshape(4, 4, 1, 1), "three": rows.reshape(1, 4, 4)}
    nodes = [
        helper.make_node("MatMul", ["x", "c"], ["1"]),
        helper.make_node("MatMul", ["1", "r"], ["2"]),
        helper.make_node("MatMul", ["2", "c"], ["3"]),  # shared weights count once
        helper.make_node("MatMul", ["3", "free"], ["4"]),  # no weight
        helper.make_node("Gemm", ["4", "transposed"], ["5"], transB=1),
        helper.make_node("Conv", ["5", "conv"], ["6"]),
        helper.make_node("MatMul", ["6", "three"], ["7"]),
        helper.make_node("Gemm", ["7", "thin"], ["8"]),
        helper.make_node("Relu", ["8"], ["9"]),
        helper.make_node("MatMul", ["9", "transposed"], ["10"]),  # the same weights the other way round
    ]
    constants |= {"transposed": rows.copy(), "thin": np.zeros((3, 4), np.float32)}
    found = survey_2_4_onnx(saved(tmp_path / "m.onnx", nodes, constants))
    assert [(w.name, w.operator, w.follows) for w in found] == [
        ("c", "MatMul", True), ("r", "MatMul", False), ("transposed", "Gemm", True), ("conv", "Conv", True),
        ("three", "MatMul", False), ("thin", "Gemm", False),
        ("transposed", "MatMul", False),
    ]  # fmt: skip
    assert found[0].zeros == 0.5 and found[0].shape == (4, 4) and found[-2].zeros == 1.0
    assert check_2_4_onnx(tmp_path / "m.onnx", 3) == ("c", "transposed", "conv")


@pytest.mark.parametrize(
    ("zero", "more", "follows"),
    [
        (None, {}, True),
        (np.int8(0), {}, True),
        (np.int8(1), {}, False),
        (np.zeros(4, np.int8), {"axis": 0}, True),
        (np.array([0, 0, 0, 1], np.int8), {"axis": 0}, False),
        (np.array([0, 7, 0, 0], np.int8), {"axis": 0}, True),
        (np.array([0, 7, 0, 0], np.int8), {"axis": 1}, False),
        (np.zeros((4, 2, 1, 1), np.int8), {"axis": 1}, True),
        (np.ones((4, 2, 1, 1), np.int8), {"axis": 1}, False),
        ("free", {}, False),
    ],
)
def test_integers_that_stand_for_zero_are_zeros(zero: Any, more: dict[str, int], follows: bool, tmp_path: Path) -> None:
    rows = np.tile(np.array([[3, 0, 0, -2]], np.int8), (4, 1))
    if isinstance(zero, np.ndarray) and zero.ndim == 1 and zero[1] == 7:
        rows[1, 1:3] = 7
    constants = {"w": rows.reshape(4, 4, 1, 1)}
    constants["s"] = np.ones(4 if more else (), np.float32)
    names = ["w", "s"]
    if zero is not None:
        names.append(zero if isinstance(zero, str) else "z")
        constants |= {} if isinstance(zero, str) else {"z": np.asarray(zero)}
    nodes = [
        helper.make_node("DequantizeLinear", names, ["d"], **more),
        helper.make_node("Conv", ["x", "d"], ["y"]),
    ]
    (found,) = survey_2_4_onnx(saved(tmp_path / "q.onnx", nodes, constants))
    assert found.name == "w" and found.follows is follows


def test_sparsity_on_the_command_line(tmp_path: Path) -> None:
    net = small_net().eval()
    apply_2_4(net)
    bake_2_4(net)
    model = tmp_path / "sparse.onnx"
    export(net, (torch.randn(1, 3, 5, 5),), model)
    asked = lambda *more: CliRunner().invoke(app, ["sparsity", *map(str, more)])  # noqa: E731
    plain, enough, too_few = asked(model), asked(model, "--at-least", 2), asked(model, "--at-least", 3)
    assert [r.exit_code for r in (plain, enough, too_few)] == [0, 0, 1]
    assert "2 of 4 weights are 2:4 sparse." in plain.output and "3 must be" in too_few.output
    assert enough.output.count("yes") == 2
    nothing = saved(tmp_path / "none.onnx", [helper.make_node("Relu", ["x"], ["y"])], {})
    for path, words in ((nothing, "holds no weights"), (tmp_path / "missing.onnx", "cannot be read")):
        refused = asked(path)
        assert isinstance(refused.exception, ConfigError) and words in str(refused.exception)


@pytest.mark.parametrize(
    ("layers", "words"),
    [(["0"], "0: the input axis"), (["1"], "1: the input axis"), (["2", "x"], "x: there is no such layer")],
)
def test_layers_that_cannot_be_2_4_are_named(layers: list[str], words: str) -> None:
    net = small_net()
    with pytest.raises(ConfigError, match=words):
        apply_2_4(net, layers)
    assert set(net.state_dict()) == set(small_net().state_dict())
    apply_2_4(net, ["2"])
    with pytest.raises(ConfigError, match="masked already"):
        apply_2_4(net, ["2"])


# --- alignment --------------------------------------------------------------------------------------------------------


def alignment() -> SharedSparseAlignment:
    torch.manual_seed(2)
    return SharedSparseAlignment(("image", "text"), width=12, shared=6, keep=3)


def features(seed: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "image": torch.randn(2, 5, 12, generator=generator) * 40 + 3,
        "text": torch.randn(2, 7, 12, generator=generator),
    }


def test_both_modalities_go_through_the_same_sparse_weights() -> None:
    layer = alignment()
    assert layer.sparsity == 0.0
    assert layer.harden() == pytest.approx(1 - 3 / 12)
    out = layer(features())
    assert out["image"].shape == (2, 5, 6) and out["text"].shape == (2, 7, 6)
    weight = (layer.weight * layer.mask).detach().numpy()
    assert ((weight != 0).sum(1) == 3).all()
    for row, dense in zip(np.abs(weight), np.abs(layer.weight.detach().numpy())):
        assert set(np.flatnonzero(row)) == set(np.argsort(dense)[-3:])
    for name, value in features().items():
        x = value.numpy().astype(np.float64)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        assert np.allclose(out[name].detach().numpy(), x @ weight.T, atol=1e-5)


def test_gradients_reach_what_the_mask_keeps_from_both_modalities() -> None:
    layer = alignment()
    layer.harden()
    for name in ("image", "text"):
        layer.zero_grad()
        layer.align(name, features()[name]).square().mean().backward()
        assert bool((layer.weight.grad[layer.mask == 0] == 0).all())
        assert bool((layer.weight.grad[layer.mask == 1] != 0).all())
        assert layer.norms[name].weight.grad is not None


def test_the_penalty_is_the_sparse_group_lasso_and_empties_outputs() -> None:
    layer = alignment()
    weight = layer.weight.detach().numpy().astype(np.float64)
    wanted = 0.3 * np.abs(weight).sum() + 0.2 * np.sqrt(12) * np.linalg.norm(weight, axis=1).sum()
    assert float(layer.penalty(0.3, 0.2).detach()) == pytest.approx(wanted, rel=1e-5)
    # Only output 0 is wanted; the penalty takes the others down as wholes.
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        out = layer(features())
        loss = sum((out[n][..., 0] - v[..., 0].sign()).square().mean() for n, v in features().items())
        (loss + layer.penalty(0.0, 0.1)).backward()
        optimiser.step()
    norms = layer.weight.detach().norm(dim=1)
    assert float(norms[1:].max()) < 0.02 < 0.2 < float(norms[0])
    assert bool(torch.isfinite(layer.weight).all())


def test_the_mask_is_kept_by_training_saving_and_export(tmp_path: Path) -> None:
    import onnxruntime as ort

    layer = alignment()
    layer.harden()
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        sum(o.square().mean() for o in layer(features()).values()).backward()
        optimiser.step()
    assert layer.sparsity == pytest.approx(0.75)
    again = alignment()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.mask, layer.mask)

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = again

        def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
            out = self.layer({"image": image, "text": text})
            return out["image"], out["text"]

    values = features()
    export(Graph(), (values["image"], values["text"]), tmp_path / "a.onnx")
    session = ort.InferenceSession(str(tmp_path / "a.onnx"))
    got = session.run(None, {"a": values["image"].numpy(), "b": values["text"].numpy()})
    for result, wanted in zip(got, layer(values).values(), strict=True):
        assert np.allclose(result, wanted.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "arguments", [((), 4, 4, 2), (("a", "a"), 4, 4, 2), (("a",), 4, 4, 0), (("a",), 4, 4, 5), (("a",), 0, 4, 1)]
)
def test_an_alignment_out_of_range_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        SharedSparseAlignment(*arguments)
    with pytest.raises(ConfigError, match="unknown modality"):
        alignment().align("sound", torch.zeros(1, 12))
