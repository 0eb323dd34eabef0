"""What every executable of ``triptych.nodes`` does around its node: start, signals, threads, end.

Exit codes: 0 stopped or finished, 2 a user's mistake (one sentence on stderr), 70 a defect (one line on stderr). They
hold where nothing can be written any more, too: a full disk takes no log lines, and must not take the node with them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import cv2
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy._rclpy_pybind11 import RCLError
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from triptych.contract import TriptychError
from triptych.nodes import realtime
from triptych.nodes.convert import to_time
from triptych.nodes.io import QosWatch
from triptych.nodes.process import end_with_starter

EXIT_USER, EXIT_DEFECT = 2, 70
QOS_PERIOD_S, QOS_ENDS = 1.0, 3
"""Period of the looks for incompatible QoS, and at how many ends of topics each of them looks."""
MAX_WAITING = 1000
"""Lines of the log that may wait for being written; more are dropped."""
SWITCH_INTERVAL_S = 0.001
"""A thread waits at most this long for another one of the same process that computes in Python."""


class RunnableNode(Protocol):
    """A node as :func:`run` needs it (besides being an rclpy node)."""

    notes: Notes
    """What it has to say, also that its work is done. With attribute ``failure`` (a TriptychError) the run failed."""

    def begin(self) -> None:
        """Start working; the executor spins already."""

    def close(self) -> None:
        """Stop all threads and free everything, within a second."""


def run(create: Callable[[], Any], args: Sequence[str] | None = None) -> int:
    """Run one node until SIGINT, SIGTERM or its own end. Returns the exit code.

    The executor (services, parameters, lifecycle) spins in a thread of its own; the main thread waits for the end.
    """
    tuned = realtime.tune_malloc()
    cv2.setNumThreads(1)  # its pool would compete with us for the one core we have
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stopped, closing = False, threading.Event()
    node: Any = None

    def end(*_: object) -> None:
        nonlocal stopped
        stopped = True  # no Event: the thread that is interrupted may hold its lock
        if node is not None:
            node.notes.finish()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    end_with_starter()
    threading.excepthook = _defect
    executor: SingleThreadedExecutor | None = None
    spinning: threading.Thread | None = None
    code = 0
    try:
        unlogged = _init(list(sys.argv if args is None else args))
        node = create()
        node.malloc_tuned = tuned
        if unlogged:
            node.notes(unlogged, key="log file")
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        spinning = threading.Thread(target=_spin, args=(executor, node, closing), name="executor", daemon=True)
        spinning.start()
        node.begin()
        realtime.calm_collector()
        while not (stopped or node.notes.finished):
            node.notes.write(QOS_PERIOD_S)
            node.notes.poll(QOS_ENDS)
        failure = getattr(node, "failure", None)
        if failure is not None:
            raise failure
    except TriptychError as error:
        _say(str(error))
        code = EXIT_USER
    except Exception as error:
        name = node.get_name() if node is not None else "node"
        _say(f"{name}: {type(error).__name__}: {error}")
        code = EXIT_DEFECT
    closing.set()
    _end(node, executor, spinning)
    return code


def _init(args: list[str]) -> str:
    """Initialise ROS, without a log file where none can be made. Returns why there is none, empty if there is one."""
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RCLError as error:
        if not rclpy.ok():
            raise
        # The context is there, only its log is not: sentences go to the console alone.
        return f"There is no log file: {error}; make room, or set ROS_LOG_DIR to another folder."
    return ""


def _say(text: str) -> None:
    """A line on stderr, if it takes one."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _spin(executor: SingleThreadedExecutor, node: Any, closing: threading.Event) -> None:
    """Serve services and parameters for as long as the node lives: what one of them raises is logged, not the end."""
    while True:
        try:
            executor.spin()
            return
        except ExternalShutdownException:
            return
        except Exception as error:
            if closing.is_set():
                return
            node.get_logger().error(f"in a callback: {type(error).__name__}: {error}")


def _end(node: Any, executor: SingleThreadedExecutor | None, spinning: threading.Thread | None) -> None:
    """Close in order; a part that fails to close must not keep the others."""
    for step in (
        lambda: node and node.close(),
        lambda: node and node.notes.write(0.0),
        lambda: executor and executor.shutdown(0.2),
        lambda: spinning and spinning.join(0.5),
        lambda: node and node.destroy_node(),
        rclpy.try_shutdown,
    ):
        try:
            step()
        except Exception as error:
            _say(f"while closing: {type(error).__name__}: {error}")


