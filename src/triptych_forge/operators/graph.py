"""The nodes of an ONNX model with types, shapes, constants and the work of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import onnx.reference
from onnx import helper, numpy_helper

from triptych.contract import ConfigError
from triptych_forge.operators.tables import DTYPE_NAMES

ASSUMED_DIM = 1
"""Length taken for a free dimension that the caller did not fix, for counting work only."""
MAX_FOLDS, MAX_FOLDED = 64, 1024
"""Rounds of folding constants and packed products, and elements of the largest one that matters to a shape."""
Shape = tuple[int | None, ...] | None
"""A free dimension is None, and so is an unknown shape."""


@dataclass(frozen=True)
class Node:
    """One node with what shape inference found.

    Attributes:
        operator: name, with the domain unless it is ONNX's own.
        opset: of the model, for the node's domain.
        dtypes: of the inputs, None where unknown or not given.
        shapes: of the given inputs and the outputs, with those dimensions only that the caller fixed.
        constants: inputs by number that are constants, with their values where the file holds them.
        folded: computed once, when the model is loaded.
        unit: of ``amount``: multiply-accumulates, or bytes of inputs and outputs.
        amount: work of one run; NaN where a shape is unknown.
    """

    name: str
    operator: str
    proto: onnx.NodeProto
    opset: int
    dtypes: tuple[str | None, ...]
    shapes: tuple[Shape, ...]
    constants: Mapping[int, onnx.TensorProto | None]
    folded: bool
    unit: Literal["products", "bytes"]
    amount: float

    @property
    def dtype(self) -> str | None:
        """Of the first input."""
        return self.dtypes[0] if self.dtypes else None


def list_nodes(model_path: Path, dims: Mapping[str, int] | None = None) -> tuple[list[Node], dict[str, int]]:
    """All nodes of a model, those of subgraphs and local functions too, and the lengths its free dimensions were given.

    Raises:
        ConfigError: not a valid ONNX file; ``dims`` names a dimension that the inputs do not have.
    """
    try:
        model = onnx.load(str(model_path))
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        free = _free_dimensions(model)
        fixed = dict(dims or {})
        lengths = {name: fixed.get(name, ASSUMED_DIM) for name in sorted(free)}
        known, counted = _inferred(model, fixed), _inferred(model, lengths)
    except Exception as error:  # protobuf, onnx and the file system have no common base
        raise ConfigError(f"is no valid ONNX file: {' '.join(str(error).split())[:160]}", where=model_path) from None
    for name in fixed:
        if name not in free:
            listed = ", ".join(sorted(free)) or "none"
            raise ConfigError(
                f"is no free dimension of the inputs, they have {listed}", where=model_path, field=f"dims.{name}"
            )
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    return [*_walk(_Views(model.graph, known.graph, counted.graph), opsets, _Scope())], lengths


class _Views(NamedTuple):
    """One graph three times: as it is, with the shapes that the caller fixed, with a length for each dimension."""

    written: onnx.GraphProto
    known: onnx.GraphProto
    counted: onnx.GraphProto


@dataclass
class _Scope:
    """What a graph's nodes can see.

    Attributes:
        shapes: with the dimensions that the caller fixed.
        lengths: shapes with a length for every dimension.
        dtypes: element types.
        constants: names of constants, with their values where they are written in the file.
        defaults: those that the caller may override; weights to a compiler, but nothing to compute beforehand.
    """

    shapes: dict[str, Shape] = field(default_factory=dict)
    lengths: dict[str, Shape] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    constants: dict[str, onnx.TensorProto | None] = field(default_factory=dict)
    defaults: set[str] = field(default_factory=set)

    def within(self, views: _Views) -> _Scope:
        """A scope of its own with what a graph adds."""
        inner = replace(self, **{f.name: copy(getattr(self, f.name)) for f in fields(self)})
        for graph, shapes in ((views.known, inner.shapes), (views.counted, inner.lengths)):
            for info in (*graph.input, *graph.value_info, *graph.output):
                tensor = info.type.tensor_type
                inner.dtypes[info.name] = DTYPE_NAMES[tensor.elem_type]
                shapes[info.name] = _shape_of(info)
            shapes.update((t.name, tuple(t.dims)) for t in graph.initializer)
        inner.dtypes.update((t.name, DTYPE_NAMES[t.data_type]) for t in views.written.initializer)
        inner.constants.update((t.name, t) for t in views.written.initializer)
        inner.defaults.update({t.name for t in views.written.initializer} & {i.name for i in views.written.input})
        return inner


def _shape_of(info: onnx.ValueInfoProto) -> Shape:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)


RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
"""Operators whose result is no constant even where all inputs are."""
KEPT = ("QuantizeLinear", "DequantizeLinear")
"""Operators that runtimes keep, or take into the next layer, instead of computing them once."""


def _walk(views: _Views, opsets: Mapping[str, int], outer: _Scope) -> Iterator[Node]:
    """Nodes in order, those of subgraphs behind their owner."""
    scope = outer.within(views)
    for index, nodes in enumerate(zip(*(graph.node for graph in views), strict=True)):
        proto = nodes[0]
        subgraphs = [_Views(*graphs) for graphs in zip(*(subgraphs_of(node) for node in nodes))]
        constant = not subgraphs and _is_constant(proto, scope)
        if constant:
            value = attribute_of(proto, "value", None) if proto.op_type == "Constant" else None
            scope.constants.update(dict.fromkeys(proto.output, value))
        yield _node(proto, index, opsets, scope, folded=constant and proto.op_type not in KEPT)
        for inner in subgraphs:
            yield from _walk(inner, opsets, scope)


def _node(proto: onnx.NodeProto, index: int, opsets: Mapping[str, int], scope: _Scope, folded: bool) -> Node:
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    names = [name for name in (*proto.input, *proto.output) if name]
    rule = MACS.get(proto.op_type)
    if folded:
        amount = 0.0
    elif rule is None:
        amount = math.fsum(_bytes(scope.lengths.get(name), scope.dtypes.get(name)) for name in names)
    else:
        amount = _macs(rule, proto, scope.lengths)
    return Node(
        name=proto.name or f"{proto.op_type}_{index}",
        operator=f"{domain}.{proto.op_type}" if domain else proto.op_type,
        proto=proto,
        opset=opsets.get(domain or "ai.onnx", 1),
        dtypes=tuple(scope.dtypes.get(name) for name in proto.input),
        shapes=tuple(scope.shapes.get(name) for name in names),
        constants={i: scope.constants[n] for i, n in enumerate(proto.input) if n in scope.constants},
        folded=folded,
        unit="bytes" if rule is None else "products",
        amount=amount,
    )


def _is_constant(proto: onnx.NodeProto, scope: _Scope) -> bool:
    """Whether a node's result is known when the model is loaded."""
    if proto.domain not in ("", "ai.onnx") or proto.op_type in RANDOM:
        return False
    if proto.op_type in ("Shape", "Size") and is_static(scope.shapes.get(proto.input[0])):
        return True
    return all(name in scope.constants and name not in scope.defaults for name in proto.input if name)


def subgraphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for a in node.attribute for graph in ([a.g] if a.type == a.GRAPH else a.graphs)]


def attribute_of(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def is_static(shape: Shape) -> bool:
    return shape is not None and None not in shape


def _free_dimensions(model: onnx.ModelProto) -> set[str]:
    """Names of the inputs' free dimensions; nameless ones are called after input and axis."""
    optional = {t.name for t in model.graph.initializer}
    return {
        dim.dim_param or f"{info.name}.{axis}"
        for info in model.graph.input
        if info.name not in optional
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }


def _inferred(model: onnx.ModelProto, dims: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with ``dims`` put in and all shapes inferred anew."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    defaults = {t.name: tuple(t.dims) for t in fixed.graph.initializer}
    for info in fixed.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            name = dim.dim_param or f"{info.name}.{axis}"
            if dim.HasField("dim_value"):
                continue
            if info.name in defaults:  # an optional input is as big as its default
                dim.dim_value = defaults[info.name][axis]
            elif name in dims:
                dim.dim_value = dims[name]
    # What the exporter wrote down was for free dimensions.
    del fixed.graph.value_info[:]
    for info in fixed.graph.output:
        info.type.tensor_type.ClearField("shape")
    # Shapes may hang on values that hang on shapes: exporters write the arithmetic of both out.
    for _ in range(MAX_FOLDS):
        inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
        if not (_fold(fixed, inferred.graph) | _unpack(fixed, inferred.graph)):
            break
    return inferred


def _unpack(model: onnx.ModelProto, inferred: onnx.GraphProto) -> bool:
    """Write down the outputs of packed products, whose rule ONNX does not know; whether anything new was found."""
    known = {info.name: info for info in (*inferred.input, *inferred.value_info, *inferred.output)}
    written = {info.name: info for info in model.graph.value_info}
    found = False
    for node in model.graph.node:
        given = known.get(node.input[0]) if node.op_type == "MatMulNBits" else None
        shape = None if given is None else _shape_of(given)
        columns = attribute_of(node, "N", 0)
        if given is None or not shape or not columns:
            continue
        now = (*shape[:-1], columns)
        before = written.get(node.output[0])
        if before is not None and _shape_of(before) == now:
            continue
        info = helper.make_tensor_value_info(node.output[0], given.type.tensor_type.elem_type, now)
        if before is None:
            model.graph.value_info.append(info)
        else:
            before.CopyFrom(info)
        found = True
    return found


def _fold(model: onnx.ModelProto, inferred: onnx.GraphProto) -> bool:
    """Make constants of small nodes whose result is known by now; whether there were any."""
    shapes = {info.name: _shape_of(info) for info in (*inferred.input, *inferred.value_info)}
    shapes.update((t.name, tuple(t.dims)) for t in model.graph.initializer)
    overridable = {info.name for info in model.graph.input}
    values = {t.name: t for t in model.graph.initializer if t.name not in overridable}
    folded = False
    for node in model.graph.node:
        if node.op_type == "Constant":
            values[node.output[0]] = attribute_of(node, "value", None)
            continue
        if node.domain not in ("", "ai.onnx") or node.op_type in (*RANDOM, *KEPT) or len(node.output) != 1:
            continue
        if node.op_type == "Shape" and is_static(shapes.get(node.input[0])):
            feeds = {node.input[0]: np.empty(shapes[node.input[0]], np.bool_)}
        else:
            known = {name: values.get(name) for name in node.input if name}
            if not all(t is not None and math.prod(t.dims) <= MAX_FOLDED for t in known.values()) or subgraphs_of(node):
                continue
            feeds = {name: numpy_helper.to_array(t) for name, t in known.items() if t is not None}
        value = _evaluate(node, feeds, model)
        if value is not None:
            constant = helper.make_node("Constant", [], node.output, node.name, value=value)
            node.CopyFrom(constant)
            values[node.output[0]] = value
            folded = True
    return folded


def _evaluate(
    node: onnx.NodeProto, feeds: Mapping[str, npt.NDArray[Any]], model: onnx.ModelProto
) -> onnx.TensorProto | None:
    """The result of one node; None where the reference implementation does not have it."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), None) for n, v in feeds.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=node.output[0])])
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    try:
        (value,) = onnx.reference.ReferenceEvaluator(alone).run(None, dict(feeds))
        return numpy_helper.from_array(np.asarray(value))
    except Exception:  # whatever an implementation raises, the value stays unknown
        return None


_BITS = {
    "float64": 64, "int64": 64, "uint64": 64, "float32": 32, "int32": 32, "uint32": 32, "float16": 16, "bfloat16": 16,
    "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8, "float8e4m3fn": 8, "float8e5m2": 8, "int4": 4,
    "uint4": 4, "float4e2m1": 4,
}  # fmt: skip
MacRule = Callable[[onnx.NodeProto, list[Any], Any], float]


def _elements(shape: Any) -> float:
    """Number of elements; NaN where the shape or one of its dimensions is unknown."""
    return float(math.prod(shape)) if is_static(shape) else math.nan


def _bytes(shape: Shape, dtype: str | None) -> float:
    return _elements(shape) * _BITS.get(dtype or "", 32) / 8


def _macs(rule: MacRule, node: onnx.NodeProto, lengths: Mapping[str, Shape]) -> float:
    inputs = [lengths.get(name) for name in node.input]
    try:
        return rule(node, inputs, lengths.get(node.output[0]))
    except (TypeError, IndexError):  # a shape or one of its dimensions is unknown
        return math.nan


def _conv_macs(weight: int, node: onnx.NodeProto, inputs: list[Any], output: Any) -> float:
    """Each output element takes in_channels / group times kernel products: the weight's shape after the first."""
    return _elements(output) * _elements(inputs[weight][1:])


def _conv_transpose_macs(node: onnx.NodeProto, inputs: list[Any], output: Any) -> float:
    """Each input element is spread over out_channels / group times kernel: the weight's shape after the first."""
    return _elements(inputs[0]) * _elements(inputs[1][1:])


def _matmul_macs(node: onnx.NodeProto, inputs: list[Any], output: Any) -> float:
    """Each output element sums over the first factor's last dimension (its last but one if transposed)."""
    axis = -2 if attribute_of(node, "transA", 0) and len(inputs[0]) > 1 else -1
    return _elements(output) * float(inputs[0][axis])


def _packed_matmul_macs(node: onnx.NodeProto, inputs: list[Any], output: Any) -> float:
    """The weight is packed; its inner dimension is an attribute."""
    return _elements(output) * float(attribute_of(node, "K", math.nan))


MACS: dict[str, MacRule] = {
    "Conv": partial(_conv_macs, 1),
    "FusedConv": partial(_conv_macs, 1),
    "ConvInteger": partial(_conv_macs, 1),
    "QLinearConv": partial(_conv_macs, 3),
    "ConvTranspose": _conv_transpose_macs,
    "MatMul": _matmul_macs,
    "FusedMatMul": _matmul_macs,
    "MatMulInteger": _matmul_macs,
    "QLinearMatMul": _matmul_macs,
    "Gemm": _matmul_macs,
    "MatMulNBits": _packed_matmul_macs,
}
"""How to count multiply-accumulates, by operator: from node, input shapes and output shape. Others count in bytes."""
