"""Tiers and supervisor on a vehicle's topics; ``scenario:=true`` brings a vehicle along.

ros2 launch triptych_ros stack.launch.py --show-args
"""

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from triptych.nodes import launching


def generate_launch_description() -> LaunchDescription:
    """Arguments, the middleware's environment, nodes."""
    return LaunchDescription(
        [
            *launching.declared(launching.STACK),
            *launching.dds_environment(),
            OpaqueFunction(function=launching.stack),
        ]
    )
