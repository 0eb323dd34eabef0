"""What the supervisor says besides the motion constraint; mirrors ``msg/Verdict`` and ``msg/DegradationState``."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract.driving import MotionConstraint
from triptych.contract.terms import DegradationState, VerdictLevel

MAX_REASON = 160
MAX_ACTIVE_FAULTS = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one row of the fault table says now.

    ``level`` is the monitor's view, ``active`` the view after debounce, hysteresis and latch. ``value`` is NaN
    when the metric is unknown; ``text`` is the sentence for a person while the fault is active, else empty.
    """

    fault_id: str
    source: str
    level: VerdictLevel
    active: bool
    value: float
    threshold: float
    text: str


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The state of the degradation machine; ``since_ns`` and ``stamp_ns`` on the clock of source stamps."""

    stamp_ns: int
    state: DegradationState
    previous: DegradationState
    since_ns: int
    reason: str
    active_faults: tuple[str, ...] = ()
    takeover_requested: bool = False
    takeover_remaining_s: float = 0.0
    sequence_counter: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Transition:
    """One change worth a line in a log. ``kind`` is ``state``, ``fault`` or ``request``."""

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
