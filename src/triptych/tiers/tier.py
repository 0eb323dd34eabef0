"""A running tier: :class:`TierCore` with an inference thread and a deadline thread.

Inference blocks only its own thread. The deadline thread sleeps until :meth:`TierCore.next_event_ns`, so results keep
coming while the engine computes, hangs or fails, and callers may offer frames and read the status at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from triptych.contract import (
    Budget,
    Clock,
    EngineError,
    Frame,
    Payload,
    SystemClock,
    TierResult,
    TierState,
    TierStatus,
)
from triptych.contract import Tier as TierName
from triptych.engines.protocol import Engine, EngineOutput
from triptych.tiers.checks import unusable
from triptych.tiers.core import TierCore
from triptych.tiers.heartbeat import heartbeat
from triptych.tiers.monitors import InputWatch
from triptych.tiers.redundancy.vote import CLOSE, differences

WARM_UP_RUNS = 5
"""Inferences on the golden frame before a tier says ACTIVE: allocator, caches and lazy kernels settle within three."""
SELF_TEST_TIMEOUT_S = 20.0
"""A self-test that takes longer has hung; ten times what the slowest built-in engine needs to warm up."""
STOP_TIMEOUT_S = 1.0
REPLACE_LIMIT = 3
"""Hung engines replaced before the tier gives up and stays in ERROR (its results go on as DEFAULT)."""


class Tier:
    """Mailbox, engine and deadline of one tier, live.

    Args:
        name: which tier.
        engine: loaded and checked.
        budget: time limits.
        emit: gets each result, in sequence order, from one of the tier's threads. It must be quick.
        clock: the machine's clocks.
        core: ready-made core, e.g. with other limits; default one made from ``engine`` and ``budget``.
        replace: loads the engine anew; used when the running one has hung for ``HANG_BUDGETS`` budgets. None: never.
        thread_setup: called first in each thread with ``"infer"`` or ``"deadline"`` (priorities, affinity).
        self_test_timeout_s: see :data:`SELF_TEST_TIMEOUT_S`.
        warm_up_runs: see :data:`WARM_UP_RUNS`.
        watch: monitors of the pictures it takes; None: nobody looks.
        self_test_period_s: time between two self-tests while driving; 0: only at the start. Not used with ``core``.
    """

    def __init__(
        self,
        name: TierName,
        engine: Engine,
        budget: Budget,
        emit: Callable[[TierResult], None],
        *,
        clock: Clock | None = None,
        core: TierCore | None = None,
        replace: Callable[[], Engine] | None = None,
        thread_setup: Callable[[str], None] | None = None,
        self_test_timeout_s: float = SELF_TEST_TIMEOUT_S,
        warm_up_runs: int = WARM_UP_RUNS,
        watch: InputWatch | None = None,
        self_test_period_s: float = 0.0,
    ) -> None:
        self.name, self.engine, self._emit = name, engine, emit
        self._clock: Clock = clock or SystemClock()
        self._core = core or TierCore(
            name,
            budget,
            engine_id=engine.id,
            engine_version=engine.version,
            device=engine.device.actual,
            frames_wanted=engine.frames_wanted,
            self_test_period_s=self_test_period_s,
        )
        self._replace, self._watch_input = replace, watch
        self._thread_setup = thread_setup or (lambda _: None)
        self._self_test_timeout_s, self._warm_up_runs = self_test_timeout_s, max(1, warm_up_runs)
        self._condition = threading.Condition()
        self._state = TierState.LOADED
        self._fault = ""
        self._question = ""
        self._generation = 0
        self._replaced = 0
        self._replacing = False
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._deadline: threading.Thread | None = None
        self._status_sequence = 0

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TierState:
        """Where in its life the tier is."""
        return self._state

    def start(self) -> None:
        """Run the self-test on the golden frame, warm up, and become ACTIVE.

        Raises:
            EngineError: the self-test failed or did not end; the tier is in ERROR then.
        """
        with self._condition:
            if self._worker is not None:
                raise EngineError("is running already", where=f"tier {self.name.key}")
            self._state, self._fault, self._stopping = TierState.SELF_TEST, "", False
        tested = threading.Event()
        problem: list[str] = []

        def first(engine: Engine, generation: int) -> None:
            self._thread_setup("infer")
            test = SelfTest(self.name, engine)
            problem.append(test.run(self._warm_up_runs))
            tested.set()
            if not problem[0]:
                self._work(test, generation)

        self._worker = threading.Thread(
            target=first, args=(self.engine, self._generation), name=f"{self.name.key}-infer", daemon=True
        )
        self._worker.start()
        in_time = tested.wait(self._self_test_timeout_s)
        if not in_time:
            text = f"self-test did not end within {self._self_test_timeout_s:g} s"
        else:
            text = f"self-test failed: {problem[0]}" if problem[0] else ""
        with self._condition:
            if text or self._stopping:
                self._generation += 1
                self._state, self._fault = TierState.ERROR, text or "stopped during the self-test"
                if in_time:
                    self._worker = None
                raise EngineError(
                    self._fault, where=f"engine {self.engine.id}", remedy="run `triptych engines check` on it"
                )
            self._state = TierState.ACTIVE
            self._core.start(self._clock.monotonic_ns(), self._clock.stamp_ns())
            self._deadline = threading.Thread(target=self._watch, name=f"{self.name.key}-deadline", daemon=True)
            self._deadline.start()
            self._condition.notify_all()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop both threads; never blocks longer than ``timeout_s``.

        Returns:
            False when the engine did not return in time; its thread is left behind as a daemon and its result ignored.
        """
        end_s = time.monotonic() + timeout_s
        with self._condition:
            self._stopping = True
            self._generation += 1
            self._condition.notify_all()
            worker, deadline = self._worker, self._deadline
            self._worker = self._deadline = None
        for thread in (deadline, worker):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, end_s - time.monotonic()))
        ended = worker is None or not worker.is_alive()
        with self._condition:
            self._core.abandon()
            if self._state is not TierState.ERROR:
                self._state = TierState.LOADED if ended else TierState.ERROR
                self._fault = "" if ended else "engine did not return when the tier was stopped"
        return ended

    # -- intake ------------------------------------------------------------------------------------------------------

    def offer(self, frame: Frame, *, skipped: int = 0) -> str:
        """Put the newest frame into the mailbox. Returns why it was refused, else "" (see :meth:`TierCore.offer`)."""
        with self._condition:
            if self._state is not TierState.ACTIVE:
                return "not_active"
            refusal = self._core.offer(
                frame, self._clock.monotonic_ns(), frame.received_ns or self._clock.stamp_ns(), skipped=skipped
            )
            self._condition.notify_all()
        return refusal

    def wait_wanted(self, timeout_s: float) -> bool:
        """Sleep until a frame would be of use (see :meth:`TierCore.wanted_ns`); False after ``timeout_s``."""
        end_ns = self._clock.monotonic_ns() + round(timeout_s * 1e9)
        with self._condition:
            while True:
                now_ns = self._clock.monotonic_ns()
                wanted_ns = self._core.wanted_ns() if self._state is TierState.ACTIVE else None
                if wanted_ns is not None and now_ns >= wanted_ns:
                    return True
                if now_ns >= end_ns:
                    return False
                self._condition.wait((min(end_ns, wanted_ns or end_ns) - now_ns) / 1e9)

    def set_question(self, text: str) -> None:
        """The free question of later answers; empty for the standing one."""
        with self._condition:
            self._question = text

    def status(self) -> TierStatus:
        """Heartbeat and self-report now, protected."""
        with self._condition:
            count = self._core.counters()
            fault = self._fault or (
                self._core.fault(self._clock.monotonic_ns()) if self._state is TierState.ACTIVE else ""
            )
            self._status_sequence += 1
            stamp_ns = self._clock.stamp_ns()
            return heartbeat(self.name, self._state, fault, self.engine, count, stamp_ns, self._status_sequence)

    # -- threads -----------------------------------------------------------------------------------------------------

    def _work(self, test: SelfTest, generation: int) -> None:
        while True:
            with self._condition:
                job = None
                while generation == self._generation:
                    if self._state is TierState.ACTIVE:
                        job = self._core.take(self._clock.monotonic_ns())
                    if job:
                        break
                    self._condition.wait()
                if job is None:
                    return
                question = self._question
                deadline_ns = self._core.deadline_ns()
                # The deadline thread may have to wake up earlier now.
                self._condition.notify_all()
            if deadline_ns is None:
                deadline_ns = self._clock.monotonic_ns() + round(self._core.budget.budget_s * 1e9)
            outcome: EngineOutput | BaseException
            try:
                outcome = test.engine.infer(job, question, deadline_ns)
            except Exception as error:  # an engine's bug must not end the tier
                outcome = error
            image = job[-1].image
            del job
            with self._condition:
                if generation != self._generation:
                    return
                now_ns, stamp_ns = self._clock.monotonic_ns(), self._clock.stamp_ns()
                self._send(self._core.finish(outcome, now_ns, stamp_ns))
                self._condition.notify_all()
            if self._watch_input is not None:
                # After the result is out, and without the lock: looking must delay neither result nor deadline.
                codes = self._watch_input.look(image)
                with self._condition:
                    self._core.note_picture(codes, self._clock.monotonic_ns())
            del image
            if not self._test(test, generation):
                return

    def _test(self, test: SelfTest, generation: int) -> bool:
        """The self-test if it is due; False if the engine was given up meanwhile."""
        with self._condition:
            if generation != self._generation or not self._core.take_self_test(self._clock.monotonic_ns()):
                return generation == self._generation
        problem = test.run()
        with self._condition:
            if generation != self._generation:
                return False
            self._core.finish_self_test(problem)
            self._condition.notify_all()
        return True

    def _watch(self) -> None:
        self._thread_setup("deadline")
        with self._condition:
            me = threading.current_thread()
            while self._deadline is me and not self._stopping:
                now_ns = self._clock.monotonic_ns()
                self._send(self._core.poll(now_ns, self._clock.stamp_ns()))
                if self._core.hung_s(now_ns) > 0:
                    self._give_up_on_engine()
                event_ns = self._core.next_event_ns()
                wait_s = 0.1 if event_ns is None else (event_ns - self._clock.monotonic_ns()) / 1e9
                if wait_s > 0:
                    self._condition.wait(wait_s)

    def _send(self, result: TierResult | None) -> None:
        if result is None:
            return
        try:
            self._emit(result)
        except Exception as error:  # the middleware may be shutting down; the tier goes on
            self._fault = f"publish_error: {error}"
        else:
            if self._fault.startswith("publish_error"):
                self._fault = ""

    def _give_up_on_engine(self) -> None:
        """Leave a hung engine to its thread and load another one. Called with the lock held."""
        if self._replace is None or self._replacing:
            return
        if self._replaced >= REPLACE_LIMIT:
            self._fault = f"engine_hung: replaced {self._replaced} times, gave up"
            return
        self._replacing = True
        self._replaced += 1
        threading.Thread(target=self._load_again, name=f"{self.name.key}-reload", daemon=True).start()

    def _load_again(self) -> None:
        assert self._replace is not None
        try:
            engine = self._replace()
            test = SelfTest(self.name, engine)
            problem = test.run()
        except Exception as error:
            problem = str(error)
        with self._condition:
            self._replacing = False
            if self._stopping:
                return
            if problem:
                self._fault = f"engine_hung: loading it again failed: {problem}"
                return
            if self._core.hung_s(self._clock.monotonic_ns()) == 0:
                return  # it came back meanwhile
            self._generation += 1
            self.engine = engine
            self._core.abandon()
            self._worker = threading.Thread(
                target=self._work_again,
                args=(test, self._generation),
                name=f"{self.name.key}-infer",
                daemon=True,
            )
            self._worker.start()

    def _work_again(self, test: SelfTest, generation: int) -> None:
        self._thread_setup("infer")
        self._work(test, generation)


