"""PROPERTIES.md and the property tests name the same properties."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(("prefix", "folder"), [("P", HERE), ("SC", HERE.parent / "safety_core")])
def test_every_property_has_a_test_and_every_test_a_property(prefix: str, folder: Path) -> None:
    """Ids in the table, in order and once each, and ids in the tests' names."""
    text = (HERE / "PROPERTIES.md").read_text(encoding="utf-8")
    listed = re.findall(rf"^\| ({prefix}-\d+) \|", text, re.MULTILINE)
    assert listed and listed == [f"{prefix}-{number:02d}" for number in range(1, len(listed) + 1)]
    tested = set()
    for path in folder.glob("test_properties_*.py"):
        numbers = re.findall(rf"^def test_{prefix.lower()}(\d+)_", path.read_text(encoding="utf-8"), re.M)
        tested |= {f"{prefix}-{number}" for number in numbers}
    assert tested == set(listed)
