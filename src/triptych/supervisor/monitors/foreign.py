"""Foreign: results of an engine that is not the one the tier says it runs.

A second node on the same topic, or an engine exchanged under a running tier: each message is sound, and none is of the
model that passed the self-test.
"""

from __future__ import annotations

from triptych.contract.result import TierResult, TierStatus


class Foreign:
    """Metric ``foreign_n``: consecutive valid results of another engine, or of another version, than heartbeats name.

    Behind a version, ``+`` and an adapter are the same engine (:class:`triptych.tiers.core.TierCore`). Unknown before
    the first heartbeat that names an engine; one that names none changes nothing.
    """

    __slots__ = ("_id", "_run", "_version")

    def __init__(self) -> None:
        self._id = self._version = ""
        self._run: int | None = None

    def observe_status(self, status: TierStatus) -> None:
        """A valid heartbeat."""
        if status.engine_id:
            self._id, self._version = status.engine_id, status.engine_version

    def observe_result(self, result: TierResult) -> None:
        """A valid result."""
        if not self._id:
            return
        version, own = result.engine_version, self._version
        same = result.engine_id == self._id and (version == own or version.startswith(f"{own}+"))
        self._run = 0 if same else (self._run or 0) + 1

    def foreign_n(self, now_ns: int) -> float | None:
        return self._run
