"""The shared words: budgets, clocks, frames, end-to-end protection, the consumer's receive timeout."""

from __future__ import annotations

import dataclasses
import math
import re
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import (
    BUDGETS,
    Advice,
    Budget,
    ConfigError,
    ConstraintGuard,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    EngineError,
    Frame,
    Hazard,
    InputError,
    LatencySplit,
    MotionConstraint,
    Origin,
    Road,
    SceneAdvice,
    SequenceChecker,
    StepDetector,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VirtualClock,
    crc_of,
    crc_ok,
    protect,
    result,
    safe_default,
)
from triptych.contract.e2e import canonical_bytes

MSG = Path(__file__).parents[2] / "msg"
MS = 1_000_000


def constraint(**changes: object) -> MotionConstraint:
    base = MotionConstraint(1, 20.0, 2.0, False, False, False, DegradationState.NOMINAL, "")
    return dataclasses.replace(base, **changes)


def sample_result(**changes: object) -> TierResult:
    payload = Detections(1280, 720, (Detection("vehicle", 0, 0.9, 1.0, 2.0, 30.0, 40.0),))
    base = TierResult(
        Tier.DETECTOR,
        Origin.FRESH,
        "",
        5,
        "camera",
        1,
        9,
        4.0,
        LatencySplit(1.0, 1.0, 1.0, 1.0),
        "e",
        "1",
        "cpu",
        0.1,
        payload,
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("message", "prefix", "enum"),
    [
        ("ResultHeader", "TIER_", Tier),
        ("ResultHeader", "ORIGIN_", Origin),
        ("TierStatus", "STATE_", TierState),
        ("DegradationState", "", DegradationState),
    ],
)
def test_message_constants_equal_the_enumerations(message: str, prefix: str, enum: type[IntEnum]) -> None:
    text = (MSG / f"{message}.msg").read_text()
    found = dict(re.findall(rf"^uint8 {prefix}([A-Z0-9_]+)=(\d+)", text, re.MULTILINE))
    assert {name: int(value) for name, value in found.items()} == {e.name: e.value for e in enum}


@pytest.mark.parametrize(
    ("message", "field", "bound"),
    [
        ("Detections", "detections", result.MAX_DETECTIONS),
        ("SceneAdvice", "hazards", result.MAX_HAZARDS),
        ("SceneAdvice", "token_probabilities", result.MAX_TOKENS),
        ("SceneAdvice", "text", result.MAX_TEXT),
        ("SceneAdvice", "question", result.MAX_QUESTION),
        ("Detection", "label", result.MAX_LABEL),
        ("ResultHeader", "reason", result.MAX_REASON),
    ],
)
def test_message_bounds_equal_the_contract(message: str, field: str, bound: int) -> None:
    assert re.search(rf"<={bound}\]? {field}\b", (MSG / f"{message}.msg").read_text())


def test_the_message_of_an_answer_has_its_fields_in_the_order_of_the_crc() -> None:
    lines = [line.split("#")[0].split() for line in (MSG / "SceneAdvice.msg").read_text().splitlines()]
    names = [words[1] for words in lines if words]
    assert names == ["result", *(f.name for f in dataclasses.fields(SceneAdvice))]


def test_the_message_says_what_the_numbers_of_a_count_mean() -> None:
    text = (MSG / "SceneAdvice.msg").read_text()
    assert f"{result.MOST_COUNTED}: nine or more, {result.NOT_COUNTED}: not counted" in text
    for field in result.COUNTED:
        assert re.search(rf"^uint8 {field}\b", text, re.MULTILINE)
        assert getattr(SceneAdvice(), field) == result.NOT_COUNTED


@pytest.mark.parametrize("value", [*range(10), 255])
def test_a_count_is_zero_to_nine_or_not_made(value: int) -> None:
    assert result.is_count(value)


@given(st.integers().filter(lambda n: not (0 <= n <= 9 or n == 255)))
def test_another_number_is_no_count(value: int) -> None:
    assert not result.is_count(value)


@pytest.mark.parametrize("value", [10, 254, -1, True, False, 3.0, 255.0, math.nan, "3", None, np.uint8(3), np.int64(9)])
def test_what_is_no_plain_number_is_no_count(value: object) -> None:
    """A bool or a NumPy number is what a careless engine gives; the wire and the CRC want an int."""
    assert not result.is_count(value)


def test_no_message_is_unbounded() -> None:
    for path in MSG.glob("*.msg"):
        for line in path.read_text().splitlines():
            declaration = line.split("#")[0].split()
            if declaration:
                assert declaration[0] != "string", f"{path.name}: {line}"
                assert not declaration[0].endswith("[]"), f"{path.name}: {line}"


