"""A run as the metrics see it: what the vehicle would have obeyed, how fast it was, and what there was to stop for."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from triptych.contract import ConstraintGuard, DegradationState, MotionConstraint, crc_ok
from triptych.replay.record import RunRecord, StateRecord
from triptych.report.summary import NS, Limits, injections_of, span_ns

S = DegradationState
OPEN_LOOP = frozenset({"lockstep", "replay"})
"""Modes in which the recorded vehicle obeys nobody."""


class Demand(str, Enum):
    """What an occasion asks for."""

    STOP = "stop"
    TAKEOVER = "takeover"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Occasion:
    """Something that happens in a run and must come to something.

    Attributes:
        name: for people.
        from_s: seconds since the start of the run, as in ``result.json``.
        to_s: when it is over and driving should go on; infinite: never within this run, a stop is held to its end.
        demand: a stop, a takeover request, or nothing: then stops and requests during it are false ones.
    """

    name: str
    from_s: float
    to_s: float = math.inf
    demand: Demand = Demand.STOP


class Motion(Enum):
    """What the command in force makes of the vehicle."""

    STOP = "stop"
    DRIVE = "drive"
    MANUAL = "manual"


_DEMAND_OF = {
    S.L1_MINIMAL_RISK_MANOEUVRE: Demand.STOP,
    S.MRC: Demand.STOP,
    S.L2_TAKEOVER_REQUEST: Demand.TAKEOVER,
}


def injected(record: RunRecord) -> list[Occasion]:
    """The faults that the record says were caused on purpose; who is killed stays an occasion to the end of the run."""
    start_ns, _ = span_ns(record)
    return [
        Occasion(
            f"{item.fault} {item.target}",
            round((item.from_ns - start_ns) / NS, 6),
            round((item.to_ns - start_ns) / NS, 6),
            Demand.NOTHING if item.expected is None else _DEMAND_OF.get(item.expected, Demand.NOTHING),
        )
        for item in injections_of(record, Limits())
    ]


class Run:
    """One run, times in seconds since its start. What came after its end (see ``summarise``) is left out.

    Args:
        record: the run.
        occasions: beside those that the record itself knows.

    Attributes:
        motions: (time, what the vehicle obeys from then on), at each change. As every consumer of the constraint must
            (:class:`triptych.contract.ConstraintGuard`), it stops before the first valid command, and on a silence.
        commands: (time, constraint) of every command that a consumer would accept.
        speeds: (time, speed in m/s) as received.
        states: as published.
    """

    def __init__(self, record: RunRecord, occasions: tuple[Occasion, ...] = ()) -> None:
        self.record = record
        self.start_ns, self.end_ns = span_ns(record)
        self.end_s = self.since_s(self.end_ns)
        self.occasions = (*occasions, *injected(record))
        self.open_loop = record.meta.get("mode") in OPEN_LOOP
        self.refused = 0
        self.commands: list[tuple[float, MotionConstraint]] = []
        guard = ConstraintGuard()
        for entry in record.constraints:
            if entry.t_ns > self.end_ns:
                continue
            if guard.receive(entry.constraint, entry.t_ns, crc_ok=crc_ok(entry.constraint)):
                self.commands.append((self.since_s(entry.t_ns), entry.constraint))
        self.refused = guard.rejected
        self.motions = self._motions(guard.timeout_s)
        self.speeds = [(self.since_s(e.t_ns), e.odometry.speed_mps) for e in record.odometry if e.t_ns <= self.end_ns]
        self.states: list[StateRecord] = [s for s in record.states if s.t_ns <= self.end_ns]

    def since_s(self, t_ns: float) -> float:
        """Seconds since the start of the run."""
        return (t_ns - self.start_ns) / NS

    def _motions(self, timeout_s: float) -> list[tuple[float, Motion]]:
        found = [(-math.inf, Motion.STOP)]
        times = [t for t, _ in self.commands]
        for (t_s, command), next_s in zip(self.commands, [*times[1:], self.end_s]):
            found.append((t_s, motion_of(command)))
            if next_s - t_s > timeout_s:
                found.append((t_s + timeout_s, Motion.STOP))
        return [found[0], *(b for a, b in pairwise(found) if b[1] is not a[1])]

    def motion_at(self, t_s: float) -> Motion:
        """What the vehicle obeys at a time; a command counts from its very moment on."""
        return self.motions[bisect_right(self.motions, t_s, key=lambda m: m[0]) - 1][1]

    def first(self, motions: frozenset[Motion], from_s: float, to_s: float = math.inf) -> float:
        """When the vehicle first obeys one of ``motions`` within a span; infinite if it never does."""
        if self.motion_at(from_s) in motions:
            return from_s
        return min((t for t, m in self.motions if m in motions and from_s <= t <= to_s), default=math.inf)

    def spent_s(self, motion: Motion, from_s: float, to_s: float) -> float:
        """How long the vehicle obeys ``motion`` within a span; its end is at most that of the run."""
        ends = [*(t for t, _ in self.motions[1:]), math.inf]
        last_s = min(to_s, self.end_s)
        return sum(
            max(0.0, min(end, last_s) - max(t, from_s)) for (t, m), end in zip(self.motions, ends) if m is motion
        )

    def starts_of(self, motion: Motion) -> list[float]:
        """When the vehicle began to obey ``motion``, what held before the first command left out."""
        return [t for t, m in self.motions[1:] if m is motion]

    def takeover_requests(self) -> list[float]:
        """When the driver was first asked, for each time."""
        flags = [False, *(s.takeover_requested for s in self.states)]
        times = [self.since_s(s.t_ns) for s in self.states]
        return [t for t, before, now in zip(times, flags, flags[1:]) if now and not before]

    def demanded(self, demand: Demand) -> list[Occasion]:
        """The occasions that demand it."""
        return [o for o in self.occasions if o.demand is demand]

    def excused(self, t_s: float) -> bool:
        """Whether an occasion that demands something lasts at a time."""
        return any(o.demand is not Demand.NOTHING and o.from_s <= t_s <= o.to_s for o in self.occasions)


def motion_of(command: MotionConstraint) -> Motion:
    """A limit of 0 is a stop; what a driver does is his."""
    if command.state is S.MANUAL:
        return Motion.MANUAL
    return Motion.STOP if command.speed_limit_mps <= 0.0 else Motion.DRIVE
