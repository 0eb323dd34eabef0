"""Bags that we write: complete, playable, and read back by three independent readers."""

from __future__ import annotations

import errno
from pathlib import Path

import cv2
import numpy as np
import pytest
import rosbags.rosbag2
import yaml
from mcap.reader import make_reader
from replay_data import CLIP, data

from triptych.contract import (
    DegradationState,
    Detection,
    Detections,
    DriverState,
    Frame,
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
    TriptychError,
    VerdictLevel,
    protect,
    supervision,
)
from triptych.contract.result import NOT_COUNTED
from triptych.replay import messages
from triptych.replay.record import StateRecord, VerdictRecord
from triptych.replay.recording import VIDEO_EPOCH_NS, inspect, open_recording
from triptych.replay.writer import BagWriter, from_video

T0 = 1_700_000_000_123_456_789
SPLIT = LatencySplit(1.0, 2.0, 3.0, 4.0)


def result(tier: Tier, payload: Detections | SceneAdvice) -> TierResult:
    raw = TierResult(tier, Origin.FRESH, "", T0 - 5, "cam", 3, T0, 15.0, SPLIT, "engine", "1.0", "cpu", 0.25, payload)
    return protect(raw, 7)


RECORDS = {
    "detector/result": result(Tier.DETECTOR, Detections(640, 360, (Detection("car", 0, 0.75, 1.0, 2.0, 30.5, 40.25),))),
    "full/result": result(
        Tier.FULL,
        SceneAdvice(
            hazards=(Hazard.RED_LIGHT, Hazard.WORKS),
            vehicles=9,
            two_wheelers=0,
            pedestrians=2,
            text="Rot — stopp",
            token_probabilities=(0.5,),
        ),
    ),
    "distilled/result": result(Tier.DISTILLED, SceneAdvice(text="counts nothing")),
    "detector/status": protect(TierStatus(T0, Tier.DETECTOR, TierState.ACTIVE, True, frames_received=9), 1),
    "supervisor/constraint": protect(
        MotionConstraint(T0, 13.0, 2.0, True, False, True, DegradationState.NOMINAL, "because"), 2
    ),
    "supervisor/state": protect(
        supervision.StateRecord(T0, DegradationState.MRC, DegradationState.NOMINAL, T0 - 9, "why", ("a", "b")), 3
    ),
    "state_of_record": StateRecord(T0, DegradationState.NOMINAL, DegradationState.INITIALISING, "ready", ("x",)),
    "supervisor/verdicts": VerdictRecord(T0, "late", "detector", VerdictLevel.FAULT, True, 0.5, 0.03, "too late"),
    "driver/state": protect(DriverState(T0, attentive=False), 4),
    "odometry": Odometry(T0, 12.5),
}


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_every_record_can_be_written_and_read_elsewhere(tmp_path: Path, storage: str) -> None:
    folder = tmp_path / "results"
    with BagWriter(folder, storage=storage, latched=["supervisor/state"]) as bag:
        for index, (topic, record) in enumerate(RECORDS.items()):
            bag.write_record(topic, record, T0 + index)
    assert inspect(folder).problems == () and inspect(folder).message_count == len(RECORDS)
    seen = {}
    with rosbags.rosbag2.Reader(folder) as reader:
        for connection, t_ns, raw in reader.messages():
            seen[connection.topic] = (t_ns, messages.typestore().deserialize_cdr(raw, connection.msgtype))
            assert connection.digest.startswith("RIHS01_") and connection.ext.serialization_format == "cdr"
            latched = connection.ext.offered_qos_profiles[0].durability.name == "TRANSIENT_LOCAL"
            assert latched == (connection.topic == "/supervisor/state")
    assert sorted(seen) == sorted("/" + t for t in RECORDS)
    assert [t for t, _ in seen.values()] == [T0 + i for i in range(len(RECORDS))]
    boxes = seen["/detector/result"][1]
    assert boxes.detections[0].label == "car" and boxes.detections[0].y_max == 40.25 and boxes.result.crc
    assert messages.stamp_of(boxes.result) == T0 - 5
    advice = seen["/full/result"][1]
    assert advice.text == "Rot — stopp" and list(advice.hazards) == [5, 6] and list(advice.token_probabilities) == [0.5]
    assert (advice.vehicles, advice.two_wheelers, advice.pedestrians) == (9, 0, 2)
    uncounted = seen["/distilled/result"][1]
    assert (uncounted.vehicles, uncounted.two_wheelers, uncounted.pedestrians) == (NOT_COUNTED,) * 3
    assert seen["/detector/status"][1].frames_received == 9
    assert seen["/supervisor/constraint"][1].speed_limit_mps == 13.0
    assert list(seen["/supervisor/state"][1].active_faults) == ["a", "b"]
    assert seen["/supervisor/verdicts"][1].verdicts[0].threshold == 0.03
    assert seen["/odometry"][1].twist.twist.linear.x == 12.5
    assert messages.driver_of(seen["/driver/state"][1]) == RECORDS["driver/state"]


