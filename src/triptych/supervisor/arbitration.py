"""Arbitration is a minimum: whoever speaks can make the vehicle slower, never faster."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.contract.terms import Advice, DegradationState
from triptych.supervisor.config import SupervisorConfig


def state_limits_mps(config: SupervisorConfig) -> dict[DegradationState, float]:
    """The speed limit of each state; in MANUAL the driver is responsible and nothing is capped below the maximum."""
    return {
        DegradationState.INITIALISING: 0.0,
        DegradationState.NOMINAL: config.speed_limit_max_mps,
        DegradationState.L3_PERCEPTION_ONLY: config.l3_speed_limit_mps,
        DegradationState.L2_TAKEOVER_REQUEST: config.l2_speed_limit_mps,
        DegradationState.L1_MINIMAL_RISK_MANOEUVRE: 0.0,
        DegradationState.MRC: 0.0,
        DegradationState.MANUAL: config.speed_limit_max_mps,
    }


def advice_cap_mps(advice: Advice | None, caps_mps: tuple[float, ...]) -> float:
    """The cap of one tier's advice: none counts as CAUTION, an unknown one as the most careful."""
    if advice is None:
        return caps_mps[Advice.CAUTION]
    return caps_mps[advice] if 0 <= advice < len(caps_mps) else caps_mps[-1]


def doubtful_cap_mps(advice: Advice | None, caps_mps: tuple[float, ...]) -> float:
    """The cap of advice that is not relied upon but may be right: its own, or that of none where this is lower."""
    return min(advice_cap_mps(advice, caps_mps), advice_cap_mps(None, caps_mps))


def lowest_mps(limit_mps: float, caps_mps: Iterable[float]) -> float:
    """The least of a limit and any caps; a cap that is no number or negative means 0."""
    for cap_mps in caps_mps:
        if not cap_mps >= limit_mps:
            limit_mps = cap_mps if cap_mps >= 0.0 else 0.0
    return limit_mps
