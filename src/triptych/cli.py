"""``triptych``: the command line. Each command checks its input, calls one function elsewhere and prints one result.

Exit codes: 0 fine, 1 the contract was not held or a check failed, 2 a mistake of the user's, in one sentence on stderr.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from triptych import __version__
from triptych.contract import ConfigError, DegradationState, InputError, Tier, TriptychError

EXIT_NOT_HELD, EXIT_USER = 1, 2
SHORTEST_WITH_FAULT_S = 20.0
"""A shorter demo has no time for a fault and the way to a stop."""
NAMES = {tier.key: tier for tier in Tier}

app = typer.Typer(
    name="triptych",
    help="Runs vision-language models on a vehicle inside time budgets, beside a detector and under a supervisor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bag_app = typer.Typer(help="Look into recordings and make camera bags.", no_args_is_help=True)
engines_app = typer.Typer(help="List and check engines.", no_args_is_help=True)
app.add_typer(bag_app, name="bag")
app.add_typer(engines_app, name="engines")
console = Console()

# typer reads these annotations at run time, on Python 3.10 too: hence Optional instead of "| None".
Out = Annotated[Optional[Path], typer.Option("--out", "-o", help="Folder for results and report.")]  # noqa: UP045
Params = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--params", help="ROS parameter file instead of the shipped config/params.yaml."),
]
Duration = Annotated[Optional[float], typer.Option("--duration", "-d", min=0.1, help="Seconds.")]  # noqa: UP045
Engines = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--engine", "-e", help="TIER=ENGINE: a manifest or its name for a tier, e.g. detector=yolox-nano."),
]
Without = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--without", help="Leave out a VLM tier: distilled or full."),
]
LimitsPath = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--limits", help="Limits file; then its limits decide the exit code, not the contract."),
]
ComparePath = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--compare", help="Golden file of an earlier run; any difference in what was decided ends with 1."),
]
GoldenPath = Annotated[Optional[Path], typer.Option("--golden", help="Write what was decided as a golden file.")]  # noqa: UP045
Tolerance = Annotated[float, typer.Option(help="Seconds by which a decision may move, for --compare.")]
View = Annotated[bool, typer.Option("--view/--no-view", help="Annotated image and markers for RViz and Foxglove.")]
Lidar = Annotated[
    bool, typer.Option("--lidar", help="The vehicle has a lidar: hold what the detector sees against it.")
]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Table on the terminal while it runs.")]


def engines_of(assignments: list[str] | None) -> dict[Tier, str]:
    """``["detector=yolox-nano"]`` as a mapping.

    Raises:
        ConfigError: no such tier, or no engine named.
    """
    found: dict[Tier, str] = {}
    for text in assignments or []:
        name, _, engine = text.partition("=")
        if name not in NAMES or not engine:
            raise ConfigError(
                "must be TIER=ENGINE", field="--engine", value=text, remedy=f"tiers are {', '.join(NAMES)}"
            )
        path = Path(engine)
        found[NAMES[name]] = str(path.resolve()) if path.exists() else engine
    return found


def tiers_of(without: list[str] | None) -> list[Tier]:
    """All tiers but those left out.

    Raises:
        ConfigError: not a VLM tier.
    """
    left_out = set(without or [])
    if unknown := left_out - {"distilled", "full"}:
        raise ConfigError(
            "only VLM tiers can be left out",
            field="--without",
            value=sorted(unknown)[0],
            remedy="use distilled or full",
        )
    return [t for t in Tier if t.key not in left_out]


def topics_of(assignments: list[str] | None) -> dict[str, str]:
    """``["camera=/front/image_raw"]`` as a mapping.

    Raises:
        InputError: not of that form.
    """
    found: dict[str, str] = {}
    for text in assignments or []:
        role, separator, topic = text.partition("=")
        if not separator:
            raise InputError(
                "must be ROLE=TOPIC", field="--topic", value=text, remedy="roles are camera, odometry, driver"
            )
        found[role] = topic
    return found


def finish(files: Any, held_matters: bool = True) -> None:
    """Print the verdict and where the report is; exit 1 if the contract was not held."""
    from triptych.report.html import ReportFiles

    assert isinstance(files, ReportFiles)
    result = files.result
    table = Table(box=None, pad_edge=False)
    for title in ("tier", "engine", "budget ms", "p50 ms", "p99 ms", "FRESH", "LAST_FRAME", "DEFAULT"):
        table.add_column(title, justify="left" if title in ("tier", "engine") else "right")
    for name in NAMES:
        tier = getattr(result.tiers, name)
        latency = tier.latency_ms
        figures = [f"{latency.p50:.1f}", f"{latency.p99:.1f}"] if latency else ["–", "–"]
        origin = tier.origin
        engine = f"{tier.engine} on {tier.device}" if tier.engine else "never spoke" if tier.expected else "left out"
        table.add_row(
            name,
            engine,
            f"{tier.budget_ms:.0f}",
            *figures,
            str(origin.FRESH),
            str(origin.LAST_FRAME),
            str(origin.DEFAULT),
        )
    console.print(table)
    console.print("states: " + " → ".join(f"{s.state} at {s.from_s:.1f} s" for s in result.supervisor.states))
    if result.contract_held:
        console.print("[bold green]The contract held.[/]")
    else:
        console.print("[bold red]The contract was not held:[/]")
        for reason in result.reasons:
            console.print(f"  • {reason}", highlight=False)
    console.print(f"report: {files.report_html}\nresult: {files.result_json}", highlight=False)
    if held_matters and not result.contract_held:
        raise typer.Exit(EXIT_NOT_HELD)


@app.command()
def demo(
    out: Out = None,
    duration: Duration = 40.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drive.")] = 1,
    params: Params = None,
    engine: Engines = None,
    without: Without = None,
    fault: Annotated[
        bool, typer.Option("--fault/--no-fault", help="Kill the detector towards the end, and see what is made of it.")
    ] = True,
    lidar: Lidar = False,
    view: View = True,
    live: Live = True,
) -> None:
    """Drive the built-in scenario with all three tiers; exit 0 only if contract and reaction held."""
    from triptych import session, stack

    file, tiers, engines = session.params_file(params), tiers_of(without), engines_of(engine)
    seconds = duration or 40.0
    scenario = session.node(
        "scenario",
        "scenario_node",
        file,
        parameters={"duration_s": seconds, "seed": seed, "lidar_rate_hz": stack.SCENARIO_LIDAR_HZ if lidar else 0.0},
        respawn=False,
        ends_run=True,
    )
    plan = session.Plan(
        "demo",
        f"built-in drive, seed {seed}",
        [*session.stack_specs(file, engines, tiers, view=view, lidar=lidar), scenario],
        out or Path("demo_report"),
        settings={
            "seed": seed,
            "duration_s": seconds,
            "lidar": lidar,
            "engines": {t.key: e for t, e in engines.items()},
        },
        duration_s=seconds + 30.0,
        kill=session.Kill("detector", 0.6 * seconds, DegradationState.L1_MINIMAL_RISK_MANOEUVRE)
        if fault and seconds >= SHORTEST_WITH_FAULT_S
        else None,
    )
    finish(session.run(plan, console, live=live))


@app.command()
def run(
    out: Out = None,
    duration: Duration = None,
    camera: Annotated[str, typer.Option(help="Camera topic (sensor_msgs/Image).")] = "camera/image_raw",
    odometry: Annotated[str, typer.Option(help="Odometry topic (nav_msgs/Odometry).")] = "odometry",
    driver: Annotated[str, typer.Option(help="Driver state topic (triptych_ros/DriverState).")] = "driver/state",
    lidar: Lidar = False,
    points: Annotated[str, typer.Option(help="Lidar topic (sensor_msgs/PointCloud2).")] = "lidar/points",
    params: Params = None,
    engine: Engines = None,
    without: Without = None,
    view: View = True,
    live: Live = True,
) -> None:
    """Run tiers and supervisor on live topics until Ctrl-C, then write the report."""
    from triptych import session

    file, engines = session.params_file(params), engines_of(engine)
    remaps = session.input_remaps(camera, odometry, driver, points)
    plan = session.Plan(
        "run",
        f"live topic {camera}",
        session.stack_specs(
            file,
            engines,
            tiers_of(without),
            view=view,
            lidar=lidar,
            remaps=remaps,
            remote=session.remote_target(file),
        ),
        out or Path("runs") / "live",
        settings={"remaps": remaps, "engines": {t.key: e for t, e in engines.items()}},
        duration_s=duration,
    )
    finish(session.run(plan, console, live=live), held_matters=False)


@app.command()
def replay(
    input: Annotated[Path, typer.Argument(help="rosbag2 folder or file, ROS 1 bag, video, or folder of images.")],
    out: Out = None,
    rate: Annotated[float, typer.Option(min=0.01, max=100.0, help="Speed of play; 1 is real time.")] = 1.0,
    start: Annotated[float, typer.Option(min=0.0, help="Seconds to leave out at the beginning.")] = 0.0,
    duration: Duration = None,
    loop: Annotated[bool, typer.Option("--loop", help="Begin again at the end, until Ctrl-C.")] = False,
    topic: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--topic", "-t", help="ROLE=TOPIC with role camera, odometry or driver; empty TOPIC: not used."),
    ] = None,
    fps: Annotated[Optional[float], typer.Option(help="Rate of a folder of images (default 20).")] = None,  # noqa: UP045
    salvage: Annotated[bool, typer.Option("--salvage", help="Use what can be read of a damaged recording.")] = False,
    lockstep: Annotated[
        bool, typer.Option("--lockstep", help="Virtual clock, no DDS: the same decisions, byte for byte, every time.")
    ] = False,
    limits: LimitsPath = None,
    compare: ComparePath = None,
    golden: GoldenPath = None,
    tolerance: Tolerance = 0.05,
    params: Params = None,
    engine: Engines = None,
    without: Without = None,
    view: View = True,
    live: Live = True,
) -> None:
    """Play a recording through the stack and report how it did; exit 0 only if the contract, or its gates, held."""
    from triptych.gates.command import gates_of
    from triptych.replay.player import Options
    from triptych.replay.recording import open_recording

    gates = gates_of(limits, compare, golden, tolerance)
    if (compare or golden) and not lockstep:
        raise ConfigError(
            "needs --lockstep: on a real clock no two runs decide alike",
            field="--compare" if compare else "--golden",
            value=str(compare or golden),
            remedy="add --lockstep",
        )
    topics, engines, tiers = topics_of(topic), engines_of(engine), tiers_of(without)
    options = Options(rate, start, duration, loop)
    folder = out or Path("runs") / input.name.replace(".", "_")
    with open_recording(input, topics, fps=fps, salvage=salvage) as recording:
        for warning in recording.warnings:
            console.print(f"[yellow]{warning}[/]", highlight=False)
        settings = {
            "options": dataclasses.asdict(options),
            "topics": topics,
            "engines": {t.key: e for t, e in engines.items()},
        }
        if lockstep:
            files = _lockstep(recording, engines, tiers, options, folder, settings, params)
    if not lockstep:
        files = _replay_live(input, topics, engines, tiers, options, folder, settings, params, fps, salvage, view, live)
    held = not gates or _gated(gates, folder / "record.jsonl", folder, input)
    finish(files, held_matters=not gates.judge)
    if not held:
        raise typer.Exit(EXIT_NOT_HELD)


def _gated(gates: Any, record: Path, out: Path, data: Path) -> bool:
    from triptych.gates.command import check
    from triptych.replay.record import RunRecord

    return check(RunRecord.load(record), gates, out, console, data)


def _lockstep(
    recording: Any,
    engines: dict[Tier, str],
    tiers: list[Tier],
    options: Any,
    folder: Path,
    settings: dict[str, Any],
    params: Path | None,
) -> Any:
    from triptych import resources, session
    from triptych.engines.load import load_engine
    from triptych.engines.locate import locate
    from triptych.replay.lockstep import run_lockstep
    from triptych.report.html import write_report
    from triptych.report.provenance import provenance
    from triptych.supervisor.config import supervisor_config
    from triptych.supervisor.faults import load_faults
    from triptych.supervisor.policy import load_policy

    session.prepare(folder)
    file = session.params_file(params)
    table, rules = session.supervisor_tables(file)
    expected = {"distilled_expected": Tier.DISTILLED in tiers, "full_expected": Tier.FULL in tiers}
    values = {**session.supervisor_settings(file), **expected}
    loaded = {t: load_engine(locate(engines.get(t, f"triptych-{t.key}"))) for t in tiers}
    with progress_bar() as bar:
        task = bar.add_task("lockstep", total=None)
        record = run_lockstep(
            recording,
            loaded,
            faults=load_faults(table),
            policy=load_policy(rules),
            config=supervisor_config(values),
            options=options,
            inputs={t: limits for t, limits in session.input_settings(file).items() if t in loaded},
            out=folder,
            progress=lambda done, total: bar.update(task, completed=round(done, 1), total=round(total, 1)),
        )
    record.meta["tiers"] = [t.key for t in tiers]
    console.print(f"decisions: sha256 {record.meta['decisions_sha256']}", highlight=False)
    config = [file, table, rules, resources.resource("models")]
    return write_report(record, folder, provenance(config, {**settings, "mode": "lockstep"}, recording.path))


def _replay_live(
    source: Path,
    topics: dict[str, str],
    engines: dict[Tier, str],
    tiers: list[Tier],
    options: Any,
    folder: Path,
    settings: dict[str, Any],
    params: Path | None,
    fps: float | None,
    salvage: bool,
    view: bool,
    live: bool,
) -> Any:
    from triptych import session

    file = session.params_file(params)
    values = {
        "input": str(source.resolve()),
        "rate": options.rate,
        "start_s": options.start_s,
        "duration_s": options.duration_s or 0.0,
        "loop": options.loop,
        "topics": [f"{role}={name}" for role, name in topics.items()] or [""],
        "fps": fps or 0.0,
        "salvage": salvage,
        "tiers": ",".join(t.key for t in tiers),
    }
    player = session.node("replay", "replay_node", file, parameters=values, respawn=False, ends_run=True)
    plan = session.Plan(
        "replay",
        source.name,
        [*session.stack_specs(file, engines, tiers, view=view, vehicle=False), player],
        folder,
        data=source,
        settings=settings,
    )
    return session.run(plan, console, live=live)


@bag_app.command("info")
def bag_info(path: Annotated[Path, typer.Argument(help="Any recording.")]) -> None:
    """Topics, counts, duration, and what is wrong with it; exit 1 if replay would refuse it."""
    from triptych.replay.recording import inspect

    info = inspect(path)
    console.print(
        f"{info.path}: {info.kind} ({info.storage}), {info.message_count} messages, {info.duration_s:.2f} s, "
        f"{info.size_bytes / 1e6:.1f} MB",
        highlight=False,
    )
    table = Table("topic", "type", "messages", "used as")
    for topic in info.topics:
        table.add_row(topic.name, topic.type, str(topic.count), topic.role)
    if info.topics:
        console.print(table)
    for text in info.warnings:
        console.print(f"[yellow]{text}[/]", highlight=False)
    for text in info.problems:
        console.print(f"[red]{text}[/]", highlight=False)
    if info.problems:
        raise typer.Exit(EXIT_NOT_HELD)


@bag_app.command("from-video")
def bag_from_video(
    video: Annotated[Path, typer.Argument(help="Video file or folder of images.")],
    out: Annotated[Path, typer.Argument(help="Folder of the new bag.")],
    topic: Annotated[str, typer.Option(help="Camera topic in the bag.")] = "camera/image_raw",
    storage: Annotated[str, typer.Option(help="mcap or sqlite3.")] = "mcap",
    compressed: Annotated[bool, typer.Option("--compressed/--raw", help="JPEG or raw images.")] = True,
    fps: Annotated[Optional[float], typer.Option(help="Rate of a folder of images (default 20).")] = None,  # noqa: UP045
    start: Annotated[float, typer.Option(min=0.0, help="Seconds to leave out at the beginning.")] = 0.0,
    duration: Duration = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing bag.")] = False,
) -> None:
    """Make a camera bag that ``ros2 bag play`` and ``triptych replay`` read."""
    from triptych.replay.writer import from_video

    with progress_bar() as bar:
        task = bar.add_task("frames", total=None)
        made = from_video(
            video,
            out,
            topic=topic,
            storage=storage,
            compressed=compressed,
            fps=fps,
            start_s=start,
            duration_s=duration,
            overwrite=overwrite,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(f"bag: {made}", highlight=False)


@engines_app.command("list")
def engines_list(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Built-in engines and shipped manifests, with what is missing."""
    from triptych.engines.check import list_engines

    entries = list_engines()
    if as_json:
        print(json.dumps([{**dataclasses.asdict(e), "path": str(e.path)} for e in entries], indent=2))
        return
    table = Table("name", "version", "task", "licence", "state")
    for e in entries:
        table.add_row(e.name, e.version, e.task, e.licence, "[yellow]see below[/]" if e.problem else "ready")
    console.print(table)
    for e in entries:
        if e.problem:
            console.print(f"• {e.problem}", highlight=False, soft_wrap=True)


