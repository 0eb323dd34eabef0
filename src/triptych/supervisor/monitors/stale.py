"""Stale: something that came regularly comes no more."""

from __future__ import annotations


class Silence:
    """Seconds since the last valid message (``gap_s``, ``age_s``) or since the picture of the newest content was taken
    (``content_s``: a tier that keeps repeating itself is not silent); unknown before the first."""

    __slots__ = ("_last_ns",)

    def __init__(self) -> None:
        self._last_ns: int | None = None

    def observe(self, received_ns: int) -> None:
        """A valid message; one received before the last known is no news."""
        if self._last_ns is None or received_ns > self._last_ns:
            self._last_ns = received_ns

    def gap_s(self, now_ns: int) -> float | None:
        if self._last_ns is None:
            return None
        return (now_ns - self._last_ns) / 1e9
