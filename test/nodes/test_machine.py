"""What the machine has left, read for real; and what is said where it cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from triptych.nodes import machine
from triptych.nodes.machine import MachineReader, disk_used, temperature_c


def test_a_reading_of_this_machine(tmp_path: Path) -> None:
    reading = MachineReader(tmp_path).read()
    assert reading.memory_used is not None and 0.0 < reading.memory_used < 1.0
    assert reading.stack_memory is not None and 0.0 <= reading.stack_memory < 1.0
    assert reading.disk_used is not None and 0.0 <= reading.disk_used <= 1.0
    assert reading.temperature_c is None or -50.0 < reading.temperature_c < 150.0


def test_a_folder_that_does_not_exist_yet_counts_as_the_one_above_it(tmp_path: Path) -> None:
    assert disk_used(tmp_path / "runs" / "later") == pytest.approx(disk_used(tmp_path), abs=0.01)
    assert disk_used(Path("relative/later")) is not None


def test_a_disk_that_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(psutil, "disk_usage", refuse)
    assert disk_used(tmp_path) is None


@pytest.mark.parametrize(
    ("sensors", "expected"),
    [
        ({}, None),
        ({"core": [40.0, 71.5], "gpu": [65.0]}, 71.5),
        ({"core": [float("nan")]}, None),
        ({"core": [float("nan"), 50.0], "disk": []}, 50.0),
    ],
)
def test_the_hottest_sensor_counts(
    sensors: dict[str, list[float]], expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: [SimpleNamespace(current=c) for c in values] for name, values in sensors.items()}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    assert temperature_c() == expected


def test_a_system_without_sensors_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert temperature_c() is None


def test_the_stack_is_the_nodes_of_the_same_parent(tmp_path: Path) -> None:
    """A real process that looks like a node is found among the children of a parent, its name from the remapping."""
    look, start = tmp_path / "look.py", tmp_path / "start.py"
    look.write_text(
        "from pathlib import Path\n"
        "from triptych.nodes.machine import MachineReader, stack_processes\n"
        "print(sorted(name for name, _ in stack_processes()), MachineReader(Path('.')).read().stack_memory > 0)\n"
    )
    start.write_text(
        "import subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "sleeper = subprocess.Popen([*sleep, 'triptych.nodes.tier_node', '__node:=detector'])\n"
        "try:\n"
        f"    print(subprocess.check_output([sys.executable, {str(look)!r}], text=True))\n"
        "finally:\n"
        "    sleeper.kill()\n"
    )
    source = str(Path(machine.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(start)], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": source}
    )
    assert done.stdout.strip() == "['detector'] True", done.stderr


def test_the_processes_are_looked_for_once_in_ten_readings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[int] = []

    def search() -> list[tuple[str, psutil.Process]]:
        calls.append(1)
        return [("me", psutil.Process())]

    monkeypatch.setattr(machine, "stack_processes", search)
    reader = MachineReader(tmp_path)
    shares = [reader.read().stack_memory for _ in range(11)]
    assert len(calls) == 2
    assert all(share is not None and share > 0.0 for share in shares)


def test_a_process_that_ended_holds_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    ended = psutil.Process(child.pid)
    child.wait()
    monkeypatch.setattr(machine, "stack_processes", lambda: [("gone", ended)])
    assert MachineReader(tmp_path).read().stack_memory == 0.0