@engines_app.command("check")
def engines_check(
    engine: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(help="Manifests, their folders or names; none: the built-in engines."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, tensorrt or openvino.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads per operator.")] = 1,
    engine_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--path", help="Folder of the engine files, if they don't lie beside the manifest."),
    ] = None,
) -> None:
    """Check hash, shapes, labels, golden frame and latency; exit 1 if an engine fails."""
    from triptych.engines.check import check
    from triptych.engines.locate import locate

    failed = False
    for name in engine or [f"triptych-{tier}" for tier in NAMES]:
        table = Table("check", "", "result", title=name, title_justify="left")
        for row in check(locate(name), device, threads, engine_dir):
            failed |= not row.ok
            table.add_row(row.check, "[green]ok[/]" if row.ok else "[red]FAIL[/]", row.detail)
        console.print(table)
    if failed:
        raise typer.Exit(EXIT_NOT_HELD)


@app.command()
def calibrate(
    rate: Annotated[
        float, typer.Option("--false-alarms-per-hour", help="Wanted at most, of each monitor, with 95 % confidence.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="ROS parameter file to write.")],
    recordings: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Argument(help="Sound drives: rosbag2 folders or files, ROS 1 bags, videos, folders of images."),
    ] = None,
    scenario: Annotated[float, typer.Option(min=0.0, help="Minutes of the built-in scenario to add.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenario's drives.")] = 1,
    margin: Annotated[
        float, typer.Option(min=1.0, max=10.0, help="Widens every limit, for what was not recorded.")
    ] = 1.0,
    topic: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--topic", "-t", help="camera=TOPIC where the choice is not clear."),
    ] = None,
    fps: Annotated[Optional[float], typer.Option(help="Rate of a folder of images (default 20).")] = None,  # noqa: UP045
    salvage: Annotated[bool, typer.Option("--salvage", help="Use what can be read of a damaged recording.")] = False,
    engine: Engines = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty/--no-uncertainty", help="Ask the engines too (default: the detector's).")
    ] = True,
    params: Params = None,
) -> None:
    """Choose the limits of the input monitors and of the uncertainty from recordings of sound drives."""
    from triptych import session
    from triptych.calibrate.run import Plan, calibrate
    from triptych.engines.load import load_engine
    from triptych.engines.locate import locate

    if not out.parent.is_dir():
        raise ConfigError("has no folder", field="--out", value=str(out), remedy=f"make {out.parent} first")
    if out.is_dir():
        raise ConfigError(
            "is a folder", field="--out", value=str(out), remedy=f"name a file in it: {out / 'camera.yaml'}"
        )
    if params is not None and params.resolve() == out.resolve():
        raise ConfigError(
            "would replace the file of --params, all of it", field="--out", value=str(out), remedy="name another file"
        )
    names = (engines_of(engine) or {Tier.DETECTOR: "triptych-detector"}) if uncertainty else {}
    plan = Plan(
        recordings or [], rate, margin=margin, topics=topics_of(topic), fps=fps, salvage=salvage,
        scenario_min=scenario, seed=seed,
    )  # fmt: skip
    limits = session.input_settings(session.params_file(params)).get(Tier.DETECTOR)
    with progress_bar() as bar:
        task = bar.add_task("seconds driven", total=None, visible=False)
        outcome = calibrate(
            plan,
            out,
            limits=limits,
            engines={tier: load_engine(locate(name)) for tier, name in names.items()},
            progress=lambda done, total: bar.update(task, completed=round(done), total=round(total), visible=True),
        )
    for warning in outcome.warnings:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    table = Table(box=None, pad_edge=False)
    for title in ("limit of", "usual", "limit", "alarms/h ≤", "blocks"):
        table.add_column(title, justify="left" if title == "limit of" else "right", no_wrap=True)
    table.add_column("")
    for f in outcome.found:
        seen = f"{f.tail.exceeded} of {f.tail.blocks}"
        table.add_row(f.name, f"{f.tail.usual:.4g}", f"{f.limit:.4g}", f"{f.tail.bound_per_h:.3g}", seen, f.note)
    console.print(table)
    console.print("blocks: those with a false alarm at this limit, of all that were looked at", highlight=False)
    for path in outcome.files:
        console.print(f"written: {path}", highlight=False)
    console.print(f"start with it: triptych run --params {out}", highlight=False)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Send images between two processes.")] = True,
) -> None:
    """Report devices, engines, middleware, clock, priorities and disk, each with the reason and the remedy."""
    from triptych.doctor import run as examine

    raise typer.Exit(examine(as_json, probe))


