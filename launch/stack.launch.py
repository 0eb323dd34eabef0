"""Tiers and supervisor on live topics: ``ros2 launch triptych_ros stack.launch.py camera:=/front/image_raw``.

``--show-args`` lists the arguments; they are a table in ``triptych.launching``.
"""

from launch import LaunchDescription

from triptych.launching import description, stack_nodes


def generate_launch_description() -> LaunchDescription:
    """Supervisor, tiers, view; recorder and scenario if asked for."""
    return description("stack", stack_nodes)
