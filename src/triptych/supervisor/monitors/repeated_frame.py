"""Repeated frame: "fresh" results about a frame that was answered before: a frozen camera or a stuck driver."""

from __future__ import annotations


class RepeatedFrame:
    """Metric ``repeated_n``: consecutive fresh results about a repeated frame; unknown before the first.

    A frame repeats when its stamp does not advance, or when its picture has the same fingerprint while the
    vehicle moves (a standing camera may well see the same picture twice).
    """

    __slots__ = ("_fingerprint", "_run", "_stamp_ns")

    def __init__(self) -> None:
        self._run: int | None = None
        self._stamp_ns = 0
        self._fingerprint: int | None = None

    def observe(self, stamp_ns: int, fingerprint: int | None, moving: bool) -> bool:
        """A fresh result's frame; true when it is a new one."""
        known = self._run is not None
        frozen = moving and fingerprint is not None and fingerprint == self._fingerprint
        repeated = known and (stamp_ns <= self._stamp_ns or frozen)
        self._stamp_ns, self._fingerprint = stamp_ns, fingerprint
        self._run = (self._run or 0) + 1 if repeated else 0
        return not repeated

    def restart(self) -> None:
        """Forget the last frame: the tier or the clock was restarted, stamps may begin anew."""
        self._stamp_ns, self._fingerprint = 0, None

    def repeated_n(self, now_ns: int) -> float | None:
        return self._run
