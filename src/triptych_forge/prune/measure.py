"""A hardware profile of this machine, from graphs of single operators in ONNX Runtime."""

from __future__ import annotations

import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from triptych import __version__
from triptych.contract import ConfigError
from triptych_forge.prune import quiet
from triptych_forge.prune.profile import KIND, NAME, Caches, HardwareProfile, Measurement, Operator, roofline_us
from triptych_forge.prune.shapes import LayerShape

CHANNELS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SIZES = ((8, 14), (16, 28), (32, 56), (64, 112))
"""Rows and columns: the strides 32 to 4 of a 448 x 256 picture."""
WIDE = (8, 16, 32, 64)
FINE = ((16, 28), (32, 56), (64, 112), (128, 224))
BRANCHES = 5
LEAST_SAMPLE_S = 3e-4


@dataclass(frozen=True)
class Grid:
    """Where one operator is measured. ``sizes``: rows and columns of the output."""

    channels_in: tuple[int, ...]
    channels_out: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]


DEFAULT_GRIDS: Mapping[str, Grid] = {
    "conv1x1": Grid(CHANNELS, CHANNELS, SIZES),
    "conv3x3": Grid(WIDE, WIDE, SIZES),
    "conv3x3/2": Grid((3, *WIDE), WIDE, FINE),
    "conv4x4/4": Grid((3,), WIDE, FINE),
    "depthwise3x3": Grid(CHANNELS, (), SIZES),
    "depthwise3x3/2": Grid(CHANNELS, (), SIZES),
    "depthwise5x5": Grid(CHANNELS, (), SIZES),
    "depthwise5x5/2": Grid(CHANNELS, (), SIZES),
    "linear": Grid((32, 64, 128, 256, 512), (32, 64, 128, 256, 512), ((1, 1), (1, 16), (1, 181), (1, 512))),
}
"""What the project's nets are made of."""


def coarse(grids: Mapping[str, Grid]) -> dict[str, Grid]:
    """Every second value of each axis, and the last: about a quarter of the shapes."""

    def half(axis: tuple) -> tuple:  # type: ignore[type-arg]
        return axis[::2] if len(axis) % 2 or len(axis) < 2 else (*axis[::2], axis[-1])

    return {
        kind: replace(
            grid, channels_in=half(grid.channels_in), channels_out=half(grid.channels_out), sizes=half(grid.sizes)
        )
        for kind, grid in grids.items()
    }


def single_operator(
    kind: str, channels_in: int, channels_out: int, size: tuple[int, int], branches: int
) -> onnx.ModelProto:
    """A graph of ``branches`` equal operators (with ReLU) on one input; of each result one position is kept.

    The time of five branches less that of one is that of four operators, free of the cost of a call and of bringing the
    input into the engine's own layout.

    Raises:
        ConfigError: not the name of an operator.
    """
    match = KIND.fullmatch(kind)
    if match is None:
        raise ConfigError("is not the name of an operator", field="kind", value=kind, remedy="see the docs of profiles")
    rows, columns = size
    generator = np.random.default_rng(3)
    nodes, constants, ends = [], [], []

    def constant(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def noise(name: str, *shape: int) -> str:
        return constant(name, generator.normal(0, 0.05, shape).astype(np.float32))

    if kind == "linear":
        input_shape: list[int] = [rows * columns, channels_in]
        start, end = constant("start", np.array([0])), constant("end", np.array([1]))
        for b in range(branches):
            weight, bias = noise(f"w{b}", channels_in, channels_out), noise(f"b{b}", channels_out)
            nodes += [
                helper.make_node("MatMul", ["x", weight], [f"m{b}"]),
                helper.make_node("Add", [f"m{b}", bias], [f"a{b}"]),
                helper.make_node("Slice", [f"a{b}", start, end], [f"o{b}"]),
            ]
            ends.append(f"o{b}")
    else:
        kernel, stride = int(match["kernel"]), int(match["stride"] or 1)
        groups = channels_in if match["operator"] == "depthwise" else 1
        channels_out = channels_in if groups > 1 else channels_out
        padding = kernel // 2 if stride < kernel else 0
        input_shape = [1, channels_in, rows * stride, columns * stride]
        for b in range(branches):
            weight = noise(f"w{b}", channels_out, channels_in // groups, kernel, kernel)
            bias = noise(f"b{b}", channels_out)
            nodes += [
                helper.make_node(
                    "Conv",
                    ["x", weight, bias],
                    [f"c{b}"],
                    group=groups,
                    kernel_shape=[kernel, kernel],
                    strides=[stride, stride],
                    pads=[padding] * 4,
                ),
                helper.make_node("Relu", [f"c{b}"], [f"r{b}"]),
                helper.make_node("MaxPool", [f"r{b}"], [f"o{b}"], kernel_shape=[1, 1], strides=[rows, columns]),
            ]
            ends.append(f"o{b}")
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=1))
    graph = helper.make_graph(
        nodes,
        "operator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def measure_operator_us(
    kind: str, channels_in: int, channels_out: int, size: tuple[int, int], repeats: int = 9, threads: int = 1
) -> float:
    """Median microseconds of one operator in ONNX Runtime on this machine (see :func:`single_operator`).

    With one thread the processor time of that thread is taken, so that other programs on the machine do not count.
    """
    return _of_one(*_branch_seconds(kind, channels_in, channels_out, size, repeats, threads))


