"""Parameters of the safety core."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SafetyLimits(BaseModel):
    """What the safety core accepts. Defaults equal ``TSC_DEFAULTS`` of the C code (a test compares them).

    The core refuses what does not fit together: a stop harder than the greatest deceleration, an envelope above the
    greatest speed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    supervisor_timeout_s: float = Field(
        0.15, gt=0, lt=1, description="Silence of the supervisor after which the core stops the vehicle."
    )
    vehicle_timeout_s: float = Field(
        0.3, gt=0, lt=1, description="Silence of the vehicle's motion after which the core stops it."
    )
    speed_max_mps: float = Field(40.0, gt=0, le=100, description="A constraint above this is not possible.")
    degraded_speed_mps: float = Field(
        12.5, gt=0, le=100, description="Automation in L3, L2 or L1 drives no faster, whatever the supervisor allows."
    )
    deceleration_max_mps2: float = Field(
        4.0, gt=0, le=50, description="A constraint that brakes harder is not possible (UN R157: 4 m/s²)."
    )
    stop_deceleration_mps2: float = Field(3.0, gt=0, le=50, description="Braking of the core's own stop.")
    slowing_mps2: float = Field(
        1.0, gt=0, le=50, description="At least this much the vehicle must brake while it is above its limit."
    )
    slack_mps: float = Field(1.5, gt=0, le=100, description="Above that profile, for brakes that come in late.")
    tolerance_mps: float = Field(1.0, gt=0, le=100, description="Above a limit that is kept.")
    acceleration_max_mps2: float = Field(12.0, gt=0, le=50, description="No vehicle changes its speed faster.")
    speed_noise_mps: float = Field(0.5, gt=0, le=100, description="Noise of the speed between two records.")
    trend_max_mps: float = Field(
        1.5, gt=0, le=100, description="Change of speed over a window that the acceleration does not explain."
    )
    trend_window_s: float = Field(
        0.5, ge=0, le=1, description="Window of that comparison; 0: the vehicle has no acceleration sensor."
    )
    standstill_mps: float = Field(0.1, gt=0, le=100, description="Slower is standing.")
    confirmations: int = Field(3, ge=1, le=100, description="Records in a row before a suspicion counts.")
