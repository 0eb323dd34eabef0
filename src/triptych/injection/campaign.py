"""What is to be broken, when, and what must come of it: a YAML file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import ConfigError, DegradationState
from triptych.documents import parse_yaml
from triptych.injection.faults import KINDS, BitFlipParameters, Expected, Parameters, width_of
from triptych.injection.hops import LIDAR, MESSAGES, OBSTACLES
from triptych.scenario import DriverAction, DriverEvent, ScenarioConfig, random_config

S = DegradationState
STATES = {
    "nominal": S.NOMINAL,
    "l3": S.L3_PERCEPTION_ONLY,
    "l2": S.L2_TAKEOVER_REQUEST,
    "l1": S.L1_MINIMAL_RISK_MANOEUVRE,
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Expectation(_Strict):
    """See :class:`triptych.injection.faults.Expected`."""

    by: tuple[str, ...] = Field((), description="Beginnings of fault ids, safety_core or vehicle; empty: not demanded.")
    within_s: float = Field(1.0, gt=0, le=600, description="From the injection to the detection.")
    least: Literal["nominal", "l3", "l2", "l1"] = Field("nominal", description="Least careful state at the end.")

    def table(self) -> Expected:
        """As the judge wants it."""
        return Expected(self.by, self.within_s, STATES[self.least])


class Entry(_Strict):
    """One fault of the campaign."""

    id: str = Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_.-]+$", description="Name in the report.")
    kind: str = Field(description="A key of the table of kinds.")
    parameters: dict[str, Any] = Field(default_factory=dict, alias="with", description="Of its kind.")
    lidar: bool = Field(False, description="The vehicle has a lidar, against which the detector is held.")
    expect: Expectation = Expectation()


class Drive(_Strict):
    """The drive in which it happens; road, weather, light and traffic follow from the seed."""

    width_px: int = Field(640, ge=64, le=4096, description="Camera picture.")
    height_px: int = Field(360, ge=48, le=4096, description="Camera picture.")
    warm_s: float = Field(6.0, ge=4, le=600, description="The fault begins up to half a second after this.")
    after_s: float = Field(12.0, ge=1, le=3600, description="The drive goes on for this long.")
    reaction_s: float = Field(
        -1.0, ge=-1, le=600, description="The driver takes over this long after a request; -1: never."
    )

    def config(self, seed: int) -> ScenarioConfig:
        """The scenario of a seed: a driver drives first and hands over at speed."""
        return random_config(
            seed,
            width_px=self.width_px,
            height_px=self.height_px,
            fps=20.0,
            duration_s=self.warm_s + self.after_s + 1.0,
            start_speed_mps=None,
            driver_events=(DriverEvent(0.0, DriverAction.TAKE_OVER), DriverEvent(1.5, DriverAction.HAND_BACK)),
            takeover_reaction_s=None if self.reaction_s < 0 else self.reaction_s,
        )


class Campaign(_Strict):
    """The file."""

    schema_version: Literal[1]
    name: str = Field(min_length=1, max_length=64)
    seeds: int = Field(25, ge=1, le=100000, description="Drives per fault, with seeds from first_seed on.")
    first_seed: int = Field(1, ge=0, le=2**31)
    drive: Drive = Drive()
    faults: tuple[Entry, ...] = Field(min_length=1)

    def parameters(self, entry: Entry) -> Parameters:
        """Checked parameters of an entry."""
        return KINDS[entry.kind][1].model_validate_json(json.dumps(entry.parameters))


def load_campaign(path: Path) -> Campaign:
    """Read and check a campaign.

    Raises:
        ConfigError: missing, not YAML, an unknown fault, parameter, hop or field, a bit beyond a field, a name twice.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=path, remedy="name a campaign file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"is not YAML: {str(error).splitlines()[0]}", where=path) from None
    if not isinstance(document, Mapping):
        raise ConfigError("must be a mapping", where=path, remedy="see config/inject/standard.yaml")
    try:
        campaign = Campaign.model_validate(document)
    except ValidationError as error:
        raise _config_error(error, path, "") from None
    names: set[str] = set()
    for entry in campaign.faults:
        if entry.id in names:
            raise ConfigError("two faults of this name", where=path, field="faults.id", value=entry.id)
        names.add(entry.id)
        _check(campaign, entry, path)
    return campaign


def _check(campaign: Campaign, entry: Entry, path: Path) -> None:
    if entry.kind not in KINDS:
        raise ConfigError(
            "no such fault",
            where=path,
            field=f"{entry.id}.kind",
            value=entry.kind,
            remedy=f"use one of {', '.join(KINDS)}",
        )
    try:
        parameters = campaign.parameters(entry)
    except ValidationError as error:
        raise _config_error(error, path, f"{entry.id}.with.") from None
    hop = getattr(parameters, "hop", None)
    if hop is not None and hop not in MESSAGES:
        raise ConfigError(
            "no such hop",
            where=path,
            field=f"{entry.id}.with.hop",
            value=hop,
            remedy=f"use one of {', '.join(MESSAGES)}",
        )
    if not entry.lidar and (
        entry.kind.startswith("lidar.") or hop in (LIDAR, OBSTACLES) or getattr(parameters, "process", "") == "lidar"
    ):
        raise ConfigError(
            "needs a lidar", where=path, field=f"{entry.id}.lidar", value=entry.lidar, remedy="write lidar: true"
        )
    if isinstance(parameters, BitFlipParameters):
        _check_bits(parameters, entry, path)


def _check_bits(parameters: BitFlipParameters, entry: Entry, path: Path) -> None:
    message = MESSAGES[parameters.hop]
    hidden = ("image", "payload", "latency", "points", "obstacles")
    fields = [f.name for f in dataclasses.fields(message) if f.name not in hidden]
    if parameters.field not in fields:
        raise ConfigError(
            f"no such field of {message.__name__}",
            where=path,
            field=f"{entry.id}.with.field",
            value=parameters.field,
            remedy=f"use one of {', '.join(fields)}",
        )
    width = width_of(message, parameters.field)
    if parameters.mask >= 1 << width:
        raise ConfigError(
            f"a bit beyond the field, which has {width}",
            where=path,
            field=f"{entry.id}.with.mask",
            value=parameters.mask,
        )


def _config_error(error: ValidationError, path: Path, prefix: str) -> ConfigError:
    first = error.errors()[0]
    field = prefix + ".".join(map(str, first["loc"]))
    return ConfigError(first["msg"].lower(), where=path, field=field, value=first.get("input"))
