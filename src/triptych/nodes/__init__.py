"""The ROS 2 nodes: each module ``*_node`` runs as ``python -m triptych.nodes.<module>`` and as an installed executable.

Executables: ``tier_node``, ``supervisor_node``, ``scenario_node``, ``view_node``, ``recorder_node``, ``replay_node``.
"""

import signal
import sys

_asked_for = sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] if "-m" in sys.orig_argv else []
if _asked_for and _asked_for[0].startswith("triptych.nodes.") and _asked_for[0].endswith("_node"):
    # Ctrl-C while the libraries are still loading ends the process, not in a stack trace; later the node handles it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
