"""What can be broken, as a table: each kind with its parameters, what it does, and what must come of it."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from triptych.contract import (
    Advice,
    Detections,
    Frame,
    Hazard,
    Light,
    Odometry,
    PointCloud,
    Road,
    SceneAdvice,
    Tier,
    Weather,
    protect,
)
from triptych.contract import DegradationState as S
from triptych.engines.protocol import EngineOutput
from triptych.injection.hops import CAMERA, LIDAR, ODOMETRY
from triptych.injection.loop import NS, Delivery
from triptych.injection.pictures import PICTURES
from triptych.injection.scans import SCANS


class Parameters(BaseModel):
    """What every kind has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    for_s: float = Field(0.0, ge=0, le=600, description="How long it lasts; 0: to the end of the drive.")


@dataclass(frozen=True, slots=True)
class Expected:
    """What must come of a fault.

    Attributes:
        by: beginnings of fault ids that count as detection; ``safety_core`` and ``vehicle`` also stand for a stop by
            the safety core and the vehicle's own safe default. Empty: it need not be noticed.
        within_s: from the injection to the detection.
        least: the least careful state that is allowed at the end of the drive.
    """

    by: tuple[str, ...]
    within_s: float
    least: S


class Injected:
    """A fault of one drive. It counts its effects: one that never had any was not tried.

    Args:
        parameters: of its kind.
        begin_ns: monotonic time of the loop.
        rng: for what is left to chance.
    """

    def __init__(self, parameters: Any, begin_ns: int, rng: np.random.Generator) -> None:
        self.parameters, self.begin_ns, self.rng = parameters, begin_ns, rng
        self.end_ns = begin_ns + round(parameters.for_s * NS) if parameters.for_s else None
        self.effects = 0

    def active(self, now_ns: int) -> bool:
        """Whether it applies at this time."""
        return now_ns >= self.begin_ns and (self.end_ns is None or now_ns < self.end_ns)

    def deliver(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        """See :class:`triptych.injection.loop.Fault`."""
        if not self.active(now_ns):
            return None
        deliveries = self.transmit(hop, message, now_ns)
        self.effects += deliveries is not None
        return deliveries

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        """The same, while active."""
        return None

    def answer(self, tier: Tier, output: EngineOutput, now_ns: int) -> EngineOutput | BaseException | None:
        return None

    def infer_ns(self, tier: Tier, usual_ns: int, now_ns: int) -> int | None:
        return usual_ns

    def offset_ns(self, now_ns: int) -> int:
        return 0

    def changes(self) -> Iterable[tuple[int, str, str]]:
        return ()


class Nothing(Injected):
    """A healthy drive: whatever is noticed is a false alarm."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.effects = 1


# ---- camera ----


class PictureParameters(Parameters):
    what: Literal["black", "over_exposed", "noise", "blur", "occlusion", "colour_cast", "missing_rows", "half_size"] = (
        Field("black", description="What becomes of each picture.")
    )
    strength: float = Field(1.0, gt=0, le=1, description="0 leaves the picture, 1 ruins it.")


class Picture(Injected):
    """Each picture is spoilt; stamps and rate stay."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != CAMERA:
            return None
        spoil = PICTURES[self.parameters.what]
        image = spoil(message.image, self.parameters.strength, self.rng)
        return [(0, dataclasses.replace(message, image=image))]


class Freeze(Injected):
    """The camera keeps sending its last picture, each time with a new stamp (or with the old one)."""

    _last: Frame | None = None

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != CAMERA:
            return None
        if self._last is None:
            self._last = message
            return None
        stamp_ns = self._last.stamp_ns if self.parameters.stamp_too else message.stamp_ns
        return [(0, dataclasses.replace(message, image=self._last.image, stamp_ns=stamp_ns))]


class FreezeParameters(Parameters):
    stamp_too: bool = Field(False, description="The stamp stays as well.")


class ShiftParameters(Parameters):
    shift_s: float = Field(1.0, ge=-10, le=10, description="Added to each stamp.")


class CameraStamps(Injected):
    """The camera's clock is off."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != CAMERA:
            return None
        stamp_ns = message.stamp_ns + round(self.parameters.shift_s * NS)
        return [(0, dataclasses.replace(message, stamp_ns=stamp_ns))]


class Swap(Injected):
    """The picture of another moment: mirrored, as of a camera on the other side, and every other one."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != CAMERA or message.number % 2:
            return None
        return [(0, dataclasses.replace(message, image=np.ascontiguousarray(message.image[:, ::-1])))]


# ---- odometry ----


class SpeedParameters(Parameters):
    what: Literal["frozen", "zero", "nan", "jump", "silent_source"] = Field(
        "frozen",
        description="frozen: the last speed for ever; zero; nan; jump: 15 m/s to and fro; silent_source: the same "
        "message with the same stamp.",
    )


class Speed(Injected):
    """The speed sensor lies."""

    _last: Odometry | None = None
    _count = 0

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != ODOMETRY:
            return None
        self._last, self._count = self._last or message, self._count + 1
        what = self.parameters.what
        if what == "silent_source":
            return [(0, self._last)]
        speed_mps = {
            "frozen": self._last.speed_mps,
            "zero": 0.0,
            "nan": float("nan"),
            "jump": message.speed_mps + 15.0 * (self._count % 2),
        }[what]
        return [(0, dataclasses.replace(message, speed_mps=speed_mps))]


# ---- lidar ----


class ScanParameters(Parameters):
    what: Literal["frozen", "nothing", "covered", "infinite", "knocked", "dust"] = Field(
        "frozen", description="What becomes of each scan; see triptych.injection.scans."
    )


class Scan(Injected):
    """Each scan is spoilt; stamps and rate stay."""

    _first: PointCloud | None = None

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != LIDAR:
            return None
        self._first = self._first or message
        source = self._first if self.parameters.what == "frozen" else message
        points = SCANS[self.parameters.what](source.points, self.rng)
        return [(0, dataclasses.replace(message, points=points))]


# ---- wire ----


class WireParameters(Parameters):
    hop: str = Field("detector.result", description="A name of triptych.injection.hops.")
    share: float = Field(1.0, gt=0, le=1, description="Of the messages that are hit.")
    delay_s: float = Field(0.2, ge=0, le=10, description="Of a delayed, duplicated or reordered message.")


class Drop(Injected):
    """Messages are lost."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != self.parameters.hop or self.rng.random() >= self.parameters.share:
            return None
        return self.hit(message)

    def hit(self, message: Any) -> list[Delivery]:
        """What becomes of one that is hit."""
        return []


class Delay(Drop):
    """Messages come late; with a share below 1 later ones overtake them."""

    def hit(self, message: Any) -> list[Delivery]:
        return [(round(self.parameters.delay_s * NS), message)]


class Duplicate(Drop):
    """Messages come twice."""

    def hit(self, message: Any) -> list[Delivery]:
        return [(0, message), (round(self.parameters.delay_s * NS), message)]


WIDTHS: dict[str, int] = {"sequence_counter": 8, "crc": 32, "state": 8, "origin": 8, "tier": 8}
"""Bits of integer fields on the wire; other integers have 64, numbers 64, switches 1."""


class BitFlipParameters(WireParameters):
    field: str = Field("sequence_counter", description="Of the message.")
    mask: int = Field(1, gt=0, lt=2**64, description="Bits to flip; none beyond the field.")
    cycle: int = Field(1, ge=1, le=10000, description="Every so many messages of this hop.")


def width_of(message: Any, field: str) -> int:
    """Bits of a field of a message class."""
    kind = {f.name: f.type for f in dataclasses.fields(message)}[field]
    return 1 if kind == "bool" else WIDTHS.get(field, 64)


def flipped(message: Any, field: str, mask: int) -> Any:
    """The message with bits of one field inverted, its CRC untouched; None if nobody could read it."""
    value = getattr(message, field)
    if isinstance(value, bool):
        changed: Any = not value
    elif isinstance(value, IntEnum):
        try:
            changed = type(value)(int(value) ^ mask)
        except ValueError:
            return None
    elif isinstance(value, int):
        changed = value ^ mask
    elif isinstance(value, float):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        (changed,) = struct.unpack("<d", struct.pack("<Q", bits ^ mask))
    else:
        text = bytearray(str(value).encode() or b"\0")
        text[0] ^= mask & 0x7F
        changed = text.decode(errors="replace")
    return dataclasses.replace(message, **{field: changed})


class BitFlip(Injected):
    """Bits of one field flip at a given cycle."""

    _count = 0

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != self.parameters.hop:
            return None
        self._count += 1
        if self._count % self.parameters.cycle:
            return None
        changed = flipped(message, self.parameters.field, self.parameters.mask)
        return [] if changed is None else [(0, changed)]


# ---- processes and engines ----


class ProcessParameters(Parameters):
    process: Literal["detector", "distilled", "full", "lidar", "supervisor", "safety_core"] = Field(
        "detector", description="Who is hit."
    )
    restart_s: float = Field(3.0, ge=0, le=600, description="Time until a killed one runs again; 0: never.")


class Kill(Injected):
    """SIGKILL; the process manager starts it again."""

    def changes(self) -> Iterable[tuple[int, str, str]]:
        self.effects += 1
        process = self.parameters.process
        yield self.begin_ns, process, "kill"
        if self.parameters.restart_s:
            yield self.begin_ns + round(self.parameters.restart_s * NS), process, "start"


class Stop(Injected):
    """SIGSTOP, and SIGCONT at the end."""

    def changes(self) -> Iterable[tuple[int, str, str]]:
        self.effects += 1
        yield self.begin_ns, self.parameters.process, "stop"
        if self.end_ns is not None:
            yield self.end_ns, self.parameters.process, "continue"


class TiersParameters(Parameters):
    tiers: tuple[Literal["detector", "distilled", "full"], ...] = Field(
        ("detector",), min_length=1, description="Whose."
    )


class SlowParameters(TiersParameters):
    factor: float = Field(30.0, gt=1, le=10000, description="How many times slower.")


class Slow(Injected):
    """Inference takes longer."""

    parameters: SlowParameters

    def infer_ns(self, tier: Tier, usual_ns: int, now_ns: int) -> int | None:
        if not self.active(now_ns) or tier.key not in self.parameters.tiers:
            return usual_ns
        self.effects += 1
        return round(usual_ns * self.parameters.factor)


class Hang(Injected):
    """Inference never ends."""

    def infer_ns(self, tier: Tier, usual_ns: int, now_ns: int) -> int | None:
        if not self.active(now_ns) or tier.key not in self.parameters.tiers:
            return usual_ns
        self.effects += 1
        return None


class AnswerParameters(TiersParameters):
    what: Literal[
        "nan", "nothing", "wrong_class", "stuck", "jumping", "nonsense", "repeated_token", "reckless", "error"
    ] = Field("nan", description="What the engine says instead.")


class Answer(Injected):
    """The engine answers in time, and wrongly.

    Attributes:
        first: what this tier said when the fault began.
        count: answers changed so far.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.first: Any = None
        self.count = 0
        self._firsts: dict[Tier, Any] = {}

    def answer(self, tier: Tier, output: EngineOutput, now_ns: int) -> EngineOutput | BaseException | None:
        if not self.active(now_ns) or tier.key not in self.parameters.tiers:
            return None
        self.count += 1
        self.first = self._firsts.setdefault(tier, output.payload)
        changed = ANSWERS[self.parameters.what](self, output)
        self.effects += changed != output  # nothing can be taken from a detector on an empty road
        return changed


def _with(output: EngineOutput, **changes: Any) -> EngineOutput:
    """The output with other fields in its payload."""
    return dataclasses.replace(output, payload=dataclasses.replace(output.payload, **changes))


def _boxes(output: EngineOutput, edit: Callable[[Any], Any]) -> EngineOutput:
    payload = output.payload
    assert isinstance(payload, Detections)
    return _with(output, detections=tuple(edit(d) for d in payload.detections))


def _not_a_number(fault: Answer, output: EngineOutput) -> EngineOutput:
    if isinstance(output.payload, Detections) and output.payload.detections:
        return _boxes(output, lambda d: dataclasses.replace(d, x_min=float("nan")))
    return dataclasses.replace(output, uncertainty=float("nan"))


def _wrong_class(fault: Answer, output: EngineOutput) -> EngineOutput:
    return _boxes(output, lambda d: dataclasses.replace(d, class_id=3 if d.class_id != 3 else 1, label="traffic_light"))


def _jumping(fault: Answer, output: EngineOutput) -> EngineOutput:
    assert isinstance(output.payload, Detections)
    shift = output.payload.image_width * (0.4 if fault.count % 2 else 0.0)
    return _boxes(output, lambda d: dataclasses.replace(d, x_min=d.x_min + shift, x_max=d.x_max + shift))


def _nonsense(fault: Answer, output: EngineOutput) -> EngineOutput:
    """Fluent, sure of itself, and of no scene at all: each field drawn at random."""
    rng = fault.rng
    hazards = tuple(Hazard(int(h)) for h in rng.choice([int(h) for h in Hazard if h], 3, replace=False))
    tokens = len(getattr(output.payload, "token_probabilities", ())) or 12
    changed = _with(
        output,
        road=Road(int(rng.integers(1, 6))),
        weather=Weather(int(rng.integers(1, 4))),
        light=Light(int(rng.integers(1, 4))),
        hazards=hazards,
        advice=Advice(int(rng.integers(0, 5))),
        vehicles=int(rng.integers(0, 10)),
        two_wheelers=int(rng.integers(0, 10)),
        pedestrians=int(rng.integers(0, 10)),
        token_probabilities=tuple([0.99] * tokens),
    )
    return dataclasses.replace(changed, uncertainty=0.01)


def _repeated_token(fault: Answer, output: EngineOutput) -> EngineOutput:
    return _with(output, text="the the the the the the the the the the the the", token_probabilities=(0.98,) * 64)


def _reckless(fault: Answer, output: EngineOutput) -> EngineOutput:
    """Always go, and nothing in the way."""
    return dataclasses.replace(_with(output, hazards=(), advice=Advice.PROCEED), uncertainty=0.0)


ANSWERS: dict[str, Callable[[Answer, EngineOutput], EngineOutput | BaseException]] = {
    "nan": _not_a_number,
    "nothing": lambda fault, output: (
        _with(output, detections=())
        if isinstance(output.payload, Detections)
        else dataclasses.replace(output, payload=SceneAdvice())
    ),
    "wrong_class": _wrong_class,
    "stuck": lambda fault, output: dataclasses.replace(output, payload=fault.first),
    "jumping": _jumping,
    "nonsense": _nonsense,
    "repeated_token": _repeated_token,
    "reckless": _reckless,
    "error": lambda fault, output: RuntimeError("injected"),
}


class Foreign(Injected):
    """Another model answers in a tier's place; each of its results is sound."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        tier, _, what = hop.partition(".")
        if what != "result" or tier not in self.parameters.tiers:
            return None
        changed = dataclasses.replace(message, engine_id=f"not-{message.engine_id}")
        return [(0, protect(changed, message.sequence_counter))]


# ---- clock ----


class ClockParameters(Parameters):
    step_s: float = Field(1.0, ge=-3600, le=3600, description="The clock of stamps jumps by this.")
    drift: float = Field(0.0, ge=-0.5, le=0.5, description="And runs faster by this share.")


class ClockFault(Injected):
    """The clock of stamps is moved, for every process alike."""

    parameters: ClockParameters

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.effects = int(bool(self.parameters.step_s or self.parameters.drift))

    def offset_ns(self, now_ns: int) -> int:
        if now_ns < self.begin_ns:
            return 0
        until_ns = now_ns if self.end_ns is None else min(now_ns, self.end_ns)
        drifted_ns = round(self.parameters.drift * (until_ns - self.begin_ns))
        return drifted_ns + (round(self.parameters.step_s * NS) if self.active(now_ns) else 0)


# ---- driver ----


class DriverParameters(Parameters):
    present: bool = Field(True, description="Somebody sits there.")
    attentive: bool = Field(True, description="And looks at the road.")
    override_active: bool = Field(False, description="And drives.")
    takes_over_after_s: float = Field(0.0, ge=0, le=600, description="And does all that from then on; 0: never.")


class Driver(Injected):
    """What is known of the driver changes."""

    def transmit(self, hop: str, message: Any, now_ns: int) -> list[Delivery] | None:
        if hop != "driver":
            return None
        after_s = self.parameters.takes_over_after_s
        awake = after_s > 0 and now_ns >= self.begin_ns + round(after_s * NS)
        drives = awake or self.parameters.override_active
        changed = dataclasses.replace(
            message,
            present=awake or self.parameters.present,
            attentive=awake or self.parameters.attentive,
            override_active=drives,
            automation_engaged=not drives,
        )
        return [(0, protect(changed, message.sequence_counter))]


KINDS: dict[str, tuple[type[Injected], type[Parameters]]] = {
    "none": (Nothing, Parameters),
    "camera.picture": (Picture, PictureParameters),
    "camera.freeze": (Freeze, FreezeParameters),
    "camera.stamps": (CameraStamps, ShiftParameters),
    "camera.swap": (Swap, Parameters),
    "lidar.scan": (Scan, ScanParameters),
    "odometry.speed": (Speed, SpeedParameters),
    "wire.drop": (Drop, WireParameters),
    "wire.delay": (Delay, WireParameters),
    "wire.duplicate": (Duplicate, WireParameters),
    "wire.bit_flip": (BitFlip, BitFlipParameters),
    "process.kill": (Kill, ProcessParameters),
    "process.stop": (Stop, ProcessParameters),
    "engine.slow": (Slow, SlowParameters),
    "engine.hang": (Hang, TiersParameters),
    "engine.answer": (Answer, AnswerParameters),
    "engine.foreign": (Foreign, TiersParameters),
    "clock.offset": (ClockFault, ClockParameters),
    "driver.state": (Driver, DriverParameters),
}
"""By name: what it does and its parameters."""
