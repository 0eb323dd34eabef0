"""What reads bytes or text from outside, as functions of bytes: name -> callable.

The contract of all of them is :func:`try_one`'s.

A target that takes a file writes its bytes into one first; one that takes a message fills the message's fields with
them. Nothing here needs a fuzzer: ``fuzz.py`` drives the targets by coverage, ``test_fuzz_corpus.py`` without.
"""

from __future__ import annotations

import array
import atexit
import functools
import importlib
import math
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from triptych import session, stack
from triptych.contract import (
    DriverState,
    InputError,
    Odometry,
    PointCloud,
    SequenceChecker,
    TriptychError,
    crc_ok,
    protect,
)
from triptych.contract.lidar import MAX_OBSTACLES
from triptych.engines.manifest import load_manifest
from triptych.gates.golden import read_golden
from triptych.gates.limits import load_limits
from triptych.injection.campaign import load_campaign
from triptych.injection.run import known_trials
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary
from triptych.lidar import LidarConfig, LidarSensing
from triptych.lidar.cloud import decode_cloud
from triptych.remote.outbox import Outbox
from triptych.replay import messages
from triptych.replay.images import ENCODINGS, decode_compressed, decode_image
from triptych.replay.record import RunRecord
from triptych.replay.storage import FolderStore, open_file, read_metadata
from triptych.replay.video import ImageFolder
from triptych.report.schema import ResultJson
from triptych.resources import resource, share
from triptych.safety import SafetyCore, command_of
from triptych.safety.words import sealed
from triptych.supervisor.faults import load_faults
from triptych.supervisor.policy import load_policy

HERE = Path(__file__).parent
T0 = 1_700_000_000_000_000_000
MESSAGES_READ = 200
"""Of a recording; every one of a small file."""


