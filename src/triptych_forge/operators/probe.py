"""Asking the libraries that are installed here what they do with a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import helper

from triptych_forge.operators.graph import Node, subgraphs_of
from triptych_forge.operators.tables import DTYPE_NAMES


@dataclass(frozen=True)
class Probe:
    """What the installed library did with the model.

    Attributes:
        library, version: asked.
        unsupported: names of nodes that it refuses.
        message: its words, where it refuses anything.
    """

    library: str
    version: str
    unsupported: tuple[str, ...] = ()
    message: str = ""

    @property
    def takes_all(self) -> bool:
        """Whether it takes the model whole."""
        return not self.unsupported and not self.message


def probe_onnxruntime(model_path: Path, nodes: Sequence[Node]) -> Probe | None:
    """Load the model on ONNX Runtime's CPU provider; where that fails, each kind of node by itself."""
    import onnxruntime as ort

    answer = Probe("onnxruntime", ort.__version__)
    problem = _onnxruntime_problem(str(model_path))
    if not problem:
        return answer
    refused: dict[tuple[str, tuple[str | None, ...]], bool] = {}
    for node in nodes:
        kind = (node.operator, node.dtypes)
        if kind not in refused:
            alone = _alone(node)
            refused[kind] = alone is not None and bool(_NO_KERNEL.search(_onnxruntime_problem(alone)))
    unsupported = tuple(n.name for n in nodes if refused[n.operator, n.dtypes])
    return replace(answer, unsupported=unsupported, message=problem[:160])


_NO_KERNEL = re.compile(r"NOT_IMPLEMENTED|not a registered|No Op registered")


def _onnxruntime_problem(model: str | bytes) -> str:
    """Empty, or why ONNX Runtime refuses to load a model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen types without a common base
        return " ".join(str(error).split())
    return ""


def _alone(node: Node) -> bytes | None:
    """A model of one node, to see whether a kernel is registered; None where types are unknown or it owns subgraphs."""
    given = {name: dtype for name, dtype in zip(node.proto.input, node.dtypes, strict=True) if name}
    if None in given.values() or subgraphs_of(node.proto):
        return None
    codes = {name: code for code, name in DTYPE_NAMES.items()}
    inputs = [helper.make_tensor_value_info(name, codes[str(dtype)], None) for name, dtype in given.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.proto.output if name]
    graph = helper.make_graph([node.proto], "alone", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.proto.domain, node.opset)], ir_version=8)
    return bytes(model.SerializeToString())


def probe_openvino(model_path: Path, nodes: Sequence[Node]) -> Probe | None:
    """Ask OpenVINO's CPU plug-in; None where OpenVINO is not installed."""
    try:
        import openvino as ov
    except ImportError:
        return None
    answer = Probe("openvino", str(ov.__version__).split("-")[0])
    core = ov.Core()
    try:
        model = core.read_model(str(model_path))
        placed = {*core.query_model(model, "CPU")}
    except Exception as error:  # a translation error has no type of its own
        text = " ".join(str(error).split())
        named = set(re.findall(r"\w+", text))
        return replace(answer, unsupported=tuple(n.name for n in nodes if n.proto.op_type in named), message=text[:160])
    strays = {
        op.get_friendly_name(): op.get_type_name()
        for op in model.get_ops()
        if op.get_friendly_name() not in placed and op.get_type_name() not in ("Parameter", "Constant", "Result")
    }
    refused = tuple(n.name for n in nodes if strays.keys() & {n.proto.name, *n.proto.output})
    return replace(answer, unsupported=refused, message=", ".join(sorted(set(strays.values()))))


PROBES: dict[str, Callable[[Path, Sequence[Node]], Probe | None]] = {
    "onnxruntime-cpu": probe_onnxruntime,
    "openvino-cpu": probe_openvino,
}
"""Targets whose library may be installed here, and how to ask it."""
