"""What a tier publishes."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract.terms import Advice, Hazard, Light, Origin, Road, Tier, TierState, Weather

MAX_DETECTIONS = 128
MAX_HAZARDS = 8
MAX_TOKENS = 64
MAX_TEXT = 256
MAX_QUESTION = 128
MAX_LABEL = 32
MAX_REASON = 64
COUNTED = ("vehicles", "two_wheelers", "pedestrians")
"""Fields of an answer that are counts, see :class:`SceneAdvice`."""
MOST_COUNTED = 9
NOT_COUNTED = 255


@dataclass(frozen=True, slots=True)
class Detection:
    """One object: pixels of the source image, origin top left; score 0..1; class_id a DetectionClass value."""

    label: str
    class_id: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float


@dataclass(frozen=True, slots=True)
class Detections:
    """Payload of tier 1; at most 128 detections, best score first."""

    image_width: int
    image_height: int
    detections: tuple[Detection, ...] = ()


@dataclass(frozen=True, slots=True)
class SceneAdvice:
    """Payload of tiers 2 and 3.

    ``vehicles``, ``two_wheelers`` and ``pedestrians`` are what is counted in the newest frame: 0 to
    :data:`MOST_COUNTED`, which stands for more as well, or :data:`NOT_COUNTED`. ``token_probabilities`` has one value
    in 0..1 per generated token.
    """

    road: Road = Road.UNKNOWN
    weather: Weather = Weather.UNKNOWN
    light: Light = Light.UNKNOWN
    hazards: tuple[Hazard, ...] = ()
    advice: Advice = Advice.CAUTION
    vehicles: int = NOT_COUNTED
    two_wheelers: int = NOT_COUNTED
    pedestrians: int = NOT_COUNTED
    question: str = ""
    text: str = ""
    token_probabilities: tuple[float, ...] = ()


Payload = Detections | SceneAdvice


def is_count(value: object) -> bool:
    """Whether ``value`` may stand in a field of :data:`COUNTED`; bools and NumPy integers may not."""
    return type(value) is int and (0 <= value <= MOST_COUNTED or value == NOT_COUNTED)


CAUTIOUS_ADVICE = SceneAdvice(advice=Advice.CAUTION, text="no answer")
"""The cautious policy of a VLM tier: unknown scene, caution."""
CAUTIOUS_DETECTIONS = Detections(0, 0)
"""The cautious policy of the detector: nothing is known; consumers must treat DEFAULT as 'unknown', not 'free'."""


@dataclass(frozen=True, slots=True)
class LatencySplit:
    """Milliseconds from the source stamp: transport, pre-processing, inference, post-processing."""

    transport_ms: float = 0.0
    pre_ms: float = 0.0
    infer_ms: float = 0.0
    post_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TierResult:
    """One result, published exactly once per deadline period.

    ``source_stamp_ns`` and ``age_ms`` are of the frame the *content* is about; ``uncertainty`` is 0..1.
    ``crc`` is filled by :func:`triptych.contract.e2e.protect`.
    """

    tier: Tier
    origin: Origin
    reason: str
    source_stamp_ns: int
    frame_id: str
    frame_number: int
    published_ns: int
    age_ms: float
    latency: LatencySplit
    engine_id: str
    engine_version: str
    device: str
    uncertainty: float
    payload: Payload
    sequence_counter: int = 0
    crc: int = 0


WARNINGS = frozenset({"colour_cast", "input_drift"})
"""Codes in :attr:`TierStatus.fault` that are worth knowing but leave the tier healthy: lamps in a tunnel colour every
picture, and drift is slow and for people."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """Heartbeat of a tier.

    ``fault`` holds codes joined by ``; ``. A healthy tier reports none but those of :data:`WARNINGS`.
    """

    stamp_ns: int
    tier: Tier
    state: TierState
    healthy: bool
    fault: str = ""
    engine_id: str = ""
    engine_version: str = ""
    device_requested: str = ""
    device: str = ""
    frames_received: int = 0
    frames_dropped: int = 0
    results_fresh: int = 0
    results_last_frame: int = 0
    results_default: int = 0
    sequence_counter: int = 0
    crc: int = 0
