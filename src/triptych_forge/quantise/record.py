"""``calibration.json``: what the data looked like that ranges were taken from, kept with the engine.

Whoever quantises the engine again gives the file, and data that were prepared in another way are refused before
anything is quantised, see :func:`.calibrate.check_statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from triptych.contract import ConfigError
from triptych_forge.files import write_atomically
from triptych_forge.quantise.calibrate import Statistics, check_statistics, hash_of, statistics
from triptych_forge.quantise.measure import Feeds

FILE = "calibration.json"


class CalibrationRecord(BaseModel):
    """The calibration data's identity and looks.

    Attributes:
        sha256: of all feeds, see :func:`.calibrate.hash_of`; what a bundle calls ``calibration_sha256``.
        count: how many feeds that covers.
        statistics: per input of a graph that pictures or features come in by: its geometry (shape and axis of the
            channels), mean and standard deviation per channel, least and greatest value, all in the input's own unit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = Field(description="of this format")
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    count: Annotated[int, Field(ge=1)]
    statistics: Annotated[tuple[Statistics, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_input_once(self) -> CalibrationRecord:
        names = [entry.input for entry in self.statistics]
        if len(set(names)) != len(names):
            raise ValueError("statistics: an input is recorded twice")
        if any(entry.inputs > self.count for entry in self.statistics):
            raise ValueError("statistics: an input was seen more often than there are feeds")
        return self

    def save(self, path: Path) -> None:
        """Write as JSON."""
        write_atomically(path, (self.model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> CalibrationRecord:
        """Read :meth:`save`'s file.

        Raises:
            ConfigError: unreadable, or a field that does not fit; names file and field.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", where=path, remedy=f"give an engine's {FILE}"
            ) from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or None
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"is no record of calibration data: {message}", where=path, field=field) from None


Recorded = Path | CalibrationRecord | Statistics
"""What calibration data are held against: a file, its content, or the statistics of one input."""


def record_of(
    feeds: Sequence[Feeds], channel_axes: Mapping[str, int | None], others: Sequence[Feeds] = ()
) -> CalibrationRecord:
    """The record of calibration data.

    Args:
        feeds: of the graph whose inputs are described.
        channel_axes: name of input to the axis of its channels (None: one figure for everything): what to describe.
        others: of further graphs; they count for hash and number only.

    Raises:
        ConfigError: no feeds, none to be described, or one without such an input.
    """
    if not channel_axes:
        raise ConfigError("name the inputs to describe", field="channel_axes")
    every = [*feeds, *others]
    return CalibrationRecord(
        schema_version=1,
        sha256=hash_of(every),
        count=len(every),
        statistics=tuple(statistics(feeds, name, axis) for name, axis in channel_axes.items()),
    )


def check_recorded(feeds: Sequence[Feeds], recorded: Recorded) -> None:
    """Refuse calibration data that do not look like the recorded ones, input by input.

    Raises:
        ConfigError: they do not, see :func:`.calibrate.check_statistics`; a recorded input that they lack; a file that
            cannot be read.
    """
    where = recorded if isinstance(recorded, Path) else None
    if isinstance(recorded, Path):
        recorded = CalibrationRecord.load(recorded)
    entries = (recorded,) if isinstance(recorded, Statistics) else recorded.statistics
    for entry in entries:
        axis = entry.channel_axis
        for number, feed in enumerate(feeds):  # one of another shape would be averaged away
            if entry.input in feed and feed[entry.input].shape != entry.shape:
                raise ConfigError(
                    f"has shape {feed[entry.input].shape}, the record has {entry.shape}",
                    where=f"calibration input {number}",
                    field=entry.input,
                    remedy="prepare it as the manifest says",
                )
        check_statistics(statistics(feeds, entry.input, axis), entry, where)
