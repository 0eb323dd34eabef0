"""The tail of every measurement in one figure."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from triptych.rt.latency import Measurement
from triptych.viewing import words

POINTS = 160
COLOURS = {"other": words.ORANGE, "rr": words.BLUE, "fifo": words.SKY}


def tails(measurements: list[Measurement], title: str) -> str:
    """SVG: share of wake-ups later than each time, both axes logarithmic; dashed beside load.

    Args:
        measurements: those that were refused are left out.
        title: says what machine it is of, and in what state.
    """
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "triptych", "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for m in measurements:
            if m.histogram is None:
                continue
            count = len(m.histogram.sorted_us)
            # How many were at least as late, dense in the tail.
            left = np.unique(np.geomspace(1, count, POINTS).round().astype(int))[::-1]
            late_us = np.maximum(np.asarray(m.histogram.sorted_us)[count - left], 1.0)
            later = left / count
            label = f"{m.policy}, beside load" if m.loaded else m.policy
            axes.step(late_us, later, color=COLOURS[m.policy], linestyle="--" if m.loaded else "-", label=label)
        axes.set(xscale="log", yscale="log", xlabel="late by more than (µs)", ylabel="share of wake-ups", title=title)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
