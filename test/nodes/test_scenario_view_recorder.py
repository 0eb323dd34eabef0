"""The vehicle, the view and the recorder, each alone in this process with a peer that plays the rest of the stack."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import Odometry
from node_peer import Peer
from sensor_msgs.msg import CompressedImage, Image
from visualization_msgs.msg import MarkerArray

from triptych.contract import (
    ConfigError,
    DegradationState,
    Detection,
    Detections,
    LatencySplit,
    MotionConstraint,
    Origin,
    Tier,
    TierResult,
    TriptychError,
    crc_ok,
    protect,
)
from triptych.nodes import convert, io, params, scenario_node, topics
from triptych.nodes.recorder_node import RecorderNode, free_path
from triptych.nodes.scenario_node import ScenarioNode, driver_events, scenario_config
from triptych.nodes.view_node import ViewNode
from triptych.replay.record import RunRecord
from triptych.scenario import DriverAction
from triptych_ros.msg import Detections as DetectionsMsg
from triptych_ros.msg import DriverState as DriverStateMsg
from triptych_ros.msg import MotionConstraint as MotionConstraintMsg


def constraint(
    limit: float, reason: str = "ok", state: DegradationState = DegradationState.NOMINAL
) -> MotionConstraint:
    return MotionConstraint(time.time_ns(), limit, 3.0, limit == 0, False, False, state, reason)


# -- scenario --------------------------------------------------------------------------------------------------------

SMALL = {"preset": "fixed", "width_px": 320, "height_px": 180, "start_speed_mps": 15.0}


def test_the_vehicle_publishes_and_stops_by_itself_when_nobody_speaks(peer: Peer) -> None:
    """A11: before the first constraint, and after the last one, the vehicle is in its safe default."""
    images = peer.hear(topics.CAMERA_IMAGE, Image)
    odometry = peer.hear(topics.ODOMETRY, Odometry, convert.odometry_from_msg)
    drivers = peer.hear(topics.DRIVER_STATE, DriverStateMsg, convert.driver_from_msg)
    reports = peer.hear(topics.DIAGNOSTICS, DiagnosticArray)
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.COMMAND.name, io.DATA_QOS)
    peer.start(ScenarioNode, "scenario", **SMALL)
    peer.until(lambda: images and len(odometry) > 3 and drivers)
    frame = convert.frame_from_image(images[-1], 1, 0)
    assert (frame.width, frame.height) == (320, 180) and frame.image.std() > 5
    assert crc_ok(drivers[-1]) and drivers[-1].present
    first = odometry[-1].speed_mps
    peer.until(lambda: odometry[-1].speed_mps < first - 0.3)

    count = 0

    def command() -> None:
        nonlocal count
        count += 1
        commands.publish(convert.constraint_to_msg(protect(constraint(20.0), count)))

    before = odometry[-1].speed_mps
    peer.until(lambda: odometry[-1].speed_mps > before + 0.5, command)

    def levels() -> list[tuple[int, str]]:
        return [(s.level[0], s.message) for r in reports for s in r.status if s.name == "triptych: vehicle"]

    peer.until(lambda: levels() and levels()[-1][0] == 0, command)
    quiet = time.monotonic()
    peer.until(lambda: levels()[-1][0] == 2)
    assert time.monotonic() - quiet < 3 and levels()[-1][1].startswith("safe default: no constraint for")
    driving = odometry[-1].speed_mps
    peer.until(lambda: odometry[-1].speed_mps < driving - 0.5)
    status = next(s for s in reports[-1].status if s.name == "triptych: vehicle")
    assert {v.key: v.value for v in status.values}["hazard lights"] == "true"


def test_a_corrupted_constraint_is_not_followed(peer: Peer) -> None:
    """A6: wrong CRC or NaN on the command topic never moves the vehicle."""
    odometry = peer.hear(topics.ODOMETRY, Odometry, convert.odometry_from_msg)
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.COMMAND.name, io.DATA_QOS)
    node = peer.start(ScenarioNode, "scenario", **{**SMALL, "start_speed_mps": 0.0})
    rows: list[Any] = []

    def command() -> None:
        good = protect(constraint(20.0), len(rows))
        rows.append(good)
        bad = convert.constraint_to_msg(good)
        bad.reason = "changed"
        commands.publish(bad)
        commands.publish(convert.constraint_to_msg(protect(constraint(float("nan")), len(rows))))

    peer.until(lambda: len(odometry) > 80, command)
    assert max(o.speed_mps for o in odometry) == 0.0
    assert node._guard.rejected > 10


def test_the_drive_ends_after_its_duration_counted_from_the_release(peer: Peer) -> None:
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.COMMAND.name, io.DATA_QOS)
    began = time.monotonic()
    node = peer.start(ScenarioNode, "scenario", **SMALL, duration_s=1.0)
    held = protect(constraint(0.0, state=DegradationState.INITIALISING), 1)
    peer.until(lambda: time.monotonic() - began > 2.5, lambda: commands.publish(convert.constraint_to_msg(held)))
    assert not node.notes.finished, "the supervisor has not let it start yet"
    released = protect(constraint(20.0), 2)
    peer.until(lambda: node.notes.finished, lambda: commands.publish(convert.constraint_to_msg(released)))
    assert node.failure is None


def test_driver_events() -> None:
    events = driver_events("0:attentive, 12.5:silent,30:take_over")
    assert [(e.t_s, e.action) for e in events] == [
        (0.0, DriverAction.ATTENTIVE),
        (12.5, DriverAction.SILENT),
        (30.0, DriverAction.TAKE_OVER),
    ]
    assert driver_events("") == ()
    for bad in ("silent", "x:silent", "1:asleep", "-1:silent"):
        with pytest.raises(ConfigError, match="driver_events"):
            driver_events(bad)


@pytest.mark.parametrize("preset", ["demo", "fixed", "random"])
def test_scenario_config(preset: str) -> None:
    config = scenario_config(params.ScenarioParams(preset=preset, seed=5, camera_rate_hz=10.0, start_speed_mps=-1.0))  # type: ignore[arg-type]
    assert (config.seed, config.fps, config.start_speed_mps) == (5, 10.0, None)
    assert scenario_node.PATIENCE_S > 0


# -- view ------------------------------------------------------------------------------------------------------------


def result(stamp_ns: int) -> TierResult:
    payload = Detections(640, 360, (Detection("vehicle", 0, 0.9, 200.0, 150.0, 400.0, 300.0),))
    return protect(
        TierResult(
            Tier.DETECTOR, Origin.FRESH, "", stamp_ns, "cam", 1, time.time_ns(), 5.0, LatencySplit(), "e", "1", "cpu",
            0.1, payload,
        ),
        1,
    )  # fmt: skip


def test_the_view_draws_when_somebody_looks_and_costs_nothing_otherwise(peer: Peer) -> None:
    camera = io.create_publisher(peer.node, Image, topics.CAMERA_IMAGE.name, io.SENSOR_OUT_QOS)
    results = io.create_publisher(peer.node, DetectionsMsg, topics.RESULTS[Tier.DETECTOR].name, io.DATA_QOS)
    peer.start(ViewNode, "view", width_px=320, rate_hz=20.0)
    grey = np.full((360, 640, 3), 120, np.uint8)

    def drive() -> None:
        now = time.time_ns()
        camera.publish(convert.image_to_msg(grey, now, "cam"))
        results.publish(convert.result_to_msg(result(now)))

    end = time.monotonic() + 1.0
    peer.until(lambda: time.monotonic() > end, drive)
    assert camera.get_subscription_count() == 0, "nobody looks, so the camera is not subscribed to"
    images = peer.hear(topics.VIEW_IMAGE, Image)
    jpegs = peer.hear(topics.VIEW_IMAGE_COMPRESSED, CompressedImage)
    markers = peer.hear(topics.VIEW_MARKERS, MarkerArray)
    peer.until(lambda: len(images) > 2 and len(jpegs) > 2 and any(len(m.markers) > 2 for m in markers), drive)
    image = convert.frame_from_image(images[-1], 1, 0).image
    assert image.shape == (180, 320, 3) and image.std() > 3, "something is drawn on the grey"
    assert convert.frame_from_compressed(jpegs[-1], 1, 0).image.shape == image.shape
    spaces = {m.ns for m in markers[-1].markers}
    assert {"detections", "state"} <= spaces
    assert all(m.header.frame_id == "base_link" for m in markers[-1].markers)


# -- recorder --------------------------------------------------------------------------------------------------------


def test_the_recorder_writes_record_and_bag(peer: Peer, tmp_path: Path) -> None:
    camera = io.create_publisher(peer.node, Image, topics.CAMERA_IMAGE.name, io.SENSOR_OUT_QOS)
    results = io.create_publisher(peer.node, DetectionsMsg, topics.RESULTS[Tier.DETECTOR].name, io.DATA_QOS)
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.CONSTRAINT.name, io.DATA_QOS)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metadata.yaml").write_text("of an older run\n")
    peer.start(RecorderNode, "recorder", folder=str(tmp_path), sample_period_s=0.1, cpu_period_s=0.2)
    sent: list[TierResult] = []
    rng = np.random.default_rng(4)

    def drive() -> None:
        now = time.time_ns()
        sent.append(result(now))
        results.publish(convert.result_to_msg(sent[-1]))
        commands.publish(convert.constraint_to_msg(protect(constraint(9.0), len(sent))))
        camera.publish(convert.image_to_msg(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8), now, "cam"))

    peer.until(lambda: len(sent) > 60, drive)
    time.sleep(0.3)
    peer.under_test.close()
    record = RunRecord.load(tmp_path / "record.jsonl")
    received = {r.result.source_stamp_ns: r for r in record.results}
    common = [r for r in sent if r.source_stamp_ns in received]
    assert len(common) > 20
    for r in common:
        assert received[r.source_stamp_ns].result == r and crc_ok(received[r.source_stamp_ns].result)
        assert 0 <= received[r.source_stamp_ns].t_ns - r.published_ns < 2_000_000_000
    assert len(record.constraints) > 20 and record.meta["ended_ns"] > record.meta["started_ns"]
    sample = record.sample_frames[-1]
    assert cv2.imdecode(np.frombuffer(sample.jpeg, np.uint8), cv2.IMREAD_COLOR).shape == (48, 64, 3)
    from rosbags.highlevel import AnyReader

    with AnyReader([tmp_path / "results"]) as reader:
        topics_in = {c.topic: c.msgcount for c in reader.connections}
    assert topics_in["/detector/result"] > 20 and topics_in["/supervisor/constraint"] > 20


def test_a_folder_that_cannot_be_written_ends_in_one_sentence(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TriptychError, match="cannot be written"):
        peer.start(RecorderNode, "recorder", folder=str(tmp_path / "file" / "run"))


def test_a_full_disk_ends_the_recording_with_a_sentence_and_no_half_bag(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node lives on and says so (test_full_disk.py has the real disk)."""
    node = peer.start(RecorderNode, "recorder", folder=str(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node._record, "_line", full)
    commands = io.create_publisher(peer.node, MotionConstraintMsg, topics.CONSTRAINT.name, io.DATA_QOS)
    peer.until(lambda: node.failure, lambda: commands.publish(convert.constraint_to_msg(protect(constraint(9.0), 1))))
    assert "No space left" in str(node.failure) and not node.notes.finished
    monkeypatch.undo()
    node.close()
    assert not (tmp_path / "results").exists() and RunRecord.load(tmp_path / "record.jsonl").meta["mode"] == "live"


def test_free_path(tmp_path: Path) -> None:
    assert free_path(tmp_path / "a.jsonl") == tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.part").write_text("")
    (tmp_path / "a_2.jsonl").write_text("")
    assert free_path(tmp_path / "a.jsonl") == tmp_path / "a_3.jsonl"
