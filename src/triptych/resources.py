"""Where configuration, launch files and built-in models are found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from triptych.contract import ConfigError

PACKAGE = "triptych_ros"
_MARKER = Path("share", "ament_index", "resource_index", "packages", PACKAGE)


def share() -> Path:
    """The folder that holds ``config/``, ``launch/`` and ``models/``.

    Code running out of a source tree uses that tree, so that an edited file counts at once. Installed code asks the
    ament index: the prefixes of ``AMENT_PREFIX_PATH`` first, as ROS does, then the Python environment itself, which
    is where pip puts the index and which nothing adds to that variable.

    Raises:
        ConfigError: the package is neither in a source tree nor in any ament index.
    """
    tree = source_tree()
    if tree is not None:
        return tree
    prefixes = list(_prefixes(os.environ))
    for prefix in prefixes:
        if (prefix / _MARKER).is_file():
            return prefix / "share" / PACKAGE
    raise ConfigError(
        f"package {PACKAGE} is not in the ament index",
        where=os.pathsep.join(map(str, prefixes)),
        remedy="install it (pip install, or colcon build and source install/setup.bash)",
    )


def resource(*parts: str) -> Path:
    """A file or folder below :func:`share`.

    Raises:
        ConfigError: it does not exist.
    """
    path = share().joinpath(*parts)
    if not path.exists():
        raise ConfigError("is missing from the installation", where=path, remedy="install the package again")
    return path


def library(name: str) -> Path:
    """An installed shared library of this package: below ``lib/`` of a prefix that knows the package.

    Raises:
        ConfigError: there is none.
    """
    prefixes = list(_prefixes(os.environ))
    for prefix in prefixes:
        if (prefix / "lib" / name).is_file():
            return prefix / "lib" / name
    raise ConfigError(
        f"{name} is not installed",
        where=os.pathsep.join(map(str, prefixes)),
        remedy="install the package (pip install, or colcon build and source install/setup.bash)",
    )


def source_tree() -> Path | None:
    """The source tree this module runs from, or None when it is installed."""
    tree = Path(__file__).resolve().parents[2]
    return tree if (tree / "package.xml").is_file() and (tree / "msg").is_dir() else None


def _prefixes(environment: Mapping[str, str]) -> Iterator[Path]:
    for prefix in environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        if prefix:
            yield Path(prefix)
    yield Path(sys.prefix)
