"""Pixels are integers already: no graph need make numbers of them that the quantiser makes integers again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

NORMALISATION = ("Div", "Sub", "Cast")
"""``(float(x) - c) / d``, from the last operator to the first."""


def take_pixels(model: onnx.ModelProto) -> int:
    """Let whoever reads ``QuantizeLinear((float(x) - c) / d)`` read the uint8 tensor ``x`` itself; changes ``model``.

    Done only where it changes nothing, to the last bit: for scalars with scale x d = 1 and zero-point = c.

    Returns:
        How many times that was the case.
    """
    graph = model.graph
    typed = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in [*typed.input, *typed.value_info]}
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    same: dict[str, str] = {}
    for node in graph.node:
        pixels = _pixels(node, makers, constants) if node.op_type == "QuantizeLinear" else None
        if pixels is not None and types.get(pixels) == onnx.TensorProto.UINT8:
            same[node.output[0]] = pixels
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
    _drop_unread(graph, set(same))
    return len(same)


def _pixels(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], constants: Mapping[str, npt.NDArray[Any]]
) -> str | None:
    """The tensor whose values this node gives again, if they were pixels."""
    name, found = node.input[0], []
    for op_type in NORMALISATION:
        maker = makers.get(name)
        if maker is None or maker.op_type != op_type:
            return None
        found.append(maker)
        name = maker.input[0]
    divide, subtract, _ = found
    numbers = [constants.get(n) for n in (*node.input[1:3], divide.input[1], subtract.input[1])]
    if len(numbers) != 4 or any(n is None or n.size != 1 for n in numbers):
        return None
    scale, zero, divisor, offset = (float(np.ravel(n)[0]) for n in numbers)  # type: ignore[arg-type]
    whole = numbers[1] is not None and numbers[1].dtype == np.uint8
    return name if whole and scale * divisor == 1.0 and zero == offset else None


def _drop_unread(graph: onnx.GraphProto, doubtful: set[str]) -> None:
    """Take out who makes these tensors if nobody reads them any more, and likewise what they were made of."""
    read = {o.name for o in graph.output}
    for node in reversed(list(graph.node)):
        if doubtful.issuperset(node.output) and read.isdisjoint(node.output):
            graph.node.remove(node)
            doubtful.update(node.input)
        else:
            read.update(node.input)
    for constant in [i for i in graph.initializer if i.name in doubtful - read]:
        graph.initializer.remove(constant)
