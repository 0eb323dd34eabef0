"""Every recording of the data folder, valid or broken, with what must come of it.

The table is complete: a recording without a row fails ``test_every_recording_has_a_row``. Damaged bags, and those with
fewer messages than their metadata says, end in one sentence with file, field, value and remedy.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from replay_data import DATA, data, needs_data

from triptych.contract import InputError, TriptychError
from triptych.replay.recording import inspect, open_recording
from triptych.replay.storage import open_store

SUITE = "bags/rosbag2_suite"
PY = f"{SUITE}/rosbag2_py"
TESTS = f"{SUITE}/rosbag2_tests"
NO_CAMERA = "no camera topic"

# path -> number of messages; all of these are sound and have no camera.
SOUND: dict[str, int] = {
    "bags/ros1/example.bag": 8647,
    "bags/ros1/example-bz2.bag": 8647,
    "bags/ros1/example-lz4.bag": 8647,
    f"{SUITE}/rosbag2_cpp/only_services.mcap": 12,
    f"{SUITE}/rosbag2_cpp/only_topics.mcap": 7,
    f"{SUITE}/rosbag2_cpp/topics_and_services.db3": 13,
    f"{SUITE}/rosbag2_cpp/topics_and_services.mcap": 13,
    f"{PY}/mcap/convert_a": 150,
    f"{PY}/mcap/convert_a/rewriter_a_0.mcap": 150,
    f"{PY}/mcap/convert_b": 75,
    f"{PY}/mcap/convert_b/rewriter_b_0.mcap": 75,
    f"{PY}/mcap/reindex_test_bags/multiple_files/multiple_files_0.mcap": 1324,
    f"{PY}/mcap/reindex_test_bags/multiple_files/multiple_files_1.mcap": 1324,
    f"{PY}/mcap/reindex_test_bags/multiple_files/multiple_files_2.mcap": 529,
    f"{PY}/mcap/wbag": 6074,
    **{f"{PY}/mcap/wbag/wbag_{i}.mcap": n for i, n in enumerate((1246, 1240, 1240, 1240, 1108))},
    f"{PY}/sqlite3/convert_a": 150,
    f"{PY}/sqlite3/convert_a/rewriter_a_0.db3": 150,
    f"{PY}/sqlite3/convert_b": 75,
    f"{PY}/sqlite3/convert_b/rewriter_b_0.db3": 75,
    f"{PY}/sqlite3/reindex_test_bags/multiple_files/multiple_files_0.db3": 1324,
    f"{PY}/sqlite3/reindex_test_bags/multiple_files/multiple_files_1.db3": 1324,
    f"{PY}/sqlite3/reindex_test_bags/multiple_files/multiple_files_2.db3": 529,
    f"{PY}/sqlite3/talker": 20,
    f"{PY}/sqlite3/talker/talker.db3": 20,
    f"{PY}/sqlite3/wbag": 6074,
    **{f"{PY}/sqlite3/wbag/wbag_{i}.db3": n for i, n in enumerate((1246, 1240, 1240, 1240, 1108))},
    f"{TESTS}/mcap/bag_with_topics_and_service_events": 10,
    f"{TESTS}/mcap/bag_with_topics_and_service_events/bag_with_topics_and_service_events.mcap": 10,
    f"{TESTS}/mcap/cdr_test": 7,
    f"{TESTS}/mcap/cdr_test/cdr_test_0.mcap": 7,
    f"{TESTS}/sqlite3/bag_with_topics_and_service_events": 10,
    f"{TESTS}/sqlite3/bag_with_topics_and_service_events/bag_with_topics_and_service_events.db3": 10,
    f"{TESTS}/sqlite3/cdr_test": 7,
    f"{TESTS}/sqlite3/cdr_test/cdr_test_0.db3": 7,
    # The file itself says cdr; only the metadata beside it names another serialisation.
    f"{TESTS}/sqlite3/wrong_rmw_test/wrong_rmw_test_0.db3": 7,
    f"{TESTS}/mcap/wrong_rmw_test/wrong_rmw_test_0.mcap": 7,
    f"{SUITE}/rosbag2_transport/mcap/test_bag_for_seek": 5,
    f"{SUITE}/rosbag2_transport/mcap/test_bag_for_seek/test_bag_for_seek_0.mcap": 5,
    f"{SUITE}/rosbag2_transport/sqlite3/test_bag_for_seek": 5,
    f"{SUITE}/rosbag2_transport/sqlite3/test_bag_for_seek/test_bag_for_seek_0.db3": 5,
    "lidar/nebula/continental_ars548/1708578204": 2,
    "lidar/nebula/continental_ars548/1708578204/1708578204.db3": 2,
    "lidar/nebula/continental_srr520/1708578209": 4,
    "lidar/nebula/continental_srr520/1708578209/1708578209.db3": 4,
    "lidar/nebula/hesai_40p/1673400149412331409": 4,
    "lidar/nebula/hesai_40p/1673400149412331409/1673400149412331409_0.db3": 4,
    "lidar/nebula/velodyne_vlp16/1673400471837873222": 4,
    "lidar/nebula/velodyne_vlp16/1673400471837873222/1673400471837873222_0.db3": 4,
    "lidar/nebula/velodyne_vlp32/1713492677464078412": 5,
    "lidar/nebula/velodyne_vlp32/1713492677464078412/1713492677464078412_0.db3": 5,
    # Storage files of damaged folders that are sound themselves.
    "bags/damaged/db3_no_metadata/rewriter_b_0.db3": 75,
    "bags/damaged/mcap_no_metadata/rewriter_b_0.mcap": 75,
    "bags/damaged/metadata_binary_garbage/rewriter_b_0.db3": 75,
    "bags/damaged/metadata_cut/rewriter_b_0.db3": 75,
    "bags/damaged/metadata_wrong_counts/1708578209.db3": 4,
}

# path -> words of the sentence that a user gets; nothing in these can be read.
UNREADABLE: dict[str, str] = {
    "bags/ros1/empty-file.bag": "is empty (0 bytes)",
    "bags/ros1/asci-file.txt": "is not a recording",
    f"{TESTS}/empty_dir": "holds nothing that can be played",
    "bags/damaged/db3_header_zeroed": "rewriter_b_0.db3: is not a SQLite file",
    "bags/damaged/db3_header_zeroed/rewriter_b_0.db3": "is not a SQLite file",
    "bags/damaged/db3_lidar_truncated_70pct": "is truncated: 344064 of 491520 bytes",
    "bags/damaged/db3_lidar_truncated_70pct/1713492677464078412_0.db3": "is truncated: 344064 of 491520 bytes",
    "bags/damaged/db3_zero_length": "rewriter_b_0.db3: is empty (0 bytes)",
    "bags/damaged/db3_zero_length/rewriter_b_0.db3": "is empty (0 bytes)",
    "bags/damaged/mcap_bad_magic": "rewriter_b_0.mcap: is not an MCAP file",
    "bags/damaged/mcap_bad_magic/rewriter_b_0.mcap": "is not an MCAP file",
    "bags/damaged/metadata_only_missing_file": "relative_file_paths: names 1 storage file(s) that do not exist",
    "bags/damaged/ros1_truncated_no_index/example.bag": "is truncated or damaged",
}

# path -> (words of the sentence, messages that can be salvaged).
DAMAGED: dict[str, tuple[str, int]] = {
    "bags/damaged/db3_no_metadata": ("metadata.yaml: the recording has no metadata", 75),
    "bags/damaged/mcap_no_metadata": ("metadata.yaml: the recording has no metadata", 75),
    "bags/damaged/mcap_no_footer": ("is truncated: the closing record is missing after 18088 bytes", 75),
    "bags/damaged/mcap_no_footer/rewriter_b_0.mcap": (
        "is truncated: the closing record is missing after 18088 bytes",
        75,
    ),
    "bags/damaged/mcap_truncated_60pct": ("is truncated: the closing record is missing after 10875 bytes", 0),
    "bags/damaged/mcap_truncated_60pct/rewriter_b_0.mcap": ("is truncated: the closing record is missing", 0),
    "bags/damaged/metadata_binary_garbage": ("metadata.yaml: is not valid YAML", 75),
    "bags/damaged/metadata_cut": ("metadata.yaml: topics_with_message_count[1].topic_metadata", 75),
    "bags/damaged/metadata_wrong_counts": ("message_count: the storage holds 4 of the 99999 messages", 4),
    f"{PY}/mcap/reindex_test_bags/multiple_files": ("the recording has no metadata", 3177),
    f"{PY}/sqlite3/reindex_test_bags/multiple_files": ("the recording has no metadata", 3177),
}

# path -> (words of the sentence, messages): complete, but of no use.
USELESS: dict[str, tuple[str, int]] = {
    "bags/ros1/no-messages.bag": ("holds no messages", 0),
    f"{SUITE}/ros2bag/empty_bag": ("holds no messages", 0),
    f"{SUITE}/ros2bag/empty_bag/empty_bag_0.db3": ("holds no messages", 0),
    f"{TESTS}/mcap/wrong_rmw_test": ("serialization_format: the recorded topic", 7),
    f"{TESTS}/sqlite3/wrong_rmw_test": ("serialization_format: the recorded topic", 7),
}

ALL = {*SOUND, *UNREADABLE, *DAMAGED, *USELESS}
HAS_REMEDY = re.compile(r"; \S+.*\.$")


def one_sentence(error: TriptychError, path: Path) -> str:
    text = str(error)
    assert "\n" not in text and "Traceback" not in text
    assert str(path) in text, "the sentence names no file"
    assert HAS_REMEDY.search(text), f"the sentence has no remedy: {text}"
    return text


@needs_data
def test_every_recording_has_a_row() -> None:
    found: set[str] = set()
    for root in (DATA / "bags", DATA / "lidar" / "nebula"):
        for path in root.rglob("*"):
            if path.suffix in (".db3", ".mcap", ".bag"):
                found.add(str(path.relative_to(DATA)))
                if path.suffix != ".bag" and path.parent.name not in ("rosbag2_cpp",):
                    found.add(str(path.parent.relative_to(DATA)))
            elif path.name in ("metadata.yaml", ".gitkeep"):
                found.add(str(path.parent.relative_to(DATA)))
    assert found <= ALL, f"no expectation for {sorted(found - ALL)}"
    assert len(found) > 80


@needs_data
@pytest.mark.parametrize("name", sorted(SOUND))
def test_sound_bags_are_read_to_the_last_message(name: str) -> None:
    path = data(name)
    store = open_store(path)
    try:
        assert store.damage == [] and store.warnings == []
        times = [raw.t_ns for raw in store.messages()]
        assert len(times) == SOUND[name] == sum(t.count for t in store.topics)
        assert times == sorted(times) and times[0] == store.start_ns and times[-1] == store.end_ns
        for topic in store.topics:
            assert sum(1 for _ in store.messages({topic.name})) == topic.count
    finally:
        store.close()
    info = inspect(path)
    assert info.message_count == SOUND[name]
    with pytest.raises(InputError) as caught:
        open_recording(path)
    expected = "serialization_format" if info.problems else NO_CAMERA
    assert expected in one_sentence(caught.value, path)


@needs_data
@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_unreadable_bags_end_in_one_sentence(name: str) -> None:
    path = data(name)
    for function in (inspect, open_recording, lambda p: open_recording(p, salvage=True)):
        with pytest.raises(InputError) as caught:
            function(path)
        assert UNREADABLE[name] in one_sentence(caught.value, path)


@needs_data
@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_damaged_bags_are_refused_and_can_be_salvaged(name: str) -> None:
    words, count = DAMAGED[name]
    path = data(name)
    with pytest.raises(InputError) as caught:
        open_recording(path)
    assert words in one_sentence(caught.value, path)
    info = inspect(path)
    assert words in info.problems[0] and info.message_count == count
    store = open_store(path)
    assert sum(1 for _ in store.messages()) == count
    store.close()
    with pytest.raises(InputError) as caught:  # salvaged, and then: there is no camera in it
        open_recording(path, salvage=True)
    assert (NO_CAMERA if count else "holds no messages") in one_sentence(caught.value, path)


@needs_data
@pytest.mark.parametrize("name", sorted(USELESS))
def test_useless_bags_say_why(name: str) -> None:
    words, count = USELESS[name]
    path = data(name)
    with pytest.raises(InputError) as caught:
        open_recording(path)
    assert words in one_sentence(caught.value, path)
    assert inspect(path).message_count == count


@needs_data
def test_reading_leaves_no_trace_beside_the_bag() -> None:
    """A read-only folder must do: SQLite would like to write -wal and -shm files."""
    folder = data(f"{PY}/sqlite3/talker")
    before = sorted(p.name for p in folder.iterdir())
    store = open_store(folder)
    next(iter(store.messages()))
    during = sorted(p.name for p in folder.iterdir())
    store.close()
    assert before == during == sorted(p.name for p in folder.iterdir())
