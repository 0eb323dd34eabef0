"""Noise: more of it than the sensor has at night, as by a failing sensor, gain control or cable."""

from __future__ import annotations

from triptych.tiers.monitors.picture import Picture


def noise(picture: Picture) -> float:
    """Standard deviation in grey levels (see :func:`triptych.tiers.monitors.picture.noise`)."""
    return picture.noise
