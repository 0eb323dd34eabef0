"""Every number of the lidar: one schema; ROS parameters and documentation are generated from it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LidarConfig(BaseModel):
    """Parameters of the lidar. Units are in the names; ranges are enforced; nothing may be NaN or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    x_m: float = Field(1.5, ge=-20, le=20, description="Sensor ahead of base_link.")
    y_m: float = Field(0.0, ge=-5, le=5, description="Sensor left of base_link.")
    z_m: float = Field(1.8, ge=0, le=6, description="Sensor above the road.")
    yaw_deg: float = Field(0.0, ge=-180, le=180, description="Sensor turned to the left.")
    pitch_deg: float = Field(0.0, ge=-45, le=45, description="Sensor's nose turned down.")
    roll_deg: float = Field(0.0, ge=-180, le=180, description="Sensor's left side turned up.")

    body_front_m: float = Field(
        3.6, ge=0, le=20, description="The vehicle's own body reaches this far ahead of base_link; not looked at there."
    )
    body_rear_m: float = Field(1.3, ge=0, le=20, description="And this far behind it.")
    body_half_width_m: float = Field(1.0, ge=0, le=3, description="And this far to either side.")

    reach_m: float = Field(60.0, ge=5, le=200, description="Nothing further ahead is reported.")
    reach_behind_m: float = Field(10.0, ge=0, le=200, description="Nothing further behind is reported.")
    reach_side_m: float = Field(20.0, ge=2, le=50, description="Nothing further to either side is reported.")
    cell_m: float = Field(0.25, ge=0.1, le=1.0, description="Side of a cell of the occupancy grid.")
    step_m: float = Field(
        0.3, ge=0.1, le=1.0, description="Returns more than this above the local ground belong to an obstacle."
    )
    clearance_m: float = Field(
        2.5, ge=1.5, le=6, description="Returns more than this above the local ground are passed underneath."
    )
    fewest_points: int = Field(3, ge=1, le=100, description="Returns an obstacle must have.")
    link_m: float = Field(
        1.25, ge=0.2, le=3, description="Returns further apart than this belong to two obstacles, at any distance."
    )
    link_share: float = Field(
        0.06,
        ge=0,
        le=0.5,
        description="Nor are they linked over more than this share of their distance, with which the gap between "
        "neighbouring beams on one car grows; what lies in neighbouring cells always is.",
    )
    compact_m: float = Field(
        6.0, ge=3, le=30, description="What is longer, and leaves most of its box empty, is given as several boxes."
    )

    ground_noise_m: float = Field(
        0.1, ge=0.02, le=0.3, description="Ground may lie this far from where it is expected: noise and kerbs."
    )
    ground_slope_share: float = Field(
        0.1, ge=0, le=0.5, description="And deviate by this much per metre since it was last seen."
    )

    least_range_m: float = Field(
        0.5, ge=0, le=3, description="Nearer returns are none: unseen beams given as zeros, dirt on the lens."
    )
    least_points_n: int = Field(1000, ge=1, le=1_000_000, description="Valid returns a scan must have.")
    few_scans_n: int = Field(3, ge=1, le=1000, description="Scans in a row with fewer that make a fault.")
    invalid_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of the beams that did come back which may be infinite or beyond 1000 m; a scan of one point "
        "repeated is all invalid.",
    )
    invalid_scans_n: int = Field(3, ge=1, le=1000, description="Scans in a row with more that make a fault.")
    view_deg: float = Field(
        60.0, ge=10, le=180, description="To this far on either side of straight ahead the lidar must see something."
    )
    sector_points_n: int = Field(
        3, ge=1, le=10_000, description="A sector of 10 degrees with fewer valid returns sees nothing, not even ground."
    )
    blind_scans_n: int = Field(20, ge=1, le=10_000, description="Scans in a row that a sector ahead may see nothing.")
    frozen_scans_n: int = Field(
        3, ge=1, le=1000, description="Repeats in a row of one scan under new stamps that make a fault while moving."
    )
    stamp_scans_n: int = Field(
        1, ge=1, le=1000, description="Stamps in a row that repeat or go backwards that make a fault."
    )
    moved_height_m: float = Field(
        0.3, ge=0.05, le=2, description="Height over the road by which the sensor may be off its mount."
    )
    moved_tilt_deg: float = Field(3.0, ge=0.5, le=20, description="Pitch or roll by which it may be off.")
    moved_scans_n: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Moving scans with ground 5 to 15 m ahead whose median is judged: 10 s, in which a ramp passes.",
    )
