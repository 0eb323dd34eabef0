"""A node that is told to end more than once, as Ctrl-C under a launcher does, still ends cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triptych import dds
from triptych.nodes import runtime


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_any_time_of_the_end(number: signal.Signals) -> None:
    own = {"ROS_DOMAIN_ID": str(dds.claim_domain()), "PYTHONPATH": str(Path(runtime.__file__).parents[2])}
    node = subprocess.Popen(
        [sys.executable, "-m", "triptych.nodes.supervisor_node"],
        env={**os.environ, **dds.environment(), **own},
        stderr=subprocess.PIPE,
        text=True,
    )
    handled = f"/proc/{node.pid}/status"
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:  # until Python's own handler is there, and then until it runs
        caught = next((int(x.split()[1], 16) for x in Path(handled).read_text().splitlines() if "SigCgt" in x), 0)
        if caught >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.05)
    time.sleep(2.0)
    while node.poll() is None and time.monotonic() < end_s:
        node.send_signal(number)
        time.sleep(0.002)
    output = node.communicate(timeout=10)[1]
    assert node.returncode == 0, output
    assert "Traceback" not in output
