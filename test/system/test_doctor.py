"""The doctor: every finding has a level, a reason or a remedy, and a broken check does not hide the others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from triptych import doctor
from triptych.doctor import machine, middleware, software
from triptych.doctor.report import Level, Row, render, run_checks


@pytest.fixture(scope="module")
def report() -> doctor.DoctorReport:
    return doctor.collect(probe=True)


def test_report_covers_everything_promised(report: doctor.DoctorReport) -> None:
    names = {(row.section, row.name) for row in report.rows}
    assert len(names) == len(report.rows), "names are unique within a section"
    promised = {
        ("Devices and engines", "cpu"),
        ("Devices and engines", "cuda"),
        ("Devices and engines", "tensorrt"),
        ("Devices and engines", "openvino"),
        ("Middleware", "RMW"),
        ("Middleware", "DDS profile"),
        ("Middleware", "shared memory"),
        ("Middleware", "image transport"),
        ("Clock", "clock source"),
        ("Clock", "synchronisation"),
        ("Real time", "kernel"),
        ("Real time", "priority"),
        ("Machine", "processor"),
        ("Machine", "cores"),
        ("Machine", "memory"),
        ("Machine", "disk"),
    }
    assert promised <= names
    for row in report.rows:
        assert row.value
        assert (row.remedy != "") is (row.level is not Level.OK), row


def test_no_check_broke(report: doctor.DoctorReport) -> None:
    assert [row for row in report.rows if row.value == "not determined"] == []


def test_full_size_images_arrive_with_the_shipped_settings(report: doctor.DoctorReport) -> None:
    """A fifth must arrive however busy the test machine is; Fast DDS' defaults lose nine tenths. The figure itself is
    the bench's matter."""
    row = next(row for row in report.rows if row.name == "image transport")
    received, sent = re.match(r"(\d+) of (\d+) images of 1920x1080", row.value).groups()  # type: ignore[union-attr]
    assert int(received) > int(sent) / 5, row


def test_json_is_complete_and_table_shows_every_row(report: doctor.DoctorReport) -> None:
    document = json.loads(report.to_json())
    assert document["schema_version"] == 1 and document["level"] == report.level.value
    assert [row["name"] for row in document["rows"]] == [row.name for row in report.rows]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(report))
    text = console.export_text()
    for row in report.rows:
        assert row.name in text


def test_level_is_the_worst_and_a_failure_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*levels: Level) -> Iterator[Row]:
        yield from (Row("S", level.value, level, "found [x]", "", "do") for level in levels)

    for levels, worst, status in (
        ((Level.OK,), Level.OK, 0),
        ((Level.WARN, Level.OK), Level.WARN, 0),
        ((Level.OK, Level.FAIL, Level.WARN), Level.FAIL, 1),
    ):
        monkeypatch.setattr(doctor, "CHECKS", (("S", lambda levels=levels: rows(*levels)),))
        assert doctor.collect().level is worst
        assert doctor.run(json=True) == status
        assert json.loads(capsys.readouterr().out)["level"] == worst.value
        assert doctor.run() == status
        assert "found [x]" in capsys.readouterr().out


def test_broken_check_is_reported_and_the_rest_still_runs() -> None:
    def broken() -> Iterator[Row]:
        yield Row("S", "first", Level.OK, "seen")
        raise RuntimeError("no such thing")

    def fine() -> Iterator[Row]:
        yield Row("S", "last", Level.OK, "seen")

    rows = run_checks((("S", broken), ("S", fine)))
    assert [(row.name, row.level) for row in rows] == [
        ("first", Level.OK),
        ("broken", Level.WARN),
        ("last", Level.OK),
    ]
    assert rows[1].reason == "RuntimeError: no such thing"


X86 = "processor: 0\nmodel name: A chip\nflags: fpu {}\n\nprocessor: 1\nmodel name: A chip\n"


@pytest.mark.parametrize(
    ("text", "model", "has"),
    [
        (X86.format("avx2 avx512_vnni"), "A chip", {"avx2", "avx512_vnni"}),
        ("processor: 0\nFeatures: asimd asimddp\nHardware: Board\n", "Board", {"asimd", "asimddp"}),
    ],
)
def test_processor_is_read_on_x86_and_arm(tmp_path: Path, text: str, model: str, has: set[str]) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    found, flags = machine.cpu_information(path)
    assert found == model and has <= flags


def test_int8_is_only_promised_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, phrase in (({"avx2"}, "save space, not time"), ({"avx2", "avx_vnni"}, "INT8 instructions: avx_vnni")):
        monkeypatch.setattr(machine, "cpu_information", lambda flags=flags: ("chip", frozenset(flags)))
        assert phrase in next(row for row in machine.processor() if row.name == "processor").reason


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("1 0", None)]
)
def test_control_group_limit(tmp_path: Path, content: str, cores: float | None) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(content)
    assert machine.cpu_quota(path) == cores


