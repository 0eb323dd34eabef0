"""The run record: what is written comes back, and a crash costs at most the last line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from triptych.contract import (
    Advice,
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Hazard,
    InputError,
    LatencySplit,
    MotionConstraint,
    Odometry,
    Origin,
    SceneAdvice,
    Tier,
    TierResult,
    TierState,
    TierStatus,
    VerdictLevel,
    crc_ok,
    protect,
)
from triptych.replay import record as rec
from triptych.session import RECORD, complete_record


def detector_result() -> TierResult:
    payload = Detections(640, 360, (Detection("car", 0, 0.75, 1.0, 2.0, 30.5, 40.25),))
    return protect(
        TierResult(
            Tier.DETECTOR,
            Origin.FRESH,
            "",
            10,
            "cam",
            3,
            25,
            15.0,
            LatencySplit(1.0, 2.0, 3.0, 4.0),
            "e",
            "1",
            "cpu",
            0.1,
            payload,
        ),
        7,
    )


def advice_result() -> TierResult:
    payload = SceneAdvice(
        hazards=(Hazard.RED_LIGHT,),
        advice=Advice.STOP,
        vehicles=9,
        two_wheelers=0,
        pedestrians=255,
        text="Rot — stopp",
        token_probabilities=(0.5, 1.0),
    )
    return protect(
        TierResult(
            Tier.FULL,
            Origin.LAST_FRAME,
            "timeout",
            10,
            "cam",
            3,
            25,
            15.0,
            LatencySplit(),
            "e",
            "1",
            "cpu",
            0.1,
            payload,
        ),
        255,
    )


ENTRIES = [
    rec.Received(1, detector_result()),
    rec.Received(2, advice_result()),
    rec.StateRecord(3, DegradationState.NOMINAL, DegradationState.INITIALISING, "ready", ("a", "b"), True, 2.5),
    rec.ConstraintRecord(4, MotionConstraint(4, math.inf, 2.0, False, False, False, DegradationState.NOMINAL, "")),
    rec.StatusRecord(5, TierStatus(5, Tier.FULL, TierState.ACTIVE, True)),
    rec.VerdictRecord(6, "late", "detector", VerdictLevel.FAULT, True, math.nan, 0.03, "too late"),
    rec.OdometryRecord(7, Odometry(7, -1.0)),
    rec.DriverRecord(8, DriverState(8, attentive=False)),
    rec.CpuSample(9, "supervisor", 1.5, 1 << 30),
    rec.SampleFrame(10, 9, 2, 1, b"\xff\xd8\x00jpeg"),
    rec.Event(11, "cli", "detector restarted"),
]


def full_record() -> rec.RunRecord:
    record = rec.RunRecord(meta={"mode": "live", "started_ns": 1})
    for entry in ENTRIES:
        record.add(entry)
    return record


def test_round_trip_keeps_every_kind_and_value(tmp_path: Path) -> None:
    path = tmp_path / "run" / "record.jsonl"
    full_record().save(path)
    back = rec.RunRecord.load(path)
    assert [e for e in back.entries() if not isinstance(e, rec.VerdictRecord)] == [
        e for e in ENTRIES if not isinstance(e, rec.VerdictRecord)
    ]
    assert math.isnan(back.verdicts[0].value) and back.verdicts[0].text == "too late"
    assert back.meta == {"mode": "live", "started_ns": 1} and back.warnings == []
    assert all(crc_ok(r.result) for r in back.results)
    assert {type(e) for e in ENTRIES} == {cls for cls, _ in rec._KINDS.values()}, "a kind without a test"
    assert not list(path.parent.glob("*.part"))


def test_equal_records_are_equal_bytes(tmp_path: Path) -> None:
    full_record().save(tmp_path / "a")
    full_record().save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_cut_last_line_is_left_out_and_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "record.jsonl"
    full_record().save(path)
    path.write_bytes(path.read_bytes()[: -cut - 1])
    back = rec.RunRecord.load(path)
    assert back.events == [] and len(back.sample_frames) == 1
    assert "cut off" in back.warnings[0]


def test_streamed_part_file_is_readable_before_close(tmp_path: Path) -> None:
    writer = rec.RecordWriter(tmp_path / "r.jsonl", {"mode": "live"})
    writer.add(ENTRIES[0])
    writer.add_meta({"ended_ns": 5})
    back = rec.RunRecord.load(writer.part)
    assert back.results == [ENTRIES[0]] and back.meta == {"mode": "live", "ended_ns": 5}
    writer.close()
    writer.close()
    assert rec.RunRecord.load(tmp_path / "r.jsonl").results == [ENTRIES[0]]
    with pytest.raises(ValueError, match="closed"):
        writer.add(ENTRIES[0])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"{}\n", "line 1"),
        (b'{"kind":"state"}\n', "not a run record"),
        (b'{"kind":"meta","format_version":99,"meta":{}}\n', "format version"),
        (b'{"kind":"meta","format_version":1,"meta":{}}\n', "format version"),
        (b'{"kind":"meta","format_version":2,"meta":{}}\n{"kind":"nonsense"}\n{"kind":"meta","meta":{}}\n', "line 2"),
        (b'{"kind":"meta","format_version":2,"meta":{}}\n[1]\n{"kind":"meta","meta":{}}\n', "line 2"),
    ],
)
def test_bad_files_end_in_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        rec.RunRecord.load(path)


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        rec.RunRecord.load(tmp_path / "no")


def test_what_a_session_adds_at_the_end_is_of_the_same_format(tmp_path: Path) -> None:
    full_record().save(tmp_path / RECORD)
    record = complete_record(tmp_path, {"mode": "live", "ended_ns": 9}, [])
    assert record.meta["ended_ns"] == 9 and len(record.results) == 2


def test_state_changes_drop_repetitions() -> None:
    record = rec.RunRecord()
    nominal, l3 = DegradationState.NOMINAL, DegradationState.L3_PERCEPTION_ONLY
    for t, state in enumerate([nominal, nominal, l3, l3, nominal]):
        record.add(rec.StateRecord(t, state, nominal))
    assert [(s.t_ns, s.state) for s in record.state_changes()] == [(0, nominal), (2, l3), (4, nominal)]
