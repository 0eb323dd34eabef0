"""Placement and scheduling: what is chosen on any number of cores, and what happens when it is not permitted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.contract import ConfigError
from triptych.nodes import realtime

CHAIN = [name for name, role in realtime.ROLES.items() if role.chain]
REST = [name for name, role in realtime.ROLES.items() if not role.chain and name != "none"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 64])
def test_the_chain_never_shares_a_core_with_the_rest_when_there_are_two(count: int) -> None:
    cpus = tuple(range(count))
    placed = {role: set(realtime.placement(role, cpus)) for role in realtime.ROLES}
    assert all(placed[role] for role in realtime.ROLES)
    assert placed["none"] == set(cpus)
    if count > 1:
        for critical in CHAIN:
            for other in REST:
                assert not placed[critical] & placed[other]
    if count > 2:
        assert placed["detector"] != placed["camera"]


def test_who_may_interrupt_whom() -> None:
    roles = realtime.ROLES
    assert roles["supervisor"].realtime > roles["detector"].realtime > roles["camera"].realtime > 0
    assert roles["detector"].nice < roles["distilled"].nice < roles["full"].nice
    assert all(roles[name].realtime == 0 for name in REST)


def test_cpus() -> None:
    usable = tuple(sorted(os.sched_getaffinity(0)))
    assert realtime.parse_cpus("all", "view") == usable
    assert realtime.parse_cpus(str(usable[0]), "view") == usable[:1]
    assert set(realtime.parse_cpus("auto", "view")) <= set(usable)
    for bad in ("", "x", "1-", "0,,1", "9999", "-1"):
        with pytest.raises(ConfigError) as caught:
            realtime.parse_cpus(bad, "view")
        assert caught.value.field == "cpus"


def test_scheduling() -> None:
    def parsed(text: str, role: str = "view") -> tuple[str, int, int]:
        found = realtime.parse_scheduling(text, role)
        return found.policy, found.priority, found.nice

    assert parsed("auto", "detector") == ("rr", realtime.ROLES["detector"].realtime, -10)
    assert parsed("auto", "full") == ("other", 0, realtime.ROLES["full"].nice)
    assert parsed("normal", "detector") == ("other", 0, 0)
    assert parsed("fifo:99") == ("fifo", 99, 0)
    assert parsed("rr:1") == ("rr", 1, 0)
    assert parsed("nice:-20") == ("other", 0, -20)
    for bad in ("fifo", "fifo:0", "fifo:100", "nice:20", "nice:x", "rr:0", "batch:3", ""):
        with pytest.raises(ConfigError) as caught:
            realtime.parse_scheduling(bad, "view")
        assert caught.value.field == "scheduling"
    with pytest.raises(ConfigError):
        realtime.placement("pilot", (0, 1))


APPLY = """
import json, os, sys, threading
from triptych.nodes import realtime
stop = threading.Event()
thread = threading.Thread(target=stop.wait); thread.start()
tuned = realtime.tune_malloc()
realtime.calm_collector()
got = realtime.apply(*sys.argv[1:3], scheduling=sys.argv[3], lock=True, malloc_tuned=tuned)
tid = thread.native_id
print(json.dumps({"got": got.values(), "nice": os.getpriority(os.PRIO_PROCESS, tid),
                  "cpus": sorted(os.sched_getaffinity(tid)), "policy": os.sched_getscheduler(tid) & 0xff}))
