"""Drawing: what must be visible is visible, nothing a message may hold makes it fail, and it is quick."""

import dataclasses
import math
import time

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    DetectionClass,
    Detections,
    Hazard,
    LatencySplit,
    MotionConstraint,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
)
from triptych.viewing import words
from triptych.viewing.draw import (
    Overlay,
    advice_text,
    annotate,
    draw_advice,
    draw_detections,
    draw_state,
    draw_takeover,
)

SIZES = [(720, 1280), (360, 640)]


def grey(height: int = 720, width: int = 1280) -> np.ndarray:
    return np.full((height, width, 3), 120, np.uint8)


def box(
    left: float = 100,
    top: float = 200,
    right: float = 300,
    bottom: float = 400,
    class_id: int = 0,
    label: str = "vehicle",
) -> Detection:
    return Detection(label, class_id, 0.9, left, top, right, bottom)


def result(
    tier: Tier, payload: Detections | SceneAdvice, origin: Origin = Origin.FRESH, age_ms: float = 12.0
) -> TierResult:
    reason = "" if origin is Origin.FRESH else "timeout"
    return TierResult(
        tier, origin, reason, 0, "camera", 1, 0, age_ms, LatencySplit(), "engine", "1", "cpu", 0.1, payload
    )


def full_overlay(boxes: int = 20, origin: Origin = Origin.FRESH) -> Overlay:
    spread = tuple(
        box(10 + 60 * (i % 20), 100 + 40 * (i // 20), 60 + 60 * (i % 20), 130 + 40 * (i // 20), i % 5)
        for i in range(boxes)
    )
    advice = SceneAdvice(hazards=(Hazard.LEAD_VEHICLE,), advice=Advice.SLOW_DOWN, text="keep your distance " * 10)
    constraint = MotionConstraint(0, 5.0, 2.0, True, True, True, DegradationState.L2_TAKEOVER_REQUEST, "")
    return Overlay(
        (
            result(Tier.DETECTOR, Detections(1280, 720, spread), origin),
            result(Tier.DISTILLED, advice),
            result(Tier.FULL, advice, Origin.LAST_FRAME, 2300.0),
        ),
        DegradationState.L2_TAKEOVER_REQUEST,
        "detector stalled",
        8.0,
        constraint,
        20.0,
    )


def near(image: np.ndarray, colour: str) -> np.ndarray:
    """Mask of pixels of that colour."""
    return np.all(np.abs(image.astype(int) - words.bgr(colour)) <= 2, axis=2)


@pytest.mark.parametrize("kind", list(DetectionClass))
def test_box_lies_where_the_detection_says(kind: DetectionClass) -> None:
    image = grey()
    draw_detections(image, Detections(1280, 720, (box(class_id=int(kind)),)))
    mask = near(image, words.CLASS_COLOURS[kind])
    assert mask[300, 100] and mask[300, 300] and mask[400, 200] and mask[200, 200]
    assert np.array_equal(image[220:380, 120:280], grey()[220:380, 120:280]), "the object itself stays visible"


def test_boxes_are_scaled_to_another_image_size() -> None:
    image = grey(360, 640)
    draw_detections(image, Detections(1280, 720, (box(),)))
    assert near(image, words.SKY)[150, 50] and near(image, words.SKY)[200, 100]


def test_stale_boxes_are_told_apart_without_colour() -> None:
    """Dashes leave gaps in the outline; a fresh outline has none."""
    fresh, stale = grey(), grey()
    detections = Detections(1280, 720, (box(),))
    draw_detections(fresh, detections, stale=False)
    draw_detections(stale, detections, stale=True)
    column = slice(210, 390)
    assert near(fresh, words.SKY)[column, 100].all()
    share = near(stale, words.SKY)[column, 100].mean()
    assert 0.3 < share < 0.7


@pytest.mark.parametrize(
    "corners",
    [
        (math.nan, 0, 10, 10),
        (0, 0, math.inf, 10),
        (0, -math.inf, 10, 10),
        (10, 10, 5, 20),
        (5000, 10, 6000, 20),
        (-50, -50, -10, -10),
    ],
)
def test_unusable_boxes_are_left_out(corners: tuple[float, float, float, float]) -> None:
    """A6: NaN, infinite, reversed and outlying corners draw nothing and raise nothing."""
    image = grey()
    draw_detections(image, Detections(1280, 720, (box(*corners),)))
    assert np.array_equal(image, grey())


numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(numbers, numbers, numbers, numbers, numbers, st.integers(-5, 300), st.text(max_size=32)), max_size=6
    ),
    st.sampled_from([(1, 1), (3, 7), (90, 160), (360, 640)]),
    st.text(max_size=300),
    numbers,
    numbers,
    st.sampled_from(list(Origin)),
)
def test_nothing_in_a_message_makes_drawing_fail(
    raw: list[tuple[float, float, float, float, float, int, str]],
    size: tuple[int, int],
    text: str,
    age_ms: float,
    speed: float,
    origin: Origin,
) -> None:
    """A6: any numbers and any text, on any image size, give an image and leave the input as it was."""
    detections = tuple(Detection(t, c, s, a, b, x, y) for a, b, x, y, s, c, t in raw)
    constraint = MotionConstraint(0, speed, 2.0, True, True, True, DegradationState.MRC, text)
    overlay = Overlay(
        (
            result(Tier.DETECTOR, Detections(640, 360, detections), origin, age_ms),
            result(Tier.FULL, SceneAdvice(text=text, question=text), origin, age_ms),
        ),
        DegradationState.MRC,
        text,
        age_ms,
        constraint,
        speed,
    )
    image = grey(*size)
    drawn = annotate(image, overlay)
    assert drawn.shape == image.shape and drawn.dtype == np.uint8
    assert np.array_equal(image, grey(*size))


