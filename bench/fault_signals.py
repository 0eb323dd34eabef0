"""Faults by signals: the detector killed, stopped, slowed or paused, the supervisor or the safety core killed.

``seen_ms``: injection to the supervisor's tick that noticed (the stamp inside its constraint). ``wire_ms``: injection
to the first stricter command received by the vehicle. ``safe_ms``: supervisor killed to the safety core's stop, or
safety core killed to the vehicle's own safe default.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from common import Listener, Script, until

from triptych.contract import Origin, Tier
from triptych.nodes import topics
from triptych.nodes.process import Stack

DRIVING = ("NOMINAL", "L3_PERCEPTION_ONLY")
SLOW_STOPPED_S, SLOW_RUNNING_S = 0.029, 0.001
"""Stopped most of the time: a detector thirty times slower. Ten times slower it still answers every 100 ms, which the
contract allows (LAST_FRAME within 100 ms) and the supervisor only logs."""


def drives(vehicle: Script) -> bool:
    """Whether the vehicle was last told to drive on."""
    told = [e for e in vehicle.events if e.get("event") == "constraint"]
    guard = [e for e in vehicle.events if e.get("event") == "guard"]
    return bool(told and guard and told[-1]["state"] in DRIVING and told[-1]["limit_mps"] > 5 and not guard[-1]["safe"])


def ready(stack: Stack, listener: Listener, vehicle: Script) -> None:
    """Wait until the stack drives: detector FRESH for a second, state good, limit above 5 m/s."""

    def good() -> bool:
        results = listener.since(topics.RESULTS[Tier.DETECTOR], time.time_ns() - 1_000_000_000)
        fresh = [r for _, r in results if r.origin is Origin.FRESH]
        return len(fresh) >= 15 and drives(vehicle)

    until(good, 120, "driving", stack)


def recover(stack: Stack, listener: Listener, vehicle: Script) -> None:
    """The driver takes over until the detector is back, then hands over."""
    vehicle.tell("override 1")

    def back() -> bool:
        results = listener.since(topics.RESULTS[Tier.DETECTOR], time.time_ns() - 1_000_000_000)
        state = listener.last(topics.STATE)
        manual = state is not None and state.state.name == "MANUAL"
        return manual and len([r for _, r in results if r.origin is Origin.FRESH]) >= 15

    until(back, 60, "the detector's return", stack)
    time.sleep(2.0)  # faults need their clear times
    vehicle.tell("override 0")
    ready(stack, listener, vehicle)


def inject(how: str, pid: int, over: threading.Event) -> int:
    """Do it; returns the time on the clock of stamps."""
    if how == "slow":
        began_ns = time.time_ns()
        threading.Thread(target=_slow, args=(pid, over), daemon=True).start()
        return began_ns
    number = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    with at_once():
        began_ns = time.time_ns()
        os.kill(pid, number)
    return began_ns


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Nothing comes between the clock and the injection, where that is permitted."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(40))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _slow(pid: int, over: threading.Event) -> None:
    with at_once(), contextlib.suppress(ProcessLookupError):  # the load must not slow down the slowing down
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(SLOW_STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(SLOW_RUNNING_S)


def trial(how: str, stack: Stack, listener: Listener, vehicle: Script) -> dict[str, Any]:
    """One injection and the recovery from it."""
    ready(stack, listener, vehicle)
    time.sleep(random.uniform(0.0, 0.1))
    before = [e for e in vehicle.events if e.get("event") == "constraint"][-1]
    over = threading.Event()
    pid = stack.pids()["detector"]
    began_ns = inject(how, pid, over)

    def stricter() -> list[dict[str, Any]]:
        return [
            e
            for e in vehicle.since(began_ns, "constraint")
            if e["state"] not in DRIVING and (e["limit_mps"] < before["limit_mps"] or e["hazard_lights"])
        ]

    until(stricter, 20, f"a reaction to {how}")
    first = stricter()[0]
    time.sleep(0.3)
    worst = vehicle.since(began_ns, "constraint")[-1]
    over.set()
    time.sleep(0.05)
    if how == "stop":
        os.kill(pid, signal.SIGCONT)
    asked = [r.stamp_ns for _, r in listener.since(topics.CONSTRAINT, began_ns) if r.state.name not in DRIVING]
    row = {
        "seen_ms": round((asked[0] - began_ns) / 1e6, 2),
        "wire_ms": round((first["t_ns"] - began_ns) / 1e6, 2),
        "state": first["state"],
        "later": worst["state"],
        "last_result_ms": last_result_ms(listener, began_ns, first["t_ns"]),
        "reason": first["reason"],
    }
    recover(stack, listener, vehicle)
    return row


def last_result_ms(listener: Listener, began_ns: int, until_ns: int) -> float | None:
    """When the detector's last result before ``until_ns`` was received, after the injection (negative: before)."""
    times = [t for t, _ in listener.since(topics.RESULTS[Tier.DETECTOR], began_ns - 1_000_000_000) if t < until_ns]
    return round((times[-1] - began_ns) / 1e6, 2) if times else None


def kill_channel(name: str, stack: Stack, listener: Listener, vehicle: Script) -> dict[str, Any]:
    """Kill the supervisor or the safety core: whoever is left must stop the vehicle, which then is released again."""
    ready(stack, listener, vehicle)
    time.sleep(random.uniform(0.0, 0.1))
    pid = stack.pids()[name]
    with at_once():
        began_ns = time.time_ns()
        os.kill(pid, signal.SIGKILL)

    def stopped() -> list[dict[str, Any]]:
        if name == "safety_core":
            return [e for e in vehicle.since(began_ns, "guard") if e["safe"]]
        return [e for e in vehicle.since(began_ns, "constraint") if e["limit_mps"] == 0.0 and e["hazard_lights"]]

    until(stopped, 10, "a stop by whoever is left")
    first = stopped()[0]
    until(lambda: release(stack, listener, vehicle), 60, "driving again")
    ready(stack, listener, vehicle)
    return {"safe_ms": round((first["t_ns"] - began_ns) / 1e6, 2), "reason": first["reason"]}


def release(stack: Stack, listener: Listener, vehicle: Script) -> bool:
    """Ask both channels to end their stops; true when the vehicle drives."""
    stack.poll()
    listener.trigger(topics.SAFETY_RESET, 2.0)
    listener.trigger(topics.RESET, 2.0)
    return drives(vehicle)
