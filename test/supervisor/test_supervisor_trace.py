# ruff: noqa: E501
"""Short drives, word for word: everything the supervisor publishes, tick by tick, as a person would read it.

``C`` constraint, ``S`` state, ``T`` transition, ``D`` diagnostics that are not ok, ``V`` verdicts that are active; times in milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from supervisor_rig import MS, SECOND, Rig, S, table

from triptych.contract import Advice, Origin, Tier, TierState
from triptych.supervisor.records import Commands


def told(commands: Commands, start_ns: int) -> list[str]:
    """One line per record."""
    lines = []
    c, s = commands.constraint, commands.state
    for t in commands.transitions:
        at_ms = (t.stamp_ns - start_ns) // MS
        lines.append(f"T {at_ms} {t.kind} {t.name}: {t.before} -> {t.after} ({t.reason})")
    if c:
        flags = "".join(word for word, on in zip("HPR", (c.hazard_lights, c.pull_over, c.remote_notification)) if on)
        at_ms = (c.stamp_ns - start_ns) // MS
        lines.append(
            f"C {at_ms} #{c.sequence_counter} {c.state.name} {c.speed_limit_mps:.2f} m/s {c.deceleration_mps2:.2f} "
            f"m/s2 [{flags}] {c.reason}"
        )
    if s:
        since_ms, at_ms = (s.since_ns - start_ns) // MS, (s.stamp_ns - start_ns) // MS
        asks = f"asks {s.takeover_remaining_s:.2f} s" if s.takeover_requested else f"quiet {s.takeover_remaining_s:g}"
        lines.append(
            f"S {at_ms} #{s.sequence_counter} {s.state.name} <- {s.previous.name} since {since_ms} {asks} "
            f"{list(s.active_faults)} {s.reason}"
        )
    if commands.verdicts is not None:
        active = [f"{v.fault_id}: {v.text}" for v in commands.verdicts if v.active]
        lines.append(f"V {len(commands.verdicts)} {active}")
    for d in commands.diagnostics or ():
        if d.level:
            lines.append(f"D {d.level} {d.name} {d.message}")
    return lines


def drive(rig: Rig, ticks: int) -> list[str]:
    """What is told in so many ticks."""
    start_ns = rig.stamp_ns - (rig.now_ns - 1000 * SECOND)
    return [line for _ in range(ticks) for line in told(rig.tick(), start_ns)]


def short(*ids: str, **config: object) -> Rig:
    """A rig whose times are short and whose table has these rows of the shipped one, and tier 1's loss."""
    quick = {"standstill_hold_s": 0.02, "hand_back_hold_s": 0.02, "takeover_wait_s": 0.05, "startup_grace_s": 1.0}
    quick |= {"state_period_s": 0.1, "verdict_period_s": 0.2}
    rows = tuple(
        r.model_copy(update={"clear_s": min(r.clear_s, 0.02), "debounce_s": min(r.debounce_s, 0.02)})
        for r in table()
        if r.id in {*ids, "detector.lost"}
    )
    rig = Rig(faults=rows, **{**quick, **config})
    rig.obeys = False
    return rig


def check(lines: list[str], expected: str) -> None:
    """Line by line."""
    assert lines == [line.strip() for line in expected.strip().splitlines()]


def test_nothing_comes() -> None:
    """A9: what is waited for is said at once."""
    rig = short("odometry.lost", "driver.lost")
    rig.alive.clear()
    check(
        drive(rig, 6),
        """
            C 0 #0 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for detector, distilled, full, odometry, driver
            S 0 #0 INITIALISING <- INITIALISING since 0 quiet 0 [] waiting for detector, distilled, full, odometry, driver
            V 3 []
            D 3 triptych/detector unknown: detector.lost
            D 3 triptych/odometry unknown: odometry.lost
            D 3 triptych/driver unknown: driver.lost
            C 50 #1 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for detector, distilled, full, odometry, driver
        """,
    )


def test_start() -> None:
    """All there: the limit rises from the present speed."""
    rig = short()
    rig.speed_mps = 10.0
    check(
        drive(rig, 12),
        """
            T 0 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 0 #0 NOMINAL 10.00 m/s 1.50 m/s2 [] every required input is valid
            S 0 #0 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 1 []
            C 50 #1 NOMINAL 10.10 m/s 1.50 m/s2 [] every required input is valid
            C 100 #2 NOMINAL 10.20 m/s 1.50 m/s2 [] every required input is valid
            S 100 #1 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
        """,
    )


