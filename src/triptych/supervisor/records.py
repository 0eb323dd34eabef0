"""What one tick of the supervisor returns."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract.driving import MotionConstraint
from triptych.contract.supervision import StateRecord, Verdict


@dataclass(frozen=True, slots=True)
class Transition:
    """One change worth a line in a log. ``kind`` is ``state``, ``fault``, ``request``, or ``suppressed``: it did not
    last long enough to be one."""

    stamp_ns: int
    kind: str
    name: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One status for ``/diagnostics``; ``level`` as there: 0 OK, 1 warning, 2 error, 3 stale."""

    level: int
    name: str
    message: str
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Commands:
    """What one tick wants published: ``None`` means not due now. Transitions are all of this tick's."""

    constraint: MotionConstraint | None = None
    state: StateRecord | None = None
    verdicts: tuple[Verdict, ...] | None = None
    diagnostics: tuple[Diagnostic, ...] | None = None
    transitions: tuple[Transition, ...] = ()


NOTHING = Commands()
"""Shared by all ticks without anything to say."""
