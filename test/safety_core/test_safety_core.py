"""The safety core as C code: what it decides (vectors), how well they cover it, what a small target must know."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE, VECTORS = HERE.parents[1] / "src" / "safety_core" / "safety_core.c", HERE / "vectors.c"
CODE_BYTES = 10 * 1024


def run(program: Path, **environment: str) -> None:
    done = subprocess.run([program], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_vectors_hold(compile_c: Callable[..., Path]) -> None:
    run(compile_c("vectors", "-O2", VECTORS, CORE))


def test_the_vectors_hold_under_sanitizers(compile_c: Callable[..., Path]) -> None:
    options = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    run(compile_c("vectors_sanitized", *options, VECTORS, CORE))


def test_every_decision_is_covered_by_mcdc(compile_c: Callable[..., Path], tmp_path: Path) -> None:
    """ISO 26262-6 table 9, ASIL D: modified condition/decision coverage, measured on clang's source regions."""
    options = ("-O0", "-g", "-fprofile-instr-generate", "-fcoverage-mapping", "-fcoverage-mcdc")
    program = compile_c("vectors_covered", *options, VECTORS, CORE, compiler="clang-19")
    run(program, LLVM_PROFILE_FILE=str(tmp_path / "raw"))
    for tool in ("llvm-profdata-19", "llvm-cov-19"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine")
    merge = ["llvm-profdata-19", "merge", str(tmp_path / "raw"), "-o", str(tmp_path / "data")]
    subprocess.run(merge, check=True)
    export = ["llvm-cov-19", "export", str(program), f"-instr-profile={tmp_path / 'data'}", "-summary-only", str(CORE)]
    totals = json.loads(subprocess.run(export, check=True, capture_output=True, text=True).stdout)["data"][0]["totals"]
    for kind in ("functions", "lines", "branches", "mcdc"):
        assert totals[kind]["count"] > 20 and totals[kind]["covered"] == totals[kind]["count"], kind


def test_it_is_small_and_needs_nothing(compile_c: Callable[..., Path]) -> None:
    """At most 10 KB of code, no global state, and no function of a library: no heap, no output, no floating point."""
    freestanding = compile_c("core.o", "-Os", "-c", "-ffreestanding", "-fno-stack-protector", CORE)
    code, data, bss = map(int, subprocess.check_output(["size", freestanding], text=True).splitlines()[1].split()[:3])
    assert 500 < code <= CODE_BYTES and data == 0 and bss == 0
    missing = subprocess.check_output(["nm", "--undefined-only", freestanding], text=True).split()
    assert [name for name in missing if name not in ("U", "memcpy", "memset")] == []
    assert not re.search(r"\b(float|double|malloc|free|goto)\b", CORE.read_text())


def test_no_function_calls_itself(compile_c: Callable[..., Path]) -> None:
    """And every loop counts up to a constant."""
    folder = compile_c("core2.o", "-O0", "-c", "-fcallgraph-info", CORE, compiler="gcc").parent
    graph = next(folder.glob("*.ci")).read_text()
    calls: dict[str, set[str]] = {}
    for source, target in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', graph):
        calls.setdefault(source.split(":")[-1], set()).add(target.split(":")[-1])
    assert len(calls) > 5

    def reaches(start: str, seen: set[str]) -> set[str]:
        for one in calls.get(start, ()):
            if one not in seen:
                seen.add(one)
                reaches(one, seen)
        return seen

    assert [name for name in calls if name in reaches(name, set())] == []
    loops = re.findall(r"\b(?:for|while|do)\b.*", CORE.read_text().split("*/", 2)[-1])
    loops = [line for line in loops if re.match(r"(for|while) \(|do \{", line)]
    bounded = re.compile(r"for \(uint32_t (\w+) = 0u; \1 < (\(uint32_t\)TSC_\w+|count|32u); \1\+\+\) \{")
    assert len(loops) > 5 and [line for line in loops if not bounded.fullmatch(line)] == []
