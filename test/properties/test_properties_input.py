"""The safety properties of PROPERTIES.md about what the tiers see and what the machine has left."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from input_pictures import ANOMALIES, Image, drive
from supervisor_rig import driving

from triptych.calibrate.tail import BLOCK_S, block_peaks, find_limit, upper_bound
from triptych.contract import BUDGETS, DegradationState, InputError, Light, Tier, TierState, Weather
from triptych.contract.result import WARNINGS
from triptych.supervisor.monitors.resource import MachineReading
from triptych.tiers import TierCore
from triptych.tiers.heartbeat import heartbeat
from triptych.tiers.monitors import InputConfig, InputWatch

S = DegradationState
MS = 1_000_000
CONFIG = InputConfig(input_covered_frames=5)
"""The shipped limits; a covered part counts a little sooner, to keep the test short."""
TWO_CAMERAS = "two cameras in turn"
HARMFUL = sorted([TWO_CAMERAS, *(name for name, (_, _, code) in ANOMALIES.items() if code not in WARNINGS)])


def spoilt(name: str, image: Image, number: int) -> Image:
    """A picture of a view that is damaged as far as it goes; ``number`` counts pictures."""
    if name == TWO_CAMERAS:
        return np.ascontiguousarray(image[:, ::-1]) if number % 2 else image
    damage, strengths, _ = ANOMALIES[name]
    return damage(image, strengths[-1])


ENGINE = SimpleNamespace(id="e", version="1", device=SimpleNamespace(requested="cpu", actual="cpu"))
"""As much of an engine as a heartbeat mentions."""


@given(st.sampled_from(HARMFUL), st.sampled_from([w for w in Weather if w]), st.sampled_from([x for x in Light if x]))
def test_p22_a_damaged_view_is_not_relied_upon(name: str, weather: Weather, light: Light) -> None:
    """P-22 (V10)."""
    pictures = drive(weather, light)
    pictures = (*pictures, *pictures[-2:0:-1])  # there and back: consecutive pictures without end
    watch, core, rig = InputWatch(CONFIG), TierCore(Tier.DETECTOR, BUDGETS[Tier.DETECTOR]), driving(20.0)

    def run(seconds: float, sound: bool) -> None:
        for tick in range(round(seconds * 100)):
            if tick % 5 == 0:
                image = pictures[tick // 5 % len(pictures)]
                core.note_picture(watch.look(image if sound else spoilt(name, image, tick // 5)), rig.now_ns)
                fault = core.fault(rig.now_ns)
                rig.status[Tier.DETECTOR] = heartbeat(
                    Tier.DETECTOR, TierState.ACTIVE, fault, ENGINE, core.counters(), rig.stamp_ns, 1
                )
            rig.tick()

    run(1.0, True)
    assert rig.state is S.NOMINAL, "the sound view is relied upon"
    frames_s = (CONFIG.input_frames + CONFIG.input_covered_frames + 1) * 0.05
    run(frames_s + 0.1 + 0.01, False)
    assert rig.state is S.L2_TAKEOVER_REQUEST
    assert rig.constraint.speed_limit_mps < 20.0


@given(st.lists(st.sampled_from(sorted(WARNINGS)), min_size=1, max_size=3), st.booleans())
def test_p23_a_warning_changes_neither_state_nor_limit(codes: list[str], standing: bool) -> None:
    """P-23: the same commands with it as without it."""
    rigs = [driving(0.0 if standing else 20.0) for _ in range(2)]
    for rig, extra in zip(rigs, ([], codes), strict=True):
        ailing = ["frozen_picture"] if standing else []
        fault = "; ".join([*ailing, *extra])
        rig.obeys = not standing
        rig.run(1.5)
        for tier in Tier:
            rig.status[tier] = replace(rig.status[tier], healthy=not ailing, fault=fault)
        rig.run(3.0)
    assert rigs[0].state is S.NOMINAL
    assert rigs[0].states == rigs[1].states
    assert rigs[0].limits_mps == rigs[1].limits_mps


number = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(0.0, 1.2))
readings = st.lists(st.builds(MachineReading, number, number, number, number), min_size=1, max_size=12)


@given(readings, st.booleans())
@example([MachineReading(math.nan, math.nan, math.nan, math.nan)] * 12, False)
@example([MachineReading(1.0, 1.0, 120.0, 1.0)] * 12, True)
def test_p24_the_machine_never_stops_the_vehicle_nor_frees_it(sequence: list[MachineReading], ill: bool) -> None:
    """P-24 (A6)."""
    rigs = [driving(20.0) for _ in range(2)]
    for rig in rigs:
        rig.alive -= {"machine"}  # its readings come from here
        if ill:
            rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    with_readings, without = rigs
    for reading in sequence:
        with_readings.core.on_machine(reading, with_readings.now_ns)
        for rig in rigs:
            rig.obeys = False
            rig.run(1.0)
        assert with_readings.state <= max(S.L3_PERCEPTION_ONLY, without.state, key=SEVERITY.index)
        assert SEVERITY.index(with_readings.state) >= SEVERITY.index(without.state)
        assert with_readings.limits_mps[-1] <= without.limits_mps[-1]
        assert math.isfinite(with_readings.constraint.speed_limit_mps)


SEVERITY = [S.NOMINAL, S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST, S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["exponential", "constant", "steps", "heavy", "nan"]),
    st.integers(1, 10),
    st.sampled_from([0.5, 2.0, 12.0, 60.0]),
    st.integers(1, 40),
)
def test_p25_a_limit_keeps_its_promise_in_its_own_recordings(
    seed: int, kind: str, debounce: int, rate_per_h: float, drives: int
) -> None:
    """P-25: no more blocks above it than the bound allows; NaN, which is always at fault, counts as above any limit."""
    rng = np.random.default_rng(seed)
    levels = []
    for _ in range(drives):
        values = rng.exponential(size=600)
        if kind == "constant":
            values = np.full(600, 0.25)
        elif kind == "steps":
            values = np.floor(values)
        elif kind == "heavy":
            values = rng.standard_cauchy(600)
        elif kind == "nan":
            values[rng.random(600) < 0.01] = math.nan
        levels.append(values)
    try:
        tail = find_limit(levels, 2.0, debounce, rate_per_h)
    except InputError:
        blocks = drives * 30
        assert upper_bound(0, blocks) * 3600.0 / BLOCK_S > rate_per_h
        return
    assert tail.bound_per_h <= rate_per_h * (1.0 + 1e-9)
    peaks = np.concatenate([block_peaks(values, 2.0, debounce) for values in levels])
    assert np.count_nonzero(peaks > tail.limit) == tail.exceeded
    assert tail.exceeded / tail.blocks * 3600.0 / BLOCK_S <= rate_per_h


def test_the_bounds_of_the_properties_hold_a_known_case() -> None:
    """Clopper and Pearson: nothing seen in 59 looks supports 5 % at 95 % confidence, in 58 it does not."""
    assert upper_bound(0, 59) <= 0.05 < upper_bound(0, 58)
    assert upper_bound(5, 100) == pytest.approx(0.1023, abs=2e-4)
