"""Annotations on a camera image: detections, advice, state and command.

Every function draws in place on a (height, width, 3) uint8 BGR image and never raises for content a model or a
message may hold: boxes with NaN, infinite or reversed corners are left out, long text is shortened.
:func:`annotate` composes all of them on a copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import (
    BUDGETS,
    CAUTIOUS_ADVICE,
    CAUTIOUS_DETECTIONS,
    Advice,
    Budget,
    DegradationState,
    Detection,
    DetectionClass,
    Detections,
    MotionConstraint,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
)
from triptych.viewing import words

Image = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]

FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_BOLD = cv2.FONT_HERSHEY_DUPLEX
MAX_LABELS = 32
"""More labels than this hide the road; the largest boxes keep theirs. The rest are drawn without text."""
_WHITE: Colour = (255, 255, 255)
_SOFT: Colour = (205, 205, 205)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Everything :func:`annotate` shows. ``None`` or NaN: not known, and said so or left out.

    Attributes:
        results: latest result of each tier that has spoken, passed through :func:`as_seen`.
        state: state of the degradation machine.
        reason: why it is in that state.
        takeover_remaining_s: seconds left for the driver; ``None`` when nothing is asked.
        constraint: command in force.
        speed_mps: vehicle speed, NaN when unknown.
    """

    results: tuple[TierResult, ...] = ()
    state: DegradationState | None = None
    reason: str = ""
    takeover_remaining_s: float | None = None
    constraint: MotionConstraint | None = None
    speed_mps: float = math.nan


def as_seen(result: TierResult, now_stamp_ns: int, budgets: Mapping[Tier, Budget] = BUDGETS) -> TierResult:
    """The result as a viewer must show it at ``now_stamp_ns``.

    A tier publishes at least once per period; when nothing has come for as long as a result may be kept, the last one
    says nothing any more and is shown as DEFAULT with the reason ``silent for ...``, however fresh it once was.
    """
    silence_ms = (now_stamp_ns - result.published_ns) / 1e6
    budget = budgets[result.tier]
    if silence_ms <= max(budget.keep_s, budget.period_s + budget.budget_s) * 1e3:
        return result
    payload = CAUTIOUS_DETECTIONS if result.tier is Tier.DETECTOR else CAUTIOUS_ADVICE
    reason = f"silent for {words.duration_text(silence_ms)}"
    return replace(result, origin=Origin.DEFAULT, reason=reason, age_ms=result.age_ms + silence_ms, payload=payload)


def annotate(image: Image, overlay: Overlay, out: Image | None = None) -> Image:
    """Draw ``overlay`` on a copy of ``image``.

    Args:
        image: (height, width, 3) uint8 BGR; stays as it is.
        overlay: what to draw.
        out: a buffer of the same shape to draw into instead of a new one.

    Returns:
        The annotated image, same shape and dtype.
    """
    if out is None or out.shape != image.shape or out.dtype != image.dtype:
        out = np.empty(image.shape, np.uint8)
    np.copyto(out, image)
    by_tier = {result.tier: result for result in overlay.results}
    detector = by_tier.get(Tier.DETECTOR)
    if detector is not None and isinstance(detector.payload, Detections):
        if detector.origin is Origin.DEFAULT:
            draw_unknown(out)
        else:
            draw_detections(out, detector.payload, stale=detector.origin is not Origin.FRESH)
    draw_state(out, overlay.state, overlay.reason, overlay.constraint, overlay.speed_mps)
    if detector is not None:
        draw_detector_badge(out, detector)
    draw_advice(out, [by_tier[tier] for tier in (Tier.DISTILLED, Tier.FULL) if tier in by_tier])
    if overlay.takeover_remaining_s is not None:
        draw_takeover(out, overlay.takeover_remaining_s)
    return out


