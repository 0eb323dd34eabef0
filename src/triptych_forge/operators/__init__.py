"""Which operators of an ONNX model a target's library covers, and how much of the work would fall back.

The tables under ``config/forge/operators/`` say, per target, what the library's own documentation says; what they do
not say counts as not covered. Where the library is installed it is asked too, and what it does beats what is written.
"""

from triptych_forge.operators.check import LIMIT, check_operators, refuse_fallback, survey_operators
from triptych_forge.operators.graph import Node, list_nodes
from triptych_forge.operators.probe import PROBES, Probe
from triptych_forge.operators.report import OperatorReport, OperatorRow, print_report, table_of
from triptych_forge.operators.tables import Operator, OperatorTable, known_targets, load_table

__all__ = [
    "LIMIT",
    "PROBES",
    "Node",
    "Operator",
    "OperatorReport",
    "OperatorRow",
    "OperatorTable",
    "Probe",
    "check_operators",
    "known_targets",
    "list_nodes",
    "load_table",
    "print_report",
    "refuse_fallback",
    "survey_operators",
    "table_of",
]