def _of_one(one_s: float, many_s: float) -> float:
    """Microseconds of one operator from the times of a graph with one branch and one with many."""
    return max((many_s - one_s) / (BRANCHES - 1) * 1e6, 0.001)


def _branch_seconds(
    kind: str, channels_in: int, channels_out: int, size: tuple[int, int], repeats: int, threads: int
) -> tuple[float, float]:
    """Median seconds of the graphs with one branch and with :data:`BRANCHES`."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = []
    for branches in (1, BRANCHES):
        graph = single_operator(kind, channels_in, channels_out, size, branches).SerializeToString()
        sessions.append(ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"]))
    shape = sessions[0].get_inputs()[0].shape
    value = {"x": np.random.default_rng(4).normal(0, 1, shape).astype(np.float32)}
    samples: tuple[list[float], list[float]] = ([], [])
    runs = 1
    for turn in range(-2, repeats):
        # One after the other in turns, so that a slow spell of the machine meets both.
        for session, times in zip(sessions, samples, strict=True):
            start = clock()
            for _ in range(runs):
                session.run(None, value)
            seconds = (clock() - start) / runs
            if turn >= 0:
                times.append(seconds)
        if turn == -1:
            runs = max(1, math.ceil(LEAST_SAMPLE_S / seconds))  # short ones are measured several at a time
    one, many = (statistics.median(times) for times in samples)
    return one, many


def measure_profile(
    name: str,
    host: str,
    grids: Mapping[str, Grid] = DEFAULT_GRIDS,
    repeats: int = 9,
    passes: int = 1,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> HardwareProfile:
    """Measure this machine: every operator over its grid, the memory's bandwidth, the peak (the best rate seen).

    Args:
        name, host: of the profile; ``host`` says the kind of machine.
        grids: operators and shapes.
        repeats: samples per shape, of which the median counts.
        passes: over all grids; the least median counts, as other load on the machine only adds. What two passes
            differ by says whether the machine was quiet (:mod:`.quiet`).
        threads: inside an operator.
        progress: called with shapes done and in all.

    Raises:
        ConfigError: no name for a profile; a kind that is not the name of an operator.
    """
    if not NAME.fullmatch(name):  # now rather than after minutes
        raise ConfigError(
            "is no name for a profile", field="name", value=name, remedy="use lower-case letters, digits and ._-"
        )
    cells = {
        kind: list(itertools.product(grid.channels_in, grid.channels_out or (0,), grid.sizes))
        for kind, grid in grids.items()
    }
    total = passes * sum(map(len, cells.values()))
    done = 0
    load_before, started = quiet.others_load(), time.monotonic()
    least: dict[str, list[tuple[float, float]]] = {kind: [(math.inf, math.inf)] * len(c) for kind, c in cells.items()}
    rounds: list[list[float]] = []
    for _ in range(passes):
        rounds.append([])
        for kind, grid_cells in cells.items():
            for index, (channels_in, channels_out, size) in enumerate(grid_cells):
                one, many = _branch_seconds(kind, channels_in, channels_out, size, repeats, threads)
                least[kind][index] = min(least[kind][index][0], one), min(least[kind][index][1], many)
                rounds[-1].append(many)
                done += 1
                if progress is not None:
                    progress(done, total)
    times = {kind: [round(_of_one(*pair), 3) for pair in pairs] for kind, pairs in least.items()}
    how = f"least of {passes} medians of {repeats}" if passes > 1 else f"median of {repeats}"
    operators = {
        kind: Operator(
            channels_in=grid.channels_in,
            channels_out=grid.channels_out,
            positions=tuple(rows * columns for rows, columns in grid.sizes),
            microseconds=tuple(times[kind]),
            source=f"{how}, ONNX Runtime {ort.__version__}",
        )
        for kind, grid in grids.items()
    }
    # A rate from less than 20 us is mostly the clock's own error.
    rates = [
        grid_shape(kind, *cell).macs / us / 1e3
        for kind in grids
        for cell, us in zip(cells[kind], times[kind], strict=True)
        if us >= 20.0
    ]
    load_after, spread = quiet.others_load(threads, time.monotonic() - started), quiet.spread_of(rounds)
    reasons = quiet.busy_load(load_before), quiet.busy_load(load_after), quiet.busy_spread(spread)
    caches = read_caches()
    profile = HardwareProfile(
        schema_version=1,
        name=name,
        version=date.today().isoformat(),
        host=host[:200],
        source=f"measured on {date.today().isoformat()} with ONNX Runtime {ort.__version__}, {threads} thread(s), "
        + ("processor time" if threads == 1 else "wall time")
        + (", beside other programs or unsteadily: not to be trusted" if any(reasons) else ""),
        estimate=False,
        measured=Measurement(
            date=date.today().isoformat(),
            versions={
                "triptych": __version__,
                "onnxruntime": ort.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                platform.system(): platform.release(),
            },
            repeats=repeats,
            passes=passes,
            load_before=load_before,
            load_after=load_after,
            spread=spread,
            quiet=not any(reasons),
        ),
        threads=threads,
        caches=caches,
        memory_gb_per_s=round(
            measure_bandwidth_gb_per_s(min(max(64 << 20, 2 * caches.last_level_bytes), 256 << 20)), 2
        ),
        cache_gb_per_s=round(measure_bandwidth_gb_per_s(max(64 << 10, caches.l2_kib * 1024 // 4)), 2),
        peak_gmacs_per_s=round(max(rates, default=1.0), 2),
        operators=operators,
    )
    return profile.model_copy(update={"operators": {k: _possible(k, o, profile) for k, o in operators.items()}})


def refuse_busy(profile: HardwareProfile) -> None:
    """Stop unless the machine was quiet while the profile was measured.

    Raises:
        ConfigError: it was not, or nobody knows.
    """
    found = profile.measured
    if found is None:
        raise ConfigError("was not measured here", where=f"hardware profile {profile.name}", field="measured")
    quiet.refuse_busy(
        quiet.busy_load(found.load_before, " before"),
        quiet.busy_load(found.load_after, " after"),
        quiet.busy_spread(found.spread),
    )


def _possible(kind: str, operator: Operator, profile: HardwareProfile) -> Operator:
    """No time below the roofline: the difference of two short times may come out as almost nothing, or less."""
    cells = itertools.product(operator.channels_in, operator.channels_out or (0,), operator.positions)
    least = [roofline_us(grid_shape(kind, a, b, (1, n)), profile) for a, b, n in cells]
    times = tuple(round(max(us, bound), 3) for us, bound in zip(operator.microseconds, least, strict=True))
    return operator.model_copy(update={"microseconds": times})


def grid_shape(kind: str, channels_in: int, channels_out: int, size: tuple[int, int]) -> LayerShape:
    """The layer that :func:`single_operator` builds, as a shape."""
    match = KIND.fullmatch(kind)
    assert match is not None
    kernel, stride = int(match["kernel"] or 1), int(match["stride"] or 1)
    depthwise = match["operator"] == "depthwise"
    positions = size[0] * size[1]
    return LayerShape(
        kind,
        kind,
        channels_in,
        channels_in if depthwise else channels_out,
        channels_in if depthwise else 1,
        kernel * kernel,
        positions * stride * stride,
        positions,
        True,
    )


def measure_bandwidth_gb_per_s(size_bytes: int, repeats: int = 7) -> float:
    """Bytes read and written per nanosecond while copying ``size_bytes``; the median of ``repeats``."""
    source = np.ones(size_bytes // 4, np.float32)
    target = np.zeros_like(source)
    copies = max(1, (64 << 20) // size_bytes)
    rates = []
    for _ in range(repeats + 1):
        start = time.thread_time()
        for _ in range(copies):
            np.copyto(target, source)
        rates.append(2 * source.nbytes * copies / (time.thread_time() - start) / 1e9)
    return statistics.median(rates[1:])


def read_caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Caches:
    """Sizes of the first core's data caches as Linux tells them; 0 where it does not."""
    sizes = {1: 0, 2: 0, 3: 0}
    for entry in sorted(root.glob("index*")):
        try:
            level, kind = int((entry / "level").read_text()), (entry / "type").read_text().strip()
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size.endswith("K") and level in sizes:
            sizes[level] = int(size[:-1])
    return Caches(l1_kib=sizes[1], l2_kib=sizes[2], l3_kib=sizes[3])
