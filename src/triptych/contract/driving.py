"""What the supervisor hears from the vehicle and the driver, and what it tells the vehicle."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triptych.contract.errors import ConfigError
from triptych.contract.terms import DegradationState


@dataclass(frozen=True, slots=True)
class Odometry:
    """Vehicle speed (m/s, forward positive). NaN means unknown."""

    stamp_ns: int
    speed_mps: float


@dataclass(frozen=True, slots=True)
class DriverState:
    """What is known of the driver. ``override_active``: steers, brakes or has confirmed: the driver drives."""

    stamp_ns: int
    present: bool = True
    attentive: bool = True
    override_active: bool = False
    automation_engaged: bool = True
    sequence_counter: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class MotionConstraint:
    """The supervisor's command: an upper bound on speed and how to get there."""

    stamp_ns: int
    speed_limit_mps: float
    deceleration_mps2: float
    hazard_lights: bool
    pull_over: bool
    remote_notification: bool
    state: DegradationState
    reason: str
    sequence_counter: int = 0
    crc: int = 0


def safe_default(
    stamp_ns: int, deceleration_mps2: float = 2.0, reason: str = "no valid constraint"
) -> MotionConstraint:
    """What a receiver does on its own when it hears nothing valid: a controlled stop, hazard lights on, no steering."""
    return MotionConstraint(
        stamp_ns, 0.0, deceleration_mps2, True, False, True, DegradationState.L1_MINIMAL_RISK_MANOEUVRE, reason
    )


class ConstraintGuard:
    """The receive timeout that every consumer of the motion constraint carries.

    Times are monotonic nanoseconds. Before the first valid constraint the safe default holds.

    Args:
        timeout_s: silence after which the safe default applies; 0.15 s keeps a dead supervisor's
            consumer within 200 ms at a 20 Hz command rate.

    Raises:
        ConfigError: timeout not finite and positive.
    """

    def __init__(self, timeout_s: float = 0.15) -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ConfigError("must be finite and above 0", field="timeout_s", value=timeout_s)
        self.timeout_s = timeout_s
        self._last: MotionConstraint | None = None
        self._received_monotonic_ns = 0
        self.rejected = 0

    def receive(self, constraint: MotionConstraint, now_monotonic_ns: int, *, crc_ok: bool = True) -> bool:
        """Take a constraint in; one that fails its CRC or holds an unusable number is counted and ignored."""
        usable = (
            crc_ok
            and math.isfinite(constraint.speed_limit_mps)
            and constraint.speed_limit_mps >= 0
            and math.isfinite(constraint.deceleration_mps2)
            and constraint.deceleration_mps2 > 0
        )
        if not usable:
            self.rejected += 1
            return False
        self._last, self._received_monotonic_ns = constraint, now_monotonic_ns
        return True

    def silence_s(self, now_monotonic_ns: int) -> float | None:
        """Seconds since the last valid constraint; None before the first."""
        return None if self._last is None else (now_monotonic_ns - self._received_monotonic_ns) / 1e9

    def effective(self, now_monotonic_ns: int, now_stamp_ns: int) -> MotionConstraint:
        """The constraint to act on now: the last valid one, or the safe default when it is too old."""
        silence_s = self.silence_s(now_monotonic_ns)
        if self._last is None or silence_s is None:
            return safe_default(now_stamp_ns, reason="no constraint received yet")
        if silence_s > self.timeout_s:
            return safe_default(now_stamp_ns, reason=f"no constraint for {silence_s * 1e3:.0f} ms")
        return self._last
