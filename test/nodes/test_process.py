"""The process manager: restarts with back-off, a bounded stop, no orphans. Real processes, no ROS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from triptych.contract import ConfigError
from triptych.nodes.process import NodeSpec, ProcessEvent, Stack

STUBBORN = """
import signal, time
for s in (signal.SIGINT, signal.SIGTERM):
    signal.signal(s, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(60)
"""
POLITE = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
CRASHING = "import sys\nraise SystemExit('engine.onnx: truncated; restore the file.')"
REFUSING = "import sys\nprint('params: engine: no such engine; run triptych engines list.')\nsys.exit(2)"
DONE = "print('all frames sent')"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    for name, code in {
        "stubborn": STUBBORN,
        "polite": POLITE,
        "crashing": CRASHING,
        "refusing": REFUSING,
        "done": DONE,
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def stack(folder: Path, *names: str, **options: object) -> Stack:
    specs = [NodeSpec(name, name, **options) for name in names]
    return Stack(specs, folder / "run", {**os.environ, "PYTHONPATH": str(folder)})


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "timed out"
        time.sleep(0.02)


def ready(s: Stack, *names: str) -> None:
    wait_for(lambda: all("ready" in s.log_path(n).read_text() for n in names))


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_stop_ends_polite_stubborn_and_stopped_nodes_in_two_seconds(modules: Path) -> None:
    s = stack(modules, "polite", "stubborn")
    s.start()
    ready(s, "polite", "stubborn")
    pids = s.pids()
    os.kill(pids["polite"], signal.SIGSTOP)
    begin_s = time.monotonic()
    assert s.stop() == ["stubborn"]
    assert time.monotonic() - begin_s < 2.5  # 2 s and what a busy machine adds
    assert all(gone(pid) for pid in pids.values())


def test_a_crashed_node_comes_back_after_a_back_off_and_says_why(modules: Path) -> None:
    with stack(modules, "crashing", "polite") as s:
        s.start()
        seen: list[ProcessEvent] = []
        wait_for(lambda: seen.extend(s.poll()) or s.restarts["crashing"] >= 2)
        texts = [e.text for e in seen if e.kind == "crashed"]
        assert texts[0] == "crashing ended with code 1: engine.onnx: truncated; restore the file.; restart in 0.25 s"
        assert texts[1].endswith("restart in 0.5 s")
        assert not s.over and "polite" in s.pids()


def test_a_killed_node_names_the_signal(modules: Path) -> None:
    with stack(modules, "polite") as s:
        s.start()
        ready(s, "polite")
        os.kill(s.pids()["polite"], signal.SIGKILL)
        seen: list[ProcessEvent] = []
        wait_for(lambda: seen.extend(s.poll()) or seen)
        assert "killed by SIGKILL" in seen[0].text


def test_the_run_is_over_when_its_source_has_finished(modules: Path) -> None:
    specs = [NodeSpec("polite", "polite"), NodeSpec("done", "done", ends_run=True)]
    with Stack(specs, modules / "run", {**os.environ, "PYTHONPATH": str(modules)}) as s:
        s.start()
        assert not s.over
        wait_for(lambda: s.poll() is not None and s.over)


def test_a_node_that_refuses_to_start_again_ends_nobody_elses_work(modules: Path) -> None:
    """It drove, was killed, and finds something wrong now, such as a full disk: it is tried again, the run goes on."""
    (modules / "changing.py").write_text(
        "import pathlib, sys, time\n"
        "mark = pathlib.Path(__file__).with_name('mark')\n"
        "if mark.exists():\n    print('queue_file: cannot be used.')\n    sys.exit(2)\n"
        "mark.touch()\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    with stack(modules, "changing", "polite") as s:
        s.start()
        ready(s, "changing", "polite")
        os.kill(s.pids()["changing"], signal.SIGKILL)
        seen: list[ProcessEvent] = []
        wait_for(lambda: seen.extend(s.poll()) or s.restarts["changing"] >= 2)
        assert [e.kind for e in seen[:4]] == ["crashed", "restarted", "crashed", "restarted"]
        assert "queue_file: cannot be used" in seen[2].text
        assert not s.over and s.refusal == "" and "polite" in s.pids()


def test_overrides_reach_the_node_as_a_parameter_file(modules: Path) -> None:
    (modules / "echo.py").write_text("import sys\nprint(open(sys.argv[-1]).read(), 'ready')")
    with stack(modules, "echo", parameters={"threads": 2, "cpu_affinity": [0, 1]}, respawn=False) as s:
        s.start()
        ready(s, "echo")
        assert (
            "/**/echo:\n  ros__parameters:\n    cpu_affinity:\n    - 0\n    - 1\n    threads: 2"
            in s.log_path("echo").read_text()
        )


def test_no_orphan_survives_a_killed_parent(modules: Path) -> None:
    script = textwrap.dedent(
        f"""
        import os, time
        from pathlib import Path
        from triptych.nodes.process import NodeSpec, Stack
        s = Stack([NodeSpec("polite", "polite")], Path({str(modules / "run")!r}), dict(os.environ))
        s.start()
        print(s.pids()["polite"], flush=True)
        time.sleep(60)
        """
    )
    path = os.pathsep.join([str(modules), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_for(lambda: gone(pid), 5.0)


WATCHFUL = "import time\nfrom triptych.nodes.process import end_with_starter\nend_with_starter()\n" + POLITE
STARTER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "TRIPTYCH_STARTER_PID": sys.argv[2]},
                         stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("named", [True, False], ids=["named as starter", "not named"])
def test_a_node_ends_with_the_starter_that_its_environment_names(named: bool) -> None:
    code = WATCHFUL if named else WATCHFUL.replace("end_with_starter()\n", "")
    path = os.pathsep.join(sys.path)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, code, "1"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    assert starter.stdout is not None
    pid, word = starter.stdout.readline().split()
    assert word == "ready"
    starter.kill()
    starter.wait()
    if named:
        wait_for(lambda: gone(int(pid)), 5.0)
    else:
        time.sleep(0.5)
        assert not gone(int(pid))
        os.kill(int(pid), signal.SIGKILL)


def test_a_node_whose_starter_is_dead_already_ends_at_once() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "TRIPTYCH_STARTER_PID": str(dead.pid)}
    node = subprocess.run([sys.executable, "-c", WATCHFUL], env=environment, timeout=30)
    assert node.returncode == -signal.SIGTERM


def test_a_users_mistake_ends_the_run_with_its_sentence_instead_of_restarts(modules: Path) -> None:
    with stack(modules, "refusing", "polite") as s:
        s.start()
        seen: list[ProcessEvent] = []
        wait_for(lambda: seen.extend(s.poll()) or s.over)
        assert [e.kind for e in seen] == ["refused"] and s.restarts["refusing"] == 0
        assert s.refusal == "params: engine: no such engine; run triptych engines list."


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same name"):
        stack(tmp_path, "a", "a")
