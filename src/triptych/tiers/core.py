"""The deadline logic of a tier as pure state: no thread, no clock reading, no I/O.

Every method takes the time as an argument, so the threaded runtime and lockstep replay run the same code.

How results are promised. A *period* has an anchor: the source stamp of the frame taken for it or, when no frame comes,
the previous anchor plus ``Budget.period_s``. Anchors strictly increase and each gets exactly one result, at the
latest ``Budget.budget_s`` after it: ``FRESH`` when inference ends in time, otherwise ``LAST_FRAME`` or ``DEFAULT``
at the deadline. A frame whose deadline has already passed when the engine gets to it opens no period; its content still
becomes what later ``LAST_FRAME`` results repeat. From one anchor to the next result at most
``period_s * (1 + JITTER_SHARE) + budget_s`` pass.

Source stamps are mapped to the monotonic clock at the moment of reception; a later step of the stamp
clock does not move a deadline.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from triptych.contract import (
    CAUTIOUS_ADVICE,
    CAUTIOUS_DETECTIONS,
    FUTURE_TOLERANCE_S,
    Budget,
    Frame,
    LatencySplit,
    Origin,
    Payload,
    Tier,
    TierResult,
    protect,
)
from triptych.contract.result import MAX_REASON
from triptych.engines.protocol import EngineOutput
from triptych.tiers.checks import unusable

JITTER_SHARE = 0.2
"""Share of the period that the next frame may come late before silence is assumed; our choice, above the jitter of
USB and GMSL cameras (a few ms) and small enough that a tier-1 result is never 90 ms away from the one before."""
PUBLISH_MARGIN_S = 0.001
"""Time kept back from each deadline for converting and publishing the result."""
REPEAT_LIMIT = 5
"""Same stamp or same picture this often in a row: the input is frozen. 5 frames are 250 ms at 20 Hz."""
FAULT_HOLD_S = 0.5
"""An input fault stays in the self-report this long after it was last seen, so that no 10 Hz heartbeat misses it."""
CLOCK_STEP_S = 0.05
"""A change of (stamp clock - monotonic clock) between two calls above this is a step, not drift."""
HANG_BUDGETS = 10.0
"""Inference running longer than this many budgets is reported as hung."""
DETECTOR_SELF_TEST_S = 1.0
"""Period of the detector's self-tests while driving; our choice: a twentieth of its inferences."""
TRUST_AGAIN = 5
"""Right answers in a row, in self-tests, after which an engine that gave a wrong one is relied upon again."""

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TierCounters:
    """What a heartbeat counts. ``refused`` are frames with an unusable stamp."""

    received: int = 0
    dropped: int = 0
    refused: int = 0
    fresh: int = 0
    last_frame: int = 0
    default: int = 0
    late: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class _Content:
    """Something the tier once knew: what LAST_FRAME repeats."""

    frame: Frame
    source_ns: int
    output: EngineOutput


@dataclass(slots=True)
class _Job:
    frame: Frame
    source_ns: int
    started_ns: int
    open: bool


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


