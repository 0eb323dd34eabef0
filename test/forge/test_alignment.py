"""Alignment of student and teacher: maps against an independent computation, the diagnosis, and both mends."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("safetensors", reason="the forge extra is not installed")

from torch import nn  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet  # noqa: E402
from triptych_forge.distil import alignment as A  # noqa: E402
from triptych_forge.distil.loop import digest  # noqa: E402
from triptych_forge.distil.losses import LayerPair, observed  # noqa: E402
from triptych_forge.vlm.model import MEASURE_KINDS, Shape, Vlm  # noqa: E402

torch.set_num_threads(1)
SEEDS = st.integers(0, 2**32 - 1)
SMALL = Shape(64, 32, 1, (8, 8, 8), (1, 1, 1), 16, 2, 2, 1, 16)
LARGE = Shape(96, 64, 2, (8, 8, 16), (1, 1, 1), 32, 3, 4, 1, 32)


def chances(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


def frames_of(shape: Shape, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (count, shape.frames, shape.height_px, shape.width_px, 3), generator=g)
    return frames.to(torch.uint8), torch.zeros(count, shape.frames)


# Grids


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9))
def test_cells_are_shared_out_by_length(source: int, target: int) -> None:
    """Against cells cut into pieces that fit both grids."""
    pieces = math.lcm(source, target)
    wanted = np.zeros((target, source))
    for piece in range(pieces):
        wanted[piece * target // pieces, piece * source // pieces] += source / pieces
    np.testing.assert_allclose(A.overlap(source, target).numpy(), wanted, atol=1e-6)
    np.testing.assert_allclose(A.overlap(source, target).numpy().sum(0), 1, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_attention_on_another_grid_keeps_its_mass(seed: int, grid: tuple[int, int], target: tuple[int, int]) -> None:
    rows, columns = grid
    p = chances(seed, 2, 3, 4, rows * columns + 1)
    got = A.on_grid(A.TokenMap(torch.from_numpy(p), grid), target).numpy()
    mean = p.mean(1)
    fine = mean[..., :-1].reshape(2, 4, rows, columns).repeat(target[0], 2).repeat(target[1], 3)
    fine = fine / (target[0] * target[1])
    fine = fine.reshape(2, 4, target[0], rows, target[1], columns).sum((3, 5))
    np.testing.assert_allclose(got[..., :-1], fine.reshape(2, 4, -1), atol=1e-6)
    np.testing.assert_allclose(got[..., -1], mean[..., -1], atol=1e-6)
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-6)
    if grid == target:
        np.testing.assert_allclose(got, mean, atol=1e-7)


# Maps


@pytest.mark.parametrize("groups", [1, 2])
def test_recomputed_attention_is_what_the_layer_used(groups: int) -> None:
    """Its mix of the values must be the very input of the layer's output projection."""
    torch.manual_seed(0)
    model = Vlm(LARGE, 40).eval()
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.query.weight.mul_(8)  # attention that is not even
    ids = torch.randint(0, 40, (2 * groups, 5))
    used: dict[int, torch.Tensor] = {}
    hooks = [
        layer.out2.register_forward_pre_hook(lambda _m, inputs, i=i: used.__setitem__(i, inputs[0]))
        for i, layer in enumerate(model.decoder.layers)
    ]
    frames, ages = frames_of(LARGE, 2)
    with torch.no_grad():
        seen = A.attention_maps(model, frames, ages, ids, groups)
        wanted = model(frames, ages, ids, groups)[0]
        memory = [m.repeat_interleave(groups, 0) for m in model.encoder(frames, ages)]
    for hook in hooks:
        hook.remove()
    assert torch.equal(seen.logits, wanted)
    assert list(seen.maps) == ["decoder.layers.0", "decoder.layers.1", "decoder.layers.2"]
    for i, found in enumerate(seen.maps.values()):
        assert found.grid == (4, 6) and found.chances.shape == (2 * groups, 4, 5, LARGE.tokens)
        mixed = (found.chances @ memory[2 * i + 1]).transpose(1, 2).flatten(2)
        np.testing.assert_allclose(mixed.numpy(), used[i].numpy(), atol=1e-5)
        assert found.chances.amax() > 3 / LARGE.tokens


