"""Pages that are made from the code say what the code says; links between pages lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from triptych.engines.manifest import Manifest
from triptych.vision.decoders import DECODERS

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["engines.md", "messages.md", "parameters.md", "policy.md", "remote-schema.json"])
def test_generated_page_is_in_step(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == generator().PAGES[page](), "run: python docs/generate.py"


def test_the_example_manifest_is_one() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert Manifest.model_validate(yaml.safe_load(example)).class_ids() == (2, 0, -1)
    assert set(re.findall(r"^\| `(\w+)` \| (?:1 ×|per stride)", page, re.MULTILINE)) == set(DECODERS)


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda p: p.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
