"""One ONNX file on a device: loading, placement and output checks, shared by all engines on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from triptych.contract import EngineError
from triptych.engines.protocol import DeviceReport

DEVICES: dict[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
"""Names a user may ask for, and ONNX Runtime's names for them."""

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float16)": np.float16,
}
LOG_ERRORS_ONLY = 3


def available_devices() -> list[str]:
    """The device names this installation of ONNX Runtime can serve."""
    present = set(ort.get_available_providers())
    return [name for name, provider in DEVICES.items() if provider in present]


def check_device(device: str) -> str:
    """The provider for a device name.

    Raises:
        EngineError: unknown name, or not available in this installation.
    """
    if device not in DEVICES:
        raise EngineError(
            f"unknown device, known are {', '.join(DEVICES)}", field="device", value=device, remedy="choose one of them"
        )
    if device not in available_devices():
        raise EngineError(
            f"device not available here, available are {', '.join(available_devices())}",
            field="device",
            value=device,
            remedy="choose one of them or install ONNX Runtime for that device",
        )
    return DEVICES[device]


class OnnxSession:
    """A loaded graph.

    Args:
        path: the ONNX file; its hash has been checked by the caller.
        device: a key of :data:`DEVICES`.
        threads: threads inside an operator; 1 or more.

    Attributes:
        device: requested and actual device, node counts.
        fallback_nodes: names of the nodes the wanted device did not take.

    Raises:
        EngineError: unknown device, threads out of range, not an ONNX file, or one this runtime refuses.
    """

    def __init__(self, path: Path, device: str = "cpu", threads: int = 1) -> None:
        provider = check_device(device)
        if not 1 <= threads <= 64:
            raise EngineError("must be 1 to 64", field="threads", value=threads)
        self.path = path
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = LOG_ERRORS_ONLY
        # Spinning threads steal the cores of the other tiers between two frames.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        # Not session.set_denormal_as_zero: the first session with it changes the calling thread's arithmetic for good.
        self._records_placement = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
        if provider != DEVICES["cpu"] and not self._records_placement:
            # An older runtime cannot say which nodes fell back, so none may.
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        wanted: list[str] = [provider] if provider == DEVICES["cpu"] else [provider, DEVICES["cpu"]]
        try:
            self._session = ort.InferenceSession(str(path), options, providers=wanted)
        except Exception as error:  # the runtime raises a dozen types without a common base
            raise EngineError(
                f"ONNX Runtime cannot load it: {_short(error)}", where=path, remedy="export or copy the file again"
            ) from None
        self.inputs: dict[str, tuple[tuple[Any, ...], Any]] = {
            i.name: (tuple(i.shape), DTYPES.get(i.type)) for i in self._session.get_inputs()
        }
        self.outputs: dict[str, tuple[Any, ...]] = {o.name: tuple(o.shape) for o in self._session.get_outputs()}
        self.device, self.fallback_nodes = self._placement(device, provider)

    def _placement(self, requested: str, provider: str) -> tuple[DeviceReport, tuple[str, ...]]:
        total, strays = 0, []
        placed = self._session.get_provider_graph_assignment_info() if self._records_placement else []
        for subgraph in placed:
            nodes = subgraph.get_nodes()
            total += len(nodes)
            if subgraph.ep_name != provider:
                strays += [node.name or node.op_type for node in nodes]
        actual = requested if provider in self._session.get_providers() and len(strays) < max(total, 1) else "cpu"
        runtime = f"onnxruntime {ort.__version__}"
        return DeviceReport(requested, actual, runtime, total, len(strays)), tuple(strays)

    def refuse_fallback_above(self, share: float) -> None:
        """Raise EngineError when more than ``share`` (0..1) of the nodes fell back to the CPU."""
        if self.device.fallback_share > share:
            names = ", ".join(self.fallback_nodes[:3])
            raise EngineError(
                f"{self.device.nodes_fallback} of {self.device.nodes_total} nodes fell back to the CPU ({names}…), "
                f"more than the allowed share of {share:g}",
                where=self.path,
                field="max_fallback_share",
                remedy=f"run it on cpu or export it for {self.device.requested}",
            )

    def run(self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the graph.

        Raises:
            EngineError: the runtime refuses the feeds or fails.
        """
        try:
            return list(self._session.run(outputs, dict(feeds)))
        except Exception as error:
            raise EngineError(f"inference failed: {_short(error)}", where=self.path) from None


def check_finite(outputs: Sequence[npt.NDArray[Any]], where: object) -> None:
    """Refuse outputs with NaN or infinity.

    Raises:
        EngineError: naming the first such output.
    """
    for index, output in enumerate(outputs):
        # A sum is not finite as soon as one term is not, and is cheaper than isfinite() of each.
        if output.dtype.kind == "f" and not np.isfinite(output.sum(dtype=np.float64)):
            raise EngineError(f"output {index} holds NaN or infinity", where=where, remedy="check the engine file")


def check_shapes(
    outputs: Sequence[tuple[Any, ...]], wanted: Sequence[tuple[int, ...]], where: object, why: str
) -> None:
    """Compare shapes; symbolic dimensions (text, None) fit anything.

    Raises:
        EngineError: another number of outputs or another shape.
    """

    def fits(shape: tuple[Any, ...], want: tuple[int, ...]) -> bool:
        return len(shape) == len(want) and all(
            s == w or not isinstance(s, int) for s, w in zip(shape, want, strict=True)
        )

    if len(outputs) != len(wanted) or not all(fits(s, w) for s, w in zip(outputs, wanted, strict=True)):
        raise EngineError(
            f"shapes do not fit: the file has {_listed(outputs)}, {why} needs {_listed(wanted)}",
            where=where,
            remedy="correct input, labels or decoder in the manifest, or use the file it was written for",
        )


def _listed(shapes: Sequence[tuple[Any, ...]]) -> str:
    return " ".join("x".join(str(d) for d in shape) for shape in shapes)


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text.split(" : ")[-1] if " : " in text else text
    return text[:157] + "..." if len(text) > 160 else text.rstrip(".")
