"""What ``triptych doctor`` tells: what this machine offers the stack, what was chosen and why, and what to do about it.

Example::

    report = collect()
    print(report.level, report.to_json())
"""

from __future__ import annotations

from datetime import datetime, timezone

from rich.console import Console

from triptych import __version__
from triptych.doctor import machine, middleware, software
from triptych.doctor.report import Check, DoctorReport, Level, Row, render, run_checks

__all__ = ["CHECKS", "DoctorReport", "Level", "Row", "collect", "render", "run"]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("Software", software.installation),
    ("Devices and engines", software.devices),
    ("Devices and engines", software.engines),
    ("Middleware", middleware.middleware),
    ("Middleware", middleware.shared_memory),
    ("Middleware", middleware.image_transport),
    ("Clock", machine.clock),
    ("Real time", machine.real_time),
    ("Machine", machine.processor),
    ("Machine", machine.memory_and_disk),
)
"""Section and check, in the order of the report. Another check is another row here."""


def collect(probe: bool = True) -> DoctorReport:
    """Look at everything; takes about five seconds, most of it for the image transport.

    Args:
        probe: whether to send images between two processes.
    """
    checks = [entry for entry in CHECKS if probe or entry[1] is not middleware.image_transport]
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return DoctorReport(__version__, created, run_checks(checks))


def run(json: bool = False, probe: bool = True) -> int:
    """Print the report as a table, or as JSON; the exit status is 1 if any row is FAIL."""
    report = collect(probe)
    if json:
        print(report.to_json())
    else:
        Console().print(render(report))
    return 1 if report.level is Level.FAIL else 0
