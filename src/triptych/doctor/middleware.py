"""The middleware: RMW, DDS profile, shared memory, and whether full-size images really arrive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from triptych import dds
from triptych.doctor.report import Level, Row

STACK_PROCESSES = 9
"""Processes of the stack that join DDS: three tiers, supervisor, scenario or replay, view, recorder, remote
notification, command line."""
PROBE_TIMEOUT_S = 30.0
PROBE_LOST_WARN = 0.001  # the stack promises less than 0.1 % lost; a busy machine may lose some in the probe
PROBE_LOST_FAIL = 0.8  # more is a wrong profile or too little shared memory: with Fast DDS' defaults it is about 0.9
SECTION = "Middleware"


def middleware(user: Mapping[str, str] | None = None) -> Iterator[Row]:
    """RMW implementation, DDS profile, malloc settings and discovery, with who chose each."""
    user = os.environ if user is None else user
    chosen = dds.environment(user)
    effective = {**user, **chosen}
    rmw = effective["RMW_IMPLEMENTATION"]
    fast_dds = rmw.startswith("rmw_fastrtps")
    yield Row(
        SECTION,
        "RMW",
        Level.OK if fast_dds else Level.WARN,
        rmw,
        _who("RMW_IMPLEMENTATION", chosen) + ("" if fast_dds else "; only Fast DDS is tested with this stack"),
        "" if fast_dds else "unset RMW_IMPLEMENTATION, or see that it carries raw images without loss",
    )
    if fast_dds:
        yield _profile(chosen, effective)
    tuned = "MALLOC_MMAP_THRESHOLD_" in effective
    yield Row(
        SECTION,
        "malloc",
        Level.OK,
        "image-sized blocks stay in the heap" if tuned else "as you set it",
        "set by Triptych" if set(dds.MALLOC_VARIABLES) <= set(chosen) else "set by your environment",
    )
    reach = effective.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    yield Row(
        SECTION,
        "discovery",
        Level.OK,
        f"domain {effective.get('ROS_DOMAIN_ID') or '0'}, range {reach}",
        "other ROS 2 machines of the network in this domain are heard" if reach.upper() == "SUBNET" else "",
    )


def _who(variable: str, chosen: Mapping[str, str]) -> str:
    return "set by Triptych" if variable in chosen else "set by your environment"


def _profile(chosen: Mapping[str, str], effective: Mapping[str, str]) -> Row:
    variable = next((name for name in dds.PROFILE_VARIABLES if effective.get(name)), dds.PROFILE_VARIABLES[0])
    path = Path(effective.get(variable, ""))
    try:
        sizes = [
            int(element.text or 0) for element in ElementTree.parse(path).iter() if _tag(element) == "segment_size"
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        return Row(
            SECTION, "DDS profile", Level.FAIL, f"{path} cannot be used", str(error), f"correct or unset {variable}"
        )
    small = max(sizes, default=0) < dds.SEGMENT_BYTES
    return Row(
        SECTION,
        "DDS profile",
        Level.WARN if small else Level.OK,
        f"{path}, shared-memory segment {max(sizes, default=0) // dds.MIB} MiB",
        _who(variable, chosen) + ("; raw images larger than the segment are lost" if small else ""),
        f"unset {variable} to use the shipped profile, or give yours a segment_size of {dds.SEGMENT_BYTES}"
        if small
        else "",
    )


def _tag(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def shared_memory(folder: Path = dds.SHM_FOLDER) -> Iterator[Row]:
    """Room for the segments of the whole stack, and segments that killed processes left behind."""
    state = dds.shared_memory(STACK_PROCESSES, folder)
    yield Row(
        SECTION,
        "shared memory",
        Level.FAIL if state.problem else Level.OK,
        f"{state.free // dds.MIB} of {state.total // dds.MIB} MiB free in {folder}",
        state.problem or f"the stack takes {state.needed // dds.MIB} MiB ({STACK_PROCESSES} processes)",
        state.remedy,
    )
    abandoned = sum(size for _, size in dds.abandoned(folder))
    if abandoned:
        yield Row(
            SECTION,
            "abandoned segments",
            Level.OK,
            f"{abandoned // dds.MIB} MiB",
            "left by killed processes; the next triptych demo, run or replay frees them",
        )


def image_transport() -> Iterator[Row]:
    """Send 1920x1080 images between two processes with the settings of the stack and count what arrives."""
    environment = {**os.environ, **dds.environment()}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "triptych.nodes.transport_probe"]
    remedy = "see the rows above; a firewall or a container without --ipc=host between processes has the same effect"
    try:
        outcome = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, env=environment, check=True
        )
        result = json.loads(outcome.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        reason = f"nothing arrived within {PROBE_TIMEOUT_S:g} s"
        yield Row(SECTION, "image transport", Level.FAIL, "probe did not finish", reason, remedy)
        return
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
        yield Row(SECTION, "image transport", Level.FAIL, "probe did not run", lines[-1] if lines else "", remedy)
        return
    sent, received = result["sent"], result["received"]
    lost = 1 - received / sent
    bad = lost > PROBE_LOST_WARN
    broken = lost > PROBE_LOST_FAIL
    yield Row(
        SECTION,
        "image transport",
        Level.FAIL if broken else Level.WARN if bad else Level.OK,
        f"{received} of {sent} images of 1920x1080 at 20 Hz arrived"
        + (f", median {result['median_ms']:.1f} ms, worst {result['max_ms']:.1f} ms" if received else ""),
        "measured now, between two processes, with the settings above",
        remedy if broken else "measure again while the machine has nothing else to do" if bad else "",
    )
