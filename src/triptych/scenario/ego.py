"""The vehicle that carries the camera: it keeps its lane, follows, stops, and obeys the motion constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass

from triptych.scenario.actors import halt, idm

EGO_LENGTH_M, EGO_WIDTH_M = 4.5, 1.85
EGO_FRONT_M = 1.8
"""The front bumper is this far ahead of the camera, which is the vehicle's reference point."""
EGO_REAR_M = EGO_LENGTH_M - EGO_FRONT_M

MAX_DECELERATION_MPS2 = 4.0
"""UN R157 calls more than 4 m/s² an emergency manoeuvre; nothing in this world needs one."""
MAX_ACCELERATION_MPS2 = 1.8
JERK_DOWN_MPS3, JERK_UP_MPS3 = 12.0, 6.0
"""Limits of the change of acceleration when braking harder and when letting go."""
LATERAL_SPEED_MPS = 0.9
LATERAL_ACCELERATION_MPS2 = 0.8
CURVE_ACCELERATION_MPS2 = 2.2
HEADWAY_S = 1.7


@dataclass(slots=True)
class Ego:
    """State: place and motion. ``yaw_rad``: heading against the road, positive to the right."""

    s: float = 0.0
    d: float = 0.0
    speed: float = 0.0
    acceleration: float = 0.0
    lateral_speed: float = 0.0
    yaw_rad: float = 0.0
    hazard_lights: bool = False

    @property
    def front(self) -> float:
        """``s`` of the front bumper."""
        return self.s + EGO_FRONT_M

    def drive(
        self,
        dt_s: float,
        wanted_mps: float,
        obstacles: list[tuple[float, float]],
        limit: tuple[float, float] | None,
        target_d: float,
    ) -> None:
        """Advance by ``dt_s``.

        Args:
            wanted_mps: from set speed, speed limit and curves.
            obstacles: (gap in m, speed along the road in m/s) of everything in the path.
            limit: (speed limit, deceleration) of the motion constraint.
            target_d: where to be in the lane.
        """
        command = -1.0 if wanted_mps <= 0.05 else idm(self.speed, wanted_mps, math.inf, 0.0, HEADWAY_S)
        for gap, speed in obstacles:
            if speed < 0.3:
                command = min(command, halt(self.speed, gap))
                continue
            command = min(command, idm(self.speed, max(wanted_mps, 0.1), gap, speed, HEADWAY_S))
            # what the model does not promise: enough also when it starts late
            closing = self.speed - speed
            if closing > 0:
                needed = closing * closing / (2 * max(gap - 1.5, 0.1))
                if needed > 2.2:
                    command = min(command, -1.1 * needed)
        if limit is not None:
            allowed, deceleration = limit
            deceleration = min(max(deceleration, 0.0), MAX_DECELERATION_MPS2)
            # so slowly towards the limit that letting go of the brakes keeps within its jerk
            settle_s = max(0.35, deceleration / JERK_UP_MPS3)
            command = min(command, max(-deceleration, (allowed - self.speed) / settle_s))
        command = min(max(command, -MAX_DECELERATION_MPS2), MAX_ACCELERATION_MPS2)
        change = min(max(command - self.acceleration, -JERK_DOWN_MPS3 * dt_s), JERK_UP_MPS3 * dt_s)
        self.acceleration += change
        before = self.speed
        self.speed = before + self.acceleration * dt_s
        held = (limit is not None and limit[0] <= 0.0) or wanted_mps <= 0.0
        if self.speed <= 0.0 or (held and self.speed < 0.03 and self.acceleration <= 0.05):
            self.speed, self.acceleration = 0.0, 0.0
        self.s += (before + self.speed) / 2 * dt_s

        bound = min(LATERAL_SPEED_MPS, 0.16 * self.speed)
        wanted = min(max(0.7 * (target_d - self.d), -bound), bound)
        step = LATERAL_ACCELERATION_MPS2 * dt_s
        self.lateral_speed += min(max(wanted - self.lateral_speed, -step), step)
        if self.speed == 0.0:
            self.lateral_speed = 0.0
        self.lateral_speed = min(max(self.lateral_speed, -bound), bound)
        self.d += self.lateral_speed * dt_s
        self.yaw_rad = math.atan2(self.lateral_speed, max(self.speed, 1.0))
