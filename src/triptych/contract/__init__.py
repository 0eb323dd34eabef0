"""The words everyone else uses: frames, results, budgets, end-to-end protection. No ROS, no inference library."""

from triptych.contract.budgets import BUDGETS, FUTURE_TOLERANCE_S, Budget
from triptych.contract.clock import Clock, StepDetector, SystemClock, VirtualClock
from triptych.contract.driving import ConstraintGuard, DriverState, MotionConstraint, Odometry, safe_default
from triptych.contract.e2e import SequenceChecker, crc_of, crc_ok, protect
from triptych.contract.errors import ConfigError, EngineError, InputError, TriptychError
from triptych.contract.frame import Frame
from triptych.contract.lidar import Obstacle, Obstacles, PointCloud
from triptych.contract.result import (
    CAUTIOUS_ADVICE,
    CAUTIOUS_DETECTIONS,
    Detection,
    Detections,
    LatencySplit,
    Payload,
    SceneAdvice,
    TierResult,
    TierStatus,
)
from triptych.contract.terms import (
    Advice,
    DegradationState,
    DetectionClass,
    Hazard,
    Light,
    Origin,
    Road,
    Tier,
    TierState,
    VerdictLevel,
    Weather,
)

__all__ = [
    "BUDGETS",
    "CAUTIOUS_ADVICE",
    "CAUTIOUS_DETECTIONS",
    "FUTURE_TOLERANCE_S",
    "Advice",
    "Budget",
    "Clock",
    "ConfigError",
    "ConstraintGuard",
    "DegradationState",
    "Detection",
    "DetectionClass",
    "Detections",
    "DriverState",
    "EngineError",
    "Frame",
    "Hazard",
    "InputError",
    "LatencySplit",
    "Light",
    "MotionConstraint",
    "Obstacle",
    "Obstacles",
    "Odometry",
    "Origin",
    "Payload",
    "PointCloud",
    "Road",
    "SceneAdvice",
    "SequenceChecker",
    "StepDetector",
    "SystemClock",
    "Tier",
    "TierResult",
    "TierState",
    "TierStatus",
    "TriptychError",
    "VerdictLevel",
    "VirtualClock",
    "Weather",
    "crc_of",
    "crc_ok",
    "protect",
    "safe_default",
]
