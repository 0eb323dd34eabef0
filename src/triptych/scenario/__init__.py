"""A deterministic, seeded, closed-loop drive that renders its own camera frames with ground truth. No ROS here."""

from triptych.scenario.advice import RULES, Rule, Situation, assess
from triptych.scenario.camera import Camera
from triptych.scenario.config import (
    DriverAction,
    DriverEvent,
    ScenarioConfig,
    Segment,
    demo_config,
    random_config,
)
from triptych.scenario.lidar import LidarModel
from triptych.scenario.outcome import Collision, Outcome, Stop
from triptych.scenario.truth import SceneTruth, TruthBox
from triptych.scenario.world import Scenario

__all__ = [
    "RULES",
    "Camera",
    "Collision",
    "DriverAction",
    "DriverEvent",
    "LidarModel",
    "Outcome",
    "Rule",
    "Scenario",
    "ScenarioConfig",
    "SceneTruth",
    "Segment",
    "Situation",
    "Stop",
    "TruthBox",
    "assess",
    "demo_config",
    "random_config",
]