def test_attention_of_models_of_different_size_can_be_compared() -> None:
    torch.manual_seed(0)
    small, large = Vlm(SMALL, 40).eval(), Vlm(LARGE, 40).eval()
    ids = torch.randint(0, 40, (2, 5))
    mine = A.attention_maps(small, *frames_of(SMALL, 2), ids).maps
    theirs = A.attention_maps(large, *frames_of(LARGE, 2), ids).maps
    pairs = A.by_depth(list(mine), list(theirs))
    assert [(p.student, p.teacher) for p in pairs] == [
        ("decoder.layers.0", "decoder.layers.1"),
        ("decoder.layers.1", "decoder.layers.2"),
    ]
    queries = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    maps = A.attention_pairs(mine, theirs, pairs, queries)
    for q, p in maps.values():
        assert q.shape == p.shape == (6, SMALL.tokens)
        assert SMALL.tokens == 2 * 4 + 1 + MEASURE_KINDS
        assert q.requires_grad and not p.requires_grad
        np.testing.assert_allclose(q.detach().sum(-1).numpy(), 1, atol=1e-5)
    loss = A.layer_wise_kl_loss(maps, ["decoder.layers.1"])
    loss.backward()
    assert small.decoder.layers[1].query.weight.grad.abs().sum() > 0
    assert small.encoder.keys_values[1].weight.grad[:16].abs().sum() > 0  # the keys
    assert (small.encoder.keys_values[1].weight.grad[16:] == 0).all()  # the values
    assert all(p.grad is None for p in large.parameters())
    with pytest.raises(ConfigError, match=r"decoder\.layers\.0: attends to"):
        A.attention_pairs(mine, A.attention_maps(large, *frames_of(LARGE, 2), ids[:, :4]).maps, pairs)
    with pytest.raises(ConfigError, match=r"decoder\.layers\.7: gave nothing"):
        A.attention_pairs(mine, theirs, [LayerPair("decoder.layers.7", "decoder.layers.0")])


@pytest.mark.parametrize(
    ("mine", "theirs", "wanted"),
    [(2, 2, [0, 1]), (2, 4, [1, 3]), (3, 12, [3, 7, 11]), (1, 6, [5]), (4, 2, [0, 0, 1, 1]), (3, 2, [0, 1, 1])],
)
def test_layers_go_together_by_depth(mine: int, theirs: int, wanted: list[int]) -> None:
    pairs = A.by_depth([str(i) for i in range(mine)], [str(i) for i in range(theirs)])
    assert [int(p.teacher) for p in pairs] == wanted
    with pytest.raises(ConfigError, match="need layers"):
        A.by_depth([], ["0"])


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.floats(0.05, 1.0))
def test_relations_are_softmaxed_cosines(seed: int, temperature: float) -> None:
    features = np.random.default_rng(seed).normal(0, 1, (2, 5, 2, 3))
    got = A.relation_map(torch.from_numpy(features), (2, 3), temperature).numpy()
    for b in range(2):
        places = [features[b, :, y, x] for y in range(2) for x in range(3)]
        for i, a in enumerate(places):
            scores = [
                np.exp(a @ c / np.linalg.norm(a) / np.linalg.norm(c) / temperature) if j != i else 0.0
                for j, c in enumerate(places)
            ]
            np.testing.assert_allclose(got[b, i], np.array(scores) / sum(scores), atol=1e-6)


def test_relations_are_taken_on_the_coarser_grid_of_means() -> None:
    fine = torch.randn(2, 3, 4, 6)
    mean = nn.functional.avg_pool2d(fine, 2)
    np.testing.assert_allclose(A.relation_map(fine, (2, 3)).numpy(), A.relation_map(mean, (2, 3)).numpy(), atol=1e-5)
    pairs = A.relation_pairs({"a": fine}, {"b": mean}, [LayerPair("a", "b")])
    np.testing.assert_allclose(pairs["a"][0].numpy(), pairs["a"][1].numpy(), atol=1e-5)
    assert pairs["a"][0].shape == (12, 6)
    few = A.relation_pairs({"a": fine}, {"b": fine}, [LayerPair("a", "b")], most_side=3)
    assert few["a"][0].shape == (18, 9)
    for bad in (torch.randn(1, 3, 4, 6), torch.randn(2, 24, 3), torch.randn(2, 3, 1, 1)):
        with pytest.raises(ConfigError, match="a: "):
            A.relation_pairs({"a": fine}, {"b": bad}, [LayerPair("a", "b")])


