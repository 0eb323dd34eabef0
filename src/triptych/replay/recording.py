"""Recordings as the core wants them: camera frames, vehicle speed and driver state in order of time.

``open_recording`` takes a rosbag2 folder or file (SQLite, MCAP), a ROS 1 bag, a video file or a folder of images.
``inspect`` says what is in one. Neither needs ROS, and neither ever writes into the recording's folder.

Time of an item: the stamp in its header, because that is when the camera looked, and the delay between camera and
recorder is not the stack's. A topic whose stamps are unusable (no header, zero, or more than 10 s from the time of
recording: another clock) is timed by its time of recording, which is said in ``warnings``. A stamp that does not move
on, goes back or jumps by more than 0.5 s against the recorder is kept as it is, and its message comes when the recorder
got it, less the topic's usual delay: such faults are what replay is there to show.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.contract import DriverState, Frame, InputError, Odometry
from triptych.replay import messages
from triptych.replay.storage import (
    READABLE_SERIALIZATIONS,
    Raw,
    Store,
    Topic,
    natural_key,
    open_store,
)

ROLES = ("camera", "odometry", "driver")
"""What a topic can be used as; keys of a topic mapping."""
TYPES: Mapping[str, tuple[str, ...]] = {
    "camera": messages.IMAGE_TYPES,
    "odometry": messages.SPEED_TYPES,
    "driver": messages.DRIVER_TYPES,
}
STAMP_TRUST_NS = 10 * messages.NS
"""Header stamps further than this from the time of recording belong to another clock."""
REORDER_NS = messages.NS // 2
"""Messages are sorted by stamp within this window of recording time: more than any recorder's delay worth replaying."""
VIDEO_EPOCH_NS = 1_600_000_000 * messages.NS
"""Stamp of the first frame of inputs that carry no time of their own; fixed, so that every replay is the same."""
DEFAULT_IMAGE_FPS = 20.0
"""Rate of a folder of images: one frame per detector period."""
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm", ".gif")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
NOT_A_CAMERA = ("depth", "disparity", "infra", "mask", "annotated", "segmentation", "label")
"""Words in the names of image topics that are not the camera's picture."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that happens at ``t_ns`` (see the module's docstring). Items come in order of ``t_ns``."""

    t_ns: int
    value: Frame | Odometry | DriverState


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as ``triptych bag info`` lists it; ``role`` is what replay would use it for, empty for nothing."""

    name: str
    type: str
    count: int
    serialization: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """What is in a recording.

    Attributes:
        kind: "rosbag2", "ros1", "video" or "images".
        storage: "sqlite3", "mcap", "ros1", or the container of a video, or the suffixes of images.
        duration_s: first to last message or frame.
        warnings: worth knowing; replay works.
        problems: replay refuses it for these unless told to salvage.
    """

    path: Path
    kind: str
    storage: str
    topics: tuple[TopicInfo, ...]
    message_count: int
    start_ns: int
    duration_s: float
    size_bytes: int
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Recording(ABC):
    """An open recording. Use as a context manager or call :meth:`close`.

    Attributes:
        path: what the user named.
        chosen: role -> topic it is read from ("" for inputs without topics).
        missing: roles the recording has nothing for; replay makes them up and says so.
        warnings: grows while reading.
    """

    path: Path
    chosen: dict[str, str]
    warnings: list[str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Roles without a source, in the order of :data:`ROLES`."""
        return tuple(r for r in ROLES if r not in self.chosen)

    @property
    @abstractmethod
    def info(self) -> RecordingInfo:
        """What is in it."""

    @abstractmethod
    def _all(self, from_s: float) -> Iterator[Item]:
        """Every item from about ``from_s`` seconds on, in order of time."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files it consists of, for the data hash."""

    def items(self, start_s: float = 0.0, duration_s: float | None = None) -> Iterator[Item]:
        """Items from ``start_s`` seconds after the recording's start, for ``duration_s`` seconds (None: to the end).

        May be called again to play from the start. Frame numbers count from 1 in each pass.

        Raises:
            InputError: a message that cannot be used, or an option out of range.
        """
        check_range(start_s, duration_s)
        start_ns = self.info.start_ns + round(start_s * messages.NS)
        end_ns = math.inf if duration_s is None else start_ns + round(duration_s * messages.NS)
        # The first picture was taken a little before anything was recorded; it belongs to the whole recording.
        from_ns = start_ns if start_s else -math.inf
        number = 0
        for item in self._all(start_s):
            if item.t_ns >= end_ns + REORDER_NS:
                return
            if not from_ns <= item.t_ns < end_ns:
                continue
            if isinstance(item.value, Frame):
                number += 1
                item = Item(item.t_ns, dataclasses.replace(item.value, number=number))
            yield item

    def data_hash(self) -> str:
        """``sha256:...`` over names and contents of the files."""
        digest = hashlib.sha256()
        for path in self.files():
            digest.update(path.name.encode() + b"\0")
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return f"sha256:{digest.hexdigest()}"

    def close(self) -> None:  # noqa: B027 - not every recording holds a file open
        """Free files; safe to call twice."""

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_range(start_s: float, duration_s: float | None) -> None:
    """Check the options ``start`` and ``duration``.

    Raises:
        InputError: not finite, ``start_s`` below 0, ``duration_s`` not above 0.
    """
    if not (math.isfinite(start_s) and start_s >= 0):
        raise InputError(
            "must be 0 or more seconds", field="start", value=start_s, remedy="give seconds from the start"
        )
    if duration_s is not None and not (math.isfinite(duration_s) and duration_s > 0):
        raise InputError(
            "must be above 0 seconds", field="duration", value=duration_s, remedy="leave it out for everything"
        )


