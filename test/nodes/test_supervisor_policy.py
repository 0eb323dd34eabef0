"""The supervisor's node reads the policy it is told to, and does not start with one that is not legal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.parameter import Parameter

from triptych import dds
from triptych.contract import ConfigError, Tier
from triptych.nodes.supervisor_node import SupervisorNode
from triptych.resources import resource
from triptych.supervisor import Function, Permission, load_policy

SHIPPED = resource("config", "policy.yaml")


@pytest.fixture
def context() -> Iterator[Any]:
    made = rclpy.Context()
    rclpy.init(context=made, domain_id=dds.claim_domain())
    yield made
    made.try_shutdown()


def node(context: Any, table: Path | str) -> SupervisorNode:
    overrides = [Parameter("policy_table", value=str(table))]
    return SupervisorNode("supervisor", context=context, parameter_overrides=overrides)


def edited(folder: Path, old: str, new: str) -> Path:
    text = SHIPPED.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = folder / "mine.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_the_shipped_table_and_ones_own(context: Any, tmp_path: Path) -> None:
    own = edited(tmp_path, "distilled: advice, full: advice", "distilled: never, full: redundant_input")
    for table, distilled in (("", Permission.ADVICE), (own, Permission.NEVER)):
        made = node(context, table)
        assert made.core.policy == load_policy(Path(table) if table else SHIPPED)
        assert made.core.policy.permitted(Function.CRUISE, Tier.DISTILLED) is distilled
        made.close()
        made.destroy_node()


def test_a_table_that_is_not_legal_does_not_start(context: Any, tmp_path: Path) -> None:
    """One sentence with file, function, tier and remedy."""
    function, sentence = (
        "braking, asil: D, mode: authoritative, detector: main_source, ",
        "braking: full: a VLM may be at most",
    )
    bad = edited(tmp_path, f"{function}distilled: never, full: never", f"{function}distilled: never, full: advice")
    with pytest.raises(ConfigError) as caught:
        node(context, bad)
    assert str(caught.value) == (
        f"{bad}, {sentence} redundant_input here (authoritative, ASIL D) (got 'advice'); "
        "write full: redundant_input or less."
    )
