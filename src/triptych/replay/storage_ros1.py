"""ROS 1 bags (format 2.0; plain, bz2, lz4) through rosbags."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from rosbags.rosbag1 import Reader, ReaderError

from triptych.contract import InputError
from triptych.replay.storage import MAGIC_ROS1, Raw, Topic, reading, ros2_type

REMEDY = "repair it with 'rosbag reindex' or record it again"


class Ros1Store:
    """A ``.bag`` file. See :class:`triptych.replay.storage.Store`. Bags without an index are refused."""

    kind = "ros1"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.damage: list[InputError] = []
        self._open = False
        with reading(path, REMEDY):
            with path.open("rb") as file:
                head = file.read(len(MAGIC_ROS1))
            if head != MAGIC_ROS1:
                raise InputError(
                    "is not a ROS 1 bag (wrong first bytes)", where=path, remedy="name a .bag file of ROS 1"
                )
            self._reader = Reader(path)
            try:
                self._reader.open()
            except (ReaderError, AssertionError) as error:
                text = (str(error) or "no index").rstrip(".")
                raise InputError(f"is truncated or damaged ({text})", where=path, remedy=REMEDY) from error
            self._open = True
            self.topics = [
                Topic(name, ros2_type(info.msgtype or "several types"), "ros1", info.msgcount)
                for name, info in sorted(self._reader.topics.items())
            ]
            self._by_name = {t.name: t for t in self.topics}
            empty = not sum(t.count for t in self.topics)
            self.start_ns = 0 if empty else self._reader.start_time
            self.end_ns = 0 if empty else self._reader.end_time - 1

    def messages(self, topics: Collection[str] | None = None, from_ns: int | None = None) -> Iterator[Raw]:
        """See :class:`triptych.replay.storage.Store`."""
        connections = [c for c in self._reader.connections if topics is None or c.topic in topics]
        if not connections or not any(t.count for t in self.topics):  # rosbags takes an empty choice for "all"
            return
        expected = sum(t.count for t in self.topics if topics is None or t.name in topics)
        found = 0
        iterator = self._reader.messages(connections, start=from_ns)
        while True:
            with reading(self.path, REMEDY):
                try:
                    connection, t_ns, data = next(iterator)
                except StopIteration:
                    break
            found += 1
            yield Raw(self._by_name[connection.topic], t_ns, bytes(data))
        if from_ns is None and found < expected:
            raise InputError(f"{found} of {expected} messages could be read", where=self.path, remedy=REMEDY)

    def close(self) -> None:
        """See :class:`triptych.replay.storage.Store`."""
        if self._open:
            self._open = False
            self._reader.close()
