"""Whatever comes in (P-26 to P-31): rubbish of every type and size at every boundary, and a defined answer to it."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from supervisor_rig import MS, Rig, driving

from triptych.contract import (
    BUDGETS,
    Advice,
    ConfigError,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Frame,
    Hazard,
    InputError,
    LatencySplit,
    Light,
    MotionConstraint,
    Obstacle,
    Obstacles,
    Odometry,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    Weather,
    crc_ok,
    protect,
)
from triptych.engines.protocol import EngineOutput
from triptych.replay import messages
from triptych.safety import Library, SafetyCore, SafetyLimits, command_of, constraint_record, motion_record
from triptych.supervisor.records import Commands
from triptych.tiers.core import TierCore

SECOND = 1000 * MS
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 5e-324, -0.0, 1e308, -1e308, 36.1, 0.1, 1.0, 0.8]),
)
TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "timeout", "\x00", "\ud800", "é" * 200, "; ", "{value}", "%s"])
)
WORD64 = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]))
BYTE = st.integers(0, 255)
DETECTION = st.builds(Detection, st.text(max_size=4), BYTE, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
PAYLOADS = st.one_of(
    st.builds(Detections, WORD64, WORD64, st.lists(DETECTION, max_size=3).map(tuple)),
    st.builds(
        SceneAdvice,
        st.sampled_from(Road), st.sampled_from(Weather), st.sampled_from(Light),
        st.lists(st.sampled_from(Hazard), max_size=3).map(tuple), st.sampled_from(Advice), BYTE, BYTE, BYTE,
        st.text(max_size=8), st.text(max_size=8), st.lists(FLOATS, max_size=3).map(tuple),
    ),
)  # fmt: skip
STAMP_NS = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(lambda sec: sec * SECOND),
    st.integers(-3000, 3000).map(lambda ms: ms * MS),  # relative to now, see ``near``
)
"""Far from now if beyond an hour, else an offset from it."""


def near(offset_ns: int, now_stamp_ns: int) -> int:
    """A stamp: offsets of up to an hour are relative to now."""
    return now_stamp_ns + offset_ns if abs(offset_ns) < 3600 * SECOND else offset_ns


RESULTS = st.builds(
    TierResult,
    tier=st.sampled_from(Tier), origin=st.sampled_from(Origin), reason=st.sampled_from(["", "timeout", "x" * 300]),
    source_stamp_ns=STAMP_NS, frame_id=st.text(max_size=4), frame_number=WORD64, published_ns=STAMP_NS, age_ms=FLOATS,
    latency=st.builds(LatencySplit, FLOATS, FLOATS, FLOATS, FLOATS), engine_id=st.text(max_size=4),
    engine_version=st.just(""), device=st.just(""), uncertainty=FLOATS, payload=PAYLOADS, sequence_counter=BYTE,
)  # fmt: skip
STATUSES = st.builds(
    TierStatus, STAMP_NS, st.sampled_from(Tier), st.sampled_from(TierState), st.booleans(),
    st.sampled_from(["", "; ", "clock_step", "frozen_picture; engine_hung", "x" * 500]), frames_received=WORD64,
    results_fresh=WORD64, sequence_counter=BYTE,
)  # fmt: skip
DRIVERS = st.builds(DriverState, STAMP_NS, st.booleans(), st.booleans(), st.booleans(), st.booleans(), BYTE)
ODOMETRIES = st.builds(Odometry, STAMP_NS, FLOATS)
OBSTACLES = st.builds(
    Obstacles, STAMP_NS, st.text(max_size=4), WORD64, FLOATS, st.booleans(), st.sampled_from(["", "x" * 500]),
    st.lists(st.builds(Obstacle, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, WORD64), max_size=3).map(tuple), BYTE,
)  # fmt: skip
MESSAGES = st.tuples(st.one_of(RESULTS, STATUSES, DRIVERS, ODOMETRIES, OBSTACLES), st.booleans(), st.none() | WORD64)
TICKS = st.tuples(
    st.lists(MESSAGES, max_size=4),
    st.sampled_from([0, 1, 10 * MS, 10 * MS, 60 * MS, 1100 * MS, 3600 * SECOND]),
    st.sampled_from(["", "", "", "reset", "takeover", "stamp back", "stamp ahead", "well"]),
)


def send(rig: Rig, message: Any, crc_right: bool, fingerprint: int | None) -> None:
    """A message as a node would hand it over: stamps in reach of now, checked or not."""
    core = rig.core
    name = "source_stamp_ns" if isinstance(message, TierResult) else "stamp_ns"
    message = replace(message, **{name: near(getattr(message, name), rig.stamp_ns)})
    if isinstance(message, TierResult):
        core.on_result(message, rig.now_ns, crc_right, fingerprint)
    elif isinstance(message, TierStatus):
        core.on_status(message, rig.now_ns, crc_right)
    elif isinstance(message, DriverState):
        core.on_driver(message, rig.now_ns, crc_right)
    elif isinstance(message, Obstacles):
        core.on_obstacles(message, rig.now_ns, crc_right)
    else:
        core.on_odometry(message, rig.now_ns)


def possible(rig: Rig, commands: Commands) -> bool:
    """Whether everything a tick says can be said, and the command is a safe one."""
    constraint, record = commands.constraint, commands.state
    if constraint is not None:
        assert 0.0 <= constraint.speed_limit_mps <= rig.config.speed_limit_max_mps
        assert 0.0 < constraint.deceleration_mps2 <= rig.config.manoeuvre_deceleration_max_mps2
        assert isinstance(constraint.state, DegradationState) and crc_ok(constraint)
        assert 0 < len(constraint.reason) <= 160
        stopping = constraint.state in {
            DegradationState.INITIALISING, DegradationState.L1_MINIMAL_RISK_MANOEUVRE, DegradationState.MRC
        }  # fmt: skip
        assert not stopping or constraint.speed_limit_mps == 0.0
    if record is not None:
        assert crc_ok(record) and 0.0 <= record.takeover_remaining_s <= rig.config.takeover_wait_s
    for verdict in commands.verdicts or ():
        assert len(verdict.text) <= 160 and isinstance(verdict.value, float)
    return True


@settings(max_examples=80)
@given(st.booleans(), st.lists(TICKS, min_size=1, max_size=12))
def test_p26_whatever_is_heard_the_command_is_a_possible_one(moving: bool, ticks: list[Any]) -> None:
    """P-26 (A6, A12): messages, clocks and requests of every kind, to a vehicle that drives and to one that starts."""
    rig = driving(20.0, lidar_expected=True) if moving else Rig(lidar_expected=True)
    rig.tick()
    for batch, pause_ns, event in ticks:
        for message, crc_right, fingerprint in batch:
            send(rig, message, crc_right, fingerprint)
        rig.now_ns += pause_ns
        if event == "reset":
            rig.core.request_reset(rig.now_ns)
        elif event == "takeover":
            rig.core.request_takeover(rig.now_ns)
        elif event.startswith("stamp"):
            rig.clock_step_ns += (-1 if event == "stamp back" else 1) * 10_000 * SECOND
        elif event == "well":
            rig.run(0.1)
        assert possible(rig, rig.core.step(rig.now_ns, rig.stamp_ns))
    for _ in range(20):
        assert possible(rig, rig.tick())


# ---- at the boundary to the middleware ----

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(), "double": FLOATS, "float": st.floats(width=32), "octet": BYTE,
    **{f"uint{n}": st.integers(0, 2**n - 1) | st.just(2**n - 1) for n in (8, 16, 32, 64)},
    **{f"int{n}": st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)},
}  # fmt: skip


BYTES_OF_SENSE = st.integers(0, 3) | st.integers(0, 3) | st.integers(0, 3) | BYTE


def values_of(kind: str) -> st.SearchStrategy[Any]:
    """Everything a message field of a type may hold, by the type's name in rosidl."""
    import importlib
    import re

    if bounded := re.fullmatch(r"sequence<(.+?)(?:, (\d+))?>", kind):
        most = min(int(bounded[2] or 4), 4)
        items = st.lists(values_of(bounded[1]), max_size=most)
        if bounded[1] in SCALARS:
            import array

            code = {"double": "d", "uint8": "B"}[bounded[1]]
            return items.map(lambda numbers: array.array(code, numbers))
        return items
    if kind.startswith("string"):
        limit = re.search(r"<(\d+)>", kind)
        most = int(limit[1]) if limit else 12
        letters = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
        return st.text(letters, max_size=min(most, 12)).map(lambda t: t.encode()[:most].decode(errors="ignore"))
    if kind == "uint8":
        return BYTES_OF_SENSE  # most are enumerations: some have to be known for the rest to be looked at
    if kind in SCALARS:
        return SCALARS[kind]
    if fixed := re.fullmatch(r"double\[(\d+)\]", kind):
        return FLOATS.map(lambda number: np.full(int(fixed[1]), number))
    package, name = kind.split("/")
    return messages_of(getattr(importlib.import_module(f"{package}.msg"), name))


