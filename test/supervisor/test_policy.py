"""The policy: read strictly, bounded whatever it says, and asked before a VLM's result influences anything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from supervisor_rig import POLICY, Rig, driving, policy

from triptych.contract import Advice, ConfigError, SceneAdvice, Tier
from triptych.supervisor.arbitration import tier_cap_mps
from triptych.supervisor.config import SupervisorConfig
from triptych.supervisor.policy import DEFAULT_POLICY, Function, Permission, Policy, check_policy, load_policy

NEVER, REDUNDANT, ADVICE, MAIN = Permission
CAPS = SupervisorConfig().advice_caps_mps()
SHIPPED = yaml.safe_load(POLICY.read_text(encoding="utf-8"))["policy"]
VLM = (Tier.DISTILLED, Tier.FULL)
# What each pair may be given; written down anew, so that a slip in the module does not excuse itself.
SAFETY = ("braking", "steering", "emergency_avoidance")
ALL = {"never", "redundant_input", "advice", "main_source"}
LEGAL: dict[tuple[str, str], set[str]] = {
    **{(f, t): {"never", "redundant_input"} for f, t in product(SAFETY, ("distilled", "full"))},
    **{("cruise", t): {"never", "redundant_input", "advice"} for t in ("distilled", "full")},
    **dict.fromkeys(product(("hint", "infotainment"), ("detector", "distilled", "full")), ALL),
    ("braking", "detector"): {"main_source"},
    ("cruise", "detector"): {"main_source"},
    ("steering", "detector"): ALL,
    ("emergency_avoidance", "detector"): ALL,
}  # fmt: skip
PAIRS = [(function.value, tier.key) for function in Function for tier in Tier]


def rows(**changes: Any) -> list[dict[str, Any]]:
    """The shipped rows; ``rows(braking={"full": None})`` takes a field out."""
    found = []
    for row in SHIPPED:
        row = {**row, **changes.get(row["function"], {})}
        found.append({key: value for key, value in row.items() if value is not None})
    return found


def refusal(table: list[Any]) -> str:
    """The sentence with which a table is refused."""
    with pytest.raises(ConfigError) as caught:
        check_policy(table, "p.yaml")
    return str(caught.value)


def test_the_shipped_table_is_the_default() -> None:
    """A core without a table behaves as one with the shipped one."""
    shipped = load_policy(POLICY)
    assert [row.model_dump(exclude={"why"}) for row in shipped.rows] == [
        row.model_dump(exclude={"why"}) for row in DEFAULT_POLICY.rows
    ]


def test_the_legal_table_of_this_test_is_whole() -> None:
    """Every pair is judged."""
    assert set(LEGAL) == set(PAIRS)


@pytest.mark.parametrize(("function", "tier", "grant"), [(*pair, grant) for pair, grant in product(PAIRS, sorted(ALL))])
def test_every_pair_and_permission(function: str, tier: str, grant: str) -> None:
    """Given and found again, or refused with file, function, tier and a remedy."""
    table = rows(**{function: {tier: grant}})
    if grant in LEGAL[function, tier]:
        made = check_policy(table, "p.yaml")
        for f, t in product(Function, Tier):
            row = next(r for r in table if r["function"] == f.value)
            assert made.permitted(f, t) is Permission[row[t.key].upper()]
    else:
        sentence = refusal(table)
        assert sentence.startswith(f"p.yaml, {function}: {tier}: ")
        assert f"(got '{grant}'); write {tier}: " in sentence


def test_why_a_permission_is_refused() -> None:
    """In words, with the way out."""
    assert refusal(rows(cruise={"detector": "advice"})) == (
        "p.yaml, cruise: detector: the motion constraint rests on tier 1 here (got 'advice'); "
        "write detector: main_source."
    )
    assert refusal(rows(cruise={"full": "main_source"})).endswith("(got 'main_source'); write full: advice or less.")


@pytest.mark.parametrize(("function", "tier"), PAIRS)
def test_a_pair_that_is_missing(function: str, tier: str) -> None:
    """Fail closed: no permission is assumed."""
    assert refusal(rows(**{function: {tier: None}})) == (
        f"p.yaml, {function}: {tier}: is missing; write never, redundant_input, advice or main_source."
    )


@pytest.mark.parametrize("function", [f.value for f in Function])
def test_a_function_that_is_missing_or_there_twice(function: str) -> None:
    """Every function once."""
    left = [row for row in SHIPPED if row["function"] != function]
    assert refusal(left) == (
        f"p.yaml: {function}: function is missing; add a row that says how far each tier may go "
        "(detector, distilled, full)."
    )
    twice = [*SHIPPED, next(row for row in SHIPPED if row["function"] == function)]
    assert refusal(twice) == f"p.yaml: function: is used twice (got '{function}'); name every function once."


@pytest.mark.parametrize(("function", "asil"), [*product([f.value for f in Function], ["QM", "A", "B", "C", "D"])])
def test_asil_bounds_the_permission(function: str, asil: str) -> None:
    """C and D allow a VLM no more than a redundant input, whatever the function; the three below C are refused."""
    table = rows(**{function: {"asil": asil}})
    granted = next(r for r in table if r["function"] == function)
    above = granted["distilled"] in {"advice", "main_source"} or granted["full"] in {"advice", "main_source"}
    if function in SAFETY and asil not in {"C", "D"}:
        assert refusal(table) == f"p.yaml, {function}: asil: must be C or D (got '{asil}'); write asil: D."
    elif asil in {"C", "D"} and above:
        assert f"a VLM may be at most redundant_input here ({granted['mode']}, ASIL {asil})" in refusal(table)
    else:
        assert check_policy(table, "p.yaml")


@pytest.mark.parametrize("function", [f.value for f in Function])
def test_a_mode_the_function_does_not_have(function: str) -> None:
    """What acts on the vehicle cannot be called advisory, and what is only read not authoritative."""
    mode = next(row["mode"] for row in SHIPPED if row["function"] == function)
    other = {"advisory": "authoritative", "authoritative": "advisory"}[mode]
    sentence = f"p.yaml, {function}: mode: must be {mode} (got '{other}'); write mode: {mode}."
    assert refusal(rows(**{function: {"mode": other}})) == sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"full": "sometimes"}, "p.yaml, cruise: full: Input should be 'never', 'redundant_input', 'advice' or "),
        ({"full": False}, "p.yaml, cruise: full: Input should be "),
        ({"asil": "E"}, "p.yaml, cruise: asil: Input should be "),
        ({"speed": 3}, "p.yaml, cruise: speed: Extra inputs are not permitted (got 3); see docs/policy.md"),
        ({"why": "short"}, "p.yaml, cruise: why: "),
        ({"mode": None}, "p.yaml, cruise: mode: is missing; see docs/policy.md for the fields."),
    ],
)
def test_a_field_that_is_wrong(change: dict[str, Any], sentence: str) -> None:
    """Named with its row."""
    assert refusal(rows(cruise=change)).startswith(sentence)


def test_rows_that_are_none() -> None:
    """Any rubbish in YAML."""
    assert refusal([*SHIPPED, 3]) == "p.yaml, row 7: is not a mapping (got 3); write 'field: value' lines."
    assert refusal([{}]).startswith("p.yaml, row 1: function: is missing")
    assert refusal([{"function": "flying"}]).startswith("p.yaml, flying: function: Input should be 'braking'")


@pytest.mark.parametrize("text", ["", "3", "[]", "policy:", "policy: {}", "other: []"])
def test_a_file_without_rows(tmp_path: Path, text: str) -> None:
    """An empty table is no table."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert str(caught.value) == f"{path}: policy: has no rows; list the functions under 'policy:'."


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """One sentence with a remedy."""
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: .*; give the path of a policy table\.$"):
        load_policy(tmp_path / "no.yaml")
    path = tmp_path / "p.yaml"
    path.write_text("policy: [\n")
    with pytest.raises(ConfigError, match=r"p\.yaml: is not YAML: .*; correct the syntax\.$"):
        load_policy(path)
    path.write_text("policy: []\n")
    with pytest.raises(ConfigError, match=r"p\.yaml: braking: function is missing"):
        load_policy(path)


