"""CORE at a budget, the compute for a score, GPT-3 crossings, held-out runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looplit.errors import require
from looplit.laws.answers.answer import Answer
from looplit.laws.answers.base import Runs, chosen_runs, described, series_rungs
from looplit.laws.fit import LEVEL
from looplit.laws.forecast import GPT3_CORE, CoreForecast, TaskPoints, fit_forecast, task_points
from looplit.laws.results import Result, split_held_out
from looplit.results import resolved, unit_of
from looplit.wording import shown, shown_interval, table


@dataclass(frozen=True)
class ForecastAnswer(Answer):
    """The pipeline and what it forecasts.

    Args:
        fitted: From compute to CORE.
        points: What each series was fitted on.
        held_out: Runs that were kept out.
        series: Column that tells the series apart.
    """

    fitted: CoreForecast
    points: Mapping[str, TaskPoints]
    held_out: Sequence[Result]
    series: str


def forecast_answer(
    runs: Runs,
    *,
    where: Sequence[str] = (),
    loss: str = "final_val_loss",
    series: str = "family",
    at: Sequence[float] = (),
    target: Sequence[float] = (),
    tasks: Sequence[str] | None = None,
    held_out: Sequence[str] = (),
    bootstrap: int = 0,
    seed: int = 0,
) -> ForecastAnswer:
    """The pipeline fitted on all evaluated runs, and what it forecasts.

    Args:
        runs: Finished runs, or where they lie.
        where: Conditions, as in `chosen_runs`.
        loss: Column of the loss.
        series: Column that tells the series apart.
        at: Training FLOPs to forecast CORE at.
        target: Scores whose compute is asked for, beside those of GPT-3.
        tasks: That carry the forecast, by default the study's filter.
        held_out: Runs to leave out of the calibration, as "family:depth".
        bootstrap: Resamples behind the intervals.
        seed: Of the resampling.

    Raises:
        InputError: The runs lack evaluations, or what is asked for.
    """
    series = resolved(series)
    kept = chosen_runs(runs, where, resolved(loss), "training_flops", "core_metric")
    fit_on, kept_out = split_held_out(kept, held_out)
    points = {name: task_points(rungs) for name, rungs in series_rungs(fit_on, kept_out, series).items()}
    fitted = fit_forecast(points, tasks, bootstrap=bootstrap, seed=seed, progress=True)
    payload = {
        "series": series,
        "compute": {"column": "training_flops", "unit": unit_of("training_flops")},
        "core": {"column": "core_metric", "unit": unit_of("core_metric")},
        "bootstrap": {"draws": bootstrap, "seed": seed, "level": LEVEL},
        "tasks": list(fitted.accuracy),
        "fits": fitted.to_dict(draws=False),
        "at": [_at(fitted, name, spend) for spend in at for name in points],
        "needed": _needed(fitted, GPT3_CORE | {f"target {score:g}": score for score in target}),
        "held_out": [_against(fitted, run, series) for run in kept_out],
    }
    return ForecastAnswer(payload, _text(payload, fitted), fitted, points, kept_out, series)


def _needed(fitted: CoreForecast, scores: Mapping[str, float]) -> dict[str, Any]:
    return {
        name: {"core": scores[name], "compute": needed}
        | {"interval": {one: _needed_interval(fitted, one, scores[name]) for one in needed}}
        | {"extrapolated": {one: _beyond(fitted, one, spend) for one, spend in needed.items() if spend}}
        for name, needed in fitted.crossings(scores).items()
    }


def _interval(fitted: CoreForecast, series: str, compute: float) -> list[float] | None:
    return [float(end) for end in fitted.interval(series, compute)] if fitted.drawn else None


def _needed_interval(fitted: CoreForecast, series: str, score: float) -> list[float | None] | None:
    """Interval of the compute for a score, an end that lies nowhere as None."""
    if not fitted.drawn:
        return None
    return [end if 0 < end < float("inf") else None for end in fitted.compute_interval(series, score)]


def _beyond(fitted: CoreForecast, series: str, compute: float) -> bool:
    """Whether the forecast at `compute` lies outside the series' measured ladder."""
    measured = next(iter(fitted.nll[series].values())).columns["compute"]
    return not min(measured) <= compute <= max(measured)