def messages_of(cls: Any) -> st.SearchStrategy[Any]:
    """Messages of a class with every field of its type and of no particular sense."""
    fields = {name: values_of(kind) for name, kind in cls.get_fields_and_field_types().items()}
    return st.fixed_dictionaries(fields).map(lambda chosen: cls(**chosen))


READERS = {
    "Detections": "result", "SceneAdvice": "result", "TierStatus": "status", "MotionConstraint": "constraint",
    "DriverState": "driver", "DegradationState": "state", "Verdicts": "verdicts", "Obstacles": "obstacles",
}  # fmt: skip


@pytest.mark.parametrize("name", [*READERS, "Odometry"])
def test_p27_whatever_a_message_holds_becomes_a_record_or_is_refused_by_name(name: str) -> None:
    """P-27 (A6): every value of every field's type; the record can be checked, handed on and said again."""
    pytest.importorskip("rclpy")
    pytest.importorskip("triptych_ros")
    import nav_msgs.msg

    import triptych_ros.msg
    from triptych.nodes import convert

    cls = nav_msgs.msg.Odometry if name == "Odometry" else getattr(triptych_ros.msg, name)
    reader = READERS.get(name, "odometry")
    rig = driving(20.0, lidar_expected=True)
    seen: list[bool] = []

    @settings(max_examples=150)
    @given(messages_of(cls))
    def check(message: Any) -> None:
        try:
            record = getattr(convert, f"{reader}_from_msg")(message)
        except InputError:
            seen.append(False)
            return
        seen.append(True)
        if name == "Verdicts":
            assert convert.verdicts_to_msg(record, 0).verdicts == message.verdicts or any(
                math.isnan(v.value) or math.isnan(v.threshold) for v in record
            )
            return
        if name != "Odometry":
            fits = crc_ok(record)
            assert isinstance(fits, bool) and crc_ok(protect(record, 3))
        if reader in {"result", "status", "driver", "odometry", "obstacles"}:
            send(rig, record, True, None)
            rig.now_ns += 10 * MS
            assert possible(rig, rig.core.step(rig.now_ns, rig.stamp_ns))

    check()
    assert True in seen  # something must have come through, or nothing was tried


