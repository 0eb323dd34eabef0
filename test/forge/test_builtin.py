"""Judging a detector, and what a graph reads. Needs the extra ``forge``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'forge' is not installed")
onnx = pytest.importorskip("onnx", reason="the extra 'forge' is not installed")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from triptych.contract import DetectionClass  # noqa: E402
from triptych_forge.builtin.judging import (  # noqa: E402
    COLUMNS,
    Judged,
    Pictures,
    graph_bytes_read,
    judge,
    opened,
    times_ms,
)
from triptych_forge.data import CARLA_KNOWN, NAMES, VEHICLE, Sample  # noqa: E402
from triptych_forge.detector_eval import Found, vehicles_at  # noqa: E402
from triptych_forge.detector_net import STUDENT, DetectorNet  # noqa: E402
from triptych_forge.detector_release import CUT_RANGE, SIZE, best_cuts_of, export, model_card  # noqa: E402
from triptych_forge.files import replace_folder  # noqa: E402
from triptych_forge.quantise.ptq import PtqOptions, prepare, quantise_model  # noqa: E402

LARGE, SMALL = [0.0, 0.0, 40.0, 40.0], [100.0, 100.0, 120.0, 120.0]


def found(boxes: list[list[float]], scores: list[float], kind: int = VEHICLE) -> Found:
    return Found(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.full(len(boxes), kind, np.int64)
    )


def truth(*boxes: list[float]) -> np.ndarray:
    return np.array(boxes, np.float32).reshape(-1, 4)


def test_small_vehicles_are_neither_demanded_nor_counted() -> None:
    both = truth(LARGE, SMALL)
    assert vehicles_at([found([LARGE], [0.9])], [both], 0.5, 32 * 32) == (1.0, 1.0)
    assert vehicles_at([found([LARGE], [0.9])], [both], 0.5, 0.0) == (1.0, 0.5)
    assert vehicles_at([found([LARGE, SMALL], [0.9, 0.9])], [both], 0.5, 32 * 32) == (1.0, 1.0)
    elsewhere = [200.0, 200.0, 260.0, 260.0]
    assert vehicles_at([found([LARGE, elsewhere], [0.9, 0.9])], [both], 0.5, 32 * 32) == (0.5, 1.0)


def test_what_scores_below_the_cut_or_is_another_thing_is_no_claim() -> None:
    assert vehicles_at([found([LARGE], [0.4])], [truth(LARGE)], 0.5, 0.0) == (0.0, 0.0)
    assert vehicles_at([found([LARGE], [0.9], int(DetectionClass.SIGN))], [truth(LARGE)], 0.5, 0.0) == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_cut_never_finds_more(claims: list[tuple[float, bool]], one: float, two: float) -> None:
    boxes = [[50.0 * i, 0.0, 50.0 * i + 40, 40.0] for i in range(len(claims))]
    real = truth(*[box for box, (_, good) in zip(boxes, claims) if good])
    seen = [found(boxes, [score for score, _ in claims])]
    low, high = sorted((one, two))
    assert vehicles_at(seen, [real], high, 0.0)[1] <= vehicles_at(seen, [real], low, 0.0)[1]


def test_cuts_keep_what_is_right_and_drop_what_is_not() -> None:
    picture = np.zeros((130, 300, 3), np.uint8)
    sample = Sample(picture, truth(LARGE), np.array([VEHICLE]), CARLA_KNOWN)
    cuts = best_cuts_of([found([LARGE, SMALL], [0.9, 0.4])], [sample])
    assert set(cuts) == set(NAMES) and CUT_RANGE[0] <= min(cuts.values()) <= max(cuts.values()) <= CUT_RANGE[1]
    assert cuts["vehicle"] > 0.4
    assert cuts["pedestrian"] == sum(CUT_RANGE) / 2, "nobody labelled any"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("graph") / "detector.onnx"
    export(DetectorNet(len(NAMES), replace(STUDENT, width=16)), path)
    return path


def test_integers_are_read_as_bytes(graph: Path, tmp_path: Path) -> None:
    prepared = prepare(graph, tmp_path / "prepared.onnx")
    read, whole = graph_bytes_read(prepared)
    weights = sum(int(np.prod(i.dims)) for i in onnx.load(str(prepared)).graph.initializer if len(i.dims) == 4)
    assert read == 4 * weights
    assert whole > read + 4 * 3 * SIZE[0] * SIZE[1], "weights, and at least the picture"
    feeds = [{"image": np.random.default_rng(0).integers(0, 256, (1, SIZE[1], SIZE[0], 3), np.uint8)}]
    integers, some = tmp_path / "int8.onnx", tmp_path / "some.onnx"
    quantise_model(prepared, integers, feeds)
    assert graph_bytes_read(integers) == (read // 4, whole // 4)
    first = next(n.name for n in onnx.load(str(prepared)).graph.node if n.op_type == "Conv")
    quantise_model(prepared, some, feeds, PtqOptions(exclude=(first,)))
    assert whole // 4 < graph_bytes_read(some)[1] < whole


def test_a_graph_is_judged_through_the_engine_of_the_vehicle(graph: Path) -> None:
    rng = np.random.default_rng(0)
    sample = Sample(
        rng.integers(0, 256, (120, 200, 3), np.uint8), truth([20.0, 20.0, 90.0, 90.0]), np.array([VEHICLE]), CARLA_KNOWN
    )
    judged = judge(graph, Pictures([sample], [sample]))
    assert isinstance(judged, Judged) and judged.bytes == graph.stat().st_size
    assert judged.ap["mean"] == 0.0, "an untrained net knows nothing"
    with opened(graph) as engine:
        times = times_ms({"one": engine, "two": engine}, [sample] * 3)
    assert times["one"]["times the first's"] == 1.0 and times["two"]["median ms"] > 0
    row = judged.row("net")
    assert len(row) == len(COLUMNS) and row[0] == "net"


def test_the_card_states_what_was_measured() -> None:
    figures = {
        "rows": {"triptych-detector": {"vehicle precision": 0.87}, "fastestdet": {"vehicle precision": 0.55}},
        "times": {"fastestdet": {"median ms": 6.18}},
        "ap50_carla_val": {"vehicle": 0.7}, "ap50_scenario_val": {"vehicle": 0.4}, "clip": {"frames": 221},
        "cuts": {"vehicle": 0.3}, "parameters": {"teacher": 3341587, "student": 255387, "pruned": 120000},
        "weights_ratio": 21.5, "bytes_read_ratio": 11.5, "megabytes": 0.4, "chosen": "pruned, int8",
    }  # fmt: skip
    text = model_card(figures, {"carla": 623})
    for part in ("3,341,587", "0.87", "**pruned, int8**", "÷ 11.5", "÷ 21.5", "| fastestdet | 0.55 |", "6.18", "623"):
        assert part in text
    assert "{" not in text.replace("{}", "")


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "new", tmp_path / "models" / "net"
    (source / "adapters").mkdir(parents=True)
    (source / "adapters" / "a").write_text("1")
    replace_folder(source, target)
    (target / "stale").write_text("old")
    replace_folder(source, target)
    assert [p.relative_to(target).as_posix() for p in sorted(target.rglob("*"))] == ["adapters", "adapters/a"]
    assert [p.name for p in target.parent.iterdir()] == ["net"], "nothing is left beside it"


def test_what_was_asked_of_the_distilled_model_is_checked_one_by_one() -> None:
    from triptych_forge.builtin.vlm import demanded

    good = {"advice": 0.96, "hazards_found": 0.97, "hazards_false": 0.04, "counts_within_one": 0.93}
    best = {"advice": 0.98, "hazards_found": 0.98, "counts_within_one": 0.95}
    assert all(check.held for check in demanded(good, best, 0.2))
    assert len(demanded({**good, "clip_vehicles": 0.95}, best, 0.2)) == 7
    worse = {"advice": 0.94, "hazards_found": 0.94, "hazards_false": 0.06, "counts_within_one": 0.89}
    for name, value in worse.items():
        missed = [c.text for c in demanded({**good, name: value}, best, 0.2) if not c.held]
        assert len(missed) >= 1, name
    far = dict.fromkeys(best, 1.0)
    assert [c.held for c in demanded(good, far, 0.3)].count(False) == 2
    assert not demanded({**good, "clip_vehicles": 0.89}, best, 0.2)[-1].held


def test_only_what_is_made_here_is_made(tmp_path: Path) -> None:
    from triptych.contract import ConfigError
    from triptych_forge.builtin.run import MADE, build_models

    with pytest.raises(ConfigError, match="is not made here"):
        build_models("radar", tmp_path, None, 1)
    with pytest.raises(ConfigError, match=r"--data: no such folder"):
        build_models("vlm", tmp_path / "none", None, 1)
    names = {name for made in MADE.values() for name in made.bundles(tmp_path)}
    assert names == {"triptych-detector", "triptych-distilled", "triptych-full"}


def test_small_objects_do_not_pull_the_cut_down_where_enough_larger_ones_tell() -> None:
    picture = np.zeros((130, 300, 3), np.uint8)
    sample = Sample(picture, truth(LARGE, SMALL), np.array([VEHICLE, VEHICLE]), CARLA_KNOWN)
    elsewhere = [200.0, 60.0, 260.0, 120.0]
    seen = found([LARGE, elsewhere, SMALL], [0.6, 0.45, 0.4])
    many = best_cuts_of([seen] * 60, [sample] * 60)["vehicle"]
    assert many > 0.45, "the false claim is worse than the small one is good"
    assert best_cuts_of([seen] * 10, [sample] * 10)["vehicle"] <= 0.4
