"""What an engine's output must satisfy before a tier publishes it."""

from __future__ import annotations

import math

from triptych.contract import Advice, Detections, Hazard, Light, Road, SceneAdvice, Tier, Weather
from triptych.contract.result import COUNTED, MAX_DETECTIONS, MAX_HAZARDS, MAX_TEXT, MAX_TOKENS, is_count
from triptych.engines.protocol import EngineOutput


def unusable(tier: Tier, output: EngineOutput) -> str:
    """Why ``output`` cannot be published for ``tier``; empty when it can. Not-a-number never passes.

    Neither does what is of another kind than declared: engines are adapters around foreign code.
    """
    try:
        return _problem(tier, output)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # UnicodeError is a ValueError
        return f"output is malformed ({type(error).__name__}: {error})"


def _problem(tier: Tier, output: EngineOutput) -> str:
    if not 0.0 <= output.uncertainty <= 1.0:
        return f"uncertainty is not within 0..1 (got {output.uncertainty!r})"
    times = (float(output.pre_ms), float(output.infer_ms), float(output.post_ms))
    if not all(0.0 <= t < math.inf for t in times):
        return f"a duration is negative or not finite (got {times!r})"
    output.adapter.encode()
    payload = output.payload
    if tier is Tier.DETECTOR:
        return _bad_detections(payload) if isinstance(payload, Detections) else "payload is not Detections"
    return _bad_advice(payload) if isinstance(payload, SceneAdvice) else "payload is not SceneAdvice"


def _bad_detections(payload: Detections) -> str:
    for name in ("image_width", "image_height"):
        if not _whole(getattr(payload, name), 1 << 32):
            return f"{name} is not a whole number of pixels (got {getattr(payload, name)!r})"
    if not isinstance(payload.detections, _SEQUENCES):
        return f"detections are no sequence (got {payload.detections!r})"
    if len(payload.detections) > MAX_DETECTIONS:
        return f"more than {MAX_DETECTIONS} detections (got {len(payload.detections)})"
    for index, item in enumerate(payload.detections):
        if not (isinstance(item.label, str) and _whole(item.class_id, 256)):
            return f"detection {index}: label or class is of the wrong kind (got {item.label!r}, {item.class_id!r})"
        item.label.encode()
        if not 0.0 <= item.score <= 1.0:
            return f"detection {index}: score is not within 0..1 (got {item.score!r})"
        if not all(math.isfinite(v) for v in (item.x_min, item.y_min, item.x_max, item.y_max)):
            return f"detection {index}: a coordinate is not finite"
        if item.x_max < item.x_min or item.y_max < item.y_min:
            return f"detection {index}: box is inside out"
    return ""


def _whole(value: object, end: int) -> bool:
    """Whether ``value`` is a plain int in 0..end-1; a NumPy integer is none and has no canonical encoding."""
    return isinstance(value, int) and 0 <= value < end


_SEQUENCES = (tuple, list)
_TERMS = (("road", Road), ("weather", Weather), ("light", Light), ("advice", Advice), ("text", str), ("question", str))


def _bad_advice(payload: SceneAdvice) -> str:
    for name, kind in _TERMS:
        if not isinstance(getattr(payload, name), kind):
            return f"{name} is not a {kind.__name__} (got {getattr(payload, name)!r})"
    for name in COUNTED:
        if not is_count(getattr(payload, name)):
            return f"{name} is no count (got {getattr(payload, name)!r})"
    payload.question.encode()
    for name in ("hazards", "token_probabilities"):
        if not isinstance(getattr(payload, name), _SEQUENCES):
            return f"{name} is no sequence (got {getattr(payload, name)!r})"
    if not all(isinstance(h, Hazard) for h in payload.hazards):
        return f"a hazard is not a Hazard (got {payload.hazards!r})"
    if len(payload.hazards) > MAX_HAZARDS:
        return f"more than {MAX_HAZARDS} hazards (got {len(payload.hazards)})"
    if len(payload.token_probabilities) > MAX_TOKENS:
        return f"more than {MAX_TOKENS} tokens (got {len(payload.token_probabilities)})"
    if len(payload.text.encode()) > MAX_TEXT:
        return f"text longer than {MAX_TEXT} bytes"
    if not all(isinstance(p, float) and 0.0 <= p <= 1.0 for p in payload.token_probabilities):
        return "a token probability is not within 0..1"
    return ""
