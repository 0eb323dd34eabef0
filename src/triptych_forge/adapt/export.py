"""From a decoder graph and adapters to a graph that switches between them, and the files it switches to.

Two forms, one mechanism (overridable initialisers, see :mod:`triptych.language.adapters`):

- ``low_rank``: two small products and a sum beside each adapted product; adapters stay small, any rank fits, and the
  adapted layer may be quantised.
- ``weights``: the adapted product's weight itself is exchanged; no operator more than the base graph, but an adapter is
  as big as the weights it replaces, and the runtime cannot lay those out in advance.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from triptych.contract import ConfigError
from triptych.language.adapters import BASE_KEY, base_version, content_sha256
from triptych_forge.adapt.lora import Adapter

Form = Literal["low_rank", "weights"]
FORM_KEY = "triptych.adapter_form"
ADAPTER_VERSION = 1
PRODUCTS = ("MatMul", "MatMulNBits")
"""Operators of an adapted layer; their first input is the layer's, in floating point."""


def export_switchable(
    decoder: Path, out: Path, layers: Sequence[str], base_sha256: str, form: Form = "low_rank"
) -> Path:
    """Write a copy of a decoder graph that takes adapters; without one it gives the base graph's output.

    Args:
        decoder: an exported decoder; its nodes carry the names of the modules they came from.
        out: file to write.
        layers: adapted layers, as the model names them: :attr:`Adapter.layers`.
        base_sha256: :func:`triptych_forge.adapt.lora.model_sha256` of the model behind ``decoder``.
        form: see the module's text.

    Returns:
        ``out``.

    Raises:
        ConfigError: a layer that is not in the graph exactly once, or whose weight is no float32 constant where the
            form needs one.
    """
    model = onnx.load(str(decoder))
    graph = model.graph
    nodes = [(_module_of(node.name), node) for node in graph.node if node.op_type in PRODUCTS]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    add = {"low_rank": _add_low_rank, "weights": _free_weight}[form]
    for layer in layers:
        found = [node for name, node in nodes if name == layer or name.endswith(f".{layer}")]
        if len(found) != 1:
            raise ConfigError(f"has {len(found)} products of this layer instead of one", where=decoder, field=layer)
        add(graph, found[0], layer, constants, decoder)
    helper.set_model_props(
        model, {**{p.key: p.value for p in model.metadata_props}, BASE_KEY: base_sha256, FORM_KEY: form}
    )
    onnx.checker.check_model(model)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    onnx.save(model, str(beside))
    os.replace(beside, out)
    return out


def write_adapter(adapter: Adapter, out: Path, form: Form = "low_rank", model: nn.Module | None = None) -> str:
    """Write an adapter in ONNX Runtime's adapter format, for a graph of the same form.

    Args:
        model: the base model; needed for the form ``weights`` only.

    Returns:
        Hash of the content, by which the runtime tells adapters apart. A manifest takes the file's own SHA-256.

    Raises:
        ConfigError: the form ``weights`` without a model.
    """
    tensors = _low_rank_tensors(adapter) if form == "low_rank" else _merged_tensors(adapter, model)
    content = ort.AdapterFormat()
    content.set_adapter_version(ADAPTER_VERSION)
    content.set_model_version(base_version(adapter.facts.base_sha256))
    content.set_parameters({name: ort.OrtValue.ortvalue_from_numpy(t) for name, t in sorted(tensors.items())})
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    content.export_adapter(str(beside.resolve()))
    os.replace(beside, out)
    return content_sha256(tensors)


def _low_rank_tensors(adapter: Adapter) -> dict[str, npt.NDArray[np.float32]]:
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for layer in adapter.layers:
        a, b = (adapter.tensors[f"{layer}.{part}"].numpy() for part in ("lora_A", "lora_B"))
        tensors[f"{layer}.lora_A"] = np.ascontiguousarray(a.T)
        # The scaling goes into B once, instead of into every run.
        tensors[f"{layer}.lora_B"] = np.ascontiguousarray(b.T * np.float32(adapter.facts.scaling))
    return tensors


