"""An engine of engines: real detectors with a fault put into one run, and scripted ones for what these rarely do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.contract import Advice, Budget, ConfigError, Detections, EngineError, Frame, InputError, SceneAdvice
from triptych.contract import Tier as TierName
from triptych.engines.check import measure
from triptych.engines.check import self_test as engine_self_test
from triptych.engines.load import load_engine
from triptych.engines.onnxruntime_engine import DetectorEngine
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.tiers import SelfTest
from triptych.tiers.redundancy import CLOSE, MOST_INSTANCES, Mode, RedundantEngine, check_time, redundant
from triptych.tiers.redundancy.vote import Tolerance

MODELS = Path(__file__).resolve().parents[2] / "models"
DETECTOR, DISTILLED = MODELS / "triptych-detector", MODELS / "triptych-distilled"
ANSWER = SceneAdvice(vehicles=1, two_wheelers=0, pedestrians=0, text="quiet")
STOP = replace(ANSWER, advice=Advice.STOP, text="stop")
FRAME = Frame(np.zeros((8, 8, 3), np.uint8), 5, 7)


class Scripted:
    """Gives one outcome after the other, the last one for ever."""

    id, version, frames_wanted = "scripted", "1", 2

    def __init__(self, *outcomes: EngineOutput | Exception, golden_problem: str = "") -> None:
        self.outcomes, self.golden_problem = list(outcomes), golden_problem
        self.device = DeviceReport("cpu", "cpu", "none")
        self.asked: list[tuple[list[Frame], str, int | None]] = []
        self.closed = False
        self._golden = Frame(np.zeros((8, 8, 3), np.uint8), 0, -1)

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        self.asked.append((list(frames), question, deadline_monotonic_ns))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def golden(self) -> Frame:
        return self._golden

    def golden_ok(self, output: EngineOutput) -> str:
        return self.golden_problem

    def close(self) -> None:
        self.closed = True


def out(payload: Any = ANSWER, uncertainty: float = 0.2, adapter: str = "") -> EngineOutput:
    return EngineOutput(payload, uncertainty, 1.0, 2.0, 3.0, adapter)


def three(*outcomes: EngineOutput | Exception) -> RedundantEngine:
    return RedundantEngine([Scripted(outcome) for outcome in outcomes], "homogeneous")


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[[Mode, int], RedundantEngine]]:
    """Real detectors, loaded once."""
    engines = [load_engine(DETECTOR) for _ in range(3)]

    def make(mode: Mode, count: int) -> RedundantEngine:
        return RedundantEngine(engines[:count], mode)

    yield make
    for engine in engines:
        engine.close()


class Flipped:
    """A detector's session of which one run, counted from now, has one bit of its output flipped."""

    def __init__(self, engine: DetectorEngine, run: int) -> None:
        self.engine, self.session, self.left = engine, engine.session, run
        engine.session = self  # type: ignore[assignment]

    def run(self, feeds: Any) -> list[Any]:
        outputs = [np.array(o) for o in self.session.run(feeds)]
        self.left -= 1
        if self.left == 0:
            # A side of the box with the best score, (cells, 4 sides + classes); bit 22 is the first of its fraction.
            best = int(outputs[0][0, :, 4:].max(axis=1).argmax())
            outputs[0][0, best, :1].view(np.uint32)[0] ^= 1 << 22
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def restore(self) -> None:
        self.engine.session = self.session


def inner(engine: RedundantEngine, number: int) -> DetectorEngine:
    found = engine._engines[number]
    assert isinstance(found, DetectorEngine)
    return found


@pytest.mark.parametrize(("mode", "count"), [("temporal", 1), ("homogeneous", 2), ("homogeneous", 3)])
def test_real_instances_agree_to_the_last_bit(pair: Any, mode: Mode, count: int) -> None:
    """The self-tests of tier and engine pass, and the answer is that of one engine."""
    engine: RedundantEngine = pair(mode, count)
    assert SelfTest(TierName.DETECTOR, engine).run(2) == ""
    output = engine_self_test(engine)
    alone = inner(engine, 0).infer([engine.golden()])
    assert (output.payload, output.uncertainty) == (alone.payload, alone.uncertainty)
    assert (engine.id, engine.version, engine.device) == (
        inner(engine, 0).id, inner(engine, 0).version, inner(engine, 0).device
    )  # fmt: skip
    assert engine.record.answers == 5 and engine.record.disputed == 0
    assert measure(engine) > 0.0


