"""What is worth a message, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from remote_rig import STAMP_NS, S, constraint, record, report

from triptych.contract import DegradationState
from triptych.contract.supervision import StateRecord
from triptych.remote import Notification, Position, Reporter, json_schema
from triptych.remote.reporter import Report, utc

L1 = S.L1_MINIMAL_RISK_MANOEUVRE


def look(
    reporter: Reporter, state: DegradationState, now_s: float, told: StateRecord | bool | None = True
) -> Report | None:
    """With the state's own record, or another one, or none."""
    known = record(state) if told is True else (told or None)
    return reporter.look(constraint(state), known, now_s, STAMP_NS + round(now_s * 1e9))


def test_a_healthy_drive_tells_nobody() -> None:
    """No message in any state without ``remote_notification``, whatever comes after."""
    reporter = Reporter("car")
    for now_s, state in enumerate((S.INITIALISING, S.NOMINAL, S.L3_PERCEPTION_ONLY, S.L2_TAKEOVER_REQUEST, S.MANUAL)):
        assert look(reporter, state, float(now_s)) is None


def test_manoeuvre_standstill_and_release_are_one_message_each() -> None:
    """Entered twice, released once; each its own event, however often the state is repeated."""
    reporter = Reporter("car")
    found = []
    for now_s in range(30):
        state = S.NOMINAL if now_s < 5 else L1 if now_s < 10 else S.MRC if now_s < 20 else S.MANUAL
        found.append(look(reporter, state, float(now_s)))
    reports = [r for r in found if r is not None]
    assert [(r.kind, r.event.state, r.urgent) for r in reports] == [
        ("entered", L1.name, True),
        ("entered", "MRC", True),
        ("released", "MANUAL", False),
    ]
    assert len({r.event.event_id for r in reports}) == 3
    assert look(reporter, S.NOMINAL, 31.0) is None


def test_other_faults_update_the_same_event_but_not_too_often() -> None:
    """A second fault within the manoeuvre: same id; flapping at 10 Hz: one update in 2 s, with what holds then."""
    reporter = Reporter("car")
    first = look(reporter, L1, 0.0)
    assert first is not None
    updates = []
    for tick in range(100):
        faults = ("detector.lost",) if tick % 2 else ()
        update = look(reporter, L1, 0.1 + tick / 10, record(L1, 0.0, faults))
        updates += [update] if update is not None else []
    assert 3 <= len(updates) <= 5
    assert {u.kind for u in updates} == {"updated"} and not updates[0].urgent
    assert {u.event.event_id for u in updates} == {first.event.event_id}


def test_the_same_state_again_later_is_another_event() -> None:
    """By ``since``: jitter below a second is the same, above it is new (0.99 / 1.01)."""
    reporter = Reporter("car")
    first = look(reporter, S.MRC, 0.0)
    assert first is not None
    assert look(reporter, S.MRC, 10.0, record(S.MRC, 0.99)) is None
    second = look(reporter, S.MRC, 20.0, record(S.MRC, 1.01))
    assert second is not None and second.kind == "entered" and second.event.event_id != first.event.event_id


def test_a_restart_does_not_report_the_same_state_anew() -> None:
    """The last event is remembered; ids follow from vehicle, state and since."""
    first = look(Reporter("car"), S.MRC, 0.0)
    again = look(Reporter("car"), S.MRC, 50.0)
    other = look(Reporter("van"), S.MRC, 0.0)
    assert first is not None and again is not None and other is not None
    assert first.event.event_id == again.event.event_id != other.event.event_id
    restarted = Reporter("car", first.event)
    assert look(restarted, S.MRC, 100.0) is None
    released = look(restarted, S.NOMINAL, 101.0)
    assert released is not None and released.kind == "released"


def test_a_constraint_that_no_longer_asks_ends_the_telling_even_in_the_same_state() -> None:
    """Released, as an event of its own and at once."""
    reporter = Reporter("car")
    first = look(reporter, S.MRC, 0.0)
    ended = reporter.look(constraint(S.MRC, False), record(S.MRC), 0.1, STAMP_NS)
    assert first is not None and ended is not None
    assert ended.kind == "released" and ended.event.event_id != first.event.event_id


def test_the_constraint_alone_is_told_if_its_state_does_not_come() -> None:
    """Half a second is waited for the state; after it comes it belongs to the same event."""
    reporter = Reporter("car")
    assert look(reporter, L1, 0.0, False) is None
    assert look(reporter, L1, 0.49, record(S.NOMINAL)) is None
    found = look(reporter, L1, 0.51, False)
    assert found is not None and found.event.faults == () and found.event.reason == f"reason of {L1.name}"
    update = look(reporter, L1, 5.0, record(L1, -0.2, ("detector.lost",)))
    assert update is not None
    assert (update.kind, update.event.event_id) == ("updated", found.event.event_id)
    assert update.event.faults == ("detector.lost",)
    silent = reporter.look(replace(constraint(L1), reason="silent"), None, 9.0, STAMP_NS)
    assert silent is None
    silent = reporter.look(replace(constraint(L1), reason="silent"), None, 9.6, STAMP_NS)
    assert silent is not None and silent.kind == "updated" and silent.event.faults == ("detector.lost",)


def test_a_message_says_what_the_schema_promises() -> None:
    """JSON with version, vehicle, event, number, times in UTC; null for an unknown position."""
    found = json.loads(report().notification("car", 7).body())
    assert found["schema_version"] == 1
    assert (found["vehicle_id"], found["sequence"], found["state"], found["position"]) == ("car", 7, "MRC", None)
    assert found["since"] == "2023-11-14T22:13:20.123456Z"
    assert found["faults"] == ["detector.lost"]
    schema = json.loads(json_schema())
    assert set(found) == set(schema["properties"]) and set(schema["required"]) <= set(found)
    assert json_schema() == (Path(__file__).parents[2] / "docs" / "remote-schema.json").read_text()


@pytest.mark.parametrize("latitude", [float("nan"), float("inf"), 90.1])
def test_a_position_that_is_none_is_refused(latitude: float) -> None:
    """NaN is unknown, and unknown is null."""
    with pytest.raises(ValidationError):
        Position(latitude_deg=latitude, longitude_deg=0.0, altitude_m=None, at=utc(STAMP_NS))
    good = Position(latitude_deg=48.1, longitude_deg=11.5, altitude_m=None, at=utc(STAMP_NS))
    made = replace(report(), position=good).notification("car", 1)
    assert Notification.model_validate_json(made.body()) == made
