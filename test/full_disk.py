"""Disks without room: a real one where we may mount it, else the same errors at the calls that would meet it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2
KIB = 1024


class Disk:
    """A file system in memory of a few hundred KiB.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path: Path, size_kib: int = 512) -> None:
        self.path, self._options = path, f"size={size_kib}k,nr_inodes=64".encode()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._mount(0)

    def _mount(self, flags: int) -> None:
        if self._libc.mount(b"tmpfs", os.fsencode(self.path), b"tmpfs", flags, self._options):
            raise OSError(ctypes.get_errno(), "cannot mount")

    def fill(self) -> None:
        """Take all room: blocks first, then names."""
        with suppress(OSError), (self.path / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4 * KIB))
        with suppress(OSError):
            for number in range(1000):
                (self.path / f"filler-{number}").touch()
        with pytest.raises(OSError, match="No space left"):
            (self.path / "one-more").touch()

    def free(self) -> None:
        """Give it back."""
        for filler in self.path.glob("filler*"):
            filler.unlink()

    def read_only(self, yes: bool) -> None:
        """As a kernel does that met errors."""
        self._mount(MS_REMOUNT | (MS_RDONLY if yes else 0))

    def close(self) -> None:
        """Unmount."""
        self._libc.umount2(os.fsencode(self.path), MNT_DETACH)


@contextmanager
def small_disk(folder: Path, size_kib: int = 512) -> Iterator[Disk]:
    """A disk mounted below ``folder``; skips the test where this is not allowed."""
    path = folder / "disk"
    path.mkdir()
    try:
        disk = Disk(path, size_kib)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield disk
    finally:
        disk.close()


def no_room(*_: Any, **__: Any) -> Any:
    """In place of a call that asks for room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
