"""Forecast of CORE, task by task: compute → answer NLL → accuracy → CORE (growth study, C.4)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from looplit.errors import require
from looplit.laws.curves import PROPORTION, fit_proportion
from looplit.laws.fit import Array, Fit, Interval, Law, Saved, percentile_interval, register
from looplit.laws.power import POWER
from looplit.laws.results import Result, checked, column, having
from looplit.laws.rows import check_rows
from looplit.laws.solve import Huber, fit_law, resampled_observations, tracked, with_draws

C0_FORECAST = 1e18
"""Base compute of the task laws."""

LOWEST_COMPUTE, HIGHEST_COMPUTE = 1e15, 1e32
"""Between which the compute for a score is sought."""

EXCLUDED_TASKS = (
    "commonsense_qa",
    "boolq",
    "bigbench_cs_algorithms",
    "bigbench_language_identification",
    "bigbench_repeat_copy_logic",
)
"""Tasks of CORE that the study's Vanilla-only filter leaves out; the other 17 carry the forecast."""

GPT3_CORE = {"GPT-3 2.7B": 0.329, "GPT-3 6.7B": 0.361, "GPT-3 13B": 0.385, "GPT-3 175B": 0.427}
"""Reference CORE scores of GPT-3 (growth study, Figure 4); estimates from another evaluation pipeline."""


