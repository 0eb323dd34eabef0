"""Size, worst time and coverage of the safety core: ``python bench/safety_core.py [--out FILE]``.

Compiles ``src/safety_core`` afresh. Size: of the code for a target without an operating system (``cc -Os``). Time:
processor time of single cycles, called from Python, over a drive full of faults. Coverage: MC/DC of the test vectors by
clang's source regions, where clang-19 is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from common import stats, write

from triptych.contract import DegradationState, MotionConstraint
from triptych.safety import Library, SafetyCore, SafetyLimits, constraint_record, motion_record

ROOT = Path(__file__).resolve().parents[1]
SOURCES, VECTORS = ROOT / "src" / "safety_core", ROOT / "test" / "safety_core" / "vectors.c"
CORE = SOURCES / "safety_core.c"
CODE_BYTES, CYCLE_MS = 10 * 1024, 5.0
CLANG = ("clang-19", "llvm-profdata-19", "llvm-cov-19")


def compiled(out: Path, *arguments: str | Path, compiler: str = "cc") -> Path:
    """One compiler call.

    Raises:
        SystemExit: it failed; its own words.
    """
    command = [compiler, "-std=c11", f"-I{SOURCES}", *map(str, arguments), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return out


def code_bytes(folder: Path) -> int:
    """Text and constants of the core alone."""
    freestanding = compiled(folder / "core.o", "-Os", "-c", "-ffreestanding", "-fno-stack-protector", CORE)
    return int(subprocess.check_output(["size", freestanding], text=True).splitlines()[1].split()[0])


def cycle_times_ms(folder: Path, cycles: int) -> list[float]:
    """Processor times of single cycles while both senders speak, err and fall silent."""
    files = (CORE, SOURCES / "safety_core_linux.c")
    library = Library(compiled(folder / "core.so", "-O2", "-shared", "-fPIC", *files))
    core, rng, found = SafetyCore(SafetyLimits(), library), random.Random(1), []
    constraint, motion = bytes(28), bytes(20)
    states = list(DegradationState)
    for cycle in range(cycles):
        if rng.random() < 0.9:
            state = rng.choice(states)
            told = MotionConstraint(0, rng.uniform(0, 40), rng.uniform(0.1, 4), False, False, False, state, "")
            constraint = constraint_record(cycle + 1, told, rng.randrange(3))
            motion = motion_record(cycle + 1, rng.uniform(0, 40), rng.uniform(-5, 5), rng.random() < 0.1)
        began = time.thread_time_ns()
        core.step(constraint, motion, 10 * cycle)
        found.append((time.thread_time_ns() - began) / 1e6)
    return found


def coverage(folder: Path) -> dict[str, str] | None:
    """Covered of all, by kind; None where the tools are not installed."""
    if not VECTORS.is_file() or any(shutil.which(tool) is None for tool in CLANG):
        return None
    options = ("-O0", "-g", "-fprofile-instr-generate", "-fcoverage-mapping", "-fcoverage-mcdc")
    program = compiled(folder / "vectors", *options, VECTORS, CORE, compiler=CLANG[0])
    raw, data = folder / "raw", folder / "data"
    subprocess.run([program], check=True, env={**os.environ, "LLVM_PROFILE_FILE": str(raw)})
    subprocess.run([CLANG[1], "merge", str(raw), "-o", str(data)], check=True)
    export = [CLANG[2], "export", str(program), f"-instr-profile={data}", "-summary-only", str(CORE)]
    totals = json.loads(subprocess.check_output(export, text=True))["data"][0]["totals"]
    return {kind: f"{totals[kind]['covered']} of {totals[kind]['count']}" for kind in ("lines", "branches", "mcdc")}


def main() -> int:
    """Entry point; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench_results/safety_core.json"))
    parser.add_argument("--cycles", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size, times = code_bytes(folder), stats(cycle_times_ms(folder, arguments.cycles))
        covered = coverage(folder)
    limits: dict[str, Any] = {
        "code bytes": {"value": size, "limit": CODE_BYTES, "held": size <= CODE_BYTES},
        "greatest cycle ms": {"value": times["max"], "limit": CYCLE_MS, "held": times["max"] < CYCLE_MS},
    }
    if covered is not None:
        first, _, all_of = covered["mcdc"].partition(" of ")
        limits["MC/DC conditions"] = {"value": covered["mcdc"], "limit": "all", "held": first == all_of}
    else:
        print(f"MC/DC not measured: needs {', '.join(CLANG)} and the source tree (apt-get install clang-19 llvm-19)")
    write(arguments.out, {"cycle_ms": times, "coverage": covered, "limits": limits}, {"cycles": arguments.cycles})
    for name, row in limits.items():
        print(f"{'ok  ' if row['held'] else 'MISS'} {name}: {row['value']} (limit {row['limit']})")
    return 0 if all(row["held"] for row in limits.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
