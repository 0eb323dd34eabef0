"""Which nodes a run consists of, as data: what the command line and the launch files both start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from triptych import resources
from triptych.contract import ConfigError, Tier, TriptychError
from triptych.documents import parse_yaml
from triptych.nodes import topics
from triptych.nodes.process import NodeSpec

NODE_PACKAGE = "triptych.nodes."
SCENARIO_LIDAR_HZ = 10.0
"""Turns of the built-in drive's lidar, as usual on vehicles."""


def params_file(user: Path | None) -> Path:
    """The user's parameter file, or the shipped one.

    Raises:
        TriptychError: the named file does not exist.
    """
    if user is None:
        return resources.resource("config", "params.yaml")
    if not user.is_file():
        raise TriptychError("no such parameter file", where=user, remedy="copy config/params.yaml and edit it")
    return user


def input_remaps(camera: str, odometry: str, driver: str, lidar: str = topics.LIDAR_POINTS.name) -> dict[str, str]:
    """Remap rules that connect the stack's inputs to other topics; the compressed camera goes with the raw one."""
    wanted = {
        topics.CAMERA_IMAGE.name: camera,
        topics.CAMERA_IMAGE.name + "/compressed": camera + "/compressed",
        topics.ODOMETRY.name: odometry,
        topics.DRIVER_STATE.name: driver,
        topics.LIDAR_POINTS.name: lidar,
    }
    return {name: topic for name, topic in wanted.items() if name != topic}


def node(name: str, executable: str, params: Path, **options: Any) -> NodeSpec:
    """A node of the stack with the parameter file all nodes share."""
    return NodeSpec(name, NODE_PACKAGE + executable, params, **options)


def remote_target(params: Path) -> str:
    """Parameter ``target`` of node remote in a ROS parameter file, whatever pattern names the node; empty without one.

    Raises:
        ConfigError: no YAML file.
    """
    try:
        nodes = parse_yaml(params.read_bytes())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {str(error).splitlines()[0]}", where=params) from None
    target = ""
    for name, node in nodes.items() if isinstance(nodes, dict) else ():
        given = node.get("ros__parameters") if isinstance(node, dict) else None
        if str(name).rpartition("/")[2] in ("remote", "*", "**") and isinstance(given, dict):
            target = str(given.get("target") or target)
    return target


def stack_specs(
    params: Path,
    engines: Mapping[Tier, str],
    tiers: Sequence[Tier],
    *,
    view: bool,
    vehicle: bool = True,
    lidar: bool = False,
    remaps: Mapping[str, str] | None = None,
    remote: str = "",
) -> list[NodeSpec]:
    """Supervisor, safety core, tiers and, if wanted, lidar and view; where a target is configured, who tells it.

    Args:
        remote: target of remote notification; empty: nobody is told.
        engines: engine of a tier where it is not the built-in one.
        tiers: those to start; the supervisor is told which of the VLM tiers to expect.
        lidar: the vehicle has one; the supervisor is told to expect what is found in its scans.
        vehicle: something obeys the stack; a recording does not, and there is nothing for the safety core to check.
        remaps: for every node, e.g. the camera topic.
    """
    expected = {f"{t.key}_expected": t in tiers for t in (Tier.DISTILLED, Tier.FULL)}
    expected["safety_core_expected"] = vehicle
    if lidar or not vehicle:  # else the parameter file decides: somebody else may publish the obstacles
        expected["lidar_expected"] = lidar
    shared = dict(remaps or {})
    specs = [node("supervisor", "supervisor_node", params, parameters=expected, remaps=shared)]
    if vehicle:
        specs.append(node("safety_core", "safety_core_node", params, remaps=shared))
    for tier in tiers:
        own = {"engine": engines[tier]} if tier in engines else {}
        specs.append(node(tier.key, "tier_node", params, parameters=own, remaps=shared))
    if lidar:
        specs.append(node("lidar", "lidar_node", params, remaps=shared))
    if view:
        specs.append(node("view", "view_node", params, remaps=shared))
    if remote:
        specs.append(node("remote", "remote_node", params, parameters={"target": remote}, remaps=shared))
    return specs


def recorded(specs: Sequence[NodeSpec], params: Path, folder: str, **noted: str) -> list[NodeSpec]:
    """The nodes with a recorder before them; the supervisor watches the disk that is recorded to.

    Args:
        specs: of :func:`stack_specs`; the recorder takes the first one's remaps.
        folder: for the recorder's files.
        noted: the recorder's other parameters.
    """
    recorder = node("recorder", "recorder_node", params, parameters={"folder": folder, **noted}, remaps=specs[0].remaps)
    watched = {"record_folder": folder}
    return [
        recorder,
        *(replace(s, parameters={**s.parameters, **watched}) if s.name == "supervisor" else s for s in specs),
    ]
