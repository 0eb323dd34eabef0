"""The lifecycle node in this process: what an exception in a transition does, what leaves the node, what gets in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image
from std_msgs.msg import String

from triptych import dds
from triptych.contract import EngineError, Frame, Origin, SceneAdvice, TierState, crc_ok
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.nodes import convert, io, tier_node, topics
from triptych.nodes.topics import RESULTS, STATUSES
from triptych_ros.msg import SceneAdvice as SceneAdviceMsg
from triptych_ros.msg import TierStatus

OK, FAILURE, ERROR = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE, TransitionCallbackReturn.ERROR


class EchoEngine:
    """Answers with the question it was asked; a real engine as far as the node can tell."""

    id, version, frames_wanted = "echo", "1", 1

    def __init__(self) -> None:
        self.device = DeviceReport("cpu", "cpu", "python")
        self.closed = False
        self.broken = ""

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        return EngineOutput(SceneAdvice(question=question, text="seen"), 0.2, 0.1, 1.0, 0.1)

    def golden(self) -> Frame:
        return Frame(np.zeros((8, 8, 3), np.uint8), 0, 1)

    def golden_ok(self, output: EngineOutput) -> str:
        return self.broken

    def close(self) -> None:
        self.closed = True


class World:
    """A tier node, and a node that plays camera and listens."""

    def __init__(self, **parameters: Any) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=dds.claim_domain())
        values = {
            "scheduling": "normal",
            "cpus": "all",
            "autostart": False,
            "budget_s": 1.0,
            "period_s": 0.2,
            **parameters,
        }
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        self.node = tier_node.TierNode("full", context=self.context, parameter_overrides=overrides)
        self.peer = Node("peer", context=self.context)
        self.results: list[Any] = []
        self.statuses: list[Any] = []
        tier = self.node.tier
        self.reader = io.PolledReader(self.peer)
        self.reader.add(SceneAdviceMsg, RESULTS[tier].name, io.DATA_QOS, lambda m: self.results.append(_result(m)))
        self.reader.add(TierStatus, STATUSES[tier].name, io.DATA_QOS, lambda m: self.statuses.append(_status(m)))
        self.camera = io.create_publisher(self.peer, Image, topics.CAMERA_IMAGE.name, io.SENSOR_OUT_QOS)
        self.node.begin()

    def until(self, condition: Callable[[], Any], seconds: float = 15.0, picture: bool = False, **changes: Any) -> None:
        rng = np.random.default_rng(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if picture:
                msg = convert.image_to_msg(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8), time.time_ns(), "cam")
                for name, value in changes.items():
                    setattr(msg, name, value)
                self.camera.publish(msg)
            self.reader.poll()
            if condition():
                return
            time.sleep(0.04)
        raise AssertionError(f"not within {seconds} s; last status {self.statuses[-1:]}")

    def close(self) -> None:
        self.node.close()
        self.reader.close()
        self.node.destroy_node()
        self.peer.destroy_node()
        self.context.try_shutdown()


def _result(msg: Any) -> Any:
    return convert.result_from_msg(msg)


def _status(msg: Any) -> Any:
    return convert.status_from_msg(msg)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> EchoEngine:
    made = EchoEngine()
    monkeypatch.setattr(tier_node, "locate", lambda name: name)
    monkeypatch.setattr(tier_node, "load_engine", lambda *_: made)
    return made


@pytest.fixture
def world(engine: EchoEngine) -> Iterator[World]:
    made = World()
    yield made
    made.close()


def last(world: World) -> Any:
    return world.statuses[-1] if world.statuses else None


def state_is(world: World, state: TierState) -> Callable[[], bool]:
    return lambda: bool(world.statuses) and last(world).state is state


def test_an_exception_inside_a_transition_is_seen_and_survived(
    world: World, engine: EchoEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: a defect in configure ends in the error state, named in the heartbeat; the next configure works."""
    loads: list[object] = []

    def load(*_: object) -> EchoEngine:
        loads.append(None)
        if len(loads) == 1:
            raise RuntimeError("no memory left")
        return engine

    monkeypatch.setattr(tier_node, "load_engine", load)
    assert world.node.trigger_configure() == ERROR
    world.until(lambda: state_is(world, TierState.ERROR)() and "no memory left" in last(world).fault)
    assert not last(world).healthy and crc_ok(last(world))
    assert world.node.trigger_configure() == OK
    world.until(state_is(world, TierState.LOADED))
    assert world.node.trigger_activate() == OK
    world.until(lambda: last(world) and last(world).healthy, picture=True)
    assert last(world).fault == "" and last(world).engine_id == "echo"


