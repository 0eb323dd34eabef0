"""What the supervisor tells everybody besides the constraint: ``msg/Verdict``, ``msg/DegradationState``."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract.terms import DegradationState, VerdictLevel

MAX_STATE_REASON = 160
MAX_ACTIVE_FAULTS = 16
MAX_VERDICTS = 128


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
