"""Observations, checked before anything is fitted to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import InputError, require
from looplit.laws.fit import Array


@dataclass(frozen=True)
class Rows:
    """Checked observations in canonical order.

    Args:
        columns: By name.
        observed: One value per row.
        labels: One name per row.
        warnings: What a reader must know about the rows.
    """

    columns: Mapping[str, Array]
    observed: Array
    labels: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def check_rows(
    columns: Mapping[str, ArrayLike],
    observed: ArrayLike,
    labels: Sequence[str] | None = None,
    positive: Iterable[str] = (),
    what: str = "loss",
    distinct: bool = True,
) -> Rows:
    """The observations as sorted arrays.

    Args:
        columns: Equal-length columns by name.
        observed: The values to fit.
        labels: Name of each row in messages; "row 1", "row 2" … by default.
        positive: Names of columns that must be above zero; `what` for the observations.
        what: Word for the observations.
        distinct: Whether to refuse a row that occurs twice. Results of fits may well agree, where measurements do not.

    Raises:
        InputError: Lengths differ; a value is not finite or not positive; a row occurs twice. Names the rows.
    """
    arrays = {name: np.asarray(column, float).ravel() for name, column in columns.items()}
    values = arrays | {what: np.asarray(observed, float).ravel()}
    count = len(values[what])
    require(count > 0, what, "none", "there are no observations")
    names = tuple(labels) if labels is not None else tuple(f"row {i + 1}" for i in range(count))
    for name, column in (values | {"labels": np.arange(len(names))}).items():
        require(len(column) == count, f"len({name})", len(column), f"must equal the {count} observations")
    for name, column in values.items():
        refuse(~np.isfinite(column), name, column, names, "must be finite")
        if name in positive:
            refuse(column <= 0, name, column, names, "must be above 0")
    order = np.lexsort([values[what], *reversed(list(arrays.values()))]).tolist()
    rows = Rows({name: column[order] for name, column in arrays.items()}, values[what][order],
                tuple(names[i] for i in order))  # fmt: skip
    return replace(rows, warnings=_repeats(rows, distinct))


def refuse(wrong: Any, name: str, column: Array, labels: Sequence[str], rule: str) -> None:
    """Raises `InputError` that names the rows where `wrong` holds, and the first of their values."""
    if wrong.any():
        rows = ", ".join(label for label, bad in zip(labels, wrong, strict=True) if bad)
        raise InputError(f"{name} = {column[wrong][0]} in {rows}: {rule}")


def _repeats(rows: Rows, distinct: bool) -> tuple[str, ...]:
    """A warning on rows with equal inputs; refuses rows that are equal altogether, if they must be `distinct`."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for row, inputs in enumerate(zip(*(column.tolist() for column in rows.columns.values()), strict=True)):
        groups.setdefault(inputs, []).append(row)
    replicates = [group for group in groups.values() if len(group) > 1]
    for first, second in (pair for group in replicates for pair in itertools.pairwise(group)):
        same = rows.observed[first] == rows.observed[second]
        rule = "are the same measurement twice; leave one out"
        require(not (same and distinct), "rows", f"{rows.labels[first]}, {rows.labels[second]}", rule)
    if not replicates:
        return ()
    named = "; ".join(" and ".join(rows.labels[row] for row in group) for group in replicates)
    return (f"replicates at equal inputs, each counted as a point: {named}",)


def average_replicates(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Points in order of x, those of equal x averaged."""
    positions, groups = np.unique(np.asarray(x, float), return_inverse=True)
    return positions, np.bincount(groups, np.asarray(y, float)) / np.bincount(groups)