def _at(fitted: CoreForecast, series: str, compute: float) -> dict[str, Any]:
    return {
        "series": series,
        "compute": compute,
        "core": float(fitted.score(series, compute)),
        "interval": _interval(fitted, series, compute),
        "extrapolated": _beyond(fitted, series, compute),
    }


def _against(fitted: CoreForecast, run: Result, series: str) -> dict[str, Any]:
    name = run.labels.get(series, "")
    require(name in fitted.nll, "held_out", run.name, f"its {series} {name!r} has no other run to forecast from")
    compute, observed = run.values["training_flops"], run.values["core_metric"]
    predicted = float(fitted.score(name, compute))
    return {
        "run": run.name,
        "compute": compute,
        "observed": observed,
        "spread_over_seeds": run.values.get("core_metric_std"),
        "forecast": predicted,
        "error": observed - predicted,
        "interval": _interval(fitted, name, compute),
    }


def _text(payload: Mapping[str, Any], fitted: CoreForecast) -> str:
    series = list(fitted.nll)
    task = payload["tasks"][0]
    parts = [
        f"CORE from {len(payload['tasks'])} tasks: compute → answer NLL → centered accuracy → CORE",
        f"for each series and task, {task} of {series[0]} for example:",
        described(fitted.nll[series[0]][task]),
        f"for each task, {task} for example:",
        described(fitted.accuracy[task]),
        f"from the tasks to CORE, r = {fitted.conversion['r']:.4f}:",
        described(fitted.conversion),
        *_warned(payload["fits"]),
        "",
        "Training FLOPs that a CORE score needs (* outside the measured ladder, – where the forecast never reaches it; "
        f"in brackets {payload['bootstrap']['level']:.0%} intervals, with --bootstrap)",
        _needed_table(payload["needed"], series),
    ]
    if payload["at"]:
        rows = [
            [f"{entry['series']} at {entry['compute']:.3g}{'*' if entry['extrapolated'] else ''}",
             f"{entry['core']:.4f}", shown_interval(entry["interval"], ".4f")]
            for entry in payload["at"]
        ]  # fmt: skip
        parts += ["", "Forecast (* outside the measured ladder)", table(["series", "CORE", "90 %"], rows)]
    if payload["held_out"]:
        rows = [[run["run"], f"{run['observed']:.4f}", shown(run["spread_over_seeds"], ".4f"),
                 f"{run['forecast']:.4f}", f"{run['error']:+.4f}", shown_interval(run["interval"], ".4f")]
                for run in payload["held_out"]]  # fmt: skip
        headers = ["run", "observed", "± seeds", "forecast", "error", "90 % of forecast"]
        parts += ["", "Held out of every fit", table(headers, rows)]
    return "\n".join(parts)


def _warned(fits: Mapping[str, Any]) -> list[str]:
    """Warnings of the task fits, one line per law."""
    named = [(f"{series}, {task}", fit) for series, laws in fits["nll"].items() for task, fit in laws.items()]
    named += [(f"sigmoid of {task}", fit) for task, fit in fits["accuracy"].items()]
    return [f"warning: {name}: {'; '.join(fit['warnings'])}" for name, fit in named if fit["warnings"]]


def _ends(interval: Sequence[float | None]) -> str:
    return f"[{', '.join(shown(end, '.3g') for end in interval)}]"


def _needed_table(needed: Mapping[str, Any], series: Sequence[str]) -> str:
    headers = ["score", "CORE", *series, *(f"{series[0]} / {other}" for other in series[1:])]
    rows = []
    for name, entry in needed.items():
        spends = [entry["compute"][one] for one in series]
        stars = ["*" * entry["extrapolated"].get(one, False) for one in series]
        cells = [shown(spend, ".3g") + star for spend, star in zip(spends, stars, strict=True)]
        if any(entry["interval"].values()):
            cells = [f"{cell} {_ends(entry['interval'][one])}" for cell, one in zip(cells, series, strict=True)]
        ratios = [
            shown(spends[0] / spend, ".3g") + (stars[0] or star) if spends[0] and spend else shown(None)
            for spend, star in zip(spends[1:], stars[1:], strict=True)
        ]
        rows.append([name, f"{entry['core']:.3f}", *cells, *ratios])
    return table(headers, rows)
