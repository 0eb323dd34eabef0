"""The conversion gate: what it lets pass, what it stops and what it says about it."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("scipy", reason="the forge extra is not installed")
pytest.importorskip("sacrebleu", reason="the forge extra is not installed")

import cv2  # noqa: E402
import onnx  # noqa: E402
import typer  # noqa: E402
import yaml  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from torch import nn  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from triptych.contract import ConfigError, TriptychError  # noqa: E402
from triptych_forge.verify import command  # noqa: E402
from triptych_forge.verify.command import compressed, load_report, verify, verify_command  # noqa: E402
from triptych_forge.verify.conversion import (  # noqa: E402
    ConversionLimits,
    ConversionReport,
    Meter,
    bleu4,
    compare_layers,
    conversion_gate,
    layer_pairs,
    top_sets,
)
from triptych_forge.verify.engines import (  # noqa: E402
    BundleSubject,
    OnnxSubject,
    TorchSubject,
    check_names,
    check_pair,
    exported_names,
    heads_of,
    open_subject,
)
from triptych_forge.verify.samples import Head, Sample, load_samples  # noqa: E402
from triptych_forge.verify.scenes import drive_views, folder_views, to_samples  # noqa: E402

torch.set_num_threads(1)
MODELS = Path(__file__).parents[2] / "models"
CLASSES = 5
FEW = ConversionLimits(positions_min=64)


class Net(nn.Module):
    """(1, 3, 16, 16) pictures to logits (1, 64, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.body = nn.Conv2d(6, 8, 3, 2, 1)
        self.act = nn.ReLU()
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, image: Any) -> Any:
        return self.head(self.act(self.body(self.stem(image)))).flatten(2).transpose(1, 2)


class FakeQuantiser(nn.Module):
    """What fake quantisation does: round to one of 256 steps and back."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Any) -> Any:
        return torch.fake_quantize_per_tensor_affine(x, self.scale, 0, -128, 127)


class FakeQuantised(nn.Module):
    """A net with a quantiser before each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fakequant0, self.one = FakeQuantiser(0.03), nn.Conv2d(3, 6, 3, 1, 1)
        self.fakequant1, self.two = FakeQuantiser(0.02), nn.Conv2d(6, 8, 3, 2, 1)
        self.fakequant2, self.head = FakeQuantiser(0.02), nn.Conv2d(8, CLASSES, 1)

    def forward(self, image: Any) -> Any:
        x = torch.relu(self.one(self.fakequant0(image)))
        x = torch.relu(self.two(self.fakequant1(x)))
        return self.head(self.fakequant2(x)).flatten(2).transpose(1, 2)