# Diagnosis


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_rows_are_compared_from_teacher_to_student(seed: int) -> None:
    q, p = chances(seed, 6, 5), chances(seed + 1, 6, 5)
    p[0, 0], q[1, 1] = 0, 0
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    got = A.row_kl(torch.from_numpy(q), torch.from_numpy(p)).numpy()
    u, v = (x * (1 - A.SMOOTHING) + A.SMOOTHING / 5 for x in (p, q))
    np.testing.assert_allclose(got, (u * np.log(u / v)).sum(-1), rtol=1e-6, atol=1e-9)
    assert np.isfinite(got).all() and (got >= -1e-12).all()
    exact = (p[2:] * np.log(p[2:] / q[2:])).sum(-1)
    np.testing.assert_allclose(got[2:], exact, rtol=0.02, atol=1e-3)


def with_means(*means: float) -> A.MapPairs:
    """Layers whose rows have these KLs: teacher (1, 0) against (1 - x, x)."""
    out = {}
    for i, mean in enumerate(means):
        x = 1 - math.exp(-mean)
        out[f"l{i}"] = (torch.tensor([[1 - x, x]] * 3, dtype=torch.float64), torch.tensor([[1.0, 0.0]] * 3).double())
    return out


def test_the_outlier_is_the_weak_layer() -> None:
    found = A.diagnose([with_means(0.10, 0.12, 0.9, 0.11, 0.13), with_means(0.10, 0.12, 0.9, 0.11, 0.13)])
    assert found.weak == ("l2",) and found.worst == "l2"
    assert [row.rows for row in found.layers] == [6] * 5
    assert [row.mean_kl_nats for row in found.layers] == pytest.approx([0.10, 0.12, 0.9, 0.11, 0.13], abs=1e-4)
    assert found.limit_nats == pytest.approx(0.12 + 1.5 * 0.02, abs=1e-4) and "median" in found.rule


@pytest.mark.parametrize(
    ("means", "limit", "weak"),
    [
        ((0.001, 0.0011, 0.009), None, ()),  # all of them agree
        ((0.05, 0.2), None, ("l1",)),  # too few for an outlier
        ((0.11,), None, ("l0",)),
        ((0.10, 0.12, 0.9), 0.11, ("l1", "l2")),
        ((0.10, 0.12, 0.9), 0.95, ()),
    ],
)
def test_the_limit_is_the_one_stated(means: tuple[float, ...], limit: float | None, weak: tuple[str, ...]) -> None:
    found = A.diagnose([with_means(*means)], limit)
    assert found.weak == weak
    assert limit is None or (found.limit_nats == limit and found.rule == "given")


def test_the_percentile_is_over_all_rows() -> None:
    parts = [with_means(k / 100) for k in range(100)]
    row = A.diagnose(parts).layers[0]
    values = np.repeat(np.arange(100) / 100, 3)
    assert row.p95_kl_nats == pytest.approx(np.percentile(values, 95), abs=1e-3)
    assert row.mean_kl_nats == pytest.approx(values.mean(), abs=1e-3)


def test_a_diagnosis_of_nothing_is_an_error() -> None:
    for samples, named in (
        ([], "nothing was compared"),
        ([{}], "nothing was compared"),
        ([{"a": (torch.zeros(0, 4), torch.zeros(0, 4))}], "a: was compared in no row"),
        ([{"a": (torch.full((1, 4), torch.nan), torch.full((1, 4), 0.25))}], "a: has a KL that is not finite"),
    ):
        with pytest.raises(ConfigError, match=named):
            A.diagnose(samples)


def test_a_layer_damaged_on_purpose_is_found_by_its_relations() -> None:
    torch.manual_seed(0)
    teacher = DetectorNet(3, replace(STUDENT, width=16))
    with torch.no_grad():
        for _ in range(20):
            teacher(torch.rand(2, 3, 64, 96) * 255)  # settles the normalisation
    student = copy.deepcopy(teacher.eval())
    names = ["stem", "early", *(f"stages.{i}" for i in range(3)), *(f"lateral.{i}" for i in range(3)), "smooth.1"]
    run = observed(names, lambda model, x: model(x))
    with torch.no_grad():
        student.lateral[1].weight.copy_(torch.randn_like(student.lateral[1].weight))
        student.lateral[1].weight[:12] = 0
        x = torch.rand(2, 3, 64, 96) * 255
        pairs = [LayerPair(name, name) for name in names]
        found = A.diagnose([A.relation_pairs(run(student, x).features, run(teacher, x).features, pairs)])
    assert set(found.weak) == {"lateral.1", "smooth.1"}
    assert max(row.mean_kl_nats for row in found.layers if not row.weak) < 1e-6


