"""Sessions and distances shared by the quantisation modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from triptych.contract import ConfigError

Feeds = Mapping[str, npt.NDArray[Any]]
"""One input of a graph: name to array."""
LOG_ERRORS_ONLY = 3


def open_session(model: Path | onnx.ModelProto, optimise: bool = True, threads: int = 1) -> ort.InferenceSession:
    """A graph on the CPU. Without ``optimise`` every node runs as written, so quantised graphs compute in float32.

    Raises:
        ConfigError: ONNX Runtime cannot load it.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = LOG_ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises a dozen types without a common base
        where = None if isinstance(model, onnx.ModelProto) else model
        raise ConfigError(f"ONNX Runtime cannot load it: {' '.join(str(error).split())[:160]}", where=where) from None


def outputs_of(session: ort.InferenceSession, feeds: Iterable[Feeds]) -> list[dict[str, npt.NDArray[Any]]]:
    """All outputs by name, for each input."""
    names = [o.name for o in session.get_outputs()]
    return [dict(zip(names, session.run(None, dict(feed)), strict=True)) for feed in feeds]


def relative_l2(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """||found - wanted|| / ||wanted||; 0 for two zeros, infinity where only ``wanted`` is zero or any value is NaN."""
    a, b = np.asarray(found, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    if a.shape != b.shape or not np.isfinite(a).all():
        return float("inf")
    error, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    if size == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return error / size


def worst_relative_l2(
    found: Sequence[Mapping[str, npt.NDArray[Any]]], wanted: Sequence[Mapping[str, npt.NDArray[Any]]]
) -> float:
    """Relative L2 of each output over all inputs together; the greatest of the outputs.

    Raises:
        ConfigError: nothing to compare.
    """
    if not found or len(found) != len(wanted) or not wanted[0]:
        raise ConfigError("nothing was compared", remedy="give at least one input")
    return max(
        relative_l2(
            np.concatenate([np.ravel(f[name]) for f in found]), np.concatenate([np.ravel(w[name]) for w in wanted])
        )
        for name in wanted[0]
    )


def mean_kl(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> float:
    """Mean over positions of KL(softmax(wanted) || softmax(found)) in nats; logits (..., classes)."""
    p, q = _log_softmax(wanted), _log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    logs: npt.NDArray[np.float64] = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return logs
