"""The Python side of the safety core: records, parameters, library, loop."""

import math
import os
import select
import time
from pathlib import Path

import pytest

from triptych import resources
from triptych.contract import ConfigError, DegradationState, InputError, MotionConstraint
from triptych.safety import Cause, Library, Loop, SafetyLimits, command_of, constraint_record, motion_record
from triptych.safety.library import BLOCK_BYTES, in_thousandths
from triptych.safety.words import sealed


def constraint(limit_mps: float = 20.0, deceleration_mps2: float = 2.0) -> MotionConstraint:
    return MotionConstraint(0, limit_mps, deceleration_mps2, True, False, True, DegradationState.NOMINAL, "")


def test_the_defaults_are_those_of_the_c_code(library: Library) -> None:
    assert in_thousandths(SafetyLimits()) == library.defaults()


def test_a_record_comes_back_as_it_was_sent() -> None:
    command = command_of(constraint_record(7, constraint(12.3456), 0), stamp_ns=5)
    assert command is not None and command.counter == 7 and command.causes is Cause.NONE
    assert command.constraint == MotionConstraint(5, 12.345, 2.0, True, False, True, DegradationState.NOMINAL, "")


def test_a_limit_is_rounded_down_and_never_up() -> None:
    command = command_of(constraint_record(1, constraint(0.0009), 0), 0)
    assert command is not None and command.constraint.speed_limit_mps == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e6])
def test_what_is_no_number_is_not_written(value: float) -> None:
    """Silence stops the vehicle; a made-up number might not."""
    with pytest.raises(InputError, match="speed_limit_mps"):
        constraint_record(1, constraint(value), 0)
    with pytest.raises(InputError, match="deceleration_mps2"):
        constraint_record(1, constraint(1.0, value), 0)
    with pytest.raises(InputError, match="speed_mps"):
        motion_record(1, value, 0.0, False)
    with pytest.raises(InputError, match="acceleration_mps2"):
        motion_record(1, 0.0, value, False)


def test_half_a_record_is_none() -> None:
    record = constraint_record(7, constraint(), 0)
    assert command_of(record[:-1], 0) is None
    for byte in range(len(record)):
        torn = bytearray(record)
        torn[byte] ^= 1
        assert command_of(bytes(torn), 0) is None


def test_a_state_nobody_knows_is_another_version() -> None:
    with pytest.raises(InputError, match="state"):
        command_of(sealed(1, 0, 1, 7, 0, 0), 0)


def test_the_sentence_names_every_cause() -> None:
    command = command_of(sealed(1, 0, 3000, 4, 5, Cause.TOO_FAST | Cause.TREND), 0)
    assert command is not None and command.causes == Cause.TOO_FAST | Cause.TREND
    assert "speed limit" in command.constraint.reason and "contradict" in command.constraint.reason


def test_parameters_that_do_not_fit_together_are_refused(library: Library) -> None:
    with pytest.raises(ConfigError, match="fit together"):
        library.limits(SafetyLimits(stop_deceleration_mps2=4.5))


def test_another_library_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Library(broken)


def test_the_installed_library_is_found_below_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lib" / "libsome.so"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'empty'}{os.pathsep}{tmp_path}")
    assert resources.library("libsome.so") == file
    with pytest.raises(ConfigError, match="not installed"):
        resources.library("libother.so")


def test_the_loop_passes_on_and_stops_by_itself(library: Library) -> None:
    """Real time, and therefore with room: what it decides when is tested without a clock."""
    loop = Loop(bytearray(BLOCK_BYTES), SafetyLimits(trend_window_s=0.0), library=library)
    loop.start()
    try:
        wanted, counter, until = Cause.NONE, 0, time.monotonic() + 20
        seen = []
        while time.monotonic() < until and Cause.SUPERVISOR_SILENT not in seen:
            counter += 1
            if Cause.NONE not in seen:
                loop.write_constraint(constraint_record(counter, constraint(), 0))
            loop.write_motion(motion_record(counter, 3.0, 0.0, False))
            select.select([loop.wake_fd], [], [], 0.02)
            command = command_of(loop.command(), 0)
            if command is not None and command.causes not in seen:
                seen.append(command.causes)
                assert command.constraint.speed_limit_mps == (20.0 if command.causes is wanted else 0.0)
        assert Cause.NONE in seen and seen[-1] & Cause.SUPERVISOR_SILENT
        assert loop.timing_us()["cycle_max"] > 0
    finally:
        loop.stop()
    assert loop.ended


def test_a_loop_with_a_period_of_nothing_ends_at_once(library: Library) -> None:
    loop = Loop(bytearray(BLOCK_BYTES), SafetyLimits(), period_s=0.0, library=library)
    loop.start()
    loop.stop()
    assert loop.ended
