"""A chain of steps does again what has to be done again, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from triptych.contract import ConfigError
from triptych_forge.report import Section, Table
from triptych_forge.steps import Step, code_hash, run_steps


class Chain:
    """Three steps that count; ``broken`` raises once."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = ""

    def steps(self) -> list[Step]:
        return [Step(name, name.title(), lambda folder, name=name: self._run(folder, name)) for name in "abc"]  # type: ignore[misc]

    def _run(self, folder: Path, name: str) -> Section:
        if self.broken == name:
            raise RuntimeError(name)
        self.ran.append(name)
        (folder / "left.txt").write_text(name)
        return Section(key="?", title="?", tables=[Table(columns=["x"], rows=[[len(self.ran)]])])


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    chain, begun = Chain(), []
    first = run_steps(chain.steps(), tmp_path, {"seed": 1}, lambda n, s: begun.append((n, s.name)), "code")
    again = run_steps(chain.steps(), tmp_path, {"seed": 1}, lambda n, s: begun.append((n, s.name)), "code")
    assert chain.ran == ["a", "b", "c"] and begun == [(0, "a"), (1, "b"), (2, "c")]
    assert first == again and [s.key for s in first] == ["a", "b", "c"] and first[0].title == "A"
    assert (tmp_path / "02-b" / "left.txt").read_text() == "b"


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    chain = Chain()
    chain.broken = "b"
    with pytest.raises(RuntimeError):
        run_steps(chain.steps(), tmp_path, {}, code="code")
    chain.broken = ""
    run_steps(chain.steps(), tmp_path, {}, code="code")
    assert chain.ran == ["a", "b", "c"]


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}', '{"key": "k", "section": 3}'])
def test_what_cannot_be_read_is_done_again(tmp_path: Path, damage: str) -> None:
    chain = Chain()
    run_steps(chain.steps(), tmp_path, {}, code="code")
    (tmp_path / "02-b" / "step.json").write_text(damage)
    run_steps(chain.steps(), tmp_path, {}, code="code")
    assert chain.ran == ["a", "b", "c", "b"]


def test_another_recipe_or_code_is_another_run(tmp_path: Path) -> None:
    chain = Chain()
    for recipe, code in (({"seed": 1}, "x"), ({"seed": 2}, "x"), ({"seed": 2}, "y")):
        run_steps(chain.steps(), tmp_path, recipe, code=code)
    assert chain.ran == ["a", "b", "c"] * 3


def test_a_changed_order_is_done_again_from_there(tmp_path: Path) -> None:
    chain = Chain()
    run_steps(chain.steps(), tmp_path, {}, code="code")
    a, b, c = chain.steps()
    run_steps([a, c, b], tmp_path, {}, code="code")
    assert chain.ran == ["a", "b", "c", "c", "b"]


def test_names_are_different(tmp_path: Path) -> None:
    a = Chain().steps()[0]
    with pytest.raises(ConfigError, match="one name"):
        run_steps([a, a], tmp_path, {})


def test_the_hash_of_the_code_is_stable() -> None:
    assert code_hash() == code_hash() and len(code_hash()) == 64