RECORDS = st.one_of(
    RESULTS,
    STATUSES,
    DRIVERS,
    OBSTACLES,
    st.builds(
        MotionConstraint, STAMP_NS, FLOATS, FLOATS, st.booleans(), st.booleans(), st.booleans(),
        st.sampled_from(DegradationState), st.text(max_size=200), st.integers(-2, 300), st.integers(-1, 2**33),
    ),
)  # fmt: skip


@settings(max_examples=150)
@given(RECORDS)
def test_p28_whatever_a_record_holds_the_middleware_gets_a_message_or_nothing(record: Any) -> None:
    """P-28: the middleware aborts the process on a value that does not fit: it is cut, held or refused before."""
    pytest.importorskip("rclpy")
    pytest.importorskip("triptych_ros")
    from rclpy.serialization import deserialize_message, serialize_message

    from triptych.nodes import convert

    writer = {
        TierResult: convert.result_to_msg, TierStatus: convert.status_to_msg, DriverState: convert.driver_to_msg,
        MotionConstraint: convert.constraint_to_msg, Obstacles: convert.obstacles_to_msg,
    }[type(record)]  # fmt: skip
    try:
        message = writer(record)
    except InputError:
        return
    assert type(deserialize_message(serialize_message(message), type(message))) is type(message)


