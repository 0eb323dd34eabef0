"""The middleware's settings: nothing the user set is overridden, and shared memory is looked after."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from xml.etree import ElementTree

import pytest

from triptych import dds

PROFILE = {name: str(dds.profile_path()) for name in dds.PROFILE_VARIABLES}
RMW = {"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, {**RMW, **PROFILE, **dds.MALLOC_VARIABLES}),
        ({"RMW_IMPLEMENTATION": ""}, {**RMW, **PROFILE, **dds.MALLOC_VARIABLES}),
        ({"FASTRTPS_DEFAULT_PROFILES_FILE": "/mine.xml"}, {**RMW, **dds.MALLOC_VARIABLES}),
        ({"FASTDDS_DEFAULT_PROFILES_FILE": "/mine.xml"}, {**RMW, **dds.MALLOC_VARIABLES}),
        ({"RMW_IMPLEMENTATION": "rmw_fastrtps_dynamic_cpp"}, {**PROFILE, **dds.MALLOC_VARIABLES}),
        ({"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"}, dds.MALLOC_VARIABLES),
        ({"MALLOC_TOP_PAD_": "0"}, {**RMW, **PROFILE}),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, {**RMW, **PROFILE}),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}, {**RMW, **PROFILE, **dds.MALLOC_VARIABLES}),
    ],
)
def test_environment_adds_only_what_the_user_left_open(user: dict[str, str], expected: dict[str, str]) -> None:
    assert dds.environment(user) == expected


def test_profile_has_the_segment_that_the_code_counts_with() -> None:
    sizes = [e.text for e in ElementTree.parse(dds.profile_path()).iter() if e.tag.endswith("}segment_size")]
    assert sizes == [str(dds.SEGMENT_BYTES)]
    three_full_hd_frames = 3 * 1920 * 1080 * 3
    assert three_full_hd_frames < dds.SEGMENT_BYTES


def test_a_missed_announcement_costs_half_a_second_at_most() -> None:
    """A participant that misses the answer to its first announcement waits for the next periodic one."""
    root = ElementTree.parse(dds.profile_path()).getroot()
    (period,) = [e for e in root.iter() if e.tag.endswith("}leaseAnnouncement")]
    seconds, nanoseconds = (float(e.text or "nan") for e in period)
    assert 0.1 <= seconds + nanoseconds / 1e9 <= 0.5


@pytest.mark.parametrize(("free_mib", "fits"), [(136, True), (135, False), (64, False)])
def test_shared_memory_is_judged_before_the_start(monkeypatch: pytest.MonkeyPatch, free_mib: int, fits: bool) -> None:
    usage = namedtuple("usage", "total used free")(1024 * dds.MIB, 0, free_mib * dds.MIB)
    monkeypatch.setattr(dds.shutil, "disk_usage", lambda folder: usage)
    state = dds.shared_memory(2)
    assert (state.problem == "") is fits
    if not fits:
        assert f"{free_mib} MiB free" in state.problem and "136 MiB" in state.problem
        assert "--shm-size" in state.remedy


def test_missing_shared_memory_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    state = dds.shared_memory(1, tmp_path / "nowhere")
    assert "no shared memory" in state.problem and state.remedy


def start_participant(domain: int) -> tuple[subprocess.Popen[str], Path]:
    """A process in DDS, ready, and the segment it has made."""
    code = "import rclpy, time; rclpy.init(); n = rclpy.create_node('x'); print('ready', flush=True); time.sleep(60)"
    before = set(dds.SHM_FOLDER.iterdir())
    environment = {**os.environ, **dds.environment({}), "ROS_DOMAIN_ID": str(domain)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline().strip() == "ready"
    locks = {
        file.name for file in Path(f"/proc/{process.pid}/fd").iterdir() if file.exists() for file in [file.resolve()]
    }
    mine = [p for p in set(dds.SHM_FOLDER.iterdir()) - before if f"{p.name}_el" in locks and "port" not in p.name]
    assert len(mine) == 1, mine
    return process, mine[0]


def test_segment_of_a_killed_process_is_freed_and_that_of_a_live_one_is_not() -> None:
    killed, killed_segment = start_participant(101)
    alive, alive_segment = start_participant(102)
    try:
        assert killed_segment.stat().st_size > dds.SEGMENT_BYTES
        assert killed_segment.stat().st_size + 128 * 1024 < dds.SEGMENT_COST_BYTES
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert killed_segment.exists(), "Fast DDS cleans up by itself now: release_abandoned is no longer needed"
        time.sleep(2.1)
        assert killed_segment in dict(dds.abandoned())
        assert dds.release_abandoned() > dds.SEGMENT_BYTES
        assert not killed_segment.exists()
        assert alive_segment.exists()
    finally:
        for process in (killed, alive):
            process.kill()
            process.wait()
        time.sleep(2.1)
        dds.release_abandoned()


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    old = time.time() - 60
    names = ("fastrtps_0123456789abcdef", "fastrtps_port7400", "fastrtps_port7400_el", "sem.x_mutex", "other_el")
    for name in names:
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (old, old))
    assert dds.release_abandoned(tmp_path) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)
    lock = tmp_path / "fastrtps_0123456789abcdef_el"
    lock.touch()
    assert dds.abandoned(tmp_path) == [], "too young to be judged"
    os.utime(lock, (old, old))
    assert dds.release_abandoned(tmp_path) == 1
    assert not lock.exists() and not (tmp_path / "fastrtps_0123456789abcdef").exists()


def test_a_restarted_process_gets_ports_that_nobody_has_used(tmp_path: Path) -> None:
    """In use or left behind: both are passed over; where every number was used, the one of longest ago is taken."""
    own = {"FASTRTPS_DEFAULT_PROFILES_FILE": str(dds.profile_path()), "ROS_DOMAIN_ID": "71"}

    def number() -> int:
        return int(dds.restart_environment(own, tmp_path)["TRIPTYCH_PARTICIPANT_ID"])

    first = number()
    base = 7400 + 250 * 71
    (tmp_path / f"fastrtps_port{base + 10 + 2 * first}").touch()
    second = number()
    assert second != first
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as used:
        used.bind(("", base + 11 + 2 * second))
        assert number() not in {first, second}
    for age, each in enumerate(dds.RESTART_NUMBERS):
        path = tmp_path / f"fastrtps_port{base + 10 + 2 * each}"
        path.touch()
        os.utime(path, (1000.0 - age, 1000.0 - age))
    assert number() == dds.RESTART_NUMBERS[-1]


def test_a_profile_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    assert dds.restart_environment({"FASTRTPS_DEFAULT_PROFILES_FILE": "/etc/mine.xml"}, tmp_path) == {}
    assert dds.restart_environment({}, tmp_path) == {}


def test_the_restart_profile_is_the_shipped_one_with_a_number() -> None:
    """One file may not drift from the other."""
    shipped, restart = (
        ElementTree.parse(path).getroot()
        for path in (dds.profile_path(), dds.profile_path().with_name("fastdds_restart.xml"))
    )
    (rtps,) = [e for e in restart.iter() if e.tag.endswith("}rtps")]
    (number,) = [e for e in rtps if e.tag.endswith("}participantID")]
    assert number.text == "${TRIPTYCH_PARTICIPANT_ID}"
    rtps.remove(number)
    texts = [[(e.tag, (e.text or "").strip()) for e in root.iter()] for root in (shipped, restart)]
    assert texts[0] == texts[1]