def open_recording(
    path: Path | str, topics: Mapping[str, str] | None = None, *, fps: float | None = None, salvage: bool = False
) -> Recording:
    """Open anything that can be replayed.

    Args:
        topics: role -> topic name where the automatic choice is not wanted, e.g. ``{"camera": "/front/image_raw"}``;
            an empty name leaves the role out (not possible for the camera).
        fps: rate of a folder of images (default 20); not for other inputs.
        salvage: use what can be read of an incomplete recording; its damage becomes warnings.

    Raises:
        InputError: one sentence: file, field, value, remedy.
    """
    source = Path(path)
    _check_mapping(topics or {})
    kind = recording_kind(source)
    if kind in ("video", "images"):
        from triptych.replay.video import ImageFolder, VideoFile

        if used := [r for r, t in (topics or {}).items() if t]:
            raise InputError(
                f"a {'video' if kind == 'video' else 'folder of images'} has no topics",
                where=source,
                field="topic",
                value=f"{used[0]}={(topics or {})[used[0]]}",
                remedy="leave --topic out",
            )
        return ImageFolder(source, DEFAULT_IMAGE_FPS if fps is None else fps) if kind == "images" else VideoFile(source)
    if fps is not None:
        raise InputError("is only for a folder of images", where=source, field="fps", value=fps, remedy="leave it out")
    return Bag(source, topics or {}, salvage=salvage)


def inspect(path: Path | str) -> RecordingInfo:
    """What is in a recording, including what is wrong with it.

    Raises:
        InputError: nothing in it can be read.
    """
    source = Path(path)
    kind = recording_kind(source)
    if kind in ("video", "images"):
        with open_recording(source) as recording:
            return recording.info
    store = open_store(source)
    try:
        return _bag_info(source, store)
    finally:
        store.close()


def recording_kind(path: Path) -> str:
    """ "bag", "video" or "images".

    Raises:
        InputError: nothing there, or nothing that can be played.
    """
    if not path.exists():
        raise InputError("does not exist", where=path, remedy="check the path")
    if path.is_dir():
        return _folder_kind(path)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return "video"
    if path.suffix.lower() in IMAGE_SUFFIXES:
        raise InputError("is a single image", where=path, remedy="name the folder of images or a video")
    return "bag"


