"""The power law L(C) = E + A·(C/C0)^-γ of a compute-optimal ladder (growth study, Eq. 1 and A.4.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from looplit.errors import InputError, require
from looplit.laws.fit import Array, Fit, Interval, Law, register
from looplit.laws.rows import Rows, check_rows
from looplit.laws.solve import (
    PUBLISHED_HUBER,
    Huber,
    draw_interval,
    fit_law,
    fit_linear,
    resampled_observations,
    with_draws,
)

C0_VANILLA_D8 = 1.0265e18
"""Training FLOPs of Vanilla d8 on 1B tokens, the study's base compute. Its figures use 1e18."""

POWER = register(
    Law(
        name="power",
        equation="L(C) = E + exp(log_A)·(C/C0)^-gamma",
        inputs={"compute": "training FLOPs"},
        parameters=("E", "log_A", "gamma", "C0"),
        output="nats per token",
        predict=lambda columns, p: p["E"] + np.exp(p["log_A"] - p["gamma"] * np.log(columns["compute"] / p["C0"])),
    )
)


class LadderFits(NamedTuple):
    """The floor E fitted on one family, and every family's log regression above it."""

    floor: Fit
    families: dict[str, Fit]


def power_rows(compute: ArrayLike, loss: ArrayLike, labels: Sequence[str] | None = None) -> Rows:
    """Checked ladder points: positive compute (FLOPs or seconds) and positive loss."""
    return check_rows({"compute": compute}, loss, labels, positive=("compute", "loss"))


