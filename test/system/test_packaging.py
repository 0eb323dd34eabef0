"""package.xml, CMakeLists.txt, setup.py and pyproject.toml say the same, and the installation is whole."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

import triptych
from triptych import resources
from triptych.contract import ConfigError
from triptych.doctor import software

ROOT = Path(__file__).resolve().parents[2]
if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CMAKE = re.sub(r"#.*", "", (ROOT / "CMakeLists.txt").read_text())
PACKAGE_XML = ElementTree.parse(ROOT / "package.xml").getroot()

MODULE_OF = {
    "torch-pruning": "torch_pruning",  # distribution or rosdep key -> module, where the names differ
    "opencv-python-headless": "cv2",
    "PyYAML": "yaml",
    "paho-mqtt": "paho",
    "python3-opencv": "cv2",
    "python3-yaml": "yaml",
}
WITHOUT_ROSDEP_KEY = {"mcap", "zstandard"}  # said in package.xml
OPTIONAL = {"paho"}  # extra of its own for pip, said in package.xml; imported only when used
PART_OF = {"annotated_types": "pydantic", "markupsafe": "jinja2"}  # modules that always come with another one


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constant(path: Path, name: str) -> object:
    """A literal assigned at the top of a module that must not be run (setup.py)."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path}: no {name}")


def xml_depends(*tags: str) -> set[str]:
    return {element.text or "" for tag in tags for element in PACKAGE_XML.findall(tag)}


def imported(*folders: str) -> set[str]:
    """Top-level modules that Python code below these folders imports, those of the standard library left out."""
    found: set[str] = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    found = {PART_OF.get(name, name) for name in found}
    return found - set(sys.stdlib_module_names) - {"triptych", "triptych_forge", "triptych_ros"}