def _sigmoid(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
    with np.errstate(over="ignore"):  # an NLL far beyond the data gives 1/(1 + inf), which is 0
        return 1 / (1 + np.exp(p["s"] * columns["nll"] - p["b"]))


SIGMOID = register(
    Law(
        name="task sigmoid",
        equation="c = 1/(1 + exp(s·B - b))",
        inputs={"nll": "nats per token of the gold answers"},
        parameters=("s", "b"),
        output="centered accuracy",
        predict=_sigmoid,
    )
)


@dataclass(frozen=True)
class TaskPoints:
    """Evaluations of one series (a family, or a corpus).

    Args:
        compute: Training FLOPs, one per checkpoint.
        nll: Answer NLL by task, one per checkpoint.
        accuracy: Centered accuracy by task.
        core: Full CORE.
        labels: Name of each checkpoint.
    """

    compute: tuple[float, ...]
    nll: Mapping[str, tuple[float, ...]]
    accuracy: Mapping[str, tuple[float, ...]]
    core: tuple[float, ...]
    labels: tuple[str, ...]

    def mean_accuracy(self, tasks: Sequence[str]) -> list[float]:
        """Mean centered accuracy over `tasks`, one per checkpoint."""
        return [float(mean) for mean in np.mean([self.accuracy[task] for task in tasks], axis=0)]


@dataclass(frozen=True)
class CoreForecast(Saved):
    """A fitted pipeline.

    Args:
        nll: Power law by series and task.
        accuracy: Sigmoid by task, shared by the series.
        conversion: CORE = r·mean of the tasks' accuracies.
    """

    nll: Mapping[str, Mapping[str, Fit]]
    accuracy: Mapping[str, Fit]
    conversion: Fit

    def score(self, series: str, compute: ArrayLike) -> Array:
        """CORE forecast of a series.

        Args:
            series: One of those fitted.
            compute: Training FLOPs.

        Raises:
            InputError: The series was not fitted.
        """
        require(series in self.nll, "series", series, f"must be one of {', '.join(self.nll)}")
        tasks = [
            self.accuracy[task].predict(nll=law.predict(compute=compute)) for task, law in self.nll[series].items()
        ]
        return self.conversion.predict(x=np.mean(tasks, axis=0))

    @property
    def drawn(self) -> bool:
        """Whether every part has bootstrap draws, so that there are intervals."""
        laws = [law for tasks in self.nll.values() for law in tasks.values()]
        return all(fit.draws for fit in (*laws, *self.accuracy.values(), self.conversion))

    def score_draws(self, series: str, compute: ArrayLike) -> Array:
        """CORE forecast under every bootstrap draw, along a new last axis, tasks taken as independent.

        Raises:
            InputError: A part was fitted without bootstrap, or on too few points for it, or the series was not fitted.
        """
        require(series in self.nll, "series", series, f"must be one of {', '.join(self.nll)}")
        laws = self.nll[series]
        total: Any = 0.0
        for task, law in laws.items():
            sigmoid = self.accuracy[task]
            total = total + SIGMOID.predict({"nll": law.predict_draws(compute=compute)}, sigmoid.draw_values())
        return np.asarray(PROPORTION.predict({"x": total / len(laws)}, self.conversion.draw_values()), float)

    def interval(self, series: str, compute: ArrayLike) -> tuple[Array, Array]:
        """Bootstrap interval of the forecast: the fits' uncertainty.

        Raises:
            InputError: As of `score_draws`.
        """
        drawn = self.score_draws(series, compute)
        return percentile_interval(drawn, self.conversion.level, self._freedom(series))

    def _freedom(self, series: str) -> int:
        return min(law.freedom for law in self.nll[series].values())

    def compute_interval(self, series: str, target: float) -> Interval:
        """Bootstrap interval of `compute_for`: each draw's curve read where it crosses `target`, on a grid.

        An end is 0 or infinite where that share of the draws is above `target` at `LOWEST_COMPUTE` already, or below
        it still at `HIGHEST_COMPUTE`.

        Raises:
            InputError: As of `score_draws`.
        """
        grid = np.linspace(np.log(LOWEST_COMPUTE), np.log(HIGHEST_COMPUTE), 200)
        curves = self.score_draws(series, np.exp(grid)).T
        crossings = [np.interp(target, curve, grid, left=-np.inf, right=np.inf) for curve in curves]
        found = np.sort(np.exp(crossings))
        # Ranks in place of interpolated quantiles, which infinities have none of.
        ranks = percentile_interval(np.arange(len(found)), self.conversion.level, self._freedom(series))
        low, high = (float(found[round(float(rank))]) for rank in ranks)
        return low, high

    def compute_for(self, series: str, target: float) -> float | None:
        """Training FLOPs at which the forecast reaches `target`; None where it does not between 1e15 and 1e32."""

        def miss(log_compute: float) -> float:
            return float(self.score(series, np.exp(log_compute))) - target

        ends = np.log([LOWEST_COMPUTE, HIGHEST_COMPUTE])
        if miss(ends[0]) > 0 or miss(ends[1]) < 0:
            return None
        return float(np.exp(brentq(miss, *ends, xtol=1e-12)))

    def crossings(self, scores: Mapping[str, float] = GPT3_CORE) -> dict[str, dict[str, float | None]]:
        """Compute at which each series reaches each score, by name of the score."""
        return {
            name: {series: self.compute_for(series, score) for series in self.nll} for name, score in scores.items()
        }

    def to_dict(self, draws: bool = True) -> dict[str, Any]:
        """A JSON-ready form."""
        return {
            "nll": {series: {task: fit.to_dict(draws) for task, fit in laws.items()}
                    for series, laws in self.nll.items()},
            "accuracy": {task: fit.to_dict(draws) for task, fit in self.accuracy.items()},
            "conversion": self.conversion.to_dict(draws),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The pipeline that `to_dict` wrote; it predicts bit for bit as before."""
        laws = {series: {task: Fit.from_dict(fit) for task, fit in tasks.items()}
                for series, tasks in plain["nll"].items()}  # fmt: skip
        sigmoids = {task: Fit.from_dict(fit) for task, fit in plain["accuracy"].items()}
        return cls(laws, sigmoids, Fit.from_dict(plain["conversion"]))


HUBER_NLL = Huber(floor=0.002, relative=False)
HUBER_ACCURACY = Huber(floor=0.005, relative=False)


def fit_task_nll(
    compute: ArrayLike, nll: ArrayLike, labels: Sequence[str] | None = None, bootstrap: int = 0, seed: int = 0
) -> Fit:
    """B(C) = E + A·(C/1e18)^-α of one task: Huber of at least 0.002, E in [0, min), A in [0, 50], α in [0.005, 2].

    A is fitted as log A, so its lower bound is 50·e^-40 in place of zero.

    Raises:
        InputError: There are fewer than three checkpoints, or a value is not positive.
    """
    rows = check_rows({"compute": compute}, nll, labels, positive=("compute", "nll"), what="nll")
    lowest = float(rows.observed.min())
    top = float(np.log(50))
    bounds = {"E": (0.0, lowest * (1 - 1e-9)), "log_A": (top - 40, top), "gamma": (0.005, 2.0)}
    x = np.log(rows.columns["compute"] / C0_FORECAST)
    starts = []
    for share, rate in itertools.product((0.0, 0.3, 0.6, 0.9), (0.02, 0.1, 0.3, 0.8)):
        reducible = float(np.mean(np.log(rows.observed - share * lowest) + rate * x))
        starts.append({"E": share * lowest, "log_A": reducible, "gamma": rate})
    units = {"output": "nats per token of the gold answers"}
    return fit_law(POWER, rows, starts, bounds, fixed={"C0": C0_FORECAST}, huber=HUBER_NLL, units=units,
                   bootstrap=bootstrap, seed=seed)  # fmt: skip


def fit_task_accuracy(
    nll: ArrayLike, accuracy: ArrayLike, labels: Sequence[str] | None = None, bootstrap: int = 0, seed: int = 0
) -> Fit:
    """c = 1/(1 + exp(s·B - b)) of one task: Huber of at least 0.005, s in [0, 20], b in [-20, 20].

    Raises:
        InputError: There are fewer than two checkpoints.
    """
    rows = check_rows({"nll": nll}, accuracy, labels, what="accuracy")
    starts = [{"s": s, "b": b} for s, b in itertools.product((0.3, 1.0, 3.0), (-2.0, 0.0, 2.0, 5.0))]
    return fit_law(SIGMOID, rows, starts, {"s": (0.0, 20.0), "b": (-20.0, 20.0)}, huber=HUBER_ACCURACY,
                   bootstrap=bootstrap, seed=seed)  # fmt: skip


def fit_forecast(
    series: Mapping[str, TaskPoints],
    tasks: Sequence[str] | None = None,
    *,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> CoreForecast:
    """The taskwise pipeline, calibrated on all series together.

    r turns the measured mean over the tasks into the measured CORE (Figure 20, last panel), so it does not depend on
    the other two steps.

    Args:
        series: Checkpoints by architecture or by corpus. Held-out runs must not be among them.
        tasks: Tasks that carry the forecast; by default those evaluated, less `EXCLUDED_TASKS`.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: A task is missing in a series, or the points are too few.
    """
    chosen = _chosen_tasks(series, tasks)
    labels = [label for points in series.values() for label in points.labels]
    seeds = iter(range(seed, seed + (len(series) + 1) * len(chosen) + 1))
    pairs = tracked([(name, task) for task in chosen for name in series], progress, "task laws")
    laws: dict[str, dict[str, Fit]] = {name: {} for name in series}
    for name, task in pairs:
        points = series[name]
        laws[name][task] = fit_task_nll(points.compute, points.nll[task], points.labels, bootstrap, next(seeds))
    sigmoids = {}
    for task in tracked(chosen, progress, "task sigmoids"):
        nll = [value for points in series.values() for value in points.nll[task]]
        accuracy = [value for points in series.values() for value in points.accuracy[task]]
        sigmoids[task] = fit_task_accuracy(nll, accuracy, labels, bootstrap, next(seeds))
    means = [value for points in series.values() for value in points.mean_accuracy(chosen)]
    core = [value for points in series.values() for value in points.core]
    rows = check_rows({"x": means}, core, labels, what="CORE")
    conversion = fit_proportion(rows, {"x": f"mean centered accuracy of {len(chosen)} tasks", "output": "CORE"})
    if bootstrap:
        x = np.asarray(conversion.columns["x"])
        drawn = [x @ core / (x @ x) for core in resampled_observations(conversion, bootstrap, next(seeds))]
        conversion = with_draws(conversion, {"r": np.array(drawn)})
    return CoreForecast(laws, sigmoids, conversion)


def _chosen_tasks(series: Mapping[str, TaskPoints], tasks: Sequence[str] | None) -> list[str]:
    require(bool(series), "series", "none", "at least one series must have been evaluated")
    known = {name: set(points.nll) & set(points.accuracy) for name, points in series.items()}
    chosen = list(tasks) if tasks else sorted(set().union(*known.values()) - set(EXCLUDED_TASKS))
    require(bool(chosen), "tasks", chosen, "no task has both an NLL and an accuracy")
    for name, have in known.items():
        missing = sorted(set(chosen) - have)
        rule = f"{name} was evaluated on {', '.join(sorted(have)) or 'none'}"
        require(not missing, "tasks", ", ".join(missing), rule)
    return chosen


def task_points(runs: Sequence[Result]) -> TaskPoints:
    """Evaluated runs of one series as points; replicates over seeds are already averaged within each task.

    Raises:
        InputError: A run was evaluated on other tasks than the first.
    """
    runs = having(runs, "training_flops", "core_metric")
    tasks = [key.removeprefix("loss:") for key in runs[0].values if key.startswith("loss:")]
    for run in runs:
        missing = [task for task in tasks if not {f"loss:{task}", f"centered:{task}"} <= run.values.keys()]
        require(not missing, "run", run.name, f"lacks results of {', '.join(missing)}")
    checked(runs, "training_flops", "core_metric", *(kind + task for task in tasks for kind in ("loss:", "centered:")))
    return TaskPoints(
        compute=tuple(column(runs, "training_flops")),
        nll={task: tuple(column(runs, f"loss:{task}")) for task in tasks},
        accuracy={task: tuple(column(runs, f"centered:{task}")) for task in tasks},
        core=tuple(column(runs, "core_metric")),
        labels=tuple(run.name for run in runs),
    )
