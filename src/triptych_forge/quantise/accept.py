"""A quantised or pruned engine that is slower than its parent on the target is rejected; both timings are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.quantise.measure import open_session

Feeds = Mapping[str, npt.NDArray[Any]]
Run = Callable[[Feeds], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """Of one engine over all runs: median and 99th percentile in ms, and how many runs."""

    median_ms: float
    p99_ms: float
    runs: int


class Pair(NamedTuple):
    """Two engines timed in turns. ``ratio``: median over rounds of second by first, below 1 if the second is faster.

    The two runs of a round follow each other at once, so a machine that slows down half-way spoils the medians of the
    times but not that of their ratios.
    """

    first: Timing
    second: Timing
    ratio: float


@dataclass(frozen=True)
class Acceptance:
    """The outcome. ``ratio``: :attr:`Pair.ratio` of child by parent. ``reason``: a sentence."""

    accepted: bool
    parent: Timing
    child: Timing
    ratio: float
    reason: str


def measure_alternately(
    first: Run,
    second: Run,
    inputs: Sequence[Feeds],
    runs: int = 100,
    warm_up: int = 5,
    clock: Clock = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> Pair:
    """Time two engines in turns, so that whatever else the machine does hits both; who goes first alternates too.

    Args:
        first, second: run one input each.
        inputs: used in turn, the same one for both.
        runs: timed runs of each engine.
        warm_up: untimed runs of each before.
        clock: seconds.
        progress: called with (done, all).

    Raises:
        ConfigError: no inputs or no runs.
    """
    if not inputs:
        raise ConfigError("no inputs to time with", field="inputs")
    if runs < 1:
        raise ConfigError("must be 1 or more", field="runs", value=runs)
    engines = (first, second)
    spent: tuple[list[float], list[float]] = ([], [])
    for number in range(-warm_up, runs):
        feed = inputs[number % len(inputs)]
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            started = clock()
            engines[which](feed)
            ended = clock()
            if number >= 0:
                spent[which].append((ended - started) * 1e3)
        if progress and number >= 0:
            progress(number + 1, runs)
    one, two = (Timing(float(np.median(s)), float(np.percentile(s, 99)), runs) for s in spent)
    ratios = [b / a if a > 0 else float("inf") for a, b in zip(*spent, strict=True)]
    return Pair(one, two, float(np.median(ratios)))


def onnx_runner(path: Path, threads: int = 1) -> Run:
    """The engine in ONNX Runtime on the CPU, fully optimised."""
    session = open_session(path, threads=threads)
    return lambda feed: session.run(None, dict(feed))


def accept_if_faster(
    parent: Path,
    child: Path,
    inputs: Sequence[Feeds],
    log: DecisionLog | None,
    *,
    target: str = "cpu",
    runs: int = 100,
    warm_up: int = 5,
    tolerance: float = 0.0,
    load: Callable[[Path], Run] = onnx_runner,
    clock: Clock = time.perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> Acceptance:
    """Accept ``child`` only if it is no slower than ``parent``; the decision and both timings go to the log.

    Args:
        parent, child: engine files.
        inputs: feeds that both take.
        log: gets ``quantise.accept`` or ``quantise.reject``, with medians, p99s, ratio, target and runs.
        target: the name of what it runs on, for the log.
        runs, warm_up: of each engine, in turns.
        tolerance: share by which the child may be slower; for engines of equal speed.
        load: from file to callable.
        clock: seconds.
        progress: called with (done, all).

    Raises:
        ConfigError: no inputs; an engine that does not load.
    """
    if not 0.0 <= tolerance < 1.0:
        raise ConfigError("must be 0 to 1", field="tolerance", value=tolerance)
    old, new, ratio = measure_alternately(load(parent), load(child), inputs, runs, warm_up, clock, progress)
    accepted = ratio <= 1.0 + tolerance  # NaN is not
    relation = "no slower than" if accepted else "slower than"
    reason = (
        f"takes {ratio:.3f} of its parent's time, {relation} allowed: median {new.median_ms:.3f} ms, "
        f"parent's {old.median_ms:.3f} ms"
    )
    if log is not None:
        log.add(
            "quantise.accept" if accepted else "quantise.reject",
            child.name,
            parent=parent.name,
            target=target,
            parent_timing=asdict(old),
            child_timing=asdict(new),
            ratio=ratio,
            tolerance=tolerance,
            reason=reason,
        )
    return Acceptance(accepted, old, new, ratio, reason)