def distribution(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert match
    return match.group()


def modules(requirements: list[str]) -> set[str]:
    names = {distribution(r) for r in requirements}
    return {name[4:].replace("-", "_") if name.startswith("ros-") else MODULE_OF.get(name, name) for name in names}


RUNTIME = ("src/triptych", "launch")
NOT_IMPORTED = {"rmw_fastrtps_cpp"}  # the middleware, loaded by name


def test_everything_imported_is_declared_for_pip() -> None:
    needed = imported("src/triptych") - {"launch", "launch_ros"}
    assert needed - modules(PROJECT["dependencies"]) == OPTIONAL
    assert modules(PROJECT["optional-dependencies"]["remote"]) == OPTIONAL
    forge = imported("src/triptych_forge")
    assert forge - modules(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["forge"]) == set()


def test_everything_imported_is_declared_for_ros() -> None:
    keys = xml_depends("depend", "exec_depend")
    declared = {MODULE_OF.get(key, re.sub(r"^python3-|-pip$", "", key)) for key in keys}
    assert imported(*RUNTIME) - declared - WITHOUT_ROSDEP_KEY == OPTIONAL


def test_nothing_is_declared_that_is_not_used() -> None:
    used = imported(*RUNTIME) | NOT_IMPORTED
    assert modules(PROJECT["dependencies"]) - used == set()
    keys = xml_depends("depend", "exec_depend") - {"rosidl_default_runtime", "launch", "launch_ros"}
    assert {MODULE_OF.get(key, re.sub(r"^python3-|-pip$", "", key)) for key in keys} - used == set()


def test_ros_wheels_are_pinned_and_the_rest_is_bounded() -> None:
    for requirement in PROJECT["dependencies"]:
        if requirement.startswith("ros-"):
            assert "==" in requirement, requirement
        else:
            assert ">=" in requirement and "<" in requirement, requirement


def test_cmake_finds_what_package_xml_names() -> None:
    outside_wheel = re.sub(r"if\(TRIPTYCH_WHEEL\).*?endif\(\)", "", CMAKE, flags=re.DOTALL)
    found = set(re.findall(r"find_package\((\w+)", outside_wheel))
    assert found == xml_depends("buildtool_depend", "depend") | (found & {"ament_cmake_pytest"})
    assert ("ament_cmake_pytest" in found) is ("ament_cmake_pytest" in xml_depends("test_depend"))
    interfaces = re.search(r"DEPENDENCIES ([\w ]+)", CMAKE)
    assert interfaces and set(interfaces.group(1).split()) == xml_depends("depend")
    assert xml_depends("member_of_group") == {"rosidl_interface_packages"}


def test_messages_depend_on_what_is_declared() -> None:
    used = {p for f in (ROOT / "msg").glob("*.msg") for p in re.findall(r"^(\w+)/\w+", f.read_text(), re.MULTILINE)}
    assert used == xml_depends("depend")


def test_every_message_is_built() -> None:
    listed = sorted(re.findall(r"msg/\w+\.msg", CMAKE))
    assert listed == sorted(f"msg/{p.name}" for p in (ROOT / "msg").glob("*.msg"))


def test_both_ways_in_install_the_same() -> None:
    executables = re.search(r"foreach\(executable ([\w ]+)\)", CMAKE)
    folders = re.search(r"install\(DIRECTORY ([\w ]+) DESTINATION", CMAKE)
    assert executables and folders
    assert tuple(executables.group(1).split()) == constant(ROOT / "setup.py", "EXECUTABLES")
    assert tuple(folders.group(1).split()) == constant(ROOT / "setup.py", "SHARED_FOLDERS")


def test_every_executable_has_its_module_and_every_node_its_executable() -> None:
    executables = constant(ROOT / "setup.py", "EXECUTABLES")
    assert isinstance(executables, tuple)
    nodes = {path.stem for path in (ROOT / "src/triptych/nodes").glob("*_node.py")}
    assert nodes | {"triptych"} == set(executables)
    assert (ROOT / "src/triptych/__main__.py").is_file()


def test_versions_agree() -> None:
    assert PACKAGE_XML.findtext("version") == triptych.__version__
    minimum = {distribution(r): re.search(r">=([\d.]+)", r).group(1) for r in PROJECT["dependencies"] if ">=" in r}  # type: ignore[union-attr]
    assert {name: minimum[name] for name in software.MINIMUM} == software.MINIMUM
    pydantic = next(e for e in PACKAGE_XML.findall("exec_depend") if e.text == "python3-pydantic")
    assert pydantic.get("version_gte") == minimum["pydantic"]


def test_licence_is_apache_everywhere() -> None:
    assert PACKAGE_XML.findtext("license") == PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


def installed_files() -> Iterator[tuple[Path, Path]]:
    """(source, installed) of everything that belongs under share/ and of the Python modules."""
    share = Path(sys.prefix, "share", "triptych_ros")
    for folder in ("bench", "config", "launch", "models"):
        for source in (ROOT / folder).rglob("*"):
            if source.is_file() and source.suffix not in (".pyc", ".tmp"):
                yield source, share / source.relative_to(ROOT)
    for source in (ROOT / "msg").glob("*.msg"):
        yield source, share / "msg" / source.name
    site = Path(sysconfig.get_path("platlib"))
    for package in ("triptych", "triptych_forge"):
        for source in (ROOT / "src" / package).rglob("*"):
            if source.is_file() and source.suffix != ".pyc":
                yield source, site / source.relative_to(ROOT / "src")


@pytest.fixture
def current_installation() -> None:
    """Skips unless the environment holds the package as built from exactly these sources."""
    stamp = Path(sys.prefix, "triptych-install.json")
    if not stamp.is_file():
        pytest.skip("not an environment made by `make`: nothing says what is installed in it")
    environment = load(ROOT / "scripts" / "environment.py", "environment_script")
    recorded = json.loads(stamp.read_text())
    if recorded["fingerprint"] != environment.fingerprint(recorded["extras"], Path(sys.prefix)):
        pytest.skip("sources changed since the installation: `make test` installs them again")


@pytest.mark.usefixtures("current_installation")
def test_installation_is_whole() -> None:
    missing = [str(target) for source, target in installed_files() if not target.is_file()]
    assert missing == []
    different = [str(t) for s, t in installed_files() if s.read_bytes() != t.read_bytes()]
    assert different == []


@pytest.mark.usefixtures("current_installation")
def test_installed_executables_run_with_the_environments_interpreter() -> None:
    script = Path(sys.prefix, "lib", "triptych_ros", "triptych")
    out = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60, env=clean(), cwd="/")
    assert out.returncode == 0 and "doctor" in out.stdout, out.stderr


@pytest.mark.usefixtures("current_installation")
def test_installed_package_finds_its_files_through_the_index() -> None:
    code = "from triptych.resources import share; import triptych; print(share()); print(triptych.__file__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean(), cwd="/")
    share, module = out.stdout.split()
    assert share == str(Path(sys.prefix, "share", "triptych_ros"))
    assert module.startswith(sysconfig.get_path("platlib"))
    assert metadata.version("triptych-ros") == triptych.__version__


def test_source_tree_is_preferred_when_running_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENT_PREFIX_PATH", "/nowhere")
    assert resources.share() == ROOT
    assert resources.resource("config", "dds", "fastdds.xml").is_file()
    with pytest.raises(ConfigError, match="missing from the installation"):
        resources.resource("config", "no_such_file.yaml")


def test_ament_index_is_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "source_tree", lambda: None)
    for name in ("first", "second"):
        marker = tmp_path / name / "share" / "ament_index" / "resource_index" / "packages" / "triptych_ros"
        marker.parent.mkdir(parents=True)
        marker.touch()
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second")
    assert resources.share() == tmp_path / "first" / "share" / "triptych_ros"
    monkeypatch.setenv("AMENT_PREFIX_PATH", "")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "second"))
    assert resources.share() == tmp_path / "second" / "share" / "triptych_ros"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="not in the ament index"):
        resources.share()


