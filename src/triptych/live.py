"""The live table of a run on the terminal: what each tier does against its budget, and what the supervisor makes of it.

:class:`LiveModel` takes in the entries of a run record and needs neither ROS nor a terminal; :func:`table` and
:func:`line` show it; :class:`LiveView` picks the table on a terminal and one plain line per second elsewhere.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from triptych.contract import (
    BUDGETS,
    Budget,
    Detections,
    MotionConstraint,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
)
from triptych.replay.record import (
    ConstraintRecord,
    CpuSample,
    Event,
    OdometryRecord,
    Received,
    StateRecord,
    StatusRecord,
    VerdictRecord,
)
from triptych.viewing import words
from triptych.viewing.draw import advice_text, as_seen

WINDOW_S = 5.0
"""Rates and percentiles are over this much of the past."""
SILENT_S = 1.0
"""A supervisor whose command, or a tier whose heartbeat (10 Hz) is older than this is shown as silent."""
WIDE = 128
"""Columns of a terminal from which on the table holds engines and answers in its rows."""
MAX_NOTES = 4
PLAIN_PERIOD_S = 1.0
REFRESH_HZ = 4.0
_NS = 1e9


@dataclass
class TierView:
    """What is known of one tier. ``recent`` holds (time of receipt ns, latency ms or NaN where not FRESH)."""

    last: TierResult | None = None
    status: TierStatus | None = None
    status_ns: int = 0
    counts: dict[Origin, int] = field(default_factory=lambda: dict.fromkeys(Origin, 0))
    recent: deque[tuple[int, float]] = field(default_factory=deque)

    def take(self, t_ns: int, result: TierResult) -> None:
        """Take in a result."""
        self.last = result
        self.counts[result.origin] += 1
        fresh = result.origin is Origin.FRESH
        self.recent.append((t_ns, (result.published_ns - result.source_stamp_ns) / 1e6 if fresh else math.nan))

    def forget(self, before_ns: float) -> None:
        """Drop what is older than the window."""
        while self.recent and self.recent[0][0] < before_ns:
            self.recent.popleft()

    def rate_hz(self) -> float:
        """Results per second over what is remembered; NaN with fewer than two."""
        if len(self.recent) < 2 or self.recent[-1][0] <= self.recent[0][0]:
            return math.nan
        return (len(self.recent) - 1) * _NS / (self.recent[-1][0] - self.recent[0][0])

    def latency_ms(self, share: float) -> float:
        """Nearest-rank percentile of the remembered FRESH latencies; NaN without any."""
        values = sorted(value for _, value in self.recent if math.isfinite(value))
        return values[max(0, math.ceil(share / 100 * len(values)) - 1)] if values else math.nan


class LiveModel:
    """The present of a run.

    Args:
        title: one line for people.
        budgets: what latencies are compared with.
    """

    def __init__(self, title: str = "", budgets: Mapping[Tier, Budget] = BUDGETS) -> None:
        self.title = title
        self.budgets = budgets
        self.tiers = {tier: TierView() for tier in Tier}
        self.state: StateRecord | None = None
        self.constraint: MotionConstraint | None = None
        self.constraint_ns = 0
        self.speed_mps = math.nan
        self.faults: dict[str, str] = {}
        self.processes: dict[str, CpuSample] = {}
        self.notes: deque[str] = deque(maxlen=MAX_NOTES)
        self.first_ns: int | None = None
        self.now_ns = 0
        self._takers: dict[type, Callable[[Any], None]] = {
            Received: self._on_result,
            StatusRecord: self._on_status,
            StateRecord: self._on_state,
            ConstraintRecord: self._on_constraint,
            VerdictRecord: self._on_verdict,
            OdometryRecord: self._on_odometry,
            CpuSample: self._on_cpu,
            Event: self._on_event,
        }

    def update(self, entry: Any) -> None:
        """Take in one entry of a run record; kinds that the table does not show are ignored."""
        taker = self._takers.get(type(entry))
        if self.first_ns is None:
            self.first_ns = entry.t_ns
        self.tick(entry.t_ns)
        if taker is not None:
            taker(entry)

    def event(self, text: str) -> None:
        """Show a sentence below the table; the last :data:`MAX_NOTES` stay."""
        self.notes.append(" ".join(text.split()))

    def tick(self, now_ns: int) -> None:
        """Let time pass up to ``now_ns`` (clock of source stamps); never backwards."""
        self.now_ns = max(self.now_ns, now_ns)
        for view in self.tiers.values():
            view.forget(self.now_ns - WINDOW_S * _NS)

    @property
    def elapsed_s(self) -> float:
        """Since the first entry."""
        return (self.now_ns - self.first_ns) / _NS if self.first_ns is not None else 0.0

    @property
    def takeover_remaining_s(self) -> float | None:
        """Seconds left for the driver, counted on from the last state; None when nothing is asked."""
        if self.state is None or not self.state.takeover_requested:
            return None
        return max(0.0, self.state.takeover_remaining_s - (self.now_ns - self.state.t_ns) / _NS)

    @property
    def supervisor_silent_s(self) -> float:
        """Age of the last command; infinite before the first."""
        return (self.now_ns - self.constraint_ns) / _NS if self.constraint is not None else math.inf

    def seen(self, tier: Tier) -> TierResult | None:
        """The last result as a viewer must show it now, see :func:`triptych.viewing.draw.as_seen`."""
        last = self.tiers[tier].last
        return None if last is None else as_seen(last, self.now_ns, self.budgets)

    def _on_result(self, entry: Received) -> None:
        self.tiers[entry.result.tier].take(entry.t_ns, entry.result)

    def _on_status(self, entry: StatusRecord) -> None:
        view = self.tiers[entry.status.tier]
        view.status, view.status_ns = entry.status, entry.t_ns

    def _on_state(self, entry: StateRecord) -> None:
        if self.state is not None and self.state.state is not entry.state:
            reason = f": {entry.reason}" if entry.reason else ""
            self.event(f"{words.STATE_WORDS[entry.state]}{reason}")
        self.state = entry

    def _on_constraint(self, entry: ConstraintRecord) -> None:
        self.constraint, self.constraint_ns = entry.constraint, entry.t_ns

    def _on_verdict(self, entry: VerdictRecord) -> None:
        if entry.active:
            self.faults[entry.fault_id] = entry.text
        else:
            self.faults.pop(entry.fault_id, None)

    def _on_odometry(self, entry: OdometryRecord) -> None:
        self.speed_mps = entry.odometry.speed_mps

    def _on_cpu(self, entry: CpuSample) -> None:
        self.processes[entry.process] = entry

    def _on_event(self, entry: Event) -> None:
        self.event(f"{entry.source}: {entry.text}")


def table(model: LiveModel, width: int = WIDE) -> RenderableType:
    """The model for a terminal of ``width`` columns."""
    wide = width >= WIDE
    parts: list[RenderableType] = [_tiers(model, wide)]
    if not wide:
        parts += [_below(model, tier) for tier in model.tiers]
    parts.append(_supervisor(model))
    load = _load(model)
    if load is not None:
        parts.append(load)
    parts += [Text(f"  {note}", style="dim", overflow="ellipsis", no_wrap=True) for note in model.notes]
    title = f"Triptych, {model.title}" if model.title else "Triptych"
    return Panel(
        Group(*parts), title=Text(title, overflow="ellipsis", no_wrap=True), title_align="left", expand=True,
        subtitle=f"{model.elapsed_s:.0f} s, Ctrl-C ends the run", subtitle_align="right",
    )  # fmt: skip


def line(model: LiveModel) -> str:
    """The model in one plain line, for logs."""
    parts = [f"{model.elapsed_s:.0f} s", f"state {_state_name(model)}"]
    if model.supervisor_silent_s > SILENT_S:
        parts.append(_silent_text(model))
    for tier, view in model.tiers.items():
        result = model.seen(tier)
        if result is None:
            status = view.status
            parts.append(f"{tier.key} {_tier_state(status)}" if status else f"{tier.key} not seen")
            continue
        budget = model.budgets[tier].budget_s * 1e3
        counts = "/".join(str(view.counts[origin]) for origin in Origin)
        parts.append(
            f"{tier.key} {words.ORIGIN_WORDS[result.origin].lower()} p99 {_ms(view.latency_ms(99))} of {budget:g} ms"
            f" ({counts})"
        )
    if model.constraint is not None:
        parts.append(_command(model))
    if model.takeover_remaining_s is not None:
        parts.append(f"take over within {model.takeover_remaining_s:.0f} s")
    if model.faults:
        parts.append("faults " + " ".join(model.faults))
    return ", ".join(parts)


class LiveView:
    """Shows a model while a ``with`` block runs.

    On a terminal the table is redrawn in place at most :data:`REFRESH_HZ` times a second; elsewhere :meth:`refresh`
    prints one plain line per second.

    Args:
        model: what to show.
        console: where.
        enabled: False shows nothing at all.
        clock: seconds, monotonic; replaced in tests.
    """

    def __init__(
        self,
        model: LiveModel,
        console: Console,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.console, self.enabled = model, console, enabled
        self._clock = clock
        self._live: Live | None = None
        self._next_s = -math.inf

    def __enter__(self) -> LiveView:
        if self.enabled and self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(table(self.model, self.console.width), refresh=True)
            self._live.stop()
            self._live = None

    def refresh(self) -> None:
        """Show the model if it is time to. Call it as often as you like."""
        now_s = self._clock()
        if not self.enabled or now_s < self._next_s:
            return
        if self._live is not None:
            self._next_s = now_s + 1.0 / REFRESH_HZ
            self._live.update(table(self.model, self.console.width), refresh=True)
        else:
            self._next_s = now_s + PLAIN_PERIOD_S
            self.console.print(line(self.model), markup=False, highlight=False, soft_wrap=True)


def _below(model: LiveModel, tier: Tier) -> Text:
    """What has no room in the row of a narrow table."""
    text = Text(f"  {tier.key}: ", style="dim", overflow="ellipsis", no_wrap=True)
    return text.append_text(_answer(model.seen(tier)))


def _tiers(model: LiveModel, wide: bool) -> Table:
    grid = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    grid.add_column("tier", no_wrap=True)
    grid.add_column("state", no_wrap=True)
    if wide:
        grid.add_column("engine @ device", no_wrap=True, overflow="ellipsis", max_width=30)
    for title in ("rate", "p50", "p99", "budget") if wide else ("rate", "p99", "budget"):
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("fresh/last/default", justify="right", no_wrap=True)
    if wide:
        grid.add_column("last answer", ratio=1, no_wrap=True, overflow="ellipsis", min_width=16)
    for tier, view in model.tiers.items():
        budget = model.budgets[tier].budget_s * 1e3
        cells: list[RenderableType] = [Text(tier.key, style="bold"), _tier_text(view, model.now_ns)]
        median = [_against(view.latency_ms(50), budget)] if wide else []
        measures = [*median, _against(view.latency_ms(99), budget)]
        cells += [*([_engine(view)] if wide else []), _hz(view.rate_hz()), *measures, words.duration_text(budget)]
        cells += [_counts(view), *([_answer(model.seen(tier))] if wide else [])]
        grid.add_row(*cells)
    return grid


def _tier_text(view: TierView, now_ns: int) -> Text:
    status = view.status
    if status is None:
        return Text("not seen" if view.last is None else "no heartbeat", style="dim")
    if now_ns - view.status_ns > SILENT_S * _NS:
        return Text("silent", style="bold red")
    if status.fault:
        return Text(status.fault[:24], style="yellow" if status.healthy else "bold red")
    style = {TierState.ACTIVE: "green", TierState.ERROR: "bold red"}.get(status.state, "yellow")
    return Text(_tier_state(status), style=style if status.healthy or status.state is not TierState.ACTIVE else "red")


def _tier_state(status: TierStatus) -> str:
    return status.state.name.lower().replace("_", " ")


def _engine(view: TierView) -> Text:
    source = view.last or view.status
    if source is None or not source.engine_id:
        return Text("–", style="dim")
    return Text(f"{source.engine_id} @ {source.device or '?'}")


def _against(value_ms: float, budget_ms: float) -> Text:
    """Green to 80 % of the budget, yellow to 100 %, red and marked beyond it."""
    if not math.isfinite(value_ms):
        return Text("–", style="dim")
    if value_ms > budget_ms:
        return Text(f"! {_ms(value_ms)}", style="bold red")
    return Text(_ms(value_ms), style="green" if value_ms <= 0.8 * budget_ms else "yellow")


def _counts(view: TierView) -> Text:
    counts = view.counts
    text = Text(str(counts[Origin.FRESH]), style="green" if counts[Origin.FRESH] else "dim")
    text.append("/", style="dim").append(
        str(counts[Origin.LAST_FRAME]), style="yellow" if counts[Origin.LAST_FRAME] else "dim"
    )
    return text.append("/", style="dim").append(
        str(counts[Origin.DEFAULT]), style="red" if counts[Origin.DEFAULT] else "dim"
    )


def _answer(result: TierResult | None) -> Text:
    if result is None:
        return Text("–", style="dim")
    if result.origin is Origin.DEFAULT:
        return Text(f"unknown ({result.reason.replace('_', ' ')})", style="red")
    text = Text()
    if result.origin is Origin.LAST_FRAME:
        text.append(f"old {words.duration_text(result.age_ms)}: ", style="yellow")
    if isinstance(result.payload, Detections):
        return text.append(_objects(result.payload))
    if isinstance(result.payload, SceneAdvice):
        text.append(words.word(result.payload.advice), style="bold")
        detail = advice_text(result.payload)
        return text.append(f", {detail}" if detail else "")
    return text


def _objects(detections: Detections) -> str:
    counts: dict[str, int] = {}
    for detection in detections.detections:
        name = words.word(words.detection_class(detection.class_id))
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no objects"


def _supervisor(model: LiveModel) -> Text:
    text = Text("  ", overflow="fold")
    if model.supervisor_silent_s > SILENT_S:
        text.append(f" {_silent_text(model)} ", style="white on red").append("  ")
    if model.state is not None:
        colour = words.STATE_COLOURS[model.state.state]
        text.append(f" {_state_name(model)} ", style=f"bold {words.ink_on(colour)} on {colour}")
        if model.state.reason:
            text.append(f"  {model.state.reason}")
    if model.takeover_remaining_s is not None:
        text.append(f"   TAKE OVER within {model.takeover_remaining_s:.0f} s", style="bold yellow")
    if model.constraint is not None:
        text.append(f"\n  {_command(model)}")
    for fault, sentence in model.faults.items():
        text.append(f"\n  ! {fault}", style="red").append(f"  {sentence}")
    return text


def _silent_text(model: LiveModel) -> str:
    silent = "not seen" if model.constraint is None else f"silent for {model.supervisor_silent_s:.0f} s"
    return f"SUPERVISOR {silent}"


def _state_name(model: LiveModel) -> str:
    return words.STATE_WORDS[model.state.state] if model.state is not None else "unknown"


def _command(model: LiveModel) -> str:
    constraint = model.constraint
    assert constraint is not None
    stop = constraint.speed_limit_mps <= 0
    limit = "stop" if stop else f"limit {words.speed_text(constraint.speed_limit_mps)}"
    parts = [f"{words.speed_text(model.speed_mps)}, {limit} at {constraint.deceleration_mps2:.1f} m/s2"]
    parts += ["hazard lights"] * constraint.hazard_lights + ["pull over"] * constraint.pull_over
    parts += ["remote centre told"] * constraint.remote_notification
    return ", ".join(parts)


def _load(model: LiveModel) -> Text | None:
    if not model.processes:
        return None
    memory = sum(sample.rss_bytes for sample in model.processes.values()) / 2**20
    text = Text("  ", style="dim", overflow="ellipsis", no_wrap=True)
    text.append("  ".join(f"{name} {sample.percent:.0f} %" for name, sample in model.processes.items()))
    return text.append(f"  memory {memory:.0f} MiB")


def _hz(value: float) -> str:
    return f"{value:.1f} Hz" if math.isfinite(value) else "–"


def _ms(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms" if value < 1000 else f"{value / 1e3:.2f} s"