def _merged_tensors(adapter: Adapter, model: nn.Module | None) -> dict[str, npt.NDArray[np.float32]]:
    if model is None:
        raise ConfigError("the form weights needs the base model", field="model")
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for layer in adapter.layers:
        weight = model.get_submodule(layer).weight.detach()
        product = adapter.tensors[f"{layer}.lora_B"] @ adapter.tensors[f"{layer}.lora_A"]
        tensors[f"{layer}.weight"] = np.ascontiguousarray((weight + adapter.facts.scaling * product).numpy().T)
    return tensors


def _module_of(node: str) -> str:
    """Module name of a node: ``/decoder/layers.0/feed/feed.0/MatMul_1`` is of ``decoder.layers.0.feed.0``.

    The exporter joins the names a module has in its parent; a numbered child repeats its parent's.
    """
    parts = node.strip("/").split("/")[:-1]
    kept = [part for part, after in zip(parts, [*parts[1:], ""]) if not after.startswith(f"{part}.")]
    return ".".join(kept)


def _add_low_rank(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    layer: str,
    constants: dict[str, onnx.TensorProto],
    where: Path,
) -> None:
    inside, outside = _sizes(graph, node, layer, constants, where)
    a, b, base = f"{layer}.lora_A", f"{layer}.lora_B", f"{layer}.base"
    final = node.output[0]
    node.output[0] = base
    new = [
        helper.make_node("MatMul", [node.input[0], a], [f"{layer}.low"], f"/{layer}/lora_A"),
        helper.make_node("MatMul", [f"{layer}.low", b], [f"{layer}.change"], f"/{layer}/lora_B"),
        helper.make_node("Add", [base, f"{layer}.change"], [final], f"/{layer}/lora_add"),
    ]
    at = next(i for i, n in enumerate(graph.node) if n.output[0] == base) + 1
    for offset, extra in enumerate(new):
        graph.node.insert(at + offset, extra)
    # Rank one of zeros by default: a product over an empty dimension is not everywhere defined.
    _add_input(graph, a, np.zeros((inside, 1), np.float32), [inside, f"{layer}.rank"])
    _add_input(graph, b, np.zeros((1, outside), np.float32), [f"{layer}.rank", outside])


def _free_weight(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    layer: str,
    constants: dict[str, onnx.TensorProto],
    where: Path,
) -> None:
    tensor = constants.get(node.input[1])
    if node.op_type != "MatMul" or tensor is None or tensor.data_type != TensorProto.FLOAT:
        raise ConfigError(
            "its weight is no float32 constant", where=where, field=layer, remedy="use the form low_rank for it"
        )
    value = numpy_helper.to_array(tensor)
    old = node.input[1]
    node.input[1] = f"{layer}.weight"
    _add_input(graph, f"{layer}.weight", value, list(value.shape))
    if not any(old in other.input for other in graph.node):
        graph.initializer.remove(tensor)
        del constants[old]


def _sizes(
    graph: onnx.GraphProto, node: onnx.NodeProto, layer: str, constants: dict[str, onnx.TensorProto], where: Path
) -> tuple[int, int]:
    """Features in and out of a product with a constant, from its shape or the attributes of a packed one."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "MatMulNBits":
        return int(attributes["K"]), int(attributes["N"])
    weight = node.input[1]
    for other in graph.node:  # a quantised weight comes through a node of its own
        if other.op_type == "DequantizeLinear" and weight in other.output:
            weight = other.input[0]
    tensor = constants.get(weight)
    if tensor is None:
        raise ConfigError("its weight is no constant", where=where, field=layer)
    inside, outside = tensor.dims
    return int(inside), int(outside)


def _add_input(graph: onnx.GraphProto, name: str, default: npt.NDArray[np.float32], shape: list[int | str]) -> None:
    """An optional input: who gives nothing gets ``default``."""
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(default), name))
