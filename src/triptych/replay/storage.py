"""Raw messages out of recordings: one :class:`Store` per file format, one place that decides which.

A store yields serialised messages; what they mean is decided in :mod:`triptych.replay.messages`. Files are only ever
opened for reading, and SQLite files as immutable, so that a read-only folder works and nothing appears beside them.

Damage and strictness: what makes a recording incomplete (fewer messages than promised, no closing record, no metadata)
is collected as an :class:`InputError` in ``Store.damage``. Readers raise the first of them unless they were asked to
salvage; then the same sentences are warnings and what can be read is read.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml
import zstandard

from triptych.contract import InputError, TriptychError
from triptych.documents import parse_yaml

SALVAGE_HINT = "record it again, or add --salvage to use what is there"
READABLE_SERIALIZATIONS = ("cdr", "ros1")
MAGIC_SQLITE = b"SQLite format 3\x00"
MAGIC_MCAP = b"\x89MCAP0\r\n"
MAGIC_ROS1 = b"#ROSBAG V"


@dataclass(slots=True)
class Topic:
    """One topic of a recording: ``type`` is ``package/msg/Name``, ``serialization`` "cdr" or "ros1" when readable."""

    name: str
    type: str
    serialization: str
    count: int


class Raw(NamedTuple):
    """A message as stored: topic, time of recording in nanoseconds, serialised content."""

    topic: Topic
    t_ns: int
    data: bytes


class Store(Protocol):
    """An open recording file or folder.

    Attributes:
        path: what the user named.
        kind: "sqlite3", "mcap" or "ros1".
        topics: all topics, in the order of the file.
        start_ns, end_ns: times of the first and last message, 0 when there is none.
        warnings: sentences worth showing.
        damage: what makes the recording incomplete, see the module's docstring.
    """

    path: Path
    kind: str
    topics: list[Topic]
    start_ns: int
    end_ns: int
    warnings: list[str]
    damage: list[InputError]

    def messages(self, topics: Collection[str] | None = None, from_ns: int | None = None) -> Iterator[Raw]:
        """Messages of the named topics (all if None) from ``from_ns`` on, by time where the format has an index.

        Raises:
            InputError: the file breaks off or is corrupt at that place.
        """

    def close(self) -> None:
        """Close files; safe to call twice."""


@contextmanager
def reading(path: Path, remedy: str = SALVAGE_HINT) -> Iterator[None]:
    """Turn whatever a parser throws at a broken file into one sentence about ``path``.

    Parsers of untrusted bytes fail in many ways (struct, unicode, value, memory errors); no user may see which.
    """
    try:
        yield
    except TriptychError:
        raise
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(
            f"cannot be read: {problem}", where=path, remedy="check the path and its permissions"
        ) from error
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0].rstrip(".")[:160]
        raise InputError(f"is damaged ({type(error).__name__}: {text})", where=path, remedy=remedy) from error


def ros2_type(name: str) -> str:
    """Spell ROS 1 and short type names as ROS 2 does: ``sensor_msgs/Image`` → ``sensor_msgs/msg/Image``."""
    parts = name.split("/")
    return f"{parts[0]}/msg/{parts[1]}" if len(parts) == 2 else name


def file_kind(path: Path) -> str | None:
    """ "sqlite3", "mcap" or "ros1" by the first bytes of the file; by its suffix if those say nothing; None for others.

    Raises:
        InputError: the file is empty or cannot be opened.
    """
    suffix = {".db3": "sqlite3", ".mcap": "mcap", ".bag": "ros1"}.get(path.suffix.lower())
    with reading(path), path.open("rb") as file:
        head = file.read(16)
    if not head and suffix:
        raise InputError("is empty (0 bytes)", where=path, remedy="record it again")
    for magic, kind in ((MAGIC_SQLITE, "sqlite3"), (MAGIC_MCAP, "mcap"), (MAGIC_ROS1, "ros1")):
        if head.startswith(magic):
            return kind
    return suffix


def open_file(path: Path, kind: str) -> Store:
    """Open one storage file of a known kind."""
    from triptych.replay.storage_mcap import McapStore
    from triptych.replay.storage_ros1 import Ros1Store
    from triptych.replay.storage_sqlite import SqliteStore

    openers: Mapping[str, type[Any]] = {"sqlite3": SqliteStore, "mcap": McapStore, "ros1": Ros1Store}
    store: Store = openers[kind](path)
    return store


def open_store(path: Path) -> Store:
    """Open a rosbag2 folder or a single .db3, .mcap, .bag file (the first two also with .zstd).

    Raises:
        InputError: not a recording, or damaged so that nothing can be read.
    """
    if path.is_dir():
        return FolderStore(path)
    if path.suffix == ".zstd":
        return FolderStore(path.parent, files=[path], metadata=None)
    kind = file_kind(path)
    if kind is None:
        raise InputError("is not a recording", where=path, remedy="name a rosbag2 folder, a .db3, .mcap or .bag file")
    return open_file(path, kind)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What ``metadata.yaml`` promises."""

    files: tuple[str, ...]
    counts: Mapping[str, int]
    message_count: int
    serializations: Mapping[str, str]
    compression_mode: str
    compression_format: str
    storage: str