def draw_detections(image: Image, detections: Detections, stale: bool = False) -> None:
    """Draw boxes with label and score; with ``stale`` dashed and without fill behind the label.

    Boxes are in pixels of an image of ``detections.image_width`` x ``image_height``; if ``image`` has another size
    they are scaled to it.
    """
    height, width = image.shape[:2]
    scale_x = width / detections.image_width if detections.image_width > 0 else 1.0
    scale_y = height / detections.image_height if detections.image_height > 0 else 1.0
    boxes = []
    for detection in detections.detections:
        corners = _corners(detection, scale_x, scale_y, width, height)
        if corners is not None:
            boxes.append((detection, corners))
    boxes.sort(key=lambda item: (item[1][2] - item[1][0]) * (item[1][3] - item[1][1]), reverse=True)
    scale = _scale(image)
    thickness = max(2, round(2 * scale))
    for index, (detection, (left, top, right, bottom)) in enumerate(boxes):
        kind = words.detection_class(detection.class_id)
        colour_hex = words.CLASS_COLOURS[kind]
        colour = words.bgr(colour_hex)
        wide = thickness + 1 if kind is DetectionClass.PEDESTRIAN else thickness
        if stale:
            _dashed(image, left, top, right, bottom, colour, wide)
        else:
            cv2.rectangle(image, (left, top), (right, bottom), (0, 0, 0), wide + 2)
            cv2.rectangle(image, (left, top), (right, bottom), colour, wide)
        if index < MAX_LABELS:
            text = _printable(f"{detection.label} {detection.score:.2f}" + (" old" if stale else ""), 40)
            ink = words.bgr(words.ink_on(colour_hex))
            _label(image, text, left, top, None if stale else colour, _WHITE if stale else ink, 0.45 * scale)


