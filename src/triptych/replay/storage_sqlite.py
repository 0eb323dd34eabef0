"""rosbag2 SQLite files, read without ever writing (SQLite's immutable mode: no -wal, no -shm, no lock)."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import quote

from triptych.contract import InputError
from triptych.replay.storage import MAGIC_SQLITE, SALVAGE_HINT, Raw, Topic, reading, ros2_type


class SqliteStore:
    """A ``.db3`` file of rosbag2, schema versions 1 to 4. See :class:`triptych.replay.storage.Store`."""

    kind = "sqlite3"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics: list[Topic] = []
        self.start_ns = self.end_ns = 0
        self.warnings: list[str] = []
        self.damage: list[InputError] = []
        self._check_header()
        uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with reading(path):
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            with reading(path):
                self._read_topics()
        except BaseException:
            self.close()
            raise

    def _check_header(self) -> None:
        with reading(self.path), self.path.open("rb") as file:
            head = file.read(100)
        if not head.startswith(MAGIC_SQLITE):
            raise InputError("is not a SQLite file (wrong first bytes)", where=self.path, remedy="record it again")
        size = self.path.stat().st_size
        page = int.from_bytes(head[16:18], "big")
        pages = int.from_bytes(head[28:32], "big")
        # The header's page count is only valid when this counter equals the change counter (SQLite file format 1.3.7).
        counted = head[24:28] == head[92:96]
        expected = (65536 if page == 1 else page) * pages
        if counted and size < expected:
            raise InputError(
                f"is truncated: {size} of {expected} bytes are there", where=self.path, remedy="copy or record it again"
            )
        log = self.path.with_name(self.path.name + "-wal")
        if log.exists() and log.stat().st_size:
            self.damage.append(
                InputError(
                    "holds messages that were not merged into the recording",
                    where=log,
                    remedy="copy both files to a writable folder and run 'sqlite3 FILE.db3 \"PRAGMA wal_checkpoint\"'",
                )
            )

    def _read_topics(self) -> None:
        tables = {row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if missing := {"topics", "messages"} - tables:
            raise InputError(
                f"has no table {sorted(missing)[0]!r}, so it is no rosbag2 file",
                where=self.path,
                remedy="record it again",
            )
        counts = dict(self._connection.execute("SELECT topic_id, COUNT(*) FROM messages GROUP BY topic_id"))
        self._by_id: dict[int, Topic] = {}
        rows = self._connection.execute("SELECT id, name, type, serialization_format FROM topics ORDER BY id")
        for identity, name, kind, serialization in rows:
            topic = Topic(str(name), ros2_type(str(kind)), str(serialization), counts.pop(identity, 0))
            self._by_id[identity] = topic
            self.topics.append(topic)
        if counts:
            self.damage.append(
                InputError(
                    f"{sum(counts.values())} message(s) belong to topics that are not in the file",
                    where=self.path,
                    field="topic_id",
                    value=sorted(counts)[0],
                    remedy=SALVAGE_HINT,
                )
            )
        first, last = self._connection.execute("SELECT MIN(timestamp), MAX(timestamp) FROM messages").fetchone()
        self.start_ns, self.end_ns = int(first or 0), int(last or 0)

    def messages(self, topics: Collection[str] | None = None, from_ns: int | None = None) -> Iterator[Raw]:
        """See :class:`triptych.replay.storage.Store`."""
        ids = [i for i, t in self._by_id.items() if topics is None or t.name in topics]
        marks = ",".join("?" for _ in ids)
        query = f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks})"
        arguments: list[int] = list(ids)
        if from_ns is not None:
            query += " AND timestamp >= ?"
            arguments.append(from_ns)
        with reading(self.path):
            cursor = self._connection.execute(query + " ORDER BY timestamp, id", arguments)
        while True:
            with reading(self.path):
                row = cursor.fetchone()
                if row is None:
                    return
                raw = Raw(self._by_id[row[0]], int(row[1]), bytes(row[2]))
            yield raw

    def close(self) -> None:
        """See :class:`triptych.replay.storage.Store`."""
        self._connection.close()
