"""The ROS 2 nodes: each module ``*_node`` runs as ``python -m triptych.nodes.<module>`` and as an installed executable.

Executables: ``tier_node``, ``supervisor_node``, ``safety_core_node``, ``scenario_node``, ``view_node``,
``recorder_node``, ``replay_node``, ``remote_node``.
"""

import itertools
import os
import signal
import sys

EARLY_NICE = {"distilled": 4, "full": 14, "view": 16, "remote": 12}
"""As in ``realtime.ROLES``, which a process reaches only when its libraries are loaded: who may wait lets the others
load first. Only where it can be undone, i.e. for root."""


def _begin(arguments: list[str]) -> None:
    """What a node process needs before it loads its libraries; ``arguments`` are the interpreter's own."""
    module = next((b for a, b in itertools.pairwise(arguments) if a == "-m"), "")
    if not (module.startswith("triptych.nodes.") and module.endswith("_node")):
        return
    # Ctrl-C while loading ends the process, not in a stack trace; later the node handles it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    named = [a.partition(":=")[2] for a in arguments if a.startswith("__node:=")]
    role = named[-1] if named else module.rpartition(".")[2].removesuffix("_node")
    if os.geteuid() == 0 and role in EARLY_NICE:
        os.setpriority(os.PRIO_PROCESS, 0, EARLY_NICE[role])


_begin(sys.orig_argv)