def read_metadata(path: Path) -> Metadata:
    """Parse a rosbag2 ``metadata.yaml`` (format versions 1 to 9).

    Raises:
        InputError: unreadable, not YAML, a field missing or of a wrong type.
    """
    remedy = "restore the file, run 'ros2 bag reindex', or add --salvage to read without it"
    try:
        with reading(path, remedy):
            document = parse_yaml(path.read_bytes())
    except InputError as error:
        if isinstance(error.__cause__, (yaml.YAMLError, UnicodeError)):
            raise InputError("is not valid YAML", where=path, remedy=remedy) from None
        raise

    def get(holder: Any, key: str, kind: type, where: str) -> Any:
        value = holder.get(key) if isinstance(holder, Mapping) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                "is missing or of the wrong type", where=path, field=f"{where}{key}", value=value, remedy=remedy
            )
        return value

    info = get(document, "rosbag2_bagfile_information", dict, "")
    topics = get(info, "topics_with_message_count", list, "")
    counts: dict[str, int] = {}
    serializations: dict[str, str] = {}
    for index, entry in enumerate(topics):
        where = f"topics_with_message_count[{index}]."
        topic = get(entry, "topic_metadata", dict, where)
        name = get(topic, "name", str, where)
        counts[name] = counts.get(name, 0) + get(entry, "message_count", int, where)
        serializations[name] = get(topic, "serialization_format", str, where)
    files = get(info, "relative_file_paths", list, "")
    if not all(isinstance(f, str) for f in files):
        raise InputError("must be names", where=path, field="relative_file_paths", value=files, remedy=remedy)
    return Metadata(
        files=tuple(files),
        counts=counts,
        message_count=get(info, "message_count", int, ""),
        serializations=serializations,
        compression_mode=str(info.get("compression_mode") or "").lower(),
        compression_format=str(info.get("compression_format") or "").lower(),
        storage=get(info, "storage_identifier", str, ""),
    )


_READ = object()


@dataclass(slots=True)
class _Part:
    store: Store
    topics: dict[str, Topic] = field(default_factory=dict)


