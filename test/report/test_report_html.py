"""``report.html``: complete, self-contained, safe against what messages hold, quick and small."""

from __future__ import annotations

import base64
import functools
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from synthetic_run import START_NS, Plan, S, make
from test_report_summary import ORIGIN, killed

from triptych.contract import DegradationState, InputError, MotionConstraint, Odometry, Tier
from triptych.replay.record import (
    ConstraintRecord,
    Event,
    OdometryRecord,
    RunRecord,
    SampleFrame,
    StateRecord,
    VerdictLevel,
    VerdictRecord,
)
from triptych.report.docs import markdown
from triptych.report.html import MAX_FRAMES, render, sample_frames, write_report
from triptych.report.schema import ResultJson, json_schema, models
from triptych.report.summary import summarise

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Text, tags and attributes of a page; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> does not match"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@functools.cache
def default_html() -> str:
    record = make()
    return render(record, summarise(record, ORIGIN))


def page(record: RunRecord) -> Page:
    return Page(render(record, summarise(record, ORIGIN)))


def test_says_what_the_result_says() -> None:
    record = make(killed())
    result = summarise(record, ORIGIN)
    found = Page(render(record, result))
    assert "Timing contract held" in found.words and "1 fault was caused on purpose" in found.words
    for state in result.supervisor.states:
        assert state.reason in found.words
    for check in result.checks:
        assert check.id in found.words and " ".join(check.text.split()) in found.words
    assert "tier1_lost" in found.words and "120 ms" in found.words
    assert "triptych-detector 0.1.0" in found.words
    assert len([tag for tag, _ in found.tags if tag == "svg"]) == 3


def test_a_broken_contract_comes_with_its_reasons() -> None:
    found = page(make(Plan(tiers=(Tier.DETECTOR,))))
    assert "Timing contract not held" in found.words
    assert "The full tier never published a fresh result." in found.words
    assert found.words.count("never started") >= 4


@pytest.mark.parametrize(
    "record",
    [RunRecord(), make(Plan(tiers=())), make(Plan(images=0)), make(Plan(seconds=3.0))],
    ids=["empty", "no tiers", "no images", "short"],
)
def test_missing_data_is_said_and_not_an_error(record: RunRecord) -> None:
    assert "Triptych run report" in page(record).words


def test_loads_nothing_from_anywhere() -> None:
    """No script, no style sheet, no address: every image is inline, and the page forbids the browser to fetch."""
    html = default_html()
    found = Page(html)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in found.tags}
    for tag, attributes in found.tags:
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), f"{tag} {name}={value[:60]}"
    assert not re.search(r"url\((?!#)", html) and "@import" not in html and "http:" not in html and "https:" not in html
    policy = next(
        a["content"] for t, a in found.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'")


def test_text_from_messages_cannot_become_markup() -> None:
    record = make()
    evil = "<script>alert(1)</script>&\"' $x^2_$"
    record.add(StateRecord(START_NS + 9 * S, DegradationState.MRC, DegradationState.NOMINAL, evil))
    record.add(VerdictRecord(START_NS + 9 * S, evil, evil, VerdictLevel.FAULT, True, math.nan, math.inf, evil))
    record.add(Event(START_NS + 9 * S, "x", evil))
    record.meta["input"] = "<b>bold</b>"
    found = page(record)
    assert "script" not in {tag for tag, _ in found.tags} and "<b>bold</b>" in found.words
    assert found.words.count("alert(1)") >= 4


def test_numbers_that_are_not_finite_are_drawn_around() -> None:
    """A6: NaN speed and infinite limits leave gaps in the curves, not errors in the report."""
    record = make()
    for at in (3, 4, 5):
        t_ns = START_NS + at * S
        record.odometry.insert(0, OdometryRecord(t_ns, Odometry(t_ns, math.nan)))
        command = MotionConstraint(t_ns, math.inf, 2.0, False, False, False, DegradationState.NOMINAL, "")
        record.constraints.append(ConstraintRecord(t_ns, command))
    assert "Timeline" in page(record).words
    record.odometry = [OdometryRecord(START_NS, Odometry(START_NS, math.nan))]
    assert "Timeline" in page(record).words


def test_modelled_latencies_are_called_that() -> None:
    """Nobody may take a lockstep figure for a measurement."""
    assert "latencies are modelled" in page(make(Plan(images=0, meta={"mode": "lockstep"}))).words
    assert "latencies are modelled" not in default_html()


def test_both_colour_schemes_are_served() -> None:
    html = default_html()
    assert "prefers-color-scheme: dark" in html
    assert "#010101" not in html and "#020202" not in html, "stand-in colours were replaced by those of the page"
    assert html.count("currentColor") > 20


def test_sample_frames_show_what_was_known_then() -> None:
    """After its death the detector's last boxes are not shown as if they were true."""
    record = make(killed())
    frames = sample_frames(record)
    assert len(frames) == 6
    early = [frame for frame in frames if frame.at_s < 15]
    late = [frame for frame in frames if frame.at_s > 15.2]
    assert early and all("detector (fresh)" in f.caption and "NOMINAL" in f.caption for f in early)
    assert late and all("detector (default): nothing known" in f.caption for f in late)
    data = base64.b64decode(frames[0].url.partition(",")[2])
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None and image.shape[:2] == (frames[0].height, frames[0].width)


def test_many_and_broken_frames() -> None:
    record = make()
    record.sample_frames = [*record.sample_frames * 10, SampleFrame(START_NS, START_NS, 10, 10, b"not a picture")]
    record.sample_frames.sort(key=lambda f: f.t_ns)
    frames = sample_frames(record)
    assert MAX_FRAMES - 1 <= len(frames) <= MAX_FRAMES
    assert [f.at_s for f in frames] == sorted(f.at_s for f in frames)


def test_long_run_stays_quick_and_small() -> None:
    """Five minutes of three tiers: below 10 s of processor time (the machine may be shared) and 5 MB."""
    record = make(Plan(seconds=300.0, images=40))
    start = time.process_time()
    html = render(record, summarise(record, ORIGIN))
    assert time.process_time() - start < 10.0
    assert len(html) < 5_000_000


def test_flapping_fault_does_not_blow_the_page_up() -> None:
    record = make()
    for index in range(4000):
        t_ns = START_NS + 3 * S + index * 5_000_000
        record.add(VerdictRecord(t_ns, "flap", "detector", VerdictLevel.FAULT, index % 2 == 0, 1.0, 1.0, "flap"))
        record.add(StateRecord(t_ns, DegradationState(1 + index % 2), DegradationState.NOMINAL, "flap"))
    html = render(record, summarise(record, ORIGIN))
    assert "more in result.json" in html
    assert len(html) < 5_000_000


def test_both_files_are_written_whole(tmp_path: Path) -> None:
    files = write_report(make(), tmp_path / "run", ORIGIN)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["report.html", "result.json"]
    assert ResultJson.load(files.result_json) == files.result
    with pytest.raises(InputError, match="cannot be written"):
        write_report(make(), files.result_json / "below", ORIGIN)


def test_documentation_is_in_step() -> None:
    """docs/result.md and its schema are generated: run ``python -m triptych.report.docs``."""
    text = markdown()
    assert (ROOT / "docs" / "result.md").read_text() == text
    assert (ROOT / "docs" / "result-schema.json").read_text() == json_schema()
    for model in models():
        for name in model.model_fields:
            assert f"| `{name}` |" in text
    for check in summarise(make(killed()), ORIGIN).checks:
        condition = check.id.partition(".")[2].partition(".")[0]
        assert condition in text, f"{check.id} is explained"
