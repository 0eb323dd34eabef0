"""Workers of a campaign end with the process that started it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import multiprocessing, time
from triptych.injection import run

def wait():
    run.load_engines = lambda engines: {}
    run._begin(None, {})
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(60)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=wait).start()
    time.sleep(60)
"""


def test_a_killed_campaign_leaves_nobody_behind(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 20
    while time.monotonic() < end and Path("/proc", str(worker), "stat").exists():
        if Path("/proc", str(worker), "stat").read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        if Path("/proc", str(worker)).exists():
            os.kill(worker, signal.SIGKILL)
            raise AssertionError("the worker lives on")
