"""Ladders with their laws, multipliers, and exponent against constant (Figures 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looplit.plots.style import family_style, label, log_ticks, panels
from looplit.scaling.laws.fit import Fit
from looplit.scaling.laws.multiplier import Multiplier
from looplit.scaling.laws.power import LadderFits


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
    with panels(columns=3) as (figure, (losses, saved, constants)):
        draw_ladders(losses, fits.families, max((compute for _, compute, _ in held_out), default=None))
        for i, (family, compute, loss) in enumerate(held_out):
            color, _ = family_style(family, list(fits.families).index(family))
            losses.plot(compute, loss, "s", color=color, fillstyle="none", label="_" if i else "held out")
        losses.legend(loc="upper right", handletextpad=0.3, labelspacing=0.15)
        draw_inset(losses, fits.families)
        draw_multipliers(saved, multipliers, reference, fits.floor.units["compute"])
        draw_constants(constants, fits.families)
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
    inset = axes.inset_axes((0.05, 0.06, 0.36, 0.3))
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
    inset.tick_params(which="both", labelbottom=False, labelleft=False)
    inset.set_title("L - E", fontsize=6, pad=2)


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
    ordered = sorted(families.items(), key=lambda pair: pair[1]["log_A"])
    for position, (name, fit) in enumerate(ordered):
        color, marker = family_style(name, position)
        error = fit.parameter("gamma").standard_error
        axes.errorbar(fit["log_A"], fit["gamma"], yerr=error, fmt=marker, color=color, elinewidth=0.8)
        shift = (3, 3) if position % 2 else (3, -8)
        axes.annotate(label(name), (fit["log_A"], fit["gamma"]), xytext=shift, textcoords="offset points", fontsize=6)
    c0 = next(iter(families.values()))["C0"]
    axes.invert_xaxis()
    axes.margins(x=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(f"log A at C0 = {c0:.5g}")
    axes.set_ylabel("exponent γ")
