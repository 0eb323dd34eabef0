"""Four-bit weights for decoders: groups along the input axis, three ways to choose the integers, one way to store them.

* ``rtn`` rounds to the nearest step.
* ``awq`` scales input channels that carry large activations up before rounding and the normalisation before the layer
  down, and clips groups where that costs less: Lin et al., "AWQ: Activation-aware Weight Quantization", 2023, sections
  3.2 (equations 4 and 5) and 4.
* ``gptq`` rounds column by column and lets the columns still to come make up for the error: Frantar et al., "GPTQ",
  2022, algorithm 1. Own code in numpy: ONNX Runtime's and NNCF's work on graphs or Hugging Face models only.

Layer errors are || X (W - Q)^T ||, taken from the Gram matrix X^T X of the layer's inputs on in-domain tokens.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych.language.engine import cache_names, memory_names
from triptych_forge.common import load_checkpoint, save_checkpoint
from triptych_forge.decisions import DecisionLog
from triptych_forge.quantise import ptq, qat
from triptych_forge.quantise.accept import measure_alternately, onnx_runner
from triptych_forge.quantise.affine import Floats, Grid, parameters, quantise
from triptych_forge.quantise.measure import mean_kl, open_session, outputs_of, relative_l2
from triptych_forge.vlm.export import DecoderGraph, write_graph
from triptych_forge.vlm.model import Decoder

BITS = 4
LEVELS = 1 << BITS
GROUPS = (16, 32, 64, 128)
"""Group sizes that MatMulNBits takes and that make sense for small decoders."""
METHODS = ("rtn", "awq", "gptq")
EXPONENTS = tuple(np.linspace(0.0, 1.0, 21))
"""AWQ's search for alpha in s = mean|x|^alpha; 0 is round-to-nearest."""
SHRINKS = tuple(np.linspace(1.0, 0.6, 9))
"""Shares of a group's range that clipping tries."""
DAMPING = 0.01
"""GPTQ's share of the mean diagonal added to the Hessian."""

Run = Callable[[nn.Module], None]
"""Runs a network on in-domain inputs."""


@dataclass(frozen=True)
class Int4Options:
    """How to quantise weights. ``symmetric``: zero-point 8 everywhere. ``exclude``: names of layers left in float."""

    group: int = 32
    symmetric: bool = False
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ConfigError(f"must be one of {GROUPS}", field="group", value=self.group)

    @property
    def grid(self) -> Grid:
        """0..15."""
        return Grid(BITS, False, self.symmetric)


