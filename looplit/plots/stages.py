"""Sweeps with their parabolas: iso-compute TPP, growth fraction, sensitivity slices (Figures 10, 12, 13, 14)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looplit.laws.curves import is_curved, optimum
from looplit.laws.fit import Fit
from looplit.plots.style import LEGEND_ROW_IN, label, legend_below, panels, plain_log_ticks, sequence_colors

COLUMNS = 3
"""Panels side by side."""


def sweeps_figure(families: Mapping[str, Mapping[str, Fit]]) -> Figure:
    """One panel per family, one curve per budget or size; filled stars mark optima that the data bracket beyond noise.

    Args:
        families: Parabolas by family and sweep, from `fit_parabola`.
    """
    columns = min(len(families), COLUMNS)
    longest = max(map(len, families.values()))
    height = 3.0 + LEGEND_ROW_IN * max(0, (longest + 1) // 2 - 3)  # its legend has two columns, and room for three rows
    with panels(columns, rows=-(-len(families) // columns), height=height) as (figure, axes):
        for panel, (family, fits) in zip(axes, families.items(), strict=False):
            draw_sweeps(panel, fits)
            panel.set_title(label(family))
        for panel in axes[len(families) :]:
            panel.set_axis_off()
    return figure


def draw_sweeps(axes: Axes, fits: Mapping[str, Fit]) -> None:
    """Measured losses, fitted parabolas, optima and their mean.

    Args:
        axes: Where to draw.
        fits: Parabolas by sweep, in order of the budget or size that colours tell apart.
    """
    optima = []
    for color, (name, fit) in zip(sequence_colors(len(fits)), fits.items(), strict=True):
        values = np.asarray(fit.columns["x"])
        axes.plot(values, fit.observed, "o", color=color, label=name)
        logarithmic = "log x" in fit.law
        grid = (np.geomspace if logarithmic else np.linspace)(values.min(), values.max(), 80)
        axes.plot(grid, fit.predict(x=grid), color=color)
        if logarithmic:
            plain_log_ticks(axes)
        if (found := optimum(fit)) and is_curved(fit):
            optima.append(found.value)
            axes.plot(found.value, fit["minimum"], "*", color=color, markersize=9, markeredgecolor="black",
                      markeredgewidth=0.5)  # fmt: skip
    if optima:
        axes.axvline(float(np.mean(optima)), color="black", linestyle="--", linewidth=0.8,
                     label="mean of the optima, the stars")  # fmt: skip
    units = next(iter(fits.values())).units
    axes.set_xlabel(units["x"])
    axes.set_ylabel(f"validation loss, {units['output']}")
    legend_below(axes)
