"""The model of ``result.json``. Field descriptions here are the documentation: docs/result.md is generated from them.

Versioning: :data:`SCHEMA_VERSION` is ``major.minor``. A field that is added raises the minor number; one that is
removed or changes its meaning or unit raises the major one. Readers should refuse another major number and ignore
fields they do not know.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import InputError
from triptych.documents import parse_json

SCHEMA_VERSION = "1.0"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
StateName = Literal[
    "INITIALISING",
    "NOMINAL",
    "L3_PERCEPTION_ONLY",
    "L2_TAKEOVER_REQUEST",
    "L1_MINIMAL_RISK_MANOEUVRE",
    "MRC",
    "MANUAL",
]


class Record(BaseModel):
    """Base of all parts: unknown fields are ignored on reading, non-finite numbers refused."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Distribution(Record):
    """Summary of a measured quantity; milliseconds. Percentiles are nearest-rank: a value that really occurred."""

    count: Count = Field(description="Number of measurements.")
    mean: Finite = Field(description="Arithmetic mean, ms.")
    p50: Finite = Field(description="Median, ms.")
    p90: Finite = Field(description="90th percentile, ms.")
    p99: Finite = Field(description="99th percentile, ms.")
    max: Finite = Field(description="Greatest value, ms.")


class Origins(Record):
    """How many results had which origin."""

    FRESH: Count = Field(0, description="Inferred from the newest frame within the budget.")
    LAST_FRAME: Count = Field(0, description="The previous result repeated, with its age.")
    DEFAULT: Count = Field(0, description="The cautious policy: nothing recent enough was known.")


class LatencySplits(Record):
    """Where the time of FRESH results went."""

    transport: Distribution = Field(description="Source stamp to reception by the tier.")
    pre: Distribution = Field(description="Pre-processing.")
    infer: Distribution = Field(description="Engine.")
    post: Distribution = Field(description="Decoding.")
    other: Distribution = Field(description="The rest up to publication: waiting, hand-over, conversion.")


class Integrity(Record):
    """What end-to-end protection found on one stream of messages, checked again on the record."""

    messages: Count = Field(0, description="Messages recorded.")
    crc_errors: Count = Field(0, description="Messages whose CRC-32 does not fit their content.")
    sequence_gaps: Count = Field(0, description="Places where the 8-bit counter skipped at least one value.")
    messages_lost: Count = Field(0, description="Counter values skipped in all.")
    repeated: Count = Field(0, description="Messages that repeated the counter of the one before.")


class TierReport(Record):
    """One tier over the whole run."""

    expected: bool = Field(description="Whether this run was meant to have the tier.")
    started: bool = Field(description="Whether it ever published a result.")
    budget_ms: Finite = Field(description="Limit from source stamp to published result, ms.")
    keep_ms: Finite = Field(description="Greatest age at which a result may be repeated, ms.")
    period_ms: Finite = Field(description="A result is due at least this often, ms.")
    latency_ms: Distribution | None = Field(
        None, description="Source stamp to published result, of FRESH results; null without any."
    )
    split_ms: LatencySplits | None = Field(None, description="Where that time went; null without FRESH results.")
    gap_ms: Distribution | None = Field(
        None, description="Time between consecutive results after the first FRESH one; null with fewer than two."
    )
    origin: Origins = Field(description="Results by origin, the start-up included.")
    fallback_reasons: dict[str, Count] = Field(
        default_factory=dict, description="Results that were not FRESH, by the reason the tier gave."
    )
    fresh_share: Finite | None = Field(
        None,
        description="FRESH results over all results from the first FRESH one on, 0..1; bridged camera gaps (LAST_FRAME "
        "with reason no_frame) do not count. Null without a FRESH result.",
    )
    on_time_share: Finite | None = Field(
        None,
        description="Of the frames taken for inference from the first FRESH result on, the share answered within the "
        "budget, 0..1. Unlike `latency_ms` it counts what came too late to be published.",
    )
    late: Count = Field(0, description="Results not in time: fallbacks with reason timeout, FRESH over budget.")
    frames: Count = Field(0, description="Distinct camera frames answered with a FRESH result.")
    frames_received: Count = Field(0, description="Camera frames the tier's input delivered, from its heartbeat.")
    frames_dropped: Count = Field(
        0, description="Of those, superseded by a newer one before inference, from its heartbeat (intended under load)."
    )
    frames_with_objects: Count | None = Field(
        None, description="Detector only: of `frames`, those with at least one detection; null for VLM tiers."
    )
    frames_with_class: dict[str, Count] | None = Field(
        None, description="Detector only: of `frames`, those with a detection of the class; null for VLM tiers."
    )
    answers: dict[str, Count] | None = Field(
        None, description="VLM tiers only: FRESH results by advice (PROCEED ... STOP); null for the detector."
    )
    uncertainty_mean: Finite | None = Field(None, description="Mean self-reported uncertainty of FRESH results, 0..1.")
    rate_hz: Finite | None = Field(None, description="Results per second after the first FRESH one.")
    first_fresh_s: Finite | None = Field(None, description="Start of the run to the first FRESH result, s, or null.")
    integrity: Integrity = Field(description="End-to-end protection of the results.")
    heartbeat: Integrity = Field(description="End-to-end protection of the heartbeats.")
    restarts: Count = Field(0, description="How often its counters began anew: the process was restarted.")
    faults: list[str] = Field(default_factory=list, description="Distinct faults it reported of itself, in order.")
    engine: str = Field("", description="Engine id of the last result; empty if it never spoke.")
    engine_version: str = Field("", description="Its version.")
    device_requested: str = Field("", description="Device that was asked for.")
    device: str = Field("", description="Device that really ran it.")


