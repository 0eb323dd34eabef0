"""Each way to break the closed loop does what it says, and the loop itself is the same on every run."""

from __future__ import annotations

import dataclasses
import struct
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from injection_rig import tried

from triptych.contract import (
    DegradationState,
    Detections,
    DriverState,
    LatencySplit,
    MotionConstraint,
    Odometry,
    Origin,
    PointCloud,
    SceneAdvice,
    Tier,
    TierResult,
    crc_ok,
    protect,
)
from triptych.engines.protocol import EngineOutput
from triptych.injection.faults import KINDS, flipped
from triptych.injection.loop import NS
from triptych.injection.pictures import PICTURES
from triptych.injection.scans import SCANS
from triptych.injection.trial import Verdict

S = DegradationState
RNG = np.random.default_rng(0)
L1 = {"least": "l1"}


def test_a_healthy_drive_is_left_alone_and_the_same_twice() -> None:
    first, second = tried("none"), tried("none")
    assert first.verdict is Verdict.TOLERATED and not first.faults and first.final == ("NOMINAL", "NOMINAL")
    assert first.speed_at_fault_mps > 3.0, "it really drives"
    assert first == second


@pytest.mark.parametrize(
    ("kind", "parameters", "by", "within_s"),
    [
        ("process.kill", {"process": "detector"}, "detector.", 0.15),
        ("process.stop", {"process": "detector"}, "detector.", 0.15),
        ("engine.hang", {"tiers": ["detector"]}, "detector.", 0.3),
        ("engine.answer", {"tiers": ["detector"], "what": "error"}, "detector.", 0.3),
        ("engine.answer", {"tiers": ["detector"], "what": "nan"}, "detector.", 0.3),
        ("wire.drop", {"hop": "camera"}, "detector.", 0.3),
        ("wire.drop", {"hop": "detector.result"}, "detector.", 0.15),
        ("camera.freeze", {"stamp_too": True}, "detector.", 0.3),
        ("camera.stamps", {"shift_s": 1.0}, "detector.", 0.5),
        ("process.kill", {"process": "supervisor", "restart_s": 0.0}, "safety_core", 0.2),
        ("process.stop", {"process": "supervisor"}, "safety_core", 0.2),
        ("process.kill", {"process": "supervisor", "restart_s": 1.0}, "safety_core", 0.2),
        ("wire.drop", {"hop": "constraint"}, "safety_core", 0.2),
        ("process.kill", {"process": "safety_core", "restart_s": 0.0}, "vehicle", 0.2),
        ("process.stop", {"process": "safety_core"}, "vehicle", 0.2),
        ("wire.drop", {"hop": "command"}, "vehicle", 0.2),
        ("wire.drop", {"hop": "odometry"}, "safety_core", 0.35),
    ],
)
def test_whoever_is_lost_is_missed_in_time_and_the_vehicle_stops(
    kind: str, parameters: dict[str, object], by: str, within_s: float
) -> None:
    """A1, A7, A11, A12."""
    trial = tried(kind, {"by": [by], "within_s": within_s, **L1}, **parameters)
    assert trial.verdict is Verdict.DETECTED, trial
    assert trial.reaction_s is not None and trial.reaction_s <= within_s + 0.2
    assert trial.outcome["max_deceleration_mps2"] <= 4.0 + 1e-9


@pytest.mark.parametrize("what", ["zero", "nan", "jump", "silent_source"])
def test_a_lying_speed_is_found(what: str) -> None:
    """A6, A10."""
    expect = {"by": ["odometry.", "safety_core"], "within_s": 0.6, "least": "l2"}
    assert tried("odometry.speed", expect, what=what).verdict is Verdict.DETECTED


@pytest.mark.parametrize("step_s", [1.0, -1.0])
def test_a_clock_step_is_noticed_and_changes_nothing(step_s: float) -> None:
    """A12."""
    trial = tried("clock.offset", {"by": ["clock."], "within_s": 0.1}, step_s=step_s)
    assert trial.verdict is Verdict.DETECTED and trial.final == ("NOMINAL", "NOMINAL")


def test_one_lost_vlm_is_noticed_and_driven_on_with() -> None:
    trial = tried("engine.answer", {"by": ["distilled."], "within_s": 2.0}, tiers=["distilled"], what="error")
    assert trial.verdict is Verdict.DETECTED and trial.final[0] == "NOMINAL"


def test_a_fault_ends_when_it_is_to_end() -> None:
    trial = tried("process.stop", {"by": ["distilled."], "within_s": 1.0}, process="distilled", for_s=0.9)
    assert trial.verdict is Verdict.DETECTED and trial.final[0] == "NOMINAL"


def test_what_never_happened_was_not_tried() -> None:
    """A hop without traffic in the time of the fault: invalid, never passed."""
    trial = tried("wire.bit_flip", hop="detector.result", field="age_ms", cycle=10000)
    assert trial.verdict is Verdict.INVALID and "never took effect" in trial.why


def test_an_undetected_fault_and_a_wrong_state_are_called_so() -> None:
    missed = tried("wire.duplicate", {"by": ["driver."], "within_s": 1.0}, hop="camera", delay_s=0.01)
    assert missed.verdict is Verdict.MISSED and "driver." in missed.why
    wrong = tried("clock.offset", {"by": ["clock."], "within_s": 1.0, **L1}, step_s=1.0)
    assert wrong.verdict is Verdict.WRONG_STATE
    late = tried("process.kill", {"by": ["detector."], "within_s": 0.001, **L1}, process="detector")
    assert late.verdict is Verdict.LATE