@pytest.mark.parametrize(("mode", "count"), [("temporal", 1), ("homogeneous", 2)])
def test_a_real_vlm_agrees_with_itself(mode: Mode, count: int) -> None:
    """Text and probabilities of every token included; the deadline leaves time for all runs."""
    engine = redundant(lambda: load_engine(DISTILLED), mode, count)
    assert isinstance(engine, RedundantEngine)
    assert SelfTest(TierName.DISTILLED, engine).run(1) == ""
    picture = Frame(engine.golden().image[:, ::-1].copy(), 1, 1)
    output = engine.infer([picture], "", time.monotonic_ns() + 600 * 10**9)
    assert isinstance(output.payload, SceneAdvice) and output.payload.text
    assert engine.record.answers == 2 and engine.record.disputed == 0
    engine.close()


@pytest.mark.parametrize("run", [1, 2])
def test_a_flipped_bit_in_one_of_two_runs_is_refused(pair: Any, run: int) -> None:
    """Temporal: a transient fault, counted; the next picture is answered."""
    engine: RedundantEngine = pair("temporal", 1)
    flipped = Flipped(inner(engine, 0), run)
    try:
        with pytest.raises(EngineError, match="transient fault: two runs on one picture differ in"):
            engine.infer([engine.golden()])
        assert (engine.record.answers, engine.record.disputed, engine.record.refused) == (1, 1, 1)
        engine.infer([engine.golden()])
        assert (engine.record.answers, engine.record.disputed, engine.record.refused) == (2, 1, 1)
        assert engine.record.last == ""
    finally:
        flipped.restore()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_bit_in_one_of_three_instances_is_outvoted(pair: Any, number: int) -> None:
    """Homogeneous: the answer is that of the other two, and it is known who dissented."""
    engine: RedundantEngine = pair("homogeneous", 3)
    picture = Frame(engine.golden().image, 1, 1)
    sound = engine.infer([picture])
    flipped = Flipped(inner(engine, number), 1)
    try:
        output = engine.infer([picture])
    finally:
        flipped.restore()
    assert output.payload == sound.payload
    assert output.uncertainty == pytest.approx(sound.uncertainty + (1 - sound.uncertainty) / 3)
    assert engine.record.by_instance == tuple(int(n == number) for n in range(3))
    assert engine.record.last.startswith(f"instance {number + 1}: ")
    assert engine.record.values()["answers / disputed / refused"] == "2 / 1 / 0"


def test_a_broken_instance_is_found_before_it_drives(pair: Any) -> None:
    """A fault that the others would outvote refuses activation, though the vote itself is right."""
    engine: RedundantEngine = pair("homogeneous", 3)
    flipped = Flipped(inner(engine, 1), 1)
    try:
        problem = SelfTest(TierName.DETECTOR, engine).run(1)
    finally:
        flipped.restore()
    assert "instance 2" in problem
    assert SelfTest(TierName.DETECTOR, engine).run(1) == ""


def test_nothing_is_right_before_the_golden_frame_was_answered() -> None:
    """Fail closed."""
    engine = three(out(), out(), out())
    assert engine.golden_ok(out()) == "no golden frame answered yet"
    engine.infer([FRAME])
    assert engine.golden_ok(out()) == "no golden frame answered yet"
    engine.infer([engine.golden()])
    assert engine.golden_ok(out()) == ""


def test_every_instance_gets_its_own_golden_frame_and_is_judged() -> None:
    """Engines tell their golden frame by identity."""
    first, second = Scripted(out()), Scripted(out(), golden_problem="is wrong")
    engine = RedundantEngine([first, second], "homogeneous")
    output = engine.infer([engine.golden()] * 2, "why")
    assert first.asked == [([first.golden()] * 2, "why", None)] and first.asked[0][0][0] is first.golden()
    assert second.asked[0][0][1] is second.golden()
    assert engine.golden_ok(output) == "instance 2: is wrong"


def test_a_dissent_on_the_golden_frame_is_a_problem() -> None:
    """Whatever the vote."""
    engine = three(out(), out(STOP), out())
    assert engine.golden_ok(engine.infer([engine.golden()])) == (
        "instances differ on the golden frame: instance 2: advice, text"
    )
    engine = three(out(), RuntimeError("sick"), out())
    assert engine.golden_ok(engine.infer([engine.golden()])) == "instance 2: scripted: RuntimeError: sick."


