"""The fault table is read strictly, and one fault lives as its row says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from supervisor_rig import FAULTS, MS, row, table

from triptych.contract import ConfigError, VerdictLevel
from triptych.contract.supervision import Verdict
from triptych.supervisor.faults import MAX_ROWS, FaultLife, Reaction, check_faults, load_faults
from triptych.supervisor.monitors import METRICS

TICK_NS = 10 * MS
NAN = math.nan
LOST = row(id="detector.lost", reaction="l1").model_dump()


def raw(**changes: object) -> dict[str, object]:
    """A row as YAML gives it; ``None`` removes a field."""
    values = {**row().model_dump(), **changes}
    return {key: value for key, value in values.items() if value is not None}


def refusal(rows: list[object]) -> str:
    """The sentence with which a table is refused."""
    with pytest.raises(ConfigError) as caught:
        check_faults(rows, "t.yaml")
    return str(caught.value)


def test_the_shipped_table() -> None:
    """Every tier has a row for each of the basic monitors; only tier 1 may start the manoeuvre."""
    ids = {fault.id for fault in table()}
    for tier in ("detector", "distilled", "full"):
        used = {fault.metric for fault in table() if fault.source == tier}
        assert used == METRICS[tier]
        assert f"{tier}.never_received" in ids
    assert {fault.source for fault in table() if fault.reaction == "l1"} == {"detector", "safety_core"}
    assert all(fault.id.split(".")[0] == fault.source for fault in table())
    machine = [fault for fault in table() if fault.source == "machine"]
    assert {fault.metric for fault in machine} == METRICS["machine"]
    assert {fault.reaction for fault in machine} <= {"log", "l3"}, "a full disk stops no vehicle"
    assert all(fault.asil != "QM" for fault in table() if fault.reaction != "log")
    assert all(fault.reaction == "l1" for fault in table() if fault.latch)
    assert all(fault.hysteresis <= fault.threshold for fault in table())
    by_id = {fault.id: fault for fault in table()}
    assert by_id["detector.stalled"].threshold == 0.09
    assert by_id["detector.lost"].threshold == 0.12
    assert by_id["detector.lost"].latch and by_id["detector.blind"].latch


def test_advice_tiers_cannot_ask_for_more_than_to_be_ignored() -> None:
    """No fault of a VLM tier leads beyond L3."""
    for fault in table():
        if fault.source in {"distilled", "full"}:
            assert Reaction[fault.reaction.upper()] <= Reaction.L3


def test_every_row_of_the_shipped_file_is_loaded() -> None:
    """Nothing is dropped."""
    assert [fault.id for fault in table()] == [r["id"] for r in yaml.safe_load(FAULTS.read_text())["faults"]]


def test_a_missing_or_unreadable_file(tmp_path: Path) -> None:
    """One sentence with the file and a remedy."""
    missing = tmp_path / "no.yaml"
    with pytest.raises(ConfigError) as caught:
        load_faults(missing)
    assert str(caught.value).startswith(f"{missing}: cannot be read: ")
    assert str(caught.value).endswith("; give the path of a fault table.")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_faults(tmp_path)


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    """One sentence, on one line."""
    path = tmp_path / "f.yaml"
    for content, problem in (
        (b"faults: [\n  {id: 1\n", "while parsing a flow mapping in "),
        (b"\xff\xfe\x00", "unacceptable character"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_faults(path)
        assert str(caught.value).startswith(f"{path}: is not YAML: {problem}")
        assert str(caught.value).endswith("; correct the syntax.")
        assert "\n" not in str(caught.value) and "  " not in str(caught.value)


def test_a_bad_row_of_a_file(tmp_path: Path) -> None:
    """The file is named."""
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump({"faults": [LOST, raw(latch="no")]}))
    with pytest.raises(ConfigError) as caught:
        load_faults(path)
    assert str(caught.value).startswith(f"{path}, detector.test: latch: ")


@pytest.mark.parametrize("text", ["", "[]", "faults:", "faults: []", "faults: {}", "other: [1]", "3"])
def test_a_file_without_rows(tmp_path: Path, text: str) -> None:
    """An empty table is no table."""
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_faults(path)
    assert str(caught.value) == f"{path}: faults: has no rows; list the faults under 'faults:'."


def test_utf8(tmp_path: Path) -> None:
    """Sentences may be written in any language, whatever the locale is."""
    path = tmp_path / "f.yaml"
    path.write_bytes(yaml.safe_dump({"faults": [{**LOST, "sentence": "Später € 障害"}]}, allow_unicode=True).encode())
    assert load_faults(path)[0].sentence == "Später € 障害"


@pytest.mark.parametrize("field", list(row().model_dump()))
def test_every_field_is_mandatory(field: str) -> None:
    """Fail closed: nothing has a default."""
    name = "row 2" if field == "id" else "detector.test"
    remedy = "see docs/parameters.md for the names and ranges"
    got = refusal([LOST, raw(**{field: None})])
    assert got.startswith(f"t.yaml, {name}: {field}: Field required (got ")
    assert got.endswith(f"; {remedy}.")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "Detector.test"), ("id", "detector"), ("id", "a.b.c"), ("id", "a." + "b" * 47), ("id", 3),
        ("comparison", "<"), ("threshold", "1"), ("threshold", NAN), ("threshold", math.inf), ("threshold", -0.1),
        ("debounce_s", -0.01), ("debounce_s", 60.1), ("debounce_s", NAN), ("hysteresis", -1.0), ("clear_s", -0.1),
        ("clear_s", 61), ("latch", "yes"), ("latch", 1), ("reaction", "L1"), ("reaction", "mrc"), ("asil", "E"),
        ("sentence", "short"), ("sentence", "x" * 121),
    ],
)  # fmt: skip
def test_values_out_of_range(field: str, value: object) -> None:
    """File, row, field and value are named."""
    got = refusal([LOST, raw(**{field: value})])
    assert f": {field}: " in got and "t.yaml, " in got and "(got " in got


def test_a_boolean_is_no_threshold() -> None:
    """YAML's yes and true are no numbers."""
    assert refusal([LOST, raw(threshold=True)]) == "t.yaml, detector.test: threshold: must be a number (got True)."


