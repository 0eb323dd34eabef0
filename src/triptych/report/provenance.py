"""Where a figure comes from: configuration, data, host, version, date. Nothing that names a person or a path."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from triptych import __version__
from triptych.report.schema import Host, Provenance

PACKAGE = "triptych_ros"
CHUNK_BYTES = 1 << 20
GIT_TIMEOUT_S = 5.0


def provenance(
    config: Iterable[Path | str] = (),
    settings: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    now: datetime | None = None,
) -> Provenance:
    """Collect everything.

    Args:
        config: configuration files and folders the run used (fault table, parameters, manifests).
        settings: further values that decide the outcome (budgets, seed, options); JSON-like.
        data: recording file or folder; ``None`` for a generated input.
        now: moment to date it with; default: now.
    """
    commit, dirty = git_state(Path(__file__).resolve().parent)
    moment = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return Provenance(
        package=PACKAGE,
        version=__version__,
        git_commit=commit,
        git_dirty=dirty,
        config_sha256=config_hash(config, settings),
        data_sha256=data_hash(data) if data is not None else None,
        date=moment.isoformat(timespec="seconds"),
        host=host(),
    )


def config_hash(config: Iterable[Path | str] = (), settings: Mapping[str, Any] | None = None) -> str:
    """SHA-256 over the contents of files (folders: every YAML, XML and JSON file in them) and ``settings``.

    Names count without the folders above them, so that the same configuration has the same hash on every machine.
    Files that cannot be read count as absent.
    """
    digest = hashlib.sha256()
    entries: list[tuple[str, Path]] = []
    for item in map(Path, config):
        if item.is_dir():
            files = sorted(f for f in item.rglob("*") if f.suffix in {".yaml", ".yml", ".xml", ".json"} and f.is_file())
            entries += [(f.relative_to(item).as_posix(), f) for f in files]
        else:
            entries.append((item.name, item))
    for name, file in sorted(entries):
        content = _file_hash(file)
        if content is not None:
            digest.update(f"{name}\0{content}\n".encode())
    digest.update(json.dumps(settings or {}, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def data_hash(data: Path | str) -> str | None:
    """SHA-256 over a file's bytes, or over names and bytes of all files in a folder; ``None`` if it cannot be read."""
    source = Path(data)
    if source.is_file():
        return _file_hash(source)
    if not source.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(f for f in source.rglob("*") if f.is_file()):
        digest.update(f"{file.relative_to(source).as_posix()}\0{_file_hash(file)}\n".encode())
    return digest.hexdigest()


def _file_hash(file: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def host() -> Host:
    """The machine this process runs on."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return Host(
        cpu=cpu_model(),
        cores=cores,
        memory_mb=psutil.virtual_memory().total >> 20,
        architecture=platform.machine(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name of the CPU; on boards whose kernel does not tell one, the device tree's name of the board."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    for key in ("model name", "Hardware", "Model"):
        found = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        if found:
            return found.group(1).strip()
    try:
        board = Path("/proc/device-tree/model").read_text(errors="replace").strip("\0 \n")
    except OSError:
        board = ""
    return board or platform.processor() or platform.machine()


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout that holds the source, and whether tracked files differ; (None, None) outside one.

    An installed copy inside somebody else's repository is not ours: the checkout must hold our ``package.xml``.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None or f"<name>{PACKAGE}</name>" not in _read(Path(root) / "package.xml"):
        return None, None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
