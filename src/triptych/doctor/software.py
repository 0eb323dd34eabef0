"""The software: interpreter, libraries, ROS 2 and the engines with the device each of them gets."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from triptych import resources
from triptych.contract import TriptychError
from triptych.doctor.report import Level, Row

MINIMUM = {
    "jinja2": "3.1",
    "matplotlib": "3.8",
    "mcap": "1.1",
    "numpy": "1.26",
    "onnxruntime": "1.20",
    "opencv-python-headless": "4.9",
    "psutil": "5.9",
    "pydantic": "2.7",
    "PyYAML": "6.0",
    "rich": "13.7",
    "rosbags": "0.11",
    "typer": "0.12",
    "zstandard": "0.22",
}
"""Lowest versions, the same as in pyproject.toml: a colcon build does not check them."""
SUBSTITUTES = {
    "opencv-python-headless": ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless", "opencv"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino"),
}
"""Other distributions that hold the same module."""
IMPORT_TIMEOUT_S = 30.0

_NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvgpu", "/dev/nvhost-gpu")


def installation() -> Iterator[Row]:
    """Interpreter, where the package's files are, Python libraries, and whether the ROS 2 messages load."""
    section = "Software"
    yield Row(section, "Python", Level.OK, f"{platform.python_version()} ({sys.executable})")
    tree = resources.source_tree()
    yield Row(
        section,
        "Triptych's files",
        Level.OK,
        str(resources.share()),
        "running from a source tree" if tree else "found through the ament index",
    )
    wrong = [text for name in MINIMUM if (text := library_problem(name))]
    yield Row(
        section,
        "Python libraries",
        Level.FAIL if wrong else Level.OK,
        "; ".join(wrong) if wrong else f"all {len(MINIMUM)} present and recent enough",
        "",
        "pip install " + " ".join(f'"{name}>={MINIMUM[name]}"' for name in MINIMUM if library_problem(name))
        if wrong
        else "",
    )
    wheels = importlib.util.find_spec("ros_wheels_bootstrapper") is not None
    problem = import_problem(
        "import rclpy; rclpy.utilities.get_rmw_implementation_identifier(); import triptych_ros.msg"
    )
    yield Row(
        section,
        "ROS 2",
        Level.FAIL if problem else Level.OK,
        problem
        or ("Python wheels" if wheels else f"installation ({os.environ.get('ROS_DISTRO', 'distribution unknown')})"),
        "rclpy and the messages of triptych_ros load" if not problem else "",
        "install the package again (pip install ., or colcon build and source install/setup.bash)" if problem else "",
    )
    foreign = [prefix for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if prefix]
    if wheels and foreign:
        yield Row(
            section,
            "mixed ROS 2",
            Level.WARN,
            f"wheels, and a sourced installation ({foreign[0]})",
            "libraries of both may be mixed in one process",
            "use a shell in which no setup.bash was sourced, or the installation alone",
        )


def devices() -> Iterator[Row]:
    """Each device an engine may run on: present, usable by which runtime, chosen or not and why."""
    section = "Devices and engines"
    import onnxruntime

    from triptych.engines.session import DEVICES

    providers = onnxruntime.get_available_providers()
    yield Row(
        section,
        "cpu",
        Level.OK,
        f"ONNX Runtime {onnxruntime.__version__}",
        "chosen by default: always there, measured, and the same everywhere; others by the parameter device",
    )
    nvidia = next((path for path in _NVIDIA if Path(path).exists()), "")
    for name, installed, hardware in (
        ("cuda", DEVICES["cuda"] in providers, nvidia),
        ("tensorrt", DEVICES["tensorrt"] in providers, nvidia),
        ("openvino", DEVICES["openvino"] in providers, "/proc/cpuinfo"),
    ):
        yield _accelerator(section, name, installed, hardware)
    nodes = sorted(str(path) for pattern in ("dri/renderD*", "accel/accel*") for path in Path("/dev").glob(pattern))
    seen = ([nvidia] if nvidia else []) + nodes
    jetson = Path("/etc/nv_tegra_release")
    board = jetson.read_text(errors="replace").splitlines()[0] if jetson.is_file() else ""
    yield Row(section, "accelerators seen", Level.OK, "; ".join([*seen, *([board] if board else [])]) or "none")


def _accelerator(section: str, name: str, installed: bool, hardware: str) -> Row:
    if installed and hardware:
        return Row(section, name, Level.OK, "available", "not chosen by default: ask for it by the parameter device")
    reason = "this ONNX Runtime was built without it" if not installed else "no such hardware seen"
    level = Level.WARN if hardware and not installed and name == "cuda" else Level.OK
    remedy = "install onnxruntime-gpu instead of onnxruntime" if level is Level.WARN else ""
    return Row(section, name, level, "not available", reason, remedy)


def engines() -> Iterator[Row]:
    """Every built-in engine: do its files fit its manifest, and which device does it get."""
    from triptych.engines.manifest import load_manifest, resolve_files

    section = "Devices and engines"
    folder = resources.share() / "models"
    manifests = sorted(folder.glob("*/manifest.yaml"))
    if not manifests:
        yield Row(section, "built-in engines", Level.FAIL, f"none in {folder}", "", "install the package again")
    for path in manifests:
        try:
            manifest = load_manifest(path)
            files = resolve_files(manifest, path)
        except TriptychError as error:
            yield Row(section, path.parent.name, Level.FAIL, error.problem, str(error), "install the package again")
            continue
        size = sum(file.stat().st_size for file in files.values()) / 1e6
        yield Row(
            section,
            manifest.name,
            Level.OK,
            f"{manifest.task} {manifest.version}, {size:.1f} MB, on cpu",
            f"files fit the manifest; built and measured for the cpu (budget {manifest.latency.budget_ms:g} ms)",
        )


def library_problem(name: str) -> str:
    """Empty when the library is there in a sufficient version, else what is wrong."""
    for candidate in (name, *SUBSTITUTES.get(name, ())):
        try:
            found = metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
        return (
            "" if _numbers(found) >= _numbers(MINIMUM[name]) else f"{candidate} {found} is older than {MINIMUM[name]}"
        )
    module = {"opencv-python-headless": "cv2", "PyYAML": "yaml"}.get(name, name)  # Debian's OpenCV has no metadata
    return "" if importlib.util.find_spec(module) else f"{name} is missing"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def import_problem(code: str) -> str:
    """Run code in a fresh interpreter (a broken library may abort it); last line of the error, empty when it ran."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        outcome = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=IMPORT_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not load within {IMPORT_TIMEOUT_S:g} s"
    if outcome.returncode == 0:
        return ""
    lines = outcome.stderr.strip().splitlines()
    return lines[-1] if lines else f"interpreter ended with status {outcome.returncode}"
