"""Switching adapters in one session: exact, keyed by content, and closed to everything that does not fit."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from full_disk import small_disk
from triptych.contract import ConfigError, EngineError
from triptych.engines.session import OnnxSession
from triptych.language.adapters import (
    NO_ADAPTER,
    AdaptedSession,
    AdapterStore,
    base_version,
    cache_key,
    content_sha256,
    measure,
)
from triptych.language.engine import cache_names, memory_names

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
onnx = pytest.importorskip("onnx", reason="the forge extra is not installed")
from onnx import helper, numpy_helper  # noqa: E402

from triptych_forge.adapt.export import export_switchable, write_adapter  # noqa: E402
from triptych_forge.adapt.lora import Adapter, AdapterFacts, model_sha256, target_layers  # noqa: E402
from triptych_forge.vlm.export import export  # noqa: E402
from triptych_forge.vlm.model import Shape, Vlm  # noqa: E402

torch.set_num_threads(1)
SHAPE = Shape(64, 32, 1, (8, 8, 16), (1, 1, 1), 32, 2, 2, 1, 48)
WORDS = 30
FORMS = ("low_rank", "weights")
Feeds = dict[str, np.ndarray]


class World:
    """A small decoder in torch and as switchable graphs of both forms, and a maker of adapters."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(4)
        self.folder = folder
        self.model = Vlm(SHAPE, WORDS).eval()
        self.base_sha256 = model_sha256(self.model)
        _, self.plain = export(self.model, folder)
        layers = list(target_layers(self.model))
        self.graphs = {
            form: export_switchable(self.plain, folder / f"{form}.onnx", layers, self.base_sha256, form)
            for form in FORMS
        }

    def adapter(self, seed: int, rank: int = 2, base: str | None = None) -> Adapter:
        g = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, layer in target_layers(self.model).items():
            tensors[f"{name}.lora_A"] = torch.randn(rank, layer.in_features, generator=g) * 0.2
            tensors[f"{name}.lora_B"] = torch.randn(layer.out_features, rank, generator=g) * 0.2
        return Adapter(AdapterFacts("night", base or self.base_sha256, rank, 3.0, "0"), tensors)

    def file(self, form: str, seed: int, **changes: Any) -> tuple[Path, str]:
        path = self.folder / f"{form}-{seed}-{len(changes)}.onnx_adapter"
        return path, write_adapter(self.adapter(seed, **changes), path, form, self.model)

    def changed_model(self, adapter: Adapter) -> Vlm:
        """The model with the adapter worked into its weights in float64, without any library."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for name in adapter.layers:
                layer = model.get_submodule(name)
                product = adapter.tensors[f"{name}.lora_B"].double() @ adapter.tensors[f"{name}.lora_A"].double()
                layer.weight.copy_(layer.weight.double() + adapter.facts.scaling * product)
        return model

    def store(self, form: str = "low_rank") -> tuple[AdaptedSession, AdapterStore]:
        session = AdaptedSession(self.graphs[form])
        return session, AdapterStore(session)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("adapters"))


def feeds_of(seed: int = 0, tokens: int = 5) -> Feeds:
    rng = np.random.default_rng(seed)
    memory = (1, SHAPE.heads, SHAPE.tokens, SHAPE.head_size)
    past = (1, SHAPE.heads, 0, SHAPE.head_size)
    return {
        "input_ids": rng.integers(0, WORDS, (1, tokens)),
        "position_ids": np.arange(tokens)[None],
        **{n: rng.normal(size=memory).astype(np.float32) for n in memory_names(SHAPE.layers)},
        **{n: np.zeros(past, np.float32) for n in cache_names(SHAPE.layers, "past")},
    }


def torch_logits(model: Vlm, feeds: Feeds) -> np.ndarray:
    memory = [torch.from_numpy(feeds[n]) for n in memory_names(SHAPE.layers)]
    with torch.no_grad():
        out = model.decoder(torch.from_numpy(feeds["input_ids"]), torch.from_numpy(feeds["position_ids"]), memory)
    return out[0].numpy()


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_runtime_side_needs_no_torch() -> None:
    code = "import sys, triptych.language.adapters as _; print([m for m in ('torch', 'onnx') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("form", FORMS)
def test_without_an_adapter_it_is_the_base_decoder(form: str, world: World) -> None:
    session, _ = world.store(form)
    plain = OnnxSession(world.plain)
    assert session.inputs == plain.inputs and session.outputs == plain.outputs
    for got, wanted in zip(session.run(feeds_of()), plain.run(feeds_of()), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_with_an_adapter_it_is_the_adapted_model(form: str, rank: int, world: World) -> None:
    """Within 1e-5 of the model with the adapter worked into its weights."""
    session, store = world.store(form)
    path, _ = world.file(form, 7 + rank, rank=rank)
    store.load(path, "night")
    store.use("night")
    wanted = torch_logits(world.changed_model(world.adapter(7 + rank, rank)), feeds_of(1))
    got = session.run(feeds_of(1))[0]
    assert np.abs(got - wanted).max() <= 1e-5
    assert np.abs(got - torch_logits(world.model, feeds_of(1))).max() > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_again_is_bit_for_bit(form: str, world: World) -> None:
    """V2: A, B, A gives A's very bits, and so does the base between them; several tokens and a cache are in play."""
    session, store = world.store(form)
    for name, seed in (("night", 1), ("rain", 2)):
        store.load(world.file(form, seed)[0], name)

    def answer() -> list[Any]:
        first = session.run(feeds_of(3))
        feeds = feeds_of(3, 1) | dict(zip(cache_names(SHAPE.layers, "past"), first[1:], strict=True))
        feeds["position_ids"] = np.array([[5]])
        return [*first, *session.run(feeds)]

    base = answer()
    seen = {}
    for name in ("night", "rain", "night", None, "rain", "night"):
        switch = store.use(name)
        assert switch.sha256 == store.active_sha256 and switch.switch_ms >= 0.0
        now = answer()
        assert equal(seen.setdefault(name, now), now), name
    assert equal(seen[None], base)
    assert not equal(seen["night"], seen["rain"]) and not equal(seen["night"], base)