def test_tier_one_falls_silent() -> None:
    """A1: slower 100 ms, the manoeuvre 130 ms after the last result."""
    rig = short("detector.stalled", "detector.blind")
    rig.speed_mps = 20.0
    drive(rig, 1)
    rig.alive -= {"detector"}
    check(
        drive(rig, 14),
        """
            C 50 #1 NOMINAL 20.10 m/s 1.50 m/s2 [] every required input is valid
            T 100 fault detector.stalled: inactive -> active (The detector stalls: no valid result for 0.10 s (limit 0.09 s).)
            T 100 state state: NOMINAL -> L2_TAKEOVER_REQUEST (The detector stalls: no valid result for 0.10 s (limit 0.09 s).)
            C 100 #2 L2_TAKEOVER_REQUEST 8.30 m/s 2.00 m/s2 [] The detector stalls: no valid result for 0.10 s (limit 0.09 s).
            S 100 #1 L2_TAKEOVER_REQUEST <- NOMINAL since 100 asks 0.05 s ['detector.stalled'] The detector stalls: no valid result for 0.10 s (limit 0.09 s).
            V 3 ['detector.stalled: The detector stalls: no valid result for 0.10 s (limit 0.09 s).']
            T 130 fault detector.lost: inactive -> active (The detector is lost: no valid result for 0.13 s (limit 0.12 s).)
            T 130 state state: L2_TAKEOVER_REQUEST -> L1_MINIMAL_RISK_MANOEUVRE (The detector is lost: no valid result for 0.13 s (limit 0.12 s).)
            C 130 #3 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            S 130 #2 L1_MINIMAL_RISK_MANOEUVRE <- L2_TAKEOVER_REQUEST since 130 quiet 0 ['detector.lost', 'detector.stalled'] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            V 3 ['detector.lost: The detector is lost: no valid result for 0.13 s (limit 0.12 s).', 'detector.stalled: The detector stalls: no valid result for 0.10 s (limit 0.09 s).']
        """,
    )


def test_the_driver_does_not_answer() -> None:
    """Asked, not answered: the manoeuvre with leaving the lane; not any more when tier 1 is lost."""
    rig = short("detector.self_report")
    rig.speed_mps = 20.0
    drive(rig, 10)
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    lines = drive(rig, 7)
    rig.alive -= {"detector"}
    check(
        lines + drive(rig, 12),
        """
            T 100 fault detector.self_report: inactive -> active (The detector reports that it is not healthy.)
            T 100 state state: NOMINAL -> L2_TAKEOVER_REQUEST (The detector reports that it is not healthy.)
            C 100 #2 L2_TAKEOVER_REQUEST 8.30 m/s 2.00 m/s2 [] The detector reports that it is not healthy.
            S 100 #1 L2_TAKEOVER_REQUEST <- NOMINAL since 100 asks 0.05 s ['detector.self_report'] The detector reports that it is not healthy.
            V 2 ['detector.self_report: The detector reports that it is not healthy.']
            T 150 state state: L2_TAKEOVER_REQUEST -> L1_MINIMAL_RISK_MANOEUVRE (the driver did not take over)
            C 150 #3 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HPR] the driver did not take over
            S 150 #2 L1_MINIMAL_RISK_MANOEUVRE <- L2_TAKEOVER_REQUEST since 150 quiet 0 ['detector.self_report'] the driver did not take over
            C 200 #4 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HPR] the driver did not take over
            C 250 #5 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HPR] the driver did not take over
            S 250 #3 L1_MINIMAL_RISK_MANOEUVRE <- L2_TAKEOVER_REQUEST since 150 quiet 0 ['detector.self_report'] the driver did not take over
            T 280 fault detector.lost: inactive -> active (The detector is lost: no valid result for 0.13 s (limit 0.12 s).)
            C 280 #6 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] the driver did not take over
            S 280 #4 L1_MINIMAL_RISK_MANOEUVRE <- L2_TAKEOVER_REQUEST since 150 quiet 0 ['detector.lost', 'detector.self_report'] the driver did not take over
            V 2 ['detector.lost: The detector is lost: no valid result for 0.13 s (limit 0.12 s).', 'detector.self_report: The detector reports that it is not healthy.']
        """,
    )


