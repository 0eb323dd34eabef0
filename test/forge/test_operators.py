"""The operator check: counting, every condition, the limit, and the library's own answer."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

onnx = pytest.importorskip("onnx", reason="the forge extra is not installed")
import onnxruntime as ort  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from triptych.contract import ConfigError  # noqa: E402
from triptych.resources import resource  # noqa: E402
from triptych_forge.decisions import DecisionLog, read_decisions  # noqa: E402
from triptych_forge.operators import (  # noqa: E402
    PROBES,
    OperatorReport,
    check_operators,
    known_targets,
    list_nodes,
    load_table,
    print_report,
    survey_operators,
)

FLOAT = TensorProto.FLOAT
DETECTORS = Path(__file__).resolve().parents[3] / "shared" / "data" / "detectors"


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: dict[str, Sequence[int | str]],
    constants: dict[str, np.ndarray] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    dtype: int = FLOAT,
    **more: Any,
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, dtype, list(s)) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *more.pop("imports", [])]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8, **more), str(path))
    return path


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def table(folder: Path, operators: dict[str, Any], **changes: Any) -> Path:
    content: dict[str, Any] = {
        "schema_version": 1,
        "target": "toy",
        "library": "toy library",
        "version": "1.0",
        "date": "2026-01-02",
        "sources": [{"url": "https://example.org/operators", "what": "the list"}],
        "opset": [9, 20],
        "dynamic_shapes": True,
        "operators": operators,
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
    return folder


def survey(model: Path, folder: Path, **more: Any) -> OperatorReport:
    return survey_operators(model, "toy", folder=folder, **more)


# --- counting --------------------------------------------------------------------------------------------------------


def counted(path: Path) -> float:
    return sum(n.amount for n in list_nodes(path)[0] if n.unit == "products")


def brute_force(path: Path) -> float:
    """With ones everywhere and no padding, each product adds one to the sum of the output."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {i.name: ones(*i.shape) for i in session.get_inputs()}
    return float(sum(out.sum(dtype=np.float64) for out in session.run(None, feeds)))


small = st.integers(1, 4)


@settings(max_examples=30, deadline=None)
@given(
    group=small, inside=small, outside=small, kernel=st.integers(1, 3), stride=st.integers(1, 2), size=st.integers(5, 7)
)
def test_convolutions_count_what_they_multiply(
    tmp_path_factory: pytest.TempPathFactory, group: int, inside: int, outside: int, kernel: int, stride: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("conv") / "m.onnx"
    x = {"x": (2, group * inside, size, size + 1)}
    attributes = {"group": group, "strides": [stride, 1]}
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    save(path, [node], x, {"w": ones(group * outside, inside, kernel, 2)})
    assert counted(path) == brute_force(path)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    save(path, [node], x, {"w": ones(group * inside, outside, kernel, 2)})
    assert counted(path) == brute_force(path)


@settings(max_examples=30, deadline=None)
@given(m=small, k=small, n=small, batch=small, turned=st.booleans(), other=st.booleans())
def test_matrix_products_count_what_they_multiply(
    tmp_path_factory: pytest.TempPathFactory, m: int, k: int, n: int, batch: int, turned: bool, other: bool
) -> None:
    path = tmp_path_factory.mktemp("matmul") / "m.onnx"
    a, b = ((k, m) if turned else (m, k)), ((n, k) if other else (k, n))
    save(path, [helper.make_node("Gemm", ["a", "b"], ["y"], transA=turned, transB=other)], {"a": a}, {"b": ones(*b)})
    assert counted(path) == brute_force(path)
    save(path, [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": (batch, 2, m, k), "b": (k, n)})
    assert counted(path) == brute_force(path)
    save(path, [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": (k,), "b": (batch, k, n)})
    assert counted(path) == brute_force(path)


def test_quantised_and_packed_products_count_like_plain_ones(tmp_path: Path) -> None:
    scale, zero = np.float32(1), np.uint8(0)
    constants = {"s": np.array(scale), "z": np.array(zero), "w": np.ones((3, 2, 3, 3), np.uint8)}
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    path = save(tmp_path / "q.onnx", [node], {"x": (1, 2, 5, 5)}, constants, dtype=TensorProto.UINT8)
    assert counted(path) == 3 * 9 * 2 * 9
    node = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    path = save(
        tmp_path / "m.onnx",
        [node],
        {"x": (4, 6)},
        {**constants, "w": np.ones((6, 5), np.uint8)},
        dtype=TensorProto.UINT8,
    )
    assert counted(path) == 4 * 6 * 5


def test_other_operators_count_in_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "c"], ["y"])], {"x": (2, 3)}, {"c": ones(3)})
    (node,) = list_nodes(path)[0]
    assert (node.unit, node.amount) == ("bytes", 4.0 * (6 + 3 + 6))


def test_free_dimensions_take_the_given_lengths(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, "tokens", 8)}, {"w": ones(8, 5)}
    )
    for dims, wanted in ((None, 40.0), ({"tokens": 7}, 280.0)):
        nodes, lengths = list_nodes(path, dims)
        assert nodes[0].amount == wanted and lengths == {"tokens": (dims or {}).get("tokens", 1)}
    with pytest.raises(ConfigError, match=r"dims\.words: is no free dimension of the inputs, they have tokens"):
        list_nodes(path, {"words": 3})


