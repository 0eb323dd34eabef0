"""The limits of all input monitors and of the engines' uncertainty, from what :mod:`.levels` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic.fields import FieldInfo

from triptych.calibrate.levels import JUDGED, RATE_HZ, Drive, at_rate
from triptych.calibrate.tail import BLOCK_S, Levels, Tail, blocks_needed, find_limit, too_short
from triptych.contract import BUDGETS, InputError, Tier
from triptych.supervisor.faults import FaultRow
from triptych.tiers.monitors import InputConfig
from triptych.tiers.monitors.drift import Drift

DRIFT = "input_drift"
MEMORIES_PER_BLOCK = 2.0
"""A block is at least so many memories of the monitor long, so that one block knows little of the one before."""
SURELY_SHORT = 0.9
"""Of the time needed: with less, nothing that comes to light afterwards could help."""
LEAST_DEVIATION = 1e-3
"""Of a drift feature: recordings in which one never changes still get a finite score."""


@dataclass(frozen=True, slots=True)
class Found:
    """One limit: of what, from what, and what became of it.

    Attributes:
        name: code of the monitor, or id of the row of the fault table.
        parameter: the limit's parameter; "" for a row of the fault table.
        tail: what the recordings support.
        limit: the limit itself, widened by the margin and within its range.
        note: why it is not what the recordings alone would give; "" if it is.
    """

    name: str
    parameter: str
    tail: Tail
    limit: float
    note: str


def check_length(total_s: float, config: InputConfig, false_alarms_per_h: float) -> None:
    """Refuse what :func:`input_limits` would refuse for its length, before hours of driving are looked at.

    Args:
        total_s: of all recordings. Tenths are let pass here: gaps, drives that end within a block and the rate of the
            camera are only known afterwards.

    Raises:
        InputError: a rate that makes no sense, or recordings too short for it.
    """
    for code, block_s in ((JUDGED[0].code, BLOCK_S), (DRIFT, _drift_block_s(config, RATE_HZ))):
        needed = blocks_needed(false_alarms_per_h, block_s, what=code)
        if not total_s >= SURELY_SHORT * needed * block_s:
            raise too_short(total_s, needed, block_s, false_alarms_per_h, what=code)


def input_limits(
    drives: Sequence[Drive], config: InputConfig, false_alarms_per_h: float, margin: float = 1.0
) -> tuple[InputConfig, tuple[Found, ...]]:
    """The limit of every monitor for at most ``false_alarms_per_h`` each, debounce included.

    Args:
        drives: see :mod:`triptych.calibrate.levels`; all at about the same rate.
        config: frame counts to keep; its limits are replaced.
        margin: the distance of a limit from the usual level is multiplied by this, for what was not recorded.

    Raises:
        InputError: the drives are too short, or their rates differ.
    """
    rate_hz = _common_rate(drives)
    slow = at_rate(config, rate_hz)
    reference = _reference(drives)
    values: dict[str, float | list[float]] = dict(reference)
    found: list[Found] = []
    for row in JUDGED:
        levels = [d.levels[row.code] for d in drives]
        block_s = BLOCK_S
        if row.code == DRIFT:
            levels = [_drift(d.features, reference, slow.input_drift_frames) for d in drives]
            block_s = _drift_block_s(slow, rate_hz)
        tail = find_limit(levels, rate_hz, slow.input_frames, false_alarms_per_h, block_s=block_s, what=row.code)
        limit, note = _within(tail, margin, *_range(InputConfig.model_fields[row.limit]))
        values[row.limit] = limit
        found.append(Found(row.code, row.limit, tail, limit, note))
    return InputConfig(**{**config.model_dump(), **values}), tuple(found)


def uncertainty_limits(
    drives: Sequence[Drive], rows: Sequence[FaultRow], false_alarms_per_h: float, margin: float = 1.0
) -> tuple[Found, ...]:
    """The threshold of each row of the fault table on the uncertainty of a tier whose engine was asked.

    Raises:
        InputError: the drives are too short.
    """
    found: list[Found] = []
    for row in rows:
        tier = next((t for t in Tier if t.key == row.source), None)
        levels = [d.uncertainty[tier] for d in drives if tier in d.uncertainty] if tier is not None else []
        if row.metric != "uncertainty" or tier is None or not levels:
            continue
        rate_hz = min(_common_rate(drives), 1.0 / BUDGETS[tier].period_s)
        debounce = max(1, int(row.debounce_s * rate_hz + 1e-9))
        tail = find_limit(levels, rate_hz, debounce, false_alarms_per_h, what=row.id)
        limit, note = _within(tail, margin, row.hysteresis, 1.0)
        if limit >= 1.0:
            note = "never at fault: the engine is at its wits' end in sound recordings"
        found.append(Found(row.id, "", tail, limit, note))
    return tuple(found)


def _drift_block_s(config: InputConfig, rate_hz: float) -> float:
    return max(BLOCK_S, MEMORIES_PER_BLOCK * config.input_drift_frames / rate_hz)


def _common_rate(drives: Sequence[Drive]) -> float:
    rates = [min(d.rate_hz, 2.0 * RATE_HZ) for d in drives]
    if max(rates) > 1.2 * min(rates):
        raise InputError(
            "differ in their frame rates, so a debounce in frames means different times",
            field="recordings",
            value=f"{min(rates):.1f} to {max(rates):.1f} Hz",
            remedy="calibrate with recordings of one camera at one rate",
        )
    return float(np.median(rates))


def _reference(drives: Sequence[Drive]) -> dict[str, list[float]]:
    features = np.concatenate([d.features for d in drives])
    return {
        "input_reference_mean": [round(float(v), 4) for v in features.mean(axis=0)],
        "input_reference_deviation": [round(max(LEAST_DEVIATION, float(v)), 4) for v in features.std(axis=0)],
    }


def _drift(features: Levels, reference: Mapping[str, Sequence[float]], frames: int) -> Levels:
    measure = Drift(reference["input_reference_mean"], reference["input_reference_deviation"], frames)
    return np.array([measure.update(row) for row in features.tolist()])


def _within(tail: Tail, margin: float, least: float, greatest: float) -> tuple[float, str]:
    wanted = tail.usual + margin * (tail.limit - tail.usual)
    # Rounded up: a limit that is rounded down would be exceeded by what it was made from.
    limit = float(np.ceil(wanted * 1e4) / 1e4) if np.isfinite(wanted) else greatest
    if limit < least:
        return least, f"the least allowed; recorded: {limit:.4g}"
    if limit > greatest:
        return greatest, f"the most allowed, more false alarms than wanted; recorded: {limit:.4g}"
    return limit, ""


def _range(info: FieldInfo) -> tuple[float, float]:
    limits = {name: getattr(item, name) for item in info.metadata for name in ("ge", "le") if hasattr(item, name)}
    return float(limits["ge"]), float(limits["le"])