class Tiers(Record):
    """The three tiers; all are always there, `started` says whether one ran."""

    detector: TierReport = Field(description="Tier 1: authoritative perception.")
    distilled: TierReport = Field(description="Tier 2: distilled vision-language model.")
    full: TierReport = Field(description="Tier 3: full vision-language model.")


class StateEntry(Record):
    """One state of the degradation machine."""

    state: StateName = Field(description="Name of the state.")
    from_s: Finite = Field(description="When it was entered, s since the start of the run.")
    reason: str = Field(description="Why, as the supervisor said it.")
    active_faults: list[str] = Field(default_factory=list, description="Ids of the faults active at that moment.")


class FaultEntry(Record):
    """One interval in which a fault of the fault table was active."""

    fault: str = Field(description="Id in the fault table.")
    source: str = Field(description="What it is about: a tier, the camera, the clock, ...")
    from_s: Finite = Field(description="When it became active, s since the start of the run.")
    to_s: Finite | None = Field(description="When it ceased; null if it was still active at the end.")
    value: Finite | None = Field(description="Measured value at activation; null when it is not a finite number.")
    threshold: Finite | None = Field(description="Its threshold.")
    text: str = Field(description="Sentence shown to a person.")


class InjectionEntry(Record):
    """A fault that was caused on purpose, and what the supervisor made of it."""

    fault: str = Field(description="What was done: kill, stop, slow, ...")
    target: str = Field(description="To what.")
    from_s: Finite = Field(description="When, s since the start of the run.")
    to_s: Finite | None = Field(description="Until when; null: to the end.")
    expected_state: StateName = Field(description="State demanded, or one more careful.")
    within_ms: Finite = Field(description="Time allowed from the fault to the command, ms.")
    reaction_ms: Finite | None = Field(description="Time it took; null if it never came.")
    held: bool = Field(description="Whether it came in time.")


class ConstraintReport(Record):
    """The supervisor's command stream."""

    integrity: Integrity = Field(description="End-to-end protection of the commands.")
    gap_ms: Distribution | None = Field(None, description="Time between consecutive commands, ms.")
    speed_limit_min_mps: Finite | None = Field(None, description="Lowest speed limit commanded, m/s.")
    stop_commanded: bool = Field(False, description="Whether a limit of 0 was ever commanded.")


class SupervisorReport(Record):
    """The supervisor over the whole run."""

    states: list[StateEntry] = Field(description="States in order; the first one is INITIALISING in a normal run.")
    nominal_after_s: Finite | None = Field(None, description="Start of the run to the first NOMINAL, s, or null.")
    faults: list[FaultEntry] = Field(default_factory=list, description="Every fault that became active, in order.")
    constraint: ConstraintReport = Field(description="The commands.")
    cpu_percent: Finite | None = Field(
        None, description="Mean CPU load in percent of one core after start-up; null when it was not measured."
    )


class ProcessReport(Record):
    """One process of the stack."""

    name: str = Field(description="Name of the node.")
    cpu_percent: Finite = Field(description="Mean load in percent of one core.")
    cpu_percent_max: Finite = Field(description="Greatest sampled load in percent of one core.")
    memory_peak_mb: Finite = Field(description="Greatest resident memory sampled, MiB.")
    restarts: Count = Field(0, description="Restarts that were recorded.")


class Check(Record):
    """One condition of the timing contract."""

    id: str = Field(description="Stable name, `subject.condition`.")
    held: bool = Field(description="Whether it held.")
    value: Finite | None = Field(description="What was measured; null when there was nothing to measure.")
    limit: Finite = Field(description="What it was compared with.")
    unit: str = Field(description="Unit of both.")
    text: str = Field(description="The condition and the outcome in one sentence.")


class Camera(Record):
    """The camera stream as offered."""

    width: Count = Field(description="Pixels.")
    height: Count = Field(description="Pixels.")
    rate_hz: Finite | None = Field(None, description="Nominal rate, Hz.")


