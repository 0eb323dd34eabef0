"""What a detector is worth, through the very engine the vehicle runs, on pictures that no training saw."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from triptych.engines.load import load_engine
from triptych.engines.protocol import Engine
from triptych_forge import data, detector_data
from triptych_forge.data import NAMES, VEHICLE, Sample
from triptych_forge.detector_eval import SMALL_PX2, Found, detect, mean_average_precision, vehicles_at
from triptych_forge.detector_release import SCORE_FLOOR, best_cuts_of, manifest_of, write_manifest
from triptych_forge.report import Cell

COLUMNS = [
    "engine", "bytes", "mAP50 simulated", "vehicle AP50", "vehicle precision", "vehicle recall",
    "precision, all sizes", "recall, all sizes", "mAP50 scenario",
]  # fmt: skip


@dataclass(frozen=True)
class Pictures:
    """Validation pictures: simulated frames with boxes, and frames of unseen drives of the scenario."""

    carla: Sequence[Sample]
    scenario: Sequence[Sample]


def pictures_of(folder: Path) -> Pictures:
    """Load and draw them.

    Raises:
        ConfigError: the simulated frames are not under ``folder``.
    """
    carla = data.carla(folder / "images" / "carla_boxes", "val")
    return Pictures(carla, detector_data.scenario_samples(detector_data.VALIDATION_SEEDS))


@dataclass(frozen=True)
class Judged:
    """Figures of one engine.

    Attributes:
        bytes: of the graph.
        found: all detections from :data:`SCORE_FLOOR` on, on the simulated frames and on the scenario's.
        pictures: what they were found in.
    """

    bytes: int
    found: tuple[list[Found], list[Found]]
    pictures: Pictures

    @cached_property
    def ap(self) -> dict[str, float]:
        """AP50 by class on the simulated frames, of the classes labelled there, and ``mean``."""
        return mean_average_precision(self.found[0], self.pictures.carla)

    @cached_property
    def ap_scenario(self) -> dict[str, float]:
        """The same on the scenario's."""
        return mean_average_precision(self.found[1], self.pictures.scenario)

    @cached_property
    def cuts(self) -> dict[str, float]:
        """Score from which on each class is reported, see :func:`best_cuts_of`."""
        return best_cuts_of([*self.found[0], *self.found[1]], [*self.pictures.carla, *self.pictures.scenario])

    def at_cut(self, small_px2: float = SMALL_PX2) -> tuple[float, float]:
        """Precision and recall of vehicles on the simulated frames; what is smaller does not count."""
        truth = [s.boxes[s.labels == VEHICLE] for s in self.pictures.carla]
        return vehicles_at(self.found[0], truth, self.cuts[NAMES[VEHICLE]], small_px2)

    def row(self, name: str) -> list[Cell]:
        """Under :data:`COLUMNS`."""
        return [
            name, self.bytes, self.ap["mean"], self.ap[NAMES[VEHICLE]], *self.at_cut(), *self.at_cut(0.0),
            self.ap_scenario["mean"],
        ]  # fmt: skip


@contextmanager
def opened(graph: Path, cuts: Mapping[str, float] | None = None) -> Iterator[Engine]:
    """An engine of a bare detector graph, by default with all that scores :data:`SCORE_FLOOR` or more."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        shutil.copy(graph, place / "detector.onnx")
        golden: dict[str, Any] = {"pattern": "stop-sign", "minimum": {"sign": 1}}
        write_manifest(place, manifest_of(place, cuts or dict.fromkeys(NAMES, SCORE_FLOOR), golden, {"seed": 0}, ""))
        engine = load_engine(place)
        try:
            yield engine
        finally:
            engine.close()


def judge_engine(engine: Engine, size_bytes: int, pictures: Pictures) -> Judged:
    """Run an engine over all pictures; it should report all that scores :data:`SCORE_FLOOR` or more."""
    found, others = ([detect(engine, s.image) for s in some] for some in (pictures.carla, pictures.scenario))
    return Judged(size_bytes, (found, others), pictures)


def times_ms(engines: Mapping[str, Engine], samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Median and p99 of whole inferences in ms, one thread, and the median ratio to the first engine's.

    The engines take turns picture by picture, so that whatever else the machine does hits all alike.
    """
    spent: dict[str, list[float]] = {name: [] for name in engines}
    for sample in [*samples[:5], *samples]:
        for name, engine in engines.items():
            started = time.perf_counter()
            detect(engine, sample.image)
            spent[name].append((time.perf_counter() - started) * 1e3)
    taken = {name: np.array(some[5:]) for name, some in spent.items()}
    first = next(iter(taken.values()))
    return {
        name: {
            "median ms": round(float(np.median(some)), 2),
            "p99 ms": round(float(np.percentile(some, 99)), 2),
            "times the first's": round(float(np.median(some / first)), 2),
        }
        for name, some in taken.items()
    }


def judge(graph: Path, pictures: Pictures) -> Judged:
    """Run a detector graph over all pictures."""
    with opened(graph) as engine:
        return judge_engine(engine, graph.stat().st_size, pictures)


def graph_bytes_read(graph: Path) -> tuple[int, int]:
    """Bytes that one inference reads in convolutions: their weights, and these with their inputs, each once.

    Integers count one byte.
    """
    model = onnx.shape_inference.infer_shapes(onnx.load(str(graph)))
    integer = {o for n in model.graph.node if n.op_type == "DequantizeLinear" for o in n.output}
    sources = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    sizes = {i.name: int(np.prod(i.dims)) for i in model.graph.initializer}
    for value in (*model.graph.value_info, *model.graph.input):
        sizes.setdefault(value.name, int(np.prod([d.dim_value for d in value.type.tensor_type.shape.dim])))
    inputs = weights = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            of_input, of_weight = (
                (sizes.get(name) or sizes[sources[name]]) * (1 if name in integer else 4) for name in node.input[:2]
            )
            inputs, weights = inputs + of_input, weights + of_weight
    return weights, weights + inputs
