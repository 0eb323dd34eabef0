"""The input monitors of one tier: what each says of a picture, and when that becomes a code of the self-report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triptych.debounce import Debounced
from triptych.tiers.monitors import blur, colour, exposure, noise, rows
from triptych.tiers.monitors.alternation import Alternation
from triptych.tiers.monitors.config import InputConfig
from triptych.tiers.monitors.drift import Drift
from triptych.tiers.monitors.occlusion import Occlusion
from triptych.tiers.monitors.picture import Image, Picture, look
from triptych.tiers.monitors.size import Size

Measure = Callable[[Picture], float]
"""A level that grows with danger; called once per picture, in order."""


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """One monitor: its code in the self-report, the parameter with its limit ("": at fault above 0), its measure."""

    code: str
    limit: str
    measure: Callable[[InputConfig], Measure]


MONITORS: tuple[MonitorRow, ...] = (
    MonitorRow("dark_picture", "input_dark_share", lambda _: exposure.dark),
    MonitorRow("bright_picture", "input_bright_share", lambda _: exposure.bright),
    MonitorRow("blurred_picture", "input_blur", lambda _: blur.blur),
    MonitorRow("covered_picture", "input_covered_share", lambda c: Occlusion(c.input_covered_frames)),
    MonitorRow("missing_rows", "input_missing_rows", lambda _: rows.missing),
    MonitorRow("noisy_picture", "input_noise", lambda _: noise.noise),
    MonitorRow("wrong_size", "", lambda c: Size(c.camera_width_px, c.camera_height_px)),
    MonitorRow("alternating_pictures", "input_alternation", lambda _: Alternation()),
    MonitorRow("colour_cast", "input_colour_cast", lambda _: colour.cast),
    MonitorRow(
        "input_drift",
        "input_drift",
        lambda c: Drift(c.input_reference_mean, c.input_reference_deviation, c.input_drift_frames),
    ),
)
"""All of them, in the order of the report. A frozen or repeated picture is :class:`triptych.tiers.core.TierCore`'s."""


class InputWatch:
    """All input monitors of a tier. Not thread-safe; feed it each frame the tier takes, once, in order."""

    def __init__(self, config: InputConfig) -> None:
        self._monitors = tuple(
            Debounced(
                row.code, row.measure(config), getattr(config, row.limit) if row.limit else 0.0, config.input_frames
            )
            for row in MONITORS
        )

    def look(self, image: Image) -> tuple[str, ...]:
        """The codes that hold at this picture: (height, width, 3) uint8 BGR."""
        picture = look(image)
        return tuple(code for monitor in self._monitors if (code := monitor.observe(picture)))
