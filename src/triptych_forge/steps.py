"""A run as a chain of steps that survives interruption.

Each step leaves ``step.json`` in a folder of its own. Its key covers the recipe, the code of this package and the keys
of the steps before: a step is done again exactly when something that it depends on has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import triptych_forge
from triptych.contract import ConfigError
from triptych_forge.decisions import canonical
from triptych_forge.files import write_atomically
from triptych_forge.report import Section


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: of its folder.
        title: for people.
        run: does it, given the folder; returns what it found. What it leaves for later steps lies in the folder.
    """

    name: str
    title: str
    run: Callable[[Path], Section]


def code_hash() -> str:
    """SHA-256 over the source of this package."""
    digest = hashlib.sha256()
    root = Path(triptych_forge.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_steps(
    steps: Sequence[Step],
    work: Path,
    recipe: Mapping[str, Any],
    begun: Callable[[int, Step], None] | None = None,
    code: str | None = None,
) -> list[Section]:
    """Run the steps in order, those done before under the same key excepted.

    Args:
        steps: with different names.
        work: folder that holds the steps' folders.
        recipe: everything that decides the outcome.
        begun: told number and step before each that has to run.
        code: hash of the code; default :func:`code_hash`.

    Raises:
        ConfigError: two steps of one name.
    """
    if len({step.name for step in steps}) != len(steps):
        raise ConfigError("has two steps of one name", where="recipe")
    key = hashlib.sha256((canonical(recipe) + (code or code_hash())).encode()).hexdigest()
    sections: list[Section] = []
    for number, step in enumerate(steps):
        key = hashlib.sha256(f"{key}{step.name}".encode()).hexdigest()
        folder = work / f"{number + 1:02d}-{step.name}"
        done = _done(folder / "step.json", key)
        if done is None:
            if begun:
                begun(number, step)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "step.json").unlink(missing_ok=True)
            started = time.monotonic()
            found = step.run(folder)
            done = found.model_copy(
                update={"key": step.name, "title": step.title, "seconds": round(time.monotonic() - started, 1)}
            )
            text = json.dumps({"key": key, "section": done.model_dump(mode="json")}, indent=1) + "\n"
            write_atomically(folder / "step.json", text.encode())
        sections.append(done)
    return sections


def _done(path: Path, key: str) -> Section | None:
    """What a finished step found, if it was done under this key."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Section.model_validate(content["section"]) if content["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
