"""Limits of the input monitors: one schema; ROS parameters and documentation are generated from it.

Defaults are calibrated on the built-in scenario (docs/calibration.md). The range of a limit is also where a calibration
stops: a recording of summer days must not make every night an alarm.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from triptych.tiers.monitors.drift import FEATURES


class InputConfig(BaseModel):
    """Parameters of the input monitors. Frames are those the tier takes: 20 per second for the detector."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    input_frames: int = Field(
        10,
        ge=1,
        le=200,
        description="Frames in a row that must be beyond a limit: half a second of the detector, in which an exposure "
        "control settles at a tunnel's ends.",
    )
    input_dark_share: float = Field(0.5, ge=0.5, le=0.99, description="Share of the picture that may be black.")
    input_bright_share: float = Field(0.25, ge=0.25, le=0.99, description="Share of the picture that may be saturated.")
    input_blur: float = Field(0.7992, ge=0.5, le=0.95, description="Smoothness of the edges, 0 sharp to 1 none.")
    input_covered_share: float = Field(
        0.6, ge=0.6, le=0.99, description="Share of a quarter of the road's view that may stay without texture."
    )
    input_covered_frames: int = Field(
        40, ge=1, le=2000, description="Moving frames that a part must stay without texture to count as covered."
    )
    input_missing_rows: float = Field(
        0.05, ge=0.05, le=0.5, description="Share of rows that may be constant or repeated."
    )
    input_noise: float = Field(9.0191, ge=4.0, le=60.0, description="Standard deviation of the noise in grey levels.")
    input_alternation: float = Field(
        0.4,
        ge=0.4,
        le=0.9,
        description="Share of what is new in a picture that the one before the last may have had: two cameras in turn.",
    )
    input_colour_cast: float = Field(
        0.35, ge=0.35, le=1.5, description="Deviation of a colour channel's mean, as a share of all three's. A warning."
    )
    input_drift: float = Field(
        3.3772,
        ge=1.5,
        le=3.9,
        description="Standard score, 0 to 4, of the running means against the reference. A warning.",
    )
    input_drift_frames: int = Field(1200, ge=10, le=1_000_000, description="Time constant of the running means.")
    input_reference_mean: list[float] = Field(
        [87.695, 31.2642, 0.4871, 2.8019],
        min_length=len(FEATURES),
        max_length=len(FEATURES),
        description=f"Usual {', '.join(FEATURES)}.",
    )
    input_reference_deviation: list[Annotated[float, Field(gt=0)]] = Field(
        [34.2764, 8.5744, 0.0542, 1.5977],
        min_length=len(FEATURES),
        max_length=len(FEATURES),
        description="Standard deviation of each over all that is usual, above 0.",
    )
    camera_width_px: int = Field(0, ge=0, le=8192, description="Width of the camera's pictures; 0: as the first one.")
    camera_height_px: int = Field(0, ge=0, le=8192, description="Height of the camera's pictures; 0: as the first one.")
