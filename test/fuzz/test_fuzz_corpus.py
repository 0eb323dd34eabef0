"""Every target over its committed findings, its seeds, damaged seeds and random bytes; ``fuzz.py`` searches further."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("rclpy")
pytest.importorskip("triptych_ros")
sys.path.insert(0, str(Path(__file__).parent))

import targets

HERE = Path(__file__).parent
EXAMPLES, DAMAGED = 120, 12


@pytest.fixture(autouse=True)
def a_hang_ends_the_run() -> Iterator[None]:
    """An input that is never answered ends the whole run with a stack trace instead of blocking it."""
    import faulthandler

    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("name", targets.TARGETS)
def test_what_once_was_a_finding_is_taken_or_refused_by_name(name: str) -> None:
    for path in targets.corpus(name):
        targets.try_one(name, path.read_bytes())


def test_every_finding_belongs_to_a_target() -> None:
    assert {folder.name for folder in (HERE / "corpus").iterdir()} <= set(targets.TARGETS)


@pytest.mark.parametrize("name", targets.SEEDS)
def test_what_is_sound_is_taken(name: str) -> None:
    """Otherwise the damage below would be done to what is refused anyway."""
    sound = targets.seeds(name)
    assert sound and all(targets.try_one(name, data) for data in sound)


@pytest.mark.parametrize("name", targets.TARGETS)
def test_random_bytes_are_taken_or_refused_by_name(name: str) -> None:
    bounds = settings(
        max_examples=EXAMPLES, derandomize=True, deadline=None, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @bounds
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        targets.try_one(name, data)

    check()


@pytest.mark.parametrize("name", targets.SEEDS)
def test_damaged_inputs_are_taken_or_refused_by_name(name: str) -> None:
    """Cut off, some bytes changed, a part repeated; at most the first kilobytes, where formats have their structure."""
    import random

    rng = random.Random(name)
    for _ in range(DAMAGED):
        data = bytearray(rng.choice(targets.seeds(name))[:4096])
        how = rng.randrange(3)
        if how == 0:
            del data[rng.randrange(len(data)) :]
        elif how == 1:
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        else:
            begin = rng.randrange(len(data))
            data[begin:begin] = data[begin : begin + rng.randrange(1, 64)]
        targets.try_one(name, bytes(data))