def test_a_restart_within_the_manoeuvre() -> None:
    """Latched: it stops, holds, and drives again after a reset."""
    rig = short(latched=True)
    rig.speed_mps = 0.05
    lines = drive(rig, 4)
    assert rig.core.request_reset(rig.now_ns) == (True, "Reset accepted.")
    check(
        lines + drive(rig, 3),
        """
            C 0 #0 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] restarted during a manoeuvre that is not known to be finished
            S 0 #0 L1_MINIMAL_RISK_MANOEUVRE <- INITIALISING since 0 quiet 0 [] restarted during a manoeuvre that is not known to be finished
            V 1 []
            T 20 state state: L1_MINIMAL_RISK_MANOEUVRE -> MRC (the vehicle stands)
            C 20 #1 MRC 0.00 m/s 2.00 m/s2 [HR] the vehicle stands
            S 20 #1 MRC <- L1_MINIMAL_RISK_MANOEUVRE since 20 quiet 0 [] the vehicle stands
            T 40 request reset:  -> accepted (an operator asked for it)
            T 40 state state: MRC -> NOMINAL (reset)
            C 40 #2 NOMINAL 0.07 m/s 1.50 m/s2 [] reset
            S 40 #2 NOMINAL <- MRC since 40 quiet 0 [] reset
        """,
    )


def test_override_and_hand_back() -> None:
    """The driver drives, then does not; the limit goes on from the speed."""
    rig = short()
    rig.speed_mps = 7.0
    lines = drive(rig, 2)
    rig.driver = replace(rig.driver, override_active=True)
    lines += drive(rig, 10)
    rig.driver = replace(rig.driver, override_active=False)
    check(
        lines + drive(rig, 13),
        """
            T 0 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 0 #0 NOMINAL 7.00 m/s 1.50 m/s2 [] every required input is valid
            S 0 #0 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 1 []
            C 50 #1 NOMINAL 7.10 m/s 1.50 m/s2 [] every required input is valid
            T 100 state state: NOMINAL -> MANUAL (the driver drives)
            C 100 #2 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            S 100 #1 MANUAL <- NOMINAL since 100 quiet 0 [] the driver drives
            C 150 #3 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            C 200 #4 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            S 200 #2 MANUAL <- NOMINAL since 100 quiet 0 [] the driver drives
            V 1 []
            T 220 state state: MANUAL -> NOMINAL (the driver handed over)
            C 220 #5 NOMINAL 7.02 m/s 1.50 m/s2 [] the driver handed over
            S 220 #3 NOMINAL <- MANUAL since 220 quiet 0 [] the driver handed over
        """,
    )


def test_takeover_by_service() -> None:
    """Confirmed and, at standstill, withdrawn."""
    rig = short()
    lines = drive(rig, 4)
    assert rig.core.request_takeover(rig.now_ns)[0]
    lines += drive(rig, 3)
    assert rig.core.request_reset(rig.now_ns)[0]
    check(
        lines + drive(rig, 2),
        """
            T 0 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 0 #0 NOMINAL 0.00 m/s 1.50 m/s2 [] every required input is valid
            S 0 #0 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 1 []
            T 40 request takeover:  -> accepted (the driver confirmed the takeover)
            T 40 state state: NOMINAL -> MANUAL (the driver drives)
            C 40 #1 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            S 40 #1 MANUAL <- NOMINAL since 40 quiet 0 [] the driver drives
            T 70 request reset:  -> accepted (an operator asked for it)
            T 70 state state: MANUAL -> NOMINAL (the driver handed over)
            C 70 #2 NOMINAL 0.02 m/s 1.50 m/s2 [] the driver handed over
            S 70 #2 NOMINAL <- MANUAL since 70 quiet 0 [] the driver handed over
        """,
    )