class FolderStore:
    """A rosbag2 folder: one or more storage files in order of time, and the promises of ``metadata.yaml``.

    Without usable metadata the folder's files are read in natural order of their names, and that is damage.
    File-compressed bags are unpacked into a temporary folder, message-compressed ones message by message.
    """

    def __init__(self, path: Path, files: list[Path] | None = None, metadata: object = _READ) -> None:
        self.path, self.kind = path, "rosbag2"
        self.topics: list[Topic] = []
        self.start_ns = self.end_ns = 0
        self.warnings: list[str] = []
        self.damage: list[InputError] = []
        self._parts: list[_Part] = []
        self._stack = ExitStack()
        self._message_compression = False
        try:
            promise = self._promise() if metadata is _READ else None
            self._open(files if files is not None else self._files(promise), promise)
        except BaseException:
            self.close()
            raise

    def _promise(self) -> Metadata | None:
        path = self.path / "metadata.yaml"
        if not path.exists():
            self.damage.append(
                InputError(
                    "the recording has no metadata",
                    where=path,
                    remedy="name its storage file itself, run 'ros2 bag reindex', or add --salvage",
                )
            )
            return None
        try:
            return read_metadata(path)
        except InputError as error:
            self.damage.append(error)
            return None

    def _files(self, promise: Metadata | None) -> list[Path]:
        if promise is None:
            found = [p for p in self.path.iterdir() if p.name.endswith((".db3", ".mcap", ".db3.zstd", ".mcap.zstd"))]
            if not found:
                raise self.damage[0]
            return sorted(found, key=natural_key)
        files = [self.path / Path(name).name for name in promise.files]
        missing = [f.name for f in files if not f.exists()]
        if missing:
            error = InputError(
                f"names {len(missing)} storage file(s) that do not exist",
                where=self.path / "metadata.yaml",
                field="relative_file_paths",
                value=", ".join(missing),
                remedy="copy the missing files beside it",
            )
            if len(missing) == len(files):
                raise error
            self.damage.append(error)
        if not files:
            raise InputError(
                "names no storage file",
                where=self.path / "metadata.yaml",
                field="relative_file_paths",
                remedy="record it again or run 'ros2 bag reindex'",
            )
        return [f for f in files if f.exists()]

    def _open(self, files: list[Path], promise: Metadata | None) -> None:
        if promise and promise.compression_mode not in ("", "none"):
            if promise.compression_format != "zstd":
                raise InputError(
                    "only zstd can be unpacked",
                    where=self.path / "metadata.yaml",
                    field="compression_format",
                    value=promise.compression_format,
                    remedy="convert it with 'ros2 bag convert'",
                )
            self._message_compression = promise.compression_mode == "message"
        for file in files:
            if not self._parts and promise and promise.storage not in ("sqlite3", "mcap"):
                self.warnings.append(f"{self.path}: storage {promise.storage!r} is unknown; the files decide")
            self._add(self._unpacked(file))
        self.kind = "+".join(sorted({p.store.kind for p in self._parts}))
        for part in self._parts:
            self.warnings += part.store.warnings
            self.damage += part.store.damage
            for topic in part.store.topics:
                known = next((t for t in self.topics if t.name == topic.name and t.type == topic.type), None)
                if known is None:
                    known = Topic(topic.name, topic.type, topic.serialization, 0)
                    self.topics.append(known)
                known.count += topic.count
                part.topics[topic.name] = known
        filled = [p.store for p in self._parts if any(t.count for t in p.store.topics)]
        self.start_ns = min((s.start_ns for s in filled), default=0)
        self.end_ns = max((s.end_ns for s in filled), default=0)
        if promise:
            self._compare(promise)

    def _unpacked(self, file: Path) -> Path:
        if file.suffix != ".zstd":
            return file
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="triptych-bag-"))
        target = Path(folder) / file.stem
        with reading(file), file.open("rb") as packed, target.open("wb") as plain:
            zstandard.ZstdDecompressor().copy_stream(packed, plain)
        return target

    def _add(self, file: Path) -> None:
        kind = file_kind(file)
        if kind not in ("sqlite3", "mcap"):
            raise InputError("is not a rosbag2 storage file", where=file, remedy="name a .db3 or .mcap file")
        store = open_file(file, kind)
        self._stack.callback(store.close)
        self._parts.append(_Part(store))

    def _compare(self, promise: Metadata) -> None:
        for topic in self.topics:
            promised = promise.serializations.get(topic.name, topic.serialization)
            if promised != topic.serialization:
                topic.serialization = promised if promised not in READABLE_SERIALIZATIONS else topic.serialization
        found = {t.name: 0 for t in self.topics}
        for topic in self.topics:
            found[topic.name] += topic.count
        short = {n: c for n, c in promise.counts.items() if found.get(n, 0) < c}
        if short:
            name, count = next(iter(short.items()))
            more = f" and {len(short) - 1} more topic(s) are short" if len(short) > 1 else ""
            self.damage.append(
                InputError(
                    f"the storage holds {found.get(name, 0)} of the {count} messages promised on {name}{more}",
                    where=self.path / "metadata.yaml",
                    field="message_count",
                    value=promise.message_count,
                    remedy=SALVAGE_HINT,
                )
            )
        elif sum(found.values()) > promise.message_count:
            self.warnings.append(
                f"{self.path}: holds {sum(found.values())} messages, its metadata says {promise.message_count}"
            )

    def messages(self, topics: Collection[str] | None = None, from_ns: int | None = None) -> Iterator[Raw]:
        """See :class:`Store`; the files are merged by time."""
        for part, raw in heapq.merge(
            *(self._of(p, topics, from_ns) for p in self._parts), key=lambda pair: pair[1].t_ns
        ):
            data = raw.data
            if self._message_compression:
                with reading(part.store.path):
                    data = zstandard.ZstdDecompressor().decompress(data)
            yield Raw(part.topics[raw.topic.name], raw.t_ns, data)

    @staticmethod
    def _of(part: _Part, topics: Collection[str] | None, from_ns: int | None) -> Iterator[tuple[_Part, Raw]]:
        for raw in part.store.messages(topics, from_ns):
            yield part, raw

    def close(self) -> None:
        """See :class:`Store`."""
        self._stack.close()


def natural_key(path: Path) -> tuple[object, ...]:
    """Sorts ``frame_2`` before ``frame_10``; ties by the plain name, so that the order is total."""
    parts: list[object] = []
    for is_digit, chunk in _runs(path.name.casefold()):
        parts.append((0, int(chunk)) if is_digit else (1, chunk))
    return (*parts, (2, path.name))


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    run = ""
    for character in text:
        digit = "0" <= character <= "9"
        if run and ("0" <= run[-1] <= "9") != digit:
            yield "0" <= run[-1] <= "9", run
            run = ""
        run += character
    if run:
        yield "0" <= run[-1] <= "9", run