def _folder_kind(path: Path) -> str:
    try:
        files = [p for p in path.iterdir() if not p.name.startswith(".")]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check its permissions") from None
    names = [p.name.lower() for p in files]
    if "metadata.yaml" in names or any(n.endswith((".db3", ".mcap", ".db3.zstd", ".mcap.zstd")) for n in names):
        return "bag"
    if any(n.endswith(IMAGE_SUFFIXES) for n in names):
        return "images"
    single = [p.name for p in files if p.suffix.lower() in (*VIDEO_SUFFIXES, ".bag")]
    raise InputError(
        "holds nothing that can be played" if not single else "is no recording itself",
        where=path,
        remedy=f"name the file, e.g. {path / single[0]}"
        if single
        else "name a rosbag2 folder, a .db3, .mcap or .bag file, a video or a folder of images",
    )


def _check_mapping(topics: Mapping[str, str]) -> None:
    for role, topic in topics.items():
        if role not in ROLES:
            raise InputError(
                "is not an input", field="topic", value=f"{role}={topic}", remedy=f"use one of {', '.join(ROLES)}"
            )
        if role == "camera" and not topic:
            raise InputError("replay needs a camera", field="topic", value="camera=", remedy="name an image topic")


# --- bags ----------------------------------------------------------------------------------------------------


class Bag(Recording):
    """A rosbag2 or ROS 1 recording."""

    def __init__(self, path: Path, topics: Mapping[str, str], *, salvage: bool) -> None:
        self.path, self._salvage = path, salvage
        self._store = open_store(path)
        try:
            self.warnings = list(self._store.warnings)
            if self._store.damage and not salvage:
                raise self._store.damage[0]
            self.warnings += [str(d) for d in self._store.damage]
            self._roles = choose_topics(path, self._store.topics, topics, self.warnings)
            self.chosen = {role: topic.name for role, topic in self._roles.items()}
            self._info = _bag_info(path, self._store, self._roles)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> RecordingInfo:
        return self._info

    def files(self) -> list[Path]:
        return (
            [self.path]
            if self.path.is_file()
            else sorted((p for p in self.path.iterdir() if p.is_file()), key=natural_key)
        )

    def close(self) -> None:
        self._store.close()

    def _all(self, from_s: float) -> Iterator[Item]:
        """Items in order of stamp: messages wait in a heap until nothing earlier can come, pictures still encoded."""
        role_of = {topic.name: role for role, topic in self._roles.items()}
        from_ns = self._info.start_ns + round(from_s * messages.NS) - REORDER_NS if from_s > 0 else None
        timers = {role: _Timer(topic.name, self.warnings) for role, topic in self._roles.items()}
        heap: list[tuple[int, int, Raw, Any]] = []
        last_ns = 0

        def earliest() -> Item:
            nonlocal last_ns
            entry = heapq.heappop(heap)
            role = role_of[entry[2].topic.name]
            last_ns = max(last_ns, entry[0])
            return self._item(role, timers[role], entry, last_ns)

        for sequence, raw in enumerate(self._raw(set(role_of), from_ns)):
            where = f"{self.path} {raw.topic.name} message {sequence + 1}"
            message = messages.deserialize(raw.data, raw.topic.type, raw.topic.serialization, where)
            t_ns = timers[role_of[raw.topic.name]].time_of(message, raw.t_ns)
            heapq.heappush(heap, (t_ns, sequence, raw, message))
            while heap and heap[0][0] <= raw.t_ns - REORDER_NS:
                yield earliest()
        while heap:
            yield earliest()

    def _raw(self, names: set[str], from_ns: int | None) -> Iterator[Raw]:
        try:
            yield from self._store.messages(names, from_ns)
        except InputError as error:
            if not self._salvage:
                raise
            self.warnings.append(str(error))

    def _item(self, role: str, timer: _Timer, entry: tuple[int, int, Raw, Any], at_ns: int) -> Item:
        t_ns, sequence, raw, message = entry
        where = f"{self.path} {raw.topic.name} message {sequence + 1}"
        stamp_ns = timer.stamp_of(message, t_ns)
        if role == "camera":
            frame_id = str(message.header.frame_id) or "camera_optical_frame"
            return Item(at_ns, Frame(messages.image_of(message, where), stamp_ns, 1, frame_id))
        if role == "odometry":
            return Item(at_ns, Odometry(stamp_ns, messages.speed_of(message, where, salvage=self._salvage)))
        driver = messages.driver_of(message)
        return Item(at_ns, driver if timer.trusted else messages.restamped_driver(driver, stamp_ns))