def test_both_vlms_have_no_answer() -> None:
    """One is not enough for L3, two are; one that is back is enough to leave it."""
    rig = short("distilled.no_content", "full.no_content", "full.late")
    rig.speed_mps = 30.0
    lines = drive(rig, 1)
    rig.send_result(Tier.FULL, origin=Origin.DEFAULT, reason="timeout")
    lines += drive(rig, 2)
    for _ in range(2):
        rig.send_result(Tier.DISTILLED, origin=Origin.DEFAULT)
    lines += drive(rig, 2)
    rig.send_result(Tier.DISTILLED)
    check(
        lines + drive(rig, 4),
        """
            T 0 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 0 #0 NOMINAL 30.00 m/s 1.50 m/s2 [] every required input is valid
            S 0 #0 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 4 []
            T 10 fault full.no_content: inactive -> active (The full VLM has no answer.)
            T 10 fault full.late: inactive -> active (The full VLM misses its budget: 1 in a row.)
            C 10 #1 NOMINAL 25.00 m/s 1.50 m/s2 [] every required input is valid
            S 10 #1 NOMINAL <- INITIALISING since 0 quiet 0 ['full.no_content', 'full.late'] every required input is valid
            V 4 ['full.no_content: The full VLM has no answer.', 'full.late: The full VLM misses its budget: 1 in a row.']
            T 30 fault distilled.no_content: inactive -> active (The distilled VLM has no answer.)
            T 30 state state: NOMINAL -> L3_PERCEPTION_ONLY (The distilled VLM has no answer.)
            C 30 #2 L3_PERCEPTION_ONLY 12.50 m/s 1.50 m/s2 [] The distilled VLM has no answer.
            S 30 #2 L3_PERCEPTION_ONLY <- NOMINAL since 30 quiet 0 ['distilled.no_content', 'full.no_content', 'full.late'] The distilled VLM has no answer.
            V 4 ['distilled.no_content: The distilled VLM has no answer.', 'full.no_content: The full VLM has no answer.', 'full.late: The full VLM misses its budget: 1 in a row.']
            T 70 fault distilled.no_content: active -> inactive ()
            T 70 state state: L3_PERCEPTION_ONLY -> NOMINAL (all tiers are healthy)
            C 70 #3 NOMINAL 25.00 m/s 1.50 m/s2 [] all tiers are healthy
            S 70 #3 NOMINAL <- L3_PERCEPTION_ONLY since 70 quiet 0 ['full.no_content', 'full.late'] all tiers are healthy
            V 4 ['full.no_content: The full VLM has no answer.', 'full.late: The full VLM misses its budget: 1 in a row.']
        """,
    )


def test_advice() -> None:
    """Down at once, up slowly; the fewest metres per second count."""
    rig = short()
    rig.speed_mps = 20.0
    lines = drive(rig, 1)
    rig.advice[Tier.FULL] = Advice.SLOW_DOWN
    rig.send_result(Tier.FULL)
    lines += drive(rig, 1)
    rig.advice[Tier.DISTILLED] = Advice.STOP
    rig.send_result(Tier.DISTILLED)
    lines += drive(rig, 1)
    rig.advice[Tier.FULL] = Advice.PROCEED
    rig.send_result(Tier.FULL)
    rig.advice[Tier.DISTILLED] = Advice.PREPARE_TO_STOP
    rig.send_result(Tier.DISTILLED)
    rig.speed_mps = 19.9
    check(
        lines + drive(rig, 5),
        """
            T 0 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 0 #0 NOMINAL 20.00 m/s 1.50 m/s2 [] every required input is valid
            S 0 #0 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 1 []
            C 10 #1 NOMINAL 13.90 m/s 1.50 m/s2 [] every required input is valid
            C 20 #2 NOMINAL 0.00 m/s 1.50 m/s2 [] every required input is valid
            C 70 #3 NOMINAL 5.60 m/s 1.50 m/s2 [] every required input is valid
        """,
    )


def test_no_alert_at_standstill() -> None:
    """A18: held without a word; the alert comes when it moves."""
    rig = short("detector.self_report")
    drive(rig, 10)
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], healthy=False)
    lines = drive(rig, 3)
    rig.speed_mps = 0.2
    check(
        lines + drive(rig, 3),
        """
            T 100 fault detector.self_report: inactive -> active (The detector reports that it is not healthy.)
            T 100 state state: NOMINAL -> L2_TAKEOVER_REQUEST (The detector reports that it is not healthy.)
            C 100 #2 L2_TAKEOVER_REQUEST 0.00 m/s 2.00 m/s2 [] The detector reports that it is not healthy.
            S 100 #1 L2_TAKEOVER_REQUEST <- NOMINAL since 100 quiet 0 ['detector.self_report'] The detector reports that it is not healthy.
            V 2 ['detector.self_report: The detector reports that it is not healthy.']
            S 140 #2 L2_TAKEOVER_REQUEST <- NOMINAL since 100 asks 0.04 s ['detector.self_report'] The detector reports that it is not healthy.
            C 150 #3 L2_TAKEOVER_REQUEST 0.24 m/s 2.00 m/s2 [] The detector reports that it is not healthy.
        """,
    )