def test_whole_numbers_are_numbers() -> None:
    """A count may be written without a point."""
    assert check_faults([LOST, raw(threshold=3)], "t")[1].threshold == 3.0


def test_an_unknown_field() -> None:
    """A typing error is found, not ignored."""
    assert "t.yaml, detector.test: treshold: Extra inputs are not permitted (got 1)" in refusal([LOST, raw(treshold=1)])


def test_unknown_source_and_metric() -> None:
    """The known ones are listed."""
    assert refusal([LOST, raw(source="radar")]) == (
        "t.yaml, detector.test: source: unknown source (got 'radar'); "
        "use one of detector, distilled, full, odometry, driver, lidar, safety_core, supervisor, clock, "
        "machine."
    )
    assert refusal([LOST, raw(source="clock", metric="gap_s")]) == (
        "t.yaml, detector.test: metric: unknown metric (got 'gap_s'); use one of step_s."
    )
    assert "use one of age_s, invalid_n, jump_n, overdue_s." in refusal([LOST, raw(source="odometry")])


@pytest.mark.parametrize(
    "sentence", ["for {speed} m/s", "for {} m/s xx", "for {0} m/s", "for {value m/s", "{value:q} is too much"]
)
def test_a_sentence_that_cannot_be_said(sentence: str) -> None:
    """Found when the table is read, not when the fault happens."""
    got = refusal([LOST, raw(sentence=sentence)])
    assert got.startswith("t.yaml, detector.test: sentence: cannot be formatted: ")
    assert got.endswith("; use {value} and {threshold} only.")
    assert repr(sentence) in got


@pytest.mark.parametrize(
    ("sentence", "field"),
    [
        ("for {value:9999.1f} s", "9999.1f"),
        ("{value:.1f}, {value:.1000f}", ".1000f"),
        ("for {value:{value}} s", "{value}"),
    ],
)
def test_a_sentence_that_could_fill_the_memory(sentence: str, field: str) -> None:
    """Widths of thousands, or given by the value itself, are refused; before anything is formatted."""
    got = refusal([LOST, raw(sentence=sentence)])
    assert got == f"t.yaml, detector.test: sentence: is too wide a field (got {field!r}); format simply."
    assert check_faults([LOST, raw(sentence="for {value:120.1f} s")], "t.yaml")


@pytest.mark.parametrize("rubbish", [None, 3, "row", ["id"]])
def test_a_row_that_is_no_mapping(rubbish: object) -> None:
    """Its number is given."""
    got = "" if rubbish is None else f" (got {rubbish!r})"
    assert refusal([LOST, rubbish]) == f"t.yaml, row 2: is not a mapping{got}; write 'field: value' lines."


