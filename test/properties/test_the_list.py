"""PROPERTIES.md and the property tests name the same properties."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_property_has_a_test_and_every_test_a_property() -> None:
    """Ids in the table, in order and once each, and ids in the tests' names."""
    listed = re.findall(r"^\| (P-\d\d) \|", (HERE / "PROPERTIES.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [f"P-{number:02d}" for number in range(1, len(listed) + 1)]
    tested = set()
    for path in HERE.glob("test_properties_*.py"):
        tested |= {
            f"P-{number}" for number in re.findall(r"^def test_p(\d\d)_", path.read_text(encoding="utf-8"), re.M)
        }
    assert tested == set(listed)
