"""Shared by the replay tests: where the real data lies."""

from __future__ import annotations

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DATA = REPO.parent / "shared" / "data"
CLIP = "video/udacity_solidWhiteRight_960x540_25fps.mp4"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real recordings are not at {DATA}")


def data(path: str) -> Path:
    """A file of the real data; the test is skipped when it is not there."""
    found = DATA / path
    if not found.exists():
        pytest.skip(f"{found} is missing")
    return found
