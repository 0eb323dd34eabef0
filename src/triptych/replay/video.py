"""Videos and folders of images as recordings (camera only), through OpenCV."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from triptych.contract import Frame, InputError
from triptych.replay.messages import NS
from triptych.replay.recording import (
    IMAGE_SUFFIXES,
    VIDEO_EPOCH_NS,
    Item,
    Recording,
    RecordingInfo,
    TopicInfo,
)
from triptych.replay.storage import natural_key

MAX_FPS = 1000.0
# FFmpeg would print its own lines about damaged files; ours say it in one sentence. A user's own setting wins.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
REMEDY_VIDEO = "convert it to mp4 (H.264) or make a folder of images"


class VideoFile(Recording):
    """A video file. Frame times are those of the container; where they do not rise, the nominal rate fills in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chosen = {"camera": ""}
        self.warnings: list[str] = []
        self._size_bytes = path.stat().st_size
        if not self._size_bytes:
            raise InputError("is empty (0 bytes)", where=path, remedy="copy it again")
        capture = self._capture()
        try:
            rate = float(capture.get(cv2.CAP_PROP_FPS))
            self.fps = rate if math.isfinite(rate) and 0 < rate <= MAX_FPS else 0.0
            self._promised = max(0, round(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
            read, image = capture.read()
            if not read or image is None:
                raise InputError("holds no frame that can be decoded", where=path, remedy=REMEDY_VIDEO)
            self.height, self.width = image.shape[:2]
        finally:
            capture.release()
        if not self.fps:
            self.fps = 25.0
            self.warnings.append(f"{path}: has no usable frame rate, 25 per second are assumed")

    def _capture(self) -> cv2.VideoCapture:
        if not self.path.exists():
            raise InputError("does not exist any more", where=self.path, remedy="leave the file in place during replay")
        capture = cv2.VideoCapture(str(self.path))
        if not capture.isOpened():
            raise InputError(
                "is not a video that can be decoded, or is truncated", where=self.path, remedy=REMEDY_VIDEO
            )
        return capture

    @property
    def info(self) -> RecordingInfo:
        return RecordingInfo(
            path=self.path,
            kind="video",
            storage=self.path.suffix.lower().lstrip("."),
            topics=(
                TopicInfo(
                    "camera", f"{self.width}x{self.height} at {self.fps:g} fps", self._promised, "video", "camera"
                ),
            ),
            message_count=self._promised,
            start_ns=VIDEO_EPOCH_NS,
            duration_s=max(0, self._promised - 1) / self.fps,
            size_bytes=self._size_bytes,
            warnings=tuple(self.warnings),
        )

    def files(self) -> list[Path]:
        return [self.path]

    def _all(self, from_s: float) -> Iterator[Item]:
        capture = self._capture()
        try:
            last_ms, count, first_ms = 0.0, 0, 0.0
            while True:
                # Frames before the start are decoded but not converted: seeking is inexact in most containers.
                if not capture.grab():
                    break
                at_ms = float(capture.get(cv2.CAP_PROP_POS_MSEC))
                if count == 0:
                    first_ms = at_ms if math.isfinite(at_ms) else 0.0
                at_ms -= first_ms
                if count and not (math.isfinite(at_ms) and at_ms > last_ms):
                    at_ms = last_ms + 1e3 / self.fps
                last_ms, count = at_ms, count + 1
                if at_ms / 1e3 < from_s - 1e-6:
                    continue
                read, image = capture.retrieve()
                if not read or image is None:
                    break
                t_ns = VIDEO_EPOCH_NS + round(at_ms * 1e6)
                yield Item(t_ns, Frame(np.ascontiguousarray(image, dtype=np.uint8), t_ns, count))
        finally:
            capture.release()
        # Containers only estimate their frame count, so a shortfall is worth a warning but proves nothing.
        if count < self._promised - max(2, self._promised // 20):
            text = f"{self.path}: {count} of {self._promised} frames could be decoded, the rest is missing or damaged"
            if text not in self.warnings:
                self.warnings.append(text)


class ImageFolder(Recording):
    """A folder of PNG, JPEG or BMP files in natural order of their names, ``fps`` per second.

    Raises:
        InputError: no image in it, or ``fps`` not within 0..1000.
    """

    def __init__(self, path: Path, fps: float) -> None:
        if not (math.isfinite(fps) and 0 < fps <= MAX_FPS):
            raise InputError(
                f"must be above 0 and at most {MAX_FPS:g}", field="fps", value=fps, remedy="give frames per second"
            )
        self.path, self.fps = path, fps
        self.chosen = {"camera": ""}
        self.warnings: list[str] = []
        self._images = sorted(
            (p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".")),
            key=natural_key,
        )
        if not self._images:
            raise InputError("holds no image", where=path, remedy=f"put {', '.join(IMAGE_SUFFIXES)} files into it")
        first = self._read(self._images[0])
        self.height, self.width = first.shape[:2]

    def _read(self, path: Path) -> np.ndarray:
        try:
            data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check its permissions") from None
        try:
            image = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
        except cv2.error:
            image = None
        if image is None:
            raise InputError("is not an image that can be read", where=path, remedy="remove it or write it again")
        return np.ascontiguousarray(image, dtype=np.uint8)

    @property
    def info(self) -> RecordingInfo:
        count = len(self._images)
        return RecordingInfo(
            path=self.path,
            kind="images",
            storage="+".join(sorted({p.suffix.lower().lstrip(".") for p in self._images})),
            topics=(TopicInfo("camera", f"{self.width}x{self.height} at {self.fps:g} fps", count, "images", "camera"),),
            message_count=count,
            start_ns=VIDEO_EPOCH_NS,
            duration_s=(count - 1) / self.fps,
            size_bytes=sum(p.stat().st_size for p in self._images),
            warnings=tuple(self.warnings),
        )

    def files(self) -> list[Path]:
        return self._images

    def _all(self, from_s: float) -> Iterator[Item]:
        for index, path in enumerate(self._images):
            if index / self.fps < from_s - 1e-6:
                continue
            t_ns = VIDEO_EPOCH_NS + round(index / self.fps * NS)
            yield Item(t_ns, Frame(self._read(path), t_ns, index + 1))
