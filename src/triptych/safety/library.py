"""The safety core's library through ctypes."""

from __future__ import annotations

import ctypes
import os
import select
import threading
from pathlib import Path
from typing import Any

from triptych.contract import ConfigError, InputError
from triptych.resources import library
from triptych.safety.limits import SafetyLimits
from triptych.safety.words import CONSTRAINT_WORDS, MOTION_WORDS

LAYOUT = 1
NAME = "libtriptych_safety_core.so"
_CONSTRAINT, _MOTION = ctypes.c_uint32 * CONSTRAINT_WORDS, ctypes.c_uint32 * MOTION_WORDS


class _Limits(ctypes.Structure):
    _fields_ = [
        ("supervisor_timeout_ms", ctypes.c_uint32),
        ("vehicle_timeout_ms", ctypes.c_uint32),
        ("speed_max_mmps", ctypes.c_int32),
        ("degraded_speed_mmps", ctypes.c_int32),
        ("deceleration_max_mmps2", ctypes.c_int32),
        ("stop_deceleration_mmps2", ctypes.c_int32),
        ("slowing_mmps2", ctypes.c_int32),
        ("slack_mmps", ctypes.c_int32),
        ("tolerance_mmps", ctypes.c_int32),
        ("acceleration_max_mmps2", ctypes.c_int32),
        ("speed_noise_mmps", ctypes.c_int32),
        ("trend_max_mmps", ctypes.c_int32),
        ("trend_window_ms", ctypes.c_uint32),
        ("standstill_mmps", ctypes.c_int32),
        ("confirmations", ctypes.c_uint32),
    ]


class _Core(ctypes.Structure):
    _fields_ = [
        ("constraint", _CONSTRAINT),
        ("motion", _MOTION),
        ("constraint_ms", ctypes.c_uint32),
        ("motion_ms", ctypes.c_uint32),
        ("cycle_ms", ctypes.c_uint32),
        ("started", ctypes.c_bool),
        ("constraint_heard", ctypes.c_bool),
        ("motion_heard", ctypes.c_bool),
        ("released", ctypes.c_bool),
        ("speed_mmps", ctypes.c_int32),
        ("ceiling_mmps", ctypes.c_int32),
        ("jumps", ctypes.c_uint32),
        ("excesses", ctypes.c_uint32),
        ("contradictions", ctypes.c_uint32),
        ("window_ms", ctypes.c_uint32),
        ("window_mmps", ctypes.c_int32),
        ("integral_um_ps", ctypes.c_int32),
        ("causes", ctypes.c_uint32),
        ("resets", ctypes.c_uint32),
        ("counter", ctypes.c_uint32),
    ]


class _Command(ctypes.Structure):
    _fields_ = [("words", _CONSTRAINT)]


class _Block(ctypes.Structure):
    _fields_ = [
        ("layout", ctypes.c_uint32),
        ("constraint", _CONSTRAINT),
        ("motion", _MOTION),
        ("command", _CONSTRAINT),
    ]


