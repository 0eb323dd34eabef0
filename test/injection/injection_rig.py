"""Small drives with engines that answer at once: what is under test is the loop around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triptych.contract import Advice, Detection, Detections, Frame, SceneAdvice, Tier
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.injection.campaign import Campaign
from triptych.injection.trial import Trial, run_trial
from triptych.resources import resource
from triptych.supervisor.faults import load_faults


class Prompt:
    """An engine that says of every picture how bright it is."""

    frames_wanted = 1
    version = "1"
    device = DeviceReport("cpu", "cpu", "test")

    def __init__(self, tier: Tier) -> None:
        self.tier, self.id = tier, f"prompt-{tier.key}"

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        mean = float(frames[-1].image.mean()) / 255
        if self.tier is Tier.DETECTOR:
            box = Detection("vehicle", 0, 0.9, 40.0, 50.0, 60.0 + mean, 65.0)
            return EngineOutput(Detections(frames[-1].width, frames[-1].height, (box,)), 0.1, 0.0, 0.0, 0.0)
        answer = SceneAdvice(advice=Advice.PROCEED, text=f"{mean:.9f}", token_probabilities=(0.9, 0.95 - mean / 100))
        return EngineOutput(answer, 0.1, 0.0, 0.0, 0.0)

    def golden(self) -> Frame:
        return Frame(np.zeros((8, 8, 3), np.uint8), 0, 1)

    def golden_ok(self, output: EngineOutput) -> str:
        return ""

    def close(self) -> None:
        pass


ENGINES: dict[Tier, Engine] = {tier: Prompt(tier) for tier in Tier}
TABLE = load_faults(resource("config", "faults.yaml"))
DRIVE = {"width_px": 160, "height_px": 90, "warm_s": 4.5, "after_s": 3.0}


def campaign(*faults: dict[str, object], **changes: object) -> Campaign:
    """A campaign of these faults over small drives."""
    entries = [{"id": f"fault-{n}", **fault} for n, fault in enumerate(faults)]
    return Campaign.model_validate(
        {"schema_version": 1, "name": "test", "seeds": 1, "drive": DRIVE, "faults": entries, **changes}
    )


def tried(kind: str, expect: dict[str, object] | None = None, seed: int = 3, **parameters: object) -> Trial:
    """One trial of one fault."""
    plan = campaign({"kind": kind, "with": parameters, "expect": expect or {}})
    return run_trial(plan, plan.faults[0], seed, ENGINES, TABLE)
