"""From a trained network to a released engine: ONNX, golden picture, manifest, figures, model card."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import torch
import yaml
from onnx import external_data_helper

from triptych.contract import ConfigError, Detections
from triptych.engines.protocol import Engine
from triptych.vision.boxes import area
from triptych_forge import data, detector_data, detector_eval
from triptych_forge.common import sha256_of, write_atomically
from triptych_forge.data import NAMES, Sample
from triptych_forge.detector_eval import SMALL_PX2, Found
from triptych_forge.detector_net import DetectorNet, Exported

SIZE = (448, 256)
VERSION = "0.3.0"
OPSET = 18
SCORE_FLOOR = 0.02
"""Score cut while measuring average precision."""
CUT_RANGE = (0.25, 0.65)
"""Released score cuts stay in here whatever the validation pictures suggest."""
ENOUGH = 50
"""Objects from which on a figure over them says something."""
BUDGET_MS, NOMINAL_MS = 20.0, 8.0
"""20 of the tier's 30 ms may be the engine; the rest is transport."""


def export(net: DetectorNet, path: Path) -> None:
    """Write the network as one ONNX file, and check it against torch on a random picture.

    Raises:
        ConfigError: ONNX Runtime and torch disagree, or weights ended up outside the file.
    """
    import onnxruntime as ort

    wrapped = Exported(net.to(memory_format=torch.contiguous_format)).eval()
    picture = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, SIZE[1], SIZE[0], 3), np.uint8))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = Path(temporary) / "detector.onnx"
        torch.onnx.export(
            wrapped, (picture,), str(raw), input_names=["image"], output_names=["detections"], opset_version=OPSET,
            dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
        model = onnx.load(str(raw))
    strip(model)
    onnx.checker.check_model(model)
    if any(external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
        raise ConfigError("the export left weights outside the file", where=path)
    write_atomically(path, model.SerializeToString(deterministic=True))
    with torch.no_grad():
        wanted = wrapped(picture).numpy()
    got = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"image": picture.numpy()})[0]
    difference = float(np.abs(got - wanted).max())
    if difference > 0.05:
        raise ConfigError(f"ONNX Runtime and torch differ by {difference:.3g}", where=path)


def strip(model: onnx.ModelProto) -> None:
    """Remove what the exporter noted about source files and machines: of no use, and different in every place."""
    model.doc_string = ""
    del model.metadata_props[:]
    model.graph.doc_string = ""
    del model.graph.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        value.doc_string = ""
        del value.metadata_props[:]


def manifest_of(
    folder: Path, cuts: Mapping[str, float], golden: Mapping[str, Any], recipe: Mapping[str, Any], note: str
) -> dict[str, Any]:
    """The manifest's content for the files in ``folder``."""
    common = round(min(cuts.values()), 2)
    return {
        "schema_version": 1,
        "name": "triptych-detector",
        "version": VERSION,
        "task": "detector",
        "decoder": "triptych",
        "files": {"model": {"path": "detector.onnx", "sha256": sha256_of(folder / "detector.onnx")}},
        "input": {
            "width": SIZE[0], "height": SIZE[1], "fit": "letterbox",
            "colour": "bgr", "layout": "nhwc", "dtype": "uint8",
        },
        "labels": list(NAMES),
        "classes": {name: name for name in NAMES},
        "thresholds": {"score": common, "per_label": {k: round(v, 2) for k, v in cuts.items()}, "nms_iou": 0.5},
        "latency": {"budget_ms": BUDGET_MS, "nominal_ms": NOMINAL_MS},
        "golden": dict(golden),
        "provenance": {
            "source": "trained from scratch, distilled, pruned and quantised by triptych_forge",
            "licence": "Apache-2.0",
            "data": note,
            "recipe": "triptych forge build detector, see MODEL_CARD.md",
            "seed": int(recipe["seed"]),
        },
    }  # fmt: skip


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``manifest.yaml`` into ``folder``."""
    text = "# Written by triptych forge; build again rather than edit.\n"
    text += yaml.safe_dump(dict(content), sort_keys=False, width=110)
    write_atomically(folder / "manifest.yaml", text.encode())


def best_cuts_of(found: Sequence[Found], samples: Sequence[Sample]) -> dict[str, float]:
    """Per class the score cut with the best F1 on ``samples``, within :data:`CUT_RANGE`; its middle if not labelled.

    Small objects (:data:`SMALL_PX2`) are neither demanded nor counted where at least :data:`ENOUGH` larger ones tell:
    they are many and hard, and would pull the cut down until every second claim is wrong.
    """
    cuts: dict[str, float] = {}
    for label, name in enumerate(NAMES):
        judged = [(f, s.boxes[s.labels == label]) for f, s in zip(found, samples, strict=True) if label in s.known]
        larger = sum(int((area(boxes) >= SMALL_PX2).sum()) for _, boxes in judged)
        limit = SMALL_PX2 if larger >= ENOUGH else 0.0
        objects = sum(int((area(boxes) >= limit).sum()) for _, boxes in judged)
        if not objects:
            cuts[name] = sum(CUT_RANGE) / 2
            continue
        scores, hits = [np.zeros(0, np.float32)], [np.zeros(0, bool)]
        for f, boxes in judged:
            mine = f.classes == label
            hit = detector_eval.match(f.boxes[mine], f.scores[mine], boxes)
            counted = ~((hit >= 0) & np.append(area(boxes) < limit, False)[hit])  # -1, no hit, picks the False
            scores.append(f.scores[mine][counted])
            hits.append(hit[counted] >= 0)
        score, hit = np.concatenate(scores), np.concatenate(hits)
        candidates = np.arange(CUT_RANGE[0], CUT_RANGE[1] + 1e-6, 0.01)
        f1 = [2 * hit[score >= c].sum() / max(int((score >= c).sum()) + objects, 1) for c in candidates]
        cuts[name] = float(candidates[int(np.argmax(f1))])
    return cuts


def golden_of(folder: Path, engine: Engine, candidates: Sequence[data.Image]) -> dict[str, Any]:
    """Write the first clear candidate as ``golden.png``; its expectation is half of what the engine finds in it."""
    for full in candidates:
        # A smaller picture still shows what must be found, at a third of the bytes in the repository.
        image = np.ascontiguousarray(cv2.resize(full, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA), np.uint8)
        payload = engine.infer([detector_data.frame_of(image)]).payload
        assert isinstance(payload, Detections)
        counts: dict[str, int] = {}
        for detection in payload.detections:
            counts[detection.label] = counts.get(detection.label, 0) + (detection.score >= 0.6)
        if counts.get("vehicle", 0) >= 1 and sum(counts.values()) >= 2:
            good, encoded = cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 9])
            assert good
            write_atomically(folder / "golden.png", encoded.tobytes())
            entry = {"path": "golden.png", "sha256": sha256_of(folder / "golden.png")}
            return {"file": entry, "minimum": {name: (n + 1) // 2 for name, n in counts.items() if n}}
    raise ConfigError("the network finds nothing on any candidate for a golden picture", remedy="train longer")


CARD = """# triptych-detector {version}