@pytest.mark.parametrize(
    ("free_gib", "level"), [(2.01, Level.OK), (1.99, Level.WARN), (1.01, Level.WARN), (0.19, Level.FAIL)]
)
def test_little_memory_and_disk(monkeypatch: pytest.MonkeyPatch, free_gib: float, level: Level) -> None:
    free = int(free_gib * machine.GIB)
    monkeypatch.setattr(
        machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=8 * machine.GIB)
    )
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free, total=8 * machine.GIB))
    assert [row.level for row in machine.memory_and_disk()] == [level, level]


def test_real_time_attempt_leaves_this_thread_alone() -> None:
    import os

    before = os.sched_getscheduler(0)
    obtained, why = machine.priority_obtainable()
    assert obtained is (why == "")
    assert os.sched_getscheduler(0) == before


def test_refused_priority_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "priority_obtainable", lambda: (False, "Operation not permitted"))
    row = next(row for row in machine.real_time() if row.name == "priority")
    assert row.level is Level.WARN and "limits.conf" in row.remedy and "Operation not permitted" in row.value


def profile_with(tmp_path: Path, segment: str) -> dict[str, str]:
    path = tmp_path / "mine.xml"
    path.write_text(segment)
    return {"FASTRTPS_DEFAULT_PROFILES_FILE": str(path)}


@pytest.mark.parametrize(
    ("content", "level", "phrase"),
    [
        ("<dds><segment_size>67108864</segment_size></dds>", Level.OK, "set by your environment"),
        ("<dds><segment_size>1048576</segment_size></dds>", Level.WARN, "are lost"),
        ("<dds/>", Level.WARN, "are lost"),
        ("<dds>", Level.FAIL, "no element found"),
        ("<dds><segment_size>big</segment_size></dds>", Level.FAIL, "invalid literal"),
    ],
)
def test_users_dds_profile_is_judged(tmp_path: Path, content: str, level: Level, phrase: str) -> None:
    rows = list(middleware.middleware(profile_with(tmp_path, content)))
    row = next(row for row in rows if row.name == "DDS profile")
    assert row.level is level and phrase in row.reason


def test_missing_dds_profile_fails() -> None:
    rows = list(middleware.middleware({"FASTDDS_DEFAULT_PROFILES_FILE": "/nowhere/x.xml"}))
    row = next(row for row in rows if row.name == "DDS profile")
    assert row.level is Level.FAIL and "FASTDDS_DEFAULT_PROFILES_FILE" in row.remedy


def test_other_rmw_is_named_untested() -> None:
    rows = {row.name: row for row in middleware.middleware({"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})}
    assert rows["RMW"].level is Level.WARN and "DDS profile" not in rows


def test_failed_probe_is_a_failure_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.CalledProcessError(1, command, stderr="Traceback\nImportError: librcl.so\n")

    monkeypatch.setattr(middleware.subprocess, "run", fail)
    (row,) = middleware.image_transport()
    assert row.level is Level.FAIL and row.reason == "ImportError: librcl.so"


@pytest.mark.parametrize(
    ("received", "level"), [(30, Level.OK), (29, Level.WARN), (6, Level.WARN), (5, Level.FAIL), (0, Level.FAIL)]
)
def test_lost_images_are_told(monkeypatch: pytest.MonkeyPatch, received: int, level: Level) -> None:
    result = {"sent": 30, "received": received, "median_ms": 5.0, "max_ms": 9.0}
    answer = SimpleNamespace(stdout="noise\n" + json.dumps(result) + "\n")
    monkeypatch.setattr(middleware.subprocess, "run", lambda *_, **__: answer)
    (row,) = middleware.image_transport()
    assert row.level is level and f"{received} of 30" in row.value


@pytest.mark.parametrize(
    ("version", "problem"), [("2.7.0", ""), ("2.14.4", ""), ("1.10.14", "pydantic 1.10.14 is older than 2.7")]
)
def test_old_library_is_named(monkeypatch: pytest.MonkeyPatch, version: str, problem: str) -> None:
    monkeypatch.setattr(software.metadata, "version", lambda name: version)
    assert software.library_problem("pydantic") == problem


def test_library_without_metadata_counts_when_its_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise software.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.metadata, "version", unknown)
    assert software.library_problem("opencv-python-headless") == ""
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None)
    assert software.library_problem("opencv-python-headless") == "opencv-python-headless is missing"


def test_broken_messages_are_told_in_one_line() -> None:
    assert software.import_problem("import sys") == ""
    assert software.import_problem("import no_such_module") == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "ended with status" in software.import_problem("import os; os._exit(3)")


def test_probe_receiver_ends_with_its_sender() -> None:
    """A killed sender leaves no orphan behind."""
    code = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "triptych.nodes.transport_probe", "--receive", "orphan", "--parent", str(os.getpid())]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True)
time.sleep(1.5)
os._exit(0)
"""
    import time

    import psutil

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pid = int(out.stdout.split()[-1])
    limit = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
