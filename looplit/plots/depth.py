"""KL effective depth along ladders (Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from looplit.laws.results import Result, grouped, having
from looplit.plots.style import family_style, label, legend_below, log_ticks, panels
from looplit.results import unit_of


def effective_depth_figure(runs: Sequence[Result], against: str = "training_flops") -> Figure:
    """Effective depth against compute, a curve per family; thin lines show the executed depth where it is known.

    Args:
        runs: Finished runs that have `effective_depth`.
        against: Column of the x axis.

    Raises:
        InputError: No run has an effective depth.
    """
    with panels(height=3.0) as (figure, (axes,)):
        for position, (family, members) in enumerate(grouped(having(runs, "effective_depth", against)).items()):
            color, marker = family_style(family, position)
            ordered = sorted(members, key=lambda run: run.values[against])
            x = [run.values[against] for run in ordered]
            axes.plot(x, [run.values["effective_depth"] for run in ordered], marker + "-", color=color,
                      label=label(family))  # fmt: skip
            if all("executed_depth" in run.values for run in ordered):
                executed = [run.values["executed_depth"] for run in ordered]
                dotted = any(line.get_linestyle() == ":" for line in axes.lines)
                axes.plot(x, executed, ":", color=color, linewidth=0.7, label=None if dotted else "executed depth")
        log_ticks(axes)
        axes.set_xlabel(unit_of(against))
        axes.set_ylabel("KL effective depth, blocks")
        legend_below(axes, 3)
    return figure