An anchor-free detector for tier 1: vehicle, two-wheeler, pedestrian, traffic light, sign.
{megabytes} MB, {width}x{height} pixels, ONNX opset {opset}; boxes and scores are decoded inside the graph, suppression
outside. Licence: Apache-2.0.

Made by `triptych forge build detector --data DATA`: a teacher of {teacher:,} parameters, a student
of {student:,} that learnt from the labels and from it, pruned ({pruned:,}), quantised. Taken in the end, as
the smallest that is not slower than its parent and loses at most a point of mAP50: **{chosen}**. Bytes of weights per
inference: the teacher's ÷ {weights_ratio}; with the layers' inputs ÷ {bytes_read_ratio}. Every decision is in
`decisions.jsonl`, both gates in `fidelity.json`, the recipe's numbers in `recipe.json`.

## Data

{pictures}

- `carla`: simulated frames with boxes (DanielHfnr/Carla-Object-Detection-Dataset, MIT), training split.
  Pedestrians are not labelled there, and the loss is silent about them.
- `scenario`: frames of this project's own driving scenario, labelled by its ground truth.
- `real`: stills of public roads (udacity CarND repositories and comma2k19, MIT), labelled by a YOLOX-nano teacher
  (Apache-2.0), vehicle, two-wheeler and pedestrian only; cut-outs of their cars are pasted into other pictures.
- The clip below and the still that is one of its frames were never trained on; other stills come from the
  same drive and camera.

## Figures

On the validation split of the simulated frames, vehicles at IoU 0.5, from 32x32 pixels on unless it says all sizes;
each engine at the score cut that is best for it there.

{rows}

Time of a whole inference from a simulated frame, one thread of a shared machine, in turns picture by picture:

{times}

Average precision at IoU 0.5 by class. Objects mostly hidden, tiny or lost in haze are not demanded in the scenario, but
finding one counts as a mistake here.

{ap}

The held-out real clip (a highway, 221 frames), vehicles. There is no ground truth for it: boxes of YOLOX-nano scored
0.5 or more are taken for true (`precision_lenient`: 0.25 or more).

{clip}

Score cuts, chosen on the validation pictures within {cut_range}: {cuts}.

## Limits

- Few real pictures, all from Californian highways by day: expect missed objects elsewhere, at night and in bad weather.
- The validation split shows the same simulated towns as the training split, at other moments.
- Pedestrians were learnt from drawn scenes only, traffic lights and signs from simulation only; do not rely on them in
  real pictures.
- Objects smaller than about 8 pixels at 448 pixels width are mostly missed.
- Views from above (traffic cameras) are out of its domain.
- Not for use on a public road.
"""


def _table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(str(row.get(c, "")) for c in columns) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def model_card(figures: Mapping[str, Any], pictures: Mapping[str, int]) -> str:
    """The model card as Markdown.

    Args:
        figures: rows and times (engine to column to value), ap50_*, clip, cuts, parameters, weights_ratio,
            bytes_read_ratio, megabytes, chosen.
        pictures: of each source of training pictures.
    """
    return CARD.format(
        version=VERSION,
        megabytes=figures["megabytes"],
        width=SIZE[0],
        height=SIZE[1],
        opset=OPSET,
        **figures["parameters"],
        chosen=figures["chosen"],
        weights_ratio=figures["weights_ratio"],
        bytes_read_ratio=figures["bytes_read_ratio"],
        pictures=_table({"pictures": pictures}),
        rows=_table(figures["rows"]),
        times=_table(figures["times"]),
        ap=_table({key.removeprefix("ap50_"): row for key, row in figures.items() if key.startswith("ap50_")}),
        clip=_table({"clip": figures["clip"]}),
        cut_range=" to ".join(map(str, CUT_RANGE)),
        cuts=", ".join(f"{name} {value}" for name, value in figures["cuts"].items()),
    )
