"""A recording through the stack: ``ros2 launch triptych_ros replay.launch.py input:=drive.mp4``.

``--show-args`` lists the arguments; they are a table in ``triptych.launching``.
"""

from launch import LaunchDescription

from triptych.launching import description, replay_nodes


def generate_launch_description() -> LaunchDescription:
    """Supervisor, tiers, view and the player, whose end is the end of the launch; recorder if asked for."""
    return description("replay", replay_nodes)
