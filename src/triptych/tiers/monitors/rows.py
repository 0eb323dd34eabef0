"""Missing rows: bands of the picture are constant or repeat one row, as after lost packets or a broken transfer."""

from __future__ import annotations

from triptych.tiers.monitors.picture import Picture


def missing(picture: Picture) -> float:
    """Share 0..1 of the rows (see :func:`triptych.tiers.monitors.picture.dead_rows`)."""
    return picture.dead_rows