def test_no_policy_exists_that_is_not_legal() -> None:
    """Not even one that is built by hand."""
    with pytest.raises(ConfigError):
        Policy(DEFAULT_POLICY.rows[1:])
    braking = DEFAULT_POLICY.rows[0].model_copy(update={"full": "main_source"})
    with pytest.raises(ConfigError):
        Policy((braking, *DEFAULT_POLICY.rows[1:]))


@pytest.mark.parametrize(("permission", "advice"), [*product(Permission, [*Advice, None])])
def test_the_cap_of_a_tier(permission: Permission, advice: Advice | None) -> None:
    """Nothing, what the comparison left, or the advice; never a main source."""
    careless, careful = tier_cap_mps(permission, advice, None, CAPS), tier_cap_mps(permission, None, advice, CAPS)
    cap = CAPS[Advice.CAUTION if advice is None else advice]
    caution = CAPS[Advice.CAUTION]
    infinite = float("inf")
    wanted = {NEVER: (infinite, infinite), REDUNDANT: (caution, cap), ADVICE: (cap, caution), MAIN: (cap, caution)}
    assert (careless, careful) == wanted[permission]


@pytest.mark.parametrize(("tier", "grant"), [*product(VLM, ["never", "redundant_input", "advice"])])
def test_the_arbiter_asks_the_table(tier: Tier, grant: str) -> None:
    """A VLM that says STOP stops a vehicle only where it may; the detector of this vehicle sees nobody ahead."""
    rig = driving(20.0, policy=policy(**{f"cruise_{tier.key}": grant}))
    rig.obeys = False
    stop = SceneAdvice(advice=Advice.STOP)
    rig.edit_result = lambda result: replace(result, payload=stop) if result.tier is tier else result
    rig.run(2.5)
    # Unconfirmed advice leaves what is not known of the scene: caution.
    limit = {"never": 36.1, "redundant_input": 25.0, "advice": 0.0}[grant]
    assert rig.core._cap_mps(False) == limit
    assert 20.0 < rig.limits_mps[-1] <= limit if limit else rig.limits_mps[-1] == 0.0


@pytest.mark.parametrize("tier", VLM)
def test_a_silent_tier_that_may_not_speak_costs_nothing(tier: Tier) -> None:
    """Without a permission not even its silence counts in cruise; its faults still count for the state."""
    rig = Rig(policy=policy(**{f"cruise_{tier.key}": "never"}))
    rig.run(0.5)
    assert rig.core._cap_mps(False) == 36.1
    rig.alive -= {tier.key}
    rig.run(8.0)
    assert rig.core._cap_mps(False) == 36.1
    assert rig.core._lost == {tier.key}


def test_the_other_functions_move_nothing() -> None:
    """Nobody steers, avoids or brakes by a result: those rows change no command, bit for bit."""
    full = {f"{f}_{t.key}": "redundant_input" for f in SAFETY for t in VLM}
    one, other = Rig(), Rig(policy=policy(**full))
    for rig in (one, other):
        rig.advice[Tier.FULL] = Advice.SLOW_DOWN
        rig.run(1.0)
        rig.alive -= {"detector"}
        rig.run(1.0)
    assert repr(one.commands) == repr(other.commands)  # not-a-numbers, too