def draw_unknown(image: Image) -> None:
    """Mark an image whose detector result is DEFAULT: nothing is known, which is not the same as "free"."""
    height, width = image.shape[:2]
    colour = words.bgr(words.VERMILLION)
    thick = max(3, height // 90)
    cv2.rectangle(image, (0, 0), (width - 1, height - 1), colour, thick)
    scale = _scale(image)
    text = "NO PERCEPTION"
    (text_width, text_height), _ = cv2.getTextSize(text, FONT_BOLD, 1.0 * scale, 2)
    left, base = (width - text_width) // 2, height // 2
    pad = round(12 * scale)
    _shade(image, left - pad, base - text_height - pad, left + text_width + pad, base + pad)
    _text(image, text, left, base, 1.0 * scale, colour, bold=True)


def draw_state(
    image: Image,
    state: DegradationState | None,
    reason: str = "",
    constraint: MotionConstraint | None = None,
    speed_mps: float = math.nan,
) -> None:
    """Draw the top strip: state badge and reason on the left, speed, limit and flags of the command on the right."""
    width = image.shape[1]
    scale = _scale(image)
    strip = round(38 * scale)
    _shade(image, 0, 0, width, strip)
    base = round(26 * scale)
    right = width - round(10 * scale)
    if constraint is not None:
        flags = (
            ("REMOTE", words.PURPLE, constraint.remote_notification),
            ("PULL OVER", words.ORANGE, constraint.pull_over),
            ("HAZARD", words.VERMILLION, constraint.hazard_lights),
        )
        for text, colour, on in flags:
            if on:
                right = _badge_right(image, text, right, base, colour, 0.5 * scale) - round(6 * scale)
        stop = constraint.speed_limit_mps <= 0
        limit = "STOP" if stop else f"LIMIT {words.speed_text(constraint.speed_limit_mps)}"
        right = _badge_right(image, limit, right, base, words.VERMILLION if stop else words.WHITE, 0.5 * scale)
        right -= round(8 * scale)
    if math.isfinite(speed_mps):
        right = _text_right(image, words.speed_text(speed_mps), right, base, 0.6 * scale, _WHITE)
        right -= round(12 * scale)
    name = words.STATE_WORDS[state] if state is not None else "NO SUPERVISOR"
    colour = words.STATE_COLOURS[state] if state is not None else words.VERMILLION
    left = _badge(image, name, round(8 * scale), base, colour, 0.55 * scale) + round(10 * scale)
    _text_within(image, _printable(reason, 160), left, base, right - left, 0.5 * scale, _SOFT)


def draw_detector_badge(image: Image, result: TierResult) -> None:
    """Draw the detector's origin, age and count below the state strip."""
    scale = _scale(image)
    base = round(60 * scale)
    left = round(8 * scale)
    count = len(result.payload.detections) if isinstance(result.payload, Detections) else 0
    detail = (
        f"{count} object{'' if count == 1 else 's'}"
        if result.origin is not Origin.DEFAULT
        else result.reason.replace("_", " ")
    )
    _tier_line(image, result, left, base, image.shape[1] // 2, detail, None, shade=True)


def draw_advice(image: Image, results: Sequence[TierResult]) -> None:
    """Draw the bottom banner: one line per VLM tier with origin, age, advice, hazards, counts and text."""
    lines = [result for result in results if isinstance(result.payload, SceneAdvice)]
    if not lines:
        return
    height, width = image.shape[:2]
    scale = _scale(image)
    row = round(32 * scale)
    top = height - row * len(lines) - round(4 * scale)
    _shade(image, 0, top, width, height)
    for index, result in enumerate(lines):
        payload = result.payload
        assert isinstance(payload, SceneAdvice)
        base = top + row * index + round(23 * scale)
        unknown = result.origin is Origin.DEFAULT
        detail = result.reason.replace("_", " ") if unknown else advice_text(payload)
        _tier_line(image, result, round(8 * scale), base, width - round(8 * scale), detail, payload.advice)


def advice_text(advice: SceneAdvice) -> str:
    """Hazards, counts and free text of a scene answer in one line; the question first when one was asked."""
    hazards = ", ".join(words.word(hazard) for hazard in advice.hazards)
    question = f"{advice.question}? " if advice.question else ""
    parts = (hazards, words.counts_text(advice), advice.text)
    return question.replace("??", "?") + " | ".join(part for part in parts if part)


def draw_takeover(image: Image, remaining_s: float) -> None:
    """Draw the takeover request in the middle of the image with the seconds that are left."""
    height, width = image.shape[:2]
    scale = _scale(image)
    seconds = max(0.0, remaining_s) if math.isfinite(remaining_s) else 0.0
    text = f"TAKE OVER  {seconds:.0f} s"
    (text_width, text_height), _ = cv2.getTextSize(text, FONT_BOLD, 1.3 * scale, max(1, round(3 * scale)))
    pad = round(18 * scale)
    left, base = (width - text_width) // 2, round(height * 0.32)
    colour = words.bgr(words.ORANGE)
    corner, opposite = (left - pad, base - text_height - pad), (left + text_width + pad, base + pad)
    _shade(image, *corner, *opposite)
    cv2.rectangle(image, corner, opposite, colour, max(2, round(4 * scale)))
    _text(image, text, left, base, 1.3 * scale, colour, bold=True)


def _tier_line(
    image: Image,
    result: TierResult,
    left: int,
    base: int,
    limit: int,
    detail: str,
    advice: Advice | None,
    *,
    shade: bool = False,
) -> None:
    """``TIER [ORIGIN age] [ADVICE] detail`` from ``left``, not beyond ``limit``."""
    scale = _scale(image)
    gap = round(8 * scale)
    age = f" {words.duration_text(result.age_ms)}" if result.origin is not Origin.DEFAULT else ""
    badge = words.ORIGIN_WORDS[result.origin] + age
    if shade:
        width = (
            sum(cv2.getTextSize(text, FONT, 0.5 * scale, 1)[0][0] for text in (result.tier.name, badge, detail))
            + 5 * gap
        )
        _shade(image, left - gap // 2, base - round(18 * scale), min(limit, left + width), base + round(8 * scale))
    left = _text(image, result.tier.name, left, base, 0.5 * scale, _SOFT)
    left = _badge(image, badge, left + gap, base, words.ORIGIN_COLOURS[result.origin], 0.45 * scale) + gap
    if advice is not None:
        name = advice.name.replace("_", " ")
        left = _badge(image, name, left, base, words.ADVICE_COLOURS[advice], 0.5 * scale) + gap
    _text_within(image, _printable(detail, 256), left, base, limit - left, 0.5 * scale, _WHITE)


def _scale(image: Image) -> float:
    """Size of text and lines against 1280x720; never so small that text becomes unreadable."""
    return float(max(0.66, min(image.shape[0] / 720, image.shape[1] / 1280)))


def _corners(
    detection: Detection, scale_x: float, scale_y: float, width: int, height: int
) -> tuple[int, int, int, int] | None:
    box = (detection.x_min, detection.y_min, detection.x_max, detection.y_max)
    if not (all(math.isfinite(value) for value in box) and box[2] > box[0] and box[3] > box[1]):
        return None
    left, top = max(0.0, box[0] * scale_x), max(0.0, box[1] * scale_y)
    right, bottom = min(width - 1.0, box[2] * scale_x), min(height - 1.0, box[3] * scale_y)
    if right < left or bottom < top:
        return None
    return round(left), round(top), round(right), round(bottom)


def _dashed(image: Image, left: int, top: int, right: int, bottom: int, colour: Colour, thickness: int) -> None:
    dash = max(5, 4 * thickness)
    segments = []
    for start in range(left, right, 2 * dash):
        end = min(right, start + dash)
        segments += [((start, top), (end, top)), ((start, bottom), (end, bottom))]
    for start in range(top, bottom, 2 * dash):
        end = min(bottom, start + dash)
        segments += [((left, start), (left, end)), ((right, start), (right, end))]
    points = np.array(segments, np.int32).reshape(-1, 2, 1, 2)
    if len(points):
        cv2.polylines(image, list(points), False, (0, 0, 0), thickness + 2)
        cv2.polylines(image, list(points), False, colour, thickness)


def _label(image: Image, text: str, left: int, top: int, fill: Colour | None, ink: Colour, size: float) -> None:
    (width, height), _ = cv2.getTextSize(text, FONT, size, 1)
    pad = 3
    left = max(0, min(left, image.shape[1] - width - 2 * pad))
    bottom = top if top - height - 2 * pad >= 0 else top + height + 2 * pad
    if fill is None:
        _shade(image, left, bottom - height - 2 * pad, left + width + 2 * pad, bottom)
    else:
        cv2.rectangle(image, (left, bottom - height - 2 * pad), (left + width + 2 * pad, bottom), fill, cv2.FILLED)
    _text(image, text, left + pad, bottom - pad, size, ink)


def _shade(image: Image, left: int, top: int, right: int, bottom: int) -> None:
    """Darken a rectangle to a quarter, so that light text reads on any background."""
    left, top = max(0, left), max(0, top)
    region = image[top : max(top, bottom), left : max(left, right)]
    if region.size:
        np.right_shift(region, 2, out=region)


def _text(image: Image, text: str, left: int, base: int, size: float, colour: Colour, bold: bool = False) -> int:
    """Draw text and return the x where it ends."""
    font, thickness = (FONT_BOLD, max(1, round(2 * size))) if bold else (FONT, 1)
    cv2.putText(image, text, (left, base), font, size, colour, thickness, cv2.LINE_AA)
    return int(left + cv2.getTextSize(text, font, size, thickness)[0][0])


def _text_right(image: Image, text: str, right: int, base: int, size: float, colour: Colour) -> int:
    left = right - cv2.getTextSize(text, FONT, size, 1)[0][0]
    _text(image, text, left, base, size, colour)
    return int(left)


def _text_within(image: Image, text: str, left: int, base: int, width: int, size: float, colour: Colour) -> None:
    """Draw as much of ``text`` as fits into ``width`` pixels, with an ellipsis where it was cut."""
    if not text or width <= 0:
        return
    full = cv2.getTextSize(text, FONT, size, 1)[0][0]
    if full > width:
        keep = int(len(text) * width / full) - 2
        while keep > 0 and cv2.getTextSize(text[:keep] + "...", FONT, size, 1)[0][0] > width:
            keep -= 1
        if keep <= 0:
            return
        text = text[:keep].rstrip() + "..."
    _text(image, text, left, base, size, colour)


def _badge(image: Image, text: str, left: int, base: int, colour: str, size: float) -> int:
    (width, height), _ = cv2.getTextSize(text, FONT_BOLD, size, 1)
    pad = max(3, round(9 * size))
    cv2.rectangle(
        image, (left, base - height - pad), (left + width + 2 * pad, base + pad), words.bgr(colour), cv2.FILLED
    )
    cv2.putText(image, text, (left + pad, base), FONT_BOLD, size, words.bgr(words.ink_on(colour)), 1, cv2.LINE_AA)
    return int(left + width + 2 * pad)


def _badge_right(image: Image, text: str, right: int, base: int, colour: str, size: float) -> int:
    width = cv2.getTextSize(text, FONT_BOLD, size, 1)[0][0] + 2 * max(3, round(9 * size))
    _badge(image, text, right - width, base, colour, size)
    return int(right - width)


def _printable(text: str, limit: int) -> str:
    """ASCII only (the fonts know no more), one line, at most ``limit`` characters."""
    clean = "".join(char if " " <= char <= "~" else " " if char.isspace() else "?" for char in text)
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."
