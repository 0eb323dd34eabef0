"""The supervisor's memory after a thousand damaged messages is what it was."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from supervisor_rig import Rig, driving, make_result

from memory import ROOM_BYTES, left_bytes
from triptych.contract import DriverState, Odometry, Origin, Tier, TierState, TierStatus, safe_default


def wrong_crc(rig: Rig, k: int) -> None:
    for tier in Tier:
        rig.core.on_result(make_result(tier, rig.stamp_ns, sequence_counter=k % 256), rig.now_ns, False)
        rig.core.on_status(TierStatus(rig.stamp_ns, tier, TierState.ACTIVE, True), rig.now_ns, False)
    rig.core.on_driver(DriverState(rig.stamp_ns), rig.now_ns, False)
    rig.core.on_command(safe_default(rig.stamp_ns), rig.now_ns, False)


def wrong_numbers(rig: Rig, k: int) -> None:
    for tier in Tier:
        rig.core.on_result(
            make_result(tier, rig.stamp_ns, age_ms=math.nan, uncertainty=math.inf, reason=f"r{k}"), rig.now_ns, True
        )
    rig.core.on_odometry(Odometry(rig.stamp_ns, math.nan), rig.now_ns)


def wrong_stamps(rig: Rig, k: int) -> None:
    for tier in Tier:
        rig.core.on_result(make_result(tier, rig.stamp_ns + (k - 500) * 10**9), rig.now_ns, True)
    rig.core.on_odometry(Odometry(rig.stamp_ns - k * 10**9, 1.0), rig.now_ns)


def wrong_words(rig: Rig, k: int) -> None:
    for tier in Tier:
        rig.core.on_result(
            make_result(tier, rig.stamp_ns, origin=Origin.DEFAULT, reason=f"reason {k}"), rig.now_ns, True
        )
        status = TierStatus(rig.stamp_ns, tier, TierState.ERROR, False, fault=f"engine_error: {k}")
        rig.core.on_status(status, rig.now_ns, True)


@pytest.mark.parametrize("damage", [wrong_crc, wrong_numbers, wrong_stamps, wrong_words])
def test_a_thousand_damaged_messages_leave_nothing(damage: object) -> None:
    """V12: of every source, among good ones, a tick for each; windows and histories are bounded."""
    rig = driving(0.0, safety_core_expected=True)

    def happen(k: int) -> None:
        damage(rig, k)  # type: ignore[operator]
        rig.tick()
        rig.forget()

    assert left_bytes(happen, before=2000) < ROOM_BYTES, "after 20 s every window is full"


def test_a_flood_within_one_tick_is_bounded() -> None:
    """The inbox forgets the oldest instead of growing while the loop is late."""
    rig = driving(0.0)
    message = replace(make_result(Tier.DETECTOR, rig.stamp_ns), reason="x" * 64)

    def flood(k: int) -> None:
        rig.core.on_result(message, rig.now_ns, False)

    assert left_bytes(flood, times=20_000, before=5_000) < ROOM_BYTES
    rig.tick()