MESSAGE = protect(MotionConstraint(5, 12.5, 2.0, False, False, False, S.NOMINAL, "why"), 7)
WIDTH = {"speed_limit_mps": 64, "deceleration_mps2": 64, "stamp_ns": 63, "sequence_counter": 8, "crc": 32}


@given(field=st.sampled_from(sorted(WIDTH)), data=st.data())
def test_a_flip_changes_these_bits_and_the_checksum_tells(field: str, data: st.DataObject) -> None:
    mask = data.draw(st.integers(1, 2 ** WIDTH[field] - 1))
    changed = flipped(MESSAGE, field, mask)
    before, after = getattr(MESSAGE, field), getattr(changed, field)
    if isinstance(before, float):
        bits = [struct.unpack("<Q", struct.pack("<d", v))[0] for v in (before, after)]
        assert bits[0] ^ bits[1] == mask
    else:
        assert before ^ after == mask
    assert not crc_ok(changed)
    assert dataclasses.replace(changed, **{field: before}) == MESSAGE
    if isinstance(before, int):
        assert flipped(changed, field, mask) == MESSAGE


def test_flips_of_other_kinds_of_fields() -> None:
    assert flipped(MESSAGE, "hazard_lights", 1).hazard_lights is True
    assert flipped(MESSAGE, "state", 1).state is S(int(S.NOMINAL) ^ 1)
    assert flipped(MESSAGE, "state", 128) is None, "no receiver can read that state"
    assert flipped(MESSAGE, "reason", 1).reason != "why"


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(PICTURES)), strength=st.floats(0.05, 1.0), seed=st.integers(0, 100))
def test_a_spoilt_picture_is_one_and_another(name: str, strength: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(30, 220, (90, 240, 3), dtype=np.uint8)
    kept = image.copy()
    spoilt = PICTURES[name](image, strength, rng)
    assert spoilt.dtype == np.uint8 and spoilt.ndim == 3 and spoilt.flags.c_contiguous
    assert np.array_equal(image, kept), "the picture of others is left alone"
    assert spoilt.shape != image.shape or not np.array_equal(spoilt, image)


def test_pictures_may_be_spoilt_in_every_known_way() -> None:
    assert get_args(KINDS["camera.picture"][1].model_fields["what"].annotation) == tuple(PICTURES)


@pytest.mark.parametrize("name", SCANS)
def test_a_spoilt_scan_is_still_one_and_another(name: str) -> None:
    points = np.random.default_rng(4).uniform(-20, 20, (500, 3)).astype(np.float32)
    kept = points.copy()
    spoilt = SCANS[name](points, RNG)
    PointCloud(spoilt, 1)
    assert np.array_equal(points, kept), "the scan of others is left alone"
    assert name == "frozen" or not np.array_equal(spoilt, points)


def test_scans_may_be_spoilt_in_every_known_way() -> None:
    assert get_args(KINDS["lidar.scan"][1].model_fields["what"].annotation) == tuple(SCANS)


def test_each_tier_is_stuck_at_its_own_answer() -> None:
    fault, parameters = KINDS["engine.answer"]
    made = fault(parameters.model_validate_json('{"tiers": ["distilled", "full"], "what": "stuck"}'), 0, RNG)
    said = {tier: EngineOutput(SceneAdvice(text=tier.key), 0.1, 0, 0, 0) for tier in (Tier.DISTILLED, Tier.FULL)}
    other = EngineOutput(SceneAdvice(text="another"), 0.1, 0, 0, 0)
    for tier, output in said.items():
        assert made.answer(tier, output, 1) == output == made.answer(tier, other, 2)
    assert made.answer(Tier.DETECTOR, other, 2) is None and made.effects == 2, "what it says anyway is no effect"


def test_every_kind_says_what_it_is() -> None:
    for name, (fault, parameters) in KINDS.items():
        assert fault.__doc__ and (name == "none" or "." in name)
        parameters()
        assert all(info.description for info in parameters.model_fields.values())


def test_odometry_of_a_stale_source_keeps_its_stamp() -> None:
    fault, parameters = KINDS["odometry.speed"]
    made = fault(parameters.model_validate({"what": "silent_source"}), 0, np.random.default_rng(0))
    first, second = Odometry(1, 3.0), Odometry(2, 4.0)
    assert made.deliver("odometry", first, 0) == [(0, first)] == made.deliver("odometry", second, 1)
    assert made.deliver("driver", second, 1) is None and made.effects == 2


def test_another_engine_answers_soundly_in_a_tiers_place() -> None:
    fault, parameters = KINDS["engine.foreign"]
    made = fault(parameters(), 0, RNG)
    split, payload = LatencySplit(), Detections(8, 8)
    sound = TierResult(Tier.DETECTOR, Origin.FRESH, "", 1, "camera", 1, 2, 1.0, split, "mine", "1", "cpu", 0.1, payload)
    result = protect(sound, 7)
    ((delay_ns, changed),) = made.deliver("detector.result", result, 1)
    assert delay_ns == 0 and crc_ok(changed) and changed.sequence_counter == 7
    assert changed.engine_id != "mine" and changed.payload == result.payload
    assert made.deliver("distilled.result", result, 1) is made.deliver("detector.status", result, 1) is None


@pytest.mark.parametrize(("at_s", "drives"), [(1.99, False), (2.0, True), (9.0, True)])
def test_a_late_driver_takes_over_after_all(at_s: float, drives: bool) -> None:
    fault, parameters = KINDS["driver.state"]
    asleep = parameters(present=False, attentive=False, takes_over_after_s=2.0)
    made = fault(asleep, 5 * NS, RNG)
    ((_, told),) = made.deliver("driver", DriverState(0), 5 * NS + round(at_s * NS))
    assert crc_ok(told)
    assert told.present is told.attentive is told.override_active is drives and told.automation_engaged is not drives