def test_keys_that_are_no_text() -> None:
    """YAML allows numbers as keys; they are unknown fields."""
    assert "t.yaml, detector.test: 3: Extra inputs are not permitted" in refusal([LOST, {**raw(), 3: 4}])


def test_an_id_used_twice() -> None:
    """Also when the rows are equal."""
    assert refusal([LOST, raw(), raw()]) == "t.yaml: id: is used twice (got 'detector.test'); name every fault once."


def test_the_number_of_rows_is_bounded() -> None:
    """The verdict message holds 128."""
    rows = [LOST, *(raw(id=f"detector.n{n}") for n in range(MAX_ROWS - 1))]
    assert len(check_faults(rows, "t")) == MAX_ROWS == 128
    assert refusal([*rows, raw()]) == "t.yaml: faults: at most 128 rows (got 129)."


@pytest.mark.parametrize("change", [{"source": "full"}, {"metric": "crc_n"}, {"reaction": "l2"}])
def test_a_table_that_ignores_the_loss_of_tier_one(change: dict[str, object]) -> None:
    """Fail closed."""
    assert refusal([raw(**{**LOST, **change})]) == (
        "t.yaml: faults: no row answers the loss of tier 1; "
        "add a row with source detector, metric gap_s and reaction l1."
    )


def levels(life: FaultLife, values: list[float | None], hold: bool = False) -> list[bool]:
    """Feed values 10 ms apart; the row's activity after each."""
    activity = []
    for value in values:
        before = life.active
        changed = life.update(value, TICK_NS, hold)
        assert changed is (life.active is not before)
        activity.append(life.active)
    return activity


@pytest.mark.parametrize(
    ("comparison", "value", "active"),
    [
        (">", 0.99, False), (">", 1.0, False), (">", 1.01, True), (">", NAN, True), (">", math.inf, True),
        (">=", 0.99, False), (">=", 1.0, True), (">=", 1.01, True), (">=", NAN, True), (">", -math.inf, False),
    ],
)  # fmt: skip
def test_comparison(comparison: str, value: float, active: bool) -> None:
    """At 0.99, 1.0 and 1.01 of the threshold; NaN is at fault."""
    life = FaultLife(row(comparison=comparison))
    assert levels(life, [value]) == [active]
    assert life.level is (VerdictLevel.FAULT if active else VerdictLevel.OK)


def test_unknown_neither_starts_nor_ends_a_fault() -> None:
    """Missing is UNKNOWN, never OK."""
    life = FaultLife(row(clear_s=0.02))
    assert life.level is VerdictLevel.UNKNOWN and not life.active
    assert levels(life, [None] * 5) == [False] * 5
    assert life.level is VerdictLevel.UNKNOWN
    assert levels(life, [2.0] + [None] * 100) == [True] * 101
    assert levels(life, [0.0, 0.0, None, 0.0, 0.0, 0.0]) == [True] * 5 + [False]


def test_debounce_takes_its_time() -> None:
    """The time between two looks belongs to the level of the first."""
    life = FaultLife(row(debounce_s=0.03))
    assert levels(life, [2.0, 2.0, 2.0, 2.0, 2.0]) == [False, False, False, True, True]
    assert life.text == "value 2.00 limit 1.00"


def test_debounce_leaks_at_half_speed() -> None:
    """A fault present half of the time still gets through; one present a fifth of it does not."""
    half, fifth = FaultLife(row(debounce_s=0.1)), FaultLife(row(debounce_s=0.1))
    assert any(levels(half, [2.0, 0.0] * 30))
    assert not any(levels(fifth, [2.0, 0.0, 0.0, 0.0, 0.0] * 200))


def test_debounce_exactly() -> None:
    """20 ms at fault, 20 ms well (minus 10): 20 ms more to the 30."""
    life = FaultLife(row(debounce_s=0.03))
    assert levels(life, [2.0, 2.0, 0.0, 0.0, 2.0]) == [False] * 5
    assert levels(life, [2.0, 2.0]) == [False, True]


def test_debounce_is_not_charged_below_zero_or_by_the_unknown() -> None:
    """Long good times do not make the next fault slower; unknown time neither charges nor discharges."""
    life = FaultLife(row(debounce_s=0.02))
    assert levels(life, [2.0] + [0.0] * 50 + [2.0, 2.0, 2.0]) == [False] * 53 + [True]
    life = FaultLife(row(debounce_s=0.03))
    assert levels(life, [2.0, 2.0, None, None, None, None, 2.0, 2.0]) == [False] * 7 + [True]