class SelfTest:
    """The golden frame, answered at the start and again while driving: right, and later as this engine did at first.

    Args:
        name: of the tier.
        engine: whose answers are judged.
    """

    def __init__(self, name: TierName, engine: Engine) -> None:
        self._name, self.engine = name, engine
        self._first: Payload | None = None

    def run(self, runs: int = 1) -> str:
        """Answer it ``runs`` times. Empty when every answer is right, else what is wrong.

        Each run asks for as many frames as a steady run does, so that encoder, prefill and decoding all get warm.
        """
        engine = self.engine
        try:
            frames, question = [engine.golden()] * engine.frames_wanted, getattr(engine, "golden_question", "")
            for _ in range(runs):
                if problem := self.judge(engine.infer(frames, question)):
                    return problem
        except Exception as error:  # whatever an engine raises here, it must not become or stay ACTIVE
            return str(error) or type(error).__name__
        return ""

    def judge(self, output: EngineOutput) -> str:
        """Empty when this answer is as the manifest expects and says the same as the first one, else what is wrong."""
        problem = unusable(self._name, output) or self.engine.golden_ok(output)
        if problem:
            return problem
        if self._first is None:
            self._first = output.payload
        apart = differences(self._first, output.payload, CLOSE)
        return f"another answer to the golden frame than at first: {', '.join(apart)}" if apart else ""
