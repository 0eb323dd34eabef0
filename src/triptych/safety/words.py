"""Records of the safety core: 32-bit little-endian words, the first a counter, the last a CRC-32 over those before.

Speeds are mm/s, accelerations mm/s²; a limit is rounded down, so that no rounding ever allows more.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag

from triptych.contract import DegradationState, InputError, MotionConstraint

CONSTRAINT_WORDS, MOTION_WORDS = 7, 5
_HAZARD_LIGHTS, _PULL_OVER, _REMOTE_NOTIFICATION = 1, 2, 4
_WORD = 0xFFFFFFFF
_RANGE = 0x7FFFFFFF


class Cause(IntFlag):
    """Why the safety core commands a stop; several may hold together. Values as in ``safety_core.h``."""

    NONE = 0
    WAITING = 1
    SUPERVISOR_SILENT = 2
    VEHICLE_SILENT = 4
    SPEED_IMPLAUSIBLE = 8
    TREND = 16
    TOO_FAST = 32
    FORBIDDEN = 64


SENTENCES: dict[Cause, str] = {
    Cause.WAITING: "waiting for supervisor and vehicle",
    Cause.SUPERVISOR_SILENT: "nothing valid heard of the supervisor in time",
    Cause.VEHICLE_SILENT: "nothing valid heard of the vehicle's motion in time",
    Cause.SPEED_IMPLAUSIBLE: "the speed changed faster than any vehicle can",
    Cause.TREND: "speed and acceleration contradict each other",
    Cause.TOO_FAST: "the vehicle does not keep its speed limit",
    Cause.FORBIDDEN: "the supervisor allowed speed within the minimal risk manoeuvre",
}
"""For people, one per cause."""


def sentence(causes: Cause) -> str:
    """All of them, for people; empty for none."""
    return "; ".join(text for cause, text in SENTENCES.items() if cause & causes)


@dataclass(frozen=True, slots=True)
class Command:
    """What the safety core tells the vehicle.

    Attributes:
        counter: of the core's cycles, modulo 2³².
        constraint: without counter and CRC of its own.
        causes: of the core's own stop; :attr:`Cause.NONE` while the supervisor's constraint passes.
    """

    counter: int
    constraint: MotionConstraint
    causes: Cause


def sealed(*words: int) -> bytes:
    """Words (two's complement where negative) with their CRC behind them."""
    body = struct.pack(f"<{len(words)}I", *(word & _WORD for word in words))
    return body + struct.pack("<I", zlib.crc32(body))


def constraint_record(counter: int, constraint: MotionConstraint, resets: int) -> bytes:
    """The supervisor's constraint as the core reads it.

    Args:
        counter: one more than that of the record before, modulo 2³².
        resets: how many resets an operator asked for since the start.

    Raises:
        InputError: speed limit or deceleration not finite or out of 32 bits.
    """
    flags = (
        _HAZARD_LIGHTS * constraint.hazard_lights
        | _PULL_OVER * constraint.pull_over
        | _REMOTE_NOTIFICATION * constraint.remote_notification
    )
    return sealed(
        counter,
        _milli("speed_limit_mps", constraint.speed_limit_mps, math.floor),
        _milli("deceleration_mps2", constraint.deceleration_mps2, round),
        int(constraint.state),
        flags,
        resets,
    )


def motion_record(counter: int, speed_mps: float, acceleration_mps2: float, driver: bool) -> bytes:
    """The vehicle's motion as the core reads it; ``driver``: a person steers, brakes or accelerates.

    Raises:
        InputError: speed or acceleration not finite or out of 32 bits.
    """
    return sealed(
        counter,
        _milli("speed_mps", speed_mps, round),
        _milli("acceleration_mps2", acceleration_mps2, round),
        int(driver),
    )


def command_of(record: bytes, stamp_ns: int) -> Command | None:
    """The command in a record, or None if it is not whole (it may be just being written).

    Raises:
        InputError: whole, but not a command: another version of the core.
    """
    if len(record) != 4 * CONSTRAINT_WORDS or zlib.crc32(record[:-4]) != struct.unpack_from("<I", record, 24)[0]:
        return None
    counter, limit, deceleration, state, flags, causes, _ = struct.unpack("<IiiIIII", record)
    try:
        known = DegradationState(state)
    except ValueError:
        raise InputError("no such state", where="command of the safety core", field="state", value=state) from None
    why = Cause(causes)
    return Command(
        counter,
        MotionConstraint(
            stamp_ns,
            limit / 1000,
            deceleration / 1000,
            bool(flags & _HAZARD_LIGHTS),
            bool(flags & _PULL_OVER),
            bool(flags & _REMOTE_NOTIFICATION),
            known,
            f"safety core: {sentence(why)}" if why else "",
        ),
        why,
    )


def _milli(name: str, value: float, rounded: Callable[[float], int]) -> int:
    if not math.isfinite(value) or abs(value) * 1000 > _RANGE:
        raise InputError("must be finite and fit into 32 bits of thousandths", field=name, value=value)
    return rounded(value * 1000)
