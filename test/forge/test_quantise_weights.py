"""Four-bit weights: packing, round-to-nearest, AWQ, GPTQ, storage, the graph that runs them, and the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch", reason="the forge extra is not installed")
onnx = pytest.importorskip("onnx", reason="the forge extra is not installed")
pytest.importorskip("onnxscript", reason="the forge extra is not installed")

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge.common import load_checkpoint, save_checkpoint  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.quantise import weights as w4  # noqa: E402
from triptych_forge.quantise.measure import open_session, outputs_of, relative_l2, worst_relative_l2  # noqa: E402
from triptych_forge.vlm.model import Decoder, Shape  # noqa: E402

SHAPE = Shape(32, 32, 1, (8, 8, 8), (1, 1, 1), 48, 2, 4, 0, 80)
WORDS = 60


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def texts(count: int, seed: int) -> list[w4.DecoderInput]:
    rng = np.random.default_rng(seed)
    memory = (1, SHAPE.heads, SHAPE.tokens, SHAPE.head_size)
    return [
        w4.DecoderInput(
            rng.integers(0, WORDS, 10),
            tuple(rng.normal(size=memory).astype(np.float32) for _ in range(2 * SHAPE.layers)),
        )
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """With a few loud channels behind each normalisation, as trained decoders have them."""
    torch.manual_seed(3)
    net = Decoder(SHAPE, WORDS).eval()
    with torch.no_grad():
        for name, module in net.named_modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight[:4] *= 12.0
                torch.nn.init.uniform_(module.bias, -0.5, 0.5)
            if isinstance(module, torch.nn.Linear) and name == "head":
                module.weight.mul_(3.0)
    return net


def correlated(rows: int, columns: int, seed: int = 0, loud: int = 0) -> np.ndarray:
    """Inputs that share a few causes; the first ``loud`` channels are 20 times as large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)) @ rng.normal(size=(6, columns)) + 0.3 * rng.normal(size=(rows, columns))
    x[:, :loud] *= 20.0
    return x


def seen(x: np.ndarray) -> w4.InputStatistics:
    return w4.InputStatistics(x.T @ x, np.abs(x).sum(0), len(x))


# --- storage --------------------------------------------------------------------------------------------------------


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.integers(0, 15)))
def test_packing_round_trip(integers: np.ndarray) -> None:
    packed = w4.pack(integers)
    assert packed.shape == (integers.shape[0], -(-integers.shape[1] // 2))
    assert np.array_equal(w4.unpack(packed, integers.shape[1]), integers)
    assert packed[0, 0] & 0xF == integers[0, 0], "the first in the low half"


def test_packing_refuses_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"does not fit 4 bits \(got 16\)"):
        w4.pack(np.array([[16]], np.uint8))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("inputs", "group"), [(64, 32), (80, 32), (80, 64), (48, 16)])
