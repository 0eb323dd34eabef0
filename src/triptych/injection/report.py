"""What a campaign showed: coverage by class of fault, times, end states, and every trial to be looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.contract import Tier
from triptych.injection.campaign import Campaign
from triptych.injection.run import plain
from triptych.injection.trial import HELD, Trial, Verdict
from triptych.report.html import page_environment
from triptych.report.provenance import provenance
from triptych.report.schema import Provenance, write_text
from triptych.resources import resource

REPORT_VERSION = 1
DETECTED_SHARE = 0.99
"""Of the trials in which detection is demanded."""
REACTIONS_S: Mapping[str, float] = {
    "detector-killed": 0.15,
    "detector-stopped": 0.15,
    "supervisor-killed": 0.2,
    "supervisor-stopped": 0.2,
}
"""Greatest 99th percentile from fault to stricter command at the vehicle: fault to command, and a dead supervisor."""
LISTED = 200
"""Complaints shown in the page; the JSON has all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, or one class of faults, over its seeds.

    Attributes:
        name: of both.
        trials, valid: run, and run with an effect.
        demanded, detected: valid trials in which detection is demanded, and in which it came in time.
        held: valid trials without complaint.
        detection_s, reaction_s: median and 99th percentile; None where there is none.
        verdicts, finals: how often each.
        min_distance_m: least over all.
        shoulder: stops on the shoulder.
    """

    name: str
    trials: int
    valid: int
    demanded: int
    detected: int
    held: int
    detection_s: tuple[float, float] | None
    reaction_s: tuple[float, float] | None
    verdicts: dict[str, int]
    finals: dict[str, int]
    min_distance_m: float | None
    shoulder: int

    @property
    def coverage(self) -> float | None:
        """Diagnostic coverage: share of what had to be detected."""
        return self.detected / self.demanded if self.demanded else None


def _spread(values: Sequence[float]) -> tuple[float, float] | None:
    """Median and the measured value at or above 99 % of all."""
    if not values:
        return None
    return float(np.median(values)), float(np.percentile(values, 99, method="higher"))


def row_of(name: str, trials: Sequence[Trial], demanding: frozenset[str]) -> Row:
    """Figures over trials; ``demanding``: ids of faults that must be detected."""
    valid = [t for t in trials if t.verdict is not Verdict.INVALID]
    demanded = [t for t in valid if t.id in demanding]
    distances = [t.outcome["min_distance_m"] for t in valid if t.outcome["min_distance_m"] is not None]
    return Row(
        name,
        len(trials),
        len(valid),
        len(demanded),
        sum(t.verdict is Verdict.DETECTED for t in demanded),
        sum(t.verdict in HELD for t in valid),
        _spread([t.detection_s for t in demanded if t.detection_s is not None]),
        _spread([t.reaction_s for t in valid if t.reaction_s is not None]),
        dict(Counter(t.verdict.value for t in trials)),
        dict(Counter(t.final[1] for t in valid)),
        min(distances, default=None),
        sum((t.outcome.get("stop") or {}).get("place") == "shoulder" for t in valid),
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing asked of a campaign."""

    text: str
    value: str
    held: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a report shows."""

    campaign: Campaign
    classes: list[Row]
    faults: list[Row]
    total: Row
    limits: list[Limit]
    complaints: list[Trial]
    provenance: Provenance

    @property
    def held(self) -> bool:
        """Whether all limits were."""
        return all(limit.held for limit in self.limits)


def summarise(campaign: Campaign, trials: Sequence[Trial], engines: Mapping[Tier, str]) -> Summary:
    """Count."""
    demanding = frozenset(e.id for e in campaign.faults if e.expect.by)
    by_id = {e.id: [t for t in trials if t.id == e.id] for e in campaign.faults}
    classes: dict[str, list[Trial]] = {}
    for entry in campaign.faults:
        classes.setdefault(entry.id.partition("-")[0], []).extend(by_id[entry.id])
    faults = [row_of(name, some, demanding) for name, some in by_id.items()]
    total = row_of("all", trials, demanding)
    return Summary(
        campaign,
        [row_of(name, some, demanding) for name, some in classes.items()],
        faults,
        total,
        limits_of(total, faults, trials),
        [t for t in trials if t.verdict not in HELD],
        provenance(
            [resource("config", "faults.yaml"), resource("models")],
            {"campaign": campaign.model_dump(mode="json"), "engines": {t.key: e for t, e in engines.items()}},
        ),
    )


def limits_of(total: Row, faults: Sequence[Row], trials: Sequence[Trial]) -> list[Limit]:
    """What is asked of a campaign, and whether it was so. A campaign in which nothing was tried holds nothing."""
    wrong = total.verdicts.get(Verdict.WRONG_STATE.value, 0)
    collisions = total.verdicts.get(Verdict.COLLISION.value, 0)
    alarms = total.verdicts.get(Verdict.FALSE_ALARM.value, 0)
    invalid = total.trials - total.valid
    found = [
        Limit(
            f"At least {DETECTED_SHARE:.0%} of what must be detected is, in its time",
            f"{total.detected} of {total.demanded}",
            total.coverage is not None and total.coverage >= DETECTED_SHARE,
        ),
        Limit(
            "Every drive ends in the state demanded or a safer one", f"{wrong} did not", total.valid > 0 and not wrong
        ),
        Limit("No collision after a fault", str(collisions), total.valid > 0 and not collisions),
        Limit("No false alarm in healthy drives", str(alarms), total.valid > 0 and not alarms),
        Limit("Every injection took effect", f"{invalid} of {total.trials} did not", bool(trials) and not invalid),
    ]
    for row in faults:
        if row.name in REACTIONS_S and row.reaction_s is not None:
            limit_s, (_, p99_s) = REACTIONS_S[row.name], row.reaction_s
            found.append(
                Limit(
                    f"{row.name}: stricter command at the vehicle within {limit_s * 1e3:.0f} ms, 99th percentile",
                    f"{p99_s * 1e3:.0f} ms",
                    p99_s <= limit_s,
                )
            )
    return found


def document(summary: Summary, trials: Sequence[Trial]) -> dict[str, Any]:
    """The JSON report."""
    return {
        "schema_version": REPORT_VERSION,
        "campaign": summary.campaign.model_dump(mode="json"),
        "held": summary.held,
        "limits": [asdict(limit) for limit in summary.limits],
        "total": {**asdict(summary.total), "coverage": summary.total.coverage},
        "classes": [{**asdict(row), "coverage": row.coverage} for row in summary.classes],
        "faults": [{**asdict(row), "coverage": row.coverage} for row in summary.faults],
        "trials": [plain(trial) for trial in trials],
        "provenance": summary.provenance.model_dump(mode="json"),
    }


def write(summary: Summary, trials: Sequence[Trial], out: Path) -> Path:
    """Write ``campaign.json`` and ``campaign.html`` into ``out``; returns the page.

    Raises:
        InputError: a file cannot be written.
    """
    write_text(out / "campaign.json", json.dumps(document(summary, trials), indent=1, allow_nan=False) + "\n")
    environment = page_environment()
    environment.filters.update(
        share=lambda value: "–" if value is None else f"{100 * value:.1f} %",
        spread=lambda pair: "–" if pair is None else f"{pair[0] * 1e3:.0f} / {pair[1] * 1e3:.0f}",
        counts=lambda found: ", ".join(f"{name} {count}" for name, count in sorted(found.items())),
        metres=lambda value: "–" if value is None else f"{value:.1f}",
    )
    page = environment.get_template("campaign.html.j2").render(
        summary=summary, rows=summary.complaints[:LISTED], more=max(0, len(summary.complaints) - LISTED)
    )
    write_text(out / "campaign.html", page)
    return out / "campaign.html"
