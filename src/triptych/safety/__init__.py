"""The safety core's side in Python: its records, its parameters, its library (sources: ``src/safety_core``)."""

from triptych.safety.inputs import SafetyInputs
from triptych.safety.library import Library, Loop, SafetyCore
from triptych.safety.limits import SafetyLimits
from triptych.safety.words import Cause, Command, command_of, constraint_record, motion_record, sentence

__all__ = [
    "Cause",
    "Command",
    "Library",
    "Loop",
    "SafetyCore",
    "SafetyInputs",
    "SafetyLimits",
    "command_of",
    "constraint_record",
    "motion_record",
    "sentence",
]
