"""The figures of the report as inline SVG that follows the page's light or dark colours.

Series of any length are reduced to about :data:`MAX_POINTS` marks per line, so that a long run's report stays small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from triptych.contract import DegradationState, Origin, Tier, TierResult
from triptych.replay.record import RunRecord
from triptych.report.schema import ResultJson, TierReport
from triptych.report.summary import latency_ms, span_ns
from triptych.report.svg import INK, STYLE, to_svg
from triptych.viewing import words

MAX_POINTS = 400
MAX_FAULT_ROWS = 12
SPLIT_COLOURS = {
    "transport": words.SKY,
    "pre": words.YELLOW,
    "infer": words.BLUE,
    "post": words.ORANGE,
    "other": words.GREY,
}
SPLIT_WORDS = {
    "transport": "transport",
    "pre": "pre-processing",
    "infer": "engine",
    "post": "decoding",
    "other": "waiting and publishing",
}
Floats = npt.NDArray[np.float64]


def latency(record: RunRecord, result: ResultJson) -> str:
    """Histogram of FRESH latencies per tier against its budget."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 2.9), layout="constrained")
        for index, tier in enumerate(Tier):
            axes = figure.add_subplot(1, 3, index + 1)
            report: TierReport = getattr(result.tiers, tier.key)
            values = [latency_ms(r) for r in _fresh(record, tier)]
            _histogram(axes, tier, report, [value for value in values if math.isfinite(value)])
        return to_svg(figure, "Latency of fresh results by tier, against the budget")