def test_a_new_session_gives_the_same_bits(world: World) -> None:
    outputs = []
    for others in ([], [5, 6]):
        session, store = world.store()
        for seed in [*others, 1]:
            store.load(world.file("low_rank", seed)[0], f"scene{seed}")
            store.use(f"scene{seed}")
            session.run(feeds_of())
        outputs.append(session.run(feeds_of()))
    assert equal(*outputs)


def test_the_same_name_with_new_content_is_another_adapter(world: World, tmp_path: Path) -> None:
    """V2: no reuse across contents: another hash, another cache key, another output, though name and path stay."""
    session, store = world.store()
    path = tmp_path / "night.onnx_adapter"
    path.write_bytes(world.file("low_rank", 1)[0].read_bytes())
    first = store.load(path, "night")
    store.use("night")
    before = session.run(feeds_of())
    path.write_bytes(world.file("low_rank", 2)[0].read_bytes())
    assert equal(session.run(feeds_of()), before)  # the file is no longer looked at
    second = store.load(path, "night")
    assert second.sha256 != first.sha256
    assert store.active_sha256 == first.sha256 and equal(session.run(feeds_of()), before)  # until it is switched to
    switch = store.use("night")
    assert (switch.previous_sha256, switch.sha256) == (first.sha256, second.sha256)
    assert not equal(session.run(feeds_of()), before)
    assert len(store) == 1  # nothing leads to the first content any more
    keys = {cache_key("p", "resize", 4, a.sha256) for a in (first, second)} | {cache_key("p", "resize", 4, NO_ADAPTER)}
    assert len(keys) == 3


