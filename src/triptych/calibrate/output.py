"""Writes what was found as files that the nodes start with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from triptych.calibrate.limits import Found
from triptych.contract import Tier, TriptychError
from triptych.supervisor.faults import FaultRow
from triptych.tiers.monitors import InputConfig

_HEAD = "# Limits from recordings, made by `triptych calibrate`; for --params (ROS 2: --params-file).\n"


def write_limits(
    path: Path,
    config: InputConfig,
    found: Sequence[Found],
    provenance: Mapping[str, Any],
    faults: Sequence[FaultRow] = (),
) -> list[Path]:
    """Write ``path``, a ROS parameter file of the detector, and beside it a fault table if thresholds of it were found.

    Args:
        config: of the detector's input monitors.
        found: what it is from; entries without a parameter replace thresholds of ``faults``.
        provenance: goes into the head, as one line of JSON.
        faults: the whole fault table.

    Returns:
        The files written.

    Raises:
        TriptychError: a file cannot be written.
    """
    support = {
        f.name: {"limit": f.limit, "blocks": f.tail.blocks, "exceeded": f.tail.exceeded, "note": f.note,
                 "bound_per_h": round(f.tail.bound_per_h, 3)} for f in found
    }  # fmt: skip
    head = f"{_HEAD}# provenance: {json.dumps({**provenance, 'limits': support}, sort_keys=True)}\n"
    parameters: dict[str, Any] = {f"/**/{Tier.DETECTOR.key}": {"ros__parameters": config.model_dump()}}
    written = [path]
    thresholds = {f.name: f.limit for f in found if not f.parameter}
    if thresholds:
        table = path.with_suffix(".faults.yaml")
        rows = [{**r.model_dump(), "threshold": thresholds.get(r.id, r.threshold)} for r in faults]
        _write(table, head + yaml.safe_dump({"faults": rows}, sort_keys=False, allow_unicode=True))
        parameters["/**/supervisor"] = {"ros__parameters": {"fault_table": str(table.resolve())}}
        written.append(table)
    _write(path, head + yaml.safe_dump(parameters, sort_keys=False))
    return written


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".part")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise TriptychError(
            f"cannot be written: {error.strerror}", where=path, field="--out", remedy="choose another place"
        ) from None