class _Timer:
    """When the messages of one topic happen (see the module's docstring); the first one decides which clock counts."""

    def __init__(self, topic: str, warnings: list[str]) -> None:
        self._topic, self._warnings = topic, warnings
        self.trusted: bool | None = None
        self._last_ns = self._delay_ns = 0

    def time_of(self, message: Any, recorded_ns: int) -> int:
        stamp_ns = messages.stamp_of(message)
        if self.trusted is None:
            self.trusted = bool(stamp_ns) and abs(stamp_ns - recorded_ns) <= STAMP_TRUST_NS
            self._last_ns, self._delay_ns = stamp_ns - 1, recorded_ns - stamp_ns
            text = f"{self._topic}: stamped by another clock than the recorder's, so the times of recording are used"
            if not self.trusted and text not in self._warnings:
                self._warnings.append(text)
        if not self.trusted:
            return recorded_ns
        expected_ns = recorded_ns - self._delay_ns
        if stamp_ns > self._last_ns and abs(stamp_ns - expected_ns) <= REORDER_NS:
            self._last_ns, self._delay_ns = stamp_ns, recorded_ns - stamp_ns
            return stamp_ns
        return expected_ns

    def stamp_of(self, message: Any, t_ns: int) -> int:
        """The stamp the message is delivered with."""
        return messages.stamp_of(message) if self.trusted else t_ns


def choose_topics(path: Path, topics: list[Topic], wanted: Mapping[str, str], warnings: list[str]) -> dict[str, Topic]:
    """Which topic plays which role.

    The camera must be unambiguous: the only image topic with messages, after depth images, masks and the compressed
    twin of a raw topic are set aside, or one called ``camera/image_raw``. Speed and driver are optional.

    Raises:
        InputError: no or several possible cameras, or a wanted topic that is not there or has another type.
    """
    chosen: dict[str, Topic] = {}
    for role in ROLES:
        if role in wanted:
            if wanted[role]:
                chosen[role] = _named(path, topics, role, wanted[role])
            continue
        candidates = [t for t in topics if t.type in TYPES[role] and t.count]
        readable = [t for t in candidates if t.serialization in READABLE_SERIALIZATIONS]
        if role == "camera":
            chosen[role] = _camera(path, topics, candidates, readable)
        elif readable:
            ranked = sorted(readable, key=lambda t: (TYPES[role].index(t.type), t.name))
            chosen[role] = ranked[0]
            if len(ranked) > 1:
                others = ", ".join(t.name for t in ranked[1:])
                warnings.append(
                    f"{path}: {role} is read from {ranked[0].name}; --topic {role}= chooses among it and {others}"
                )
    for role, topic in chosen.items():
        _check_readable(path, topic, role)
    return chosen


def _check_readable(path: Path, topic: Topic, role: str) -> None:
    if topic.serialization not in READABLE_SERIALIZATIONS:
        raise InputError(
            f"the {role} topic {topic.name} has a serialisation that cannot be read",
            where=path,
            field="serialization_format",
            value=topic.serialization,
            remedy="record it with the default serialisation cdr",
        )