class _Loop(ctypes.Structure):
    _fields_ = [
        ("core", _Core),
        ("limits", _Limits),
        ("block", ctypes.POINTER(_Block)),
        ("period_ms", ctypes.c_uint32),
        ("repeat_ms", ctypes.c_uint32),
        ("wake_fd", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("late_us", ctypes.c_uint32),
        ("late_max_us", ctypes.c_uint32),
        ("cycle_max_us", ctypes.c_uint32),
    ]


BLOCK_BYTES = ctypes.sizeof(_Block)
"""Size of the shared-memory block."""


class Library:
    """The loaded library.

    Args:
        path: of the shared library; the installed one if None.

    Raises:
        ConfigError: it is missing, or of another version than this module.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = library(NAME) if path is None else path
        try:
            self.c = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise ConfigError(
                f"cannot be loaded: {error}", where=self.path, remedy="install the package again"
            ) from None
        block = ctypes.c_uint32()
        self.c.tsc_sizes.restype = ctypes.c_uint32
        found = (self.c.tsc_sizes(ctypes.byref(block)), block.value)
        wanted = (ctypes.sizeof(_Loop), BLOCK_BYTES)
        if found != wanted:
            raise ConfigError(
                "is of another version", where=self.path, value=found, remedy=f"install it again: {wanted} is wanted"
            )
        self.c.tsc_step.restype = _Command
        self.c.tsc_step.argtypes = [
            ctypes.POINTER(_Core),
            ctypes.POINTER(_Limits),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
        ]
        self.c.tsc_limits_ok.restype = ctypes.c_bool
        self.c.tsc_limits_ok.argtypes = [ctypes.POINTER(_Limits)]
        self.c.tsc_run.restype = ctypes.c_int32
        self.c.tsc_run.argtypes = [ctypes.POINTER(_Loop)]

    def defaults(self) -> dict[str, int]:
        """The parameters that the C code has built in, as they stand there."""
        built_in = _Limits.in_dll(self.c, "TSC_DEFAULTS")
        return {name: int(getattr(built_in, name)) for name, *_ in _Limits._fields_}

    def limits(self, limits: SafetyLimits) -> _Limits:
        """Parameters in the units of the C code.

        Raises:
            ConfigError: they do not fit together.
        """
        out = _Limits(**in_thousandths(limits))
        if not self.c.tsc_limits_ok(ctypes.byref(out)):
            raise ConfigError(
                "do not fit together",
                where="parameters of the safety core",
                value=limits.model_dump(),
                remedy="slowing ≤ stop ≤ greatest deceleration, degraded ≤ greatest speed, windows up to 1 s",
            )
        return out


def in_thousandths(limits: SafetyLimits) -> dict[str, int]:
    """Names and values of the parameters as the C code has them."""
    out = {}
    for name, value in limits.model_dump().items():
        for ours, theirs in (("_mps2", "_mmps2"), ("_mps", "_mmps"), ("_s", "_ms")):
            if name.endswith(ours):
                out[name[: -len(ours)] + theirs] = round(value * 1000)
                break
        else:
            out[name] = value
    return out


class SafetyCore:
    """One safety core with its own memory and without a clock: same calls, same commands.

    Raises:
        ConfigError: as :class:`Library` and :meth:`Library.limits`.
    """

    def __init__(self, limits: SafetyLimits | None = None, library: Library | None = None) -> None:
        self._library = library or Library()
        self._limits = self._library.limits(limits or SafetyLimits())
        self._core = _Core()

    def step(self, constraint: bytes, motion: bytes, now_ms: int) -> bytes:
        """One cycle on two records; returns the command's record.

        Raises:
            InputError: a record of another length.
        """
        for name, record, words in (("constraint", constraint, CONSTRAINT_WORDS), ("motion", motion, MOTION_WORDS)):
            if len(record) != 4 * words:
                raise InputError(f"must be {4 * words} bytes", where="safety core", field=name, value=len(record))
        command = self._library.c.tsc_step(
            ctypes.byref(self._core),
            ctypes.byref(self._limits),
            _CONSTRAINT.from_buffer_copy(constraint),
            _MOTION.from_buffer_copy(motion),
            now_ms & 0xFFFFFFFF,
        )
        return bytes(command)


class Loop:
    """The core's own loop, in a thread that never runs Python.

    Args:
        memory: writable buffer of :data:`BLOCK_BYTES`, usually shared memory.
        limits: parameters.
        period_s: of the cycles.
        repeat_s: a command is handed on at least this often, and at once when it changes.

    Raises:
        ConfigError: as :class:`SafetyCore`.
    """

    def __init__(
        self,
        memory: Any,
        limits: SafetyLimits,
        period_s: float = 0.01,
        repeat_s: float = 0.05,
        library: Library | None = None,
    ) -> None:
        self._library = library or Library()
        self.path = self._library.path
        self._block = _Block.from_buffer(memory)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = _Loop(
            limits=self._library.limits(limits),
            block=ctypes.pointer(self._block),
            period_ms=round(period_s * 1000),
            repeat_ms=round(repeat_s * 1000),
            wake_fd=self.wake_fd,
        )
        self._block.layout = LAYOUT
        self._thread = threading.Thread(target=self._run, name="safety-core", daemon=True)
        self.ended = False

    def _run(self) -> None:
        self._library.c.tsc_run(ctypes.byref(self._loop))
        self.ended = True

    def start(self) -> None:
        """Begin to cycle."""
        self._thread.start()

    def write_constraint(self, record: bytes) -> None:
        """The supervisor's word."""
        ctypes.memmove(self._block.constraint, record, 4 * CONSTRAINT_WORDS)

    def write_motion(self, record: bytes) -> None:
        """The vehicle's."""
        ctypes.memmove(self._block.motion, record, 4 * MOTION_WORDS)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there is a command to hand on; False after ``timeout_s``."""
        if not select.select([self.wake_fd], [], [], timeout_s)[0]:
            return False
        os.eventfd_read(self.wake_fd)
        return True

    def command(self) -> bytes:
        """The present command's record; half of one now and then, which its CRC tells."""
        return bytes(self._block.command)

    def timing_us(self) -> dict[str, int]:
        """How late the last cycle began, how late the worst, how long the longest took, in microseconds."""
        return {
            "late": self._loop.late_us,
            "late_max": self._loop.late_max_us,
            "cycle_max": self._loop.cycle_max_us,
        }

    def stop(self) -> None:
        """End the loop."""
        self._loop.stop = 1
        if self._thread.is_alive():
            self._thread.join(0.5)
        os.close(self.wake_fd)
