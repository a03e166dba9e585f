"""What the answers share: which runs they read, what they leave out, and how they describe a fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from looplit.errors import InputError, require
from looplit.laws.fit import LAWS, Fit
from looplit.laws.replicates import averaged, compared, require_series, unrecorded
from looplit.laws.results import Result, checked, grouped, having, read_results, without_repeats
from looplit.results import field_of, is_known, resolved
from looplit.wording import counted

Runs = str | Path | Sequence[Result]
"""A CSV table or folder that `read_results` reads, or what it gave."""

NAMED = 12
"""Settings that a note names at most."""

T = TypeVar("T")

_LOGGER = logging.getLogger("looplit.laws")  # where nothing is set up, its warnings go to stderr as they are


def chosen_runs(runs: Runs, where: Sequence[str], loss: str, *keys: str, score: str | None = None) -> list[Result]:
    """Those of the runs that meet every condition and have every one of `keys`; warns of those left out.

    Args:
        runs: To choose from.
        where: Conditions such as "family=vanilla,loop_grow", all of which hold.
        loss: Column of the loss, which must be one.
        *keys: Columns.
        score: Another column that was measured on the model.

    Raises:
        InputError: There are none, or none with a value asked for.
    """
    kept, repeats = without_repeats(read_results(runs) if isinstance(runs, str | Path) else runs)
    note_left_out([run.name for run in repeats], "the same run and result as one before")
    for condition in where:
        kept = _meeting(kept, condition)
    require_score("loss", loss)
    having(kept, loss, argument="loss")
    for run in kept:
        for key in keys:
            require(key not in run.labels, f"{key} in {run.name}", run.labels.get(key), "must be a number")
    measured = frozenset((loss, score or loss))
    kept = [replace(run, measured=measured) for run in kept]
    found = having(kept, *keys)
    for key in keys:
        note_left_out([run.name for run in kept if key not in run.values], f"without {key}")
    _note_unrecorded(found)
    checked([run for run in found if "depth" in run.values], "depth")
    return list(checked(found, *keys))


def _meeting(runs: Sequence[Result], condition: str) -> list[Result]:
    name, equals, wanted = condition.partition("=")
    name = resolved(name)
    known = sorted({key for run in runs for key in (*run.labels, *run.values) if ":" not in key})
    require(bool(equals) and name in known, "where", condition,
            f"must be COLUMN=VALUE with one of the columns {', '.join(known)}")  # fmt: skip
    groups = grouped([run for run in runs if name in run.labels or name in run.values], name)
    for value in wanted.split(","):
        require(value in groups, "where", condition, f"no run has {name} {value}; there are {', '.join(groups)}")
    return [run for run in runs if any(run in groups[value] for value in wanted.split(","))]


def runs_name(runs: Runs) -> str:
    """How messages call what an answer was to be read from."""
    return str(runs) if isinstance(runs, str | Path) else counted(len(runs), "run")


def rungs(runs: Sequence[Result]) -> list[Result]:
    """A family's runs as the points of its ladder, replicates averaged; warns of which were.

    Raises:
        InputError: A setting varies at one size, or along the ladder without following the size.
    """
    points = averaged(runs)
    means = [point.name for point in points if point not in runs]
    if means:
        _LOGGER.warning("averaged: %s", "; ".join(means))
    return points


def series_rungs(
    runs: Sequence[Result], kept_out: Sequence[Result] = (), by: str = "family"
) -> dict[str, list[Result]]:
    """The rungs of every series; what was kept out, to be held against its series' law, must be of that series too.

    Raises:
        InputError: A series is none, or series differ in what cannot be compared.
    """
    series = grouped([*runs, *kept_out], by)
    for members in series.values():
        require_series(members)
    note_compared(series, (by,))
    return {name: rungs(members) for name, members in grouped(runs, by).items()}


def _note_unrecorded(runs: Sequence[Result]) -> None:
    """Warns of the settings that no run records, so that nothing tells whether they are equal."""
    absent = unrecorded(runs)
    if absent:
        more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
        _LOGGER.warning("recorded in no run, and taken as equal: %s%s", ", ".join(absent[:NAMED]), more)


def note_compared(series: Mapping[str, Sequence[Result]], by: Sequence[str] = ("family",)) -> None:
    """Warns of the settings in which series differ that an answer holds against each other.

    Raises:
        InputError: They differ in what cannot be compared.
    """
    note_differing(compared(series, by), by)


def note_differing(differ: Sequence[str], by: Sequence[str]) -> None:
    """Warns of the settings in which runs differ that an answer holds against each other."""
    if differ:
        _LOGGER.warning("compared across %s: runs that differ in %s", ", ".join(by), ", ".join(differ))


def require_score(argument: str, key: str) -> None:
    """Refuses a column that is chosen or happens to be, where one that was measured on the model is asked for."""
    measured = not is_known(key) or field_of(key).kind == "measurement"
    require(measured, argument, key, "no loss or score; name one, as final_val_loss, core_metric or loss:copa")


def attempted(name: str, fit: Callable[[], T], not_identified: dict[str, str]) -> T | None:
    """What `fit` gives, or None where the data refuse it, with the reason under its name in `not_identified`.

    For laws beside the one that was asked for, whose refusal must not take that answer with it.
    """
    try:
        return fit()
    except InputError as error:
        not_identified[name] = str(error)
        return None


def note_left_out(names: Sequence[str], why: str) -> None:
    """Warns of what an answer does not use."""
    if names:
        _LOGGER.warning("left out, %s: %s", why, ", ".join(names))


def method(fit: Fit) -> str:
    """Equation with units; then space of the residuals, robust scale and what was held: two lines."""
    scale = "least squares, no Huber" if fit.huber_scale is None else f"Huber, scale {fit.huber_scale:.3g}"
    fixed = ", ".join(f"{name} = {value:.6g}" for name, value in fit.fixed.items()) or "nothing"
    units = ", ".join(f"{name} in {unit}" for name, unit in fit.units.items())
    return f"{LAWS[fit.law].equation}; {units}\nresiduals: {fit.space}, {scale}; held: {fixed}"


def described(fit: Fit) -> str:
    """`method`, and how the fit went; warnings follow."""
    went = f"{len(fit.observed)} points; condition number {fit.condition_number:.3g}; " \
           f"{'converged' if fit.converged else 'NOT converged'}"  # fmt: skip
    return "\n".join([f"{method(fit)}; {went}", *(f"warning: {warning}" for warning in fit.warnings)])