@pytest.mark.parametrize("bad", [EngineError("broken"), RuntimeError("sick"), out(uncertainty=float("nan")),
                                 out(replace(ANSWER, vehicles=77)), out(Detections(8, 8)), out(STOP)])  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_of_three_may_do_what_it_likes(bad: EngineOutput | Exception, place: int) -> None:
    """The other two answer; the dissent is recorded and raises the uncertainty by its share."""
    outcomes: list[EngineOutput | Exception] = [out(), out()]
    outcomes.insert(place, bad)
    engine = three(*outcomes)
    output = engine.infer([FRAME])
    assert output.payload == ANSWER
    assert output.uncertainty == pytest.approx(0.2 + 0.8 / 3)
    assert engine.record.by_instance[place] == 1 and sum(engine.record.by_instance) == 1
    assert engine.record.last.startswith(f"instance {place + 1}: ")


def test_without_a_majority_there_is_no_answer() -> None:
    """Two of three failed, one of two failed: refused, with who failed and why."""
    engine = three(out(), EngineError("a"), EngineError("b"))
    with pytest.raises(EngineError) as caught:
        engine.infer([FRAME])
    assert str(caught.value) == (
        "scripted: no majority of instances has an answer (instance 2: failed: a; instance 3: failed: b)."
    )
    assert engine.record.refused == 1 and engine.record.by_instance == (0, 1, 1)
    with pytest.raises(EngineError, match="no majority"):
        three(out(), EngineError("a")).infer([FRAME])
    with pytest.raises(EngineError, match="kind of payload"):
        three(out(), out(Detections(8, 8))).infer([FRAME])


def test_all_at_odds_is_as_uncertain_as_can_be() -> None:
    """The vote is still given, the most careful one."""
    engine = three(out(replace(ANSWER, advice=Advice.PROCEED)), out(replace(ANSWER, vehicles=2)), out(STOP))
    output = engine.infer([FRAME])
    assert isinstance(output.payload, SceneAdvice) and output.payload.advice is Advice.STOP
    assert output.uncertainty == pytest.approx(0.2 + 0.8 * 2 / 3)  # the second differs in a count that was outvoted
    assert engine.record.by_instance == (1, 1, 0)


def test_another_uncertainty_is_dissent_as_well() -> None:
    """At 0.99, 1 and 1.01 of the tolerance."""
    for share, last in ((0.99, ""), (1.0, ""), (1.01, "instance 3: uncertainty")):
        engines = [Scripted(out(uncertainty=0.5)) for _ in range(2)] + [Scripted(out(uncertainty=0.5 + 0.125 * share))]
        engine = RedundantEngine(engines, "homogeneous", Tolerance(0.5, 0.125))
        engine.infer([FRAME])
        assert engine.record.last == last


def test_times_add_up_and_the_adapter_is_that_of_the_answer() -> None:
    """The latency split tells the whole cost."""
    output = three(out(adapter="fog"), out(adapter="fog"), out(STOP, adapter="rain")).infer([FRAME])
    assert (output.pre_ms, output.infer_ms, output.adapter) == (3.0, 6.0, "fog")
    assert output.post_ms > 9.0  # the vote itself takes time
    output = three(out(adapter="fog"), out(adapter="rain")).infer([FRAME])
    assert output.adapter == ""
    output = RedundantEngine([Scripted(out())], "temporal").infer([FRAME])
    assert (output.pre_ms, output.infer_ms) == (2.0, 4.0) and output.post_ms > 6.0


def test_the_deadline_is_shared_out_among_the_runs_left() -> None:
    """The last run gets the whole rest."""
    now = iter([0, 300, 600])
    engines = [Scripted(out()) for _ in range(3)]
    RedundantEngine(engines, "homogeneous", clock=lambda: next(now)).infer([FRAME], "", 900)
    assert [engine.asked[0][2] for engine in engines] == [300, 600, 900]


def test_what_is_wrong_with_the_question_is_no_fault_of_an_instance() -> None:
    """It is raised as it is, and nobody dissented."""
    engine = three(InputError("too long"), out(), out())
    with pytest.raises(InputError):
        engine.infer([FRAME])
    assert engine.record.answers == 0


def test_temporal_with_a_failing_engine_raises_what_it_raises() -> None:
    """An engine that fails is no transient fault."""
    engine = RedundantEngine([Scripted(out(), EngineError("broken"))], "temporal")
    with pytest.raises(EngineError, match="broken"):
        engine.infer([FRAME])
    assert engine.record.answers == 0


