"""Every number of the supervisor: one schema; ROS parameters and documentation are generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triptych.contract import FUTURE_TOLERANCE_S, ConfigError
from triptych.contract.terms import Advice


class SupervisorConfig(BaseModel):
    """Parameters of the supervisor. Units are in the names; ranges are enforced; nothing may be NaN or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    tick_period_s: float = Field(0.01, gt=0, le=0.05, description="Period of the supervisor's loop.")
    constraint_period_s: float = Field(
        0.05, gt=0, le=0.1, description="The motion constraint is repeated this often, and at once when it changes."
    )
    state_period_s: float = Field(
        0.5, gt=0, le=1.0, description="The state is repeated this often, and at once on change."
    )
    verdict_period_s: float = Field(
        1.0, gt=0, le=5.0, description="The verdicts are repeated this often, and at once when a fault comes or goes."
    )
    diagnostics_period_s: float = Field(1.0, gt=0, le=10.0, description="Period of the diagnostics.")

    startup_grace_s: float = Field(
        30.0,
        ge=1.0,
        le=300.0,
        description="After the start, an input that was never received becomes a fault only after this long; until "
        "every expected input was valid once the vehicle is held still. Covers start orders with delays of 20 s.",
    )
    distilled_expected: bool = Field(True, description="The distilled VLM tier is part of this vehicle's set-up.")
    full_expected: bool = Field(True, description="The full VLM tier is part of this vehicle's set-up.")
    safety_core_expected: bool = Field(
        True, description="The safety core passes the constraint on to the vehicle and is watched."
    )
    lidar_expected: bool = Field(
        False, description="This vehicle has a lidar, whose obstacles are held against what the detector sees."
    )

    speed_limit_max_mps: float = Field(
        36.1, gt=0, le=70.0, description="Limit in NOMINAL; 130 km/h, the highest speed of UN R157 (01 series)."
    )
    l3_speed_limit_mps: float = Field(
        12.5,
        ge=0,
        le=70.0,
        description="Limit without any VLM tier: 45 km/h, which the safety core allows at most then (UN R157, "
        "00 series: 60 km/h).",
    )
    l2_speed_limit_mps: float = Field(
        8.3, ge=0, le=70.0, description="Limit while the driver is asked to take over and tier 1 is in doubt; 30 km/h."
    )
    advice_proceed_cap_mps: float = Field(36.1, ge=0, le=70.0, description="Cap of the advice PROCEED.")
    advice_caution_cap_mps: float = Field(
        25.0, ge=0, le=70.0, description="Cap of the advice CAUTION, and of a VLM tier without an answer; 90 km/h."
    )
    advice_slow_down_cap_mps: float = Field(13.9, ge=0, le=70.0, description="Cap of the advice SLOW_DOWN; 50 km/h.")
    advice_prepare_to_stop_cap_mps: float = Field(
        5.6, ge=0, le=70.0, description="Cap of the advice PREPARE_TO_STOP; 20 km/h."
    )
    advice_stop_cap_mps: float = Field(0.0, ge=0, le=70.0, description="Cap of the advice STOP.")

    comfort_deceleration_mps2: float = Field(
        1.5, gt=0, le=4.0, description="Deceleration towards a lower limit in NOMINAL and L3."
    )
    takeover_deceleration_mps2: float = Field(
        2.0, gt=0, le=4.0, description="Deceleration towards the limit in L2 and while INITIALISING."
    )
    manoeuvre_deceleration_mps2: float = Field(
        2.0, gt=0, le=4.0, description="Target deceleration of the minimal risk manoeuvre."
    )
    manoeuvre_deceleration_max_mps2: float = Field(
        4.0, gt=0, le=4.0, description="Greatest deceleration of the manoeuvre (UN R157: not above 4 m/s²)."
    )
    manoeuvre_excess_mps: float = Field(
        2.0,
        gt=0,
        le=20.0,
        description="Speed above the planned profile at which the manoeuvre begins to brake harder; at twice this "
        "excess it brakes at the greatest deceleration.",
    )
    limit_rise_mps2: float = Field(2.0, gt=0, le=5.0, description="The speed limit rises no faster than this.")

    takeover_wait_s: float = Field(
        10.0, gt=0, le=60.0, description="Time the driver has to answer a takeover request (UN R157: 10 s)."
    )
    hand_back_hold_s: float = Field(
        1.0, ge=0, le=10.0, description="The driver must have handed over for this long before automation drives again."
    )
    driver_fresh_s: float = Field(1.0, gt=0, le=5.0, description="A driver state older than this is unknown.")

    standstill_speed_mps: float = Field(
        0.1, gt=0, le=0.5, description="Below this the vehicle may be standing (wheel odometry noise is about 0.05)."
    )
    standstill_hold_s: float = Field(1.0, gt=0, le=10.0, description="Standing is believed after this long.")
    odometry_fresh_s: float = Field(0.3, gt=0, le=2.0, description="A speed older than this is unknown.")
    odometry_max_mps: float = Field(100.0, gt=0, le=200.0, description="A greater speed is implausible.")
    odometry_max_accel_mps2: float = Field(
        12.0, gt=0, le=50.0, description="Speeds that would need more acceleration or braking are implausible."
    )
    odometry_jump_margin_mps: float = Field(0.5, ge=0, le=5.0, description="Noise allowed on top of that.")

    transport_allowance_s: float = Field(
        0.02, ge=0, le=0.5, description="Time a result may take to reach us, on top of a tier's own limits."
    )
    future_tolerance_s: float = Field(
        FUTURE_TOLERANCE_S, ge=0, le=0.1, description="A stamp further ahead of our clock than this is refused."
    )
    event_window_s: float = Field(
        1.0, gt=0, le=10.0, description="Window over which CRC errors, sequence gaps and invalid values are counted."
    )
    clock_step_tolerance_s: float = Field(
        0.05, gt=0, le=1.0, description="A change of stamp clock against monotonic clock above this is a step."
    )
    clock_settle_s: float = Field(
        1.0, ge=0, le=5.0, description="After a clock step, ages computed from stamps are not judged for this long."
    )
    clock_settle_spacing_s: float = Field(
        5.0,
        gt=0,
        le=600.0,
        description="That is granted at most once in this time: a clock that keeps jumping is judged.",
    )
    loop_late_s: float = Field(
        0.05, gt=0, le=1.0, description="A tick that comes later than this is a stall of our own."
    )
    loop_postpone_s: float = Field(
        0.06,
        ge=0,
        le=0.1,
        description="After a stall of our own the inputs get this long to arrive before silence is judged: a stalled "
        "machine is not a lost tier. One camera period and one tick.",
    )
    loop_postpone_spacing_s: float = Field(
        1.0, gt=0, le=60.0, description="The postponement is granted at most once in this time."
    )

    very_late_ratio: float = Field(
        2.0,
        ge=1.0,
        le=100.0,
        description="An inference later than this multiple of its budget is very late; our choice.",
    )
    entropy_outcomes_n: int = Field(
        256,
        ge=2,
        le=1_000_000,
        description="Number of tokens a VLM chooses from; the built-in ones know about 200. It hardly matters: a "
        "probability of a half counts as 0.62 with 256 and as 0.56 with 150,000.",
    )
    entropy_limit_share: float = Field(
        0.85,
        ge=0,
        le=1,
        description="A VLM's answer is open above this mean entropy of its fields, 0..1 of the greatest; our choice: "
        "the tokens chosen had a probability of about 0.25.",
    )
    repetition_ngram_n: int = Field(
        3,
        ge=1,
        le=16,
        description="Words that make a repetition when they come again in one text of a VLM; our choice.",
    )
    consistency_window_n: int = Field(
        5, ge=2, le=32, description="Answers of a VLM that are compared with each other (K); our choice."
    )
    consistency_scene_weight: float = Field(
        0.4, gt=0, le=1, description="Weight of road, weather and light in the similarity of two answers; our choice."
    )
    consistency_hazards_weight: float = Field(0.2, ge=0, le=1, description="Weight of the hazards there; our choice.")
    consistency_counts_weight: float = Field(0.1, ge=0, le=1, description="Weight of the counts there; our choice.")
    consistency_advice_weight: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Weight of the advice there; our choice, so small that advice alone cannot make a fault.",
    )
    consistency_text_weight: float = Field(0.2, ge=0, le=1, description="Weight of the text there; our choice.")
    box_margin_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="A detection may reach this far beyond the picture, in widths or heights of it; our choice.",
    )
    box_aspect_ratio: float = Field(
        12.0,
        ge=1,
        le=1000,
        description="Longer to shorter side of a detection that lies whole in the picture, at most; our choice: a "
        "street sign on its pole or a lorry from the side is below 10.",
    )
    box_area_share: float = Field(
        0.8,
        gt=0,
        le=2,
        description="Share of the picture that a detection may cover if it is no vehicle (a lorry in front may cover "
        "all of it); our choice.",
    )
    duplicate_iou_share: float = Field(
        0.9,
        ge=0.5,
        le=1,
        description="Two detections of one label that overlap by more than this intersection over union are one object "
        "twice; suppression of non-maxima leaves 0.45 to 0.65 in all shipped manifests.",
    )
    sure_score_share: float = Field(
        0.5, ge=0, le=1, description="A detection with this score is a sure one; our choice."
    )
    track_height_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Sure detections this high, in heights of the picture, are looked for in the result before; our "
        "choice.",
    )
    track_gap_s: float = Field(
        0.15, gt=0, le=5.0, description="Results further apart are not compared: three periods of the detector."
    )
    object_speed_widths_per_s: float = Field(
        4.0,
        gt=0,
        le=1000,
        description="Speed across the picture, and of growing, that an object can have; from the geometry of a vehicle "
        "passing at 40 m/s.",
    )
    count_swing_n: int = Field(
        8, ge=1, le=128, description="Sure detections that may come or go from one result to the next; our choice."
    )
    agree_tolerance_s: float = Field(
        0.2,
        gt=0,
        le=2.0,
        description="A VLM's answer is compared with detector results about frames this near to its own; our choice.",
    )
    large_height_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="A sure detection this high, in heights of the picture, is one a VLM must not deny; our choice.",
    )
    camera_focal_share: float = Field(
        0.78,
        gt=0,
        le=20,
        description="Focal length of the detector's camera in picture widths, to compare it with the lidar; it looks "
        "straight ahead. 0.78 is a field of view of 65 degrees.",
    )
    camera_forward_m: float = Field(1.5, ge=0, le=10, description="That camera's place ahead of base_link.")
    lidar_tolerance_s: float = Field(
        0.15, gt=0, le=1.0, description="A scan is compared with detector results about frames this near to it."
    )
    lidar_near_m: float = Field(
        15.0,
        gt=0,
        le=100,
        description="Only obstacles nearer than this are looked for in the picture: at a distance a bend leads away "
        "from what stands straight ahead (1.1 m in 15 m at a radius of 100 m); our choice.",
    )
    lidar_half_width_m: float = Field(
        0.8, gt=0, le=5, description="They reach this near to the straight line ahead; our choice, less than a lane."
    )
    lidar_least_height_m: float = Field(
        1.0, gt=0, le=3, description="They are at least this high, like people, two-wheelers and vehicles; our choice."
    )
    lidar_margin_share: float = Field(
        0.03,
        ge=0,
        le=0.5,
        description="Room for the different places of camera and lidar and for what moves in between, in picture "
        "widths; our choice.",
    )
    lidar_box_height_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="A sure vehicle this high, in heights of the picture, must return the lidar's beams; our choice: a "
        "car 12 m, a lorry 35 m away.",
    )
    vehicle_height_m: float = Field(
        4.0, gt=0, le=6, description="Highest vehicle (EU directive 96/53/EC: 4 m): how far away one can be at most."
    )
    machine_settle_s: float = Field(
        60.0, ge=0, le=3600.0, description="After this long the stack's memory has settled; growth counts from then on."
    )

    @model_validator(mode="after")
    def _order(self) -> SupervisorConfig:
        """Limits must fall with the severity of the state and the care of the advice: arbitration relies on it."""
        for names in (
            ("speed_limit_max_mps", "l3_speed_limit_mps", "l2_speed_limit_mps"),
            tuple(f"advice_{advice.name.lower()}_cap_mps" for advice in Advice),
            ("manoeuvre_deceleration_max_mps2", "manoeuvre_deceleration_mps2"),
        ):
            for higher, lower in pairwise(names):
                if getattr(self, lower) > getattr(self, higher):
                    raise ValueError(f"{lower} must not be above {higher}")
        return self

    def advice_caps_mps(self) -> tuple[float, ...]:
        """Speed cap of each advice, indexed by its value."""
        return tuple(getattr(self, f"advice_{advice.name.lower()}_cap_mps") for advice in Advice)


def supervisor_config(values: Mapping[str, Any], where: object = "supervisor parameters") -> SupervisorConfig:
    """Build a configuration from parameters; what is not given keeps its default.

    Raises:
        ConfigError: an unknown name, a wrong type, a number outside its range, or limits in the wrong order.
    """
    try:
        return SupervisorConfig(**values)
    except ValidationError as error:
        raise config_error(error, where) from None


def config_error(error: ValidationError, where: object) -> ConfigError:
    """Turn the first complaint of pydantic into one sentence."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else None
    value = first["input"] if field else None
    remedy = "see docs/parameters.md for the names and ranges"
    return ConfigError(first["msg"], where=where, field=field, value=value, remedy=remedy)
