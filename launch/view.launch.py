"""Annotated image and markers of a running stack, with RViz or Foxglove.

ros2 launch triptych_ros view.launch.py
"""

from launch import LaunchDescription
from launch.actions import OpaqueFunction

from triptych.nodes import launching


def generate_launch_description() -> LaunchDescription:
    """Arguments, the middleware's environment, view, viewer."""
    return LaunchDescription(
        [
            *launching.declared(launching.VIEW),
            *launching.dds_environment(),
            OpaqueFunction(function=launching.view),
        ]
    )
