"""Fitting the truncation study's law to runs: nine coefficients at once, or one law per loop count."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import InputError, require
from looplit.laws.fit import Array, Fit, Law, Parameter, register
from looplit.laws.loops.law import LoopLaw
from looplit.laws.rows import Rows, check_rows
from looplit.laws.solve import Huber, draw_interval, fit_law
from looplit.laws.twovariable import COUPLED, ROBUST, fit_coupled, size_data_rows
from looplit.wording import counted

LOOP_BOUNDS = {"c": (0.0, 10.0), "p": (0.0, 10.0), "q": (0.0, 10.0)}
START = {"c": 1.0, "p": 0.3, "q": 0.8}
"""Where the size-data coefficients of every start are fitted."""
STARTS = tuple(itertools.product((0.5, 1.5), (0.2, 0.8), (0.4, 1.2)))
"""(c, p, q) from which the joint fit begins."""


def _effective_size(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
    discount = np.exp(-p["p"] * np.log(columns["T"]) - p["q"] * np.log(columns["B"]))
    return columns["N_once"] + columns["N_rec"] * np.exp(p["c"] * (1 - discount))


def _loss(columns: Mapping[str, Any], p: Mapping[str, Any]) -> Any:
    return COUPLED.predict({"N": _effective_size(columns, p), "D": columns["D"]}, p)


LOOPS = register(
    Law(
        name="loops",
        equation="L = E + [exp(log_A)·(N_eff/N0)^-alpha + exp(log_H)·(D/D0)^-beta]^kappa, "
        "N_eff = N_once + exp(c·(1 - T^-p·B^-q))·N_rec",
        inputs={
            "N_once": "parameters of prelude and coda",
            "N_rec": "parameters of the core",
            "D": "training tokens",
            "T": "passes",
            "B": "trained passes",
        },
        parameters=(*COUPLED.parameters[:-2], "c", "p", "q", "N0", "D0"),
        output="nats per token",
        predict=_loss,
    )
)


def loop_rows(
    once: ArrayLike,
    rec: ArrayLike,
    tokens: ArrayLike,
    passes: ArrayLike,
    trained_passes: ArrayLike,
    loss: ArrayLike,
    labels: Sequence[str] | None = None,
) -> Rows:
    """Checked runs.

    Args:
        once: N_once, parameters of prelude and coda.
        rec: N_rec, parameters of the core.
        tokens: D.
        passes: T.
        trained_passes: B, from 1 to T.
        loss: Validation loss, nats per token.
        labels: Name of each run.

    Raises:
        InputError: A value is not positive and finite, or B > T.
    """
    columns = {"N_once": once, "N_rec": rec, "D": tokens, "T": passes, "B": trained_passes}
    rows = check_rows(columns, loss, labels, positive=(*columns, "loss"))
    wrong = [
        label for label, t, b in zip(rows.labels, rows.columns["T"], rows.columns["B"], strict=True) if not 1 <= b <= t
    ]
    require(not wrong, "trained_passes", ", ".join(wrong), "must be from 1 to the run's passes")
    return rows


def fit_loops(
    rows: Rows,
    n0: float = 2.4e8,
    d0: float = 2.0**30,
    *,
    hold: Mapping[str, float] | None = None,
    huber: Huber | None = ROBUST,
    units: Mapping[str, str] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Fit:
    """All nine coefficients at once, with residuals in log loss; derived: R² of the loss, and `q - 2p`.

    Full backpropagation is the better use of compute where `q - 2p` is above zero. Runs that do not tell p and q apart
    (`unidentified`) give none.

    Args:
        rows: From `loop_rows`.
        n0: N0, a reference scale held fixed.
        d0: D0.
        hold: Any of c, p and q to hold, where the runs do not tell it (`unidentified` says so).
        huber: The robust refit.
        units: Units that differ from the law's own.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: There are fewer runs than coefficients, or sizes and tokens do not vary apart.
    """
    held = dict(hold or {})
    require(set(held) <= set(LOOP_BOUNDS), "hold", sorted(held), f"must be among {', '.join(LOOP_BOUNDS)}")
    for name, value in held.items():
        low, high = LOOP_BOUNDS[name]
        require(low <= value <= high, "hold", f"{name}={value:g}", f"must be from {low:g} to {high:g}")
    free = len(COUPLED.parameters[:-2]) + len(LOOP_BOUNDS) - len(held)
    distinct = len(np.unique(np.stack(list(rows.columns.values())), axis=1).T)
    rule = f"must be at least {free} of distinct size, tokens or setting: the law has as many free coefficients"
    require(distinct >= free, "runs", distinct, rule)
    starts = _starts(rows, n0, d0, held)
    floor = float(rows.observed.min())
    endless = (-np.inf, np.inf)
    bounds = {"E": (0.0, floor * (1 - 1e-9)), "log_A": endless, "alpha": (0.0, 3.0), "log_H": endless,
              "beta": (0.0, 3.0), "kappa": (0.01, 5.0)}  # fmt: skip
    bounds |= {name: limits for name, limits in LOOP_BOUNDS.items() if name not in held}
    fit = fit_law(LOOPS, rows, starts, bounds, fixed=held | {"N0": n0, "D0": d0}, space="log", huber=huber, units=units,
                  bootstrap=bootstrap, seed=seed, progress=progress)  # fmt: skip
    untold = unidentified(rows.columns, held)
    derived = (Parameter("R2", _r_squared(fit)), *([] if untold else [_criterion(fit)]))
    return replace(fit, derived=derived, warnings=(*fit.warnings, *untold))


def fit_at_passes(rows: Rows, passes: int, **options: Any) -> Fit:
    """The law of one loop count: the runs at T = `passes` and those without loops, which anchor g(1, 1) = 1.

    At one T the factor T^-p is a free number, so this assumes nothing about how g depends on T.

    Args:
        rows: From `loop_rows`.
        passes: T.
        **options: Of `fit_loops`.

    Raises:
        InputError: No run has this T; or as `fit_loops`.
    """
    chosen = np.isin(rows.columns["T"], (1, passes))
    require(bool(np.any(rows.columns["T"] == passes)), "passes", passes, "no run has this many passes")
    picked = Rows(
        {name: column[chosen] for name, column in rows.columns.items()},
        rows.observed[chosen],
        tuple(label for label, kept in zip(rows.labels, chosen, strict=True) if kept),
    )
    return fit_loops(picked, **options)


def law_of(fit: Fit) -> LoopLaw:
    """The fitted law in the form whose optima `looplit.laws.loops` answers."""
    require(fit.law == LOOPS.name, "fit", fit.law, f"must be a fit of {LOOPS.name!r}")
    plain = {name: fit[name] for name in ("E", "alpha", "beta", "kappa", "c", "p", "q")}
    return LoopLaw(
        **plain, A=float(np.exp(fit["log_A"])), H=float(np.exp(fit["log_H"])), n0=fit["N0"], d0=fit["D0"],
        untold=unidentified(fit.columns, fit.fixed),
    )  # fmt: skip


def unidentified(columns: Mapping[str, ArrayLike], held: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """What the loop settings of the runs cannot tell of c, p and q, a sentence each.

    c·(1 - T^-p·B^-q) at k settings is k numbers, of which the directions (log T, log B) tell p and q apart. Without
    runs at (1, 1), where g = 1, one of them goes into the height of the size term.

    Args:
        columns: T and B of the runs.
        held: Coefficients that are held, and need not be told.
    """
    free = [name for name in LOOP_BOUNDS if name not in (held or {})]
    settings = np.unique(np.stack([np.asarray(columns[name], float) for name in "TB"], axis=1), axis=0)
    logs = np.log(settings[settings[:, 0] > 1])
    if len(settings) <= len(free):
        anchor = "" if len(logs) < len(settings) else " without a run at (1, 1)"
        return (f"not identified: {counted(len(logs), 'looped setting')}{anchor} cannot tell {', '.join(free)} apart",)
    if not {"p", "q"} <= set(free):
        return ()
    if np.all(logs[:, 1] == 0):
        return ("not identified: every looped run has B = 1, so nothing tells q",)
    if np.linalg.matrix_rank(logs) < 2:
        ratio = logs[0, 1] / logs[0, 0]
        mixture = "p + q" if ratio == 1 else f"p + {ratio:.3g}·q"
        return (f"not identified: every looped run has log B = {ratio:.3g}·log T, so only {mixture} is told",)
    return ()


def _starts(rows: Rows, n0: float, d0: float, held: Mapping[str, float]) -> list[dict[str, float]]:
    sizes = _effective_size(rows.columns, START | dict(held))
    base = fit_coupled(size_data_rows(sizes, rows.columns["D"], rows.observed), n0, d0, huber=None).values()
    return [base | dict(zip(LOOP_BOUNDS, start, strict=True)) | dict(held) for start in STARTS]


def _r_squared(fit: Fit) -> float:
    observed = np.asarray(fit.observed)
    missed = observed - fit.predict(**fit.columns)
    return 1 - float(missed @ missed) / float(np.sum((observed - observed.mean()) ** 2))


def _criterion(fit: Fit) -> Parameter:
    """q - 2p with its standard error, and its interval draw by draw."""
    names = [entry.name for entry in fit.parameters]
    slopes = np.array([{"q": 1.0, "p": -2.0}.get(name, 0.0) for name in names])
    error = float(np.sqrt(slopes @ np.array(fit.covariance) @ slopes)) if fit.covariance else None
    drawn: Array | None = None
    if fit.draws:
        values = fit.draw_values()
        drawn = np.broadcast_to(values["q"] - 2 * np.asarray(values["p"]), len(fit.draws["E"]))
    return Parameter("q - 2p", fit["q"] - 2 * fit["p"], error, None if drawn is None else draw_interval(drawn, fit))


def load_law(path: str | Path) -> LoopLaw:
    """The law of a fit that `Fit.save` wrote.

    Raises:
        InputError: There is no such file, or it holds no fit of this law.
    """
    require(Path(path).is_file(), "law", str(path), "no such file")
    try:
        return law_of(Fit.load(path))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"law = {str(path)!r}: holds no fit of {LOOPS.name!r} ({error})") from None
