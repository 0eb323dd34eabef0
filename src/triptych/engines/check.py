"""``triptych engines list`` and ``check``: everything that can be wrong with an engine, before it drives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from triptych.contract import EngineError, Payload
from triptych.engines.golden import golden_frame
from triptych.engines.load import load_engine
from triptych.engines.manifest import Manifest, load_manifest, resolve_files
from triptych.engines.protocol import Engine, EngineOutput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from triptych.language.engine import VlmEngine

WARM_UP_RUNS = 3
LATENCY_RUNS = 30
"""Enough for a p90; a p99 of a shared desk machine would judge its other work, not the engine."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One line of the check: ``detail`` is a figure or, when not ``ok``, the sentence to act on."""

    check: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One engine found; ``problem`` is empty when its manifest is readable and its files are there."""

    path: Path
    name: str
    version: str
    task: str
    licence: str
    problem: str


def self_test(engine: Engine) -> EngineOutput:
    """Warm up on the golden frame and judge the answer; a tier does this before it says ACTIVE.

    The first runs allocate every buffer and fill every cache, so that the first real frame is as fast as the others.

    Raises:
        EngineError: inference fails, or the golden frame's answer is not as the manifest expects.
    """
    frames = [engine.golden()] * engine.frames_wanted
    question = getattr(engine, "golden_question", "")
    output = engine.infer(frames, question)
    for _ in range(WARM_UP_RUNS - 1):
        output = engine.infer(frames, question)
    problem = engine.golden_ok(output)
    if problem:
        raise EngineError(
            f"self-test failed: {problem}", where=engine.id, remedy="use the engine its manifest was written for"
        )
    return output


def check(
    manifest_path: Path | str, device: str = "cpu", threads: int = 1, engine_dir: Path | str | None = None
) -> list[CheckRow]:
    """Check one engine step by step; later steps that depend on a failed one are left out. Never raises EngineError."""
    path = Path(manifest_path)
    path = path / "manifest.yaml" if path.is_dir() else path
    folder = Path(engine_dir) if engine_dir is not None else None
    rows: list[CheckRow] = []

    def step(name: str, action: Callable[[], str]) -> bool:
        try:
            rows.append(CheckRow(name, True, action()))
        except EngineError as error:
            rows.append(CheckRow(name, False, str(error)))
        return rows[-1].ok

    loaded: list[Manifest] = []
    engines: list[Engine] = []

    def read() -> str:
        loaded.append(load_manifest(path))
        m = loaded[0]
        return f"{m.name} {m.version}, {m.task}, decoder {m.decoder}, {len(m.labels)} labels, {len(m.classes)} reported"

    def hashes() -> str:
        found = resolve_files(loaded[0], path, folder)
        return ", ".join(f"{file.name} {file.stat().st_size / 1e6:.1f} MB" for file in found.values())

    def load() -> str:
        engines.append(load_engine(path, device, threads, folder))
        report = engines[0].device
        fallback = f"{report.nodes_fallback} of {report.nodes_total} nodes fell back"
        return f"shapes fit; asked for {report.requested}, runs on {report.actual} ({report.runtime}), {fallback}"

    def golden() -> str:
        output = self_test(engines[0])
        return f"answer as expected, uncertainty {output.uncertainty:.2f}"

    def adapters() -> str:
        return try_adapters(engines[0])  # type: ignore[arg-type]

    def latency() -> str:
        p90, adapter = max((measure(engines[0], name), name) for name in ("", *loaded[0].adapters))
        limit = loaded[0].latency.budget_ms
        if p90 > limit:
            runs = f"{LATENCY_RUNS} runs" + (f" with adapter {adapter}" if adapter else "")
            raise EngineError(
                f"p90 of {runs} is {p90:.1f} ms, above the budget of {limit:g} ms", where=path,
                remedy="free the machine, allow more threads, choose another device or a smaller engine",
            )  # fmt: skip
        return f"p90 {p90:.1f} ms, budget {limit:g} ms, {threads} thread(s)"

    if step("manifest", read):
        golden_there = step("golden picture", lambda: _describe(golden_frame(loaded[0], path, folder)))
        if step("files", hashes) and golden_there and step("load", load) and step("golden answer", golden):
            if loaded[0].adapters:
                step("adapters", adapters)
            step("latency", latency)
    for engine in engines:
        engine.close()
    return rows


def _describe(frame: object) -> str:
    return f"{frame.width}x{frame.height}"  # type: ignore[attr-defined]


def try_adapters(engine: VlmEngine) -> str:
    """Switch through all adapters on the golden frame, there and back; a line with the times it took.

    Raises:
        EngineError: an adapter that changes nothing, or an answer that is another one after switching back.
    """
    answers: dict[str, tuple[Payload, float]] = {}
    for name in ("", *engine.adapters, *reversed(engine.adapters), ""):
        output = engine.golden_answer(name)
        answer = (output.payload, output.uncertainty)
        if answers.setdefault(name, answer) != answer:
            raise EngineError(
                "gives another answer after switching to another one and back", where=engine.id,
                field=f"adapters.{name}" if name else "base weights", remedy="take the adapters out of the manifest",
            )  # fmt: skip
        if name and answer == answers[""]:
            raise EngineError(
                "changes nothing: the golden frame's answer is that of the base weights to the last bit",
                where=engine.id, field=f"adapters.{name}", remedy="make it again or take it out of the manifest",
            )  # fmt: skip
    times = engine.switch_times()
    return (
        f"{', '.join(engine.adapters)}: switched there and back, same answers; switch {times.switch_ms:.2f} ms, "
        f"first decoder run after it {times.first_run_ms:.1f} ms, any other {times.steady_run_ms:.1f} ms"
    )


def measure(engine: Engine, adapter: str = "") -> float:
    """p90 in milliseconds of whole inferences on the golden frame, with an adapter if named."""
    frames, question = [engine.golden()] * engine.frames_wanted, getattr(engine, "golden_question", "")

    def run() -> EngineOutput:
        return engine.golden_answer(adapter) if adapter else engine.infer(frames, question)  # type: ignore[attr-defined]

    times = []
    for _ in range(LATENCY_RUNS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.percentile(times, 90))


def list_engines(folders: Iterable[Path] | None = None, engine_dir: Path | str | None = None) -> list[EngineEntry]:
    """All manifests found, broken ones included with their problem.

    Args:
        folders: searched for ``*.yaml`` and ``*/manifest.yaml``; default: the built-in models and ``config/engines``.
        engine_dir: as for :func:`check`.
    """
    if folders is None:
        from triptych.resources import share

        folders = [share() / "models", share() / "config" / "engines"]
    folder = Path(engine_dir) if engine_dir is not None else None
    entries = []
    for place in folders:
        for path in sorted([*place.glob("*.yaml"), *place.glob("*/manifest.yaml")]):
            entries.append(_entry(path, folder))
    return entries


def _entry(path: Path, engine_dir: Path | None) -> EngineEntry:
    name = path.stem if path.stem != "manifest" else path.parent.name
    try:
        manifest = load_manifest(path)
    except EngineError as error:
        return EngineEntry(path, name, "", "", "", str(error))
    problem = ""
    try:
        resolve_files(manifest, path, engine_dir)
    except EngineError as error:
        problem = str(error)
    return EngineEntry(path, manifest.name, manifest.version, manifest.task, manifest.provenance.licence, problem)
