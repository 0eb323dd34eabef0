"""Many trials, on several cores, one line each; an interrupted campaign goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import cv2

import triptych
from triptych.contract import ConfigError, Tier
from triptych.documents import parse_json
from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.engines.protocol import Engine
from triptych.injection.campaign import Campaign, Entry
from triptych.injection.loop import ClosedLoop
from triptych.injection.trial import Trial, Verdict, break_and_judge, healthy_drive, run_trial
from triptych.lifetime import end_with
from triptych.resources import resource
from triptych.safety import Library
from triptych.supervisor.faults import FaultRow, load_faults

TRIALS_FILE = "trials.jsonl"
PACKAGE = Path(triptych.__file__).parent
_PARTS = "contract engines injection language lidar safety scenario supervisor tiers vision"
DECIDING = (*(f"{part}/**/*.py" for part in _PARTS.split()), "debounce.py", "virtual.py")
"""Code that a drive runs through; the safety core's library besides."""
TOGETHER = 8
"""Trials that share the healthy part of their drive: more save little, and an interruption costs as many."""
_worker: tuple[Campaign, Mapping[Tier, Engine], Sequence[FaultRow]] | None = None


def digest(campaign: Campaign, engines: Mapping[Tier, str], package: Path = PACKAGE) -> str:
    """What decides the outcome: campaign, fault table, engines and code; a line of another digest is not taken over.

    Args:
        package: folder of the code.
    """
    h = hashlib.sha256(campaign.model_dump_json().encode())
    h.update(resource("config", "faults.yaml").read_bytes())
    for path in sorted(p for name in DECIDING for p in package.glob(name)):
        h.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    h.update(Library().path.read_bytes())
    for tier in Tier:
        h.update(locate(engines.get(tier, f"triptych-{tier.key}")).read_bytes())
    return h.hexdigest()


def load_engines(engines: Mapping[Tier, str]) -> dict[Tier, Engine]:
    """All three tiers' engines, one thread each."""
    return {tier: load_engine(locate(engines.get(tier, f"triptych-{tier.key}"))) for tier in Tier}


def _begin(campaign: Campaign, engines: Mapping[Tier, str]) -> None:
    global _worker
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        end_with(parent.pid)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cv2.setNumThreads(1)
    _worker = (campaign, load_engines(engines), load_faults(resource("config", "faults.yaml")))


def _try(seed: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Trials of one seed, all with a lidar or all without: the healthy drive before the faults is driven once, and each
    fault befalls a copy of this process."""
    assert _worker is not None
    campaign, engines, table = _worker
    entries = [campaign.faults[number] for number in numbers]
    loop = healthy_drive(campaign, entries[0].lidar, seed, engines, table)
    return [_in_a_copy(partial(_rest, loop, campaign, entry, seed)) for entry in entries]


def _rest(loop: ClosedLoop, campaign: Campaign, entry: Entry, seed: int) -> dict[str, Any]:
    return plain(break_and_judge(loop, campaign, entry, seed))


def _in_a_copy(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Have a fork of this process do it. This one has a single thread (see :func:`_begin`), as forking demands.

    Raises:
        RuntimeError: it died.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)

    def run() -> None:
        end_with(worker)
        sender.send(work())

    worker, child = os.getpid(), fork.Process(target=run)
    child.start()
    sender.close()
    try:
        result: dict[str, Any] = receiver.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"a trial ended without a result, exit code {child.exitcode}") from None
    child.join()
    return result


def plain(trial: Trial) -> dict[str, Any]:
    """As one line holds it."""
    return {**asdict(trial), "verdict": trial.verdict.value}


def trial_of(line: Mapping[str, Any]) -> Trial:
    """The trial of a line."""
    values = {
        **line,
        "verdict": Verdict(line["verdict"]),
        "faults": tuple(line["faults"]),
        "final": tuple(line["final"]),
    }
    values.pop("digest", None)
    return Trial(**values)


def run_campaign(
    campaign: Campaign,
    out: Path,
    engines: Mapping[Tier, str] | None = None,
    workers: int = 1,
    progress: Callable[[int, int, Trial | None], None] = lambda done, total, trial: None,
) -> list[Trial]:
    """All trials, in the campaign's order.

    Args:
        out: folder of ``trials.jsonl``; what is found there of the same campaign, fault table and engines is not run
            again.
        engines: manifest or name of an engine where it is not the built-in one.
        progress: called with trials done, trials in all, and the newest.

    Raises:
        ConfigError: the folder cannot be written.
        EngineError: an engine cannot be loaded.
    """
    chosen = dict(engines or {})
    mark = digest(campaign, chosen)
    wanted = [
        (n, s)
        for s in range(campaign.first_seed, campaign.first_seed + campaign.seeds)
        for n in range(len(campaign.faults))
    ]
    path = out / TRIALS_FILE
    found = {(t.id, t.seed): t for t in known_trials(path, mark)}
    left = [(n, s) for n, s in wanted if (campaign.faults[n].id, s) not in found]
    progress(len(wanted) - len(left), len(wanted), None)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # the line before was cut off
            for number, trial in enumerate(_trials(campaign, chosen, left, workers), len(wanted) - len(left) + 1):
                file.write(json.dumps({"digest": mark, **plain(trial)}) + "\n")
                file.flush()
                found[trial.id, trial.seed] = trial
                progress(number, len(wanted), trial)
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror}", where=out, remedy="check space and permissions"
        ) from None
    return [found[campaign.faults[n].id, s] for n, s in wanted]


def known_trials(path: Path, mark: str) -> Iterator[Trial]:
    """Trials that are there already; a line that was cut off is none."""
    if not path.is_file():
        return
    for text in path.read_bytes().splitlines():
        try:
            line = parse_json(text)
            if line.get("digest") == mark:
                yield trial_of(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _jobs(campaign: Campaign, left: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Seed and faults that can share a drive, a few at a time."""
    for (seed, _), group in groupby(left, lambda trial: (trial[1], campaign.faults[trial[0]].lidar)):
        numbers = [number for number, _ in group]
        for first in range(0, len(numbers), TOGETHER):
            yield seed, numbers[first : first + TOGETHER]


def _trials(
    campaign: Campaign, engines: Mapping[Tier, str], left: Sequence[tuple[int, int]], workers: int
) -> Iterator[Trial]:
    """Run them; the order of completion is that of the workers."""
    if workers <= 1:  # here, where others may have threads: nothing is forked
        loaded, table = load_engines(engines), load_faults(resource("config", "faults.yaml"))
        for number, seed in left:
            yield run_trial(campaign, campaign.faults[number], seed, loaded, table)
        return
    spawn = multiprocessing.get_context("spawn")  # the caller may have threads, and a progress bar
    with ProcessPoolExecutor(workers, spawn, _begin, (campaign, engines)) as pool:
        jobs = _jobs(campaign, left)
        waiting: set[Future[list[dict[str, Any]]]] = set()
        try:
            while True:
                while len(waiting) < 2 * workers and (job := next(jobs, None)) is not None:
                    waiting.add(pool.submit(_try, *job))
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from map(trial_of, future.result())
        finally:
            for future in waiting:
                future.cancel()
