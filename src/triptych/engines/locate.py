"""From what a user calls an engine to its manifest."""

from __future__ import annotations

from pathlib import Path

from triptych.contract import EngineError
from triptych.resources import share


def locate(name: str, folder: Path | None = None) -> Path:
    """The manifest of an engine given by path (file or folder) or by the name of a shipped one.

    Args:
        folder: holds ``models/`` and ``config/engines/``; default: the package's share folder.

    Raises:
        EngineError: neither.
    """
    given = Path(name).expanduser()
    if given.is_file() or (given / "manifest.yaml").is_file():
        return given
    root = folder or share()
    for path in (root / "models" / name / "manifest.yaml", root / "config" / "engines" / f"{name}.yaml"):
        if path.is_file():
            return path
    shipped = [p.parent.name for p in root.glob("models/*/manifest.yaml")]
    shipped += [p.stem for p in root.glob("config/engines/*.yaml")]
    raise EngineError(
        "no such engine",
        field="engine",
        value=name,
        remedy=f"give the path of a manifest or one of {', '.join(sorted(shipped)) or '(none shipped)'}",
    )