@pytest.mark.parametrize("state", list(DegradationState))
def test_every_state_has_its_own_badge(state: DegradationState) -> None:
    image = grey()
    draw_state(image, state)
    assert near(image, words.STATE_COLOURS[state])[:38, :300].sum() > 500
    assert len(set(words.STATE_COLOURS.values())) == len(DegradationState) == len(set(words.STATE_WORDS.values()))


def test_a_missing_supervisor_is_said() -> None:
    image = grey()
    draw_state(image, None)
    assert near(image, words.VERMILLION)[:38, :300].sum() > 500


@pytest.mark.parametrize("height,width", SIZES)
def test_flags_of_the_command_show(height: int, width: int) -> None:
    """Each flag adds its own badge on the right; a stop is drawn as STOP, not as a limit of 0."""
    plain = MotionConstraint(0, 10.0, 2.0, False, False, False, DegradationState.NOMINAL, "")
    images = []
    for change in (
        {},
        {"hazard_lights": True},
        {"pull_over": True},
        {"remote_notification": True},
        {"speed_limit_mps": 0.0},
    ):
        image = grey(height, width)
        draw_state(image, DegradationState.NOMINAL, "", dataclasses.replace(plain, **change), 12.0)
        images.append(image[:, width // 2 :])
    for i, one in enumerate(images):
        for other in images[i + 1 :]:
            assert not np.array_equal(one, other)


def test_default_of_the_detector_shows_no_boxes_but_a_warning() -> None:
    overlay = Overlay(
        (result(Tier.DETECTOR, Detections(1280, 720, (box(),)), Origin.DEFAULT),), DegradationState.NOMINAL
    )
    image = annotate(grey(), overlay)
    assert not near(image, words.SKY)[150:450, 90:320].any()
    assert near(image, words.VERMILLION)[100:600, 0:3].all(), "a frame around the image"


def test_advice_stays_in_the_image_and_at_its_bottom() -> None:
    image = grey(360, 640)
    advice = SceneAdvice(advice=Advice.STOP, text="x" * 256)
    draw_advice(image, [result(Tier.DISTILLED, advice), result(Tier.FULL, advice)])
    assert np.array_equal(image[:300], grey(300, 640)), "only the banner is touched"
    assert near(image, words.ADVICE_COLOURS[Advice.STOP]).sum() > 500


def test_no_advice_no_banner() -> None:
    image = grey()
    draw_advice(image, [])
    assert np.array_equal(image, grey())


def test_advice_text_names_question_hazards_and_answer() -> None:
    advice = SceneAdvice(hazards=(Hazard.RED_LIGHT,), question="may I go?", text="no, the light is red")
    assert advice_text(advice) == "may I go? red light | no, the light is red"
    assert advice_text(SceneAdvice()) == ""
    seen = SceneAdvice(hazards=(Hazard.LEAD_VEHICLE,), vehicles=3, two_wheelers=0, pedestrians=1, text="keep off")
    assert advice_text(seen) == "lead vehicle | 3 vehicles, 1 pedestrian | keep off"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((3, 0, 1), "3 vehicles, 1 pedestrian"),
        ((1, 2, 0), "1 vehicle, 2 two wheelers"),
        ((0, 1, 2), "1 two wheeler, 2 pedestrians"),
        ((9, 9, 9), "9+ vehicles, 9+ two wheelers, 9+ pedestrians"),
        ((8, 0, 0), "8 vehicles"),
        ((0, 0, 0), "no road users"),
        ((255, 255, 255), ""),
        ((2, 255, 255), "2 vehicles"),
        ((0, 255, 255), ""),
    ],
)
def test_counts_are_named_shortly_and_only_if_made(counts: tuple[int, int, int], text: str) -> None:
    assert words.counts_text(SceneAdvice(vehicles=counts[0], two_wheelers=counts[1], pedestrians=counts[2])) == text


