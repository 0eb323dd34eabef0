"""Post-training quantisation of an ONNX graph to QuantizeLinear/DequantizeLinear pairs (QDQ).

Ranges come from :mod:`.calibrate`, the graph surgery from ONNX Runtime's ``QDQQuantizer``: it places the pairs where
ONNX Runtime's own optimiser looks for them and then runs integer kernels. NNCF's ONNX back end does the same surgery
behind a calibration of its own; with ranges measured, compared and logged here it would add a dependency and no result.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (  # type: ignore[import-untyped]
    CalibrationMethod,
    QDQQuantizer,
    QuantType,
    TensorData,
    TensorsData,
    quant_pre_process,
)
from onnxruntime.transformers.float16 import convert_float_to_float16  # type: ignore[import-untyped]

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.quantise import calibrate
from triptych_forge.quantise.calibrate import Range
from triptych_forge.quantise.measure import Feeds, open_session, outputs_of, worst_relative_l2
from triptych_forge.quantise.pixels import take_pixels
from triptych_forge.quantise.record import Recorded, check_recorded

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with weights: what is worth quantising."""
CONVOLUTIONAL = (*WEIGHTED, "Add", "Relu", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize")
"""For convolutional nets: the operators between weighted ones too, so that tensors stay integers."""
TRANSFORMER = ("Gemm", "MatMul")
"""For decoders: sums and normalisations stay in float."""

TYPES = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8}


@dataclass(frozen=True)
class PtqOptions:
    """How to quantise.

    Attributes:
        op_types: operators to quantise; :data:`CONVOLUTIONAL` or :data:`TRANSFORMER`, or your own.
        method: of :data:`.calibrate.METHODS`.
        percentile: for that method, in %.
        per_channel: a scale per output channel of a weight.
        activation: ``uint8`` or ``int8``.
        symmetric_activations: zero-point in the middle, as TensorRT requires.
        quantise_bias: to int32 in steps of input scale x weight scale, as integer kernels on CPUs require.
        exclude: names of nodes left in float.
    """

    op_types: tuple[str, ...] = CONVOLUTIONAL
    method: str = "minmax"
    percentile: float = 99.99
    per_channel: bool = True
    activation: str = "uint8"
    symmetric_activations: bool = False
    quantise_bias: bool = True
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class PtqResult:
    """What was done.

    Attributes:
        path: of the quantised graph.
        quantised: weighted nodes that got integer weights.
        kept: weighted nodes left in float.
        bytes_before, bytes_after: of the files.
        calibration_sha256: of the feeds; empty if ranges were given.
    """

    path: Path
    quantised: tuple[str, ...]
    kept: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    calibration_sha256: str