@functools.cache
def scratch() -> Path:
    """A folder of this process, in memory where that is possible; it goes with the process."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="triptych-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def file_of(data: bytes, name: str) -> Path:
    """The bytes as a file; the only one in its folder."""
    folder = scratch() / name.replace(".", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / name
    path.write_bytes(data)
    return path


class Fields:
    """Bytes taken apart into values; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found.ljust(count, b"\0")

    def number(self, bits: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(bits // 8), "little", signed=signed)

    def real(self) -> float:
        return float(struct.unpack("<d", self.take(8))[0])

    def text(self, most: int) -> str:
        return self.take(min(self.number(8), most)).rstrip(b"\0").decode(errors="ignore").replace("\0", "")

    def rest(self) -> bytes:
        return self.take(self.left)


def filled(kind: str, fields: Fields) -> Any:
    """A value of a message field's type, by its name in rosidl."""
    if bounded := re.fullmatch(r"sequence<(.+?)(?:, (\d+))?>", kind):
        items = [filled(bounded[1], fields) for _ in range(fields.number(8) % 5)]
        codes = {"double": "d", "uint8": "B"}
        return array.array(codes[bounded[1]], items) if bounded[1] in codes else items
    if kind.startswith("string"):
        limit = re.search(r"<(\d+)>", kind)
        return fields.text(int(limit[1]) if limit else 40)
    if whole := re.fullmatch(r"(u?)int(\d+)", kind):
        return fields.number(int(whole[2]), signed=not whole[1])
    if fixed := re.fullmatch(r"double\[(\d+)\]", kind):
        return np.full(int(fixed[1]), fields.real())
    simple = {"boolean": lambda: bool(fields.number(8) & 1), "double": fields.real}
    if kind in simple:
        return simple[kind]()
    package, name = kind.split("/")
    return message_of(getattr(importlib.import_module(f"{package}.msg"), name), fields)


def message_of(cls: Any, fields: Fields) -> Any:
    """A message with every field from the bytes."""
    return cls(**{name: filled(kind, fields) for name, kind in cls.get_fields_and_field_types().items()})


def from_message(package: str, name: str, reader: str) -> Callable[[bytes], None]:
    """Target: a message of that class read by ``triptych.nodes.convert``; what comes out is checked and said again."""

    def run(data: bytes) -> None:
        from triptych.nodes import convert

        message = message_of(getattr(importlib.import_module(f"{package}.msg"), name), Fields(data))
        record = getattr(convert, f"{reader}_from_msg")(message)
        if hasattr(record, "crc"):
            assert isinstance(crc_ok(record), bool)
            assert crc_ok(protect(record, record.sequence_counter))
            getattr(convert, f"{reader}_to_msg")(record)

    return run


def camera_message(raw: bytes) -> None:
    """A raw picture with any header."""
    fields = Fields(raw)
    names = [*ENCODINGS, fields.text(12)]
    encoding = names[fields.number(8) % len(names)]
    width, height, step = (fields.number(32) if fields.number(8) == 255 else fields.number(8) % 40 for _ in range(3))
    # Most sizes small and most data of the right size, or no picture would ever come of it.
    fits = fields.number(8) != 255 and step * height < 1 << 16
    data = fields.take(step * height) if fits else fields.rest()
    picture = decode_image(data, height=height, width=width, encoding=encoding, step=step, where="topic")
    assert picture.shape == (height, width, 3) and picture.dtype == np.uint8


def lidar_points(raw: bytes) -> None:
    """A point cloud with any header; what is read of it is looked at for obstacles."""
    fields = Fields(raw)
    names = ["x", "y", "z", fields.text(4)]
    kinds = [7, 8, fields.number(8)]
    described = [
        (names[fields.number(8) % 4], fields.number(8) % 40, kinds[fields.number(8) % 3], fields.number(8) % 3)
        if fields.number(8) > 3
        else (name, 4 * index, 7, 1)
        for index, name in enumerate("xyz")
    ]
    width, height, step = (fields.number(32) if fields.number(8) == 255 else fields.number(8) % 40 for _ in range(3))
    step = step if fields.number(8) & 1 else 12
    fits = fields.number(8) != 255 and step * width * height < 1 << 16
    data = fields.take(step * width * height) if fits else fields.rest()
    points = decode_cloud(
        data,
        height=height,
        width=width,
        fields=described,
        point_step=step,
        row_step=step * width,
        is_bigendian=bool(fields.number(8) & 1),
        where="topic",
    )
    assert points.dtype == np.float32 and points.shape == (width * height, 3)
    found = LidarSensing(LidarConfig()).take(PointCloud(points, T0))
    assert len(found.obstacles) <= MAX_OBSTACLES and crc_ok(protect(found, 1))
    assert all(
        math.isfinite(v) for o in found.obstacles for v in (o.x_min_m, o.x_max_m, o.y_min_m, o.y_max_m, o.z_max_m)
    )


def compressed_picture(data: bytes) -> None:
    """A JPEG, PNG or whatever else OpenCV takes it for."""
    picture = decode_compressed(data, where="topic")
    assert picture.ndim == 3 and picture.dtype == np.uint8 and max(picture.shape) <= 8192


def folder_of_pictures(data: bytes) -> None:
    """The same as a file of a folder of images."""
    with closing(ImageFolder(file_of(data, "a.png").parent, 20.0)) as recording:
        for _ in recording.items():
            pass


def bag(kind: str, name: str) -> Callable[[bytes], None]:
    """Target: a storage file, listed and read to its end."""

    def run(data: bytes) -> None:
        with closing(open_file(file_of(data, name), kind)) as store:
            read(store)

    return run


def read(store: Any) -> None:
    """Every message, and the picture, speed or driver state in it."""
    for number, raw in enumerate(store.messages()):
        if number >= MESSAGES_READ:
            return
        if raw.topic.type in (*messages.IMAGE_TYPES, *messages.SPEED_TYPES, *messages.DRIVER_TYPES):
            try:
                content(raw.data, raw.topic.type, raw.topic.serialization)
            except InputError:
                continue


def content(data: bytes, kind: str, serialization: str) -> None:
    """One serialised message."""
    message = messages.deserialize(data, kind, serialization, "some.bag")
    messages.stamp_of(message)
    if kind in messages.IMAGE_TYPES:
        messages.image_of(message, "some.bag")
    elif kind in messages.SPEED_TYPES:
        assert math.isfinite(messages.speed_of(message, "some.bag"))
    else:
        messages.driver_of(message)


KINDS = (*messages.IMAGE_TYPES, *messages.SPEED_TYPES, *messages.DRIVER_TYPES)


def serialised_message(data: bytes) -> None:
    """A message of a recording: one byte for its type and serialisation, then the message."""
    first = data[0] if data else 0
    kind = KINDS[first % len(KINDS)]
    # ROS 1 never had the driver's message.
    content(data[1:], kind, "ros1" if first & 0x80 and kind not in messages.DRIVER_TYPES else "cdr")


def bag_metadata(data: bytes) -> None:
    """``metadata.yaml`` of a recording, alone and beside a storage file."""
    path = file_of(data, "metadata.yaml")
    (path.parent / "a.mcap").write_bytes(seeds_of_bags()["mcap"])
    with suppress(InputError):
        read_metadata(path)
    with closing(FolderStore(path.parent)) as store:
        read(store)


def loaded(load: Callable[[Path], Any], name: str) -> Callable[[bytes], None]:
    """Target: a loader of a file of that name."""

    def run(data: bytes) -> None:
        load(file_of(data, name))

    return run


def parameters(data: bytes) -> None:
    """A ROS parameter file, as those who look into it before the nodes do."""
    path = file_of(data, "params.yaml")
    for reader in (session.supervisor_settings, session.input_settings, stack.remote_target):
        try:
            reader(path)
        except TriptychError as error:
            sentence(error)


def scenario_parameters(data: bytes) -> None:
    """The driver's script in a parameter."""
    from triptych.nodes.scenario_node import driver_events

    driver_events(data.decode(errors="replace"))


def vocabulary(path: Path) -> None:
    """A vocabulary and the grammar made of it."""
    Grammar(Vocabulary.load(path), 64)


@functools.cache
def shipped_vocabulary() -> Vocabulary:
    path = share() / "models" / "triptych-full"
    return Vocabulary.load(next(path.glob("*vocabulary*.json")))


@functools.cache
def shipped_grammar() -> Grammar:
    return Grammar(shipped_vocabulary(), 64)


def question(data: bytes) -> None:
    """A free question, from whoever may publish one."""
    words = shipped_vocabulary()
    tokens = words.question(data.decode(errors="surrogateescape"))
    assert tokens[0] == words.bos and tokens[-1] == words.answer and words.decode(tokens) is not None


def answer(data: bytes) -> None:
    """Tokens of a model, as numbers of two bytes, under the grammar."""
    grammar = shipped_grammar()
    tokens = [
        number % (len(grammar.vocabulary) + 2)
        for number in struct.unpack(f"<{len(data) // 2}H", data[: len(data) & ~1])
    ]
    try:
        state = grammar.parse(tokens)
    except ValueError:
        return  # the documented answer to what is none
    grammar.payload(state, "", tuple(0.5 for _ in tokens))


def allowed_answer(data: bytes) -> None:
    """Choices among what the grammar allows: every one of them leads to an answer."""
    grammar = shipped_grammar()
    state, count = grammar.start(), 0
    for choice in data.ljust(grammar.max_tokens, b"\0"):
        if state.done:
            break
        (tokens,) = np.nonzero(grammar.allowed(state))
        state, count = grammar.advance(state, int(tokens[choice % len(tokens)])), count + 1
    assert state.done and count <= grammar.max_tokens
    grammar.payload(state, "", (0.5,) * count)


@functools.cache
def safety_core() -> SafetyCore:
    return SafetyCore()


def safety_records(data: bytes) -> None:
    """Records in shared memory, sealed or not, at any times; and bytes taken for a command."""
    fields, core = Fields(data), safety_core()
    now_ms = 0
    for _ in range(min(40, 1 + fields.left // 48)):
        how = fields.number(8)
        constraint, motion = fields.take(24), fields.take(16)
        constraint = sealed(*struct.unpack("<6I", constraint)) if how & 1 else constraint + fields.take(4)
        motion = sealed(*struct.unpack("<4I", motion)) if how & 2 else motion + fields.take(4)
        now_ms += fields.number(32) if how & 4 else 10
        command = command_of(core.step(constraint, motion, now_ms), 0)
        assert command is not None and 0.0 <= command.constraint.speed_limit_mps <= 40.0
        assert 0.0 < command.constraint.deceleration_mps2 <= 4.0
    command_of(data, 0)
    command_of(sealed(*struct.unpack("<6I", data[:24].ljust(24, b"\0"))), 0)


def sequence_counters(data: bytes) -> None:
    """Counters in any order."""
    checker = SequenceChecker()
    for counter in data:
        assert -1 <= checker.update(counter) < 255


def remote_queue(data: bytes) -> None:
    """The notifier's queue on disk; a second start reads what the first one made of it."""
    path = file_of(data, "queue")
    for _ in range(2):
        with closing(Outbox(path, 8, "vehicle")) as outbox:
            assert len(outbox) <= 8
            outbox.head()


def remote_queue_entry(data: bytes) -> None:
    """One entry of it whose CRC is right."""
    import zlib

    text = data.replace(b"\n", b" ")
    remote_queue(b"%08x %s\n" % (zlib.crc32(text), text))


def run_record(path: Path) -> None:
    """A record of a run."""
    RunRecord.load(path).entries()


def growing_record(data: bytes) -> None:
    """The same, read while it is being written."""
    tail = session.Tail(file_of(data, "record.jsonl"))
    for _ in range(2):
        list(tail.read())


def trials(path: Path) -> None:
    """What a campaign has done so far."""
    list(known_trials(path, "mark"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "msg-detections": from_message("triptych_ros", "Detections", "result"),
    "msg-scene-advice": from_message("triptych_ros", "SceneAdvice", "result"),
    "msg-status": from_message("triptych_ros", "TierStatus", "status"),
    "msg-constraint": from_message("triptych_ros", "MotionConstraint", "constraint"),
    "msg-driver": from_message("triptych_ros", "DriverState", "driver"),
    "msg-state": from_message("triptych_ros", "DegradationState", "state"),
    "msg-verdicts": from_message("triptych_ros", "Verdicts", "verdicts"),
    "msg-obstacles": from_message("triptych_ros", "Obstacles", "obstacles"),
    "msg-odometry": from_message("nav_msgs", "Odometry", "odometry"),
    "lidar-points": lidar_points,
    "sequence-counters": sequence_counters,
    "image-raw": camera_message,
    "image-compressed": compressed_picture,
    "image-folder": folder_of_pictures,
    "bag-sqlite": bag("sqlite3", "a.db3"),
    "bag-mcap": bag("mcap", "a.mcap"),
    "bag-ros1": bag("ros1", "a.bag"),
    "bag-metadata": bag_metadata,
    "bag-message": serialised_message,
    "engine-manifest": loaded(load_manifest, "manifest.yaml"),
    "fault-table": loaded(load_faults, "faults.yaml"),
    "policy": loaded(load_policy, "policy.yaml"),
    "campaign": loaded(load_campaign, "campaign.yaml"),
    "gate-limits": loaded(load_limits, "limits.yaml"),
    "gate-golden": loaded(read_golden, "a.golden"),
    "campaign-trials": loaded(trials, "trials.jsonl"),
    "parameters": parameters,
    "scenario-driver-events": scenario_parameters,
    "vocabulary": loaded(vocabulary, "vocabulary.json"),
    "question": question,
    "answer": answer,
    "answer-allowed": allowed_answer,
    "safety-records": safety_records,
    "remote-queue": remote_queue,
    "remote-queue-entry": remote_queue_entry,
    "run-record": loaded(run_record, "record.jsonl"),
    "run-record-growing": growing_record,
    "run-result": loaded(ResultJson.load, "result.json"),
}
"""The latch file of the supervisor is not among them: that it is there is all that is read of it."""


def try_one(name: str, data: bytes) -> bool:
    """Run a target: whether the bytes were accepted.

    The contract: bytes are taken, or refused by a :class:`TriptychError` that is one printable sentence. Anything else
    that comes out is a finding.
    """
    try:
        TARGETS[name](data)
    except TriptychError as error:
        sentence(error)
        return False
    return True


def sentence(error: TriptychError) -> None:
    """A refusal can be printed and sent."""
    text = str(error)
    text.encode()
    assert text and len(text) < 2000, f"{len(text)} characters"


# ---- something to start from ----


@functools.cache
def seeds_of_bags() -> dict[str, bytes]:
    """Small sound recordings, by storage."""
    from triptych.replay.writer import BagWriter

    found = {}
    picture = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
    for storage in ("mcap", "sqlite3"):
        folder = scratch() / f"seed-{storage}"
        shutil.rmtree(folder, ignore_errors=True)
        with BagWriter(folder, storage=storage) as writer:
            writer.write("camera/image_raw", *messages.serialize_image(picture, T0, "cam"), T0)
            writer.write("odometry", *messages.serialize(Odometry(T0, 3.0)), T0)
            writer.write("driver/state", *messages.serialize(protect(DriverState(T0), 1)), T0)
        found[storage] = next(p for p in folder.iterdir() if p.suffix in (".mcap", ".db3")).read_bytes()
    return found


def _files(*parts: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(resource(parts[0]).glob("/".join(parts[1:])))]


def _pictures() -> list[bytes]:
    import cv2

    picture = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
    return [cv2.imencode(suffix, picture)[1].tobytes() for suffix in (".png", ".jpg", ".bmp", ".tiff", ".webp", ".ppm")]


def _messages() -> list[bytes]:
    picture = np.zeros((4, 6, 3), np.uint8)
    bodies = {
        messages.IMAGE_TYPES[0]: messages.serialize_image(picture, 5, "cam")[1],
        messages.IMAGE_TYPES[1]: messages.serialize_compressed(_pictures()[1], 5, "cam")[1],
        messages.SPEED_TYPES[0]: messages.serialize(Odometry(5, 3.0))[1],
        messages.DRIVER_TYPES[0]: messages.serialize(protect(DriverState(5), 1))[1],
    }
    return [bytes([KINDS.index(kind)]) + body for kind, body in bodies.items()]


def _metadata() -> list[bytes]:
    seeds_of_bags()
    text = (scratch() / "seed-mcap" / "metadata.yaml").read_text()
    return [re.sub(r"[\w-]+\.mcap", "a.mcap", text).encode()]


def _queue_entries() -> list[bytes]:
    event = '{"event_id":"e","state":"MRC","since_ns":5,"reason":"r","faults":["f"],"told":true}'
    letter = '{"number":3,"event_id":"e","state":"MRC","urgent":true,"body":"{}"}'
    return [f'{{"letter":{letter},"event":{event},"gone":[1,2]}}'.encode(), f'{{"next":7,"event":{event}}}'.encode()]


def _queue() -> list[bytes]:
    from triptych.remote.journal import line

    return [line({"next": 4, "event": None}) + line({"gone": [3]})]


def _record() -> list[bytes]:
    from triptych.replay.record import RecordWriter

    path = scratch() / "seed.jsonl"
    with RecordWriter(path, {"mode": "lockstep"}):
        pass
    return [path.read_bytes()]


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "image-compressed": _pictures,
    "image-folder": _pictures,
    "bag-sqlite": lambda: [seeds_of_bags()["sqlite3"]],
    "bag-mcap": lambda: [seeds_of_bags()["mcap"]],
    "bag-message": _messages,
    "bag-metadata": _metadata,
    "engine-manifest": lambda: _files("models", "*/manifest.yaml"),
    "fault-table": lambda: _files("config", "faults.yaml"),
    "policy": lambda: _files("config", "policy.yaml"),
    "campaign": lambda: _files("config", "inject/*.yaml"),
    "gate-limits": lambda: _files("config", "gates.yaml"),
    "gate-golden": lambda: [path.read_bytes() for path in (HERE.parent / "replay" / "golden").glob("*.golden")],
    "parameters": lambda: _files("config", "params.yaml"),
    "scenario-driver-events": lambda: [b"12.5:silent,30:take_over"],
    "vocabulary": lambda: _files("models", "*/*vocabulary*.json"),
    "question": lambda: [b"how many vehicles do you see?"],
    "remote-queue": _queue,
    "remote-queue-entry": _queue_entries,
    "run-record": _record,
    "run-record-growing": _record,
}


def seeds(name: str) -> list[bytes]:
    """Sound inputs of a target, made or read here; none where nothing is sound in particular."""
    return SEEDS[name]() if name in SEEDS else []


def corpus(name: str) -> Iterator[Path]:
    """Committed findings of a target."""
    yield from sorted((HERE / "corpus" / name).glob("*"))
