"""Adapters: the equation, frozen base weights, merging, and every misfit of an adapter file."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
pytest.importorskip("peft", reason="the forge extra is not installed")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych.engines.session import OnnxSession  # noqa: E402
from triptych.language.engine import cache_names, memory_names  # noqa: E402
from triptych_forge.adapt.lora import (  # noqa: E402
    Adapter,
    AdapterFacts,
    Trained,
    attach,
    load_adapter,
    merge,
    model_sha256,
    save_adapter,
    target_layers,
    train_adapter,
)
from triptych_forge.common import META  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.vlm.export import export  # noqa: E402
from triptych_forge.vlm.model import Shape, Vlm  # noqa: E402

torch.set_num_threads(1)
SHAPE = Shape(64, 32, 1, (8, 8, 16), (1, 1, 1), 32, 2, 2, 1, 48)
WORDS = 30
STEPS = 30


def small_model() -> Vlm:
    torch.manual_seed(4)
    return Vlm(SHAPE, WORDS).eval()


def batch(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "frames": torch.randint(0, 256, (3, 1, 32, 64, 3), generator=g, dtype=torch.uint8),
        "ages": torch.zeros(3, 1),
        "ids": torch.randint(0, WORDS, (3, 9), generator=g),
    }


def logits(model: nn.Module, b: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(b["frames"], b["ages"], b["ids"])[0]


def loss(model: nn.Module, b: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same made-up sentence whatever is seen: something an adapter can learn."""
    wanted = torch.arange(9).remainder(WORDS).expand(3, -1)
    return nn.functional.cross_entropy(logits(model, b).flatten(0, 1), wanted.flatten())


def train(model: nn.Module, **changes: Any) -> Trained:
    arguments: dict[str, Any] = {"scene": "night", "rank": 3, "alpha": 6.0, "steps": STEPS, "seed": 1}
    return train_adapter(model, [batch(1), batch(2)], loss, **{**arguments, "learning_rate": 1e-2, **changes})


@pytest.fixture(scope="module")
def model() -> Vlm:
    return small_model()


@pytest.fixture(scope="module")
def trained(model: Vlm) -> Trained:
    return train(model)


def test_training_lowers_the_loss_and_leaves_the_base_bit_for_bit(model: Vlm, trained: Trained) -> None:
    fresh = small_model().state_dict()
    assert trained.losses[-1] < 0.6 * trained.losses[0] and len(trained.losses) == STEPS
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())
    assert not model.training and all(p.requires_grad for p in model.parameters())


def test_the_layers_under_the_adapter_are_the_base_bit_for_bit(model: Vlm, trained: Trained) -> None:
    seen = attach(model, trained.adapter).state_dict()
    for name, value in model.state_dict().items():
        module, _, leaf = name.rpartition(".")
        kept = seen.get(name, seen.get(f"{module}.base_layer.{leaf}"))
        assert kept is not None and torch.equal(kept, value), name


