#!/usr/bin/env python3
"""Creates or refreshes the virtual environment that the Makefile's targets run in.

Usage: python3 scripts/environment.py [--extra NAME]... [--venv FOLDER]

Run by whatever python3 there is, so it uses the standard library only and says in one sentence what is missing. When
nothing changed since the last time it returns at once. Everything pip says goes to FOLDER/install.log; the terminal
shows one line of progress.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 10), (3, 13)
SOURCES = (
    *("CMakeLists.txt", "LICENSE", "NOTICE", "package.xml", "pyproject.toml", "setup.py"),
    *("cmake", "config", "launch", "models", "msg", "scripts", "src"),
)


class MissingError(Exception):
    """Something is missing that pip cannot install; the message is one sentence with the remedy."""


def check_machine():
    """Raise MissingError for the first thing missing; checks cheapest and most likely first."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise MissingError(
            f"The ROS 2 packages on PyPI are for Linux on x86-64, this is {platform.system()} on {platform.machine()}; "
            "build with colcon under a ROS 2 installation instead."
        )
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        raise MissingError(
            "{} is Python {}.{}, but 3.10 to 3.13 is needed; name another one, e.g. make PYTHON=python3.12.".format(
                sys.executable, *version
            )
        )
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise MissingError(
                f"Python's module {module} is missing; install it (Debian, Ubuntu: sudo apt install python3-venv)."
            ) from None
    for name, variable, package in (("gcc", "CC", "gcc"), ("g++", "CXX", "g++"), ("make", "", "make")):
        if not (os.environ.get(variable) or shutil.which(name)):
            raise MissingError(f"{name} is missing; install it (Debian, Ubuntu: sudo apt install {package}).")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise MissingError(
            f"{header} is missing; install Python's headers (Debian, Ubuntu: sudo apt install python3-dev)."
        )


def fingerprint(extras, venv):
    """Hash over everything that an installation depends on, the environment's interpreter included."""
    configuration = venv / "pyvenv.cfg"
    interpreter = configuration.read_text() if configuration.is_file() else ""
    digest = hashlib.sha256(json.dumps([interpreter, sorted(extras)]).encode())
    for source in SOURCES:
        path = ROOT / source
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and file.suffix not in (".pyc", ".tmp"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def read_stamp(path):
    """The last successful installation as a dict, empty when there is none."""
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def usable(venv):
    """Whether the environment's interpreter still starts (its base may have been removed or moved)."""
    python = venv / "bin" / "python"
    return (venv / "bin" / "pip").exists() and subprocess.call([str(python), "-c", ""], stderr=subprocess.DEVNULL) == 0


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line per phase."""

    def __init__(self):
        self.terminal = sys.stdout.isatty()
        self.start = time.monotonic()
        self.phase = ""

    def show(self, phase, detail=""):
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            text = f"[{time.monotonic() - self.start:3.0f} s] {phase} {detail}"
            print("\r\x1b[K" + text[:width], end="", flush=True)
        elif phase != self.phase:
            print(f"[{time.monotonic() - self.start:3.0f} s] {phase}", flush=True)
        self.phase = phase

    def end(self, text):
        print(("\r\x1b[K" if self.terminal else "") + f"[{time.monotonic() - self.start:3.0f} s] {text}")


PHASES = (
    (re.compile(r"^\s*(?:Collecting|Downloading|Using cached|Obtaining) (\S+)"), "Downloading"),
    (
        re.compile(r"^\s*(?:Installing|Getting requirements to) (build dependencies|build wheel)"),
        "Preparing the build:",
    ),
    (re.compile(r"^\s*Building (wheel)"), "Building the ROS 2 messages (about 15 s the first time)"),
    (re.compile(r"^Installing (collected packages)"), "Installing"),
)


def run(command, log, progress):
    """Run a command with its output in the log and its progress on the terminal; returns the exit status."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
        cwd=str(ROOT),
    )
    for line in process.stdout:
        log.write(line)
        log.flush()
        for pattern, phase in PHASES:
            match = pattern.match(line)
            if match:
                progress.show(phase, match.group(1) if phase == "Downloading" else "")
    return process.wait()


def main():
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Create or refresh the virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="folder of the environment")
    parser.add_argument("--extra", action="append", default=[], help="optional dependency group of pyproject.toml")
    arguments = parser.parse_args()
    venv = arguments.venv
    stamp_path = venv / "triptych-install.json"
    stamp = read_stamp(stamp_path)
    extras = sorted({*arguments.extra, *stamp.get("extras", [])})  # what was asked for once stays installed
    ready = usable(venv)
    if ready and stamp == {"fingerprint": fingerprint(extras, venv), "extras": extras}:
        return 0
    try:
        check_machine()
    except MissingError as error:
        print(error, file=sys.stderr)
        return 1
    progress = Progress()
    if not ready:
        progress.show(f"Creating {venv.name}")
        if subprocess.call([sys.executable, "-m", "venv", "--clear", str(venv)]):
            print(f"Could not create {venv}; see above.", file=sys.stderr)
            return 1
    log_path = venv / "install.log"
    requirement = str(ROOT) + ("[{}]".format(",".join(extras)) if extras else "")
    pins = ROOT / "scripts" / "pins.txt"
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--constraint", str(pins), requirement]
    with log_path.open("w") as log:
        status = run(command, log, progress)
    if status:
        progress.end(f"Installation failed; the end of {log_path}:")
        lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
        print("\n".join("    " + line for line in lines[-15:]), file=sys.stderr)
        return 1
    temporary = stamp_path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"fingerprint": fingerprint(extras, venv), "extras": extras}))
    temporary.replace(stamp_path)
    progress.end(f"{venv.name} is ready.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
