"""Recordings as the core sees them: topics, order of time, stamps, options, and what is refused."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from pathlib import Path

import cv2
import numpy as np
import pytest
import zstandard
from bag_maker import MS, T0, bag, camera_rows, edit_metadata, image, merge, text, twist
from replay_data import CLIP, DATA, data, needs_data
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.typesys import Stores, get_typestore

from triptych.contract import DriverState, Frame, InputError, Odometry, crc_ok, protect
from triptych.replay.recording import VIDEO_EPOCH_NS, inspect, open_recording

IMAGE = "sensor_msgs/msg/Image"


def speeds(count: int = 20, topic: str = "odometry") -> list[tuple[str, int, object]]:
    return [(topic, T0 + i * 50 * MS, Odometry(T0 + i * 50 * MS, float(i))) for i in range(count)]


def read(path: Path, **options: object) -> list:
    with open_recording(path, **options) as recording:
        return list(recording.items())


# -- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_camera_speed_and_driver_come_in_order_of_time(tmp_path: Path, storage: str) -> None:
    drivers = [("driver/state", T0 + i * 100 * MS, protect(DriverState(T0 + i * 100 * MS), i)) for i in range(10)]
    path = bag(tmp_path / "b", merge(camera_rows(), speeds(), drivers), storage)
    with open_recording(path) as recording:
        assert recording.chosen == {
            "camera": "/camera/image_raw",
            "odometry": "/odometry",
            "driver": "/driver/state",
        }
        assert recording.missing == () and recording.warnings == []
        items = list(recording.items())
    assert len(items) == 50 and [i.t_ns for i in items] == sorted(i.t_ns for i in items)
    frames = [i.value for i in items if isinstance(i.value, Frame)]
    assert [f.stamp_ns for f in frames] == [T0 + i * 50 * MS for i in range(20)]
    assert all(i.t_ns == i.value.stamp_ns for i in items), "timed by stamp, not by time of recording"
    assert [i.value.speed_mps for i in items if isinstance(i.value, Odometry)] == [float(i) for i in range(20)]
    assert all(crc_ok(i.value) for i in items if isinstance(i.value, DriverState))


@pytest.mark.parametrize("name", ["geometry_msgs/msg/TwistStamped", "geometry_msgs/msg/TwistWithCovarianceStamped"])
def test_stamped_twists_are_speeds(tmp_path: Path, name: str) -> None:
    rows = merge(camera_rows(2), [("vehicle/twist", T0 + 20 * MS, twist(T0 + 20 * MS, -1.5, name))])
    values = [i.value for i in read(bag(tmp_path / "b", rows)) if isinstance(i.value, Odometry)]
    assert values == [Odometry(T0 + 20 * MS, -1.5)]


def test_odometry_is_preferred_over_a_twist_and_the_choice_is_said(tmp_path: Path) -> None:
    rows = merge(camera_rows(2), speeds(2, "wheels"), [("a_twist", T0, twist(T0, 1.0))])
    with open_recording(bag(tmp_path / "b", rows)) as recording:
        assert recording.chosen["odometry"] == "/wheels"
        assert "read from /wheels; --topic odometry= chooses among it and /a_twist" in recording.warnings[0]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["front/image"], "/front/image"),
        (["front/image", "camera/image_raw"], "/camera/image_raw"),
        (["front/image", "front/depth/image_raw", "infra1/image"], "/front/image"),
        (["front/image", "front/image_annotated"], "/front/image"),
        (["depth/image_raw"], "/depth/image_raw"),
    ],
)
def test_automatic_choice_of_the_camera(tmp_path: Path, names: list[str], chosen: str) -> None:
    path = bag(tmp_path / "b", merge(*(camera_rows(2, topic=n) for n in names)))
    with open_recording(path) as recording:
        assert recording.chosen["camera"] == chosen
    assert [t.name for t in inspect(path).topics if t.role == "camera"] == [chosen]


def test_several_cameras_are_named_and_one_can_be_chosen(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", merge(camera_rows(2, topic="left/image"), camera_rows(3, topic="right/image")))
    with pytest.raises(InputError, match=r"2 possible camera topics.*/left/image, /right/image.*--topic camera=/left"):
        open_recording(path)
    assert len(read(path, topics={"camera": "right/image"})) == 3
    assert len(read(path, topics={"camera": "/left/image"})) == 2


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ({"camera": "/nose"}, r"has no topic /nose \(got 'camera=/nose'\); name one of /camera/image_raw"),
        ({"camera": "/chatter"}, r"/chatter is a std_msgs/msg/String .*; name one of type sensor_msgs/msg/Image or"),
        ({"odometry": "/camera/image_raw"}, "is a sensor_msgs/msg/Image"),
        ({"driver": "/d"}, "it has no topic that could be the driver"),
        ({"lidar": "/x"}, r"topic: is not an input \(got 'lidar=/x'\); use one of camera, odometry, driver"),
        ({"camera": ""}, "replay needs a camera"),
    ],
)
def test_bad_mappings_end_in_one_sentence(tmp_path: Path, topics: dict[str, str], words: str) -> None:
    path = bag(tmp_path / "b", merge(camera_rows(2), speeds(2), [("chatter", T0, text())]))
    with pytest.raises(InputError, match=words):
        open_recording(path, topics)


def test_a_role_can_be_left_out(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", merge(camera_rows(2), speeds(2)))
    with open_recording(path, {"odometry": ""}) as recording:
        assert recording.missing == ("odometry", "driver")
        assert len(list(recording.items())) == 2


def test_no_camera_names_what_is_there(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", [("chatter", T0, text())])
    with pytest.raises(InputError, match=r"no camera topic.*'/chatter \(std_msgs/msg/String\)'.*from-video"):
        open_recording(path)


# -- time -----------------------------------------------------------------------------------------------------------


def test_messages_recorded_out_of_order_are_sorted_by_stamp(tmp_path: Path) -> None:
    late = ("odometry", T0 + 180 * MS, Odometry(T0 + 20 * MS, 1.0))
    items = read(bag(tmp_path / "b", merge(camera_rows(6), [late])))
    assert [i.t_ns - T0 for i in items] == [0, 20 * MS, 50 * MS, 100 * MS, 150 * MS, 200 * MS, 250 * MS]


def test_repeated_and_backward_stamps_stay_as_they_are(tmp_path: Path) -> None:
    """A5, A12: replay must show such faults, not repair them."""
    stamps = [0, 50, 50, 100, 60, 150]
    rows = [("camera/image_raw", T0 + i * 50 * MS, image(T0 + s * MS)) for i, s in enumerate(stamps)]
    items = read(bag(tmp_path / "b", rows))
    assert [i.value.stamp_ns - T0 for i in items] == [s * MS for s in stamps]
    assert [i.t_ns - T0 for i in items] == [0, 50 * MS, 100 * MS, 100 * MS, 150 * MS, 150 * MS]


@pytest.mark.parametrize("jump_ms", [3000, -3000])
def test_a_step_of_the_cameras_clock_stays_in_the_stamps_only(tmp_path: Path, jump_ms: int) -> None:
    """A12: what was recorded a second later is played a second later, whatever its stamp says."""
    rows = [
        ("camera/image_raw", T0 + i * 50 * MS, image(T0 + (i * 50 + (jump_ms if i >= 4 else 0)) * MS)) for i in range(8)
    ]
    items = read(bag(tmp_path / "b", rows))
    assert [i.t_ns - T0 for i in items] == [n * 50 * MS for n in range(8)]
    assert [(i.value.stamp_ns - i.t_ns) // MS for i in items] == [0] * 4 + [jump_ms] * 4


@pytest.mark.parametrize("stamp_ns", [0, 5_000_000_000])
def test_stamps_of_another_clock_give_way_to_the_time_of_recording(tmp_path: Path, stamp_ns: int) -> None:
    rows = [("camera/image_raw", T0 + i * 50 * MS, image(stamp_ns)) for i in range(4)]
    with open_recording(bag(tmp_path / "b", rows)) as recording:
        assert [i.value.stamp_ns for i in recording.items()] == [T0 + i * 50 * MS for i in range(4)]
        assert "/camera/image_raw: stamped by another clock" in recording.warnings[0]
        list(recording.items())
        assert len(recording.warnings) == 1


def test_driver_states_moved_to_another_time_keep_their_crc_right_or_wrong(tmp_path: Path) -> None:
    good = protect(DriverState(5), 1)
    bad = DriverState(6, attentive=False, crc=1)
    rows = merge(camera_rows(2), [("driver/state", T0, good), ("driver/state", T0 + MS, bad)])
    drivers = [i.value for i in read(bag(tmp_path / "b", rows)) if isinstance(i.value, DriverState)]
    assert [crc_ok(d) for d in drivers] == [True, False]
    assert [d.stamp_ns for d in drivers] == [T0, T0 + MS]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize(
    ("start_s", "duration_s", "first", "count"),
    [(0.0, None, 0, 20), (0.5, None, 10, 10), (0.25, 0.2, 5, 4), (0.9, 5.0, 18, 2)],
)
def test_start_and_duration(
    tmp_path: Path, storage: str, start_s: float, duration_s: float | None, first: int, count: int
) -> None:
    rows = [(t, n - 7 * MS, c) for t, n, c in camera_rows()]
    with open_recording(bag(tmp_path / "b", rows, storage)) as recording:
        frames = [i.value for i in recording.items(start_s, duration_s)]
        again = [i.value.stamp_ns for i in recording.items(start_s, duration_s)]
    assert [f.stamp_ns for f in frames] == [T0 + i * 50 * MS for i in range(first, first + count)] == again
    assert [f.number for f in frames] == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("start_s", "duration_s"),
    [(-1.0, None), (math.nan, None), (math.inf, None), (0.0, 0.0), (0.0, -1.0), (0.0, math.nan)],
)
def test_options_out_of_range(tmp_path: Path, start_s: float, duration_s: float | None) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(2))) as recording, pytest.raises(InputError, match="must be"):
        next(recording.items(start_s, duration_s))


# -- contents that cannot be used -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"height": 0}, "height: must be 1..8192"),
        ({"encoding": "16UC1"}, "encoding: is an image encoding"),
        ({"step": 95}, "step: must be at least 96"),
        ({"data": np.zeros(10, np.uint8)}, "data: must hold"),
    ],
)
def test_bad_images_in_a_bag_name_bag_topic_and_field(tmp_path: Path, change: dict[str, object], words: str) -> None:
    rows = [*camera_rows(2), ("camera/image_raw", T0 + 200 * MS, image(T0 + 200 * MS, **change))]
    path = bag(tmp_path / "b", rows)
    with pytest.raises(InputError, match=words) as caught:
        read(path)
    assert str(path) in str(caught.value) and "/camera/image_raw message 3" in str(caught.value)


@pytest.mark.parametrize("speed_mps", [math.nan, math.inf, -math.inf])
def test_speeds_that_are_no_numbers(tmp_path: Path, speed_mps: float) -> None:
    rows = merge(camera_rows(2), [("odometry", T0, Odometry(T0, speed_mps))])
    path = bag(tmp_path / "b", rows)
    with pytest.raises(InputError, match=r"twist.linear.x: is not a finite number .*--salvage"):
        read(path)
    values = [i.value for i in read(path, salvage=True) if isinstance(i.value, Odometry)]
    assert len(values) == 1 and math.isnan(values[0].speed_mps)


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x00\x01\x00\x00abc", b"\xff" * 200])
def test_bytes_that_are_no_message(tmp_path: Path, content: bytes) -> None:
    path = bag(tmp_path / "b", [*camera_rows(2), ("camera/image_raw", T0 + 200 * MS, (IMAGE, content))])
    with pytest.raises(InputError, match=r"is not a sensor_msgs/msg/Image.*record it again"):
        read(path)


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_foreign_serialisation_of_the_camera(tmp_path: Path, storage: str) -> None:
    path = bag(tmp_path / "b", camera_rows(2), storage)
    edit_metadata(path, {"serialization_format: cdr": "serialization_format: protobuf"})
    with pytest.raises(InputError, match=r"camera topic /camera/image_raw.*cannot be read \(got 'protobuf'\)"):
        open_recording(path)
    assert "protobuf" in inspect(path).problems[0]


def test_foreign_serialisation_of_another_topic_does_no_harm(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", merge(camera_rows(2), [("chatter", T0, text())]), "sqlite3")
    with sqlite3.connect(path / "b.db3") as connection:
        connection.execute("UPDATE topics SET serialization_format = 'json' WHERE name = '/chatter'")
    connection.close()
    assert len(read(path)) == 2


def test_fewer_messages_than_the_metadata_says(tmp_path: Path) -> None:
    """The sentence names both counts; with --salvage what is there is played and the sentence is a warning."""
    path = bag(tmp_path / "b", camera_rows(5), "sqlite3")
    with sqlite3.connect(path / "b.db3") as connection:
        connection.execute("DELETE FROM messages WHERE id > 3")
    connection.close()
    with pytest.raises(InputError, match=r"holds 3 of the 5 messages promised on /camera/image_raw.*--salvage"):
        open_recording(path)
    with open_recording(path, salvage=True) as recording:
        assert len(list(recording.items())) == 3 and "3 of the 5" in recording.warnings[0]


def test_more_messages_than_the_metadata_says_is_a_warning(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", camera_rows(5))
    edit_metadata(path, {"message_count: 5": "message_count: 4"})
    with open_recording(path) as recording:
        assert len(list(recording.items())) == 5 and "holds 5 messages, its metadata says 4" in recording.warnings[0]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_an_mcap_cut_off_anywhere_can_be_salvaged(tmp_path: Path, share: float) -> None:
    """A recorder that was killed: the chunks that are whole are read."""
    path = bag(
        tmp_path / "b", [(t, n, image(T0 + i * 50 * MS, **big(i))) for i, (t, n, _) in enumerate(camera_rows(8))]
    )
    file = path / "b.mcap"
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(InputError, match="is truncated: the closing record is missing"):
        open_recording(path)
    with open_recording(file, salvage=True) as recording:
        frames = [i.value for i in recording.items()]
    assert len(frames) == int(8 * share) or len(frames) == round(8 * share)
    assert [int(f.image[0, 0, 0]) for f in frames] == list(range(len(frames)))


def big(value: int) -> dict[str, object]:
    """Fields of a picture of 1.1 MB, so that every message gets a chunk of its own."""
    return {"width": 800, "height": 480, "step": 2400, "data": np.full(480 * 2400, value, np.uint8)}


def test_a_flipped_bit_in_a_chunk_is_noticed(tmp_path: Path) -> None:
    from mcap.writer import Writer

    name, content = image(T0)
    with (tmp_path / "x.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema(name, "ros2msg", b"")
        channel = writer.register_channel("/camera/image_raw", "cdr", schema)
        for i in range(3):
            writer.add_message(channel, T0 + i, content, T0 + i)
        writer.finish()
    assert len(read(tmp_path / "x.mcap")) == 3
    raw = bytearray((tmp_path / "x.mcap").read_bytes())
    raw[raw.index(b"\x28\xb5\x2f\xfd") + 40] ^= 0xFF  # inside the compressed chunk
    (tmp_path / "x.mcap").write_bytes(raw)
    with pytest.raises(InputError, match="is damaged"):
        read(tmp_path / "x.mcap")


def test_messages_left_in_the_write_ahead_log(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", camera_rows(3), "sqlite3")
    (path / "b.db3-wal").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=r"b.db3-wal: holds messages that were not merged"):
        open_recording(path)


def test_an_sqlite_file_that_is_no_bag(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db3") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(InputError, match="has no table 'messages', so it is no rosbag2 file"):
        open_recording(tmp_path / "x.db3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"message_count: 2": "message_count: many"}, "message_count: is missing or of the wrong type"),
        ({"storage_identifier: mcap": "storage_identifier: 3"}, "storage_identifier: is missing or of the wrong type"),
        ({"- b.mcap\n": "- gone.mcap\n"}, r"names 1 storage file\(s\) that do not exist \(got 'gone.mcap'\)"),
        ({"rosbag2_bagfile_information:": "other:"}, "rosbag2_bagfile_information: is missing"),
    ],
)
def test_wrong_metadata(tmp_path: Path, change: dict[str, str], words: str) -> None:
    path = bag(tmp_path / "b", camera_rows(2))
    edit_metadata(path, change)
    with pytest.raises(InputError, match=words):
        open_recording(path)


def test_metadata_cannot_point_outside_the_folder(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", camera_rows(2))
    shutil.copy(path / "b.mcap", tmp_path / "secret.mcap")
    edit_metadata(path, {"- b.mcap": "- ../secret.mcap"})
    with pytest.raises(InputError, match="do not exist"):
        open_recording(path)


@pytest.mark.parametrize("mode", ["file", "message"])
def test_compressed_bags(tmp_path: Path, mode: str) -> None:
    packer = zstandard.ZstdCompressor()
    rows = camera_rows(3)
    path = bag(tmp_path / "b", rows, "sqlite3")
    if mode == "file":
        (path / "b.db3.zstd").write_bytes(packer.compress((path / "b.db3").read_bytes()))
        (path / "b.db3").unlink()
        edit_metadata(path, {"b.db3": "b.db3.zstd"})
    else:
        with sqlite3.connect(path / "b.db3") as connection:
            for key, content in connection.execute("SELECT id, data FROM messages").fetchall():
                connection.execute("UPDATE messages SET data = ? WHERE id = ?", (packer.compress(content), key))
        connection.close()
    edit_metadata(
        path,
        {
            "compression_mode: ''": f"compression_mode: {mode.upper()}",
            "compression_format: ''": "compression_format: zstd",
        },
    )
    before = sorted(p.name for p in path.iterdir())
    assert len(read(path)) == 3
    assert sorted(p.name for p in path.iterdir()) == before
    edit_metadata(path, {"compression_format: zstd": "compression_format: lzma"})
    with pytest.raises(InputError, match=r"only zstd can be unpacked \(got 'lzma'\)"):
        open_recording(path)


def test_read_only_folder(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", camera_rows(3), "sqlite3")
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    try:
        assert len(read(path)) == 3
        assert sorted(p.name for p in path.iterdir()) == ["b.db3", "metadata.yaml"]
    finally:
        path.chmod(0o755)


# -- other kinds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "bz2", "lz4"])
def test_ros1_bags(tmp_path: Path, compression: str) -> None:
    store = get_typestore(Stores.ROS1_NOETIC)
    path = tmp_path / "drive.bag"
    writer = Ros1Writer(path)
    if compression != "none":
        writer.set_compression(getattr(Ros1Writer.CompressionFormat, compression.upper()))
    types = store.types
    with writer:
        connection = writer.add_connection("/camera/image_raw", IMAGE, typestore=store)
        for i in range(4):
            stamp = types["builtin_interfaces/msg/Time"](sec=T0 // 10**9, nanosec=i * 50 * MS)
            message = types[IMAGE](
                header=types["std_msgs/msg/Header"](seq=i, stamp=stamp, frame_id="front"),
                height=2, width=2, encoding="mono8", is_bigendian=0, step=2, data=np.full(4, i, np.uint8),
            )  # fmt: skip
            writer.write(connection, T0 + i * 50 * MS, store.serialize_ros1(message, IMAGE))
    frames = [i.value for i in read(path)]
    assert [f.stamp_ns for f in frames] == [T0 + i * 50 * MS for i in range(4)]
    assert [int(f.image.max()) for f in frames] == [0, 1, 2, 3] and frames[0].frame_id == "front"
    info = inspect(path)
    assert info.kind == "ros1" and info.message_count == 4 and info.duration_s == pytest.approx(0.15)


@needs_data
@pytest.mark.parametrize(
    ("name", "frames", "size", "last_s"),
    [
        (CLIP, 221, (960, 540), 8.8),
        ("video/intel_overhead_cars_768x432_12fps.mp4", 377, (768, 432), 30.08),
        ("video/intel_person_bicycle_car_480x270_41frames.gif", 41, (480, 270), 3.33),
    ],
)
def test_real_videos(name: str, frames: int, size: tuple[int, int], last_s: float) -> None:
    with open_recording(data(name)) as recording:
        assert recording.missing == ("odometry", "driver")
        stamps = [(i.value.width, i.value.height, i.t_ns) for i in recording.items()]
        assert recording.warnings == []
        assert recording.info.message_count == frames and recording.info.kind == "video"
    assert len(stamps) == frames and {s[:2] for s in stamps} == {size}
    times = [t for *_, t in stamps]
    assert times[0] == VIDEO_EPOCH_NS and times == sorted(set(times))
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(last_s, abs=0.01)


@needs_data
def test_a_video_from_the_middle() -> None:
    with open_recording(data(CLIP)) as recording:
        items = list(recording.items(2.0, 0.4))
    assert [(i.t_ns - VIDEO_EPOCH_NS) // MS for i in items] == [2000 + 40 * i for i in range(10)]


def test_images_play_in_natural_order(tmp_path: Path) -> None:
    for i in (10, 9, 2, 1):
        cv2.imwrite(str(tmp_path / f"img{i}.png"), np.full((4, 6, 3), i, np.uint8))
    (tmp_path / "notes.txt").write_text("not a picture")
    with open_recording(tmp_path) as recording:
        items = list(recording.items())
        assert [int(i.value.image[0, 0, 0]) for i in items] == [1, 2, 9, 10]
        assert [(i.t_ns - VIDEO_EPOCH_NS) // MS for i in items] == [0, 50, 100, 150]
        assert recording.info.kind == "images"


@needs_data
def test_real_stills() -> None:
    with open_recording(DATA / "images" / "udacity", fps=2.0) as recording:
        items = list(recording.items())
    assert len(items) == 14 and items[1].t_ns - items[0].t_ns == 500 * MS


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.mp4", b"", "is empty"),
        ("x.mp4", b"not a video" * 100, "is not a video that can be decoded"),
        ("x.gif", b"GIF89a", "is not a video|holds no frame"),
        ("x.png", b"abc", "is a single image"),
        ("x.txt", b"abc", "is not a recording"),
        ("x", b"abc", "is not a recording"),
        ("x.db3", b"abc", "is not a SQLite file"),
        ("x.mcap", b"abc", "is not an MCAP file"),
        ("x.bag", b"abc", "is not a ROS 1 bag"),
        ("x.db3.zstd", b"abc", "is damaged"),
    ],
)
def test_files_that_are_nothing(tmp_path: Path, name: str, content: bytes, words: str, capfd: object) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for function in (open_recording, inspect):
        with pytest.raises(InputError, match=words) as caught:
            function(path)
        assert "\n" not in str(caught.value) and "; " in str(caught.value)


def test_truncated_video(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With its index at the front, a cut video plays as far as it goes and says so; without, it cannot be opened."""
    whole = data(CLIP).read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole[: len(whole) // 2])
    with open_recording(path) as recording:
        count = len(list(recording.items()))
        assert 50 < count < 200
        assert f"{count} of 221 frames could be decoded" in recording.warnings[0]
    path.write_bytes(whole[:600])
    with pytest.raises(InputError, match="is not a video that can be decoded, or is truncated"):
        open_recording(path)
    assert capfd.readouterr() == ("", "")


def test_a_broken_image_in_a_folder_is_named(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a1.png"), np.zeros((4, 6, 3), np.uint8))
    (tmp_path / "a2.png").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"a2.png: is not an image"):
        read(tmp_path)


def test_folders_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; check the path"):
        open_recording(tmp_path / "no")
    with pytest.raises(InputError, match="holds nothing that can be played"):
        open_recording(tmp_path)
    (tmp_path / "drive.bag").write_bytes(b"x")
    with pytest.raises(InputError, match=r"is no recording itself; name the file, e.g. .*drive.bag"):
        open_recording(tmp_path)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    path = bag(tmp_path / "b", camera_rows(2))
    with pytest.raises(InputError, match="fps: is only for a folder of images"):
        open_recording(path, fps=10.0)
    cv2.imwrite(str(tmp_path / "a1.png"), np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(InputError, match="a folder of images has no topics"):
        open_recording(tmp_path, {"camera": "/x"})


def test_data_hash_follows_the_content(tmp_path: Path) -> None:
    first, second = bag(tmp_path / "b", camera_rows(2)), bag(tmp_path / "sub" / "b", camera_rows(3))
    with open_recording(first) as a, open_recording(second) as b:
        assert a.data_hash() != b.data_hash() and a.data_hash() == a.data_hash()
    shutil.copytree(first, tmp_path / "elsewhere" / "b")
    with open_recording(first) as a, open_recording(tmp_path / "elsewhere" / "b") as c:
        assert a.data_hash() == c.data_hash()
