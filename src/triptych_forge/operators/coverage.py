"""Whether a table covers a node: what a machine can check of a row."""

from __future__ import annotations

from onnx import numpy_helper

from triptych_forge.operators.graph import Node, attribute_of, is_static
from triptych_forge.operators.probe import Probe
from triptych_forge.operators.tables import Bounds, Operator, OperatorTable


def why_not(node: Node, table: OperatorTable, probe: Probe | None) -> str:
    """Empty where a node is covered; the installed library's answer beats the table's."""
    if probe is not None and node.name in probe.unsupported:
        return f"refused by {probe.library} {probe.version}"
    if node.folded or (probe is not None and probe.takes_all):
        return ""
    operator = table.operators.get(node.operator)
    if operator is None or operator.support == "unknown":
        return "not known to be supported"
    if operator.support == "none":
        return "not supported"
    return next((reason for check in CHECKS if (reason := check(node, operator, table))), "")


def _outside(bounds: Bounds, value: int) -> bool:
    return value < bounds[0] or (bounds[1] is not None and value > bounds[1])


def _span(bounds: Bounds) -> str:
    return f"{bounds[0]} or later" if bounds[1] is None else f"{bounds[0]} to {bounds[1]}"


def _check_opset(node: Node, operator: Operator, table: OperatorTable) -> str:
    wanted = [operator.opset] if operator.opset else []
    if node.proto.domain in ("", "ai.onnx"):
        wanted.append(table.opset)
    return next((f"operator set {node.opset} is not {_span(w)}" for w in wanted if _outside(w, node.opset)), "")


def _check_shapes(node: Node, operator: Operator, table: OperatorTable) -> str:
    return "" if table.dynamic_shapes or all(map(is_static, node.shapes)) else "has a free dimension"


def _check_dtype(node: Node, operator: Operator, table: OperatorTable) -> str:
    allowed = table.dtypes_of(operator)
    if allowed is None or not node.dtypes:
        return ""
    built = table.float32_runs_as if node.dtype == "float32" and table.float32_runs_as else node.dtype
    return "" if built in allowed else f"type {node.dtype or 'unknown'} is not among {', '.join(allowed)}"


def _check_rank(node: Node, operator: Operator, table: OperatorTable) -> str:
    if operator.rank is None:
        return ""
    shape = node.shapes[0]
    if shape is None:
        return "its rank is unknown"
    return f"rank {len(shape)} is not {_span(operator.rank)}" if _outside(operator.rank, len(shape)) else ""


def _check_inputs(node: Node, operator: Operator, table: OperatorTable) -> str:
    given = {i for i, name in enumerate(node.proto.input) if name}
    for index in given.intersection(operator.absent_inputs):
        return f"input {index} is given"
    for index in given.intersection(operator.constant_inputs) - node.constants.keys():
        return f"input {index} is no constant"
    for index in given.intersection(operator.zero_inputs):
        value = node.constants.get(index)
        if value is None or numpy_helper.to_array(value).astype(float).any():
            return f"input {index} is not zero"
    return ""


def _check_outputs(node: Node, operator: Operator, table: OperatorTable) -> str:
    used = sum(1 for name in node.proto.output if name)
    return f"uses {used} outputs" if operator.outputs is not None and used > operator.outputs else ""


def _check_attributes(node: Node, operator: Operator, table: OperatorTable) -> str:
    for name in (*operator.attributes, *operator.ranges):
        value = attribute_of(node.proto, name, ())
        elements = [value] if isinstance(value, (int, float, bytes)) else [*value]
        elements = [e.decode() if isinstance(e, bytes) else e for e in elements]
        allowed = operator.attributes.get(name)
        for element in elements:
            if allowed is not None and element not in allowed:
                return f"{name} {element} is not among {', '.join(map(str, allowed))}"
            if name in operator.ranges:
                least, greatest = operator.ranges[name]
                if not least <= element <= greatest:
                    return f"{name} {element} is not {least:g} to {greatest:g}"
    return ""


CHECKS = (_check_opset, _check_shapes, _check_dtype, _check_rank, _check_inputs, _check_outputs, _check_attributes)
"""What a machine can check; each gives a reason or nothing."""
