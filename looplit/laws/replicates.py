"""Runs that repeat one another: told from runs that differ in a setting, and averaged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from looplit.errors import InputError, require
from looplit.laws.results import SETTINGS, SIZE, Result, column, having
from looplit.wording import counted

SAME_BUDGET = 0.02
"""Runs belong to one budget where their compute differs by at most this from the next (steps are whole numbers)."""

EXTENTS = ("tokens", "tokens_per_parameter", "steps", "epochs", "training_flops")
"""Settings in which replicates may differ by `SAME_BUDGET`; in the others they are equal."""


def budgets(runs: Sequence[Result]) -> dict[str, list[Result]]:
    """Runs of equal training compute, up to whole steps, under the geometric mean of the compute, lowest first."""
    ordered = sorted(having(runs, "training_flops"), key=lambda run: run.values["training_flops"])
    spends = column(ordered, "training_flops")
    for run, spend in zip(ordered, spends, strict=True):
        require(0 < spend < np.inf, "training_flops", spend, f"must be a finite number above 0 ({run.name})")
    logs = np.log(spends)
    starts = [0, *(np.flatnonzero(np.diff(logs) > SAME_BUDGET) + 1).tolist(), len(ordered)]
    return {f"{np.exp(logs[start:end].mean()):.3g}": ordered[start:end] for start, end in itertools.pairwise(starts)}


def replicates(runs: Iterable[Result], by: Sequence[str]) -> list[list[Result]]:
    """Groups of runs that are equal in the columns `by` and differ in nothing but their seed.

    Args:
        runs: Of one family.
        by: Columns that tell one point of a ladder, sweep or grid from the next; those that a run lacks play no part.

    Raises:
        InputError: A setting varies within a group; names it, the runs, and how to choose.
    """
    groups: dict[tuple[float | str | None, ...], list[Result]] = {}
    for run in runs:
        groups.setdefault(tuple(_value(run, key) for key in by), []).append(run)
    for group in groups.values():
        for key in SIZE + SETTINGS:
            _require_equal(group, key, [name for name in by if _value(group[0], name) is not None])
    return list(groups.values())


def _value(run: Result, key: str) -> float | str | None:
    return run.values.get(key, run.labels.get(key))


def _require_equal(group: Sequence[Result], key: str, by: Sequence[str]) -> None:
    have = [(run, value) for run in group if (value := _value(run, key)) is not None]
    for (first, ours), (run, theirs) in itertools.product(have[:1], have[1:]):
        if not _same(ours, theirs, SAME_BUDGET if key in EXTENTS else 1e-9):
            values = [f"{value:g}" if isinstance(value, float) else value for value in (ours, theirs)]
            raise InputError(
                f"{key} = {' and '.join(values)} in {first.name} and {run.name}: differs at equal "
                f"{', '.join(by) or 'training_flops'}; choose runs, with --where {key}={values[0]} for example"
            )


def _same(one: float | str, other: float | str, tolerance: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return bool(np.isclose(one, other, rtol=tolerance, atol=0))


def averaged(runs: Sequence[Result], by: Sequence[str] = SIZE) -> list[Result]:
    """One run in place of the replicates of each point, with the mean of every number that any of them has.

    Args:
        runs: Of one family.
        by: As in `replicates`, by default the size, so that the points are the rungs of a ladder; runs that give none
            of these columns are points of their own, apart from those of equal training compute.

    Raises:
        InputError: A setting varies within a point.
    """
    sized = [run for run in runs if any(_value(run, key) is not None for key in by)]
    others = [run for run in runs if run not in sized]
    groups = replicates(sized, by)
    groups += [found for group in (budgets(others) if others else {}).values() for found in replicates(group, ())]
    return [group[0] if len(group) == 1 else _mean(group) for group in groups]


def _mean(group: Sequence[Result]) -> Result:
    first = group[0]
    labels = {key: value for key, value in first.labels.items() if all(run.labels.get(key) == value for run in group)}
    keys = dict.fromkeys(key for run in group for key in run.values)
    values = {key: float(np.mean([run.values[key] for run in group if key in run.values])) for key in keys}
    return Result(f"{first.name} and {counted(len(group) - 1, 'replicate')}", labels, values)
