"""The same configuration and the same steps give the same bytes."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from triptych.contract import DegradationState, InputError, MotionConstraint
from triptych.scenario import Scenario, ScenarioConfig, random_config

SRC = Path(__file__).parents[2] / "src"

_PROGRAM = """
import zlib
from triptych.contract import DegradationState, MotionConstraint
from triptych.scenario import Scenario, random_config
slow = MotionConstraint(0, 5.0, 2.0, True, True, False, DegradationState.L2_TAKEOVER_REQUEST, "")
total = 0
for seed in (3, 4, 11):
    s = Scenario(random_config(seed, width_px=320, height_px=180))
    for k in range(40):
        s.step(0.05, slow if k > 20 else None)
        if k % 8 == 0:
            total = zlib.crc32(s.render(), total)
            total = zlib.crc32(repr(s.truth()).encode(), total)
print(total)
"""


def _run(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={"PYTHONPATH": str(SRC), "PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_two_processes_give_the_same_bytes() -> None:
    """Frames and truth agree between processes with different hash seeds (A12: twenty runs identical)."""
    first = _run("1")
    assert first.isdigit()
    assert _run("2") == first


def test_looking_does_not_change_the_world() -> None:
    """Rendering, or not, in between makes no difference; nor does asking twice."""
    config = random_config(5, width_px=256, height_px=144)
    a, b = Scenario(config), Scenario(config)
    for k in range(30):
        a.step(0.05, None)
        b.step(0.05, None)
        if k % 3 == 0:
            a.render()
            a.truth()
    assert np.array_equal(a.render(), b.render())
    assert a.truth() == b.truth()
    assert a.truth() == a.truth()
    assert np.array_equal(a.render(), a.render())


def test_seeds_differ_and_the_constraint_matters() -> None:
    """Different seeds, and different commands, lead to different frames."""
    crcs = {zlib.crc32(Scenario(ScenarioConfig(seed=s, width_px=256, height_px=144)).render()) for s in range(4)}
    assert len(crcs) == 4
    config = ScenarioConfig(seed=1, width_px=256, height_px=144)
    free, held = Scenario(config), Scenario(config)
    stop = MotionConstraint(0, 0.0, 2.0, False, False, False, DegradationState.L1_MINIMAL_RISK_MANOEUVRE, "")
    for _ in range(20):
        free.step(0.05, None)
        held.step(0.05, stop)
    assert not np.array_equal(free.render(), held.render())


def test_successive_frames_differ_even_at_a_standstill() -> None:
    """Sensor noise keeps a standing vehicle's pictures apart from a frozen camera's."""
    s = Scenario(ScenarioConfig(set_speed_mps=0.0, traffic=0.0, width_px=256, height_px=144))
    s.step(0.05, None)
    before = s.render()
    s.step(0.05, None)
    assert s.speed_mps == 0.0
    assert not np.array_equal(before, s.render())


def test_frames_have_the_asked_shape_and_can_be_drawn_into_a_buffer() -> None:
    """Odd sizes work; ``out`` is used and checked."""
    for width, height in ((1280, 720), (1281, 719), (448, 256), (65, 49), (960, 540)):
        s = Scenario(ScenarioConfig(width_px=width, height_px=height))
        image = s.render()
        assert image.shape == (height, width, 3)
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        assert image.std() > 10
        out = np.zeros_like(image)
        assert s.render(out) is out
        assert np.array_equal(out, image)
    with pytest.raises(InputError, match="out"):
        s.render(np.zeros((10, 10, 3), np.uint8))