def test_minimal_risk_condition_taken_over_by_the_driver() -> None:
    """MANUAL stays locked until a reset at standstill."""
    rig = short(latched=True)
    lines = drive(rig, 4)
    rig.driver = replace(rig.driver, automation_engaged=False)
    lines += drive(rig, 7)
    rig.driver = replace(rig.driver, automation_engaged=True)
    lines += drive(rig, 14)
    assert rig.core.latched and rig.core.request_reset(rig.now_ns)[0]
    check(
        lines + drive(rig, 1),
        """
            C 0 #0 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] restarted during a manoeuvre that is not known to be finished
            S 0 #0 L1_MINIMAL_RISK_MANOEUVRE <- INITIALISING since 0 quiet 0 [] restarted during a manoeuvre that is not known to be finished
            V 1 []
            T 20 state state: L1_MINIMAL_RISK_MANOEUVRE -> MRC (the vehicle stands)
            C 20 #1 MRC 0.00 m/s 2.00 m/s2 [HR] the vehicle stands
            S 20 #1 MRC <- L1_MINIMAL_RISK_MANOEUVRE since 20 quiet 0 [] the vehicle stands
            C 70 #2 MRC 0.00 m/s 2.00 m/s2 [HR] the vehicle stands
            T 100 state state: MRC -> MANUAL (the driver drives)
            C 100 #3 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            S 100 #2 MANUAL <- MRC since 100 quiet 0 [] the driver drives
            C 150 #4 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            C 200 #5 MANUAL 36.10 m/s 1.50 m/s2 [] the driver drives
            S 200 #3 MANUAL <- MRC since 100 quiet 0 [] the driver drives
            V 1 []
            T 250 request reset:  -> accepted (an operator asked for it)
            T 250 state state: MANUAL -> NOMINAL (the driver handed over)
            C 250 #6 NOMINAL 0.02 m/s 1.50 m/s2 [] the driver handed over
            S 250 #4 NOMINAL <- MANUAL since 250 quiet 0 [] the driver handed over
        """,
    )
    assert not rig.core.latched


def test_diagnostics() -> None:
    """Warning, error, stale; ok is left out."""
    rig = short("full.self_report", "detector.self_report", "full.late", diagnostics_period_s=0.02)
    drive(rig, 12)  # well once: before that a tier is starting, not failing
    rig.status[Tier.FULL] = replace(rig.status[Tier.FULL], state=TierState.ERROR)
    lines = [line for line in drive(rig, 12) if line[0] == "D"]
    rig.status[Tier.DETECTOR] = replace(rig.status[Tier.DETECTOR], state=TierState.ERROR)
    rig.send_result(Tier.FULL, reason="timeout")
    check(
        lines + [line for line in drive(rig, 12) if line[0] == "D"],
        """
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 2 triptych/detector The detector reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 2 triptych/detector The detector reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
            D 2 triptych/detector The detector reports that it is not healthy.
            D 1 triptych/full The full VLM reports that it is not healthy.
        """,
    )


def test_clock_step() -> None:
    """A12: reported, nothing more."""
    rig = short("clock.step", "distilled.late", "detector.future_frame")
    rig.speed_mps = 5.0
    drive(rig, 12)
    rig.clock_step_ns = SECOND
    check(
        drive(rig, 9),
        """
            T 120 fault clock.step: inactive -> active (The clock of stamps was stepped by 1.00 s.)
            S 120 #2 NOMINAL <- INITIALISING since 0 quiet 0 ['clock.step'] every required input is valid
            V 4 ['clock.step: The clock of stamps was stepped by 1.00 s.']
            T 150 fault clock.step: active -> inactive ()
            C 150 #3 NOMINAL 5.30 m/s 1.50 m/s2 [] every required input is valid
            S 150 #3 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 4 []
            C 200 #4 NOMINAL 5.40 m/s 1.50 m/s2 [] every required input is valid
        """,
    )