def test_takeover_counts_down() -> None:
    early, late = grey(), grey()
    draw_takeover(early, 9.0)
    draw_takeover(late, 2.0)
    assert not np.array_equal(early, late)
    assert near(early, words.ORANGE).sum() > 1000


def test_buffer_is_reused_when_it_fits() -> None:
    buffer = np.empty((720, 1280, 3), np.uint8)
    assert annotate(grey(), Overlay(), buffer) is buffer
    assert annotate(grey(360, 640), Overlay(), buffer).shape == (360, 640, 3)


@pytest.mark.parametrize(
    "name,colours",
    [
        ("classes", words.CLASS_COLOURS),
        ("states", words.STATE_COLOURS),
        ("origins", words.ORIGIN_COLOURS),
        ("advice", words.ADVICE_COLOURS),
    ],
)
def test_colours_stay_distinct_for_colour_blind_people(name: str, colours: dict[object, str]) -> None:
    """Simulated deuteranopia and protanopia (Viénot 1999): any two colours of one table stay apart in Lab.

    Delta E 10 is about four times the smallest difference people notice side by side.
    """
    to_lms = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
    deutan = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
    protan = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
    for seen in (np.eye(3), deutan, protan):
        linear = (np.array([words.rgb(c) for c in colours.values()]) / 255.0) ** 2.2
        simulated = np.clip(linear @ (np.linalg.inv(to_lms) @ seen @ to_lms).T, 0, 1) ** (1 / 2.2)
        lab = cv2.cvtColor(simulated.astype(np.float32)[None], cv2.COLOR_RGB2LAB)[0]
        for i in range(len(lab)):
            for j in range(i + 1, len(lab)):
                assert np.linalg.norm(lab[i] - lab[j]) > 10, f"{name}: {list(colours)[i]} and {list(colours)[j]}"


@pytest.mark.parametrize("origin", list(Origin))
def test_annotation_is_quick(origin: Origin) -> None:
    """At most 4 ms per 1280x720 frame; the best of 30 runs, because the machine is shared."""
    image, overlay = grey(), full_overlay(40, origin)
    buffer = np.empty_like(image)
    best = math.inf
    for _ in range(30):
        start = time.perf_counter()
        annotate(image, overlay, buffer)
        best = min(best, time.perf_counter() - start)
    assert best < 0.004
