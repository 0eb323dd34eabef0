"""The manifest: everything the runtime must know about an engine file, beside that file, in YAML.

An engine never runs on assumptions: geometry, normalisation, decoder, labels, thresholds and the expected
answer to a golden frame are all written down here and checked before a tier says ACTIVE.
"""

from __future__ import annotations

import hashlib
import os
import re
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from triptych.contract import DetectionClass, EngineError, Light, Road, SceneAdvice, Weather
from triptych.contract.result import MAX_DETECTIONS, MAX_LABEL
from triptych.documents import parse_yaml

ENGINE_DIR_VARIABLE = "TRIPTYCH_ENGINE_DIR"
"""Folder to look for engine files in when they do not lie beside their manifest."""

FILES_OF_TASK: dict[str, tuple[str, ...]] = {
    "detector": ("model",),
    "vlm": ("encoder", "decoder", "tokenizer"),
}
"""Roles each task's ``files`` must hold, no more and no fewer."""

SCENE_FIELDS: dict[str, type[IntEnum]] = {"road": Road, "weather": Weather, "light": Light}
"""Fields of an answer that an adapter's conditions may ask for."""
MAX_ADAPTERS = 16
"""Each is kept in memory and warmed up at the start."""
MAX_VERSION = 32
ADAPTER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")

Unit = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Triple = tuple[FiniteFloat, FiniteFloat, FiniteFloat]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineFile(_Strict):
    """One file of the engine. ``path`` is relative to the manifest's folder or to the engine folder."""

    path: str = Field(
        min_length=1, max_length=200, description="relative to the manifest's folder or the engine folder, without `..`"
    )
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the file's content, 64 hexadecimal digits")

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError("must be relative, without '..'")
        return value


def _known(field: str) -> list[str]:
    """Values of a scene field that may be asked for; what is unknown is no scene."""
    return [value.name.lower() for value in SCENE_FIELDS[field] if value]


