"""``report.html``: one file that shows a run to a person. It loads nothing from anywhere."""

from __future__ import annotations

import base64
import math
from bisect import bisect_right
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import jinja2
import numpy as np
from markupsafe import Markup

from triptych.contract import DegradationState, Detections, Origin, SceneAdvice, Tier, TierResult
from triptych.replay.record import RunRecord, SampleFrame
from triptych.report import charts
from triptych.report.schema import Integrity, Provenance, ResultJson, TierReport, write_text
from triptych.report.summary import Limits, budgets_of, span_ns, summarise
from triptych.viewing import words
from triptych.viewing.draw import Overlay, annotate, as_seen

MAX_FRAMES = 8
MAX_ROWS = 200
"""Longer tables of states or faults are cut, and say so: result.json has everything."""
FRAME_WIDTH_PX = 760
FRAME_QUALITY = 78


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """What :func:`write_report` wrote, and the verdict."""

    result_json: Path
    report_html: Path
    result: ResultJson


def write_report(
    record: RunRecord, folder: Path | str, provenance: Provenance, limits: Limits | None = None
) -> ReportFiles:
    """Write ``result.json`` and ``report.html`` into ``folder``.

    Raises:
        InputError: a file cannot be written.
    """
    out = Path(folder)
    result = summarise(record, provenance, limits)
    result.save(out / "result.json")
    write_text(out / "report.html", render(record, result))
    return ReportFiles(out / "result.json", out / "report.html", result)


def render(record: RunRecord, result: ResultJson) -> str:
    """The report as HTML text."""
    environment = page_environment()
    environment.filters.update(
        ms=_ms,
        number=_number,
        percent=_percent,
        clock=_clock,
        state=_state_words,
        term=_term_words,
        plain=_plain,
    )
    return environment.get_template("report.html.j2").render(
        result=result,
        tiers=[(tier, getattr(result.tiers, tier.key)) for tier in Tier],
        bars={tier.key: _bar(getattr(result.tiers, tier.key)) for tier in Tier},
        charts={
            "latency": Markup(charts.latency(record, result)),
            "split": Markup(charts.split(result)),
            "timeline": Markup(charts.timeline(record, result)),
        },
        frames=sample_frames(record),
        streams=_streams(result),
        legend=[(words.word(kind), colour) for kind, colour in words.CLASS_COLOURS.items()],
        origin_colours={origin.name: colour for origin, colour in words.ORIGIN_COLOURS.items()},
        state_colours={state.name: (colour, words.ink_on(colour)) for state, colour in words.STATE_COLOURS.items()},
        max_rows=MAX_ROWS,
        final=result.supervisor.states[-1] if result.supervisor.states else None,
    )


def page_environment(*packages: str) -> jinja2.Environment:
    """Where report templates are found: in ``packages``, then here; all share ``style.css``."""

    def source(name: str) -> str | None:
        for package in (*packages, "triptych.report.templates"):
            file = resources.files(package).joinpath(name)
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None

    return jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(source),
    )


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """A sample frame as the report shows it: JPEG as data URL, size in pixels, when, and the answers in words."""

    url: str
    width: int
    height: int
    at_s: float
    caption: str


def sample_frames(record: RunRecord, limit: int = MAX_FRAMES) -> list[ShownFrame]:
    """Up to ``limit`` recorded camera images, evenly spread, drawn as they looked to the stack at that moment."""
    frames = record.sample_frames
    if len(frames) > limit:
        frames = [frames[i] for i in np.linspace(0, len(frames) - 1, limit).astype(int)]
    start_ns, _ = span_ns(record)
    history = _History(record)
    shown = []
    for frame in frames:
        image = cv2.imdecode(np.frombuffer(frame.jpeg, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            continue
        if image.shape[1] != FRAME_WIDTH_PX:
            # Drawn after scaling, so that text keeps its size.
            height = max(1, round(image.shape[0] * FRAME_WIDTH_PX / image.shape[1]))
            image = cv2.resize(image, (FRAME_WIDTH_PX, height), interpolation=cv2.INTER_AREA)
        overlay = history.overlay(frame)
        drawn = annotate(np.ascontiguousarray(image, dtype=np.uint8), overlay)
        ok, data = cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, FRAME_QUALITY])
        if not ok:
            continue
        url = "data:image/jpeg;base64," + base64.b64encode(data.tobytes()).decode()
        at_s = (frame.stamp_ns - start_ns) / 1e9
        shown.append(ShownFrame(url, drawn.shape[1], drawn.shape[0], at_s, _caption(overlay)))
    return shown


