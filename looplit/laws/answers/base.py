"""What the subcommands share: the form of an answer, common arguments, and tables on screen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from looplit.commands.arguments import natural, require_file_name
from looplit.errors import InputError, require
from looplit.laws.fit import LAWS, Fit
from looplit.laws.replicates import averaged
from looplit.laws.results import (
    CIRCUMSTANCES,
    SETTINGS,
    SIZE,
    Result,
    checked,
    grouped,
    having,
    read_results,
    resolved,
    without_repeats,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SUFFIXES = (".svg", ".png", ".pdf")
"""Of figures."""

T = TypeVar("T")


class Answer(NamedTuple):
    """What a subcommand found.

    Args:
        payload: The JSON form.
        text: The table on screen.
        draw: Makes the figure; called only where one is asked for, because it imports matplotlib.
    """

    payload: dict[str, Any]
    text: str
    draw: Callable[[], Figure]


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that every subcommand takes."""
    parser.add_argument("runs", help="CSV table, or folder of runs that holds their result.json files")
    parser.add_argument("--where", nargs="+", default=[], metavar="COLUMN=VALUE[,VALUE]",
                        help="read only such runs: family=vanilla,loop_grow corpus=fineweb, for example")  # fmt: skip
    parser.add_argument(
        "--loss", type=resolved, default="final_val_loss", help="column of the loss (default: final_val_loss)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure: .svg, .png or .pdf")


def chosen_runs(args: argparse.Namespace, *keys: str) -> list[Result]:
    """The runs that the arguments name and that have every one of `keys`; says on stderr which were left out.

    Raises:
        InputError: There are none, or none with a value asked for.
    """
    runs, repeats = without_repeats(read_results(args.runs))
    note_left_out([run.name for run in repeats], "the same run and result as one before")
    for condition in args.where:
        name, equals, wanted = condition.partition("=")
        name = resolved(name)
        known = sorted({key for run in runs for key in (*run.labels, *run.values) if ":" not in key})
        require(bool(equals) and name in known, "where", condition,
                f"must be COLUMN=VALUE with one of the columns {', '.join(known)}")  # fmt: skip
        groups = grouped([run for run in runs if name in run.labels or name in run.values], name)
        for value in wanted.split(","):
            require(value in groups, "where", condition, f"no run has {name} {value}; there are {', '.join(groups)}")
        runs = [run for run in runs if any(run in groups[value] for value in wanted.split(","))]
    require_score("loss", args.loss)
    having(runs, args.loss, argument="loss")
    for run in runs:
        for key in keys:
            require(key not in run.labels, f"{key} in {run.name}", run.labels.get(key), "must be a number")
    kept = having(runs, *keys)
    for key in keys:
        note_left_out([run.name for run in runs if key not in run.values], f"without {key}")
    checked([run for run in kept if "depth" in run.values], "depth")
    return list(checked(kept, *keys))


def rungs(runs: Sequence[Result]) -> list[Result]:
    """A family's runs as the points of its ladder, replicates averaged; says on stderr which were.

    Raises:
        InputError: A setting varies at one size, so that the runs are not a ladder.
    """
    points = averaged(runs)
    means = [point.name for point in points if point not in runs]
    if means:
        print(f"averaged: {'; '.join(means)}", file=sys.stderr)
    return points


def require_score(argument: str, key: str) -> None:
    """Refuses a column that is chosen or happens to be, where one that was measured on the model is asked for."""
    chosen = key in SIZE + SETTINGS + CIRCUMSTANCES
    require(not chosen, argument, key, "no loss or score; name one, as final_val_loss, core_metric or loss:copa")


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
    """Says on stderr what an answer does not use."""
    if names:
        print(f"left out, {why}: {', '.join(names)}", file=sys.stderr)


def bootstrap_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of subcommands whose fits can be bootstrapped."""
    parser.add_argument("--bootstrap", type=natural, default=0, metavar="N", help="resamples behind 90%% intervals")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the resampling (default: 0)")


def require_plot(path: str) -> None:
    """Refuses a figure that cannot be written, before what it is to show is computed.

    Raises:
        InputError: The suffix is not one of a figure's, or there is no such folder.
    """
    require(Path(path).suffix in SUFFIXES, "plot", path, f"must end in {', '.join(SUFFIXES)}")
    folder = Path(path).parent
    require(folder.exists(), "plot", path, f"there is no folder {folder}")
    require_file_name("plot", path)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, the first to the left and the others to the right.

    >>> print(table(["family", "γ"], [["vanilla", "0.1112"]]))
    family        γ
    vanilla  0.1112
    """
    lines = [list(map(str, headers)), *[list(map(str, row)) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    padded = (
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)


def shown(value: float | None, form: str = ".4g") -> str:
    """A number in `form`, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def shown_interval(interval: Sequence[float] | None, form: str = ".4g") -> str:
    """An interval as "[low, high]", or a dash."""
    return "–" if interval is None else f"[{interval[0]:{form}}, {interval[1]:{form}}]"


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
