"""Fuzz one target guided by coverage: ``python test/fuzz/fuzz.py TARGET [--seconds 60]``; no target: names.

Needs the extra ``fuzz`` (atheris). Inputs worth keeping are collected in ``--work``; a finding ends the run, its input
is written to ``test/fuzz/corpus/TARGET`` and the exit code is not 0. An input that takes longer than 10 s or more than
2 GiB is a finding too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))
TIMEOUT_S, MEMORY_MIB, MAX_BYTES = 10, 2048, 16384


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "triptych-fuzz")
    arguments = parser.parse_args()
    import rclpy  # noqa: F401 - may start the interpreter anew, which must come before everything else

    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed; pip install 'triptych-ros[fuzz]' (Python 3.11 or later).")
    with atheris.instrument_imports(include=["triptych"], enable_loader_override=False):
        import targets

    if arguments.target not in targets.TARGETS:
        sys.exit(f"Name a target: {' '.join(targets.TARGETS)}")
    work = arguments.work / arguments.target
    work.mkdir(parents=True, exist_ok=True)
    for data in targets.seeds(arguments.target):
        (work / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    findings = HERE / "corpus" / arguments.target
    findings.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": arguments.seconds,
        "timeout": TIMEOUT_S,
        "rss_limit_mb": MEMORY_MIB,
        "max_len": max(MAX_BYTES, *(len(data) for data in targets.seeds(arguments.target)), 0),
        "artifact_prefix": f"{findings}{os.sep}",
        "print_final_stats": 1,
    }

    def one(data: bytes) -> None:
        targets.try_one(arguments.target, data)

    argv = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(work), str(findings)]
    atheris.Setup(argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
