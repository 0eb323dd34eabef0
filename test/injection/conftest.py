import shutil
import subprocess
from pathlib import Path

import pytest

import triptych.safety.library as library

SOURCES = Path(__file__).parents[2] / "src" / "safety_core"


@pytest.fixture(scope="session", autouse=True)
def built_core(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The safety core of the sources under test, not the installed one."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not on this machine")
    out = tmp_path_factory.mktemp("core") / library.NAME
    files = [str(SOURCES / name) for name in ("safety_core.c", "safety_core_linux.c")]
    subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", *files, "-o", str(out)], check=True)
    original = library.library
    library.library = lambda name: out  # type: ignore[assignment]
    yield
    library.library = original