def prepare(model: Path, out: Path) -> Path:
    """Fold batch normalisations and constants, name every node and infer shapes: what quantisation starts from.

    Raises:
        ConfigError: not an ONNX file that ONNX Runtime accepts.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    try:
        with _quiet():
            # Symbolic inference adds nothing but shapes; types, which ranges need, come from plain inference.
            quant_pre_process(str(model), str(beside), skip_symbolic_shape=True)
        content = onnx.load(str(beside))
        _name_nodes(content)
        onnx.save(content, str(beside))
        os.replace(beside, out)
    except Exception as error:  # parser, checker and runtime raise types without a common base
        raise ConfigError(f"cannot be prepared: {' '.join(str(error).split())[:160]}", where=model) from None
    finally:
        beside.unlink(missing_ok=True)
    return out


def _name_nodes(model: onnx.ModelProto) -> None:
    """Give nameless nodes and second bearers of a name one of their own: exclusion goes by name."""
    seen: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{number}"
        seen.add(node.name)


def layers(model: Path | onnx.ModelProto, op_types: Sequence[str] = WEIGHTED) -> tuple[str, ...]:
    """Names of the nodes with constant weights, in order: what mixed precision decides about."""
    graph = (onnx.load(str(model)) if isinstance(model, Path) else model).graph
    constants = {i.name for i in graph.initializer}
    weighted = [n for n in graph.node if n.op_type in WEIGHTED and n.op_type in op_types]
    return tuple(n.name for n in weighted if any(name in constants for name in n.input[:2]))


def _beyond_weights(graph: onnx.GraphProto, op_types: Sequence[str]) -> list[str]:
    """Weightless nodes whose result no weighted operator uses: decoding of boxes and scores.

    To quantise these would round pixels, not features, and save nothing.
    """
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    needed: set[str] = set()
    for node in reversed(graph.node):  # sorted, so takers were seen before
        if any(t.op_type in WEIGHTED or t.name in needed for o in node.output for t in takers.get(o, [])):
            needed.add(node.name)
    return [n.name for n in graph.node if n.op_type in op_types and n.op_type not in WEIGHTED and n.name not in needed]


def quantise_model(
    prepared: Path,
    out: Path,
    feeds: Sequence[Feeds],
    options: PtqOptions = PtqOptions(),
    *,
    ranges: Mapping[str, Range] | None = None,
    recorded: Recorded | None = None,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PtqResult:
    """Quantise a prepared graph.

    Args:
        prepared: from :func:`prepare`.
        out: the file to write.
        feeds: calibration inputs; not used if ``ranges`` are given.
        options: how.
        ranges: name of tensor to range, from :func:`.calibrate.ranges`.
        recorded: what calibration data of this engine look like, e.g. its bundle's ``calibration.json``.
        log: gets ``quantise.ptq``.
        progress: of the calibration.

    Raises:
        ConfigError: unknown option value; an excluded node that the graph lacks; feeds that do not fit the graph or do
            not look like the recorded ones; no weighted node left to quantise.
    """
    if options.activation not in TYPES:
        raise ConfigError(f"unknown, known are {', '.join(TYPES)}", field="activation", value=options.activation)
    content = onnx.load(str(prepared))
    known = {node.name for node in content.graph.node}
    for name in options.exclude:
        if name not in known:
            raise ConfigError("the graph has no such node", where=prepared, field="exclude", value=name)
    candidates = layers(content, options.op_types)
    chosen = tuple(name for name in candidates if name not in options.exclude)
    if not chosen:
        raise ConfigError("no node with weights is left to quantise", where=prepared, remedy="exclude fewer")
    digest = ""
    if ranges is not None and recorded is not None:
        raise ConfigError("has nothing to be held against: ranges are given, not inputs", field="recorded")
    if ranges is None:
        feeds = checked(prepared, feeds, recorded)
        digest = calibrate.hash_of(feeds)
        ranges = calibrate.ranges(calibrate.collect(prepared, feeds, progress), options.method, options.percentile)
    excluded = [*options.exclude, *_beyond_weights(content.graph, options.op_types)]
    # A matrix product of two activations (attention) holds no weights to save, and its ranges follow the input.
    excluded += [n.name for n in content.graph.node if n.op_type in ("MatMul", "Gemm") and n.name not in candidates]
    excluded += _lone(content.graph, options.op_types, set(chosen), set(excluded), ranges)
    before = prepared.stat().st_size
    with _quiet():
        quantiser = QDQQuantizer(
            content,
            options.per_channel,
            False,
            QuantType.QInt8,
            TYPES[options.activation],
            _tensors_data(ranges),
            [],
            excluded,
            list(options.op_types),
            {
                "ActivationSymmetric": options.symmetric_activations,
                "QuantizeBias": options.quantise_bias,
                "WeightSymmetric": True,
                # Without sums in integers a product goes on in float, and rounding it would only lose.
                "OpTypesToExcludeOutputQuantization": [] if "Add" in options.op_types else ["MatMul", "Gemm"],
                # TensorRT takes no int32 bias and no shared scale trick; CPUs need both.
                "QDQDisableWeightAdjustForInt32Bias": not options.quantise_bias,
            },
        )
        quantiser.quantize_model()
        quantiser.model.topological_sort()
    result = quantiser.model.model
    result.producer_name, result.producer_version = "triptych_forge", ""
    take_pixels(result)
    _save(result, out)
    open_session(out)  # refused here rather than on the vehicle
    kept = tuple(name for name in candidates if name not in chosen)
    if log is not None:
        log.add(
            "quantise.ptq",
            out.name,
            options=asdict(options),
            quantised=len(chosen),
            kept_float=kept,
            bytes_before=before,
            bytes_after=out.stat().st_size,
            calibration_sha256=digest,
            held_against_record=recorded is not None,
        )
    return PtqResult(out, chosen, kept, before, out.stat().st_size, digest)


def checked(prepared: Path, feeds: Sequence[Feeds], recorded: Recorded | None) -> list[Feeds]:
    """Calibration inputs, if they fit the graph and look like the recorded ones where there are any.

    Raises:
        ConfigError: see :func:`.calibrate.check_feeds` and :func:`.record.check_recorded`.
    """
    found = calibrate.check_feeds(prepared, feeds)
    if recorded is not None:
        check_recorded(found, recorded)
    return found


def _lone(
    graph: onnx.GraphProto, op_types: Sequence[str], chosen: set[str], excluded: set[str], activations: Iterable[str]
) -> list[str]:
    """Weightless nodes with an input that no quantised node makes.

    They would turn floats into integers for themselves alone; and the other input of such a sum would be rounded for a
    layer that is meant to stay in float.
    """
    makers = {o: node.name for node in graph.node for o in node.output}
    ranged = set(activations)
    alive, lone = set(chosen), []
    for node in graph.node:  # sorted: makers come first
        if node.op_type not in op_types or node.op_type in WEIGHTED or node.name in excluded:
            continue
        if all(makers.get(name) in alive for name in node.input if name in ranged):
            alive.add(node.name)
        else:
            lone.append(node.name)
    return lone


def _tensors_data(ranges: Mapping[str, Range]) -> TensorsData:
    data = {
        name: TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
        for name, (low, high) in ranges.items()
    }
    return TensorsData(CalibrationMethod.MinMax, data)


def _save(model: onnx.ModelProto, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.tmp")
    onnx.save(model, str(beside))
    os.replace(beside, out)


@contextlib.contextmanager
def _quiet() -> Any:
    """ONNX Runtime's quantiser prints and warns about its own defaults; what matters here is raised."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(level)


