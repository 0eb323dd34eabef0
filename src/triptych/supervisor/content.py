"""All monitors of what a tier says, as opposed to whether and when it speaks."""

from __future__ import annotations

from collections.abc import Callable

from triptych.contract.result import Detections, SceneAdvice, TierResult
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.monitors.consistency import Consistency
from triptych.supervisor.monitors.cross_modal import Disagreement, Seen
from triptych.supervisor.monitors.entropy import Entropy
from triptych.supervisor.monitors.perplexity import Perplexity
from triptych.supervisor.monitors.plausibility import Plausibility
from triptych.supervisor.monitors.repetition import Repetition
from triptych.supervisor.monitors.unchanging import Unchanging

Metric = Callable[[int], float | None]
"""A metric as a function of monotonic time in nanoseconds."""


class Answers:
    """The answers of a VLM tier; ``seen`` is what the detector sees."""

    def __init__(self, config: SupervisorConfig, seen: Seen) -> None:
        self._entropy, self._perplexity = Entropy(config), Perplexity()
        self._repetition, self._consistency = Repetition(config), Consistency(config)
        self._unchanging, self._disagreement = Unchanging(), Disagreement(config, seen)

    def observe(self, result: TierResult, new_frame: bool, moving: bool) -> None:
        """A fresh, valid result, whether it is about a new frame, and whether the vehicle certainly moves."""
        answer = result.payload
        assert isinstance(answer, SceneAdvice)
        self._entropy.observe(answer)
        self._perplexity.observe(answer)
        self._repetition.observe(answer)
        if new_frame:
            self._consistency.observe(answer)
            self._unchanging.observe(answer, moving)
            self._disagreement.observe(answer, result.source_stamp_ns)

    def restart(self) -> None:
        """The tier was restarted."""
        self._consistency.restart()
        self._unchanging.restart()

    def clock_stepped(self) -> None:
        """Stamps begin anew: nothing here remembers one."""

    def metrics(self) -> dict[str, Metric]:
        """By name."""
        return {
            "entropy_n": self._entropy.entropy_n,
            "perplexity": self._perplexity.perplexity,
            "inconsistency": self._consistency.inconsistency,
            "repetition": self._repetition.repetition,
            "unchanging_n": self._unchanging.unchanging_n,
            "disagreement_n": self._disagreement.disagreement_n,
        }


class Sightings:
    """The detections of tier 1; ``seen`` remembers them for comparison."""

    def __init__(self, config: SupervisorConfig, seen: Seen) -> None:
        self._plausibility, self._unchanging, self._seen = Plausibility(config), Unchanging(), seen

    def observe(self, result: TierResult, new_frame: bool, moving: bool) -> None:
        """As :meth:`Answers.observe`; only new frames tell anything."""
        if new_frame:
            assert isinstance(result.payload, Detections)
            self._plausibility.observe(result.payload, result.source_stamp_ns)
            self._unchanging.observe(result.payload, moving)
            self._seen.observe(result.payload, result.source_stamp_ns)

    def restart(self) -> None:
        """The tier was restarted."""
        self._plausibility.restart()
        self._unchanging.restart()

    def clock_stepped(self) -> None:
        """Stamps begin anew."""
        self._plausibility.restart()
        self._seen.restart()

    def metrics(self) -> dict[str, Metric]:
        """By name."""
        return {
            "implausible_n": self._plausibility.implausible_n,
            "unsteady_n": self._plausibility.unsteady_n,
            "unchanging_n": self._unchanging.unchanging_n,
        }
