"""Exposure: too much of the picture shows nothing because it is black, or white."""

from __future__ import annotations

from triptych.tiers.monitors.picture import Picture


def dark(picture: Picture) -> float:
    """Share 0..1 of the picture that is black: a closed lens cap, a dead sensor, a failed exposure control."""
    return picture.dark_share


def bright(picture: Picture) -> float:
    """Share 0..1 of the picture that is saturated: low sun into the lens, a failed exposure control."""
    return picture.bright_share