# ---- an engine that answers anything ----

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), FLOATS, TEXTS, st.binary(max_size=3), st.just([]), st.just({})
)
ODD_BOX = st.builds(Detection, TEXTS | ANYTHING, BYTE | ANYTHING, *(FLOATS | ANYTHING for _ in range(5)))
ODD_PAYLOAD = st.one_of(
    PAYLOADS,
    ANYTHING,
    st.builds(Detections, WORD64 | ANYTHING, BYTE | ANYTHING, st.lists(ODD_BOX, max_size=2).map(tuple) | ANYTHING),
    st.builds(
        SceneAdvice,
        hazards=st.lists(st.sampled_from(Hazard) | ANYTHING, max_size=2).map(tuple) | ANYTHING,
        advice=st.sampled_from(Advice) | ANYTHING, vehicles=BYTE | ANYTHING, question=TEXTS, text=TEXTS | ANYTHING,
        token_probabilities=st.lists(FLOATS | ANYTHING, max_size=2).map(tuple) | ANYTHING,
    ),
)  # fmt: skip
OUTPUTS = st.builds(
    EngineOutput, ODD_PAYLOAD, *(FLOATS | ANYTHING for _ in range(4)), adapter=st.just("") | TEXTS | ANYTHING
)
GOOD = {
    Tier.DETECTOR: EngineOutput(Detections(8, 8, (Detection("car", 0, 0.5, 0.0, 0.0, 1.0, 1.0),)), 0.1, 1.0, 1.0, 1.0),
    Tier.FULL: EngineOutput(SceneAdvice(advice=Advice.PROCEED), 0.1, 1.0, 1.0, 1.0),
}


@settings(max_examples=300)
@given(st.sampled_from(list(GOOD)), OUTPUTS)
@example(Tier.FULL, EngineOutput(SceneAdvice(text="\ud800"), 0.1, 1.0, 1.0, 1.0))
@example(Tier.FULL, EngineOutput(SceneAdvice(question="\udfff"), 0.1, 1.0, 1.0, 1.0))
@example(Tier.DETECTOR, EngineOutput(Detections(8, 8, (Detection("\ud800", 0, 0.5, 0, 0, 1, 1),)), 0.1, 1.0, 1.0, 1.0))
@example(Tier.FULL, replace(GOOD[Tier.FULL], adapter="\ud800"))
@example(Tier.DETECTOR, replace(GOOD[Tier.DETECTOR], pre_ms=10**400))
def test_p29_whatever_an_engine_answers_the_tier_publishes_a_sound_result(tier: Tier, output: Any) -> None:
    """P-29 (A6, A7): never an exception, always one result, its CRC right, numbers finite; the next answer works."""
    core = TierCore(tier, BUDGETS[tier], engine_id="e", engine_version="1", device="cpu")
    now_ns, stamp_ns = 10 * SECOND, 1_700_000_000 * SECOND
    core.start(now_ns, stamp_ns)
    for number, answer in enumerate((output, GOOD[tier], output), 1):
        now_ns += 3 * SECOND
        stamp_ns += 3 * SECOND
        core.poll(now_ns, stamp_ns)
        assert (
            core.offer(Frame(np.zeros((4, 4, 3), np.uint8), stamp_ns, number, "cam", stamp_ns), now_ns, stamp_ns) == ""
        )
        assert core.take(now_ns) is not None
        result = core.finish(answer, now_ns + MS, stamp_ns + MS)
        assert result is not None and crc_ok(result) and math.isfinite(result.age_ms)
        assert 0.0 <= result.uncertainty <= 1.0
        if answer is GOOD[tier]:
            assert result.origin is Origin.FRESH
        elif result.origin is not Origin.FRESH:
            assert core.fault(now_ns + MS).startswith("engine_error: ")


# ---- the safety core's binding ----


@pytest.fixture(scope="module")
def library() -> Library:
    """The installed library; its own tests compile it anew."""
    try:
        return Library()
    except ConfigError as error:
        pytest.skip(str(error))