def test_no_debounce_is_at_once() -> None:
    """The first look counts."""
    assert levels(FaultLife(row()), [2.0]) == [True]


def test_after_its_end_the_debounce_starts_anew() -> None:
    """No charge is left over."""
    life = FaultLife(row(debounce_s=0.02, clear_s=0.02))
    assert levels(life, [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]) == [False, False, True, True, True, False]
    assert levels(life, [2.0, 2.0, 2.0]) == [False, False, True]


def test_hysteresis() -> None:
    """At fault above 1, well again at 0.8 only; the unknown in between does not matter."""
    life = FaultLife(row(hysteresis=0.2))
    assert levels(life, [0.9, 1.01, 0.99, 0.81, None, 0.81, 0.8, 0.9, 1.0, 1.01]) == [
        False, True, True, True, True, True, False, False, False, True,
    ]  # fmt: skip
    inclusive = FaultLife(row(hysteresis=0.2, comparison=">="))
    assert levels(inclusive, [0.99, 1.0, 0.81, 0.8, 0.79]) == [False, True, True, True, False]


def test_clearing_takes_uninterrupted_time() -> None:
    """Each relapse starts it anew."""
    life = FaultLife(row(clear_s=0.03))
    assert levels(life, [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]) == [True] * 8 + [False]


def test_latch() -> None:
    """Held until nobody holds it any more; then it ends at once if it has been well long enough."""
    life = FaultLife(row(latch=True, clear_s=0.02))
    assert levels(life, [2.0] + [0.0] * 50, hold=True) == [True] * 51
    assert life.settled()
    assert levels(life, [0.0]) == [False]
    assert levels(life, [2.0, 0.0, 0.0, 0.0], hold=True) == [True] * 4
    assert levels(FaultLife(row(latch=False)), [2.0, 0.0, 0.0], hold=True) == [True, False, False]


def test_settled() -> None:
    """Well for the clearing time."""
    life = FaultLife(row(latch=True, clear_s=0.02))
    levels(life, [2.0], hold=True)
    assert not life.settled()
    levels(life, [0.0, 0.0], hold=True)
    assert not life.settled()
    levels(life, [0.0], hold=True)
    assert life.settled()
    levels(life, [None], hold=True)
    assert not life.settled()
    levels(life, [0.0, 0.0, 0.0, 2.0], hold=True)
    assert not life.settled()


def test_suppressed_transitions_are_counted() -> None:
    """A8: what debounce and clearing time swallow is not lost from sight."""
    life = FaultLife(row(debounce_s=0.1, clear_s=0.1))
    levels(life, [0.0, 2.0, 0.0, None, 0.0, 2.0, 2.0, None, 0.0, 0.0])
    assert life.suppressed == 2 and not life.active
    levels(life, [2.0] * 15)
    assert life.active and life.suppressed == 2
    levels(life, [0.0, 2.0, None, 2.0, 0.0, 0.0, 2.0])
    assert life.active and life.suppressed == 4
    levels(life, [0.0] * 15)
    assert not life.active and life.suppressed == 4
    immediate = FaultLife(row())
    levels(immediate, [2.0, 0.0, 2.0, 0.0])
    assert immediate.suppressed == 0


def test_verdict() -> None:
    """What is said of a row; the sentence only while it is active."""
    life = FaultLife(row(clear_s=0.0))
    before = life.verdict()
    assert math.isnan(before.value)
    assert (before.level, before.active, before.text) == (VerdictLevel.UNKNOWN, False, "")
    levels(life, [2.0])
    assert life.verdict() == Verdict(
        "detector.test", "detector", VerdictLevel.FAULT, True, 2.0, 1.0, "value 2.00 limit 1.00"
    )
    levels(life, [3])
    assert life.verdict().value == 3.0 and isinstance(life.verdict().value, float)
    assert life.verdict().text == "value 2.00 limit 1.00"
    levels(life, [NAN])
    assert math.isnan(life.verdict().value) and life.verdict().level is VerdictLevel.FAULT
    levels(life, [0.0])
    assert life.verdict() == Verdict("detector.test", "detector", VerdictLevel.OK, False, 0.0, 1.0, "")


def test_a_long_sentence_is_cut() -> None:
    """The message holds 160 characters."""
    assert row(sentence="{value:>200.1f}").text(1.0) == " " * 160
    assert row(sentence="{value:>160.0f}").text(1.0) == " " * 159 + "1"
