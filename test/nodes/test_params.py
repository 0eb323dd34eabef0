"""One schema: models, declared ROS parameters and config/params.yaml say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.node import Node
from rclpy.parameter import Parameter

from triptych import dds
from triptych.contract import BUDGETS, ConfigError, Tier
from triptych.nodes import params
from triptych.resources import resource
from triptych.supervisor.config import SupervisorConfig

Make = Callable[..., Node]


@pytest.fixture
def make() -> Iterator[Make]:
    contexts, nodes = [], []

    def build(name: str = "n", *arguments: str, **values: Any) -> Node:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=dds.claim_domain(), args=["--ros-args", *arguments])
        overrides = [Parameter(key, value=value) for key, value in values.items()]
        node = Node(name, context=context, parameter_overrides=overrides, start_parameter_services=False)
        contexts.append(context)
        nodes.append(node)
        return node

    yield build
    for node in nodes:
        node.destroy_node()
    for context in contexts:
        context.try_shutdown()


def test_params_yaml_is_what_the_schema_makes() -> None:
    assert resource("config", "params.yaml").read_text() == params.params_yaml(), (
        "run `python -m triptych.nodes.params > config/params.yaml`"
    )


def test_params_yaml_holds_every_node_and_default() -> None:
    document = yaml.safe_load(params.params_yaml())
    assert set(document) == {f"/**/{name}" for name in params.NODES}
    for name, schema in params.NODES.items():
        values = document[f"/**/{name}"]["ros__parameters"]
        assert schema.params(**values) == schema.params()


@pytest.mark.parametrize("name", params.NODES)
@pytest.mark.parametrize("namespace", ["/", "/car/front"])
def test_the_shipped_file_is_accepted_in_any_namespace(make: Make, name: str, namespace: str) -> None:
    file = resource("config", "params.yaml")
    node = make(name, "--params-file", str(file), "-r", f"__ns:={namespace}")
    model = params.NODES[name].params
    assert params.load(node, model) == model()
    declared = node.describe_parameter(next(iter(model.model_fields)))
    assert declared.read_only and declared.description


def test_a_file_reaches_a_node_in_a_namespace(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("/**/detector:\n  ros__parameters:\n    threads: 3\n")
    for namespace in ("/", "/car"):
        node = make("detector", "--params-file", str(file), "-r", f"__ns:={namespace}")
        assert params.load(node, params.TierParams).threads == 3


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"threads": 0}, "threads"),
        ({"threads": 65}, "threads"),
        ({"threads": 2.5}, "threads"),
        ({"budget_s": 61.0}, "budget_s"),
        ({"budget_s": float("nan")}, "budget_s"),
        ({"device": "tpu"}, "device"),
        ({"engine": 7}, "engine"),
        ({"engine": "e" * 500}, "engine"),
        ({"thread": 2}, "thread"),
        ({"autostart": "yes"}, "autostart"),
    ],
)
def test_wrong_parameters_are_named(make: Make, values: dict[str, Any], field: str) -> None:
    """A parameter out of range, of a wrong type or with a typo ends in one sentence that says which."""
    node = make("detector", **values)
    with pytest.raises(ConfigError) as caught:
        params.load(node, params.TierParams)
    assert caught.value.field == field and "node detector" in str(caught.value)


def test_ros_own_parameters_are_left_alone(make: Make) -> None:
    assert params.load(make("detector", use_sim_time=False), params.TierParams) == params.TierParams()


def test_every_parameter_is_described_and_every_number_has_a_range() -> None:
    for name, schema in params.NODES.items():
        for parameter, kind, _, limits, description in params.rows(schema.params):
            assert description.endswith("."), f"{name}.{parameter}"
            if kind in ("int", "float"):
                assert limits, f"{name}.{parameter}"


def test_supervisor_parameters_are_those_of_the_core() -> None:
    assert set(SupervisorConfig.model_fields) < set(params.SupervisorParams.model_fields)


def test_budget_defaults_to_the_contract() -> None:
    for tier in Tier:
        assert params.TierParams().budget(tier) == BUDGETS[tier]
    assert params.TierParams(budget_s=0.05).budget(Tier.DETECTOR).budget_s == 0.05
    with pytest.raises(ConfigError):
        params.TierParams(budget_s=0.5, keep_s=0.2).budget(Tier.DETECTOR)
