"""The supervisor: decides at every moment how much of the three tiers the vehicle may rely on.

Pure Python: no ROS, no clock, no threads.
"""

from triptych.supervisor.config import SupervisorConfig, supervisor_config
from triptych.supervisor.core import SupervisorCore
from triptych.supervisor.faults import FaultRow, Reaction, load_faults
from triptych.supervisor.machine import MachineState
from triptych.supervisor.policy import Function, Permission, Policy, load_policy
from triptych.supervisor.records import Commands, Diagnostic, Transition

__all__ = [
    "Commands",
    "Diagnostic",
    "FaultRow",
    "Function",
    "MachineState",
    "Permission",
    "Policy",
    "Reaction",
    "SupervisorConfig",
    "SupervisorCore",
    "Transition",
    "load_faults",
    "load_policy",
    "supervisor_config",
]
