"""The heartbeat of a tier, live and in lockstep."""

from __future__ import annotations

from triptych.contract import Tier, TierState, TierStatus, protect
from triptych.contract.result import WARNINGS
from triptych.engines.protocol import Engine
from triptych.tiers.core import TierCounters


def heartbeat(
    tier: Tier, state: TierState, fault: str, engine: Engine, count: TierCounters, stamp_ns: int, sequence: int
) -> TierStatus:
    """What the tier says of itself at ``stamp_ns``, protected; healthy is: active, with no more than warnings."""
    status = TierStatus(
        stamp_ns=stamp_ns,
        tier=tier,
        state=state,
        healthy=state is TierState.ACTIVE and (not fault or WARNINGS.issuperset(fault.split("; "))),
        fault=fault,
        engine_id=engine.id,
        engine_version=engine.version,
        device_requested=engine.device.requested,
        device=engine.device.actual,
        frames_received=count.received,
        frames_dropped=count.dropped,
        results_fresh=count.fresh,
        results_last_frame=count.last_frame,
        results_default=count.default,
    )
    return protect(status, sequence)