def fit_power(
    rows: Rows,
    c0: float = C0_VANILLA_D8,
    *,
    huber: Huber | None = PUBLISHED_HUBER,
    units: Mapping[str, str] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> Fit:
    """All three parameters of the power law, E in [0, lowest loss) and γ ≥ 0, with residuals in raw loss.

    The starts are a grid of 24 floors below the lowest loss, each with its log-linear A and γ. (Residuals in log loss
    would give E = 1.693 instead of 1.7064 on the published Vanilla ladder.)

    Args:
        rows: From `power_rows`.
        c0: C0. A choice: it moves log A and nothing else.
        huber: The robust refit.
        units: Units that differ from FLOPs and nats per token.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: There are fewer than three points.
    """
    _require_positive_c0(c0)
    lowest = float(rows.observed.min())
    limits = {"E": (0.0, lowest * (1 - 1e-9)), "log_A": (-np.inf, np.inf), "gamma": (0.0, np.inf)}
    x = np.log(rows.columns["compute"] / c0)
    require(bool(np.ptp(x) > 0), "compute", float(rows.columns["compute"][0]), "all runs spend the same compute")
    starts = []
    for floor in lowest * np.linspace(0, 0.999, 24):
        slope, height = np.polyfit(x, np.log(rows.observed - floor), 1)
        starts.append({"E": float(floor), "log_A": float(height), "gamma": float(-slope)})
    return fit_law(POWER, rows, starts, limits, fixed={"C0": c0}, huber=huber, units=units,
                   bootstrap=bootstrap, seed=seed, progress=progress)  # fmt: skip


def fit_above_floor(rows: Rows, floor: float, c0: float = C0_VANILLA_D8, units: Mapping[str, str] | None = None) -> Fit:
    """log A and γ by regression of log(L - E) on log(C/C0), E held; γ's standard error is the slope's.

    Raises:
        InputError: A loss is not above the floor, or there are fewer than two points.
    """
    _require_positive_c0(c0)
    x, target = _logs(rows, floor, c0)
    design = {"log_A": np.ones_like(x), "gamma": -x}
    fit = fit_linear(POWER, rows, design, target, space="log above floor", fixed={"E": floor, "C0": c0}, units=units)
    if fit["gamma"] > 0:
        return fit
    return replace(fit, warnings=(*fit.warnings, "the loss does not fall with compute: gamma is not above 0"))


def _require_positive_c0(c0: float) -> None:
    require(0 < c0 < np.inf, "c0", c0, "must be a finite number above 0")


def _logs(rows: Rows, floor: float, c0: float) -> tuple[Array, Array]:
    below = rows.observed <= floor
    if below.any():
        named = ", ".join(rows.labels[i] for i in np.flatnonzero(below))
        raise InputError(f"loss = {rows.observed[below][0]} in {named}: must be above the floor E = {floor:.6g}")
    return np.log(rows.columns["compute"] / c0), np.log(rows.observed - floor)


def fit_ladders(
    ladders: Mapping[str, Rows],
    reference: str = "vanilla",
    c0: float = C0_VANILLA_D8,
    *,
    floor: Fit | None = None,
    units: Mapping[str, str] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    progress: bool = False,
) -> LadderFits:
    """Every ladder's exponent above one shared floor.

    In the bootstrap the floor is refitted in each draw and shared by all families of that draw, so intervals carry the
    floor's uncertainty, and differences and multipliers between families are taken draw by draw. The standard errors,
    as published, hold the floor. Where a ladder has as many rungs as parameters it has neither; where that is the
    reference, whose floor all share, no ladder has.

    Args:
        ladders: `power_rows` by family.
        reference: The family on which E is fitted.
        c0: C0.
        floor: Fit whose E (and draws of E) to take, in place of a fit on the reference: where `compute` is wall-clock,
            that of the same ladder against FLOPs.
        units: Units that differ from FLOPs and nats per token.
        bootstrap: Residual resamples behind the intervals.
        seed: Of the resampling.
        progress: Whether to show a bar.

    Raises:
        InputError: The reference is not among the ladders, or a ladder is too short.
    """
    require(reference in ladders, "reference", reference, f"must be one of {', '.join(ladders)}")
    base = ladders[reference]
    if floor is None:
        base_fit = fit_power(base, c0, units=units, bootstrap=bootstrap, seed=seed, progress=progress)
    else:
        base_fit = fit_above_floor(base, floor["E"], c0, units)
    families = {name: fit_above_floor(rows, base_fit["E"], c0, units) for name, rows in ladders.items()}
    source = floor or base_fit
    if source.freedom <= 0:
        families = {name: _without_errors(fit, reference) for name, fit in families.items()}
    if not bootstrap or source.freedom <= 0:
        return LadderFits(base_fit, families)
    known = {name: fit for name, fit in families.items() if fit.freedom > 0}
    seeds = {name: seed + 1 + i for i, name in enumerate(sorted(families))} | {reference: seed}
    resampled = {
        name: resampled_observations(base_fit if name == reference else fit, bootstrap, seeds[name])
        for name, fit in known.items()
    }
    return LadderFits(base_fit, families | _bootstrap_above(known, resampled, np.asarray(source.draws["E"])))


def _without_errors(fit: Fit, reference: str) -> Fit:
    """A law above a floor of unknown error, which its own errors would leave out."""
    parameters = tuple(replace(entry, standard_error=None) for entry in fit.parameters)
    warning = f"no standard error and no interval: the floor has none, for want of rungs of {reference}"
    return replace(fit, parameters=parameters, covariance=(), warnings=(*fit.warnings, warning))


def _bootstrap_above(
    families: Mapping[str, Fit], resampled: Mapping[str, Sequence[Array]], floors: Array
) -> dict[str, Fit]:
    """Draws of log A and γ: one regression per resampled ladder, above the floor of the same draw.

    Draws whose floor reaches a loss have no regression; they are dropped for all families alike, with a warning.
    """
    usable = [
        i for i, floor in enumerate(floors) if all(float(losses[i].min()) > floor for losses in resampled.values())
    ]
    require(bool(usable), "bootstrap", len(floors), "every draw's floor reaches a loss; the reference needs more rungs")
    dropped = len(floors) - len(usable)
    warnings = (f"{dropped} of {len(floors)} draws dropped: their floor reaches a loss",) if dropped else ()
    drawn = {}
    for name, fit in families.items():
        x = np.log(np.asarray(fit.columns["compute"]) / fit["C0"])
        slopes, heights = np.array([np.polyfit(x, np.log(resampled[name][i] - floors[i]), 1) for i in usable]).T
        fit = with_draws(fit, {"E": floors[usable], "log_A": heights, "gamma": -slopes})
        drawn[name] = replace(fit, warnings=(*fit.warnings, *warnings))
    return drawn


def exponent_gain(fit: Fit, reference: Fit) -> tuple[float, Interval | None]:
    """γ minus the reference's, and its bootstrap interval where both fits drew the same floors.

    Above zero the saving in compute grows with scale; at zero it is a constant factor.
    """
    gain = fit["gamma"] - reference["gamma"]
    if not (fit.draws and reference.draws):
        return gain, None
    drawn = np.asarray(fit.draws["gamma"]) - np.asarray(reference.draws["gamma"])
    return gain, draw_interval(drawn, fit)


def invert(fit: Fit, loss: ArrayLike) -> Array:
    """Compute at which the fitted power law reaches `loss`; infinite at or below its floor.

    >>> import numpy as np
    >>> C = np.array([1e18, 1e19, 1e20])
    >>> fit = fit_above_floor(power_rows(C, 1.7 + 1.6 * (C / 1e18) ** -0.11), 1.7, 1e18)
    >>> f"{float(invert(fit, 1.7 + 1.6 * 10**-0.11)):.4g}"
    '1e+19'
    """
    above = np.asarray(loss, float) - fit["E"]
    with np.errstate(divide="ignore"):
        exponent = (fit["log_A"] - np.log(np.where(above > 0, above, 0))) / fit["gamma"]
    with np.errstate(over="ignore"):
        return np.asarray(fit["C0"] * np.exp(exponent))


def against_forecast(fit: Fit, compute: float, observed: float) -> dict[str, Any]:
    """A held-out run beside the law's forecast: error, and the bootstrap interval where the fit has one.

    Args:
        fit: A power law that did not see the run.
        compute: The run's compute, in the fit's unit.
        observed: Its loss.
    """
    predicted = float(fit.predict(compute=compute))
    interval = [float(end) for end in fit.interval(compute=compute)] if fit.draws else None
    return {
        "compute": compute,
        "observed": observed,
        "forecast": predicted,
        "error": observed - predicted,
        "interval": interval,
        "level": fit.level,
        "extrapolated": not min(fit.columns["compute"]) <= compute <= max(fit.columns["compute"]),
    }