class _History:
    """What was known at a moment."""

    def __init__(self, record: RunRecord) -> None:
        self._results = {tier: record.results_of(tier) for tier in Tier}
        self._published = {tier: [r.published_ns for r in results] for tier, results in self._results.items()}
        self._of_stamp = {
            r.source_stamp_ns: r for r in reversed(self._results[Tier.DETECTOR])
        }  # the first result about a frame
        self._budgets = budgets_of(record)
        self._states = record.states
        self._constraints = record.constraints
        self._odometry = record.odometry
        self._times = {
            "states": [s.t_ns for s in record.states],
            "constraints": [c.t_ns for c in record.constraints],
            "odometry": [o.t_ns for o in record.odometry],
        }

    def overlay(self, frame: SampleFrame) -> Overlay:
        detector = self._of_stamp.get(frame.stamp_ns) or self._latest(Tier.DETECTOR, frame.t_ns)
        moment = max(frame.t_ns, detector.published_ns if detector else 0)
        results = [detector, self._latest(Tier.DISTILLED, moment), self._latest(Tier.FULL, moment)]
        state = self._at("states", self._states, moment)
        constraint = self._at("constraints", self._constraints, moment)
        odometry = self._at("odometry", self._odometry, moment)
        remaining = None
        if state is not None and state.takeover_requested:
            remaining = state.takeover_remaining_s - (moment - state.t_ns) / 1e9
        return Overlay(
            tuple(as_seen(result, moment, self._budgets) for result in results if result is not None),
            state.state if state else None,
            state.reason if state else "",
            remaining,
            constraint.constraint if constraint else None,
            odometry.odometry.speed_mps if odometry else math.nan,
        )

    def _latest(self, tier: Tier, moment_ns: int) -> TierResult | None:
        index = bisect_right(self._published[tier], moment_ns)
        return self._results[tier][index - 1] if index else None

    def _at(self, name: str, entries: list[Any], moment_ns: int) -> Any:
        index = bisect_right(self._times[name], moment_ns)
        return entries[index - 1] if index else None


def _caption(overlay: Overlay) -> str:
    """The picture in words, for people who cannot see it and for searching."""
    parts = []
    if overlay.state is not None:
        parts.append(words.STATE_WORDS[overlay.state])
    for result in overlay.results:
        origin = words.ORIGIN_WORDS[result.origin].lower()
        if result.origin is Origin.DEFAULT:
            parts.append(f"{result.tier.key} ({origin}): nothing known")
        elif isinstance(result.payload, Detections):
            count = len(result.payload.detections)
            parts.append(f"detector ({origin}): {count} object{'' if count == 1 else 's'}")
        elif isinstance(result.payload, SceneAdvice):
            parts.append(f"{result.tier.key} ({origin}): {words.word(result.payload.advice)}")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Bar:
    """Positions for the bullet bar of a tier, percent of its width; the budget is at 80 %."""

    p50: float
    p99: float
    over: bool


def _bar(report: TierReport) -> _Bar | None:
    if report.latency_ms is None:
        return None
    scale = 80 / report.budget_ms
    return _Bar(
        min(100.0, report.latency_ms.p50 * scale),
        min(100.0, report.latency_ms.p99 * scale),
        report.latency_ms.p99 > report.budget_ms,
    )


def _streams(result: ResultJson) -> list[tuple[str, Integrity]]:
    rows = []
    for tier in Tier:
        report: TierReport = getattr(result.tiers, tier.key)
        rows += [(f"{tier.key} results", report.integrity), (f"{tier.key} heartbeat", report.heartbeat)]
    return [*rows, ("motion constraint", result.supervisor.constraint.integrity)]


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms" if value < 1000 else f"{value / 1e3:.2f} s"


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}".replace(",", "\u202f")


def _plain(value: float | None) -> str:
    """Whole numbers without decimals, others with up to four significant digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f}\N{NO-BREAK SPACE}%"


def _clock(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _state_words(name: str) -> str:
    return words.STATE_WORDS[DegradationState[name]]


def _term_words(name: str) -> str:
    return name.lower().replace("_", " ")
