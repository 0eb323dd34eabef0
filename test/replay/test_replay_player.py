"""Pacing and restamping: a recording is played as if it happened now."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import pytest
from bag_maker import MS, T0, bag, camera_rows, image, merge

from triptych.contract import DriverState, Frame, InputError, Odometry, crc_ok, protect
from triptych.replay.player import Options, Player, schedule
from triptych.replay.recording import open_recording
from triptych.replay.synthesis import SPEED_MPS

NOW = 5_000_000_000_000  # monotonic
STAMP = 1_900_000_000_000_000_000  # stamp clock of the replaying machine


def play(player: Player, step_ms: int = 10, lag: dict[int, int] | None = None, limit: int = 10_000) -> list:
    """(ms since start, value) of all that is published by a caller that wakes every ``step_ms``, ``lag`` apart."""
    out, now, step = [], 0, 0
    while not player.finished and step < limit:
        for item in player.take(NOW + now * MS):
            out.append((now, player.restamped(item, STAMP + now * MS)))
        now += step_ms + (lag or {}).get(step, 0)
        step += 1
    return out


def frames(values: list) -> list[tuple[int, Frame]]:
    return [(t, v) for t, v in values if isinstance(v, Frame)]


def test_items_come_at_their_time_with_the_stamp_of_now(tmp_path: Path) -> None:
    """A12: a bag of years ago, played today, is fresh data."""
    with open_recording(bag(tmp_path / "b", camera_rows(5))) as recording:
        published = frames(play(Player(recording, Options())))
    assert [t for t, _ in published] == [0, 50, 100, 150, 200]
    assert [f.stamp_ns for _, f in published] == [STAMP + t * MS for t, _ in published]
    assert [f.number for _, f in published] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("rate", "times"), [(2.0, [0, 30, 50, 80, 100]), (0.5, [0, 100, 200, 300, 400])])
def test_rate(tmp_path: Path, rate: float, times: list[int]) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(5))) as recording:
        published = frames(play(Player(recording, Options(rate=rate))))
    assert [t for t, _ in published] == times
    assert [f.stamp_ns for _, f in published] == [STAMP + t * MS for t in times]


def test_a_pause_of_the_machine_neither_bursts_nor_makes_stale_data(tmp_path: Path) -> None:
    """A12: after 0.5 s without running, the newest frame goes out with the stamp of now; the others are skipped."""
    with open_recording(bag(tmp_path / "b", camera_rows(20))) as recording:
        player = Player(recording, Options())
        published = frames(play(player, lag={20: 500}))
    assert all(f.stamp_ns == STAMP + t * MS for t, f in published)
    after = [f.number for t, f in published if t == 710]
    assert after == [15] and player.skipped > 9, "the newest, of every kind"
    assert [f.number for t, f in published] == [1, 2, 3, 4, 5, 15, 16, 17, 18, 19, 20]
    assert len({f.stamp_ns for _, f in published}) == len(published)
    numbers = [f.number for _, f in published]
    assert numbers == sorted(set(numbers))


def test_repeated_and_backward_stamps_stay_faults(tmp_path: Path) -> None:
    """A5, A12."""
    stamps = [0, 50, 50, 100, 60, 150]
    rows = [("camera/image_raw", T0 + i * 50 * MS, image(T0 + s * MS)) for i, s in enumerate(stamps)]
    with open_recording(bag(tmp_path / "b", rows)) as recording:
        published = [f.stamp_ns - STAMP for _, f in frames(play(Player(recording, Options())))]
    assert published == [0, 50 * MS, 50 * MS, 100 * MS, 60 * MS, 150 * MS]


def test_loop_goes_on_with_one_frame_distance_and_rising_numbers(tmp_path: Path) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(3))) as recording:
        found = [
            (d.after_ns // MS, d.item.value.number)
            for d in islice((d for d in schedule(recording, Options(loop=True)) if isinstance(d.item.value, Frame)), 7)
        ]
    assert found == [(0, 1), (50, 2), (100, 3), (150, 4), (200, 5), (250, 6), (300, 7)]


def test_start_and_duration_begin_at_once(tmp_path: Path) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(40))) as recording:
        published = frames(play(Player(recording, Options(start_s=1.0, duration_s=0.2))))
    assert published[0][0] == 0 and len(published) == 4


def test_missing_inputs_are_made_up_between_first_and_last_frame(tmp_path: Path) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(11))) as recording:
        values = play(Player(recording, Options()))
    speeds = [v for _, v in values if isinstance(v, Odometry)]
    drivers = [v for _, v in values if isinstance(v, DriverState)]
    assert len(speeds) == 11 and {v.speed_mps for v in speeds} == {SPEED_MPS}
    assert len(drivers) == 6 and all(crc_ok(d) and d.attentive and d.automation_engaged for d in drivers)
    assert [d.sequence_counter for d in drivers] == list(range(6))
    assert isinstance(values[0][1], DriverState) and isinstance(values[1][1], Odometry)


def test_recorded_inputs_are_not_overlaid(tmp_path: Path) -> None:
    rows = merge(
        camera_rows(4),
        [("odometry", T0 + 20 * MS, Odometry(T0 + 20 * MS, 3.0))],
        [("driver/state", T0 + 30 * MS, protect(DriverState(T0 + 30 * MS, attentive=False), 9))],
    )
    with open_recording(bag(tmp_path / "b", rows)) as recording:
        values = [v for _, v in play(Player(recording, Options())) if not isinstance(v, Frame)]
    assert [type(v) for v in values] == [Odometry, DriverState]
    assert values[0].speed_mps == 3.0
    assert not values[1].attentive and values[1].sequence_counter == 9 and crc_ok(values[1])
    assert values[1].stamp_ns == STAMP + 30 * MS


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 101.0])
def test_rate_out_of_range(rate: float) -> None:
    with pytest.raises(InputError, match=r"rate: must be 0.01..100 \(got"):
        Options(rate=rate)


def test_nothing_to_play(tmp_path: Path) -> None:
    with (
        open_recording(bag(tmp_path / "b", camera_rows(3))) as recording,
        pytest.raises(
            InputError, match=r"start: leaves no camera frame to play \(got 60.0\); the recording is 0.1 s long"
        ),
    ):
        Player(recording, Options(start_s=60.0))


def test_next_due_tells_how_long_to_sleep(tmp_path: Path) -> None:
    with open_recording(bag(tmp_path / "b", camera_rows(2))) as recording:
        player = Player(recording, Options(rate=0.5))
        assert player.next_due_ns(NOW) == NOW
        player.take(NOW)
        seen = []
        while (due_ns := player.next_due_ns(NOW)) is not None:
            seen.append((due_ns - NOW) // MS)
            player.take(due_ns)
        assert seen == [100] and player.finished and player.position_ns == 100 * MS


def test_reading_ahead_changes_nothing_but_the_thread(tmp_path: Path) -> None:
    rows = [*camera_rows(6), ("camera/image_raw", T0 + 400 * MS, image(T0 + 400 * MS, step=1))]
    with open_recording(bag(tmp_path / "b", camera_rows(6))) as recording:
        plain, ahead = Player(recording, Options()), Player(recording, Options(), prefetch=3)
        one, other = play(plain), play(ahead)
        assert [(t, v.stamp_ns) for t, v in one] == [(t, v.stamp_ns) for t, v in other] and ahead.finished
        ahead.close()
    with open_recording(bag(tmp_path / "broken", rows)) as recording:
        player = Player(recording, Options(), prefetch=3)
        with pytest.raises(InputError, match="message 7: step"):
            play(player)
        player.close()
    with open_recording(bag(tmp_path / "endless", camera_rows(6))) as recording:
        player = Player(recording, Options(loop=True), prefetch=3)
        player.close()
        assert not player._prefetch._thread.is_alive()
