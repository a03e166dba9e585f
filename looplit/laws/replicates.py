"""Runs that repeat one another, or make one series: told from runs that differ in a setting, and averaged."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from looplit.errors import InputError, require
from looplit.laws.results import Result, column, having
from looplit.results import FIELDS, field_of, may_vary
from looplit.wording import counted

SAME_BUDGET = 0.02
"""Runs belong to one budget where their compute differs by at most this from the next (steps are whole numbers)."""

SIZE = ("depth", "width", "stored_parameters")
"""What tells the rungs of a ladder apart."""


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
        groups.setdefault(tuple(run.said(key) for key in by), []).append(run)
    for group in groups.values():
        known = [name for name in by if group[0].said(name) is not None]
        for key in _chosen(group):
            _require_equal(group, key, f"at equal {', '.join(known) or 'training_flops'}")
    return list(groups.values())


def require_series(runs: Sequence[Result], varied: Iterable[str] = SIZE) -> None:
    """Refuses runs that are not one series: those that differ in a setting, or of which not all record it.

    Args:
        runs: Of one ladder, sweep or grid.
        varied: Columns that differ in it by intention; what follows them (`Field.follows`) may differ too.

    Raises:
        InputError: Names the setting, the runs, and how to choose.
    """
    varied = {*varied}
    for key in _chosen(runs):
        if key not in varied and field_of(key).kind == "setting":
            _require_recorded(runs, key)
        if not may_vary(key, varied):
            _require_equal(runs, key, "in one series")


def compared(series: Mapping[str, Sequence[Result]], by: Iterable[str] = ("family",)) -> list[str]:
    """The settings in which series differ that are held against each other.

    Args:
        series: By name, each of them one by `require_series`.
        by: Columns that tell the series apart.

    Raises:
        InputError: They differ in what cannot be compared, the text for example, and not by intention.
    """
    runs, by = [run for members in series.values() for run in members], [*by]
    told = any(field_of(key).shared for key in by)
    differ = []
    for key in _chosen(runs):
        field = field_of(key)
        if field.shared and not told:
            _require_recorded(runs, key)
            _require_equal(runs, key, "among runs that are compared")
        elif key not in by and field.kind == "setting" and not may_vary(key, (*SIZE, *by)):
            said = {str(run.said(key)) for run in runs}
            differ += [field.name] if len(said) > 1 else []
    return list(dict.fromkeys(differ))


def require_recurrences(runs: Sequence[Result], grid: Sequence[str]) -> list[str]:
    """The settings in which runs of one pass differ from those of several, which are one series each.

    A model of one pass has no state to mix in and hyperparameters of its own; it is compared with the others all the
    same.

    Args:
        runs: Of a grid with `passes` among its columns.
        grid: Columns that tell its cells apart; families whose names differ in K alone are one.

    Raises:
        InputError: A setting varies within a cell, or among the runs of several passes or of one.
    """
    _require_recorded(runs, "family")
    replicates(runs, grid)
    parts = {"once": [run for run in runs if run.values["passes"] == 1]}
    parts["several times"] = [run for run in runs if run not in parts["once"]]
    for part in parts.values():
        stems = {run.family.removesuffix(f"_{run.values['passes']:g}"): run.family for run in part}
        require(
            len(stems) < 2, "family", ", ".join(stems.values()), "are several series; choose one, with --where family="
        )
        require_series(part, (*grid, "family"))
    return compared(parts, ("passes",))


def unrecorded(runs: Sequence[Result]) -> list[str]:
    """Settings that no run records, of those that every run has."""
    known = {field_of(key).name for run in runs for key in (*run.labels, *run.values)}
    return [
        field.name for field in FIELDS if field.kind == "setting" and not field.optional and field.name not in known
    ]


def _chosen(runs: Iterable[Result]) -> list[str]:
    """The sizes and settings that any of the runs records, ours first."""
    every = list(runs)
    named = dict.fromkeys(key for run in every for key in (*run.labels, *run.values) if key not in run.measured)
    order = {field.name: position for position, field in enumerate(FIELDS)}
    ours = [key for key in named if field_of(key).kind in ("size", "setting")]
    return sorted(ours, key=lambda key: order.get(field_of(key).name, len(order)))


def _require_recorded(runs: Sequence[Result], key: str) -> None:
    have = [run for run in runs if run.said(key) is not None]
    lack = [run.name for run in runs if run.said(key) is None]
    if have and lack:
        value, others = _shown(have[0], key), f" and {counted(len(lack) - 1, 'other')}" if len(lack) > 1 else ""
        raise InputError(
            f"{key} = {value} in {have[0].name}: not recorded in {lack[0]}{others}, which may differ in it; "
            f"choose runs, with --where {key}={value} for example"
        )


def _require_equal(group: Sequence[Result], key: str, where: str) -> None:
    have = [run for run in group if run.said(key) is not None]
    for first, run in itertools.product(have[:1], have[1:]):
        tolerance = SAME_BUDGET if field_of(key).extent else 1e-9
        if not _same(first.said(key), run.said(key), tolerance):
            ours, theirs = _shown(first, key), _shown(run, key)
            raise InputError(
                f"{key} = {ours} and {theirs} in {first.name} and {run.name}: differs {where}; "
                f"choose runs, with --where {key}={ours} for example"
            )


def _shown(run: Result, key: str) -> str:
    value = run.said(key)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _same(one: float | str | None, other: float | str | None, tolerance: float) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return one == other
    return bool(np.isclose(one, other, rtol=tolerance, atol=0))


def averaged(runs: Sequence[Result], by: Sequence[str] = SIZE) -> list[Result]:
    """One run in place of the replicates of each point, with the mean of every number that any of them has.

    Args:
        runs: Of one family.
        by: As in `replicates`, by default the size, so that the points are the rungs of a ladder; runs that give none
            of these columns are points of their own, apart from those of equal training compute.

    Raises:
        InputError: A setting varies within a point, or from point to point without following the size.
    """
    sized = [run for run in runs if any(run.said(key) is not None for key in by)]
    others = [run for run in runs if run not in sized]
    groups = replicates(sized, by)
    groups += [found for group in (budgets(others) if others else {}).values() for found in replicates(group, ())]
    require_series(runs, (*SIZE, *by))
    return [group[0] if len(group) == 1 else _mean(group) for group in groups]


def _mean(group: Sequence[Result]) -> Result:
    first = group[0]
    labels = {key: value for key, value in first.labels.items() if all(run.labels.get(key) == value for run in group)}
    keys = dict.fromkeys(key for run in group for key in run.values)
    values = {key: float(np.mean([run.values[key] for run in group if key in run.values])) for key in keys}
    return replace(first, name=f"{first.name} and {counted(len(group) - 1, 'replicate')}", labels=labels, values=values)