def to_fp16(model: Path, out: Path) -> Path:
    """Weights and arithmetic in half precision, inputs and outputs as before; ONNX Runtime's own converter."""
    with _quiet():
        content = convert_float_to_float16(onnx.load(str(model)), keep_io_types=True)
    _save(content, out)
    open_session(out)
    return out


@dataclass(frozen=True)
class MethodRow:
    """One way to calibrate.

    Attributes:
        method: of :data:`.calibrate.METHODS`.
        error: worst relative L2 of an output on held-out inputs.
        metric: if asked for.
        slices: the same error as ``error`` on each slice of held-out inputs.
    """

    method: str
    error: float
    metric: float | None
    slices: Mapping[str, float] = field(default_factory=dict)


def compare_methods(
    prepared: Path,
    feeds: Sequence[Feeds],
    held_out: Sequence[Feeds],
    folder: Path,
    options: PtqOptions = PtqOptions(),
    *,
    methods: Sequence[str] = calibrate.METHODS,
    slices: Mapping[str, Sequence[Feeds]] | None = None,
    recorded: Recorded | None = None,
    metric: Callable[[Path], float] | None = None,
    log: DecisionLog | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[MethodRow]:
    """Quantise once per calibration method from one measurement and compare on inputs that were not calibrated with.

    Args:
        folder: gets ``<method>.onnx``.
        slices: further held-out inputs by condition, e.g. ``night``: a range that fits the mean picture may cut off
            what a rare one needs. They do not decide the order.
        recorded: what calibration data of this engine look like, e.g. its bundle's ``calibration.json``.
        metric: of a quantised file, higher is better.
        log: gets one ``quantise.calibration`` per method.

    Returns:
        Best first: by metric if there is one, else by error.

    Raises:
        ConfigError: as :func:`quantise_model`; nothing held out, in all or in a slice.
    """
    feeds = checked(prepared, feeds, recorded)
    parts: dict[str | None, Sequence[Feeds]] = {None: calibrate.check_feeds(prepared, held_out)}
    for name, inputs in (slices or {}).items():
        if not inputs:
            raise ConfigError("holds no inputs", field=f"slices.{name}", remedy="give some or leave the slice out")
        parts[name] = calibrate.check_feeds(prepared, inputs)
    histograms = calibrate.collect(prepared, feeds, progress)
    parent = open_session(prepared)
    wanted = {part: outputs_of(parent, inputs) for part, inputs in parts.items()}
    rows = []
    for method in methods:
        out = folder / f"{method}.onnx"
        found = calibrate.ranges(histograms, method, options.percentile)
        quantise_model(prepared, out, (), options, ranges=found)
        child = open_session(out)
        errors = {part: worst_relative_l2(outputs_of(child, inputs), wanted[part]) for part, inputs in parts.items()}
        by_slice = {part: error for part, error in errors.items() if part is not None}
        row = MethodRow(method, errors[None], float(metric(out)) if metric else None, by_slice)
        rows.append(row)
        if log is not None:
            log.add(
                "quantise.calibration", method, error=row.error, slices=by_slice, metric=row.metric,
                sha256=calibrate.hash_of(feeds), held_against_record=recorded is not None,
            )  # fmt: skip
    return sorted(rows, key=lambda row: (-row.metric if row.metric is not None else 0.0, row.error))
