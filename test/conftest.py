"""What holds for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

# FFmpeg reads its log level once, at its first use: set as the product sets it, before any test makes a video.
import triptych.replay.video  # noqa: F401

HERE = Path(__file__).parent
ALONE = frozenset({"bench", "cli", "engines", "nodes", "remote", "rt", "safety_core", "system", "tiers", "viewing"})
"""Folders of tests with real nodes, threads or times; the others may share the machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if item.path.relative_to(HERE).parts[0] in ALONE:
            item.add_marker(pytest.mark.alone)
