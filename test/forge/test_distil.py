"""Distillation: losses against independent computations, features, sequences, a loop that can be interrupted."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("safetensors", reason="the forge extra is not installed")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych.language.grammar import Grammar  # noqa: E402
from triptych_forge.common import META, load_checkpoint  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet  # noqa: E402
from triptych_forge.distil import losses as L  # noqa: E402
from triptych_forge.distil import sequence as S  # noqa: E402
from triptych_forge.distil.loop import DEFAULTS, Options, digest, distil, learning_rate, repeated  # noqa: E402
from triptych_forge.vlm.model import Shape, Vlm  # noqa: E402
from triptych_forge.vlm.words import make_vocabulary  # noqa: E402

torch.set_num_threads(1)
SEEDS = st.integers(0, 2**32 - 1)
TEMPERATURES = st.floats(0.3, 20.0)
VOCABULARY = make_vocabulary()
SMALL = Shape(64, 32, 1, (8, 8, 8), (1, 1, 1), 16, 2, 2, 1, 16)
LARGE = Shape(96, 64, 2, (8, 8, 16), (1, 1, 1), 32, 3, 4, 1, 32)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, shape)


def softmax(z: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def kl(p: np.ndarray, q: np.ndarray, axis: int = -1) -> np.ndarray:
    return (p * np.log(p / q)).sum(axis)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(a) for a in arrays]


# Soft labels


@settings(max_examples=60, deadline=None)
@given(SEEDS, TEMPERATURES, st.floats(0.0, 1.0), st.booleans())
def test_the_loss_is_the_equation(seed: int, temperature: float, alpha: float, first_axis: bool) -> None:
    """α·CE + (1-α)·T²·KL(teacher ‖ student), the weighted mean over positions, along either axis."""
    student, teacher = normal(seed, 4, 3, 5), normal(seed + 1, 4, 3, 5)
    generator = np.random.default_rng(seed)
    targets, weights = generator.integers(0, 5, (4, 3)), generator.uniform(0, 2, (4, 3))
    weights[0, 0] = 0
    hard = -np.log(np.take_along_axis(softmax(student), targets[..., None], -1))[..., 0]
    soft = temperature**2 * kl(softmax(teacher / temperature), softmax(student / temperature))
    wanted = ((alpha * hard + (1 - alpha) * soft) * weights).sum() / weights.sum()
    s, t, y, w = tensors(student, teacher, targets, weights)
    if first_axis:
        s, t = s.movedim(-1, 1), t.movedim(-1, 1)
    got = L.kd_loss(s, t, y, alpha, temperature, 1 if first_axis else -1, w)
    assert got.item() == pytest.approx(wanted, rel=1e-9)
    spread = torch.nn.functional.one_hot(y, 5).double()
    spread = spread.movedim(-1, 1) if first_axis else spread
    same = L.kd_loss(s, t, spread, alpha, temperature, 1 if first_axis else -1, w)
    assert same.item() == pytest.approx(wanted, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(SEEDS, TEMPERATURES)
def test_the_divergence_goes_from_teacher_to_student(seed: int, temperature: float) -> None:
    student, teacher = normal(seed, 6, 7), normal(seed + 1, 6, 7)
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    got = L.softened_kl(*tensors(student, teacher), temperature).numpy()
    np.testing.assert_allclose(got, temperature**2 * kl(p, q), rtol=1e-7, atol=1e-10)
    assert not np.allclose(got, temperature**2 * kl(q, p), rtol=1e-4)
    assert (got >= 0).all()
    assert L.softened_kl(*tensors(teacher, teacher), temperature).abs().max() < 1e-12


@settings(max_examples=40, deadline=None)
@given(SEEDS, TEMPERATURES)
def test_the_gradient_is_t_times_the_difference_of_chances(seed: int, temperature: float) -> None:
    student, teacher = normal(seed, 5), normal(seed + 1, 5)
    s = torch.from_numpy(student).requires_grad_()
    t = torch.from_numpy(teacher).requires_grad_()
    L.softened_kl(s, t, temperature).backward()
    wanted = temperature * (softmax(student / temperature) - softmax(teacher / temperature))
    np.testing.assert_allclose(s.grad.numpy(), wanted, rtol=1e-6, atol=1e-9)
    assert t.grad is None


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_of_a_hot_softmax_does_not_depend_on_the_temperature(seed: int) -> None:
    """Without T² it would fall by 4 between T = 100 and T = 200; in the limit it is the difference of logits / C."""
    student, teacher = normal(seed, 5), normal(seed + 1, 5)
    found = []
    for temperature in (100.0, 200.0):
        s = torch.from_numpy(student).requires_grad_()
        L.softened_kl(s, torch.from_numpy(teacher), temperature).backward()
        found.append(s.grad.numpy())
    difference = student - teacher
    scale = np.abs(difference).max() / 5
    assert np.abs(found[0] - found[1]).max() < 0.03 * scale
    assert np.abs(found[1] - (difference - difference.mean()) / 5).max() < 0.03 * scale


def test_positions_of_no_weight_touch_nothing() -> None:
    student, teacher = tensors(normal(0, 4, 5), normal(1, 4, 5))
    student[2], teacher[3] = float("nan"), float("inf")
    targets = torch.tensor([1, 2, -7, 99])
    student.requires_grad_()
    got = L.kd_loss(student, teacher, targets, 0.5, 2.0, weights=torch.tensor([True, True, False, False]))
    alone = L.kd_loss(student[:2], teacher[:2], targets[:2], 0.5, 2.0)
    assert got.item() == pytest.approx(alone.item())
    got.backward()
    assert torch.isfinite(student.grad).all() and (student.grad[2:] == 0).all() and (student.grad[:2] != 0).all()
    nothing = L.kd_loss(student, teacher, targets, 0.5, 2.0, weights=torch.zeros(4))
    assert nothing.item() == 0
    nothing.backward()
    assert torch.isfinite(student.grad).all()


def test_a_class_the_teacher_rules_out_counts_nothing() -> None:
    student = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    teacher = torch.tensor([0.5, 1.0, -torch.inf])
    got = L.softened_kl(student, teacher, 1.0)
    p, q = softmax(np.array([0.5, 1.0])), softmax(np.array([1.0, 2.0, 3.0]))[:2]
    assert got.item() == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)
    got.backward()
    assert torch.isfinite(student.grad).all()


def test_half_precision_is_widened() -> None:
    student, teacher = (x.float() for x in tensors(normal(0, 64, 50), normal(1, 64, 50)))
    targets = torch.arange(64) % 50
    exact = L.kd_loss(student.bfloat16().float(), teacher.bfloat16().float(), targets, 0.3, 2.0)
    half = L.kd_loss(student.bfloat16(), teacher.bfloat16(), targets, 0.3, 2.0)
    assert half.dtype == torch.float32 and half.item() == pytest.approx(exact.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 1.01}, "alpha"),
        ({"alpha": -0.01}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"teacher_logits": torch.zeros(3, 4)}, "logits"),
        ({"targets": torch.tensor([0, 1, 5])}, "targets"),
        ({"targets": torch.tensor([0, -1, 2])}, "targets"),
        ({"targets": torch.tensor([0, 1])}, "targets"),
        ({"targets": torch.zeros(3, 4)}, "targets"),
        ({"weights": torch.ones(2)}, "weights"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "weights"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], named: str) -> None:
    good = {
        "student_logits": torch.zeros(3, 5),
        "teacher_logits": torch.zeros(3, 5),
        "targets": torch.tensor([0, 1, 4]),
        "alpha": 0.5,
        "temperature": 2.0,
    }
    L.kd_loss(**good)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=named):
        L.kd_loss(**{**good, **change})  # type: ignore[arg-type]


# Detectors


@settings(max_examples=50, deadline=None)
@given(SEEDS, TEMPERATURES, st.floats(0.0, 1.0))
def test_the_sigmoid_form_is_the_equation_per_class(seed: int, temperature: float, alpha: float) -> None:
    student, teacher = normal(seed, 6, 4), normal(seed + 1, 6, 4)
    generator = np.random.default_rng(seed)
    targets, weights = generator.uniform(0, 1, (6, 4)), generator.uniform(0, 1, (6, 1)) + 0.1
    p, q = sigmoid(teacher / temperature), sigmoid(student / temperature)
    no_p, no_q = sigmoid(-teacher / temperature), sigmoid(-student / temperature)
    soft = temperature**2 * (p * np.log(p / q) + no_p * np.log(no_p / no_q))
    hard = -(targets * np.log(sigmoid(student)) + (1 - targets) * np.log(sigmoid(-student)))
    wanted = ((alpha * hard + (1 - alpha) * soft) * weights).sum() / (weights.sum() * 4)
    s, t, y, w = tensors(student, teacher, targets, weights)
    np.testing.assert_allclose(L.bernoulli_kl(s, t, temperature).numpy(), soft, rtol=1e-6, atol=1e-9)
    assert L.bernoulli_kd_loss(s, t, y, alpha, temperature, w).item() == pytest.approx(wanted, rel=1e-7)
    two = [torch.stack([x, torch.zeros_like(x)], -1) for x in (s, t)]
    np.testing.assert_allclose(L.softened_kl(*two, temperature).numpy(), soft, rtol=1e-6, atol=1e-9)


def test_the_sigmoid_form_stays_finite_for_very_sure_nets() -> None:
    s = torch.tensor([300.0, -300.0, 300.0], requires_grad=True)
    t = torch.tensor([-300.0, 300.0, 300.0])
    got = L.bernoulli_kl(s, t, 1.0)
    assert got.tolist() == pytest.approx([300.0, 300.0, 0.0])
    got.sum().backward()
    assert s.grad.tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-6)


def brute_giou(a: np.ndarray, b: np.ndarray) -> float:
    """By counting unit cells of integer boxes."""
    grid = np.zeros((3, 40, 40), bool)
    for layer, box in zip(grid[:2], (a, b)):
        layer[box[1] : box[3], box[0] : box[2]] = True
    low, high = np.minimum(a[:2], b[:2]), np.maximum(a[2:], b[2:])
    hull = (high - low).prod()
    union = (grid[0] | grid[1]).sum()
    return (grid[0] & grid[1]).sum() / union - (hull - union) / hull


def integer_boxes(seed: int, count: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    low = generator.integers(0, 30, (count, 2))
    return np.concatenate([low, low + generator.integers(1, 10, (count, 2))], 1)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_boxes_follow_the_anchors_the_teacher_is_sure_of(seed: int) -> None:
    student, teacher = integer_boxes(seed, 9), integer_boxes(seed + 1, 9)
    confidence = np.random.default_rng(seed + 2).uniform(0, 1, 9)
    confidence[0], confidence[1] = 0.4, 0.399
    sure = confidence >= 0.4
    terms = {
        "giou": np.array([1 - brute_giou(a, b) for a, b in zip(student, teacher)]),
        "l1": np.array([np.abs(a - b).sum() / 2 / ((b[2] - b[0]) + (b[3] - b[1])) for a, b in zip(student, teacher)]),
    }
    s, t = tensors(student.astype(float), teacher.astype(float))
    for kind, each in terms.items():
        wanted = (each * confidence)[sure].sum() / confidence[sure].sum()
        got = L.box_distil_loss(s, t, torch.from_numpy(confidence), 0.4, kind)
        assert got.item() == pytest.approx(wanted, rel=1e-4), kind


def test_boxes_of_an_unsure_teacher_pull_nowhere() -> None:
    s = torch.tensor([[0.0, 0.0, 4.0, 4.0]], requires_grad=True)
    got = L.box_distil_loss(s, torch.tensor([[1.0, 1.0, 9.0, 9.0]]), torch.tensor([0.1]))
    assert got.item() == 0
    got.backward()
    assert (s.grad == 0).all()
    with pytest.raises(ConfigError, match="kind"):
        L.box_distil_loss(s, s, torch.tensor([0.1]), kind="ciou")


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.floats(0.5, 4.0))
def test_a_detector_learns_most_where_its_teacher_sees_something(seed: int, temperature: float) -> None:
    generator = np.random.default_rng(seed)
    student, teacher = generator.normal(-2, 2, (2, 5, 3)), generator.normal(-2, 2, (2, 5, 3))
    teacher[0, 0, 0] = 2.0
    boxes = np.stack([integer_boxes(seed, 5), integer_boxes(seed + 1, 5)]).astype(float)
    p, q = sigmoid(teacher), sigmoid(student)
    best = p.max(-1)
    weight = np.maximum(p, 0.75 * q**2)
    each = L.bernoulli_kl(*tensors(student, teacher), temperature).numpy()
    wanted = (weight * each).sum() / max(1.0, best[best >= 0.3].sum())
    s, t, b = tensors(student, teacher, boxes)
    got = L.detector_kd_loss((s, b + 1), (t, b), temperature)
    assert got.classes.item() == pytest.approx(wanted, rel=1e-6)
    assert got.confident == int((best >= 0.3).sum())
    same = L.detector_kd_loss((t, b), (t, b), temperature)
    assert abs(same.classes.item()) < 1e-9 and abs(same.boxes.item()) < 1e-5 < got.boxes.item()


def test_a_small_detector_learns_from_a_larger_one() -> None:
    """Logits and boxes of another width come nearer, on the pictures trained on, within a few steps."""
    torch.manual_seed(0)
    teacher, student = DetectorNet(3, replace(STUDENT, width=24)), DetectorNet(3, replace(STUDENT, width=8))
    images = torch.rand(2, 3, 64, 64) * 255
    with torch.no_grad():
        for layer in teacher.out:
            layer.weight.mul_(20)
            layer.bias[4:] = -1.0
        for _ in range(30):
            teacher(images)  # settles the normalisation

    parts: list[tuple[float, float]] = []

    def loss(mine: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...], _batch: object) -> torch.Tensor:
        terms = L.detector_kd_loss(mine, theirs, 2.0)
        assert terms.confident > 0
        parts.append((terms.classes.item(), terms.boxes.item()))
        return terms.classes + terms.boxes

    distil(student, teacher, repeated([images]), loss, 25, 1e-2)
    assert parts[-1][0] < 0.75 * parts[0][0] and parts[-1][1] < 0.75 * parts[0][1]


# Features


def two_layers(inside: int, width: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width, 1)
    )


def test_what_is_captured_is_the_layers_output_and_hooks_are_taken_off() -> None:
    """Also where the next layer works in place."""
    net = two_layers(3, 4).eval()
    x = torch.randn(2, 3, 6, 6)
    with L.captured(net, ["1", "3"]) as seen:
        out = net(x)
    np.testing.assert_allclose(seen["1"].detach().numpy(), net[1](net[0](x)).detach().numpy())
    assert (seen["1"] < 0).any()
    assert torch.equal(seen["3"], out)
    seen["1"].square().sum().backward()
    assert net[0].weight.grad.abs().sum() > 0
    before = seen["1"]
    net(x + 1)
    assert seen["1"] is before and not any(m._forward_hooks for m in net.modules())


def test_a_layer_that_is_not_there_is_named_before_anything_runs() -> None:
    net = DetectorNet(2, replace(STUDENT, width=8))
    with (
        pytest.raises(ConfigError, match=r"stages\.1\.9.*stages\.1") as caught,
        L.captured(net, ["stem", "stages.1.9"]),
    ):
        pytest.fail("must not run")
    assert caught.value.field == "stages.1.9"
    assert not any(m._forward_hooks for m in net.modules())

    class Chatty(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "hello"

    net = nn.Sequential(Chatty())
    with pytest.raises(ConfigError, match="gives no tensor"), L.captured(net, ["0"]):
        net(torch.zeros(1))


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([2, 3, 4]))
def test_alignment_is_the_mean_squared_difference_after_projection(seed: int, dimensions: int) -> None:
    shape = {2: (3,), 3: (3, 5), 4: (3, 2, 4)}[dimensions]
    put = (lambda c: (shape[0], c, *shape[1:])) if dimensions == 4 else (lambda c: (*shape, c))
    mine, theirs = tensors(*(normal(seed + i, *put(c)).astype(np.float32) for i, c in enumerate((6, 4))))
    net = L.FeatureAlignment([L.LayerPair("a", "b", 0.5), L.LayerPair("c", "b")], {"a": mine, "c": mine}, {"b": theirs})
    got = net({"a": mine, "c": 2 * mine}, {"b": theirs})
    wanted = 0.0
    for projection, feature, weight in zip(net.projections, (mine, 2 * mine), (0.5, 1.0)):
        matrix = projection.weight.detach().numpy().reshape(4, 6)
        axes = (1, "bchw" if dimensions == 4 else None)
        there = np.einsum("oc,bchw->bohw", matrix, feature.numpy()) if axes[1] else feature.numpy() @ matrix.T
        wanted += weight * np.mean((theirs.numpy() - there) ** 2)
    assert got.item() == pytest.approx(wanted, rel=1e-4)


def test_a_coarser_map_is_resized_to_its_teachers() -> None:
    """A map linear along x stays linear: bilinear interpolation, apart from the border."""
    ramp = torch.arange(4.0)[None, None, None].expand(1, 1, 3, 4)
    fine = (torch.arange(8.0) / 2 - 0.25)[None, None, None].expand(1, 1, 6, 8)
    net = L.FeatureAlignment([L.LayerPair("a", "a")], {"a": ramp}, {"a": fine})
    nn.init.ones_(net.projections[0].weight)
    difference = net({"a": ramp}, {"a": fine}).item()
    # Only the outermost columns, where the first and last cell's value continues, are 0.25 away.
    assert difference == pytest.approx(2 * 0.25**2 / 8, rel=1e-5)


def test_the_projection_learns_and_the_teacher_does_not() -> None:
    torch.manual_seed(1)
    teacher, student = two_layers(3, 8, 1), two_layers(3, 5, 2)
    x = torch.randn(4, 3, 8, 8)
    pairs = [L.LayerPair("2", "2"), L.LayerPair("3", "3")]
    net = L.FeatureAlignment.between(student, teacher, pairs, lambda m: m(x), lambda m: m(x))
    assert student.training and teacher.training
    names = ["2", "3"]
    before = digest(teacher)
    projections = digest(net)
    outcome = distil(
        student,
        teacher,
        repeated([x]),
        lambda mine, theirs, _: net(mine.features, theirs.features),
        60,
        2e-2,
        companion=net,
        run_student=L.observed(names, lambda m, b: m(b)),
        run_teacher=L.observed(names, lambda m, b: m(b)),
    )
    assert outcome.losses[-1] < 0.6 * outcome.losses[0]
    assert digest(teacher) == before and digest(net) != projections
    assert teacher.training and all(p.grad is None for p in teacher.parameters())
    twice = []
    for state in (1, 2):
        torch.manual_seed(state)
        twice.append(L.FeatureAlignment.between(student, teacher, pairs, lambda m: m(x), lambda m: m(x)))
    assert digest(twice[0]) == digest(twice[1])


@pytest.mark.parametrize(
    ("pairs", "mine", "theirs", "named"),
    [
        ([], {}, {}, "at least one"),
        ([L.LayerPair("a", "b"), L.LayerPair("a", "c")], {}, {}, "twice"),
        ([L.LayerPair("a", "b")], {}, {"b": (1, 2)}, "a: gave nothing"),
        ([L.LayerPair("a", "b")], {"a": (1, 2)}, {}, "b: gave nothing"),
        ([L.LayerPair("a", "b")], {"a": (1, 2, 4, 4)}, {"b": (1, 16, 2)}, "a -> b: no projection joins"),
        ([L.LayerPair("a", "b")], {"a": (1, 2, 4, 4, 4)}, {"b": (1, 2, 4, 4, 4)}, "a -> b: no projection joins"),
        ([L.LayerPair("a", "b")], {"a": (1, 15, 8)}, {"b": (1, 16, 8)}, "a -> b: has unequal numbers of tokens"),
    ],
)
def test_layers_that_no_projection_joins_are_named_before_training(
    pairs: list[L.LayerPair], mine: dict[str, tuple[int, ...]], theirs: dict[str, tuple[int, ...]], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        L.FeatureAlignment(
            pairs, {k: torch.zeros(v) for k, v in mine.items()}, {k: torch.zeros(v) for k, v in theirs.items()}
        )


def test_a_feature_that_changed_its_width_is_named() -> None:
    net = L.FeatureAlignment([L.LayerPair("a", "b")], {"a": torch.zeros(1, 4, 2, 2)}, {"b": torch.zeros(1, 3, 2, 2)})
    with pytest.raises(ConfigError, match="a: does not fit its projection, which takes 4 channels"):
        net({"a": torch.zeros(1, 5, 2, 2)}, {"b": torch.zeros(1, 3, 2, 2)})
    with pytest.raises(ConfigError, match="a: gives"):
        net({"a": torch.zeros(1, 4, 2, 2)}, {"b": torch.zeros(1, 7, 2, 2)})


# Sequences


def clips(shape: Shape, count: int, seed: int = 0) -> S.Clips:
    g = torch.Generator().manual_seed(seed)
    frames = torch.randint(0, 256, (count, shape.frames, shape.height_px, shape.width_px, 3), generator=g)
    frames = (frames * torch.linspace(0, 1, count)[:, None, None, None, None]).long()  # from black to bright
    ages = torch.linspace(0.5, 0, shape.frames) if shape.frames > 1 else torch.zeros(1)
    return S.Clips(frames.to(torch.uint8), ages.expand(count, -1))


def vlm(shape: Shape, seed: int, sureness: float = 1.0) -> Vlm:
    torch.manual_seed(seed)
    model = Vlm(shape, len(VOCABULARY))
    with torch.no_grad():
        model.decoder.head.weight.mul_(sureness)
        for layer in model.decoder.layers:
            layer.out2.weight.mul_(sureness)  # the picture must matter
    return model.eval()


def test_rows_weigh_the_answers_tokens_only() -> None:
    rows = S.pad_rows([[7, 8], [7]], [[1, 2, 3], [4]], 0, [[1.0, 0.5, 0.25], [1.0]])
    assert rows.tokens.tolist() == [[7, 8, 1, 2, 3], [7, 4, 0, 0, 0]]
    assert rows.weights.tolist() == [[0, 1.0, 0.5, 0.25], [1.0, 0, 0, 0]]
    both = S.interleaved([rows, S.pad_rows([[9], [9]], [[5] * 5, [6]], 0)], 0)
    assert both.groups == 2
    assert both.tokens[:, :3].tolist() == [[7, 8, 1], [9, 5, 5], [7, 4, 0], [9, 6, 0]]
    assert both.tokens.shape == (4, 6) and both.weights.shape == (4, 5)
    assert both.weights.sum(1).tolist() == [1.75, 5.0, 1.0, 1.0]
    for bad in (([[1]], [[2], [3]]), ([[]], [[2]]), ([[1]], [[]])):
        with pytest.raises(ConfigError, match="rows"):
            S.pad_rows(*bad, 0)
    with pytest.raises(ConfigError, match="weights of row 0"):
        S.pad_rows([[1]], [[2]], 0, [[1.0, 1.0]])
    with pytest.raises(ConfigError, match="one per picture"):
        S.interleaved([both, both], 0)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.floats(0.0, 1.0), TEMPERATURES)
def test_padding_has_no_influence_and_each_token_its_weight(seed: int, alpha: float, temperature: float) -> None:
    rows = S.pad_rows([[7, 8], [7]], [[1, 2, 3], [4]], 0)
    student, teacher = normal(seed, 2, 4, 10), normal(seed + 1, 2, 4, 10)
    places = [(0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 4)]
    wanted = 0.0
    for row, at, token in places:
        q, p = softmax(student[row, at] / temperature), softmax(teacher[row, at] / temperature)
        wanted += alpha * -np.log(softmax(student[row, at])[token]) + (1 - alpha) * temperature**2 * kl(p, q)
    student[1, 1:], teacher[0, 0] = np.nan, np.inf
    got = S.sequence_kd_loss(*tensors(student, teacher), rows, alpha, temperature)
    assert got.item() == pytest.approx(wanted / 4, rel=1e-5)


def test_the_teachers_own_answers_are_what_its_engine_would_say() -> None:
    """Decoded token by token with a cache; the same as choosing the best allowed token along the whole answer."""
    model, grammar = vlm(LARGE, 3, 100.0), Grammar(VOCABULARY, 64)
    some = clips(LARGE, 3)
    prompts = [VOCABULARY.question(""), VOCABULARY.question("is it raining"), VOCABULARY.question("why")]
    rows = S.own_rows(model, some, grammar, prompts)
    assert model.training is False
    assert len({tuple(a) for a in S.greedy_answers(model, some, grammar, [prompts[0]] * 3)}) > 1
    answers = S.greedy_answers(model.train(), some, grammar, prompts)
    assert model.training
    model.eval()
    with torch.no_grad():
        logits = S.answer_logits(model, some, rows)
    for number, (prompt, answer) in enumerate(zip(prompts, answers)):
        assert grammar.parse(answer).done
        assert rows.tokens[number, len(prompt) : len(prompt) + len(answer)].tolist() == answer
        assert rows.weights[number].sum() == len(answer)
        state = grammar.start()
        for at, token in enumerate(answer):
            scores = logits[number, len(prompt) - 1 + at].numpy()
            if token not in grammar.advice:  # the advice is the median, not the best
                best = np.where(grammar.allowed(state), scores, -np.inf)
                assert best[token] == pytest.approx(best.max(), abs=1e-2)
            state = grammar.advance(state, token)
    with pytest.raises(ConfigError, match="one per picture"):
        S.greedy_answers(model, some, grammar, prompts[:2])
    with pytest.raises(ConfigError, match="decoder's 96"):
        S.greedy_answers(model, some, grammar, [[1] * 40] * 3)


def test_a_student_of_another_size_learns_to_say_what_its_teacher_says() -> None:
    """True answers and own ones in one batch, two rows per picture, other pictures for each model."""
    teacher, student = vlm(LARGE, 3, 20.0), vlm(SMALL, 4)
    grammar = Grammar(VOCABULARY, 64)
    theirs, mine = clips(LARGE, 4), clips(SMALL, 4)
    prompts = [VOCABULARY.question("")] * 4
    own = S.own_rows(teacher, theirs, grammar, prompts)
    words = ["road:rural", "weather:rain", "light:day", "advice:caution"]
    true = S.pad_rows(prompts, [[VOCABULARY.index[w] for w in words]] * 4, VOCABULARY.pad)
    batch = S.SequenceBatch(mine, theirs, S.interleaved([true, own], VOCABULARY.pad))
    logits = S.run_student(student, batch)
    assert logits.shape == (8, batch.rows.tokens.shape[1] - 1, len(VOCABULARY)) == S.run_teacher(teacher, batch).shape
    loss = S.sequence_loss(0.0, 2.0)
    outcome = distil(
        student, teacher, repeated([batch]), loss, 40, 1e-2, run_student=S.run_student, run_teacher=S.run_teacher
    )
    assert outcome.losses[-1] < 0.35 * outcome.losses[0]


# The loop


def pupil(seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def master() -> nn.Module:
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 3))


def inputs(first: int) -> object:
    """Batches that depend on their step only."""
    return (torch.randn(8, 4, generator=torch.Generator().manual_seed(step)) for step in itertools.count(first))


def soft(mine: torch.Tensor, theirs: torch.Tensor, _batch: object) -> torch.Tensor:
    return L.softened_kl(mine, theirs, 2.0).mean()


def companion() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(3, 3, bias=False)


OPTIONS = Options(warm_up_steps=3, weight_decay=0.01, average=0.9, save_every_steps=4)


def run(path: Path | None, student: nn.Module, beside: nn.Module, stop_after: int | None = None, **change: object):
    arguments = {"options": OPTIONS, "seed": 1, "facts": {"T": 2.0}, "companion": beside, "teacher": master()}
    arguments |= change
    teacher = arguments.pop("teacher")
    loss = arguments.pop("loss", lambda mine, theirs, batch: soft(beside(mine), theirs, batch))
    batches = arguments.pop("batches", inputs)
    steps, rate = arguments.pop("steps", 13), arguments.pop("rate", 1e-2)
    return distil(student, teacher, batches, loss, steps, rate, path, stop_after=stop_after, **arguments)


def test_an_interrupted_run_gives_the_very_same_student(tmp_path: Path) -> None:
    """Stopped twice, once between two checkpoints, with dropout, averaging and a projection; V3's file stays sound."""
    whole, whole_beside = pupil(), companion()
    wanted = run(tmp_path / "whole.safetensors", whole, whole_beside)

    class Cut(Exception):
        pass

    def broken(first: int) -> object:
        yield from itertools.islice(inputs(first), 6 - first)
        raise Cut

    path = tmp_path / "parts.safetensors"
    with pytest.raises(Cut):
        run(path, pupil(), companion(), batches=broken)
    assert load_checkpoint(path)[1]["step"] == 4
    run(path, pupil(), companion(), stop_after=10)
    student, beside = pupil(), companion()
    got = run(path, student, beside)
    assert got.resumed_at_step == 10 and len(got.losses) == 13
    assert got.losses == wanted.losses
    assert digest(student) == digest(whole) and digest(beside) == digest(whole_beside)
    again = pupil()
    done = run(path, again, companion())
    assert done.losses == wanted.losses and done.resumed_at_step == 13 and digest(again) == digest(whole)