def test_budgets_are_the_timing_contract() -> None:
    assert {t.key: (b.budget_s, b.keep_s) for t, b in BUDGETS.items()} == {
        "detector": (0.030, 0.100),
        "distilled": (0.200, 1.0),
        "full": (2.0, 5.0),
    }


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["budget_s", "keep_s", "period_s"])
def test_budget_refuses_unusable_numbers(field: str, bad: float) -> None:
    """A6."""
    values = {"budget_s": 0.1, "keep_s": 0.2, "period_s": 0.1, field: bad}
    with pytest.raises(ConfigError, match=field):
        Budget(**values)


def test_budget_keeps_at_least_its_budget() -> None:
    with pytest.raises(ConfigError, match="keep_s"):
        Budget(budget_s=0.2, keep_s=0.1, period_s=0.1)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((1, 8193, 3), np.uint8),
    ],
)
def test_frame_refuses_images_it_cannot_use(image: np.ndarray) -> None:
    with pytest.raises(InputError, match="image"):
        Frame(image, 1, 1)


def test_fingerprint_sees_a_changed_picture_and_only_that() -> None:
    image = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), dtype=np.uint8)
    changed = image.copy()
    changed[300:400, 500:700] += 40
    assert Frame(image, 1, 1).fingerprint() == Frame(image.copy(), 2, 2).fingerprint()
    assert Frame(image, 1, 1).fingerprint() != Frame(changed, 1, 1).fingerprint()


floats = st.floats(allow_nan=False, width=64)
texts = st.text(max_size=20)
counts = st.integers(0, result.MOST_COUNTED) | st.just(result.NOT_COUNTED)
advices = st.builds(
    SceneAdvice,
    advice=st.sampled_from(Advice),
    vehicles=counts,
    two_wheelers=counts,
    pedestrians=counts,
    text=texts,
    token_probabilities=st.tuples(floats, floats),
)


@settings(deadline=None)
@given(advices, st.integers(0, 255), floats, texts)
def test_protected_record_passes_and_any_changed_field_fails(
    payload: SceneAdvice, counter: int, uncertainty: float, engine: str
) -> None:
    record = protect(sample_result(payload=payload, uncertainty=uncertainty, engine_id=engine), counter)
    assert record.sequence_counter == counter and crc_ok(record)
    for field, other in [
        ("uncertainty", uncertainty + 1.0 if abs(uncertainty) < 1e15 else 0.0),
        ("engine_id", engine + "x"),
        ("sequence_counter", (counter + 1) % 256),
        ("origin", Origin.DEFAULT),
        ("payload", dataclasses.replace(payload, text=payload.text + "!")),
        ("source_stamp_ns", record.source_stamp_ns + 1),
    ]:
        assert not crc_ok(dataclasses.replace(record, **{field: other})), field


@settings(deadline=None)
@given(advices, st.sampled_from(result.COUNTED), counts)
def test_a_changed_count_breaks_the_crc(payload: SceneAdvice, field: str, count: int) -> None:
    record = protect(sample_result(payload=payload), 9)
    changed = dataclasses.replace(record, payload=dataclasses.replace(payload, **{field: count}))
    assert crc_ok(changed) is (count == getattr(payload, field))


def test_counts_that_change_places_break_the_crc() -> None:
    record = protect(sample_result(payload=SceneAdvice(vehicles=1, two_wheelers=2, pedestrians=3)), 9)
    for vehicles, two_wheelers, pedestrians in ((2, 1, 3), (3, 2, 1), (1, 3, 2)):
        payload = SceneAdvice(vehicles=vehicles, two_wheelers=two_wheelers, pedestrians=pedestrians)
        assert not crc_ok(dataclasses.replace(record, payload=payload))


def test_every_protected_record_type_can_be_protected() -> None:
    status = TierStatus(1, Tier.FULL, TierState.ACTIVE, True)
    for record in (sample_result(), status, DriverState(1), constraint()):
        assert crc_ok(protect(record, 300))
        assert protect(record, 300).sequence_counter == 44


def test_canonical_encoding_is_unambiguous_and_closed() -> None:
    assert canonical_bytes(("ab", "c")) != canonical_bytes(("a", "bc"))
    assert canonical_bytes(1) != canonical_bytes(1.0)
    with pytest.raises(TypeError):
        canonical_bytes({"a": 1})


