"""``triptych inject``: options, progress, a table on the terminal, the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from triptych import session
from triptych.contract import ConfigError, Tier
from triptych.injection.campaign import Campaign, load_campaign
from triptych.injection.faults import KINDS
from triptych.injection.report import Row, Summary, summarise, write
from triptych.injection.run import load_engines, run_campaign
from triptych.injection.trial import HELD, Trial, run_trial
from triptych.replay.record import RunRecord
from triptych.resources import resource
from triptych.supervisor.faults import load_faults


def narrowed(campaign: Campaign, only: list[str], seeds: int | None, seed: int | None) -> Campaign:
    """A part of a campaign.

    Args:
        only: beginnings of fault names; empty: all.
        seeds: drives per fault, if not the campaign's number.
        seed: the one drive wanted, which makes a trial of the report again.

    Raises:
        ConfigError: no fault has such a name.
    """
    chosen = tuple(e for e in campaign.faults if not only or any(e.id.startswith(o) for o in only))
    if not chosen:
        names = ", ".join(e.id for e in campaign.faults)
        raise ConfigError("no fault of this name", field="--only", value=", ".join(only), remedy=f"use some of {names}")
    changes: dict[str, object] = {"faults": chosen}
    if seeds is not None:
        changes["seeds"] = seeds
    if seed is not None:
        changes |= {"first_seed": seed, "seeds": 1}
    return campaign.model_copy(update=changes)


def inject(
    path: Path,
    out: Path,
    engines: dict[Tier, str],
    only: list[str],
    seeds: int | None,
    seed: int | None,
    workers: int,
    console: Console,
    bar: Progress,
) -> Summary:
    """Run a campaign or a part of it, say how it went, write the report.

    Raises:
        TriptychError: whatever is wrong with the campaign, an engine or the folder.
    """
    campaign = narrowed(load_campaign(path), only, seeds, seed)
    with bar:
        task = bar.add_task("trials", total=None)

        def progress(done: int, total: int, trial: Trial | None) -> None:
            bar.update(task, completed=done, total=total)
            if trial is not None and trial.verdict not in HELD:
                bar.console.print(f"{trial.id} seed {trial.seed}: {trial.verdict.value}: {trial.why}", highlight=False)

        trials = run_campaign(campaign, out, engines, workers, progress)
    summary = summarise(campaign, trials, engines)
    page = write(summary, trials, out)
    console.print(_table(summary.faults))
    for limit in summary.limits:
        console.print(
            f"[{'green' if limit.held else 'red'}]{'ok  ' if limit.held else 'MISS'}[/] {limit.text}: {limit.value}"
        )
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return summary


def _table(rows: list[Row]) -> Table:
    table = Table(box=None)
    table.add_column("fault")
    for name in ("valid", "coverage", "detected ms p50/p99", "reaction ms p50/p99"):
        table.add_column(name, justify="right")
    table.add_column("verdicts")
    for row in rows:
        spreads = [
            "–" if s is None else f"{s[0] * 1e3:.0f}/{s[1] * 1e3:.0f}" for s in (row.detection_s, row.reaction_s)
        ]
        coverage = "–" if row.coverage is None else f"{row.coverage:.0%}"
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(row.verdicts.items()))
        table.add_row(row.name, f"{row.valid}/{row.trials}", coverage, *spreads, verdicts)
    return table


def record_drive(
    path: Path, out: Path, engines: dict[Tier, str], only: list[str], seed: int, console: Console
) -> Trial:
    """One drive with one fault again, for ``record.jsonl``: what ``triptych gate`` holds against limits.

    Raises:
        ConfigError: not exactly one fault is named.
        TriptychError: whatever is wrong with the campaign, an engine or the folder.
    """
    campaign = narrowed(load_campaign(path), only, None, seed)
    if len(campaign.faults) != 1:
        names = ", ".join(e.id for e in campaign.faults)
        raise ConfigError(
            "is of one drive with one fault", field="--record", value=names, remedy="name one fault with --only"
        )
    session.prepare(out)
    record = RunRecord()
    trial = run_trial(
        campaign,
        campaign.faults[0],
        seed,
        load_engines(engines),
        load_faults(resource("config", "faults.yaml")),
        record,
    )
    record.save(out / "record.jsonl")
    console.print(f"{trial.id} seed {seed}: {trial.verdict.value}{trial.why and ': '}{trial.why}", highlight=False)
    console.print(f"record: {out / 'record.jsonl'}", highlight=False, soft_wrap=True)
    return trial


def kinds_table() -> Table:
    """Every kind of fault with its parameters."""
    table = Table(box=None)
    for name in ("kind", "parameter", "default", "meaning"):
        table.add_column(name)
    for kind, (fault, parameters) in KINDS.items():
        table.add_row(kind, "", "", (fault.__doc__ or "").splitlines()[0])
        for name, info in parameters.model_fields.items():
            table.add_row("", name, str(info.default), info.description or "")
    return table
