"""The detector engine on ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.contract import Detection, DetectionClass, Detections, EngineError, Frame
from triptych.engines.golden import golden_frame
from triptych.engines.manifest import Manifest, resolve_files
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.engines.session import OnnxSession, check_finite, check_shapes
from triptych.vision.boxes import suppress
from triptych.vision.decoders import DECODERS, Candidates, Setting
from triptych.vision.preprocess import Placement, Preprocessor


class DetectorEngine:
    """A checked detector.

    Args:
        manifest: task ``detector``.
        manifest_path: the file it was read from; engine files are looked for beside it.
        device: requested device.
        threads: threads per operator.
        engine_dir: look for the engine files here instead.

    Raises:
        EngineError: files missing or changed, unknown decoder or device, shapes or labels that do not fit.
    """

    frames_wanted = 1

    def __init__(
        self,
        manifest: Manifest,
        manifest_path: Path,
        device: str = "cpu",
        threads: int = 1,
        engine_dir: Path | None = None,
    ) -> None:
        if manifest.decoder not in DECODERS:
            raise EngineError(
                f"unknown decoder, known are {', '.join(sorted(DECODERS))}",
                where=manifest_path,
                field="decoder",
                value=manifest.decoder,
                remedy="correct the manifest",
            )
        self.manifest = manifest
        self._decoder = DECODERS[manifest.decoder]
        self._path = resolve_files(manifest, manifest_path, engine_dir)["model"]
        self.session = OnnxSession(self._path, device, threads)
        self.session.refuse_fallback_above(manifest.max_fallback_share)
        geometry = manifest.input
        self._wanted_shapes = self._decoder.shapes(geometry.width, geometry.height, len(manifest.labels))
        self._input_name = self._check_signature()
        self._golden = golden_frame(manifest, manifest_path, engine_dir)
        self._preprocess = Preprocessor(geometry)
        cuts = manifest.thresholds
        self._cuts = np.array([cuts.per_label.get(name, cuts.score) for name in manifest.labels], np.float32)
        self._setting = Setting(geometry.width, geometry.height, len(manifest.labels), float(self._cuts.min()))
        self._class_ids = np.array(manifest.class_ids(), np.int64)

    def _check_signature(self) -> str:
        """Name of the picture input, after checking all shapes and types the file declares."""
        geometry = self.manifest.input
        inputs = list(self.session.inputs.items())
        check_shapes([shape for _, (shape, _) in inputs], [geometry.shape], self._path, "the manifest's input")
        name, (_, dtype) = inputs[0]
        if dtype != np.dtype(geometry.dtype).type:
            raise EngineError(
                f"the file's input type is not {geometry.dtype}",
                where=self._path,
                field="input.dtype",
                value=getattr(dtype, "__name__", "unknown"),
                remedy="correct the manifest",
            )
        why = f"decoder {self.manifest.decoder} with {len(self.manifest.labels)} labels"
        check_shapes(list(self.session.outputs.values()), self._wanted_shapes, self._path, why)
        return name

    @property
    def id(self) -> str:
        """Name from the manifest."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Version from the manifest."""
        return self.manifest.version

    @property
    def device(self) -> DeviceReport:
        """Requested and actual device."""
        return self.session.device

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        """Detect on the last frame. ``question`` and the deadline mean nothing to a detector.

        Raises:
            EngineError: no frame, NaN or infinity in the output, or another output shape than agreed.
        """
        if not frames:
            raise EngineError("no frame given", where=self.id)
        start = time.perf_counter()
        tensor, placement = self._preprocess(frames[-1].image)
        prepared = time.perf_counter()
        outputs = self.session.run({self._input_name: tensor})
        inferred = time.perf_counter()
        check_shapes([o.shape for o in outputs], self._wanted_shapes, self.id, "the decoder")
        check_finite(outputs, self.id)
        payload, uncertainty = self._detections(self._decoder.run(outputs, self._setting), placement)
        done = time.perf_counter()
        return EngineOutput(
            payload, uncertainty, (prepared - start) * 1e3, (inferred - prepared) * 1e3, (done - inferred) * 1e3
        )

    def _detections(self, candidates: Candidates, placement: Placement) -> tuple[Detections, float]:
        boxes, scores, labels = candidates
        classes = self._class_ids[labels]
        good = (classes >= 0) & (scores >= self._cuts[labels])
        boxes, scores, labels, classes = boxes[good], scores[good], labels[good], classes[good]
        cuts = self.manifest.thresholds
        # Suppression works on our classes: a foreign engine that sees a car as 'car' and 'truck' saw one vehicle.
        kept = suppress(boxes, scores, classes, cuts.nms_iou, cuts.max_detections)
        boxes, scores = placement.to_source(boxes[kept]), np.clip(scores[kept], 0, 1)
        names = self.manifest.labels
        found = tuple(
            Detection(names[label], int(kind), float(score), *(float(side) for side in box))
            for box, score, label, kind in zip(boxes, scores, labels[kept], classes[kept], strict=True)
            if box[2] > box[0] and box[3] > box[1]
        )
        return Detections(placement.source_width, placement.source_height, found), uncertainty_of(scores)

    def golden(self) -> Frame:
        """The manifest's golden frame."""
        return self._golden

    def golden_ok(self, output: EngineOutput) -> str:
        """Empty, or which class was found less often than the manifest's minimum."""
        payload = output.payload
        if not isinstance(payload, Detections):
            return f"{self.id} gave {type(payload).__name__} instead of detections"
        counts: dict[str, int] = {}
        for detection in payload.detections:
            name = DetectionClass(detection.class_id).name.lower()
            counts[name] = counts.get(name, 0) + 1
        for name, least in self.manifest.golden.minimum.items():
            if counts.get(name, 0) < least:
                return f"{self.id} found {counts.get(name, 0)} {name} on the golden frame, at least {least} expected"
        return ""

    def close(self) -> None:
        """Release the session."""
        del self.session


def uncertainty_of(scores: np.ndarray) -> float:
    """Self-reported uncertainty 0..1 of a detector: the score-weighted mean of (1 - score); 0 when nothing was found.

    The weighting lets clear objects speak louder than the doubtful ones at the threshold. An empty road is not
    uncertain by this measure: blank or broken pictures are for the input monitors.
    """
    total = float(scores.sum())
    return 0.0 if total <= 0 else float(np.clip(1.0 - float((scores * scores).sum()) / total, 0.0, 1.0))