def test_what_is_known_at_load_costs_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["d"], axis=0),
        helper.make_node("Mul", ["d", "d"], ["e"]),
        helper.make_node("Reshape", ["x", "e"], ["y"]),
    ]
    constants = {"i": np.array([0, 1])}
    fixed = list_nodes(save(tmp_path / "a.onnx", nodes, {"x": (2, 1)}, constants))[0]
    assert [n.folded for n in fixed] == [True, True, True, False] and fixed[2].amount == 0.0
    free = list_nodes(save(tmp_path / "b.onnx", nodes, {"x": ("n", 1)}, constants))[0]
    assert [n.folded for n in free] == [False] * 4


def test_an_overridable_default_is_a_weight_but_nothing_known_at_load(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["w"], ["y"])], {"w": (2,)}, {"w": ones(2)})
    (node,) = list_nodes(path)[0]
    assert not node.folded and [*node.constants] == [0] and node.amount == 16.0


def test_nodes_of_subgraphs_and_functions_count(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> Any:
        inner = [helper.make_node(op, ["x"], [name])]
        return helper.make_graph(inner, name, [], [helper.make_tensor_value_info(name, FLOAT, [2, 2])])

    choice = helper.make_node("If", ["c"], ["a"], then_branch=branch("t", "Sin"), else_branch=branch("e", "Cos"))
    product = helper.make_node("Own", ["a"], ["y"], domain="own")
    function = helper.make_function(
        "own", "Own", ["p"], ["q"], [helper.make_node("MatMul", ["p", "p"], ["q"])], [helper.make_opsetid("", 18)]
    )
    path = save(
        tmp_path / "m.onnx",
        [choice, product],
        {"x": (2, 2)},
        {"c": np.array(True)},
        imports=[helper.make_opsetid("own", 1)],
        functions=[function],
    )
    nodes = list_nodes(path)[0]
    assert [n.operator for n in nodes] == ["If", "Cos", "Sin", "MatMul"]
    assert nodes[1].shapes == ((2, 2), (2, 2)) and nodes[3].amount == 8.0


def test_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(ConfigError, match="is no valid ONNX file"):
        list_nodes(path)
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="is no valid ONNX file"):
        list_nodes(path)


def test_a_model_without_operators_is_not_checked(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [], {"x": (1,)}, outputs=["x"])
    with pytest.raises(ConfigError, match="nothing was checked"):
        survey(path, table(tmp_path / "t", {"Add": {"support": "full"}}))


# --- coverage --------------------------------------------------------------------------------------------------------

