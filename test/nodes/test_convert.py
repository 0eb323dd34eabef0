"""Messages to records and back: nothing is lost, nothing unusable gets in."""

from __future__ import annotations

import array
import math
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Hazard,
    InputError,
    LatencySplit,
    Light,
    MotionConstraint,
    Obstacle,
    Obstacles,
    Odometry,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VerdictLevel,
    Weather,
    crc_ok,
    protect,
)
from triptych.contract.supervision import StateRecord, Verdict
from triptych.nodes import convert

STAMPS = st.integers(0, (2**31 - 1) * 10**9)
FLOATS = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**40)
OBJECTS = st.integers(0, 9) | st.just(255)


def text(limit: int) -> st.SearchStrategy[str]:
    characters = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
    return st.text(characters, max_size=limit).map(lambda t: convert.fit(t, limit))


DETECTION = st.builds(Detection, text(32), st.integers(0, 255), FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
DETECTIONS = st.builds(
    Detections, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.lists(DETECTION, max_size=8).map(tuple)
)
ADVICE = st.builds(
    SceneAdvice,
    st.sampled_from(Road),
    st.sampled_from(Weather),
    st.sampled_from(Light),
    st.lists(st.sampled_from(Hazard), max_size=8).map(tuple),
    st.sampled_from(Advice),
    OBJECTS,
    OBJECTS,
    OBJECTS,
    text(128),
    text(256),
    st.lists(FLOATS, max_size=64).map(tuple),
)


def results(tier: st.SearchStrategy[Tier], payload: st.SearchStrategy[Any]) -> st.SearchStrategy[TierResult]:
    return st.builds(
        TierResult,
        tier=tier,
        origin=st.sampled_from(Origin),
        reason=text(64),
        source_stamp_ns=STAMPS,
        frame_id=text(40),
        frame_number=COUNTS,
        published_ns=STAMPS,
        age_ms=FLOATS,
        latency=st.builds(LatencySplit, FLOATS, FLOATS, FLOATS, FLOATS),
        engine_id=text(64),
        engine_version=text(32),
        device=text(64),
        uncertainty=FLOATS,
        payload=payload,
    )


RESULTS = st.one_of(
    results(st.just(Tier.DETECTOR), DETECTIONS), results(st.sampled_from([Tier.DISTILLED, Tier.FULL]), ADVICE)
)
STATUSES = st.builds(
    TierStatus,
    stamp_ns=STAMPS,
    tier=st.sampled_from(Tier),
    state=st.sampled_from(TierState),
    healthy=st.booleans(),
    fault=text(160),
    engine_id=text(64),
    engine_version=text(32),
    device_requested=text(64),
    device=text(64),
    frames_received=COUNTS,
    frames_dropped=COUNTS,
    results_fresh=COUNTS,
    results_last_frame=COUNTS,
    results_default=COUNTS,
)
CONSTRAINTS = st.builds(
    MotionConstraint,
    stamp_ns=STAMPS,
    speed_limit_mps=FLOATS,
    deceleration_mps2=FLOATS,
    hazard_lights=st.booleans(),
    pull_over=st.booleans(),
    remote_notification=st.booleans(),
    state=st.sampled_from(DegradationState),
    reason=text(160),
)
DRIVERS = st.builds(DriverState, STAMPS, st.booleans(), st.booleans(), st.booleans(), st.booleans())
STATES = st.builds(
    StateRecord,
    stamp_ns=STAMPS,
    state=st.sampled_from(DegradationState),
    previous=st.sampled_from(DegradationState),
    since_ns=STAMPS,
    reason=text(160),
    active_faults=st.lists(text(48), max_size=16).map(tuple),
    takeover_requested=st.booleans(),
    takeover_remaining_s=FLOATS,
)


SCANS = st.builds(
    Obstacles,
    stamp_ns=STAMPS,
    frame_id=st.just("base_link"),
    points_n=st.integers(0, 2**32 - 1),
    reach_m=st.floats(allow_nan=False),
    healthy=st.booleans(),
    fault=st.sampled_from(["", "few_points; moved"]),
    obstacles=st.lists(
        st.builds(Obstacle, *[st.floats(allow_nan=False)] * 5, st.integers(0, 2**32 - 1)), max_size=4
    ).map(tuple),
)


def over_the_wire(msg: Any) -> Any:
    return deserialize_message(serialize_message(msg), type(msg))


@pytest.mark.parametrize(
    ("records", "to", "back"),
    [
        (RESULTS, convert.result_to_msg, convert.result_from_msg),
        (STATUSES, convert.status_to_msg, convert.status_from_msg),
        (CONSTRAINTS, convert.constraint_to_msg, convert.constraint_from_msg),
        (DRIVERS, convert.driver_to_msg, convert.driver_from_msg),
        (STATES, convert.state_to_msg, convert.state_from_msg),
        (SCANS, convert.obstacles_to_msg, convert.obstacles_from_msg),
    ],
    ids=["result", "status", "constraint", "driver", "state", "obstacles"],
)
def test_lossless_over_the_wire(records: Any, to: Any, back: Any) -> None:
    """Whatever goes out comes back equal, so that the CRC holds at the receiver."""

    @settings(max_examples=60, deadline=None)
    @given(records, st.integers(0, 255))
    def check(record: Any, counter: int) -> None:
        protected = protect(record, counter)
        received = back(over_the_wire(to(protected)))
        assert received == protected and crc_ok(received)

    check()


def test_long_text_is_cut_and_the_crc_still_holds() -> None:
    advice = SceneAdvice(question="é" * 100, text="ü" * 200)
    result = protect(
        TierResult(
            Tier.FULL, Origin.FRESH, "r" * 100, 1, "f", 1, 2, 1.0, LatencySplit(), "e" * 90, "v" * 90, "d" * 90, 0.0,
            advice,
        ),
        7,
    )  # fmt: skip
    received = convert.result_from_msg(over_the_wire(convert.result_to_msg(result)))
    assert crc_ok(received) and received.sequence_counter == 7
    assert isinstance(received.payload, SceneAdvice)
    assert (received.payload.question, received.payload.text) == ("é" * 64, "ü" * 128)
    assert (len(received.reason), len(received.engine_id), len(received.engine_version)) == (64, 64, 32)
    boxes = Detections(4, 4, (Detection("ß" * 40, 0, 0.5, 0, 0, 1, 1),))
    label = convert.result_from_msg(over_the_wire(convert.result_to_msg(protect(_with_payload(result, boxes), 8))))
    assert crc_ok(label) and isinstance(label.payload, Detections) and label.payload.detections[0].label == "ß" * 16
    status = protect(TierStatus(1, Tier.FULL, TierState.ERROR, False, fault="€" * 100), 3)
    fault = convert.status_from_msg(over_the_wire(convert.status_to_msg(status)))
    assert crc_ok(fault) and fault.fault == "€" * 53


def test_of_too_many_obstacles_the_nearest_are_told_and_the_crc_still_holds() -> None:
    many = tuple(Obstacle(float(k), k + 1.0, 0.0, 1.0, 1.0, 3) for k in range(70))
    scan = protect(Obstacles(1, "f" * 90, 9, 60.0, False, "x" * 200, many), 5)
    received = convert.obstacles_from_msg(over_the_wire(convert.obstacles_to_msg(scan)))
    assert crc_ok(received) and received.sequence_counter == 5
    assert received.obstacles == many[:64]
    assert (len(received.frame_id), len(received.fault)) == (64, 160)


def _with_payload(result: TierResult, payload: Detections) -> TierResult:
    from dataclasses import replace

    return replace(result, tier=Tier.DETECTOR, payload=payload)


def test_numbers_of_the_wrong_kind_are_made_to_fit_or_refused() -> None:
    """The middleware aborts the process on an int in a float field or on 300 in a byte: neither may get there."""
    box = Detection("car", 3, 1, np.float32(0), 0, np.int32(4), 5)  # type: ignore[arg-type]
    result = TierResult(
        Tier.DETECTOR, Origin.FRESH, "", 1, "f", 1, 2, 1, LatencySplit(1, 2, 3, 4), "e", "v", "d", 0,
        Detections(4, 4, (box,) * 200),
    )  # fmt: skip
    received = convert.result_from_msg(over_the_wire(convert.result_to_msg(protect(result, 3))))
    assert isinstance(received.payload, Detections) and len(received.payload.detections) == 128
    for payload in (Detections(-1, 4), Detections(2**32, 4), Detections(4, 4, (Detection("", 300, 0, 0, 0, 0, 0),))):
        with pytest.raises(InputError, match="unsigned"):
            convert.result_to_msg(_with_payload(result, payload))
    with pytest.raises(InputError, match="frames_received"):
        convert.status_to_msg(TierStatus(1, Tier.FULL, TierState.ACTIVE, True, frames_received=-1))
    over_the_wire(convert.constraint_to_msg(MotionConstraint(-5, 10, 2, False, False, False, DegradationState.MRC, "")))
    over_the_wire(convert.odometry_to_msg(Odometry(2**70, 3)))
    over_the_wire(
        convert.verdicts_to_msg((Verdict("x" * 99, "y" * 99, VerdictLevel.OK, False, 1, 2, "z" * 999),) * 199, 0)
    )


def test_a_changed_message_fails_its_crc() -> None:
    msg = convert.constraint_to_msg(
        protect(MotionConstraint(1, 10.0, 2.0, False, False, False, DegradationState.NOMINAL, "x"), 1)
    )
    msg.speed_limit_mps = 30.0
    assert not crc_ok(convert.constraint_from_msg(msg))


def _answer(**counts: int) -> TierResult:
    return TierResult(
        Tier.FULL, Origin.FRESH, "", 1, "f", 1, 2, 1.0, LatencySplit(), "e", "v", "d", 0.0, SceneAdvice(**counts)
    )  # fmt: skip


def test_counts_keep_their_places_in_the_message() -> None:
    msg = over_the_wire(convert.result_to_msg(_answer(vehicles=4, two_wheelers=0, pedestrians=9)))
    assert (msg.vehicles, msg.two_wheelers, msg.pedestrians) == (4, 0, 9)
    msg = over_the_wire(convert.result_to_msg(_answer()))
    assert (msg.vehicles, msg.two_wheelers, msg.pedestrians) == (255, 255, 255)


@pytest.mark.parametrize("field", ["vehicles", "two_wheelers", "pedestrians"])
def test_a_count_changed_on_the_way_is_seen_and_what_is_none_is_refused(field: str) -> None:
    msg = convert.result_to_msg(protect(_answer(vehicles=4, two_wheelers=0, pedestrians=9), 5))
    setattr(msg, field, 7)
    assert not crc_ok(convert.result_from_msg(over_the_wire(msg)))
    for number in (10, 254):
        setattr(msg, field, number)
        with pytest.raises(InputError, match=f"SceneAdvice: {field}: is no count .got {number}"):
            convert.result_from_msg(over_the_wire(msg))
    for number in (-1, 256):
        with pytest.raises(InputError, match=f"{field}: does not fit an unsigned number of 8 bits"):
            convert.result_to_msg(_answer(**{field: number}))


@pytest.mark.parametrize("number", [0, 4, 200])
def test_unknown_numbers_are_refused(number: int) -> None:
    result = convert.result_to_msg(
        TierResult(
            Tier.FULL, Origin.FRESH, "", 1, "f", 1, 2, 1.0, LatencySplit(), "e", "v", "d", 0.0, SceneAdvice()
        )
    )  # fmt: skip
    result.result.tier = number
    with pytest.raises(InputError, match="SceneAdvice"):
        convert.result_from_msg(result)
    status = convert.status_to_msg(TierStatus(1, Tier.FULL, TierState.ACTIVE, True))
    status.tier = number
    with pytest.raises(InputError, match="tier"):
        convert.status_from_msg(status)


def test_verdicts_round_trip() -> None:
    verdicts = (
        Verdict("a.b", "detector", VerdictLevel.FAULT, True, 1.5, 1.0, "late"),
        Verdict("c.d", "clock", VerdictLevel.OK, False, 0.0, 2.0, ""),
    )
    assert convert.verdicts_from_msg(over_the_wire(convert.verdicts_to_msg(verdicts, 5))) == verdicts
    bad = convert.verdicts_to_msg(verdicts, 5)
    bad.verdicts[0].level = 9
    with pytest.raises(InputError):
        convert.verdicts_from_msg(bad)


@pytest.mark.parametrize("speed", [0.0, -3.25, 20.0])
def test_odometry(speed: float) -> None:
    assert convert.odometry_from_msg(over_the_wire(convert.odometry_to_msg(Odometry(12, speed)))) == Odometry(12, speed)


@pytest.mark.parametrize("speed", [math.nan, math.inf, -math.inf])
def test_a_speed_that_is_no_number_is_unknown(speed: float) -> None:
    """A6: not-a-number never becomes a speed."""
    assert math.isnan(convert.odometry_from_msg(convert.odometry_to_msg(Odometry(12, speed))).speed_mps)


# -- images ----------------------------------------------------------------------------------------------------------

BGR = np.random.default_rng(5).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def image_msg(encoding: str, data: np.ndarray, padding: int = 0) -> Image:
    rows = data.reshape(data.shape[0], -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    msg = Image(height=data.shape[0], width=data.shape[1], encoding=encoding, step=padded.shape[1])
    msg.data = array.array("B", padded.tobytes())
    return msg


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    ("encoding", "code"),
    [
        ("bgr8", None),
        ("8UC3", None),
        ("rgb8", cv2.COLOR_BGR2RGB),
        ("bgra8", cv2.COLOR_BGR2BGRA),
        ("rgba8", cv2.COLOR_BGR2RGBA),
    ],
)
def test_colour_encodings(encoding: str, code: int | None, padding: int) -> None:
    data = BGR if code is None else np.asarray(cv2.cvtColor(BGR, code))
    frame = convert.frame_from_image(image_msg(encoding, data, padding), 3, 10, 20)
    assert np.array_equal(frame.image, BGR)
    assert (frame.number, frame.received_ns, frame.received_monotonic_ns) == (3, 10, 20)


@pytest.mark.parametrize("padding", [0, 3])
def test_grey_and_raw_encodings(padding: int) -> None:
    grey = BGR[:, :, 0]
    frame = convert.frame_from_image(image_msg("mono8", grey, padding), 1, 0)
    assert np.array_equal(frame.image, np.repeat(grey[:, :, None], 3, axis=2))
    for encoding in ("bayer_rggb8", "bayer_bggr8", "bayer_gbrg8", "bayer_grbg8"):
        assert convert.frame_from_image(image_msg(encoding, grey, padding), 1, 0).image.shape == BGR.shape
    flat = np.full((6, 8, 2), 128, np.uint8)
    for encoding in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        image = convert.frame_from_image(image_msg(encoding, flat, padding), 1, 0).image
        assert image.shape == BGR.shape and np.ptp(image.astype(int)) <= 8


def test_red_is_red_in_every_encoding() -> None:
    """The order of Bayer and YUV constants is easily wrong; a red picture tells."""
    red = np.zeros((16, 16, 3), np.uint8)
    red[:, :, 2] = 200
    bayer = np.zeros((16, 16), np.uint8)
    for encoding, (y, x) in {
        "bayer_rggb8": (0, 0), "bayer_bggr8": (1, 1), "bayer_grbg8": (0, 1), "bayer_gbrg8": (1, 0)
    }.items():  # fmt: skip
        mosaic = bayer.copy()
        mosaic[y::2, x::2] = 200
        image = convert.frame_from_image(image_msg(encoding, mosaic), 1, 0).image[4:12, 4:12]
        assert image[:, :, 2].mean() > 150 and image[:, :, 0].mean() < 20, encoding
    for encoding, code in (("yuv422", cv2.COLOR_BGR2YUV_UYVY), ("yuv422_yuy2", cv2.COLOR_BGR2YUV_YUYV)):
        data = np.asarray(cv2.cvtColor(red, code))
        image = convert.frame_from_image(image_msg(encoding, data), 1, 0).image
        assert image[:, :, 2].mean() > 180 and image[:, :, 0].mean() < 30, encoding


def test_bgr_is_not_copied() -> None:
    msg = image_msg("bgr8", BGR)
    frame = convert.frame_from_image(msg, 1, 0)
    msg.data[0] = (int(BGR[0, 0, 0]) + 1) % 256
    assert frame.image[0, 0, 0] == msg.data[0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"width": 0}, "width"),
        ({"height": 0}, "height"),
        ({"width": 9000, "step": 27000}, "width"),
        ({"encoding": "32FC1"}, "encoding"),
        ({"encoding": ""}, "encoding"),
        ({"step": 23}, "step"),
        ({"step": 0}, "step"),
        ({"height": 7}, "data"),
        ({"step": 25}, "data"),
        ({"data": array.array("B")}, "data"),
    ],
)
def test_bad_images_are_named(changes: dict[str, Any], field: str) -> None:
    """An image of zero size, unknown encoding, wrong step or with too little data ends in one sentence."""
    msg = image_msg("bgr8", BGR)
    for name, value in changes.items():
        setattr(msg, name, value)
    with pytest.raises(InputError) as caught:
        convert.frame_from_image(msg, 1, 0)
    assert caught.value.field == field