def test_a_stall_of_our_own() -> None:
    """The silence of others is judged 60 ms later."""
    rig = short("supervisor.loop")
    rig.speed_mps = 5.0
    drive(rig, 11)
    rig.alive -= {"detector"}
    rig.tick(sleep_ms=200)
    check(
        drive(rig, 8),
        """
            T 310 fault supervisor.loop: inactive -> active (The supervisor's own tick came late: 0.20 s after the previous one.)
            C 310 #3 NOMINAL 5.62 m/s 1.50 m/s2 [] every required input is valid
            S 310 #2 NOMINAL <- INITIALISING since 0 quiet 0 ['supervisor.loop'] every required input is valid
            V 2 ["supervisor.loop: The supervisor's own tick came late: 0.20 s after the previous one."]
            T 340 fault supervisor.loop: active -> inactive ()
            S 340 #3 NOMINAL <- INITIALISING since 0 quiet 0 [] every required input is valid
            V 2 []
            C 360 #4 NOMINAL 5.72 m/s 1.50 m/s2 [] every required input is valid
            T 370 fault detector.lost: inactive -> active (The detector is lost: no valid result for 0.27 s (limit 0.12 s).)
            T 370 state state: NOMINAL -> L1_MINIMAL_RISK_MANOEUVRE (The detector is lost: no valid result for 0.27 s (limit 0.12 s).)
            C 370 #5 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] The detector is lost: no valid result for 0.27 s (limit 0.12 s).
            S 370 #4 L1_MINIMAL_RISK_MANOEUVRE <- NOMINAL since 370 quiet 0 ['detector.lost'] The detector is lost: no valid result for 0.27 s (limit 0.12 s).
            V 2 ['detector.lost: The detector is lost: no valid result for 0.27 s (limit 0.12 s).']
        """,
    )


def test_without_vlms() -> None:
    """L3 from the start, by configuration."""
    rig = short(distilled_expected=False, full_expected=False)
    rig.speed_mps = 20.0
    check(
        drive(rig, 2),
        """
            T 0 state state: INITIALISING -> L3_PERCEPTION_ONLY (this vehicle has no VLM tier)
            C 0 #0 L3_PERCEPTION_ONLY 12.50 m/s 1.50 m/s2 [] this vehicle has no VLM tier
            S 0 #0 L3_PERCEPTION_ONLY <- INITIALISING since 0 quiet 0 [] this vehicle has no VLM tier
            V 1 []
        """,
    )


def test_not_ready_in_time() -> None:
    """The grace is bounded: a moving vehicle is stopped."""
    rig = short("full.never_received", "odometry.never_received", state_period_s=1.0, constraint_period_s=0.1)
    rig.alive -= {"full", "odometry"}
    drive(rig, 96)
    check(
        drive(rig, 7),
        """
            C 1000 #10 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for full, odometry
            S 1000 #1 INITIALISING <- INITIALISING since 0 quiet 0 [] waiting for full, odometry
            V 3 []
            D 3 triptych/full unknown: full.never_received
            D 3 triptych/odometry unknown: odometry.never_received
            T 1010 fault full.never_received: inactive -> active (The full VLM has never been ready within the start-up grace.)
            T 1010 fault odometry.never_received: inactive -> active (No valid speed has been received within the start-up grace.)
            T 1010 state state: INITIALISING -> L1_MINIMAL_RISK_MANOEUVRE (No valid speed has been received within the start-up grace.)
            C 1010 #11 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HPR] No valid speed has been received within the start-up grace.
            S 1010 #2 L1_MINIMAL_RISK_MANOEUVRE <- INITIALISING since 1010 quiet 0 ['full.never_received', 'odometry.never_received'] No valid speed has been received within the start-up grace.
            V 3 ['full.never_received: The full VLM has never been ready within the start-up grace.', 'odometry.never_received: No valid speed has been received within the start-up grace.']
        """,
    )


def test_drives_without_a_vlm_after_the_grace() -> None:
    """A2: the others are ready; one VLM is waited for no longer."""
    rig = short("full.never_received", "distilled.never_received", state_period_s=1.0, constraint_period_s=0.1)
    rig.alive -= {"full"}
    drive(rig, 96)
    check(
        drive(rig, 7),
        """
            C 1000 #10 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for full
            S 1000 #1 INITIALISING <- INITIALISING since 0 quiet 0 [] waiting for full
            V 3 []
            D 3 triptych/full unknown: full.never_received
            T 1010 fault full.never_received: inactive -> active (The full VLM has never been ready within the start-up grace.)
            T 1010 state state: INITIALISING -> NOMINAL (every required input is valid)
            C 1010 #11 NOMINAL 0.02 m/s 1.50 m/s2 [] every required input is valid
            S 1010 #2 NOMINAL <- INITIALISING since 1010 quiet 0 ['full.never_received'] every required input is valid
            V 3 ['full.never_received: The full VLM has never been ready within the start-up grace.']
        """,
    )


