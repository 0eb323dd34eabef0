"""The safety properties of PROPERTIES.md that concern the lidar."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from supervisor_rig import MS, Rig, driving, flickering
from test_properties_supervisor import happen

from triptych.contract import DegradationState, Detection, Detections, Obstacle, Obstacles

S = DegradationState
anything = st.floats(allow_nan=True, allow_infinity=True)
metres = st.floats(-60.0, 60.0)
found = st.builds(Obstacle, anything, anything, anything, anything, anything, st.integers(0, 2**31))
scans = st.builds(
    Obstacles,
    st.just(0),
    st.just("base_link"),
    st.integers(0, 10**6),
    anything,
    st.booleans(),
    st.sampled_from(["", "few_points"]),
    st.lists(found, max_size=4).map(tuple),
)
happenings = st.sampled_from(
    ["stop distilled", "start distilled", "stop full", "start full", "absent", "present", "unsure", "sure", "nothing",
     "content", "sick", "well", "careful", "careless", "stop detector", "start detector"]
)  # fmt: skip


@given(st.lists(st.tuples(happenings, scans, st.booleans(), st.integers(5, 60)), max_size=8))
def test_p45_a_lidar_never_makes_the_vehicle_less_careful(steps: list[tuple[str, Obstacles, bool, int]]) -> None:
    """Whatever it says or does not say, beside whatever else happens."""
    with_one, without = driving(lidar_expected=True), driving()
    for rig in (with_one, without):
        rig.obeys = False
    for event, scan, speaks, ticks in steps:
        with_one.scan = scan
        with_one.alive = with_one.alive | {"lidar"} if speaks else with_one.alive - {"lidar"}
        for rig in (with_one, without):
            happen(rig, event)
        for _ in range(ticks):
            with_one.tick()
            without.tick()
            assert with_one.limits_mps[-1] <= without.limits_mps[-1] + 1e-9
            assert with_one.state >= without.state


near = st.builds(
    lambda x, y, w, h: Obstacle(x, x + 0.5, y, y + w, h, 20),
    st.floats(3.5, 16.0),
    st.floats(-0.7, -0.1),
    st.floats(0.1, 0.8),
    st.floats(1.0, 4.0),
)
elsewhere = st.builds(
    lambda x, y, w: Obstacle(x, x + 1.0, y, y + w, 2.0, 20), metres, st.floats(4.0, 20.0), st.floats(0.1, 3.0)
)


@given(near, st.lists(elsewhere, max_size=6), st.lists(st.floats(0.0, 40.0), max_size=4))
def test_p46_what_stands_in_the_lane_and_is_not_seen_puts_tier_1_in_doubt(
    obstacle: Obstacle, others: list[Obstacle], lefts: list[float]
) -> None:
    """Within six scans, whatever else there is to see on either side."""
    rig: Rig = driving(lidar_expected=True)
    boxes = tuple(
        Detection("sign", 4, 0.9, x, y, x + 15.0, y + 30.0)
        for x, y in zip(lefts, (100.0, 200.0, 300.0, 400.0), strict=False)
    )
    seen = Detections(1280, 720, boxes)
    rig.edit_result = lambda r: (
        replace(r, payload=flickering(seen, r.source_stamp_ns)) if isinstance(r.payload, Detections) else r
    )
    rig.run(0.5)
    rig.scan = replace(rig.scan, obstacles=(*others, obstacle))
    begin_ns = rig.now_ns
    rig.until(S.L2_TAKEOVER_REQUEST, 2.0)
    assert rig.now_ns - begin_ns <= 620 * MS and "lidar.unseen" in rig.faults()
