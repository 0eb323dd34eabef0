"""The safety core, compiled from the sources under test."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from triptych.safety import Library

SOURCES = Path(__file__).parents[2] / "src" / "safety_core"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", f"-I{SOURCES}")


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile C files with strict warnings: ``compile_c(name, *files and options, compiler="cc")`` gives the result."""

    def compiled(name: str, *arguments: str | Path, compiler: str = "cc") -> Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not on this machine")
        out = tmp_path_factory.mktemp("safety_core") / name
        command = [compiler, *STRICT, *map(str, arguments), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return out

    return compiled


@pytest.fixture(scope="session")
def library(compile_c: Callable[..., Path]) -> Library:
    return Library(
        compile_c(
            "libtriptych_safety_core.so",
            *("-O2", "-shared", "-fPIC", SOURCES / "safety_core.c", SOURCES / "safety_core_linux.c"),
        )
    )