def test_round_to_nearest_is_within_half_a_step(inputs: int, group: int, symmetric: bool) -> None:
    weight = np.random.default_rng(1).normal(size=(7, inputs)).astype(np.float32)
    options = w4.Int4Options(group, symmetric)
    found = w4.round_to_nearest(weight, options)
    assert found.integers.max() <= 15 and found.scale.shape == (7, -(-inputs // group))
    steps = np.repeat(found.scale, group, 1)[:, :inputs]
    assert (np.abs(found.dequantised() - weight) <= 0.5 * steps * (1 + 1e-5)).all()
    if symmetric:
        assert (found.zero == 8).all()
    # Each group on its own: another group's outlier changes nothing.
    loud = weight.copy()
    loud[:, group:] *= 100
    assert np.array_equal(w4.round_to_nearest(loud, options).dequantised()[:, :group], found.dequantised()[:, :group])


def test_size_is_half_a_byte_and_the_scales() -> None:
    weight = w4.round_to_nearest(np.ones((8, 128), np.float32), w4.Int4Options(32))
    assert weight.packed().shape == (8, 4, 16)
    assert weight.stored_bytes == 8 * 128 // 2 + 8 * 4 * 4 + 8 * 2


def test_a_file_holds_the_network(decoder: Decoder, tmp_path: Path) -> None:
    """V3: a tensor that is missing, extra or of another shape stops the load, by name."""
    made = w4.quantise_weights(decoder, "rtn", None)
    path = tmp_path / "int4.safetensors"
    size = w4.save_int4(path, made)
    full = tmp_path / "float.safetensors"
    save_checkpoint(full, {"net": decoder.state_dict()}, {})
    assert size < 0.6 * full.stat().st_size
    again = w4.load_int4(path, decoder)
    assert all(torch.equal(a, b) for a, b in zip(again.net.state_dict().values(), made.net.state_dict().values()))
    assert again.method == "rtn" and set(again.weights) == set(made.weights)

    groups, meta = load_checkpoint(path)
    for change, sentence in [
        (lambda g: g["scale"].pop("head"), "head: is missing"),
        (lambda g: g["dense"].pop("norm.bias"), r"norm\.bias: is missing"),
        (lambda g: g["dense"].update({"nose.bias": torch.zeros(1)}), r"nose\.bias: is not known"),
        (lambda g: g["dense"].update({"norm.bias": torch.zeros(3)}), r"norm\.bias: has shape \(3,\), not \(48,\)"),
    ]:
        spoilt = {kind: dict(tensors) for kind, tensors in groups.items()}
        change(spoilt)
        save_checkpoint(path, spoilt, meta)
        with pytest.raises(ConfigError, match=sentence):
            w4.load_int4(path, decoder)
    with pytest.raises(ConfigError, match="holds no 4-bit weights"):
        w4.load_int4(full, decoder)


# --- methods --------------------------------------------------------------------------------------------------------


def test_layer_error_is_the_output_s() -> None:
    x, rng = correlated(30, 10), np.random.default_rng(2)
    a, b = rng.normal(size=(2, 4, 10))
    assert w4.layer_error(a, b, x.T @ x) == pytest.approx(np.square(x @ (a - b).T).sum())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), symmetric=st.booleans(), inputs=st.sampled_from([32, 48, 80]))
def test_gptq_beats_rounding_on_correlated_inputs(seed: int, symmetric: bool, inputs: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(12, inputs)).astype(np.float32)
    x, options = correlated(300, inputs, seed), w4.Int4Options(32, symmetric)
    gram = x.T @ x
    nearest = w4.layer_error(weight, w4.round_to_nearest(weight, options).dequantised(), gram)
    found = w4.layer_error(weight, w4.gptq(weight, gram, options).dequantised(), gram)
    assert found <= nearest
    assert found < 0.8 * nearest, "on inputs with six causes it must gain clearly"


def test_gptq_on_independent_inputs_is_rounding() -> None:
    """Nothing can make up for an error when no other input carries the same thing."""
    weight = np.random.default_rng(4).normal(size=(5, 64)).astype(np.float32)
    found = w4.gptq(weight, np.eye(64) * 3.0)
    assert np.array_equal(found.integers, w4.round_to_nearest(weight).integers)
    # An input that was always zero is rounded too and breaks nothing.
    gram = correlated(200, 64).T @ correlated(200, 64)
    gram[5], gram[:, 5] = 0.0, 0.0
    dead = w4.gptq(weight, gram)
    assert np.isfinite(dead.dequantised()).all()


def test_gptq_step_by_hand() -> None:
    """Two inputs that are always equal: what the first loses, the second takes over whole (damping aside)."""
    gram = np.ones((2, 2)) + np.eye(2) * 1e-9
    weight = np.array([[0.33, 1.5]], np.float32)
    found = w4.gptq(weight, gram, w4.Int4Options(16), damping=1e-9).dequantised()[0]
    step = 1.5 / 15
    first = round(0.33 / step) * step
    assert found[0] == pytest.approx(first)
    assert found[1] == pytest.approx(min(15, round((1.5 + 0.33 - first) / step)) * step)
    assert abs(found.sum() - 1.83) <= step


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_awq_beats_rounding_when_channels_are_loud(seed: int) -> None:
    weight = np.random.default_rng(seed).normal(size=(12, 64)).astype(np.float32)
    statistics = seen(correlated(200, 64, seed, loud=3))
    plain = w4.layer_error(weight, w4.round_to_nearest(weight).dequantised(), statistics.gram)
    scale, alpha = w4.awq_scale(weight, statistics)
    scaled = w4.layer_error(weight, w4.round_to_nearest(weight * scale).dequantised() / scale, statistics.gram)
    assert scaled <= plain
    assert alpha > 0 and scaled < 0.7 * plain and scale[:3].mean() > scale[3:].mean()
    clipped = w4.layer_error(weight, w4.awq_clip(weight, statistics.gram).dequantised(), statistics.gram)
    assert clipped <= plain


