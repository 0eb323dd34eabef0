"""A drive of the built-in scenario with the answers its built-in engines once gave, and how to make it anew.

``golden/drive.json`` holds what came in: stamps of the pictures, vehicle speed, driver, and each tier's answers. Played
through the real tiers and the real supervisor it gives the decisions of ``golden/drive.golden``. The answers are
recorded, and not inferred again, because the last digits of a network differ from one processor to the other, and now
and then an answer with them; what is decided upon given answers does not. Pictures are not kept, so nobody looks at
them.

Make both anew, after a change of decisions that is meant, with ``PYTHONPATH=src python test/replay/golden_drive.py``,
or with ``--golden-only`` to keep the answers; ``git diff`` then shows what is decided otherwise.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triptych.contract import Detections, DriverState, Frame, Odometry, Payload, SceneAdvice, Tier, protect
from triptych.engines.load import load_engine
from triptych.engines.locate import locate
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.gates.golden import write_golden
from triptych.replay import record as rec
from triptych.replay.lockstep import run_lockstep
from triptych.replay.recording import Item, Recording, RecordingInfo, open_recording
from triptych.replay.writer import BagWriter
from triptych.resources import resource
from triptych.scenario import Scenario, ScenarioConfig
from triptych.supervisor.faults import load_faults
from triptych.supervisor.policy import load_policy
from triptych.virtual import modelled_ms

FOLDER = Path(__file__).parent / "golden"
ANSWERS, GOLDEN = FOLDER / "drive.json", FOLDER / "drive.golden"
T0_NS = 1_700_000_000_000_000_000
MS = 1_000_000
SECONDS, CAMERA_LOST_S = 10.0, 8.0
DRIVE = ScenarioConfig(seed=3, width_px=320, height_px=180, duration_s=SECONDS)


class RecordedDrive(Recording):
    """The recording without its pictures: a small grey one stands for each."""

    def __init__(self, path: Path = ANSWERS) -> None:
        self.path, self.warnings = path, []
        self.chosen = {"camera": "camera", "odometry": "odometry", "driver": "driver"}
        self.content: dict[str, Any] = json.loads(path.read_text())

    @property
    def info(self) -> RecordingInfo:
        counts = [len(self.content[name]) for name in ("camera", "odometry", "driver")]
        return RecordingInfo(
            self.path, "answers", "json", (), sum(counts), T0_NS, SECONDS, self.path.stat().st_size
        )  # fmt: skip

    def files(self) -> list[Path]:
        return [self.path]

    def _all(self, from_s: float) -> Iterator[Item]:
        items: list[Item] = []
        for number, at_ms in enumerate(self.content["camera"], 1):
            stamp_ns = T0_NS + at_ms * MS
            items.append(Item(stamp_ns, Frame(np.full((6, 8, 3), number % 256, np.uint8), stamp_ns, number)))
        for at_ms, speed_mps in self.content["odometry"]:
            items.append(Item(T0_NS + at_ms * MS, Odometry(T0_NS + at_ms * MS, speed_mps)))
        for number, at_ms in enumerate(self.content["driver"]):
            items.append(Item(T0_NS + at_ms * MS, protect(DriverState(T0_NS + at_ms * MS), number % 256)))
        yield from sorted(items, key=lambda item: item.t_ns)


class Recorded:
    """An engine that answers as it is written; about a picture nobody asked about, as about the one before."""

    device = DeviceReport("cpu", "cpu", "recorded")
    frames_wanted = 1

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.id, self.version, self.modelled_ms = content["id"], content["version"], content["modelled_ms"]
        self._answers: dict[int, tuple[Payload, float]] = {
            int(number): (rec.from_plain(Detections if "image_width" in payload else SceneAdvice, payload), uncertainty)
            for number, (payload, uncertainty) in content["answers"].items()
        }

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        number = max((n for n in self._answers if n <= frames[-1].number), default=min(self._answers))
        payload, uncertainty = self._answers[number]
        return EngineOutput(payload, uncertainty, 0.0, 0.0, 0.0)

    def golden(self) -> Frame:
        return Frame(np.zeros((6, 8, 3), np.uint8), 0, 1)

    def golden_ok(self, output: EngineOutput) -> str:
        return ""

    def close(self) -> None:
        pass


def play(recording: RecordedDrive | None = None, **options: Any) -> rec.RunRecord:
    """The recorded drive through tiers and supervisor, with the shipped fault table, policy and parameters."""
    drive = recording or RecordedDrive()
    engines: dict[Tier, Engine] = {tier: Recorded(drive.content["engines"][tier.key]) for tier in Tier}
    return run_lockstep(drive, engines, **_shipped(), nominal_ms=_nominal_ms(drive.content), **options)


def _shipped() -> dict[str, Any]:
    faults, policy = (resource("config", name) for name in ("faults.yaml", "policy.yaml"))
    return {"faults": load_faults(faults), "policy": load_policy(policy)}


def _nominal_ms(content: Mapping[str, Any]) -> dict[Tier, float]:
    return {tier: content["engines"][tier.key]["modelled_ms"] for tier in Tier}


# -- making it anew ----------------------------------------------------------------------------------------------------


class Taped:
    """Passes everything on to an engine and keeps its answers by the number of the frame."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.answers = engine, dict[int, list[Any]]()

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        output = self._engine.infer(frames, question, deadline_monotonic_ns)
        if frames[-1].stamp_ns:
            self.answers[frames[-1].number] = [rec.to_plain(output.payload), output.uncertainty]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def write_bag(folder: Path, config: ScenarioConfig = DRIVE, camera_lost_s: float = CAMERA_LOST_S) -> dict[str, Any]:
    """Drive the scenario, obeying nobody, into a bag; returns what came in but for the pictures."""
    scenario = Scenario(config)
    content: dict[str, Any] = {"camera": [], "odometry": [], "driver": []}
    with BagWriter(folder) as writer:
        for at_ms in range(0, round(config.duration_s * 1000), 10):
            stamp_ns = T0_NS + at_ms * MS
            if at_ms % 50 == 0 and at_ms < camera_lost_s * 1000:
                writer.write_image("camera/image_raw", Frame(scenario.render(), stamp_ns, 1), stamp_ns)
                content["camera"].append(at_ms)
            if at_ms % 20 == 0:
                speed_mps = round(scenario.speed_mps, 3)
                writer.write_record("odometry", Odometry(stamp_ns, speed_mps), stamp_ns)
                content["odometry"].append([at_ms, speed_mps])
            if at_ms % 100 == 0:
                writer.write_record("driver/state", protect(DriverState(stamp_ns), at_ms // 100 % 256), stamp_ns)
                content["driver"].append(at_ms)
            scenario.step(0.01)
    return content


def make() -> None:
    """Drive, let the built-in engines answer, keep what they say."""
    engines = {tier: Taped(load_engine(locate(f"triptych-{tier.key}"))) for tier in Tier}
    with tempfile.TemporaryDirectory() as folder:
        content = write_bag(Path(folder) / "drive")
        with open_recording(Path(folder) / "drive") as recording:
            run_lockstep(recording, engines, **_shipped())
    content["engines"] = {
        tier.key: {
            "id": engine.id, "version": engine.version, "modelled_ms": modelled_ms(tier, engine, {}),
            "answers": engine.answers,
        }
        for tier, engine in engines.items()
    }  # fmt: skip
    FOLDER.mkdir(exist_ok=True)
    rounded = json.loads(json.dumps(content), parse_float=lambda text: round(float(text), 4))
    ANSWERS.write_text(json.dumps(rounded, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    if "--golden-only" not in sys.argv:
        make()
    print(GOLDEN, len(write_golden(play(), GOLDEN).decisions), "decisions")