def test_the_same_content_under_two_names_is_one_adapter(world: World) -> None:
    _, store = world.store()
    path, digest = world.file("low_rank", 1)
    a, b = store.load(path, "night"), store.load(path, "dusk", digest)
    assert a is b and len(store) == 1 and store.names == {"night": digest, "dusk": digest}
    store.use("night")
    assert store.use("dusk").previous_sha256 == digest


def test_reloading_does_not_grow(world: World) -> None:
    """V12: 200 reloads of changing content under one name leave one adapter, or two where one of them is in use."""
    _, store = world.store()
    paths = [world.file("low_rank", seed)[0] for seed in (1, 2, 3)]
    for turn in range(200):
        store.load(paths[turn % 2], "night")
        assert len(store) == 1
    store.use("night")
    for turn in range(4):
        store.load(paths[turn % 2 * 2], "night")
    assert len(store) == 2
    store.use("night")
    assert len(store) == 1


def rewritten(path: Path, out: Path, edit: Callable[[dict[str, np.ndarray]], Any], version: int | None = None) -> Path:
    """The adapter file with its tensors edited."""
    content = ort.AdapterFormat.read_adapter(str(path))
    tensors = {k: np.array(v.numpy()) for k, v in content.get_parameters().items()}
    edit(tensors)
    new = ort.AdapterFormat()
    new.set_model_version(content.get_model_version() if version is None else version)
    new.set_parameters({k: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(t)) for k, t in tensors.items()})
    new.export_adapter(str(out))
    return out