class RunInfo(Record):
    """What was run."""

    mode: str = Field(description="demo, run or replay (processes over DDS), or lockstep (virtual clock).")
    input: str = Field(description="Name of the recording or scenario, without folders.")
    duration_s: Finite = Field(description="Length of the run, s.")
    latency_modelled: bool = Field(
        False,
        description="True in lockstep: latencies come from the manifests' nominal figures and show what was decided, "
        "not how fast this machine is.",
    )
    camera: Camera | None = Field(None, description="Camera stream; null when unknown.")
    synthesised: list[str] = Field(
        default_factory=list, description="Inputs the recording did not have and that were made up."
    )
    warnings: list[str] = Field(default_factory=list, description="What was wrong with the input or the record.")
    events: list[str] = Field(default_factory=list, description="Notable events: restarts, refused inputs, ...")
    events_omitted: Count = Field(0, description="Events beyond the first 200.")


class Host(Record):
    """The machine, without anything that identifies its owner."""

    cpu: str = Field(description="CPU model.")
    cores: Count = Field(description="Logical cores this process may use.")
    memory_mb: Count = Field(description="Physical memory, MiB.")
    architecture: str = Field(description="Machine type, such as x86_64.")
    kernel: str = Field(description="Operating system and kernel release.")
    python: str = Field(description="Python version.")


class Provenance(Record):
    """What the figures rest on."""

    package: str = Field(description="Name of the package.")
    version: str = Field(description="Its version.")
    git_commit: str | None = Field(None, description="Commit it was run from; null outside a checkout.")
    git_dirty: bool | None = Field(None, description="Whether tracked files differed from it; null outside a checkout.")
    config_sha256: str = Field(description="SHA-256 over the configuration files and the run's budgets.")
    data_sha256: str | None = Field(None, description="SHA-256 over the input's bytes; null without an input file.")
    date: str = Field(description="When the result was made, ISO 8601, UTC.")
    host: Host = Field(description="The machine.")


class ResultJson(Record):
    """The outcome of one run (``result.json``)."""

    schema_version: str = Field(SCHEMA_VERSION, description="Version of this schema, major.minor.")
    contract_held: bool = Field(description="Whether every check held.")
    reasons: list[str] = Field(description="One sentence per check that did not hold; empty when the contract held.")
    checks: list[Check] = Field(description="All conditions the verdict is made of.")
    run: RunInfo = Field(description="What was run.")
    tiers: Tiers = Field(description="The three tiers.")
    supervisor: SupervisorReport = Field(description="The supervisor.")
    injections: list[InjectionEntry] = Field(
        default_factory=list, description="Faults caused on purpose; empty in an ordinary run."
    )
    processes: list[ProcessReport] = Field(default_factory=list, description="Load and memory by process.")
    memory_peak_mb: Finite | None = Field(None, description="Greatest memory of all processes together, MiB.")
    provenance: Provenance = Field(description="What the figures rest on.")

    def save(self, path: Path | str) -> None:
        """Write as indented JSON, beside the target first and then renamed onto it.

        Raises:
            InputError: the file cannot be written.
        """
        write_text(Path(path), self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> ResultJson:
        """Read a ``result.json``.

        Raises:
            InputError: it cannot be read, is not valid, or has another major schema version.
        """
        source = Path(path)
        try:
            data = parse_json(source.read_bytes())
            version = data["schema_version"]
            if str(version).split(".")[0] != SCHEMA_VERSION.split(".")[0]:
                raise InputError(
                    f"has another major schema version than {SCHEMA_VERSION}",
                    where=source,
                    field="schema_version",
                    value=version,
                    remedy="read it with the version that wrote it",
                )
            return cls.model_validate(data)
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=source, remedy="name a result.json") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InputError(first["msg"], where=source, field=field, value=first.get("input")) from None
        except (ValueError, KeyError, TypeError):
            raise InputError("is not a result", where=source, remedy="name a result.json of a run") from None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text beside ``path`` and rename it onto it, so that nobody ever sees half a file.

    Raises:
        InputError: the folder or file cannot be written.
    """
    part = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise InputError(
            f"cannot be written ({error.strerror})", where=path, remedy="choose a writable folder with free space"
        ) from None


def json_schema() -> str:
    """The JSON schema of ``result.json`` as text, for docs/result-schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **ResultJson.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def models() -> list[type[Record]]:
    """Every part of the schema, :class:`ResultJson` first, then in the order in which they are first referred to."""
    found: list[type[Record]] = [ResultJson]
    for model in found:
        for field in model.model_fields.values():
            found += [part for part in _parts(field.annotation) if part not in found]
    return found


def _parts(annotation: object) -> list[type[Record]]:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _parts(argument)]
