"""Blur: no sharp edge anywhere, as by a lens out of focus, misted over or smeared; a blank picture has none either."""

from __future__ import annotations

from triptych.tiers.monitors.picture import Picture


def blur(picture: Picture) -> float:
    """Smoothness of the edges, 0 sharp .. 1 none (see :func:`triptych.tiers.monitors.picture.blur`)."""
    return picture.blur