A, B = "decoder.layers.0.qkv.lora_A", "decoder.layers.0.qkv.lora_B"
DAMAGES: dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], tuple[str, ...]]] = {
    "missing": (lambda t: t.pop(A), (A, "is missing")),
    "unknown": (lambda t: t.update(other=np.zeros(1, np.float32)), ("other", "unknown")),
    "shape": (lambda t: t.update({A: np.zeros((31, 2), np.float32)}), (A, "31x2", "32x2")),
    "dimensions": (lambda t: t.update({A: np.zeros(32, np.float32)}), (A, "32x")),
    "two ranks": (lambda t: t.update({B: np.zeros((3, 96), np.float32)}), (B, "3x96", "2x96")),
    "type": (lambda t: t.update({A: t[A].astype(np.float64)}), (A, "float64", "float32")),
    "nan": (lambda t: t[A].__setitem__((0, 0), math.nan), (A, "NaN")),
    "infinity": (lambda t: t[B].__setitem__((0, 0), math.inf), (B, "infinity")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_the_graph_is_refused_by_name(damage: str, world: World, tmp_path: Path) -> None:
    """V3, on the vehicle: names, shapes, types and values are checked against the graph before anything changes."""
    session, store = world.store()
    good, _ = world.file("low_rank", 1)
    store.load(good, "night")
    store.use("night")
    before = session.run(feeds_of())
    edit, wanted = DAMAGES[damage]
    bad = rewritten(good, tmp_path / "bad.onnx_adapter", edit)
    with pytest.raises(EngineError) as caught:
        store.load(bad, "night")
    assert all(text in str(caught.value) for text in (*wanted, str(bad))), str(caught.value)
    store.use("night")
    assert equal(session.run(feeds_of()), before) and len(store) == 1


def test_an_adapter_of_another_base_is_refused(world: World) -> None:
    _, store = world.store()
    path, _ = world.file("low_rank", 1, base="1" * 64)
    with pytest.raises(EngineError, match="another base model"):
        store.load(path, "night")


def test_a_pinned_hash_is_held_to(world: World) -> None:
    """V2: the manifest pins the content; one value apart is refused."""
    _, store = world.store()
    path, digest = world.file("low_rank", 1)
    assert store.load(path, "night", digest).sha256 == digest
    with pytest.raises(EngineError, match=r"content hash is .*expected"):
        store.load(world.file("low_rank", 2)[0], "night", digest)
    assert store.names == {"night": digest}


def test_files_that_are_no_adapters(world: World, tmp_path: Path) -> None:
    _, store = world.store()
    with pytest.raises(EngineError, match="cannot be read"):
        store.load(tmp_path / "none.onnx_adapter", "night")
    path, _ = world.file("low_rank", 1)
    for content in (b"", b"no adapter at all, but some bytes", path.read_bytes()[:200]):
        bad = tmp_path / "bad.onnx_adapter"
        bad.write_bytes(content)
        with pytest.raises(EngineError, match="is no adapter file"):
            store.load(bad, "night")


def test_a_full_folder_for_the_private_copy_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter in use stays in use."""
    _, store = world.store()
    path, digest = world.file("low_rank", 1)
    store.load(path, "night")
    with small_disk(tmp_path) as disk:
        disk.fill()
        monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
        with pytest.raises(EngineError, match=r"No space left.*TMPDIR") as caught:
            store.load(world.file("low_rank", 2)[0], "night")
        assert str(disk.path) in str(caught.value) and store.names == {"night": digest}
        disk.free()
        store.load(world.file("low_rank", 2)[0], "night")
        assert store.names != {"night": digest}


def test_an_adapter_of_the_other_form_is_refused(world: World) -> None:
    _, store = world.store("weights")
    with pytest.raises(EngineError, match="is missing"):
        store.load(world.file("low_rank", 1)[0], "night")


def test_an_unknown_name_lists_the_known(world: World) -> None:
    _, store = world.store()
    store.load(world.file("low_rank", 1)[0], "night")
    with pytest.raises(EngineError, match="loaded are night"):
        store.use("rain")


def test_a_decoder_with_packed_weights_is_adapted_beside_them(world: World, tmp_path: Path) -> None:
    """Weights of 4 bits stay as they are; the adapter changes the output as it does over float weights."""
    quantiser = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer").MatMulNBitsQuantizer
    packing = quantiser(str(world.plain), block_size=32, is_symmetric=True)
    packing.process()
    packing.model.save_model_to_file(str(tmp_path / "packed.onnx"))
    layers = list(target_layers(world.model))
    graph = export_switchable(tmp_path / "packed.onnx", tmp_path / "s.onnx", layers, world.base_sha256)
    session, (floating, other) = AdaptedSession(graph), world.store()
    store = AdapterStore(session)
    base = session.run(feeds_of())[0]
    np.testing.assert_allclose(base, OnnxSession(tmp_path / "packed.onnx").run(feeds_of())[0], atol=1e-5)
    before = floating.run(feeds_of())[0]
    for one in (store, other):
        one.load(world.file("low_rank", 1)[0], "night")
        one.use("night")
    here, there = session.run(feeds_of())[0] - base, floating.run(feeds_of())[0] - before
    assert np.corrcoef(here.ravel(), there.ravel())[0, 1] > 0.9
    with pytest.raises(ConfigError, match="no float32 constant; use the form low_rank"):
        export_switchable(tmp_path / "packed.onnx", tmp_path / "w.onnx", layers, world.base_sha256, "weights")


def test_a_decoder_with_dequantised_weights_is_adapted_beside_them(world: World, tmp_path: Path) -> None:
    model = onnx.load(str(world.plain))
    node = next(n for n in model.graph.node if n.name.endswith("layers.0/qkv/MatMul"))
    weight = next(t for t in model.graph.initializer if t.name == node.input[1])
    scale = np.abs(numpy_helper.to_array(weight)).max() / 127
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.rint(numpy_helper.to_array(weight) / scale).astype(np.int8), "q"),
            numpy_helper.from_array(np.array(scale, np.float32), "s"),
        ]
    )
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "s"], ["dq"]))
    node.input[1] = "dq"
    onnx.save(model, str(tmp_path / "qdq.onnx"))
    session = AdaptedSession(
        export_switchable(tmp_path / "qdq.onnx", tmp_path / "s.onnx", ["decoder.layers.0.qkv"], world.base_sha256)
    )
    assert [s for s, _ in session.adapter_inputs.values()] == [
        (32, "decoder.layers.0.qkv.rank"),
        ("decoder.layers.0.qkv.rank", 96),
    ]


def test_a_layer_that_the_graph_does_not_have_is_named(world: World, tmp_path: Path) -> None:
    """V3: a renamed layer stops the export by name."""
    with pytest.raises(ConfigError, match=r"layers\.0\.query_key: has 0 products"):
        export_switchable(world.plain, tmp_path / "s.onnx", ["decoder.layers.0.query_key"], world.base_sha256)
    assert not (tmp_path / "s.onnx").exists()


def test_replaced_weights_need_the_model(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the base model"):
        write_adapter(world.adapter(1), tmp_path / "a.onnx_adapter", "weights")


def test_a_plain_decoder_takes_no_adapters(world: World) -> None:
    with pytest.raises(EngineError, match="takes no adapters"):
        AdaptedSession(world.plain)


def test_wrong_feeds_are_an_engine_error(world: World) -> None:
    session, _ = world.store()
    with pytest.raises(EngineError, match="inference failed"):
        session.run({"input_ids": np.zeros((1, 1), np.int64)})


def test_the_same_adapter_makes_the_same_file(world: World, tmp_path: Path) -> None:
    one = world.adapter(1)
    turned = Adapter(one.facts, dict(reversed(one.tensors.items())))
    files = [tmp_path / name for name in ("a", "b")]
    digests = {write_adapter(adapter, file) for adapter, file in zip((one, turned), files)}
    assert len(digests) == 1 and files[0].read_bytes() == files[1].read_bytes()


def test_a_switch_is_quick_and_the_first_run_no_slower(world: World) -> None:
    """V11: the first run after a switch is not the start of anything; generous bounds, since machines are shared."""
    session, store = world.store()
    for name, seed in (("night", 1), ("rain", 2)):
        store.load(world.file("low_rank", seed)[0], name)
    times = measure(session, store, ["night", "rain"], feeds_of(), rounds=20)
    assert 0.0 < times.switch_ms < 5.0
    assert 0.0 < times.first_run_ms < 3.0 * times.steady_run_ms + 1.0
    with pytest.raises(ValueError, match="two adapters"):
        measure(session, store, ["night"], feeds_of())


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5),
        hnp.arrays(
            np.float32, hnp.array_shapes(min_dims=0, max_dims=2, max_side=3), elements=st.floats(-9, 9, width=32)
        ),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_the_hash_is_of_the_content(tensors: dict[str, np.ndarray], data: st.DataObject) -> None:
    digest = content_sha256(tensors)
    assert content_sha256(dict(reversed(tensors.items()))) == digest
    assert content_sha256({k: np.asfortranarray(v) if v.ndim else v for k, v in tensors.items()}) == digest
    name = data.draw(st.sampled_from(sorted(tensors)))
    rest = {k: v for k, v in tensors.items() if k != name}
    changed = [
        rest,
        {**rest, f"{name}'": tensors[name]},
        {**rest, name: tensors[name].astype(np.float64)},
        {**rest, name: tensors[name][None]},
        {**rest, name: np.nextafter(tensors[name], np.float32(99))},
    ]
    assert digest not in {content_sha256(c) for c in changed}


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(min_size=1, max_size=3), st.integers(0, 9)), max_size=6)
)
def test_cache_keys_are_equal_only_for_equal_parts(parts: list[tuple[str, str, int]]) -> None:
    """V1, V2: pixels, preprocessing, position and adapter are each part of the key."""
    keys = {(p, q, n, a): cache_key(p, q, n, a) for p, q, n in parts for a in (NO_ADAPTER, "x")}
    assert len(set(keys.values())) == len(keys)


def test_a_cache_key_needs_all_its_parts() -> None:
    for arguments in (("", "b", 0, "d"), ("a", "", 0, "d"), ("a", "b", 0, "")):
        with pytest.raises(ValueError, match="every part"):
            cache_key(*arguments)


def test_the_base_version_fits_the_file_format() -> None:
    assert base_version("f" * 64) == 2**28 - 1 and base_version("0" * 64) == 0