def test_mcap_is_what_foxglove_and_ros2_bag_expect(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    with BagWriter(folder) as bag:
        for topic, record in RECORDS.items():
            bag.write_record(topic, record, T0)
    assert sorted(p.name for p in folder.iterdir()) == ["metadata.yaml", "results.mcap"]
    info = yaml.safe_load((folder / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    assert info["storage_identifier"] == "mcap" and info["relative_file_paths"] == ["results.mcap"]
    assert info["message_count"] == len(RECORDS) and info["starting_time"]["nanoseconds_since_epoch"] == T0
    with (folder / "results.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert summary.statistics.message_count == len(RECORDS)
        assert {c.message_encoding for c in summary.channels.values()} == {"cdr"}
        assert {s.encoding for s in summary.schemas.values()} == {"ros2msg"}
        schema = next(s for s in summary.schemas.values() if s.name == "triptych_ros/msg/Detections")
        assert b"MSG: triptych_ros/ResultHeader" in schema.data and b"MSG: std_msgs/Header" in schema.data
        assert [m.name for m in reader.iter_metadata()] == ["rosbag2"]


def test_nothing_carries_the_name_before_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    bag = BagWriter(folder)
    bag.write_record("odometry", Odometry(T0, 1.0), T0)
    assert not folder.exists()
    bag.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        bag.write_record("odometry", Odometry(T0, 1.0), T0)


def test_ctrl_c_keeps_a_valid_bag_and_an_error_keeps_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BagWriter(tmp_path / "kept") as bag:
        bag.write_record("odometry", Odometry(T0, 1.0), T0)
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError), BagWriter(tmp_path / "dropped") as bag:
        bag.write_record("odometry", Odometry(T0, 1.0), T0)
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]
    assert inspect(tmp_path / "kept").message_count == 1 and inspect(tmp_path / "kept").problems == ()


def test_existing_bags_are_only_replaced_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for speed in (1.0, 2.0):
        with BagWriter(folder, overwrite=True) as bag:
            for _ in range(round(speed)):
                bag.write_record("odometry", Odometry(T0, speed), T0)
    assert inspect(folder).message_count == 2
    with pytest.raises(InputError, match="exists already"):
        BagWriter(folder)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.txt").write_text("mine")
    with pytest.raises(InputError, match="not a recording"):
        BagWriter(other, overwrite=True)
    assert (other / "holiday.txt").read_text() == "mine"


def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bag = BagWriter(tmp_path / "results")
    monkeypatch.setattr(bag._writer, "write", full)
    with pytest.raises(TriptychError, match="cannot be written: No space left on device; check"), bag:
        bag.write_record("odometry", Odometry(T0, 1.0), T0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"), [({"storage": "tape"}, "storage: is unknown"), ({"folder": "/proc/nowhere/x"}, "cannot be")]
)
def test_bad_targets_end_in_one_sentence(tmp_path: Path, arguments: dict[str, str], words: str) -> None:
    with pytest.raises(TriptychError, match=words):
        BagWriter(**{"folder": tmp_path / "x", **arguments})


def test_unknown_and_changing_types_are_refused(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "x") as bag:
        with pytest.raises(InputError, match="unknown type"):
            bag.write("a", "no_msgs/msg/Such", b"", T0)
        bag.write_record("a", Odometry(T0, 1.0), T0)
        with pytest.raises(InputError, match=r"was nav_msgs/msg/Odometry before"):
            bag.write_record("a", RECORDS["driver/state"], T0)
        with pytest.raises(TypeError):
            bag.write_record("b", 3, T0)
    assert inspect(tmp_path / "x").message_count == 1


def images(folder: Path, count: int = 12, size: tuple[int, int] = (32, 48)) -> Path:
    """A folder of images whose brightness is their number; named so that plain sorting would mix them up."""
    folder.mkdir()
    for index in range(count):
        cv2.imwrite(str(folder / f"frame_{index}.png"), np.full((*size, 3), index * 10, np.uint8))
    return folder


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_camera_bag_from_images_comes_back(tmp_path: Path, storage: str, compressed: bool) -> None:
    source = images(tmp_path / "pictures")
    steps: list[tuple[int, int]] = []
    out = from_video(
        source, tmp_path / "bag", storage=storage, compressed=compressed, fps=10, progress=lambda *s: steps.append(s)
    )
    assert steps == [(i, 12) for i in range(1, 13)]
    with open_recording(out) as recording:
        assert recording.chosen == {"camera": "/camera/image_raw" + ("/compressed" if compressed else "")}
        assert recording.missing == ("odometry", "driver") and recording.warnings == []
        frames = [i.value for i in recording.items()]
    assert all(isinstance(f, Frame) for f in frames)
    assert [f.number for f in frames] == list(range(1, 13))
    assert [f.stamp_ns for f in frames] == [VIDEO_EPOCH_NS + i * 100_000_000 for i in range(12)]
    assert [round(float(f.image.mean()) / 10) for f in frames] == list(range(12))
    assert frames[0].frame_id == "camera_optical_frame" and frames[0].image.shape == (32, 48, 3)
    with rosbags.rosbag2.Reader(out) as reader:
        assert reader.message_count == sum(1 for _ in reader.messages()) == 12


def test_camera_bag_of_a_real_clip(tmp_path: Path) -> None:
    out = from_video(data(CLIP), tmp_path / "bag", duration_s=1.0, start_s=0.5)
    info = inspect(out)
    assert info.message_count == 25 and info.duration_s == pytest.approx(0.96)
    with open_recording(out) as recording, open_recording(data(CLIP)) as clip:
        pairs = list(zip(recording.items(), clip.items(0.52, 1.0)))
    assert all(a.t_ns == b.t_ns for a, b in pairs) and len(pairs) == 25
    assert np.abs(pairs[3][0].value.image.astype(int) - pairs[3][1].value.image).mean() < 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quality": 0}, "quality: must be 1..100"),
        ({"topic": "/"}, "topic: is no topic name"),
        ({"topic": "a b"}, "topic: is no topic name"),
        ({"start_s": 100.0}, "start: is beyond the end"),
        ({"start_s": float("nan")}, "start: must be 0 or more"),
        ({"duration_s": 0.0}, "duration: must be above 0"),
        ({"storage": "tape"}, "storage: is unknown"),
        ({"fps": 0.0}, "fps: must be above 0"),
        ({"fps": float("inf")}, "fps: must be above 0"),
    ],
)
def test_from_video_refuses_bad_options_and_leaves_nothing(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    source = images(tmp_path / "pictures", 3)
    with pytest.raises(InputError, match=words):
        from_video(source, tmp_path / "bag", **change)
    assert [p.name for p in tmp_path.iterdir()] == ["pictures"]


def test_from_video_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    source = images(tmp_path / "pictures", 3)
    with pytest.raises(KeyboardInterrupt):
        from_video(source, tmp_path / "bag", progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["pictures"]


def test_from_video_wants_a_video(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as bag:
        bag.write_record("odometry", Odometry(T0, 1.0), T0)
    with pytest.raises(InputError, match="is not a video"):
        from_video(tmp_path / "bag", tmp_path / "out")