def _named(path: Path, topics: list[Topic], role: str, name: str) -> Topic:
    found = next((t for t in topics if t.name.strip("/") == name.strip("/")), None)
    if found is None:
        fitting = [t.name for t in topics if t.type in TYPES[role]]
        raise InputError(
            f"the recording has no topic {name}",
            where=path,
            field="topic",
            value=f"{role}={name}",
            remedy=_list(fitting, role),
        )
    if found.type not in TYPES[role]:
        raise InputError(
            f"{found.name} is a {found.type}",
            where=path,
            field="topic",
            value=f"{role}={name}",
            remedy=f"name one of type {' or '.join(TYPES[role])}",
        )
    if not found.count:
        raise InputError(
            f"{found.name} has no messages",
            where=path,
            field="topic",
            value=f"{role}={name}",
            remedy="name another topic",
        )
    return found


def _list(names: list[str], role: str) -> str:
    return f"name one of {', '.join(names)}" if names else f"it has no topic that could be the {role}"


def _camera(path: Path, topics: list[Topic], candidates: list[Topic], readable: list[Topic]) -> Topic:
    if not any(t.count for t in topics):
        raise InputError(
            "the recording holds no messages", where=path, remedy="record it again with the camera running"
        )
    if not readable:
        foreign = next((t for t in [*candidates, *topics] if t.serialization not in READABLE_SERIALIZATIONS), None)
        if foreign:
            _check_readable(path, foreign, "camera" if foreign in candidates else "recorded")
        shown = ", ".join(f"{t.name} ({t.type})" for t in topics[:5]) + (", ..." if len(topics) > 5 else "")
        raise InputError(
            f"the recording has no camera topic of type {' or '.join(TYPES['camera'])}",
            where=path,
            field="topics",
            value=shown,
            remedy="record a camera, or make a bag from a video with 'triptych bag from-video'",
        )
    raw = {t.name for t in readable if t.type == messages.IMAGE_TYPES[0]}
    pictures = [
        t
        for t in readable
        if not any(word in t.name.lower() for word in NOT_A_CAMERA)
        and t.name.removesuffix("/compressed") not in raw - {t.name}
    ]
    preferred = [t for t in pictures if t.name.strip("/") == "camera/image_raw"]
    for choice in (preferred, pictures, readable):
        if len(choice) == 1:
            return choice[0]
    names = [t.name for t in (pictures or readable)]
    raise InputError(
        f"the recording has {len(names)} possible camera topics",
        where=path,
        field="topics",
        value=", ".join(names),
        remedy=f"choose one, e.g. --topic camera={names[0]}",
    )


def _bag_info(path: Path, store: Store, roles: Mapping[str, Topic] | None = None) -> RecordingInfo:
    if roles is None:
        try:
            roles = choose_topics(path, store.topics, {}, [])
        except InputError:
            roles = {}
    role_of = {t.name: r for r, t in roles.items()}
    files = [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()]
    foreign = [t for t in store.topics if t.serialization not in READABLE_SERIALIZATIONS]
    unreadable = [
        f"{path}: serialization_format of {t.name} is {t.serialization!r}, which cannot be read" for t in foreign
    ]
    return RecordingInfo(
        path=path,
        kind="ros1" if store.kind == "ros1" else "rosbag2",
        storage=store.kind,
        topics=tuple(
            TopicInfo(t.name, t.type, t.count, t.serialization, role_of.get(t.name, "")) for t in store.topics
        ),
        message_count=sum(t.count for t in store.topics),
        start_ns=store.start_ns,
        duration_s=(store.end_ns - store.start_ns) / messages.NS,
        size_bytes=sum(p.stat().st_size for p in files),
        warnings=tuple(store.warnings),
        problems=(*(str(d) for d in store.damage), *unreadable),
    )
