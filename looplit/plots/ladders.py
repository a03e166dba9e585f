"""Ladders with their laws, multipliers, and exponent against constant (Figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from looplit.laws.fit import Fit
from looplit.laws.multiplier import Multiplier
from looplit.laws.power import LadderFits
from looplit.plots.style import family_style, label, log_ticks, panels


def ladder_figure(
    fits: LadderFits,
    multipliers: Mapping[str, Sequence[Multiplier]],
    reference: str,
    held_out: Sequence[tuple[str, float, float]] = (),
) -> Figure:
    """Three panels: loss with laws and an inset, multipliers over the reference, γ against log A.

    Args:
        fits: From `fit_ladders`.
        multipliers: Measured multipliers by family.
        reference: The family compared with.
        held_out: (family, compute, loss) of runs that no fit has seen: squares, with the laws dashed up to them.
    """
    with panels(columns=3, height=3.0) as (figure, (losses, saved, constants)):
        draw_ladders(losses, fits.families, max((compute for _, compute, _ in held_out), default=None))
        for i, (family, compute, loss) in enumerate(held_out):
            color, _ = family_style(family, list(fits.families).index(family))
            losses.plot(compute, loss, "s", color=color, fillstyle="none", label="_" if i else "held out")
        draw_inset(losses, fits.families)
        draw_multipliers(saved, multipliers, reference, fits.floor.units["compute"])
        draw_constants(constants, fits.families)
        figure.legend(*losses.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def draw_ladders(axes: Axes, families: Mapping[str, Fit], until: float | None = None) -> None:
    """Measured runs and fitted laws, dashed beyond the data as far as `until`.

    Args:
        axes: Where to draw.
        families: Power laws by family.
        until: Compute up to which the laws are drawn.
    """
    for position, (name, fit) in enumerate(families.items()):
        color, marker = family_style(name, position)
        compute = np.asarray(fit.columns["compute"])
        axes.plot(compute, fit.observed, marker, color=color, label=f"{label(name)}, γ = {fit['gamma']:.4f}")
        inside = np.geomspace(compute.min(), compute.max(), 80)
        axes.plot(inside, fit.predict(compute=inside), color=color)
        if until is not None and until > compute.max():
            beyond = np.geomspace(compute.max(), until, 80)
            axes.plot(beyond, fit.predict(compute=beyond), "--", color=color)
    log_ticks(axes)
    first = next(iter(families.values()))
    axes.set_xlabel(first.units["compute"])
    axes.set_ylabel(f"validation loss, {first.units['output']}")


def draw_inset(axes: Axes, families: Mapping[str, Fit]) -> None:
    """Reducible loss L - E of the upper third of compute, log-log, in the lower left corner."""
    inset = axes.inset_axes((0.12, 0.13, 0.36, 0.3))
    end = max(max(fit.columns["compute"]) for fit in families.values())
    start = end ** (2 / 3) * min(min(fit.columns["compute"]) for fit in families.values()) ** (1 / 3)
    for position, (name, fit) in enumerate(families.items()):
        color, marker = family_style(name, position)
        compute = np.asarray(fit.columns["compute"])
        late = compute >= start
        inset.plot(compute[late], np.asarray(fit.observed)[late] - fit["E"], marker, color=color, markersize=2.5)
        grid = np.geomspace(start, end, 20)
        inset.plot(grid, fit.predict(compute=grid) - fit["E"], color=color, linewidth=0.7)
    inset.set_xscale("log")
    inset.set_yscale("log")
    inset.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if end < 20 * start else (1,)))
    inset.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
    inset.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    inset.yaxis.set_major_formatter("{x:g}")
    for axis in (inset.xaxis, inset.yaxis):
        axis.set_minor_formatter(NullFormatter())
    inset.tick_params(which="both", labelsize=6, pad=1)
    inset.set_title("L - E", fontsize=6.5, pad=2)


def draw_multipliers(
    axes: Axes, multipliers: Mapping[str, Sequence[Multiplier]], reference: str, unit: str = "training FLOPs"
) -> None:
    """Compute multipliers over the reference, against the reference's compute."""
    for position, (name, points) in enumerate(multipliers.items()):
        color, marker = family_style(name, position)
        known = [(point.compute, point.value) for point in points if point.value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker + "-", color=color, label=label(name))
    log_ticks(axes)
    axes.set_xlabel(f"{unit} of {label(reference)}")
    axes.set_ylabel(f"compute multiplier over {label(reference)}")


def draw_constants(axes: Axes, families: Mapping[str, Fit]) -> None:
    """γ against log A: up is a better exponent, right (log A falls) a better constant."""
    for position, (name, fit) in enumerate(families.items()):
        color, marker = family_style(name, position)
        error = fit.parameter("gamma").standard_error
        axes.errorbar(fit["log_A"], fit["gamma"], yerr=error, fmt=marker, color=color, elinewidth=0.8,
                      label=label(name))  # fmt: skip
    c0 = next(iter(families.values()))["C0"]
    axes.invert_xaxis()
    axes.margins(0.1)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(f"log A at C0 = {c0:.5g}")
    axes.set_ylabel("exponent γ")
