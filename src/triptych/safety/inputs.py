"""What reaches the safety core, and as which records: messages in, records for its block out. No clock, no ROS."""

from __future__ import annotations

from triptych.contract import DriverState, InputError, MotionConstraint, Odometry, SequenceChecker, crc_ok
from triptych.safety.words import constraint_record, motion_record


class SafetyInputs:
    """Checks the messages and keeps the counters of the records.

    Args:
        driver_fresh_s: a driver of whom nothing was heard for longer does not drive.

    Attributes:
        resets: how many an operator asked for; goes out with the next constraint.
    """

    def __init__(self, driver_fresh_s: float = 0.5) -> None:
        self.resets = 0
        self._fresh_ns = round(driver_fresh_s * 1e9)
        self._sequences = SequenceChecker()
        self._constraints = self._motions = 0
        self._driver = False
        self._driver_ns: int | None = None

    def constraint(self, constraint: MotionConstraint) -> bytes:
        """The record of a constraint of the supervisor.

        Raises:
            InputError: damaged, repeated, or with a number that is none; it is as good as not received.
        """
        if not crc_ok(constraint):
            raise InputError("a constraint whose CRC is wrong was not handed on")
        record = constraint_record(self._constraints + 1, constraint, self.resets)
        if self._sequences.update(constraint.sequence_counter) < 0:
            raise InputError("a repeated constraint was not handed on")
        self._constraints += 1
        return record

    def motion(self, odometry: Odometry, now_ns: int) -> bytes:
        """The record of the vehicle's motion at a monotonic time.

        Raises:
            InputError: the speed is no number.
        """
        known = self._driver_ns is not None and now_ns - self._driver_ns < self._fresh_ns
        record = motion_record(self._motions + 1, odometry.speed_mps, 0.0, known and self._driver)
        self._motions += 1
        return record

    def driver(self, driver: DriverState, now_ns: int) -> None:
        """Who overrides or has not handed over drives; a damaged message says nothing."""
        if crc_ok(driver):
            self._driver_ns = now_ns
            self._driver = driver.override_active or not driver.automation_engaged
