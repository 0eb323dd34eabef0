"""The forge's report: data that survives the file, a page that shows every cell and loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from triptych.contract import InputError
from triptych.report.provenance import provenance
from triptych_forge.report import (
    Chart,
    Check,
    ForgeReport,
    Section,
    Series,
    Table,
    cell,
    read_report,
    render,
    write_report,
)


def example(held: bool = True) -> ForgeReport:
    table = Table(
        title="Sizes", columns=["model", "parameters", "KL"], rows=[["<teacher>", 1234567, 0.0], ["x", 9, None]]
    )
    charts = [
        Chart(kind="bars", title="Sensitivity", y_label="loss", series=[Series(name="a", x=["one", "two"], y=[1, 2])]),
        Chart(
            kind="line", title="Trade-off", x_label="ratio", y_label="accuracy", limit=0.5,
            series=[Series(name="a", x=[0, 0.5], y=[1, 0.7]), Series(name="b", x=[0, 0.5], y=[1, 0.6])],
        ),
        Chart(kind="scatter", title="Methods", log_y=True, series=[Series(name="gptq", x=[3.0], y=[0.1])]),
    ]  # fmt: skip
    checks = [Check(text="Smaller than its teacher.", held=True), Check(text="As good as its teacher.", held=held)]
    section = Section(
        key="distil", title="Distil", text="A & B", checks=checks, tables=[table], charts=charts, seconds=2
    )
    return ForgeReport(title="Forge demo", summary="small", sections=[section], provenance=provenance())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    report = example()
    data, page = write_report(report, tmp_path)
    assert read_report(data) == report and page.read_text().startswith("<!DOCTYPE html>")


def test_nothing_demanded_is_not_held() -> None:
    report = example()
    assert report.held and not example(held=False).held
    bare = report.model_copy(update={"sections": [Section(key="x", title="x")]})
    assert not bare.held


def test_the_page_shows_everything_and_loads_nothing() -> None:
    page = render(example(held=False))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for wanted in (
        "1 of 2 checks held",
        "As good as its teacher.",
        "&lt;teacher&gt;",
        "1 234 567",
        "A &amp; B",
    ):
        assert wanted in text
    assert page.count("<svg") == 3 and "--page" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    HTMLParser().feed(page)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (1234567, "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (1.5e-7, "1.50e-07"),
        (2.5e9, "2.50e+09"),
        (float("nan"), "nan"),
        ("x", "x"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text  # type: ignore[arg-type]


def test_columns_of_numbers_are_aligned_as_such() -> None:
    table = Table(columns=list("abcd"), rows=[["x", 1, None, True], ["y", None, None, False], ["z", 2.5, None, None]])
    assert [table.is_numeric(column) for column in range(4)] == [False, True, False, False]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"title": 1}'])
def test_a_file_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(InputError, match="no forge report"):
        read_report(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    data, _ = write_report(example(), tmp_path)
    content = json.loads(data.read_text())
    content["more"] = 1
    data.write_text(json.dumps(content))
    with pytest.raises(InputError):
        read_report(data)
