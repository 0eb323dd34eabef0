"""Colour cast: the mean colour is far from grey, as by a lost colour channel or a failed white balance."""

from __future__ import annotations

from triptych.tiers.monitors.picture import DARK_LEVEL, Picture


def cast(picture: Picture) -> float:
    """Greatest deviation of a channel's mean from that of all three, as a share of it.

    0 for the average of all colours being grey (G. Buchsbaum, "A spatial processor model for object colour
    perception", 1980), 1 for a lost channel beside two equal ones, 2 for one channel alone. In a black picture there is
    no colour to speak of: deviations count as if the mean were at least :data:`DARK_LEVEL`.
    """
    mean = sum(picture.channels) / 3.0
    return max(abs(channel - mean) for channel in picture.channels) / max(mean, float(DARK_LEVEL))
