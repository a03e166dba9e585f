"""Downstream loss against validation loss: what a family gains beyond its loss (growth study, C.3, Figure 19)."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from looplit.errors import require
from looplit.laws.curves import fit_line
from looplit.laws.fit import Fit
from looplit.laws.results import Result, checked, column, grouped, having
from looplit.laws.rows import check_rows
from looplit.results import unit_of

RANGES = ("all", "lower half")
"""All runs, or those in the lower half of the pooled range of validation loss."""


@dataclass(frozen=True)
class PooledResiduals:
    """One equal-weight line over all runs.

    Args:
        line: The score on validation loss.
        by_run: Residual of each run, by name.
        by_family: Mean residual of each family; negative is better than its validation loss tells.
    """

    line: Fit
    by_run: Mapping[str, float]
    by_family: Mapping[str, float]


@dataclass(frozen=True)
class TaskResiduals:
    """One task against the reference family's own line.

    Args:
        line: NLL of the task on validation loss, fitted on the reference family alone.
        means: Mean residual by range (of `RANGES`) and family.
        category: The bundle's category of the task; "" where none is known.
        beyond: Runs outside the reference family's range of validation loss, where the line is extended.
    """

    line: Fit
    means: Mapping[str, Mapping[str, float]]
    category: str
    beyond: tuple[str, ...]


def pooled_residuals(runs: Sequence[Result], loss: str = "final_val_loss", score: str = "core_loss") -> PooledResiduals:
    """Residuals of `score` from one line on `loss` through every run.

    Raises:
        InputError: Fewer than two runs have both.
    """
    runs = having(runs, loss, score)
    line = _line(runs, loss, score)
    by_run = {run.name: run.values[score] - float(line.predict(x=run.values[loss])) for run in runs}
    by_family = {
        family: float(np.mean([by_run[run.name] for run in members])) for family, members in grouped(runs).items()
    }
    return PooledResiduals(line, by_run, by_family)


def task_residuals(
    runs: Sequence[Result],
    loss: str = "final_val_loss",
    reference: str = "vanilla",
    categories: Mapping[str, str] | None = None,
) -> dict[str, TaskResiduals]:
    """Per task, each family's mean residual from the reference family's line, in order of category and task.

    Args:
        runs: Evaluated runs.
        loss: Column of validation loss.
        reference: The family whose line is the yardstick.
        categories: Category by task, from `task_categories`.

    Raises:
        InputError: The reference family has fewer than two evaluated runs.
    """
    runs = having(runs, loss)
    tasks = sorted({key.removeprefix("loss:") for run in runs for key in run.values if key.startswith("loss:")})
    require(bool(tasks), "runs", len(runs), "none has per-task losses; run the CORE evaluation first")
    middle = (min(column(runs, loss)) + max(column(runs, loss))) / 2
    found = {}
    for task in sorted(tasks, key=lambda task: ((categories or {}).get(task, ""), task)):
        evaluated = checked(having(runs, f"loss:{task}"), f"loss:{task}")
        base = [run for run in evaluated if run.family == reference]
        enough = [family for family, members in grouped(evaluated).items() if len(members) > 1]
        require(reference in enough, "reference", reference,
                f"needs two runs evaluated on {task}, as {', '.join(enough) or 'no family'} has")  # fmt: skip
        line = _line(base, loss, f"loss:{task}")
        known = column(base, loss)
        means = {
            which: {
                family: float(np.mean([_residual(line, run, loss, task) for run in members]))
                for family, members in grouped(inside).items()
            }
            for which, inside in zip(
                RANGES, (evaluated, [run for run in evaluated if run.values[loss] <= middle]), strict=True
            )
        }
        beyond = tuple(run.name for run in evaluated if not min(known) <= run.values[loss] <= max(known))
        found[task] = TaskResiduals(line, means, (categories or {}).get(task, ""), beyond)
    return found


def _line(runs: Sequence[Result], loss: str, score: str) -> Fit:
    rows = check_rows({"x": column(runs, loss)}, column(runs, score), [run.name for run in runs], what=score)
    return fit_line(rows, units={"x": f"{loss} ({unit_of(loss)})", "output": f"{score} ({unit_of(score)})"})


def _residual(line: Fit, run: Result, loss: str, task: str) -> float:
    return run.values[f"loss:{task}"] - float(line.predict(x=run.values[loss]))


def task_categories(path: str | Path) -> dict[str, str]:
    """Category of each task, from the bundle's `eval_meta_data.csv`.

    Raises:
        InputError: The file or one of its columns `Eval Task` and `Task Category` is missing.
    """
    require(Path(path).is_file(), "categories", str(path), "no such file; the bundle holds it as eval_meta_data.csv")
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("Eval Task", "Task Category"):
        require(bool(rows) and name in rows[0], "categories", str(path), f"has no column {name!r}")
    return {row["Eval Task"]: row["Task Category"] for row in rows}