class TierCore:
    """Mailbox, pacing, deadlines and fallbacks of one tier.

    Times are int nanoseconds: ``now_monotonic_ns`` on the monotonic clock, ``now_stamp_ns`` on that of source stamps.
    Not thread-safe; the caller serialises.

    Args:
        tier: which tier.
        budget: its time limits.
        engine_id, engine_version, device: copied into every result, with ``+<adapter>`` behind the version of an
            answer that an adapter gave.
        frames_wanted: how many recent frames a job holds, oldest first.
        min_interval_s: least distance of source stamps of two jobs. Default: 0.5 periods for the detector (it
            follows a camera up to twice its nominal rate), 0.9 periods for the others.
        history_spacing_s: least distance of earlier frames in a job of several; default period / frames_wanted.
        publish_margin_s: kept back from each deadline for publishing.
        repeat_limit: equal stamps or pictures in a row that count as a frozen input.
        self_test_period_s: time between two self-tests while driving; 0: none.
    """

    def __init__(
        self,
        tier: Tier,
        budget: Budget,
        *,
        engine_id: str = "",
        engine_version: str = "",
        device: str = "",
        frames_wanted: int = 1,
        min_interval_s: float | None = None,
        history_spacing_s: float | None = None,
        publish_margin_s: float = PUBLISH_MARGIN_S,
        repeat_limit: int = REPEAT_LIMIT,
        self_test_period_s: float = 0.0,
    ) -> None:
        self.tier, self.budget = tier, budget
        self.engine_id, self.engine_version, self.device = engine_id, engine_version, device
        if min_interval_s is None:
            min_interval_s = budget.period_s * (0.5 if tier is Tier.DETECTOR else 0.9)
        if history_spacing_s is None:
            history_spacing_s = budget.period_s / max(1, frames_wanted)
        self._min_interval_ns = _ns(min_interval_s)
        self._spacing_ns = _ns(history_spacing_s)
        self._period_ns = _ns(budget.period_s)
        self._limit_ns = max(1, _ns(budget.budget_s - publish_margin_s))
        self._silence_ns = self._period_ns + self._limit_ns + _ns(budget.period_s * JITTER_SHARE)
        self._keep_ns = _ns(budget.keep_s)
        self._repeat_limit = repeat_limit
        self._frames_wanted = max(1, frames_wanted)
        self._default: Payload = CAUTIOUS_DETECTIONS if tier is Tier.DETECTOR else CAUTIOUS_ADVICE
        self._history: deque[tuple[int, Frame]] = deque(maxlen=self._frames_wanted - 1)
        self._mailbox: tuple[int, Frame] | None = None
        self._job: _Job | None = None
        self._previous: _Content | None = None
        self._anchor_ns: int | None = None  # of the last answered period
        self._opened_ns = -(1 << 62)  # source time of the last job
        self._last_stamp_ns: int | None = None
        self._rewound_stamp_ns: int | None = None
        self._fingerprint: int | None = None
        self._same_stamp = self._same_picture = 0
        self._faults: dict[str, int] = {}  # input fault -> monotonic time it was last seen
        self._picture_codes: tuple[str, ...] = ()  # what the input monitors said of the last picture
        self._picture_faults: dict[str, int] = {}  # such a code -> monotonic time it was last said
        self._engine_fault = ""
        self._test_period_ns = _ns(self_test_period_s)
        self._tested_ns = 0  # when the last self-test began
        self._testing = False
        self._test_fault = ""
        self._right = 0  # answers to self-tests that were right, since the last wrong one
        self._late_input = False
        self._offset_ns: int | None = None
        self._started_stamp_ns = 0
        self._sequence = 0
        self._count = dict.fromkeys(TierCounters.__dataclass_fields__, 0)

    # -- intake ------------------------------------------------------------------------------------------------------

    def start(self, now_monotonic_ns: int, now_stamp_ns: int) -> None:
        """Begin promising results: the first one is due a period, its jitter and a budget from now."""
        if self._anchor_ns is None:
            self._anchor_ns = self._tested_ns = now_monotonic_ns
            self._started_stamp_ns = now_stamp_ns
            self._offset_ns = now_stamp_ns - now_monotonic_ns

    def wanted_ns(self) -> int | None:
        """Monotonic time from which a frame would be used: for a job that is due or for the history of a later one.

        A tier that answers every 2 s need not pay for receiving 20 frames per second. None while the engine is busy
        and has history enough: not before it is idle.
        """
        times = []
        if self._frames_wanted > 1:
            held = self._mailbox or (self._history[-1] if self._history else None)
            times.append(held[0] + self._spacing_ns if held else self._opened_ns)
        if self._job is None:
            times.append(self._opened_ns + self._min_interval_ns)
        return min(times, default=None)

    def wants_frame(self, now_monotonic_ns: int) -> bool:
        """Whether a frame would be used now."""
        wanted_ns = self.wanted_ns()
        return wanted_ns is not None and now_monotonic_ns >= wanted_ns

    def offer(self, frame: Frame, now_monotonic_ns: int, now_stamp_ns: int | None = None, *, skipped: int = 0) -> str:
        """Put the newest frame into the mailbox; what was in it counts as dropped.

        Args:
            now_stamp_ns: stamp clock now; default ``frame.received_ns``.
            skipped: frames the transport superseded before this one; counted as received and dropped.

        Returns:
            Empty, or why the frame was refused: ``future_stamp``, ``repeated_frame``, ``backward_stamp``.
        """
        received_ns = now_stamp_ns if now_stamp_ns is not None else frame.received_ns
        self.start(now_monotonic_ns, received_ns)
        self._count["received"] += 1 + skipped
        self._count["dropped"] += skipped
        refusal = self._refusal(frame, now_monotonic_ns, received_ns)
        if refusal:
            self._count["refused"] += 1
            return refusal
        self._watch_picture(frame, now_monotonic_ns)
        # Both readings of the moment of reception belong together; the frame may have waited for us since.
        source_ns = (frame.received_monotonic_ns or now_monotonic_ns) - (received_ns - frame.stamp_ns)
        self._late_input = source_ns + self._limit_ns <= now_monotonic_ns
        if self._mailbox is not None:
            self._count["dropped"] += 1
            self._remember(*self._mailbox)
        self._mailbox = (source_ns, frame)
        return ""

    def _refusal(self, frame: Frame, now_ns: int, now_stamp_ns: int) -> str:
        stamp = frame.stamp_ns
        if stamp - now_stamp_ns > FUTURE_TOLERANCE_S * _NS:
            self._faults["future_stamp"] = now_ns
            return "future_stamp"
        last, rewound = self._last_stamp_ns, self._rewound_stamp_ns
        if last is not None and stamp == last:
            self._same_stamp += 1
            if self._same_stamp + 1 >= self._repeat_limit:
                self._faults["repeated_frame"] = now_ns
            return "repeated_frame"
        if last is not None and stamp < last and (rewound is None or stamp <= rewound):
            # One stamp from the past is a straggler; two in order mean that the source's clock was set back.
            self._rewound_stamp_ns = stamp
            self._faults["backward_stamp"] = now_ns
            return "backward_stamp"
        self._last_stamp_ns, self._rewound_stamp_ns, self._same_stamp = stamp, None, 0
        return ""

    def _watch_picture(self, frame: Frame, now_ns: int) -> None:
        fingerprint = frame.fingerprint()
        self._same_picture = self._same_picture + 1 if fingerprint == self._fingerprint else 0
        self._fingerprint = fingerprint
        if self._same_picture + 1 >= self._repeat_limit:
            self._faults["frozen_picture"] = now_ns

    def _remember(self, source_ns: int, frame: Frame) -> None:
        if self._frames_wanted > 1 and (not self._history or source_ns - self._history[-1][0] >= self._spacing_ns):
            self._history.append((source_ns, frame))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def take(self, now_monotonic_ns: int) -> list[Frame] | None:
        """Hand out a job (frames, oldest first) if the engine is idle and the newest frame is due, else None."""
        if self.busy or self._mailbox is None:
            return None
        source_ns, frame = self._mailbox
        if source_ns < self._opened_ns + self._min_interval_ns and self._opened_ns <= now_monotonic_ns:
            return None
        self._mailbox = None
        self._opened_ns = source_ns
        frames = [f for _, f in self._history] + [frame]
        self._remember(source_ns, frame)
        self._job = _Job(frame, source_ns, now_monotonic_ns, open=source_ns + self._limit_ns > now_monotonic_ns)
        return frames

    @property
    def busy(self) -> bool:
        """Whether the engine has something to do: a job, or its self-test."""
        return self._job is not None or self._testing

    def deadline_ns(self) -> int | None:
        """Monotonic deadline of the job that is out, None when there is none or it was already answered."""
        return self._job.source_ns + self._limit_ns if self._job is not None and self._job.open else None

    def finish(
        self, outcome: EngineOutput | BaseException, now_monotonic_ns: int, now_stamp_ns: int
    ) -> TierResult | None:
        """Take the engine's outcome for the job that is out.

        Returns:
            The period's result if it is still owed: FRESH, or a fallback after an error; else None.
        """
        job, self._job = self._job, None
        if job is None:
            return None
        problem = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, BaseException) else ""
        if isinstance(outcome, EngineOutput):
            problem = unusable(self.tier, outcome)
        if problem or isinstance(outcome, BaseException):
            self._count["errors"] += 1
            self._engine_fault = f"engine_error: {problem}".encode(errors="replace").decode()
            return self._fallback(job.source_ns, "engine_error", now_monotonic_ns, now_stamp_ns) if job.open else None
        self._engine_fault = ""
        content = _Content(job.frame, job.source_ns, outcome)
        result: TierResult | None = None
        if job.open and now_monotonic_ns <= job.source_ns + self._limit_ns:
            self._answer(job.source_ns)
            result = self._publish(Origin.FRESH, "", content, now_monotonic_ns, now_stamp_ns)
        else:
            self._count["late"] += 1
            if job.open:
                result = self._fallback(job.source_ns, "timeout", now_monotonic_ns, now_stamp_ns)
        self._previous = content
        return result

    def abandon(self) -> None:
        """Forget the job that is out: its engine will never answer (the caller replaces it)."""
        self._job, self._testing = None, False

    # -- self-test ---------------------------------------------------------------------------------------------------

    def take_self_test(self, now_monotonic_ns: int) -> bool:
        """Whether the engine shall answer the golden frame now: when the time has come and no frame waits.

        Ask right after a job: then there is time until the next frame. An engine that answers every frame in the same
        wrong way, or sees nothing any more, looks healthy in every other respect.
        """
        due = self._test_period_ns and now_monotonic_ns - self._tested_ns >= self._test_period_ns
        if not due or self.busy or self._mailbox is not None:
            return False
        self._tested_ns, self._testing = now_monotonic_ns, True
        return True

    def finish_self_test(self, problem: str) -> None:
        """What was wrong with the answer, empty if nothing was.

        It is reported until ``TRUST_AGAIN`` answers in a row were right: what comes and goes is no better.
        """
        self._testing = False
        self._right = 0 if problem else self._right + 1
        if problem:
            self._test_fault = f"self_test: {problem}".encode(errors="replace").decode()
        elif self._right >= TRUST_AGAIN:
            self._test_fault = ""

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def poll(self, now_monotonic_ns: int, now_stamp_ns: int) -> TierResult | None:
        """Publish what is owed at this moment, if anything. Call again at :meth:`next_event_ns`."""
        self.start(now_monotonic_ns, now_stamp_ns)
        self._watch_clock(now_monotonic_ns, now_stamp_ns)
        job = self._job
        if job is not None and job.open and now_monotonic_ns >= job.source_ns + self._limit_ns:
            job.open = False
            return self._fallback(job.source_ns, "timeout", now_monotonic_ns, now_stamp_ns)
        assert self._anchor_ns is not None
        if now_monotonic_ns >= self._anchor_ns + self._silence_ns:
            # After a pause of this process the missed periods are gone; one result stands for all of them.
            missed = (now_monotonic_ns - self._anchor_ns - self._silence_ns) // self._period_ns
            return self._fallback(
                self._anchor_ns + (1 + missed) * self._period_ns,
                self._silence_reason(now_monotonic_ns),
                now_monotonic_ns,
                now_stamp_ns,
            )
        return None

    def next_event_ns(self) -> int | None:
        """Monotonic time at which :meth:`poll` has something to do; None before :meth:`start`."""
        if self._anchor_ns is None:
            return None
        due_ns = self._anchor_ns + self._silence_ns
        deadline_ns = self.deadline_ns()
        return due_ns if deadline_ns is None else min(due_ns, deadline_ns)

    def _answer(self, anchor_ns: int) -> None:
        # Before the first answer the anchor is the start itself, which may be later than the first frame's stamp.
        self._anchor_ns = anchor_ns if self._anchor_ns is None else max(anchor_ns, self._anchor_ns)

    def _silence_reason(self, now_ns: int) -> str:
        active = self._input_faults(now_ns)
        if self._job is not None or (self._testing and self._mailbox is not None):
            return "timeout"
        if active:
            return active[0]
        return "late_frame" if self._late_input else "no_frame"

    def _fallback(self, anchor_ns: int, reason: str, now_ns: int, now_stamp_ns: int) -> TierResult:
        self._answer(anchor_ns)
        previous = self._previous
        if previous is None:
            return self._publish(Origin.DEFAULT, reason, None, now_ns, now_stamp_ns)
        if self._age_ns(previous, now_ns, now_stamp_ns) > self._keep_ns:
            return self._publish(Origin.DEFAULT, f"{reason}, too_old", previous, now_ns, now_stamp_ns)
        return self._publish(Origin.LAST_FRAME, reason, previous, now_ns, now_stamp_ns)

    @staticmethod
    def _age_ns(content: _Content, now_ns: int, now_stamp_ns: int) -> int:
        """Age on both clocks, the greater: a step of the stamp clock never makes content look younger."""
        return max(now_ns - content.source_ns, now_stamp_ns - content.frame.stamp_ns)

    def _publish(
        self, origin: Origin, reason: str, content: _Content | None, now_ns: int, now_stamp_ns: int
    ) -> TierResult:
        self._count[origin.name.lower()] += 1
        self._sequence += 1
        known = content is not None and origin is not Origin.DEFAULT
        adapter = content.output.adapter if content and known else ""
        if content is not None:
            age_ns = self._age_ns(content, now_ns, now_stamp_ns)
        else:
            age_ns = max(0, now_stamp_ns - self._started_stamp_ns)
        result = TierResult(
            tier=self.tier,
            origin=origin,
            reason=reason[:MAX_REASON],
            # DEFAULT: how long nothing has been known: since the last content or since the start.
            source_stamp_ns=content.frame.stamp_ns if content else self._started_stamp_ns,
            frame_id=content.frame.frame_id if content else "",
            frame_number=content.frame.number if content else 0,
            published_ns=now_stamp_ns,
            age_ms=age_ns / 1e6,
            latency=_split(content) if content and known else LatencySplit(),
            engine_id=self.engine_id,
            engine_version=f"{self.engine_version}+{adapter}" if adapter else self.engine_version,
            device=self.device,
            uncertainty=float(content.output.uncertainty) if content and known else 1.0,
            payload=content.output.payload if content and known else self._default,
        )
        return protect(result, self._sequence)

    # -- self-report -------------------------------------------------------------------------------------------------

    def note_picture(self, codes: tuple[str, ...], now_monotonic_ns: int) -> None:
        """What :class:`triptych.tiers.monitors.InputWatch` says of the frame of the last job.

        It holds until the next one, however long that takes a slow tier, and at least ``FAULT_HOLD_S``.
        """
        self._picture_codes = codes
        self._picture_faults.update(dict.fromkeys(codes, now_monotonic_ns))

    def _watch_clock(self, now_ns: int, now_stamp_ns: int) -> None:
        offset, previous = now_stamp_ns - now_ns, self._offset_ns
        self._offset_ns = offset
        if previous is not None and abs(offset - previous) > CLOCK_STEP_S * _NS:
            self._faults["clock_step"] = now_ns

    def _input_faults(self, now_ns: int) -> list[str]:
        return [code for code, seen_ns in self._faults.items() if now_ns - seen_ns <= FAULT_HOLD_S * _NS]

    def _seen(self, now_ns: int) -> list[str]:
        return [
            code
            for code, seen_ns in self._picture_faults.items()
            if code in self._picture_codes or now_ns - seen_ns <= FAULT_HOLD_S * _NS
        ]

    def fault(self, now_monotonic_ns: int) -> str:
        """What the tier has to report of itself, empty when it is healthy: codes joined by ``; ``.

        Codes: ``engine_hung``, ``engine_error: <text>``, ``self_test: <text>``, ``future_stamp``, ``repeated_frame``,
        ``backward_stamp``, ``frozen_picture``, ``clock_step``, and those of :data:`triptych.tiers.monitors.MONITORS`.
        """
        codes = [code for code in (self._engine_fault, self._test_fault) if code]
        if self.hung_s(now_monotonic_ns) > 0:
            codes.insert(0, "engine_hung")
        return "; ".join(codes + self._input_faults(now_monotonic_ns) + self._seen(now_monotonic_ns))

    def hung_s(self, now_monotonic_ns: int) -> float:
        """How long the engine has been at one thing if that is longer than ``HANG_BUDGETS`` budgets, else 0.0."""
        if not self.busy:
            return 0.0
        running_s = (now_monotonic_ns - (self._job.started_ns if self._job else self._tested_ns)) / _NS
        return running_s if running_s > HANG_BUDGETS * self.budget.budget_s else 0.0

    def counters(self) -> TierCounters:
        """A snapshot of the counters."""
        return replace(TierCounters(), **self._count)


def _split(content: _Content) -> LatencySplit:
    frame, output = content.frame, content.output
    transport_ms = (frame.received_ns - frame.stamp_ns) / 1e6 if frame.received_ns else 0.0
    return LatencySplit(transport_ms, output.pre_ms, output.infer_ms, output.post_ms)
