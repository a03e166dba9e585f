"""Task sigmoids, the CORE forecast, and downstream residuals (Figures 4, 19 and 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from looplit.laws.forecast import GPT3_CORE, CoreForecast, TaskPoints
from looplit.laws.residuals import PooledResiduals, TaskResiduals
from looplit.laws.results import Result
from looplit.plots.style import family_style, label, log_ticks, panels

COLUMNS = 4
"""Panels side by side in the figure of all tasks."""


def forecast_figure(
    fitted: CoreForecast, points: Mapping[str, TaskPoints], held_out: Sequence[Result] = (), series: str = "family"
) -> Figure:
    """CORE against compute with forecasts and GPT-3's scores, then one panel per task sigmoid.

    Args:
        fitted: From `fit_forecast`.
        points: What it was fitted on.
        held_out: Runs to show as squares on the first panel.
        series: Label that tells the series apart.
    """
    tasks = list(fitted.accuracy)
    rows = -(-(1 + len(tasks)) // COLUMNS)
    with panels(columns=COLUMNS, rows=rows, height=2.2) as (figure, axes):
        draw_core(axes[0], fitted, points, held_out, series)
        for panel, task in zip(axes[1:], tasks, strict=False):
            draw_sigmoid(panel, fitted, points, task)
        for panel in axes[1 + len(tasks) :]:
            panel.set_axis_off()
    return figure


def draw_core(
    axes: Axes,
    fitted: CoreForecast,
    points: Mapping[str, TaskPoints],
    held_out: Sequence[Result] = (),
    series: str = "family",
) -> None:
    """Measured CORE, forecast (dashed beyond the data), and where the curves cross GPT-3's scores."""
    for position, (name, measured) in enumerate(points.items()):
        color, marker = family_style(name, position)
        compute = np.asarray(measured.compute)
        axes.plot(compute, measured.core, marker, color=color, label=label(name))
        inside = np.geomspace(compute.min(), compute.max(), 60)
        crossings = [fitted.compute_for(name, score) for score in GPT3_CORE.values()]
        beyond = np.geomspace(compute.max(), max([10 * compute.max(), *filter(None, crossings)]), 60)
        axes.plot(inside, fitted.score(name, inside), color=color)
        axes.plot(beyond, fitted.score(name, beyond), "--", color=color)
        for crossing, score in zip(crossings, GPT3_CORE.values(), strict=True):
            if crossing:
                axes.plot(crossing, score, "*", color=color, markersize=7)
        for run in held_out:
            if run.labels.get(series) == name:
                axes.plot(run.values["training_flops"], run.values["core_metric"], "s", color=color, fillstyle="none",
                          label="_" if run is not held_out[0] else "held out")  # fmt: skip
    for name, score in GPT3_CORE.items():
        axes.axhline(score, color="0.7", linewidth=0.6, zorder=0)
        axes.annotate(name, (0.01, score), xycoords=("axes fraction", "data"), fontsize=6, va="bottom")
    log_ticks(axes)
    axes.set_xlabel("training FLOPs")
    axes.set_ylabel("CORE")
    axes.legend(loc="lower right")


def draw_sigmoid(axes: Axes, fitted: CoreForecast, points: Mapping[str, TaskPoints], task: str) -> None:
    """Centered accuracy against answer NLL of one task, and the shared sigmoid, dashed beyond the data."""
    for position, (name, measured) in enumerate(points.items()):
        color, marker = family_style(name, position)
        axes.plot(measured.nll[task], measured.accuracy[task], marker, color=color)
    nll = np.concatenate([measured.nll[task] for measured in points.values()])
    inside = np.linspace(nll.min(), nll.max(), 50)
    better = np.linspace(nll.min() - 0.4 * np.ptp(nll), nll.min(), 30)
    axes.plot(inside, fitted.accuracy[task].predict(nll=inside), color="0.3")
    axes.plot(better, fitted.accuracy[task].predict(nll=better), "--", color="0.3")
    axes.set_title(task)
    axes.set_xlabel("answer NLL, nats per token")
    axes.set_ylabel("centered accuracy")


def residuals_figure(
    pooled: PooledResiduals, tasks: Mapping[str, TaskResiduals], runs: Sequence[Result], loss: str, score: str
) -> Figure:
    """Score against loss with the pooled line, its residuals, and each task's mean residual by family.

    Args:
        pooled: From `pooled_residuals`.
        tasks: From `task_residuals`; may be empty.
        runs: The runs of both.
        loss: Column of the x axis.
        score: Column of the y axis.
    """
    with panels(columns=3 if tasks else 2, height=3.0) as (figure, axes):
        families = list(pooled.by_family)
        for run in runs:
            color, marker = family_style(run.family, families.index(run.family))
            axes[0].plot(run.values[loss], run.values[score], marker, color=color)
            axes[1].plot(run.values[loss], pooled.by_run[run.name], marker, color=color)
        ends = np.array([min(pooled.line.columns["x"]), max(pooled.line.columns["x"])])
        axes[0].plot(ends, pooled.line.predict(x=ends), color="0.3")
        axes[1].axhline(0, color="0.3", linewidth=0.8)
        axes[0].set_ylabel(pooled.line.units["output"].replace(" (", "\n("))
        axes[1].set_ylabel(f"residual of {score}")
        for panel in axes[:2]:
            panel.invert_xaxis()
            panel.invert_yaxis()
            panel.set_xlabel(pooled.line.units["x"])
        if tasks:
            draw_task_residuals(axes[2], tasks, families)
        styles = [family_style(family, position) for position, family in enumerate(families)]
        markers = [
            Line2D([], [], linestyle="", color=color, marker=marker, label=label(family))
            for family, (color, marker) in zip(families, styles, strict=True)
        ]
        figure.legend(handles=markers, loc="outside lower center", ncols=5)
    return figure


def draw_task_residuals(axes: Axes, tasks: Mapping[str, TaskResiduals], families: Sequence[str]) -> None:
    """Mean residual of every task, a marker per family; left of the line is better than the reference's trend."""
    for position, family in enumerate(families):
        color, marker = family_style(family, position)
        means = [found.means["all"].get(family, np.nan) for found in tasks.values()]
        axes.plot(means, range(len(tasks)), marker, color=color)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(tasks)), list(tasks), fontsize=6)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("mean residual, nats per token of the answers")