CONV = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[1, 2], auto_pad="VALID", group=1)
IMAGE = {"x": (1, 2, 6, 6)}
REASONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"support": "full"}, {}, ""),
    ({"support": "limited", "conditions": "in words"}, {}, ""),
    ({"support": "none"}, {}, "not supported"),
    ({"support": "unknown"}, {}, "not known to be supported"),
    ({"support": "full", "opset": [1, 18]}, {}, ""),
    ({"support": "full", "opset": [1, 17]}, {}, "operator set 18 is not 1 to 17"),
    ({"support": "full", "opset": [19, None]}, {}, "operator set 18 is not 19 or later"),
    ({"support": "full"}, {"opset": [9, 17]}, "operator set 18 is not 9 to 17"),
    ({"support": "full", "dtypes": ["float32"]}, {}, ""),
    ({"support": "full", "dtypes": ["float16", "int8"]}, {}, "type float32 is not among float16, int8"),
    ({"support": "full", "dtypes": ["float16"]}, {"float32_runs_as": "float16"}, ""),
    ({"support": "full", "dtypes": "few"}, {"dtype_sets": {"few": ["int8"]}}, "type float32 is not among int8"),
    ({"support": "full", "rank": [4, 4]}, {}, ""),
    ({"support": "full", "rank": [3, 3]}, {}, "rank 4 is not 3 to 3"),
    ({"support": "full", "constant_inputs": [1, 2]}, {}, ""),
    ({"support": "full", "constant_inputs": [0]}, {}, "input 0 is no constant"),
    ({"support": "full", "absent_inputs": [2]}, {}, ""),
    ({"support": "full", "absent_inputs": [1]}, {}, "input 1 is given"),
    ({"support": "full", "zero_inputs": [1]}, {}, "input 1 is not zero"),
    ({"support": "full", "outputs": 1}, {}, ""),
    ({"support": "full", "outputs": 0}, {}, "uses 1 outputs"),
    ({"support": "full", "attributes": {"strides": [1, 2], "auto_pad": ["VALID"], "dilations": [1]}}, {}, ""),
    ({"support": "full", "attributes": {"strides": [1]}}, {}, "strides 2 is not among 1"),
    ({"support": "full", "attributes": {"auto_pad": ["NOTSET"]}}, {}, "auto_pad VALID is not among NOTSET"),
    ({"support": "full", "ranges": {"strides": [1, 2], "group": [1, 8]}}, {}, ""),
    ({"support": "full", "ranges": {"strides": [2, 8]}}, {}, "strides 1 is not 2 to 8"),
    ({"support": "full"}, {"dynamic_shapes": False}, ""),
]


@pytest.mark.parametrize(("entry", "changes", "reason"), REASONS, ids=[str(i) for i in range(len(REASONS))])
def test_each_condition(entry: dict[str, Any], changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [CONV], IMAGE, {"w": ones(3, 2, 1, 1)})
    (row,) = survey(path, table(tmp_path / "t", {"Conv": entry}, **changes)).rows
    assert row.reasons == ((reason,) if reason else ()) and row.covered == (0 if reason else 1)
    assert row.conditions == entry.get("conditions", "")


def test_an_operator_without_a_row_is_not_covered(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [CONV], IMAGE, {"w": ones(3, 2, 1, 1)})
    (row,) = survey(path, table(tmp_path / "t", {"Add": {"support": "full"}})).rows
    assert row.covered == 0 and row.reasons == ("not known to be supported",)


def test_a_free_dimension_needs_a_length_where_shapes_are_fixed(tmp_path: Path) -> None:
    folder = table(tmp_path / "t", {"Relu": {"support": "full"}}, dynamic_shapes=False)
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 4)})
    (row,) = survey(path, folder).rows
    assert row.reasons == ("has a free dimension",)
    assert survey(path, folder, dims={"n": 3}).accepted


@pytest.mark.parametrize(("zero", "covered"), [(0, 1), (128, 0)])
def test_a_zero_point_must_be_zero_where_the_table_says_so(zero: int, covered: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["z"], value=numpy_helper.from_array(np.array(zero, np.uint8))),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": (4,)}, {"s": np.array(0.1, np.float32)})
    rows = survey(path, table(tmp_path / "t", {"QuantizeLinear": {"support": "full", "zero_inputs": [2]}})).rows
    assert {r.operator: r.covered for r in rows} == {"Constant": 1, "QuantizeLinear": covered}


def test_weights_behind_a_dequantiser_are_constants(tmp_path: Path) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), CONV]
    constants = {"q": np.ones((3, 2, 1, 1), np.int8), "s": np.array(0.1, np.float32)}
    path = save(tmp_path / "m.onnx", nodes, IMAGE, constants)
    entries = {"Conv": {"support": "full", "constant_inputs": [1]}, "DequantizeLinear": {"support": "none"}}
    rows = {r.operator: r for r in survey(path, table(tmp_path / "t", entries)).rows}
    assert rows["Conv"].covered == 1 and rows["DequantizeLinear"].covered == 0