@app.command()
def rt(
    apply: Annotated[bool, typer.Option("--apply", help="Write the kernel settings that warn; needs root.")] = False,
    load: Annotated[bool, typer.Option("--load", help="Measure beside a busy process per core as well.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="Of each measurement.")] = 3.0,
    interval_us: Annotated[int, typer.Option(min=50, max=1_000_000, help="Between two wake-ups.")] = 1000,
    out: Annotated[Optional[Path], typer.Option("--json", help="File for the report.")] = None,  # noqa: UP045
    figure: Annotated[Optional[Path], typer.Option(help="File for a figure, SVG.")] = None,  # noqa: UP045
) -> None:
    """Check what the machine offers in real time, and measure how late it wakes a thread."""
    from triptych.report.provenance import provenance
    from triptych.rt import command

    settings = {"seconds": seconds, "interval_us": interval_us, "load": load}
    report = command.collect(seconds, interval_us, load, apply, provenance([], settings).model_dump(mode="json"))
    command.show(report, console)
    if out is not None:
        command.write(report, out)
    if figure is not None:
        command.draw(report, figure)


@app.command("verify-supervisor")
def verify_supervisor(
    table: Annotated[Optional[Path], typer.Option("--faults", help="Fault table instead of the shipped one.")] = None,  # noqa: UP045
    out: Annotated[Optional[Path], typer.Option("--json", help="File for the report.")] = None,  # noqa: UP045
) -> None:
    """Search everything the supervisor can come to for a broken safety property; takes minutes."""
    from triptych import resources
    from triptych.report.provenance import provenance
    from triptych.verification.command import run as search

    file = table or resources.resource("config", "faults.yaml")
    if not search(file, out, console, provenance([file]).model_dump(mode="json")):
        raise typer.Exit(EXIT_NOT_HELD)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure latency, transport and reaction to faults on this machine; options are those of bench/run.py."""
    from triptych import resources

    script = resources.resource("bench", "run.py")
    raise typer.Exit(subprocess.call([sys.executable, str(script), *context.args]))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def forge(context: typer.Context) -> None:
    """Make models small and prove that they still agree; needs the dependencies of the extra "forge"."""
    try:
        from triptych_forge.command import app as forge_app
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"needs the package {error.name}", where="forge", remedy='install them: pip install ".[forge]"'
        ) from None
    forge_app(context.args or ["--help"], prog_name="triptych forge")


@app.command()
def inject(
    campaign: Annotated[Optional[Path], typer.Argument(help="Campaign file; none: the shipped standard one.")] = None,  # noqa: UP045
    out: Out = None,
    only: Annotated[Optional[list[str]], typer.Option(help="Beginning of a fault's name; repeat for more.")] = None,  # noqa: UP045
    seeds: Annotated[Optional[int], typer.Option(min=1, help="Drives per fault instead of the campaign's.")] = None,  # noqa: UP045
    seed: Annotated[Optional[int], typer.Option(min=0, help="This one drive: a trial of a report again.")] = None,  # noqa: UP045
    workers: Annotated[int, typer.Option(min=0, max=256, help="Processes; 0: one per core.")] = 0,
    engine: Engines = None,
    record: Annotated[
        bool, typer.Option("--record", help="Only write record.jsonl of one drive, for triptych gate; with --seed.")
    ] = False,
    kinds: Annotated[bool, typer.Option("--kinds", help="List what can be broken, and end.")] = False,
) -> None:
    """Break things on purpose in closed loop, and see whether it is noticed; exit 0 only if all limits held."""
    import os

    from triptych import resources
    from triptych.injection import command

    if kinds:
        console.print(command.kinds_table())
        return
    file = campaign or resources.resource("config", "inject", "standard.yaml")
    if record:
        if seed is None:
            raise ConfigError("is of one drive", field="--record", remedy="name it with --seed")
        trial = command.record_drive(
            file, out or Path("runs") / "inject", engines_of(engine), only or [], seed, console
        )
        if trial.verdict not in command.HELD:
            raise typer.Exit(EXIT_NOT_HELD)
        return
    summary = command.inject(
        file,
        out or Path("inject_report"),
        engines_of(engine),
        only or [],
        seeds,
        seed,
        workers or len(os.sched_getaffinity(0)),
        console,
        progress_bar(),
    )
    if not summary.held:
        raise typer.Exit(EXIT_NOT_HELD)


@app.command()
def gate(
    run: Annotated[Optional[Path], typer.Argument(help="Folder of an earlier run, or its record.jsonl.")] = None,  # noqa: UP045
    limits: LimitsPath = None,
    compare: ComparePath = None,
    golden: GoldenPath = None,
    tolerance: Tolerance = 0.05,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", "-o", help="Folder for gate.json; none: beside the record."),
    ] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="List what can be asked for, and end.")] = False,
) -> None:
    """Hold an earlier run against limits or a golden file; exit 0 only if everything held."""
    from triptych.gates import command

    if metrics:
        console.print(command.metrics_table())
        return
    gates = command.gates_of(limits, compare, golden, tolerance)
    if run is None or not gates:
        missing = "RUN" if run is None else "--limits"
        remedy = "name the folder of a run, and --limits, --compare or --golden"
        raise ConfigError("is not given", field=missing, remedy=remedy)
    record = run / "record.jsonl" if run.is_dir() else run
    if not _gated(gates, record, out or record.parent, record):
        raise typer.Exit(EXIT_NOT_HELD)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of an earlier run (with record.jsonl).")],
) -> None:
    """Make result.json and report.html of an earlier run again."""
    from triptych.replay.record import RunRecord
    from triptych.report.html import write_report
    from triptych.report.provenance import provenance

    record = RunRecord.load(folder / "record.jsonl")
    finish(write_report(record, folder, provenance([], {"remade": True})))


def progress_bar() -> Progress:
    """The one look of every bar."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _version(wanted: bool) -> None:
    if wanted:
        print(f"triptych {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Entry point: a user's mistake ends in one sentence, never in a traceback."""
    try:
        app()
    except TriptychError as error:
        print(f"triptych: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USER) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
