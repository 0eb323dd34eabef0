"""What is worth a message: changes of the states in which the constraint says ``remote_notification``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from uuid import NAMESPACE_URL, UUID, uuid5

from triptych.contract.driving import MotionConstraint
from triptych.contract.supervision import MAX_STATE_REASON, StateRecord
from triptych.contract.terms import DegradationState
from triptych.remote.message import Notification, Position

SAME_SINCE_NS = 1_000_000_000
"""A state of the same name that began within this of the last reported one is that one: ``since`` is computed anew for
each message and follows steps of the clock. A step beyond it reports the state once more."""
STATE_WAIT_S = 0.5
"""The constraint alone is reported if the state that explains it has not come within this."""
UPDATE_PERIOD_S = 2.0
"""A flapping fault causes at most one update in this time."""
_NAMESPACE = uuid5(NAMESPACE_URL, "triptych:remote")


@dataclass(frozen=True, slots=True)
class Event:
    """The change of state that was reported last; kept on disk, so that a restart does not report it anew.

    Attributes:
        event_id: UUID as text.
        state: name of the state.
        since_ns: on the clock of stamps; 0 when only the constraint told of it.
        reason, faults: as reported last.
        told: whether the constraint asked to tell of it: a message about its end is due.
    """

    event_id: str
    state: str
    since_ns: int
    reason: str
    faults: tuple[str, ...]
    told: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A message to be, without its number."""

    event: Event
    kind: str
    position: Position | None
    since_ns: int
    created_ns: int

    @property
    def urgent(self) -> bool:
        """Whether it is the first word of a state of which the centre has to be told."""
        return self.kind == "entered"

    def notification(self, vehicle_id: str, sequence: int) -> Notification:
        """The message with its number."""
        return Notification.model_validate(
            {
                "vehicle_id": vehicle_id,
                "event_id": UUID(self.event.event_id),
                "sequence": sequence,
                "kind": self.kind,
                "state": self.event.state,
                "reason": self.event.reason,
                "faults": self.event.faults,
                "position": self.position,
                "since": utc(self.since_ns),
                "created": utc(self.created_ns),
            }
        )


def utc(stamp_ns: int) -> datetime:
    """Nanoseconds since 1970 as a time, to the microsecond."""
    return datetime.fromtimestamp(stamp_ns // 1000 / 1e6, timezone.utc)


class Reporter:
    """Looks at what the supervisor says and finds what has not been reported.

    Args:
        vehicle_id: part of every event id.
        last: what was reported last, before a restart.
    """

    def __init__(self, vehicle_id: str, last: Event | None = None) -> None:
        self._vehicle_id, self._last = vehicle_id, last
        self._reported_s = float("-inf")
        self._unexplained_s: float | None = None

    def look(
        self,
        constraint: MotionConstraint,
        record: StateRecord | None,
        now_s: float,
        now_stamp_ns: int,
        position: Position | None = None,
    ) -> Report | None:
        """What is to be reported now, if anything.

        Args:
            constraint: the one in force: the supervisor's, or the safe default when it is silent.
            record: the state heard last.
            now_s: monotonic seconds.
            now_stamp_ns: clock of stamps.
            position: last known.
        """
        last = self._last
        if not constraint.remote_notification and (last is None or not last.told):
            self._unexplained_s = None
            return None
        if record is not None and record.state is not constraint.state:
            record = None
        if record is None and not self._waited(now_s):
            return None
        if record is not None:
            self._unexplained_s = None
        event = self._event(constraint, record, now_stamp_ns)
        if event == last:
            return None
        fresh = last is None or event.event_id != last.event_id
        if not fresh and now_s - self._reported_s < UPDATE_PERIOD_S:
            return None
        self._last, self._reported_s = event, now_s
        kind = "released" if not event.told else "entered" if fresh else "updated"
        return Report(event, kind, position, event.since_ns or now_stamp_ns, now_stamp_ns)

    def _waited(self, now_s: float) -> bool:
        if self._unexplained_s is None:
            self._unexplained_s = now_s
        return now_s - self._unexplained_s >= STATE_WAIT_S

    def _event(self, constraint: MotionConstraint, record: StateRecord | None, now_stamp_ns: int) -> Event:
        last, told = self._last, constraint.remote_notification
        state = DegradationState(constraint.state).name
        since_ns = record.since_ns if record is not None else 0
        faults = record.active_faults if record is not None else ()
        reason = (record.reason if record is not None else constraint.reason)[:MAX_STATE_REASON]
        same = last is not None and last.state == state and last.told == told
        if last is not None and same and record is None:  # nothing new but the silence of the state's topic
            since_ns, faults = last.since_ns, last.faults
        if (
            last is not None
            and same
            and (0 in (since_ns, last.since_ns) or abs(since_ns - last.since_ns) < SAME_SINCE_NS)
        ):
            return Event(last.event_id, state, last.since_ns or since_ns, reason, faults, told)
        seed = f"{self._vehicle_id}/{state}/{told}/{since_ns or now_stamp_ns}"
        return Event(str(uuid5(_NAMESPACE, seed)), state, since_ns, reason, faults, told)