def test_the_vehicle_does_not_slow_down() -> None:
    """Then it is told to brake harder, up to 4 m/s2."""
    rig = short(manoeuvre_excess_mps=0.1)
    rig.speed_mps = 20.0
    drive(rig, 1)
    rig.alive -= {"detector"}
    drive(rig, 12)
    check(
        [line for line in drive(rig, 22) if line[0] == "C"],
        """
            C 130 #3 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            C 180 #4 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 2.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            C 230 #5 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 4.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            C 280 #6 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 4.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
            C 330 #7 L1_MINIMAL_RISK_MANOEUVRE 0.00 m/s 4.00 m/s2 [HR] The detector is lost: no valid result for 0.13 s (limit 0.12 s).
        """,
    )


def test_without_vlms_and_with_an_inattentive_driver() -> None:
    """What is only reported is not the reason of a state."""
    rig = short("driver.inattentive", distilled_expected=False, full_expected=False)
    rig.driver = replace(rig.driver, attentive=False)
    rig.alive -= {"detector"}
    lines = drive(rig, 4)
    rig.alive |= {"detector"}
    check(
        lines + drive(rig, 7),
        """
            C 0 #0 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for detector
            S 0 #0 INITIALISING <- INITIALISING since 0 quiet 0 [] waiting for detector
            V 2 []
            D 3 triptych/detector unknown: detector.lost
            T 20 fault driver.inattentive: inactive -> active (The driver does not look at the road.)
            S 20 #1 INITIALISING <- INITIALISING since 0 quiet 0 ['driver.inattentive'] waiting for detector
            V 2 ['driver.inattentive: The driver does not look at the road.']
            C 50 #1 INITIALISING 0.00 m/s 2.00 m/s2 [] waiting for detector
            T 100 state state: INITIALISING -> L3_PERCEPTION_ONLY (this vehicle has no VLM tier)
            C 100 #2 L3_PERCEPTION_ONLY 0.02 m/s 1.50 m/s2 [] this vehicle has no VLM tier
            S 100 #2 L3_PERCEPTION_ONLY <- INITIALISING since 100 quiet 0 ['driver.inattentive'] this vehicle has no VLM tier
        """,
    )


def test_tiers_without_content_before_their_first_frame_are_starting_not_failing() -> None:
    """A9: INITIALISING leads to NOMINAL, without a detour through a degraded state."""
    rig = Rig()
    good = dict(rig.status)
    for tier in Tier:
        rig.origin[tier] = Origin.DEFAULT
        rig.status[tier] = replace(good[tier], state=TierState.SELF_TEST, healthy=False)
    assert rig.run(5).visited() == []
    rig.origin = dict.fromkeys(Tier, Origin.FRESH)
    rig.status = good
    assert rig.run(5).visited() == ["NOMINAL"]


@pytest.mark.parametrize(("age_ms", "asked"), [(118, False), (120, False), (122, True)])
def test_a_detector_that_keeps_repeating_itself_is_not_taken_for_alive(age_ms: int, asked: bool) -> None:
    """A1: LAST_FRAME results come in time, but what they show is old: the driver is asked before 0.15 s are over."""
    rig = Rig(takeover_wait_s=10.0)
    rig.run(5)
    rig.speed_mps = 10.0
    rig.run(0.5)
    assert rig.state is S.NOMINAL
    taken_ns = rig.stamp_ns
    rig.alive -= {"detector"}
    rig.send_result(Tier.DETECTOR, source_stamp_ns=taken_ns, published_ns=taken_ns)
    while rig.stamp_ns < taken_ns + age_ms * MS:
        rig.send_result(Tier.DETECTOR, source_stamp_ns=taken_ns, origin=Origin.LAST_FRAME, reason="timeout")
        rig.tick(2)
    rig.tick(2)
    assert ("L2_TAKEOVER_REQUEST" in rig.visited()) is asked