# --- the limit -------------------------------------------------------------------------------------------------------


def mixed(tmp_path: Path) -> Path:
    """Products: 96 of 100 in a, 4 in b. Bytes: the two others read and write as much as each other."""
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["h"], name="a"),
        helper.make_node("Relu", ["h"], ["r"], name="act"),
        helper.make_node("Gemm", ["r", "v"], ["g"], name="b"),
        helper.make_node("Sigmoid", ["g"], ["y"], name="out"),
    ]
    return save(tmp_path / "m.onnx", nodes, {"x": (1, 24)}, {"u": ones(24, 4), "v": ones(4, 1)})


ALL = {name: {"support": "full"} for name in ("MatMul", "Relu", "Gemm", "Sigmoid")}


def test_shares_of_the_work(tmp_path: Path) -> None:
    path = mixed(tmp_path)
    report = survey(path, table(tmp_path / "t", {**ALL, "Gemm": {"support": "none", "replacement": "Conv"}}))
    assert report.macs == 100.0 and report.macs_share == pytest.approx(0.04) and report.bytes_share == 0.0
    assert report.share == pytest.approx(0.04) and report.accepted
    assert {r.operator: round(r.work_share, 6) for r in report.rows if r.unit == "products"} == {
        "Gemm": 0.04,
        "MatMul": 0.96,
    }
    report = survey(path, table(tmp_path / "t", {**ALL, "Sigmoid": {"support": "none"}}))
    assert report.macs_share == 0.0 and report.share == report.bytes_share == pytest.approx(8 / (32 + 8))
    assert not report.accepted


def test_above_the_limit_the_export_is_refused_by_name(tmp_path: Path) -> None:
    """V9: count, names and share are reported; refused above the limit, not at it."""
    path, log = mixed(tmp_path), DecisionLog(tmp_path / "log.jsonl", {})
    folder = table(tmp_path / "t", {**ALL, "Gemm": {"support": "none", "replacement": "a 1x1 Conv"}})
    assert check_operators(path, "toy", folder=folder, limit=0.04, log=log).accepted
    with pytest.raises(ConfigError) as caught:
        check_operators(path, "toy", folder=folder, limit=0.03, log=log)
    text = str(caught.value)
    for part in ("toy does not cover Gemm (1 of 1: not supported)", "4.0% of the work", "3.0%", str(path)):
        assert part in text
    assert "replace Gemm by a 1x1 Conv" in text
    taken = read_decisions(log.path)
    assert [d.kind for d in taken] == ["operators.check"] * 2 and [d.facts["accepted"] for d in taken] == [True, False]
    assert taken[1].facts["not_covered"] == {"Gemm": 1} and taken[1].facts["share"] == pytest.approx(0.04)


def test_measured_work_counts_instead_where_it_is_given(tmp_path: Path) -> None:
    path = mixed(tmp_path)
    folder = table(tmp_path / "t", {**ALL, "Gemm": {"support": "none"}})
    report = survey(path, folder, work={"a": 1.0, "b": 3.0})
    assert report.share == pytest.approx(0.75) and not report.accepted
    assert {r.unit for r in report.rows} == {"measured"}
    for work, problem in (
        ({"c": 1.0}, r"work\.c: is no node"),
        ({"a": -1.0}, r"work\.a: must be finite"),
        ({"a": math.nan}, r"work\.a: must be finite"),
        ({"a": 0.0}, "nothing was measured"),
        ({}, "nothing was measured"),
    ):
        with pytest.raises(ConfigError, match=problem):
            survey(path, folder, work=work)