def test_the_layer_wise_loss_is_the_mean_over_the_layers_named() -> None:
    maps = with_means(0.1, 0.2, 0.6)
    assert A.layer_wise_kl_loss(maps, ["l0", "l2"]).item() == pytest.approx(0.35, abs=1e-4)
    for layers in ([], ["l9"]):
        with pytest.raises(ConfigError):
            A.layer_wise_kl_loss(maps, layers)


# Prototypes


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_prototypes_are_means_per_label(seed: int) -> None:
    generator = np.random.default_rng(seed)
    features, labels = generator.normal(0, 1, (20, 4)), generator.integers(-1, 3, 20)
    labels[:2] = [0, -1]
    bank = A.PrototypeBank(5, 4)
    for part in (slice(0, 7), slice(7, 20)):
        bank.add(torch.from_numpy(features[part]), torch.from_numpy(labels[part]))
    for label in range(5):
        mine = features[labels == label]
        assert bank.counts[label] == len(mine)
        np.testing.assert_allclose(bank.means()[label].numpy(), mine.mean(0) if len(mine) else 0, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.floats(0.05, 1.0))
def test_matching_is_the_equation(seed: int, temperature: float) -> None:
    """Unknown labels and labels without a prototype take no part, not even as candidates."""
    generator = np.random.default_rng(seed)
    features, prototypes = generator.normal(0, 1, (6, 4)), generator.normal(0, 1, (4, 4))
    labels, counts = np.array([0, 1, 2, -1, 3, 0]), np.array([3, 1, 2, 0])
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    scores = np.exp(unit(features) @ unit(prototypes[:3]).T / temperature)
    used = [0, 1, 2, 5]
    wanted = {
        "infonce": np.mean([-np.log(scores[i, labels[i]] / scores[i].sum()) for i in used]),
        "l2": np.mean([(features[i] - prototypes[labels[i]]) ** 2 for i in used]),
    }
    f, y, p, n = (
        torch.from_numpy(x) for x in (features.astype(np.float32), labels, prototypes.astype(np.float32), counts)
    )
    f.requires_grad_()
    for kind, value in wanted.items():
        got = A.prototype_matching_loss(f, y, p, n, kind, temperature)
        assert got.item() == pytest.approx(value, rel=1e-3, abs=1e-5), kind
        gradient = torch.autograd.grad(got, f)[0]
        assert (gradient[[3, 4]] == 0).all() and (gradient[used].abs().sum(1) > 0).all()


def test_features_and_labels_that_do_not_fit_are_refused() -> None:
    bank = A.PrototypeBank(3, 4)
    with pytest.raises(ConfigError, match="no labelled feature"):
        bank.means()
    for features, labels in (
        (torch.zeros(2, 5), torch.zeros(2).long()),
        (torch.zeros(2, 4), torch.zeros(3).long()),
        (torch.zeros(2, 4), torch.tensor([0, 3])),
        (torch.zeros(2, 4), torch.tensor([0, -2])),
        (torch.full((2, 4), torch.nan), torch.tensor([0, 1])),
    ):
        with pytest.raises(ConfigError, match="prototypes"):
            bank.add(features, labels)
    with pytest.raises(ConfigError, match="kind"):
        A.prototype_matching_loss(torch.zeros(1, 4), torch.zeros(1).long(), torch.zeros(3, 4), torch.ones(3), "cosine")
    nothing = A.prototype_matching_loss(
        torch.ones(2, 4, requires_grad=True), torch.tensor([-1, 1]), torch.ones(3, 4), torch.tensor([1, 0, 1])
    )
    assert nothing.item() == 0


def test_a_boxs_feature_is_the_mean_of_its_cells() -> None:
    features = torch.arange(24.0).reshape(1, 2, 3, 4)  # cells of 10 px
    boxes = torch.tensor([[[0.0, 0.0, 20.0, 10.0], [21.0, 11.0, 24.0, 14.0], [0.0, 0.0, 40.0, 30.0], [0, 0, 0, 0]]])
    got, labels = A.box_features(features, boxes, torch.tensor([[2, 0, 1, -1]]), (40, 30))
    assert labels.tolist() == [2, 0, 1]
    assert got.tolist() == [[0.5, 12.5], [6.0, 18.0], [5.5, 17.5]]


# Mends