def test_a_refused_engine_leaves_the_node_unconfigured_and_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A14: refused with the reason before ACTIVE."""

    def load(*_: object) -> EchoEngine:
        raise EngineError("sha256 differs", where="engine.onnx", remedy="restore the file")

    monkeypatch.setattr(tier_node, "load_engine", load)
    assert world.node.trigger_configure() == FAILURE
    world.until(lambda: last(world) and "engine.onnx: sha256 differs; restore the file." in last(world).fault)
    assert last(world).state is TierState.ERROR


def test_a_failed_self_test_refuses_activation(world: World, engine: EchoEngine) -> None:
    """A5: a model that answers nothing on the golden frame."""
    engine.broken = "nothing found"
    assert world.node.trigger_configure() == OK
    assert world.node.trigger_activate() == FAILURE
    world.until(lambda: last(world) and "nothing found" in last(world).fault)
    assert last(world).state is TierState.ERROR and not world.results
    engine.broken = ""
    assert world.node.trigger_activate() == OK
    world.until(state_is(world, TierState.ACTIVE))


def test_frames_question_and_results(world: World, engine: EchoEngine) -> None:
    world.node.trigger_configure()
    world.node.trigger_activate()
    world.until(lambda: any(r.origin is Origin.FRESH for r in world.results), picture=True)
    asked = io.create_publisher(world.peer, String, topics.FULL_QUESTION.name, io.DATA_QOS)
    from rclpy.executors import SingleThreadedExecutor

    executor = SingleThreadedExecutor(context=world.context)
    executor.add_node(world.node)

    def answered() -> bool:
        asked.publish(String(data="is it wet?" + "é" * 200))
        executor.spin_once(0.05)
        return any(r.payload.question.startswith("is it wet?") for r in world.results)

    world.until(answered, picture=True)
    answer = next(r for r in world.results if r.payload.question)
    assert crc_ok(answer) and len(answer.payload.question.encode()) <= 128
    executor.shutdown()
    assert world.node.trigger_deactivate() == OK
    time.sleep(0.3)
    world.reader.poll()
    count = len(world.results)
    time.sleep(0.6)
    world.reader.poll()
    assert len(world.results) == count, "an inactive tier is quiet"
    assert world.node.trigger_cleanup() == OK and engine.closed


@pytest.mark.parametrize("changes", [{"encoding": "32FC1"}, {"width": 0}, {"step": 1}, {"height": 4000}])
def test_unusable_images_are_a_reported_fault_and_never_a_result(world: World, changes: dict[str, Any]) -> None:
    """An image of zero size, unknown encoding or wrong step while driving: a fault, and results go on as DEFAULT."""
    world.node.trigger_configure()
    world.node.trigger_activate()
    field = next(iter(changes))
    field = "data" if field == "height" else field
    world.until(lambda: last(world) and field in last(world).fault, picture=True, **changes)
    assert not last(world).healthy and last(world).fault.startswith("input_error: ") and crc_ok(last(world))
    world.until(lambda: world.results, picture=True, **changes)
    assert {r.origin for r in world.results} == {Origin.DEFAULT}
    world.until(lambda: last(world).healthy, picture=True)


def test_compressed_camera(engine: EchoEngine) -> None:
    world = World(image_transport="compressed")
    try:
        world.node.trigger_configure()
        world.node.trigger_activate()
        from sensor_msgs.msg import CompressedImage

        camera = io.create_publisher(
            world.peer, CompressedImage, topics.CAMERA_IMAGE.name + "/compressed", io.SENSOR_OUT_QOS
        )
        rng = np.random.default_rng(2)

        def fresh() -> bool:
            image = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            camera.publish(convert.compressed_to_msg(image, time.time_ns(), "cam"))
            return any(r.origin is Origin.FRESH for r in world.results)

        world.until(fresh)
    finally:
        world.close()


@pytest.fixture
def nominal_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The echo engine has no manifest; this is what it would say."""
    manifest = SimpleNamespace(latency=SimpleNamespace(nominal_ms=300.0))
    monkeypatch.setattr(tier_node, "load_manifest", lambda _: manifest)


def test_instances_that_cannot_be_in_time_are_refused(engine: EchoEngine, nominal_ms: None) -> None:
    """Four runs of 300 ms do not fit into a second; the node lives on and says so."""
    world = World(redundancy="homogeneous", instances=4)
    try:
        assert world.node.trigger_configure() == FAILURE
        assert "4 runs of 300 ms leave nothing of the budget of 1000 ms" in world.node._fault
        world.until(lambda: last(world) is not None and "4 runs of 300 ms" in last(world).fault)
    finally:
        world.close()


def test_dissent_is_seen_in_the_diagnostics(
    engine: EchoEngine, nominal_ms: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three echoes, of which one comes to hear something else on the road."""
    engines = [EchoEngine() for _ in range(3)]
    loaded = iter(engines)
    monkeypatch.setattr(tier_node, "load_engine", lambda *_: next(loaded))
    world = World(redundancy="homogeneous", instances=3)
    try:
        assert world.node.trigger_configure() == OK
        assert world.node.trigger_activate() == OK
        found = {v.key: v.value for v in world.node._diagnostic(world.node._status()).values}
        assert found["redundancy"] == "homogeneous, 3 instances" and found["last dissent"] == "none"
        deaf = EngineOutput(SceneAdvice(text="nothing"), 0.2, 0.1, 1.0, 0.1)
        engines[1].infer = lambda *_: deaf  # type: ignore[method-assign]
        world.until(lambda: any(r.origin is Origin.FRESH and r.uncertainty > 0.4 for r in world.results), picture=True)
        result = world.results[-1]
        assert result.payload.text == "seen" and result.uncertainty == pytest.approx(0.2 + 0.8 / 3)
        status = world.node._diagnostic(world.node._status())
        found = {v.key: v.value for v in status.values}
        assert found["last dissent"] == "instance 2: text" and found["dissents by instance"].startswith("0, ")
        assert status.level == b"\x01" and status.message == "instances differ: instance 2: text"
    finally:
        world.close()
    assert all(one.closed for one in engines)


def test_a_real_detector_twice_per_picture() -> None:
    """From parameters to the golden frame, with the shipped engine and its manifest."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=dds.claim_domain())
    values = {"scheduling": "normal", "cpus": "all", "autostart": False, "redundancy": "temporal"}
    overrides = [Parameter(name, value=value) for name, value in values.items()]
    node = tier_node.TierNode("detector", context=context, parameter_overrides=overrides)
    try:
        assert node.trigger_configure() == OK
        assert node.trigger_activate() == OK
        found = {v.key: v.value for v in node._diagnostic(node._status()).values}
        assert found["redundancy"] == "temporal" and found["answers / disputed / refused"] == "5 / 0 / 0"
    finally:
        node.close()
        node.destroy_node()
        context.try_shutdown()
