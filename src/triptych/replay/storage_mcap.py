"""MCAP files, through the mcap library: by their index, or from front to end where there is none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from inspect import signature
from pathlib import Path
from typing import IO, Any

from mcap.exceptions import EndOfFile, RecordLengthLimitExceeded
from mcap.reader import SeekingReader
from mcap.records import Channel, Message, Schema
from mcap.stream_reader import StreamReader

from triptych.contract import InputError
from triptych.replay.storage import MAGIC_MCAP, SALVAGE_HINT, Raw, Topic, reading, ros2_type

# mcap renamed this argument on its way through version 1.
_FROM: Any = "starting_at" if "starting_at" in signature(SeekingReader.iter_messages).parameters else "start_time"


class McapStore:
    """An ``.mcap`` file. See :class:`triptych.replay.storage.Store`.

    A file with an index is read by time; one without (the recorder was killed) is read in the order it was written,
    up to the place where it breaks off, and that is damage.
    """

    kind = "mcap"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics: list[Topic] = []
        self.start_ns = self.end_ns = 0
        self.warnings: list[str] = []
        self.damage: list[InputError] = []
        self._by_channel: dict[int, Topic] = {}
        with reading(path):
            self._size = path.stat().st_size
            self._file: IO[bytes] = path.open("rb")
        try:
            self._indexed = self._closed() and self._read_summary()
            if not self._indexed:
                self._scan()
        except BaseException:
            self.close()
            raise

    def _closed(self) -> bool:
        with reading(self.path):
            if self._file.read(len(MAGIC_MCAP)) != MAGIC_MCAP:
                raise InputError("is not an MCAP file (wrong first bytes)", where=self.path, remedy="record it again")
            self._file.seek(max(len(MAGIC_MCAP), self._size - len(MAGIC_MCAP)))
            closed = self._file.read() == MAGIC_MCAP
        if not closed:
            self.damage.append(
                InputError(
                    f"is truncated: the closing record is missing after {self._size} bytes",
                    where=self.path,
                    remedy="run 'mcap recover', or add --salvage to use what is there",
                )
            )
        return closed

    def _reader(self) -> SeekingReader:
        self._file.seek(0)
        return SeekingReader(self._file, validate_crcs=True, record_size_limit=max(self._size, 1))

    def _read_summary(self) -> bool:
        with reading(self.path):
            summary = self._reader().get_summary()
        if (
            summary is None
            or summary.statistics is None
            or (summary.statistics.message_count and not summary.chunk_indexes)
        ):
            return False
        statistics = summary.statistics
        for identity, channel in summary.channels.items():
            self._add(
                channel, summary.schemas.get(channel.schema_id), statistics.channel_message_counts.get(identity, 0)
            )
        if statistics.message_count:
            # Some writers take a first message at time 0 for "none yet": the chunks know better than the statistics.
            self.start_ns = min(statistics.message_start_time, *(c.message_start_time for c in summary.chunk_indexes))
            self.end_ns = max(statistics.message_end_time, *(c.message_end_time for c in summary.chunk_indexes))
        return True

    def _add(self, channel: Channel, schema: Schema | None, count: int) -> Topic:
        kind = ros2_type(schema.name) if schema else "unknown"
        topic = Topic(channel.topic, kind, channel.message_encoding, count)
        self._by_channel[channel.id] = topic
        self.topics.append(topic)
        return topic

    def _records(self) -> Iterator[Any]:
        """Records from the front; ends quietly where a truncated file ends (already noted as damage)."""
        self._file.seek(0)
        stream = StreamReader(self._file, validate_crcs=True, record_size_limit=max(self._size, 1))
        records = iter(stream.records)
        while True:
            try:
                with reading(self.path):
                    try:
                        record = next(records)
                    except StopIteration:
                        return
            except InputError as error:
                if self.damage and isinstance(error.__cause__, (EndOfFile, RecordLengthLimitExceeded)):
                    return
                if self.damage:  # garbage near the broken end is part of the same damage
                    self.damage.append(error)
                    return
                raise
            yield record

    def _scan(self) -> None:
        schemas: dict[int, Schema] = {}
        seen = False
        for record in self._records():
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel) and record.id not in self._by_channel:
                self._add(record, schemas.get(record.schema_id), 0)
            elif isinstance(record, Message):
                topic = self._by_channel.get(record.channel_id)
                if topic is None:
                    raise InputError(
                        "holds a message of a channel that it does not define",
                        where=self.path,
                        field="channel_id",
                        value=record.channel_id,
                        remedy=SALVAGE_HINT,
                    )
                self.start_ns = min(self.start_ns, record.log_time) if seen else record.log_time
                topic.count, seen = topic.count + 1, True
                self.end_ns = max(self.end_ns, record.log_time)

    def messages(self, topics: Collection[str] | None = None, from_ns: int | None = None) -> Iterator[Raw]:
        """See :class:`triptych.replay.storage.Store`."""
        wanted = {t.name for t in self.topics if topics is None or t.name in topics}
        if not wanted:
            return
        expected = sum(t.count for t in self.topics if t.name in wanted)
        found = 0
        for channel_id, message in (
            self._indexed_messages(wanted, from_ns) if self._indexed else self._scanned_messages()
        ):
            topic = self._by_channel[channel_id]
            if topic.name in wanted and (from_ns is None or message.log_time >= from_ns):
                found += 1
                yield Raw(topic, message.log_time, message.data)
        if from_ns is None and found < expected:
            raise InputError(
                f"{found} of the {expected} messages of its statistics could be read",
                where=self.path,
                remedy=SALVAGE_HINT,
            )

    def _indexed_messages(self, wanted: Collection[str], from_ns: int | None) -> Iterator[tuple[int, Message]]:
        start: dict[str, Any] = {_FROM: from_ns}
        with reading(self.path):
            iterator = self._reader().iter_messages(topics=list(wanted), log_time_order=True, **start)
        while True:
            with reading(self.path):
                try:
                    _, channel, message = next(iterator)
                except StopIteration:
                    return
            yield channel.id, message

    def _scanned_messages(self) -> Iterator[tuple[int, Message]]:
        for record in self._records():
            if isinstance(record, Message):
                yield record.channel_id, record

    def close(self) -> None:
        """See :class:`triptych.replay.storage.Store`."""
        self._file.close()
