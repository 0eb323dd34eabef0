"""Wrong size: the resolution is not the camera's, or changed in mid-run, so that boxes are of another scale."""

from __future__ import annotations

from triptych.tiers.monitors.picture import Picture


class Size:
    """1 while the picture has another size than the camera's, else 0.

    Args:
        width_px, height_px: of the camera; 0: as the first picture.
    """

    __slots__ = ("_height_px", "_width_px")

    def __init__(self, width_px: int, height_px: int) -> None:
        self._width_px, self._height_px = width_px, height_px

    def __call__(self, picture: Picture) -> float:
        self._width_px = self._width_px or picture.width_px
        self._height_px = self._height_px or picture.height_px
        return float((picture.width_px, picture.height_px) != (self._width_px, self._height_px))