def test_unknown_work_of_an_uncovered_node_is_refused(tmp_path: Path) -> None:
    """A share that nobody can tell is no small share."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Foo", ["n"], ["y"], name="foo", domain="own"),
        helper.make_node("Bar", ["y"], ["z"], name="bar", domain="own"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": (3, 3)}, outputs=["z"], imports=[helper.make_opsetid("own", 1)])
    folder = table(tmp_path / "t", {"NonZero": {"support": "full"}, "own.Foo": {"support": "full"}})
    report = survey(path, folder)
    assert report.uncounted == ("bar",) and not report.accepted
    with pytest.raises(ConfigError, match="how much work would fall back is unknown, as are the shapes of bar"):
        check_operators(path, "toy", folder=folder, limit=1.0)


@pytest.mark.parametrize("limit", [-0.1, 1.1, math.nan])
def test_the_limit_is_a_share(limit: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="limit"):
        survey(mixed(tmp_path), table(tmp_path / "t", ALL), limit=limit)


def test_the_table_is_printed(tmp_path: Path) -> None:
    report = survey(mixed(tmp_path), table(tmp_path / "t", {**ALL, "Gemm": {"support": "none", "replacement": "Conv"}}))
    console = Console(width=160, file=io.StringIO())
    print_report(report, console)
    text = console.file.getvalue()
    for part in ("Gemm", "not supported", "Conv", "accepted: 4.0% of the work falls back", "toy library 1.0"):
        assert part in text


# --- the shipped tables ----------------------------------------------------------------------------------------------

TARGETS = ["onnxruntime-cpu", "openvino-cpu", "openvino-npu", "qnn-htp", "tensorrt-dla", "tensorrt-gpu"]


def test_the_shipped_targets() -> None:
    assert known_targets() == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_a_shipped_table_has_its_sources_and_the_operators_of_the_built_in_models(target: str) -> None:
    loaded = load_table(target)
    assert loaded.sources and all(s.what for s in loaded.sources) and len(loaded.operators) > 100
    for name in (
        "Conv",
        "Relu",
        "MatMul",
        "Gemm",
        "Add",
        "Softmax",
        "LayerNormalization",
        "Reshape",
        "Transpose",
        "Concat",
    ):
        assert loaded.operators[name].support in ("full", "limited", "none"), name
    schemas = {s.name for s in onnx.defs.get_all_schemas()} | {
        "ImageScaler",
        "ParametricSoftplus",
        "ScaledTanh",
        "Inverse",
        "ArrayFeatureExtractor",
    }
    own = {name for name in loaded.operators if "." not in name}
    assert own <= schemas | {"Swish"}, own - schemas


def test_a_target_without_a_table_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known targets are onnxruntime-cpu, openvino-cpu.*tensorrt-gpu"):
        check_operators(mixed(tmp_path), "abacus")


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"flavour": 1}, "flavour"),
    ({"operators": {"Conv": {"support": "full", "speed": 3}}}, r"operators\.Conv\.speed"),
    ({"operators": {"Conv": {"support": "perhaps"}}}, r"operators\.Conv\.support"),
    ({"operators": {"Conv": {"support": "full", "dtypes": "gone"}}}, "operator Conv names a set of types"),
    ({"operators": {"Conv": {"support": "full", "dtypes": ["float33"]}}}, "ONNX does not have: float33"),
    ({"operators": {}}, "operators"),
    ({"sources": []}, "sources"),
    ({"date": "today"}, "date"),
    ({"version": None}, "version"),
    ({"target": "other"}, "target"),
]


@pytest.mark.parametrize(("changes", "field"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_a_broken_table_is_named_with_its_key(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    operators = changes.pop("operators", {"Conv": {"support": "full"}})
    folder = table(tmp_path / "t", operators, **changes)
    with pytest.raises(ConfigError, match=field) as caught:
        load_table("toy", folder)
    assert str(folder / "toy.yaml") in str(caught.value)


def test_a_table_that_is_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_table("toy", tmp_path)


# --- the library's own answer ----------------------------------------------------------------------------------------

SHIPPED = sorted(resource("models").glob("*/*.onnx"))


@pytest.mark.parametrize("model", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_built_in_models_run_on_onnxruntime_with_and_without_asking(model: Path) -> None:
    """The written table agrees with what the installed library does."""
    assert check_operators(model, "onnxruntime-cpu", limit=0.0).share == 0.0
    report = check_operators(model, "onnxruntime-cpu", limit=0.0, probe=False)
    assert report.share == 0.0 and report.probe is None and report.macs > 1e5
    assert not any(math.isnan(n.amount) for n in list_nodes(model)[0])


@pytest.mark.parametrize("name", ["fastestdet_352", "nanodet_m_320", "nanodet_m_416", "yolox_nano_416"])
def test_the_reference_detectors(name: str) -> None:
    path = DETECTORS / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"shared data not found in {DETECTORS}")
    report = check_operators(path, "onnxruntime-cpu", limit=0.0)
    assert report.probe is not None and report.probe.takes_all and report.macs > 1e7
    assert check_operators(path, "onnxruntime-cpu", limit=0.0, probe=False).share == 0.0
    assert check_operators(path, "tensorrt-gpu").share == 0.0


def test_the_runtime_refuses_what_it_has_no_kernel_for(tmp_path: Path) -> None:
    """V9: what the installed library does beats the table, in both directions."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="known"),
        helper.make_node("Blur", ["h"], ["y"], name="b", domain="own"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": (1, 4)}, imports=[helper.make_opsetid("own", 1)])
    operators = {"Relu": {"support": "none"}, "own.Blur": {"support": "full"}}
    folder = tmp_path / "t"
    table(folder, operators, target="onnxruntime-cpu")
    (folder / "toy.yaml").rename(folder / "onnxruntime-cpu.yaml")
    report = survey_operators(path, "onnxruntime-cpu", folder=folder)
    rows = {r.operator: r for r in report.rows}
    assert report.probe is not None and report.probe.unsupported == ("b",) and report.probe.message
    assert rows["own.Blur"].reasons[0].startswith("refused by onnxruntime")
    assert rows["Relu"].reasons == ("not supported",)  # not asked alone: the table's word stands
    path = save(path, nodes[:1], {"x": (1, 4)}, outputs=["h"])
    assert survey_operators(path, "onnxruntime-cpu", folder=folder).accepted


def test_openvino_is_asked_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the forge extra is not installed")
    path = mixed(tmp_path)
    probe = PROBES["openvino-cpu"](path, list_nodes(path)[0])
    assert probe is not None and probe.takes_all, probe
    for model in SHIPPED:
        assert check_operators(model, "openvino-cpu", limit=0.0).probe is not None
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Blur", ["h"], ["y"], name="b", domain="own")]
    path = save(tmp_path / "o.onnx", nodes, {"x": (1, 4)}, imports=[helper.make_opsetid("own", 1)])
    probe = PROBES["openvino-cpu"](path, list_nodes(path)[0])
    assert probe is not None and probe.unsupported == ("b",) and probe.message


def test_without_openvino_the_table_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    report = check_operators(mixed(tmp_path), "openvino-cpu")
    assert report.probe is None and report.share == 0.0


def test_a_vlm_decoder_does_not_go_onto_the_accelerator_for_convolutions() -> None:
    """The DLA takes convolutions; attention falls back, and with free dimensions everything does."""
    decoder = next(p for p in SHIPPED if p.name == "decoder.onnx")
    with pytest.raises(ConfigError, match="tensorrt-dla does not cover"):
        check_operators(decoder, "tensorrt-dla")
    assert survey_operators(decoder, "tensorrt-dla").macs_share == pytest.approx(1.0)


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("target", ["tensorrt-gpu", "onnxruntime-cpu", "openvino-cpu"])
def test_an_exported_vlm_falls_back_nowhere(frames: int, target: str, tmp_path: Path) -> None:
    """Pictures come as bytes, which TensorRT takes into a Cast and into nothing else: the Cast must come first."""
    torch = pytest.importorskip("torch", reason="the forge extra is not installed")
    from triptych_forge.vlm.export import export
    from triptych_forge.vlm.model import Shape, Vlm

    torch.manual_seed(1)
    shape = Shape(64, 48, frames, (8, 8, 12), (1, 1, 1), 16, 1, 2, 1, 24)
    encoder, _ = export(Vlm(shape, 20), tmp_path)
    report = survey_operators(encoder, target, limit=0.0)
    assert report.accepted and report.share == report.bytes_share == report.macs_share == 0.0, report.missing
    assert report.macs > 1e4 and not report.uncounted
    first = next(n for n in list_nodes(encoder)[0] if "frames" in n.proto.input)
    assert first.operator == "Cast" and first.dtype == "uint8"
