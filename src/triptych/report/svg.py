"""Matplotlib figures as inline SVG that follows a page's light or dark colours."""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, LINE = "#010101", "#020202"
"""Stand-ins for the page's text and rule colours; :func:`to_svg` puts those in their place."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "triptych",
    "font.size": 10.0,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
}
"""Draw within ``matplotlib.rc_context(STYLE)``."""


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element with a title for screen readers, sized by the page."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(  # type: ignore[no-untyped-call]
        buffer, metadata={"Date": None, "Creator": None, "Title": title}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', text, count=1
    )
    return text.replace(INK, "currentColor").replace(LINE, "var(--rule)")
