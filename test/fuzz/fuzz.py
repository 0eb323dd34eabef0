"""Fuzz by coverage: ``python test/fuzz/fuzz.py TARGET … [--seconds 60]``; ``all``: every target, none: their names.

Needs the extra ``fuzz`` (atheris). Each target has a process of its own and ``--seconds``; inputs worth keeping are
collected in ``--work``. A finding ends its target, its input is written to ``test/fuzz/corpus/TARGET``, and the exit
code is 1. An input that takes longer than 10 s or more than 2 GiB is a finding too.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))
TIMEOUT_S, MEMORY_MIB, MAX_BYTES = 10, 2048, 16384
ALONE = "TRIPTYCH_FUZZ_ALONE"
"""Set for the process of one target: the fuzzer ends the process it runs in."""
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
    if len(names) == 1 and os.environ.get(ALONE):
        fuzz(atheris, targets, names[0], arguments.seconds, arguments.work / names[0])
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        options = ["--seconds", str(arguments.seconds), "--work", str(arguments.work)]
        code = subprocess.call([sys.executable, __file__, name, *options], env={**os.environ, ALONE: "1"})
        if collect(findings, name) or code:
            failed.append(name)
    print(f"== findings in: {' '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