def test_the_teacher_is_still_and_the_student_ends_ready(tmp_path: Path) -> None:
    teacher, student = master().train(), pupil()
    seen: list[tuple[bool, bool, bool]] = []
    before = digest(teacher)

    def loss(mine: torch.Tensor, theirs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        seen.append((student.training, teacher.training, theirs.requires_grad))
        return soft(mine, theirs, batch)

    steps: list[tuple[int, int]] = []
    state = torch.get_rng_state()
    distil(student, teacher, inputs, loss, 3, 1e-2, progress=lambda done, total: steps.append((done, total)))
    assert seen == [(True, False, False)] * 3
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert digest(teacher) == before and teacher.training and all(p.requires_grad for p in teacher.parameters())
    assert not student.training and all(p.grad is None for p in student.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_teacher_the_same_loop_trains_plainly() -> None:
    student = pupil()
    labels = torch.arange(8) % 3

    def loss(mine: torch.Tensor, theirs: None, _batch: object) -> torch.Tensor:
        assert theirs is None
        return torch.nn.functional.cross_entropy(mine, labels)

    x = next(iter(inputs(0)))
    outcome = distil(student, None, repeated([x]), loss, 60, 3e-2)
    assert outcome.losses[-1] < 0.7 * outcome.losses[0]


def test_one_step_is_one_step_of_adamw() -> None:
    """Against torch's optimiser by hand: rate of the schedule, clipped gradient, decay of matrices only."""
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 3))
    other = copy.deepcopy(student)
    x = torch.randn(5, 4)
    options = Options(warm_up_steps=2, weight_decay=0.5, clip_norm=0.01)

    def loss(mine: torch.Tensor, _theirs: object, _batch: object) -> torch.Tensor:
        return mine.square().mean()

    distil(student, None, repeated([x]), loss, 10, 0.1, options=options, stop_after=2)
    groups = [{"params": [other[0].weight], "weight_decay": 0.5}, {"params": [other[0].bias], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    for rate in (0.05, 0.1):
        optimiser.zero_grad()
        other(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
    for mine, wanted in zip(student.parameters(), other.parameters()):
        assert torch.equal(mine, wanted)
    assert learning_rate(0.1, 0, 10, options) == pytest.approx(0.05)
    assert learning_rate(0.1, 6, 10, options) == pytest.approx(0.1 * (0.02 + 0.98 * 0.5))
    assert learning_rate(0.1, 10, 10, options) == pytest.approx(0.002)


def test_averaged_weights_are_what_the_run_ends_with(tmp_path: Path) -> None:
    student = nn.Sequential(nn.Linear(4, 3))
    start = copy.deepcopy(student)
    kept: list[torch.Tensor] = []

    def loss(mine: torch.Tensor, _theirs: object, _batch: object) -> torch.Tensor:
        kept.append(student[0].weight.detach().clone())
        return mine.square().mean()

    path = tmp_path / "c.safetensors"
    distil(student, None, inputs, loss, 4, 0.1, path, options=replace(DEFAULTS, average=0.3))
    kept.append(load_checkpoint(path)[0]["net"]["0.weight"])
    average = start[0].weight.detach().clone()
    for step, weight in enumerate(kept[1:]):
        share = min(0.3, (1 + step) / (10 + step))
        average = share * average + (1 - share) * weight
    np.testing.assert_allclose(student[0].weight.detach().numpy(), average.numpy(), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(student[0].weight, kept[-1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_at_once(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "c.safetensors"
    student, calls = pupil(), []

    def loss(mine: torch.Tensor, theirs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        calls.append(digest(student))
        return soft(mine, theirs, batch) * (bad if len(calls) == 6 else 1.0)

    with pytest.raises(ConfigError, match="loss: is not finite at step 5"):
        distil(student, master(), inputs, loss, 9, 1e-2, path, options=OPTIONS)
    assert len(calls) == 6
    saved, meta = load_checkpoint(path)
    assert meta["step"] == 4 and all(torch.isfinite(t).all() for t in saved["net"].values())
    assert all(torch.isfinite(p).all() for p in student.parameters())


def test_a_gradient_that_is_not_finite_stops_the_run_too() -> None:
    student = nn.Sequential(nn.Linear(4, 3))

    def loss(mine: torch.Tensor, _theirs: object, _batch: object) -> torch.Tensor:
        return (mine.sum() * 0).sqrt()  # 0, but its derivative is infinite

    with pytest.raises(ConfigError, match="gradient: is not finite at step 0"):
        distil(student, None, inputs, loss, 2, 1e-2)
    assert all(torch.isfinite(p).all() for p in student.parameters())


def test_losses_that_teach_nothing_are_refused() -> None:
    for loss, named in (
        (lambda mine, theirs, batch: torch.tensor(1.0), "does not depend on the student"),
        (lambda mine, theirs, batch: mine, "must be one number"),
        (lambda mine, theirs, batch: 1.0, "must be one number"),
    ):
        with pytest.raises(ConfigError, match=named):
            distil(pupil(), master(), inputs, loss, 2, 1e-2)
    with pytest.raises(ConfigError, match="no weight that may be learnt"):
        distil(pupil().requires_grad_(False), master(), inputs, soft, 2, 1e-2)
    student = pupil()
    with pytest.raises(ConfigError, match=r"0\.weight: shares weights"):
        distil(student, student, inputs, soft, 2, 1e-2)
    with pytest.raises(ConfigError, match="ended before step 2 of 3"):
        distil(pupil(), master(), lambda first: [torch.randn(8, 4)] * 2, soft, 3, 1e-2)
    with pytest.raises(ConfigError, match="no batch"):
        repeated([])
    for name in ("student", "teacher"):
        models = {"student": pupil(), "teacher": master()}
        with torch.no_grad():
            models[name][4].bias[1] = float("nan")
        with pytest.raises(ConfigError, match=rf"{name}: 4\.bias: holds a number that is not finite"):
            distil(models["student"], models["teacher"], inputs, soft, 2, 1e-2)


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"seed": -1}], ids=lambda c: next(iter(c))
)
def test_numbers_out_of_range_are_named(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(change))}: is out of range"):
        run(None, pupil(), companion(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"warm_up_steps": -1},
        {"final_share": 1.1},
        {"weight_decay": -0.1},
        {"clip_norm": 0.0},
        {"average": 1.0},
        {"save_every_steps": 0},
    ],
    ids=lambda c: next(iter(c)),
)
def test_options_out_of_range_are_named(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        Options(**change)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    run(path, pupil(), companion(), stop_after=4)
    before = path.read_bytes()
    other_teacher = master()
    with torch.no_grad():
        other_teacher[0].bias[0] += 1e-3
    for named, change in {
        "steps": {"steps": 14},
        "rate": {"rate": 2e-2},
        "seed": {"seed": 2},
        "options": {"options": replace(OPTIONS, average=0.5)},
        "facts": {"facts": {"T": 3.0}},
        "teacher": {"teacher": other_teacher},
    }.items():
        with pytest.raises(ConfigError, match=f"{named}: belongs to another run"):
            run(path, pupil(), companion(), **change)
    with pytest.raises(ConfigError, match="student: belongs to another run"):
        run(path, pupil(6), companion())
    assert path.read_bytes() == before


def rewritten(path: Path, change) -> None:
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        meta = json.loads(file.metadata()[META])
    change(tensors, meta)
    save_file(tensors, str(path), metadata={META: json.dumps(meta)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t, m: t.__setitem__("net/9.weight", t.pop("net/0.weight")), r"net: lacks 0\.weight.*unknown 9\.weight"),
        (lambda t, m: t.pop("average/4.bias"), r"average: lacks 4\.bias"),
        (lambda t, m: t.__setitem__("net/extra", torch.zeros(1)), "net: holds the unknown extra"),
        (lambda t, m: t.__setitem__("average/0.bias", torch.zeros(2)), r"average: holds with another shape 0\.bias"),
        (lambda t, m: t.pop("companion/weight"), "companion: lacks weight"),
        (lambda t, m: t.pop("history/loss"), "lacks history"),
        (lambda t, m: [t.pop(k) for k in list(t) if k.startswith("optimiser/")], "lacks optimiser"),
        (lambda t, m: m.pop("step"), "lacks step"),
        (lambda t, m: m.pop("run"), "is no checkpoint of a distillation"),
    ],
)
def test_a_damaged_checkpoint_names_its_tensor_and_leaves_the_student_alone(
    tmp_path: Path, change: object, named: str
) -> None:
    """V3: renamed, missing, extra, of another shape."""
    path = tmp_path / "c.safetensors"
    run(path, pupil(), companion(), stop_after=4)
    rewritten(path, change)
    student = pupil()
    with pytest.raises(ConfigError, match=named):
        run(path, student, companion())
    assert digest(student) == digest(pupil())


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(path, pupil(), companion())


def test_start_and_end_are_in_the_log(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log.jsonl", {"seed": 1})
    student = pupil()
    path = tmp_path / "c.safetensors"
    outcome = run(path, student, companion(), log=log, subject="pupil")
    run(path, pupil(), companion(), log=log, subject="pupil")  # nothing left to do, nothing to say
    start, end = read_decisions(log.path)
    assert (start.kind, start.subject) == ("distil.start", "pupil") and start.facts["run"]["facts"] == {"T": 2.0}
    assert start.facts["run"]["student"] == digest(pupil()) and start.facts["student_parameters"] == 163
    assert end.kind == "distil.end" and end.facts["steps_done"] == 13 and end.facts["student"] == digest(student)
    assert end.facts["loss_last"] == pytest.approx(sum(outcome.losses) / 13)


def test_a_source_of_batches_is_closed() -> None:
    closed, kept = [], []

    def source(first: int) -> object:
        try:
            yield from inputs(first)
        finally:
            closed.append(first)

    def batches(first: int) -> object:
        kept.append(source(first))  # or dropping it would close it
        return kept[-1]

    distil(pupil(), master(), batches, soft, 2, 1e-2)
    assert closed == [0]