stop.set()
"""


def applied(*args: str) -> dict[str, object]:
    import json

    source = str(Path(realtime.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", APPLY, *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=60,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_all_threads_of_a_process_are_placed_and_the_report_is_true() -> None:
    last = str(max(os.sched_getaffinity(0)))
    result = applied("view", last, "nice:3")
    got = result["got"]
    assert isinstance(got, dict)
    assert result["cpus"] == [int(last)] and got["cpus"] == last
    assert result["nice"] == 3 and got["policy"] == "other, nice 3" and got["malloc_tuned"] == "true"


@pytest.mark.parametrize(("asked", "name", "priority"), [("auto", "rr", 20), ("fifo:7", "fifo", 7)])
def test_real_time_is_used_when_permitted_and_refused_by_name_when_not(asked: str, name: str, priority: int) -> None:
    result = applied("detector", "auto", asked)
    got = result["got"]
    assert isinstance(got, dict)
    if result["policy"] == realtime.POLICIES[name]:
        assert got["policy"] == f"{name}:{priority}" and "SCHED" not in got["refused"]
    else:
        assert f"SCHED_{name.upper()} {priority}" in got["refused"] and got["policy"].startswith("other")


def test_without_privileges_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("sched_setaffinity", "sched_setscheduler", "setpriority"):
        monkeypatch.setattr(os, name, refuse)
    got = realtime.apply("detector", "auto", "auto")
    text = "; ".join(got.refused)
    assert "affinity" in text and "SCHED_RR" in text and "nice" in text
    assert got.policy == "other"


def test_who_may_wait_lets_the_others_load_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from triptych import nodes

    assert {name: realtime.ROLES[name].nice for name in nodes.EARLY_NICE} == nodes.EARLY_NICE
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(signal, "signal", lambda *a: calls.append(a))
    monkeypatch.setattr(os, "setpriority", lambda *a: calls.append(a))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nodes._begin(["python", "-m", "pytest", "__node:=full"])
    nodes._begin(["triptych", "demo"])
    assert calls == []
    nodes._begin(["python", "-m", "triptych.nodes.tier_node", "--ros-args", "-r", "__node:=detector"])
    assert calls == [(signal.SIGINT, signal.SIG_DFL)]
    nodes._begin(["python", "-m", "triptych.nodes.tier_node", "--ros-args", "-r", "__node:=full"])
    nodes._begin(["python", "-m", "triptych.nodes.view_node"])
    assert calls[2::2] == [(os.PRIO_PROCESS, 0, 14), (os.PRIO_PROCESS, 0, 16)]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel has no autogroups")
@pytest.mark.parametrize(("leads_session", "expected"), [(True, "nice 14"), (False, "nice 0")])
def test_a_node_with_a_session_of_its_own_is_weighed_against_the_others(leads_session: bool, expected: str) -> None:
    """Nice counts only within a session where the kernel groups by session: the full VLM must not weigh like tier 2."""
    show = "print(apply('full').refused, open('/proc/self/autogroup').read())"
    inner = f"from triptych.nodes.realtime import apply; {show}"
    own = [sys.executable, "-c", inner]
    # Without a session of its own the node shares that of the process in between, whose weight must stay as it is.
    outer = f"import subprocess; print(subprocess.run({own!r}, capture_output=True, text=True).stdout)"
    command = own if leads_session else [sys.executable, "-c", outer]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.stdout.startswith("[]") and expected in done.stdout, done.stdout + done.stderr


HEAP = """
import ctypes, resource, sys, threading
from triptych.nodes import realtime

MIB = 1 << 20

def faults_of_use() -> int:
    # What receiving images does, in a thread of its own as the middleware has them.
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(3 * MIB) for _ in range(5)]
    for block in blocks:
        ctypes.memset(block, 1, 3 * MIB)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for block in blocks:
        libc.free(block)
    return after - before

assert realtime.tune_malloc()
if sys.argv[1] == "touched":
    assert realtime.touch_heap(24 * MIB)
found = []
thread = threading.Thread(target=lambda: found.append(faults_of_use()))
thread.start(); thread.join()
print(found[0])
"""


def test_a_heap_that_was_touched_costs_no_faults_when_the_first_images_come() -> None:
    def faults(how: str) -> int:
        source = {"PYTHONPATH": str(Path(realtime.__file__).parents[2])}
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))} | source
        done = subprocess.run(
            [sys.executable, "-c", HEAP, how], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout)

    pages = 15 * (1 << 20) // 4096
    untouched, touched = faults("untouched"), faults("touched")
    assert untouched > pages / 2 and touched < pages / 20, (untouched, touched)


def test_only_who_handles_images_touches_memory_in_advance() -> None:
    small = {"safety_core", "supervisor", "remote", "none"}
    assert {name for name, role in realtime.ROLES.items() if not role.heap_mib} == small