def split(result: ResultJson) -> str:
    """Mean latency split per tier as share of its budget."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 2.3), layout="constrained")
        axes = figure.add_subplot()
        reports = [(tier, getattr(result.tiers, tier.key)) for tier in Tier]
        for row, (_, report) in enumerate(reports):
            left = 0.0
            if report.split_ms is None:
                axes.text(1, row, "no fresh result", va="center", style="italic")
                continue
            for name, colour in SPLIT_COLOURS.items():
                width = getattr(report.split_ms, name).mean / report.budget_ms * 100
                axes.barh(row, width, left=left, color=colour, height=0.55)
                if width > 7:
                    text = words.duration_text(getattr(report.split_ms, name).mean)
                    axes.text(left + width / 2, row, text, ha="center", va="center", color=words.ink_on(colour), size=9)
                left += width
            axes.text(
                left + 0.8,
                row,
                f"{words.duration_text(report.latency_ms.mean)} of {report.budget_ms:g} ms",
                va="center",
            )
        axes.axvline(100, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.set_yticks(range(len(reports)), [tier.key for tier, _ in reports])
        axes.set_ylim(len(reports) - 0.5, -0.5)
        axes.set_xlim(0, max(104.0, axes.get_xlim()[1]))
        axes.set_xlabel("share of the budget, %")
        axes.tick_params(axis="y", length=0)
        handles = [Patch(color=colour, label=SPLIT_WORDS[name]) for name, colour in SPLIT_COLOURS.items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handlelength=1.0)
        return to_svg(figure, "Mean latency split by tier, as share of the budget")


def timeline(record: RunRecord, result: ResultJson) -> str:
    """States, faults, origin of results and speed against its limit, over one time axis."""
    start_ns, end_ns = span_ns(record)
    end_s = max((end_ns - start_ns) / 1e9, 1e-3)
    fault_rows = min(len({f.fault for f in result.supervisor.faults}) + len(result.injections), MAX_FAULT_ROWS)
    with matplotlib.rc_context(STYLE):
        heights = [0.5, *([0.24 * fault_rows + 0.1] if fault_rows else []), 0.26, 0.26, 0.26, 1.6, 1.9]
        figure = Figure(figsize=(10.4, 1.05 + 1.12 * sum(heights)), layout="constrained")
        panels = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights})
        panel = iter(panels)
        _states(next(panel), result, end_s)
        if fault_rows:
            _faults(next(panel), result, end_s, fault_rows)
        for tier in Tier:
            _origins(next(panel), record, tier, start_ns, end_s)
        _load(next(panel), record, result, start_ns)
        speed = next(panel)
        _speed(speed, record, start_ns)
        speed.set_xlim(0, end_s)
        speed.set_xlabel("time since the start of the run, s")
        handles = [
            Patch(color=words.ORIGIN_COLOURS[origin], label=words.ORIGIN_WORDS[origin].lower()) for origin in Origin
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=3, title=None, handlelength=1.0)
        return to_svg(figure, "States, faults, origin of results and speed over time")


def _histogram(axes: Axes, tier: Tier, report: TierReport, values: Sequence[float]) -> None:
    axes.set_title(f"{tier.key}", loc="left", weight="bold", size=11)
    axes.set_xlabel("ms")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    budget = report.budget_ms
    axes.axvline(budget, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.annotate(
        f"budget {budget:g}", (budget, 1.0), xycoords=("data", "axes fraction"), xytext=(-4, -3),
        textcoords="offset points", ha="right", va="top", rotation=90, size=9,
    )  # fmt: skip
    top = max([budget * 1.15, *(value * 1.02 for value in values)])
    axes.set_xlim(0, top)
    if not values or report.latency_ms is None:
        text = "never started" if not report.started else "no fresh result"
        axes.text(0.45, 0.5, text, transform=axes.transAxes, ha="center", va="center", style="italic")
        return
    counts, edges = np.histogram(values, bins=max(24, min(60, 3 * int(len(values) ** 0.5))), range=(0, top))
    inside = edges[:-1] < budget
    width = edges[1] - edges[0]
    axes.bar(edges[:-1][inside], counts[inside], width, align="edge", color=words.TIER_COLOURS[tier])
    axes.bar(edges[:-1][~inside], counts[~inside], width, align="edge", color=words.VERMILLION)
    axes.set_ylim(0, max(1, counts.max()) * 1.45)
    for name, value in (("p50", report.latency_ms.p50), ("p99", report.latency_ms.p99)):
        height = counts[min(len(counts) - 1, int(value / width))] / (max(1, counts.max()) * 1.45)
        axes.annotate(
            f"{name} {value:.3g}" if value < 1000 else f"{name} {value:.0f}", (value, height + 0.02),
            xycoords=("data", "axes fraction"), xytext=(-4 if name == "p50" else 4, 14), textcoords="offset points",
            ha="right" if name == "p50" else "left", size=9,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.7},
        )  # fmt: skip


def _states(axes: Axes, result: ResultJson, end_s: float) -> None:
    entries = result.supervisor.states
    spans: dict[DegradationState, list[tuple[float, float]]] = {}
    for index, entry in enumerate(entries):
        until = entries[index + 1].from_s if index + 1 < len(entries) else end_s
        state, length = DegradationState[entry.state], until - entry.from_s
        spans.setdefault(state, []).append((entry.from_s, length))
        name = words.STATE_WORDS[state]
        for text in (name, name.split()[0]):
            if length / end_s > 0.0105 * len(text) + 0.01:
                axes.text(
                    entry.from_s + length / 2, 0, text, ha="center", va="center", size=9, weight="bold",
                    color=words.ink_on(words.STATE_COLOURS[state]), clip_on=True,
                )  # fmt: skip
                break
    for state, bars in spans.items():
        axes.broken_barh(_coarse(bars, end_s), (-0.5, 1.0), color=words.STATE_COLOURS[state], linewidth=0)
    _bare(axes, "state")
    axes.set_ylim(-0.5, 0.5)


def _coarse(bars: Sequence[tuple[float, float]], end_s: float) -> list[tuple[float, float]]:
    """Bars (begin, length) with those closer than a pixel joined, and none thinner than one."""
    pixel = end_s / (2 * MAX_POINTS)
    joined: list[tuple[float, float]] = []
    for begin, length in sorted(bars):
        length = max(length, pixel)
        if joined and begin - sum(joined[-1]) < pixel:
            joined[-1] = (joined[-1][0], max(sum(joined[-1]), begin + length) - joined[-1][0])
        else:
            joined.append((begin, length))
    return joined


def _faults(axes: Axes, result: ResultJson, end_s: float, rows: int) -> None:
    lines: list[tuple[str, list[tuple[float, float]], str]] = []
    for injection in result.injections:
        until = end_s if injection.to_s is None else injection.to_s
        bar = (injection.from_s, until - injection.from_s)
        lines.append((f"caused: {injection.fault} {injection.target}", [bar], words.PURPLE))
    grouped: dict[str, list[tuple[float, float]]] = {}
    for fault in result.supervisor.faults:
        until = end_s if fault.to_s is None else fault.to_s
        grouped.setdefault(fault.fault, []).append((fault.from_s, until - fault.from_s))
    lines += [(name, bars, words.VERMILLION) for name, bars in grouped.items()]
    lines = lines[:rows]
    for row, (_, bars, colour) in enumerate(lines):
        axes.broken_barh(_coarse(bars, end_s), (row - 0.3, 0.6), color=colour, linewidth=0)
    axes.set_yticks(range(len(lines)), [_short(label) for label, _, _ in lines], size=8.5)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.tick_params(axis="both", length=0, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _short(label: str, limit: int = 32) -> str:
    """A label of at most ``limit`` characters in which matplotlib finds no formula."""
    label = label.replace("$", r"\$")
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _origins(axes: Axes, record: RunRecord, tier: Tier, start_ns: int, end_s: float) -> None:
    results = record.results_of(tier)
    _bare(axes, tier.key)
    axes.set_ylim(0, 1)
    if not results:
        axes.text(0.5, 0.5, "never started", transform=axes.transAxes, ha="center", va="center", style="italic", size=9)
        return
    times = np.array([(r.published_ns - start_ns) / 1e9 for r in results])
    origins = np.array([int(r.origin) for r in results])
    spacing = float(np.median(np.diff(times))) if len(times) > 1 else end_s
    bins = int(min(MAX_POINTS, max(1, end_s / max(spacing * 1.5, 1e-3))))
    edges = np.linspace(0, end_s, bins + 1)
    counts = np.array([np.histogram(times[origins == int(origin)], edges)[0] for origin in Origin], dtype=float)
    total = counts.sum(axis=0)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    bottom = np.zeros(bins)
    for origin in Origin:
        share = shares[int(origin)]
        axes.fill_between(
            edges, _step(bottom), _step(bottom + share), step="post", color=words.ORIGIN_COLOURS[origin], linewidth=0
        )
        bottom = bottom + share


def _load(axes: Axes, record: RunRecord, result: ResultJson, start_ns: int) -> None:
    """Latency of FRESH results in percent of the budget; of long runs the greatest of each interval."""
    axes.grid(axis="y")
    axes.set_ylabel("latency,\n% of budget")
    axes.axhline(100, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
    top = 110.0
    for tier in Tier:
        budget = getattr(result.tiers, tier.key).budget_ms
        fresh = [r for r in _fresh(record, tier) if math.isfinite(latency_ms(r))]
        if not fresh:
            continue
        times = np.array([(r.published_ns - start_ns) / 1e9 for r in fresh])
        values = np.array([latency_ms(r) / budget * 100 for r in fresh])
        if len(times) > MAX_POINTS:
            parts = np.array_split(np.arange(len(times)), MAX_POINTS)
            worst = np.array([part[np.argmax(values[part])] for part in parts])
            times, values = times[worst], values[worst]
        top = max(top, float(values.max()) * 1.05)
        marker = {Tier.DETECTOR: "o", Tier.DISTILLED: "s", Tier.FULL: "D"}[tier]
        size = 7 if tier is Tier.DETECTOR else 12 if tier is Tier.DISTILLED else 26
        axes.scatter(times, values, s=size, marker=marker, color=words.TIER_COLOURS[tier], label=tier.key, linewidths=0)
    axes.set_ylim(0, top)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", ncols=3, bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1, handletextpad=0.2)


def _speed(axes: Axes, record: RunRecord, start_ns: int) -> None:
    axes.grid(axis="y")
    axes.set_ylabel("km/h")
    speed_t, speed = _thin([(o.t_ns, o.odometry.speed_mps) for o in record.odometry], start_ns)
    limit_t, limit = _thin(
        [(c.t_ns, c.constraint.speed_limit_mps) for c in record.constraints], start_ns, keep_steps=True
    )
    if len(limit):
        # A limit far above anything driven would flatten the picture; "no limit" is drawn at the upper edge.
        finite = speed[np.isfinite(speed)]
        ceiling = max(60.0, float(finite.max()) * 1.6 if len(finite) else 0.0)
        shown = np.minimum(np.where(np.isfinite(limit), limit, ceiling), ceiling)
        axes.step(limit_t, shown, where="post", color=words.VERMILLION, linewidth=1.6, label="limit of the command")
        axes.fill_between(limit_t, shown, ceiling, step="post", color=words.VERMILLION, alpha=0.10, linewidth=0)
        axes.set_ylim(0, ceiling * 1.02)
    if len(speed):
        axes.plot(speed_t, speed, color=words.BLUE, linewidth=1.6, label="speed")
        axes.set_ylim(bottom=min(0.0, float(np.nanmin(np.where(np.isfinite(speed), speed, 0.0)))))
    if len(limit) or len(speed):
        axes.legend(loc="lower left", ncols=2, bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1)
    else:
        axes.text(0.5, 0.5, "no speed and no command recorded", transform=axes.transAxes, ha="center", style="italic")


def _thin(points: Sequence[tuple[int, float]], start_ns: int, keep_steps: bool = False) -> tuple[Floats, Floats]:
    """Seconds and km/h, at most :data:`MAX_POINTS`; with ``keep_steps`` every change of value is kept as well."""
    if not points:
        return np.empty(0), np.empty(0)
    times = np.array([(t_ns - start_ns) / 1e9 for t_ns, _ in points])
    values = np.array([value * 3.6 for _, value in points])
    chosen = np.linspace(0, len(points) - 1, min(len(points), MAX_POINTS)).astype(int)
    if keep_steps:
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1  # not a difference: limits may be infinite
        chosen = np.union1d(chosen, changes[: 4 * MAX_POINTS])
    return times[chosen], values[chosen]


def _step(values: Floats) -> Floats:
    return np.append(values, values[-1])


def _bare(axes: Axes, label: str) -> None:
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center", labelpad=8)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _fresh(record: RunRecord, tier: Tier) -> list[TierResult]:
    return [r for r in record.results_of(tier) if r.origin is Origin.FRESH]