@dataclass(frozen=True)
class GroupWeight:
    """A weight in 4 bits.

    Attributes:
        integers: (outputs, inputs) uint8, 0..15.
        scale: (outputs, groups) float32.
        zero: (outputs, groups) uint8, 0..15.
        group: inputs per scale; the last group may be shorter.
    """

    integers: npt.NDArray[np.uint8]
    scale: Floats
    zero: npt.NDArray[np.uint8]
    group: int

    def dequantised(self) -> Floats:
        """(outputs, inputs) float32: scale (integer - zero)."""
        inputs = self.integers.shape[1]
        scale, zero = (
            np.repeat(part.astype(np.float32), self.group, 1)[:, :inputs] for part in (self.scale, self.zero)
        )
        real: Floats = (self.integers.astype(np.float32) - zero) * scale
        return real

    def packed(self) -> npt.NDArray[np.uint8]:
        """(outputs, groups, group / 2) uint8, the even input in the low half: MatMulNBits' layout."""
        outputs, inputs = self.integers.shape
        padded = np.zeros((outputs, self.scale.shape[1] * self.group), np.uint8)
        padded[:, :inputs] = self.integers
        return pack(padded).reshape(outputs, self.scale.shape[1], self.group // 2)

    def packed_zero(self) -> npt.NDArray[np.uint8]:
        """(outputs, ceil(groups / 2)) uint8."""
        return pack(self.zero)

    @property
    def stored_bytes(self) -> int:
        """Of the packed integers, scales and zero-points."""
        return self.packed().nbytes + self.scale.nbytes + self.packed_zero().nbytes


def pack(integers: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(rows, n) of 0..15 to (rows, ceil(n / 2)): two per byte, the first in the low half.

    Raises:
        ConfigError: an integer above 15.
    """
    if integers.size and int(integers.max()) >= LEVELS:
        raise ConfigError("does not fit 4 bits", field="integers", value=int(integers.max()))
    if integers.shape[1] % 2:
        integers = np.pad(integers, ((0, 0), (0, 1)))
    return (integers[:, ::2] | (integers[:, 1::2] << 4)).astype(np.uint8)


def unpack(packed: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8]:
    """The first ``count`` integers of each row of :func:`pack`'s result."""
    wide = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
    wide[:, ::2], wide[:, 1::2] = packed & 0xF, packed >> 4
    return wide[:, :count]


def _in_groups(weight: npt.NDArray[Any], group: int) -> npt.NDArray[Any]:
    """(outputs, inputs) to (outputs, groups, group), zeros added at the end."""
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    return np.pad(weight, ((0, 0), (0, groups * group - inputs))).reshape(outputs, groups, group)


def round_to_nearest(
    weight: npt.NDArray[Any], options: Int4Options = Int4Options(), shrink: npt.ArrayLike = 1.0
) -> GroupWeight:
    """Each group on its own grid, each value to the nearest step.

    Args:
        weight: (outputs, inputs).
        options: group size and symmetry.
        shrink: share of each group's range to keep, a scalar or (outputs, groups).

    Raises:
        ConfigError: a weight that is not finite.
    """
    weight = np.asarray(weight, np.float32)
    if not np.isfinite(weight).all():
        raise ConfigError("holds NaN or infinity", field="weight")
    parts = _in_groups(weight, options.group)
    outputs, groups, size = parts.shape
    keep = np.broadcast_to(np.asarray(shrink, np.float32), (outputs, groups)).reshape(-1)
    low, high = parts.min(2).reshape(-1) * keep, parts.max(2).reshape(-1) * keep
    affine = parameters(np.minimum(low, 0), np.maximum(high, 0), options.grid, 0)
    integers = quantise(parts.reshape(outputs * groups, size), affine).reshape(outputs, groups * size)
    return GroupWeight(
        integers[:, : weight.shape[1]],
        affine.scale.reshape(outputs, groups),
        affine.zero_point.reshape(outputs, groups),
        options.group,
    )


@dataclass
class InputStatistics:
    """What went into a layer. ``gram``: X^T X (inputs, inputs) float64; ``magnitude``: sum of |x| (inputs,)."""

    gram: npt.NDArray[np.float64]
    magnitude: npt.NDArray[np.float64]
    rows: int = 0

    @property
    def mean_magnitude(self) -> npt.NDArray[np.float64]:
        """Mean |x| per input channel."""
        return self.magnitude / max(1, self.rows)


@torch.no_grad()
def input_statistics(net: nn.Module, run: Run, names: Sequence[str] | None = None) -> dict[str, InputStatistics]:
    """Statistics of the inputs of linear layers, in the order in which they first ran.

    Raises:
        ConfigError: a named layer never ran, or its input is not finite.
    """
    found: dict[str, InputStatistics] = {}
    handles = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            x = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).double().numpy()
            if not np.isfinite(x).all():
                raise ConfigError("its input is not finite", field=name)
            entry = found.setdefault(name, InputStatistics(np.zeros((x.shape[1],) * 2), np.zeros(x.shape[1])))
            entry.gram += x.T @ x
            entry.magnitude += np.abs(x).sum(0)
            entry.rows += len(x)

        return hook

    for name, module in net.named_modules():
        if isinstance(module, nn.Linear) and (names is None or name in names):
            handles.append(module.register_forward_pre_hook(watch(name)))
    try:
        run(net.eval())
    finally:
        for handle in handles:
            handle.remove()
    for name in names or ():
        if name not in found:
            raise ConfigError("was never reached", field=name, remedy="calibrate with inputs that run every layer")
    return found


def layer_error(weight: npt.NDArray[Any], quantised: npt.NDArray[Any], gram: npt.NDArray[np.float64]) -> float:
    """|| X (W - Q)^T ||^2 (Frobenius) = sum over outputs of d gram d^T, d a row of W - Q."""
    d = np.asarray(weight, np.float64) - np.asarray(quantised, np.float64)
    return float(np.einsum("ni,ij,nj->", d, gram, d, optimize=True))


def gptq(
    weight: npt.NDArray[Any],
    gram: npt.NDArray[np.float64],
    options: Int4Options = Int4Options(),
    damping: float = DAMPING,
) -> GroupWeight:
    """Frantar et al. 2022, algorithm 1, without its blocks of columns, which only save memory traffic.

    Scale and zero-point of a group are taken from its weights when its first column comes, errors so far included.

    Args:
        weight: (outputs, inputs).
        gram: X^T X; the Hessian up to a factor that cancels.
        options: group size and symmetry.
        damping: of the mean diagonal.

    Raises:
        ConfigError: a weight that is not finite.
    """
    w = np.array(weight, np.float64)
    if not np.isfinite(w).all():
        raise ConfigError("holds NaN or infinity", field="weight")
    outputs, inputs = w.shape
    hessian = np.array(gram, np.float64)
    diagonal = np.einsum("ii->i", hessian)
    diagonal[diagonal == 0] = 1.0  # an input that was always 0: nothing to learn about it, so it is just rounded
    diagonal += damping * diagonal.mean()
    # Upper triangle U with H^-1 = U^T U: row k holds what column k's error does to the columns after it.
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    groups = -(-inputs // options.group)
    integers = np.zeros((outputs, inputs), np.uint8)
    scale, zero = np.ones((outputs, groups), np.float32), np.zeros((outputs, groups), np.uint8)
    affine = None
    for k in range(inputs):
        number = k // options.group
        if k % options.group == 0:
            part = w[:, k : k + options.group]
            affine = parameters(np.minimum(part.min(1), 0), np.maximum(part.max(1), 0), options.grid, 0)
            scale[:, number], zero[:, number] = affine.scale, affine.zero_point
        assert affine is not None
        integers[:, k] = quantise(w[:, k : k + 1], affine)[:, 0]
        rounded = (integers[:, k].astype(np.float64) - zero[:, number]) * scale[:, number]
        error = (w[:, k] - rounded) / upper[k, k]
        w[:, k + 1 :] -= np.outer(error, upper[k, k + 1 :])
    return GroupWeight(integers, scale, zero, options.group)


def awq_scale(
    weight: npt.NDArray[Any], statistics: InputStatistics, options: Int4Options = Int4Options()
) -> tuple[npt.NDArray[np.float64], float]:
    """The scale per input channel that loses least: Lin et al. 2023, equations 4 and 5.

    Returns:
        s (inputs,), to multiply the weight's columns with and to divide the layer's input by; and the alpha it came
        from. alpha 0 gives ones, so the result is never worse than round-to-nearest on these inputs.
    """
    w = np.asarray(weight, np.float64)
    magnitude = np.maximum(statistics.mean_magnitude, 1e-8)
    best, least, alpha = np.ones(w.shape[1]), float("inf"), 0.0
    for exponent in EXPONENTS:
        s = magnitude**exponent
        s = s / np.sqrt(s.max() * s.min())
        error = layer_error(w, round_to_nearest(w * s, options).dequantised() / s, statistics.gram)
        if error < least:
            best, least, alpha = s, error, float(exponent)
    return best, alpha


def awq_clip(
    weight: npt.NDArray[Any], gram: npt.NDArray[np.float64], options: Int4Options = Int4Options()
) -> GroupWeight:
    """Round with each group's range shrunk by what loses least for that group alone (AWQ's released code, auto_clip);
    kept only if the whole layer gains."""
    w = np.asarray(weight, np.float64)
    outputs, inputs = w.shape
    size, groups = options.group, -(-inputs // options.group)
    padded = np.pad(gram, ((0, groups * size - inputs),) * 2)
    blocks = np.stack([padded[g * size : (g + 1) * size, g * size : (g + 1) * size] for g in range(groups)])
    best, least = np.ones((outputs, groups)), np.full((outputs, groups), np.inf)
    for shrink in SHRINKS:
        d = _in_groups(w - round_to_nearest(w, options, shrink).dequantised(), size)
        error = np.einsum("ngi,gij,ngj->ng", d, blocks, d, optimize=True)
        better = error < least
        best[better], least[better] = shrink, error[better]
    plain, clipped = round_to_nearest(w, options), round_to_nearest(w, options, best)
    gains = layer_error(w, clipped.dequantised(), gram) < layer_error(w, plain.dequantised(), gram)
    return clipped if gains else plain


def decoder_pairs(decoder: Decoder) -> dict[str, str]:
    """Linear layer to the normalisation that alone feeds it: where AWQ's scale costs nothing at run time.

    The output projections take attention's mixture and the second feed-forward layer takes GELU's output: no
    normalisation stands there to take the scale, so these layers are only clipped.
    """
    pairs = {"head": "norm"}
    for number in range(len(decoder.layers)):
        at = f"layers.{number}"
        pairs |= {f"{at}.qkv": f"{at}.norm1", f"{at}.query": f"{at}.norm2", f"{at}.feed.0": f"{at}.norm3"}
    return pairs


@dataclass
class Int4:
    """A network with 4-bit weights.

    Attributes:
        net: a copy whose quantised layers hold the dequantised weights; computes what the 4-bit graph does.
        weights: by name of layer.
        errors: squared layer error by name, on the calibration inputs; empty for ``rtn`` without them.
        method: of :data:`METHODS`.
    """

    net: nn.Module
    weights: dict[str, GroupWeight]
    errors: dict[str, float] = field(default_factory=dict)
    method: str = "rtn"


@torch.no_grad()
def quantise_weights(
    net: nn.Module,
    method: str,
    run: Run | None,
    options: Int4Options = Int4Options(),
    *,
    pairs: Mapping[str, str] | None = None,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Int4:
    """Four-bit weights for every linear layer.

    Args:
        net: trained; not changed.
        method: of :data:`METHODS`.
        run: runs a network of this kind on in-domain inputs; only ``rtn`` can do without.
        options: group size, symmetry, exclusions.
        pairs: for ``awq``: linear layer to the LayerNorm before it; default: :func:`decoder_pairs` of a decoder.
        log: gets one ``quantise.weight`` per layer.
        progress: called with (done, all).

    Raises:
        ConfigError: unknown method; no ``run`` where one is needed; an excluded layer that is not there; a layer that
            never ran; a weight that is not finite.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown, known are {', '.join(METHODS)}", field="method", value=method)
    if run is None and method != "rtn":
        raise ConfigError(f"{method} needs in-domain inputs", field="run")
    quantised = copy.deepcopy(net).eval()
    layers = {name: m for name, m in quantised.named_modules() if isinstance(m, nn.Linear)}
    for name in options.exclude:
        if name not in layers:
            raise ConfigError("no such linear layer", field="exclude", value=name)
    for name, module in layers.items():
        if not bool(torch.isfinite(module.weight).all()):
            raise ConfigError("holds NaN or infinity", field=f"{name}.weight")
    wanted = [name for name in layers if name not in options.exclude]
    seen = input_statistics(quantised, run, wanted) if run else {}
    if seen:
        wanted = list(seen)  # in the order of running
    if pairs is None:
        pairs = decoder_pairs(quantised) if isinstance(quantised, Decoder) else {}
    result = Int4(quantised, {}, method=method)
    for number, name in enumerate(wanted):
        module = layers[name]
        weight, statistics = module.weight.detach().numpy().copy(), seen.get(name)
        facts: dict[str, Any] = {}
        if method == "gptq":
            assert run is not None
            # The inputs as the layers before, quantised by now, really give them.
            statistics = input_statistics(quantised, run, [name])[name]
            packed = gptq(weight, statistics.gram, options)
        elif method == "awq":
            assert statistics is not None
            if name in pairs:
                scale, facts["alpha"] = awq_scale(weight, statistics, options)
                _absorb(quantised.get_submodule(pairs[name]), module, scale)
                weight = module.weight.detach().numpy().copy()
                statistics = InputStatistics(
                    statistics.gram / np.outer(scale, scale), statistics.magnitude / scale, statistics.rows
                )
            packed = awq_clip(weight, statistics.gram, options)
        else:
            packed = round_to_nearest(weight, options)
        module.weight.copy_(torch.from_numpy(packed.dequantised()))
        result.weights[name] = packed
        if statistics is not None:
            result.errors[name] = layer_error(weight, packed.dequantised(), statistics.gram)
            facts["error"] = result.errors[name]
        if log is not None:
            log.add("quantise.weight", name, method=method, group=options.group, bytes=packed.stored_bytes, **facts)
        if progress:
            progress(number + 1, len(wanted))
    return result


@torch.no_grad()
def _absorb(norm: nn.Module, linear: nn.Linear, scale: npt.NDArray[np.float64]) -> None:
    """Multiply the layer's columns by ``scale`` and divide the normalisation's output by it: nothing else changes.

    Raises:
        ConfigError: no LayerNorm with a weight.
    """
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None:
        raise ConfigError("can take no scale: it is no LayerNorm with a weight", field=type(norm).__name__)
    s = torch.from_numpy(scale).float()
    linear.weight.mul_(s)
    norm.weight.div_(s)
    if norm.bias is not None:
        norm.bias.div_(s)


def save_int4(path: Path, quantised: Int4) -> int:
    """Packed weights and everything else of the network as one safetensors file; returns its size in bytes."""
    dense = {
        name: value
        for name, value in quantised.net.state_dict().items()
        if name.removesuffix(".weight") not in quantised.weights
    }
    groups: dict[str, dict[str, Tensor]] = {"dense": dense, "packed": {}, "scale": {}, "zero": {}}
    for name, weight in quantised.weights.items():
        groups["packed"][name] = torch.from_numpy(weight.packed())
        groups["scale"][name] = torch.from_numpy(weight.scale)
        groups["zero"][name] = torch.from_numpy(weight.packed_zero())
    sizes = {name: [w.integers.shape[1], w.group] for name, w in quantised.weights.items()}
    save_checkpoint(path, groups, {"kind": "int4", "method": quantised.method, "sizes": sizes})
    return path.stat().st_size


def load_int4(path: Path, net: nn.Module) -> Int4:
    """The inverse of :func:`save_int4`, into a copy of ``net``.

    Raises:
        ConfigError: another kind of file; a tensor missing, extra or of another shape than ``net``'s, named.
    """
    groups, meta = load_checkpoint(path)
    if meta.get("kind") != "int4":
        raise ConfigError("holds no 4-bit weights", where=path)
    filled = copy.deepcopy(net).eval()
    state, loaded = filled.state_dict(), dict(groups.get("dense", {}))
    weights: dict[str, GroupWeight] = {}
    for name, (inputs, group) in meta["sizes"].items():
        parts = [groups.get(kind, {}).get(name) for kind in ("packed", "scale", "zero")]
        if any(part is None for part in parts):
            raise ConfigError("is missing", where=path, field=name, remedy="quantise again")
        packed, scale, zero = (part.numpy() for part in parts if part is not None)
        integers = unpack(packed.reshape(packed.shape[0], -1), inputs)
        weights[name] = GroupWeight(integers, scale, unpack(zero, scale.shape[1]), group)
        loaded[f"{name}.weight"] = torch.from_numpy(weights[name].dequantised())
    for name in [*(n for n in state if n not in loaded), *(n for n in loaded if n not in state)]:
        problem = "is missing" if name in state else "is not known to the network"
        raise ConfigError(problem, where=path, field=name, remedy="use the network it was made from")
    for name, value in loaded.items():
        if value.shape != state[name].shape:
            raise ConfigError(f"has shape {tuple(value.shape)}, not {tuple(state[name].shape)}", where=path, field=name)
    filled.load_state_dict(loaded)
    return Int4(filled, weights, method=str(meta["method"]))


def to_matmul_nbits(model: Path, weights: Mapping[str, GroupWeight], out: Path, accuracy_level: int = 0) -> Path:
    """Replace the matrix products of an exported :attr:`Int4.net` by ``com.microsoft.MatMulNBits``.

    A weight is recognised by its dequantised values, so names and order of the graph do not matter.

    Args:
        model: the ONNX file of the network that holds the dequantised weights.
        weights: by layer.
        out: the file to write.
        accuracy_level: 0 leaves the arithmetic to the runtime's default (float32); 4 lets it quantise activations to
            int8 on the fly, which is faster on processors with VNNI and less exact.

    Raises:
        ConfigError: a weight that the graph does not hold, named.
    """
    content = onnx.load(str(model))
    graph = content.graph
    keys = {name: np.ascontiguousarray(w.dequantised().T).tobytes() for name, w in weights.items()}
    wanted = {key: name for name, key in keys.items()}
    held: dict[str, str] = {}
    for initializer in graph.initializer:
        if initializer.data_type == onnx.TensorProto.FLOAT and len(initializer.dims) == 2:
            name = wanted.get(np.ascontiguousarray(numpy_helper.to_array(initializer)).tobytes())
            if name is not None:
                held[initializer.name] = name
    done: set[str] = set()
    for number, node in enumerate(list(graph.node)):
        if node.op_type != "MatMul" or node.input[1] not in held:
            continue
        name = held[node.input[1]]
        weight = weights[name]
        inputs = [f"{name}.packed", f"{name}.scale", f"{name}.zero"]
        if (weight.zero == LEVELS // 2).all():
            inputs.pop()  # the operator's default
        if name not in done:
            arrays: list[npt.NDArray[Any]] = [weight.packed(), weight.scale, weight.packed_zero()]
            graph.initializer.extend(numpy_helper.from_array(a, i) for a, i in zip(arrays, inputs))
            done.add(name)
        sizes: dict[str, Any] = {
            "K": weight.integers.shape[1],
            "N": weight.integers.shape[0],
            "bits": BITS,
            "block_size": weight.group,
        }
        if accuracy_level:
            sizes["accuracy_level"] = accuracy_level
        replacement = helper.make_node(
            "MatMulNBits",
            [node.input[0], *inputs],
            list(node.output),
            node.name or name,
            domain="com.microsoft",
            **sizes,
        )
        graph.node[number].CopyFrom(replacement)
    missing = [name for name, key in keys.items() if wanted[key] not in done]
    if missing:
        raise ConfigError(
            "the graph does not hold this layer's dequantised weight",
            where=model,
            field=missing[0],
            remedy="export the network that quantise_weights returned",
        )
    used = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    for initializer in [i for i in graph.initializer if i.name not in used]:
        graph.initializer.remove(initializer)
    if all(entry.domain != "com.microsoft" for entry in content.opset_import):
        content.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    onnx.save(content, str(beside))
    os.replace(beside, out)
    open_session(out)
    return out


@dataclass(frozen=True)
class DecoderInput:
    """One text and its picture. ``input_ids``: (T,) int64; ``memory``: keys and values per layer, each
    (1, heads, tokens, head_size) float32."""

    input_ids: npt.NDArray[np.int64]
    memory: tuple[Floats, ...]

    def feed(self) -> dict[str, npt.NDArray[Any]]:
        """For the exported decoder: the whole text at once, nothing in the cache."""
        layers = len(self.memory) // 2
        _, heads, _, head_size = self.memory[0].shape
        empty = np.zeros((1, heads, 0, head_size), np.float32)
        return {
            "input_ids": self.input_ids[None],
            "position_ids": np.arange(len(self.input_ids))[None],
            **dict(zip(memory_names(layers), self.memory, strict=True)),
            **dict.fromkeys(cache_names(layers, "past"), empty),
        }

    def arguments(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """For :class:`~triptych_forge.vlm.model.Decoder`."""
        ids = torch.from_numpy(self.input_ids)[None]
        return ids, torch.arange(ids.shape[1])[None], [torch.from_numpy(m) for m in self.memory]


def runner(inputs: Sequence[DecoderInput]) -> Run:
    """Runs a decoder on these inputs.

    Raises:
        ConfigError: none: calibration needs at least one.
    """
    if not inputs:
        raise ConfigError("no in-domain texts to calibrate with", field="inputs")

    def run(net: nn.Module) -> None:
        for one in inputs:
            net(*one.arguments())

    return run


def export_decoder(decoder: nn.Module, path: Path, example: DecoderInput) -> Path:
    """Write a decoder as the engine's ``decoder.onnx``; a frozen one of :mod:`.qat` as QDQ."""
    layers = len(example.memory) // 2
    ids, places, memory = example.arguments()
    # A cache that is not empty, or the tracing exporter takes its length for a constant.
    past = [torch.zeros(1, memory[0].shape[1], 2, memory[0].shape[3]) for _ in memory]
    names = ["input_ids", "position_ids", *memory_names(layers), *cache_names(layers, "past")]
    outputs = ["logits", *cache_names(layers, "present")]
    free = {name: {2: "past"} for name in cache_names(layers, "past")}
    free |= {"input_ids": {1: "tokens"}, "position_ids": {1: "tokens"}}
    graph = DecoderGraph(decoder, layers).eval()
    arguments = (ids, places + 2, *memory, *past)
    if hasattr(decoder, qat.QUANTISERS):
        return qat.export_qdq(graph, arguments, path, names, outputs, free)
    write_graph(graph, arguments, path, names, outputs, free)
    return path


Maker = Callable[[Path], Path]
"""Makes an engine file in a folder and returns its path."""


@dataclass(frozen=True)
class QatPlan:
    """Of the QAT line. ``steps``: one text each; ``rate``: Adam's; ``options``: of the quantisers.

    Scales are long: normalisation and softmax stay in float, so short ones would cost steps and not make sums exact.
    """

    steps: int = 200
    rate: float = 1e-5
    options: qat.QatOptions = field(default_factory=lambda: qat.QatOptions(scale_bits=None))


def self_distillation(teacher: Decoder) -> Callable[[nn.Module, DecoderInput], Tensor]:
    """A loss for QAT without labels: KL(teacher || student) per position, in nats."""
    teacher = copy.deepcopy(teacher).eval().requires_grad_(False)

    def loss(student: nn.Module, batch: DecoderInput) -> Tensor:
        arguments = batch.arguments()
        with torch.no_grad():
            wanted = torch.log_softmax(teacher(*arguments)[0], -1)
        found = torch.log_softmax(student(*arguments)[0], -1)
        return torch.nn.functional.kl_div(found, wanted, log_target=True, reduction="none").sum(-1).mean()

    return loss


def standard_makers(
    decoder: Decoder,
    calibration: Sequence[DecoderInput],
    options: Int4Options = Int4Options(),
    plan: QatPlan = QatPlan(),
    loss: Callable[[nn.Module, DecoderInput], Tensor] | None = None,
    accuracy_level: int = 0,
) -> dict[str, Maker]:
    """How to make each line of the comparison from one decoder: ``rtn``, ``awq``, ``gptq``, ``ptq-int8``, ``qat-int8``.

    Args:
        calibration: in-domain texts and pictures, the same for all.
        options: of the 4-bit lines.
        plan, loss: of the QAT line; default loss: :func:`self_distillation`.
        accuracy_level: of the 4-bit lines, see :func:`to_matmul_nbits`.
    """
    run = runner(calibration)

    def four_bits(method: str) -> Maker:
        def make(folder: Path) -> Path:
            made = quantise_weights(decoder, method, run, options)
            plain = export_decoder(made.net, folder / f"{method}-float.onnx", calibration[0])
            out = to_matmul_nbits(plain, made.weights, folder / f"{method}.onnx", accuracy_level)
            plain.unlink()
            return out

        return make

    def post_training(folder: Path) -> Path:
        plain = export_decoder(decoder, folder / "ptq-float.onnx", calibration[0])
        prepared = ptq.prepare(plain, folder / "ptq-prepared.onnx")
        how = ptq.PtqOptions(ptq.TRANSFORMER, method="percentile")
        out = ptq.quantise_model(prepared, folder / "ptq-int8.onnx", [c.feed() for c in calibration], how).path
        plain.unlink()
        prepared.unlink()
        return out

    def aware(folder: Path) -> Path:
        net = qat.prepare(decoder, calibration[0].arguments(), plan.options)
        qat.observe(net, (c.arguments() for c in calibration))
        batches = (calibration[step % len(calibration)] for step in range(plan.steps))
        qat.fine_tune(net, batches, loss or self_distillation(decoder), rate=plan.rate, steps=plan.steps)
        return export_decoder(qat.freeze(net), folder / "qat-int8.onnx", calibration[0])

    return {**{method: four_bits(method) for method in METHODS}, "ptq-int8": post_training, "qat-int8": aware}


@dataclass(frozen=True)
class WeightRow:
    """One line of the comparison.

    Attributes:
        method: ``float`` is the parent.
        bytes: of the file.
        error: relative L2 of the logits on held-out inputs.
        kl: mean KL(parent || this) per position, nats.
        accuracy: of the task, if asked for.
        median_ms: of one held-out input, measured in turns with the parent.
        speed: parent's time by this one's, see :class:`.accept.Pair`; above 1 is faster.
        beats_rtn: lower KL than round-to-nearest; None where there is none to compare with.
    """

    method: str
    bytes: int
    error: float
    kl: float
    accuracy: float | None
    median_ms: float
    speed: float
    beats_rtn: bool | None


def compare_weight_methods(
    parent: Path,
    makers: Mapping[str, Maker],
    held_out: Iterable[Mapping[str, npt.NDArray[Any]]],
    folder: Path,
    *,
    accuracy: Callable[[Path], float] | None = None,
    runs: int = 50,
    output: str = "logits",
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[WeightRow]:
    """Make every file and compare it with its parent on inputs that were not calibrated with.

    Args:
        parent: the float engine.
        makers: method to maker, e.g. :func:`standard_makers`.
        held_out: feeds.
        folder: gets the files.
        accuracy: of an engine file, higher is better.
        runs: timed runs of each.
        output: whose values count.
        log: gets one ``quantise.comparison`` per line.
        progress: called with (done, all).

    Returns:
        The parent's line (``float``) and one per maker, in their order.

    Raises:
        ConfigError: nothing held out; an engine that does not load.
    """
    feeds = [dict(feed) for feed in held_out]
    if not feeds:
        raise ConfigError("nothing was held out to compare on", field="held_out")
    wanted = np.concatenate([np.concatenate(list(o[output])) for o in outputs_of(open_session(parent), feeds)])
    files: dict[str, Path] = {"float": parent}
    measured: dict[str, tuple[float, float, float | None, float, float]] = {}
    for number, (method, make) in enumerate([("float", None), *makers.items()]):
        if make is not None:
            files[method] = make(folder)
        path = files[method]
        found = np.concatenate([np.concatenate(list(o[output])) for o in outputs_of(open_session(path), feeds)])
        pair = measure_alternately(onnx_runner(parent), onnx_runner(path), feeds, runs)
        measured[method] = (
            relative_l2(found, wanted),
            mean_kl(found, wanted),
            float(accuracy(path)) if accuracy else None,
            pair.second.median_ms,
            1.0 / pair.ratio if pair.ratio > 0 else float("inf"),
        )
        if progress:
            progress(number + 1, len(makers) + 1)
    baseline = measured.get("rtn")
    rows = []
    for method, (error, kl, score, ms, speed) in measured.items():
        beats = None if baseline is None or method in ("float", "rtn") else kl < baseline[1]
        row = WeightRow(method, files[method].stat().st_size, error, kl, score, ms, speed, beats)
        rows.append(row)
        if log is not None:
            log.add("quantise.comparison", method, **{k: v for k, v in vars(row).items() if k != "method"})
    return rows
