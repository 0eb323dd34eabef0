"""A copy of the built-in detector that tests may damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
DETECTOR = REPOSITORY / "models" / "triptych-detector"
DATA = REPOSITORY.parent / "shared" / "data"
FOREIGN = ("yolox-nano", "nanodet-m", "fastestdet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in detector's folder, copied."""
    return Path(shutil.copytree(DETECTOR, tmp_path / "engine"))


@pytest.fixture
def edit(folder: Path) -> Callable[..., Path]:
    """Change fields of the copied manifest: ``edit({"input.width": 64})``; returns its path."""

    def change(changes: dict[str, Any]) -> Path:
        path = folder / "manifest.yaml"
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            *parents, last = name.split(".")
            place = content
            for parent in parents:
                place = place[parent]
            if value is None:
                del place[last]
            else:
                place[last] = value
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return change


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of shared test data, or a skip."""
    if not (DATA / "detectors").is_dir():
        pytest.skip(f"shared data not found in {DATA}")
    return DATA
