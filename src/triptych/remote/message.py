"""What a remote centre is told: JSON after a versioned schema (docs/remote-schema.json)."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from triptych.contract.supervision import MAX_ACTIVE_FAULTS, MAX_STATE_REASON
from triptych.contract.terms import DegradationState

MAX_VEHICLE_ID = 64
STATES = tuple(state.name for state in DegradationState)


class Position(BaseModel):
    """Where the vehicle was last known to be, WGS 84."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    latitude_deg: float = Field(ge=-90, le=90, description="North positive.")
    longitude_deg: float = Field(ge=-180, le=180, description="East positive.")
    altitude_m: float | None = Field(description="Above the ellipsoid; null if unknown.")
    at: datetime = Field(description="When that was measured, UTC.")


class Notification(BaseModel):
    """One message. Messages of one ``event_id`` belong to one change of state; the last by ``sequence`` counts.

    A message may arrive more than once: (``vehicle_id``, ``sequence``) tells whether it is known already.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    vehicle_id: str = Field(min_length=1, max_length=MAX_VEHICLE_ID, description="As configured.")
    event_id: UUID = Field(description="Of the change of state; the same in every message about it and on every try.")
    sequence: int = Field(ge=1, description="Number of this message of the vehicle; ascends, also over restarts.")
    kind: Literal["entered", "updated", "released"] = Field(
        description="entered: a state of which the centre is told; updated: its reason or faults changed; released: it "
        "was left for a state of which it is not told."
    )
    state: str = Field(json_schema_extra={"enum": [*STATES]}, description="Degradation state.")
    reason: str = Field(max_length=MAX_STATE_REASON, description="A sentence for a person.")
    faults: tuple[str, ...] = Field(max_length=MAX_ACTIVE_FAULTS, description="Ids of the active faults.")
    position: Position | None = Field(description="null if unknown.")
    since: datetime = Field(description="When the state was entered, on the vehicle's clock, UTC.")
    created: datetime = Field(description="When the message was written, on the vehicle's clock, UTC.")

    def body(self) -> str:
        """The JSON that is sent, and signed, byte for byte on every try."""
        return self.model_dump_json()


def json_schema() -> str:
    """The JSON schema as text, for docs/remote-schema.json."""
    return json.dumps(Notification.model_json_schema(mode="serialization"), indent=2) + "\n"
