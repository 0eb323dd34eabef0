"""What a tier needs of an engine. Decoding, pre-processing and device handling live behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from triptych.contract import Frame, Payload


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Where an engine was asked to run and where it really runs.

    ``nodes_fallback`` counts graph nodes that the requested device did not take.
    """

    requested: str
    actual: str
    runtime: str
    nodes_total: int = 0
    nodes_fallback: int = 0

    @property
    def fallback_share(self) -> float:
        """Share of graph nodes that fell back, 0..1."""
        return self.nodes_fallback / self.nodes_total if self.nodes_total else 0.0


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One inference: the payload, the engine's own uncertainty (0..1) and the time it took in milliseconds.

    ``adapter`` is the name of the adapter it was given with; empty for the base weights.
    """

    payload: Payload
    uncertainty: float
    pre_ms: float
    infer_ms: float
    post_ms: float
    adapter: str = ""


class Engine(Protocol):
    """A loaded, checked model on a device.

    ``infer`` blocks; it may be called from one thread at a time. It raises
    :class:`triptych.contract.EngineError` when the output cannot be trusted (NaN, wrong shape).
    """

    @property
    def id(self) -> str:
        """Name from the manifest, at most 64 characters."""

    @property
    def version(self) -> str:
        """Version from the manifest, at most 32 characters; ``+<name>`` behind it while an adapter is in use."""

    @property
    def device(self) -> DeviceReport:
        """Requested and actual device."""

    @property
    def frames_wanted(self) -> int:
        """How many recent frames ``infer`` wants (1 for all but multi-frame models)."""

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        """Run on ``frames`` (oldest first, at most ``frames_wanted``, the last one is what the result is about).

        A decoder may stop early at the deadline with a valid, shorter answer.
        """

    def golden(self) -> Frame:
        """The frame for the start-up self-test; ``infer`` on it must yield ``golden_ok(output)``."""

    def golden_ok(self, output: EngineOutput) -> str:
        """Empty when the golden frame's output is as the manifest expects, else what is wrong."""

    def close(self) -> None:
        """Free the device."""