def _defect(args: threading.ExceptHookArgs) -> None:
    """A thread that died silently would leave a node that looks alive: end the process, so that it is restarted."""
    try:
        name = args.thread.name if args.thread else "thread"
        _say(f"{name}: {args.exc_type.__name__}: {args.exc_value}")
    finally:  # also where there is no memory for the sentence
        os._exit(EXIT_DEFECT)


def main(create: Callable[[], Any]) -> None:
    """Entry point of an executable: :func:`run`, then exit with its code."""
    code = run(create, sys.argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one while the interpreter ends would look like a crash
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)  # the interpreter would try again at its end, and make another code of it
    left = [t for t in threading.enumerate() if t.daemon and t.is_alive()]
    if left:
        os._exit(code)  # e.g. an engine that never returned: the interpreter must not wait for it or crash under it
    sys.exit(code)


class Every:
    """A thread that calls ``work`` with a fixed period, on absolute times, skipping periods it missed.

    Args:
        period_s: seconds.
        work: called in the thread.
        name: of the thread.
    """

    def __init__(self, period_s: float, work: Callable[[], None], name: str) -> None:
        self._period_ns, self._work = round(period_s * 1e9), work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first call comes at once."""
        self._thread.start()

    def _run(self) -> None:
        due_ns = time.monotonic_ns()
        while not self._stop.is_set():
            self._work()
            due_ns += self._period_ns
            now_ns = time.monotonic_ns()
            if due_ns <= now_ns:
                due_ns += (now_ns - due_ns) // self._period_ns * self._period_ns + self._period_ns
            self._stop.wait((due_ns - now_ns) / 1e9)

    def stop(self, timeout_s: float = 0.5) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class Notes(QosWatch):
    """What a node has to say: to its log, and sentences such as an incompatible QoS in its diagnostics too.

    Logging is left to :meth:`write`, which :func:`run` calls in the main thread: writing to a terminal or a pipe may
    block, and no thread with a deadline may wait for that. Give it to publishers and readers as their ``watch``.

    Attributes:
        finished: the node's work is done.
    """

    def __init__(self, node: Node, limit: int = 8) -> None:
        super().__init__(self)
        self._node, self._limit = node, limit
        self._said: dict[str, int] = {}
        self.finished = False
        self._waiting: SimpleQueue[tuple[str, str] | None] = SimpleQueue()

    def __call__(self, text: str, key: str = "") -> None:
        """Say ``text``; sentences with an equal ``key`` (default: the text up to its first number) are counted."""
        key = key or text.split("(")[0]
        self._said[key] = self._said.get(key, 0) + 1
        if self._said[key] == 1:
            self.log("error", text)
            if len(self._said) > self._limit:
                self._said.pop(next(iter(self._said)))

    def log(self, level: str, text: str) -> None:
        """Have ``text`` logged soon; ``level`` is ``error`` or ``info``."""
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put((level, text))

    def finish(self) -> None:
        """Say that the node's work is done. A signal handler may do so."""
        self.finished = True
        self._waiting.put(None)

    def write(self, timeout_s: float) -> None:
        """Write the log for ``timeout_s``, or until the node's work is done and all is written."""
        logger, end_s = self._node.get_logger(), time.monotonic() + timeout_s
        with contextlib.suppress(Empty):
            while True:
                left_s = 0.0 if self.finished else max(0.0, end_s - time.monotonic())
                note = self._waiting.get(timeout=left_s)
                if note is None:
                    continue
                # rclpy wants one severity per calling line.
                if note[0] == "error":
                    logger.error(note[1])
                else:
                    logger.info(note[1])

    def values(self) -> dict[str, str]:
        """Sentence -> how often."""
        return {text: str(count) for text, count in self._said.items()}


def diagnostic(level: int, name: str, message: str, values: dict[str, str]) -> DiagnosticStatus:
    """A diagnostic status; ``level`` 0 OK, 1 warning, 2 error, 3 stale."""
    return DiagnosticStatus(
        level=bytes([level]),
        name=name,
        message=message,
        hardware_id="triptych",
        values=[KeyValue(key=k, value=v) for k, v in values.items()],
    )


def diagnostics(statuses: Sequence[DiagnosticStatus]) -> DiagnosticArray:
    """Statuses with the time of now."""
    array = DiagnosticArray(status=list(statuses))
    array.header.stamp = to_time(time.time_ns())
    return array
