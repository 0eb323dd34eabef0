"""Words and colours for people, one table: images, markers, terminal and report say the same thing the same way.

Colours are the Okabe-Ito palette and one wine red of Paul Tol, which stay distinct under the common colour-vision
deficiencies; no meaning is carried by colour alone, there is always a word or a shape beside it.
"""

from __future__ import annotations

import math

from triptych.contract import (
    Advice,
    DegradationState,
    DetectionClass,
    Hazard,
    Light,
    Origin,
    Road,
    SceneAdvice,
    Tier,
    Weather,
)
from triptych.contract.result import COUNTED, MOST_COUNTED, NOT_COUNTED

BLACK, GREY, WHITE = "#000000", "#8a8f98", "#ffffff"
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, VERMILLION, PURPLE, WINE = "#0072b2", "#d55e00", "#cc79a7", "#882255"

STATE_WORDS: dict[DegradationState, str] = {
    DegradationState.INITIALISING: "INITIALISING",
    DegradationState.NOMINAL: "NOMINAL",
    DegradationState.L3_PERCEPTION_ONLY: "L3 PERCEPTION ONLY",
    DegradationState.L2_TAKEOVER_REQUEST: "L2 TAKEOVER REQUEST",
    DegradationState.L1_MINIMAL_RISK_MANOEUVRE: "L1 MINIMAL-RISK MANOEUVRE",
    DegradationState.MRC: "MRC STANDING STILL",
    DegradationState.MANUAL: "MANUAL",
}
STATE_COLOURS: dict[DegradationState, str] = {
    DegradationState.INITIALISING: GREY,
    DegradationState.NOMINAL: GREEN,
    DegradationState.L3_PERCEPTION_ONLY: SKY,
    DegradationState.L2_TAKEOVER_REQUEST: ORANGE,
    DegradationState.L1_MINIMAL_RISK_MANOEUVRE: VERMILLION,
    DegradationState.MRC: WINE,
    DegradationState.MANUAL: BLUE,
}
ORIGIN_WORDS: dict[Origin, str] = {Origin.FRESH: "FRESH", Origin.LAST_FRAME: "LAST FRAME", Origin.DEFAULT: "DEFAULT"}
ORIGIN_COLOURS: dict[Origin, str] = {Origin.FRESH: GREEN, Origin.LAST_FRAME: ORANGE, Origin.DEFAULT: VERMILLION}
TIER_COLOURS: dict[Tier, str] = {Tier.DETECTOR: BLUE, Tier.DISTILLED: GREEN, Tier.FULL: PURPLE}
CLASS_COLOURS: dict[DetectionClass, str] = {
    DetectionClass.VEHICLE: SKY,
    DetectionClass.TWO_WHEELER: ORANGE,
    DetectionClass.PEDESTRIAN: VERMILLION,
    DetectionClass.TRAFFIC_LIGHT: YELLOW,
    DetectionClass.SIGN: GREEN,
    DetectionClass.OTHER: GREY,
}
OBSTACLE_COLOUR = PURPLE
"""What a lidar sees, whatever it is."""
ADVICE_COLOURS: dict[Advice, str] = {
    Advice.PROCEED: GREEN,
    Advice.CAUTION: YELLOW,
    Advice.SLOW_DOWN: ORANGE,
    Advice.PREPARE_TO_STOP: VERMILLION,
    Advice.STOP: PURPLE,
}


def word(term: Advice | Hazard | Road | Weather | Light | DetectionClass) -> str:
    """Lower-case words of a contract term: ``LEAD_VEHICLE_BRAKING`` → "lead vehicle braking"."""
    return term.name.lower().replace("_", " ")


def counts_text(advice: SceneAdvice) -> str:
    """What was counted, e.g. "9+ vehicles, 1 pedestrian"; "no road users" if none of any kind, empty if not counted."""
    counts = {name: getattr(advice, name) for name in COUNTED}
    if not any(counts.values()):
        return "no road users"
    return ", ".join(
        f"{count}{'+' if count == MOST_COUNTED else ''} {(name if count > 1 else name[:-1]).replace('_', ' ')}"
        for name, count in counts.items()
        if count not in (0, NOT_COUNTED)
    )


def detection_class(class_id: int) -> DetectionClass:
    """The class of an id; an id outside the table is OTHER, never an error."""
    try:
        return DetectionClass(class_id)
    except ValueError:
        return DetectionClass.OTHER


def rgb(colour: str) -> tuple[int, int, int]:
    """``#rrggbb`` as 0..255 integers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def bgr(colour: str) -> tuple[int, int, int]:
    """``#rrggbb`` in OpenCV's channel order."""
    return rgb(colour)[::-1]


def ink_on(colour: str) -> str:
    """Black or white, whichever has the greater contrast to ``colour`` (WCAG 2: equal at a luminance of 0.179)."""
    red, green, blue = (((value / 255 + 0.055) / 1.055) ** 2.4 for value in rgb(colour))
    return BLACK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else WHITE


def speed_text(speed_mps: float) -> str:
    """Speed in km/h for people; an unknown (non-finite) speed is "? km/h"."""
    return f"{speed_mps * 3.6:.0f} km/h" if math.isfinite(speed_mps) else "? km/h"


def duration_text(ms: float) -> str:
    """Milliseconds below one second, else seconds: "14 ms", "1.2 s"; "?" when not finite."""
    if not math.isfinite(ms):
        return "?"
    return f"{ms:.0f} ms" if abs(ms) < 1000 else f"{ms / 1e3:.1f} s"
