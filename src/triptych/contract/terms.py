"""The enumerations every other module speaks in. Values equal the constants in ``msg/``."""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """Which of the three tiers a result comes from."""

    DETECTOR = 1
    DISTILLED = 2
    FULL = 3

    @property
    def key(self) -> str:
        """Lower-case name used in topics, parameters and reports."""
        return self.name.lower()


class Origin(IntEnum):
    """Where the content of a tier result comes from."""

    FRESH = 0
    LAST_FRAME = 1
    DEFAULT = 2


class TierState(IntEnum):
    """Life of a tier, as reported in its heartbeat."""

    UNCONFIGURED = 0
    LOADED = 1
    SELF_TEST = 2
    ACTIVE = 3
    ERROR = 4


class DegradationState(IntEnum):
    """States of the degradation machine (see docs/architecture.md)."""

    INITIALISING = 0
    NOMINAL = 1
    L3_PERCEPTION_ONLY = 2
    L2_TAKEOVER_REQUEST = 3
    L1_MINIMAL_RISK_MANOEUVRE = 4
    MRC = 5
    MANUAL = 6


class VerdictLevel(IntEnum):
    """What a monitor says. Missing data is UNKNOWN, never OK."""

    OK = 0
    UNKNOWN = 1
    FAULT = 2


class DetectionClass(IntEnum):
    """Object classes of the detector tier. A foreign engine's labels are mapped onto them by its manifest."""

    VEHICLE = 0
    TWO_WHEELER = 1
    PEDESTRIAN = 2
    TRAFFIC_LIGHT = 3
    SIGN = 4
    OTHER = 255


class Road(IntEnum):
    """Kind of road in a scene answer."""

    UNKNOWN = 0
    HIGHWAY = 1
    RURAL = 2
    URBAN = 3
    CROSSING = 4
    WORKS = 5


class Weather(IntEnum):
    """Weather in a scene answer."""

    UNKNOWN = 0
    CLEAR = 1
    RAIN = 2
    FOG = 3


class Light(IntEnum):
    """Light in a scene answer."""

    UNKNOWN = 0
    DAY = 1
    DUSK = 2
    NIGHT = 3


class Hazard(IntEnum):
    """Hazards a scene answer may name."""

    LEAD_VEHICLE = 1
    LEAD_VEHICLE_BRAKING = 2
    PEDESTRIAN_NEAR_LANE = 3
    TWO_WHEELER = 4
    RED_LIGHT = 5
    WORKS = 6
    LOW_VISIBILITY = 7
    DENSE_TRAFFIC = 8


class Advice(IntEnum):
    """Advice, ordered from least to most careful. The order is what arbitration relies on."""

    PROCEED = 0
    CAUTION = 1
    SLOW_DOWN = 2
    PREPARE_TO_STOP = 3
    STOP = 4