def test_awq_s_scale_alone_changes_nothing(decoder: Decoder) -> None:
    import copy

    moved = copy.deepcopy(decoder)
    for linear, norm in w4.decoder_pairs(decoder).items():
        layer = moved.get_submodule(linear)
        scale = np.random.default_rng(0).uniform(0.3, 3.0, layer.in_features)
        w4._absorb(moved.get_submodule(norm), layer, scale)
    with torch.no_grad():
        one, other = (net(*texts(1, 9)[0].arguments())[0] for net in (decoder, moved))
    assert relative_l2(other.numpy(), one.numpy()) < 1e-5 and not torch.equal(decoder.norm.weight, moved.norm.weight)


def logits_of(net: torch.nn.Module, inputs: list[w4.DecoderInput]) -> np.ndarray:
    with torch.no_grad():
        return np.concatenate([net(*one.arguments())[0].numpy() for one in inputs])


def test_methods_on_a_decoder(decoder: Decoder, tmp_path: Path) -> None:
    run, held_out = w4.runner(texts(12, 1)), texts(6, 2)
    wanted, log = logits_of(decoder, held_out), DecisionLog(tmp_path / "log.jsonl", {})
    before = {k: v.clone() for k, v in decoder.state_dict().items()}
    made = {m: w4.quantise_weights(decoder, m, run, log=log) for m in w4.METHODS}
    assert all(torch.equal(before[k], v) for k, v in decoder.state_dict().items()), "the original is untouched"
    errors = {m: relative_l2(logits_of(r.net, held_out), wanted) for m, r in made.items()}
    assert errors["awq"] < errors["rtn"] and errors["gptq"] < errors["rtn"] < 0.5
    layers = 6 * SHAPE.layers + 1
    assert all(len(r.weights) == len(r.errors) == layers for r in made.values())
    assert next(iter(made["gptq"].weights)) == "layers.0.qkv" and list(made["gptq"].weights)[-1] == "head"
    for result in made.values():
        for name, weight in result.weights.items():
            held = result.net.get_submodule(name).weight.detach().numpy()
            assert np.array_equal(held, weight.dequantised())
    lines = read_decisions(log.path)
    assert len(lines) == 3 * layers and lines[0].kind == "quantise.weight"
    assert any("alpha" in line.facts for line in lines if line.facts["method"] == "awq")


def test_what_cannot_be_quantised_is_named(decoder: Decoder) -> None:
    import copy

    with pytest.raises(ConfigError, match="unknown, known are rtn, awq, gptq"):
        w4.quantise_weights(decoder, "guess", None)
    with pytest.raises(ConfigError, match="gptq needs in-domain inputs"):
        w4.quantise_weights(decoder, "gptq", None)
    with pytest.raises(ConfigError, match=r"exclude: no such linear layer \(got 'nose'\)"):
        w4.quantise_weights(decoder, "rtn", None, w4.Int4Options(exclude=("nose",)))
    with pytest.raises(ConfigError, match=r"layers\.0\.qkv: was never reached"):
        w4.quantise_weights(decoder, "gptq", lambda net: None)
    with pytest.raises(ConfigError, match="must be one of"):
        w4.Int4Options(group=7)
    with pytest.raises(ConfigError, match="no in-domain texts"):
        w4.runner([])
    broken = copy.deepcopy(decoder)
    with torch.no_grad():
        broken.head.weight[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"head\.weight: holds NaN"):
        w4.quantise_weights(broken, "rtn", None)