def test_a_whole_number_in_a_float_field_encodes_as_the_float_a_receiver_reads() -> None:
    assert crc_of(constraint(speed_limit_mps=20)) == crc_of(constraint(speed_limit_mps=20.0))


def test_crc_is_pinned() -> None:
    """The wire format is an interface: a change of the encoding must be deliberate."""
    assert crc_of(constraint()) == 0xB369351A
    answer = SceneAdvice(Road.URBAN, hazards=(Hazard.RED_LIGHT,), vehicles=3, two_wheelers=0, pedestrians=9, text="x")
    assert crc_of(sample_result(payload=answer)) == 0xE9E04BB9


def test_sequence_checker_counts_gaps_over_the_wrap() -> None:
    checker = SequenceChecker()
    assert [checker.update(c) for c in (254, 255, 0, 1, 4, 4)] == [0, 0, 0, 0, 2, -1]
    checker.reset()
    assert checker.update(77) == 0


def test_step_detector_sees_steps_not_drift() -> None:
    """A12."""
    clock, detector = VirtualClock(10**18), StepDetector(0.05)
    assert detector.update(clock) == 0.0
    clock.advance_to(5_000 * MS)
    clock.step(40 * MS)
    assert detector.update(clock) == 0.0
    clock.step(-1_000 * MS)
    assert detector.update(clock) == pytest.approx(-1.0)
    assert detector.update(clock) == 0.0


def test_virtual_clock_never_runs_backwards() -> None:
    clock = VirtualClock()
    clock.advance_to(10)
    clock.advance_to(5)
    assert clock.monotonic_ns() == 10


class TestConstraintGuard:
    """A11: whoever acts on the constraint reaches its safe default alone."""

    def test_starts_in_the_safe_default(self) -> None:
        assert ConstraintGuard().silence_s(5) is None
        effective = ConstraintGuard().effective(0, 7)
        assert effective.speed_limit_mps == 0.0 and effective.hazard_lights and effective.stamp_ns == 7

    @pytest.mark.parametrize(("silence_ms", "held"), [(148.5, True), (150.0, True), (151.5, False)])
    def test_times_out(self, silence_ms: float, held: bool) -> None:
        guard = ConstraintGuard(0.15)
        assert guard.receive(constraint(), 0)
        assert (guard.effective(int(silence_ms * MS), 0).speed_limit_mps == 20.0) is held
        assert guard.silence_s(int(silence_ms * MS)) == pytest.approx(silence_ms / 1e3)

    @given(st.floats(), st.floats())
    def test_never_passes_on_an_unusable_number(self, speed_limit_mps: float, deceleration_mps2: float) -> None:
        """A6."""
        guard = ConstraintGuard()
        guard.receive(constraint(speed_limit_mps=speed_limit_mps, deceleration_mps2=deceleration_mps2), 0)
        effective = guard.effective(0, 0)
        assert math.isfinite(effective.speed_limit_mps) and effective.speed_limit_mps >= 0
        assert math.isfinite(effective.deceleration_mps2) and effective.deceleration_mps2 > 0

    def test_counts_what_it_rejects(self) -> None:
        guard = ConstraintGuard()
        assert not guard.receive(constraint(), 0, crc_ok=False)
        assert guard.rejected == 1 and guard.effective(0, 0) == safe_default(0, reason="no constraint received yet")

    @pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
    def test_refuses_a_timeout_that_never_ends(self, bad: float) -> None:
        with pytest.raises(ConfigError, match="timeout_s"):
            ConstraintGuard(bad)


def test_errors_read_as_one_sentence() -> None:
    error = EngineError(
        "sha256 does not fit", where="m.yaml", field="files.model", value="ab" * 60, remedy="restore the file"
    )
    assert str(error) == f"m.yaml: files.model: sha256 does not fit (got {repr('ab' * 60)[:77]}...); restore the file."
    assert str(InputError("no camera topic")) == "no camera topic."


@pytest.mark.parametrize("counter", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_counter_of_64_bits_has_a_crc(counter: int) -> None:
    """A6: an unsigned counter above 2^63 raised in whoever checked the message, and with it ended the supervisor."""
    record = protect(TierStatus(1, Tier.FULL, TierState.ACTIVE, True, frames_received=counter), 3)
    assert crc_ok(record)
    assert not crc_ok(dataclasses.replace(record, frames_received=counter - 1))


def test_a_negative_number_is_encoded_as_it_always_was() -> None:
    """Two's complement, little endian: the CRC of what fits 64 signed bits is the same as before."""
    for number in (-1, -(2**63), 0, 2**63 - 1):
        assert canonical_bytes(number) == number.to_bytes(8, "little", signed=True)