def test_nothing_but_the_adapter_learns(model: Vlm) -> None:
    seen: list[nn.Module] = []

    def watching(adapted: nn.Module, b: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(adapted)
        return loss(adapted, b)

    result = train_adapter(model, [batch(1)], watching, scene="rain", rank=2, steps=4)
    after, before = seen[0].state_dict(), model.state_dict()
    for name, value in after.items():
        if ".lora_" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")]), name
    assert {n for n, p in seen[0].named_parameters() if p.requires_grad} == {n for n in after if ".lora_" in n}
    assert len(result.adapter.layers) == 6 * SHAPE.layers


def test_an_untrained_adapter_changes_nothing(model: Vlm) -> None:
    """B begins at zero, so training begins at the base model's output."""
    b = batch(3)
    zero = train(model, steps=1).adapter
    zero = Adapter(zero.facts, {n: torch.zeros_like(t) if n.endswith("lora_B") else t for n, t in zero.tensors.items()})
    assert torch.equal(logits(attach(model, zero), b), logits(model, b))


def test_the_same_recipe_gives_the_same_adapter(model: Vlm, trained: Trained) -> None:
    torch.manual_seed(99)  # the caller's generator does not matter, and is not moved
    state = torch.get_rng_state()
    again = train(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.adapter.sha256 == trained.adapter.sha256 and again.losses == trained.losses
    assert again.adapter.facts == trained.adapter.facts
    other = train(model, seed=2, steps=2).adapter
    assert other.sha256 != trained.adapter.sha256
    assert other.facts.recipe_sha256 != trained.adapter.facts.recipe_sha256


def test_nothing_is_fetched(model: Vlm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    train(model, steps=1)


class OneLayer(nn.Module):
    """A linear layer under a name that takes an adapter."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"qkv": nn.Linear(inside, outside)})])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0]["qkv"](x)


@settings(max_examples=25, deadline=None)
@given(
    inside=st.integers(1, 6),
    outside=st.integers(1, 6),
    rank=st.integers(1, 4),
    alpha=st.floats(0.1, 32.0),
    seed=st.integers(0, 2**16),
)
def test_the_equation(inside: int, outside: int, rank: int, alpha: float, seed: int) -> None:
    """y = W x + b + alpha / rank B A x (Hu et al. 2021, equation 3), against loops in float64; merged too."""
    torch.manual_seed(seed)
    model = OneLayer(inside, outside)
    a, b = torch.randn(rank, inside), torch.randn(outside, rank)
    adapter = Adapter(
        AdapterFacts("night", model_sha256(model), rank, alpha, "0"),
        {"layers.0.qkv.lora_A": a, "layers.0.qkv.lora_B": b},
    )
    x = torch.randn(2, inside)
    layer = model.layers[0]["qkv"]
    weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    wanted = np.zeros((2, outside))
    for row in range(2):
        for o in range(outside):
            wanted[row, o] = bias[o] + sum(weight[o, i] * float(x[row, i]) for i in range(inside))
            for k in range(rank):
                inner = sum(float(a[k, i]) * float(x[row, i]) for i in range(inside))
                wanted[row, o] += alpha / rank * float(b[o, k]) * inner
    with torch.no_grad():
        for adapted in (attach(model, adapter), merge(model, adapter)):
            np.testing.assert_allclose(adapted(x).numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_a_merged_adapter_says_the_same_in_torch(model: Vlm, trained: Trained) -> None:
    b = batch(5)
    with torch.no_grad():
        beside, inside, base = (
            logits(m, b) for m in (attach(model, trained.adapter), merge(model, trained.adapter), model)
        )
    assert float((beside - inside).abs().max()) <= 1e-5
    assert float((beside - base).abs().max()) > 1e-2


def test_merging_costs_nothing_and_leaves_plain_layers(model: Vlm, trained: Trained) -> None:
    merged = merge(model, trained.adapter)
    assert {n: tuple(t.shape) for n, t in merged.state_dict().items()} == {
        n: tuple(t.shape) for n, t in model.state_dict().items()
    }
    assert [type(m) for m in merged.modules()] == [type(m) for m in model.modules()]
    changed = {n for n, t in merged.state_dict().items() if not torch.equal(t, model.state_dict()[n])}
    assert changed == {f"{name}.weight" for name in trained.adapter.layers}


def test_a_merged_adapter_says_the_same_after_export(model: Vlm, trained: Trained, tmp_path: Path) -> None:
    """The exported graph of the merged model against the adapter beside its layers in torch."""
    _, path = export(merge(model, trained.adapter), tmp_path)
    b = batch(6)
    ids, frames, ages = b["ids"][:1], b["frames"][:1], b["ages"][:1]
    with torch.no_grad():
        adapted = attach(model, trained.adapter)
        wanted = logits(adapted, {"frames": frames, "ages": ages, "ids": ids})[0].numpy()
        memory = [t.numpy() for t in adapted.encoder(frames, ages)]
    feeds = dict(zip(memory_names(SHAPE.layers), memory, strict=True))
    empty = np.zeros((1, SHAPE.heads, 0, SHAPE.head_size), np.float32)
    feeds |= {"input_ids": ids.numpy(), "position_ids": np.arange(9)[None]}
    got = OnnxSession(path).run(feeds | dict.fromkeys(cache_names(SHAPE.layers, "past"), empty))[0]
    assert np.abs(got[0] - wanted).max() <= 1e-5


def test_an_adapter_survives_its_file(model: Vlm, trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "night.safetensors"
    save_adapter(path, trained.adapter)
    loaded = load_adapter(path, model)
    assert loaded.facts == trained.adapter.facts and loaded.sha256 == trained.adapter.sha256
    assert all(torch.equal(t, trained.adapter.tensors[n]) for n, t in loaded.tensors.items())


Tensors = dict[str, torch.Tensor]
FIRST = "decoder.layers.0.qkv.lora_A"


def _rename(t: Tensors, meta: dict[str, Any]) -> None:
    t["lora/decoder.layers.0.query_key.lora_A"] = t.pop(f"lora/{FIRST}")


def _nan(t: Tensors, meta: dict[str, Any]) -> None:
    t[f"lora/{FIRST}"][0, 0] = math.nan


def _infinite(t: Tensors, meta: dict[str, Any]) -> None:
    t["lora/decoder.layers.1.feed.2.lora_B"][1, 1] = -math.inf


DAMAGES: dict[str, tuple[Callable[[Tensors, dict[str, Any]], Any], tuple[str, ...]]] = {
    "renamed": (_rename, (f"missing: {FIRST}", "unknown: decoder.layers.0.query_key.lora_A")),
    "missing": (lambda t, m: t.pop(f"lora/{FIRST}"), (f"missing: {FIRST}",)),
    "extra": (lambda t, m: t.update({"lora/head.lora_A": torch.zeros(1)}), ("unknown: head.lora_A",)),
    "other group": (lambda t, m: t.update({"weights/head": torch.zeros(1)}), ("weights", "no adapter's")),
    "shape": (lambda t, m: t.update({f"lora/{FIRST}": torch.zeros(3, 31)}), (FIRST, "(3, 31)", "(3, 32)")),
    "type": (lambda t, m: t.update({f"lora/{FIRST}": t[f"lora/{FIRST}"].half()}), (FIRST, "float16")),
    "nan": (_nan, (FIRST, "NaN")),
    "infinity": (_infinite, ("decoder.layers.1.feed.2.lora_B", "infinity")),
    "value": (lambda t, m: t[f"lora/{FIRST}"].add_(1e-3), ("sha256", "changed")),
    "base": (lambda t, m: m.update(base_sha256="f" * 64), ("base_sha256", "ffffffffffff", "train it again")),
    "no rank": (lambda t, m: m.pop("rank"), ("rank", "missing")),
    "rank": (lambda t, m: m.update(rank=4), (FIRST, "(3, 32)", "(4, 32)")),
    "rank zero": (lambda t, m: m.update(rank=0), ("rank", "1 to 256")),
    "alpha": (lambda t, m: m.update(alpha="nan"), ("alpha",)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_adapter_is_refused_by_name(damage: str, model: Vlm, trained: Trained, tmp_path: Path) -> None:
    """V3: a renamed, missing or extra tensor, a wrong shape or a value that is not finite stops with the names."""
    path = tmp_path / "night.safetensors"
    save_adapter(path, trained.adapter)
    with safe_open(str(path), framework="pt") as file:
        meta = json.loads(file.metadata()[META])
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - no mapping
    edit, wanted = DAMAGES[damage]
    edit(tensors, meta)
    save_file({k: t.contiguous() for k, t in tensors.items()}, str(path), metadata={META: json.dumps(meta)})
    with pytest.raises(ConfigError) as caught:
        load_adapter(path, model)
    assert all(text in str(caught.value) for text in (*wanted, str(path))), str(caught.value)


def test_files_that_are_no_adapters(model: Vlm, tmp_path: Path) -> None:
    path = tmp_path / "night.safetensors"
    with pytest.raises(ConfigError, match="is no adapter file"):
        load_adapter(path, model)
    path.write_bytes(b"not this")
    with pytest.raises(ConfigError, match="is no adapter file"):
        load_adapter(path, model)


def test_another_model_is_not_adapted(model: Vlm, trained: Trained) -> None:
    """V3: one weight apart is another base; another size is another model."""
    other = small_model()
    with torch.no_grad():
        other.decoder.head.bias[0] += 1e-4
    assert model_sha256(other) != model_sha256(model)
    small = Vlm(Shape(64, 32, 1, (8, 8, 16), (1, 1, 1), 16, 2, 2, 1, 48), WORDS)
    with pytest.raises(ConfigError, match="has shape"):
        attach(small, trained.adapter)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scene": "Night drive"}, "scene"),
        ({"rank": 0}, "rank"),
        ({"steps": 0}, "steps"),
        ({"alpha": math.nan}, "alpha"),
        ({"alpha": 0.0}, "alpha"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"targets": "nothing"}, "targets"),
    ],
)
def test_a_wrong_recipe_is_named(changes: dict[str, Any], field: str, model: Vlm) -> None:
    with pytest.raises(ConfigError, match=field):
        train(model, **changes)


def test_nothing_to_train_on(model: Vlm) -> None:
    with pytest.raises(ConfigError, match="batches"):
        train_adapter(model, [], loss, scene="night")


def test_a_loss_that_is_not_finite_stops_at_its_step(model: Vlm) -> None:
    calls = []

    def breaking(adapted: nn.Module, b: dict[str, torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        return loss(adapted, b) * (math.nan if len(calls) == 3 else 1.0)

    with pytest.raises(ConfigError, match="not finite at step 2"):
        train_adapter(model, [batch(1)], breaking, scene="night", steps=9)
    assert len(calls) == 3


def test_progress_and_the_decision(model: Vlm, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    log = DecisionLog(tmp_path / "log.jsonl", {})
    result = train(model, steps=3, progress=lambda done, total: seen.append((done, total)), log=log)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    (decision,) = read_decisions(log.path)
    assert (decision.kind, decision.subject) == ("adapt.train", "night")
    assert decision.facts["sha256"] == result.adapter.sha256
    assert decision.facts["base_sha256"] == model_sha256(model)
    assert decision.facts["last_loss"] == result.losses[-1]


def test_only_the_decoder_is_adapted(model: Vlm) -> None:
    names = list(target_layers(model))
    assert len(names) == 12 and all(name.startswith("decoder.layers.") for name in names)
    assert list(target_layers(model.decoder)) == [name.removeprefix("decoder.") for name in names]