def clean(**extra: str) -> dict[str, str]:
    """This environment as it is before the ROS 2 wheels re-execute the interpreter, without our PYTHONPATH."""
    dropped = ("LD_LIBRARY_PATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE", "PYTHONPATH", "AMENT_PREFIX_PATH")
    return {**{k: v for k, v in os.environ.items() if k not in dropped}, **extra}


SHOW = "import sys, json; print(json.dumps([sys.argv[1:], sys.flags.dev_mode]))"


@pytest.mark.parametrize("how", ["-c", "-m", "script", "stdin"])
def test_arguments_survive_the_restart_of_the_interpreter(how: str, tmp_path: Path) -> None:
    """The ROS 2 wheels start the interpreter a second time to set the library path."""
    (tmp_path / "show.py").write_text(SHOW)
    arguments = ["a b", "--c=ä", "", "*"]
    command = {"-c": ["-c", SHOW], "-m": ["-m", "show"], "script": ["show.py"], "stdin": ["-"]}[how]
    out = subprocess.run(
        [sys.executable, "-X", "dev", *command, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean(),
        input=SHOW,
        timeout=60,
        check=True,
    )
    assert json.loads(out.stdout) == [arguments, True]


def test_message_libraries_are_found_by_name() -> None:
    """Both the wheels' libraries and our own lie in the environment's lib/, which is on the library path."""
    code = (
        "import ctypes, triptych_ros.msg as m\n"
        "from rclpy.serialization import serialize_message as s, deserialize_message as d\n"
        "ctypes.CDLL('libtriptych_ros__rosidl_typesupport_fastrtps_c.so')\n"
        "x = m.Detections(detections=[m.Detection(label='car', score=0.5)])\n"
        "assert d(s(x), m.Detections) == x\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean(), cwd="/", timeout=60)
    assert out.returncode == 0, out.stderr


def test_unbounded_message_fields_are_refused() -> None:
    """Nothing a model says can grow a message without limit."""
    for file in (ROOT / "msg").glob("*.msg"):
        for line in file.read_text().splitlines():
            kind = line.split("#")[0].split()[0] if line.split("#")[0].split() else ""
            assert not re.search(r"string(?!<=)", kind) and "[]" not in kind, f"{file.name}: {line}"


def tools(tmp_path: Path, *names: str) -> str:
    """A PATH that holds only these programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize(
    ("present", "sentence"),
    [((), "gcc is missing"), (("gcc",), "g++ is missing"), (("gcc", "g++"), "make is missing")],
)
def test_missing_tool_is_one_sentence(tmp_path: Path, present: tuple[str, ...], sentence: str) -> None:
    environment = {"PATH": tools(tmp_path, *present)}
    command = [sys.executable, "-I", ROOT / "scripts" / "environment.py", "--venv", tmp_path / "venv"]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert out.returncode == 1
    assert out.stderr.startswith(sentence) and "apt install" in out.stderr and out.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("sys.version_info = (3, 9, 1)", "is Python 3.9, but 3.10 to 3.13 is needed"),
        ("sys.version_info = (3, 14, 0)", "is Python 3.14, but 3.10 to 3.13 is needed"),
        ("platform.machine = lambda: 'aarch64'", "build with colcon"),
        ("sys.modules['ensurepip'] = None", "Python's module ensurepip is missing"),
        ("sysconfig.get_path = lambda name: '/nowhere'", "/nowhere/Python.h is missing"),
    ],
)
def test_unsuitable_python_is_one_sentence(change: str, sentence: str) -> None:
    code = (
        f"import platform, sys, sysconfig; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        f"import environment\n{change}\n"
        "try:\n    environment.check_machine()\nexcept environment.MissingError as e:\n    print(e)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert sentence in out.stdout and out.stdout.count("\n") == 1, out.stdout


def test_makefile_names_a_missing_python() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    out = subprocess.run([make, "demo", "PYTHON=no-python-here"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert out.returncode != 0
    assert out.stderr.splitlines()[0].startswith("no-python-here is not there; install Python 3.10 to 3.13")


def test_environment_script_runs_on_old_interpreters() -> None:
    """It must parse before it can say that the interpreter is too old."""
    ast.parse((ROOT / "scripts" / "environment.py").read_text(), feature_version=(3, 6))


def test_failed_installation_shows_the_end_of_the_log(tmp_path: Path) -> None:
    """pip cannot reach anything and has nothing cached; the environment is not marked as ready."""
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {
        **clean(),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(empty),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
    }
    venv = tmp_path / "venv"
    command = [sys.executable, ROOT / "scripts" / "environment.py", "--venv", venv]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert out.returncode == 1
    assert "Installation failed; the end of" in out.stdout and "ERROR" in out.stderr
    assert not (venv / "triptych-install.json").exists()
    assert (venv / "install.log").read_text()
