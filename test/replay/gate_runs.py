"""Run records made by hand, so that every metric has a value known beforehand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from triptych.contract import (
    CAUTIOUS_DETECTIONS,
    DegradationState,
    Detections,
    LatencySplit,
    MotionConstraint,
    Odometry,
    Origin,
    Tier,
    TierResult,
    VerdictLevel,
    protect,
)
from triptych.gates.limits import Comparison, LimitsFile, Outcome, compare, load_limits
from triptych.gates.metrics import METRICS, Measured
from triptych.gates.run import Demand, Occasion, Run
from triptych.replay import record as rec

S = DegradationState
START_NS = 1_700_000_000_000_000_000
STATE_OF = {"init": S.INITIALISING, "drive": S.NOMINAL, "stop": S.L1_MINIMAL_RISK_MANOEUVRE, "manual": S.MANUAL}
LIMIT_OF = {"init": 0.0, "drive": 20.0, "stop": 0.0, "manual": 36.1}


def ns(t_s: float) -> int:
    return START_NS + round(t_s * 1e9)


class Sketch:
    """A run of ``seconds``: commands every 50 ms that follow ``phases``, (from when, what) with what a key of STATE_OF.

    A state is published at each change.
    """

    def __init__(self, seconds: float, phases: Sequence[tuple[float, str]], mode: str = "run") -> None:
        self.seconds = seconds
        self.record = rec.RunRecord(meta={"mode": mode, "started_ns": START_NS, "ended_ns": ns(seconds)})
        ends = [*(t for t, _ in phases[1:]), seconds + 1e-6]
        count = 0
        for (from_s, what), end_s in zip(phases, ends):
            self.state(from_s, STATE_OF[what])
            for index in range(math.ceil((end_s - from_s) / 0.05 - 1e-6)):
                self.command(from_s + index * 0.05, what, count)
                count += 1

    def command(self, t_s: float, what: str, count: int, **change: Any) -> None:
        fields: dict[str, Any] = {
            "stamp_ns": ns(t_s),
            "speed_limit_mps": LIMIT_OF[what],
            "deceleration_mps2": 2.0,
            "hazard_lights": what == "stop",
            "pull_over": False,
            "remote_notification": what == "stop",
            "state": STATE_OF[what],
            "reason": what,
        }
        constraint = protect(MotionConstraint(**{**fields, **change}), count % 256)
        self.record.add(rec.ConstraintRecord(ns(t_s), constraint))

    def state(self, t_s: float, state: DegradationState, asking: bool = False, reason: str = "said so") -> Sketch:
        states = self.record.states
        before = states[-1].state if states else S.INITIALISING
        self.record.add(rec.StateRecord(ns(t_s), state, before, reason, (), asking))
        states.sort(key=lambda s: s.t_ns)
        return self

    def fault(self, t_s: float, name: str, active: bool = True) -> Sketch:
        level = VerdictLevel.FAULT if active else VerdictLevel.OK
        self.record.add(rec.VerdictRecord(ns(t_s), name, "detector", level, active, 1.0, 0.5, ""))
        return self

    def speeds(self, *rows: tuple[float, float]) -> Sketch:
        for t_s, speed_mps in rows:
            self.record.add(rec.OdometryRecord(ns(t_s), Odometry(ns(t_s), speed_mps)))
        return self

    def result(
        self, t_s: float, age_s: float, count: int, origin: Origin = Origin.FRESH, tier: Tier = Tier.DETECTOR,
        reason: str = "", latency_s: float | None = None,
    ) -> Sketch:  # fmt: skip
        payload = CAUTIOUS_DETECTIONS if origin is Origin.DEFAULT else Detections(32, 24)
        stamp_ns = ns(t_s - age_s)
        published_ns = ns(t_s) if latency_s is None else stamp_ns + round(latency_s * 1e9)
        result = TierResult(
            tier, origin, reason, stamp_ns, "camera", count, published_ns, age_s * 1e3, LatencySplit(),
            "hand-made", "1", "cpu", 0.1, payload,
        )  # fmt: skip
        self.record.add(rec.Received(ns(t_s), protect(result, count % 256)))
        return self

    def measure(self, metric: str, *occasions: Occasion) -> Measured:
        return METRICS[metric].measure(Run(self.record, occasions))

    def value(self, metric: str, *occasions: Occasion) -> float | None:
        """Rounded to a microsecond, the way people compare."""
        value = self.measure(metric, *occasions).value
        return None if value is None else round(value, 6)


def stop(from_s: float, to_s: float = math.inf, name: str = "obstacle") -> Occasion:
    return Occasion(name, from_s, to_s)


def takeover(from_s: float, to_s: float = math.inf) -> Occasion:
    return Occasion("fog", from_s, to_s, Demand.TAKEOVER)


def limits_file(folder: Path, *limits: dict[str, Any], **more: Any) -> Path:
    """A limits file; what a row leaves out is filled in."""
    rows = [{"name": f"limit {n}", "why": "because", **row} for n, row in enumerate(limits)]
    path = folder / "limits.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "limits": rows, **more}))
    return path


def judged(folder: Path, sketch: Sketch, *limits: dict[str, Any], **more: Any) -> Comparison:
    path = limits_file(folder, *limits, **more)
    return compare(load_limits(path), sketch.record, path)


def outcomes(compared: Comparison) -> list[Outcome]:
    return [row.outcome for row in compared.rows]


__all__ = ["LimitsFile", "Outcome", "Sketch", "judged", "limits_file", "ns", "outcomes", "stop", "takeover"]
