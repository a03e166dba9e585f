"""Passes at equal compute, marginal gains, strategies and weight decay when data repeat (Figures 5 and 21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looplit.laws.curves import best_measured
from looplit.laws.fit import Fit
from looplit.laws.matched import STRATEGIES, Curve, Cut
from looplit.plots.style import legend_below, log_ticks, panels, sequence_colors

STRATEGY_LINES = dict(
    zip(STRATEGIES, (("k", "-", "o"), ("k", "--", "s"), ("#0072B2", "-", "^"), ("#0072B2", "--", "v")), strict=True)
)
"""Strategy → (colour, line, marker)."""


def recurrence_figure(
    cuts: Sequence[Cut],
    gains: Mapping[int, Mapping[int, float]],
    strategies: Mapping[str, Curve],
    weight_decays: Mapping[tuple[int, int], Fit],
    unit: str = "nats per token",
) -> Figure:
    """Four panels, as in Figure 5; those without data stay out.

    Args:
        cuts: From `matched_cut`, by budget.
        gains: From `marginal_gains`.
        strategies: From `strategies`.
        weight_decays: From `weight_decay_optima`.
        unit: Of the loss.
    """
    drawers: list[tuple[Any, Callable[[Axes], None]]] = [
        (cuts, lambda axes: draw_cuts(axes, cuts, unit)),
        (gains, lambda axes: draw_gains(axes, gains, unit)),
        (strategies, lambda axes: draw_strategies(axes, strategies, unit)),
        (weight_decays, lambda axes: draw_weight_decay(axes, weight_decays)),
    ]
    wanted = [draw for data, draw in drawers if data]
    with panels(columns=len(wanted), height=3.0) as (figure, axes):
        for panel, draw in zip(axes, wanted, strict=True):
            draw(panel)
    return figure


def draw_cuts(axes: Axes, cuts: Sequence[Cut], unit: str = "nats per token") -> None:
    """Loss against passes at each budget; filled stars are fitted optima, hollow ones the best measured K."""
    for color, cut in zip(sequence_colors(len(cuts)), cuts, strict=True):
        passes = np.array(list(cut.losses))
        axes.plot(passes, list(cut.losses.values()), "o", color=color, label=f"{cut.budget:.2g} FLOPs")
        if cut.fit:
            grid = np.geomspace(passes.min(), passes.max(), 60)
            axes.plot(grid, cut.fit.predict(x=grid), color=color)
        height = cut.losses[int(cut.passes)] if cut.censored or cut.fit is None else cut.fit["minimum"]
        fill = "white" if cut.censored else color
        axes.plot(cut.passes, height, "*", color=color, markersize=9, markerfacecolor=fill)
    for censored, fill, meaning in ((False, "black", "fitted optimum"), (True, "white", "best measured K")):
        if censored in {cut.censored for cut in cuts}:
            axes.plot([], [], "*", color="black", markersize=9, markerfacecolor=fill, label=meaning)
    _passes_axis(axes, sorted({k for cut in cuts for k in cut.losses}))
    axes.set_ylabel(f"validation loss, {unit}")
    legend_below(axes)


def draw_gains(axes: Axes, gains: Mapping[int, Mapping[int, float]], unit: str = "nats per token") -> None:
    """L(K) - L(1) against passes, a curve per depth."""
    for color, (depth, row) in zip(sequence_colors(len(gains)), gains.items(), strict=True):
        axes.plot(list(row), list(row.values()), "o-", color=color, label=f"d{depth}")
    _passes_axis(axes, sorted({k for row in gains.values() for k in row}))
    axes.set_ylabel(f"L(K) - L(1), {unit}")
    legend_below(axes, 3)


def _passes_axis(axes: Axes, passes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(passes), [str(k) for k in passes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("passes K")


def draw_strategies(axes: Axes, strategies: Mapping[str, Curve], unit: str = "nats per token") -> None:
    """Loss against compute of each way of spending it."""
    for name, (compute, loss) in strategies.items():
        color, line, marker = STRATEGY_LINES[name]
        axes.plot(compute, loss, color=color, linestyle=line, marker=marker, label=name)
    log_ticks(axes)
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel(f"validation loss, {unit}")
    legend_below(axes, 1)


def draw_weight_decay(axes: Axes, fits: Mapping[tuple[int, int], Fit]) -> None:
    """Map of the best measured weight decay over depth and passes."""
    depths, passes = sorted({depth for depth, _ in fits}), sorted({k for _, k in fits})
    best = np.full((len(depths), len(passes)), np.nan)
    for (depth, k), fit in fits.items():
        best[depths.index(depth), passes.index(k)] = best_measured(fit)
    axes.imshow(np.log(best), origin="lower", aspect="auto", cmap="cividis")
    brightest = float(np.log(np.nanmax(best) / np.nanmin(best)))
    for row, column in zip(*np.nonzero(np.isfinite(best)), strict=True):
        shade = float(np.log(best[row, column] / np.nanmin(best)))
        axes.text(column, row, f"{best[row, column]:g}", ha="center", va="center", fontsize=7,
                  color="black" if shade > brightest / 2 else "white")  # fmt: skip
    axes.set_xticks(range(len(passes)), [str(k) for k in passes])
    axes.set_yticks(range(len(depths)), [f"d{depth}" for depth in depths])
    axes.set_xlabel("passes K")
    axes.set_ylabel("depth")
    axes.set_title("best measured weight decay")
