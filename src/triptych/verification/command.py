"""``triptych verify-supervisor``: the searches by name, run one after the other, and their report.

Each search leaves some inputs free in all their classes at every step while the others are well, so that every pair of
inputs, and every input with every request, is free in at least one of them; the last one lets everything go at once, as
deep as its bound allows. A failure that needs three inputs to misbehave in a certain order at the same time, deeper
than that, would not be found here; the generated situations of ``test/properties`` look there.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from triptych.report.schema import write_text
from triptych.supervisor import FaultRow, SupervisorCore, load_faults
from triptych.verification.properties import PROPERTIES
from triptych.verification.search import Alone, Finding, Model, Outcome, Pair, search
from triptych.verification.world import (
    REPRESENTATIVES,
    Action,
    Detector,
    Driver,
    Request,
    Speed,
    Time,
    Vlm,
    actions,
)

_GOES = (Speed.MOVING, Speed.STANDING)
_SIDES = (Driver.HANDED_OVER, Driver.DRIVES)
_NO_RESET = (Request.NONE, Request.RESET)
_CALM = (Vlm.PROCEED, Vlm.SILENT)
_TRUSTED = (Vlm.PROCEED, Vlm.STOP, Vlm.SILENT, Vlm.HALF)


class Scene(NamedTuple):
    """One search: what is free, and how many transitions it may take."""

    name: str
    free: tuple[Action, ...]
    most_transitions: int = 10_000_000
    model: Callable[[Iterable[FaultRow], tuple[Action, ...], type[SupervisorCore]], Model] = Alone


SCENES: tuple[Scene, ...] = (
    Scene("tier 1 and the driver", actions(detector=Detector, speed=_GOES, driver=_SIDES, request=_NO_RESET)),
    Scene("tier 1, the speed and resets", actions(detector=(Detector.FINE, Detector.SILENT), speed=Speed,
                                                  request=_NO_RESET)),
    Scene("driver, speed and takeover", actions(speed=_GOES, driver=Driver, request=Request)),
    Scene("VLM tiers and doubt of tier 1", actions(vlm=_TRUSTED, detector=(Detector.FINE, Detector.DOUBTFUL),
                                                   speed=_GOES)),
    Scene("a doubted VLM tier", actions(vlm=(Vlm.PROCEED, Vlm.STOP, Vlm.DOUBTED), speed=_GOES)),
    Scene("VLM tiers and the driver", actions(vlm=_CALM, driver=Driver)),
    Scene("clock steps and own stalls", actions(time=Time, detector=(Detector.FINE, Detector.SILENT), vlm=_CALM)),
    Scene("stalls at standstill and resets", actions(time=(Time.PASSES, Time.STALLS), speed=(*_GOES, Speed.SILENT),
                                                     request=_NO_RESET)),
    Scene("advice to two vehicles", actions(vlm=(Vlm.PROCEED, Vlm.SILENT), detector=(Detector.FINE, Detector.SILENT),
                                            driver=_SIDES), model=Pair),
    Scene("everything at once", actions(detector=Detector, vlm=_CALM, speed=Speed, driver=Driver, request=Request,
                                        time=Time), 60_000),
)  # fmt: skip
"""In the order they run."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A scene, what its search saw, and the processor time it took."""

    scene: str
    choices: int
    outcome: Outcome
    cpu_s: float


def verify(
    rows: Iterable[FaultRow],
    scenes: Iterable[Scene],
    core_type: type[SupervisorCore] = SupervisorCore,
    progress: Callable[[str, int], None] = lambda *_: None,
) -> list[Result]:
    """Run searches until one finds something.

    Args:
        rows: the fault table.
        scenes: what to search.
        core_type: the supervisor.
        progress: told a scene's name and the states met so far.
    """
    table, results = tuple(rows), []
    for scene in scenes:
        start_s = time.process_time()
        model = scene.model(table, scene.free, core_type)
        outcome = search(model, scene.most_transitions, partial(progress, scene.name))
        results.append(Result(scene.name, len(scene.free), outcome, time.process_time() - start_s))
        if outcome.finding:
            break
    return results


def way(finding: Finding) -> Table:
    """A counterexample as a table, one quantum a row; what is well is left blank."""
    table = Table("step", *Action._fields, "state", "limit m/s", "active faults", title=finding.broken)
    usual = Action()
    for number, line in enumerate(finding.way, 1):
        words = [
            "" if value is well and value is not Speed.MOVING else value.value
            for value, well in zip(line.action, usual)
        ]
        table.add_row(str(number), *words, line.state.name, f"{line.limit_mps:g}", ", ".join(line.faults))
    return table


def summary(results: Iterable[Result]) -> Table:
    """One row per scene."""
    table = Table("search", "choices", "states", "transitions", "depth", "seen", "CPU s")
    for r in results:
        o = r.outcome
        seen = "BROKEN" if o.finding else "all" if o.exhausted else "bounded"
        table.add_row(
            r.scene, str(r.choices), f"{o.states:,}", f"{o.transitions:,}", str(o.depth), seen, f"{r.cpu_s:.1f}"
        )
    return table


def document(results: Iterable[Result], provenance: dict[str, Any]) -> dict[str, Any]:
    """The report as plain data."""

    def words(finding: Finding | None) -> Any:
        if finding is None:
            return None
        lines = [
            {
                "action": {name: value.value for name, value in line.action._asdict().items()},
                "state": line.state.name,
                "limit_mps": line.limit_mps,
                "active_faults": list(line.faults),
            }
            for line in finding.way
        ]
        return {"broken": finding.broken, "way": lines}

    searches = [
        {
            "scene": r.scene,
            "choices": r.choices,
            **{name: getattr(r.outcome, name) for name in ("states", "transitions", "depth", "exhausted")},
            "finding": words(r.outcome.finding),
            "cpu_s": round(r.cpu_s, 2),
        }
        for r in results
    ]
    return {
        "properties": [f"{identity}: {name}" for identity, name, _ in PROPERTIES] + ["P-03: advice is monotone"],
        "representatives": list(REPRESENTATIVES),
        "searches": searches,
        "provenance": provenance,
    }


def run(table: Path, out: Path | None, console: Console, provenance: dict[str, Any]) -> bool:
    """Verify with a fault table, print what was seen, write it to ``out`` if given; whether everything held."""
    with console.status("") as status:
        results = verify(
            load_faults(table), SCENES, progress=lambda name, states: status.update(f"{name}: {states:,} states")
        )
    console.print(summary(results))
    findings = [r.outcome.finding for r in results if r.outcome.finding]
    for finding in findings:
        console.print(way(finding))
    held = not findings
    console.print("[bold green]Every property held.[/]" if held else "[bold red]A property is broken.[/]")
    if out is not None:
        write_text(out, json.dumps(document(results, provenance), indent=1, ensure_ascii=False) + "\n")
    return held
