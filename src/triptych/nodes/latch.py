"""The supervisor's memory across restarts: a file that is there while a manoeuvre is not finished.

A second name for the same empty file is kept ready beside it (``<name>.ready``), so that remembering and forgetting are
one rename each: a rename needs no room on the disk, is whole or not at all, and cannot leave half a file behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RETRY_S = 1.0
"""Until the disk agrees with what is to be remembered, it is tried this often."""
READY = ".ready"


class Latch:
    """Remembers across restarts of the process that a manoeuvre is not finished. An empty path remembers nothing.

    It fails closed: where the disk does not take what the latch needs (full, read-only, gone), the last run could not
    remember either, and :meth:`read` says that it ended within a manoeuvre. What :meth:`write` asks for is done in a
    thread, and again every ``RETRY_S`` until it is done.

    Args:
        path: of the file; its folder is made where missing.
        say: told each new :attr:`fault`.

    Attributes:
        fault: why the disk does not hold what is to be remembered, with path and remedy; empty while it does.
    """

    def __init__(self, path: str, say: Callable[[str], None] = lambda text: None) -> None:
        self._path = Path(path).expanduser() if path else None
        self._say = say
        self.fault = ""
        self._stored: bool | None = None
        self._wanted: bool | None = None
        self._stopped = False
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> bool:
        """Whether the last run ended within a manoeuvre, or nobody knows. Call it once, first."""
        path = self._path
        if path is None:
            return False
        try:
            there = _is_there(path)
            if not there:
                _try(path)
        except OSError as error:
            self._wanted = True
            self._fail(path, error)
            return True
        self._stored = self._wanted = there
        return there

    def start(self) -> None:
        """Start the thread."""
        if self._path is not None:
            self._thread = threading.Thread(target=self._run, args=(self._path,), name="latch", daemon=True)
            self._thread.start()

    def write(self, latched: bool) -> None:
        """Have it remembered soon. Never waits for the disk."""
        if latched is not self._wanted:
            self._wanted = latched
            self._changed.set()

    def keep(self) -> None:
        """Bring the disk in line with what is to be remembered, if it is not. May wait for the disk."""
        path, wanted = self._path, self._wanted
        if path is None or wanted is None:
            return
        if wanted is self._stored:
            self.fault = ""
            return
        here, there = (_ready(path), path) if wanted else (path, _ready(path))
        try:
            try:
                os.replace(here, there)
            except FileNotFoundError:  # the disk was full when the run began, or somebody tidied up
                _make(there)
        except OSError as error:
            self._fail(path, error)
            return
        self._stored, self.fault = wanted, ""

    def close(self, timeout_s: float = 0.5) -> None:
        """End the thread; what is to be remembered is tried once more."""
        self._stopped = True
        self._changed.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self, path: Path) -> None:
        while True:
            last = self._stopped  # asked first: what was to be remembered before the end is kept
            self.keep()
            if last:
                return
            self._changed.wait(RETRY_S if self.fault else None)
            self._changed.clear()

    def _fail(self, path: Path, error: OSError) -> None:
        fault = (
            f"latch_file {path} cannot be written: {error.strerror}; make room there or name another file: "
            "until then a restarted supervisor begins in the minimal risk manoeuvre"
        )
        if fault != self.fault:
            self.fault = fault
            self._say(fault)


def _ready(path: Path) -> Path:
    return path.with_name(path.name + READY)


def _is_there(path: Path) -> bool:
    """Raises OSError where it cannot be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _try(path: Path) -> None:
    """Rename the ready file, made if it is not there, away and back: what remembering will need."""
    away = path.with_name(path.name + ".tmp")
    try:
        os.replace(_ready(path), away)
    except FileNotFoundError:
        _make(away)
    os.replace(away, _ready(path))


def _make(path: Path) -> None:
    """An empty file, which needs no more than a name."""
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