class When(_Strict):
    """What answers must say for an adapter to be used: every condition given must hold."""

    road: str | None = Field(default=None, description=", ".join(_known("road")))
    weather: str | None = Field(default=None, description=", ".join(_known("weather")))
    light: str | None = Field(default=None, description=", ".join(_known("light")))

    @field_validator(*SCENE_FIELDS)
    @classmethod
    def _known_value(cls, value: str | None, info: ValidationInfo) -> str | None:
        assert info.field_name is not None
        known = _known(info.field_name)
        if value is not None and value not in known:
            raise ValueError(f"unknown {info.field_name} '{value}', known are {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _not_empty(self) -> When:
        if not self.conditions:
            raise ValueError(f"is empty: name at least one of {', '.join(SCENE_FIELDS)}")
        return self

    @property
    def conditions(self) -> dict[str, str]:
        """Field and the value it must have, of those given."""
        return {field: value for field in SCENE_FIELDS if (value := getattr(self, field)) is not None}

    def holds(self, answer: SceneAdvice) -> bool:
        """Whether ``answer`` meets every condition."""
        return all(getattr(answer, field).name.lower() == value for field, value in self.conditions.items())


class AdapterFile(EngineFile):
    """An adapter of the decoder, in ONNX Runtime's format, and the scene it is for."""

    when: When = Field(description="which answers lead to it: every condition given must hold")


class InputGeometry(_Strict):
    """How a camera picture becomes the network's input: ``(pixel * scale - mean) / std``.

    ``mean`` and ``std`` are in the order of ``colour``. ``letterbox`` keeps the aspect ratio and fills with
    ``pad_value`` on the right and at the bottom; ``stretch`` does not keep it.
    """

    width: int = Field(ge=16, le=4096, description="pixels the network sees")
    height: int = Field(ge=16, le=4096, description="pixels the network sees")
    fit: Literal["letterbox", "stretch"] = Field(
        description="letterbox keeps the aspect ratio and fills right and bottom; stretch does not keep it"
    )
    colour: Literal["bgr", "rgb"] = Field(description="order of the channels the network was trained on")
    layout: Literal["nchw", "nhwc"] = Field(default="nchw", description="order of the tensor's axes")
    dtype: Literal["float32", "uint8"] = Field(
        default="float32", description="uint8: the graph normalises by itself; scale, mean and std stay away"
    )
    scale: Positive = Field(default=1.0, description="(pixel * scale - mean) / std")
    mean: Triple = Field(default=(0.0, 0.0, 0.0), description="per channel, in the order of colour")
    std: Triple = Field(default=(1.0, 1.0, 1.0), description="per channel, in the order of colour, above 0")
    pad_value: int = Field(default=114, ge=0, le=255, description="grey that letterbox fills with")
    interpolation: Literal["linear", "area"] = Field(
        default="linear", description="how the picture is shrunk: as in training"
    )

    @model_validator(mode="after")
    def _usable(self) -> InputGeometry:
        if min(self.std) <= 0:
            raise ValueError("std must be above 0")
        if self.dtype == "uint8" and (self.scale != 1.0 or any(self.mean) or self.std != (1.0, 1.0, 1.0)):
            raise ValueError("a uint8 input takes no scale, mean or std: the graph normalises")
        return self

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the input tensor, one picture."""
        if self.layout == "nchw":
            return (1, 3, self.height, self.width)
        return (1, self.height, self.width, 3)


class Thresholds(_Strict):
    """Cuts of a detector: least score (of any class, or per label), greatest overlap of two boxes kept."""

    score: Unit = Field(default=0.35, description="least score of a detection")
    per_label: dict[str, Unit] = Field(default_factory=dict, description="least score of single labels instead")
    nms_iou: Unit = Field(default=0.5, description="of two boxes of a class that overlap more, the better stays")
    max_detections: int = Field(
        default=MAX_DETECTIONS, ge=1, le=MAX_DETECTIONS, description="the best so many are published"
    )


class Latency(_Strict):
    """``budget_ms``: greatest p99 of pre + inference + post that ``engines check`` accepts here.

    ``nominal_ms``: what lockstep replay assumes one inference takes; a property of the model, not of the machine.
    """

    budget_ms: Positive = Field(description="greatest time of one whole inference that `engines check` accepts")
    nominal_ms: Positive = Field(description="time that lockstep replay assumes, on every machine alike")


class Golden(_Strict):
    """The start-up self-test: a picture and what must come back.

    Exactly one of ``file`` (a PNG, resolved like an engine file) and ``pattern`` (drawn by
    :mod:`triptych.engines.golden`, ``width`` x ``height`` pixels).

    ``minimum``: class name to least number of detections (detector). ``answer``: field name to expected value, lower
    case (vlm; the engine's own module says which fields). ``question`` goes to a vlm with the picture.
    """

    file: EngineFile | None = Field(default=None, description="a picture of yours (PNG); either this or pattern")
    pattern: str | None = Field(default=None, description="a drawn picture, `stop-sign`; either this or file")
    width: int = Field(default=640, ge=16, le=4096, description="of the pattern, pixels")
    height: int = Field(default=384, ge=16, le=4096, description="of the pattern, pixels")
    minimum: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, description="detector: class and how many of it must be found at least"
    )
    answer: dict[str, str] = Field(
        default_factory=dict, description="vlm: road, weather, light, advice and what must be said"
    )
    question: str = Field(default="", max_length=128, description="vlm: asked with the picture")

    @model_validator(mode="after")
    def _one_picture_and_one_expectation(self) -> Golden:
        if (self.file is None) == (self.pattern is None):
            raise ValueError("give either file or pattern")
        if not self.minimum and not self.answer:
            raise ValueError("must expect something: give minimum or answer")
        return self

    @field_validator("minimum")
    @classmethod
    def _known_classes(cls, value: dict[str, int]) -> dict[str, int]:
        for name in value:
            detection_class(name)
        return value


class Provenance(_Strict):
    """Where the engine comes from."""

    source: str = Field(min_length=1, max_length=400, description="who made it, from what")
    licence: str = Field(min_length=1, max_length=80, description="SPDX name")
    data: str = Field(default="", max_length=600, description="what it was trained on")
    recipe: str = Field(default="", max_length=200, description="how to make it again")
    seed: int | None = Field(default=None, description="of that recipe")
    created: str = Field(default="", max_length=40, description="when")


def detection_class(name: str) -> DetectionClass:
    """The class of a lower-case name such as ``two_wheeler``.

    Raises:
        ValueError: unknown name.
    """
    try:
        return DetectionClass[name.upper()]
    except KeyError:
        known = ", ".join(c.name.lower() for c in DetectionClass)
        raise ValueError(f"unknown class '{name}', known are {known}") from None


class Manifest(_Strict):
    """One engine. ``labels`` follow the order of the network's class outputs; ``classes`` maps labels onto
    :class:`triptych.contract.DetectionClass`; a label without an entry is not reported."""

    schema_version: Literal[1] = Field(description="of this format")
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="lower-case letters, digits, `._-`; in every result"
    )
    version: str = Field(min_length=1, max_length=MAX_VERSION, description="in quotes; in every result")
    task: Literal["detector", "vlm"] = Field(description="detector for tier 1, vlm for tiers 2 and 3")
    decoder: str = Field(
        min_length=1, max_length=32, description="how outputs are read, see the list of decoders on this page"
    )
    files: dict[str, EngineFile] = Field(
        description="by role; detector: exactly model; vlm: exactly encoder, decoder, tokenizer"
    )
    input: InputGeometry = Field(description="how a camera picture becomes the network's input")
    labels: tuple[Annotated[str, Field(min_length=1, max_length=MAX_LABEL)], ...] = Field(
        default=(), description="detector: in the order of the network's class outputs"
    )
    classes: dict[str, str] = Field(
        default_factory=dict,
        description="detector: label -> vehicle, two_wheeler, pedestrian, traffic_light, sign or other; "
        "a label without an entry is not reported",
    )
    thresholds: Thresholds = Field(default=Thresholds(), description="cuts of a detector")
    latency: Latency = Field(description="times of one whole inference: preparation, network, decoding")
    max_fallback_share: Unit = Field(
        default=0.2, description="refused if more of the graph's nodes ran elsewhere than on the device asked for"
    )
    frames: int = Field(default=1, ge=1, le=16, description="vlm: frames it looks at, the newest last")
    golden: Golden = Field(description="the start-up self-test: a picture and what must come back")
    language: dict[str, Any] | None = Field(default=None, description="vlm: see the second table")
    adapters: dict[str, AdapterFile] = Field(
        default_factory=dict,
        max_length=MAX_ADAPTERS,
        description="vlm: by name, weights for single driving scenes; the first whose `when` holds is used",
    )
    provenance: Provenance = Field(description="where the engine comes from")

    @field_validator("classes")
    @classmethod
    def _known_classes(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value.values():
            detection_class(name)
        return value

    @field_validator("adapters")
    @classmethod
    def _each_can_be_chosen(cls, value: dict[str, AdapterFile]) -> dict[str, AdapterFile]:
        seen: dict[str, set[tuple[str, str]]] = {}
        for name, adapter in value.items():
            if not ADAPTER_NAME.fullmatch(name):
                raise ValueError(f"'{name}' is no name: small letters, digits, '_' and '-', a letter first")
            conditions = set(adapter.when.conditions.items())
            for earlier, fewer in seen.items():
                if fewer <= conditions:
                    raise ValueError(
                        f"'{name}' would never be used: '{earlier}' is listed before it and holds whenever it does"
                    )
            seen[name] = conditions
        return value

    @model_validator(mode="after")
    def _fits_its_task(self) -> Manifest:
        wanted = FILES_OF_TASK[self.task]
        if set(self.files) != set(wanted):
            raise ValueError(f"files of a {self.task} must be exactly {', '.join(wanted)}")
        if self.task == "vlm":
            if self.language is None:
                raise ValueError("a vlm needs a language section")
            for name in self.adapters:
                if len(self.version_with(name)) > MAX_VERSION:
                    raise ValueError(
                        f"version and adapter name make '{self.version_with(name)}', above {MAX_VERSION} characters"
                    )
            return self
        if self.language is not None:
            raise ValueError("a detector has no language section")
        if self.adapters:
            raise ValueError("a detector has no adapters")
        if not self.labels:
            raise ValueError("a detector needs labels")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be distinct")
        for field, names in (("classes", self.classes), ("thresholds.per_label", self.thresholds.per_label)):
            strange = [name for name in names if name not in self.labels]
            if strange:
                raise ValueError(f"{field} names '{strange[0]}', which is not among labels")
        if not self.classes:
            raise ValueError("classes is empty: no label would ever be reported")
        return self

    def version_with(self, adapter: str) -> str:
        """The version while ``adapter`` is in use; the plain version for an empty name."""
        return f"{self.version}+{adapter}" if adapter else self.version

    def engine_files(self) -> dict[str, EngineFile]:
        """Every file the engine is made of: those of its roles, then its adapters as ``adapters.<name>``."""
        return {**self.files, **{f"adapters.{name}": adapter for name, adapter in self.adapters.items()}}

    def class_ids(self) -> tuple[int, ...]:
        """DetectionClass value per label, -1 where a label is not reported."""
        return tuple(int(detection_class(self.classes[n])) if n in self.classes else -1 for n in self.labels)


def load_manifest(path: Path | str) -> Manifest:
    """Read and check a manifest.

    Raises:
        EngineError: missing, unreadable, not YAML, or a field that does not fit.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "manifest.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EngineError("no such manifest", where=path, remedy="name a manifest.yaml or its folder") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise EngineError(f"cannot read the manifest: {reason}", where=path) from None
    try:
        data = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise EngineError(f"not valid YAML{line}", where=path, remedy="correct the manifest") from None
    if not isinstance(data, dict):
        raise EngineError("a manifest is a YAML mapping", where=path, value=type(data).__name__)
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise _first(error, path) from None


def _first(error: ValidationError, path: Path) -> EngineError:
    """The first complaint of pydantic as one sentence; the rest follows once this one is corrected."""
    problems = error.errors(include_url=False)
    problem = problems[0]
    field = ".".join(str(part) for part in problem["loc"]) or None
    message = problem["msg"].removeprefix("Value error, ")
    value = problem["input"] if problem["type"] not in ("missing", "value_error") else None
    message = "is missing" if problem["type"] == "missing" else message
    message = "is not a known field" if problem["type"] == "extra_forbidden" else message
    return EngineError(
        message[0].lower() + message[1:], where=path, field=field, value=value, remedy="correct the manifest"
    )


def find_file(entry: EngineFile, manifest_path: Path, engine_dir: Path | None = None) -> Path:
    """Where an engine file lies: in ``engine_dir`` if given, else beside the manifest or in ``$TRIPTYCH_ENGINE_DIR``.

    Raises:
        EngineError: in none of these places.
    """
    if engine_dir is not None:
        places = [Path(engine_dir)]
    else:
        places = [manifest_path.parent]
        if os.environ.get(ENGINE_DIR_VARIABLE):
            places.append(Path(os.environ[ENGINE_DIR_VARIABLE]))
    for place in places:
        if (place / entry.path).is_file():
            return place / entry.path
    raise EngineError(
        f"engine file {entry.path} not found in {' or '.join(str(p) for p in places)}",
        where=manifest_path,
        remedy=f"put it there, name its folder with --path or set {ENGINE_DIR_VARIABLE}",
    )


def verify_file(entry: EngineFile, path: Path) -> None:
    """Compare the file with the manifest's hash.

    Raises:
        EngineError: unreadable, or another content.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise EngineError(f"cannot be read: {error.strerror}", where=path) from None
    if digest.hexdigest() != entry.sha256:
        raise EngineError(
            f"content does not fit the manifest: sha256 is {digest.hexdigest()[:12]}…, "
            f"the manifest says {entry.sha256[:12]}…",
            where=path,
            remedy="restore the file, or write its hash into the manifest if the change is intended",
        )


def resolve_files(manifest: Manifest, manifest_path: Path, engine_dir: Path | None = None) -> dict[str, Path]:
    """Find and verify every file of the engine; role to path, names as in :meth:`Manifest.engine_files`.

    Raises:
        EngineError: a file is missing or its content differs.
    """
    entries = manifest.engine_files()
    found = {role: find_file(entry, manifest_path, engine_dir) for role, entry in entries.items()}
    for role, path in found.items():
        verify_file(entries[role], path)
    return found