def test_temporal_compares_uncertainty_as_well() -> None:
    """Same payload, another number behind it."""
    engine = RedundantEngine([Scripted(out(), out(uncertainty=0.3))], "temporal")
    with pytest.raises(EngineError, match="differ in uncertainty"):
        engine.infer([FRAME])
    close = RedundantEngine([Scripted(out(), out(uncertainty=0.205))], "temporal", CLOSE)
    assert close.infer([FRAME]).payload == ANSWER


@pytest.mark.parametrize(("mode", "count"), [("temporal", 2), ("homogeneous", 1), ("homogeneous", 6), ("none", 1)])
def test_a_number_of_engines_that_does_not_fit(mode: Mode, count: int) -> None:
    """Said with what does."""
    with pytest.raises(ConfigError, match=f"{count} engines do not make it"):
        RedundantEngine([Scripted(out()) for _ in range(count)], mode)


def test_engines_that_do_not_belong_together() -> None:
    """Another version; an engine whose second answer may rightly be another."""
    other = Scripted(out())
    other.version = "2"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="different engines"):
        RedundantEngine([Scripted(out()), other], "homogeneous")
    adapted = Scripted(out())
    adapted.adapters = ("fog",)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="engine scripted: redundancy: switches adapters"):
        RedundantEngine([adapted], "temporal")
    assert RedundantEngine([adapted, Scripted(out())], "homogeneous").id == "scripted"


def test_the_worst_device_is_reported() -> None:
    """One instance on the CPU is a fallback."""
    engines = [Scripted(out()) for _ in range(3)]
    engines[1].device = DeviceReport("cuda", "cpu", "x", 10, 10)
    engines[2].device = DeviceReport("cuda", "cuda", "x", 10, 1)
    assert RedundantEngine(engines, "homogeneous").device is engines[1].device


def test_all_are_closed_even_if_one_cannot() -> None:
    """The first error is not lost."""
    engines = [Scripted(out()) for _ in range(3)]

    def fail() -> None:
        raise RuntimeError("stuck")

    engines[1].close = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="stuck"):
        RedundantEngine(engines, "homogeneous").close()
    assert engines[0].closed and engines[2].closed


@pytest.mark.parametrize(("mode", "instances", "runs"), [("none", 3, 1), ("temporal", 5, 2), ("homogeneous", 3, 3)])
@pytest.mark.parametrize(("share", "fits"), [(0.99, True), (1.0, False), (1.01, False)])
def test_what_cannot_be_in_time_is_refused(mode: Mode, instances: int, runs: int, share: float, fits: bool) -> None:
    """At 0.99, 1 and 1.01 of the budget: at 1 nothing is left for the camera and for publishing."""
    nominal_ms = 32.0 * share / runs
    if fits:
        check_time(mode, instances, nominal_ms, Budget(0.032, 0.1, 0.05), "here")
    else:
        with pytest.raises(ConfigError) as caught:
            check_time(mode, instances, nominal_ms, Budget(0.032, 0.1, 0.05), "here")
        assert str(caught.value) == (
            f"here: redundancy: {runs} runs of {nominal_ms:g} ms leave nothing of the budget of 32 ms (got '{mode}'); "
            "take fewer instances, a faster engine or none."
        )
    with pytest.raises(ConfigError):
        check_time(mode, instances, float("nan"), Budget(0.032, 0.1, 0.05), "here")


@pytest.mark.parametrize(("mode", "loaded"), [("none", 1), ("temporal", 1), ("homogeneous", 4)])
def test_as_many_are_loaded_as_are_needed(mode: Mode, loaded: int) -> None:
    """None is the engine itself."""
    made: list[Scripted] = []

    def load() -> Engine:
        made.append(Scripted(out()))
        return made[-1]

    engine = redundant(load, mode, 4)
    assert len(made) == loaded <= MOST_INSTANCES
    assert (engine is made[0]) is (mode == "none")
    engine.close()
    assert all(one.closed for one in made)


def test_what_was_loaded_is_freed_when_a_later_one_cannot_be() -> None:
    """A refused engine leaves nothing behind."""
    made: list[Scripted] = []

    def load() -> Engine:
        if len(made) == 2:
            raise EngineError("out of memory")
        made.append(Scripted(out()))
        return made[-1]

    with pytest.raises(EngineError, match="out of memory"):
        redundant(load, "homogeneous", 3)
    assert [one.closed for one in made] == [True, True]
