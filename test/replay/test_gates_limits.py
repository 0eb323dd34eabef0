"""The limits file: what it refuses, and when a gate is held."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_runs import Outcome, Sketch, judged, limits_file, outcomes

from triptych.contract import ConfigError
from triptych.gates.limits import bounds, load_limits
from triptych.gates.metrics import METRICS

STOPS = [(0.0, "init"), (0.5, "drive"), (3.2, "stop"), (6.4, "drive")]
OBSTACLE = [{"name": "obstacle", "from_s": 3.0, "to_s": 6.0}]


@pytest.mark.parametrize(
    ("max_s", "outcome"), [(0.99, Outcome.MISSED), (1.0, Outcome.HELD), (1.01, Outcome.HELD)], ids=str
)
@pytest.mark.parametrize("metric", ["time_to_stop_command_s", "time_to_resume_s"])
def test_a_greatest_value_is_held_up_to_itself(tmp_path: Path, metric: str, max_s: float, outcome: Outcome) -> None:
    sketch = Sketch(8.0, STOPS)
    value = {"time_to_stop_command_s": 0.2, "time_to_resume_s": 0.4}[metric]
    compared = judged(tmp_path, sketch, {"metric": metric, "max": max_s * value + 1e-9}, occasions=OBSTACLE)
    assert outcomes(compared) == [outcome] and compared.held is (outcome is Outcome.HELD)


@pytest.mark.parametrize(("factor", "outcome"), [(0.99, Outcome.HELD), (1.0, Outcome.HELD), (1.01, Outcome.MISSED)])
def test_a_least_value_is_held_from_itself_on(tmp_path: Path, factor: float, outcome: Outcome) -> None:
    sketch = Sketch(8.0, [(0.0, "init"), (1.0, "drive"), (4.0, "stop"), (5.0, "manual")])
    assert outcomes(judged(tmp_path, sketch, {"metric": "nominal_share", "min": 0.75 * factor})) == [outcome]


def test_every_miss_says_what_was_measured_and_what_was_asked(tmp_path: Path) -> None:
    compared = judged(
        tmp_path,
        Sketch(8.0, STOPS),
        {"name": "stops in time", "metric": "time_to_stop_command_s", "max": 0.1},
        {"name": "never sleeps", "metric": "constraint_gap_max_s", "max": 0.15},
        occasions=OBSTACLE,
    )
    (reason,) = compared.reasons
    assert reason == (
        "stops in time: time_to_stop_command_s is 0.2, at most 0.1 is asked for (obstacle: commanded at 3.20 s)."
    )


def test_nothing_to_measure_is_a_miss_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    sketch, limit = Sketch(8.0, STOPS), {"metric": "time_to_stop_command_s", "max": 0.5}
    gap = {"metric": "constraint_gap_max_s", "max": 0.15}
    strict = judged(tmp_path, sketch, limit, gap)
    assert outcomes(strict) == [Outcome.UNMEASURED, Outcome.HELD] and not strict.held
    assert "there was nothing to stop for" in strict.reasons[0]
    lenient = judged(tmp_path, sketch, {**limit, "may_be_unmeasured": "a sound drive"}, gap)
    assert outcomes(lenient) == [Outcome.NOT_APPLICABLE, Outcome.HELD] and lenient.held and not lenient.reasons


def test_leave_to_be_unmeasured_is_no_leave_to_be_missed(tmp_path: Path) -> None:
    limit = {"metric": "time_to_stop_command_s", "max": 0.1, "may_be_unmeasured": "a sound drive"}
    assert outcomes(judged(tmp_path, Sketch(8.0, STOPS), limit, occasions=OBSTACLE)) == [Outcome.MISSED]


def test_nothing_compared_at_all_is_never_a_pass(tmp_path: Path) -> None:
    limit = {"metric": "time_to_stop_command_s", "max": 0.5, "may_be_unmeasured": "a sound drive"}
    compared = judged(tmp_path, Sketch(8.0, STOPS), limit)
    assert not compared.held and compared.reasons == ["No limit was compared: nothing could be measured."]


def test_what_never_comes_misses_every_limit_even_a_least_one(tmp_path: Path) -> None:
    sketch = Sketch(8.0, STOPS[:2])
    limit = {"metric": "time_to_stop_command_s", "min": 0.0}
    compared = judged(tmp_path, sketch, limit, occasions=OBSTACLE)
    assert outcomes(compared) == [Outcome.MISSED] and "is never" in compared.reasons[0]


@pytest.mark.parametrize(
    ("field", "change"), [("from_s", {"from_s": 8.2}), ("to_s", {"from_s": 3.0, "to_s": 9.0})], ids=["from", "to"]
)
def test_an_occasion_outside_the_run_is_refused(tmp_path: Path, field: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"limits.yaml: occasions.fog.{field}: lies after the end .* 8.00 s"):
        judged(
            tmp_path, Sketch(8.0, STOPS), {"metric": "false_stops_n", "max": 0}, occasions=[{"name": "fog", **change}]
        )


FINE: dict[str, Any] = {"name": "a", "metric": "false_stops_n", "max": 0, "why": "because"}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"metric": "false_stop_n"}, "limits.a.metric", "no such metric (got 'false_stop_n'); use false_stops_n"),
        ({"metric": "xyz"}, "limits.a.metric", "triptych gate --metrics"),
        ({"maximum": 3}, "limits.a.maximum", "is not a known field (got 3)"),
        ({"max": math.nan}, "limits.a.max", "finite number (got nan)"),
        ({"max": math.inf}, "limits.a.max", "finite number (got inf)"),
        ({"max": -1}, "limits.a.max", "must be 0 or above for false_stops_n (got -1.0)"),
        ({"max": "3"}, "limits.a.max", "valid number (got '3')"),
        ({"max": True}, "limits.a.max", "valid number (got True)"),
        ({"max": None}, "limits.a", "has neither max nor min"),
        ({"min": 1}, "limits.a.min", "contradicts its own max, 0"),
        ({"metric": "nominal_share", "max": 1.01}, "limits.a.max", "must be 0..1"),
        ({"why": ""}, "limits.a.why", "at least 1 character"),
        ({"may_be_unmeasured": ""}, "limits.a.may_be_unmeasured", "at least 1 character"),
        ({"may_be_unmeasured": True}, "limits.a.may_be_unmeasured", "valid string"),
    ],
)
def test_a_wrong_limit_is_refused_by_file_field_value_and_remedy(
    tmp_path: Path, change: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_limits(limits_file(tmp_path, {**FINE, **change}))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'limits.yaml'}: {field}: ") and words in message and "; " in message


@pytest.mark.parametrize("missing", ["name", "metric", "why"])
def test_a_limit_without_a_name_a_metric_or_a_reason_is_refused(tmp_path: Path, missing: str) -> None:
    row = {k: v for k, v in FINE.items() if k != missing}
    (tmp_path / "limits.yaml").write_text(yaml.safe_dump({"schema_version": 1, "limits": [row]}))
    with pytest.raises(ConfigError, match=rf"{missing}: is missing; add it"):
        load_limits(tmp_path / "limits.yaml")


def test_two_limits_that_no_value_holds_are_refused(tmp_path: Path) -> None:
    low = {**FINE, "name": "b", "max": None, "min": 2}
    with pytest.raises(ConfigError, match=r"limits\.b\.min: contradicts the max of 'a', 0: no value of false_stops_n"):
        load_limits(limits_file(tmp_path, FINE, low))
    load_limits(limits_file(tmp_path, {**FINE, "max": 2}, low))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "must be a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("", "must be a mapping"),
        ("schema_version: 2\nlimits: []", "schema_version"),
        ("schema_version: 1\nlimits: []", "limits: tuple should have at least 1 item"),
        ("schema_version: 1\nlimits: [3]", "limits.1"),
        ("limits: []", "schema_version: is missing"),
        ("schema_version: 1\nlimit: []", "limit"),
        ("schema_version: 1\nschema_version: 1\nlimits: []", "'schema_version' is there twice"),
    ],
)
def test_what_is_no_limits_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_limits(path)
    assert words in str(caught.value) and str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "fog", "from_s": 3.0, "to_s": 3.0}, "occasions.fog.to_s: must be above from_s, 3"),
        ({"name": "fog", "from_s": math.nan}, "occasions.fog.from_s"),
        ({"name": "fog", "from_s": -1.0}, "occasions.fog.from_s"),
        ({"name": "fog", "from_s": 1.0, "demand": "brake"}, "occasions.fog.demand"),
        ({"name": "fog", "from_s": 1.0, "until_s": 3.0}, "occasions.fog.until_s: is not a known field"),
    ],
)
def test_a_wrong_occasion_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_limits(limits_file(tmp_path, FINE, occasions=[row]))
    assert words in str(caught.value)


def test_names_are_there_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"limits\.name: is there twice .got 'a'."):
        load_limits(limits_file(tmp_path, FINE, FINE))
    twice = [{"name": "fog", "from_s": 1.0}] * 2
    with pytest.raises(ConfigError, match=r"occasions\.name: is there twice"):
        load_limits(limits_file(tmp_path, FINE, occasions=twice))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_limits(tmp_path / "limits.yaml")


@pytest.mark.parametrize("metric", list(METRICS))
def test_every_metric_can_be_limited(tmp_path: Path, metric: str) -> None:
    (limit,) = load_limits(limits_file(tmp_path, {**FINE, "metric": metric, "max": 1, "min": 0.5})).limits
    assert bounds(limit) == "at least 0.5 and at most 1"