class Eye(nn.Module):
    """A map of features and what it is: for the comparison of mends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.third = nn.Conv2d(width, width, 3, 1, 1)
        self.say = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.tanh(self.second(x))
        return self.say(self.third(x).mean((2, 3)))


LAYERS = ["first", "second", "third"]


def scenes(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(3)
    out = []
    for _ in range(count):
        labels = torch.randint(0, 3, (8,), generator=g)
        pictures = torch.randn(8, 3, 6, 6, generator=g)
        for i, label in enumerate(labels):
            pictures[i, label, :3] += 3.0
        out.append((pictures, labels))
    return out


def view(mine, theirs, batch, task: bool = True) -> A.View:
    return A.View(
        A.relation_pairs(mine.features, theirs.features, [LayerPair(n, n) for n in LAYERS]),
        mine.features["third"].mean((2, 3)),
        theirs.features["third"].mean((2, 3)),
        batch[1],
        nn.functional.cross_entropy(mine.out, batch[1]) if task else None,
    )


RUN = observed(LAYERS, lambda model, batch: model(batch[0]))


def test_both_mends_are_compared_from_the_same_start(tmp_path: Path) -> None:
    torch.manual_seed(0)
    teacher, student = Eye(8), Eye(4)
    before = digest(student), digest(teacher)
    done: list[tuple[int, int]] = []
    log = DecisionLog(tmp_path / "log.jsonl", {})
    arguments = {"labels": 3, "steps": 40, "rate": 1e-2, "run_student": RUN, "run_teacher": RUN}
    table = A.compare_mends(
        student, teacher, scenes(), view, **arguments, log=log, progress=lambda d, t: done.append((d, t))
    )
    assert (digest(student), digest(teacher)) == before and student.training
    assert done == [(i + 1, 120) for i in range(120)]
    assert set(table.after) == set(table.students) == {"layer_wise_kl", "prototype_matching", "none"}
    worst = table.layers[0]
    rows = {row["layer"]: row for row in table.rows()}
    assert list(rows) == [*LAYERS, "task"] and rows[worst]["mended"]
    start = rows[worst]["before"]["mean_kl_nats"]
    after = {mend: cell["mean_kl_nats"] for mend, cell in rows[worst]["after"].items()}
    assert after["layer_wise_kl"] < 0.8 * start
    assert after["layer_wise_kl"] < min(after["none"], after["prototype_matching"])
    for mend, cell in rows["task"]["after"].items():
        assert cell["loss"] < rows["task"]["before"]["loss"], mend
    kinds = [(d.kind, d.subject) for d in read_decisions(log.path)]
    assert kinds == [
        ("distil.diagnose", "student"),
        ("distil.mend", "layer_wise_kl"),
        ("distil.mend", "prototype_matching"),
        ("distil.mend", "none"),
    ]
    again = A.compare_mends(student, teacher, scenes(), view, **arguments)
    assert again.rows() == table.rows()


@pytest.mark.parametrize("matching", ["infonce", "l2"])
def test_matching_prototypes_sorts_the_students_features(matching: str) -> None:
    """Without a task there is no control, and the features of one label still come together."""
    torch.manual_seed(0)
    teacher, student = Eye(8), Eye(4)
    with torch.no_grad():
        for p in student.parameters():
            p.mul_(0.5)
    table = A.compare_mends(
        student,
        teacher,
        scenes(),
        lambda mine, theirs, batch: view(mine, theirs, batch, task=False),
        labels=3,
        steps=60,
        rate=1e-2,
        run_student=RUN,
        run_teacher=RUN,
        matching=matching,
        layers=["first", "third"],
    )
    assert table.layers == ("first", "third") and set(table.after) == {"layer_wise_kl", "prototype_matching"}
    assert table.before.task_loss is None and [row["layer"] for row in table.rows()] == LAYERS

    def spread(model: nn.Module) -> float:
        """Variance within labels by variance in all."""
        with torch.no_grad():
            found = [(RUN(model, b).features["third"].mean((2, 3)), b[1]) for b in scenes()]
        features, labels = torch.cat([f for f, _ in found]), torch.cat([y for _, y in found])
        within = sum(((features[labels == k] - features[labels == k].mean(0)) ** 2).sum() for k in range(3))
        return float(within / ((features - features.mean(0)) ** 2).sum())

    assert spread(table.students["prototype_matching"]) < 0.5 * spread(student)


def test_a_mend_of_a_layer_without_maps_is_refused_before_training(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log.jsonl", {})
    arguments = {"labels": 3, "steps": 1, "rate": 1e-2, "run_student": RUN, "run_teacher": RUN}
    with pytest.raises(ConfigError, match="fourth: gave nothing"):
        A.compare_mends(Eye(4), Eye(8), scenes(1), view, layers=["fourth"], log=log, **arguments)
    assert not log.decisions
    with pytest.raises(ConfigError, match="no batch"):
        A.compare_mends(Eye(4), Eye(8), [], view, **arguments)