@settings(max_examples=200)
@given(data=st.data())
def test_p30_the_safety_cores_binding_takes_words_or_refuses_by_name(library: Library, data: st.DataObject) -> None:
    """P-30: numbers of any size and bytes of any length: a record, a command, or one sentence."""
    core = SafetyCore(SafetyLimits(), library)
    constraint = MotionConstraint(
        0, data.draw(FLOATS), data.draw(FLOATS), data.draw(st.booleans()), False, False,
        data.draw(st.sampled_from(DegradationState)), "",
    )  # fmt: skip
    words: list[bytes] = []
    for length, build in (
        (28, lambda: constraint_record(data.draw(st.integers()), constraint, data.draw(st.integers()))),
        (20, lambda: motion_record(data.draw(st.integers()), data.draw(FLOATS), data.draw(FLOATS), True)),
    ):
        try:
            record = build()
            assert len(record) == length
        except InputError:
            record = data.draw(st.binary(max_size=40))
        words.append(record)
    try:
        answer = core.step(*words, data.draw(st.integers()))
    except InputError:
        assert [len(record) for record in words] != [28, 20]
    else:
        command = command_of(answer, 0)
        assert command is not None and 0.0 <= command.constraint.speed_limit_mps <= 40.0
        assert 0.0 < command.constraint.deceleration_mps2 <= 4.0
    raw = data.draw(st.binary(max_size=40) | st.binary(min_size=24, max_size=24).map(sealed_body))
    try:
        other = command_of(raw, 0)
        assert other is None or math.isfinite(other.constraint.speed_limit_mps)
    except InputError:
        assert len(raw) == 28


def sealed_body(body: bytes) -> bytes:
    """Any words with a right CRC."""
    from triptych.safety.words import sealed

    return sealed(*struct.unpack("<6I", body))


# ---- recordings ----

TYPES = [*messages.IMAGE_TYPES, *messages.SPEED_TYPES, *messages.DRIVER_TYPES]
_PICTURE = np.zeros((4, 6, 3), np.uint8)
WHOLE = {
    messages.IMAGE_TYPES[0]: messages.serialize_image(_PICTURE, 5, "cam")[1],
    messages.SPEED_TYPES[0]: messages.serialize(Odometry(5, 3.0))[1],
    messages.DRIVER_TYPES[0]: messages.serialize(protect(DriverState(5), 1))[1],
}


@settings(max_examples=150)
@given(data=st.data())
def test_p31_whatever_bytes_a_recording_holds_they_are_read_or_refused_by_name(data: st.DataObject) -> None:
    """P-31: random bytes, and whole messages cut off or with some bytes changed, as every type, both serialisations."""
    kind = data.draw(st.sampled_from(TYPES))
    raw = data.draw(st.binary(max_size=80) | st.just(WHOLE.get(kind, b"")))
    damaged = bytearray(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    for place in data.draw(st.lists(st.integers(0, max(0, len(damaged) - 1)), max_size=4)):
        if damaged:
            damaged[place] = data.draw(BYTE)
    serialization = data.draw(st.sampled_from(["cdr", "cdr", "ros1", "xml"]))
    if kind in messages.DRIVER_TYPES and serialization == "ros1":
        serialization = "cdr"  # ROS 1 never had it
    where = Path("some.bag")
    try:
        message = messages.deserialize(bytes(damaged), kind, serialization, where)
        messages.stamp_of(message)
        if kind in messages.IMAGE_TYPES:
            picture = messages.image_of(message, where)
            assert picture.dtype == np.uint8 and picture.ndim == 3
        elif kind in messages.SPEED_TYPES:
            assert math.isfinite(messages.speed_of(message, where))
        else:
            driver = messages.driver_of(message)
            moved = messages.restamped_driver(driver, 7)
            assert crc_ok(moved) is crc_ok(driver)
    except InputError as error:
        assert str(error).startswith("some.bag")


def test_p31_a_whole_message_is_read() -> None:
    """P-31: the seeds of the damage above are sound."""
    for kind, raw in WHOLE.items():
        message = messages.deserialize(raw, kind, "cdr", "x")
        assert messages.stamp_of(message) == 5