def seeded(kind: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = kind().eval()
    with torch.no_grad():  # logits of a size that has no near-ties by chance
        for parameter in net.parameters():
            parameter.mul_(2.0)
    return net


def export(net: nn.Module, path: Path, name: str = "logits") -> Path:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.zeros(1, 3, 16, 16),), str(path), input_names=["image"], output_names=[name],
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def pictures(count: int, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [Sample({"image": rng.normal(0, 1, (1, 3, 16, 16)).astype(np.float32)}) for _ in range(count)]


def change_weight(source: Path, target: Path, which: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a graph with one constant changed; ``which`` is a part of its name."""
    model = onnx.load(str(source))
    (tensor,) = [t for t in model.graph.initializer if which in t.name]
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))
    onnx.save(model, str(target))
    return target


class Spoken:
    """A subject made of a function; ``said`` are its free answers."""

    def __init__(self, name: str, run: Callable[[Any], dict[str, Any]], outputs: Sequence[str] = ("logits",)) -> None:
        self.name, self._run, self.inputs, self.outputs = name, run, ("x",), tuple(outputs)
        self.intermediates: tuple[str, ...] = ("inner",)
        self.probe_adds = 0.0

    def run(self, feeds: Any) -> dict[str, Any]:
        return self._run(feeds["x"])

    def probe(self, feeds: Any, tensors: Any = None) -> dict[str, Any]:
        made = {n: (a + self.probe_adds).astype(a.dtype) for n, a in self.run(feeds).items()}
        return {"inner": np.asarray(feeds["x"], np.float32), **made}

    def variants(self) -> list[Any]:
        return []

    def quantised(self) -> list[Any]:
        return []

    def before_softmax(self) -> tuple[str, ...]:
        return ()

    def facts(self) -> dict[str, Any]:
        return {}


HEAD = [Head("logits", "logits", "logits")]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    net = seeded(Net)
    return net, export(net, tmp_path_factory.mktemp("net") / "net.onnx")


def gate(net: nn.Module, path: Path, samples: Sequence[Sample] | None = None, **limits: Any) -> ConversionReport:
    one, other = TorchSubject(net, ["image"], ["logits"]), OnnxSubject(path)
    chosen = pictures(4) if samples is None else samples
    return conversion_gate(one, other, chosen, heads_of(other), FEW.model_copy(update=limits))


# --- what is measured -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 2**31), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_the_meter_measures_what_numpy_does_on_everything_at_once(sizes: list[int], seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    a = [rng.normal(size=size) for size in sizes]
    b = [x + noise * rng.normal(size=x.shape) for x in a]
    meter = Meter("a", "b")
    for x, y in zip(a, b):
        meter.add(x, y)
    x, y = np.concatenate(a), np.concatenate(b)
    drift = meter.drift()
    assert drift.elements == x.size
    assert drift.relative_l2 == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x))
    assert drift.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert drift.max_abs == pytest.approx(np.abs(y - x).max())


def test_the_meter_knows_masks_and_does_not_overlook_nan() -> None:
    same = Meter("", "")
    same.add(np.array([1.0, -np.inf]), np.array([1.0, -np.inf]))
    assert same.relative_l2 == 0.0
    for value in (math.nan, math.inf):
        broken = Meter("", "")
        broken.add(np.array([1.0, 2.0]), np.array([1.0, value]))
        assert not broken.relative_l2 <= 1e9
    nothing = Meter("", "")
    nothing.add(np.zeros(3), np.zeros(3))
    assert nothing.relative_l2 == 0.0 and nothing.drift().cosine == 1.0
    nothing.add(np.zeros(1), np.ones(1))
    assert nothing.relative_l2 == math.inf


@given(st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_top_sets_are_what_sorting_by_hand_gives(seed: int, k: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 4, (6, 5)).astype(float)  # many ties
    for row, got in zip(rows, top_sets(rows, k)):
        wanted = sorted(sorted(range(5), key=lambda c: (-row[c], c))[:k])
        assert got.tolist() == wanted


def brute_bleu(answers: list[str], references: list[str]) -> float:
    """Papineni et al. 2002, for texts in which every order of n-grams matches somewhere."""
    logs, length, wanted = [], 0, 0
    for n in range(1, 5):
        hits = total = 0
        for answer, reference in zip(answers, references):
            said, right = (
                Counter(tuple(t[i : i + n]) for i in range(len(t) - n + 1)) for t in (answer.split(), reference.split())
            )
            hits += sum(min(count, right[gram]) for gram, count in said.items())
            total += sum(said.values())
        logs.append(math.log(hits / total) / 4)
    for answer, reference in zip(answers, references):
        length, wanted = length + len(answer.split()), wanted + len(reference.split())
    return math.exp(sum(logs)) * min(1.0, math.exp(1 - wanted / length))


def test_bleu_is_papinenis() -> None:
    answers = ["road:urban weather:rain a red light ahead stop now", "road:rural weather:clear nothing seen"]
    references = ["road:urban weather:rain a red light ahead slow down", "road:rural weather:clear nothing seen here"]
    assert bleu4(answers, references) == pytest.approx(brute_bleu(answers, references), abs=1e-6)
    assert bleu4(references, references) == 1.0
    assert math.isnan(bleu4([], []))


# --- a torch module and its export ------------------------------------------------------------------------------------


def test_an_honest_export_passes(exported: tuple[nn.Module, Path]) -> None:
    report = gate(*exported)
    assert report.passed and not report.reasons
    assert report.first_divergent_token is None and report.first_diverging_layer == ""
    (match,) = report.top
    assert (match.positions, match.matched) == (256, 256)
    assert match.lower_bound == pytest.approx(0.05 ** (1 / 256)) and match.lower_bound < match.wilson_bound < 1
    assert any("does not prove it" in note for note in report.notes)
    # The normalisation was folded into the convolution before it and is compared with that tensor.
    names = [d.name for d in report.layers]
    assert names == ["stem.1", "stem.2", "body", "act", "head"]
    assert all(d.relative_l2 < 1e-5 and d.cosine > 0.99999 for d in report.layers)


@pytest.mark.parametrize(("weight", "layer"), [("body.weight", "body"), ("head.bias", "head")])
def test_the_first_diverging_layer_is_the_changed_one(
    exported: tuple[nn.Module, Path], tmp_path: Path, weight: str, layer: str
) -> None:
    report = gate(exported[0], change_weight(exported[1], tmp_path / "b.onnx", weight, lambda w: w + 0.05))
    assert not report.passed and report.first_diverging_layer == layer
    assert any(reason.startswith("relative L2 of logits") for reason in report.reasons)
    assert all(row.first_diverging_layer == layer for row in report.numerics[:2])


def test_a_mapping_decides_what_is_compared(exported: tuple[nn.Module, Path]) -> None:
    one, other = TorchSubject(exported[0], ["image"], ["logits"]), OnnxSubject(exported[1])
    one.run(pictures(1)[0].feeds)
    found = exported_names(one, other.intermediates)
    assert layer_pairs(one, other, {"body": found["body"]}) == [("body", found["body"])]
    assert layer_pairs(other, one) == [(tensor, module) for module, tensor in found.items()]
    with pytest.raises(ConfigError, match=r"nowhere.*mapping names a tensor"):
        layer_pairs(one, other, {"body": "nowhere"})


def test_an_export_with_names_of_its_own_is_paired_by_the_order_of_convolutions(
    exported: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    model = onnx.load(str(exported[1]))
    names = {o: f"value_{i}" for i, n in enumerate(model.graph.node) for o in n.output if o != "logits"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    onnx.save(model, str(tmp_path / "renamed.onnx"))
    report = gate(exported[0], tmp_path / "renamed.onnx")
    assert report.passed and [d.name for d in report.layers] == ["stem.1", "body", "head"]
    broken = change_weight(tmp_path / "renamed.onnx", tmp_path / "b.onnx", "body.weight", lambda w: w + 0.05)
    assert gate(exported[0], broken).first_diverging_layer == "body"


def test_v6_both_numerics_of_a_fake_quantised_net_are_reported(tmp_path: Path) -> None:
    """V6: torch, the optimised graph and the graph as written, each against each, with the first diverging layer."""
    net = seeded(FakeQuantised, 3)
    path = export(net, tmp_path / "qdq.onnx")
    one, other = TorchSubject(net, ["image"], ["logits"], "fake-quantised"), OnnxSubject(path, "engine")
    assert "QuantizeLinear" in other.facts()["numerics"] and "FakeQuantize" in one.facts()["numerics"]
    _, _, _, rows = compare_layers(one, other, pictures(4), HEAD, FEW)
    assert [(r.first, r.second) for r in rows] == [
        ("fake-quantised", "engine"),
        ("fake-quantised", "engine, optimisations off"),
        ("engine", "engine, optimisations off"),
    ]
    assert all(r.layers_compared >= 3 for r in rows)
    # Two values may fall on different sides of a step: seldom, and by one step.
    assert all(r.relative_l2 < 0.02 and r.top_share > 0.95 for r in rows)
    # Judged as written, both sides have the same numerics, and the optimised ones are reported beside them.
    plain = OnnxSubject(path, "as written", optimised=False)
    report = conversion_gate(one, plain, pictures(4), HEAD, ConversionLimits(positions_min=64, layer=0.03))
    assert report.outputs[0].relative_l2 <= rows[0].relative_l2 + 1e-3
    assert [r.second for r in report.numerics] == ["as written", "as written, optimised", "as written, optimised"]
    broken = change_weight(path, tmp_path / "broken.onnx", "two.weight", lambda w: w * 1.1)
    _, _, _, rows = compare_layers(one, OnnxSubject(broken, "engine"), pictures(4), HEAD, ConversionLimits(layer=0.03))
    assert [r.first_diverging_layer for r in rows] == ["two", "two", ""]


def test_v7_the_verdict_is_taken_on_the_plain_engine() -> None:
    """V7: a probe that changes the final outputs is reported and does not count."""
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    one, other = (Spoken(name, lambda x: {"logits": x}) for name in ("a", "b"))
    other.probe_adds = 0.5
    report = conversion_gate(one, other, [Sample({"x": x})], HEAD, FEW)
    assert report.passed and report.outputs[0].relative_l2 == 0.0
    assert [(p.engine, p.changed) for p in report.probes] == [("a", False), ("b", True)]
    assert report.probes[1].relative_l2 == pytest.approx(np.linalg.norm(0.5 * np.ones(x.shape)) / np.linalg.norm(x))
    assert any("changes the final outputs of b" in note for note in report.notes)
    # And the other way round: a probe that happens to agree excuses nothing.
    shifted = Spoken("b", lambda x: {"logits": x + 0.5})
    shifted.probe_adds = -0.5
    report = conversion_gate(one, shifted, [Sample({"x": x})], HEAD, FEW)
    assert not report.passed and any("which a probe takes apart" in note for note in report.notes)


def test_v7_marking_intermediates_of_a_quantised_graph(tmp_path: Path) -> None:
    """V7: on a real graph with quantisers, what the probe does is measured, not assumed."""
    path = export(seeded(FakeQuantised, 3), tmp_path / "qdq.onnx")
    subject = OnnxSubject(path)
    _, _, probes, _ = compare_layers(subject, OnnxSubject(path), pictures(4), HEAD, FEW)
    changed = any(
        subject.run(s.feeds)["logits"].tobytes() != subject.probe(s.feeds)["logits"].tobytes() for s in pictures(4)
    )
    assert probes[0].changed is changed and (probes[0].relative_l2 > 0) is changed


# --- nothing compared, wrong names ------------------------------------------------------------------------------------


def test_a_comparison_of_nothing_is_a_failure(exported: tuple[nn.Module, Path]) -> None:
    with pytest.raises(ConfigError, match="no sample"):
        gate(*exported, samples=[])
    no_position = [Sample(s.feeds, np.full(64, -1, np.int64)) for s in pictures(2)]
    report = gate(*exported, samples=no_position)
    assert not report.passed and report.top[0].positions == 0
    assert any("positions of logits is 0" in reason for reason in report.reasons)
    few = gate(*exported, positions_min=257)
    assert not few.passed and few.top[0].share == 1.0
    one, other = (Spoken(name, lambda x: {"logits": x}) for name in ("a", "b"))
    other.intermediates = ("elsewhere",)
    report = conversion_gate(one, other, [Sample({"x": np.ones((70, 3), np.float32)})], HEAD, FEW)
    assert not report.passed and report.reasons == [
        "layers compared is 0, at least 1 is needed (no common tensor; give a mapping)"
    ]


def test_v3_outputs_that_are_renamed_missing_or_extra_are_named() -> None:
    """V3: comparison stops with the names."""
    make = lambda *outputs: Spoken("engine", lambda x: dict.fromkeys(outputs, x), outputs)  # noqa: E731
    with pytest.raises(ConfigError, match="output logits is missing and scores is there instead"):
        check_pair(make("logits"), make("scores"))
    with pytest.raises(ConfigError, match="lacks output boxes"):
        check_pair(make("logits", "boxes"), make("logits"))
    with pytest.raises(ConfigError, match="has output debug that nobody expects"):
        check_pair(make("logits"), make("logits", "debug"))
    with pytest.raises(ConfigError, match=r"lacks output a, b; not expected: c"):
        check_pair(make("a", "b"), make("c"))
    check_pair(make("a", "b"), make("b", "a"))


def test_v3_tensors_of_a_checkpoint_are_compared_by_name_and_shape() -> None:
    """V3: the same check serves checkpoints."""
    wanted = {"w": (2, 3), "b": (3,)}
    check_names(wanted, {"b": (3,), "w": (2, 3)}, "x.safetensors")
    with pytest.raises(ConfigError, match=r"x\.safetensors: tensor b is missing and bias is there instead"):
        check_names(wanted, {"w": (2, 3), "bias": (3,)}, "x.safetensors")
    with pytest.raises(ConfigError, match="w: has shape 3x2, 2x3 is needed"):
        check_names(wanted, {"w": (3, 2), "b": (3,)}, "x.safetensors")


def test_another_shape_is_refused_and_nan_fails() -> None:
    x = Sample({"x": np.random.default_rng(1).normal(size=(70, 4)).astype(np.float32)})
    one = Spoken("a", lambda x: {"logits": x})
    with pytest.raises(ConfigError, match="b: logits: has shape 70x3, 70x4 is needed"):
        conversion_gate(one, Spoken("b", lambda x: {"logits": x[:, :3]}), [x], HEAD, FEW)

    def broken(x: Any) -> dict[str, Any]:
        x = x.copy()
        x[3, 1] = np.nan
        return {"logits": x}

    report = conversion_gate(one, Spoken("b", broken), [x], HEAD, FEW)
    assert not report.passed and report.top[0].matched == 69
    assert math.isnan(report.outputs[0].relative_l2)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_the_first_divergent_token_is_found_with_both_distributions() -> None:
    rng = np.random.default_rng(2)
    rows = [rng.normal(0, 2, (40, 6)).astype(np.float32) for _ in range(3)]
    changed = [r.copy() for r in rows]
    best = int(rows[1][25].argmax())
    changed[1][25, best] -= 20.0
    targets = np.array([-1] * 10 + [0] * 30)
    samples = [Sample({"x": np.full((1,), i)}, targets) for i in range(3)]
    one = Spoken("a", lambda x: {"logits": rows[int(x[0])]})
    other = Spoken("b", lambda x: {"logits": changed[int(x[0])]})
    report = conversion_gate(one, other, samples, HEAD, FEW)
    found = report.first_divergent_token
    assert found is not None and (found.sample, found.position, found.token_a) == (1, 25, best)
    assert report.top[0].positions == 90 and report.top[0].matched == 89
    p = np.exp(rows[1][25]) / np.exp(rows[1][25]).sum()
    q = np.exp(changed[1][25]) / np.exp(changed[1][25]).sum()
    for side, dist in ((found.top_a, p), (found.top_b, q)):
        assert [c.token for c in side] == np.argsort(-dist)[:3].tolist()
        assert [c.chance for c in side] == pytest.approx(np.sort(dist)[::-1][:3].tolist(), rel=1e-5)
    # A difference in the prompt, where nobody asks for an answer, does not count.
    changed[1] = rows[1].copy()
    changed[1][5] = -changed[1][5]
    assert conversion_gate(one, other, samples, HEAD, FEW).first_divergent_token is None


def test_the_k_asked_for_decides_and_the_first_is_reported_too() -> None:
    rng = np.random.default_rng(3)
    rows = np.sort(rng.normal(0, 2, (100, 6)), 1)[:, ::-1].astype(np.float32).copy()
    changed = rows.copy()
    changed[:, [1, 2]] = changed[:, [2, 1]]  # second and third place change seats, the first stays
    one, other = Spoken("a", lambda x: {"logits": rows}), Spoken("b", lambda x: {"logits": changed})
    sample = [Sample({"x": np.zeros(1, np.float32)})]
    for k, share in ((1, 1.0), (2, 0.0), (3, 1.0)):
        report = conversion_gate(one, other, sample, HEAD, FEW.model_copy(update={"k": k, "relative_l2": 10.0}))
        by_k = {m.k: m.share for m in report.top}
        assert by_k[1] == 1.0 and by_k[k] == share and report.passed is (share == 1.0)


def test_large_boxes_do_not_hide_wrong_scores() -> None:
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.uniform(0, 400, (90, 4)), rng.uniform(0, 1, (90, 3))], 1)[None]
    wrong = rows.copy()
    wrong[..., 4:] *= 1.05
    heads = [Head("boxes", "out", "values", 0, 4), Head("scores", "out", "chances", 4)]
    one = Spoken("a", lambda x: {"out": rows}, ["out"])
    report = conversion_gate(
        one, Spoken("b", lambda x: {"out": wrong}, ["out"]), [Sample({"x": np.ones(1)})], heads, FEW
    )
    by_name = {d.name: d.relative_l2 for d in report.outputs}
    assert by_name["boxes"] == 0 and by_name["scores"] == pytest.approx(0.05)
    assert np.linalg.norm(wrong - rows) / np.linalg.norm(rows) < 1e-3 and not report.passed


# --- bundles ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vlm() -> tuple[BundleSubject, list[Sample]]:
    subject = BundleSubject(MODELS / "triptych-distilled")
    return subject, to_samples(subject, subject.manifest, drive_views(6), 6, None)


def damaged_bundle(target: Path, which: str, change: Callable[[Any], Any]) -> Path:
    shutil.copytree(MODELS / "triptych-distilled", target)
    change_weight(target / "decoder.onnx", target / "decoder.onnx", which, change)
    manifest = yaml.safe_load((target / "manifest.yaml").read_text())
    from triptych_forge.common import sha256_of

    manifest["files"]["decoder"]["sha256"] = sha256_of(target / "decoder.onnx")
    (target / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return target


def test_teacher_forcing_in_one_go_says_what_the_vehicle_hears_step_by_step(
    vlm: tuple[BundleSubject, list[Sample]],
) -> None:
    subject, samples = vlm
    feeds = dict(samples[0].feeds)
    prompt = samples[0].prompt
    answer = subject.answer(feeds, prompt)
    start = list(feeds["input_ids"][0, :prompt])
    feeds["input_ids"] = np.array([start + answer[:-1]])
    logits = subject.run(feeds)["logits"][0, prompt - 1 :]
    state = subject.grammar.start()
    for row, token in zip(logits, answer):
        allowed = subject.grammar.allowed(state)
        if token not in subject.grammar.advice:  # advice is chosen by its median
            assert int(np.where(allowed, row, -np.inf).argmax()) == token
        state = subject.grammar.advance(state, token)
    assert state.done


def test_the_distilled_vlm_agrees_with_itself(vlm: tuple[BundleSubject, list[Sample]]) -> None:
    subject, samples = vlm
    report = conversion_gate(subject, BundleSubject(subject.folder), samples, heads_of(subject), FEW)
    assert report.passed, report.reasons
    assert report.answers is not None and report.answers.drift == 0 and report.answers.reference == "the data"
    assert 0 < report.answers.bleu_a <= 1 and report.answers.compared == 6
    assert report.top[0].positions == sum(int((s.targets >= 0).sum()) for s in samples if s.targets is not None)
    layers = [d.name for d in report.layers]
    assert len(layers) > 50 and any(n.startswith("encoder/") for n in layers) and layers[-1].startswith("decoder/")


def test_a_damaged_decoder_is_caught_by_tokens_and_answers(
    vlm: tuple[BundleSubject, list[Sample]], tmp_path: Path
) -> None:
    subject, samples = vlm
    rng = np.random.default_rng(5)
    bad = damaged_bundle(tmp_path / "bad", "head.bias", lambda w: w + rng.normal(0, 4, w.shape).astype(w.dtype))
    report = conversion_gate(subject, BundleSubject(bad), samples, heads_of(subject), FEW)
    assert not report.passed
    assert report.answers is not None and report.answers.differing > 0 and report.answers.drift > 0.002
    assert report.first_divergent_token is not None
    assert report.first_divergent_token.top_a[0].text in subject.vocabulary.tokens
    failed = " ".join(report.reasons)
    assert "relative L2 of logits" in failed and "top-1 match" in failed and "BLEU-4 drift" in failed


def test_pictures_of_a_folder_bring_their_slices(vlm: tuple[BundleSubject, list[Sample]], tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    view = next(drive_views(1))
    for name in ("night/a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), view.pictures[0])
    views = list(folder_views(tmp_path))
    assert [v.slices for v in views] == [frozenset(), frozenset({"night"})]
    subject = vlm[0]
    samples = to_samples(subject, subject.manifest, iter(views), None, None)
    # Nobody knows the truth: the engine's own answer is the row.
    assert samples[0].reference == "" and samples[0].targets is not None
    said = samples[0].targets[samples[0].targets >= 0].tolist()
    assert said == subject.answer(samples[0].feeds, samples[0].prompt)
    (tmp_path / "c.png").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"c\.png.*cannot be read as a picture"):
        list(folder_views(tmp_path))
    with pytest.raises(ConfigError, match="holds no picture"):
        list(folder_views(tmp_path / "empty"))


# --- the command ------------------------------------------------------------------------------------------------------

app = typer.Typer()
app.command()(verify_command)
app.callback()(lambda: None)
runner = CliRunner()


def save_data(path: Path, count: int = 4, **more: Any) -> Path:
    np.savez(path, image=np.stack([s.feeds["image"] for s in pictures(count)]), **more)
    return path


def run(*arguments: object) -> Any:
    return runner.invoke(app, ["verify-command", *map(str, arguments)], env={"COLUMNS": "240"})


def test_the_command_says_zero_one_or_two(exported: tuple[nn.Module, Path], tmp_path: Path) -> None:
    a, data = exported[1], save_data(tmp_path / "d.npz")
    good = run(a, a, "--data", data, "--out", tmp_path / "good", "--positions", 256)
    assert good.exit_code == 0, good.output
    assert "They agree." in good.output and "256 of N = 256" in good.output
    report = load_report(tmp_path / "good" / "fidelity.json")
    assert report.passed and report.gates == ["conversion"] and report.samples == 4 and report.findings == []
    assert report.a.sha256 == report.b.sha256 and report.provenance.data_sha256
    b = change_weight(a, tmp_path / "b.onnx", "body.weight", lambda w: w * 1.5)
    bad = run(a, b, "--data", data, "--out", tmp_path / "bad", "--positions", 256)
    assert bad.exit_code == 1 and "They do not agree" in bad.output
    content = json.loads((tmp_path / "bad" / "fidelity.json").read_text())
    assert content["passed"] is False and content["reasons"] and content["findings"]
    plain = run(a, a, "--data", data, "--out", tmp_path / "plain", "--positions", 256, "--as-written")
    assert plain.exit_code == 0 and "net.onnx (A), optimised" in plain.output
    few = run(a, a, "--data", data, "--out", tmp_path / "few")
    assert few.exit_code == 1  # 256 positions prove nothing about 99.97 %
    for arguments, words in (
        ((tmp_path / "none.onnx", a), "no such file"),
        ((a, a), "cannot know what this engine is fed"),
        ((a, a, "--data", tmp_path / "none.npz"), "no such file"),
        ((a, a, "--data", data, "--gate", "both", "--logits", "nothing"), "no such output"),
        ((a, a, "--gate", "neither"), "unknown gate"),
        ((a, export(seeded(Net), tmp_path / "named.onnx", "scores"), "--data", data), "logits is missing and scores"),
    ):
        wrong = run(*arguments, "--out", tmp_path / "wrong")
        assert wrong.exit_code == 2 and words in wrong.output and "Traceback" not in wrong.output
        assert len(wrong.output.strip().splitlines()) == 1
    assert not (tmp_path / "wrong").exists()


def test_the_command_picks_the_gate_by_what_was_done(exported: tuple[nn.Module, Path], tmp_path: Path) -> None:
    base = {"numerics": ["float", "int64"], "parameters": 1000}
    assert not compressed(base, {"numerics": ["float"], "parameters": 990})
    assert compressed(base, {"numerics": ["float", "int8", "QuantizeLinear"], "parameters": 1010})
    assert compressed(base, {"numerics": ["float16"], "parameters": 1000})
    assert compressed(base, {"numerics": ["float"], "parameters": 600})
    int8 = {"numerics": ["int8", "QuantizeLinear"], "parameters": 1000}
    assert not compressed(int8, int8)


def test_the_detector_agrees_with_itself_and_its_scores_are_judged(tmp_path: Path) -> None:
    folder = MODELS / "triptych-detector"
    for number, view in enumerate(drive_views(5)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), view.pictures[0])
    report = verify(folder, folder, tmp_path, gate="both", max_loss=0.5, positions=500)
    assert report.passed, report.reasons
    assert report.conversion is not None and report.compression is not None
    assert report.conversion.top[0].head == "scores" and report.conversion.top[0].positions >= 500
    assert report.compression.metrics[0].metric == "agreement of scores" and report.compression.ablation is not None


def test_a_vlm_bundle_through_the_command(tmp_path: Path) -> None:
    bad = damaged_bundle(tmp_path / "bad", "head.bias", lambda w: w[::-1].copy())
    told: list[str] = []
    original = MODELS / "triptych-distilled"
    for number, view in enumerate(drive_views(4)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), view.pictures[0])
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    data = tmp_path / "pictures"
    data.mkdir()
    for picture in tmp_path.glob("*.png"):
        picture.rename(data / picture.name)
    report = verify(
        original, bad, data, tmp_path / "out", positions=20, progress=lambda what, done, total: told.append(what)
    )
    assert not report.passed and report.conversion is not None and report.findings
    assert set(told) == {"samples", "conversion"}
    again = load_report(tmp_path / "out" / "fidelity.json")
    assert again == report


def test_another_kind_of_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fidelity.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="is no fidelity report"):
        load_report(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_report(tmp_path / "none.json")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": np.zeros((0, 3))}, "no sample"),
        ({"image": np.zeros((2, 3)), "mask": np.zeros((3, 3))}, "mask: must have 2 samples"),
        ({"image": np.array([[np.nan]])}, "image: holds NaN"),
        ({"@length": np.zeros(2)}, "no input array"),
        ({"image": np.zeros((2, 3)), "@what": np.zeros(2)}, "@what: is no known name"),
        ({"image": np.array([{}, {}], object)}, "cannot be read"),
    ],
)
def test_data_that_cannot_be_used_is_refused(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(ConfigError, match=words):
        load_samples(path)


def test_data_brings_targets_lengths_references_and_slices(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(
        path, input_ids=np.arange(8).reshape(2, 1, 4), x=np.ones((2, 3)),
        **{"@length": [4, 2], "@targets": [[-1, 5, 6, 7], [-1, 3, 0, 0]], "@prompt": [2, 1],
           "@reference": ["a b", ""], "@slices": ["night, rain", ""]},
    )  # fmt: skip
    one, two = load_samples(path)
    assert one.feeds["input_ids"].shape == (1, 4) and two.feeds["input_ids"].tolist() == [[4, 5]]
    assert two.targets is not None and two.targets.tolist() == [-1, 3]
    assert (one.prompt, one.reference, one.slices) == (2, "a b", frozenset({"night", "rain"}))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_samples(tmp_path / "text.npz")


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no graph")
    for path in (tmp_path / "x.onnx", tmp_path / "none", tmp_path):
        with pytest.raises(TriptychError, match=str(tmp_path)):
            open_subject(path)
    with pytest.raises(ConfigError, match="the data lacks this input"):
        TorchSubject(seeded(Net), ["image"], ["logits"]).run({})
    assert command.SCHEMA_VERSION.startswith("1.")
