"""Files of the tool chain, written whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside ``path`` and rename, so that no reader ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def replace_folder(source: Path, target: Path) -> None:
    """Copy a folder beside ``target`` and rename it into place; what was there is gone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        fresh, old = Path(temporary) / "new", Path(temporary) / "old"
        shutil.copytree(source, fresh)
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
