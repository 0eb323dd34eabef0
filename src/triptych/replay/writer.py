"""Bags out: rosbag2 folders (MCAP or SQLite) that Foxglove and ``ros2 bag play`` read, and camera bags from videos.

A bag is written into a hidden folder beside its target and renamed when it is complete, so that a half-written one
never carries the name. Metadata is of format version 8, the newest whose QoS both ROS 2 Humble and Jazzy read; messages
carry their definitions (``ros2msg``) and type hashes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import cv2
from rosbags.interfaces import Connection, Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.rosbag2.errors import WriterError

from triptych.contract import Frame, InputError, TriptychError
from triptych.replay import messages
from triptych.replay.recording import check_range

Storage = Literal["mcap", "sqlite3"]
STORAGES: dict[str, StoragePlugin] = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
METADATA_VERSION: Literal[8] = 8
_FAILURES = (OSError, WriterError, sqlite3.Error)
_FOREVER = QosTime(9223372036, 854775807)


def _qos(reliability: QosReliability, durability: QosDurability, depth: int) -> Qos:
    return Qos(
        QosHistory.KEEP_LAST,
        depth,
        reliability,
        durability,
        _FOREVER,
        _FOREVER,
        QosLiveliness.AUTOMATIC,
        _FOREVER,
        False,
    )


DEFAULT_QOS = (_qos(QosReliability.RELIABLE, QosDurability.VOLATILE, 10),)
"""Offered QoS of recorded topics: reliable, so that ``ros2 bag play`` matches any subscriber."""
LATCHED_QOS = (_qos(QosReliability.RELIABLE, QosDurability.TRANSIENT_LOCAL, 1),)
"""For topics whose last message a late joiner must get: ``supervisor/state``."""


class BagWriter:
    """Writes one rosbag2 folder. As a context manager it drops the bag on an exception.

    Args:
        folder: the bag; its name is also the name of the storage file.
        overwrite: replace an existing bag when the new one is complete; otherwise an existing path is an error.
        latched: topics that get :data:`LATCHED_QOS`.
        keep_on_interrupt: as a context manager keep what was written until Ctrl-C: a run's results are worth it.

    Raises:
        InputError: ``folder`` exists, or ``storage`` is unknown.
        TriptychError: it cannot be written (permissions, disk full).
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        storage: str = "mcap",
        overwrite: bool = False,
        latched: Sequence[str] = (),
        keep_on_interrupt: bool = True,
    ) -> None:
        self.folder = Path(folder)
        if storage not in STORAGES:
            raise InputError("is unknown", field="storage", value=storage, remedy=f"use {' or '.join(STORAGES)}")
        if self.folder.exists() and not overwrite:
            raise InputError("exists already", where=self.folder, remedy="name another folder or remove it")
        if self.folder.exists() and not (self.folder / "metadata.yaml").exists() and any(self.folder.iterdir()):
            raise InputError("exists and is not a recording", where=self.folder, remedy="name another folder")
        self.counts: dict[str, int] = {}
        self._keep = (KeyboardInterrupt, SystemExit) if keep_on_interrupt else ()
        self._latched = {t.strip("/") for t in latched}
        self._connections: dict[str, Connection] = {}
        self._part = self.folder.with_name(f".{self.folder.name}.part-{os.getpid()}")
        self._writer: Writer | None = None
        try:
            shutil.rmtree(self._part, ignore_errors=True)
            self._part.mkdir(parents=True)
            self._writer = Writer(
                self._part / self.folder.name, version=METADATA_VERSION, storage_plugin=STORAGES[storage]
            )
            self._writer.open()
        except _FAILURES as error:
            self.abort()
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> TriptychError:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
        return TriptychError(
            f"cannot be written: {problem}", where=self.folder, remedy="check permissions and free space"
        )

    def write(self, topic: str, msgtype: str, data: bytes, t_ns: int) -> None:
        """Append a serialised (CDR) message received at ``t_ns``.

        Raises:
            TriptychError: an unknown type, one topic with two types, or the disk is full.
        """
        if self._writer is None:
            raise ValueError("the bag is closed")
        name = topic if topic.startswith("/") else f"/{topic}"
        try:
            connection = self._connections.get(name)
            if connection is None:
                if msgtype not in messages.typestore().types:
                    raise InputError(
                        "has an unknown type", where=name, field="type", value=msgtype, remedy="leave it out"
                    )
                connection = self._writer.add_connection(
                    name,
                    msgtype,
                    typestore=messages.typestore(),
                    offered_qos_profiles=LATCHED_QOS if name.strip("/") in self._latched else DEFAULT_QOS,
                )
                self._connections[name] = connection
                self.counts[name] = 0
            elif connection.msgtype != msgtype:
                raise InputError(
                    f"was {connection.msgtype} before", where=name, field="type", value=msgtype, remedy="use two topics"
                )
            self._writer.write(connection, t_ns, data)
            self.counts[name] += 1
        except _FAILURES as error:
            raise self._failure(error) from error

    def write_record(self, topic: str, record: Any, t_ns: int) -> None:
        """Append a contract record (tier result, status, constraint, state, ...), see :func:`messages.serialize`."""
        self.write(topic, *messages.serialize(record), t_ns)

    def write_image(self, topic: str, frame: Frame, t_ns: int) -> None:
        """Append a frame as ``sensor_msgs/Image``, bgr8."""
        self.write(topic, *messages.serialize_image(frame.image, frame.stamp_ns, frame.frame_id), t_ns)

    def write_jpeg(self, topic: str, jpeg: bytes, stamp_ns: int, frame_id: str, t_ns: int) -> None:
        """Append a JPEG as ``sensor_msgs/CompressedImage``."""
        self.write(topic, *messages.serialize_compressed(jpeg, stamp_ns, frame_id), t_ns)

    def close(self) -> Path:
        """Finish the bag and give it its name. Safe to call twice.

        Raises:
            TriptychError: it cannot be written; then nothing is left behind.
        """
        if self._writer is None:
            return self.folder
        try:
            self._writer.close()
            self._writer = None
            old = self._part / ".old"
            if self.folder.exists():
                os.replace(self.folder, old)
            os.replace(self._part / self.folder.name, self.folder)
        except _FAILURES as error:
            self.abort()
            raise self._failure(error) from error
        shutil.rmtree(self._part, ignore_errors=True)
        return self.folder

    def abort(self) -> None:
        """Drop everything written. Safe to call at any time; a closed bag stays."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(Exception):  # the files go anyway, and the first error is the one to report
                writer.abort()
        shutil.rmtree(self._part, ignore_errors=True)

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, self._keep):
            self.close()
        else:
            self.abort()


def from_video(
    source: Path | str,
    out: Path | str,
    *,
    topic: str = "camera/image_raw",
    storage: str = "mcap",
    compressed: bool = True,
    quality: int = 90,
    fps: float | None = None,
    frame_id: str = "camera_optical_frame",
    start_s: float = 0.0,
    duration_s: float | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make a camera bag of a video or a folder of images.

    Args:
        compressed: write ``sensor_msgs/CompressedImage`` (JPEG) on ``<topic>/compressed``, else ``sensor_msgs/Image``
            (bgr8), about 20 times as large.
        quality: of the JPEGs, 1..100.
        fps: rate of a folder of images.
        progress: called with (frames written, frames expected) after every frame.

    Returns:
        The bag's folder. Stamps begin at a fixed date, so equal inputs give equal bags.

    Raises:
        InputError: the source is no video, or an option is out of range.
        TriptychError: ``out`` cannot be written.
    """
    from triptych.replay.recording import open_recording, recording_kind

    source = Path(source)
    if not 1 <= quality <= 100:
        raise InputError("must be 1..100", field="quality", value=quality, remedy="give a JPEG quality")
    if not topic.strip("/") or any(c.isspace() for c in topic):
        raise InputError("is no topic name", field="topic", value=topic, remedy="use e.g. camera/image_raw")
    check_range(start_s, duration_s)
    if recording_kind(source) == "bag":
        raise InputError(
            "is not a video or a folder of images", where=source, remedy="name one; replay takes bags as they are"
        )
    name = f"{topic.rstrip('/')}/compressed" if compressed else topic
    with open_recording(source, fps=fps) as recording:
        expected = _expected(recording.info.message_count, recording.info.duration_s, start_s, duration_s)
        written = 0
        with BagWriter(out, storage=storage, overwrite=overwrite, keep_on_interrupt=False) as bag:
            for item in recording.items(start_s, duration_s):
                frame = item.value
                assert isinstance(frame, Frame)
                if compressed:
                    good, data = cv2.imencode(".jpg", frame.image, [cv2.IMWRITE_JPEG_QUALITY, quality])
                    if not good:
                        raise InputError("cannot be encoded as JPEG", where=source, field=f"frame {frame.number}")
                    bag.write_jpeg(name, data.tobytes(), frame.stamp_ns, frame_id, frame.stamp_ns)
                else:
                    moved = Frame(frame.image, frame.stamp_ns, frame.number, frame_id)
                    bag.write_image(name, moved, frame.stamp_ns)
                written += 1
                if progress:
                    progress(written, max(expected, written))
            if not written:
                raise InputError(
                    "is beyond the end", where=source, field="start", value=start_s, remedy="start earlier"
                )
    return Path(out)


def _expected(frames: int, length_s: float, start_s: float, duration_s: float | None) -> int:
    if length_s <= 0:
        return frames
    part_s = max(0.0, length_s - start_s) if duration_s is None else min(duration_s, max(0.0, length_s - start_s))
    return max(1, round(frames * part_s / length_s))
