"""An engine made of engines: tier code runs it as any other.

Runs go one after another in the tier's own thread: a tier has one core (docs/architecture.md), and instances side by
side would take that of another tier. The cost is time, which :func:`check_time` holds against the budget beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from triptych.contract import Budget, ConfigError, Detections, EngineError, Frame, InputError, Tier
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.tiers.checks import unusable
from triptych.tiers.redundancy.vote import EXACT, Tolerance, differences, vote, without_words

Mode = Literal["none", "temporal", "homogeneous"]
MOST_INSTANCES = 5
"""Two faults at once are outvoted by five; more only costs time."""
_TWICE = 2


@dataclass(frozen=True, slots=True)
class Record:
    """What the runs said of each other so far.

    Attributes:
        answers: pictures answered or refused.
        disputed: of those, with any dissent (homogeneous) or difference (temporal).
        refused: of those, without an answer because of it.
        by_instance: answers each instance dissented from.
        last: dissent of the last answer: who differed in what; empty when there was none.
    """

    mode: Mode
    by_instance: tuple[int, ...]
    answers: int = 0
    disputed: int = 0
    refused: int = 0
    last: str = ""

    def values(self) -> dict[str, str]:
        """For ``/diagnostics``."""
        return {
            "redundancy": self.mode if self.mode == "temporal" else f"{self.mode}, {len(self.by_instance)} instances",
            "answers / disputed / refused": f"{self.answers} / {self.disputed} / {self.refused}",
            "dissents by instance": ", ".join(map(str, self.by_instance)),
            "last dissent": self.last or "none",
        }


class RedundantEngine:
    """Several runs per picture.

    ``temporal``: one engine runs twice; results that differ are a transient fault, the picture is refused.
    ``homogeneous``: the instances vote (:func:`triptych.tiers.redundancy.vote.vote`). An instance that fails, or whose
    output could not be published, has no vote; without more than half of them there is no answer. Dissent raises the
    uncertainty: from the median u of the voters to u + (1 - u) * share, the share of instances that dissent or failed.

    Args:
        engines: of one manifest; one for ``temporal``, 2 to :data:`MOST_INSTANCES` for ``homogeneous``.
        mode: which of the two.
        tolerance: results this close are the same.
        clock: monotonic time in nanoseconds, to share out a deadline among the runs left.

    Raises:
        ConfigError: a number of engines that does not fit the mode, engines of two kinds, or ``temporal`` with an
            engine that switches adapters: its second answer may rightly differ.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        mode: Mode,
        tolerance: Tolerance = EXACT,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        least, most = {"temporal": (1, 1), "homogeneous": (2, MOST_INSTANCES)}.get(mode, (1, 0))
        if not least <= len(engines) <= most:
            raise ConfigError(
                f"{len(engines)} engines do not make it",
                where="redundancy",
                value=mode,
                remedy=f"use one engine for temporal, 2 to {MOST_INSTANCES} for homogeneous",
            )
        kinds = {(engine.id, engine.version, engine.frames_wanted) for engine in engines}
        if len(kinds) > 1:
            raise ConfigError("instances are of different engines", where="redundancy", value=sorted(kinds))
        if mode == "temporal" and getattr(engines[0], "adapters", None):
            raise ConfigError(
                "switches adapters by its own answers, so that two runs may rightly differ",
                where=f"engine {engines[0].id}",
                field="redundancy",
                value=mode,
                remedy="use homogeneous or none",
            )
        self._engines = tuple(engines)
        self._mode, self._tolerance, self._clock = mode, tolerance, clock
        self._golden = engines[0].golden()
        self._golden_problem = "no golden frame answered yet"
        self.record = Record(mode, (0,) * len(engines))

    @property
    def id(self) -> str:
        """Name from the manifest."""
        return self._engines[0].id

    @property
    def version(self) -> str:
        """Version from the manifest, of the first instance."""
        return self._engines[0].version

    @property
    def device(self) -> DeviceReport:
        """The worst of the instances' devices."""
        return max((e.device for e in self._engines), key=lambda d: (d.actual != d.requested, d.fallback_share))

    @property
    def frames_wanted(self) -> int:
        """As the instances."""
        return self._engines[0].frames_wanted

    @property
    def golden_question(self) -> str:
        """As the instances."""
        return str(getattr(self._engines[0], "golden_question", ""))

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        """Run on ``frames`` as often as the mode has it; each run gets its share of the time left.

        Raises:
            EngineError: two runs that differ; no majority; what the only engine raises.
        """
        golden = bool(frames) and frames[-1] is self._golden
        runs = self._engines * _TWICE if self._mode == "temporal" else self._engines
        outputs: list[EngineOutput | EngineError] = []
        for number, engine in enumerate(runs):
            own = [engine.golden()] * len(frames) if golden else frames
            deadline_ns = self._share_ns(deadline_monotonic_ns, len(runs) - number)
            try:
                outputs.append(engine.infer(own, question, deadline_ns))
            except InputError:
                raise
            except Exception as error:  # whatever one instance raises, the others still vote
                if self._mode == "temporal":
                    raise
                text = error.problem if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
                outputs.append(EngineError(text, where=engine.id))
        start = time.perf_counter()
        output = self._same(outputs) if self._mode == "temporal" else self._voted(outputs)
        output = _timed(output, outputs, (time.perf_counter() - start) * 1e3)
        if golden:
            self._golden_problem = self._golden_check(outputs)
        return output

    def _share_ns(self, deadline_ns: int | None, runs_left: int) -> int | None:
        if deadline_ns is None:
            return None
        now_ns = self._clock()
        return now_ns + (deadline_ns - now_ns) // runs_left

    def _same(self, outputs: Sequence[EngineOutput | EngineError]) -> EngineOutput:
        first, second = (output for output in outputs if isinstance(output, EngineOutput))
        found = self._apart(first, second)
        if found:
            self._count([found], refused=True)
            raise EngineError(f"transient fault: two runs on one picture differ in {', '.join(found)}", where=self.id)
        self._count([()])
        return second

    def _apart(self, one: EngineOutput, other: EngineOutput) -> tuple[str, ...]:
        found = differences(one.payload, other.payload, self._tolerance)
        close = abs(one.uncertainty - other.uncertainty) <= self._tolerance.share
        return found if close else (*found, "uncertainty")

    def _voted(self, outputs: Sequence[EngineOutput | EngineError]) -> EngineOutput:
        words = [_failure(output) for output in outputs]
        voters = [o for o, word in zip(outputs, words) if isinstance(o, EngineOutput) and not word]
        try:
            if not 2 * len(voters) > len(outputs):
                raise EngineError("no majority of instances has an answer", where=self.id)
            payload = vote([voter.payload for voter in voters])
        except EngineError as error:
            said = [(word,) if word else () for word in words]
            self._count(said, refused=True)
            why = self.record.last or "no majority"
            raise EngineError(f"{error.problem} ({why})", where=self.id) from None
        median = sorted(voter.uncertainty for voter in voters)[len(voters) // 2]
        composed = all(voter.payload != payload for voter in voters)
        dissents: list[tuple[str, ...]] = []
        for output, word in zip(outputs, words):
            if word or not isinstance(output, EngineOutput):
                dissents.append((word,))
                continue
            one, other = output.payload, payload
            if composed:  # its text is nobody's
                one, other = without_words(one), without_words(other)
            found = differences(one, other, self._tolerance)
            close = abs(output.uncertainty - median) <= self._tolerance.share
            dissents.append(found if close else (*found, "uncertainty"))
        self._count(dissents)
        share = sum(map(bool, dissents)) / len(outputs)
        adapters = {voter.adapter for voter in voters if voter.payload == payload}
        adapter = adapters.pop() if len(adapters) == 1 else ""
        uncertainty = median + (1.0 - median) * share
        return EngineOutput(payload, uncertainty, 0.0, 0.0, 0.0, adapter)

    def _count(self, dissents: Sequence[tuple[str, ...]], refused: bool = False) -> None:
        """Note one answer. One assignment: the heartbeat reads the record from another thread."""
        before = self.record
        last = "; ".join(f"instance {n}: {', '.join(found)}" for n, found in enumerate(dissents, 1) if found)
        self.record = Record(
            before.mode,
            tuple(count + bool(found) for count, found in zip(before.by_instance, dissents)),
            before.answers + 1,
            before.disputed + bool(last),
            before.refused + refused,
            last,
        )

    def golden(self) -> Frame:
        """The first instance's; each is given its own."""
        return self._golden

    def golden_ok(self, output: EngineOutput) -> str:
        """Empty when every instance's own answer is as the manifest expects and none dissents, else what is wrong."""
        return self._golden_problem or self._engines[0].golden_ok(output)

    def _golden_check(self, outputs: Sequence[EngineOutput | EngineError]) -> str:
        for number, output in enumerate(outputs):
            engine = self._engines[number % len(self._engines)]
            problem = str(output) if isinstance(output, EngineError) else engine.golden_ok(output)
            if problem:
                return f"instance {number % len(self._engines) + 1}: {problem}"
        return f"instances differ on the golden frame: {self.record.last}" if self.record.last else ""

    def close(self) -> None:
        """Free all devices, also when one fails to."""
        with ExitStack() as stack:
            for engine in self._engines:
                stack.callback(engine.close)


def _failure(output: EngineOutput | EngineError) -> str:
    """Why an instance has no vote; empty when it has."""
    if isinstance(output, EngineError):
        return f"failed: {output.problem}"
    tier = Tier.DETECTOR if isinstance(output.payload, Detections) else Tier.FULL
    return unusable(tier, output)


def _timed(output: EngineOutput, outputs: Sequence[EngineOutput | EngineError], own_ms: float) -> EngineOutput:
    """With the times of all runs together; the vote or comparison is post-processing."""
    done = [run for run in outputs if isinstance(run, EngineOutput)]
    pre_ms, infer_ms = sum(run.pre_ms for run in done), sum(run.infer_ms for run in done)
    return replace(output, pre_ms=pre_ms, infer_ms=infer_ms, post_ms=sum(run.post_ms for run in done) + own_ms)


def check_time(mode: Mode, instances: int, nominal_ms: float, budget: Budget, where: object) -> None:
    """Refuse what cannot be in time even when nothing else takes any.

    Args:
        nominal_ms: one whole inference, from the manifest.
        where: named in the error.

    Raises:
        ConfigError: the runs take the whole budget or more.
    """
    runs = {"none": 1, "temporal": _TWICE}.get(mode, instances)
    if not runs * nominal_ms < budget.budget_s * 1e3:
        raise ConfigError(
            f"{runs} runs of {nominal_ms:g} ms leave nothing of the budget of {budget.budget_s * 1e3:g} ms",
            where=where,
            field="redundancy",
            value=mode,
            remedy="take fewer instances, a faster engine or none",
        )


def redundant(load: Callable[[], Engine], mode: Mode, instances: int, tolerance: Tolerance = EXACT) -> Engine:
    """Load as many engines as the mode takes; ``none`` is the engine itself.

    Raises:
        EngineError, ConfigError: as ``load`` and :class:`RedundantEngine`; what was loaded is closed.
    """
    if mode == "none":
        return load()
    with ExitStack() as stack:
        engines = []
        for _ in range(1 if mode == "temporal" else instances):
            engines.append(load())
            stack.callback(engines[-1].close)
        made = RedundantEngine(engines, mode, tolerance)
        stack.pop_all()
        return made
