"""Plays a recording through the stack and ends with it.

ros2 launch triptych_ros replay.launch.py input:=drive.mp4 record:=results
"""

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from triptych.nodes import launching


def generate_launch_description() -> LaunchDescription:
    """Arguments, the middleware's environment, stack, player."""
    return LaunchDescription(
        [
            *launching.declared([*launching.REPLAY, *launching.STACK]),
            *launching.dds_environment(),
            OpaqueFunction(function=launching.replay),  # first: it refuses before anything has started
            OpaqueFunction(function=launching.stack),
        ]
    )
