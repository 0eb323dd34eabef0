"""Fuzz by coverage: ``python test/fuzz/fuzz.py TARGET … [--seconds 60]``; ``all``: every target, none: their names.

Needs the extra ``fuzz`` (atheris). Each target has a process of its own and ``--seconds``; inputs worth keeping are
collected in ``--work``. A finding ends its target, its input is written to ``test/fuzz/corpus/TARGET``, and the exit
code is 1. An input that takes longer than 10 s or more than 2 GiB is a finding too.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))
TIMEOUT_S, MEMORY_MIB, MAX_BYTES = 10, 2048, 16384
INSTRUMENTED = ["triptych", "rosbags", "mcap", "yaml"]


def fuzz(atheris: Any, targets: Any, name: str, seconds: int, work: Path) -> None:
    """Fuzz one target; does not come back."""
    work.mkdir(parents=True, exist_ok=True)
    seeds = targets.seeds(name)
    for data in seeds:
        (work / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    findings = HERE / "corpus" / name
    known = [str(findings)] if findings.is_dir() else []
    options = {
        "max_total_time": seconds,
        "timeout": TIMEOUT_S,
        "rss_limit_mb": MEMORY_MIB,
        "max_len": max(MAX_BYTES, *(len(data) for data in seeds), 0),
        "artifact_prefix": f"{work.parent / 'findings'}{os.sep}{name}-",
        "print_final_stats": 1,
    }

    # Libraries' threads do not survive a fork, and their destructors would end in a crash that is none of the target's.
    atexit.register(os._exit, 0)

    def one(data: bytes) -> None:
        targets.try_one(name, data)

    atheris.Setup([sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(work), *known], one)
    atheris.Fuzz()


def collect(folder: Path, name: str) -> int:
    """Move findings of a target into the corpus; returns how many."""
    found = sorted(folder.glob(f"{name}-*-*"))
    for path in found:
        kept = HERE / "corpus" / name / path.name.removeprefix(f"{name}-")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
        path.unlink()
    return len(found)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "triptych-fuzz")
    arguments = parser.parse_args()
    import rclpy  # noqa: F401 - may start the interpreter anew, which must come before everything else

    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed; pip install 'triptych-ros[fuzz]' (Python 3.11 or later).")
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        import targets

    names = list(targets.TARGETS) if arguments.target == ["all"] else arguments.target
    if not names or not set(names) <= set(targets.TARGETS):
        sys.exit(f"Name targets: {' '.join(targets.TARGETS)}")
    findings = arguments.work / "findings"
    findings.mkdir(parents=True, exist_ok=True)
    targets.scratch()  # one for all, removed by this process
    failed = []
    for name in names:
        print(f"== {name} {time.strftime('%H:%M:%S')}", flush=True)
        child = os.fork()  # what was instrumented once serves all
        if child == 0:
            fuzz(atheris, targets, name, arguments.seconds, arguments.work / name)
        os.waitpid(child, 0)  # a finding is a file, however the process ended
        if collect(findings, name):
            failed.append(name)
    print(f"== findings in: {' '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
