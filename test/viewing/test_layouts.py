"""The RViz and Foxglove layouts name topics, fields and services that exist, by the one table of topics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from triptych.nodes import topics
from triptych.nodes.topics import SERVICES, TOPICS, Topic
from triptych.viewing.markers import FRAME_ID

ROOT = Path(__file__).resolve().parents[2]
FOXGLOVE = json.loads((ROOT / "config" / "foxglove" / "triptych.json").read_text())
RVIZ = yaml.safe_load((ROOT / "config" / "rviz" / "triptych.rviz").read_text())
BY_NAME = {topic.resolved: topic for topic in TOPICS}


def panels(kind: str) -> dict[str, dict[str, Any]]:
    return {key: config for key, config in FOXGLOVE["configById"].items() if key.startswith(f"{kind}!")}


def message_paths() -> Iterator[str]:
    for config in FOXGLOVE["configById"].values():
        yield from (path["value"] for path in config.get("paths", ()))
        if "topicPath" in config:
            yield config["topicPath"]


def split_path(path: str) -> tuple[Topic, list[str]]:
    """A Foxglove message path as topic and fields."""
    name = next((n for n in sorted(BY_NAME, key=len, reverse=True) if path == n or path.startswith(n + ".")), None)
    assert name is not None, f"{path} names no topic of the stack"
    return BY_NAME[name], [part for part in path[len(name) :].split(".") if part]


def fields_of(kind: str) -> dict[str, str]:
    """Field name -> type of one of our messages, from its definition."""
    found = {}
    for line in (ROOT / "msg" / f"{kind}.msg").read_text().splitlines():
        match = re.match(r"\s*([\w/]+(?:<=\d+)?)(?:\[[^]]*])?\s+(\w+)\s*(?:#.*)?$", line.split("#")[0].rstrip())
        if match:
            found[match.group(2)] = match.group(1)
    return found


def test_message_paths_lead_to_fields_that_exist() -> None:
    paths = list(message_paths())
    assert len(paths) >= 12
    for path in paths:
        topic, fields = split_path(path)
        if not topic.type.startswith("triptych_ros/"):
            continue
        kind = topic.type.rpartition("/")[2]
        for field in fields:
            known = fields_of(kind)
            assert field in known, f"{path}: {kind} has no {field}"
            kind = known[field]


def test_odometry_path_leads_to_the_speed() -> None:
    """Where the common messages are installed, the fields of the foreign types are checked too."""
    nav_msgs = pytest.importorskip("nav_msgs.msg")
    paths = [split_path(p) for p in message_paths()]
    fields = next(fields for topic, fields in paths if topic is topics.ODOMETRY)
    value: Any = nav_msgs.Odometry()
    for field in fields:
        value = getattr(value, field)
    assert isinstance(value, float)


def test_foxglove_shows_what_matters() -> None:
    image = panels("Image")["Image!annotated"]["imageMode"]["imageTopic"]
    assert BY_NAME[image] is topics.VIEW_IMAGE_COMPRESSED
    scene = panels("3D")["3D!scene"]
    assert [BY_NAME[name] for name in scene["topics"]] == [topics.VIEW_MARKERS]
    assert scene["followTf"] == FRAME_ID
    assert BY_NAME[panels("DiagnosticSummary")["DiagnosticSummary!diagnostics"]["topicToRender"]] is topics.DIAGNOSTICS
    shown = {split_path(path)[0] for path in message_paths()}
    assert {topics.STATE, topics.CONSTRAINT, topics.ODOMETRY, *topics.RESULTS.values()} <= shown


def test_foxglove_offers_every_service_and_the_question() -> None:
    called = {config["serviceName"] for config in panels("CallService").values()}
    assert called == {f"/{service.name}" for service in SERVICES}
    publish = panels("Publish")["Publish!question"]
    assert BY_NAME[publish["topicName"]] is topics.FULL_QUESTION
    assert publish["datatype"] == topics.FULL_QUESTION.type
    assert isinstance(json.loads(publish["value"])["data"], str)


def test_every_panel_is_placed_once() -> None:
    def leaves(node: Any) -> list[str]:
        return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])

    placed = leaves(FOXGLOVE["layout"])
    assert sorted(placed) == sorted(FOXGLOVE["configById"])


def displays() -> dict[str, dict[str, Any]]:
    return {display["Class"].rpartition("/")[2]: display for display in RVIZ["Visualization Manager"]["Displays"]}


@pytest.mark.parametrize(
    "display,topic", [("MarkerArray", topics.VIEW_MARKERS), ("Image", topics.VIEW_IMAGE)], ids=["markers", "image"]
)
def test_rviz_shows_our_topics(display: str, topic: Topic) -> None:
    config = displays()[display]
    assert config["Enabled"] is True and config["Topic"]["Value"] == topic.resolved
    assert topic.type.endswith(f"/{display}")


def test_rviz_needs_no_transform() -> None:
    assert RVIZ["Visualization Manager"]["Global Options"]["Fixed Frame"] == FRAME_ID
    assert not {"TF", "RobotModel"} & displays().keys()


def test_topic_names_and_types_are_well_formed_and_unique() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    for topic in TOPICS:
        assert re.fullmatch(r"/?[a-z][a-z_]*(/[a-z][a-z_]*)*", topic.name)
        package, middle, kind = topic.type.split("/")
        assert middle == "msg"
        if package == "triptych_ros":
            assert (ROOT / "msg" / f"{kind}.msg").is_file()
