"""Inputs that a recording does not have, made up: a car at constant speed with an attentive driver.

Replaying a dashcam clip would otherwise end in "odometry never received". What was made up is listed in the run record
(``meta["synthesised"]``), in ``result.json`` and in the report, because a speed that ignores the motion constraint can
show a wish to stop, but never a stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from triptych.contract import DriverState, Odometry, protect
from triptych.replay.recording import Item

SPEED_MPS = 20.0
"""72 km/h: between the limits of L3 and NOMINAL, so that every restriction would be felt."""
ODOMETRY_PERIOD_NS = 50_000_000
DRIVER_PERIOD_NS = 100_000_000


def with_synthesised(items: Iterator[Item], missing: Collection[str]) -> Iterator[Item]:
    """``items`` with odometry at 20 Hz and driver state at 10 Hz mixed in where ``missing`` names the role.

    The made-up items run from the first item to the last, in order of time; at equal times they come first.
    """
    due: dict[str, int] = {}
    sequence = 0
    for item in items:
        for role in ("odometry", "driver"):
            if role in missing:
                due.setdefault(role, item.t_ns)
        while due and (role := min(due, key=lambda r: (due[r], r))) and due[role] <= item.t_ns:
            t_ns = due[role]
            if role == "odometry":
                yield Item(t_ns, Odometry(t_ns, SPEED_MPS))
                due[role] = t_ns + ODOMETRY_PERIOD_NS
            else:
                yield Item(t_ns, protect(DriverState(t_ns), sequence))
                sequence += 1
                due[role] = t_ns + DRIVER_PERIOD_NS
        yield item
