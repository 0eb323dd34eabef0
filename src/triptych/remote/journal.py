"""A file of checked lines that is only ever appended to, or replaced as a whole.

Each line is the CRC-32 of its JSON in hex, a blank, the JSON, a line feed. What was appended is on disk (fsync) when
:meth:`Journal.append` returns; a crash can only leave the last line torn, which reading leaves out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from triptych.contract import ConfigError
from triptych.documents import parse_json


def line(entry: Any) -> bytes:
    """An entry as it stands in the file."""
    text = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def parse(data: bytes) -> tuple[list[Any], int]:
    """The entries of a file, and how many lines besides a torn last one had to be left out."""
    entries, damaged = [], 0
    *whole, _torn = data.split(b"\n")
    for raw in whole:
        crc, _, text = raw.partition(b" ")
        try:
            if int(crc, 16) != zlib.crc32(text):
                raise ValueError
            entries.append(parse_json(text))
        except ValueError:
            damaged += 1
    return entries, damaged


class Journal:
    """One file, one owner.

    Args:
        path: created with its folder where missing; readable by its owner only.

    Attributes:
        damaged: lines that could not be read when it was opened.

    Raises:
        ConfigError: it cannot be used, or another process uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._file: IO[bytes] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                "is in use by another process", where=path, field="queue_file", remedy="give each vehicle its own"
            ) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot be used: {error.strerror}",
            where=self.path,
            field="queue_file",
            remedy="check permissions and free space",
        )

    def read(self) -> list[Any]:
        """Every whole entry, none if there is no file yet.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            entries, self.damaged = parse(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from None
        return entries

    def append(self, entries: Iterable[Any]) -> None:
        """Put entries at the end of the file and on the disk.

        Raises:
            OSError: they may not be there; :meth:`replace` the file before appending again.
        """
        if self._file is None:
            self._file = os.fdopen(
                os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab"
            )
        self._file.write(b"".join(line(entry) for entry in entries))
        self._file.flush()
        os.fsync(self._file.fileno())

    def replace(self, entries: Iterable[Any]) -> None:
        """Write a new file beside the old one and put it in its place.

        Raises:
            OSError: the old file is still there.
        """
        self._close_file()
        part = self.path.with_name(self.path.name + ".part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(b"".join(line(entry) for entry in entries))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def close(self) -> None:
        """Give the file back. Safe to call twice."""
        self._close_file()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