# --- graphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "group", "symmetric"), [("rtn", 32, False), ("gptq", 64, True), ("awq", 16, False)])
def test_four_bit_graph_is_the_dequantised_network(
    decoder: Decoder, method: str, group: int, symmetric: bool, tmp_path: Path
) -> None:
    """48 and 80 inputs are no multiples of 32 and 64: short last groups must be right too."""
    options = w4.Int4Options(group, symmetric)
    made = w4.quantise_weights(decoder, method, w4.runner(texts(4, 1)), options)
    plain = w4.export_decoder(made.net, tmp_path / "plain.onnx", texts(1, 1)[0])
    out = w4.to_matmul_nbits(plain, made.weights, tmp_path / "int4.onnx")
    kinds = [n.op_type for n in onnx.load(str(out)).graph.node]
    assert kinds.count("MatMulNBits") == len(made.weights)
    assert out.stat().st_size < 0.65 * plain.stat().st_size
    feeds = [t.feed() for t in texts(3, 5)]
    wanted = outputs_of(open_session(plain), feeds)
    assert worst_relative_l2(outputs_of(open_session(out), feeds), wanted) < 1e-4
    assert relative_l2(wanted[0]["logits"], logits_of(made.net, texts(3, 5)[:1])) < 1e-5
    # A token at a time through the cache, as the runtime does it.
    session, one = open_session(out), texts(3, 5)[0]
    feed = one.feed()
    for at in range(len(one.input_ids)):
        feed |= {"input_ids": one.input_ids[None, at : at + 1], "position_ids": np.array([[at]])}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed), strict=True))
        feed |= {n.replace("present", "past"): v for n, v in found.items() if n.startswith("present")}
    assert relative_l2(found["logits"][0, -1], wanted[0]["logits"][0, -1]) < 1e-4


def test_a_graph_without_the_weight_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    made = w4.quantise_weights(decoder, "rtn", None)
    plain = w4.export_decoder(decoder, tmp_path / "plain.onnx", texts(1, 1)[0])  # the original, not made.net
    with pytest.raises(ConfigError, match=r"layers\.0\.qkv: the graph does not hold"):
        w4.to_matmul_nbits(plain, made.weights, tmp_path / "int4.onnx")
    assert not (tmp_path / "int4.onnx").exists()


@pytest.mark.parametrize("method", ["ptq-int8", "qat-int8"])
def test_eight_bit_decoders_run_in_integers(decoder: Decoder, method: str, tmp_path: Path) -> None:
    path = w4.standard_makers(decoder, texts(3, 1), plan=w4.QatPlan(steps=1))[method](tmp_path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = [n.op_type for n in onnx.load(str(tmp_path / "optimised.onnx")).graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 6 * SHAPE.layers + 1
    assert "DequantizeLinear" not in kinds, "nothing is converted back at run time"


def test_every_method_gets_its_row(decoder: Decoder, tmp_path: Path) -> None:
    parent = w4.export_decoder(decoder, tmp_path / "parent.onnx", texts(1, 1)[0])
    makers = w4.standard_makers(decoder, texts(8, 1), plan=w4.QatPlan(steps=10))
    log = DecisionLog(tmp_path / "log.jsonl", {})
    rows = w4.compare_weight_methods(
        parent,
        makers,
        [t.feed() for t in texts(4, 2)],
        tmp_path,
        accuracy=lambda path: float(len(path.name)),
        runs=3,
        log=log,
    )
    table = {row.method: row for row in rows}
    assert list(table) == ["float", "rtn", "awq", "gptq", "ptq-int8", "qat-int8"]
    assert table["float"].error == table["float"].kl == 0.0 and table["float"].beats_rtn is None
    for method in ("awq", "gptq", "ptq-int8", "qat-int8"):
        row = table[method]
        assert row.beats_rtn is (row.kl < table["rtn"].kl) and 0 < row.error < 0.5
        assert row.bytes < table["float"].bytes and row.median_ms > 0 and row.accuracy == len(f"{method}.onnx")
    assert table["gptq"].beats_rtn and table["qat-int8"].beats_rtn
    assert [d.subject for d in read_decisions(log.path)] == list(table)
    with pytest.raises(ConfigError, match="nothing was held out"):
        w4.compare_weight_methods(parent, makers, [], tmp_path)