def test_odd_width_of_yuv_is_refused() -> None:
    with pytest.raises(InputError, match="even"):
        convert.frame_from_image(image_msg("yuv422", np.zeros((4, 5, 2), np.uint8)), 1, 0)


def test_image_round_trip() -> None:
    msg = over_the_wire(convert.image_to_msg(BGR, 1_500_000_001, "cam"))
    frame = convert.frame_from_image(msg, 2, 3)
    assert np.array_equal(frame.image, BGR) and (frame.stamp_ns, frame.frame_id) == (1_500_000_001, "cam")


def test_compressed_images() -> None:
    smooth = np.full((48, 64, 3), (40, 90, 200), np.uint8)
    frame = convert.frame_from_compressed(over_the_wire(convert.compressed_to_msg(smooth, 7, "cam", 95)), 2, 3)
    assert frame.image.shape == smooth.shape and np.abs(frame.image.astype(int) - smooth).max() < 6
    png = cv2.imencode(".png", smooth)[1].tobytes()
    endless = png[:16] + b"\x3f\xff\xff\xff" * 2 + png[24:]  # claims sides of 2**30 pixels
    for data, words in ((b"", "is empty"), (b"not a picture", "is not a picture"), (endless, "is not a picture")):
        broken = CompressedImage(format="jpeg")
        broken.data = array.array("B", data)
        with pytest.raises(InputError, match=words):
            convert.frame_from_compressed(broken, 1, 0)


@given(st.text(max_size=60), st.integers(0, 40))
def test_fit(value: str, limit: int) -> None:
    value = "".join(c for c in value if not 0xD800 <= ord(c) <= 0xDFFF)
    cut = convert.fit(value, limit)
    assert len(cut.encode()) <= limit and value.startswith(cut)
    assert cut == value or len(value[: len(cut) + 1].encode()) > limit
