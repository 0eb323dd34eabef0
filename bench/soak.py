"""Hours under way: ``python bench/soak.py virtual [--minutes 480]`` and ``python bench/soak.py real [--minutes 60]``.

``virtual`` drives the closed loop on a virtual clock, far faster than time passes; what is real there and what is
lightened is said in ``soak_virtual.py`` and docs/soak.md. ``real`` runs the real nodes over DDS in real time; measure
on a machine that does nothing else. Both look for memory that grows, a tail that drifts, and sequence numbers that are
missing or come twice. Results: a JSON file with provenance, and a picture of memory and p99 over time beside it. Exit
code 1 when a limit is missed; a run too short to know a slope has missed it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import soak_real
import soak_virtual
from common import write
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from triptych.viewing import words

COLOURS = (words.BLUE, words.ORANGE, words.GREEN, words.PURPLE, words.SKY, words.VERMILLION, words.GREY)


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """A bar per thing that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, share: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=min(share, 1.0))

        yield show


def draw(panels: dict[str, dict[str, tuple[list[float], list[float]]]], title: str, path: Path) -> None:
    """Panels above each other, minutes to the right; PNG, written beside and then renamed."""
    figure = Figure(figsize=(8.0, 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, lines) in zip(axes, panels.items()):
        for colour, (label, (minutes, values)) in zip(COLOURS, lines.items()):
            axis.plot(minutes, values, color=colour, label=label, linewidth=1.2)
        axis.set_title(name, loc="left", fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if any(lines):
            axis.legend(frameon=False, fontsize=7, ncols=4)
    axes[-1].set_xlabel("minutes")
    figure.suptitle(title, fontsize=10)
    fresh = path.with_name(path.name + ".tmp")
    figure.savefig(fresh, format="png", dpi=110)
    fresh.replace(path)


def tabulate(result: dict[str, Any]) -> None:
    """What was measured, then the limits."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    if result["mode"] == "real":
        table = Table("process", "RSS MiB", "RSS KiB/min", "private KiB/min", "95 %", "CPU %", "files", "threads")
        for name, row in result["processes"].items():
            rss, own = row["rss_kib_per_min"], row["private_kib_per_min"]
            interval = f"{own['low']} … {own['high']}"
            total = f"{row['rss_kib_last'] / 1024:.1f}" if row["rss_kib_last"] else "?"
            grown = (row["fds_grown"], row["threads_grown"])
            table.add_row(name, *map(str, (total, rss["value"], own["value"], interval, row["cpu_percent"], *grown)))
        console.print(table)
        table = Table("tier", "results", "p50 ms", "p99 ms", "p99 first third", "p99 last third", "drift")
        for name, row in result["latency"].items():
            keys = ("n", "p50", "p99", "p99_first_third", "p99_last_third", "drift")
            table.add_row(name, *(str(row[key]) for key in keys))
    else:
        table = Table("after warm-up", "slope per hour", "95 %")
        for name, row in result["slopes_per_hour"].items():
            table.add_row(name, str(row["value"]), f"{row['low']} … {row['high']}")
    console.print(table)
    table = Table("topic", "received", "lost", "doubled")
    for name, row in result["sequences"].items():
        table.add_row(name, *(str(row[key]) for key in ("received", "lost", "doubled")))
    console.print(table)
    for name, row in result["limits"].items():
        print(f"{'ok  ' if row['held'] else 'MISS'} {name}: {row['value']} (limit {row['limit']})")


def run(arguments: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """The mode that was asked for."""
    size = (arguments.width, round(arguments.width * 9 / 16))
    with progress() as show:
        if arguments.mode == "virtual":
            config = soak_virtual.scene(arguments.width, arguments.seed)
            seconds = arguments.drive_seconds

            def keep(result: dict[str, Any]) -> None:
                write(arguments.out, {**result, "complete": False}, settings)

            return soak_virtual.soak(arguments.minutes, config, seconds, arguments.trace, show, keep)
        engines = dict(e.split("=", 1) for e in arguments.engine)
        result = soak_real.soak(
            arguments.minutes, arguments.warm_up_seconds, arguments.sample_seconds, engines, size, show
        )
        return {**result, "limits": soak_real.judge(result)}


def main() -> int:
    """Entry point; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    virtual = modes.add_parser("virtual", help="the closed loop on a virtual clock")
    virtual.add_argument("--minutes", type=float, default=480.0, help="of the virtual clock, whole ones")
    virtual.add_argument("--drive-seconds", type=float, default=60.0, help="length of the recording that is played")
    virtual.add_argument("--seed", type=int, default=1)
    virtual.add_argument("--trace", action="store_true", help="also name the code that holds more memory; slower")
    real = modes.add_parser("real", help="the real nodes over DDS")
    real.add_argument("--minutes", type=float, default=60.0)
    real.add_argument("--warm-up-seconds", type=float, default=300.0, help="left out in slopes and drifts")
    real.add_argument("--sample-seconds", type=float, default=5.0)
    real.add_argument("--engine", action="append", default=[], metavar="TIER=ENGINE")
    for mode in (virtual, real):
        mode.add_argument("--width", type=int, default=1280, help="of the picture, pixels")
        mode.add_argument("--out", type=Path, default=None, help="default: bench_results/soak_MODE.json")
    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = Path(f"bench_results/soak_{arguments.mode}.json")
    settings = {k: str(v) for k, v in vars(arguments).items() if k != "out"}
    result = {**run(arguments, settings), "complete": True}
    write(arguments.out, result, settings)
    panels = (soak_virtual if arguments.mode == "virtual" else soak_real).panels(result)
    draw(panels, f"Soak, {arguments.mode}, {arguments.minutes:g} minutes", arguments.out.with_suffix(".png"))
    tabulate(result)
    return 0 if all(row["held"] for row in result["limits"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
