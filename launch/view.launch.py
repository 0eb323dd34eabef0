"""Look at a running stack: ``ros2 launch triptych_ros view.launch.py``.

``--show-args`` lists the arguments; they are a table in ``triptych.launching``.
"""

from launch import LaunchDescription

from triptych.launching import description, view_nodes


def generate_launch_description() -> LaunchDescription:
    """RViz with the shipped layout; foxglove_bridge and the view node if asked for."""
    return description("view", view_nodes)
